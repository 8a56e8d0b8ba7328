//! Finds the paths that a file names (`std::fs::read`, `use std::{env, io}`), with local names
//! resolved through the file's own imports.

use std::collections::HashMap;

use super::tokens::{Kind, Token, is_punct};

/// A path as the compiler would see it from the crate root of the named library.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedPath<'a> {
    pub(super) line: usize,
    pub(super) segments: Vec<&'a str>,
    /// Followed by `!`.
    pub(super) is_macro: bool,
}

impl NamedPath<'_> {
    pub(super) fn starts_with(&self, prefix: &[&str]) -> bool {
        self.segments.starts_with(prefix)
    }

    pub(super) fn ends_with(&self, suffix: &[&str]) -> bool {
        self.segments.ends_with(suffix)
    }

    pub(super) fn display(&self) -> String {
        let bang = if self.is_macro { "!" } else { "" };
        format!("{}{bang}", self.segments.join("::"))
    }
}

/// All paths of a file, in order.
pub(super) fn named_paths<'a>(tokens: &[Token<'a>]) -> Vec<NamedPath<'a>> {
    let mut imports = Vec::new();
    let mut uses = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].kind {
            // `use<..>` in a type captures lifetimes and imports nothing.
            Kind::Ident("use") if !is_punct(tokens, at + 1, '<') => {
                at = use_tree(tokens, at + 1, &[], &mut imports);
            }
            Kind::Ident(_) if starts_path(tokens, at) => {
                let (path, end) = path_at(tokens, at);
                uses.push(path);
                at = end;
            }
            _ => at += 1,
        }
    }
    let names: HashMap<&str, &[&str]> = imports
        .iter()
        .map(|import| (import.name, import.path.segments.as_slice()))
        .collect();
    for path in &mut uses {
        if let Some(full) = path.segments.first().and_then(|first| names.get(first)) {
            path.segments.splice(..1, full.iter().copied());
        }
    }
    let mut all: Vec<_> = imports
        .into_iter()
        .map(|import| import.path)
        .chain(uses)
        .collect();
    all.sort_by_key(|path| path.line);
    all
}

struct Import<'a> {
    /// The name that the file uses from here on.
    name: &'a str,
    path: NamedPath<'a>,
}

/// Reads one branch of a `use` declaration; returns the index after it.
fn use_tree<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &[&'a str],
    imports: &mut Vec<Import<'a>>,
) -> usize {
    let mut segments = prefix.to_vec();
    let mut line = tokens.get(at).map_or(0, |t| t.line);
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Ident("as") => {
                if let Some(Kind::Ident(alias)) = tokens.get(at + 1).map(|t| t.kind) {
                    push_import(imports, line, alias, segments);
                }
                return at + 2;
            }
            // `use a::{self}` names `a` itself.
            Kind::Ident("self") if !segments.is_empty() => at += 1,
            Kind::Ident(name) => {
                segments.push(name);
                line = token.line;
                at += 1;
            }
            Kind::PathSep => at += 1,
            Kind::Punct('{') => return use_group(tokens, at + 1, &segments, imports),
            Kind::Punct('*') => {
                push_import(imports, line, "*", segments);
                return at + 1;
            }
            _ => break,
        }
    }
    if let Some(&name) = segments.last() {
        push_import(imports, line, name, segments);
    }
    at
}

fn use_group<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    prefix: &[&'a str],
    imports: &mut Vec<Import<'a>>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.kind {
            Kind::Punct('}') => return at + 1,
            Kind::Punct(',') => at += 1,
            _ => at = use_tree(tokens, at, prefix, imports).max(at + 1),
        }
    }
    at
}

fn push_import<'a>(
    imports: &mut Vec<Import<'a>>,
    line: usize,
    name: &'a str,
    segments: Vec<&'a str>,
) {
    imports.push(Import {
        name,
        path: NamedPath {
            line,
            segments,
            is_macro: false,
        },
    });
}

/// Whether a path begins here: not after `.` (a method or field) nor inside another path.
fn starts_path(tokens: &[Token<'_>], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map(|i| tokens[i].kind);
    match before(1) {
        // `0..end` and `..end` are ranges, not method calls.
        Some(Kind::Punct('.')) => before(2) == Some(Kind::Punct('.')),
        Some(Kind::PathSep) => !matches!(before(2), Some(Kind::Ident(_) | Kind::Punct('>'))),
        _ => true,
    }
}

fn path_at<'a>(tokens: &[Token<'a>], mut at: usize) -> (NamedPath<'a>, usize) {
    let line = tokens[at].line;
    let mut segments = Vec::new();
    while let Some(Kind::Ident(name)) = tokens.get(at).map(|t| t.kind) {
        segments.push(name);
        at += 1;
        let more = tokens.get(at).is_some_and(|t| t.kind == Kind::PathSep)
            && matches!(
                tokens.get(at + 1),
                Some(Token {
                    kind: Kind::Ident(_),
                    ..
                })
            );
        if !more {
            break;
        }
        at += 1;
    }
    // `a != b` is a comparison, not a macro call.
    let is_macro = is_punct(tokens, at, '!') && !is_punct(tokens, at + 1, '=');
    (
        NamedPath {
            line,
            segments,
            is_macro,
        },
        at,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layering::tokens::shipped;

    fn paths(source: &str) -> Vec<String> {
        named_paths(&shipped(source).tokens)
            .iter()
            .map(NamedPath::display)
            .collect()
    }

    #[test]
    fn use_trees_are_spread_out() {
        assert_eq!(
            paths("use std::{env, io::{self, stdin as input}, fs::*};"),
            ["std::env", "std::io", "std::io::stdin", "std::fs"]
        );
    }

    #[test]
    fn local_names_are_resolved_through_imports() {
        assert_eq!(
            paths("use std::{io as sio, time::Instant}; sio::stdout(); Instant::now();"),
            [
                "std::io",
                "std::time::Instant",
                "std::io::stdout",
                "std::time::Instant::now"
            ]
        );
    }

    #[test]
    fn lines_are_those_of_the_last_segment() {
        let tokens = shipped("use std::{\n    env,\n    fs,\n};").tokens;
        let lines: Vec<_> = named_paths(&tokens).iter().map(|p| p.line).collect();
        assert_eq!(lines, [2, 3]);
    }

    #[test]
    fn a_leading_separator_is_the_same_path() {
        assert_eq!(paths("::std::fs::read(x)"), ["std::fs::read", "x"]);
    }

    #[test]
    fn methods_and_fields_are_no_paths() {
        assert_eq!(paths("child.stdout.take()"), ["child"]);
        assert_eq!(paths("0..limit"), ["limit"]);
    }

    #[test]
    fn macros_are_told_apart_from_comparisons() {
        assert_eq!(paths("println!(a) b != c"), ["println!", "a", "b", "c"]);
    }

    #[test]
    fn capturing_bounds_import_nothing() {
        assert_eq!(
            paths("impl Sized + use<'a, T>"),
            ["impl", "Sized", "use", "T"]
        );
    }
}
