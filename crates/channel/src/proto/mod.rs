//! The channel plane's protocol, without I/O or clock.
//!
//! # Participants
//!
//! A *device* is a browser that a person has paired. The *daemon* holds the
//! sessions. Both ends of both versions are here: [`v1`] for clients of the
//! original protocol, [`v2`] for our own.
//!
//! # Pairing
//!
//! The person asks the daemon for a code ([`pairing`]) and types it into the
//! device. v1 sends the code itself; v2 proves knowledge of it in a key
//! exchange and never sends anything that a guess could be checked against.
//! Either way the daemon keeps a [`device::Device`] row afterwards.
//!
//! # What is wrong
//!
//! v1 answers with `error` and goes on; v2 closes the connection at the first
//! byte that does not open, because only an attacker or a bug sends one.
#![deny(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    expect(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "tests may fail by panic"
    )
)]

pub mod base64url;
pub mod device;
pub mod keys;
pub mod pairing;
pub mod v1;
pub mod v2;
