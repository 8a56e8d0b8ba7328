//! A folder and its copy, each kept by a process of its own, one of which is killed or refused at a
//! call by which it changes files.
//!
//! Files are written on both sides. A barrier that was passed is a promise: what was written before
//! it is on the other side, and stays there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command;

use crate::disk::{Errno, temporary};
use crate::harness::{Finished, Machine};
use crate::points::{self, Fault, Point, Steering};
use crate::process::{Ended, Process};
use crate::trials::{chosen, tries};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Master,
    Replica,
}

#[derive(Debug, Clone)]
struct Plan {
    side: Side,
    point: Point,
    fault: Fault,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}", self.side, self.fault, self.point)
    }
}

/// The two folders, `work` and `copy`.
struct Pair {
    machine: Machine,
    steering: Steering,
}

/// What was promised by barriers that were passed.
#[derive(Debug, Default)]
struct Told {
    sequence: u64,
    rounds: usize,
    refusals: Vec<String>,
}

/// What one round writes at the master, and what at the replica.
const ROUNDS: usize = 3;

impl Pair {
    fn new() -> Self {
        let machine = Machine::fresh();
        for folder in ["work/d", "copy"] {
            std::fs::create_dir_all(machine.path().join(folder)).unwrap();
        }
        for (name, text) in [("work/d/old", "old"), ("work/d/moved", "moved")] {
            std::fs::write(machine.path().join(name), text).unwrap();
        }
        Self {
            machine,
            steering: Steering::new(),
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.machine.path().join(path)
    }

    fn socket(&self) -> String {
        self.at("master.sock").to_str().unwrap().to_owned()
    }

    fn command(&self, side: Side, steer: Steer<'_>) -> Command {
        let socket = self.socket();
        let (words, home, folder): (&[&str], _, _) = match side {
            Side::Master => (
                &["workspace", "serve", "work", "--socket", &socket],
                self.machine.home(),
                self.at("work"),
            ),
            Side::Replica => (
                &[
                    "--home",
                    "there",
                    "workspace",
                    "mirror",
                    "copy",
                    "--connect",
                    &socket,
                    "--sandbox-id",
                    "copy",
                ],
                self.at("there"),
                self.at("copy"),
            ),
        };
        let under: [&Path; 2] = [&home, &folder];
        match steer {
            // Watched as well: a process under more filters than its peer counts as in a sandbox.
            Steer::Not => points::watched(&self.machine, &under, words),
            Steer::Record => self.steering.records(&self.machine, &under, words),
            Steer::Break(point, fault) => {
                self.steering
                    .breaks(&self.machine, &under, words, point, fault)
            }
        }
    }

    /// Starts a side; false when it did not come so far.
    async fn start(&self, side: Side, steer: Steer<'_>) -> (Process, bool) {
        let mut process = Process::start(self.command(side, steer));
        let ready = match side {
            Side::Master => process.says("is ready at").await,
            Side::Replica => process.says("is in sync at").await,
        };
        (process, ready)
    }

    async fn barrier(&self, patience: &str) -> Finished {
        let words = [
            "--home",
            "there",
            "workspace",
            "barrier",
            "--write-back",
            "--dir",
            "copy",
            "--json",
            "--timeout",
            patience,
        ];
        self.machine.runs(&words).await
    }

    /// Writes on both sides and waits until it is on the other, three times.
    async fn rounds(&self, told: &mut Told) {
        for round in 0..ROUNDS {
            self.write(round);
            let passed = self.barrier("6s").await;
            if passed.code != Some(0) {
                told.refusals.push(passed.stderr);
                return;
            }
            let json: serde_json::Value = serde_json::from_str(&passed.stdout).unwrap();
            let sequence = json["sequence"].as_u64().unwrap();
            assert!(sequence >= told.sequence, "a sequence went backwards");
            told.sequence = sequence;
            told.rounds = round + 1;
        }
    }

    fn write(&self, round: usize) {
        let write = |path: String, bytes: &[u8]| std::fs::write(self.at(&path), bytes).unwrap();
        write(
            format!("work/at-master-{round}"),
            format!("m{round}").as_bytes(),
        );
        write(
            format!("copy/at-replica-{round}"),
            format!("r{round}").as_bytes(),
        );
        match round {
            0 => {
                write("work/large".into(), &noise(1, 400_000));
                std::fs::create_dir_all(self.at("copy/made")).unwrap();
                write("copy/made/large".into(), &noise(2, 400_000));
            }
            1 => {
                // The copy has it once the first barrier is passed, and only then.
                let _ = std::fs::rename(self.at("copy/d/moved"), self.at("copy/d/here"));
                write("work/large".into(), &noise(3, 500_000));
                let script = self.at("copy/made/script");
                std::fs::write(&script, "#!/bin/sh\n").unwrap();
                std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            _ => {
                std::fs::remove_file(self.at("work/d/old")).unwrap();
                std::os::unix::fs::symlink("large", self.at("work/link")).unwrap();
                let _ = std::fs::remove_file(self.at("copy/made/large"));
            }
        }
    }

    /// Both sides without faults agree, and have what was promised.
    async fn agrees(&self, told: &Told) {
        let mut passed = self.barrier("20s").await;
        // A side that was out of reach is dialled again after half a minute at the most; and changes
        // of the master that nobody has looked at are not behind the first barrier.
        for _ in 0..2 {
            passed = self.barrier("20s").await;
            if passed.code == Some(0) {
                break;
            }
        }
        let json = passed.json();
        assert!(json["sequence"].as_u64().unwrap() >= told.sequence);
        let (work, copy) = (tree(&self.at("work")), tree(&self.at("copy")));
        assert_eq!(work, copy, "the trees differ");
        for round in 0..told.rounds {
            for (name, text) in [("at-master", "m"), ("at-replica", "r")] {
                let kept = &work[&PathBuf::from(format!("{name}-{round}"))];
                let text = format!("{text}{round}");
                assert!(kept.ends_with(&format!("{:?}", text.as_bytes())), "{kept}");
            }
        }
        if told.rounds == ROUNDS {
            assert!(work.contains_key(Path::new("d/here")) && work.contains_key(Path::new("link")));
            assert!(!work.contains_key(Path::new("d/old")));
        }
        let verified = ["workspace", "verify", "--dir", "work"];
        self.machine.runs(&verified).await.succeeds();
    }
}

/// How long a disk fails when nothing comes of it before.
const DISK_STAYS: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
enum Steer<'a> {
    Not,
    Record,
    Break(&'a Point, Fault),
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Names, modes and contents, without the program's own folder.
fn tree(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let name = path.strip_prefix(folder).unwrap().to_owned();
            if name == Path::new(".quintet") {
                continue;
            }
            let content = if kind.is_symlink() {
                format!("{:?}", std::fs::read_link(&path).unwrap())
            } else if kind.is_dir() {
                folders.push(path.clone());
                "folder".to_owned()
            } else {
                let bytes = std::fs::read(&path).unwrap();
                let shown = if bytes.len() < 100 { &bytes } else { &vec![] };
                format!("{:x} {shown:?}", fingerprint(&bytes))
            };
            let mode = entry.metadata().unwrap().permissions().mode();
            found.insert(name, format!("{mode:o} {content}"));
        }
    }
    found
}

fn fingerprint(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Starts both sides, one with a fault, and writes.
async fn runs(pair: &Pair, side: Side, steer: Steer<'_>) -> (Told, [Process; 2]) {
    let mut told = Told::default();
    let (for_master, for_replica) = match side {
        Side::Master => (steer, Steer::Not),
        Side::Replica => (Steer::Not, steer),
    };
    let (mut master, serves) = pair.start(Side::Master, for_master).await;
    let mut replica = Process::start(pair.command(Side::Replica, for_replica));
    // A replica dials until there is a master: where that is gone there is nothing to wait for.
    let follows = tokio::select! {
        ready = replica.says("is in sync at"), if serves => ready,
        () = master.dies() => false,
        // Nor on a disk that takes nothing.
        () = tokio::time::sleep(DISK_STAYS) => false,
    };
    if serves && follows {
        // A barrier of a replica whose master is gone would wait, and so would its next dial.
        tokio::select! {
            () = pair.rounds(&mut told) => {}
            () = master.dies() => {}
            () = replica.dies() => {}
        }
    }
    (told, [master, replica])
}

async fn recorded(side: Side) -> Vec<Point> {
    let pair = Pair::new();
    let (told, processes) = runs(&pair, side, Steer::Record).await;
    assert_eq!(told.rounds, ROUNDS, "{:?}", told.refusals);
    pair.agrees(&told).await;
    end_clean(&pair, processes).await;
    pair.steering.recorded()
}

/// Both processes, of which the one that is meant has ended and was started again.
async fn restarted(
    pair: &Pair,
    side: Side,
    [master, replica]: [Process; 2],
) -> ([Process; 2], Ended) {
    match side {
        Side::Master => {
            let ended = master.ends().await;
            let (master, ready) = pair.start(Side::Master, Steer::Not).await;
            if !ready {
                panic!("it does not start again: {:?}", master.ends().await);
            }
            ([master, replica], ended)
        }
        Side::Replica => {
            let ended = replica.ends().await;
            loop {
                let (replica, ready) = pair.start(Side::Replica, Steer::Not).await;
                if ready {
                    return ([master, replica], ended);
                }
                // The barrier that was cut off with it found nobody there and opened the folder
                // itself; it is killed, and gone a moment later.
                let said = replica.ends().await.stderr;
                assert!(said.contains("is in use by another program"), "{said}");
            }
        }
    }
}

/// Both end in order.
async fn end(processes: [Process; 2]) -> String {
    let mut said = String::new();
    for mut process in processes {
        process.signal(Signal::TERM);
        let ended = process.ends().await;
        assert!(ended.status.success(), "{ended:?}");
        said += &ended.stderr;
    }
    said
}

/// Both end in order and leave nothing unfinished.
async fn end_clean(pair: &Pair, processes: [Process; 2]) -> String {
    let said = end(processes).await;
    assert_eq!(temporary(pair.machine.path()), BTreeSet::new());
    said
}

async fn killed(plan: Plan) -> &'static str {
    let pair = Pair::new();
    let steer = Steer::Break(&plan.point, plan.fault);
    let (told, mut processes) = runs(&pair, plan.side, steer).await;
    processes[plan.side as usize].signal(Signal::TERM);
    let (processes, ended) = restarted(&pair, plan.side, processes).await;
    assert_eq!(
        pair.steering.hit(),
        ended.status.signal() == Some(9),
        "{ended:?}"
    );
    pair.agrees(&told).await;
    end_clean(&pair, processes).await;
    if pair.steering.hit() {
        "killed"
    } else {
        "not reached"
    }
}

async fn plans(faults: &[Fault]) -> Vec<Plan> {
    let mut plans = Vec::new();
    for side in [Side::Master, Side::Replica] {
        let points = recorded(side).await;
        eprintln!("faults: the {side:?} has {} points", points.len());
        for fault in faults {
            let points = points.iter().filter(|point| point.can(*fault));
            plans.extend(points.map(|point| Plan {
                side,
                point: point.clone(),
                fault: *fault,
            }));
        }
    }
    plans
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_a_folder_and_its_copy_agree_again() {
    let plans = plans(&[Fault::Kill, Fault::Tear]).await;
    tries(
        "kill -9 of a master or a replica",
        chosen(plans, 12),
        killed,
    )
    .await;
}

async fn refused(plan: Plan) -> &'static str {
    let (Fault::Once(errno) | Fault::Lasting(errno)) = plan.fault else {
        unreachable!("no fault of the disk")
    };
    let pair = Pair::new();
    let steer = Steer::Break(&plan.point, plan.fault);
    let (told, mut processes) = runs(&pair, plan.side, steer).await;
    let hit = pair.steering.hit();
    pair.steering.mend();
    if processes[plan.side as usize].lives() {
        pair.agrees(&told).await;
        let said = end(processes).await;
        // A disk that can't be written keeps what was to be removed; the next start does that.
        let (master, _) = pair.start(Side::Master, Steer::Not).await;
        let (replica, _) = pair.start(Side::Replica, Steer::Not).await;
        end_clean(&pair, [master, replica]).await;
        // A replica can't know what is wrong with its master's disk.
        let clear = |refusal: &String| errno.is_named_in(refusal) || errno.is_named_in(&said);
        let only_late = |refusal: &String| refusal.contains("not done within");
        for refusal in &told.refusals {
            assert!(
                clear(refusal) || only_late(refusal),
                "unclear: {refusal}: {said}"
            );
        }
        return match (hit, told.refusals.is_empty()) {
            (false, _) => "not reached",
            (true, true) => "not needed",
            (true, false) if told.refusals.iter().all(clear) => "refused with the reason",
            (true, false) => "only too late",
        };
    }
    let (processes, ended) = restarted(&pair, plan.side, processes).await;
    assert!(errno.is_named_in(&ended.stderr), "unclear: {ended:?}");
    pair.agrees(&told).await;
    end_clean(&pair, processes).await;
    "ended with the reason"
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_disk_that_fails_a_folder_and_its_copy_say_why_and_agree_afterwards() {
    for (row, errno) in [
        ("disk full under a master or a replica", Errno::Full),
        (
            "disk read-only under a master or a replica",
            Errno::ReadOnly,
        ),
        ("disk I/O errors under a master or a replica", Errno::Broken),
    ] {
        let plans = plans(&[Fault::Lasting(errno), Fault::Once(errno)]).await;
        tries(row, chosen(plans, 2), refused).await;
    }
}
