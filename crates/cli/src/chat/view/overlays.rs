//! What lies over or between: prompts, help, the list of sessions.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block as Border, BorderType, Clear, Paragraph};

use crate::chat::model::Model;
use crate::chat::picker::Picker;
use crate::chat::prompt::Subject;
use crate::chat::slash::COMMANDS;
use crate::chat::theme;
use crate::chat::wrap;
use crate::output::terminal_text;

/// A prompt shows so many lines of what it is about.
const MAX_SUBJECT_LINES: usize = 8;

const KEYS: [(&str, &str); 14] = [
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
            let mut line = Line::from(vec![
                Span::styled(if chosen { "❯ " } else { "  " }, theme::YOU),
                Span::styled(key, theme::CODE),
                Span::raw(format!("{tick}{}", choice.label)),
            ]);
            if !choice.description.is_empty() {
                line.push_span(Span::styled(
                    format!("  {}", choice.description),
                    theme::DIM,
                ));
            }
            if chosen {
                line.patch_style(theme::STRONG)
            } else {
                line
            }
        });
    subject.extend(choices);
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

pub(super) fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let row = |left: String, right: &'static str| {
        Line::from(vec![
            Span::styled(format!(" {left:<20}"), theme::CODE),
            Span::raw(right),
        ])
    };
    let mut lines: Vec<Line<'static>> = KEYS
        .iter()
        .map(|(key, meaning)| row((*key).to_owned(), meaning))
        .collect();
    lines.push(Line::default());
    lines.extend(
        COMMANDS
            .iter()
            .map(|(name, argument, meaning)| row(format!("/{name} {argument}"), meaning)),
    );
    overlay(
        frame,
        area,
        " Keys and commands · any key closes ",
        lines,
        0,
    );
}

pub(super) fn draw_picker(picker: &Picker, frame: &mut Frame<'_>, area: Rect) {
    let lines = if picker.lines.is_empty() {
        vec![Line::styled(" no sessions yet", theme::DIM)]
    } else {
        picker
            .lines
            .iter()
            .enumerate()
            .map(|(index, session)| {
                let state = if session.active { "working" } else { "" };
                let line = Line::raw(format!(
                    " {:>4}  {:<12} {:>4} messages  {state:<8} {}",
                    session.id, session.agent, session.messages, session.title
                ));
                if index == picker.cursor {
                    line.patch_style(theme::CHOSEN)
                } else {
                    line
                }
            })
            .collect()
    };
    overlay(
        frame,
        area,
        " Sessions · Enter opens · Esc closes ",
        lines,
        picker.cursor,
    );
}

fn overlay(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &'static str,
    lines: Vec<Line<'static>>,
    keep: usize,
) {
    let width = area.width.saturating_sub(4).min(84);
    let height = (lines.len() as u16 + 2).min(area.height.saturating_sub(2));
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let visible = usize::from(height.saturating_sub(2));
    let scroll = (keep + 1).saturating_sub(visible) as u16;
    let border = Border::bordered()
        .border_type(BorderType::Rounded)
        .border_style(theme::YOU)
        .title(Line::styled(title, theme::YOU));
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).scroll((scroll, 0)).block(border),
        place,
    );
}
