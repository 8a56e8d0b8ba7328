//! The raw tree: values of every layer with where each came from.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;
use toml_edit::{Document, Item, Value};
use zeroize::Zeroizing;

use super::problem::{Problem, ProblemKind};
use super::source::{ConfigSource, KeyPath, Origin};

/// A value and its origin.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) raw: Raw,
}

/// A value before anybody asked for a type.
///
/// No `Debug`: secrets pass through here.
#[derive(Clone)]
pub(super) enum Raw {
    /// Text without quotes around it (variables, flags, simple front matter):
    /// it becomes whatever type its key has.
    Text(Zeroizing<String>),
    Str(Zeroizing<String>),
    Int(i64),
    Float,
    Bool(bool),
    Datetime,
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

impl Raw {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) | Self::Str(_) => "a string",
            Self::Int(_) => "a whole number",
            Self::Float => "a number with a fraction",
            Self::Bool(_) => "true or false",
            Self::Datetime => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

impl Node {
    pub(super) fn table(origin: Origin) -> Self {
        Self {
            origin,
            raw: Raw::Table(BTreeMap::new()),
        }
    }

    pub(super) fn text(origin: Origin, text: String) -> Self {
        Self {
            origin,
            raw: Raw::Text(Zeroizing::new(text)),
        }
    }

    pub(super) fn string(origin: Origin, text: String) -> Self {
        Self {
            origin,
            raw: Raw::Str(Zeroizing::new(text)),
        }
    }

    /// Reads a TOML file; the first syntax error is all that a parser can say.
    pub(super) fn from_toml(text: &str, source: &ConfigSource) -> Result<Self, Problem> {
        let document = Document::parse(text).map_err(|error| {
            let line = error.span().map(|span| line_at(text, span.start));
            let twice = line.and_then(|line| same_table(text, line));
            Problem {
                origin: Origin {
                    source: source.clone(),
                    line,
                },
                key: KeyPath::root(),
                kind: ProblemKind::Syntax {
                    reason: twice.unwrap_or_else(|| error.message().replace('\n', ", ")),
                },
            }
        })?;
        Ok(TomlReader { text, source }.item(document.as_item(), None))
    }

    /// Takes a request's JSON; `null` is the same as leaving the key out.
    pub(super) fn from_json(json: &Json) -> Self {
        let origin = Origin::new(ConfigSource::Request);
        let raw = match json {
            Json::Null => Raw::Str(Zeroizing::default()),
            Json::Bool(value) => Raw::Bool(*value),
            Json::Number(number) => number.as_i64().map_or(Raw::Float, Raw::Int),
            Json::String(text) => Raw::Str(Zeroizing::new(text.clone())),
            Json::Array(items) => Raw::List(items.iter().map(Self::from_json).collect()),
            Json::Object(members) => Raw::Table(
                members
                    .iter()
                    .filter(|(_, value)| !value.is_null())
                    .map(|(key, value)| (key.clone(), Self::from_json(value)))
                    .collect(),
            ),
        };
        Self { origin, raw }
    }

    /// Reads unquoted text as a list or a table, written as TOML or as JSON.
    pub(super) fn structured(origin: &Origin, text: &str) -> Option<Self> {
        if let Ok(value) = text.trim().parse::<Value>() {
            let reader = TomlReader {
                text: "",
                source: &origin.source,
            };
            let mut node = reader.item(&Item::Value(value), None);
            node.set_origin(origin);
            return Some(node);
        }
        let json: Json = serde_json::from_str(text).ok()?;
        let mut node = Self::from_json(&json);
        node.set_origin(origin);
        Some(node)
    }

    fn set_origin(&mut self, origin: &Origin) {
        self.origin = origin.clone();
        match &mut self.raw {
            Raw::List(items) => items.iter_mut().for_each(|item| item.set_origin(origin)),
            Raw::Table(members) => members
                .values_mut()
                .for_each(|member| member.set_origin(origin)),
            _ => {}
        }
    }

    /// Lays a stronger layer over this one: tables join, all else is replaced.
    pub(super) fn overlay(&mut self, stronger: Self) {
        match (&mut self.raw, stronger.raw) {
            (Raw::Table(members), Raw::Table(over)) => {
                self.origin = stronger.origin;
                for (key, node) in over {
                    match members.get_mut(&key) {
                        Some(member) => member.overlay(node),
                        None => {
                            members.insert(key, node);
                        }
                    }
                }
            }
            (raw, over) => {
                *raw = over;
                self.origin = stronger.origin;
            }
        }
    }

