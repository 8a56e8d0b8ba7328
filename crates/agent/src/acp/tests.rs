//! A bridge whose agent, or whose coordinator, does not do its part.

use std::time::Duration;

use quintet_framing::FrameWriter;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};

use super::*;

/// Only a hang takes as long.
const DEADLINE: Duration = Duration::from_secs(60);

const QUICK: Patience = Patience {
    open: Duration::from_millis(50),
    stop: Duration::from_millis(50),
};

/// Runs a bridge to `command`, with what `coordinate` does on the other side.
async fn bridged(
    command: &[&str],
    patience: Patience,
    coordinate: impl AsyncFnOnce(UnixStream),
) -> Result<(), AcpError> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("ipc.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let env = AgentEnv {
        socket,
        agent_id: "agent_1".into(),
        workspace: folder.path().to_owned(),
    };
    let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    let coordinator = async {
        let (stream, _) = listener.accept().await.unwrap();
        coordinate(stream).await;
        std::future::pending::<()>().await;
    };
    let both = async {
        tokio::select! {
            outcome = bridge(env, &command, patience) => outcome,
            () = coordinator => unreachable!("it never ends"),
        }
    };
    tokio::time::timeout(DEADLINE, both).await.unwrap()
}

/// Sends `init` and keeps the connection.
async fn greet(stream: UnixStream) {
    let mut writer = FrameWriter::new(stream, FORMAT);
    let init = json!({"type": "init", "agent_id": "agent_1", "agent_type": "acp", "workspace": "/",
                      "config": {}, "state": null});
    writer.send(init.to_string().into()).await.unwrap();
    std::future::pending::<()>().await;
}

fn shell(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

#[tokio::test]
async fn an_agent_that_never_answers_is_given_up_on() {
    let outcome = bridged(&shell("exec sleep 600"), QUICK, greet).await;
    assert!(matches!(outcome, Err(AcpError::NotOpened { patience }) if patience == QUICK.open));
}

#[tokio::test]
async fn an_agent_that_asks_and_does_not_read_is_ended() {
    let flood = r#"exec yes '{"jsonrpc":"2.0","id":1,"method":"terminal/create","params":{}}'"#;
    let outcome = bridged(&shell(flood), PATIENCE, greet).await;
    assert!(matches!(outcome, Err(AcpError::AgentStuck)), "{outcome:?}");
}

#[tokio::test]
async fn a_line_without_end_is_not_kept() {
    let outcome = bridged(&shell("exec tr '\\0' x < /dev/zero"), PATIENCE, greet).await;
    assert!(
        matches!(outcome, Err(AcpError::LineTooLong { limit: LINE_LIMIT })),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn an_agent_that_ends_says_how() {
    let outcome = bridged(&shell("echo noise; exit 7"), PATIENCE, greet).await;
    let Err(AcpError::AgentGone {
        status: Some(status),
    }) = outcome
    else {
        panic!("{outcome:?}");
    };
    assert_eq!(status.code(), Some(7));
}

#[tokio::test]
async fn a_coordinator_that_goes_or_talks_nonsense_ends_the_bridge() {
    // It takes what it is told and keeps its stdout open, so that only the coordinator can end this.
    let agent = shell("while read -r line; do :; done");
    let outcome = bridged(&agent, PATIENCE, async |stream| drop(stream)).await;
    assert!(
        matches!(outcome, Err(AcpError::CoordinatorGone)),
        "{outcome:?}"
    );
    for nonsense in ["[]", "{}", "nonsense", r#"{"type":"steer"}"#] {
        let outcome = bridged(&agent, PATIENCE, async |stream| {
            let mut writer = FrameWriter::new(stream, FORMAT);
            writer.send(nonsense.into()).await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        assert!(
            matches!(outcome, Err(AcpError::Coordinator { .. })),
            "{nonsense}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_started_is_named() {
    let outcome = bridged(&[], PATIENCE, greet).await;
    assert!(matches!(outcome, Err(AcpError::NoCommand)), "{outcome:?}");
    let outcome = bridged(&["/nowhere/agent"], PATIENCE, greet).await;
    assert!(
        matches!(&outcome, Err(AcpError::Start { program, .. }) if program == "/nowhere/agent"),
        "{outcome:?}"
    );
}
