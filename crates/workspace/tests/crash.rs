//! Either side is killed at random moments while files change. After the
//! restart the trees converge, what was acknowledged is there, no temporary
//! file is left, and everything can be read back.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::fs;
use std::path::Path;
use std::time::Duration;

use harness::process::{MASTER, Process, REPLICA};
use harness::{noise, temporary_files, tree};
use quintet_workspace::history::{LogEntry, LogQuery};
use quintet_workspace::{Workspace, WorkspaceConfig};

/// How often something is killed.
const KILLS: u32 = 200;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Changes something in a folder, as a person or a program would.
fn change(dir: &Path, dice: &mut Dice, round: u32) {
    let name = |dice: &mut Dice| {
        dir.join(format!("d{}", dice.roll(3)))
            .join(format!("f{}", dice.roll(8)))
    };
    let path = name(dice);
    drop(fs::create_dir_all(path.parent().unwrap()));
    // Whatever does not fit the tree at this moment is skipped, as by a person.
    match dice.roll(10) {
        0..=4 => drop(fs::write(
            &path,
            format!("{round} {}", dice.roll(1_000_000)),
        )),
        5 => drop(fs::write(
            &path,
            noise(&round.to_string(), 10_000 + dice.roll(2_000_000) as usize),
        )),
        6 => drop(fs::remove_file(&path)),
        7 => drop(fs::rename(&path, name(dice))),
        8 => drop(fs::remove_dir_all(path.parent().unwrap())),
        _ => drop(fs::rename(
            path.parent().unwrap(),
            dir.join(format!("d{}", dice.roll(5))),
        )),
    }
}

#[test]
fn killed_at_any_moment_nothing_is_lost() {
    let seed = std::env::var("QUINTET_CRASH_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            u64::from(now.subsec_nanos())
        });
    eprintln!("QUINTET_CRASH_SEED={seed}");
    let mut dice = Dice(seed);
    let home = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let (work, mirror) = (home.path().join("work"), home.path().join("one"));
    fs::create_dir_all(&work).unwrap();
    fs::create_dir_all(&mirror).unwrap();
    let start_master = || Process::end(MASTER, home.path(), "");
    let start_replica = || Process::end(REPLICA, home.path(), "one");
    let (mut master, mut replica) = (start_master(), start_replica());
    let mut acknowledged = 0;
    let mut written: Vec<String> = Vec::new();
    for round in 0..KILLS {
        for _ in 0..dice.roll(4) {
            change(&work, &mut dice, round);
        }
        for _ in 0..dice.roll(4) {
            change(&mirror, &mut dice, round);
        }
        // The moment itself is what is random here; nothing is waited for.
        let moment = std::time::Instant::now() + Duration::from_micros(dice.roll(30_000));
        while std::time::Instant::now() < moment {
            std::hint::spin_loop();
        }
        if dice.roll(2) == 0 {
            master.kill();
            master = start_master();
            // It dials again only after a second; a new one does so at once.
            replica.kill();
        } else {
            replica.kill();
        }
        replica = start_replica();
        if round % 20 == 19 {
            let name = format!("acknowledged/{round}");
            fs::create_dir_all(mirror.join("acknowledged")).unwrap();
            fs::write(mirror.join(&name), &name).unwrap();
            written.push(name);
            let sequence = replica.agree().max(replica.agree());
            assert!(sequence >= acknowledged, "a sequence went backwards");
            acknowledged = sequence;
            assert_eq!(tree(&work), tree(&mirror), "round {round}");
            for name in &written {
                assert_eq!(&fs::read_to_string(work.join(name)).unwrap(), name);
            }
        }
    }
    replica.agree();
    replica.agree();
    assert_eq!(tree(&work), tree(&mirror));
    replica.kill();
    master.kill();
    let config = WorkspaceConfig::new(&work, home.path().join("state"), home.path().join("cas"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let workspace = Workspace::open(&config).unwrap();
    let report = runtime.block_on(workspace.verify()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let log = runtime
        .block_on(workspace.log(LogQuery::default()))
        .unwrap();
    for name in &written {
        let recorded = |entry: &LogEntry| entry.path.as_str() == name && entry.author == "one";
        assert!(log.iter().any(recorded), "{name} was acknowledged");
    }
    assert!(temporary_files(&work).is_empty());
    assert_eq!(
        fs::read_dir(home.path().join("cas/tmp")).unwrap().count(),
        0
    );
    drop(start_replica());
    assert!(temporary_files(&mirror).is_empty());
}
