//! A worker that is killed at a call by which it changes files, and is started again.
//!
//! What it was asked for is done, or the error says that it was not and it can be asked again. A file
//! has its name only when all of it is there.

use std::path::Path;

use rustix::process::Signal;

use crate::disk::temporary;
use crate::harness::{Finished, Machine};
use crate::points::{self, Fault, Plan, Steering, plans};
use crate::process::Process;
use crate::trials::{chosen, tries};

/// How often a request is made; a worker dies once.
const TRIES: usize = 3;

struct Site {
    machine: Machine,
    words: Vec<String>,
    content: Vec<u8>,
}

impl Site {
    fn command(&self, steering: Option<(&Steering, Option<&Plan>)>) -> tokio::process::Command {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let (home, root) = (self.at("there"), self.at("root"));
        let under: [&Path; 2] = [&home, &root];
        match steering {
            None => points::watched(&self.machine, &under, &words),
            Some((steering, None)) => steering.records(&self.machine, &under, &words),
            Some((steering, Some(plan))) => {
                steering.breaks(&self.machine, &under, &words, &plan.point, plan.fault)
            }
        }
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.machine.path().join(path)
    }

    /// Makes a request until it is done, and starts the worker again when it has died.
    async fn asks(&self, worker: &mut Process, words: &[&str]) -> Finished {
        let mut said = self.once(worker, words).await;
        for _ in 1..TRIES {
            if said.code == Some(0) {
                break;
            }
            assert!(said.stderr.contains("error: "), "{said:?}");
            self.is_whole();
            said = self.once(worker, words).await;
        }
        assert_eq!(said.code, Some(0), "{words:?}: {said:?}");
        said
    }

    async fn once(&self, worker: &mut Process, words: &[&str]) -> Finished {
        let request = async {
            loop {
                let listed = self.machine.runs(&["workers", "--json"]).await.json();
                let mut workers = listed.as_array().unwrap().iter();
                if workers.any(|it| it["id"] == "far" && it["state"] == "online") {
                    return self.machine.runs(words).await;
                }
            }
        };
        let mut request = std::pin::pin!(crate::harness::within("it is answered", request));
        loop {
            tokio::select! {
                said = &mut request => return said,
                () = worker.dies() => {
                    self.is_whole();
                    *worker = Process::start(self.command(None));
                }
            }
        }
    }

    /// What has its name is all there.
    fn is_whole(&self) {
        for name in ["root/up", "down"] {
            if let Ok(bytes) = std::fs::read(self.at(name)) {
                assert!(bytes == self.content, "{name} has {} bytes", bytes.len());
            }
        }
    }
}

/// A command, a file there and a file back.
async fn works(steering: &Steering, plan: Option<&Plan>) -> bool {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let token = machine
        .runs(&["token", "create", "--worker", "far"])
        .await
        .succeeds();
    let url = format!("{}/ws", daemon.http().replacen("http", "ws", 1));
    let root = machine.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let words = [
        "--home",
        "there",
        "worker",
        "--server-url",
        &url,
        "--daemon-id",
        "far",
        "--token",
        token.trim(),
        "--root",
        root.to_str().unwrap(),
    ];
    let words = words.map(str::to_owned).to_vec();
    let content: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let site = Site {
        machine,
        words,
        content,
    };
    std::fs::write(site.at("source"), &site.content).unwrap();
    let mut worker = Process::start(site.command(Some((steering, plan))));

    let line = "echo said; echo again >&2; echo x > written";
    let said = site.asks(&mut worker, &["exec", "far", "--", line]).await;
    assert_eq!((&*said.stdout, &*said.stderr), ("said\n", "again\n"));
    site.asks(&mut worker, &["cp", "source", "far:up"]).await;
    site.asks(&mut worker, &["cp", "far:up", "down"]).await;
    site.is_whole();
    for name in ["root/up", "root/written", "down"] {
        assert!(site.at(name).exists(), "{name} is missing");
    }
    worker.signal(Signal::TERM);
    worker.ends().await;
    assert_eq!(temporary(site.machine.path()), Default::default());
    assert!(daemon.stops().await.success());
    steering.hit()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_a_worker_did_it_or_says_that_it_did_not() {
    let recorded = Steering::new();
    works(&recorded, None).await;
    let points = recorded.recorded();
    eprintln!("faults: the worker has {} points", points.len());
    assert!(!points.is_empty());
    let plans = plans(&points, &[Fault::Kill, Fault::Tear]);
    tries("kill -9 of a worker", chosen(plans, 6), |plan| async move {
        match works(&Steering::new(), Some(&plan)).await {
            true => "killed",
            false => "not reached",
        }
    })
    .await;
}
