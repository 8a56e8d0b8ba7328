//! Splits Rust source into tokens, leaving out what the compiler does not run: comments, the
//! contents of strings, and items that exist only under `#[cfg(test)]`.

/// A token and the line it starts on, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) line: usize,
    pub(super) kind: Kind<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// An identifier or keyword; raw identifiers come without `r#`.
    Ident(&'a str),
    /// `::`
    PathSep,
    /// Any other single character of punctuation.
    Punct(char),
    /// A string, character or number: its text never matters to a rule.
    Literal,
}

/// What is left of a file when its tests are taken out.
#[derive(Debug, Default)]
pub(super) struct Shipped<'a> {
    pub(super) tokens: Vec<Token<'a>>,
    /// Names of modules declared as `#[cfg(test)] mod name;`: their files are tests too.
    pub(super) test_modules: Vec<&'a str>,
}

/// Tokens of the code that ends up in a build without `cfg(test)`.
pub(super) fn shipped(source: &str) -> Shipped<'_> {
    let all = tokenize(source);
    let mut kept = Shipped::default();
    let mut at = 0;
    while at < all.len() {
        match test_attribute(&all, at) {
            Some(Attribute::WholeFile) => return Shipped::default(),
            Some(Attribute::Item { end }) => {
                let item = skip_attributes(&all, end);
                let item_end = skip_item(&all, item);
                if let Some(name) = declared_module(&all[item..item_end]) {
                    kept.test_modules.push(name);
                }
                at = item_end;
            }
            None => {
                kept.tokens.push(all[at]);
                at += 1;
            }
        }
    }
    kept
}

enum Attribute {
    /// `#![cfg(test)]`
    WholeFile,
    /// `#[cfg(test)]`, with the index after its `]`.
    Item { end: usize },
}

fn test_attribute(tokens: &[Token<'_>], at: usize) -> Option<Attribute> {
    if tokens[at].kind != Kind::Punct('#') {
        return None;
    }
    let inner = is_punct(tokens, at + 1, '!');
    let open = if inner { at + 2 } else { at + 1 };
    if !is_punct(tokens, open, '[') || !is_ident(tokens, open + 1, "cfg") {
        return None;
    }
    let end = skip_group(tokens, open);
    // `test` alone or as a condition of `all`; `any(test, ..)` and `not(test)` also ship.
    let predicate = open + 3;
    let only_tests = is_ident(tokens, predicate, "test")
        || (is_ident(tokens, predicate, "all")
            && (predicate..end).any(|i| {
                is_ident(tokens, i, "test")
                    && !is_ident(tokens, i.saturating_sub(2), "not")
                    && !is_ident(tokens, i.saturating_sub(2), "any")
            }));
    match (only_tests, inner) {
        (false, _) => None,
        (true, true) => Some(Attribute::WholeFile),
        (true, false) => Some(Attribute::Item { end }),
    }
}

fn skip_attributes(tokens: &[Token<'_>], mut at: usize) -> usize {
    while is_punct(tokens, at, '#') && is_punct(tokens, at + 1, '[') {
        at = skip_group(tokens, at + 1);
    }
    at
}

/// The index after the item that starts at `at`: past its `;` or its first braces.
fn skip_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].kind {
            Kind::Punct(';') => return at + 1,
            Kind::Punct('{') => return skip_group(tokens, at),
            Kind::Punct('(' | '[') => at = skip_group(tokens, at),
            // The end of the enclosing block: the item was its last field or expression.
            Kind::Punct('}') => return at,
            _ => at += 1,
        }
    }
    at
}

/// The index after the bracket that closes the one at `open`.
fn skip_group(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Punct('(' | '[' | '{') => depth += 1,
            Kind::Punct(')' | ']' | '}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return index + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

fn declared_module<'a>(item: &[Token<'a>]) -> Option<&'a str> {
    let at = item.iter().position(|t| t.kind == Kind::Ident("mod"))?;
    match (item.get(at + 1)?.kind, item.get(at + 2)?.kind) {
        (Kind::Ident(name), Kind::Punct(';')) => Some(name),
        _ => None,
    }
}

