//! A conversation on the channel plane's version 1 through a proxy that does something wrong at one
//! frame.
//!
//! A message has its nonce, so that it can be sent again and is said once all the same. What the
//! daemon sends is neither counted nor acknowledged: an answer that was on its way when the connection
//! ended is not sent twice, and is in the journal.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use quintet_channel::proto::keys::{KeyPair, Secret32};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::harness::Machine;
use crate::proxy::{Format, Plan, Proxy, Wrong};
use crate::trials::at_every_frame;
use crate::v1::{Paired, pairing_request};

/// How long a browser waits for the answer that a bent frame keeps from coming.
const PATIENCE: Duration = Duration::from_secs(15);

/// One connection of a v1 client, which may end at any frame.
pub(crate) struct Page(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Page {
    pub(crate) async fn opens(url: &str) -> Option<Self> {
        Some(Self(tokio_tungstenite::connect_async(url).await.ok()?.0))
    }

    pub(crate) async fn sends(&mut self, envelope: &Value) -> Option<()> {
        let message = Message::Text(envelope.to_string().into());
        self.0.send(message).await.ok()
    }

    /// The next event.
    pub(crate) async fn hears(&mut self) -> Option<Value> {
        loop {
            match self.0.next().await?.ok()? {
                Message::Text(text) => return serde_json::from_str(&text).ok(),
                Message::Ping(_) | Message::Pong(_) => {}
                _ => return None,
            }
        }
    }

    pub(crate) async fn pairs(&mut self, code: &str) -> Option<Paired> {
        let keys = KeyPair::new(&Secret32::new([7; 32]));
        self.sends(&pairing_request(code, &keys)).await?;
        Paired::by(&self.hears().await?, &keys)
    }

    pub(crate) async fn leaves(mut self) {
        // The other side may be gone.
        let _ = self.0.close(None).await;
    }
}

/// A message is sent again with the nonce that it had, or, when it was refused, with another.
pub(crate) fn nonce(message: u8, attempt: u8) -> [u8; 12] {
    let mut nonce = [message; 12];
    nonce[0] = attempt;
    nonce
}

const SAID: &str = "one two three";

/// What a person's browser has done and seen so far.
#[derive(Debug, Default)]
struct Talk {
    connections: u8,
    /// How often the message was refused, which is an answer.
    refused: u8,
    /// How often its answer came to its end.
    answers: usize,
}

impl Talk {
    /// Says the message, and when it is answered or known to be heard, something behind it: what
    /// comes for the first comes before the answer to the second.
    async fn goes_on(&mut self, url: &str, paired: &Paired) -> Option<()> {
        self.connections += 1;
        let mut page = Page::opens(url).await?;
        let message = format!("say {SAID}");
        let message = paired.sealed(nonce(1, self.refused), &message, Some("test"));
        page.sends(&message).await?;
        loop {
            match hears(&mut page, paired).await? {
                Heard::Answer(text) if text == SAID => {
                    self.answers += 1;
                    break;
                }
                // Over an earlier connection, or just now and twice.
                Heard::Refusal(code) if code == "e2e_replayed" => break,
                Heard::Refusal(_) => {
                    self.refused += 1;
                    return None;
                }
                // What was said behind it before, and missed.
                Heard::Answer(_) | Heard::Chunk => {}
            }
        }
        let behind = format!("behind {}", self.connections);
        let message = format!("say {behind}");
        let message = paired.sealed(nonce(2, self.connections), &message, Some("test"));
        page.sends(&message).await?;
        loop {
            match hears(&mut page, paired).await? {
                Heard::Answer(text) if text == SAID => self.answers += 1,
                Heard::Answer(text) if text == behind => break,
                Heard::Refusal(_) => return None,
                Heard::Answer(_) | Heard::Chunk => {}
            }
        }
        page.leaves().await;
        Some(())
    }
}

enum Heard {
    Chunk,
    Answer(String),
    Refusal(String),
}

/// The next event; nothing when it can't be read.
async fn hears(page: &mut Page, paired: &Paired) -> Option<Heard> {
    let event = page.hears().await?;
    match event["type"].as_str()? {
        "assistant_chunk" => paired.text(&event).map(|_| Heard::Chunk),
        "assistant_final" => paired.text(&event).map(Heard::Answer),
        "error" => {
            let code = event["payload"]["code"].as_str()?;
            Some(Heard::Refusal(code.to_owned()))
        }
        _ => None,
    }
}

async fn original(plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let to = daemon.http().trim_start_matches("http://").to_owned();
    let mut direct = Page::opens(&format!("ws://{to}/ws")).await.unwrap();
    let paired = direct.pairs(&machine.pairing_code().await).await.unwrap();
    direct.leaves().await;

    let (proxy, at) = Proxy::tcp(to, Format::WebSocket, plan).await;
    let url = format!("ws://{at}/ws");
    let mut talk = Talk::default();
    let mut ended = false;
    while !ended && talk.connections < 3 {
        let going_on = tokio::time::timeout(PATIENCE, talk.goes_on(&url, &paired));
        ended = matches!(going_on.await, Ok(Some(())));
    }
    assert!(ended, "{talk:?}");
    let again = machine.runs(&["send", "test", "say still here"]).await;
    assert_eq!(again.succeeds().trim_end(), "still here");
    let rows = machine.runs(&["events", "--json"]).await.succeeds();
    let rows = rows
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).unwrap() });
    let is_it =
        |row: &Value| row["kind"] == "message" && row["data"]["text"] == format!("say {SAID}");
    assert_eq!(rows.filter(is_it).count(), 1, "said once");
    assert!(daemon.stops().await.success());
    let wrong = plan.map(|plan| plan.wrong);
    let word = match (talk.answers, talk.connections) {
        (1, 1) => "whole",
        (1, _) => "whole, over two connections",
        (0, 2..) => "said once, its answer was lost on the way",
        (2, _) if wrong == Some(Wrong::Duplicate) => "said once, its answer came twice",
        _ => panic!("{talk:?}"),
    };
    let nothing_is_lost = matches!(wrong, None | Some(Wrong::Delay | Wrong::Duplicate));
    assert!(!nothing_is_lost || talk.answers > 0, "{talk:?}");
    (word, proxy.plans())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_channel_planes_first_version_through_a_bad_proxy() {
    at_every_frame("proxy on the channel plane, version 1", original).await;
}
