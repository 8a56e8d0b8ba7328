//! Trees and disks that are not as one would wish. None of it loses a byte.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::ffi::OsStr;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::process::{MASTER, Process, REPLICA};
use harness::{Host, noise, tree};
use quintet_workspace::history::LogQuery;
use quintet_workspace::master::OpenError;
use quintet_workspace::tree::{ProblemReason, Refused, TrackLimits};
use quintet_workspace::{Place, Replica, ReplicaConfig, Workspace, WorkspaceConfig};

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

/// Whoever looks at it next would record all of it.
#[test]
fn what_was_refused_has_not_become_a_workspace() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("project");
    fs::create_dir(&dir).unwrap();
    for name in ["a", "b"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let place = Place::of(home.path(), &dir).unwrap();
    let few = TrackLimits {
        max_entries: 1,
        ..TrackLimits::default()
    };
    let mut config = WorkspaceConfig::new(&dir, &place.state_dir, &place.cas_dir);
    config.limits = few.clone();
    let mut copy = ReplicaConfig::new(&dir, &place.state_dir, "one");
    copy.limits = few;
    for _ in 0..2 {
        let refused = Workspace::open(&config);
        assert!(matches!(refused, Err(OpenError::Refused(_))), "{refused:?}");
        let refused = Replica::open(&copy).map(|_| ());
        assert!(matches!(refused, Err(OpenError::Refused(_))), "{refused:?}");
        assert_eq!(place.role(), None);
    }
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
    // It is said no longer than it is so.
    fs::remove_file(dir.join(OsStr::from_bytes(b"caf\xe9"))).unwrap();
    fs::remove_file(dir.join("socket")).unwrap();
    fs::write(dir.join("socket"), "now a file").unwrap();
    mirror.agree().await;
    assert_eq!(host.workspace.status().await.unwrap().problems, []);
    assert!(mirror.dir.join("socket").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_changes_while_it_is_read_is_recorded_when_it_is_stable() {
    let host = Host::new().await;
    let mirror = host.mirror("one").await;
    let (path, done) = (host.dir().join("busy"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = fs::File::create(&path).unwrap();
            for round in 0..60 {
                file.seek(SeekFrom::Start(0)).unwrap();
                for _ in 0..300 {
                    file.write_all(&[round; 10_000]).unwrap();
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
    assert!(fs::read(mirror.dir.join("busy")).unwrap() == [59; 3_000_000]);
    // Whatever was recorded is a state that it had: the beginning of a round, and behind
    // it the end of the round before.
    let log = host.workspace.log(LogQuery::default()).await.unwrap();
    for entry in log {
        let shown = host.home.path().join("shown");
        let out = fs::File::create(&shown).unwrap();
        let show = host.workspace.show(entry.path, entry.sequence, out);
        show.await.unwrap();
        let bytes = fs::read(shown).unwrap();
        let first = bytes.first().copied().unwrap_or_default();
        let is_new = |byte: &&u8| **byte == first;
        let rest = &bytes[bytes.iter().take_while(is_new).count()..];
        let is_state = rest.iter().all(|byte| byte + 1 == first);
        assert!(is_state, "sequence {} was never so", entry.sequence);
    }
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
        let content = mirror.replica.conflict_content(conflict.id, Vec::new());
        kept.push(content.await.unwrap());
    }
    let log = host.workspace.log(LogQuery::default()).await.unwrap();
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

#[test]
fn a_tree_with_more_folders_than_may_be_watched_is_read_every_few_seconds() {
    let home = tempfile::tempdir().unwrap();
    let (work, one) = (home.path().join("work"), home.path().join("one"));
    for folder in 0..30 {
        let folder = work.join(folder.to_string());
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("f"), "first").unwrap();
    }
    let limited = |program: &str, name: &str| {
        let limit = "echo 8 > /proc/sys/user/max_inotify_watches";
        let command = format!("{limit} && exec {program} {} {name}", home.path().display());
        let mut process =
            Process::start(Command::new("unshare").args(["-Ur", "sh", "-c", &command]));
        (process.line() == "ready").then_some(process)
    };
    let (Some(mut master), Some(mut replica)) = (limited(MASTER, ""), limited(REPLICA, "one"))
    else {
        eprintln!("NOT TESTED: the number of watches can't be limited here");
        return;
    };
    replica.agree();
    assert_eq!(tree(&work), tree(&one));
    master.tell("");
    let told = master.line();
    assert!(told.contains("watched folders was reached at 8"), "{told}");
    assert!(
        told.contains("sudo sysctl fs.inotify.max_user_watches="),
        "{told}"
    );
    // Nobody asks either side to look.
    let changes = [(&work, &one, "7/f", "there"), (&one, &work, "29/f", "here")];
    for (from, to, path, text) in changes {
        fs::write(from.join(path), text).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while fs::read_to_string(to.join(path)).unwrap() != text {
            assert!(
                std::time::Instant::now() < deadline,
                "{path} was never read"
            );
            std::thread::yield_now();
        }
    }
}

/// A program of the crash test with small disks of its own under `home`. `None`
/// where the kernel lets us make none in any way.
fn on_small_disks(
    program: &str,
    home: &Path,
    name: &str,
    disks: &[(&str, &str)],
) -> Option<Process> {
    let home_name = home.to_str().unwrap();
    let mounts: String = disks
        .iter()
        .map(|(dir, size)| {
            format!("mkdir -p {home_name}/{dir} && mount -t tmpfs -o size={size} none {home_name}/{dir} && ")
        })
        .collect();
    let command = format!("{mounts} exec {program} {home_name} {name}");
    // Without namespaces of users, root can still have one of mounts.
    for how in ["-Urm", "-m"] {
        let mut process = Process::start(Command::new("unshare").args([how, "sh", "-c", &command]));
        if process.line() == "ready" {
            return Some(process);
        }
    }
    eprintln!("NOT TESTED: no small disk can be made here, by users nor by root");
    None
}

/// A path as another program sees it.
fn seen_by(process: &Process, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", process.id(), path.display()))
}

#[test]
fn a_full_disk_at_the_replica_loses_nothing_and_passes() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("work")).unwrap();
    let _master = Process::end(MASTER, home.path(), "");
    let Some(mut replica) = on_small_disks(REPLICA, home.path(), "one", &[("one", "3m")]) else {
        return;
    };
    let mirror = seen_by(&replica, &home.path().join("one"));
    fs::write(mirror.join("mine"), "written here").unwrap();
    replica.agree();
    fs::write(home.path().join("work/large"), noise("large", 8_000_000)).unwrap();
    replica.tell("failure");
    let failure = replica.line();
    assert!(failure.starts_with("No space left"), "{failure}");
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
    let Some(mut master) = on_small_disks(MASTER, home.path(), "", &disks) else {
        return;
    };
    let filler = seen_by(&master, &home.path().join("cas/filler"));
    fs::write(&filler, vec![0; 3_900_000]).unwrap();
    let mut replica = Process::end(REPLICA, home.path(), "one");
    let written = noise("large", 2_000_000);
    fs::write(home.path().join("one/large"), &written).unwrap();
    fs::write(home.path().join("one/small"), "small").unwrap();
    assert_eq!(master.line(), "the disk is full");
    // The replica tries again and again; when there is room, it is taken.
    fs::remove_file(&filler).unwrap();
    replica.agree();
    let work = seen_by(&master, &home.path().join("work"));
    assert!(fs::read(work.join("large")).unwrap() == written);
    assert_eq!(tree(&work), tree(&home.path().join("one")));
}

#[test]
fn a_large_file_passes_through_little_memory() {
    use std::os::unix::fs::{FileExt, MetadataExt};

    const SIZE: u64 = 5 << 30;
    let home = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    fs::create_dir(home.path().join("work")).unwrap();
    // Mostly a hole, so that no disk has to take 5 GiB: it is read, cut, hashed
    // and listed like any other bytes. Here and there it holds something.
    let file = fs::File::create(home.path().join("work/large")).unwrap();
    file.set_len(SIZE).unwrap();
    let written: Vec<(u64, Vec<u8>)> = (0..16)
        .map(|part: u64| {
            (
                part * (SIZE / 16) + 12_345,
                noise(&part.to_string(), 4 << 20),
            )
        })
        .collect();
    for (offset, bytes) in &written {
        file.write_all_at(bytes, *offset).unwrap();
    }
    drop(file);
    let master = Process::end(MASTER, home.path(), "");
    let mut replica = Process::end(REPLICA, home.path(), "one");
    replica.agree();
    let copy = fs::File::open(home.path().join("one/large")).unwrap();
    let metadata = copy.metadata().unwrap();
    assert_eq!(metadata.len(), SIZE);
    assert!(metadata.blocks() * 512 < SIZE / 16, "holes stay holes");
    for (offset, bytes) in &written {
        let mut there = vec![1; bytes.len()];
        copy.read_exact_at(&mut there, *offset).unwrap();
        assert!(there == *bytes, "at {offset}");
    }
    for (name, peak) in [
        ("master", master.peak_memory()),
        ("replica", replica.peak_memory()),
    ] {
        eprintln!("{name}: {} MiB at most", peak >> 20);
        assert!(peak < 256 << 20, "{name} took {} MiB", peak >> 20);
    }
}

/// Counts what is written to it.
#[derive(Default)]
struct Counter(u64);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_conflict_passes_through_little_memory() {
    const SIZE: u64 = 512 << 20;
    const LITTLE: u64 = 128 << 20;
    let host = Host::new().await;
    fs::write(host.dir().join("f"), "base").unwrap();
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    mirror.stop().await;
    // A hole, which is read, cut and hashed like any other bytes.
    let large = fs::File::create(host.home.path().join("one/f")).unwrap();
    large.set_len(SIZE).unwrap();
    fs::write(host.dir().join("f"), "theirs").unwrap();
    host.workspace.flush().await.unwrap();
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    let id = mirror.replica.conflicts().await.unwrap()[0].id;

    harness::process::forget_peak_memory();
    let counter = mirror.replica.conflict_content(id, Counter::default());
    assert_eq!(counter.await.unwrap().0, SIZE);
    let peak = harness::process::peak_memory_of("self");
    assert!(peak < LITTLE, "to show it took {} MiB", peak >> 20);
    mirror.replica.take_conflict(id).await.unwrap();
    let peak = harness::process::peak_memory_of("self");
    assert!(peak < LITTLE, "to take it took {} MiB", peak >> 20);
    mirror.agree().await;
    assert_eq!(fs::metadata(host.dir().join("f")).unwrap().len(), SIZE);
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

#[tokio::test(flavor = "multi_thread")]
async fn clocks_that_jump_hide_no_change() {
    use std::time::{Duration, SystemTime};

    let host = Host::new().await;
    let dir = host.dir();
    let day = Duration::from_secs(86_400);
    let future = SystemTime::now() + 3650 * day;
    let past = SystemTime::UNIX_EPOCH + day;
    let write = |path: &Path, text: &str, time: SystemTime| {
        fs::write(path, text).unwrap();
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_modified(time).unwrap();
    };
    write(&dir.join("future"), "one", future);
    write(&dir.join("past"), "one", past);
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    // The same size and the same time, with other bytes.
    write(&dir.join("future"), "two", future);
    write(&dir.join("past"), "two", past);
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));
    // The clock was set back: what comes later has an earlier time.
    write(&dir.join("future"), "six", past);
    write(&mirror.dir.join("past"), "ten", SystemTime::UNIX_EPOCH);
    mirror.agree().await;
    assert_eq!(fs::read_to_string(dir.join("past")).unwrap(), "ten");
    assert_eq!(
        fs::read_to_string(mirror.dir.join("future")).unwrap(),
        "six"
    );
    // While nobody watches, too.
    let home = host.stop().await;
    write(&home.path().join("work/future"), "new", future);
    write(&home.path().join("work/past"), "old", past);
    let host = Host::open(home).await;
    mirror.agree().await;
    assert_eq!(tree(&host.dir()), tree(&mirror.dir));
}

/// The two ends run as somebody whom permissions bind: root may read everything.
struct Bound {
    home: tempfile::TempDir,
    user: Option<u32>,
}

impl Bound {
    const NOBODY: u32 = 65_534;

    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let is_root = rustix::process::geteuid().is_root();
        // Where the programs were built may be out of another user's reach.
        for program in [MASTER, REPLICA] {
            let name = Path::new(program).file_name().unwrap();
            fs::copy(program, home.path().join(name)).unwrap();
        }
        Self {
            home,
            user: is_root.then_some(Self::NOBODY),
        }
    }

    /// Gives everything to whoever the programs run as.
    fn hand_over(&self, paths: &[&str]) {
        for path in paths.iter().chain(&["."]) {
            let path = self.home.path().join(path);
            std::os::unix::fs::chown(path, self.user, self.user).unwrap();
        }
    }

    fn start(&self, program: &str, name: &str) -> Process {
        use std::os::unix::process::CommandExt;

        let program = self
            .home
            .path()
            .join(Path::new(program).file_name().unwrap());
        let mut command = Command::new(program);
        command.arg(self.home.path()).arg(name);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let mut process = Process::start(&mut command);
        assert_eq!(process.line(), "ready");
        process
    }
}

#[test]
fn what_may_not_be_read_is_left_alone_and_comes_when_it_may() {
    use std::os::unix::fs::PermissionsExt;

    let bound = Bound::new();
    let (work, one) = (
        bound.home.path().join("work"),
        bound.home.path().join("one"),
    );
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    fs::create_dir_all(work.join("closed")).unwrap();
    let names = ["open", "secret", "late", "closed/inside"];
    for name in names {
        fs::write(work.join(name), name).unwrap();
    }
    bound.hand_over(&["work", "work/closed"]);
    bound.hand_over(
        &names
            .map(|name| format!("work/{name}"))
            .each_ref()
            .map(String::as_str),
    );
    mode(&work.join("secret"), 0);
    mode(&work.join("closed"), 0);
    let master = bound.start(MASTER, "");
    let mut replica = bound.start(REPLICA, "one");
    replica.agree();
    assert_eq!(fs::read_to_string(one.join("open")).unwrap(), "open");
    assert!(!one.join("secret").exists() && !one.join("closed/inside").exists());
    mode(&work.join("secret"), 0o600);
    mode(&work.join("closed"), 0o700);
    replica.agree();
    assert_eq!(tree(&work), tree(&one));

    // What was read once and may not be any more is not taken for removed; its
    // mode is followed.
    fs::write(work.join("open"), "changed and closed").unwrap();
    mode(&work.join("open"), 0);
    mode(&work.join("late"), 0);
    mode(&work.join("closed"), 0);
    replica.agree();
    for name in ["open", "late"] {
        assert!(one.join(name).exists(), "{name}");
    }
    let late = fs::metadata(one.join("late")).unwrap();
    assert_eq!((late.permissions().mode() & 0o777, late.len()), (0, 4));

    // Neither does a start take it for removed.
    drop((master, replica));
    let _master = bound.start(MASTER, "");
    let mut replica = bound.start(REPLICA, "one");
    replica.agree();
    for name in ["open", "late"] {
        assert!(one.join(name).exists(), "{name}");
    }
    for (name, bits) in [("open", 0o644), ("late", 0o640), ("closed", 0o700)] {
        mode(&work.join(name), bits);
    }
    replica.agree();
    assert_eq!(
        fs::read_to_string(one.join("open")).unwrap(),
        "changed and closed"
    );
    assert_eq!(
        fs::read_to_string(one.join("closed/inside")).unwrap(),
        "closed/inside"
    );
    assert_eq!(tree(&work), tree(&one));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_and_content_are_their_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::new().await;
    let mirror = host.mirror("copy").await;
    for folder in [
        &host.home.path().join("state"),
        &host.home.path().join("cas"),
        &mirror.state_dir,
    ] {
        let mode = fs::metadata(folder).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{}", folder.display());
    }
}
