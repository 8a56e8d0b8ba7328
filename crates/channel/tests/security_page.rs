//! docs/security.md names a test for each claim: every one of them has to exist, where it says.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
}

#[test]
fn every_test_that_the_security_page_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let mut code = Vec::new();
    sources(&root.join("crates"), &mut code);
    let named: Vec<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.contains("::") && !name.starts_with("web::"))
        .filter(|name| !name.ends_with("::") && *name != "file::test")
        .collect();
    assert!(named.len() > 60, "{named:?}");
    for name in named {
        let (file, test) = name.rsplit_once("::").unwrap();
        let file = file.strip_prefix("stories::").unwrap_or(file);
        // The file of the name before it.
        let file = format!("{}.rs", file.trim_start_matches('…'));
        let defined = format!("fn {test}(");
        let exists = code.iter().any(|(path, text)| {
            (file == ".rs" || path.ends_with(&file)) && text.contains(&defined)
        });
        assert!(exists, "{name} is no test");
    }
    let browsers: Vec<(&str, &str)> = page
        .split("`web::")
        .filter_map(|rest| rest.split_once("` \""))
        .filter(|(file, _)| !file.contains('`'))
        .filter_map(|(file, rest)| Some((file, rest.split_once('"')?.0)))
        .collect();
    assert!(browsers.len() >= 8, "{browsers:?}");
    for (file, title) in browsers {
        let path = match file.strip_prefix("browser/") {
            Some(file) => format!("web/tests/browser/{file}.ts"),
            None => format!("web/src/lib/channel/{file}.ts"),
        };
        let text = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
        let exists = title.split('…').all(|part| text.contains(part));
        assert!(exists, "{path} has no test {title:?}");
    }
}
