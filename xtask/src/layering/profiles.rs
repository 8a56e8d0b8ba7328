//! The rule on the workspaces beside the main one: they compile as it does, because what is compiled
//! with another setting is compiled again.

use std::fs;
use std::io;
use std::path::Path;

use toml::Table;

use super::Broken;

const BESIDE: [&str; 2] = ["fuzz/Cargo.toml", "bench/Cargo.toml"];

pub(super) fn check(root: &Path) -> io::Result<Vec<Broken>> {
    let main = dev_profile(&root.join("Cargo.toml"))?;
    let mut broken = Vec::new();
    for manifest in BESIDE {
        let own = match dev_profile(&root.join(manifest)) {
            // A repository may have neither.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            own => own?,
        };
        if own != main {
            broken.push(Broken {
                file: manifest.into(),
                line: 1,
                rule: "same-profile",
                what: "its [profile.dev] is not that of the main workspace, so that `./test` \
                       compiles what both use twice"
                    .to_owned(),
                fix: "copy [profile.dev] with its tables from the main Cargo.toml".to_owned(),
            });
        }
    }
    Ok(broken)
}

/// `[profile.dev]` with everything in it; empty where there is none.
fn dev_profile(manifest: &Path) -> io::Result<Table> {
    let mut table: Table = fs::read_to_string(manifest)?
        .parse()
        .map_err(io::Error::other)?;
    let mut part = |name: &str| match table.remove(name) {
        Some(toml::Value::Table(inner)) => table = inner,
        _ => table = Table::new(),
    };
    part("profile");
    part("dev");
    Ok(table)
}
