//! The protocol of the workspace plane, without I/O.
//!
//! **Participants.** A *master* owns a directory and its history, and listens.
//! *Replicas* own copies of that directory, dial the master, follow its changes
//! and write their own back.
//!
//! **Bytes.** A frame is a u32 little-endian payload length and a payload of at
//! most 100 MiB; the payload is one [`WireMessage`], in the fixed-width encoding
//! of bincode 1.x. Trailing bytes, unknown tags and impossible lengths close the
//! connection.
//!
//! **Flow, master to replica.** A replica's first message is a `CatchupRequest`;
//! the master announces the newest change of every path since then, and a
//! `Heartbeat` ends it. From there on every change is announced, without holes.
//! A hole, or a heartbeat ahead of what was announced, is answered with another
//! `CatchupRequest`. A replica that is older than the history is told
//! `FullResyncRequired`; it asks for the whole tree and removes what was not
//! mentioned.
//!
//! **Flow, replica to master.** Local changes are journalled with a gapless
//! number and the sequence of their base, and sent in `WriteBack` batches. Each
//! entry is taken or refused on its own ([`ledger::Ledger::decide`]); the answer
//! is remembered with the entry's number, so that an entry sent twice is applied
//! once. Refused bytes stay at the replica as a conflict version.
//!
//! **Content** under 4,096 bytes travels with its announcement. Otherwise the
//! side that needs it asks by hash, and gets the content or, from 1 MiB on, a
//! list of chunks. Nothing unverified is passed on ([`fetch`]).
//!
//! **Barrier.** The master flushes its watcher and answers after every
//! notification up to that point; the replica has passed when all of them are in
//! place.
//!
//! **Policy for unknown messages:** there are none; a tag outside the twelve is
//! malformed and closes the connection, as does a message in the wrong
//! direction. Answers that nobody waits for (a content fetched for a path that
//! changed again) are dropped.
//!
//! **Goals.** No byte of a person's file is lost; two trees that are quiet are
//! equal; resuming after any cut needs no more than what changed. **Non-goals:**
//! merging the contents of files, owners and extended attributes, hard links.

pub mod fetch;
pub mod ledger;
pub mod manifest;
pub mod master;
pub mod message;
pub mod node;
pub mod path;
pub mod replica;

pub use ledger::{Author, Change, ChangeKind, CheckedEntry, Decision, Ledger, Operation, Step};
pub use message::{FORMAT, MAX_PAYLOAD, WireMessage, WriteBackEntry, WriteOperation};
pub use node::{ContentHash, Kind, Node};
pub use path::{PathError, WorkspacePath};
