//! JSON text to messages, in the names of either dialect.
//!
//! Unknown fields are ignored. Everything else that can be wrong with a text
//! frame is a [`ParseError`] that carries the id of the message where it had
//! one, so that it can be answered instead of met with silence.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json::base64_literal;
use super::message::{
    Dialect, ErrorMessage, HubToWorker, IdKey, Load, Metadata, SnapshotInfo, SnapshotReply,
    SnapshotRequest, WorkerToHub,
};

/// A parsed message and the dialect it gave away, if it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incoming<T> {
    /// The message.
    pub message: T,
    /// Whose names it used. A message with both ids counts as the seed's.
    pub dialect: Option<Dialect>,
}

/// Why a text frame is not a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault}")]
pub struct ParseError {
    /// What is wrong.
    pub fault: Fault,
    /// The message's type, where it could be read.
    pub kind: Option<String>,
    /// The message's id and the key it stood under, where it could be read.
    pub id: Option<(IdKey, String)>,
}

/// What is wrong with a text frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not JSON, not an object, no `type`, or a field of the wrong type.
    #[error("not a message: {0}")]
    Malformed(String),
    /// A type that this end does not take.
    #[error("unknown message type {0:?}")]
    UnknownType(String),
    /// A field the message must have.
    #[error("{kind} lacks {field}")]
    Missing {
        /// The message.
        kind: String,
        /// The field.
        field: &'static str,
    },
    /// A payload that is not base64 in the standard alphabet with padding.
    #[error("data is not base64")]
    NotBase64,
}

impl ParseError {
    /// The answer that repeats the id under its key; nothing is sent for a message without one.
    pub fn answer(&self) -> Option<ErrorMessage> {
        self.id.as_ref().map(|id| ErrorMessage {
            message: self.to_string(),
            recoverable: true,
            id: Some(id.clone()),
        })
    }

    /// Whether it is of a type that this end does not take, and so no bad answer to anything.
    pub fn is_unknown(&self) -> bool {
        matches!(self.fault, Fault::UnknownType(_))
    }

    /// What a log line about this kind of fault is keyed by: each kind is logged once.
    pub fn log_key(&self) -> String {
        match &self.fault {
            // The type is the peer's text, and must not grow the table.
            Fault::UnknownType(kind) => {
                format!("type {}", kind.chars().take(40).collect::<String>())
            }
            Fault::Malformed(_) => "malformed".to_owned(),
            Fault::Missing { kind, field } => format!("{kind} without {field}"),
            Fault::NotBase64 => "base64".to_owned(),
        }
    }
}

