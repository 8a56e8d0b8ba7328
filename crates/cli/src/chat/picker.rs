//! Choosing another session from a list.

use crossterm::event::{KeyCode, KeyEvent};

/// A session in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionLine {
    pub(crate) id: u64,
    pub(crate) agent: String,
    pub(crate) title: String,
    pub(crate) messages: u64,
    pub(crate) active: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picker {
    pub(crate) lines: Vec<SessionLine>,
    pub(crate) cursor: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Picked {
    Nothing,
    Session(SessionLine),
}

impl Picker {
    /// Newest first, beginning at the session that is open.
    pub(crate) fn new(mut lines: Vec<SessionLine>, open: Option<u64>) -> Self {
        lines.sort_by_key(|line| std::cmp::Reverse(line.id));
        let cursor = lines
            .iter()
            .position(|line| Some(line.id) == open)
            .unwrap_or(0);
        Self { lines, cursor }
    }

    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Picked> {
        match key.code {
            KeyCode::Up => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Down => {
                self.cursor = (self.cursor + 1).min(self.lines.len().saturating_sub(1));
            }
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.lines.len().saturating_sub(1),
            KeyCode::Enter => {
                return Some(match self.lines.get(self.cursor) {
                    Some(line) => Picked::Session(line.clone()),
                    None => Picked::Nothing,
                });
            }
            KeyCode::Esc | KeyCode::Char('q') => return Some(Picked::Nothing),
            _ => {}
        }
        None
    }
}
