//! The audited unsafe code: what runs between fork and exec, and the registration of a pidfd.
#![expect(
    unsafe_code,
    reason = "pre_exec and AsyncFd::register are unsafe; both uses are argued below"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What a process does to itself between fork and exec, with everything allocated beforehand.
pub(super) struct Isolation {
    /// The process that starts it.
    pub(super) parent: Pid,
    /// Its limits.
    pub(super) limits: Vec<(Resource, Rlimit)>,
    /// The `cgroup.procs` of its cgroup; without one it becomes the subreaper of its descendants.
    pub(super) cgroup_procs: Option<OwnedFd>,
}

/// Makes `command` isolate itself before it becomes the agent.
pub(super) fn isolate(command: &mut Command, isolation: Isolation) {
    let before_exec = move || -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that died before the line above never sends the signal.
        if rustix::process::getppid() != Some(isolation.parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        match &isolation.cgroup_procs {
            Some(procs) => {
                rustix::io::write(procs, b"0")?;
            }
            None => rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?,
        }
        for (resource, limit) in &isolation.limits {
            rustix::process::setrlimit(*resource, *limit)?;
        }
        // Marked, not closed: the pipe that reports a failed exec is among them.
        // SAFETY: a system call on integers; it touches no memory.
        let marked = unsafe {
            libc::close_range(
                3,
                libc::c_uint::MAX,
                libc::CLOSE_RANGE_CLOEXEC as libc::c_int,
            )
        };
        match marked {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only async-signal-safe things may happen. The closure makes system
    // calls (rustix issues them directly), reads what was allocated before the fork, and allocates
    // nothing: an `io::Error` of a raw OS error holds an integer.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Registers a pidfd, which becomes readable when its process ends.
pub(super) fn register_pidfd(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open, is moved in, and keeps its number for as long as it lives.
    let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
    registered.map_err(Into::into)
}
