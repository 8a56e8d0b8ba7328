//! A conversation on the channel plane through a proxy that does something wrong at one frame.
//!
//! Each frame is authenticated and counted, so that whatever happens to one, the connection ends there
//! and the next one goes on: no row is lost, doubled or changed, and the message is said once.

use std::time::Duration;

use quintet_channel::client::{Client, ClientError, Identity, ServerMessage};
use serde_json::{Value, json};

use crate::harness::Machine;
use crate::proxy::{Format, Plan, Proxy};
use crate::trials::at_every_frame;

/// How long a browser waits for the answer that a bent frame keeps from coming.
const PATIENCE: Duration = Duration::from_secs(15);

/// Says something and follows the journal to the end of its turn, from where `rows` end.
async fn converses(
    url: &str,
    identity: &Identity,
    rows: &mut Vec<Value>,
) -> Result<(), ClientError> {
    let mut client = Client::resume(url, identity).await?;
    let message = json!({
        "session": 1, "content": "say one two three", "mode": "queue", "client_key": "once",
    });
    client.request("messages.send", message).await?;
    let after = rows.last().map_or(0, |row| row["seq"].as_u64().unwrap());
    let id = client
        .ask("events.follow", json!({ "after": after }))
        .await?;
    while !has_ended(rows) {
        let ServerMessage::Json(message) = client.next().await? else {
            continue;
        };
        if message["id"] == id {
            let items = message["items"].as_array().into_iter().flatten();
            rows.extend(items.filter(|item| item.get("seq").is_some()).cloned());
        }
    }
    client.close().await;
    Ok(())
}

fn has_ended(rows: &[Value]) -> bool {
    let ends = rows.iter().filter(|row| row["kind"] == "turn_ended");
    ends.count() == 2
}

async fn channel(plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    machine
        .runs(&["send", "test", "say before"])
        .await
        .succeeds();
    let to = daemon.http().trim_start_matches("http://").to_owned();
    let code = machine.pairing_code().await;
    let paired = Client::pair(&format!("ws://{to}/ws"), &code, "phone").await;
    let (direct, identity) = paired.unwrap();
    direct.close().await;

    let (proxy, at) = Proxy::tcp(to, Format::WebSocket, plan).await;
    let url = format!("ws://{at}/ws");
    let mut rows = Vec::new();
    let mut word = "whole";
    for _ in 0..3 {
        let talk = tokio::time::timeout(PATIENCE, converses(&url, &identity, &mut rows));
        if matches!(talk.await, Ok(Ok(()))) {
            break;
        }
        assert!(plan.is_some(), "a sound connection was lost");
        word = "whole, over two connections";
    }
    assert!(has_ended(&rows), "{rows:?}");
    let printed = machine.runs(&["events", "--json"]).await.succeeds();
    let printed = printed
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).unwrap() });
    for (row, printed) in rows.iter().zip(printed) {
        for key in ["seq", "at", "kind", "data"] {
            assert_eq!(row[key], printed[key]);
        }
    }
    assert!(daemon.stops().await.success());
    (word, proxy.plans())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_channel_plane_through_a_bad_proxy() {
    at_every_frame("proxy on the channel plane", channel).await;
}
