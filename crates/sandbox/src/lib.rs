//! The sandbox plane: a hub, and workers that dial home.
//!
//! Start with [`proto`], which is the specification, then [`hub::Hub`] for the end that gives work
//! and [`worker::Worker`] for the end that does it. [`isolate`] confines what a worker runs,
//! [`paths`] opens what a peer names.
//!
//! This crate must never read the environment or the home folder, never print, and never know
//! another plane.

pub mod hub;
pub mod isolate;
mod lanes;
pub mod mtime;
pub mod paths;
pub mod proto;
pub mod socket;
pub mod tls;
pub mod worker;
