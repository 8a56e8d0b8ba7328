//! The home folder, the configuration and the port.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

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

/// The folder that commands of the built-in worker have for /tmp, where the home folder is in that.
pub(crate) fn instead_of_temp(home: &Home) -> Option<PathBuf> {
    let (config, _) = config::load(&settings::inputs(home)).ok()?;
    quintet_runtime::instead_of_temp(home, &config.sandbox)
}

pub(super) fn temp(home: &Home) -> Option<Check> {
    let own = instead_of_temp(home)?;
    let root = home.root().display();
    Some(Check::good(
        "home in /tmp",
        format!(
            "isolated commands can't write in /tmp, because {root} is in it; their TMPDIR is {}",
            own.display()
        ),
    ))
}

/// What `sandbox.write` opens to commands that is the daemon's own.
pub(super) fn reach(home: &Home) -> Option<Check> {
    let (config, _) = config::load(&settings::inputs(home)).ok()?;
    let real = |path: &std::path::Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let root = real(home.root());
    let mut folders = config.sandbox.write.iter();
    let folder = folders.find(|folder| root.starts_with(real(folder)))?;
    Some(Check::bad(
        "home in sandbox.write",
        format!(
            "commands of the built-in worker can write in {}, and so in the home folder {}",
            folder.display(),
            home.root().display()
        ),
        "quintet config set sandbox.write '[]', or a folder that does not hold it",
    ))
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
