//! Rules of `[policy]` that are added one by one, by a person who answers "always".

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

use super::effective::Change;
use super::layers::{self, load_with_file, read_config_file};
use super::model::Config;
use super::node::{Node, file_source};
use super::problem::{ConfigErrors, ProblemKind};
use super::source::{ConfigSource, KeyPath, Origin};
use super::{ConfigInputs, ConfigStore, edit};
use crate::policy::Rule;

/// Reads rules as a person writes them: inline tables, with commas between.
///
/// # Errors
///
/// Everything that is wrong with them, each with its key.
pub fn parse_rules(inputs: &ConfigInputs, text: &str) -> Result<Vec<Rule>, ConfigErrors> {
    Ok(parse(inputs, text)?.0)
}

/// Reads the list of rules of a configuration as `get_config` shows it.
///
/// # Errors
///
/// Everything that is wrong with them, each with its key.
pub fn rules_of_json(
    inputs: &ConfigInputs,
    config: &serde_json::Value,
) -> Result<Vec<Rule>, ConfigErrors> {
    let only = serde_json::json!({ "policy": { "rules": config["policy"]["rules"] } });
    Ok(layers::read_alone(Node::from_json(&only), inputs)?
        .policy
        .rules)
}

fn parse(inputs: &ConfigInputs, text: &str) -> Result<(Vec<Rule>, Vec<InlineTable>), ConfigErrors> {
    let wrong = |reason: String| {
        ConfigErrors::one(
            Origin::new(ConfigSource::Request),
            key(),
            ProblemKind::Syntax { reason },
        )
    };
    let document: DocumentMut = format!("rules = [\n{text}\n]")
        .parse()
        .map_err(|error: toml_edit::TomlError| wrong(error.message().replace('\n', ", ")))?;
    let list = document.get("rules").and_then(Item::as_array);
    let only_rules = document.as_table().len() == 1;
    let Some(list) = list.filter(|list| only_rules && !list.is_empty()) else {
        let example = "{ tool = \"exec\", command = \"git push\", action = \"allow\" }";
        return Err(wrong(format!("is not a rule such as {example}")));
    };
    let tables: Vec<InlineTable> = list
        .iter()
        .map(|item| item.as_inline_table().cloned())
        .collect::<Option<_>>()
        .ok_or_else(|| wrong("a rule stands in braces".to_owned()))?;
    let mut only = DocumentMut::new();
    only["policy"]["rules"] = Item::Value(Value::Array(list.clone()));
    let node = Node::from_toml(&only.to_string(), &ConfigSource::Request)
        .map_err(|problem| ConfigErrors(vec![problem]))?;
    let config = layers::read_alone(node, inputs)?;
    Ok((config.policy.rules, tables))
}

impl ConfigStore {
    /// Writes rules into `config.toml`, before the one named or at the end, and applies them.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with them; nothing has changed then.
    pub fn add_rules(
        &self,
        text: &str,
        before: Option<&Rule>,
    ) -> Result<Vec<Change>, ConfigErrors> {
        let (added, tables) = parse(self.inputs(), text)?;
        self.rewrite(|current: &Config, file: &str| {
            let at = before
                .and_then(|rule| current.policy.rules.iter().position(|it| it == rule))
                .unwrap_or(current.policy.rules.len());
            let mut document: DocumentMut = file.parse().map_err(|error| self.broken(&error))?;
            insert(&mut document, at, &tables);
            let edited = document.to_string();
            let (config, _) = load_with_file(self.inputs(), &edited)?;
            if config.policy.rules.get(at..at + added.len()) != Some(added.as_slice()) {
                let by = match self.origin(&key()) {
                    Some(origin) => origin.source,
                    None => file_source(self.inputs().file()),
                };
                return Err(ConfigErrors::one(
                    Origin::new(ConfigSource::Request),
                    key(),
                    ProblemKind::Overridden { by },
                ));
            }
            Ok(edited)
        })
    }

