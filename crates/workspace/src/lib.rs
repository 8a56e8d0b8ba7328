//! Versioned files, replicated: the workspace plane.

pub mod proto;
