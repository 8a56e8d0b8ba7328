//! Markdown as lines for a screen of a given width.
//!
//! An answer grows while it is read. [`Rendering`] keeps the lines of every block that can't
//! change any more and draws only the last one again.

use pulldown_cmark::{Alignment, CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

use super::highlight::highlight;
use super::theme;
use super::wrap::{self, Styled};

const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS);

/// The lines of a growing text.
#[derive(Debug, Default)]
pub(crate) struct Rendering {
    width: usize,
    /// How much of the text is in `finished`.
    finished_text: usize,
    finished: Vec<Line<'static>>,
    last: Vec<Line<'static>>,
    text_len: usize,
}

impl Rendering {
    /// Brings the lines up to date; the text may only have grown, else all is drawn again.
    pub(crate) fn update(&mut self, text: &str, width: usize) {
        if width != self.width
            || text.len() < self.text_len
            || !text.is_char_boundary(self.finished_text)
        {
            *self = Self {
                width,
                ..Self::default()
            };
        } else if text.len() == self.text_len {
            return;
        }
        self.text_len = text.len();
        let rest = &text[self.finished_text..];
        let last = last_block(rest);
        if last > 0 {
            self.finished.extend(render(&rest[..last], width));
            self.finished.push(Line::default());
            self.finished_text += last;
        }
        self.last = render(&rest[last..], width);
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line<'static>> {
        self.finished.iter().chain(&self.last)
    }
}

