//! A folder with a history, and replicas of it, without a daemon.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{DEADLINE, Finished, Machine, Running};

/// A folder that is served.
struct Master {
    process: Running,
    ready: Value,
}

impl Master {
    async fn serves(machine: &Machine, more: &[&str]) -> Self {
        fs::create_dir_all(machine.path().join("work")).unwrap();
        let arguments = [&["workspace", "serve", "work", "--json"], more].concat();
        let mut process = Running::start(machine.quintet(&arguments));
        let ready = serde_json::from_str(&process.line().await).unwrap();
        Self { process, ready }
    }

    fn socket(&self) -> &str {
        self.ready["socket"].as_str().unwrap()
    }

    async fn stops(self) {
        self.process.signal(rustix::process::Signal::TERM);
        assert!(self.process.ends().await.success());
    }
}

/// A replica that is in sync once this returns.
async fn mirror(machine: &Machine, name: &str, master: &Master) -> Running {
    let arguments = [
        "workspace",
        "mirror",
        name,
        "--connect",
        master.socket(),
        "--sandbox-id",
        name,
    ];
    let mut process = Running::start(machine.quintet(&arguments));
    process.prints("is in sync at").await;
    process
}

/// `quintet workspace WORDS --dir DIR`.
async fn workspace(machine: &Machine, dir: &str, words: &[&str]) -> Finished {
    let arguments = [&["workspace"], words, &["--dir", dir]].concat();
    machine.runs(&arguments).await
}

async fn asks(machine: &Machine, dir: &str, words: &[&str]) -> Value {
    workspace(machine, dir, &[words, &["--json"]].concat())
        .await
        .json()
}

async fn barrier(machine: &Machine, dir: &str) -> u64 {
    let passed = asks(machine, dir, &["barrier", "--write-back"]).await;
    passed["sequence"].as_u64().unwrap()
}

