//! Connections that are lost, hubs that restart, and what goes on meanwhile.

use std::time::Duration;

use quintet_sandbox::hub::{
    ExecEvent, ExecOutcome, ExecRequest, HubEvent, HubSettings, RequestError, ShellEvent,
    TerminalSize, UploadRequest, WorkerStatus,
};
use quintet_sandbox::proto::frame::{Body, Frame, Open, Outcome};
use quintet_sandbox::proto::{Liveness, Protocol};
use quintet_sandbox::worker::{RunError, StartError, Worker};
use serde_json::json;

use crate::bed::{Bed, Lone, Program, RawHub, Running, quick_backoff, raw_worker, soon};
use crate::commands::{command, run, text};
use crate::shells::{Typist, start};
use crate::uploads::end_of;

#[tokio::test]
async fn a_v2_command_goes_on_over_a_lost_connection_and_loses_nothing() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let line = "i=0; while [ $i -lt 2000 ]; do echo out-$i; echo err-$i >&2; i=$((i+1)); \
                [ $((i % 500)) = 0 ] && sleep 0.1; done; exit 9";
    let mut handle = bed.hub.exec("w", command(line)).await.unwrap();
    let (mut out, mut err, mut cuts) = (Vec::new(), Vec::new(), 0);
    let outcome = loop {
        match soon("output", handle.next()).await.unwrap() {
            ExecEvent::Stdout(bytes) => out.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => err.extend_from_slice(&bytes),
            ExecEvent::Dropped { .. } => panic!("nothing may be dropped"),
            ExecEvent::Ended { outcome, .. } => break outcome,
        }
        if out.len() > cuts * 4000 && cuts < 3 {
            cuts += 1;
            bed.hub.disconnect("w", "test");
        }
    };
    assert_eq!((outcome, cuts), (ExecOutcome::Exited(9), 3));
    let expected = |name: &str| -> String { (0..2000).map(|i| format!("{name}-{i}\n")).collect() };
    assert_eq!(text(&out), expected("out"));
    assert_eq!(text(&err), expected("err"));
}

#[tokio::test]
async fn a_v1_command_fails_at_once_when_its_connection_is_lost() {
    let bed = Bed::start().await;
    let _worker = bed.v1_worker("w").await;
    let mut handle = bed.hub.exec("w", command("sleep 100")).await.unwrap();
    bed.hub.disconnect("w", "test");
    assert!(matches!(
        soon("the failure", handle.next()).await,
        Err(RequestError::Lost { .. })
    ));
}

/// What is typed, and the window's size, while the connection is lost come when it is back.
#[tokio::test]
async fn a_v2_shell_goes_on_over_a_lost_connection_and_loses_no_key() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut shell = start(&bed, "w").await;
    shell.type_line("kept=$((6*7)); echo re''ady").await;
    shell.until("ready").await;
    for lap in 0..3 {
        bed.hub.disconnect("w", "test");
        bed.status("w", WorkerStatus::Offline).await;
        let size = TerminalSize {
            rows: 30 + lap,
            cols: 90,
        };
        shell.input.resize(size).await.unwrap();
        let input = shell.input.clone();
        let typing = async move {
            let line = format!("echo lap-{lap}-$kept-\"$(stty size)\"\n");
            for key in line.as_bytes() {
                input.write(&[*key]).await.unwrap();
            }
        };
        let seen = format!("lap-{lap}-42-{} 90", 30 + lap);
        tokio::join!(typing, shell.until(&seen));
        assert_eq!(bed.hub.worker("w").unwrap().running, 1);
    }
    for lap in 0..3 {
        let shown = shell.seen.matches(&format!("lap-{lap}-42-")).count();
        assert_eq!(shown, 1, "{}", shell.seen);
    }
}

