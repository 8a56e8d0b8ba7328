//! The worker's end of a terminal.
//!
//! The kernel tells whoever waits to write whenever the program has read: registered for both
//! directions, every key would wake the worker once more than it has to. So the end that is read is
//! registered for that alone, and the end that is written to only while the terminal takes no more.

use std::io;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use rustix::termios::Winsize;
use tokio::net::unix::pipe;

/// The kernel gives a terminal's output in pieces of at most this.
const PIECE: usize = 4096;

/// Reads what a program prints.
///
/// A pipe's end is what is registered for one direction alone; to wait and to read it does nothing
/// that is a pipe's own.
#[derive(Debug)]
pub(crate) struct TerminalOutput(pipe::Receiver);

/// Writes what is typed.
#[derive(Debug)]
pub(crate) struct TerminalInput {
    fd: OwnedFd,
    /// Only while the terminal takes no more.
    blocked: Option<pipe::Sender>,
}

/// Both directions of a terminal, which must not block.
pub(crate) fn split(terminal: OwnedFd) -> io::Result<(TerminalOutput, TerminalInput)> {
    let fd = terminal.try_clone()?;
    let output = pipe::Receiver::from_owned_fd_unchecked(terminal)?;
    Ok((TerminalOutput(output), TerminalInput { fd, blocked: None }))
}

impl TerminalOutput {
    /// The next bytes, or `None` at the end. Cancel safe.
    ///
    /// Memory for the bytes is taken only once there are some: an idle shell holds none.
    pub(crate) async fn read(&mut self) -> Option<Bytes> {
        loop {
            self.0.readable().await.ok()?;
            let mut bytes = BytesMut::with_capacity(PIECE);
            match self.0.try_read_buf(&mut bytes) {
                Ok(0) => return None,
                Ok(_) => return Some(bytes.freeze()),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                // EIO is how Linux says that nobody has the terminal open any more.
                Err(_) => return None,
            }
        }
    }
}

impl TerminalInput {
    /// Writes some of `bytes`. Cancel safe.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let written = match &self.blocked {
                None => rustix::io::write(&self.fd, bytes).map_err(io::Error::from),
                Some(blocked) => {
                    blocked.writable().await?;
                    blocked.try_write(bytes)
                }
            };
            match written {
                Ok(written) => {
                    self.blocked = None;
                    return Ok(written);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.blocked.is_none() {
                        let fd = self.fd.try_clone()?;
                        self.blocked = Some(pipe::Sender::from_owned_fd_unchecked(fd)?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Tells the program that its window changed.
    pub(crate) fn resize(&self, rows: u16, cols: u16) -> io::Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: cols,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(rustix::termios::tcsetwinsize(&self.fd, size)?)
    }
}
