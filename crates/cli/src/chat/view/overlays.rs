//! What lies over or between: prompts, help, the list of sessions.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block as Border, BorderType, Clear, Paragraph};
use unicode_width::UnicodeWidthStr;

use crate::chat::model::Model;
use crate::chat::picker::Picker;
use crate::chat::prompt::Subject;
use crate::chat::slash::COMMANDS;
use crate::chat::theme;
use crate::chat::wrap;
use crate::output::terminal_text;

/// A prompt shows so many lines of what it is about.
const MAX_SUBJECT_LINES: usize = 8;

/// Columns that the names of keys and commands take in the help.
const NAMES: usize = 20;

/// Columns below which a meaning stands under its key, and a session is its number and title.
const NARROW: u16 = 60;

const KEYS: [(&str, &str); 15] = [
    (
        "Enter",
        "send; while the agent works: steer or queue (Tab switches)",
    ),
    ("Alt-Enter, Ctrl-J", "new line"),
    ("Up, Down", "earlier messages"),
    (
        "PageUp, PageDown",
        "scroll a page; Ctrl-Up, Ctrl-Down a line",
    ),
    ("Ctrl-Home, Ctrl-End", "go to the beginning, to the end"),
    ("Ctrl-T", "unfold and fold the agent's thinking"),
    ("Ctrl-O", "unfold and fold tool calls and diffs"),
    ("Ctrl-P, Ctrl-N", "choose one of them for Ctrl-O"),
    ("Ctrl-G", "go to the question, and back"),
    ("Esc", "back to the end; leave a question for later"),
    ("Tab", "complete a / command"),
    ("Ctrl-U, Ctrl-W", "delete the line, the word"),
    ("Ctrl-L", "draw the screen anew"),
    ("Ctrl-C", "clear the input, stop the turn, leave"),
    ("Ctrl-D", "leave"),
];

/// The lines of the prompt that waits; none when nothing does.
pub(super) fn prompt_lines(model: &Model, width: usize) -> Vec<Line<'static>> {
    let Some(prompt) = model.prompt() else {
        return Vec::new();
    };
    let wrapped = |text: &str, style| -> Vec<Line<'static>> {
        wrap::wrap(&wrap::plain(text, style), width)
            .iter()
            .map(|line| wrap::line(&[], line))
            .collect()
    };
    let (mut subject, mut about_it) = (Vec::new(), Vec::new());
    let mut say = |text: &str, style| subject.extend(wrapped(text, style));
    match &prompt.subject {
        Subject::Ask(state) => {
            if let Some(question) = state.question() {
                say(&question.question, theme::STRONG);
            }
        }
        Subject::Approval(approval) => {
            say(&terminal_text::exact(&approval.command), theme::STRONG);
            let place = match (approval.worker.as_str(), approval.cwd.as_str()) {
                ("", cwd) => cwd.to_owned(),
                (worker, cwd) => format!("{worker}:{cwd}"),
            };
            let about = [
                approval.action.as_str(),
                place.as_str(),
                approval.reason.as_str(),
            ];
            let about: Vec<&str> = about.into_iter().filter(|part| !part.is_empty()).collect();
            about_it = wrapped(&terminal_text::exact_line(&about.join(" · ")), theme::DIM);
        }
    }
    if subject.len() > MAX_SUBJECT_LINES {
        let more = subject.len() - MAX_SUBJECT_LINES;
        subject.truncate(MAX_SUBJECT_LINES);
        let shown_by = match prompt.subject {
            Subject::Ask(_) => "asks",
            Subject::Approval(_) => "approvals",
        };
        let more = format!("… {more} more lines, which `quintet {shown_by}` shows");
        subject.extend(wrapped(&more, theme::CAUTION));
    }
    subject.extend(about_it);
    if let Subject::Approval(approval) = &prompt.subject
        && !approval.rule.is_empty()
    {
        // Never cut: nobody agrees to a rule that they have not seen.
        let place = format!(
            "always would write, to config.toml {}:",
            approval.rule_place
        );
        subject.extend(wrapped(&place, theme::DIM));
        for rule in approval.rule.lines() {
            subject.extend(wrapped(&terminal_text::exact(rule), theme::CODE));
        }
    }
    let choices = prompt
        .lines()
        .into_iter()
        .enumerate()
        .map(|(index, choice)| {
            let chosen = model.prompt_focus && !prompt.own_words && index == prompt.cursor;
            let tick = match choice.ticked {
                Some(true) => "[x] ",
                Some(false) => "[ ] ",
                None => "",
            };
            let key = choice.key.map_or("  ".to_owned(), |key| format!("{key} "));
            let mut text = wrap::plain(&format!("{tick}{}", choice.label), Style::default());
            if !choice.description.is_empty() {
                wrap::push(&mut text, &format!("  {}", choice.description), theme::DIM);
            }
            let front = [
                Span::styled(if chosen { "❯ " } else { "  " }, theme::YOU),
                Span::styled(key, theme::CODE),
            ];
            let mut lines = hanging(&front, &text, width);
            if chosen {
                lines = lines
                    .into_iter()
                    .map(|line| line.patch_style(theme::STRONG))
                    .collect();
            }
            lines
        });
    subject.extend(choices.flatten());
    subject
}

