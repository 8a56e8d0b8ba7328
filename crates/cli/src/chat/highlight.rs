//! Syntax highlighting by a small table per language: comments, strings, numbers, keywords.
//!
//! It reads a line at a time and carries only what may span lines. That is less than a grammar
//! knows, and costs no grammar files, no regular expressions and no start-up time.

use ratatui::style::Style;

use super::theme;
use super::wrap::{self, Styled};

/// What a language's text is made of.
struct Language {
    names: &'static [&'static str],
    line_comments: &'static [&'static str],
    block_comment: Option<(&'static str, &'static str)>,
    /// Longest first: an opening that another one begins with comes before it.
    strings: &'static [StringKind],
    keywords: &'static [&'static str],
}

struct StringKind {
    quote: &'static str,
    multi_line: bool,
    escapes: bool,
}

const fn string(quote: &'static str) -> StringKind {
    StringKind {
        quote,
        multi_line: false,
        escapes: true,
    }
}

const fn raw_string(quote: &'static str, multi_line: bool) -> StringKind {
    StringKind {
        quote,
        multi_line,
        escapes: false,
    }
}

const fn long_string(quote: &'static str) -> StringKind {
    StringKind {
        quote,
        multi_line: true,
        escapes: true,
    }
}

const C_COMMENT: Option<(&str, &str)> = Some(("/*", "*/"));

const LANGUAGES: &[Language] = &[
    Language {
        names: &["rust", "rs"],
        line_comments: &["//"],
        block_comment: C_COMMENT,
        // No single quotes: most of them are lifetimes.
        strings: &[long_string("\"")],
        keywords: &[
            "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum",
            "extern", "false", "fn", "for", "if", "impl", "in", "let", "loop", "match", "mod",
            "move", "mut", "pub", "ref", "return", "self", "Self", "static", "struct", "super",
            "trait", "true", "type", "unsafe", "use", "where", "while",
        ],
    },
    Language {
        names: &["python", "py", "python3"],
        line_comments: &["#"],
        block_comment: None,
        strings: &[
            long_string("\"\"\""),
            long_string("'''"),
            string("\""),
            string("'"),
        ],
        keywords: &[
            "False", "None", "True", "and", "as", "assert", "async", "await", "break", "case",
            "class", "continue", "def", "del", "elif", "else", "except", "finally", "for", "from",
            "global", "if", "import", "in", "is", "lambda", "match", "nonlocal", "not", "or",
            "pass", "raise", "return", "self", "try", "while", "with", "yield",
        ],
    },
    Language {
        names: &[
            "javascript",
            "js",
            "jsx",
            "typescript",
            "ts",
            "tsx",
            "svelte",
        ],
        line_comments: &["//"],
        block_comment: C_COMMENT,
        strings: &[long_string("`"), string("\""), string("'")],
        keywords: &[
            "any",
            "as",
            "async",
            "await",
            "break",
            "case",
            "catch",
            "class",
            "const",
            "continue",
            "default",
            "delete",
            "do",
            "else",
            "enum",
            "export",
            "extends",
            "false",
            "finally",
            "for",
            "from",
            "function",
            "if",
            "import",
            "in",
            "instanceof",
            "interface",
            "let",
            "new",
            "null",
            "number",
            "of",
            "return",
            "static",
            "string",
            "super",
            "switch",
            "this",
            "throw",
            "true",
            "try",
            "type",
            "typeof",
            "undefined",
            "var",
            "void",
            "while",
            "yield",
        ],
    },
    Language {
        names: &["go", "golang"],
        line_comments: &["//"],
        block_comment: C_COMMENT,
        strings: &[raw_string("`", true), string("\""), string("'")],
        keywords: &[
            "break",
            "case",
            "chan",
            "const",
            "continue",
            "default",
            "defer",
            "else",
            "false",
            "for",
            "func",
            "go",
            "goto",
            "if",
            "import",
            "interface",
            "map",
            "nil",
            "package",
            "range",
            "return",
            "select",
            "struct",
            "switch",
            "true",
            "type",
            "var",
        ],
    },
    Language {
        names: &[
            "c", "h", "cpp", "c++", "cc", "hpp", "java", "kotlin", "swift", "csharp", "cs", "proto",
        ],
        line_comments: &["//"],
        block_comment: C_COMMENT,
        strings: &[string("\""), string("'")],
        keywords: &[
            "auto",
            "bool",
            "break",
            "case",
            "catch",
            "char",
            "class",
            "const",
            "continue",
            "default",
            "delete",
            "do",
            "double",
            "else",
            "enum",
            "extends",
            "extern",
            "false",
            "final",
            "float",
            "for",
            "fun",
            "func",
            "if",
            "implements",
            "import",
            "int",
            "interface",
            "let",
            "long",
            "message",
            "namespace",
            "new",
            "null",
            "nullptr",
            "optional",
            "override",
            "package",
            "private",
            "protected",
            "public",
            "repeated",
            "return",
            "short",
            "sizeof",
            "static",
            "string",
            "struct",
            "super",
            "switch",
            "template",
            "this",
            "throw",
            "true",
            "try",
            "typedef",
            "typename",
            "union",
            "unsigned",
            "using",
            "val",
            "var",
            "virtual",
            "void",
            "volatile",
            "while",
        ],
    },
    Language {
        names: &["bash", "sh", "shell", "zsh", "console"],
        line_comments: &["#"],
        block_comment: None,
        strings: &[long_string("\""), raw_string("'", true)],
        keywords: &[
            "case", "cd", "do", "done", "echo", "elif", "else", "esac", "exit", "export", "fi",
            "for", "function", "if", "in", "local", "return", "set", "source", "then", "until",
            "while",
        ],
    },
    Language {
        names: &["json", "jsonc", "json5"],
        line_comments: &["//"],
        block_comment: None,
        strings: &[string("\"")],
        keywords: &["false", "null", "true"],
    },
    Language {
        names: &[
            "toml",
            "yaml",
            "yml",
            "ini",
            "dockerfile",
            "make",
            "makefile",
        ],
        line_comments: &["#"],
        block_comment: None,
        strings: &[long_string("\"\"\""), string("\""), raw_string("'", false)],
        keywords: &[
            "false", "null", "true", "FROM", "RUN", "COPY", "CMD", "ENV", "WORKDIR",
        ],
    },
    Language {
        names: &["sql", "sqlite", "postgres"],
        line_comments: &["--"],
        block_comment: C_COMMENT,
        strings: &[raw_string("'", false), raw_string("\"", false)],
        keywords: &[
            "ADD", "ALTER", "AND", "AS", "ASC", "BEGIN", "BY", "CASE", "COMMIT", "CREATE",
            "DELETE", "DESC", "DISTINCT", "DROP", "ELSE", "END", "EXISTS", "FROM", "GROUP",
            "HAVING", "IN", "INDEX", "INSERT", "INTO", "IS", "JOIN", "KEY", "LEFT", "LIMIT", "NOT",
            "NULL", "ON", "OR", "ORDER", "PRIMARY", "SELECT", "SET", "TABLE", "THEN", "UNION",
            "UPDATE", "VALUES", "WHEN", "WHERE", "WITH", "select", "from", "where", "insert",
            "into", "values", "update", "set", "delete", "join", "on", "and", "or", "not", "null",
            "create", "table", "order", "by", "group", "limit", "as", "in", "is",
        ],
    },
];

