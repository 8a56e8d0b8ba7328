//! The channel: what it costs that every browser has its own encryption.
//!
//! A real daemon runs in this process, with an agent in a process of its own. "Browsers" are the
//! protocol's Rust client, each with its own connection and keys, on one thread beside the
//! daemon's two. The peer is a plain WebSocket that sends the same rows as text without a
//! journal, without encryption and without a daemon: the least that could work.
//!
//! Latencies are shown as their inverse, because more is better in every table here: 1000/s is 1 ms.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context as _, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use quintet_channel::client::{Client, Identity, ServerMessage};
use quintet_control::Client as _;
use quintet_control::UnixClient;
use quintet_runtime::config::ConfigInputs;
use quintet_runtime::daemon::{Daemon, DaemonOptions};
use quintet_runtime::home::Home;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;

use super::Case;
use crate::harness::{Contender, Race};

pub(crate) const CASE: Case = Case {
    name: "channel",
    about: "events/s to 1 and 200 browsers, element to receipt, and catching up on 10,000 events",
    races,
};

const EVENTS: u64 = 10_000;
const EVENTS_TO_MANY: u64 = 1000;
const MANY: usize = 200;
const PACE: u64 = 50;
const PACED: u64 = 150;
/// Ten seconds: who is a hundredth too slow is five events behind at the end.
const PACED_LONG: u64 = 10 * PACE;

fn races() -> anyhow::Result<Vec<Race>> {
    let race = |variant: &str, unit, contenders| Race {
        variant: variant.to_owned(),
        unit,
        bytes_each: None,
        contenders,
    };
    Ok(vec![
        race(
            "events to 1 browser",
            "events/s",
            vec![
                Contender::new("quintet", || flood(1, EVENTS)),
                Contender::new("plain WebSocket", || block_on(plain(1, EVENTS))),
            ],
        ),
        race(
            "events to 200 browsers",
            "events/s",
            vec![
                Contender::new("quintet", || flood(MANY, EVENTS_TO_MANY)),
                Contender::new("plain WebSocket", || block_on(plain(MANY, EVENTS_TO_MANY))),
            ],
        ),
        race(
            "element to receipt, p50",
            "1/s",
            vec![Contender::new("quintet", || Ok(1.0 / latency(1, 0.5)?))],
        ),
        race(
            "element to receipt, p99",
            "1/s",
            vec![Contender::new("quintet", || Ok(1.0 / latency(1, 0.99)?))],
        ),
        race(
            "200 browsers at 50 events/s each, p50",
            "1/s",
            vec![Contender::new("quintet", || Ok(1.0 / latency(MANY, 0.5)?))],
        ),
        race(
            "200 browsers at 50 events/s each, p99",
            "1/s",
            vec![Contender::new("quintet", || Ok(1.0 / latency(MANY, 0.99)?))],
        ),
        race(
            "200 browsers at 50 events/s each, the slowest behind after 10 s",
            "1/s",
            vec![Contender::new("quintet", || Ok(1.0 / behind(MANY)?))],
        ),
        race(
            "attach and catch up on 10,000 events",
            "catch-ups/s",
            vec![
                Contender::new("quintet", catch_up),
                Contender::new("plain WebSocket", || {
                    Ok(block_on(plain(1, EVENTS))? / EVENTS as f64)
                }),
            ],
        ),
    ])
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(work)
}

/// When an event was sent and when a browser had it, in seconds since 1970.
#[derive(Clone, Copy)]
struct Receipt {
    sent: f64,
    received: f64,
}

/// The value that a share of all lies below.
fn at(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values[(last as f64 * share) as usize]
}

/// A daemon, a paired device, and a session whose agent does what it is told.
struct Bed {
    url: String,
    identity: Identity,
    session: u64,
    client: Client,
}

