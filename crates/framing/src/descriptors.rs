//! How many descriptors this process may have open, and what those that it starts get.
//!
//! The usual soft limit, 1024, is for programs that use `select`: a daemon with a thousand clients
//! needs more, and what it starts must not be surprised by numbers beyond it.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Pid, Resource, Rlimit};

/// The limits that this process came with, once it has raised its own.
static CAME_WITH: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard one. What this process starts is to get the old one back:
/// see [`inherited`] and [`give_back`].
pub fn raise() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(Resource::Nofile, raised)?;
    CAME_WITH.get_or_init(|| limit);
    Ok(())
}

/// The limits that a process started by this one is to have, if they are not this one's own.
pub fn inherited() -> Option<Rlimit> {
    CAME_WITH.get().copied()
}

/// Gives a process that this one has just started the limits of [`inherited`].
///
/// It runs already, so that its first steps may see the raised limit; where something is run
/// between fork and exec anyway, the limit is better set there.
pub fn give_back(process: Option<u32>) {
    let pid = process.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let (Some(limit), Some(pid)) = (inherited(), pid) {
        // It may be over already.
        let _ = rustix::process::prlimit(Some(pid), Resource::Nofile, limit);
    }
}

/// Whether the system has no descriptors or memory left, which says nothing about the other side.
pub fn is_exhausted(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}
