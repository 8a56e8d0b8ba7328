//! The head of a Markdown file: keys before the text.
//!
//! Two forms. Between two lines of `+++`, TOML. Between two lines of `---`, the
//! part of YAML that such heads use: `key: value` at the start of a line,
//! values plain or quoted, further lines of a value indented, `>` and `|` for
//! folded and literal blocks, `#` comments. Nested keys are read as the text of
//! the key above them. A file without a head is all body.

use super::node::Node;
use super::problem::{Problem, ProblemKind};
use super::source::{ConfigSource, KeyPath, Origin};

/// A file's keys and the text after them.
pub(super) struct FrontMatter {
    /// A table, empty when there is no head.
    pub(super) head: Node,
    pub(super) body: String,
    /// The line on which the body starts.
    pub(super) body_line: usize,
}

pub(super) fn parse(text: &str, source: &ConfigSource) -> Result<FrontMatter, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines();
    let Some(fence @ ("+++" | "---")) = lines.next().map(str::trim_end) else {
        return Ok(FrontMatter {
            head: Node::table(Origin {
                source: source.clone(),
                line: Some(1),
            }),
            body: text.trim().to_owned(),
            body_line: 1,
        });
    };
    let rest: Vec<&str> = lines.collect();
    let Some(end) = rest.iter().position(|line| line.trim_end() == fence) else {
        return Err(syntax(
            source,
            1,
            format!("the head starts with {fence} and does not end with another {fence}"),
        ));
    };
    let (head, body) = (&rest[..end], &rest[end + 1..]);
    let head = if fence == "+++" {
        // One empty line stands for the fence, so that lines count from the file.
        Node::from_toml(&format!("\n{}", head.join("\n")), source)?
    } else {
        simple_yaml(head, source)?
    };
    let leading_blank = body
        .iter()
        .take_while(|line| line.trim().is_empty())
        .count();
    Ok(FrontMatter {
        head,
        body: body.join("\n").trim().to_owned(),
        body_line: end + 3 + leading_blank,
    })
}

fn simple_yaml(lines: &[&str], source: &ConfigSource) -> Result<Node, Problem> {
    let mut head = Node::table(Origin {
        source: source.clone(),
        line: Some(1),
    });
    let mut index = 0;
    while let Some(line) = lines.get(index) {
        // The fence is line 1.
        let number = index + 2;
        index += 1;
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let Some((key, value)) = line
            .split_once(':')
            .filter(|(key, _)| is_key(key))
            .filter(|(_, value)| value.is_empty() || value.starts_with([' ', '\t']))
        else {
            return Err(syntax(
                source,
                number,
                "expected a line such as \"description: what it does\"".to_owned(),
            ));
        };
        let more = lines[index..]
            .iter()
            .take_while(|line| line.trim().is_empty() || line.starts_with([' ', '\t']))
            .count();
        let block = &lines[index..index + more];
        index += more;
        let value = scalar(value.trim(), block)
            .ok_or_else(|| syntax(source, number, format!("{key}: a quote is not closed")))?;
        let origin = Origin {
            source: source.clone(),
            line: Some(number),
        };
        head.insert(&[key.to_owned()], Node::text(origin, value));
    }
    Ok(head)
}

fn is_key(key: &str) -> bool {
    !key.is_empty()
        && key
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// The value of a key; `None` when a quote is not closed.
fn scalar(first: &str, block: &[&str]) -> Option<String> {
    let trimmed: Vec<&str> = block.iter().map(|line| line.trim()).collect();
    match first.as_bytes().first() {
        Some(b'|') => return Some(literal(block)),
        Some(b'>') => return Some(fold(&trimmed)),
        Some(b'"') => {
            let text = join(first, &trimmed);
            let inner = text.strip_prefix('"')?.strip_suffix('"')?;
            return Some(inner.replace("\\\"", "\"").replace("\\\\", "\\"));
        }
        Some(b'\'') => {
            let text = join(first, &trimmed);
            let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
            return Some(inner.replace("''", "'"));
        }
        _ => {}
    }
    let plain = first
        .split_once(" #")
        .map_or(first, |(value, _)| value.trim_end());
    Some(join(plain, &trimmed))
}

/// Lines as they are, without the indentation of the first.
fn literal(block: &[&str]) -> String {
    let indent = block
        .iter()
        .find(|line| !line.trim().is_empty())
        .map_or(0, |line| line.len() - line.trim_start().len());
    let lines: Vec<&str> = block
        .iter()
        .map(|line| line.get(indent..).unwrap_or("").trim_end())
        .collect();
    lines.join("\n").trim_end().to_owned()
}

/// Lines joined by spaces; an empty line is a line break.
fn fold(lines: &[&str]) -> String {
    let mut text = String::new();
    for line in lines {
        if line.is_empty() {
            text.push('\n');
        } else {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
    text.trim_end().to_owned()
}

fn join(first: &str, lines: &[&str]) -> String {
    let mut parts = vec![first];
    parts.extend(lines.iter().filter(|line| !line.is_empty()));
    parts.join(" ").trim().to_owned()
}

fn syntax(source: &ConfigSource, line: usize, reason: String) -> Problem {
    Problem {
        origin: Origin {
            source: source.clone(),
            line: Some(line),
        },
        key: KeyPath::root(),
        kind: ProblemKind::Syntax { reason },
    }
}
