//! A message on the channel plane's version 1 to a daemon that is killed over it.
//!
//! The browser can't know whether it was heard and says it again as it was, with its nonce.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Machine, within};
use crate::original::{Page, nonce};
use crate::points::{Fault, Plan, Point, Steering, plans};
use crate::process::Process;
use crate::trials::{chosen, tries};
use crate::v1::Paired;

const UP: [&str; 4] = ["up", "--listen", "127.0.0.1:0", "--no-worker"];

const SAID: &str = "one two three";

struct Place {
    machine: Machine,
    steering: Steering,
    paired: Paired,
}

impl Place {
    /// A machine with one device, whose daemon has stopped.
    async fn new() -> Self {
        let machine = Machine::with_test_agent();
        let daemon = machine.up_with(&["--no-worker"]).await;
        let mut page = Page::opens(&url(daemon.http())).await.unwrap();
        let paired = page.pairs(&machine.pairing_code().await).await.unwrap();
        page.leaves().await;
        assert!(daemon.stops().await.success());
        Self {
            machine,
            steering: Steering::new(),
            paired,
        }
    }

    /// The database, whose every change is a point; not what the agent writes.
    fn watched(&self) -> PathBuf {
        self.machine.home()
    }

    /// Says the message; the text of its end, or the code of what refused it.
    async fn says(&self, at: &str) -> Option<Result<String, String>> {
        let mut page = Page::opens(&url(at)).await?;
        let message = format!("say {SAID}");
        let message = self.paired.sealed(nonce(1, 1), &message, Some("test"));
        page.sends(&message).await?;
        loop {
            let event = page.hears().await?;
            match event["type"].as_str()? {
                "assistant_final" => return self.paired.text(&event).map(Ok),
                "error" => return Some(Err(event["payload"]["code"].as_str()?.to_owned())),
                _ => {}
            }
        }
    }

    /// How often it is in the journal.
    async fn said(&self) -> usize {
        let rows = self.machine.runs(&["events", "--json"]).await.succeeds();
        let is_it =
            |row: &Value| row["kind"] == "message" && row["data"]["text"] == format!("say {SAID}");
        rows.lines()
            .filter(|line| is_it(&serde_json::from_str(line).unwrap()))
            .count()
    }
}

fn url(http: &str) -> String {
    format!("{}/ws", http.replacen("http", "ws", 1))
}

fn http_of(machine: &Machine) -> String {
    let run = std::fs::read(machine.run_file()).unwrap();
    let run: Value = serde_json::from_slice(&run).unwrap();
    run["http"].as_str().unwrap().to_owned()
}

async fn recorded() -> Vec<Point> {
    let place = Place::new().await;
    let command = place
        .steering
        .records(&place.machine, &[&place.watched()], &UP);
    let mut daemon = Process::start(command);
    assert!(daemon.says("is ready at").await);
    let before = place.steering.recorded().len();
    let at = http_of(&place.machine);
    let answered = daemon.within("it answers", place.says(&at)).await;
    assert_eq!(answered, Some(Ok(SAID.to_owned())));
    let points = place.steering.recorded().split_off(before);
    daemon.signal(Signal::TERM);
    assert!(daemon.ends().await.status.success());
    points
}

async fn killed(plan: Plan) -> &'static str {
    let place = Place::new().await;
    let watched = place.watched();
    let (point, fault) = (&plan.point, plan.fault);
    let command = place
        .steering
        .breaks(&place.machine, &[&watched], &UP, point, fault);
    let mut daemon = Process::start(command);
    if daemon.says("is ready at").await {
        let at = http_of(&place.machine);
        daemon.within("it answers or ends", place.says(&at)).await;
    }
    daemon.signal(Signal::TERM);
    let ended = daemon.ends().await;
    let hit = place.steering.hit();
    assert_eq!(hit, ended.status.signal() == Some(9), "{ended:?}");

    let daemon = place.machine.up_with(&["--no-worker"]).await;
    let again = within("it is answered", place.says(daemon.http())).await;
    let word = match again.unwrap() {
        Ok(text) => {
            assert_eq!(text, SAID);
            "said when it came again"
        }
        Err(code) => {
            assert_eq!(code, "e2e_replayed");
            "said before"
        }
    };
    assert_eq!(place.said().await, 1, "said once: {word}");
    assert!(daemon.stops().await.success());
    if hit { word } else { "not reached" }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_over_a_message_of_a_browser_the_daemon_says_it_once() {
    let points = recorded().await;
    let plans = plans(&points, &[Fault::Kill, Fault::Tear]);
    let row = "kill -9 over a message of version 1";
    tries(row, chosen(plans, 12), killed).await;
}