/// Parses what the hub sent.
pub fn hub_to_worker(text: &str) -> Result<Incoming<HubToWorker>, ParseError> {
    let raw = Raw::read(text)?;
    let fields = Fields { raw: &raw, text };
    let kind = raw.kind.as_str();
    let (message, dialect) = match kind {
        "register_ack" => (
            HubToWorker::RegisterAck {
                success: fields.need("success", raw.success)?,
                message: raw.message.clone().unwrap_or_default(),
            },
            None,
        ),
        "pong" => (HubToWorker::Pong, Some(Dialect::Seed)),
        "heartbeat_ack" => (
            HubToWorker::HeartbeatAck {
                success: fields.need("success", raw.success)?,
                reason: raw.reason.clone().unwrap_or_default(),
            },
            Some(Dialect::Released),
        ),
        "execute_command" => {
            let (id, dialect) = fields.id(IdKey::Command)?;
            (
                HubToWorker::ExecuteCommand {
                    id,
                    command: fields.need("command", raw.command.clone())?,
                    timeout_secs: raw.timeout_secs,
                    env: raw.env.clone().unwrap_or_default(),
                    cwd: raw.cwd.clone(),
                },
                Some(dialect),
            )
        }
        "start_shell" | "new_session" => (
            HubToWorker::StartShell {
                id: fields.session()?,
                rows: fields.need("rows", raw.rows)?,
                cols: fields.need("cols", raw.cols)?,
                term: raw
                    .term
                    .clone()
                    .unwrap_or_else(|| super::DEFAULT_TERM.to_owned()),
            },
            Some(shell_dialect(kind)),
        ),
        "shell_input" | "session_input" => (
            HubToWorker::ShellInput {
                id: fields.session()?,
                data: fields.data()?,
            },
            Some(shell_dialect(kind)),
        ),
        "shell_resize" | "session_resize" => (
            HubToWorker::ShellResize {
                id: fields.session()?,
                rows: fields.need("rows", raw.rows)?,
                cols: fields.need("cols", raw.cols)?,
            },
            Some(shell_dialect(kind)),
        ),
        "session_close" => (
            HubToWorker::ShellClose {
                id: fields.session()?,
            },
            Some(Dialect::Released),
        ),
        "file_upload_start" => {
            let (id, dialect) = fields.id(IdKey::Transfer)?;
            (
                HubToWorker::FileUploadStart {
                    id,
                    path: fields.need("path", raw.path.clone())?,
                    total_size: fields.need("total_size", raw.total_size)?,
                    mode: raw.mode,
                },
                Some(dialect),
            )
        }
        "file_upload_chunk" => {
            let (id, dialect) = fields.id(IdKey::Transfer)?;
            (
                HubToWorker::FileUploadChunk {
                    id,
                    data: fields.data()?,
                    offset: fields.need("offset", raw.offset)?,
                },
                Some(dialect),
            )
        }
        "file_download_start" => {
            let (id, dialect) = fields.id(IdKey::Transfer)?;
            (
                HubToWorker::FileDownloadStart {
                    id,
                    path: fields.need("path", raw.path.clone())?,
                },
                Some(dialect),
            )
        }
        "create_snapshot" => fields.snapshot(SnapshotRequest::Create {
            workspace: fields.need("workspace", raw.workspace.clone())?,
            message: raw.message.clone(),
            tags: raw.tags.clone(),
        })?,
        "restore_snapshot" => fields.snapshot(SnapshotRequest::Restore {
            snapshot_id: fields.need("snapshot_id", raw.snapshot_id.clone())?,
            destination: fields.need("destination", raw.destination.clone())?,
        })?,
        "list_snapshots" => fields.snapshot(SnapshotRequest::List {
            tags: raw.tags.clone(),
        })?,
        "find_snapshot_by_tag" => fields.snapshot(SnapshotRequest::FindByTag {
            tag: fields.need("tag", raw.tag.clone())?,
        })?,
        "get_snapshot" => fields.snapshot(SnapshotRequest::Get {
            snapshot_id: fields.need("snapshot_id", raw.snapshot_id.clone())?,
        })?,
        "delete_snapshot" => fields.snapshot(SnapshotRequest::Delete {
            snapshot_id: fields.need("snapshot_id", raw.snapshot_id.clone())?,
        })?,
        "error" => (HubToWorker::Error(fields.error()), None),
        _ => return Err(fields.fault(Fault::UnknownType(raw.kind.clone()))),
    };
    Ok(Incoming { message, dialect })
}

