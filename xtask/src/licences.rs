//! The licences of what is inside the binary, with their texts: what a package has to carry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const HEAD: &str = "\
Quintet is licensed under Apache-2.0. Its binary contains the libraries below, each under its own
licence. Where a licence offers a choice, Quintet uses it under any of the choices that it allows.
";

/// The binary's crate.
const ROOT: &str = "quintet-cli";

/// What the names of files with a licence begin with.
const FILES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];

/// Packages of npm whose code is in the browser UI, although npm counts them as tools.
const COMPILED_IN: [&str; 1] = ["node_modules/svelte"];

/// One library and its licence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Library {
    name: String,
    version: String,
    licence: String,
    texts: Vec<String>,
}

/// The page of all licences.
///
/// # Errors
/// When cargo does not say what the binary is made of, or a file can't be read.
pub(crate) fn render(root: &Path) -> io::Result<String> {
    let crates = crates(&metadata(root)?)?;
    let lock = fs::read_to_string(root.join("web/package-lock.json"))?;
    let packages = packages(&serde_json::from_str(&lock)?);
    Ok(page(&crates, &packages))
}

fn page(crates: &[Library], packages: &[Library]) -> String {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut texts: Vec<&str> = Vec::new();
    let mut page = HEAD.to_owned();
    page.push_str("\nRust crates; the numbers are those of the texts at the end\n\n");
    for library in crates {
        let mut used = Vec::new();
        for text in &library.texts {
            // The same words, however they are wrapped.
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let number = *numbers.entry(words).or_insert_with(|| {
                texts.push(text);
                texts.len()
            });
            used.push(number.to_string());
        }
        let Library {
            name,
            version,
            licence,
            ..
        } = library;
        let _ = writeln!(page, "  {name} {version}: {licence} [{}]", used.join(", "));
    }
    page.push_str("\nPackages in the browser UI\n\n");
    for Library {
        name,
        version,
        licence,
        ..
    } in packages
    {
        let _ = writeln!(page, "  {name} {version}: {licence}");
    }
    for (index, text) in texts.iter().enumerate() {
        let _ = write!(page, "\n{:=<80}\n[{}]\n\n{}\n", "", index + 1, text.trim());
    }
    page
}

fn metadata(root: &Path) -> io::Result<Value> {
    let platform = host()?;
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            &platform,
        ])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn host() -> io::Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| io::Error::other("rustc does not say its host"))
}

/// What the binary links: everything that it reaches without dependencies of tests and builds.
fn crates(metadata: &Value) -> io::Result<Vec<Library>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let mut next: Vec<String> = packages
        .values()
        .filter(|package| package["name"] == ROOT)
        .map(|package| text(&package["id"]))
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = next.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        for dependency in list(&nodes.get(&id).unwrap_or(&Value::Null)["deps"]) {
            if list(&dependency["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"].is_null())
            {
                next.push(text(&dependency["pkg"]));
            }
        }
    }
    let mut found = Vec::new();
    for package in seen.iter().filter_map(|id| packages.get(id)) {
        // Those of this repository have no source.
        if package["source"].is_null() {
            continue;
        }
        let folder = text(&package["manifest_path"]);
        let folder = Path::new(&folder).parent().unwrap_or(Path::new("/"));
        found.push(Library {
            name: text(&package["name"]),
            version: text(&package["version"]),
            licence: text(&package["license"]),
            texts: texts(folder)?,
        });
    }
    found.sort();
    match found.is_empty() {
        true => Err(io::Error::other(format!(
            "cargo knows no dependencies of {ROOT}"
        ))),
        false => Ok(found),
    }
}

fn texts(folder: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<_> = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.path().is_file())
        .filter(|entry| {
            let name = entry.file_name().to_string_lossy().to_uppercase();
            FILES.iter().any(|known| name.starts_with(known))
        })
        .map(|entry| entry.path())
        .collect();
    names.sort();
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    names.iter().map(read).collect()
}

/// The packages of npm that the browser UI is built of.
fn packages(lock: &Value) -> Vec<Library> {
    let none = serde_json::Map::new();
    let all = lock["packages"].as_object().unwrap_or(&none);
    let shipped = all.iter().filter(|(path, package)| {
        let is_tool = package["dev"] == true || package["optional"] == true;
        !path.is_empty() && (!is_tool || COMPILED_IN.contains(&path.as_str()))
    });
    let mut found: Vec<Library> = shipped
        .filter_map(|(path, package)| {
            Some(Library {
                name: path.rsplit("node_modules/").next()?.to_owned(),
                version: package["version"].as_str()?.to_owned(),
                licence: package["license"].as_str().unwrap_or_default().to_owned(),
                texts: Vec::new(),
            })
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_only_tests_and_builds_need_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["used", "deeper", "tests", "builds"] {
            let crate_folder = folder.path().join(name);
            fs::create_dir(&crate_folder).expect("its folder");
            fs::write(crate_folder.join("LICENSE-MIT"), "the same words\n").expect("its licence");
        }
        fs::write(folder.path().join("used/LICENSE-MIT"), "the same\nwords").expect("its licence");
        let package = |name: &str, source: Option<&str>| {
            let manifest = folder.path().join(name).join("Cargo.toml");
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT",
                   "source": source, "manifest_path": manifest})
        };
        let needs =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("quintet-cli", None), package("used", Some("registry")),
                package("deeper", Some("registry")), package("tests", Some("registry")),
                package("builds", Some("registry")),
            ],
            "resolve": {"nodes": [
                {"id": "quintet-cli", "deps": [
                    needs("used", None), needs("tests", Some("dev")), needs("builds", Some("build"))
                ]},
                {"id": "used", "deps": [needs("deeper", None)]},
            ]},
        });
        let found = crates(&metadata).expect("it is read");
        let names: Vec<&str> = found.iter().map(|library| library.name.as_str()).collect();
        assert_eq!(names, ["deeper", "used"]);

        let lock = json!({"packages": {
            "": {"version": "0.0.0"},
            "node_modules/@a/b": {"version": "2.0.0", "license": "ISC"},
            "node_modules/test": {"version": "3.0.0", "license": "MIT", "dev": true},
            "node_modules/svelte": {"version": "5.0.0", "license": "MIT", "dev": true},
        }});
        let page = page(&found, &packages(&lock));
        assert!(
            page.contains("  deeper 1.0.0: MIT [1]\n  used 1.0.0: MIT [1]\n"),
            "{page}"
        );
        assert!(
            page.contains("  @a/b 2.0.0: ISC\n  svelte 5.0.0: MIT\n"),
            "{page}"
        );
        assert_eq!(page.matches("the same").count(), 1, "{page}");
        assert!(!page.contains("test 3.0.0"), "{page}");
    }
}
