//! Trees and disks that are not as one would wish. None of it loses a byte.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Host, noise, tree};
use quintet_workspace::master::OpenError;
use quintet_workspace::tree::{ProblemReason, Refused, TrackLimits};
use quintet_workspace::{Workspace, WorkspaceConfig};

fn open(dir: &Path, limits: TrackLimits) -> Result<Workspace, OpenError> {
    let state = tempfile::tempdir().unwrap();
    let mut config = WorkspaceConfig::new(dir, state.path().join("s"), state.path().join("c"));
    config.limits = limits;
    Workspace::open(&config)
}

#[test]
fn what_nobody_means_to_track_is_refused_before_it_is_read() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("project");
    fs::create_dir(&dir).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(dir.join(name), "12345").unwrap();
    }
    let limits = || TrackLimits {
        home: Some(home.path().to_owned()),
        ..TrackLimits::default()
    };
    let refused = |result: Result<Workspace, OpenError>| match result {
        Err(OpenError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert!(matches!(
        refused(open(Path::new("/"), limits())),
        Refused::Root { .. }
    ));
    assert!(matches!(
        refused(open(home.path(), limits())),
        Refused::Home { .. }
    ));
    let above = home.path().parent().unwrap();
    assert!(matches!(
        refused(open(above, limits())),
        Refused::Home { .. }
    ));
    let few = TrackLimits {
        max_entries: 2,
        ..limits()
    };
    assert!(matches!(
        refused(open(&dir, few.clone())),
        Refused::TooMany { limit: 2, .. }
    ));
    let small = TrackLimits {
        max_bytes: 14,
        ..limits()
    };
    assert!(matches!(
        refused(open(&dir, small)),
        Refused::TooLarge { limit: 14, .. }
    ));
    let told_to = TrackLimits {
        allow_anything: true,
        ..few.clone()
    };
    assert!(open(&dir, told_to).is_ok());
    fs::write(dir.join(".quintetignore"), "b\nc\n").unwrap();
    assert!(open(&dir, few).is_ok(), "what is ignored does not count");
}

#[test]
fn a_state_folder_inside_the_workspace_is_refused_and_so_is_a_second_program() {
    let home = tempfile::tempdir().unwrap();
    let config = WorkspaceConfig::new(
        home.path(),
        home.path().join("state"),
        home.path().join("cas"),
    );
    assert!(matches!(
        Workspace::open(&config),
        Err(OpenError::StateInside { .. })
    ));
    let state = tempfile::tempdir().unwrap();
    let config = WorkspaceConfig::new(home.path(), state.path(), state.path().join("cas"));
    let _first = Workspace::open(&config).unwrap();
    assert!(matches!(
        Workspace::open(&config),
        Err(OpenError::InUse { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_replicated_is_reported_once_and_left_alone() {
    let host = Host::new().await;
    let dir = host.dir();
    fs::write(dir.join(OsStr::from_bytes(b"caf\xe9")), "latin").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    fs::write(dir.join("good"), "good").unwrap();
    fs::write(dir.join(".quintetignore"), "target/\n*.log\n").unwrap();
    fs::create_dir(dir.join("target")).unwrap();
    fs::write(dir.join("target/x"), "not sent").unwrap();
    fs::write(dir.join("y.log"), "not sent").unwrap();
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    mirror.agree().await;
    let names: Vec<String> = tree(&mirror.dir).into_keys().collect();
    assert_eq!(names, [".quintetignore", "good"]);
    let problems = host.workspace.status().await.unwrap().problems;
    let reasons: Vec<_> = problems
        .iter()
        .map(|problem| problem.reason.clone())
        .collect();
    assert_eq!(reasons.len(), 2, "{problems:?}");
    assert!(
        reasons.contains(&ProblemReason::NameNotUtf8)
            && reasons.contains(&ProblemReason::SpecialFile)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_is_recorded_when_it_is_stable() {
    let host = Host::new().await;
    let mirror = host.mirror("one").await;
    let (path, done) = (host.dir().join("busy"), AtomicBool::new(false));
    let versions: Vec<Vec<u8>> = (0..2u8).map(|byte| vec![byte; 3_000_000]).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::File::create(&path).unwrap();
            for round in 0..60 {
                file.seek(SeekFrom::Start(0)).unwrap();
                for part in versions[round % 2].chunks(10_000) {
                    file.write_all(part).unwrap();
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(host.workspace.flush())
            })
            .unwrap();
        }
    });
    mirror.agree().await;
    assert!(fs::read(mirror.dir.join("busy")).unwrap() == versions[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_writes_where_the_master_is_about_to() {
    let host = Host::new().await;
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    for round in 0..40 {
        fs::write(host.dir().join("f"), format!("master {round}")).unwrap();
        fs::write(mirror.dir.join("f"), format!("replica {round}")).unwrap();
        mirror.agree().await;
    }
    mirror.agree().await;
    assert_eq!(tree(&host.dir()), tree(&mirror.dir));
    // Every version is somewhere: in the history, or kept as a conflict.
    let mut kept: Vec<Vec<u8>> = Vec::new();
    for conflict in mirror.replica.conflicts().await.unwrap() {
        kept.push(mirror.replica.conflict_content(conflict.id).await.unwrap());
    }
    let log = host
        .workspace
        .log(quintet_workspace::history::LogQuery::default())
        .await
        .unwrap();
    for round in 0..40 {
        let written = format!("replica {round}").into_bytes();
        let hash = quintet_workspace::proto::ContentHash::of(&written);
        let recorded = log
            .iter()
            .any(|entry| entry.node.as_ref().is_some_and(|node| node.hash == hash));
        assert!(recorded || kept.contains(&written), "round {round} is lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn polling_finds_everything_too() {
    let home = tempfile::tempdir().unwrap();
    let host = Host::open_with(home, |config| {
        config.poll_instead = Some("as a test".into());
    })
    .await;
    let mirror = host.mirror("one").await;
    fs::create_dir_all(host.dir().join("a/b")).unwrap();
    fs::write(host.dir().join("a/b/c"), "found by looking").unwrap();
    mirror.agree().await;
    assert_eq!(tree(&host.dir()), tree(&mirror.dir));
}

/// The programs of the crash test, with a small disk of their own under `HOME`.
struct Small {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Small {
    /// `None` where the kernel does not let us make a small disk.
    fn start(program: &str, home: &Path, name: &str, disks: &[(&str, &str)]) -> Option<Self> {
        let home_name = home.to_str().unwrap();
        let mounts: String = disks
            .iter()
            .map(|(dir, size)| format!("mkdir -p {home_name}/{dir} && mount -t tmpfs -o size={size} none {home_name}/{dir} && "))
            .collect();
        let mut child = Command::new("unshare")
            .args([
                "-Urm",
                "sh",
                "-c",
                &format!("{mounts} exec {program} {home_name} {name}"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let (input, output) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        let mut small = Self {
            child,
            input,
            output,
        };
        if small.line() != "ready" {
            eprintln!("no small disk can be made here");
            return None;
        }
        Some(small)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// A path as this program sees it.
    fn inside(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.child.id(), path.display()))
    }

    fn agree(&mut self) {
        self.input.write_all(b"\n").unwrap();
        let line = self.line();
        assert!(line.contains(' '), "it said {line:?}");
    }

    fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            << 10
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

const MASTER: &str = env!("CARGO_BIN_EXE_crash-master");
const REPLICA: &str = env!("CARGO_BIN_EXE_crash-replica");

#[test]
fn a_full_disk_at_the_replica_loses_nothing_and_passes() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("work")).unwrap();
    let Some(_master) = Small::start(MASTER, home.path(), "", &[]) else {
        return;
    };
    let Some(mut replica) = Small::start(REPLICA, home.path(), "one", &[("one", "3m")]) else {
        return;
    };
    let mirror = replica.inside(&home.path().join("one"));
    fs::write(mirror.join("mine"), "written here").unwrap();
    replica.agree();
    fs::write(home.path().join("work/large"), noise("large", 8_000_000)).unwrap();
    fs::write(home.path().join("work/small"), "still comes").unwrap();
    let deadline = std::time::Instant::now() + harness::LONG;
    while fs::read_to_string(mirror.join("small")).ok().as_deref() != Some("still comes") {
        assert!(
            std::time::Instant::now() < deadline,
            "a full disk must not stop what fits"
        );
        std::thread::yield_now();
    }
    assert!(!mirror.join("large").exists(), "half a file is never shown");
    assert_eq!(
        fs::read_to_string(mirror.join("mine")).unwrap(),
        "written here"
    );
    fs::write(home.path().join("work/large"), "now it fits").unwrap();
    replica.agree();
    assert_eq!(
        fs::read_to_string(mirror.join("large")).unwrap(),
        "now it fits"
    );
    assert_eq!(tree(&home.path().join("work")), tree(&mirror));
}

#[test]
fn a_full_disk_at_the_master_loses_nothing_and_passes() {
    let home = tempfile::tempdir().unwrap();
    let disks = [("work", "64m"), ("cas", "4m")];
    let Some(master) = Small::start(MASTER, home.path(), "", &disks) else {
        return;
    };
    let filler = master.inside(&home.path().join("cas/filler"));
    fs::write(&filler, vec![0; 3_900_000]).unwrap();
    let Some(mut replica) = Small::start(REPLICA, home.path(), "one", &[]) else {
        return;
    };
    let written = noise("large", 2_000_000);
    fs::write(home.path().join("one/large"), &written).unwrap();
    fs::write(home.path().join("one/small"), "small").unwrap();
    // The replica tries again and again; when there is room, it is taken.
    fs::remove_file(&filler).unwrap();
    replica.agree();
    let work = master.inside(&home.path().join("work"));
    assert!(fs::read(work.join("large")).unwrap() == written);
    assert_eq!(tree(&work), tree(&home.path().join("one")));
}

#[test]
fn a_large_file_passes_through_little_memory() {
    const SIZE: u64 = 600 << 20;
    let home = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    fs::create_dir(home.path().join("work")).unwrap();
    // Mostly a hole, so that the test moves little; what is read is the same.
    let file = fs::File::create(home.path().join("work/large")).unwrap();
    file.set_len(SIZE).unwrap();
    drop(file);
    let Some(master) = Small::start(MASTER, home.path(), "", &[]) else {
        return;
    };
    let Some(mut replica) = Small::start(REPLICA, home.path(), "one", &[]) else {
        return;
    };
    replica.agree();
    assert_eq!(
        fs::metadata(home.path().join("one/large")).unwrap().len(),
        SIZE
    );
    for (name, peak) in [
        ("master", master.peak_memory()),
        ("replica", replica.peak_memory()),
    ] {
        eprintln!("{name}: {} MiB at most", peak >> 20);
        assert!(peak < 256 << 20, "{name} took {} MiB", peak >> 20);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_files() {
    let home = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    for folder in 0..100 {
        let dir = home.path().join(format!("work/{folder}"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..1_000 {
            fs::write(dir.join(file.to_string()), format!("{folder} {file}")).unwrap();
        }
    }
    let start = std::time::Instant::now();
    let host = Host::open(home).await;
    eprintln!("opened after {:?}", start.elapsed());
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    eprintln!("in place after {:?}", start.elapsed());
    assert_eq!(host.workspace.status().await.unwrap().files, 100_000);
    assert_eq!(tree(&host.dir()), tree(&mirror.dir));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_on_ten_thousand_files() {
    let home = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    for folder in 0..100 {
        let dir = home.path().join(format!("work/{folder}"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..100 {
            fs::write(dir.join(file.to_string()), format!("{folder} {file}")).unwrap();
        }
    }
    let host = Host::open(home).await;
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    let mut times = Vec::new();
    for round in 0..200 {
        fs::write(host.dir().join("7/7"), format!("round {round}")).unwrap();
        let start = std::time::Instant::now();
        mirror.replica.barrier(harness::LONG).await.unwrap();
        times.push(start.elapsed());
        let here = fs::read_to_string(mirror.dir.join("7/7")).unwrap();
        assert_eq!(
            here,
            format!("round {round}"),
            "what was written before a barrier is there after it"
        );
    }
    times.sort_unstable();
    eprintln!(
        "barrier behind a write: p50 {:?}, p99 {:?}",
        times[100], times[198]
    );
}
