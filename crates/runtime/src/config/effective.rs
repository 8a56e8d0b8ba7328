//! The values in force, as they are shown, and what differs between two sets.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json};

use super::secret::{REDACTED, Secret};
use super::source::{KeyPath, Origin};

/// Keys that are read once, at start.
const RESTART_KEYS: &[&str] = &[
    "http.listen",
    "http.tls_cert",
    "http.tls_key",
    "control.tcp",
    "control.idle_timeout",
    "control.max_connections",
    "sandbox.heartbeat",
    "sandbox.output_quota",
    "sandbox.isolate",
    "sandbox.network",
    "sandbox.read",
    "sandbox.write",
    "sandbox.memory_max",
    "sandbox.processes_max",
    "sandbox.cpu_percent",
    "sandbox.cpu_time_max",
    "sandbox.open_files_max",
    "sandbox.file_size_max",
    "sandbox.commands_max",
    "sandbox.shells_max",
    "sandbox.transfers_max",
];

/// The keys of a table that were asked for, with where the values that are shown came from.
pub(super) type Keys = BTreeMap<String, Option<Origin>>;

/// Every key with its value in force and where that value came from.
///
/// Values are in the one form that equal values share (`"600s"` is `"10m"`), so
/// that comparing them compares meanings. Secrets are shown as `"***"`.
#[derive(Clone, PartialEq, Eq)]
pub struct Effective {
    pub(super) json: Map<String, Json>,
    pub(super) tables: BTreeMap<KeyPath, Keys>,
    pub(super) secrets: BTreeMap<KeyPath, Secret>,
    /// Tables that people named: agents, providers, tool servers.
    pub(super) entries: BTreeSet<KeyPath>,
}

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: KeyPath,
    /// What it was; `None` when it is new. A secret is `"***"`.
    pub from: Option<Json>,
    /// What it is; `None` when it is gone. A secret is `"***"`.
    pub to: Option<Json>,
    /// When it applies.
    pub applies: Applies,
}

/// When a change applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applies {
    /// At once, without stopping what runs.
    Now,
    /// At the next start of the daemon.
    AtRestart,
}

impl Effective {
    /// All tables as JSON, secrets as `"***"` where they are set.
    #[must_use]
    pub fn to_json(&self) -> Json {
        Json::Object(self.json.clone())
    }

    /// The value of a key, or the table of that name.
    #[must_use]
    pub fn get(&self, key: &KeyPath) -> Option<&Json> {
        let (first, rest) = key.parts().split_first()?;
        rest.iter()
            .try_fold(self.json.get(first)?, |json, part| json.get(part))
    }

    /// Where the value of a key came from.
    #[must_use]
    pub fn origin(&self, key: &KeyPath) -> Option<&Origin> {
        let (table, name) = key.split_last()?;
        self.tables.get(table)?.get(name)?.as_ref()
    }

    /// Where the values in a table and in those below it came from.
    pub(super) fn origins_within<'e>(
        &'e self,
        table: &'e KeyPath,
    ) -> impl Iterator<Item = &'e Origin> {
        let tables = self.tables.iter().filter(|(path, _)| path.is_within(table));
        tables.flat_map(|(_, keys)| keys.values().flatten())
    }

    /// Every key that is shown.
    pub(super) fn keys(&self) -> BTreeSet<KeyPath> {
        let shown = |(table, keys): (&KeyPath, &Keys)| {
            let names = keys.iter().filter(|(_, origin)| origin.is_some());
            names.map(|(name, _)| table.child(name)).collect::<Vec<_>>()
        };
        self.tables.iter().flat_map(shown).collect()
    }

    /// What differs from `old` to `self`.
    #[must_use]
    pub fn changes_since(&self, old: &Self) -> Vec<Change> {
        let mut differing = BTreeMap::new();
        compare_members(
            &KeyPath::root(),
            Some(&old.json),
            Some(&self.json),
            &mut differing,
        );
        // A secret looks the same whatever it is.
        for key in old.secrets.keys().chain(self.secrets.keys()) {
            if old.secrets.get(key) != self.secrets.get(key) {
                differing.insert(key.clone(), (old.get(key), self.get(key)));
            }
        }
        differing
            .into_iter()
            .map(|(key, (from, to))| Change {
                from: from.cloned(),
                to: to.cloned(),
                applies: if RESTART_KEYS.contains(&key.to_string().as_str()) {
                    Applies::AtRestart
                } else {
                    Applies::Now
                },
                key,
            })
            .collect()
    }

    /// Whether the key holds a secret that is set.
    pub(super) fn is_secret(&self, key: &KeyPath) -> bool {
        self.secrets.contains_key(key)
    }
}

impl std::fmt::Debug for Effective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Effective").field(&self.json).finish()
    }
}

/// Values before and after, by their key; lists are values.
type Differing<'j> = BTreeMap<KeyPath, (Option<&'j Json>, Option<&'j Json>)>;

fn compare<'j>(
    path: &KeyPath,
    before: Option<&'j Json>,
    after: Option<&'j Json>,
    differing: &mut Differing<'j>,
) {
    let (old, new) = (
        before.and_then(Json::as_object),
        after.and_then(Json::as_object),
    );
    let values = (
        before.filter(|_| old.is_none()),
        after.filter(|_| new.is_none()),
    );
    if values != (None, None) {
        differing.insert(path.clone(), values);
    }
    compare_members(path, old, new, differing);
}

fn compare_members<'j>(
    path: &KeyPath,
    before: Option<&'j Map<String, Json>>,
    after: Option<&'j Map<String, Json>>,
    differing: &mut Differing<'j>,
) {
    let members = [before, after].into_iter().flatten();
    let names: BTreeSet<&String> = members.flat_map(Map::keys).collect();
    for name in names {
        let [before, after] = [before, after].map(|members| members?.get(name));
        if before != after {
            compare(&path.child(name), before, after, differing);
        }
    }
}

/// Whether the text is how a secret is shown.
pub(super) fn is_redacted(json: &Json) -> bool {
    json.as_str() == Some(REDACTED)
}
