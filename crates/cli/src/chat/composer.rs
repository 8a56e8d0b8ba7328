//! Where a message is typed: several lines, and the earlier messages behind the Up key.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui_textarea::{CursorMove, TextArea, WrapMode};

const MAX_HISTORY: usize = 200;

#[derive(Debug)]
pub(crate) struct Composer {
    area: TextArea<'static>,
    history: Vec<String>,
    /// The place in the history that is shown; `None` is the text being written.
    shown: Option<usize>,
    /// What was being written when the history was opened.
    draft: String,
}

impl Default for Composer {
    fn default() -> Self {
        Self {
            area: area(""),
            history: Vec::new(),
            shown: None,
            draft: String::new(),
        }
    }
}

impl Composer {
    pub(crate) fn area(&self) -> &TextArea<'static> {
        &self.area
    }

    pub(crate) fn text(&self) -> String {
        self.area.lines().join("\n")
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.area.is_empty()
    }

    pub(crate) fn set(&mut self, text: &str) {
        self.area = area(text);
        self.shown = None;
    }

    /// Takes the text out and remembers it.
    pub(crate) fn take(&mut self) -> String {
        let text = self.text();
        self.remember(&text);
        self.set("");
        text
    }

    /// Puts a message into the history, as when the conversation is read again.
    pub(crate) fn remember(&mut self, text: &str) {
        if text.trim().is_empty() || self.history.last().is_some_and(|last| last == text) {
            return;
        }
        self.history.push(text.to_owned());
        if self.history.len() > MAX_HISTORY {
            self.history.remove(0);
        }
    }

    pub(crate) fn forget_history(&mut self) {
        self.history.clear();
        self.shown = None;
    }

    pub(crate) fn paste(&mut self, text: &str) {
        self.area
            .insert_str(text.replace("\r\n", "\n").replace('\r', "\n"));
    }

    pub(crate) fn key(&mut self, key: KeyEvent) {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => self.area.insert_newline(),
            KeyCode::Char('j') if control => self.area.insert_newline(),
            // The keys of every shell; the text area has another meaning for it.
            KeyCode::Char('u') if control => {
                self.area.delete_line_by_head();
            }
            KeyCode::Up if self.area.cursor().0 == 0 => self.earlier(),
            KeyCode::Down if self.area.cursor().0 + 1 >= self.area.lines().len() => self.later(),
            _ => {
                self.area.input(key);
            }
        }
    }

    fn earlier(&mut self) {
        let next = match self.shown {
            None => self.history.len().checked_sub(1),
            Some(at) => at.checked_sub(1),
        };
        let Some(next) = next else { return };
        if self.shown.is_none() {
            self.draft = self.text();
        }
        self.area = area(&self.history[next]);
        self.shown = Some(next);
    }

    fn later(&mut self) {
        let Some(at) = self.shown else { return };
        match self.history.get(at + 1) {
            Some(text) => {
                self.area = area(text);
                self.shown = Some(at + 1);
            }
            None => {
                self.area = area(&std::mem::take(&mut self.draft));
                self.shown = None;
            }
        }
    }
}

fn area(text: &str) -> TextArea<'static> {
    let mut area = TextArea::new(text.split('\n').map(str::to_owned).collect());
    area.set_cursor_line_style(ratatui::style::Style::default());
    area.set_wrap_mode(WrapMode::WordOrGlyph);
    area.move_cursor(CursorMove::Bottom);
    area.move_cursor(CursorMove::End);
    area
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(composer: &mut Composer, code: KeyCode) {
        composer.key(KeyEvent::new(code, KeyModifiers::NONE));
    }

    #[test]
    fn up_goes_through_earlier_messages_and_down_comes_back_to_the_draft() {
        let mut composer = Composer::default();
        for text in ["one", "two\nlines", "two\nlines"] {
            composer.set(text);
            assert_eq!(composer.take(), text);
        }
        composer.set("draft");
        let mut seen = Vec::new();
        for code in [
            KeyCode::Up,
            KeyCode::Up,
            KeyCode::Up,
            KeyCode::Up,
            KeyCode::Down,
            KeyCode::Down,
            KeyCode::Down,
        ] {
            press(&mut composer, code);
            seen.push(composer.text());
        }
        // The second Up moves within the two lines, the fourth finds nothing earlier.
        assert_eq!(
            seen,
            [
                "two\nlines",
                "two\nlines",
                "one",
                "one",
                "two\nlines",
                "draft",
                "draft"
            ]
        );
    }

    #[test]
    fn pasted_line_ends_are_kept_as_lines() {
        let mut composer = Composer::default();
        composer.paste("a\r\nb\rc");
        assert_eq!(composer.text(), "a\nb\nc");
    }
}
