//! A turn on the agent plane through a proxy that does something wrong at one frame.
//!
//! An agent that is cut off has failed: its turn ends, once and with a sentence, and the next message
//! finds the agent again. A connection that is only slow loses nothing.

use std::path::Path;
use std::time::Duration;

use crate::harness::Machine;
use crate::proxy::{Format, Plan, Proxy, Wrong};
use crate::trials::at_every_frame;

/// How long an agent is waited for that may have been told nothing.
const PATIENCE: Duration = Duration::from_secs(20);

async fn agent(plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::fresh();
    let (at, to) = (
        machine.path().join("proxy.sock"),
        machine.path().join("agent.sock"),
    );
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/test_agent.py");
    let script = format!(
        "ln -sfn \"$QUINTET_IPC_SOCKET\" {to:?}; QUINTET_IPC_SOCKET={at:?} exec python3 {program:?}"
    );
    machine.configure(&format!(
        "[agents.test]\ncommand = [\"sh\", \"-c\", {script:?}]\n"
    ));
    let daemon = machine.up_with(&["--no-worker"]).await;
    let proxy = Proxy::unix(&at, to, Format::LittleEndian, plan);
    let word = says(&machine, plan, "one two three").await;
    let plans = proxy.plans();
    assert_eq!(says(&machine, None, "still here").await, "whole");
    let rows = machine.runs(&["events", "--json"]).await.succeeds();
    let count = |kind: &str| rows.matches(&format!("\"kind\":\"{kind}\"")).count();
    assert_eq!(count("turn_ended"), count("turn_started"), "{rows}");
    assert!(daemon.stops().await.success());
    (word, plans)
}

/// Has the agent say something; what came of it.
async fn says(machine: &Machine, plan: Option<Plan>, text: &str) -> &'static str {
    let send = machine.begins(&["send", "test", &format!("say {text}")]);
    match tokio::time::timeout(PATIENCE, send.ends()).await {
        Ok(said) if said.code == Some(0) && said.stdout.trim_end() == text => "whole",
        Ok(said) if said.code == Some(0) => {
            let bent = plan.map(|plan| plan.wrong);
            let bent = matches!(bent, Some(Wrong::Duplicate | Wrong::Flip));
            assert!(bent, "{said:?}");
            "taken"
        }
        Ok(said) => {
            let cut = plan.is_some_and(|plan| plan.wrong != Wrong::Delay);
            assert!(cut && said.stderr.contains("error: "), "{said:?}");
            assert!(!said.stderr.contains("panicked"), "{said:?}");
            "said what is wrong"
        }
        Err(_) => {
            assert!(plan.is_some_and(|plan| plan.wrong == Wrong::Flip));
            machine.runs(&["cancel", "1"]).await.succeeds();
            "not heard, and cancelled"
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_plane_through_a_bad_proxy() {
    at_every_frame("proxy on the agent plane", agent).await;
}
