//! The tools as agents see them. Names and arguments are what others rely on.

use quintet_mcp::ToolSpec;
use serde_json::{Map, Value, json};

pub(super) const EXEC: &str = "exec";
pub(super) const READ_FILE: &str = "read_file";
pub(super) const WRITE_FILE: &str = "write_file";
pub(super) const EDIT_FILE: &str = "edit_file";
pub(super) const LIST_FILES: &str = "list_files";
pub(super) const SEARCH: &str = "search";
pub(super) const ASK_USER: &str = "ask_user";
pub(super) const UNDO: &str = "undo";

/// The built-in ones.
pub(super) fn all() -> Vec<ToolSpec> {
    let path = || json!({ "type": "string", "description": "Relative to the workspace" });
    let glob = || {
        json!({
            "type": "string",
            "description": "Only paths that match, such as **/*.rs; relative to the workspace",
        })
    };
    vec![
        spec(
            EXEC,
            "Run a shell command in the workspace. It sees every file as it is now, and every file that it writes is there when it ends. The result has its output, its exit code and the paths that it changed.",
            &["command"],
            json!({
                "command": { "type": "string", "description": "A line for the shell" },
                "cwd": { "type": "string", "description": "The folder to run in, relative to the workspace" },
                "timeout_secs": { "type": "integer", "minimum": 1, "description": "It is killed after so long; 600 when not given" },
            }),
        ),
        spec(
            READ_FILE,
            "Read a text file. Long files are cut; the result says how to read on.",
            &["path"],
            json!({
                "path": path(),
                "offset": { "type": "integer", "minimum": 1, "description": "The first line, counted from 1" },
                "limit": { "type": "integer", "minimum": 1, "description": "How many lines; 2000 when not given" },
                "at": { "type": "integer", "minimum": 0, "description": "As it was right after this sequence of the workspace" },
            }),
        ),
        spec(
            WRITE_FILE,
            "Write a whole file, in place of what was there. Missing folders are made.",
            &["path", "content"],
            json!({ "path": path(), "content": { "type": "string" } }),
        ),
        spec(
            EDIT_FILE,
            "Replace one exact piece of text in a file. The text has to occur exactly once. Refused when the file was changed by somebody else since you read it.",
            &["path", "old", "new"],
            json!({
                "path": path(),
                "old": { "type": "string", "description": "The text as it is in the file, with enough around it to occur once" },
                "new": { "type": "string", "description": "What takes its place" },
            }),
        ),
        spec(
            LIST_FILES,
            "List files and folders below a folder, without what .gitignore names.",
            &[],
            json!({ "path": path(), "glob": glob() }),
        ),
        spec(
            SEARCH,
            "Search the files of the workspace with a regular expression. Gives PATH:LINE:TEXT.",
            &["pattern"],
            json!({
                "pattern": { "type": "string", "description": "A regular expression of Rust's regex crate" },
                "path": path(),
                "glob": glob(),
            }),
        ),
        spec(
            ASK_USER,
            "Ask the person one or more questions and wait for the answers.",
            &["questions"],
            json!({
                "questions": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {
                            "question": { "type": "string" },
                            "header": { "type": "string", "description": "A short title" },
                            "options": {
                                "type": "array",
                                "description": "What can be chosen; none means free text",
                                "items": {
                                    "type": "object",
                                    "properties": {
                                        "label": { "type": "string" },
                                        "description": { "type": "string" },
                                    },
                                    "required": ["label"],
                                },
                            },
                            "multi_select": { "type": "boolean" },
                        },
                        "required": ["question"],
                    },
                },
            }),
        ),
        spec(
            UNDO,
            "Take back what the last commands did to files.",
            &["commands"],
            json!({ "commands": { "type": "integer", "minimum": 1, "description": "How many" } }),
        ),
    ]
}

fn spec(name: &str, description: &str, required: &[&str], properties: Value) -> ToolSpec {
    let mut schema = Map::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties);
    schema.insert("required".into(), json!(required));
    schema.insert("additionalProperties".into(), false.into());
    ToolSpec {
        name: name.to_owned(),
        description: description.to_owned(),
        schema,
    }
}
