//! The layering check on small trees: a clean one passes, and each rule is broken once.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A repository that breaks no rule, to be broken by one file.
struct Tree {
    folder: TempDir,
}

struct Outcome {
    success: bool,
    output: String,
}

const ROOT: &str = r#"
[workspace]
members = ["crates/*"]
exclude = ["bench"]

[workspace.dependencies]
quintet-framing = { path = "crates/framing" }
quintet-control = { path = "crates/control" }
ctl = { package = "quintet-control", path = "crates/control" }
quintet-agent = { path = "crates/agent" }
quintet-runtime = { path = "crates/runtime" }
"#;

impl Tree {
    fn clean() -> Self {
        let tree = Self {
            folder: TempDir::new().unwrap(),
        };
        tree.write("Cargo.toml", ROOT);
        tree.add_crate("framing", &[]);
        tree.add_crate("control", &["quintet-framing"]);
        tree.add_crate("agent", &["quintet-framing"]);
        tree.add_crate("runtime", &["quintet-control", "quintet-agent"]);
        tree.add_crate(
            "cli",
            &["quintet-runtime", "quintet-control", "quintet-agent"],
        );
        tree.write(
            "crates/cli/src/commands/ping.rs",
            "use std::env;\nuse quintet_control::Ping;\n",
        );
        tree.write(
            "crates/control/src/proto/codec.rs",
            "use std::time::{Duration, Instant};\n",
        );
        tree
    }

    fn with(path: &str, text: &str) -> Self {
        let tree = Self::clean();
        tree.write(path, text);
        tree
    }

    fn add_crate(&self, name: &str, dependencies: &[&str]) {
        self.write(
            &format!("crates/{name}/Cargo.toml"),
            &manifest(name, dependencies),
        );
        self.write(&format!("crates/{name}/src/lib.rs"), "//! What it is.\n");
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn check(&self) -> Outcome {
        run(self.folder.path())
    }

    /// The check fails and says exactly this, each as `file:line: rule`.
    #[track_caller]
    fn reports(&self, wanted: &[&str]) {
        let Outcome { success, output } = self.check();
        let found: Vec<&str> = output
            .lines()
            .filter(|line| !line.starts_with("    fix: ") && !line.starts_with("layering: "))
            .map(|line| {
                line.match_indices(": ")
                    .nth(1)
                    .map_or(line, |(end, _)| &line[..end])
            })
            .collect();
        assert_eq!(found, wanted, "{output}");
        assert_eq!(
            output.matches("    fix: ").count(),
            wanted.len(),
            "{output}"
        );
        assert_eq!(success, wanted.is_empty(), "{output}");
    }
}

fn manifest(name: &str, dependencies: &[&str]) -> String {
    let lines: String = dependencies
        .iter()
        .map(|d| format!("{d}.workspace = true\n"))
        .collect();
    format!("[package]\nname = \"quintet-{name}\"\n[dependencies]\n{lines}")
}

fn run(root: &Path) -> Outcome {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["layering", "--root"])
        .arg(root)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    Outcome {
        success: output.status.success(),
        output: String::from_utf8(text).unwrap(),
    }
}

#[test]
fn a_clean_tree_passes() {
    Tree::clean().reports(&[]);
}

#[test]
fn framing_depends_on_nothing_of_ours() {
    Tree::with(
        "crates/framing/Cargo.toml",
        &manifest("framing", &["quintet-control"]),
    )
    .reports(&["crates/framing/Cargo.toml:4: dependencies"]);
}

#[test]
fn a_plane_does_not_depend_on_another() {
    Tree::with(
        "crates/agent/Cargo.toml",
        &manifest("agent", &["quintet-control"]),
    )
    .reports(&["crates/agent/Cargo.toml:4: dependencies"]);
}

#[test]
fn a_renamed_dependency_is_recognised() {
    Tree::with("crates/agent/Cargo.toml", &manifest("agent", &["ctl"]))
        .reports(&["crates/agent/Cargo.toml:4: dependencies"]);
    let renamed = "[package]\nname = \"quintet-agent\"\n[target.'cfg(unix)'.dev-dependencies]\n\
                   other = { package = \"quintet-control\", path = \"../control\" }\n";
    Tree::with("crates/agent/Cargo.toml", renamed)
        .reports(&["crates/agent/Cargo.toml:4: dependencies"]);
}

#[test]
fn a_plane_does_not_reach_another_through_a_third_crate() {
    let tree = Tree::clean();
    tree.add_crate("bridge", &["quintet-control"]);
    tree.write(
        "crates/agent/Cargo.toml",
        &manifest("agent", &["quintet-bridge"]),
    );
    tree.reports(&["crates/agent/Cargo.toml:4: dependencies"]);
}