pub(super) fn is_punct(tokens: &[Token<'_>], at: usize, wanted: char) -> bool {
    tokens
        .get(at)
        .is_some_and(|t| t.kind == Kind::Punct(wanted))
}

fn is_ident(tokens: &[Token<'_>], at: usize, wanted: &str) -> bool {
    tokens
        .get(at)
        .is_some_and(|t| t.kind == Kind::Ident(wanted))
}

fn tokenize(source: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
    };
    std::iter::from_fn(|| lexer.next_token()).collect()
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn next_token(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let line = self.line;
        let first = self.rest().chars().next()?;
        let kind = if first == '"' {
            self.string()
        } else if first == '\'' {
            match self.quote() {
                Some(kind) => kind,
                None => return self.next_token(),
            }
        } else if first.is_ascii_digit() {
            self.word();
            Kind::Literal
        } else if is_word(first) {
            self.word_or_prefixed_literal()
        } else if self.rest().starts_with("::") {
            self.advance(2);
            Kind::PathSep
        } else {
            self.advance(first.len_utf8());
            Kind::Punct(first)
        };
        Some(Token { line, kind })
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let end = (self.at + bytes).min(self.source.len());
        self.line += self.source[self.at..end].matches('\n').count();
        self.at = end;
    }

    /// Advances past the next `end`, or to the end of the file.
    fn advance_past(&mut self, end: &str) {
        let found = self.rest().find(end).map(|i| i + end.len());
        self.advance(found.unwrap_or(self.rest().len()));
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            if blank > 0 {
                self.advance(blank);
            } else if rest.starts_with("//") {
                self.advance(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                self.block_comment();
            } else {
                return;
            }
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            let rest = self.rest();
            if rest.starts_with("/*") {
                depth += 1;
                self.advance(2);
            } else if rest.starts_with("*/") {
                depth -= 1;
                self.advance(2);
                if depth == 0 {
                    return;
                }
            } else if let Some(c) = rest.chars().next() {
                self.advance(c.len_utf8());
            } else {
                return;
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        self.advance(end);
        &rest[..end]
    }

    fn word_or_prefixed_literal(&mut self) -> Kind<'a> {
        let word = self.word();
        let rest = self.rest();
        match word {
            "b" | "c" if rest.starts_with('"') => self.string(),
            "b" if rest.starts_with('\'') => self.quote().unwrap_or(Kind::Literal),
            "r" | "br" | "cr" if rest.starts_with(['"', '#']) => {
                let hashes = rest.len() - rest.trim_start_matches('#').len();
                if rest[hashes..].starts_with('"') {
                    self.advance(hashes + 1);
                    self.advance_past(&format!("\"{}", "#".repeat(hashes)));
                    Kind::Literal
                } else {
                    self.advance(hashes);
                    Kind::Ident(self.word())
                }
            }
            _ => Kind::Ident(word),
        }
    }

    fn string(&mut self) -> Kind<'a> {
        self.advance(1);
        while let Some(c) = self.rest().chars().next() {
            self.advance(c.len_utf8());
            match c {
                '"' => break,
                '\\' => {
                    let escaped = self.rest().chars().next().map_or(0, char::len_utf8);
                    self.advance(escaped);
                }
                _ => {}
            }
        }
        Kind::Literal
    }

    /// A character literal; `None` for a lifetime, which no rule looks at.
    fn quote(&mut self) -> Option<Kind<'a>> {
        let mut chars = self.rest().chars().skip(1);
        match (chars.next(), chars.next()) {
            (Some('\\'), Some(escaped)) => {
                self.advance(2 + escaped.len_utf8());
                self.advance_past("'");
                Some(Kind::Literal)
            }
            (Some(c), Some('\'')) => {
                self.advance(2 + c.len_utf8());
                Some(Kind::Literal)
            }
            _ => {
                self.advance(1);
                self.word();
                None
            }
        }
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idents(source: &str) -> Vec<&str> {
        let kept = shipped(source).tokens;
        kept.into_iter()
            .filter_map(|t| match t.kind {
                Kind::Ident(name) => Some(name),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn comments_and_literals_hold_no_identifiers() {
        let source = r###"
            // one std::fs
            /* two /* nested */ std::env */
            a("std::net \" b", r#"c " d"#, b"e", br##"f"# g"##, 'h', '\'', '\u{69}', b'j', 1_000u32)
            k::<'l>();
        "###;
        assert_eq!(idents(source), ["a", "k"]);
    }

    #[test]
    fn raw_identifiers_lose_their_prefix() {
        assert_eq!(idents("r#type r#mod br"), ["type", "mod", "br"]);
    }

    #[test]
    fn lines_are_counted_through_multi_line_literals() {
        let kept = shipped("\"a\nb\"\n/* c\n */ d").tokens;
        assert_eq!(
            kept[1],
            Token {
                line: 4,
                kind: Kind::Ident("d")
            }
        );
    }

    #[test]
    fn test_items_are_left_out() {
        let source = "
            fn a() {}
            #[cfg(test)] #[expect(x)] mod tests { fn b() { c } }
            #[cfg(all(test, unix))] fn d(e: [u8; 3]) { f }
            #[cfg(test)] use g::h;
            fn i() {}
        ";
        assert_eq!(idents(source), ["fn", "a", "fn", "i"]);
    }

    #[test]
    fn conditions_that_also_hold_without_tests_are_kept() {
        let source = "#[cfg(not(test))] a #[cfg(any(test, unix))] b #[cfg(all(unix, not(test)))] c";
        let kept = idents(source);
        assert!(
            ["a", "b", "c"].iter().all(|name| kept.contains(name)),
            "{kept:?}"
        );
    }

    #[test]
    fn a_test_module_in_its_own_file_is_named() {
        assert_eq!(
            shipped("#[cfg(test)]\npub mod golden;").test_modules,
            ["golden"]
        );
    }

    #[test]
    fn a_file_that_is_all_tests_is_empty() {
        assert_eq!(idents("#![cfg(test)] use std::fs;"), Vec::<&str>::new());
    }

    #[test]
    fn unfinished_source_ends() {
        for source in [
            "\"abc",
            "/* a",
            "r#\"abc",
            "'",
            "#[cfg(test)]",
            "#[cfg(",
            "b'",
        ] {
            shipped(source);
        }
    }
}
