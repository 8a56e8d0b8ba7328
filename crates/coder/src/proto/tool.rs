//! Tools as the model sees them, and results as it gets them.

use std::collections::BTreeMap;

use quintet_agent::FileChangeKind;
use serde_json::{Map, Value, json};

/// Text of a result that the model gets at the most; what is in the middle is left out.
const MAX_TEXT: usize = 48 * 1024;

/// The tools of the daemon, by the names that the model uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Toolbox {
    tools: Vec<Value>,
    /// The daemon's own name for each of the model's.
    names: BTreeMap<String, String>,
}

impl Toolbox {
    /// Takes the tools of a `tools/list`.
    pub fn new(listed: &[Value]) -> Self {
        let mut toolbox = Self::default();
        for tool in listed {
            let Some(own) = tool["name"].as_str() else {
                continue;
            };
            let name = toolbox.free_name(own);
            let schema = match &tool["inputSchema"] {
                schema @ Value::Object(_) => schema.clone(),
                _ => json!({ "type": "object" }),
            };
            let description = tool["description"].as_str().unwrap_or_default();
            toolbox.tools.push(json!({
                "name": name, "description": description, "input_schema": schema,
            }));
            toolbox.names.insert(name, own.to_owned());
        }
        toolbox
    }

    /// The tools as the model gets them.
    pub fn tools(&self) -> &[Value] {
        &self.tools
    }

    /// The daemon's name of a tool.
    pub fn own_name(&self, name: &str) -> Option<&str> {
        self.names.get(name).map(String::as_str)
    }

    /// A name of letters, digits, `_` and `-`, which is all that the format allows.
    fn free_name(&self, own: &str) -> String {
        let clean: String = own
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '-' {
                    c
                } else {
                    '_'
                }
            })
            .take(60)
            .collect();
        let mut name = clean.clone();
        let mut number = 1u32;
        while self.names.contains_key(&name) {
            number = number.saturating_add(1);
            name = format!("{clean}_{number}");
        }
        name
    }
}

/// What a tool gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What the model gets: text, or blocks where there are pictures.
    pub content: Value,
    /// What the person sees.
    pub shown: Value,
    /// Whether it failed.
    pub is_error: bool,
    /// Files that changed.
    pub changes: Vec<FileChange>,
}

/// A file that a tool changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// Relative to the workspace.
    pub path: String,
    /// How.
    pub change: FileChangeKind,
    /// A unified diff.
    pub diff: Option<String>,
}

impl Outcome {
    /// A failure in words.
    pub fn failed(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self {
            content: reason.clone().into(),
            shown: reason.into(),
            is_error: true,
            changes: Vec::new(),
        }
    }

    /// A success in words.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            content: clipped(&text).into(),
            shown: text.into(),
            is_error: false,
            changes: Vec::new(),
        }
    }

    /// Reads the result of a `tools/call`.
    pub fn from_call(name: &str, input: &Map<String, Value>, result: &Value) -> Self {
        let mut texts = Vec::new();
        let mut images = Vec::new();
        for block in result["content"].as_array().into_iter().flatten() {
            match block["type"].as_str().unwrap_or_default() {
                "text" => texts.push(block["text"].as_str().unwrap_or_default().to_owned()),
                "image" => images.push(json!({ "type": "image", "source": {
                    "type": "base64", "media_type": block["mimeType"], "data": block["data"],
                }})),
                "resource" => {
                    let text = block.pointer("/resource/text").and_then(Value::as_str);
                    texts.extend(text.map(str::to_owned));
                }
                _ => {}
            }
        }
        let structured = &result["structuredContent"];
        if texts.is_empty() && structured.is_object() {
            texts.push(structured.to_string());
        }
        let text = texts.join("\n");
        let is_error = result["isError"] == true;
        let for_model = match text.trim().is_empty() {
            true => "(no output)".to_owned(),
            false => clipped(&text),
        };
        let content = match images.is_empty() {
            true => for_model.into(),
            false => {
                images.insert(0, json!({ "type": "text", "text": for_model }));
                Value::Array(images)
            }
        };
        let changes = match is_error {
            true => Vec::new(),
            false => changes(name, input, structured, &text),
        };
        Self {
            content,
            shown: text.into(),
            is_error,
            changes,
        }
    }
}

/// The files that a call says it changed; for one that writes a file and says nothing, that file.
fn changes(
    name: &str,
    input: &Map<String, Value>,
    structured: &Value,
    text: &str,
) -> Vec<FileChange> {
    let listed: Vec<FileChange> = ["changed", "changes", "changed_paths", "files"]
        .iter()
        .filter_map(|key| structured[*key].as_array())
        .flatten()
        .filter_map(|item| {
            let path = item.as_str().or_else(|| item["path"].as_str())?;
            Some(FileChange {
                path: path.to_owned(),
                change: kind(item["change"].as_str().or_else(|| item["kind"].as_str())),
                diff: item["diff"].as_str().map(str::to_owned),
            })
        })
        .collect();
    if !listed.is_empty() || !matches!(name, "write_file" | "edit_file") {
        return listed;
    }
    let path = structured["path"]
        .as_str()
        .or_else(|| input.get("path")?.as_str());
    let change = match structured["created"] == true {
        true => FileChangeKind::Created,
        false => kind(structured["change"].as_str()),
    };
    path.map(|path| FileChange {
        path: path.to_owned(),
        change,
        diff: structured["diff"]
            .as_str()
            .or_else(|| diff_in(text))
            .map(str::to_owned),
    })
    .into_iter()
    .collect()
}

