//! Changes on a disk, as the kernel tells them.
//!
//! A directory is watched before it is read, so nothing that happens in it is
//! ever missed: what came before the watch is found by reading, what comes after
//! it is an event. That order is why inotify is used directly (through rustix)
//! and not behind a library that adds watches on its own thread after it has
//! told us of a new folder.
//!
//! Events only say where to look; what changed is found by looking. An overflow
//! of the kernel's queue means looking everywhere.

mod inotify;
mod settle;

pub(crate) use inotify::{Event, Happening, WatchError, Watcher};
pub(crate) use settle::Unsettled;

/// How changes are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// By the kernel's events.
    Events,
    /// By reading the whole tree now and then, because of this.
    Polling {
        /// Why, and what to do about it.
        reason: String,
    },
}
