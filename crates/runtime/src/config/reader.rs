//! Reads the raw tree into types, and learns the known keys by being asked.
//!
//! A key exists because somebody asks for it. So the list of known keys, the
//! suggestions for unknown ones, the effective values that are shown and their
//! origins can never differ from what the code uses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json};

use super::effective::{Effective, Keys};
use super::node::{Node, Raw};
use super::problem::{ConfigErrors, Problem, ProblemKind};
use super::secret::{REDACTED, Secret};
use super::setting::Setting;
use super::source::{ConfigSource, KeyPath, Origin};

/// What happened so far in one reading of a tree.
pub(super) struct Reader<'t> {
    root: &'t Node,
    /// The secrets that `"***"` in a request stands for.
    kept: Option<&'t BTreeMap<KeyPath, Secret>>,
    problems: Vec<Problem>,
    unknown: Vec<(KeyPath, Origin)>,
    tables: BTreeMap<KeyPath, Keys>,
    secrets: BTreeMap<KeyPath, Secret>,
    entries: BTreeSet<KeyPath>,
}

/// Reads a whole tree, or says everything that is wrong with it.
///
/// `kept` are the secrets that `"***"` may stand for in a request.
pub(super) fn read<T>(
    root: &Node,
    kept: Option<&BTreeMap<KeyPath, Secret>>,
    build: impl FnOnce(&mut Section<'_, '_>) -> T,
) -> Result<(T, Effective), ConfigErrors> {
    let mut reader = Reader {
        root,
        kept,
        problems: Vec::new(),
        unknown: Vec::new(),
        tables: BTreeMap::new(),
        secrets: BTreeMap::new(),
        entries: BTreeSet::new(),
    };
    let (built, json) = reader.within(KeyPath::root(), Some(root), Style::Full, build);
    reader.report_unknown();
    if reader.problems.is_empty() {
        let effective = Effective {
            json,
            tables: reader.tables,
            secrets: reader.secrets,
            entries: reader.entries,
        };
        return Ok((built, effective));
    }
    reader
        .problems
        .sort_by_cached_key(|problem| (problem.origin.source.to_string(), problem.origin.line));
    Err(ConfigErrors(reader.problems))
}

impl<'t> Reader<'t> {
    fn within<'n, T>(
        &mut self,
        path: KeyPath,
        node: Option<&'n Node>,
        style: Style,
        build: impl FnOnce(&mut Section<'_, 't>) -> T,
    ) -> (T, Map<String, Json>) {
        // Borrowed for the section alone: text that had to be parsed lives here.
        let parsed;
        let node = match node {
            Some(Node {
                origin,
                raw: Raw::Text(text),
            }) => {
                parsed = Node::structured(origin, text).unwrap_or_else(|| Node {
                    origin: origin.clone(),
                    raw: Raw::Text(text.clone()),
                });
                Some(&parsed)
            }
            node => node,
        };
        let members = match node.map(|node| (&node.raw, &node.origin)) {
            Some((Raw::Table(members), _)) => Some(members),
            Some((other, origin)) => {
                self.problems.push(Problem {
                    origin: origin.clone(),
                    key: path.clone(),
                    kind: ProblemKind::WrongType {
                        expected: "a table",
                        found: other.type_name(),
                    },
                });
                None
            }
            None => None,
        };
        let mut section = Section {
            origin: node.map_or_else(|| Origin::new(ConfigSource::Default), |n| n.origin.clone()),
            reader: self,
            path,
            members,
            keys: Keys::new(),
            shown: Map::new(),
            style,
            broken: members.is_none() && node.is_some(),
        };
        let built = build(&mut section);
        let shown = section.finish();
        (built, shown)
    }

    fn report_unknown(&mut self) {
        if self.unknown.is_empty() {
            return;
        }
        let of_table = |(path, keys): (&KeyPath, &Keys)| {
            keys.keys().map(|name| path.child(name)).collect::<Vec<_>>()
        };
        let known: BTreeSet<KeyPath> = self.tables.iter().flat_map(of_table).collect();
        for (key, origin) in std::mem::take(&mut self.unknown) {
            let suggestion = nearest(&key, &known);
            self.problems.push(Problem {
                origin,
                key,
                kind: ProblemKind::UnknownKey { suggestion },
            });
        }
    }
}