/// Where the last block begins, if further text can change no other.
///
/// A blank line has to stand before it, and its first line has to be whole: until then it may
/// turn out to be a row of the table or an item of the list above.
fn last_block(text: &str) -> usize {
    let mut depth = 0usize;
    let mut last = 0;
    for (event, range) in Parser::new_ext(text, OPTIONS).into_offset_iter() {
        match event {
            Event::Start(_) => {
                if depth == 0 {
                    last = range.start;
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Rule if depth == 0 => last = range.start,
            _ => {}
        }
    }
    let before = text[..last].trim_end_matches([' ', '\t']);
    if before.ends_with("\n\n") && text[last..].contains('\n') {
        last
    } else {
        0
    }
}

/// The lines of a whole text, blocks a blank line apart.
pub(crate) fn render(text: &str, width: usize) -> Vec<Line<'static>> {
    let mut renderer = Renderer::new(width);
    for event in Parser::new_ext(text, OPTIONS) {
        renderer.event(event);
    }
    renderer.flush();
    while renderer
        .lines
        .last()
        .is_some_and(|line| line.spans.is_empty())
    {
        renderer.lines.pop();
    }
    renderer.lines
}

struct Renderer {
    width: usize,
    lines: Vec<Line<'static>>,
    /// Inline text of the paragraph, heading or item that is open.
    inline: Styled,
    styles: Vec<Style>,
    /// What stands in front of every line: quotes and the indents of lists.
    fronts: Vec<Front>,
    /// The number of the next item of each open list; `None` is a bullet.
    lists: Vec<Option<u64>>,
    code: Option<(String, String)>,
    table: Option<Table>,
    link: Option<String>,
}

/// In front of the first line of an item stands its mark; later lines are indented alike.
struct Front {
    first: Option<Span<'static>>,
    rest: Span<'static>,
}

#[derive(Default)]
struct Table {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<Styled>>,
}

impl Renderer {
    fn new(width: usize) -> Self {
        Self {
            width: width.max(8),
            lines: Vec::new(),
            inline: Styled::new(),
            styles: vec![theme::PLAIN],
            fronts: Vec::new(),
            lists: Vec::new(),
            code: None,
            table: None,
            link: None,
        }
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some((_, code)) => code.push_str(&text),
                None => self.push(&text, self.style()),
            },
            Event::Code(text) => self.push(&text, self.style().patch(theme::CODE)),
            // Shown as it is: nothing here can draw it.
            Event::Html(text) | Event::InlineHtml(text) => self.push(&text, theme::DIM),
            Event::InlineMath(text) | Event::DisplayMath(text) => self.push(&text, theme::CODE),
            Event::FootnoteReference(name) => self.push(&format!("[{name}]"), theme::DIM),
            Event::SoftBreak => self.push(" ", self.style()),
            Event::HardBreak => self.inline.push(('\n', theme::PLAIN)),
            Event::Rule => {
                self.flush();
                let rule = "─".repeat(self.width.min(40));
                self.line(&wrap::plain(&rule, theme::DIM));
                self.blank();
            }
            Event::TaskListMarker(done) => self.push(if done { "☑ " } else { "☐ " }, theme::PLAIN),
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.flush();
                let mark = match level {
                    HeadingLevel::H1 | HeadingLevel::H2 => "",
                    _ => "› ",
                };
                self.styles.push(theme::HEADING);
                self.push(mark, theme::HEADING);
            }
            Tag::Paragraph => self.flush(),
            Tag::BlockQuote(_) => {
                self.flush();
                self.fronts.push(Front {
                    first: None,
                    rest: Span::styled("▎ ", theme::DIM),
                });
                self.styles.push(self.style().add_modifier(Modifier::DIM));
            }
            Tag::CodeBlock(kind) => {
                self.flush();
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                self.code = Some((language, String::new()));
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                self.flush();
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        let mark = format!("{number}. ");
                        *number += 1;
                        mark
                    }
                    _ => "• ".to_owned(),
                };
                self.fronts.push(Front {
                    rest: Span::raw(" ".repeat(mark.chars().count())),
                    first: Some(Span::styled(mark, theme::DIM)),
                });
            }
            Tag::Table(alignments) => {
                self.flush();
                self.table = Some(Table {
                    alignments,
                    rows: Vec::new(),
                });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
                if matches!(tag, Tag::TableHead) {
                    self.styles.push(theme::STRONG);
                }
            }
            Tag::Emphasis => self
                .styles
                .push(self.style().add_modifier(Modifier::ITALIC)),
            Tag::Strong => self.styles.push(self.style().add_modifier(Modifier::BOLD)),
            Tag::Strikethrough => self
                .styles
                .push(self.style().add_modifier(Modifier::CROSSED_OUT)),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some(dest_url.to_string());
                self.styles.push(self.style().patch(theme::LINK));
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.flush();
                self.blank();
            }
            TagEnd::Paragraph => {
                self.flush();
                self.blank();
            }
            TagEnd::BlockQuote(_) => {
                self.flush();
                self.styles.pop();
                self.unblank();
                self.fronts.pop();
                self.blank();
            }
            TagEnd::CodeBlock => self.code_block(),
            TagEnd::List(_) => {
                self.flush();
                self.lists.pop();
                if self.lists.is_empty() {
                    self.blank();
                }
            }
            TagEnd::Item => {
                self.flush();
                // An item that held nothing still shows its mark.
                if self
                    .fronts
                    .last()
                    .is_some_and(|front| front.first.is_some())
                {
                    self.line(&Styled::new());
                }
                self.fronts.pop();
                self.unblank();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.inline);
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::TableHead => {
                self.styles.pop();
            }
            TagEnd::Table => self.table(),
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                if let Some(target) = self.link.take() {
                    let shown: String = self.inline.iter().map(|(char, _)| *char).collect();
                    if !shown.ends_with(&target) {
                        self.push(&format!(" ({target})"), theme::DIM);
                    }
                }
            }
            TagEnd::HtmlBlock => {
                self.flush();
                self.blank();
            }
            _ => {}
        }
    }

    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn push(&mut self, text: &str, style: Style) {
        wrap::push(&mut self.inline, text, style);
    }

    /// Writes out the inline text that is open.
    fn flush(&mut self) {
        let mut inline = std::mem::take(&mut self.inline);
        while inline.last().is_some_and(|(char, _)| *char == '\n') {
            inline.pop();
        }
        if inline.is_empty() {
            return;
        }
        for line in wrap::wrap(&inline, self.room()) {
            self.line(&line);
        }
    }

    fn room(&self) -> usize {
        let fronts: usize = self.fronts.iter().map(|front| front.rest.width()).sum();
        self.width.saturating_sub(fronts).max(8)
    }

    fn line(&mut self, text: &Styled) {
        let front: Vec<Span<'static>> = self
            .fronts
            .iter_mut()
            .map(|front| front.first.take().unwrap_or_else(|| front.rest.clone()))
            .collect();
        self.lines.push(wrap::line(&front, text));
    }

    fn blank(&mut self) {
        if self.lines.last().is_some_and(|line| !line.spans.is_empty()) {
            self.lines.push(Line::default());
        }
    }

    fn unblank(&mut self) {
        if self.lines.last().is_some_and(|line| line.spans.is_empty()) {
            self.lines.pop();
        }
    }

    fn code_block(&mut self) {
        let Some((language, code)) = self.code.take() else {
            return;
        };
        self.fronts.push(Front {
            first: None,
            rest: Span::styled("│ ", theme::DIM),
        });
        for line in highlight(&language, &code) {
            for part in hard_wrap(&line, self.room()) {
                self.line(&part);
            }
        }
        self.fronts.pop();
        self.blank();
    }

    fn table(&mut self) {
        const GAP: usize = 3;
        let Some(table) = self.table.take() else {
            return;
        };
        let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..columns)
            .map(|column| {
                table
                    .rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| wrap::width(cell))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let room = self.room().saturating_sub(columns.saturating_sub(1) * GAP);
        while widths.iter().sum::<usize>() > room {
            match widths.iter_mut().max() {
                Some(widest) if *widest > 3 => *widest -= 1,
                _ => break,
            }
        }
        for (index, row) in table.rows.iter().enumerate() {
            let cells: Vec<Vec<Styled>> = (0..columns)
                .map(|column| row.get(column).map_or(&[][..], Vec::as_slice))
                .zip(&widths)
                .map(|(cell, width)| wrap::wrap(cell, *width))
                .collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for part in 0..height {
                let mut line = Styled::new();
                for (column, width) in widths.iter().enumerate() {
                    if column > 0 {
                        wrap::push(&mut line, " │ ", theme::DIM);
                    }
                    let cell = cells[column].get(part).map_or(&[][..], Vec::as_slice);
                    let missing = width.saturating_sub(wrap::width(cell));
                    let before = match table.alignments.get(column) {
                        Some(Alignment::Right) => missing,
                        Some(Alignment::Center) => missing / 2,
                        _ => 0,
                    };
                    line.extend(std::iter::repeat_n((' ', theme::PLAIN), before));
                    line.extend_from_slice(cell);
                    line.extend(std::iter::repeat_n((' ', theme::PLAIN), missing - before));
                }
                self.line(&line);
            }
            if index == 0 {
                let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
                self.line(&wrap::plain(&rule.join("─┼─"), theme::DIM));
            }
        }
        self.blank();
    }
}