/// Runs `work` with a daemon that is stopped afterwards.
fn with_daemon<T>(work: impl AsyncFnOnce(&mut Bed) -> anyhow::Result<T>) -> anyhow::Result<T> {
    block_on(async {
        let folder = TempDir::new_in(env!("CARGO_MANIFEST_DIR"))?;
        let home = Home::new(folder.path());
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/channel_agent.py");
        let config = format!(
            "[http]\nlisten = \"127.0.0.1:0\"\n[agents.bench]\ncommand = [\"python3\", {:?}]\n",
            agent.display().to_string()
        );
        std::fs::write(home.config_file(), config)?;
        let program = std::env::current_exe()?;
        let daemon = Daemon::start(DaemonOptions {
            config: ConfigInputs::new(home.config_file(), jiff::tz::TimeZone::UTC),
            home: home.clone(),
            version: "bench",
            compat_socket: None,
            insecure: false,
            program,
            base_env: BTreeMap::new(),
            worker: None,
        })
        .await?;
        let url = format!("{}/ws", daemon.run_file().http.replacen("http", "ws", 1));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let talk = async {
            let code = UnixClient::connect(home.control_socket())
                .await?
                .pair()
                .await?
                .code;
            let (mut client, identity) = Client::pair(&url, &code, "bench").await?;
            let made = client
                .request("sessions.create", json!({ "agent": "bench" }))
                .await?;
            let session = made["session"].as_u64().context("a session")?;
            let mut bed = Bed {
                url,
                identity,
                session,
                client,
            };
            // The agent's process is started by the first message, which is not measured.
            bed.tell("flood 1").await?;
            bed.until_ended().await?;
            let done = work(&mut bed).await;
            drop(stop);
            done
        };
        let (done, ()) = tokio::join!(
            talk,
            daemon.run_until(async {
                // The other end is dropped when the work is done.
                let _ = stopped.await;
            })
        );
        done
    })
}

impl Bed {
    async fn tell(&mut self, text: &str) -> anyhow::Result<()> {
        let message = json!({ "session": self.session, "content": text, "mode": "queue" });
        self.client.request("messages.send", message).await?;
        Ok(())
    }

    /// The newest row's number, once the session's turn is over.
    async fn until_ended(&mut self) -> anyhow::Result<u64> {
        loop {
            let page = json!({ "session": self.session, "limit": 1 });
            let page = self.client.request("events.page", page).await?;
            if page["events"][0]["kind"] == "turn_ended" {
                return page["events"][0]["seq"].as_u64().context("a number");
            }
        }
    }

    /// Browsers that have caught up and follow.
    async fn followers(&self, count: usize, after: u64) -> anyhow::Result<Vec<Client>> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            let mut client = Client::resume(&self.url, &self.identity).await?;
            client
                .ask("events.follow", json!({ "after": after }))
                .await?;
            clients.push(client);
        }
        for client in &mut clients {
            until(client, |item| item.get("caught_up").is_some()).await?;
        }
        Ok(clients)
    }
}

/// Reads items up to the one that `last` holds for; returns how many there were.
async fn until(client: &mut Client, mut last: impl FnMut(&Value) -> bool) -> anyhow::Result<u64> {
    let mut count = 0;
    loop {
        let ServerMessage::Json(message) = client.next().await? else {
            continue;
        };
        for item in message["items"].as_array().into_iter().flatten() {
            count += 1;
            if last(item) {
                return Ok(count);
            }
        }
    }
}

fn flood(browsers: usize, events: u64) -> anyhow::Result<f64> {
    with_daemon(async |bed| {
        let after = bed.until_ended().await?;
        let clients = bed.followers(browsers, after).await?;
        let started = Instant::now();
        bed.tell(&format!("flood {events}")).await?;
        let mut reading = JoinSet::new();
        for mut client in clients {
            reading.spawn(async move {
                let mut blocks = 0;
                until(&mut client, |item| {
                    blocks += u64::from(item["kind"] == "code_block");
                    item["kind"] == "turn_ended"
                })
                .await?;
                ensure!(blocks == events, "{blocks} of {events} events came");
                anyhow::Ok(())
            });
        }
        while let Some(read) = reading.join_next().await {
            read??;
        }
        Ok((events * browsers as u64) as f64 / started.elapsed().as_secs_f64())
    })
}

/// The latency that a share of all events has at the most.
fn latency(browsers: usize, share: f64) -> anyhow::Result<f64> {
    let of_each = paced(browsers, PACED)?;
    let all = of_each.iter().flatten();
    Ok(at(all.map(|it| it.received - it.sent).collect(), share))
}

