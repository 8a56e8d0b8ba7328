//! Changes `config.toml` and leaves everything else in it as it was.
//!
//! Values are set in the parsed document, which keeps comments and layout.
//! Lines are removed from the text itself, because a comment above a line would
//! go with it from the document.

use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;

use serde_json::Value as Json;
use toml_edit::{
    Array, Document, DocumentMut, InlineTable, Item, Table, TableLike, TomlError, Value,
};

use super::source::KeyPath;

/// One change of the file; no `Debug`, because a value may be a secret.
pub(super) enum Edit {
    Set(KeyPath, Value),
    /// A key, or a table with all that is in it.
    Remove(KeyPath),
}

/// Applies the changes; a key to remove that is not there is no mistake.
pub(super) fn apply(text: &str, edits: &[Edit]) -> Result<String, TomlError> {
    let mut text = text.to_owned();
    if edits.is_empty() {
        return Ok(text);
    }
    for edit in edits {
        if let Edit::Remove(key) = edit {
            text = remove(&text, key)?;
        }
    }
    let mut document: DocumentMut = text.parse()?;
    for edit in edits {
        if let Edit::Set(key, value) = edit {
            set(document.as_table_mut(), key.parts(), value, 0);
        }
    }
    Ok(document.to_string())
}

/// Writes a file that only its owner can read: beside, synced, then renamed, so
/// that a reader and a crash see the old text or the new.
///
/// A link is followed, so that a file kept elsewhere stays there.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let dir = path
        .parent()
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or_else(|| Path::new("."));
    // The file is made with mode 0600, and with a name by which the daemon sweeps it after a crash.
    let mut file = tempfile::Builder::new()
        .prefix(&format!(".quintet-{}-", std::process::id()))
        .tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    std::fs::File::open(dir)?.sync_all()
}

/// The TOML of a JSON value; `None` for `null`, which TOML does not have.
pub(super) fn toml_value(json: &Json) -> Option<Value> {
    match json {
        Json::Null => None,
        Json::Bool(value) => Some(Value::from(*value)),
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Some(Value::from(whole)),
            None => number.as_f64().map(Value::from),
        },
        Json::String(text) => Some(Value::from(text.as_str())),
        Json::Array(items) => {
            let mut array: Array = items.iter().filter_map(toml_value).collect();
            if items.iter().any(Json::is_object) {
                array
                    .iter_mut()
                    .for_each(|item| item.decor_mut().set_prefix("\n    "));
                array.set_trailing("\n");
                array.set_trailing_comma(true);
            }
            Some(Value::Array(array))
        }
        Json::Object(members) => {
            let table: InlineTable = members
                .iter()
                .filter_map(|(key, value)| Some((key.as_str(), toml_value(value)?)))
                .collect();
            Some(Value::InlineTable(table))
        }
    }
}

/// Sets a value; `[section]` and `[section.name]` become tables of their own,
/// what is deeper goes inside braces.
fn set(table: &mut dyn TableLike, path: &[String], value: &Value, depth: usize) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        match table.get_mut(name).and_then(Item::as_value_mut) {
            Some(old) => {
                let decor = old.decor().clone();
                *old = value.clone();
                *old.decor_mut() = decor;
            }
            None => {
                table.insert(name, Item::Value(value.clone()));
            }
        }
        return;
    }
    if !table.get(name).is_some_and(Item::is_table_like) {
        let inner = if depth < 2 {
            let mut inner = Table::new();
            // [agents.mine] needs no [agents] above it.
            inner.set_implicit(rest.len() > 1);
            Item::Table(inner)
        } else {
            Item::Value(Value::InlineTable(InlineTable::new()))
        };
        table.insert(name, inner);
    }
    if let Some(inner) = table.get_mut(name).and_then(Item::as_table_like_mut) {
        set(inner, rest, value, depth + 1);
    }
}

fn remove(text: &str, key: &KeyPath) -> Result<String, TomlError> {
    let document = Document::parse(text)?;
    let mut lines = Vec::new();
    if collect_lines(document.as_table(), key.parts(), text, &mut lines) {
        lines.sort_by_key(|range: &Range<usize>| range.start);
        let mut kept = String::with_capacity(text.len());
        let mut position = 0;
        for range in lines {
            kept.push_str(text.get(position..range.start).unwrap_or_default());
            position = position.max(range.end);
        }
        kept.push_str(text.get(position..).unwrap_or_default());
        return Ok(kept);
    }
    // It shares its line with others: inside braces, where comments are rare.
    let mut document: DocumentMut = text.parse()?;
    remove_from(document.as_table_mut(), key.parts());
    Ok(document.to_string())
}

fn remove_from(table: &mut dyn TableLike, path: &[String]) {
    match path {
        [] => {}
        [last] => {
            table.remove(last);
        }
        [first, rest @ ..] => {
            if let Some(inner) = table.get_mut(first).and_then(Item::as_table_like_mut) {
                remove_from(inner, rest);
            }
        }
    }
}

/// Finds the whole lines that hold a key; false when some are shared.
fn collect_lines(
    table: &Table,
    path: &[String],
    text: &str,
    lines: &mut Vec<Range<usize>>,
) -> bool {
    let Some((name, rest)) = path.split_first() else {
        return false;
    };
    let Some((key, item)) = table.get_key_value(name) else {
        return true;
    };
    if rest.is_empty() {
        return item_lines(key.span(), item, text, lines);
    }
    match item {
        Item::Table(inner) => collect_lines(inner, rest, text, lines),
        _ => false,
    }
}

fn item_lines(
    key: Option<Range<usize>>,
    item: &Item,
    text: &str,
    lines: &mut Vec<Range<usize>>,
) -> bool {
    match item {
        Item::None => true,
        Item::Value(value) => match (key, value.span()) {
            (Some(key), Some(value)) => {
                push_lines(key.start, value.end, text, lines);
                true
            }
            _ => false,
        },
        Item::Table(table) => table_lines(table, text, lines),
        Item::ArrayOfTables(tables) => tables.iter().all(|table| table_lines(table, text, lines)),
    }
}

fn table_lines(table: &Table, text: &str, lines: &mut Vec<Range<usize>>) -> bool {
    if let Some(header) = table.span()
        && !table.is_dotted()
        && !table.is_implicit()
    {
        // A table's span may reach over its keys; its header is one line.
        push_lines(header.start, header.start, text, lines);
    }
    table.iter().all(|(name, item)| {
        let key = table.key(name).and_then(toml_edit::Key::span);
        item_lines(key, item, text, lines)
    })
}

fn push_lines(start: usize, end: usize, text: &str, lines: &mut Vec<Range<usize>>) {
    let from = text
        .get(..start)
        .and_then(|before| before.rfind('\n'))
        .map_or(0, |newline| newline + 1);
    let to = text
        .get(end..)
        .and_then(|after| after.find('\n'))
        .map_or(text.len(), |newline| end + newline + 1);
    lines.push(from..to);
}
