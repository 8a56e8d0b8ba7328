//! `cargo xtask protocol` on this repository's sources, and on a page that no longer fits them.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A tree with this repository's sources and a page of its own.
fn tree() -> TempDir {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = TempDir::new().unwrap();
    symlink(repository.join("crates"), folder.path().join("crates")).unwrap();
    fs::create_dir(folder.path().join("docs")).unwrap();
    folder
}

fn protocol(tree: &TempDir, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("protocol")
        .args(more)
        .arg("--root")
        .arg(tree.path())
        .output()
        .unwrap()
}

#[test]
fn a_page_is_fresh_until_it_differs() {
    let tree = tree();
    assert!(!protocol(&tree, &["--check"]).status.success());
    assert!(protocol(&tree, &[]).status.success());
    assert!(protocol(&tree, &["--check"]).status.success());

    let page = tree.path().join("docs/protocol.md");
    let text = fs::read_to_string(&page).unwrap();
    for message in [
        "`StreamEvent`",
        "`steer_unread`",
        "`session_resize`",
        "`FullResyncRequired`",
    ] {
        assert!(text.contains(message), "{message}");
    }
    fs::write(&page, text.replacen("`StreamEvent`", "`StreamEvents`", 1)).unwrap();
    let output = protocol(&tree, &["--check"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .position(|line| line.contains("`StreamEvent`"))
        .unwrap()
        + 1;
    assert!(
        said.starts_with(&format!("docs/protocol.md:{line}: ")),
        "{said}"
    );
    assert!(said.contains("cargo xtask protocol"), "{said}");
}

#[test]
fn a_source_that_is_gone_is_named() {
    let tree = TempDir::new().unwrap();
    let output = protocol(&tree, &["--check"]);
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("crates/control/proto/quintet.proto"),
        "{said}"
    );
}
