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

/// Every key with its value in force and where that value came from.
///
/// Values are in the one form that equal values share (`"600s"` is `"10m"`), so
/// that comparing them compares meanings. Secrets are shown as `"***"`.
#[derive(Clone, PartialEq, Eq)]
pub struct Effective {
    pub(super) json: Map<String, Json>,
    pub(super) origins: BTreeMap<KeyPath, Origin>,
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
        self.origins.get(key)
    }

    /// What differs from `old` to `self`.
    #[must_use]
    pub fn changes_since(&self, old: &Self) -> Vec<Change> {
        let before = old.leaves();
        let after = self.leaves();
        let keys: BTreeSet<&KeyPath> = before.keys().chain(after.keys()).collect();
        keys.into_iter()
            .filter(|key| {
                before.get(*key) != after.get(*key)
                    || old.secrets.get(*key) != self.secrets.get(*key)
            })
            .map(|key| Change {
                key: key.clone(),
                from: before.get(key).map(|json| (*json).clone()),
                to: after.get(key).map(|json| (*json).clone()),
                applies: if RESTART_KEYS.contains(&key.to_string().as_str()) {
                    Applies::AtRestart
                } else {
                    Applies::Now
                },
            })
            .collect()
    }

    /// Whether the key holds a secret that is set.
    pub(super) fn is_secret(&self, key: &KeyPath) -> bool {
        self.secrets.contains_key(key)
    }

    /// Every value by its key; lists are values.
    fn leaves(&self) -> BTreeMap<KeyPath, &Json> {
        let mut leaves = BTreeMap::new();
        collect(&self.json, &KeyPath::root(), &mut leaves);
        leaves
    }
}

impl std::fmt::Debug for Effective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Effective").field(&self.json).finish()
    }
}

fn collect<'j>(
    members: &'j Map<String, Json>,
    path: &KeyPath,
    leaves: &mut BTreeMap<KeyPath, &'j Json>,
) {
    for (name, value) in members {
        let path = path.child(name);
        match value {
            Json::Object(inner) => collect(inner, &path, leaves),
            leaf => {
                leaves.insert(path, leaf);
            }
        }
    }
}

/// Whether the text is how a secret is shown.
pub(super) fn is_redacted(json: &Json) -> bool {
    json.as_str() == Some(REDACTED)
}
