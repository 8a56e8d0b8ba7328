//! Tables for people: aligned columns, a dim header, cut to the width of the terminal.

use std::io::Write;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{DIM, stdout_is_terminal, styled, terminal_text};
use crate::error::CommandError;

const GAP: &str = "  ";
/// The last column keeps at least this much on a narrow terminal.
const LEAST_LAST_COLUMN: usize = 12;

/// Rows under headers.
#[derive(Debug)]
pub(crate) struct Table {
    headers: &'static [&'static str],
    rows: Vec<Vec<String>>,
    cut: bool,
}

impl Table {
    pub(crate) fn new(headers: &'static [&'static str]) -> Self {
        Self {
            headers,
            rows: Vec::new(),
            cut: true,
        }
    }

    /// Never cut: a terminal wraps what is longer than it is wide.
    pub(crate) fn whole(mut self) -> Self {
        self.cut = false;
        self
    }

    /// Adds a row; what is missing is empty.
    pub(crate) fn row<const N: usize>(&mut self, cells: [impl AsRef<str>; N]) {
        let cells = cells.map(|cell| terminal_text::one_line(cell.as_ref()));
        self.rows.push(cells.into());
    }

    pub(crate) fn print(&self) -> Result<(), CommandError> {
        let width = if self.cut && stdout_is_terminal() {
            crossterm::terminal::size()
                .ok()
                .map(|(columns, _)| usize::from(columns))
        } else {
            None
        };
        let mut stdout = anstream::stdout().lock();
        for (index, line) in self.render(width).into_iter().enumerate() {
            if index == 0 {
                writeln!(stdout, "{}", styled(DIM, line))?;
            } else {
                writeln!(stdout, "{line}")?;
            }
        }
        Ok(())
    }

    /// The lines, header first; the last column is cut when a width is given.
    fn render(&self, width: Option<usize>) -> Vec<String> {
        let header: Vec<String> = self.headers.iter().map(ToString::to_string).collect();
        let columns: Vec<usize> = (0..self.headers.len())
            .map(|column| {
                std::iter::once(&header)
                    .chain(&self.rows)
                    .map(|row| row.get(column).map_or(0, |cell| cell.width()))
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let before_last: usize = columns
            .iter()
            .rev()
            .skip(1)
            .map(|column| column + GAP.len())
            .sum();
        let last_width =
            width.map(|width| width.saturating_sub(before_last).max(LEAST_LAST_COLUMN));
        std::iter::once(&header)
            .chain(&self.rows)
            .map(|row| render_row(row, &columns, last_width))
            .collect()
    }
}

fn render_row(row: &[String], columns: &[usize], last_width: Option<usize>) -> String {
    let mut line = String::new();
    for (index, width) in columns.iter().enumerate() {
        let cell = row.get(index).map_or("", String::as_str);
        if index + 1 < columns.len() {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.width())));
            line.push_str(GAP);
        } else {
            line.push_str(&cut(cell, last_width));
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// The text in at most `width` columns, with an ellipsis where it was cut.
pub(crate) fn cut(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    if text.width() <= width {
        return text.to_owned();
    }
    let mut taken = 0;
    let mut out = String::new();
    for char in text.chars() {
        let columns = char.width().unwrap_or(0);
        if taken + columns + 1 > width {
            break;
        }
        taken += columns;
        out.push(char);
    }
    out.push('…');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Table {
        let mut table = Table::new(&["ID", "AGENT", "TITLE"]);
        table.row(["1", "shell", "a title\nof two lines"]);
        table.row(["22", "日本", ""]);
        table
    }

    #[test]
    fn columns_line_up_by_display_width() {
        assert_eq!(
            sample().render(None),
            [
                "ID  AGENT  TITLE",
                "1   shell  a title of two lines",
                "22  日本",
            ]
        );
    }

    #[test]
    fn a_narrow_terminal_cuts_the_last_column() {
        assert_eq!(sample().render(Some(24))[1], "1   shell  a title of t…");
    }
}