    fn broken(&self, error: &toml_edit::TomlError) -> ConfigErrors {
        // The file was broken by hand since it was loaded.
        ConfigErrors::one(
            Origin::new(file_source(self.inputs().file())),
            KeyPath::root(),
            ProblemKind::Syntax {
                reason: error.message().to_owned(),
            },
        )
    }

    fn rewrite(
        &self,
        change: impl FnOnce(&Config, &str) -> Result<String, ConfigErrors>,
    ) -> Result<Vec<Change>, ConfigErrors> {
        let current = self.current();
        let text = read_config_file(self.inputs())?;
        let edited = change(&current, &text)?;
        edit::write_private(self.inputs().file(), &edited).map_err(|error| {
            ConfigErrors(vec![layers::io_problem(self.inputs().file(), &error)])
        })?;
        self.reload()
    }
}

fn key() -> KeyPath {
    KeyPath::root().child("policy").child("rules")
}

/// Puts the tables into the document's list, whichever of its two forms that has; what is written
/// around the others stays.
fn insert(document: &mut DocumentMut, at: usize, tables: &[InlineTable]) {
    let policy = document.entry("policy").or_insert_with(toml_edit::table);
    let Some(policy) = policy.as_table_like_mut() else {
        return;
    };
    match policy.get_mut("rules") {
        Some(Item::ArrayOfTables(list)) => {
            let mut rules: Vec<Table> = list.iter().cloned().collect();
            let at = at.min(rules.len());
            rules.splice(at..at, tables.iter().cloned().map(InlineTable::into_table));
            *list = rules.into_iter().collect::<ArrayOfTables>();
        }
        Some(Item::Value(Value::Array(list))) => insert_inline(list, at, tables),
        _ => {
            let mut list = Array::new();
            insert_inline(&mut list, 0, tables);
            policy.insert("rules", Item::Value(Value::Array(list)));
        }
    }
}

fn insert_inline(list: &mut Array, at: usize, tables: &[InlineTable]) {
    let at = at.min(list.len());
    let mut of_the_one_before = take_comment(list, at);
    for (index, table) in tables.iter().enumerate() {
        let mut value = Value::InlineTable(table.clone());
        let comment = std::mem::take(&mut of_the_one_before);
        value.decor_mut().set_prefix(format!("{comment}\n    "));
        value.decor_mut().set_suffix("");
        list.insert_formatted(at + index, value);
    }
    let trailing = list.trailing().as_str().unwrap_or_default().to_owned();
    if !trailing.contains('\n') {
        list.set_trailing("\n");
    }
    list.set_trailing_comma(true);
}

/// Takes the comment that ends the line of the rule before that place, which stands behind its
/// comma and so with what comes next.
fn take_comment(list: &mut Array, at: usize) -> String {
    let split = |text: &str| {
        let (line, rest) = text.split_at(text.find('\n').unwrap_or(text.len()));
        line.contains('#')
            .then(|| (line.trim_end().to_owned(), rest.to_owned()))
    };
    let is_last = at == list.len();
    if is_last && let Some((comment, rest)) = split(list.trailing().as_str().unwrap_or_default()) {
        list.set_trailing(rest);
        return comment;
    }
    // Without a comma behind it the last rule has its comment itself.
    let beside = if is_last { at.checked_sub(1) } else { Some(at) };
    let Some(beside) = beside.and_then(|at| list.get_mut(at)) else {
        return String::new();
    };
    let decor = beside.decor_mut();
    let text = if is_last {
        decor.suffix()
    } else {
        decor.prefix()
    };
    let text = text.and_then(|text| text.as_str()).unwrap_or_default();
    let Some((comment, rest)) = split(text) else {
        return String::new();
    };
    match is_last {
        true => decor.set_suffix(""),
        false => decor.set_prefix(rest),
    }
    comment
}