/// How far the slowest browser is behind the pace in the end: the median of its last second.
///
/// Against the pace and not against the time of sending, so that an agent which is held up counts
/// as behind too.
fn behind(browsers: usize) -> anyhow::Result<f64> {
    let of_each = paced(browsers, PACED_LONG)?;
    let ends = of_each.iter().map(|receipts| {
        let begin = receipts[0].sent;
        let late = receipts.iter().enumerate().map(|(index, receipt)| {
            let due = begin + index as f64 / PACE as f64;
            receipt.received - due
        });
        at(late.skip((PACED_LONG - PACE) as usize).collect(), 0.5)
    });
    Ok(ends.fold(0.0, f64::max))
}

/// What each browser received of an agent that keeps a pace: every event, in order.
fn paced(browsers: usize, events: u64) -> anyhow::Result<Vec<Vec<Receipt>>> {
    with_daemon(async |bed| {
        let after = bed.until_ended().await?;
        let clients = bed.followers(browsers, after).await?;
        bed.tell(&format!("pace {PACE} {events}")).await?;
        let mut reading = JoinSet::new();
        for mut client in clients {
            reading.spawn(async move {
                let mut receipts = Vec::new();
                until(&mut client, |item| {
                    if item["kind"] == "code_block" {
                        let sent = item["data"]["code"].as_str().and_then(|at| at.parse().ok());
                        receipts.push(received_now(sent.unwrap_or_default()));
                    }
                    item["kind"] == "turn_ended"
                })
                .await?;
                ensure!(receipts.len() as u64 == events);
                ensure!(receipts.is_sorted_by_key(|receipt| receipt.sent));
                anyhow::Ok(receipts)
            });
        }
        let mut of_each = Vec::new();
        while let Some(read) = reading.join_next().await {
            of_each.push(read??);
        }
        Ok(of_each)
    })
}

fn received_now(sent_nanos: u128) -> Receipt {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_nanos());
    let seconds = |nanos: u128| nanos as f64 / 1e9;
    Receipt {
        sent: seconds(sent_nanos),
        received: seconds(now),
    }
}

fn catch_up() -> anyhow::Result<f64> {
    with_daemon(async |bed| {
        bed.tell(&format!("flood {EVENTS}")).await?;
        bed.until_ended().await?;
        let started = Instant::now();
        let mut client = Client::resume(&bed.url, &bed.identity).await?;
        client
            .ask(
                "events.follow",
                json!({ "after": 0, "session": bed.session }),
            )
            .await?;
        let items = until(&mut client, |item| item.get("caught_up").is_some()).await?;
        let elapsed = started.elapsed().as_secs_f64();
        ensure!(items > EVENTS);
        Ok(1.0 / elapsed)
    })
}

/// The peer: the same rows as text on a bare WebSocket.
async fn plain(browsers: usize, events: u64) -> anyhow::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("ws://{}", listener.local_addr()?);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut each = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            each.spawn(async move {
                let mut socket = tokio_tungstenite::accept_async(stream).await?;
                // A client says when it is ready.
                let _ = socket.next().await;
                for index in 0..events {
                    let code = format!("{index:08}{}", "x".repeat(100));
                    let row = json!({ "id": 1, "items": [{
                        "seq": index, "at": "2026-01-01T00:00:00.000000Z", "session": 1, "turn": 1,
                        "kind": "code_block",
                        "data": { "code": code, "language": "text", "message_id": "out_1" },
                    }] });
                    socket.feed(Message::Text(row.to_string().into())).await?;
                }
                socket.flush().await?;
                // Until the client leaves.
                let _ = socket.next().await;
                anyhow::Ok(())
            });
        }
    });
    let mut clients = Vec::new();
    for _ in 0..browsers {
        clients.push(tokio_tungstenite::connect_async(&url).await?.0);
    }
    let started = Instant::now();
    let mut reading = JoinSet::new();
    for mut client in clients {
        reading.spawn(async move {
            client.send(Message::Text("go".into())).await?;
            for _ in 0..events {
                let message = client.next().await.context("a row")??;
                let row: Value = serde_json::from_str(message.to_text()?)?;
                ensure!(row["items"][0]["kind"] == "code_block");
            }
            anyhow::Ok(())
        });
    }
    while let Some(read) = reading.join_next().await {
        read??;
    }
    Ok((events * browsers as u64) as f64 / started.elapsed().as_secs_f64())
}