/// Parses what a worker sent.
pub fn worker_to_hub(text: &str) -> Result<Incoming<WorkerToHub>, ParseError> {
    let raw = Raw::read(text)?;
    let fields = Fields { raw: &raw, text };
    let kind = raw.kind.as_str();
    let (message, dialect) = match kind {
        "register" => (
            WorkerToHub::Register {
                daemon_id: fields.need("daemon_id", raw.daemon_id.clone())?,
                metadata: fields.need("metadata", raw.metadata.clone())?,
            },
            None,
        ),
        "heartbeat" => (WorkerToHub::Heartbeat { load: raw.load }, None),
        "command_output" => {
            let (id, dialect) = fields.id(IdKey::Command)?;
            (
                WorkerToHub::CommandOutput {
                    id,
                    stdout: fields.need("stdout", raw.stdout.clone())?,
                    stderr: fields.need("stderr", raw.stderr.clone())?,
                    exit_code: fields.need("exit_code", raw.exit_code)?,
                    duration_ms: fields.need("duration_ms", raw.duration_ms)?,
                },
                Some(dialect),
            )
        }
        "command_error" => {
            let (id, dialect) = fields.id(IdKey::Command)?;
            (
                WorkerToHub::CommandError {
                    id,
                    error: fields.need("error", raw.error.clone())?,
                },
                Some(dialect),
            )
        }
        "shell_started" | "session_started" => (
            WorkerToHub::ShellStarted {
                id: fields.session()?,
                success: fields.need("success", raw.success)?,
                error: raw.error.clone(),
            },
            Some(shell_dialect(kind)),
        ),
        "shell_output" | "session_output" => (
            WorkerToHub::ShellOutput {
                id: fields.session()?,
                data: fields.data()?,
            },
            Some(shell_dialect(kind)),
        ),
        "shell_exit" | "session_exit" => (
            WorkerToHub::ShellExit {
                id: fields.session()?,
                exit_code: fields.need("exit_code", raw.exit_code)?,
            },
            Some(shell_dialect(kind)),
        ),
        "file_upload_complete" => {
            let (id, dialect) = fields.id(IdKey::Transfer)?;
            (
                WorkerToHub::FileUploadComplete {
                    id,
                    success: fields.need("success", raw.success)?,
                    error: raw.error.clone(),
                },
                Some(dialect),
            )
        }
        "file_download_chunk" => {
            let (id, dialect) = fields.id(IdKey::Transfer)?;
            (
                WorkerToHub::FileDownloadChunk {
                    id,
                    data: fields.data()?,
                    offset: fields.need("offset", raw.offset)?,
                    is_last: fields.need("is_last", raw.is_last)?,
                },
                Some(dialect),
            )
        }
        "file_download_error" => {
            let (id, dialect) = fields.id(IdKey::Transfer)?;
            (
                WorkerToHub::FileDownloadError {
                    id,
                    error: fields.need("error", raw.error.clone())?,
                },
                Some(dialect),
            )
        }
        "snapshot_created" => fields.snapshot_reply(SnapshotReply::Created {
            snapshot_id: fields.need("snapshot_id", raw.snapshot_id.clone())?,
            file_count: fields.need("file_count", raw.file_count)?,
            total_size: fields
                .need("total_size", raw.total_size)?
                .try_into()
                .unwrap_or(0),
        })?,
        "snapshot_restored" => fields.snapshot_reply(SnapshotReply::Restored {
            file_count: fields.need("file_count", raw.file_count)?,
        })?,
        "snapshot_list" => fields.snapshot_reply(SnapshotReply::List(
            fields.need("snapshots", raw.snapshots.clone())?,
        ))?,
        "snapshot_details" => {
            fields.snapshot_reply(SnapshotReply::Details(raw.snapshot.clone()))?
        }
        "snapshot_deleted" => fields.snapshot_reply(SnapshotReply::Deleted)?,
        "snapshot_error" => fields.snapshot_reply(SnapshotReply::Error(
            fields.need("error", raw.error.clone())?,
        ))?,
        "error" => (WorkerToHub::Error(fields.error()), None),
        _ => return Err(fields.fault(Fault::UnknownType(raw.kind.clone()))),
    };
    Ok(Incoming { message, dialect })
}

fn shell_dialect(kind: &str) -> Dialect {
    if kind.starts_with("shell_") || kind == "start_shell" {
        Dialect::Seed
    } else {
        Dialect::Released
    }
}