/// The known key that was most likely meant.
///
/// A near name beside it, else the same name in another table.
pub(super) fn nearest<'k>(
    key: &KeyPath,
    known: impl IntoIterator<Item = &'k KeyPath> + Clone,
) -> Option<KeyPath> {
    let (parents, name) = key.split_last()?;
    let beside = known
        .clone()
        .into_iter()
        .filter_map(|candidate| {
            let (beside, other) = candidate.split_last()?;
            (beside == parents).then(|| (strsim::damerau_levenshtein(name, other), candidate))
        })
        .min_by_key(|(distance, _)| *distance);
    let near_enough = (name.chars().count() / 3).max(2);
    if let Some((distance, candidate)) = beside
        && distance <= near_enough
    {
        return Some(candidate.clone());
    }
    known
        .into_iter()
        .find(|candidate| {
            candidate
                .split_last()
                .is_some_and(|(_, other)| other == name)
        })
        .cloned()
}

/// Whether keys that are not set are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Every known key.
    Full,
    /// Only what was written: entries of lists.
    Written,
}

/// One table while it is read.
pub(super) struct Section<'a, 't> {
    reader: &'a mut Reader<'t>,
    path: KeyPath,
    origin: Origin,
    members: Option<&'a BTreeMap<String, Node>>,
    keys: Keys,
    shown: Map<String, Json>,
    style: Style,
    /// There is something else in the table's place, which was reported.
    broken: bool,
}

