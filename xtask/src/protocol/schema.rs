//! The control plane's schema as Markdown.
//!
//! Reads the part of the schema language that `quintet.proto` uses: comments on lines of their own
//! above what they are about, one field a line, `message`, `enum` and `oneof`. Anything else is an
//! error, so that nothing is left out in silence.

use std::fmt::Write as _;

/// The schema as text, or the line that is not understood.
pub(super) fn render(schema: &str) -> Result<String, String> {
    let mut page = String::new();
    let mut comment: Vec<&str> = Vec::new();
    let mut open: Vec<Block> = Vec::new();
    for (index, line) in schema.lines().enumerate() {
        let line = line.trim();
        let unknown = || format!("line {}: {line}", index + 1);
        if let Some(text) = line.strip_prefix("//") {
            comment.push(text.trim());
        } else if line.is_empty() {
            free_comment(&mut page, &mut comment, &open);
        } else if line.starts_with("syntax ") || line.starts_with("package ") {
            // What stands above them is about the whole file.
            free_comment(&mut page, &mut comment, &open);
        } else if line == "}" {
            open.pop().ok_or_else(unknown)?;
            comment.clear();
            if open.is_empty() {
                page.push('\n');
            }
        } else if let Some((kind, name)) = opening(line) {
            let empty = line.ends_with("{}");
            match kind {
                Block::Oneof => {
                    let said = sentence(&comment);
                    let _ = writeln!(page, "- one of, as `{name}`:{said}");
                }
                Block::Message | Block::Enum => {
                    let _ = writeln!(page, "\n#### `{name}`\n");
                    if !comment.is_empty() {
                        let _ = writeln!(page, "{}\n", paragraphs(&comment));
                    }
                }
            }
            comment.clear();
            if !empty {
                open.push(kind);
            }
        } else {
            let field = field(line).ok_or_else(unknown)?;
            let indent = "  ".repeat(open.len().checked_sub(1).ok_or_else(unknown)?);
            if let Some(range) = comment.first().filter(|line| names_a_range(line)) {
                let _ = writeln!(page, "{indent}- *{range}*");
                comment.remove(0);
            }
            let said = sentence(&comment);
            let _ = match field.kind.is_empty() {
                true => writeln!(page, "{indent}- {} `{}`{said}", field.number, field.name),
                false => writeln!(
                    page,
                    "{indent}- {} `{}`: {}{said}",
                    field.number,
                    field.name,
                    link(field.kind)
                ),
            };
            comment.clear();
        }
    }
    match open.is_empty() {
        true => Ok(page),
        false => Err("a block is not closed".to_owned()),
    }
}

enum Block {
    Message,
    Enum,
    Oneof,
}

struct Field<'a> {
    kind: &'a str,
    name: &'a str,
    number: u32,
}

fn opening(line: &str) -> Option<(Block, &str)> {
    let head = line.strip_suffix('}').unwrap_or(line);
    let (kind, name) = head.strip_suffix('{')?.trim().split_once(' ')?;
    let block = match kind {
        "message" => Block::Message,
        "enum" => Block::Enum,
        "oneof" => Block::Oneof,
        _ => return None,
    };
    Some((block, name.trim()))
}

/// `optional uint64 session = 3;` or, in an enum, `DONE = 5;`
fn field(line: &str) -> Option<Field<'_>> {
    let (declared, number) = line.strip_suffix(';')?.split_once('=')?;
    let (kind, name) = match declared.trim().rsplit_once(' ') {
        Some((kind, name)) => (kind.trim(), name),
        None => ("", declared.trim()),
    };
    Some(Field {
        kind,
        name,
        number: number.trim().parse().ok()?,
    })
}

/// A comment that stands alone: a title between rules, or words about a group.
fn free_comment(page: &mut String, comment: &mut Vec<&str>, open: &[Block]) {
    let ruled = comment.iter().any(|line| line.starts_with("---"));
    let words: Vec<&str> = comment
        .drain(..)
        .filter(|line| !line.starts_with("---"))
        .collect();
    if words.is_empty() {
        return;
    }
    let _ = match (ruled, open.len()) {
        (true, _) => writeln!(page, "\n### {}\n", words.join(" ")),
        (false, 0) => writeln!(page, "{}\n", paragraphs(&words)),
        (false, depth) => writeln!(page, "{}- {}", "  ".repeat(depth - 1), words.join(" ")),
    };
}

/// `10-19: turns`, above the first field of a range of numbers.
fn names_a_range(line: &str) -> bool {
    let range = line
        .split_once(':')
        .and_then(|(range, _)| range.split_once('-'));
    range.is_some_and(|(from, to)| from.parse::<u32>().is_ok() && to.parse::<u32>().is_ok())
}

fn paragraphs(lines: &[&str]) -> String {
    let paragraphs: Vec<String> = lines
        .split(|line| line.is_empty())
        .map(|lines| lines.join(" "))
        .collect();
    paragraphs.join("\n\n")
}

fn sentence(comment: &[&str]) -> String {
    match comment.is_empty() {
        true => String::new(),
        false => format!(" — {}", comment.join(" ")),
    }
}

/// A message's own type is a link to it; the schema's own words are not.
fn link(kind: &str) -> String {
    let (label, name) = match kind.rsplit_once(' ') {
        Some((label, name)) => (format!("{label} "), name),
        None => (String::new(), kind),
    };
    match name.starts_with(char::is_uppercase) {
        true => format!("{label}[{name}](#{})", name.to_lowercase()),
        false => format!("{label}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = "\
// About the file.
//
// More of it.
syntax = \"proto3\";

// -----
// Requests
// -----

// Runs it.
message Send {
  // Who.
  optional string agent = 1;
  repeated Part parts = 1000;
  oneof what {
    // 1-9: words
    // In full.
    Words words = 2;
  }
}

message Ping {}

enum Kind {
  DONE = 5;
}
";

    #[test]
    fn messages_fields_numbers_and_comments_are_kept() {
        assert_eq!(
            render(SCHEMA).as_deref(),
            Ok("\
About the file.

More of it.


### Requests


#### `Send`

Runs it.

- 1 `agent`: optional string — Who.
- 1000 `parts`: repeated [Part](#part)
- one of, as `what`:
  - *1-9: words*
  - 2 `words`: [Words](#words) — In full.


#### `Ping`


#### `Kind`

- 5 `DONE`

")
        );
    }

    #[test]
    fn what_is_not_understood_is_named() {
        assert_eq!(
            render("message A {\n  map<string, B> c = x;\n}\n"),
            Err("line 2: map<string, B> c = x;".to_owned())
        );
        assert!(render("message A {\n").is_err());
    }
}