/// The unified diff that a text ends with.
fn diff_in(text: &str) -> Option<&str> {
    let begins = |mark: &str| {
        text.find(&format!("\n{mark}"))
            .map(|at| at.saturating_add(1))
    };
    let at = [begins("--- "), begins("@@ ")]
        .into_iter()
        .flatten()
        .min()?;
    text.get(at..)
}

fn kind(word: Option<&str>) -> FileChangeKind {
    match word {
        Some("created" | "create" | "added") => FileChangeKind::Created,
        Some("deleted" | "delete" | "removed") => FileChangeKind::Deleted,
        _ => FileChangeKind::Modified,
    }
}

/// A long text without its middle: what a program says last is often why it failed.
pub fn clipped(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let head_end = boundary(text, MAX_TEXT / 3 * 2);
    let tail_start = boundary(text, text.len().saturating_sub(MAX_TEXT / 3));
    let left_out = tail_start.saturating_sub(head_end);
    format!(
        "{}\n\n[.. {left_out} bytes left out here; ask for a part of it ..]\n\n{}",
        text.get(..head_end).unwrap_or_default(),
        text.get(tail_start..).unwrap_or_default()
    )
}

fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_the_format_does_not_allow_are_mapped() {
        let listed = [
            json!({"name": "tickets.find", "inputSchema": {"type": "object"}}),
            json!({"name": "tickets_find"}),
            json!({"name": "exec", "description": "runs"}),
        ];
        let toolbox = Toolbox::new(&listed);
        let names: Vec<&str> = toolbox
            .tools()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["tickets_find", "tickets_find_2", "exec"]);
        assert_eq!(toolbox.own_name("tickets_find"), Some("tickets.find"));
        assert_eq!(toolbox.own_name("tickets_find_2"), Some("tickets_find"));
        assert_eq!(toolbox.own_name("other"), None);
    }

    #[test]
    fn results_are_read() {
        let input = json!({"path": "a.rs"}).as_object().unwrap().clone();
        let result = json!({"content": [{"type": "text", "text": "written"}],
            "structuredContent": {"created": true, "diff": "+x"}});
        let outcome = Outcome::from_call("write_file", &input, &result);
        assert_eq!(outcome.content, "written");
        assert_eq!(
            outcome.changes,
            [FileChange {
                path: "a.rs".into(),
                change: FileChangeKind::Created,
                diff: Some("+x".into())
            }]
        );
        let result = json!({"content": [{"type": "text", "text": "stale"}], "isError": true});
        let outcome = Outcome::from_call("edit_file", &input, &result);
        assert!(outcome.is_error && outcome.changes.is_empty());
        let said = "edited a.rs at line 3\n@@ -3 +3 @@\n-x\n+y\n";
        let result = json!({"content": [{"type": "text", "text": said}],
            "structuredContent": {"path": "a.rs", "line": 3}});
        let outcome = Outcome::from_call("edit_file", &input, &result);
        assert_eq!(
            outcome.changes,
            [FileChange {
                path: "a.rs".into(),
                change: FileChangeKind::Modified,
                diff: Some("@@ -3 +3 @@\n-x\n+y\n".into())
            }]
        );
        let result = json!({"content": [], "structuredContent":
            {"exit_code": 0, "changed": ["x", {"path": "y", "change": "delete"}]}});
        let outcome = Outcome::from_call("exec", &Map::new(), &result);
        assert_eq!(outcome.changes.len(), 2);
        assert_eq!(outcome.changes[1].change, FileChangeKind::Deleted);
        let result =
            json!({"content": [{"type": "image", "mimeType": "image/png", "data": "AA=="}]});
        let outcome = Outcome::from_call("shot", &Map::new(), &result);
        assert_eq!(outcome.content[1]["source"]["media_type"], "image/png");
    }

    proptest! {
        #[test]
        fn clipping_keeps_both_ends(text in "\\PC{0,40}", times in 1usize..4000) {
            let long = text.repeat(times);
            let clipped = clipped(&long);
            prop_assert!(clipped.len() <= MAX_TEXT + 200);
            if long.len() > MAX_TEXT {
                let tail: String = long.chars().rev().take(10).collect::<Vec<_>>().into_iter().rev().collect();
                prop_assert!(clipped.ends_with(&tail));
            } else {
                prop_assert_eq!(clipped, long);
            }
        }
    }
}
