//! Git's settings of the user, for commands that may not read the user's home folder.
//!
//! Git ends with an error where there are settings that it may not read. Commands get a copy of
//! those that it works and commits with. What may hold a secret (`credential`, `url`, `http`) or
//! names a program or a file that is out of reach (`gpg`, `include`, `init.templateDir`) stays out.

use std::ffi::OsString;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::isolate::IsolationConfig;

/// Where git looks for the user's settings; of 2.32.
const VARIABLE: &str = "GIT_CONFIG_GLOBAL";

/// What is copied; git gives keys in lower case.
const KEPT: [&str; 26] = [
    "author.email",
    "author.name",
    "committer.email",
    "committer.name",
    "core.autocrlf",
    "core.eol",
    "core.quotepath",
    "core.safecrlf",
    "core.whitespace",
    "diff.algorithm",
    "diff.renames",
    "fetch.prune",
    "init.defaultbranch",
    "merge.conflictstyle",
    "merge.ff",
    "pull.ff",
    "pull.rebase",
    "push.autosetupremote",
    "push.default",
    "rebase.autosquash",
    "rebase.autostash",
    "rebase.updaterefs",
    "rerere.enabled",
    "safe.directory",
    "user.email",
    "user.name",
];

/// Lists of paths that git reads beside its settings: the key, the name in the copy, and the path
/// in the home folder where no key says another.
const LISTS: [(&str, &str, &str); 2] = [
    ("core.excludesfile", "ignore", ".config/git/ignore"),
    (
        "core.attributesfile",
        "attributes",
        ".config/git/attributes",
    ),
];

/// The largest list that is copied.
const MAX_LIST: u64 = 1 << 20;

/// How long git may take to list its settings.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets confined commands have the settings: copied to `folder`, as they are now. Where the home
/// folder may be read, git reads it itself.
pub(super) async fn hand_over(
    folder: PathBuf,
    env: &mut Vec<(OsString, OsString)>,
    isolation: &mut IsolationConfig,
) -> io::Result<()> {
    let home = env.iter().find(|(name, _)| name == "HOME");
    let Some(home) = home.map(|(_, home)| PathBuf::from(home)) else {
        return Ok(());
    };
    let opened = isolation.read.iter().chain(&isolation.write);
    if opened.into_iter().any(|opened| home.starts_with(opened)) {
        return Ok(());
    }
    let Some(listed) = listed(env).await else {
        return Ok(());
    };
    let config = folder.join("config");
    let copied = folder.clone();
    tokio::task::spawn_blocking(move || copy(&listed, &home, &copied)).await??;
    env.retain(|(name, _)| name != VARIABLE);
    env.push((VARIABLE.into(), config.into()));
    isolation.read.push(folder);
    Ok(())
}

/// The user's settings, as git lists them; `None` without git.
async fn listed(env: &[(OsString, OsString)]) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.args(["config", "--null", "--list"])
        .current_dir("/")
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, git.output()).await.ok()?;
    output
        .inspect_err(|error| tracing::debug!(%error, "git's settings are not copied"))
        .ok()
        .map(|output| output.stdout)
}

fn copy(listed: &[u8], home: &Path, folder: &Path) -> io::Result<()> {
    let settings = settings(listed);
    std::fs::create_dir_all(folder)?;
    let mut config = String::new();
    for (key, value) in &settings {
        if KEPT.contains(&key.as_str()) {
            config.push_str(&entry(key, value));
        }
    }
    for (key, name, usual) in LISTS {
        let named = settings.iter().rev().find(|(it, _)| it == key);
        let named = named.map(|(_, path)| path.as_str());
        let list = match named.map(|path| (path, path.strip_prefix("~/"))) {
            None => home.join(usual),
            Some((_, Some(beneath))) => home.join(beneath),
            Some((path, None)) => home.join(path),
        };
        let mut text = Vec::new();
        if let Ok(file) = std::fs::File::open(list) {
            // One that can't be read whole is none.
            if file.take(MAX_LIST).read_to_end(&mut text).is_err() {
                text.clear();
            }
        }
        let copied = folder.join(name);
        std::fs::write(&copied, text)?;
        config.push_str(&entry(key, &copied.to_string_lossy()));
    }
    std::fs::write(folder.join("config"), config)
}

/// Keys and values of a list that is separated by NULs, where a key without a value stands for
/// `true`.
fn settings(listed: &[u8]) -> Vec<(String, String)> {
    listed
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .filter(|entry| !entry.is_empty())
        .map(|entry| match entry.split_once('\n') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => (entry.into_owned(), "true".to_owned()),
        })
        .collect()
}

/// A setting as a file has it.
fn entry(key: &str, value: &str) -> String {
    let (section, name) = key.split_once('.').unwrap_or((key, ""));
    let value = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("[{section}]\n\t{name} = \"{value}\"\n")
}
