//! Tests of the configuration as a whole; units are tested beside their code.

mod files;
mod layering;
mod mistakes;
mod requests;
mod rules;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::*;
use crate::policy::{Action, CommandPattern, NamePattern, Rule};

/// A home folder with what a test wrote into it.
struct Home {
    dir: tempfile::TempDir,
    env: Vec<(OsString, OsString)>,
    flags: Vec<(&'static str, &'static str, &'static str)>,
}

impl Home {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            env: Vec::new(),
            flags: Vec::new(),
        }
    }

    fn with_config(text: &str) -> Self {
        let home = Self::new();
        home.write("config.toml", text);
        home
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn flag(mut self, key: &'static str, value: &'static str, name: &'static str) -> Self {
        self.flags.push((key, value, name));
        self
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path("config.toml")).unwrap()
    }

    fn inputs(&self) -> ConfigInputs {
        let mut inputs = ConfigInputs::new(self.path("config.toml"), TimeZone::UTC)
            .with_agents_dir(self.path("agents"))
            .with_env(self.env.clone());
        for (key, value, name) in &self.flags {
            inputs = inputs.with_flag(KeyPath::parse(key).unwrap(), *value, name);
        }
        inputs
    }

    fn load(&self) -> Config {
        load(&self.inputs()).unwrap().0
    }

    fn errors(&self) -> Vec<Problem> {
        load(&self.inputs()).unwrap_err().0
    }

    /// Problems as people see them, without the folder.
    fn complaints(&self) -> Vec<String> {
        let folder = format!("{}/", self.dir.path().display());
        self.errors()
            .iter()
            .map(|problem| problem.to_string().replace(&folder, ""))
            .collect()
    }

    fn store(&self) -> ConfigStore {
        ConfigStore::open(self.inputs()).unwrap()
    }
}

fn key(dotted: &str) -> KeyPath {
    KeyPath::parse(dotted).unwrap()
}

fn changed(changes: &[Change]) -> Vec<String> {
    changes
        .iter()
        .map(|change| change.key.to_string())
        .collect()
}