impl<'a> Section<'a, '_> {
    /// A key that some layer always sets.
    pub(super) fn value<T: Setting>(&mut self, key: &str) -> T {
        if self.ask(key).is_none() && !self.broken {
            self.problem(
                key,
                ProblemKind::Missing {
                    reason: "it has no default".to_owned(),
                },
            );
        }
        self.value_or(key, T::placeholder())
    }

    /// A key with a default of its own, for tables that people name.
    pub(super) fn value_or<T: Setting>(&mut self, key: &str, default: T) -> T {
        let Some(node) = self.ask(key) else {
            if self.style == Style::Full {
                self.show(key, default.show(), Origin::new(ConfigSource::Default));
            }
            return default;
        };
        match T::read(&node.raw) {
            Ok(value) => {
                self.show(key, value.show(), node.origin.clone());
                value
            }
            Err(kind) => {
                self.problem(key, kind);
                T::placeholder()
            }
        }
    }

    /// A key whose value is never shown; empty is not set.
    pub(super) fn secret(&mut self, key: &str) -> Option<Secret> {
        let node = self.ask(key);
        let path = self.path.child(key);
        let origin = node.map_or_else(|| Origin::new(ConfigSource::Default), |n| n.origin.clone());
        let value = match node.map(|node| &node.raw) {
            None => Secret::default(),
            Some(Raw::Str(text) | Raw::Text(text)) if text.as_str() == REDACTED => {
                match self.reader.kept.and_then(|kept| kept.get(&path)) {
                    Some(secret) => secret.clone(),
                    None => {
                        self.problem(key, ProblemKind::NothingToKeep);
                        return None;
                    }
                }
            }
            Some(Raw::Str(text) | Raw::Text(text)) => Secret::new(text.to_string()),
            Some(other) => {
                self.problem(
                    key,
                    ProblemKind::WrongType {
                        expected: "a string",
                        found: other.type_name(),
                    },
                );
                return None;
            }
        };
        if value.is_empty() {
            self.show(key, Json::from(""), origin);
            return None;
        }
        self.show(key, Json::from(REDACTED), origin);
        self.reader.secrets.insert(path, value.clone());
        Some(value)
    }

    /// A table of secrets under names that people choose.
    pub(super) fn secrets(&mut self, key: &str) -> BTreeMap<String, Secret> {
        self.nested(key, |section| {
            section
                .names()
                .into_iter()
                .filter_map(|name| section.secret(&name).map(|value| (name, value)))
                .collect()
        })
    }

    /// A table with known keys.
    pub(super) fn nested<T>(
        &mut self,
        key: &str,
        build: impl FnOnce(&mut Section<'_, '_>) -> T,
    ) -> T {
        let node = self.ask(key);
        let (built, shown) = self
            .reader
            .within(self.path.child(key), node, self.style, build);
        self.shown.insert(key.to_owned(), Json::Object(shown));
        built
    }

    /// A table of tables under names that people choose.
    pub(super) fn entries<T>(
        &mut self,
        key: &str,
        mut build: impl FnMut(&str, &mut Section<'_, '_>) -> T,
    ) -> BTreeMap<String, T> {
        self.nested(key, |section| {
            let mut built = BTreeMap::new();
            for name in section.names() {
                if !is_entry_name(&name) {
                    section.problem(
                        &name,
                        super::setting::invalid(
                            "a name has 1 to 64 letters, digits, dashes and underscores",
                        ),
                    );
                }
                let path = section.path.child(&name);
                section.reader.entries.insert(path);
                let entry = section.nested(&name, |entry| build(&name, entry));
                built.insert(name, entry);
            }
            built
        })
    }

    /// A list of tables.
    pub(super) fn list<T>(
        &mut self,
        key: &str,
        mut build: impl FnMut(&mut Section<'_, '_>) -> T,
    ) -> Vec<T> {
        let path = self.path.child(key);
        let Some(node) = self.ask(key) else {
            self.show(
                key,
                Json::Array(Vec::new()),
                Origin::new(ConfigSource::Default),
            );
            return Vec::new();
        };
        let parsed;
        let raw = match &node.raw {
            Raw::Text(text) => {
                parsed = Node::structured(&node.origin, text);
                parsed.as_ref().map_or(&node.raw, |node| &node.raw)
            }
            raw => raw,
        };
        let Raw::List(items) = raw else {
            let found = raw.type_name();
            self.problem(
                key,
                ProblemKind::WrongType {
                    expected: "a list of tables",
                    found,
                },
            );
            return Vec::new();
        };
        let mut built = Vec::new();
        let mut shown = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let (entry, json) = self.reader.within(
                path.child(&format!("[{index}]")),
                Some(item),
                Style::Written,
                &mut build,
            );
            built.push(entry);
            shown.push(Json::Object(json));
        }
        self.show(key, Json::Array(shown), node.origin.clone());
        built
    }

    /// Reports a mistake that only the caller can see.
    pub(super) fn problem(&mut self, key: &str, kind: ProblemKind) {
        // A default is not at fault: what was written beside it is.
        let origin = self
            .members
            .and_then(|members| members.get(key))
            .map(|node| &node.origin)
            .filter(|origin| origin.source != ConfigSource::Default)
            .unwrap_or(&self.origin)
            .clone();
        self.reader.problems.push(Problem {
            origin,
            key: self.path.child(key),
            kind,
        });
    }

    /// Reports a mistake at a key of another table.
    pub(super) fn problem_at(&mut self, path: KeyPath, kind: ProblemKind) {
        let origin = self.reader.root.nearest_origin(&path).clone();
        self.reader.problems.push(Problem {
            origin,
            key: path,
            kind,
        });
    }

    fn names(&self) -> Vec<String> {
        self.members
            .map(|members| members.keys().cloned().collect())
            .unwrap_or_default()
    }

    fn ask(&mut self, key: &str) -> Option<&'a Node> {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), None);
        }
        self.members.and_then(|members| members.get(key))
    }

    fn show(&mut self, key: &str, json: Json, origin: Origin) {
        self.shown.insert(key.to_owned(), json);
        self.keys.insert(key.to_owned(), Some(origin));
    }

    fn finish(self) -> Map<String, Json> {
        for (name, node) in self.members.into_iter().flatten() {
            if !self.keys.contains_key(name) {
                self.reader
                    .unknown
                    .push((self.path.child(name), node.origin.clone()));
            }
        }
        self.reader.tables.insert(self.path, self.keys);
        self.shown
    }
}

fn is_entry_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}