    pub(super) fn child(&self, name: &str) -> Option<&Self> {
        match &self.raw {
            Raw::Table(members) => members.get(name),
            _ => None,
        }
    }

    /// The origin of the deepest part of the path that is there.
    pub(super) fn nearest_origin(&self, path: &KeyPath) -> &Origin {
        let mut node = self;
        for part in path.parts() {
            match node.child(part) {
                Some(child) => node = child,
                None => break,
            }
        }
        &node.origin
    }

    /// Puts a value at a path, making the tables on the way.
    pub(super) fn insert(&mut self, path: &[String], value: Self) {
        let Some((first, rest)) = path.split_first() else {
            self.overlay(value);
            return;
        };
        if !matches!(self.raw, Raw::Table(_)) {
            *self = Self::table(value.origin.clone());
        }
        if let Raw::Table(members) = &mut self.raw {
            let origin = value.origin.clone();
            members
                .entry(first.clone())
                .or_insert_with(|| Self::table(origin))
                .insert(rest, value);
        }
    }

    /// Removes what is at a path; whether something was.
    pub(super) fn remove(&mut self, path: &[String]) -> bool {
        let Raw::Table(members) = &mut self.raw else {
            return false;
        };
        match path {
            [] => false,
            [last] => members.remove(last).is_some(),
            [first, rest @ ..] => members
                .get_mut(first)
                .is_some_and(|member| member.remove(rest)),
        }
    }
}

/// The source that stands for a file.
pub(super) fn file_source(path: &Path) -> ConfigSource {
    ConfigSource::File {
        path: Arc::new(path.to_path_buf()),
    }
}

/// Says where the table that this line begins was begun before: the file that the first run writes
/// has many of them.
fn same_table(text: &str, line: usize) -> Option<String> {
    let header = text.lines().nth(line.checked_sub(1)?)?.trim();
    let is_header = header.starts_with('[') && header.ends_with(']') && !header.contains('=');
    let first = text.lines().position(|it| it.trim() == header)? + 1;
    (is_header && !header.starts_with("[[") && first < line)
        .then(|| format!("{header} is in line {first} already; add its keys there"))
}

/// The line of a byte offset, counted from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

struct TomlReader<'t> {
    text: &'t str,
    source: &'t ConfigSource,
}

impl TomlReader<'_> {
    fn item(&self, item: &Item, key_start: Option<usize>) -> Node {
        let start = key_start.or_else(|| item.span().map(|span| span.start));
        let origin = self.origin(start);
        let raw = match item {
            Item::None => Raw::Table(BTreeMap::new()),
            Item::Value(value) => return self.value(value, key_start),
            Item::Table(table) => Raw::Table(
                table
                    .iter()
                    .map(|(name, member)| {
                        // A [header] has its place in the item; a plain key in the key.
                        let start = match member {
                            Item::Table(inner) if !inner.is_dotted() => inner.span(),
                            _ => table.key(name).and_then(toml_edit::Key::span),
                        };
                        (name.to_owned(), self.item(member, start.map(|s| s.start)))
                    })
                    .collect(),
            ),
            Item::ArrayOfTables(tables) => Raw::List(
                tables
                    .iter()
                    .map(|table| {
                        self.item(&Item::Table(table.clone()), table.span().map(|s| s.start))
                    })
                    .collect(),
            ),
        };
        Node { origin, raw }
    }

    fn value(&self, value: &Value, key_start: Option<usize>) -> Node {
        let start = key_start.or_else(|| value.span().map(|span| span.start));
        let raw = match value {
            Value::String(text) => Raw::Str(Zeroizing::new(text.value().clone())),
            Value::Integer(number) => Raw::Int(*number.value()),
            Value::Float(_) => Raw::Float,
            Value::Boolean(value) => Raw::Bool(*value.value()),
            Value::Datetime(_) => Raw::Datetime,
            Value::Array(items) => {
                Raw::List(items.iter().map(|item| self.value(item, None)).collect())
            }
            Value::InlineTable(table) => Raw::Table(
                table
                    .iter()
                    .map(|(name, member)| {
                        let start = table.key(name).and_then(toml_edit::Key::span);
                        (name.to_owned(), self.value(member, start.map(|s| s.start)))
                    })
                    .collect(),
            ),
        };
        Node {
            origin: self.origin(start),
            raw,
        }
    }

    fn origin(&self, offset: Option<usize>) -> Origin {
        Origin {
            source: self.source.clone(),
            line: offset.map(|offset| line_at(self.text, offset)),
        }
    }
}
