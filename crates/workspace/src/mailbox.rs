//! Commands for a thread that also waits for the kernel's events.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// The sending side. The queue itself has no limit: whoever sends a command
/// waits for its answer, so it holds no more than one for each caller and a few
/// for each connection.
#[derive(Debug)]
pub(crate) struct Mailbox<C> {
    commands: mpsc::Sender<C>,
    bell: Arc<OwnedFd>,
}

impl<C> Clone for Mailbox<C> {
    fn clone(&self) -> Self {
        Self {
            commands: self.commands.clone(),
            bell: Arc::clone(&self.bell),
        }
    }
}

impl<C> Mailbox<C> {
    /// Sends a command; `false` when the thread has ended.
    pub(crate) fn send(&self, command: C) -> bool {
        let sent = self.commands.send(command).is_ok();
        // A full counter means that the bell is ringing already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        sent
    }
}

/// The receiving side.
#[derive(Debug)]
pub(crate) struct Commands<C> {
    commands: mpsc::Receiver<C>,
    bell: Arc<OwnedFd>,
}

pub(crate) fn mailbox<C>() -> io::Result<(Mailbox<C>, Commands<C>)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (send, receive) = mpsc::channel();
    Ok((
        Mailbox {
            commands: send,
            bell: Arc::clone(&bell),
        },
        Commands {
            commands: receive,
            bell,
        },
    ))
}

impl<C> Commands<C> {
    /// A command that is already there.
    pub(crate) fn try_next(&self) -> Option<C> {
        self.commands.try_recv().ok()
    }

    /// Waits for a command, for `other` to become readable, or for a moment.
    pub(crate) fn wait(
        &self,
        other: Option<BorrowedFd<'_>>,
        until: Option<Instant>,
    ) -> io::Result<()> {
        let mut waits = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        waits.extend(other.map(|other| PollFd::from_borrowed_fd(other, PollFlags::IN)));
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut counter = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut counter);
        Ok(())
    }
}