/// Every field of every message. `data` stays as it stands on the wire: it is the only one that
/// is ever large, and it is decoded without being copied first.
#[derive(Deserialize)]
struct Raw<'a> {
    #[serde(rename = "type")]
    kind: String,
    command_id: Option<String>,
    transfer_id: Option<String>,
    request_id: Option<String>,
    session_id: Option<String>,
    daemon_id: Option<String>,
    metadata: Option<Metadata>,
    load: Option<Load>,
    success: Option<bool>,
    message: Option<String>,
    reason: Option<String>,
    recoverable: Option<bool>,
    error: Option<String>,
    command: Option<String>,
    timeout_secs: Option<u64>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    stdout: Option<String>,
    stderr: Option<String>,
    exit_code: Option<i32>,
    duration_ms: Option<u64>,
    rows: Option<u16>,
    cols: Option<u16>,
    term: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    path: Option<String>,
    total_size: Option<i64>,
    mode: Option<u32>,
    offset: Option<i64>,
    is_last: Option<bool>,
    workspace: Option<String>,
    tags: Option<Vec<String>>,
    tag: Option<String>,
    snapshot_id: Option<String>,
    destination: Option<String>,
    file_count: Option<u64>,
    snapshots: Option<Vec<SnapshotInfo>>,
    snapshot: Option<SnapshotInfo>,
}

impl<'a> Raw<'a> {
    fn read(text: &'a str) -> Result<Self, ParseError> {
        serde_json::from_str(text).map_err(|error| {
            let (kind, id) = identify(text);
            ParseError {
                fault: Fault::Malformed(error.to_string()),
                kind,
                id,
            }
        })
    }
}

/// The type and the id of a message whose other fields could not be read.
fn identify(text: &str) -> (Option<String>, Option<(IdKey, String)>) {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else {
        return (None, None);
    };
    let string = |key: &str| {
        value
            .get(key)
            .and_then(serde_json::Value::as_str)
            .map(str::to_owned)
    };
    let id = [
        IdKey::Command,
        IdKey::Transfer,
        IdKey::Request,
        IdKey::Session,
    ]
    .into_iter()
    .find_map(|key| string(key.name()).map(|id| (key, id)));
    (string("type"), id)
}

struct Fields<'a> {
    raw: &'a Raw<'a>,
    text: &'a str,
}

impl Fields<'_> {
    fn fault(&self, fault: Fault) -> ParseError {
        let (kind, id) = identify(self.text);
        ParseError { fault, kind, id }
    }

    fn need<T>(&self, field: &'static str, value: Option<T>) -> Result<T, ParseError> {
        value.ok_or_else(|| {
            self.fault(Fault::Missing {
                kind: self.raw.kind.clone(),
                field,
            })
        })
    }

    fn id(&self, seed: IdKey) -> Result<(String, Dialect), ParseError> {
        let seeds = match seed {
            IdKey::Command => &self.raw.command_id,
            _ => &self.raw.transfer_id,
        };
        match (seeds, &self.raw.request_id) {
            (Some(id), _) => Ok((id.clone(), Dialect::Seed)),
            (None, Some(id)) => Ok((id.clone(), Dialect::Released)),
            (None, None) => Err(self.fault(Fault::Missing {
                kind: self.raw.kind.clone(),
                field: seed.name(),
            })),
        }
    }

    fn session(&self) -> Result<String, ParseError> {
        self.need("session_id", self.raw.session_id.clone())
    }

    fn data(&self) -> Result<Bytes, ParseError> {
        let literal = self.need("data", self.raw.data)?;
        base64_literal(literal.get()).ok_or_else(|| self.fault(Fault::NotBase64))
    }

    fn snapshot(
        &self,
        request: SnapshotRequest,
    ) -> Result<(HubToWorker, Option<Dialect>), ParseError> {
        let id = self.need("request_id", self.raw.request_id.clone())?;
        Ok((
            HubToWorker::Snapshot { id, request },
            Some(Dialect::Released),
        ))
    }

    fn snapshot_reply(
        &self,
        reply: SnapshotReply,
    ) -> Result<(WorkerToHub, Option<Dialect>), ParseError> {
        let id = self.need("request_id", self.raw.request_id.clone())?;
        Ok((WorkerToHub::Snapshot { id, reply }, Some(Dialect::Released)))
    }

    fn error(&self) -> ErrorMessage {
        ErrorMessage {
            message: self.raw.message.clone().unwrap_or_default(),
            recoverable: self.raw.recoverable.unwrap_or(false),
            id: identify(self.text).1,
        }
    }
}
