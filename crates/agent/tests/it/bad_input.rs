//! What a wrong or hostile agent sends, each with a real process.

use crate::harness::{PATIENCE, World, log_lines, logged, run};
use quintet_agent::logs::Followed;
use quintet_agent::{FailReason, FinishReason, InstanceEvent, InstanceHandle, Phase, TurnEnd};
use serde_json::json;

fn done() -> TurnEnd {
    TurnEnd::Completed {
        finish_reason: FinishReason::EndTurn,
        usage: None,
    }
}

async fn wild(world: &World) -> InstanceHandle {
    world.open(world.python("wild_agent.py", &[])).await
}

/// The message ends with `BadFrame` and a text that holds `detail`, the process is replaced, and the
/// next one works.
async fn is_a_bad_frame(text: &str, detail: &str) {
    let world = World::new();
    let agent = wild(&world).await;
    match run(&agent, text).await {
        TurnEnd::Failed {
            reason: FailReason::BadFrame,
            detail: said,
        } => {
            assert!(said.starts_with("the agent sent what is no message: "));
            assert!(said.contains(detail), "{said}");
        }
        other => panic!("{other:?}"),
    }
    assert!(
        logged(&agent, detail).await,
        "{:?}",
        log_lines(&agent).await
    );
    assert_eq!(run(&agent, "hello").await, done());
    assert_eq!(agent.status().restarts, 1);
    world.finish().await;
}

#[tokio::test]
async fn a_frame_over_the_limit() {
    is_a_bad_frame("oversize", "declares 16777217 bytes").await;
}

#[tokio::test]
async fn bytes_of_another_protocol() {
    is_a_bad_frame("http", "declares 542393671 bytes").await;
}

#[tokio::test]
async fn a_frame_that_is_not_json() {
    is_a_bad_frame("garbage", "not JSON").await;
}

#[tokio::test]
async fn json_that_is_not_an_object() {
    is_a_bad_frame("array", "not an object").await;
}

#[tokio::test]
async fn a_known_type_with_a_wrong_field() {
    is_a_bad_frame("wrongfield", "wrong field `text`").await;
}

#[tokio::test]
async fn what_came_before_a_bad_frame_is_kept_and_the_largest_frame_passes() {
    let world = World::new();
    let agent = wild(&world).await;
    run(&agent, "oversize").await;
    assert_eq!(world.observer.text(), "before");
    assert_eq!(run(&agent, "largest").await, done());
    assert!(world.observer.text().len() > 16_000_000);
    world.finish().await;
}

#[tokio::test]
async fn a_patch_that_does_not_apply_restarts_from_the_last_good_state() {
    let world = World::new();
    let agent = wild(&world).await;
    let end = run(&agent, "badpatch").await;
    assert!(
        matches!(
            &end,
            TurnEnd::Failed {
                reason: FailReason::StateRejected,
                detail,
            } if detail.starts_with("the agent's state patch was refused: ")
        ),
        "{end:?}"
    );
    assert_eq!(agent.state().await, json!({"good": 1}));
    let states: Vec<_> = world
        .observer
        .events()
        .into_iter()
        .filter(|event| {
            matches!(
                event,
                InstanceEvent::StateApplied { .. } | InstanceEvent::StateRejected { .. }
            )
        })
        .collect();
    assert!(
        matches!(
            &states[..],
            [
                InstanceEvent::StateApplied { .. },
                InstanceEvent::StateRejected { .. }
            ]
        ),
        "{states:?}"
    );
    assert_eq!(world.observer.text(), "", "output after the refused patch");
    assert_eq!(run(&agent, "state").await, done());
    assert_eq!(world.observer.text(), r#"{"good": 1}"#);
    world.finish().await;
}

#[tokio::test]
async fn complete_twice_ends_one_message_once() {
    let world = World::new();
    let agent = wild(&world).await;
    for _ in 0..5 {
        assert_eq!(run(&agent, "twice").await, done());
        assert_eq!(run(&agent, "hello").await, done());
    }
    assert_eq!(
        agent.status().restarts,
        0,
        "a second `complete` is no crash"
    );
    world.finish().await;
}

#[tokio::test]
async fn output_for_no_message_is_ignored_and_logged_once() {
    let world = World::new();
    let agent = world
        .open(world.python("wild_agent.py", &["--stray"]))
        .await;
    let (_, mut log) = agent.log().tail(0).await.unwrap();
    agent.restart("user").await;
    for expected in ["output for no message", "`complete` for no message"] {
        let Some(Followed::Line(line)) = log.next().await else {
            panic!("the log ended");
        };
        assert!(line.message.starts_with(expected), "{line:?}");
    }
    assert_eq!(run(&agent, "hello").await, done());
    assert_eq!(world.observer.text(), "echo: hello");
    world.finish().await;
}

#[tokio::test]
async fn unknown_messages_and_fields_are_ignored_and_logged_once() {
    let world = World::new();
    let agent = wild(&world).await;
    assert_eq!(run(&agent, "unknown").await, done());
    assert_eq!(world.observer.text(), "ttt");
    let notes: Vec<String> = log_lines(&agent)
        .await
        .into_iter()
        .map(|line| line.message)
        .filter(|message| message.contains("is ignored"))
        .collect();
    assert_eq!(
        notes,
        [
            "the unknown message `metrics` is ignored",
            "the unknown field `stream_update.later` is ignored"
        ]
    );
    world.finish().await;
}

#[tokio::test]
async fn a_second_connection_is_closed_and_the_first_goes_on() {
    let world = World::new();
    let agent = wild(&world).await;
    assert_eq!(run(&agent, "connect").await, done());
    assert_eq!(world.observer.text(), r#"["", "", ""]"#);
    assert!(logged(&agent, "a second connection was closed").await);
    assert_eq!(run(&agent, "hello").await, done());
    assert_eq!(agent.status().restarts, 0);
    world.finish().await;
}

#[tokio::test]
async fn a_connection_of_another_user_is_refused() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test starts a process of another user and has to run as root"
    );
    let world = World::new();
    let mut spec = world.spec(&["sleep", "3600"]);
    spec.timings.ready_timeout = PATIENCE;
    let socket = spec.instance_dir.join("ipc.sock");
    let agent = world.open(spec).await;
    agent.restart("user").await;
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    // The modes already keep others out; open them up, so that only the check is left.
    for path in socket
        .ancestors()
        .skip(1)
        .take_while(|path| path.starts_with(world.folder.path()))
    {
        open_up(path, 0o755);
    }
    open_up(&socket, 0o666);
    let dial = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\n\
        s.connect(sys.argv[1])\n\
        sys.exit(0 if s.recv(1) == b'' else 1)";
    let status = tokio::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["/usr/bin/env", "python3", "-c", dial])
        .arg(&socket)
        .env("PATH", "/usr/bin:/bin")
        .status();
    assert!(
        status.await.unwrap().success(),
        "the connection was not closed"
    );
    assert!(logged(&agent, "another user was refused").await);
    assert_eq!(agent.status().phase, Phase::Initializing);
    world.finish().await;
}

fn open_up(path: &std::path::Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
