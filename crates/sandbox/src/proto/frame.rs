//! `sandd.v2`: streams in binary frames.
//!
//! # What v2 is
//!
//! A v2 connection carries two kinds of WebSocket messages. Text messages are
//! v1's, and only these: `register`, `register_ack`, `heartbeat`,
//! `heartbeat_ack`, `error` and the snapshot requests. Everything that carries
//! bytes is a *stream* of binary messages, one frame each:
//!
//! ```text
//! byte 0      kind
//! bytes 1-4   stream number, big endian
//! bytes 5-    payload, by kind
//! ```
//!
//! The hub opens every stream with a number it has not used on this connection.
//! The worker ends every stream with `End`, and neither sends on it afterwards
//! but for the hub's `Done`. A frame on a stream that the receiver does not know is ignored: it
//! crossed with the end of it. An unknown kind or a truncated payload is a broken peer, and closes
//! the connection.
//!
//! | no | kind | from | payload |
//! |---|---|---|---|
//! | 1 | `Open` | hub | JSON [`Open`] |
//! | 2 | `Opened` | worker | JSON [`Opened`]; not sent for `exec` |
//! | 3 | `Begin` | hub | u64: the offset an upload starts from |
//! | 4 | `In` | hub | stdin, typed bytes, a file's bytes |
//! | 5 | `Out` | worker | stdout, a shell's output, a file's bytes |
//! | 6 | `Err` | worker | stderr |
//! | 7 | `Eof` | hub | empty: no more `In` |
//! | 8 | `Credit` | both | u32: how much more the receiver of this frame may send |
//! | 9 | `Resize` | hub | u16 rows, u16 columns |
//! | 10 | `Cancel` | hub | empty: kill the process tree, or give up the transfer |
//! | 11 | `Detach` | hub | empty: send nothing more; a command or shell runs on |
//! | 12 | `End` | worker | JSON [`End`] |
//! | 13 | `Done` | hub | empty: the result of a command or shell is safe; forget it |
//!
//! # Flow control
//!
//! Each direction of each stream starts with [`INITIAL_CREDIT`]. A frame of `In`, `Out` or `Err`
//! costs its payload length plus [`FRAME_COST`], so that a window of tiny frames is no more memory
//! than a window of large ones. A sender without credit waits; the others do not. A receiver grants
//! as its reader takes. A frame beyond the credit ends the stream: the hub cancels it, the worker
//! ends it with [`FailureCode::Protocol`].
//!
//! # Commands and shells that outlive their connection
//!
//! `exec` and `shell` carry an id of the hub's. The worker keeps the output of each in a log and
//! sends from it. When the connection is lost, or the hub detaches, the program runs on and the log
//! grows, in memory and then on disk. `attach` with that id, on any later connection, continues
//! after the given numbers of bytes of stdout and stderr that the hub already has; zero means the
//! whole output. Credit doubles as acknowledgement: what a reader has taken may be given up when
//! the log reaches its quota. A log that is full of bytes nobody has taken stops the program's
//! output, as a full pipe would, until somebody attaches. A result is kept for 24 h, or until
//! `Done`.
//!
//! A request that was on its way when its connection was lost may or may not have arrived, and must
//! not be carried out twice. So a worker names each of its connections in `metadata.connection` of
//! its `register`, and in `metadata.former` the one before it with the highest stream number that
//! arrived there: an `exec` or `shell` whose stream has a higher one was never seen, and the hub
//! sends it again, with the same id. Any other is attached to. A hub remembers what it was told of
//! a worker's earlier connections, so that one that came and went meanwhile is no gap. A worker
//! that has just started has no former connection: what it ran died with it. A command is not sent
//! again then, since it may have run; a shell that never answered is, since nothing was typed yet.
//!
//! # Transfers
//!
//! An upload is `Open`, then `Opened` with what is left of an earlier attempt (`offset`, and the
//! BLAKE3 of those bytes), then `Begin` with that offset where the hub's own bytes have the same
//! hash, else 0, then `In`, `Eof`, `End`. A download is `Open` with the offset and BLAKE3 of what
//! the hub has, then `Opened` with the offset the worker continues from (0 when the hashes differ),
//! then `Out`, `End`.
//!
//! # What came later
//!
//! An unknown kind of `Open` breaks a worker that is older than it. So a worker names the kinds that
//! were added after the first release in `metadata.opens` of its `register`, and a hub sends no
//! other of them: [`OPEN_FOLDER`].
//!
//! Non-goals: several hubs for one worker, compression, files other than regular ones.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

/// What each direction of a stream may send before the first `Credit`.
pub const INITIAL_CREDIT: u32 = 256 * 1024;

/// What a data frame costs beside its payload.
pub const FRAME_COST: u32 = 64;