/// The lines of a piece of code, coloured where the language is known.
pub(crate) fn highlight(language: &str, code: &str) -> Vec<Styled> {
    let name = language
        .split([',', ' ', '{'])
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let code = code.strip_suffix('\n').unwrap_or(code);
    if name == "diff" || name == "patch" {
        return code.lines().map(diff_line).collect();
    }
    let Some(language) = LANGUAGES
        .iter()
        .find(|language| language.names.contains(&name.as_str()))
    else {
        return code
            .split('\n')
            .map(|line| wrap::plain(line, theme::PLAIN))
            .collect();
    };
    let mut open = Open::Nothing;
    code.split('\n')
        .map(|line| language.line(line, &mut open))
        .collect()
}

/// A line of a unified diff.
pub(crate) fn diff_line(line: &str) -> Styled {
    let style = match line.as_bytes().first() {
        Some(b'+') => theme::GOOD,
        Some(b'-') => theme::BAD,
        Some(b'@') => theme::TYPE,
        _ => theme::PLAIN,
    };
    wrap::plain(line, style)
}

/// What the line before left open.
#[derive(Clone, Copy)]
enum Open {
    Nothing,
    Comment(&'static str),
    String { quote: &'static str, escapes: bool },
}

impl Language {
    fn line(&self, line: &str, open: &mut Open) -> Styled {
        let mut out = Styled::new();
        let mut rest = line;
        while !rest.is_empty() {
            let (taken, style) = match *open {
                Open::Comment(end) => (self.close(rest, end, false, open), theme::COMMENT),
                Open::String { quote, escapes } => {
                    (self.close(rest, quote, escapes, open), theme::STRING)
                }
                Open::Nothing => self.token(rest, open),
            };
            wrap::push(&mut out, &rest[..taken], style);
            rest = &rest[taken..];
        }
        if let Open::String { quote, .. } = *open
            && !self
                .strings
                .iter()
                .any(|kind| kind.quote == quote && kind.multi_line)
        {
            *open = Open::Nothing;
        }
        out
    }

    /// How much of `rest` belongs to what is open; closes it when its end is there.
    fn close(&self, rest: &str, end: &str, escapes: bool, open: &mut Open) -> usize {
        let mut at = 0;
        while at < rest.len() {
            if rest[at..].starts_with(end) {
                *open = Open::Nothing;
                return at + end.len();
            }
            let mut chars = rest[at..].chars();
            let first = chars.next().map_or(1, char::len_utf8);
            at += first;
            if escapes && rest[at - first..].starts_with('\\') {
                at += chars.next().map_or(0, char::len_utf8);
            }
        }
        rest.len()
    }

    /// The next token's length and style.
    fn token(&self, rest: &str, open: &mut Open) -> (usize, Style) {
        if self.line_comments.iter().any(|mark| rest.starts_with(mark)) {
            return (rest.len(), theme::COMMENT);
        }
        if let Some((begin, end)) = self.block_comment
            && rest.starts_with(begin)
        {
            *open = Open::Comment(end);
            return (begin.len(), theme::COMMENT);
        }
        if let Some(kind) = self
            .strings
            .iter()
            .find(|kind| rest.starts_with(kind.quote))
        {
            *open = Open::String {
                quote: kind.quote,
                escapes: kind.escapes,
            };
            return (kind.quote.len(), theme::STRING);
        }
        let Some(first) = rest.chars().next() else {
            return (0, theme::PLAIN);
        };
        if !is_word(first) {
            return (first.len_utf8(), theme::PLAIN);
        }
        let length = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
        let word = &rest[..length];
        let style = if self.keywords.contains(&word) {
            theme::KEYWORD
        } else if first.is_ascii_digit() {
            theme::NUMBER
        } else if first.is_uppercase() {
            theme::TYPE
        } else {
            theme::PLAIN
        };
        (length, style)
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a line, each with a letter for its style.
    fn tokens(line: &Styled) -> String {
        let mut out = String::new();
        for run in line.chunk_by(|(_, left), (_, right)| left == right) {
            let text: String = run.iter().map(|(char, _)| *char).collect();
            let mark = match run[0].1 {
                theme::KEYWORD => "K",
                theme::STRING => "S",
                theme::NUMBER => "N",
                theme::COMMENT => "C",
                theme::TYPE => "T",
                _ => "",
            };
            if mark.is_empty() {
                out.push_str(&text);
            } else {
                out.push_str(&format!("{mark}<{text}>"));
            }
        }
        out
    }

    fn marked(language: &str, code: &str) -> Vec<String> {
        highlight(language, code).iter().map(tokens).collect()
    }

    #[test]
    fn tokens_are_told_apart() {
        assert_eq!(
            marked("rust", "let x: &'a str = \"a\\\"b\"; // 1\n"),
            ["K<let> x: &'a str = S<\"a\\\"b\">; C<// 1>"]
        );
        assert_eq!(
            marked("py", "return f('#', 42)"),
            ["K<return> f(S<'#'>, N<42>)"]
        );
        assert_eq!(marked("JSON", "{\"a\": null}"), ["{S<\"a\">: K<null>}"]);
        assert_eq!(marked("nothing known", "let it = 1"), ["let it = 1"]);
    }

    #[test]
    fn what_is_open_goes_on_to_the_next_line() {
        assert_eq!(marked("c", "a /* b\nc */ d"), ["a C</* b>", "C<c */> d"]);
        assert_eq!(marked("py", "'''x\n1'''"), ["S<'''x>", "S<1'''>"]);
        assert_eq!(
            marked("js", "'open\n1"),
            ["S<'open>", "N<1>"],
            "a plain string ends with its line"
        );
    }

    #[test]
    fn other_scripts_and_a_backslash_at_the_end_are_no_trouble() {
        assert_eq!(marked("rs", "\"é\\"), ["S<\"é\\>"]);
        assert_eq!(marked("go", "日本 := 1"), ["日本 := N<1>"]);
    }
}
