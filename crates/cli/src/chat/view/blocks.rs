//! One block of the conversation as lines.

use jiff::Timestamp;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use serde_json::Value;

use crate::chat::event::FileChange;
use crate::chat::highlight::{diff_line, highlight};
use crate::chat::markdown::hard_wrap;
use crate::chat::theme;
use crate::chat::transcript::{Block, Entry, Said, SaidState, Tone, Tool, ToolState};
use crate::chat::wrap::{self, Styled};
use crate::output::terminal_text;

/// An unfolded block shows so many lines; `quintet events` has the rest.
const MAX_DETAIL_LINES: usize = 200;
/// A call that runs shows so many of the newest lines that it printed.
const LIVE_LINES: usize = 6;

/// Whether the drawing changes by itself, with the time.
pub(super) fn moves(entry: &Entry) -> bool {
    matches!(&entry.block, Block::Tool(tool) if matches!(tool.state, ToolState::Running { .. }))
}

/// The lines of a block that is not Markdown.
pub(super) fn lines(
    entry: &Entry,
    width: usize,
    chosen: bool,
    now: Timestamp,
) -> Vec<Line<'static>> {
    let mut lines = match &entry.block {
        Block::You(said) => you(said, width),
        Block::Steer { text } => prefixed("↪ ", theme::CAUTION, text, theme::CAUTION, width),
        Block::Thinking { text } => thinking(text, entry.unfolded, width),
        Block::Tool(tool) => self::tool(tool, entry.unfolded, width, now),
        Block::Terminal { text } => detail(text, "", theme::PLAIN, width, usize::MAX),
        Block::Code { language, code } => indented(&highlight(language, code), "│ ", width),
        Block::File(change) => file(change, entry.unfolded, width),
        Block::Note { text, tone } => {
            let style = match tone {
                Tone::Plain => theme::DIM,
                Tone::Bad => theme::BAD,
            };
            prefixed("· ", style, text, style, width)
        }
        Block::Answer { text } => crate::chat::markdown::render(text, width),
    };
    if chosen && let Some(first) = lines.first_mut() {
        *first = std::mem::take(first).patch_style(theme::CHOSEN);
    }
    lines
}

fn you(said: &Said, width: usize) -> Vec<Line<'static>> {
    let style = match said.state {
        SaidState::Heard => theme::STRONG,
        SaidState::Waiting | SaidState::Removed => theme::DIM,
    };
    let mut lines = prefixed("› ", theme::YOU, &said.text, style, width);
    let mut remarks = Vec::new();
    if said.sender != crate::chat::SENDER && !said.sender.is_empty() {
        remarks.push(format!("from {}", said.sender));
    }
    match said.state {
        SaidState::Waiting => remarks.push("waiting".to_owned()),
        SaidState::Removed => remarks.push("removed".to_owned()),
        SaidState::Heard => {}
    }
    if let Some(last) = lines.last_mut().filter(|_| !remarks.is_empty()) {
        last.push_span(Span::styled(
            format!("  ({})", remarks.join(", ")),
            theme::DIM,
        ));
    }
    lines
}

fn thinking(text: &str, unfolded: bool, width: usize) -> Vec<Line<'static>> {
    let words = text.split_whitespace().count();
    let mark = if unfolded { "▾" } else { "▸" };
    let mut lines = vec![Line::styled(
        format!("{mark} thinking · {words} words"),
        theme::DIM,
    )];
    if unfolded {
        lines.extend(prefixed("  ", theme::DIM, text.trim(), theme::DIM, width));
    }
    lines
}

