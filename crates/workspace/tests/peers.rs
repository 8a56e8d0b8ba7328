//! A replica and a master written from the protocol's description alone, in
//! Python's standard library, against ours.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::fs;
use std::path::Path;
use std::process::Command;

use harness::process::Process;
use harness::{Host, LONG, Mirror};
use serde_json::{Value, json};

struct Python(Process);

impl Python {
    fn start(script: &str, socket: &Path) -> Self {
        let script = format!("{}/tests/peers/{script}", env!("CARGO_MANIFEST_DIR"));
        Self(Process::start(
            Command::new("python3").arg(script).arg(socket),
        ))
    }

    fn answer(&mut self) -> Value {
        serde_json::from_str(&self.0.line()).unwrap()
    }

    fn ask(&mut self, command: &Value) -> Value {
        self.0.tell(&command.to_string());
        self.answer()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_replica_follows_our_master_and_writes_to_it() {
    let host = Host::new().await;
    let dir = host.dir();
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/small"), "hello").unwrap();
    fs::write(dir.join("middle"), vec![7; 50_000]).unwrap();
    fs::write(dir.join("large"), harness::noise("large", 1_100_000)).unwrap();
    std::os::unix::fs::symlink("d/small", dir.join("link")).unwrap();
    host.workspace.flush().await.unwrap();
    let socket = host.socket();
    tokio::task::spawn_blocking(move || {
        let mut python = Python::start("replica.py", &socket);
        let tree = python.ask(&json!(["sync"]));
        let what = |path: &str| tree[path].clone();
        assert_eq!(what("d")[0], "folder");
        assert_eq!(what("link")[0], "link");
        assert_eq!(
            what("d/small"),
            json!(["file", 0o644, 5, blake3::hash(b"hello").to_hex().as_str()])
        );
        assert_eq!(what("middle")[2], 50_000);
        assert_eq!(what("large")[2], 1_100_000);
        assert_eq!(tree.as_object().unwrap().len(), 5);

        let written = python.ask(&json!(["write", "d/from-python", "made there"]));
        assert_eq!(
            written["accepted"].as_array().unwrap().len(),
            1,
            "{written}"
        );
        assert_eq!(
            fs::read_to_string(dir.join("d/from-python")).unwrap(),
            "made there"
        );
        fs::write(dir.join("d/small"), "changed here").unwrap();
        let passed = python.ask(&json!(["barrier", 0]));
        assert_eq!(passed["satisfied"], true);
        let tree = python.ask(&json!(["sync"]));
        assert_eq!(
            tree["d/small"][2], 12,
            "a write that finished before the barrier is there after it"
        );
        let far = python.ask(&json!(["barrier", 1_000_000]));
        assert_eq!(far["satisfied"], false);
        let refused = python.ask(&json!(["write", ".quintet/x", "no"]));
        assert_eq!(refused["rejected"].as_array().unwrap().len(), 1);
        let escaped = python.ask(&json!(["write", "../x", "no"]));
        assert_eq!(escaped["rejected"].as_array().unwrap().len(), 1);
        python.ask(&json!(["delete", "middle"]));
        assert!(!dir.join("middle").exists());
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn our_replica_follows_a_foreign_master_and_writes_to_it() {
    let home = tempfile::tempdir().unwrap();
    let mut python = Python::start("master.py", &home.path().join("master.sock"));
    assert_eq!(python.answer(), "ready");
    python.ask(&json!(["put", "a/b", "text", 1]));
    python.ask(&json!(["put", "large", "0123456789", 7_000]));
    python.ask(&json!(["put", "gone", "x", 1]));
    let mirror = Mirror::start(home.path(), "one").await;
    mirror.replica.barrier(LONG).await.unwrap();
    assert_eq!(fs::read_to_string(mirror.dir.join("a/b")).unwrap(), "text");
    assert_eq!(
        fs::read_to_string(mirror.dir.join("large")).unwrap(),
        "0123456789".repeat(7_000)
    );

    python.ask(&json!(["delete", "gone"]));
    python.ask(&json!(["put", "a/b", "other", 1]));
    mirror.replica.barrier(LONG).await.unwrap();
    assert!(!mirror.dir.join("gone").exists());
    assert_eq!(fs::read_to_string(mirror.dir.join("a/b")).unwrap(), "other");

    fs::write(mirror.dir.join("mine"), "written here").unwrap();
    fs::write(mirror.dir.join("big"), vec![5; 9_000]).unwrap();
    fs::rename(mirror.dir.join("large"), mirror.dir.join("moved")).unwrap();
    let report = mirror.replica.write_back_and_wait(LONG).await.unwrap();
    assert_eq!(report.rejected, []);
    let tree = python.ask(&json!(["tree"]));
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    assert_eq!(tree["mine"][1], hash(b"written here"));
    assert_eq!(tree["big"][1], hash(&[5; 9_000]));
    assert_eq!(
        tree["moved"][1],
        hash("0123456789".repeat(7_000).as_bytes())
    );
    assert!(tree.get("large").is_none());
}
