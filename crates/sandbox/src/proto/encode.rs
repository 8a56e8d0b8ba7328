//! Messages to JSON text, in the names of a dialect.

use bytes::Bytes;

use super::json::Object;
use super::message::{
    Dialect, ErrorMessage, HubToWorker, IdKey, SnapshotReply, SnapshotRequest, WorkerToHub,
};

/// Which id keys the hub writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// One dialect's.
    Only(Dialect),
    /// Both ids in one object: every peer ignores the one it does not know. Shells, whose message
    /// types differ, use the seed's names.
    Both,
}

impl Names {
    const fn shells(self) -> Dialect {
        match self {
            Self::Only(dialect) => dialect,
            Self::Both => Dialect::Seed,
        }
    }

    fn id(self, object: Object, seed: IdKey, id: &str) -> Object {
        match self {
            Self::Only(Dialect::Seed) => object.field(seed.name(), id),
            Self::Only(Dialect::Released) => object.field(IdKey::Request.name(), id),
            Self::Both => object
                .field(seed.name(), id)
                .field(IdKey::Request.name(), id),
        }
    }
}

impl HubToWorker {
    /// The message as one text frame.
    pub fn encode(&self, names: Names) -> Bytes {
        let shell = |seed: &'static str, released: &'static str| match names.shells() {
            Dialect::Seed => seed,
            Dialect::Released => released,
        };
        match self {
            Self::RegisterAck { success, message } => Object::new("register_ack")
                .field("success", success)
                .field("message", message)
                .finish(),
            Self::Pong => Object::new("pong").finish(),
            Self::HeartbeatAck { success, reason } => Object::new("heartbeat_ack")
                .field("success", success)
                .field("reason", reason)
                .finish(),
            Self::ExecuteCommand {
                id,
                command,
                timeout_secs,
                env,
                cwd,
            } => names
                .id(Object::new("execute_command"), IdKey::Command, id)
                .field("command", command)
                .field(
                    "timeout_secs",
                    &timeout_secs.unwrap_or(super::DEFAULT_TIMEOUT_SECS),
                )
                .field("env", env)
                .field("cwd", cwd)
                .finish(),
            Self::StartShell {
                id,
                rows,
                cols,
                term,
            } => Object::new(shell("start_shell", "new_session"))
                .field("session_id", id)
                .field("rows", rows)
                .field("cols", cols)
                .field("term", term)
                .finish(),
            Self::ShellInput { id, data } => {
                Object::carrying(shell("shell_input", "session_input"), data.len())
                    .field("session_id", id)
                    .base64("data", data)
                    .finish()
            }
            Self::ShellResize { id, rows, cols } => {
                Object::new(shell("shell_resize", "session_resize"))
                    .field("session_id", id)
                    .field("rows", rows)
                    .field("cols", cols)
                    .finish()
            }
            // The seed has no such message; its workers ignore the unknown type.
            Self::ShellClose { id } => Object::new("session_close")
                .field("session_id", id)
                .finish(),
            Self::FileUploadStart {
                id,
                path,
                total_size,
                mode,
            } => names
                .id(Object::new("file_upload_start"), IdKey::Transfer, id)
                .field("path", path)
                .field("total_size", total_size)
                .field("mode", mode)
                .finish(),
            Self::FileUploadChunk { id, data, offset } => names
                .id(
                    Object::carrying("file_upload_chunk", data.len()),
                    IdKey::Transfer,
                    id,
                )
                .base64("data", data)
                .field("offset", offset)
                .finish(),
            Self::FileDownloadStart { id, path } => names
                .id(Object::new("file_download_start"), IdKey::Transfer, id)
                .field("path", path)
                .finish(),
            Self::Snapshot { id, request } => encode_snapshot_request(id, request),
            Self::Error(error) => encode_error(error),
        }
    }
}