#[test]
fn a_plane_does_not_look_up() {
    let tree = Tree::clean();
    tree.add_crate("channel", &["quintet-runtime"]);
    tree.reports(&["crates/channel/Cargo.toml:4: dependencies"]);
}

#[test]
fn nothing_depends_on_the_program() {
    Tree::with(
        "crates/runtime/Cargo.toml",
        &manifest("runtime", &["quintet-cli"]),
    )
    .reports(&["crates/runtime/Cargo.toml:4: dependencies"]);
}

#[test]
fn only_runtime_and_cli_know_two_planes() {
    let tree = Tree::clean();
    tree.add_crate("bridge", &["quintet-control", "quintet-agent"]);
    tree.reports(&["crates/bridge/Cargo.toml:5: dependencies"]);
}

#[test]
fn a_command_uses_one_plane() {
    let both = "use quintet_control::Ping;\n\nfn run() {\n    quintet_agent::start();\n}\n";
    Tree::with("crates/cli/src/commands/mix.rs", both)
        .reports(&["crates/cli/src/commands/mix.rs:4: one-plane-per-command"]);
    Tree::with("crates/cli/src/serve.rs", both).reports(&[]);
}

#[test]
fn proto_has_no_outside_world() {
    for (line, text) in [
        (1, "use tokio::sync::mpsc;"),
        (1, "use tokio_util::codec::Decoder;"),
        (1, "use std::net::TcpStream;"),
        (1, "use std::{collections::BTreeMap, fs};"),
        (1, "fn f() { ::std::process::id(); }"),
        (1, "use std::thread;"),
        (1, "const HOME: fn() = || drop(std::env::var(\"HOME\"));"),
        (
            3,
            "use std::time::Instant;\nfn f() {\n    Instant::now();\n}",
        ),
        (2, "// SystemTime\nuse std::time::SystemTime;"),
    ] {
        let file = "crates/agent/src/wire/proto/state.rs";
        let tree = Tree::with(file, text);
        let output = tree.check().output;
        assert!(
            output.contains(&format!("{file}:{line}: pure-proto: ")),
            "{text}\n{output}"
        );
        assert!(!tree.check().success);
    }
}

#[test]
fn proto_tests_may_use_the_clock() {
    let text = "/// `std::fs` is not used.\nconst A: &str = \"std::net\";\n\
                #[cfg(test)]\nmod tests { fn f() { std::time::Instant::now(); } }\n\
                #[cfg(test)]\nmod golden;\n";
    let tree = Tree::with("crates/agent/src/proto/state.rs", text);
    tree.write("crates/agent/src/proto/state/golden.rs", "use std::fs;\n");
    tree.reports(&[]);
}

#[test]
fn libraries_are_quiet() {
    for text in [
        "use std::env;",
        "fn f() { std::env::temp_dir(); }",
        "fn f() { std::io::stdout(); }",
        "use std::io;\nfn f() { io::stderr(); }",
        "use tokio::io::stdin;",
        "use std::io::IsTerminal;",
        "use crossterm::event::Event;",
        "fn f() { etcetera::home_dir(); }",
        "fn f() { println!(\"a\"); }",
        "fn f() { std::eprintln!(\"a\"); }",
    ] {
        let tree = Tree::with("crates/runtime/src/store.rs", text);
        let Outcome { success, output } = tree.check();
        let line = text.lines().count();
        let wanted = format!("crates/runtime/src/store.rs:{line}: quiet-library: ");
        assert!(output.contains(&wanted) && !success, "{text}\n{output}");
    }
}

#[test]
fn programs_tests_and_build_scripts_may_speak() {
    let tree = Tree::clean();
    let text = "use std::env;\nfn f() { println!(\"{:?}\", env::args()); }\n";
    for path in [
        "cli/src/main.rs",
        "agent/build.rs",
        "agent/tests/t.rs",
        "agent/examples/e.rs",
    ] {
        tree.write(
            &format!("crates/{path}"),
            &format!("//! A program.\n{text}"),
        );
    }
    let library = "fn f(c: Child) { c.stdout.take(); let _ = std::env::consts::ARCH; }\n\
                   #[cfg(test)]\nmod tests { fn f() { println!(); } }\n";
    tree.write("crates/agent/src/child.rs", library);
    tree.reports(&[]);
}