/// Waits until the replicas are at these sequences, and so far behind; says how it all is.
async fn positions(machine: &Machine, expected: Value) -> Value {
    let deadline = std::time::Instant::now() + DEADLINE;
    loop {
        let status = asks(machine, "work", &["status"]).await;
        let replicas = status["replicas"].as_array().unwrap().iter();
        let position =
            |replica: &Value| json!([replica["sandbox_id"], replica["acked"], replica["lag"]]);
        let positions = Value::from_iter(replicas.map(position));
        if positions == expected {
            return status;
        }
        assert!(std::time::Instant::now() < deadline, "{positions}");
    }
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

fn names(rows: &Value, key: &str) -> Vec<String> {
    let rows = rows.as_array().unwrap();
    rows.iter()
        .map(|row| row[key].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn two_replicas_follow_and_write_back() {
    let machine = Machine::fresh();
    let at = |path: &str| machine.path().join(path);
    let master = Master::serves(&machine, &[]).await;
    fs::write(at("work/from-master"), "one").unwrap();
    let a = mirror(&machine, "a", &master).await;
    let b = mirror(&machine, "b", &master).await;
    assert_eq!(text(at("b/from-master")), "one");

    fs::create_dir(at("a/src")).unwrap();
    fs::write(at("a/src/x"), "written in a").unwrap();
    fs::set_permissions(at("a/src/x"), fs::Permissions::from_mode(0o755)).unwrap();
    let sequence = barrier(&machine, "a").await;
    assert_eq!(text(at("work/src/x")), "written in a");
    barrier(&machine, "b").await;
    assert_eq!(text(at("b/src/x")), "written in a");

    let status = positions(&machine, json!([["a", sequence, 0], ["b", sequence, 0]])).await;
    assert_eq!(status["sequence"], sequence);
    assert_eq!(
        (&status["files"], &status["bytes"], &status["pending"]),
        (&json!(2), &json!(15), &json!(0))
    );
    // One that does not answer is behind.
    b.signal(rustix::process::Signal::STOP);
    fs::write(at("work/from-master"), "two").unwrap();
    asks(&machine, "work", &["log"]).await;
    let behind = json!([["a", sequence + 1, 0], ["b", sequence, 1]]);
    positions(&machine, behind).await;
    let shown = workspace(&machine, "work", &["status"]).await.succeeds();
    assert!(
        shown.contains(&format!("b at {sequence}, 1 behind")),
        "{shown}"
    );
    b.signal(rustix::process::Signal::CONT);
    let all = json!([["a", sequence + 1, 0], ["b", sequence + 1, 0]]);
    positions(&machine, all).await;
    let here = asks(&machine, "a", &["status"]).await;
    assert_eq!(
        (&here["role"], &here["connected"], &here["files"]),
        (&json!("replica"), &json!(true), &json!(2))
    );

    let log = asks(&machine, "work", &["log", "src/x"]).await;
    let line = &log.as_array().unwrap()[0];
    assert_eq!(line["author"], "a");
    assert_eq!(line["change"], "write");
    assert_eq!(line["size"], 12);
    assert_eq!(line["mode"], 0o755);
    assert!(line["at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(line["hash"].as_str().unwrap().len(), 64);
    // The folder around the current one is meant where none is named.
    let mut inside = machine.quintet(&["workspace", "log", "x", "--json"]);
    inside.current_dir(at("work/src"));
    assert_eq!(Finished::of(inside).await.json(), log);

    let at_master = workspace(&machine, "work", &["barrier"]).await.fails(2);
    assert!(at_master.contains("replicas"), "{at_master}");
    let at_replica = workspace(&machine, "a", &["log"]).await.fails(1);
    assert!(at_replica.contains("at the master"), "{at_replica}");
    master.stops().await;
    let unreached = workspace(&machine, "a", &["barrier", "--timeout", "200ms"])
        .await
        .fails(1);
    assert!(unreached.contains("out of reach"), "{unreached}");
    // Neither one that hangs nor one that is not there keeps the time.
    a.signal(rustix::process::Signal::STOP);
    let hung = workspace(&machine, "a", &["barrier", "--timeout", "200ms"])
        .await
        .fails(1);
    assert!(hung.contains("does not answer"), "{hung}");
    a.signal(rustix::process::Signal::CONT);
    a.signal(rustix::process::Signal::TERM);
    assert!(a.ends().await.success());
    let nobody = workspace(&machine, "a", &["barrier", "--timeout", "200ms"])
        .await
        .fails(1);
    assert!(nobody.contains("no mirror is running"), "{nobody}");
    // One that is about to start is waited for.
    let master = Master::serves(&machine, &[]).await;
    let waits = machine.begins(&["workspace", "barrier", "--dir", "a", "--timeout", "1m"]);
    let _a = mirror(&machine, "a", &master).await;
    waits.ends().await.succeeds();
}

#[tokio::test]
async fn the_past_is_shown_compared_restored_and_the_restore_undone() {
    let machine = Machine::fresh();
    let at = |path: &str| machine.path().join(path);
    let master = Master::serves(&machine, &[]).await;
    fs::create_dir(at("work/d")).unwrap();
    fs::write(at("work/d/f"), "one\ntwo\n").unwrap();
    fs::write(at("work/gone"), "soon\n").unwrap();
    let first = asks(&machine, "work", &["checkpoint", "first"]).await;
    let first = first["sequence"].as_u64().unwrap().to_string();
    fs::write(at("work/d/f"), "one\n2\n").unwrap();
    fs::remove_file(at("work/gone")).unwrap();
    fs::write(at("work/new"), vec![0; 100_000]).unwrap();

    let shown = workspace(&machine, "work", &["show", &format!("d/f@{first}")]).await;
    assert_eq!(shown.succeeds(), "one\ntwo\n");
    let now = workspace(&machine, "work", &["show", "d/f"]).await;
    assert_eq!(now.succeeds(), "one\n2\n");
    let diff = workspace(&machine, "work", &["diff", "first.."]).await;
    let diff = diff.succeeds();
    assert!(diff.contains("--- a/d/f\n+++ b/d/f\n"), "{diff}");
    assert!(
        diff.contains("-two\n+2\n") && diff.contains("-soon\n"),
        "{diff}"
    );
    let log = asks(&machine, "work", &["log", "d/f"]).await;
    let sizes = |line: &Value| (line["previous_size"].clone(), line["size"].clone());
    let sizes: Vec<_> = log.as_array().unwrap().iter().map(sizes).collect();
    assert_eq!(sizes, [(Value::Null, json!(8)), (json!(8), json!(6))]);
    let told = workspace(&machine, "work", &["log", "d/f"])
        .await
        .succeeds();
    assert!(told.contains("6 B (-2 B)"), "{told}");
    let one = asks(&machine, "work", &["diff", "first..now", "d"]).await;
    assert_eq!(names(&one, "path"), ["d/f"]);
    let served = asks(&machine, "work", &["diff", "first.."]).await;
    assert_eq!(names(&served, "change"), ["write", "delete", "write"]);
    master.stops().await;
    let opened = asks(&machine, "work", &["diff", "first.."]).await;
    assert_eq!(opened, served, "the same whoever has it open");

    let preview = asks(&machine, "work", &["restore", "--to", "first", "--dry-run"]).await;
    assert_eq!(preview["changes"].as_array().unwrap().len(), 3);
    assert!(!at("work/gone").exists(), "a dry run changes nothing");
    let done = asks(&machine, "work", &["restore", "--to", "first"]).await;
    assert_eq!(text(at("work/d/f")), "one\ntwo\n");
    assert_eq!(text(at("work/gone")), "soon\n");
    assert!(!at("work/new").exists());
    assert!(done["sequence"].as_u64() > done["before"].as_u64());
    let before = done["before"].to_string();
    asks(&machine, "work", &["restore", "--to", &before]).await;
    assert_eq!(text(at("work/d/f")), "one\n2\n");
    assert!(!at("work/gone").exists() && at("work/new").exists());
    asks(&machine, "work", &["restore", "--to", &first, "gone"]).await;
    assert_eq!(text(at("work/gone")), "soon\n");
    assert_eq!(text(at("work/d/f")), "one\n2\n", "only what was named");

    asks(&machine, "work", &["fork", "fork"]).await;
    assert_eq!(text(at("fork/d/f")), "one\n2\n");
    fs::write(at("fork/d/f"), "another way").unwrap();
    let forked = asks(&machine, "fork", &["log", "d/f"]).await;
    let original = asks(&machine, "work", &["log", "d/f"]).await;
    let length = |log: &Value| log.as_array().unwrap().len();
    assert_eq!(length(&forked), length(&original) + 1);

    let freed = asks(&machine, "work", &["gc", "--larger-than", "0"]).await;
    assert!(freed["pruned"]["versions"].as_u64() > Some(0), "{freed}");
    let checked = asks(&machine, "work", &["verify"]).await;
    assert_eq!(checked["damaged"], json!([]));
    assert_eq!(
        names(&asks(&machine, "work", &["checkpoint"]).await, "name"),
        ["first"]
    );
    asks(&machine, "work", &["restore", "--to", "first"]).await;
    assert_eq!(
        text(at("work/d/f")),
        "one\ntwo\n",
        "a checkpoint outlives it"
    );
    for (words, says) in [
        (&["show", "d/f@999"][..], "999"),
        (&["show", "nothing@now"], "did not exist"),
        (&["show", "d@now"], "d is a folder"),
        (&["restore", "--to", "first", "typo"], "never there"),
        (&["diff", "never.."], "no checkpoint"),
        (&["checkpoint", "first"], "already"),
    ] {
        let told = workspace(&machine, "work", words).await.fails(1);
        assert!(told.contains(says), "{told}");
    }
    workspace(&machine, "work", &["checkpoint", "12"])
        .await
        .fails(2);
    workspace(&machine, "work", &["restore"]).await.fails(2);
    let inside = workspace(&machine, "work", &["fork", "work/d/new/copy"]).await;
    assert!(inside.fails(2).contains("is inside"));
    assert!(!at("work/d/new").exists());
    workspace(&machine, "work", &["restore", "--at", "soon"])
        .await
        .fails(2);
}

#[tokio::test]
async fn odd_names_and_bytes_are_shown_as_they_are() {
    let machine = Machine::fresh();
    let at = |path: &str| machine.path().join(path);
    let master = Master::serves(&machine, &[]).await;
    fs::create_dir_all(at("work/@types")).unwrap();
    for file in [
        "icon@2x.png",
        "@types/x.d.ts",
        "both",
        "both@1",
        "two\nlines",
    ] {
        fs::write(at("work").join(file), format!("{file}, old")).unwrap();
    }
    fs::write(at("work/patched"), "same\r\nold \u{1b}[1m\r\n").unwrap();
    let first = asks(&machine, "work", &["checkpoint", "first"]).await;
    let first = first["sequence"].as_u64().unwrap();
    for file in ["icon@2x.png", "both", "both@1", "two\nlines"] {
        fs::write(at("work").join(file), file).unwrap();
    }
    fs::write(at("work/patched"), "same\r\nnew\r\n").unwrap();
    for (what, expected) in [
        ("icon@2x.png", "icon@2x.png"),
        ("icon@2x.png@first", "icon@2x.png, old"),
        ("@types/x.d.ts", "@types/x.d.ts, old"),
        // A state of a file that is there goes before a file of that name.
        (&format!("both@{first}"), "both, old"),
        ("both@1@now", "both@1"),
    ] {
        let shown = workspace(&machine, "work", &["show", what]).await;
        assert_eq!(shown.succeeds(), expected, "{what}");
    }
    let diff = workspace(&machine, "work", &["diff", "first..", "patched"]).await;
    let patch = diff.succeeds();
    let lines = " same\r\n-old \u{1b}[1m\r\n+new\r\n";
    assert!(patch.ends_with(lines), "{patch:?}");
    let restored = workspace(&machine, "work", &["restore", "--to", "first"]).await;
    let told = restored.succeeds();
    assert!(told.contains("write  two\\nlines\n"), "{told:?}");
    for name in ["x/y", "a..b", " 7"] {
        let refused = workspace(&machine, "work", &["checkpoint", name]).await;
        assert!(refused.fails(2).contains("choose another name"));
    }
    master.stops().await;
}

#[tokio::test]
async fn old_versions_are_forgotten_by_the_stated_policy() {
    let machine = Machine::fresh();
    let file = machine.path().join("work/f");
    let master = Master::serves(&machine, &[]).await;
    for round in 0..3 {
        fs::write(&file, format!("round {round}")).unwrap();
        asks(&machine, "work", &["checkpoint", &format!("round-{round}")]).await;
    }
    fs::write(&file, "the last").unwrap();
    let log = asks(&machine, "work", &["log", "f"]).await;
    assert_eq!(log.as_array().unwrap().len(), 4, "{log}");
    master.stops().await;
    let master = Master::serves(&machine, &[]).await;
    let log = asks(&machine, "work", &["log", "f"]).await;
    assert_eq!(log.as_array().unwrap().len(), 4, "none is old: {log}");
    fs::write(&file, "not named").unwrap();
    fs::write(&file, "the very last").unwrap();
    asks(&machine, "work", &["log"]).await;
    master.stops().await;

    machine.configure("[workspace]\nhistory_age = \"1ms\"\n");
    let mut master = Master::serves(&machine, &[]).await;
    let told: Value = serde_json::from_str(&master.process.line().await).unwrap();
    assert!(told["pruned"]["versions"].as_u64() > Some(0), "{told}");
    let log = asks(&machine, "work", &["log", "f"]).await;
    let kept = log.as_array().unwrap().len();
    assert_eq!(kept, 4, "three checkpoints and what is there now: {log}");
    assert_eq!(text(file), "the very last");
    master.stops().await;
}

#[tokio::test]
async fn a_workspace_that_is_gone_for_good_is_forgotten_when_it_is_told() {
    let machine = Machine::fresh();
    fs::create_dir(machine.path().join("work")).unwrap();
    let master = Master::serves(&machine, &[]).await;
    asks(&machine, "work", &["fork", "other"]).await;
    fs::write(machine.path().join("other/large"), vec![7; 100_000]).unwrap();
    let id = asks(&machine, "other", &["status"]).await["id"].clone();
    let id = id.as_str().unwrap();
    let told = workspace(&machine, "work", &["gc", "--forget", id]).await;
    assert!(told.fails(1).contains("still there"));
    let store = objects(&machine.home().join("cas"));
    assert_eq!(store.len(), 1);

    fs::remove_dir_all(machine.home().join("workspaces").join(id)).unwrap();
    let told = workspace(&machine, "work", &["gc"]).await.fails(1);
    let command = format!("quintet workspace gc --forget {id}");
    assert!(told.contains(&command), "{told}");
    assert_eq!(objects(&machine.home().join("cas")), store);
    let freed = asks(&machine, "work", &["gc", "--forget", id]).await;
    assert_eq!(freed["collected"]["removed"], json!(1), "{freed}");
    asks(&machine, "work", &["gc"]).await;
    let told = workspace(&machine, "work", &["gc", "--forget", id]).await;
    assert!(told.fails(1).contains("no workspace"));
    master.stops().await;
}

#[tokio::test]
async fn a_time_is_a_state_too() {
    let machine = Machine::fresh();
    let file = machine.path().join("work/f");
    let _master = Master::serves(&machine, &[]).await;
    fs::write(&file, "then").unwrap();
    let log = asks(&machine, "work", &["log"]).await;
    let then = log[0]["at"].as_str().unwrap();
    // A later moment by the clock of the log, whatever its step.
    loop {
        fs::write(&file, "now").unwrap();
        let log = asks(&machine, "work", &["log"]).await;
        if log.as_array().unwrap().last().unwrap()["at"] != log[0]["at"] {
            break;
        }
        fs::write(&file, "later").unwrap();
        asks(&machine, "work", &["log"]).await;
    }
    asks(&machine, "work", &["restore", "--at", then]).await;
    assert_ne!(text(file), "now");
    let early = ["restore", "--at", "2001-01-01T00:00:00Z"];
    let told = workspace(&machine, "work", &early).await.fails(1);
    assert!(told.contains("nothing was recorded"), "{told}");
}

#[tokio::test]
async fn what_the_master_refuses_is_kept_shown_and_taken() {
    let machine = Machine::fresh();
    let at = |path: &str| machine.path().join(path);
    let master = Master::serves(&machine, &[]).await;
    fs::write(at("work/f"), "base").unwrap();
    let replica = mirror(&machine, "a", &master).await;
    replica.signal(rustix::process::Signal::TERM);
    assert!(replica.ends().await.success());
    fs::write(at("a/f"), "mine").unwrap();
    fs::write(at("work/f"), "theirs").unwrap();
    asks(&machine, "work", &["log"]).await;
    let _replica = mirror(&machine, "a", &master).await;
    barrier(&machine, "a").await;
    assert_eq!(text(at("a/f")), "theirs");

    let conflicts = asks(&machine, "a", &["conflicts"]).await;
    let conflict = &conflicts.as_array().unwrap()[0];
    assert_eq!(
        (&conflict["path"], &conflict["author"], &conflict["size"]),
        (&json!("f"), &json!("a"), &json!(4))
    );
    assert!(conflict["reason"].as_str().unwrap().contains("conflict"));
    let id = conflict["id"].to_string();
    let kept = workspace(&machine, "a", &["conflicts", "show", &id]).await;
    assert_eq!(kept.succeeds(), "mine");
    let mut shown = conflict.clone();
    shown["text"] = json!("mine");
    assert_eq!(
        asks(&machine, "a", &["conflicts", "show", &id]).await,
        shown
    );
    let taken = asks(&machine, "a", &["conflicts", "take", &id]).await;
    assert_eq!(taken, *conflict);
    barrier(&machine, "a").await;
    assert_eq!(text(at("work/f")), "mine");
    assert_eq!(asks(&machine, "a", &["conflicts", "ls"]).await, json!([]));
    let unknown = workspace(&machine, "a", &["conflicts", "take", &id]).await;
    assert!(unknown.fails(1).contains("no conflict"));
}

#[tokio::test]
async fn replicas_come_over_websocket_with_the_token() {
    let machine = Machine::fresh();
    let master = Master::serves(
        &machine,
        &["--ws-listen", "127.0.0.1:0", "--token", "secret"],
    )
    .await;
    fs::write(machine.path().join("work/f"), "over there").unwrap();
    let url = master.ready["ws"].as_str().unwrap();
    let words = |token| {
        [
            "workspace",
            "mirror",
            "a",
            "--ws-connect",
            url,
            "--sandbox-id",
            "a",
            "--token",
            token,
        ]
    };
    let mut refused = Running::start_with_talk(&machine, &words("wrong"));
    refused.prints("HTTP 401").await;
    refused.signal(rustix::process::Signal::TERM);
    refused.ends().await;
    let mut replica = Running::start(machine.quintet(&words("secret")));
    replica.prints("is in sync at").await;
    assert_eq!(text(machine.path().join("a/f")), "over there");
    let open = ["workspace", "serve", "work", "--ws-listen", "0.0.0.0:0"];
    let told = machine.runs(&open).await.fails(2);
    assert!(told.contains("--token"), "{told}");
}

#[tokio::test]
async fn what_should_not_be_tracked_is_refused() {
    let machine = Machine::fresh();
    let home = machine.runs(&["workspace", "serve", "."]).await.fails(1);
    assert!(home.contains("home folder"), "{home}");
    let root = machine.runs(&["workspace", "serve", "/"]).await.fails(1);
    assert!(root.contains("root of the file system"), "{root}");
    fs::create_dir(machine.path().join("many")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(machine.path().join("many").join(name), "12345").unwrap();
    }
    for limit in [["--max-files", "2"], ["--max-size", "10"]] {
        let told = machine
            .runs(&[&["workspace", "serve", "many"], &limit[..]].concat())
            .await
            .fails(1);
        assert!(told.contains("allow it explicitly"), "{told}");
    }
    let nowhere = machine.runs(&["workspace", "log"]).await.fails(1);
    assert!(nowhere.contains("not a workspace") && nowhere.contains("serve"));
    let master = Master::serves(&machine, &[]).await;
    let second = machine.runs(&["workspace", "serve", "work"]).await.fails(1);
    assert!(second.contains("in use"), "{second}");
    let mixed = [
        "workspace",
        "mirror",
        "work",
        "--connect",
        master.socket(),
        "--sandbox-id",
        "x",
    ];
    let told = machine.runs(&mixed).await.fails(1);
    assert!(told.contains("history of its own"), "{told}");
    let mut inside = mixed;
    inside[2] = "work/copy";
    let told = machine.runs(&inside).await.fails(2);
    assert!(told.contains("would record the copy"), "{told}");
    assert!(!machine.path().join("work/copy").exists());
    fs::write(machine.path().join("work/.quintetignore"), "copy\n").unwrap();
    let allowed = [&inside[..], &["--track-anything"]].concat();
    let mut copy = Running::start(machine.quintet(&allowed));
    copy.prints("is in sync at").await;
    let mut everything = mixed;
    everything[2] = ".";
    let told = machine.runs(&everything).await.fails(1);
    assert!(told.contains("home folder"), "{told}");
    let neither = machine
        .runs(&["workspace", "mirror", "a", "--sandbox-id", "x"])
        .await
        .fails(2);
    assert!(neither.contains("--connect"), "{neither}");
    let nameless = [&mixed[..mixed.len() - 1], &[""]].concat();
    let told = machine.runs(&nameless).await.fails(2);
    assert!(told.contains("--sandbox-id"), "{told}");
}

#[tokio::test]
async fn damage_is_found_and_told_with_what_it_affects() {
    let machine = Machine::fresh();
    let master = Master::serves(&machine, &[]).await;
    let noise: Vec<u8> = (0..200_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(machine.path().join("work/f"), noise).unwrap();
    asks(&machine, "work", &["log"]).await;
    let status = asks(&machine, "work", &["status"]).await;
    let state = machine.home().join("workspaces");
    let state = state.join(status["id"].as_str().unwrap());
    let length = |name: &str| fs::metadata(state.join(name)).unwrap().len();
    let database = length("history.db") + length("history.db-wal");
    assert_eq!(status["history"]["database_bytes"], json!(database));
    let stored = objects(&machine.home().join("cas"));
    let blocks = |path: &PathBuf| fs::metadata(path).unwrap().blocks();
    let taken = stored.iter().map(blocks).sum::<u64>() * 512;
    assert!(taken > 0);
    assert_eq!(status["history"]["store_bytes"], json!(taken));
    master.stops().await;
    for object in objects(&machine.home().join("cas")) {
        let mut bytes = fs::read(&object).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&object, bytes).unwrap();
    }
    let found = workspace(&machine, "work", &["verify", "--json"]).await;
    let report: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(report["damaged"][0]["versions"], json!(["f@1"]));
    found.fails(1);
}

fn objects(cas: &Path) -> Vec<PathBuf> {
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let is_shard = |dir: &&PathBuf| dir.is_dir() && dir.file_name().unwrap().len() == 2;
    list(cas)
        .iter()
        .filter(is_shard)
        .flat_map(|dir| list(dir))
        .collect()
}

#[tokio::test]
async fn the_past_is_a_folder() {
    let machine = Machine::fresh();
    let at = |path: &str| machine.path().join(path);
    let master = Master::serves(&machine, &[]).await;
    fs::create_dir_all(at("work/d")).unwrap();
    fs::write(at("work/d/f"), "before").unwrap();
    std::os::unix::fs::symlink("d/f", at("work/link")).unwrap();
    let first = asks(&machine, "work", &["checkpoint", "first"]).await;
    fs::write(at("work/d/f"), vec![b'x'; 3_000_000]).unwrap();
    asks(&machine, "work", &["log"]).await;
    let inside = workspace(&machine, "work", &["mount", "work/d"]).await;
    assert!(inside.fails(2).contains("its own past"));
    fs::create_dir(at("past")).unwrap();
    let words = ["workspace", "mount", "past", "--dir", "work"];
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = fuse {
        eprintln!("nothing was mounted: /dev/fuse can't be opened here ({error})");
        let told = machine.runs(&words).await.fails(1);
        assert!(told.contains("/dev/fuse can't be opened"), "{told}");
        return;
    }
    let mut mount = Running::start(machine.quintet(&[&words[..], &["--json"]].concat()));
    let told: Value = serde_json::from_str(&mount.line().await).unwrap();
    assert_eq!(
        told["mountpoint"],
        json!(at("past").canonicalize().unwrap())
    );
    assert_eq!(text(at("past/at/first/d/f")), "before");
    assert_eq!(text(at("past/at/first/link")), "before");
    let sequence = &first["sequence"];
    assert_eq!(text(at(&format!("past/at/{sequence}/d/f"))), "before");
    assert_eq!(fs::read(at("past/at/now/d/f")).unwrap().len(), 3_000_000);
    let listed = |path: &str| -> Vec<String> {
        let entries = fs::read_dir(at(path)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    };
    assert_eq!(listed("past"), ["at", "time"]);
    assert_eq!(listed("past/at/now"), ["d", "link"]);
    let when = first["at"].as_str().unwrap();
    assert_eq!(text(at(&format!("past/time/{when}/d/f"))), "before");
    assert!(!at("past/at/999").exists());
    assert!(fs::write(at("past/at/now/new"), "x").is_err());
    mount.signal(rustix::process::Signal::TERM);
    assert!(mount.ends().await.success());
    assert!(listed("past").is_empty(), "it is unmounted");
    master.stops().await;
}
