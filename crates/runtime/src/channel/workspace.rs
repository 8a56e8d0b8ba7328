//! Files of a session at any version, for a v2 device.

use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::Request;

use super::ops::Answer;
use crate::daemon::Runtime;

/// The requests of this family. None is served before workspaces belong to sessions.
const KNOWN: [&str; 6] = [
    "workspace.tree",
    "workspace.file",
    "workspace.log",
    "workspace.diff",
    "workspace.restore",
    "workspace.download",
];

#[expect(clippy::unused_async, reason = "as every other family of requests")]
pub(super) async fn serve(_runtime: &Runtime, request: &Request) -> Answer {
    if !KNOWN.contains(&request.op.as_str()) {
        let text = format!("this daemon does not know {:?}", request.op);
        return Err(OpError::new("unknown_op", text));
    }
    Err(OpError::new(
        "not_available",
        "sessions of this daemon have no workspace history yet",
    ))
}
