//! Nothing that an agent starts outlives it, whatever it does and whoever dies first.

use std::path::Path;
use std::time::Duration;

use quintet_agent::{
    AgentId, CgroupUse, FailReason, InboundMessage, InstanceEvent, Observer, Phase, ProcessLimits,
    Supervisor, TurnEnd,
};
use serde_json::json;

use crate::harness::{
    PATIENCE, Recorder, World, options, processes_of, quick, reaches, run, spec, wait_until,
};

fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('Z')
    })
}

/// Two daemons of the agent: one with the instance's environment, one with an empty one.
async fn daemonised(world: &World, text: &str) -> (TurnEnd, Vec<i32>) {
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    let end = run(&agent, text).await;
    let pids: Vec<i32> = serde_json::from_str(&world.observer.text()).unwrap();
    assert_eq!(pids.len(), 2);
    (end, pids)
}

async fn ends_with_its_agent(cgroups: CgroupUse) {
    let world = World::with(cgroups, Recorder::default());
    let (end, pids) = daemonised(&world, "daemonise").await;
    assert!(matches!(end, TurnEnd::Completed { .. }), "{end:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    let agent = world.supervisor.get(&"agent_1".into()).unwrap();
    agent.shutdown("user").await;
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    world.finish().await;
}

#[tokio::test]
async fn daemons_of_an_agent_end_with_it() {
    ends_with_its_agent(CgroupUse::WherePossible).await;
}

#[tokio::test]
async fn daemons_of_an_agent_end_with_it_without_cgroups() {
    ends_with_its_agent(CgroupUse::Never).await;
}

#[tokio::test]
async fn daemons_of_an_agent_end_with_its_crash() {
    let world = World::new();
    assert!(
        world.supervisor.uses_cgroups(),
        "this machine gives no cgroup; a daemon with an empty environment can't be found then"
    );
    let (end, pids) = daemonised(&world, "daemonise crash").await;
    assert!(
        matches!(
            end,
            TurnEnd::Failed {
                reason: FailReason::Crashed,
                ..
            }
        ),
        "{end:?}"
    );
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    world.finish().await;
}

#[tokio::test]
async fn marked_daemons_of_an_agent_end_with_its_crash_without_cgroups() {
    let world = World::with(CgroupUse::Never, Recorder::default());
    let (end, pids) = daemonised(&world, "daemonise crash").await;
    assert!(
        matches!(
            end,
            TurnEnd::Failed {
                reason: FailReason::Crashed,
                ..
            }
        ),
        "{end:?}"
    );
    assert!(!is_alive(pids[0]), "{pids:?}");
    // The other one left its session and its environment and lost its ancestors: nothing tells it
    // from any other process of this user.
    kill(pids[1]);
    world.finish().await;
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A daemon that is killed: this program once more, as a process of its own.
#[tokio::test]
async fn a_sweep_ends_what_a_killed_daemon_left_and_no_reused_number() {
    for cgroups in [CgroupUse::WherePossible, CgroupUse::Never] {
        let folder = tempfile::tempdir().unwrap();
        let left = leave_processes(folder.path(), cgroups).await;
        assert!(left.iter().all(|pid| is_alive(*pid)), "{left:?}");
        let ledger_path = folder.path().join("ledger");
        let ledger = std::fs::read_to_string(&ledger_path).unwrap();
        assert_eq!(ledger.lines().count(), 1, "{ledger}");

        // An entry whose number belongs to another process by now.
        let mut bystander = tokio::process::Command::new("sleep")
            .arg("3600")
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut reused: serde_json::Value = serde_json::from_str(ledger.trim()).unwrap();
        reused["process"] = json!({"pid": bystander.id().unwrap(), "start": 1});
        reused["variable"] = json!("QUINTET_IPC_SOCKET=/nobody");
        reused["cgroup"] = json!(null);
        std::fs::write(&ledger_path, format!("{ledger}{reused}\nnot a line\n")).unwrap();

        let observer = std::sync::Arc::new(Recorder::default());
        let supervisor = Supervisor::new(options(folder.path(), cgroups), observer).unwrap();
        let report = supervisor.sweep().await.unwrap();
        assert_eq!(report.ended, [AgentId::from("agent_1")]);
        assert!(report.processes >= left.len(), "{report:?}, {left:?}");
        assert!(!left.iter().any(|pid| is_alive(*pid)), "{left:?}");
        assert_eq!(
            bystander.try_wait().unwrap(),
            None,
            "a bystander was killed"
        );
        assert_eq!(std::fs::read_to_string(&ledger_path).unwrap(), "");
        assert_eq!(processes_of(folder.path()), Vec::<i32>::new());
    }
}

/// Runs a daemon with an agent that daemonises, kills the daemon, and says what it left.
async fn leave_processes(folder: &Path, cgroups: CgroupUse) -> Vec<i32> {
    let pids = folder.join("pids");
    let mut daemon = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "processes::daemon_of_the_sweep_test",
            "--nocapture",
        ])
        .env("SWEEP_TEST_FOLDER", folder)
        .env("SWEEP_TEST_CGROUPS", format!("{cgroups:?}"))
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| std::fs::read_to_string(&pids).is_ok_and(|text| text.ends_with(']'))).await;
    let left: Vec<i32> = serde_json::from_str(&std::fs::read_to_string(&pids).unwrap()).unwrap();
    let agent = processes_of(folder);
    daemon.kill().await.unwrap();
    // The agent itself dies with the daemon; its daemons do not.
    wait_until(|| {
        agent
            .iter()
            .filter(|pid| !left.contains(pid))
            .all(|pid| !is_alive(*pid))
    })
    .await;
    // Without its cgroup, nothing tells the one without an environment.
    match cgroups {
        CgroupUse::WherePossible => left,
        CgroupUse::Never => {
            kill(left[1]);
            vec![left[0]]
        }
    }
}