/// The largest payload of a data frame that this implementation sends of output and input.
pub const MAX_DATA: usize = 64 * 1024;

/// The same of a file, whose pieces cost as much to pass on whatever their size. It fits the
/// initial credit.
pub const MAX_PIECE: usize = 192 * 1024;

/// Pieces of a file whose memory is used again: as many as may be on their way, and some.
pub(crate) const KEPT_PIECES: usize = 24;

/// Bytes before the payload.
pub const HEADER: usize = 5;

/// The name of [`Open::Folder`] in [`super::Metadata::opens`].
pub const OPEN_FOLDER: &str = "folder";

/// The number of a stream, unique within its connection.
pub type StreamId = u32;

/// The registry of frame kinds. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The hub opens a stream.
    Open = 1,
    /// The worker accepts it.
    Opened = 2,
    /// Where an upload starts.
    Begin = 3,
    /// Bytes to the worker.
    In = 4,
    /// Bytes from the worker.
    Out = 5,
    /// Bytes of stderr.
    Err = 6,
    /// No more `In`.
    Eof = 7,
    /// More may be sent.
    Credit = 8,
    /// The window changed.
    Resize = 9,
    /// Stop it.
    Cancel = 10,
    /// Let it run unseen.
    Detach = 11,
    /// The result.
    End = 12,
    /// The result is safe.
    Done = 13,
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Open,
            2 => Self::Opened,
            3 => Self::Begin,
            4 => Self::In,
            5 => Self::Out,
            6 => Self::Err,
            7 => Self::Eof,
            8 => Self::Credit,
            9 => Self::Resize,
            10 => Self::Cancel,
            11 => Self::Detach,
            12 => Self::End,
            13 => Self::Done,
            _ => return None,
        })
    }
}

/// A frame's body.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// See [`FrameKind::Open`].
    Open(Box<Open>),
    /// See [`FrameKind::Opened`].
    Opened(Opened),
    /// See [`FrameKind::Begin`].
    Begin(u64),
    /// See [`FrameKind::In`].
    In(Bytes),
    /// See [`FrameKind::Out`].
    Out(Bytes),
    /// See [`FrameKind::Err`].
    Err(Bytes),
    /// See [`FrameKind::Eof`].
    Eof,
    /// See [`FrameKind::Credit`].
    Credit(u32),
    /// See [`FrameKind::Resize`].
    Resize {
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// See [`FrameKind::Cancel`].
    Cancel,
    /// See [`FrameKind::Detach`].
    Detach,
    /// See [`FrameKind::End`].
    End(Box<End>),
    /// See [`FrameKind::Done`].
    Done,
}

/// One binary message.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Which stream.
    pub stream: StreamId,
    /// What.
    pub body: Body,
}

/// Why a binary message is not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Shorter than its header or its fixed payload.
    #[error("a frame of {len} bytes is too short for kind {kind}")]
    Truncated {
        /// Its kind, 0 where there was none.
        kind: u8,
        /// Its length.
        len: usize,
    },
    /// A number that is not in the registry.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A JSON payload that does not say what it must.
    #[error("frame kind {kind}: {reason}")]
    BadJson {
        /// Its kind.
        kind: u8,
        /// The parser's words.
        reason: String,
    },
}

impl Frame {
    /// A frame on `stream`.
    pub const fn new(stream: StreamId, body: Body) -> Self {
        Self { stream, body }
    }

    /// The frame as one binary message.
    pub fn encode(&self) -> Bytes {
        let data = |kind, data: &Bytes| {
            let mut out = header(kind, self.stream, data.len());
            out.extend_from_slice(data);
            out
        };
        let empty = |kind| header(kind, self.stream, 0);
        match &self.body {
            Body::Open(open) => json(FrameKind::Open, self.stream, open),
            Body::Opened(opened) => json(FrameKind::Opened, self.stream, opened),
            Body::Begin(offset) => {
                let mut out = header(FrameKind::Begin, self.stream, 8);
                out.put_u64(*offset);
                out
            }
            Body::In(bytes) => data(FrameKind::In, bytes),
            Body::Out(bytes) => data(FrameKind::Out, bytes),
            Body::Err(bytes) => data(FrameKind::Err, bytes),
            Body::Eof => empty(FrameKind::Eof),
            Body::Credit(amount) => {
                let mut out = header(FrameKind::Credit, self.stream, 4);
                out.put_u32(*amount);
                out
            }
            Body::Resize { rows, cols } => {
                let mut out = header(FrameKind::Resize, self.stream, 4);
                out.put_u16(*rows);
                out.put_u16(*cols);
                out
            }
            Body::Cancel => empty(FrameKind::Cancel),
            Body::Detach => empty(FrameKind::Detach),
            Body::End(end) => json(FrameKind::End, self.stream, end),
            Body::Done => empty(FrameKind::Done),
        }
        .freeze()
    }

