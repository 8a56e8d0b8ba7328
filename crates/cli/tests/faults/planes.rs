//! Conversations of three planes through a proxy that does something wrong at one frame.
//!
//! A plane that is cut or slow loses nothing. Where a frame comes twice or with another bit, which no
//! transport of ours does by itself, whoever reads it says what is wrong or takes it for what it is:
//! it does not hang, does not crash, and disturbs nobody else.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Finished, Machine};
use crate::process::Process;
use crate::proxy::{Format, Plan, Proxy, Wrong};
use crate::trials::at_every_frame;

/// Whether nothing may be lost: the bytes were right as far as they came.
fn is_honest(plan: Option<Plan>) -> bool {
    plan.is_none_or(|plan| matches!(plan.wrong, Wrong::Cut | Wrong::Delay | Wrong::Truncate))
}

/// `quintet send` through a proxy; the frames that passed.
async fn control(plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let home = machine.path().join("proxied");
    let socket = home.join("run/proxy.sock");
    std::fs::create_dir_all(home.join("run")).unwrap();
    let text = std::fs::read_to_string(machine.run_file()).unwrap();
    let mut run: serde_json::Value = serde_json::from_str(&text).unwrap();
    run["control_socket"] = socket.to_str().unwrap().into();
    std::fs::write(home.join("run/quintet.json"), run.to_string()).unwrap();
    let proxy = Proxy::unix(&socket, machine.control_socket(), Format::BigEndian, plan);
    let words = [
        "--home",
        home.to_str().unwrap(),
        "send",
        "test",
        "say one two three",
    ];
    let said = machine.runs(&words).await;
    assert!(!said.stderr.contains("panicked"), "{said:?}");
    let word = match said.code {
        Some(0) if is_honest(plan) => {
            assert_eq!(said.stdout.trim_end(), "one two three", "{said:?}");
            "whole"
        }
        Some(0) => "taken",
        _ => {
            // Cut before the first event, nobody can know whether the message arrived.
            let unknown = said.stderr.contains("hint: the message may have arrived");
            assert!(!is_honest(plan) || unknown, "{said:?}");
            assert!(said.stderr.contains("error: "), "{said:?}");
            "said what is wrong"
        }
    };
    let again = machine.runs(&["send", "test", "say still here"]).await;
    assert_eq!(again.succeeds().trim_end(), "still here");
    assert!(daemon.stops().await.success());
    (word, proxy.plans())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_through_a_bad_proxy() {
    at_every_frame("proxy on the control plane", control).await;
}

async fn barrier(machine: &Machine) -> Finished {
    let words = [
        "--home",
        "there",
        "workspace",
        "barrier",
        "--write-back",
        "--dir",
        "copy",
    ];
    machine
        .runs(&[&words[..], &["--timeout", "15s"]].concat())
        .await
}

/// A replica that follows its master through a proxy.
async fn workspace(plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::fresh();
    let at = |path: &str| machine.path().join(path);
    for folder in ["work", "copy"] {
        std::fs::create_dir(at(folder)).unwrap();
    }
    let large: Vec<u8> = (0..60_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(at("work/large"), &large).unwrap();
    let (to, socket) = (at("master.sock"), at("proxy.sock"));
    let serve = [
        "workspace",
        "serve",
        "work",
        "--socket",
        to.to_str().unwrap(),
    ];
    let mut master = Process::start(machine.quintet(&serve));
    assert!(master.says("is ready at").await);
    let proxy = Proxy::unix(&socket, to.clone(), Format::LittleEndian, plan);
    let mirror = [
        "--home",
        "there",
        "workspace",
        "mirror",
        "copy",
        "--connect",
        socket.to_str().unwrap(),
        "--sandbox-id",
        "copy",
    ];
    let mut replica = Process::start(machine.quintet(&mirror));
    let same = |name: &str, bytes: &[u8]| {
        for folder in ["work", "copy"] {
            let read = std::fs::read(at(folder).join(name)).unwrap();
            assert!(read == bytes, "{name} differs in {folder}");
        }
    };
    let word = if is_honest(plan) {
        assert!(replica.says("is in sync at").await);
        std::fs::write(at("copy/from-replica"), "r").unwrap();
        barrier(&machine).await.succeeds();
        std::fs::write(at("work/from-master"), "m").unwrap();
        barrier(&machine).await.succeeds();
        same("large", &large);
        same("from-replica", b"r");
        same("from-master", b"m");
        "equal"
    } else {
        // A name with another bit in it is a name: what arrives is only known to be valid, and the
        // first sync may be waited for in vain.
        let synced = replica.says("is in sync at");
        let _ = tokio::time::timeout(Duration::from_secs(5), synced).await;
        std::fs::write(at("copy/from-replica"), "r").unwrap();
        let first = barrier(&machine).await;
        let second = barrier(&machine).await;
        match (first.code, second.code) {
            (_, Some(0)) => "taken",
            _ => "said what is wrong",
        }
    };
    let verified = ["workspace", "verify", "--dir", "work"];
    machine.runs(&verified).await.succeeds();
    for mut process in [replica, master] {
        assert!(process.lives());
        process.signal(Signal::TERM);
        let ended = process.ends().await;
        assert!(ended.status.success(), "{ended:?}");
    }
    (word, proxy.plans())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_workspace_plane_through_a_bad_proxy() {
    at_every_frame("proxy on the workspace plane", workspace).await;
}

/// A worker that dials the daemon through a proxy.
async fn sandbox(plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let to = daemon.http().trim_start_matches("http://").to_owned();
    let (proxy, at) = Proxy::tcp(to, Format::WebSocket, plan).await;
    let url = format!("ws://{at}/ws");
    let root = machine.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let words = [
        "worker",
        "--server-url",
        &url,
        "--daemon-id",
        "far",
        "--root",
        root.to_str().unwrap(),
    ];
    let mut worker = Process::start(machine.quintet(&words));
    if !is_honest(plan) {
        // It may have registered with another bit in its name: it is started again then.
        let named = tokio::time::timeout(Duration::from_secs(5), online(&machine, &worker));
        if named.await.is_err() {
            worker.signal(Signal::TERM);
            worker.ends().await;
            worker = Process::start(machine.quintet(&words));
        }
    }
    online(&machine, &worker).await;
    let line = "echo hello; echo done > done; exit 3";
    let mut word = "whole";
    let mut said = machine.runs(&["exec", "far", "--", line]).await;
    if did_not_arrive(&said) {
        assert!(!root.join("done").exists());
        word = "told that it did not arrive";
        online(&machine, &worker).await;
        said = machine.runs(&["exec", "far", "--", line]).await;
    }
    if (said.code, &*said.stdout) != (Some(3), "hello\n") {
        assert!(!is_honest(plan), "{said:?}");
        word = if said.code == Some(125) {
            "said what is wrong"
        } else {
            "taken"
        };
    }
    online(&machine, &worker).await;
    let mut again = machine.runs(&["exec", "far", "--", "echo again"]).await;
    // The frame that is meant may be one of these.
    for _ in 0..3 {
        if did_not_arrive(&again) {
            word = "told that it did not arrive";
        } else if is_honest(plan) || again.stdout == "again\n" {
            break;
        }
        online(&machine, &worker).await;
        again = machine.runs(&["exec", "far", "--", "echo again"]).await;
    }
    assert_eq!(again.stdout, "again\n", "{again:?}");
    worker.signal(Signal::TERM);
    worker.ends().await;
    assert!(daemon.stops().await.success());
    (word, proxy.plans())
}

/// Whether the connection was lost with the request: it is not sent twice by itself.
fn did_not_arrive(said: &Finished) -> bool {
    let lost = ["this worker has no command or shell", "is offline"];
    said.code == Some(125) && lost.iter().any(|it| said.stderr.contains(it))
}

/// Waits until the worker is there, over as many connections as it takes.
async fn online(machine: &Machine, worker: &Process) {
    let there = async {
        loop {
            let listed = machine.runs(&["workers", "--json"]).await.json();
            let mut workers = listed.as_array().unwrap().iter();
            if workers.any(|it| it["id"] == "far" && it["state"] == "online") {
                return;
            }
        }
    };
    worker.within("the worker is online", there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sandbox_plane_through_a_bad_proxy() {
    at_every_frame("proxy on the sandbox plane", sandbox).await;
}