/// The daemon's part of the sweep test; as a test of its own it shows that an agent can daemonise.
#[tokio::test]
async fn daemon_of_the_sweep_test() {
    let cgroups = match std::env::var("SWEEP_TEST_CGROUPS").as_deref() {
        Ok("Never") => CgroupUse::Never,
        _ => CgroupUse::WherePossible,
    };
    let Some(folder) = std::env::var_os("SWEEP_TEST_FOLDER") else {
        let world = World::with(cgroups, Recorder::default());
        let (_, pids) = daemonised(&world, "daemonise").await;
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        return world.finish().await;
    };
    let folder = Path::new(&folder);
    let observer = std::sync::Arc::new(Recorder::default());
    let supervisor =
        Supervisor::new(options(folder, cgroups), std::sync::Arc::clone(&observer)).unwrap();
    let python = crate::harness::python();
    let script = crate::harness::agent_script("wild_agent.py");
    let spec = spec(folder, &[python, script.to_str().unwrap()]);
    let agent = supervisor.open(spec).await.unwrap();
    run(&agent, "daemonise").await;
    let pids = observer.text();
    // In a turn it does not read: only the signal at its parent's death can end it.
    let hang = agent.run(InboundMessage::text("msg_hang", "hang"));
    tokio::join!(hang, async {
        observer
            .saw(|event| {
                matches!(event, InstanceEvent::Element { message_id, .. }
            if message_id.as_str() == "msg_hang")
            })
            .await;
        std::fs::write(folder.join("pids"), pids).unwrap();
    });
}

#[tokio::test]
async fn dropping_the_supervisor_ends_its_processes() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    run(&agent, "hello").await;
    let pid = i32::try_from(agent.status().pid.unwrap()).unwrap();
    // In a turn it does not see that its connection ends.
    let mut hanging = tokio::task::JoinSet::new();
    let held = agent.clone();
    hanging.spawn(async move { run(&held, "hang").await });
    let is_hanging = |event: &InstanceEvent| {
        matches!(event, InstanceEvent::Element { message_id, .. }
            if message_id.as_str() == "msg_hang")
    };
    world.observer.saw(is_hanging).await;
    hanging.shutdown().await;
    let World {
        supervisor, folder, ..
    } = world;
    drop((supervisor, agent));
    wait_until(|| !is_alive(pid)).await;
    assert_eq!(processes_of(folder.path()), Vec::<i32>::new());
}

