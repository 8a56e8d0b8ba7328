//! Draws the state. What was drawn of a block is kept until the block or the width changes.

mod blocks;
mod overlays;

use std::collections::HashMap;

use ratatui::Frame;
use ratatui::buffer::{Buffer, CellDiffOption};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block as Border, BorderType, Paragraph};
use unicode_width::UnicodeWidthChar;

use super::markdown::Rendering;
use super::model::{Connection, Extent, Model, Scroll, WhileBusy};
use super::prompt::Prompt;
use super::theme;
use super::transcript::{Block, Entry, Tone};
use super::wrap;
use super::{slash, transcript};

const MAX_COMPOSER_LINES: usize = 8;
const MAX_NOTICE_LINES: usize = 4;

/// Columns that the parts of a composed character may take beyond its first, one by one.
const COMPOSED_COLUMNS: u16 = 7;
const SPINNER: [char; 8] = ['⣾', '⣽', '⣻', '⢿', '⡿', '⣟', '⣯', '⣷'];

/// Drawings that are kept between frames.
#[derive(Debug, Default)]
pub(crate) struct View {
    opened: u64,
    drawn: HashMap<u64, Drawn>,
    /// Where the last frame had characters that are composed of several.
    composed: Vec<(u16, u16)>,
}

#[derive(Debug)]
struct Drawn {
    version: u64,
    width: usize,
    chosen: bool,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Markdown(Rendering),
    Lines(Vec<Line<'static>>),
}

impl View {
    /// Draws everything; returns what the conversation takes, for the keys that scroll.
    pub(crate) fn draw(&mut self, model: &Model, frame: &mut Frame<'_>) -> Extent {
        let area = frame.area();
        let inner = usize::from(area.width.saturating_sub(4)).max(1);
        let composer = composer_lines(model, inner) as u16 + 2;
        let prompt = overlays::prompt_lines(model, inner);
        let suggestions = suggestions(model, usize::from(area.height) / 2);
        let told = notice_lines(model, usize::from(area.width));
        let [conversation, question, suggested, notice, input, status] = Layout::vertical([
            Constraint::Min(1),
            Constraint::Length(if prompt.is_empty() {
                0
            } else {
                prompt.len() as u16 + 2
            }),
            Constraint::Length(suggestions.len() as u16),
            Constraint::Length(told.len() as u16),
            Constraint::Length(composer),
            Constraint::Length(1),
        ])
        .areas(area);

        let mut extent = self.conversation(model, frame, conversation);
        if !prompt.is_empty() {
            overlays::draw_prompt(model, frame, question, prompt);
        }
        frame.render_widget(Paragraph::new(suggestions), suggested);
        frame.render_widget(Paragraph::new(told), notice);
        draw_composer(model, frame, input);
        draw_status(model, frame, status);
        if let Some(top) = model.help {
            extent.help = overlays::draw_help(frame, area, top);
        }
        if let Some(picker) = &model.picker {
            overlays::draw_picker(picker, frame, area);
        }
        self.write_over_composed(frame.buffer_mut());
        extent
    }

    /// Has what comes after a composed character of the last frame written again, changed or not:
    /// a flag or a skin tone takes more columns in some terminals than it should, and what lies
    /// there would stay when the character itself is gone.
    fn write_over_composed(&mut self, buffer: &mut Buffer) {
        for (x, y) in self.composed.drain(..) {
            for x in x + 1..=x.saturating_add(COMPOSED_COLUMNS) {
                if let Some(cell) = buffer.cell_mut((x, y)) {
                    cell.set_diff_option(CellDiffOption::AlwaysUpdate);
                }
            }
        }
        let width = usize::from(buffer.area.width).max(1);
        for (index, cell) in buffer.content.iter().enumerate() {
            let symbol = cell.symbol();
            if symbol.len() > 4 && symbol.chars().filter(|char| char.width() > Some(0)).count() > 1
            {
                let (x, y) = ((index % width) as u16, (index / width) as u16);
                self.composed.push((buffer.area.x + x, buffer.area.y + y));
            }
        }
    }