impl WorkerToHub {
    /// The message as one text frame.
    pub fn encode(&self, dialect: Dialect) -> Bytes {
        let names = Names::Only(dialect);
        let shell = |seed: &'static str, released: &'static str| match dialect {
            Dialect::Seed => seed,
            Dialect::Released => released,
        };
        match self {
            Self::Register {
                daemon_id,
                metadata,
            } => Object::new("register")
                .field("daemon_id", daemon_id)
                .field("metadata", metadata)
                .finish(),
            Self::Heartbeat { load: None } => Object::new("heartbeat").finish(),
            Self::Heartbeat { load } => Object::new("heartbeat").field("load", load).finish(),
            Self::CommandOutput {
                id,
                stdout,
                stderr,
                exit_code,
                duration_ms,
            } => names
                .id(Object::new("command_output"), IdKey::Command, id)
                .field("stdout", stdout)
                .field("stderr", stderr)
                .field("exit_code", exit_code)
                .field("duration_ms", duration_ms)
                .finish(),
            Self::CommandError { id, error } => names
                .id(Object::new("command_error"), IdKey::Command, id)
                .field("error", error)
                .finish(),
            Self::ShellStarted { id, success, error } => {
                Object::new(shell("shell_started", "session_started"))
                    .field("session_id", id)
                    .field("success", success)
                    .field("error", error)
                    .finish()
            }
            Self::ShellOutput { id, data } => {
                Object::carrying(shell("shell_output", "session_output"), data.len())
                    .field("session_id", id)
                    .base64("data", data)
                    .finish()
            }
            Self::ShellExit { id, exit_code } => Object::new(shell("shell_exit", "session_exit"))
                .field("session_id", id)
                .field("exit_code", exit_code)
                .finish(),
            Self::FileUploadComplete { id, success, error } => names
                .id(Object::new("file_upload_complete"), IdKey::Transfer, id)
                .field("success", success)
                .field("error", error)
                .finish(),
            Self::FileDownloadChunk {
                id,
                data,
                offset,
                is_last,
            } => names
                .id(
                    Object::carrying("file_download_chunk", data.len()),
                    IdKey::Transfer,
                    id,
                )
                .base64("data", data)
                .field("offset", offset)
                .field("is_last", is_last)
                .finish(),
            Self::FileDownloadError { id, error } => names
                .id(Object::new("file_download_error"), IdKey::Transfer, id)
                .field("error", error)
                .finish(),
            Self::Snapshot { id, reply } => encode_snapshot_reply(id, reply),
            Self::Error(error) => encode_error(error),
        }
    }
}

fn encode_snapshot_request(id: &str, request: &SnapshotRequest) -> Bytes {
    let start = |kind| Object::new(kind).field("request_id", id);
    match request {
        SnapshotRequest::Create {
            workspace,
            message,
            tags,
        } => start("create_snapshot")
            .field("workspace", workspace)
            .field("message", message)
            .field("tags", tags)
            .finish(),
        SnapshotRequest::Restore {
            snapshot_id,
            destination,
        } => start("restore_snapshot")
            .field("snapshot_id", snapshot_id)
            .field("destination", destination)
            .finish(),
        SnapshotRequest::List { tags } => start("list_snapshots").field("tags", tags).finish(),
        SnapshotRequest::FindByTag { tag } => {
            start("find_snapshot_by_tag").field("tag", tag).finish()
        }
        SnapshotRequest::Get { snapshot_id } => start("get_snapshot")
            .field("snapshot_id", snapshot_id)
            .finish(),
        SnapshotRequest::Delete { snapshot_id } => start("delete_snapshot")
            .field("snapshot_id", snapshot_id)
            .finish(),
    }
}

fn encode_snapshot_reply(id: &str, reply: &SnapshotReply) -> Bytes {
    let start = |kind| Object::new(kind).field("request_id", id);
    match reply {
        SnapshotReply::Created {
            snapshot_id,
            file_count,
            total_size,
        } => start("snapshot_created")
            .field("snapshot_id", snapshot_id)
            .field("file_count", file_count)
            .field("total_size", total_size)
            .finish(),
        SnapshotReply::Restored { file_count } => start("snapshot_restored")
            .field("file_count", file_count)
            .finish(),
        SnapshotReply::List(snapshots) => start("snapshot_list")
            .field("snapshots", snapshots)
            .finish(),
        SnapshotReply::Details(snapshot) => start("snapshot_details")
            .field("snapshot", snapshot)
            .finish(),
        SnapshotReply::Deleted => start("snapshot_deleted").finish(),
        SnapshotReply::Error(error) => start("snapshot_error").field("error", error).finish(),
    }
}

fn encode_error(error: &ErrorMessage) -> Bytes {
    let object = Object::new("error")
        .field("message", &error.message)
        .field("recoverable", &error.recoverable);
    match &error.id {
        Some((key, id)) => object.field(key.name(), id).finish(),
        None => object.finish(),
    }
}
