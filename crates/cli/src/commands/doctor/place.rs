//! The home folder, the configuration and the port.

use std::io;
use std::os::unix::fs::PermissionsExt;

use quintet_control::Client;
use quintet_runtime::config;
use quintet_runtime::home::Home;

use super::Check;
use crate::connect;
use crate::settings;

pub(super) fn home(home: &Home) -> Check {
    let root = home.root();
    let shown = root.display();
    // The nearest folder that is there decides whether the rest can be made.
    let nearest = root.ancestors().find(|path| path.exists());
    let Some(nearest) = nearest else {
        return Check::bad(
            "home",
            format!("{shown} can't be made"),
            "choose another with --home",
        )
        .needed();
    };
    if let Err(error) = tempfile_in(nearest) {
        return Check::bad(
            "home",
            format!("{} can't be written: {error}", nearest.display()),
            format!("sudo chown -R \"$USER\" {}", nearest.display()),
        )
        .needed();
    }
    if nearest != root {
        return Check::good("home", format!("{shown} will be made by `quintet up`")).needed();
    }
    let mode = root
        .metadata()
        .map(|data| data.permissions().mode() & 0o777)
        .unwrap_or(0o700);
    if mode & 0o077 != 0 {
        // `up` tightens it by itself.
        return Check::good(
            "home",
            format!("{shown} is open to others (mode {mode:o}); `quintet up` closes it"),
        )
        .needed();
    }
    Check::good("home", format!("{shown} can be written")).needed()
}

/// Whether commands of the built-in worker can write in the home folder: /tmp is theirs.
pub(crate) fn is_in_reach(home: &Home) -> bool {
    let root = home.root();
    let real = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    real.starts_with("/tmp")
}

pub(super) fn reach(home: &Home) -> Option<Check> {
    is_in_reach(home).then(|| {
        let shown = home.root().display();
        Check::bad(
            "home in /tmp",
            format!("commands of the built-in worker can write in /tmp, and so in {shown}"),
            "choose another with --home",
        )
    })
}

fn tempfile_in(folder: &std::path::Path) -> io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    accessat(
        CWD,
        folder,
        Access::WRITE_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    )?;
    Ok(())
}

pub(super) fn config(home: &Home) -> Check {
    let file = home.config_file();
    match config::load(&settings::inputs(home)) {
        Ok(_) if file.exists() => {
            Check::good("config", format!("{} is valid", file.display())).needed()
        }
        Ok(_) => Check::good("config", "there is no config.toml yet; the defaults hold").needed(),
        Err(problems) => {
            let lines: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            Check::bad(
                "config",
                lines.join("; "),
                format!("edit {}", file.display()),
            )
            .needed()
        }
    }
}

pub(super) async fn port(home: &Home) -> Check {
    if let Ok(mut daemon) = connect::dial(home).await
        && daemon.ping().await.is_ok()
        && let Some(run) = connect::run_file(home)
    {
        return Check::good(
            "port",
            format!("the daemon (pid {}) serves {}", run.pid, run.http),
        )
        .needed();
    }
    let Ok((config, _)) = config::load(&settings::inputs(home)) else {
        return Check::bad("port", "not looked at: the configuration is wrong", "");
    };
    let address = config.http.listen;
    match tokio::net::TcpListener::bind(address).await {
        Ok(_) => Check::good("port", format!("{address} is free")).needed(),
        Err(error) => Check::bad(
            "port",
            format!("{address} can't be bound: {error}"),
            "quintet config set http.listen 127.0.0.1:0",
        )
        .needed(),
    }
}