/// Code keeps its spaces, so it is broken at the edge alone.
pub(crate) fn hard_wrap(line: &Styled, width: usize) -> Vec<Styled> {
    if line.is_empty() {
        return vec![Styled::new()];
    }
    let mut parts = Vec::new();
    let mut part = Styled::new();
    let mut columns = 0;
    for (item, wide) in line.iter().zip(wrap::columns(line)) {
        if columns + wide > width && !part.is_empty() {
            parts.push(std::mem::take(&mut part));
            columns = 0;
        }
        part.push(*item);
        columns += wide;
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line<'_>]) -> String {
        let lines: Vec<String> = lines
            .iter()
            .map(|line| line.to_string().trim_end().to_owned())
            .collect();
        lines.join("\n")
    }

    const DOCUMENT: &str = "\
# Title

A paragraph with **bold**, *italic*, `code` and a [link](https://example.org) that is long \
enough to be broken.

1. first
2. second
   - inner one that is also rather long for this narrow width
   - inner two

> quoted
> words

```rust
fn main() { let long_enough_to_break = \"a string\"; }
```

| a | number |
|---|-------:|
| x | 1 |
| long cell | 12345 |

- [x] done
- [ ] open

---
The end.
";

    #[test]
    fn a_document_of_every_kind() {
        insta::assert_snapshot!(text(&render(DOCUMENT, 40)));
    }

    #[test]
    fn growing_by_any_steps_gives_the_same_lines() {
        let whole = text(&render(DOCUMENT, 40));
        for step in [1, 7, 50] {
            let mut rendering = Rendering::default();
            let mut at = 0;
            while at < DOCUMENT.len() {
                at = (at + step).min(DOCUMENT.len());
                rendering.update(&DOCUMENT[..at], 40);
            }
            let lines: Vec<Line<'static>> = rendering.lines().cloned().collect();
            assert_eq!(text(&lines), whole, "in steps of {step}");
        }
    }

    #[test]
    fn finished_blocks_are_not_drawn_again() {
        let mut rendering = Rendering::default();
        rendering.update("one\n\ntwo", 40);
        assert_eq!(rendering.finished_text, 0);
        rendering.update("one\n\ntwo\n", 40);
        assert_eq!(rendering.finished_text, "one\n\n".len());
        rendering.update("one\n\ntwo\nmore\n\nthree\n", 40);
        assert_eq!(rendering.finished_text, "one\n\ntwo\nmore\n\n".len());
        rendering.update("shorter", 40);
        assert_eq!(
            text(&rendering.lines().cloned().collect::<Vec<_>>()),
            "shorter"
        );
    }

    #[test]
    fn cells_that_are_too_wide_are_broken_and_not_cut() {
        let table = "| a | b |\n|---|--:|\n| one two three four | 1 |\n| 👩‍👩‍👧‍👦 日 | 22 |\n";
        let want = [
            "a          │  b",
            "───────────┼───",
            "one two    │  1",
            "three four │",
            "👩‍👩‍👧‍👦 日      │ 22",
        ];
        let drawn = text(&render(table, 15));
        assert_eq!(drawn.trim_end().lines().collect::<Vec<_>>(), want);
    }

    #[test]
    fn half_a_document_is_no_trouble() {
        for at in 0..DOCUMENT.len() {
            render(&DOCUMENT[..at], 12);
        }
    }
}
