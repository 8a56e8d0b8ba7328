//! The colours, from the terminal's own sixteen, so that light and dark both work.

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

pub(crate) const PLAIN: Style = Style::new();
pub(crate) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(crate) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(crate) const YOU: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
pub(crate) const GOOD: Style = Style::new().fg(Color::Green);
pub(crate) const BAD: Style = Style::new().fg(Color::Red);
pub(crate) const CAUTION: Style = Style::new().fg(Color::Yellow);
pub(crate) const HEADING: Style = Style::new().fg(Color::Magenta).add_modifier(Modifier::BOLD);
pub(crate) const CODE: Style = Style::new().fg(Color::Cyan);
pub(crate) const LINK: Style = Style::new()
    .fg(Color::Blue)
    .add_modifier(Modifier::UNDERLINED);
pub(crate) const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(crate) const KEYWORD: Style = Style::new().fg(Color::Magenta);
pub(crate) const STRING: Style = Style::new().fg(Color::Green);
pub(crate) const NUMBER: Style = Style::new().fg(Color::Yellow);
pub(crate) const COMMENT: Style = Style::new().add_modifier(Modifier::DIM);
pub(crate) const TYPE: Style = Style::new().fg(Color::Blue);

/// Takes the colours away. Left to the terminal's library, which `NO_COLOR` stops from sending
/// them, a change of colour would send a reset instead, and what is bold or reversed with it.
pub(crate) fn drop_colors(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        cell.fg = Color::Reset;
        cell.bg = Color::Reset;
        cell.underline_color = Color::Reset;
    }
}