    /// Reads one binary message; data payloads share its memory.
    pub fn decode(message: &Bytes) -> Result<Self, FrameFault> {
        let truncated = |kind| FrameFault::Truncated {
            kind,
            len: message.len(),
        };
        let (&first, rest) = message.split_first().ok_or(truncated(0))?;
        let (number, payload) = rest.split_first_chunk::<4>().ok_or(truncated(first))?;
        let stream = u32::from_be_bytes(*number);
        let kind = FrameKind::of(first).ok_or(FrameFault::UnknownKind(first))?;
        let shared = || message.slice(HEADER..);
        let body = match kind {
            FrameKind::Open => Body::Open(from_json(kind, payload)?),
            FrameKind::Opened => Body::Opened(from_json(kind, payload)?),
            FrameKind::Begin => Body::Begin(u64::from_be_bytes(
                *payload.first_chunk().ok_or(truncated(first))?,
            )),
            FrameKind::In => Body::In(shared()),
            FrameKind::Out => Body::Out(shared()),
            FrameKind::Err => Body::Err(shared()),
            FrameKind::Eof => Body::Eof,
            FrameKind::Credit => Body::Credit(u32::from_be_bytes(
                *payload.first_chunk().ok_or(truncated(first))?,
            )),
            FrameKind::Resize => {
                let [a, b, c, d] = *payload.first_chunk().ok_or(truncated(first))?;
                Body::Resize {
                    rows: u16::from_be_bytes([a, b]),
                    cols: u16::from_be_bytes([c, d]),
                }
            }
            FrameKind::Cancel => Body::Cancel,
            FrameKind::Detach => Body::Detach,
            FrameKind::End => Body::End(from_json(kind, payload)?),
            FrameKind::Done => Body::Done,
        };
        Ok(Self { stream, body })
    }
}

/// A header with room behind it, for a payload that is read straight into place.
pub fn header(kind: FrameKind, stream: StreamId, payload: usize) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEADER.saturating_add(payload));
    out.put_u8(kind as u8);
    out.put_u32(stream);
    out
}

/// What a data frame with `len` bytes of payload costs.
pub fn cost(len: usize) -> u32 {
    u32::try_from(len)
        .unwrap_or(u32::MAX)
        .saturating_add(FRAME_COST)
}

fn json(kind: FrameKind, stream: StreamId, value: &impl Serialize) -> BytesMut {
    let mut out = header(kind, stream, 128);
    serde_json::to_writer((&mut out).writer(), value)
        .expect("strings, numbers, lists and maps with string keys always serialize");
    out
}

fn from_json<'a, T: Deserialize<'a>>(kind: FrameKind, payload: &'a [u8]) -> Result<T, FrameFault> {
    serde_json::from_slice(payload).map_err(|error| FrameFault::BadJson {
        kind: kind as u8,
        reason: error.to_string(),
    })
}

/// What a stream is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Open {
    /// Run a shell line.
    Exec {
        /// The job's id, by which it can be attached to.
        id: String,
        /// The line.
        command: String,
        /// Seconds until the tree is killed, rounded up.
        timeout_secs: u64,
        /// The same to the millisecond; where it is present it counts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
        /// Added to the worker's own environment.
        #[serde(default)]
        env: BTreeMap<String, String>,
        /// Absent means the worker's root.
        #[serde(default)]
        cwd: Option<String>,
        /// Whether `In` and `Eof` follow; else stdin is empty.
        #[serde(default)]
        stdin: bool,
        /// The workspace whose copy it runs in; `cwd` is then beneath that copy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mirror: Option<Mirror>,
    },
    /// Start a shell on a PTY.
    Shell {
        /// The job's id.
        id: String,
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
        /// `TERM`.
        term: String,
        /// Absent means the worker's root.
        #[serde(default)]
        cwd: Option<String>,
        /// The workspace whose copy it starts in.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mirror: Option<Mirror>,
    },
    /// Continue with a command or shell that is there.
    Attach {
        /// The job's id.
        id: String,
        /// Bytes of stdout, or of a shell's output, that the hub has.
        stdout: u64,
        /// Bytes of stderr that the hub has.
        stderr: u64,
    },
    /// Receive a file.
    Upload {
        /// Beneath the root.
        path: String,
        /// Its length.
        total_size: u64,
        /// Permission bits.
        #[serde(default)]
        mode: Option<u32>,
        /// Milliseconds since 1970.
        #[serde(default)]
        mtime_ms: Option<i64>,
        /// Nanoseconds beyond them, below a million.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mtime_ns: Option<u32>,
    },
    /// Make a folder and what is missing above it, or find it; only for workers that know
    /// [`OPEN_FOLDER`].
    Folder {
        /// Beneath the root.
        path: String,
        /// Permission bits that it gets; absent leaves them as they are.
        #[serde(default)]
        mode: Option<u32>,
        /// The time of change that it gets, milliseconds since 1970.
        #[serde(default)]
        mtime_ms: Option<i64>,
        /// Nanoseconds beyond them, below a million.
        #[serde(default)]
        mtime_ns: Option<u32>,
    },
    /// Send a file.
    Download {
        /// Beneath the root.
        path: String,
        /// Bytes that the hub has.
        #[serde(default)]
        offset: u64,
        /// Their BLAKE3 in hex; needed when there are any.
        #[serde(default)]
        blake3: Option<String>,
    },
    /// List what is beneath a path: `Out` carries one JSON [`Entry`] a line.
    List {
        /// Beneath the root.
        path: String,
    },
    /// Which commands and shells there are; [`Outcome::Jobs`] answers.
    Jobs,
}