#[tokio::test]
async fn limits_hold_for_the_process() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.limits = ProcessLimits {
        memory_max: Some(256 << 20),
        open_files: Some(99),
        cpu_seconds: Some(1000),
        file_size: Some(1 << 20),
    };
    let agent = world.open(spec).await;
    run(&agent, "limits").await;
    let seen: serde_json::Value = serde_json::from_str(&world.observer.text()).unwrap();
    assert_eq!(
        seen,
        json!({"RLIMIT_CORE": [0, 0], "RLIMIT_NOFILE": [99, 99],
               "RLIMIT_CPU": [1000, 1000], "RLIMIT_FSIZE": [1 << 20, 1 << 20]})
    );
    run(&agent, "allocate 1000000").await;
    assert!(world.observer.text().ends_with("allocated"));
    // More than it may have: refused, or killed where the cgroup counts the memory.
    match run(&agent, "allocate 1000000000").await {
        TurnEnd::Completed { .. } => assert!(world.observer.text().ends_with("MemoryError")),
        TurnEnd::Failed { reason, .. } => assert_eq!(reason, FailReason::Crashed),
    }
    world.finish().await;
}

#[tokio::test]
async fn a_process_leads_a_session_and_a_group_of_its_own() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    run(&agent, "hello").await;
    let pid = i32::try_from(agent.status().pid.unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    assert_eq!(rustix::process::getsid(Some(pid)).unwrap(), pid);
    assert_eq!(rustix::process::getpgid(Some(pid)).unwrap(), pid);
    world.finish().await;
}

#[tokio::test]
async fn a_folder_whose_path_is_too_long_for_a_socket_is_reached_by_a_short_link() {
    let folder = tempfile::tempdir().unwrap();
    let short = tempfile::tempdir().unwrap();
    let mut options = options(folder.path(), CgroupUse::WherePossible);
    options.short_dir = Some(short.path().to_owned());
    let observer = std::sync::Arc::new(Recorder::default());
    let supervisor = Supervisor::new(options, std::sync::Arc::clone(&observer)).unwrap();
    let script = crate::harness::agent_script("seed_agent.py");
    let mut long = spec(
        folder.path(),
        &[crate::harness::python(), script.to_str().unwrap()],
    );
    long.instance_dir = folder.path().join("x".repeat(200)).join("agent_1");
    let agent = supervisor.open(long.clone()).await.unwrap();
    assert!(matches!(
        run(&agent, "hello").await,
        TurnEnd::Completed { .. }
    ));
    agent.restart("user").await;
    assert!(matches!(
        run(&agent, "hello").await,
        TurnEnd::Completed { .. }
    ));
    supervisor.shutdown_all(PATIENCE).await;
    assert_eq!(processes_of(folder.path()), Vec::<i32>::new());

    // Without such a folder it is refused with the length and the limit.
    let world = World::new();
    let agent = world.open(long).await;
    match run(&agent, "hello").await {
        TurnEnd::Failed {
            reason: FailReason::NotReady,
            detail,
        } => {
            assert!(detail.contains("at most 107"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    world.finish().await;
}

#[tokio::test]
async fn a_blocked_observer_keeps_nobody_from_ending_the_agent() {
    struct Blocked;
    impl Observer for Blocked {
        async fn observe(&self, _: &AgentId, batch: Vec<InstanceEvent>) {
            if batch
                .iter()
                .any(|event| matches!(event, InstanceEvent::Element { .. }))
            {
                std::future::pending::<()>().await;
            }
        }
    }
    let world = World::with(CgroupUse::WherePossible, Blocked);
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings = quick();
    let agent = world.open(spec).await;
    let stop = async {
        reaches(&agent, Phase::Running).await;
        let pid = i32::try_from(agent.status().pid.unwrap()).unwrap();
        assert!(agent.cancel().await);
        wait_until(|| !is_alive(pid)).await;
    };
    // The observer never sees the message's end, so neither does the caller.
    let ran = tokio::time::timeout(Duration::from_secs(5), run(&agent, "hang"));
    tokio::select! {
        _ = ran => panic!("the end was told before the observer saw it"),
        () = stop => {}
    }
    assert_eq!(processes_of(world.folder.path()), Vec::<i32>::new());
    let stopped = world.supervisor.shutdown_all(Duration::from_millis(100));
    tokio::time::timeout(PATIENCE, stopped)
        .await
        .expect("the daemon can stop");
}