#[tokio::test]
async fn what_ended_with_a_worker_that_was_started_anew_says_so() {
    let bed = Bed::start().await;
    let worker = bed.program("w", json!({})).await;
    let mut exec = bed
        .hub
        .exec("w", command("echo up; sleep 100"))
        .await
        .unwrap();
    assert_eq!(
        soon("it runs", exec.next()).await.unwrap(),
        ExecEvent::Stdout("up\n".into())
    );
    let mut shell = start(&bed, "w").await;
    shell.type_line("echo re''ady").await;
    shell.until("ready").await;
    drop(worker);
    bed.status("w", WorkerStatus::Offline).await;
    let _worker = bed.program("w", json!({})).await;
    let restarted = |what| RequestError::Restarted {
        worker: "w".to_owned(),
        what,
    };
    let ended = soon("the command's end", exec.next()).await;
    assert_eq!(ended, Err(restarted("command")));
    let ended = soon("the shell's end", async {
        loop {
            match shell.handle.next().await {
                Ok(ShellEvent::Output(_)) => {}
                other => break other,
            }
        }
    })
    .await;
    assert_eq!(ended, Err(restarted("shell")));
}

#[tokio::test]
async fn a_hub_that_restarts_finds_everything_again() {
    let mut bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut exec = bed
        .hub
        .exec(
            "w",
            command("echo before; while [ ! -e go ]; do sleep 0.05; done; echo after; exit 6"),
        )
        .await
        .unwrap();
    soon("output", exec.next()).await.unwrap();
    let mut shell = start(&bed, "w").await;
    shell.type_line("kept=$((6*7)); echo re''ady").await;
    shell.until("ready").await;
    let (exec_id, shell_id) = (exec.id().to_owned(), shell.handle.id().to_owned());
    bed.restart_hub().await;
    assert!(matches!(
        soon("it fails", exec.next()).await,
        Err(RequestError::Lost { .. })
    ));
    bed.online("w").await;

    let jobs = bed.hub.jobs("w").await.unwrap();
    let ids: Vec<&str> = jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(ids, [exec_id.as_str(), shell_id.as_str()]);
    assert!(jobs.iter().all(|job| job.running && !job.attached));

    let mut again = Typist::new(bed.hub.attach_shell("w", &shell_id).await.unwrap());
    again.until("ready").await;
    again.type_line("echo still-$kept").await;
    again.until("still-42").await;
    again.type_line("exit 3").await;
    assert_eq!(again.end().await, ExecOutcome::Exited(3));

    let handle = bed.hub.attach_exec("w", &exec_id).await.unwrap();
    std::fs::write(bed.root("w").join("go"), b"").unwrap();
    let output = soon("the end", handle.output(1000)).await.unwrap();
    assert_eq!(text(&output.stdout), "before\nafter\n");
    assert_eq!(output.outcome, ExecOutcome::Exited(6));
    soon("the results are forgotten", async {
        while !bed.hub.jobs("w").await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_command_that_ended_unseen_gives_its_whole_output_later() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let handle = bed
        .hub
        .exec(
            "w",
            command("head -c 2000000 /dev/zero | tr '\\0' y; echo done >&2"),
        )
        .await
        .unwrap();
    let id = handle.detach().await.unwrap();
    soon("it ends", async {
        while bed.hub.jobs("w").await.unwrap()[0].running {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let handle = bed.hub.attach_exec("w", &id).await.unwrap();
    let output = soon("the output", handle.output(usize::MAX)).await.unwrap();
    assert_eq!(output.stdout, vec![b'y'; 2_000_000]);
    assert_eq!(text(&output.stderr), "done\n");
    assert!(matches!(
        bed.hub.attach_exec("w", &id).await.map(drop),
        Err(RequestError::Failed { .. })
    ));
    // Nothing of it is left on disk.
    soon("the spool is empty", async {
        while !crate::bed::names_in(&bed.dir.path().join("spool-w")).is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn input_goes_on_over_lost_connections_and_loses_nothing() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let request = ExecRequest {
        stdin: true,
        ..command("cat > copy; echo done")
    };
    let mut handle = bed.hub.exec("w", request).await.unwrap();
    let input = handle.stdin();
    let data: Vec<u8> = (0..6_000_000u32).map(|i| (i / 7) as u8).collect();
    let (hub, sent) = (bed.hub.clone(), data.clone());
    let mut typing = tokio::task::JoinSet::new();
    typing.spawn(async move {
        for (number, part) in sent.chunks(10_007).enumerate() {
            input.write(part).await.unwrap();
            if number % 150 == 149 {
                hub.disconnect("w", "test");
            }
        }
        input.finish().await.unwrap();
    });
    let mut shown = Vec::new();
    let outcome = loop {
        match soon("the end", handle.next()).await.unwrap() {
            ExecEvent::Stdout(bytes) => shown.extend_from_slice(&bytes),
            ExecEvent::Ended { outcome, .. } => break outcome,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(outcome, ExecOutcome::Exited(0));
    assert_eq!(text(&shown), "done\n");
    assert!(std::fs::read(bed.root("w").join("copy")).unwrap() == data);
    typing.join_next().await.unwrap().unwrap();
}

#[tokio::test]
async fn another_hub_goes_on_with_the_input_of_a_command() {
    let mut bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let request = ExecRequest {
        stdin: true,
        ..command("echo up; cat")
    };
    let mut handle = bed.hub.exec("w", request).await.unwrap();
    soon("it runs", handle.next()).await.unwrap();
    handle.stdin().write(b"first ").await.unwrap();
    assert_eq!(
        soon("it echoes", handle.next()).await.unwrap(),
        ExecEvent::Stdout("first ".into())
    );
    let id = handle.id().to_owned();
    bed.restart_hub().await;
    drop(handle);
    bed.online("w").await;
    let handle = bed.hub.attach_exec("w", &id).await.unwrap();
    assert_eq!(handle.attached().unwrap().offset, 6);
    let input = handle.stdin();
    input.write(b"second").await.unwrap();
    input.finish().await.unwrap();
    let output = soon("the end", handle.output(100)).await.unwrap();
    assert_eq!(text(&output.stdout), "up\nfirst second");
}

#[tokio::test]
async fn what_the_quota_took_is_said_when_somebody_attaches() {
    let mut bed = Bed::start().await;
    let mut config = bed.config("w");
    config.quotas.spool_bytes = 1_000_000;
    let _worker = bed.worker_with(config).await;
    let line = "head -c 8000000 /dev/zero | tr '\\0' z; while [ ! -e go ]; do sleep 0.05; done";
    let mut handle = bed.hub.exec("w", command(line)).await.unwrap();
    let mut seen = 0;
    while seen < 8_000_000 {
        match soon("output", handle.next()).await.unwrap() {
            ExecEvent::Stdout(bytes) => seen += bytes.len() as u64,
            other => panic!("{other:?}"),
        }
    }
    let id = handle.id().to_owned();
    bed.restart_hub().await;
    drop(handle);
    bed.online("w").await;
    let handle = bed.hub.attach_exec("w", &id).await.unwrap();
    let gone = handle.attached().unwrap().lost_stdout;
    assert!(gone >= 7_000_000 - 300_000, "{gone}");
    std::fs::write(bed.root("w").join("go"), b"").unwrap();
    let output = soon("the end", handle.output(usize::MAX)).await.unwrap();
    assert_eq!(output.stdout.len() as u64 + gone, 8_000_000);
}

#[tokio::test]
async fn a_result_that_nobody_comes_back_for_is_kept_for_its_time_and_then_gone() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    assert_eq!(config.quotas.keep, Duration::from_secs(24 * 60 * 60));
    config.quotas.keep = Duration::from_millis(200);
    let _worker = bed.worker_with(config).await;
    let line = "head -c 400000 /dev/zero; exit 4";
    let id = bed
        .hub
        .exec("w", command(line))
        .await
        .unwrap()
        .detach()
        .await
        .unwrap();
    soon("it is forgotten", async {
        while !bed.hub.jobs("w").await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(bed.hub.attach_exec("w", &id).await.is_err());
    assert!(crate::bed::names_in(&bed.dir.path().join("spool-w")).is_empty());
}

/// Its end was sent and never confirmed: the hub went away with the connection.
#[tokio::test]
async fn a_result_whose_hub_went_away_is_kept_for_its_time_and_then_gone() {
    let lone = Lone::start(|config| config.quotas.keep = Duration::from_millis(200)).await;
    let mut raw = lone.hub.accept(Protocol::V2).await;
    let open = Open::Exec {
        id: "j".to_owned(),
        command: "true".to_owned(),
        timeout_secs: 100,
        timeout_ms: None,
        env: Default::default(),
        cwd: None,
        stdin: false,
        mirror: None,
    };
    raw.send_binary(Frame::new(1, Body::Open(Box::new(open))).encode())
        .await;
    assert_eq!(end_of(&mut raw).await.outcome, Outcome::Exited { code: 0 });
    drop(raw);
    let mut raw = lone.hub.accept(Protocol::V2).await;
    soon("it is forgotten", async {
        for stream in 1.. {
            raw.send_binary(Frame::new(stream, Body::Open(Box::new(Open::Jobs))).encode())
                .await;
            let Outcome::Jobs { jobs } = end_of(&mut raw).await.outcome else {
                panic!("no list");
            };
            if jobs.is_empty() {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_hub_s_idea_of_stale_can_be_changed_while_it_runs() {
    let settings = HubSettings {
        liveness: Liveness {
            stale_after: Duration::from_secs(3600),
            check_every: Duration::from_millis(50),
        },
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let mut worker = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(worker.register("w").await["success"], true);
    bed.online("w").await;
    bed.hub.set_liveness(Liveness {
        stale_after: Duration::from_millis(1),
        check_every: Duration::from_millis(50),
    });
    bed.status("w", WorkerStatus::Stale).await;
}

#[tokio::test]
async fn a_full_spool_makes_the_program_wait_and_loses_nothing() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.quotas.spool_bytes = 1_000_000;
    let _worker = bed.worker_with(config).await;
    let line = "head -c 8000000 /dev/zero | tr '\\0' z; touch finished";
    let id = bed
        .hub
        .exec("w", command(line))
        .await
        .unwrap()
        .detach()
        .await
        .unwrap();
    // Another job has to live with what is left, and small output needs no disk.
    assert_eq!(
        run(&bed, "w", command("echo small")).await.stdout,
        b"small\n"
    );
    assert!(!bed.root("w").join("finished").exists());
    let handle = bed.hub.attach_exec("w", &id).await.unwrap();
    let output = soon("the output", handle.output(usize::MAX)).await.unwrap();
    assert_eq!(output.stdout.len(), 8_000_000);
    assert!(bed.root("w").join("finished").exists());
}

#[tokio::test]
async fn without_a_spool_a_command_with_a_reader_goes_on() {
    let bed = Bed::start().await;
    let mut config = bed.config("quota");
    config.quotas.spool_bytes = 100_000;
    let _quota = bed.worker_with(config).await;
    // A file system of its own, which is too small.
    let settings = bed.settings_of("disk", json!({}));
    let spool = bed.dir.path().join("spool-disk");
    std::fs::create_dir(&spool).unwrap();
    let mount = format!(
        "mount -t tmpfs -o size=100k none {} && exec \"$@\"",
        spool.display()
    );
    let _disk = Program::start(&settings, &["unshare", "-rm", "sh", "-c", &mount, "sh"]);
    bed.online("disk").await;
    for worker in ["quota", "disk"] {
        let line = "head -c 8000000 /dev/zero | tr '\\0' z; seq 100000 >&2";
        let output = run(&bed, worker, command(line)).await;
        assert_eq!(output.stdout.len(), 8_000_000, "{worker}");
        assert_eq!(output.stderr.len(), 588_895, "{worker}");
    }
}

#[tokio::test]
async fn an_upload_and_a_download_go_on_over_a_lost_connection() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let data: Vec<u8> = (0..20_000_000u32).map(|i| (i / 3) as u8).collect();
    let request = UploadRequest {
        path: "big".to_owned(),
        size: data.len() as u64,
        mode: None,
        modified: None,
    };
    let mut source = std::io::Cursor::new(data.clone());
    let (hub, mut cut) = (bed.hub.clone(), false);
    let upload = bed.hub.upload("w", &request, &mut source, |at| {
        if at > 8_000_000 && !cut {
            cut = true;
            hub.disconnect("w", "test");
        }
    });
    soon("the upload", upload).await.unwrap();
    assert!(std::fs::read(bed.root("w").join("big")).unwrap() == data);

    let local = bed.dir.path().join("local");
    let mut target = tokio::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&local)
        .await
        .unwrap();
    let mut cut = false;
    let download = bed.hub.download_to("w", "big", &mut target, |at| {
        if at > 8_000_000 && !cut {
            cut = true;
            hub.disconnect("w", "test");
        }
    });
    soon("the download", download).await.unwrap();
    assert!(std::fs::read(&local).unwrap() == data);
}

#[tokio::test]
async fn the_newer_of_two_workers_with_one_id_wins() {
    let bed = Bed::start().await;
    let mut older = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(older.register("w").await["success"], true);
    let mut newer = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(newer.register("w").await["success"], true);
    let (code, reason) = older.closed().await.unwrap();
    assert_eq!(code, 1008);
    assert!(reason.contains("newer"), "{reason}");
    drop(older);
    // The older's late end does not take the newer away.
    let handle = bed.hub.exec("w", command("true")).await.unwrap();
    let request = newer.json().await;
    assert_eq!(request["type"], "execute_command");
    newer
        .send(
            json!({"type": "command_output", "request_id": request["request_id"], "stdout": "",
                     "stderr": "", "exit_code": 0, "duration_ms": 1}),
        )
        .await;
    soon("the reply", handle.output(0)).await.unwrap();
    let offline = bed
        .events()
        .iter()
        .any(|event| matches!(event, HubEvent::WorkerOffline { .. }));
    assert!(!offline);
    assert_eq!(bed.hub.worker("w").unwrap().state, WorkerStatus::Online);
}

/// They would take the name from each other for ever.
#[tokio::test]
async fn the_older_of_two_workers_of_ours_with_one_id_ends() {
    let bed = Bed::start().await;
    let older = bed.worker("w").await;
    let mut config = bed.config("w");
    config.spool_dir = bed.dir.path().join("another-spool");
    let _newer = Running::start(config).await;
    let error = older.ends().await.unwrap_err();
    assert_eq!(error, RunError::Replaced { id: "w".to_owned() });
    let output = run(&bed, "w", command("echo still here")).await;
    assert_eq!(text(&output.stdout), "still here\n");
}

#[tokio::test]
async fn a_spool_folder_is_one_worker_s() {
    let bed = Bed::start().await;
    let first = bed.worker("w").await;
    assert!(matches!(
        Worker::start(bed.config("w")).await,
        Err(StartError::InUse { .. })
    ));
    first.stop().await;
    assert!(Worker::start(bed.config("w")).await.is_ok());
}

fn short_lived() -> HubSettings {
    HubSettings {
        liveness: Liveness {
            stale_after: Duration::from_millis(300),
            check_every: Duration::from_millis(50),
        },
        ..HubSettings::default()
    }
}

#[tokio::test]
async fn a_worker_that_never_sends_a_heartbeat_becomes_stale_and_is_closed() {
    let bed = Bed::with(short_lived()).await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    raw.register("w").await;
    bed.status("w", WorkerStatus::Stale).await;
    assert!(matches!(
        bed.hub.exec("w", command("true")).await,
        Err(RequestError::NotOnline {
            status: WorkerStatus::Stale,
            ..
        })
    ));
    assert_eq!(raw.closed().await.unwrap().0, 1008);
    bed.status("w", WorkerStatus::Offline).await;
}

#[tokio::test]
async fn a_worker_of_ours_says_how_busy_its_machine_is() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.pulse.heartbeat = Duration::from_millis(50);
    let _worker = bed.worker_with(config).await;
    let load = soon("a heartbeat with a load", async {
        loop {
            if let Some(load) = bed.hub.worker("w").and_then(|info| info.load) {
                return load;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(load.cpu <= 100 && load.memory <= 100, "{load:?}");
}

#[tokio::test]
async fn a_stale_worker_registers_again_on_the_same_connection() {
    let bed = Bed::with(short_lived()).await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    raw.register("w").await;
    bed.status("w", WorkerStatus::Stale).await;
    raw.send(json!({"type": "heartbeat"})).await;
    let refused = soon("the answer", async {
        loop {
            use futures_util::StreamExt as _;
            let message = raw.0.next().await.unwrap().unwrap();
            if let quintet_sandbox::socket::WsMessage::Text(text) = message {
                break serde_json::from_slice::<serde_json::Value>(&text).unwrap();
            }
        }
    })
    .await;
    assert_eq!(
        refused,
        json!({"type": "heartbeat_ack", "success": false, "reason": "daemon is not registered"})
    );
    assert_eq!(raw.register("w").await["success"], true);
    bed.online("w").await;
}

#[tokio::test]
async fn our_worker_registers_again_when_a_heartbeat_is_refused() {
    let hub = RawHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = quintet_sandbox::worker::WorkerConfig::new(
        &hub.url,
        "w",
        dir.path().to_owned(),
        dir.path().join("spool"),
    );
    config.backoff = quick_backoff();
    let _worker = Running::start(config).await;
    let mut raw = hub.accept(Protocol::V1).await;
    raw.send(json!({"type": "heartbeat_ack", "success": false, "reason": "reaped"}))
        .await;
    assert_eq!(raw.json().await["type"], "register");
}

#[tokio::test]
async fn a_refused_worker_tries_again_later() {
    let hub = RawHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = quintet_sandbox::worker::WorkerConfig::new(
        &hub.url,
        "w",
        dir.path().to_owned(),
        dir.path().join("spool"),
    );
    config.backoff = quick_backoff();
    let _worker = Running::start(config).await;
    let (mut raw, _) = hub.accept_silently(Protocol::V1).await;
    raw.send(json!({"type": "register_ack", "success": false, "message": "no"}))
        .await;
    raw.closed().await;
    hub.accept(Protocol::V2).await;
}

#[tokio::test]
async fn an_empty_id_and_an_unknown_message_are_answered() {
    let bed = Bed::start().await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(
        raw.register(" ").await,
        json!({"type": "register_ack", "success": false, "message": "no daemon id"})
    );
    assert_eq!(raw.register("w").await["success"], true);
    raw.send(json!({"type": "gibberish", "request_id": "g"}))
        .await;
    let reply = raw.json().await;
    assert_eq!(
        (&reply["type"], &reply["request_id"]),
        (&json!("error"), &json!("g"))
    );
    assert_eq!(raw.register("other").await["success"], false);
}

#[tokio::test]
async fn the_hub_learns_the_dialect_before_its_first_shell() {
    let bed = Bed::start().await;
    for (id_key, start) in [("command_id", "start_shell"), ("request_id", "new_session")] {
        let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
        raw.register(start).await;
        let (hub, size) = (bed.hub.clone(), crate::shells::SIZE);
        let mut asked = tokio::task::JoinSet::new();
        asked.spawn(async move {
            hub.shell(start, size, "dumb")
                .await
                .map(|shell| shell.id().to_owned())
        });
        let probe = raw.json().await;
        assert_eq!(probe["command"], "true");
        let mut reply = json!({"type": "command_output", "stdout": "", "stderr": "", "exit_code": 0, "duration_ms": 0});
        reply[id_key] = probe[id_key].clone();
        raw.send(reply).await;
        let request = raw.json().await;
        assert_eq!(request["type"], start);
        let started = if start == "start_shell" {
            "shell_started"
        } else {
            "session_started"
        };
        raw.send(json!({"type": started, "session_id": request["session_id"], "success": true, "error": null})).await;
        let id = asked.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(request["session_id"], id);
    }
}

#[tokio::test]
async fn a_message_over_the_limit_closes_the_connection_and_one_at_the_limit_does_not() {
    let bed = Bed::start().await;
    let limit = quintet_sandbox::proto::MAX_MESSAGE;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    raw.register("w").await;
    let padding = limit - "{\"type\":\"x\",\"request_id\":\"\"}".len();
    raw.send_text(format!(
        "{{\"type\":\"x\",\"request_id\":\"{}\"}}",
        "p".repeat(padding)
    ))
    .await;
    assert_eq!(raw.json().await["type"], "error");
    // The hub may be gone before all of it is sent, and then its close frame is lost.
    let _ = futures_util::SinkExt::send(&mut raw.0, oversize(limit)).await;
    bed.status("w", WorkerStatus::Offline).await;
    assert!(bed.events().iter().any(|event| matches!(event,
        HubEvent::WorkerOffline { reason, .. } if reason.contains("over 16777216 bytes"))));

    let hub = RawHub::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = quintet_sandbox::worker::WorkerConfig::new(
        &hub.url,
        "w",
        dir.path().to_owned(),
        dir.path().join("spool"),
    );
    config.backoff = quick_backoff();
    let _worker = Running::start(config).await;
    let mut raw = hub.accept(Protocol::V1).await;
    let _ = futures_util::SinkExt::send(&mut raw.0, oversize(limit)).await;
    // It comes back.
    hub.accept(Protocol::V1).await;
}

fn oversize(limit: usize) -> quintet_sandbox::socket::WsMessage {
    quintet_sandbox::socket::WsMessage::Text("x".repeat(limit + 1).into())
}

#[tokio::test]
async fn a_text_that_is_not_utf8_closes_the_connection() {
    use quintet_sandbox::socket::{WsMessage, close};
    let bad = || WsMessage::Text(b"\xff".to_vec().into());
    let expected = Some((close::NOT_UTF8, "a text that is not UTF-8".to_owned()));
    let bed = Bed::start().await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    raw.register("w").await;
    futures_util::SinkExt::send(&mut raw.0, bad())
        .await
        .unwrap();
    assert_eq!(raw.closed().await, expected);

    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    futures_util::SinkExt::send(&mut raw.0, bad())
        .await
        .unwrap();
    assert_eq!(raw.closed().await, expected);
}

#[tokio::test]
async fn a_v1_reader_that_stands_still_loses_its_stream_and_nobody_else_does() {
    let settings = HubSettings {
        slow_reader: Duration::from_millis(200),
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let _worker = bed.v1_worker("w").await;
    std::fs::write(bed.root("w").join("big"), vec![0; 20_000_000]).unwrap();
    let mut slow = bed.hub.download("w", "big", None).await.unwrap();
    // By then the file fills the reader's queue and holds up the connection.
    assert_eq!(
        run(&bed, "w", command("sleep 2; echo quick")).await.stdout,
        b"quick\n"
    );
    let result = soon("the lost stream", async {
        loop {
            match slow.next().await {
                Ok(Some(_)) => {}
                other => break other,
            }
        }
    })
    .await;
    assert!(result.is_err(), "{result:?}");
}
