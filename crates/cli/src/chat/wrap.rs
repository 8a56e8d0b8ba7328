//! Text with styles, broken into lines of a width.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

/// Characters, each with its style.
pub(crate) type Styled = Vec<(char, Style)>;

const TAB: usize = 4;

pub(crate) fn plain(text: &str, style: Style) -> Styled {
    let mut out = Styled::with_capacity(text.len());
    push(&mut out, text, style);
    out
}

/// Appends text; tabs become spaces and other control characters vanish.
pub(crate) fn push(out: &mut Styled, text: &str, style: Style) {
    for char in text.chars() {
        match char {
            '\t' => out.extend(std::iter::repeat_n((' ', style), TAB)),
            '\n' => out.push(('\n', style)),
            char if char.is_control() => {}
            char => out.push((char, style)),
        }
    }
}

pub(crate) fn width(text: &[(char, Style)]) -> usize {
    columns(text).sum()
}

/// The columns that each character adds; one that only completes the one before it adds none, as
/// the second person of a family and the colour of a hand do.
pub(crate) fn columns(text: &[(char, Style)]) -> impl Iterator<Item = usize> {
    const JOINER: char = '\u{200d}';
    const AS_EMOJI: char = '\u{fe0f}';
    let (mut before, mut columns_before, mut is_joined) = (None, 0, false);
    text.iter().map(move |(char, _)| {
        let own = char.width().unwrap_or(0);
        is_joined = match *char {
            JOINER | AS_EMOJI => is_joined,
            '\u{1f3fb}'..='\u{1f3ff}' => columns_before == 2 || is_joined,
            // Signs such as ♂ are narrow by themselves.
            sign => {
                before == Some(JOINER) && (own == 2 || ('\u{2600}'..='\u{27bf}').contains(&sign))
            }
        };
        let columns = match *char {
            AS_EMOJI => usize::from(!is_joined && columns_before == 1),
            _ if is_joined => 0,
            _ => own,
        };
        before = Some(*char);
        if columns > 0 {
            columns_before = columns;
        }
        columns
    })
}

/// Lines of at most `width` columns, broken at spaces where there are some.
pub(crate) fn wrap(text: &[(char, Style)], width: usize) -> Vec<Styled> {
    let width = width.max(1);
    text.split(|(char, _)| *char == '\n')
        .flat_map(|line| wrap_line(line, width))
        .collect()
}

fn wrap_line(mut rest: &[(char, Style)], width: usize) -> Vec<Styled> {
    let mut lines = Vec::new();
    loop {
        let fits = fitting(rest, width);
        if fits == rest.len() {
            lines.push(rest.to_vec());
            return lines;
        }
        // The space that ends the line may lie just behind its last column.
        let space = rest[..=fits]
            .iter()
            .rposition(|(char, _)| *char == ' ')
            .filter(|at| rest[..*at].iter().any(|(char, _)| *char != ' '));
        match space {
            Some(at) => {
                lines.push(rest[..at].to_vec());
                let next = rest[at..].iter().position(|(char, _)| *char != ' ');
                rest = next.map_or(&[], |next| &rest[at + next..]);
                if rest.is_empty() {
                    return lines;
                }
            }
            None => {
                let at = fits.max(1);
                lines.push(rest[..at].to_vec());
                rest = &rest[at..];
                if rest.is_empty() {
                    return lines;
                }
            }
        }
    }
}

/// How many of the characters fit into `width` columns.
fn fitting(text: &[(char, Style)], width: usize) -> usize {
    let mut taken = 0;
    for (index, columns) in columns(text).enumerate() {
        taken += columns;
        if taken > width {
            return index;
        }
    }
    text.len()
}

/// The text in at most `width` columns, with an ellipsis where it was cut.
pub(crate) fn cut(mut text: Styled, width: usize) -> Styled {
    if self::width(&text) > width {
        text.truncate(fitting(&text, width.saturating_sub(1)));
        let style = text.last().map_or(Style::default(), |(_, style)| *style);
        text.push(('…', style));
    }
    text
}

/// A line for the screen, with something in front.
pub(crate) fn line(front: &[Span<'static>], text: &[(char, Style)]) -> Line<'static> {
    let mut spans = front.to_vec();
    for run in text.chunk_by(|(_, left), (_, right)| left == right) {
        let content: String = run.iter().map(|(char, _)| *char).collect();
        spans.push(Span::styled(content, run[0].1));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(text: &str, width: usize) -> Vec<String> {
        wrap(&plain(text, Style::default()), width)
            .into_iter()
            .map(|line| line.into_iter().map(|(char, _)| char).collect())
            .collect()
    }

    #[test]
    fn lines_break_at_spaces_and_long_words_anywhere() {
        for (text, width, want) in [
            ("", 4, vec![""]),
            ("one two", 7, vec!["one two"]),
            ("one two", 6, vec!["one", "two"]),
            ("one  two", 3, vec!["one", "two"]),
            ("abcdefgh", 3, vec!["abc", "def", "gh"]),
            ("a\n\nb", 3, vec!["a", "", "b"]),
            ("日本語", 4, vec!["日本", "語"]),
            ("日本", 1, vec!["日", "本"]),
            ("  indented text", 8, vec!["  indent", "ed text"]),
            ("end ", 3, vec!["end"]),
            ("a\tb\u{7}", 9, vec!["a    b"]),
        ] {
            assert_eq!(wrapped(text, width), want, "{text:?} in {width}");
        }
    }

    #[test]
    fn a_character_of_several_is_as_wide_as_it_is_drawn() {
        use unicode_width::UnicodeWidthStr;
        for text in [
            "👩‍👩‍👧‍👦",
            "🤷🏽‍♂️",
            "👍🏽",
            "🇩🇪",
            "1️⃣",
            "⚠️",
            "👨‍💻",
            "e\u{301}",
            "日本",
            "❤️‍🔥",
            "x🏽",
        ] {
            let measured = width(&plain(text, Style::default()));
            assert_eq!(measured, text.width(), "{text}");
        }
        assert_eq!(wrapped("👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 2), ["👩‍👩‍👧‍👦", "👩‍👩‍👧‍👦"]);
    }

    #[test]
    fn cutting_marks_what_is_missing() {
        let cut = |text: &str, width| -> String {
            super::cut(plain(text, Style::default()), width)
                .into_iter()
                .map(|(char, _)| char)
                .collect()
        };
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "long…");
    }
}
