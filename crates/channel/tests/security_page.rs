//! docs/security.md names a test for each claim: every one of them has to exist.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut String) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_that_the_security_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let mut code = String::new();
    for folder in [
        "crates/channel",
        "crates/runtime/src/channel",
        "crates/cli/tests/stories/channel",
    ] {
        sources(&root.join(folder), &mut code);
    }
    let named: Vec<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.contains("::") && !name.starts_with("web::"))
        .filter_map(|name| name.rsplit("::").next())
        .filter(|name| !name.is_empty() && *name != "test")
        .collect();
    assert!(named.len() > 30, "{named:?}");
    for name in named {
        assert!(code.contains(&format!("fn {name}(")), "{name} is no test");
    }
}