fn tool(tool: &Tool, unfolded: bool, width: usize, now: Timestamp) -> Vec<Line<'static>> {
    let (mark, style, time) = match &tool.state {
        ToolState::Running { since, .. } => {
            let seconds = now.duration_since(*since).as_secs().max(0);
            ("◌", theme::CAUTION, format!("{seconds}s …"))
        }
        ToolState::Done { millis, .. } => ("✓", theme::GOOD, duration(*millis)),
        ToolState::Failed { millis, .. } => ("✗", theme::BAD, duration(*millis)),
        ToolState::Abandoned => ("○", theme::DIM, "no result".to_owned()),
    };
    let front = vec![
        Span::styled(format!("{mark} "), style),
        Span::styled(tool.name.clone(), theme::STRONG),
        Span::raw(" "),
    ];
    let behind = format!("  {time}");
    let taken = front.iter().map(Span::width).sum::<usize>() + behind.chars().count();
    let summary = wrap::cut(
        wrap::plain(
            &terminal_text::one_line(&summary(&tool.arguments)),
            theme::PLAIN,
        ),
        width.saturating_sub(taken).max(8),
    );
    let mut first = wrap::line(&front, &summary);
    first.push_span(Span::styled(behind, theme::DIM));
    let mut lines = vec![first];
    if let ToolState::Running { live, .. } = &tool.state
        && !live.is_empty()
        && !unfolded
    {
        lines.extend(detail(end_of(live), "  ", theme::DIM, width, LIVE_LINES));
    }
    if unfolded {
        let arguments = serde_json::from_str::<Value>(&tool.arguments)
            .and_then(|value| serde_json::to_string_pretty(&value))
            .unwrap_or_else(|_| tool.arguments.clone());
        lines.extend(indented(&highlight("json", &arguments), "  │ ", width));
        if let ToolState::Done { output, .. }
        | ToolState::Failed { output, .. }
        | ToolState::Running { live: output, .. } = &tool.state
        {
            lines.extend(detail(output, "  ", theme::DIM, width, MAX_DETAIL_LINES));
        }
    }
    lines
}

/// The newest lines of what a call has printed.
fn end_of(live: &str) -> &str {
    let lines = live.trim_end();
    let from = lines
        .rmatch_indices('\n')
        .nth(LIVE_LINES - 1)
        .map_or(0, |(at, _)| at + 1);
    lines.get(from..).unwrap_or(lines)
}

/// The argument that says most, where there is a usual one.
fn summary(arguments: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(arguments) else {
        return arguments.to_owned();
    };
    ["command", "path", "file_path", "pattern", "query", "url"]
        .iter()
        .find_map(|key| value.get(*key)?.as_str().map(str::to_owned))
        .unwrap_or_else(|| match value.as_object() {
            Some(object) if object.is_empty() => String::new(),
            _ => arguments.to_owned(),
        })
}

fn file(change: &FileChange, unfolded: bool, width: usize) -> Vec<Line<'static>> {
    let mut lines = prefixed(
        "✎ ",
        theme::GOOD,
        &format!("{} {}", change.change, change.path),
        theme::PLAIN,
        width,
    );
    if let Some(diff) = change.diff.as_ref().filter(|_| unfolded) {
        let diff: Vec<Styled> = diff.lines().map(diff_line).collect();
        lines.extend(indented(&diff, "  ", width));
    }
    lines
}

fn prefixed(
    mark: &'static str,
    mark_style: Style,
    text: &str,
    style: Style,
    width: usize,
) -> Vec<Line<'static>> {
    let indent = mark.chars().count();
    wrap::wrap(&wrap::plain(text, style), width.saturating_sub(indent))
        .into_iter()
        .enumerate()
        .map(|(index, line)| {
            let front = if index == 0 {
                Span::styled(mark, mark_style)
            } else {
                Span::raw(" ".repeat(indent))
            };
            wrap::line(&[front], &line)
        })
        .collect()
}

fn indented(lines: &[Styled], front: &'static str, width: usize) -> Vec<Line<'static>> {
    let room = width.saturating_sub(front.chars().count()).max(8);
    lines
        .iter()
        .flat_map(|line| hard_wrap(line, room))
        .map(|line| wrap::line(&[Span::styled(front, theme::DIM)], &line))
        .collect()
}

/// A program's output, without what only a terminal of its own could show.
fn detail(
    text: &str,
    front: &'static str,
    style: Style,
    width: usize,
    most: usize,
) -> Vec<Line<'static>> {
    let clean = terminal_text::without_escapes(text);
    let all: Vec<&str> = clean.trim_end().lines().collect();
    let shown: Vec<Styled> = all
        .iter()
        .take(most)
        .map(|line| wrap::plain(line, style))
        .collect();
    let mut lines = indented(&shown, front, width);
    if all.len() > most {
        lines.push(Line::styled(
            format!("{front}… {} more lines", all.len() - most),
            theme::DIM,
        ));
    }
    lines
}

fn duration(millis: u64) -> String {
    match millis {
        0..1000 => format!("{millis}ms"),
        1000..60_000 => format!("{}.{}s", millis / 1000, millis % 1000 / 100),
        _ => format!("{}m {}s", millis / 60_000, millis % 60_000 / 1000),
    }
}
