//! Tokens, certificates and confinement.

use std::path::Path;
use std::sync::Arc;

use quintet_sandbox::hub::{ExecEvent, ExecOutcome, ExecRequest, HubEvent, HubSettings};
use quintet_sandbox::isolate::{
    Feature, HelperCommand, IsolationConfig, Limits, Network, probe, seccomp, temp_beside,
};
use quintet_sandbox::proto::{Fingerprint, Token};
use quintet_sandbox::tls;
use quintet_sandbox::worker::{ConnectionState, Worker, WorkerConfig};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::bed::{Bed, TestAuth, soon};
use crate::commands::{command, run, text};
use crate::shells::start;

async fn strict_bed(tls: Option<Arc<rustls::ServerConfig>>) -> Bed {
    let auth = TestAuth {
        strict: true,
        ..TestAuth::default()
    };
    Bed::custom(HubSettings::default(), auth, tls).await
}

/// Runs a worker until its first try ended, and says how.
async fn first_failure(config: WorkerConfig) -> String {
    let worker = Worker::start(config).await.unwrap();
    let mut state = worker.connection();
    let shutdown = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(worker.run(shutdown.clone()));
    let failed = soon("the failure", async {
        state
            .wait_for(|state| matches!(state, ConnectionState::Failed(_)))
            .await
            .unwrap()
            .clone()
    })
    .await;
    shutdown.cancel();
    tasks.join_next().await;
    match failed {
        ConnectionState::Failed(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_token_lets_one_worker_in_until_it_is_revoked() {
    let bed = strict_bed(None).await;
    let token = Token::mint(tls::random_secret().unwrap(), None);
    bed.auth
        .tokens
        .lock()
        .unwrap()
        .insert("w".to_owned(), token.hash("w"));

    let reason = first_failure(bed.config("w")).await;
    assert!(reason.contains("token"), "{reason}");
    let mut other = bed.config("other");
    other.token = Some(token.clone());
    let reason = first_failure(other).await;
    assert!(reason.contains("not valid for other"), "{reason}");

    let mut config = bed.config("w");
    config.token = Some(token);
    let _worker = bed.worker_with(config).await;
    bed.auth.tokens.lock().unwrap().clear();
    bed.hub.disconnect("w", "the token was revoked");
    soon("it is refused", async {
        while !bed.events().iter().any(|event| {
            matches!(event, HubEvent::WorkerRefused { worker, reason, .. }
                if worker == "w" && reason.contains("not valid"))
        }) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let refused = bed
        .events()
        .into_iter()
        .filter(|event| matches!(event, HubEvent::WorkerRefused { .. }));
    assert!(refused.count() >= 3);
}

#[tokio::test]
async fn a_token_that_is_taken_back_while_its_worker_registers_lets_nobody_in() {
    let bed = strict_bed(None).await;
    let token = Token::mint(tls::random_secret().unwrap(), None);
    let entry = ("w".to_owned(), token.hash("w"));
    bed.auth.tokens.lock().unwrap().extend([entry]);
    // Taken back after the first look found it good and before anybody can find the worker.
    *bed.auth.revoke_after.lock().unwrap() = Some(1);
    let mut config = bed.config("w");
    config.token = Some(token);
    let _worker = crate::bed::Running::start(config).await;
    soon("it is thrown out", async {
        while !bed.events().iter().any(|event| {
            matches!(event, HubEvent::WorkerOffline { worker, reason }
                if worker == "w" && reason.contains("not valid"))
        }) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_token_carries_the_fingerprint_of_a_self_signed_certificate() {
    let made = tls::self_signed(vec!["quintet".to_owned()]).unwrap();
    let server = tls::server(&made.certificate_pem, &made.key_pem).unwrap();
    let fingerprint = tls::fingerprint_of_pem(&made.certificate_pem).unwrap();
    let bed = strict_bed(Some(server)).await;
    let token = Token::mint(tls::random_secret().unwrap(), Some(fingerprint));
    bed.auth
        .tokens
        .lock()
        .unwrap()
        .insert("w".to_owned(), token.hash("w"));
    let mut config = bed.config("w");
    config.token = Some(Token::parse(&token.expose()).unwrap());
    let _worker = bed.worker_with(config.clone()).await;
    assert_eq!(run(&bed, "w", command("echo safe")).await.stdout, b"safe\n");

    config.daemon_id = "w2".to_owned();
    config.spool_dir = bed.dir.path().join("spool-w2");
    config.token = Some(Token::mint([1; 32], Some(Fingerprint([1; 32]))));
    let reason = first_failure(config).await;
    assert!(reason.contains("another certificate"), "{reason}");
    assert!(reason.contains("quintet token create"), "{reason}");
}

fn isolation(limits: Limits, network: Network) -> IsolationConfig {
    IsolationConfig {
        helper: HelperCommand {
            program: env!("CARGO_BIN_EXE_sandbox-peer").into(),
            args: vec!["isolate-exec".to_owned()],
        },
        confine: true,
        network,
        read: Vec::new(),
        write: Vec::new(),
        temp: "/tmp".into(),
        limits,
    }
}

#[test]
fn the_probe_names_every_means_and_its_state() {
    let features = probe(Network::Off);
    let names: Vec<&str> = features
        .iter()
        .map(|feature| feature.name.as_str())
        .collect();
    for name in [
        "capabilities",
        "no_new_privs",
        "landlock",
        "seccomp",
        "rlimits",
        "cgroup.memory",
        "cgroup.pids",
        "cgroup.cpu",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    for feature in &features {
        let whole = feature.available && !feature.detail.contains("in part");
        assert_eq!(whole, feature.fix.is_empty(), "{feature:?}");
    }
    // The probe confines a thread of its own, not this one.
    std::fs::write(tempfile::tempdir().unwrap().path().join("x"), b"x").unwrap();
    assert!(std::fs::read_dir("/root").is_ok() || rustix::process::geteuid().as_raw() != 0);
}

#[tokio::test]
async fn commands_are_killed_for_want_of_memory_before_what_starts_them() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let _worker = bed.worker_with(config).await;
    for _ in 0..2 {
        // What starts it takes the score back while it begins to run.
        let line = "until [ $(cat /proc/$PPID/oom_score_adj) -lt 500 ]; do :; done; \
                    cat /proc/self/oom_score_adj /proc/$PPID/oom_score_adj";
        let output = run(&bed, "w", command(line)).await;
        let scores = text(&output.stdout).lines();
        let scores: Vec<i32> = scores.map(|score| score.parse().unwrap()).collect();
        assert!(scores[0] > scores[1] + 100, "{scores:?}");
    }
}

#[tokio::test]
async fn what_a_helper_ran_that_was_killed_is_dead_too() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let root = config.root.clone();
    let _worker = bed.worker_with(config).await;
    let line = "sleep 300 & echo $$ $! $PPID > wrote; mv wrote pids; wait";
    let running = bed.hub.exec("w", command(line)).await.unwrap();
    let pids: Vec<i32> = soon("the command runs", async {
        loop {
            if let Ok(text) = std::fs::read_to_string(root.join("pids")) {
                break text
                    .split_whitespace()
                    .map(|pid| pid.parse().unwrap())
                    .collect();
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let [shell, sleep, helper] = pids[..] else {
        panic!("{pids:?}");
    };
    let helper = rustix::process::Pid::from_raw(helper).unwrap();
    rustix::process::kill_process(helper, rustix::process::Signal::KILL).unwrap();
    let ended = soon("the command ends", running.output(usize::MAX)).await;
    assert!(
        !matches!(&ended, Ok(output) if output.outcome == ExecOutcome::Exited(0)),
        "{ended:?}"
    );
    let lives = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that nobody has waited for yet is dead all the same.
        !stat.is_empty() && !stat.contains(") Z ")
    };
    soon("what it ran is dead", async {
        while lives(shell) || lives(sleep) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(run(&bed, "w", command("echo next")).await.stdout, b"next\n");
}

#[tokio::test]
async fn a_command_that_is_too_long_ends_no_other() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let _worker = bed.worker_with(config).await;
    let mut other = bed
        .hub
        .exec(
            "w",
            command("echo up; while [ ! -e go ]; do sleep 0.05; done; echo done"),
        )
        .await
        .unwrap();
    let up = soon("it runs", other.next()).await.unwrap();
    assert_eq!(up, ExecEvent::Stdout("up\n".into()));
    for megabytes in [1, 9, 15] {
        let long = format!("true {}", "x".repeat(megabytes << 20));
        let handle = bed.hub.exec("w", command(&long)).await.unwrap();
        let error = soon("it is refused", handle.output(0)).await.unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
    }
    std::fs::write(bed.root("w").join("go"), b"").unwrap();
    let output = soon("the other ends", other.output(100)).await.unwrap();
    assert_eq!(text(&output.stdout), "done\n");
}

/// A folder outside the root and /tmp that this user can write.
fn outside() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[tokio::test]
async fn git_works_in_a_confined_command_with_the_users_name_and_no_secret() {
    let bed = Bed::start().await;
    let outside = outside();
    let home = outside.path().join("home");
    std::fs::create_dir_all(home.join(".config/git")).unwrap();
    for (path, text) in [
        (
            ".gitconfig",
            "[user]\n\tname = A \\\"B\\\" C\n[include]\n\tpath = work\n\
             [http]\n\textraHeader = s3cret\n[credential]\n\thelper = store\n",
        ),
        ("work", "[user]\n\temail = a@example.org\n"),
        (".config/git/ignore", "*.o\n"),
        (".git-credentials", "s3cret"),
    ] {
        std::fs::write(home.join(path), text).unwrap();
    }
    let mut config = bed.config("w");
    config.root = outside.path().join("root");
    std::fs::create_dir(&config.root).unwrap();
    config.env.retain(|(name, _)| name != "HOME");
    config.env.push(("HOME".into(), home.into()));
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let _worker = bed.worker_with(config).await;
    let output = run(
        &bed,
        "w",
        command(
            "git init -q . && touch a.o b && git status -s && git add . && git commit -qm x && \
             git log --format='%an <%ae>' && git config --list",
        ),
    )
    .await;
    let said = text(&output.stdout);
    assert_eq!(output.outcome, ExecOutcome::Exited(0), "{output:?}");
    let begins = "?? b\nA \"B\" C <a@example.org>\n";
    assert!(said.starts_with(begins), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    let landlocked = |feature: &Feature| feature.name == "landlock" && feature.available;
    if probe(Network::On).iter().any(landlocked) {
        let output = run(&bed, "w", command("cat ~/.git-credentials ~/.gitconfig")).await;
        assert_ne!(output.outcome, ExecOutcome::Exited(0), "{output:?}");
    }
}

#[tokio::test]
async fn a_confined_command_writes_only_where_it_may() {
    let bed = Bed::start().await;
    let outside = outside();
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    let mut config = bed.config("w");
    // The bed itself is in /tmp, which commands may write.
    config.root = outside.path().join("root");
    std::fs::create_dir(&config.root).unwrap();
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let worker = Worker::start(config.clone()).await.unwrap();
    let landlocked = worker
        .features()
        .iter()
        .any(|f| f.name == "landlock" && f.available);
    let filtered = worker
        .features()
        .iter()
        .any(|f| f.name == "seccomp" && f.available);
    drop(worker);
    let _worker = bed.worker_with(config).await;
    let output = run(&bed, "w", command("echo mine > mine && cat mine && echo t > /tmp/.quintet-$$ && rm /tmp/.quintet-$$ && ls /usr > /dev/null && exit 5")).await;
    assert_eq!(text(&output.stdout), "mine\n", "{}", text(&output.stderr));
    assert_eq!(output.outcome, ExecOutcome::Exited(5));
    if landlocked {
        for line in [
            "cat ../secret",
            "echo evil > ../secret",
            "rm ../secret",
            "touch /etc/x",
            "ls /root",
        ] {
            let output = run(&bed, "w", command(line)).await;
            assert_ne!(output.outcome, ExecOutcome::Exited(0), "{line}");
        }
        assert_eq!(
            std::fs::read(outside.path().join("secret")).unwrap(),
            b"secret"
        );
        let devices = [
            "/dev/fuse",
            "/dev/kvm",
            "/dev/loop0",
            "/dev/sda",
            "/dev/vda",
        ];
        let mine = devices.iter().filter(|it| std::fs::File::open(it).is_ok());
        for device in mine {
            let output = run(&bed, "w", command(&format!(": < {device}"))).await;
            assert_ne!(output.outcome, ExecOutcome::Exited(0), "{device}");
        }
        let line =
            ": < /dev/null > /dev/null && head -c 1 /dev/zero > /dev/full; ls /dev/null /dev/shm";
        let output = run(&bed, "w", command(line)).await;
        assert_eq!(output.outcome, ExecOutcome::Exited(0));
    }
    if filtered {
        for line in ["unshare -U true", "mount -t tmpfs none /tmp"] {
            let output = run(&bed, "w", command(line)).await;
            assert_ne!(output.outcome, ExecOutcome::Exited(0), "{line}");
        }
        // No capability is needed for these, so that nothing but the filter refuses them.
        for call in [
            libc::SYS_keyctl,
            libc::SYS_io_uring_setup,
            libc::SYS_add_key,
        ] {
            assert!(seccomp::DENIED.contains(&call));
            let errno = errno_of(call, "0, 0, 0, 0, 0");
            let output = run(&bed, "w", command(&errno)).await;
            let said = text(&output.stdout);
            assert_eq!(said, format!("{}\n", libc::EPERM), "call {call}");
        }
    }
    let output = run(&bed, "w", command("grep NoNewPrivs /proc/self/status")).await;
    assert!(text(&output.stdout).contains('1'));
}

#[tokio::test]
async fn temporary_files_are_elsewhere_where_tmp_holds_what_is_guarded() {
    let bed = Bed::start().await;
    let guarded = bed.dir.path();
    let own = guarded.join("tmp-of-w");
    assert_eq!(temp_beside(guarded, &own), own);
    assert_eq!(temp_beside(outside().path(), &own), Path::new("/tmp"));
    std::fs::write(guarded.join("secret"), b"secret").unwrap();
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("left"), b"by an earlier one").unwrap();
    let mut config = bed.config("w");
    config.isolation = Some(IsolationConfig {
        temp: own.clone(),
        ..isolation(Limits::default(), Network::On)
    });
    let landlocked = Worker::start(config.clone())
        .await
        .unwrap()
        .features()
        .iter()
        .any(|f| f.name == "landlock" && f.available);
    let _worker = bed.worker_with(config).await;
    let output = run(&bed, "w", command("mktemp; ls \"$TMPDIR\" | wc -l")).await;
    let said = text(&output.stdout);
    assert!(said.starts_with(own.to_str().unwrap()), "{said}");
    assert!(said.ends_with("\n1\n"), "{said}");
    if landlocked {
        let secret = guarded.join("secret");
        for line in ["cat", "rm", "echo > "] {
            let line = format!("{line} {}", secret.display());
            let output = run(&bed, "w", command(&line)).await;
            assert_ne!(output.outcome, ExecOutcome::Exited(0), "{line}");
        }
        assert_eq!(std::fs::read(secret).unwrap(), b"secret");
    }
}

/// A command that makes a system call and prints the error that it ends with.
fn errno_of(call: i64, arguments: &str) -> String {
    format!(
        "exec python3 -c 'import ctypes; libc = ctypes.CDLL(None, use_errno=True); \
         libc.syscall({call}, {arguments}); print(ctypes.get_errno())'"
    )
}

#[tokio::test]
async fn a_confined_worker_does_everything_that_another_does() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let _worker = bed.worker_with(config).await;
    let request = ExecRequest {
        timeout: Some(std::time::Duration::from_secs(1)),
        ..command("(setsid sleep 92111 &); sleep 92111")
    };
    assert_eq!(
        run(&bed, "w", request).await.outcome,
        ExecOutcome::TimedOut { secs: 1 }
    );
    assert_eq!(crate::commands::alive("sleep 92111"), 0);
    assert_eq!(
        run(&bed, "w", command("kill -9 $$")).await.outcome,
        ExecOutcome::Signaled(9)
    );
    let request = ExecRequest {
        cwd: Some("/nonexistent".to_owned()),
        ..command("true")
    };
    assert!(
        bed.hub
            .exec("w", request)
            .await
            .unwrap()
            .output(0)
            .await
            .is_err()
    );
    let mut shell = start(&bed, "w").await;
    shell
        .type_line("stty size; tty; sleep 0 & wait; echo job-$((1+1))")
        .await;
    shell.until("24 80").await;
    shell.until("/dev/pts/").await;
    shell.until("job-2").await;
    shell.type_line("exit 4").await;
    assert_eq!(shell.end().await, ExecOutcome::Exited(4));
    // A command may kill the helper; the next one gets a new one.
    let killer = bed.hub.exec("w", command("kill -9 $PPID")).await.unwrap();
    assert!(soon("it ends", killer.output(0)).await.is_err());
    assert_eq!(
        run(&bed, "w", command("echo again")).await.stdout,
        b"again\n"
    );
}

#[tokio::test]
async fn limits_and_the_missing_network_are_felt() {
    let bed = Bed::start().await;
    let limits = Limits {
        memory_bytes: Some(200 << 20),
        open_files: Some(64),
        file_bytes: Some(100_000),
        cpu_secs: Some(1),
        ..Limits::default()
    };
    let mut config = bed.config("w");
    config.isolation = Some(isolation(limits, Network::Off));
    let worker = Worker::start(config.clone()).await.unwrap();
    let memory = worker
        .features()
        .iter()
        .find(|f| f.name == "cgroup.memory")
        .unwrap();
    // Missing controllers are named, never silently skipped.
    assert_eq!(memory.available, memory.fix.is_empty());
    drop(worker);
    let _worker = bed.worker_with(config).await;
    let output = run(&bed, "w", command("ulimit -n; ulimit -c")).await;
    assert_eq!(text(&output.stdout), "64\n0\n");
    let output = run(
        &bed,
        "w",
        command("head -c 200000 /dev/zero > big; stat -c %s big"),
    )
    .await;
    assert_eq!(text(&output.stdout), "100000\n");
    let output = run(
        &bed,
        "w",
        command("exec python3 -c 'x = bytearray(400 << 20)'"),
    )
    .await;
    assert_ne!(output.outcome, ExecOutcome::Exited(0));
    let output = run(&bed, "w", command("while :; do :; done")).await;
    assert!(
        matches!(output.outcome, ExecOutcome::Signaled(_)),
        "{:?}",
        output.outcome
    );
    let network = "import socket; socket.socket(socket.AF_UNIX); socket.socket()";
    let output = run(&bed, "w", command(&format!("exec python3 -c '{network}'"))).await;
    assert_eq!(output.outcome, ExecOutcome::Exited(1));
    assert!(text(&output.stderr).contains("PermissionError"));
    // Somebody listens, and is reached without the filter.
    let there = bed.address;
    let connect = format!("bash -c 'exec 3<>/dev/tcp/{}/{}'", there.ip(), there.port());
    let output = run(&bed, "w", command(&connect)).await;
    assert_ne!(output.outcome, ExecOutcome::Exited(0));
    assert!(text(&output.stderr).contains("Operation not permitted"));
    let _free = bed.worker("free").await;
    let output = run(&bed, "free", command(&connect)).await;
    assert_eq!(output.outcome, ExecOutcome::Exited(0));
}

/// Where this machine has the controllers of cgroup v2; elsewhere nothing but the files that are
/// written can be looked at, as `isolate::cgroup` does.
#[tokio::test]
async fn limits_of_a_control_group_hold_for_all_commands_together() {
    let lacks = |it: &&Feature| it.name.starts_with("cgroup.") && !it.available;
    if let Some(missing) = probe(Network::On).iter().find(lacks) {
        eprintln!("skipped: {} is missing: {}", missing.name, missing.detail);
        return;
    }
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    let limits = Limits {
        memory_bytes: Some(96 << 20),
        processes: Some(40),
        cpu_percent: Some(20),
        ..Limits::default()
    };
    config.isolation = Some(isolation(limits, Network::On));
    let _worker = bed.worker_with(config).await;
    let hold = |megabytes: u32| {
        let bytes = megabytes * 1_000_000;
        format!("head -c {bytes} /dev/zero | tail -c {bytes} | wc -c")
    };
    let output = run(&bed, "w", command(&hold(40))).await;
    assert_eq!(text(&output.stdout).trim(), "40000000");
    // Each of these would fit by itself.
    let both = format!("{} & {}; wait", hold(70), hold(70));
    let output = run(&bed, "w", command(&both)).await;
    assert!(
        text(&output.stdout)
            .lines()
            .any(|it| it.trim() != "70000000"),
        "{output:?}"
    );
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; cat /proc/self/cgroup";
    let output = run(&bed, "w", command(busy)).await;
    let group = text(&output.stdout)
        .lines()
        .find_map(|it| it.strip_prefix("0::"));
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter();
    let stat = mounts
        .map(|mount| format!("{mount}{}/cpu.stat", group.unwrap()))
        .find_map(|file| std::fs::read_to_string(file).ok())
        .unwrap();
    assert!(!stat.contains("nr_throttled 0\n"), "{stat}");
    let many = "for i in $(seq 60); do sleep 30 & done; echo all of them";
    let output = run(&bed, "w", command(many)).await;
    assert_eq!(
        (text(&output.stdout), output.stderr.is_empty()),
        ("", false)
    );
}

#[tokio::test]
async fn a_worker_program_that_dies_takes_its_confined_commands_with_it() {
    let bed = Bed::start().await;
    let program = bed.program("w", json!({"isolate": true})).await;
    let mut handle = bed
        .hub
        .exec("w", command("echo up; sleep 91111"))
        .await
        .unwrap();
    soon("it runs", handle.next()).await.unwrap();
    assert!(crate::commands::alive("sleep 91111") > 0);
    drop(program);
    soon("the command dies", async {
        while crate::commands::alive("sleep 91111") > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_confined_worker_stops_at_once_and_leaves_nothing() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.isolation = Some(isolation(Limits::default(), Network::On));
    let worker = bed.worker_with(config).await;
    let mut handle = bed
        .hub
        .exec("w", command("echo up; sleep 90111"))
        .await
        .unwrap();
    soon("it runs", handle.next()).await.unwrap();
    let asked = std::time::Instant::now();
    worker.stop().await;
    // Well below what the worker grants to commands that do not die.
    assert!(asked.elapsed() < std::time::Duration::from_secs(4));
    assert_eq!(crate::commands::alive("sleep 90111"), 0);
}
