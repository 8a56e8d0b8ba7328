//! The configuration: files, variables and requests that people wrote.

// It takes little of the runtime, so the fuzzer builds it by itself.
#[path = "../../crates/runtime/src/config/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the runtime uses what the fuzzer does not"
)]
mod core;

use std::fs;
use std::path::{Path, PathBuf};

use core::units::{ByteSize, format_duration, parse_duration};
use core::{ConfigErrors, ConfigInputs, ConfigStore, KeyPath, load, parse_rules, rules_of_json};
use jiff::tz::TimeZone;
use tempfile::TempDir;

use crate::choices::Choices;

thread_local! {
    /// In memory where there is such a folder: a change of the file is synced to its disk.
    static HOME: TempDir = {
        let home = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new());
        let home = home.expect("a temporary folder");
        fs::create_dir(home.path().join("agents")).expect("a folder");
        home
    };
}

/// A secret that must not be seen anywhere.
const SECRET: &str = "sk-never-to-be-shown";

/// Byte 0 picks what the rest is.
pub fn config(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    match choice % 8 {
        0 | 1 => any_file_is_read_or_refused("config.toml", &text),
        2 => any_file_is_read_or_refused("agents/mine.md", &text),
        3 => any_value_is_taken_or_refused(&text),
        4 | 5 => changes_are_whole_and_survive_a_restart(&text),
        6 => rules_are_read_alone(&text),
        _ => what_is_written_reads_back(&text),
    }
}

fn in_home<T>(run: impl FnOnce(&Path) -> T) -> T {
    HOME.with(|home| {
        let path = home.path();
        for old in ["config.toml", "agents/mine.md"] {
            let _ = fs::remove_file(path.join(old));
        }
        run(path)
    })
}

fn inputs(home: &Path) -> ConfigInputs {
    ConfigInputs::new(home.join("config.toml"), TimeZone::UTC).with_agents_dir(home.join("agents"))
}

fn explained(errors: &ConfigErrors) {
    assert!(!errors.0.is_empty(), "refused without a reason");
    for problem in &errors.0 {
        assert!(!problem.to_string().is_empty());
    }
}

fn any_file_is_read_or_refused(name: &str, text: &str) {
    in_home(|home| {
        let path: PathBuf = home.join(name);
        fs::write(&path, text).expect("a file");
        match ConfigStore::open(inputs(home)) {
            Ok(store) => {
                // What is shown is accepted as a request, and changes nothing.
                let config = store.current();
                let shown = store.to_json().to_string();
                assert_eq!(store.set(&shown).map_err(|e| e.to_string()), Ok(Vec::new()));
                assert_eq!(store.current(), config);
                assert_eq!(fs::read_to_string(&path).as_deref().ok(), Some(text));
            }
            Err(errors) => explained(&errors),
        }
    });
}

/// `key=value` as a flag.
fn any_value_is_taken_or_refused(text: &str) {
    let Some((key, value)) = text.split_once('=') else {
        return;
    };
    let Ok(key) = KeyPath::parse(key) else {
        return;
    };
    in_home(|home| {
        let inputs = inputs(home).with_flag(key.clone(), value, "--flag");
        match load(&inputs) {
            Ok((_, effective)) => {
                assert!(
                    effective.get(&key).is_some() || value.is_empty(),
                    "{key} was lost"
                );
            }
            Err(errors) => explained(&errors),
        }
    });
}

/// Lines of `key=value` that set, `key` that removes, and `{..}` that replaces the whole.
fn changes_are_whole_and_survive_a_restart(text: &str) {
    // Who writes it knows it, and is told what was written.
    if text.contains(SECRET) {
        return;
    }
    in_home(|home| {
        let file = home.join("config.toml");
        let start = format!(
            "# Mine.\n[providers.mine]\nkind = \"openai\"\nbase_url = \"http://x/v1\"\napi_key = \"{SECRET}\"\n"
        );
        fs::write(&file, start).expect("a file");
        let store = ConfigStore::open(inputs(home)).expect("a good file");
        let state = || (store.to_json(), fs::read_to_string(&file).expect("a file"));
        let mut before = state();
        let mut is_changed = false;
        for line in text.lines().take(4) {
            let changed = match line.split_once('=') {
                _ if line.starts_with('{') => store.set(line),
                Some((key, value)) => store.set_key(key, value),
                None => store.remove_key(line),
            };
            let after = state();
            match changed {
                Ok(_) => {
                    is_changed = true;
                    assert!(after.1.starts_with("# Mine.\n"), "a comment is gone");
                }
                Err(errors) => {
                    explained(&errors);
                    assert!(!errors.to_string().contains(SECRET));
                    assert_eq!(before, after, "refused and yet changed");
                }
            }
            assert!(!after.0.to_string().contains(SECRET), "a secret is shown");
            before = after;
        }
        // Only at the end: what holds after fewer lines, an input of fewer lines shows.
        if is_changed {
            let again = ConfigStore::open(inputs(home)).expect("what was written is good");
            assert_eq!(again.to_json(), before.0, "a restart gives something else");
            assert_eq!(*again.current(), *store.current());
        }
    });
}

fn rules_are_read_alone(text: &str) {
    let inputs = ConfigInputs::new("config.toml", TimeZone::UTC);
    match parse_rules(&inputs, text) {
        Ok(rules) => assert!(!rules.is_empty()),
        Err(errors) => explained(&errors),
    }
    if let Ok(json) = serde_json::from_str(text)
        && let Err(errors) = rules_of_json(&inputs, &json)
    {
        explained(&errors);
    }
}

fn what_is_written_reads_back(text: &str) {
    if let Ok(key) = KeyPath::parse(text) {
        assert_eq!(KeyPath::parse(&key.to_string()).as_ref(), Ok(&key));
    }
    if let Ok(duration) = parse_duration(text) {
        assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
    }
    if let Ok(size) = text.parse::<ByteSize>() {
        assert_eq!(size.to_string().parse::<ByteSize>(), Ok(size));
    }
    let number = Choices::new(text.as_bytes()).number();
    let size = ByteSize::from_bytes(number);
    assert_eq!(size.to_string().parse::<ByteSize>(), Ok(size));
}