#[test]
fn names_tell_what_is_inside() {
    for file in [
        "src/util.rs",
        "src/utils/mod.rs",
        "tests/common/mod.rs",
        "src/a/misc/b.rs",
    ] {
        let file = format!("crates/agent/{file}");
        Tree::with(&file, "").reports(&[&format!("{file}:1: telling-names")]);
    }
    Tree::with("crates/agent/src/a.rs", "\nmod helpers {\n}\n")
        .reports(&["crates/agent/src/a.rs:2: telling-names"]);
    Tree::with("web/src/lib/utils.ts", "").reports(&["web/src/lib/utils.ts:1: telling-names"]);
    let tree = Tree::clean();
    tree.add_crate("common", &[]);
    tree.reports(&[
        "crates/common/Cargo.toml:2: telling-names",
        "crates/common/src/lib.rs:1: telling-names",
    ]);
}

#[test]
fn files_stay_under_800_lines() {
    let lines = "\n".repeat(801);
    for file in [
        "crates/agent/src/long.rs",
        "web/src/App.svelte",
        "web/a.ts",
        "sdk/python/a.py",
    ] {
        Tree::with(file, &lines).reports(&[&format!("{file}:801: file-length")]);
        Tree::with(file, &lines[..800]).reports(&[]);
    }
    Tree::with("web/node_modules/a.ts", &lines).reports(&[]);
    Tree::with(
        "web/src/wire.ts",
        &format!("// @generated from Rust\n{lines}"),
    )
    .reports(&[]);
}

#[test]
fn crates_say_what_they_are() {
    for text in ["", "pub mod a;\n//! late\n", "// no doc\n", "//!\n"] {
        Tree::with("crates/agent/src/lib.rs", text)
            .reports(&["crates/agent/src/lib.rs:1: crate-docs"]);
    }
    Tree::with(
        "crates/agent/src/lib.rs",
        "#![forbid(unsafe_code)]\n//! An agent.\n",
    )
    .reports(&[]);
    Tree::with("bench/Cargo.toml", "[package]\nname = \"bench\"\n")
        .reports(&["bench/Cargo.toml:1: crate-docs"]);
}

#[test]
fn what_a_manifest_declares_is_named_in_a_source_file() {
    let tree = Tree::with(
        "crates/agent/Cargo.toml",
        &manifest("agent", &["two-words", "bytes"]),
    );
    tree.write("crates/agent/src/a.rs", "use megabytes::A;\n");
    tree.write("crates/cli/src/b.rs", "use bytes::B;\n");
    tree.reports(&[
        "crates/agent/Cargo.toml:4: used-dependencies",
        "crates/agent/Cargo.toml:5: used-dependencies",
    ]);
    tree.write("crates/agent/src/a.rs", "use two_words::A;\n");
    tree.write("crates/agent/tests/t.rs", "fn f() { bytes::B; }\n");
    tree.reports(&[]);
}

#[test]
fn every_foreign_crate_has_its_sentence_and_no_other_has_one() {
    let tree = Tree::with(
        "Cargo.toml",
        &format!("{ROOT}bytes = \"1\"\nserde = \"1\"\n"),
    );
    tree.reports(&[]);
    let rows = |rows: &str| {
        let page = format!(
            "# Why\n\n| crate | why |\n|---|---|\n{rows}\n| package | why |\n|---|---|\n| svelte | The page. |\n"
        );
        tree.write("docs/dependencies.md", &page);
    };
    rows("| bytes, serde (feature `derive`) | Both. |\n");
    tree.reports(&[]);
    rows("| bytes | One. |\n");
    tree.reports(&["Cargo.toml:13: explained-dependencies"]);
    rows("| bytes, serde | Both. |\n| bytes | Again. |\n| gone | It was. |\n");
    tree.reports(&[
        "docs/dependencies.md:6: explained-dependencies",
        "docs/dependencies.md:7: explained-dependencies",
    ]);
}

#[test]
fn workspaces_beside_the_main_one_are_compiled_as_it_is() {
    let profile = "[profile.dev]\ndebug = 1\n[profile.dev.package]\nbytes = { opt-level = 3 }\n";
    let bench =
        |profile: &str| format!("[package]\nname = \"quintet-bench\"\n[workspace]\n{profile}");
    let tree = Tree::with("Cargo.toml", &format!("{ROOT}{profile}"));
    tree.write("bench/src/main.rs", "//! What it is.\n");
    tree.write("bench/Cargo.toml", &bench(profile));
    tree.reports(&[]);
    tree.write("bench/Cargo.toml", &bench("[profile.dev]\ndebug = 1\n"));
    tree.reports(&["bench/Cargo.toml:1: same-profile"]);
}

#[test]
fn a_tree_that_cannot_be_read_is_no_success() {
    let empty = TempDir::new().unwrap();
    let Outcome { success, output } = run(empty.path());
    assert!(!success && output.contains("Cargo.toml"), "{output}");
}