    fn conversation(&mut self, model: &Model, frame: &mut Frame<'_>, area: Rect) -> Extent {
        let width = usize::from(area.width.saturating_sub(2)).max(1);
        let height = usize::from(area.height);
        self.refresh(model, width);

        let entries = model.transcript.entries();
        let mut starts = Vec::with_capacity(entries.len());
        let left_out = left_out(model);
        // With the blank line behind it.
        let mut total = left_out.as_ref().map_or(0, |_| 2);
        let mut before: Option<&Entry> = None;
        for entry in entries {
            total += usize::from(before.is_some_and(|before| apart(before, entry)));
            starts.push(total);
            total += self.drawn.get(&entry.id).map_or(0, Drawn::height);
            before = Some(entry);
        }
        let bottom = total.saturating_sub(height);
        let top = match model.scroll {
            Scroll::Follow => bottom,
            Scroll::At(top) => top.min(bottom),
        };

        let mut lines: Vec<Line<'static>> = Vec::with_capacity(height);
        lines.extend(left_out.filter(|_| top == 0));
        let first = starts
            .partition_point(|start| *start <= top)
            .saturating_sub(1);
        for (entry, start) in entries.iter().zip(&starts).skip(first) {
            if *start >= top + height {
                break;
            }
            let Some(drawn) = self.drawn.get(&entry.id) else {
                continue;
            };
            // The blank line in front of the block, unless it is scrolled out.
            while top + lines.len() < *start {
                lines.push(Line::default());
            }
            let skip = (top + lines.len()).saturating_sub(*start);
            let room = height - lines.len();
            drawn.extend(&mut lines, skip, room);
        }
        if entries.is_empty() {
            lines = welcome(model);
        }
        let padded = Rect {
            x: area.x + 1,
            width: area.width.saturating_sub(2),
            ..area
        };
        frame.render_widget(Paragraph::new(lines), padded);
        if let Scroll::At(_) = model.scroll {
            let below = total.saturating_sub(top + height);
            let mark = Line::styled(format!(" ↓ {below} more lines, Ctrl-End "), theme::CHOSEN);
            let row = Rect {
                y: area.bottom().saturating_sub(1),
                height: 1,
                x: area.x + area.width.saturating_sub(mark.width() as u16 + 1),
                width: (mark.width() as u16).min(area.width),
            };
            frame.render_widget(mark, row);
        }
        Extent {
            lines: total,
            height,
            help: 0,
        }
    }

    /// Draws again what has changed.
    fn refresh(&mut self, model: &Model, width: usize) {
        if self.opened != model.opened {
            self.drawn.clear();
            self.opened = model.opened;
        }
        let entries = model.transcript.entries();
        if self.drawn.len() > entries.len() + transcript::MAX_BLOCKS / 4 {
            let kept: std::collections::HashSet<u64> =
                entries.iter().map(|entry| entry.id).collect();
            self.drawn.retain(|id, _| kept.contains(id));
        }
        for (index, entry) in entries.iter().enumerate() {
            let chosen = model.chosen == Some(index);
            let drawn = self.drawn.get_mut(&entry.id).filter(|drawn| {
                drawn.version == entry.version && drawn.width == width && drawn.chosen == chosen
            });
            if drawn.is_some() && !blocks::moves(entry) {
                continue;
            }
            self.redraw(model, entry, width, chosen);
        }
    }

    fn redraw(&mut self, model: &Model, entry: &Entry, width: usize, chosen: bool) {
        let content = if let Block::Answer { text } = &entry.block {
            let mut rendering = match self.drawn.remove(&entry.id) {
                Some(Drawn {
                    content: Content::Markdown(rendering),
                    ..
                }) => rendering,
                _ => Rendering::default(),
            };
            rendering.update(text, width);
            Content::Markdown(rendering)
        } else {
            Content::Lines(blocks::lines(entry, width, chosen, model.now))
        };
        self.drawn.insert(
            entry.id,
            Drawn {
                version: entry.version,
                width,
                chosen,
                content,
            },
        );
    }
}

impl Drawn {
    fn height(&self) -> usize {
        match &self.content {
            Content::Markdown(rendering) => rendering.lines().count(),
            Content::Lines(lines) => lines.len(),
        }
    }

    fn extend(&self, out: &mut Vec<Line<'static>>, skip: usize, room: usize) {
        match &self.content {
            Content::Markdown(rendering) => {
                out.extend(rendering.lines().skip(skip).take(room).cloned());
            }
            Content::Lines(lines) => out.extend(lines.iter().skip(skip).take(room).cloned()),
        }
    }
}

/// Whether a blank line stands between two blocks; one-liners stay together.
fn apart(before: &Entry, after: &Entry) -> bool {
    let one_line = |entry: &Entry| entry.folds() && !entry.unfolded;
    !(one_line(before) && one_line(after))
}

/// Says that there is more than what is kept in view.
fn left_out(model: &Model) -> Option<Line<'static>> {
    let session = model.session.filter(|_| model.transcript.left_out() > 0)?;
    Some(Line::styled(
        format!("… the beginning is in `quintet events --session {session}`"),
        theme::DIM,
    ))
}

fn welcome(model: &Model) -> Vec<Line<'static>> {
    let mut lines = vec![
        Line::default(),
        Line::from(vec![
            Span::styled("Talk to ", theme::DIM),
            Span::styled(model.agent.clone(), theme::YOU),
            Span::styled(". Enter sends, F1 shows the keys.", theme::DIM),
        ]),
    ];
    if let Some(text) = &model.starting {
        lines.push(Line::default());
        lines.push(Line::styled(format!("› {text}"), theme::DIM));
    }
    lines
}

