//! The configuration in force: one owner, changed whole or not at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value as Json;
use tokio::sync::watch;

use super::edit::{self, Edit};
use super::effective::{Change, Effective, is_redacted};
use super::layers::{self, ConfigInputs, first_run_file, load_with_file, read_config_file};
use super::model::Config;
use super::node::{Node, file_source};
use super::problem::{ConfigErrors, Problem, ProblemKind};
use super::reader;
use super::source::{ConfigSource, KeyPath, Origin};

/// Holds the configuration, and changes it on request.
///
/// Methods that change it read and write one small file: call them where that
/// may block. Two changes never interleave. A reader sees the old configuration
/// or the new one.
pub struct ConfigStore {
    inputs: ConfigInputs,
    // Held over the file's read, write and swap, so that changes are in order;
    // never over an await.
    effective: Mutex<Effective>,
    current: watch::Sender<Arc<Config>>,
}

impl ConfigStore {
    /// Reads all layers for the first time.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in any layer.
    pub fn open(inputs: ConfigInputs) -> Result<Self, ConfigErrors> {
        let (config, effective) = layers::load(&inputs)?;
        Ok(Self {
            inputs,
            effective: Mutex::new(effective),
            current: watch::Sender::new(Arc::new(config)),
        })
    }

    /// Writes the commented `config.toml` where there is none; whether it did.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn write_first_run(inputs: &ConfigInputs) -> Result<bool, ConfigErrors> {
        if inputs.file().exists() {
            return Ok(false);
        }
        edit::write_private(inputs.file(), &first_run_file())
            .map_err(|error| ConfigErrors(vec![layers::io_problem(inputs.file(), &error)]))?;
        Ok(true)
    }

    pub(super) fn inputs(&self) -> &ConfigInputs {
        &self.inputs
    }

    /// The path of `config.toml`.
    #[must_use]
    pub fn file(&self) -> &std::path::Path {
        self.inputs.file()
    }

    /// The configuration in force.
    #[must_use]
    pub fn current(&self) -> Arc<Config> {
        Arc::clone(&self.current.borrow())
    }

    /// Follows the configuration: each change, the newest when several came.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Config>> {
        self.current.subscribe()
    }

    /// All tables as JSON, secrets as `"***"` where they are set.
    #[must_use]
    pub fn to_json(&self) -> Json {
        self.effective().to_json()
    }

    /// The value of a dotted key or the table of that name, secrets redacted.
    ///
    /// # Errors
    ///
    /// [`ProblemKind::UnknownKey`] when there is none, or a key that cannot be
    /// read.
    pub fn get_key(&self, dotted: &str) -> Result<Json, ConfigErrors> {
        let key = parse_key(dotted)?;
        let effective = self.effective();
        match effective.get(&key) {
            Some(value) => Ok(value.clone()),
            None => Err(unknown(key, &effective)),
        }
    }

    /// Where the value of a key came from.
    #[must_use]
    pub fn origin(&self, key: &KeyPath) -> Option<Origin> {
        self.effective().origin(key).cloned()
    }

    /// Replaces the whole by what the JSON says; what it leaves out goes back
    /// to its default, and `"***"` leaves a secret as it is.
    ///
    /// Everything is checked before anything changes. Only what differs from
    /// the values in force is written to `config.toml`.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, each with its key; nothing has changed
    /// then.
    pub fn set(&self, json_text: &str) -> Result<Vec<Change>, ConfigErrors> {
        let json: Json = serde_json::from_str(json_text).map_err(|error| {
            // serde_json's own words end with the place and hold no input.
            request_problem(
                KeyPath::root(),
                ProblemKind::Syntax {
                    reason: format!("the configuration is not JSON: {error}"),
                },
            )
        })?;
        self.replace(&mut self.effective(), &Node::from_json(&json))
    }

    /// Sets one dotted key to a value as it is typed on a command line.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn set_key(&self, dotted: &str, value: &str) -> Result<Vec<Change>, ConfigErrors> {
        let key = parse_key(dotted)?;
        let mut effective = self.effective();
        let mut whole = Node::from_json(&effective.to_json());
        let origin = Origin::new(ConfigSource::Request);
        // A table is replaced and not joined with the one that was there.
        whole.remove(key.parts());
        whole.insert(key.parts(), Node::text(origin, value.to_owned()));
        self.replace(&mut effective, &whole)
    }

    /// Removes one dotted key or table from `config.toml`.
    ///
    /// # Errors
    ///
    /// [`ProblemKind::UnknownKey`] when there is none; else as
    /// [`set`](Self::set).
    pub fn remove_key(&self, dotted: &str) -> Result<Vec<Change>, ConfigErrors> {
        let key = parse_key(dotted)?;
        let mut effective = self.effective();
        let mut whole = Node::from_json(&effective.to_json());
        if !whole.remove(key.parts()) {
            return Err(unknown(key, &effective));
        }
        self.replace(&mut effective, &whole)
    }

    /// Reads all layers again and says what changed.
    ///
    /// # Errors
    ///
    /// Everything that is wrong in any layer; the old configuration stays.
    pub fn reload(&self) -> Result<Vec<Change>, ConfigErrors> {
        let mut effective = self.effective();
        let loaded = layers::load(&self.inputs)?;
        Ok(self.swap(&mut effective, loaded))
    }

    fn replace(&self, old: &mut Effective, request: &Node) -> Result<Vec<Change>, ConfigErrors> {
        let new = layers::read_request(request.clone(), &self.inputs, &old.secrets)?;
        let edits = self.edits(old, &new, request)?;
        let text = read_config_file(&self.inputs)?;
        let edited = edit::apply(&text, &edits).map_err(|error| {
            // The file was broken by hand since it was loaded.
            ConfigErrors::one(
                Origin::new(file_source(self.inputs.file())),
                KeyPath::root(),
                ProblemKind::Syntax {
                    reason: error.message().to_owned(),
                },
            )
        })?;
        // The file as it will be, under the layers as they are: what a restart
        // would load is what is put in force.
        let loaded = load_with_file(&self.inputs, &edited)?;
        if *edited != **text {
            edit::write_private(self.inputs.file(), &edited).map_err(|error| {
                ConfigErrors(vec![layers::io_problem(self.inputs.file(), &error)])
            })?;
        }
        Ok(self.swap(old, loaded))
    }

    fn swap(&self, effective: &mut Effective, (config, new): (Config, Effective)) -> Vec<Change> {
        let changes = new.changes_since(effective);
        *effective = new;
        if !changes.is_empty() || config != **self.current.borrow() {
            self.current.send_replace(Arc::new(config));
        }
        changes
    }

    /// What has to change in `config.toml`, or why it would be of no use.
    fn edits(
        &self,
        old: &Effective,
        new: &Effective,
        request: &Node,
    ) -> Result<Vec<Edit>, ConfigErrors> {
        let own_file = file_source(self.inputs.file());
        let mut edits = Vec::new();
        let mut problems = Vec::new();
        let removed: Vec<&KeyPath> = old.entries.difference(&new.entries).collect();
        for entry in &removed {
            let elsewhere = old
                .origins_within(entry)
                .map(|origin| &origin.source)
                .find(|source| **source != own_file && **source != ConfigSource::Default);
            match elsewhere {
                // A request that says nothing of a whole section means the file.
                Some(from) if request.child(&entry.parts()[0]).is_some() => {
                    problems.push(Problem {
                        origin: Origin::new(ConfigSource::Request),
                        key: (*entry).clone(),
                        kind: ProblemKind::DefinedElsewhere { from: from.clone() },
                    });
                }
                _ => edits.push(Edit::Remove((*entry).clone())),
            }
        }
        for change in new.changes_since(old) {
            if removed.iter().any(|entry| change.key.is_within(entry)) {
                continue;
            }
            let source = old.origin(&change.key).map(|origin| &origin.source);
            let requested = new
                .origin(&change.key)
                .is_some_and(|origin| origin.source == ConfigSource::Request);
            match (source, requested, &change.to) {
                (Some(by @ (ConfigSource::Env { .. } | ConfigSource::Flag { .. })), true, _) => {
                    problems.push(Problem {
                        origin: Origin::new(ConfigSource::Request),
                        key: change.key,
                        kind: ProblemKind::Overridden { by: by.clone() },
                    });
                }
                (_, true, Some(json)) => {
                    let value = if new.is_secret(&change.key) {
                        debug_assert!(is_redacted(json));
                        new.secrets
                            .get(&change.key)
                            .map(|secret| toml_edit::Value::from(secret.expose()))
                    } else {
                        edit::toml_value(json)
                    };
                    edits.extend(value.map(|value| Edit::Set(change.key, value)));
                }
                (Some(source), _, _) if *source == own_file => {
                    edits.push(Edit::Remove(change.key));
                }
                // Left out and not in the file: other layers stay as they are.
                _ => {}
            }
        }
        if problems.is_empty() {
            Ok(edits)
        } else {
            Err(ConfigErrors(problems))
        }
    }

    fn effective(&self) -> MutexGuard<'_, Effective> {
        // A panic while it was held left the old value, which is whole.
        self.effective
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse_key(dotted: &str) -> Result<KeyPath, ConfigErrors> {
    KeyPath::parse(dotted).map_err(|error| {
        request_problem(
            KeyPath::root(),
            ProblemKind::Syntax {
                reason: error.to_string(),
            },
        )
    })
}

fn unknown(key: KeyPath, effective: &Effective) -> ConfigErrors {
    let suggestion = reader::nearest(&key, &effective.keys());
    request_problem(key, ProblemKind::UnknownKey { suggestion })
}

fn request_problem(key: KeyPath, kind: ProblemKind) -> ConfigErrors {
    ConfigErrors::one(Origin::new(ConfigSource::Request), key, kind)
}