/// What the worker found when it opened a stream. Fields that a kind has no use for are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Where the transfer continues, or could; of a job, how many bytes of input it has.
    #[serde(default)]
    pub offset: u64,
    /// BLAKE3 of what is there before `offset`, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// A file's length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Its permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Its time of change, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_ms: Option<i64>,
    /// Nanoseconds beyond them, below a million.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtime_ns: Option<u32>,
    /// Bytes of stdout that were given up to the quota and are not sent.
    #[serde(default)]
    pub lost_stdout: u64,
    /// Bytes of stderr that were given up to the quota and are not sent.
    #[serde(default)]
    pub lost_stderr: u64,
}

/// One file or folder of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to the listed path; empty for that path itself.
    pub path: String,
    /// Which kind it is.
    pub kind: EntryKind,
    /// A file's length.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Milliseconds since 1970.
    pub mtime_ms: i64,
    /// Nanoseconds beyond them, below a million.
    #[serde(default)]
    pub mtime_ns: u32,
    /// Why it can't be sent. It is then of the kind `other`, which a hub that does not know this
    /// leaves out, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// Why a worker can't send something that it lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// Its name is not UTF-8; the path has U+FFFD where it is not.
    Name,
    /// A folder whose content the worker can't read, and the system's words. The folder itself is
    /// listed before.
    Unreadable(String),
}

/// Kinds of directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link, which is named and never followed.
    Link,
    /// A device, socket or pipe.
    Other,
}

/// A workspace that a command runs in, which the worker holds a copy of.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirror {
    /// The workspace's id.
    pub workspace: String,
    /// Lets the worker follow this workspace.
    pub token: String,
    /// The master's socket, for a worker on the same machine; else the hub's own address serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// How long the copy may take to be up to date, and later to be written back; milliseconds.
    pub wait_ms: u64,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror")
            .field("workspace", &self.workspace)
            .finish_non_exhaustive()
    }
}

/// What a command did to the workspace that it ran in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mirrored {
    /// The master's sequence that the command saw.
    pub before: u64,
    /// The master's sequence that holds all the command wrote.
    pub after: u64,
    /// What the master refused, each with its reason; the copy keeps it as a conflict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Why the master does not have all of it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took.
    #[serde(default)]
    pub duration_ms: u64,
    /// For a command in a workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirrored: Option<Mirrored>,
}

/// Results of streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The program ended by itself.
    Exited {
        /// Its code.
        code: i32,
    },
    /// A signal ended it.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// It ran too long; its tree is dead.
    TimedOut {
        /// The limit.
        secs: u64,
    },
    /// The hub cancelled it.
    Cancelled,
    /// The transfer or listing is complete.
    Complete,
    /// What runs, and what ended unseen.
    Jobs {
        /// Newest last.
        jobs: Vec<JobInfo>,
    },
    /// It could not be done.
    Failed {
        /// What kind of failure.
        code: FailureCode,
        /// For a person.
        error: String,
    },
}

/// What a caller can decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The program or folder could not be used.
    Spawn,
    /// Beyond a limit of this worker.
    Quota,
    /// A path outside the root, or one that is not a file.
    Path,
    /// No job of that id.
    UnknownJob,
    /// Reading or writing failed.
    Io,
    /// The other side broke the rules of the stream.
    Protocol,
    /// The worker stops.
    Shutdown,
    /// Another stream attached to the same job.
    Replaced,
    /// The workspace's copy could not be brought up to date; nothing was run.
    Workspace,
}

/// One command or shell of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobInfo {
    /// Its id.
    pub id: String,
    /// `exec` or `shell`.
    pub kind: String,
    /// The shell line; empty for a shell.
    pub command: String,
    /// Seconds since it started.
    pub age_secs: u64,
    /// Whether it still runs.
    pub running: bool,
    /// Whether a hub has it attached.
    pub attached: bool,
}
