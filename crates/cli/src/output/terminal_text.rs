//! Text of others, made harmless for a terminal.
//!
//! An answer may hold escape sequences: a tool's output, a file, or a model that was talked into
//! it. Colours may pass; whatever moves the cursor, sets the title or reaches the clipboard may
//! not.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

const ESCAPE: char = '\u{1b}';

/// The text without control characters, but for line ends, tabs and colours (SGR sequences).
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_suspicious) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if char == ESCAPE {
            let sequence = escape_sequence(rest);
            if is_colour(sequence) {
                out.push_str(sequence);
            }
            rest = &rest[sequence.len()..];
        } else {
            if !is_suspicious(char) {
                out.push(char);
            }
            rest = &rest[char.len_utf8()..];
        }
    }
    Cow::Owned(out)
}

/// The text without escape sequences; other control characters are the drawing's to skip.
pub(crate) fn without_escapes(text: &str) -> Cow<'_, str> {
    if !text.contains(ESCAPE) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(ESCAPE) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = &rest[escape_sequence(rest).len()..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The text on one line, without any control characters.
pub(crate) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        if char == ESCAPE {
            rest = &rest[escape_sequence(rest).len()..];
            continue;
        }
        if char.is_whitespace() {
            if !out.ends_with(' ') {
                out.push(' ');
            }
        } else if !is_suspicious(char) {
            out.push(char);
        }
        rest = &rest[char.len_utf8()..];
    }
    out.truncate(out.trim_end().len());
    out
}

/// The text with nothing in it hidden, for what a person is to judge: what a terminal would not draw,
/// or would draw elsewhere, is written as an escape. Only line ends and tabs stay.
pub(crate) fn exact(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if is_unseen(char) {
            out.extend(char.escape_default());
        } else {
            out.push(char);
        }
    }
    Cow::Owned(out)
}

/// [`exact`] on one line: line ends and tabs are escapes too.
pub(crate) fn exact_line(text: &str) -> String {
    let exact = exact(text);
    exact.replace('\t', "\\t").replace('\n', "\\n")
}

/// Whether a terminal shows nothing of it: what is suspicious, and what has no width.
fn is_unseen(char: char) -> bool {
    is_suspicious(char)
        || !char.is_ascii()
            && (char.width().unwrap_or(0) == 0
                // Spaces that end a line, and letters that are blank.
                || matches!(char, '\u{2028}' | '\u{2029}' | '\u{115f}' | '\u{3164}' | '\u{ffa0}'))
}

fn is_suspicious(char: char) -> bool {
    char.is_control() && char != '\n' && char != '\t'
        // Marks that reorder the text around them.
        || matches!(char, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_colour(sequence: &str) -> bool {
    sequence
        .strip_prefix("\u{1b}[")
        .and_then(|rest| rest.strip_suffix('m'))
        .is_some_and(|middle| {
            middle
                .chars()
                .all(|char| char.is_ascii_digit() || char == ';' || char == ':')
        })
}

/// The escape sequence that `text` starts with; one that has no end takes the rest.
fn escape_sequence(text: &str) -> &str {
    let mut chars = text.char_indices().skip(1);
    let end = match chars.next() {
        None => None,
        // CSI: parameters, then one final byte.
        Some((_, '[')) => chars.find(|(_, char)| ('\u{40}'..='\u{7e}').contains(char)),
        // Strings (title, clipboard, ...): up to BEL or ST.
        Some((_, ']' | 'P' | 'X' | '^' | '_')) => {
            let mut end = None;
            while let Some((at, char)) = chars.next() {
                if char == '\u{7}' {
                    end = Some((at, char));
                    break;
                }
                if char == ESCAPE {
                    end = chars.next();
                    break;
                }
            }
            end
        }
        // Intermediates, then one final byte.
        Some((_, ' '..='/')) => chars.find(|(_, char)| !(' '..='/').contains(char)),
        single => single,
    };
    match end {
        Some((at, char)) => &text[..at + char.len_utf8()],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_pass_and_the_rest_does_not() {
        for (given, want) in [
            ("plain\n\ttext", "plain\n\ttext"),
            ("\u{1b}[1;31mred\u{1b}[0m", "\u{1b}[1;31mred\u{1b}[0m"),
            ("a\u{1b}[2Jb", "ab"),
            ("a\u{1b}[?1049hb", "ab"),
            ("a\u{1b}]0;title\u{7}b", "ab"),
            ("a\u{1b}]52;c;aGk=\u{1b}\\b", "ab"),
            ("a\u{1b}(0b", "ab"),
            ("a\u{1b}cb", "ab"),
            ("a\rb\u{8}c\u{9b}d", "abcd"),
            ("never ends \u{1b}]0;x", "never ends "),
            ("\u{202e}txt.exe", "txt.exe"),
            ("\u{1b}", ""),
        ] {
            assert_eq!(harmless(given), want, "{given:?}");
        }
    }

    #[test]
    fn what_is_to_be_judged_hides_nothing() {
        for (given, want) in [
            ("echo hi", "echo hi"),
            ("a\n\tb", "a\n\tb"),
            ("grün \u{65e5}\u{672c}", "grün \u{65e5}\u{672c}"),
            // A terminal takes what follows for a title: the shell runs it.
            (
                "echo hi \u{1b}]0;rm -r .\u{7}",
                "echo hi \\u{1b}]0;rm -r .\\u{7}",
            ),
            (
                "rm -r . #\u{1b}[2K\recho hi",
                "rm -r . #\\u{1b}[2K\\recho hi",
            ),
            ("rm a\u{8}b\u{9b}", "rm a\\u{8}b\\u{9b}"),
            ("\u{202e}. r- mr", "\\u{202e}. r- mr"),
            (
                "r\u{200b}m \u{2066}x\u{2069}",
                "r\\u{200b}m \\u{2066}x\\u{2069}",
            ),
            (
                "a\u{feff}\u{e0041}\u{3164}\u{2028}",
                "a\\u{feff}\\u{e0041}\\u{3164}\\u{2028}",
            ),
        ] {
            assert_eq!(exact(given), want, "{given:?}");
        }
        assert_eq!(exact_line("echo hi #\n\trm -r ."), "echo hi #\\n\\trm -r .");
    }

    #[test]
    fn one_line_has_no_line_ends_and_no_colours() {
        assert_eq!(one_line("a\n\n b\u{1b}[31mc\t"), "a bc");
    }
}