pub(super) fn draw_prompt(
    model: &Model,
    frame: &mut Frame<'_>,
    area: Rect,
    lines: Vec<Line<'static>>,
) {
    let kind = match model.prompt().map(|prompt| &prompt.subject) {
        Some(Subject::Approval(_)) => "May the agent do this?",
        _ => "The agent asks",
    };
    let more = match model
        .prompts
        .iter()
        .filter(|prompt| !prompt.answered)
        .count()
    {
        0 | 1 => String::new(),
        waiting => format!(" (1 of {waiting})"),
    };
    let border = Border::bordered()
        .border_type(BorderType::Rounded)
        .border_style(theme::CAUTION)
        .title(Line::styled(format!(" {kind}{more} "), theme::CAUTION));
    frame.render_widget(Paragraph::new(lines).block(border), area);
}

/// Draws the help from its line `top` on; returns how many lines it can be scrolled by.
pub(super) fn draw_help(frame: &mut Frame<'_>, area: Rect, top: usize) -> usize {
    let place = Overlay::width(area);
    let width = usize::from(place.saturating_sub(2));
    let row = |left: String, right: &str| {
        let meaning = wrap::plain(right, Style::default());
        if place < NARROW {
            let mut lines = vec![Line::styled(format!(" {left}"), theme::CODE)];
            lines.extend(hanging(&[Span::raw("   ")], &meaning, width));
            return lines;
        }
        let front = Span::styled(format!(" {left:<NAMES$}"), theme::CODE);
        hanging(&[front], &meaning, width)
    };
    let mut lines: Vec<Line<'static>> = KEYS
        .iter()
        .flat_map(|(key, meaning)| row((*key).to_owned(), meaning))
        .collect();
    lines.push(Line::default());
    lines.extend(
        COMMANDS
            .iter()
            .flat_map(|(name, argument, meaning)| row(format!("/{name} {argument}"), meaning)),
    );
    let beyond = (lines.len() + 2).saturating_sub(usize::from(Overlay::height(area)));
    let overlay = Overlay {
        title: match beyond {
            0 => " Keys and commands · any key closes ",
            _ => " Keys · ↑ ↓ scroll · Esc closes ",
        },
        lines,
        top: top.min(beyond),
    };
    overlay.draw(frame, area);
    beyond
}

/// Lines of a width, the first with something in front and the others below its text.
fn hanging(front: &[Span<'static>], text: &[(char, Style)], width: usize) -> Vec<Line<'static>> {
    let indent: usize = front.iter().map(Span::width).sum();
    let below = [Span::raw(" ".repeat(indent))];
    wrap::wrap(text, width.saturating_sub(indent))
        .iter()
        .enumerate()
        .map(|(index, line)| wrap::line(if index == 0 { front } else { &below }, line))
        .collect()
}

pub(super) fn draw_picker(picker: &Picker, frame: &mut Frame<'_>, area: Rect) {
    let is_narrow = Overlay::width(area) < NARROW;
    let lines = if picker.lines.is_empty() {
        vec![Line::styled(" no sessions yet", theme::DIM)]
    } else {
        picker
            .lines
            .iter()
            .enumerate()
            .map(|(index, session)| {
                let state = if session.active { "working" } else { "" };
                let line = Line::raw(match (is_narrow, session.title.as_str()) {
                    (true, "") => format!(" {:>3}  {}", session.id, session.agent),
                    (true, title) => format!(" {:>3}  {title}", session.id),
                    (false, title) => format!(
                        " {:>4}  {:<12} {:>4} messages  {state:<8} {title}",
                        session.id, session.agent, session.messages
                    ),
                });
                if index == picker.cursor {
                    line.patch_style(theme::CHOSEN)
                } else {
                    line
                }
            })
            .collect()
    };
    let visible = usize::from(Overlay::height(area).saturating_sub(2));
    let overlay = Overlay {
        title: " Sessions · Enter opens · Esc closes ",
        lines,
        top: (picker.cursor + 1).saturating_sub(visible),
    };
    overlay.draw(frame, area);
}

/// A box over the middle of the screen.
struct Overlay {
    title: &'static str,
    lines: Vec<Line<'static>>,
    /// The first line in view.
    top: usize,
}

impl Overlay {
    fn width(area: Rect) -> u16 {
        area.width.saturating_sub(4).min(84)
    }

    /// The most that it may take, with its border.
    fn height(area: Rect) -> u16 {
        area.height.saturating_sub(2)
    }

    fn draw(self, frame: &mut Frame<'_>, area: Rect) {
        let width = Self::width(area);
        let height = (self.lines.len() as u16 + 2).min(Self::height(area));
        let place = Rect {
            x: area.x + (area.width - width) / 2,
            y: area.y + (area.height - height) / 2,
            width,
            height,
        };
        let border = Border::bordered()
            .border_type(BorderType::Rounded)
            .border_style(theme::YOU)
            .title(Line::styled(self.title, theme::YOU));
        clear_halves(frame, place);
        frame.render_widget(Clear, place);
        frame.render_widget(
            Paragraph::new(self.lines)
                .scroll((self.top as u16, 0))
                .block(border),
            place,
        );
    }
}

/// Takes away the wide characters whose second half is under the left edge of `place`: a terminal
/// would draw them over it.
fn clear_halves(frame: &mut Frame<'_>, place: Rect) {
    let Some(left) = place.x.checked_sub(1) else {
        return;
    };
    for y in place.y..place.bottom() {
        if let Some(cell) = frame.buffer_mut().cell_mut((left, y))
            && cell.symbol().width() > 1
        {
            cell.set_symbol(" ");
        }
    }
}
