//! The coder's pure core: no I/O, no clock.

pub mod answer;
pub mod conversation;
pub mod kept;
pub mod prompt;
pub mod skill;
pub mod tool;
