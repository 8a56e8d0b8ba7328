//! Browsers, paired and encrypted: the original protocol byte for byte, and our own.

mod bad_input;
pub(crate) mod browser;
mod original;
mod ours;
mod shells;
mod v1;