fn composer_lines(model: &Model, width: usize) -> usize {
    let lines: usize = model
        .composer
        .area()
        .lines()
        .iter()
        // One more column, for the cursor behind the last character.
        .map(|line| wrap::wrap(&wrap::plain(line, theme::PLAIN), width.saturating_sub(1)).len())
        .sum();
    lines.clamp(1, MAX_COMPOSER_LINES)
}

fn draw_composer(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let (title, style) =
        if model.prompt_focus && model.prompt().is_some_and(|prompt| prompt.own_words) {
            (" Enter answers · Esc goes back ", theme::CAUTION)
        } else if model.prompt_focus {
            let keys = match model.prompt().is_some_and(Prompt::takes_several) {
                true => " Space ticks, Enter answers · Esc to type instead ",
                false => " choose above · Esc to type instead ",
            };
            (keys, theme::DIM)
        } else if model.busy() {
            match model.while_busy {
                WhileBusy::Steer => (
                    " Enter steers the agent now · Tab: queue instead ",
                    theme::CAUTION,
                ),
                WhileBusy::Queue => (
                    " Enter queues for the next turn · Tab: steer instead ",
                    theme::CAUTION,
                ),
            }
        } else {
            (" Enter sends · Alt-Enter new line · F1 help ", theme::DIM)
        };
    let border = Border::bordered()
        .border_type(BorderType::Rounded)
        .border_style(style)
        .title(Line::styled(title, style));
    let inner = border.inner(area);
    frame.render_widget(border, area);
    let padded = Rect {
        x: inner.x + 1,
        width: inner.width.saturating_sub(1),
        ..inner
    };
    frame.render_widget(model.composer.area(), padded);
}

fn notice_lines(model: &Model, width: usize) -> Vec<Line<'static>> {
    let Some(told) = &model.notice else {
        return Vec::new();
    };
    let style = match told.tone {
        Tone::Plain => theme::CAUTION,
        Tone::Bad => theme::BAD,
    };
    let text = wrap::plain(&told.text, style);
    let lines = wrap::wrap(&text, width.saturating_sub(2));
    let front = [Span::raw(" ")];
    let lines = lines.iter().take(MAX_NOTICE_LINES);
    lines.map(|line| wrap::line(&front, line)).collect()
}

fn suggestions(model: &Model, most: usize) -> Vec<Line<'static>> {
    slash::matching(&model.composer.text())
        .into_iter()
        .take(most)
        .map(|(name, argument, meaning)| {
            Line::from(vec![
                Span::styled(
                    format!("  {:<14}", format!("/{name} {argument}")),
                    theme::CODE,
                ),
                Span::styled(format!(" {meaning}"), theme::DIM),
            ])
        })
        .collect()
}

fn draw_status(model: &Model, frame: &mut Frame<'_>, area: Rect) {
    let mut left = wrap::plain(&format!(" {}", model.agent), theme::YOU);
    match model.session {
        Some(session) => wrap::push(&mut left, &format!(" · session {session}"), theme::PLAIN),
        None => wrap::push(&mut left, " · new session", theme::PLAIN),
    }
    if let Some(since) = model.turn {
        let seconds = model.now.duration_since(since).as_secs().max(0);
        let working = format!(" · {} working {seconds}s", spinner(model));
        wrap::push(&mut left, &working, theme::CAUTION);
    }
    if model.prompt().is_some() && !model.prompt_focus {
        wrap::push(&mut left, " · an answer is needed: Ctrl-G", theme::BAD);
    }
    // Last, because it may be as long as a message and is what is cut where there is no room.
    if !model.title.is_empty() {
        wrap::push(&mut left, &format!(" · {}", model.title), theme::PLAIN);
    }
    let (state, style) = match model.connection {
        Connection::Online => ("● online ".to_owned(), theme::GOOD),
        Connection::Connecting => ("○ connecting ".to_owned(), theme::CAUTION),
        Connection::Lost { attempt } => (format!("○ daemon away, try {attempt} "), theme::BAD),
    };
    let mut right = Vec::new();
    if !model.cost.is_zero() {
        right.push(Span::styled(
            format!("${} ", model.cost.normalize()),
            theme::DIM,
        ));
    }
    right.push(Span::styled(state, style));
    let right = Line::from(right).right_aligned();
    let [left_area, right_area] =
        Layout::horizontal([Constraint::Min(1), Constraint::Length(right.width() as u16)])
            .areas(area);
    let left = wrap::cut(left, usize::from(left_area.width.saturating_sub(1)));
    frame.render_widget(wrap::line(&[], &left), left_area);
    frame.render_widget(right, right_area);
}

fn spinner(model: &Model) -> char {
    let tenths = model.now.as_millisecond().unsigned_abs() / 120;
    SPINNER[tenths as usize % SPINNER.len()]
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
