//! Commands, over both versions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quintet_sandbox::hub::{
    ExecEvent, ExecOutcome, ExecOutput, ExecRequest, HubEvent, RequestError, WorkerStatus,
};
use quintet_sandbox::proto::Protocol;
use serde_json::{Value, json};

use crate::bed::{Bed, Lone, Raw, raw_worker, soon};

pub(crate) fn command(line: &str) -> ExecRequest {
    ExecRequest {
        command: line.to_owned(),
        ..ExecRequest::default()
    }
}

pub(crate) async fn run(bed: &Bed, worker: &str, request: ExecRequest) -> ExecOutput {
    let handle = bed.hub.exec(worker, request).await.unwrap();
    soon("the command ends", handle.output(usize::MAX))
        .await
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_command_has_its_environment_folder_output_and_code() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for worker in ["v1", "v2"] {
        let root = bed.root(worker).canonicalize().unwrap();
        std::fs::create_dir_all(root.join("sub")).unwrap();
        let output = run(
            &bed,
            worker,
            ExecRequest {
                env: BTreeMap::from([("FOO".to_owned(), "b a\nr".to_owned())]),
                cwd: Some("sub".to_owned()),
                ..command("printf '%s|' \"$FOO\"; pwd; echo bad >&2; exit 3")
            },
        )
        .await;
        let expected = format!("b a\nr|{}\n", root.join("sub").display());
        assert_eq!(text(&output.stdout), expected, "{worker}");
        assert_eq!(text(&output.stderr), "bad\n");
        assert_eq!(output.outcome, ExecOutcome::Exited(3));
        let output = run(&bed, worker, command("pwd; cat; nosuchprogram")).await;
        assert_eq!(text(&output.stdout), format!("{}\n", root.display()));
        assert_eq!(output.outcome, ExecOutcome::Exited(127));
    }
    let info = bed.hub.worker("v2").unwrap();
    assert_eq!((info.protocol.as_str(), info.running), ("sandd.v2", 0));
    assert_eq!(bed.hub.worker("v1").unwrap().protocol, "sandd.v1");
}

#[tokio::test]
async fn the_worker_s_own_secrets_do_not_reach_a_command() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.env = quintet_sandbox::worker::scrub_environment([
        ("PATH".into(), "/usr/bin:/bin".into()),
        ("LC_ALL".into(), "C".into()),
        ("API_KEY".into(), "secret".into()),
    ]);
    let _worker = bed.worker_with(config).await;
    let output = run(&bed, "w", command("env")).await;
    let stdout = text(&output.stdout);
    assert!(stdout.contains("PATH=/usr/bin:/bin\n") && stdout.contains("LC_ALL=C\n"));
    assert!(!stdout.contains("secret"));
}

#[tokio::test]
async fn output_that_is_not_text_stays_bytes_in_v2_and_is_replaced_in_v1() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    let line = "printf '\\377\\376abc'";
    assert_eq!(run(&bed, "v2", command(line)).await.stdout, b"\xff\xfeabc");
    let output = run(&bed, "v1", command(line)).await;
    assert_eq!(text(&output.stdout), "\u{fffd}\u{fffd}abc");
}

#[tokio::test]
async fn a_signal_is_named() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    let output = run(&bed, "v2", command("kill -9 $$")).await;
    assert_eq!(output.outcome, ExecOutcome::Signaled(9));
    let output = run(&bed, "v1", command("printf x >&2; kill -9 $$")).await;
    assert_eq!(output.outcome, ExecOutcome::Exited(-1));
    assert_eq!(text(&output.stderr), "x\n[killed by signal 9 (SIGKILL)]\n");
}

#[tokio::test]
async fn a_bad_folder_and_a_bad_variable_are_said() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for worker in ["v1", "v2"] {
        let request = ExecRequest {
            cwd: Some("/nonexistent".to_owned()),
            ..command("true")
        };
        let handle = bed.hub.exec(worker, request).await.unwrap();
        let error = handle.output(0).await.unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "{error}");
        let request = ExecRequest {
            env: BTreeMap::from([("A=B".to_owned(), String::new())]),
            ..command("true")
        };
        let handle = bed.hub.exec(worker, request).await.unwrap();
        assert!(handle.output(0).await.is_err());
    }
    assert!(matches!(
        bed.hub.exec("nobody", command("true")).await,
        Err(RequestError::UnknownWorker { .. })
    ));
}

/// Processes whose command line holds `mark`.
pub(crate) fn alive(mark: &str) -> usize {
    let holds = |pid: &str| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(mark) && !line.contains("sandbox")
        })
    };
    crate::bed::names_in(std::path::Path::new("/proc"))
        .iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && holds(name))
        .count()
}

#[tokio::test]
async fn a_timeout_below_a_second_is_not_rounded_up() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let request = ExecRequest {
        timeout: Some(Duration::from_millis(50)),
        ..command("sleep 60")
    };
    let output = run(&bed, "w", request).await;
    assert_eq!(output.outcome, ExecOutcome::TimedOut { secs: 1 });
    let took = output.duration;
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree_even_what_left_its_group() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for (worker, seconds) in [("v1", 98761), ("v2", 98762)] {
        let request = ExecRequest {
            timeout: Some(Duration::from_secs(1)),
            ..command(&format!(
                "echo early; (setsid sleep {seconds} &) ; nohup sleep {seconds} & sleep {seconds}"
            ))
        };
        let output = run(&bed, worker, request).await;
        assert_eq!(output.outcome, ExecOutcome::TimedOut { secs: 1 });
        if worker == "v2" {
            assert_eq!(text(&output.stdout), "early\n");
        }
        assert_eq!(alive(&format!("sleep {seconds}")), 0);
    }
}

#[tokio::test]
async fn a_command_that_daemonises_does_not_hold_its_reply() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for (worker, seconds) in [("v1", 97531), ("v2", 97532)] {
        let started = Instant::now();
        let line = format!("setsid sleep {seconds} & echo started");
        let output = run(&bed, worker, command(&line)).await;
        assert_eq!(text(&output.stdout), "started\n");
        assert_eq!(output.outcome, ExecOutcome::Exited(0));
        assert!(started.elapsed() < Duration::from_secs(5));
        // It is a daemon: it lives on until it is ended by hand.
        assert_eq!(alive(&format!("sleep {seconds}")), 1);
        run(
            &bed,
            worker,
            command(&format!("pkill -f '^sleep {seconds}$'")),
        )
        .await;
    }
}

/// What it prints in the moment after its shell's end is its output still.
#[tokio::test]
async fn what_is_printed_within_the_grace_is_not_lost() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for worker in ["v1", "v2"] {
        let line = "(sleep 0.1; echo late) & echo early";
        let output = run(&bed, worker, command(line)).await;
        assert_eq!(text(&output.stdout), "early\nlate\n", "{worker}");
    }
}

#[tokio::test]
async fn a_cancelled_command_and_a_dropped_handle_leave_no_process() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut handle = bed
        .hub
        .exec(
            "w",
            command("trap '' TERM; echo up; (setsid sleep 95411 &); sleep 95411"),
        )
        .await
        .unwrap();
    assert_eq!(
        soon("output", handle.next()).await.unwrap(),
        ExecEvent::Stdout("up\n".into())
    );
    handle.cancel().await;
    let end = soon("the end", handle.next()).await.unwrap();
    assert!(
        matches!(
            &end,
            ExecEvent::Ended {
                outcome: ExecOutcome::Cancelled,
                ..
            }
        ),
        "{end:?}"
    );
    assert_eq!(alive("sleep 95411"), 0);

    let mut handle = bed
        .hub
        .exec("w", command("echo up; sleep 95412"))
        .await
        .unwrap();
    soon("output", handle.next()).await.unwrap();
    drop(handle);
    soon("the dropped command dies", async {
        while alive("sleep 95412") > 0 || !bed.hub.jobs("w").await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn input_reaches_a_v2_command_and_only_it() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    let request = ExecRequest {
        stdin: true,
        ..command("wc -c; cat")
    };
    assert!(matches!(
        bed.hub.exec("v1", request.clone()).await,
        Err(RequestError::NeedsV2 { .. })
    ));
    let handle = bed.hub.exec("v2", request).await.unwrap();
    let input = handle.stdin();
    let payload = vec![b'x'; 3_000_000];
    let (written, output) = tokio::join!(
        async {
            input.write(&payload).await?;
            input.finish().await
        },
        handle.output(usize::MAX)
    );
    written.unwrap();
    assert_eq!(text(&output.unwrap().stdout).trim(), "3000000");
}

#[tokio::test]
async fn a_hundred_megabytes_come_whole_over_v2_and_cut_over_v1() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    let line = "head -c 100000000 /dev/zero | tr '\\0' x; echo end >&2";
    let mut handle = bed.hub.exec("v2", command(line)).await.unwrap();
    let mut bytes = 0;
    let outcome = loop {
        match soon("output", handle.next()).await.unwrap() {
            ExecEvent::Stdout(part) => bytes += part.len(),
            ExecEvent::Stderr(part) => assert_eq!(part.as_ref(), b"end\n"),
            ExecEvent::Dropped { .. } => panic!("nothing may be dropped"),
            ExecEvent::Ended { outcome, .. } => break outcome,
        }
    };
    assert_eq!((bytes, outcome), (100_000_000, ExecOutcome::Exited(0)));
    let output = run(&bed, "v1", command(line)).await;
    assert_eq!(text(&output.stderr), "end\n");
    let stdout = text(&output.stdout);
    assert!(stdout.len() < 16 * 1024 * 1024 && stdout.len() > 4_000_000);
    let kept = stdout.bytes().filter(|byte| *byte == b'x').count();
    let marker = format!("\n[output cut: {} bytes more]\n", 100_000_000 - kept);
    assert!(stdout.ends_with(&marker), "{}", &stdout[kept..]);
}

#[tokio::test]
async fn a_reader_that_stands_still_stops_nobody_else() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut slow = bed
        .hub
        .exec("w", command("head -c 40000000 /dev/zero"))
        .await
        .unwrap();
    soon("the first bytes", slow.next()).await.unwrap();
    for _ in 0..20 {
        assert_eq!(
            run(&bed, "w", command("echo quick")).await.stdout,
            b"quick\n"
        );
    }
    let rest = soon("the rest", slow.output(usize::MAX)).await.unwrap();
    assert!(rest.stdout.len() > 39_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_commands_and_six_shells_do_not_wait_for_each_other() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut shells = Vec::new();
    for _ in 0..6 {
        shells.push(crate::shells::start(&bed, "w").await);
    }
    let started = Instant::now();
    let mut commands = tokio::task::JoinSet::new();
    for number in 0..50 {
        let hub = bed.hub.clone();
        commands.spawn(async move {
            let request = command(&format!("sleep 4; echo {number}"));
            let handle = hub.exec("w", request).await.unwrap();
            (number, handle.output(100).await.unwrap())
        });
    }
    for shell in &mut shells {
        shell.type_line("echo shell-$((40+2))").await;
        shell.until("shell-42").await;
    }
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "shells waited for commands"
    );
    while let Some(done) = soon("the commands", commands.join_next()).await {
        let (number, output) = done.unwrap();
        assert_eq!(text(&output.stdout), format!("{number}\n"));
    }
    // One after the other they would take 200 s.
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[tokio::test]
async fn quotas_refuse_what_is_too_much_and_say_so() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.quotas.commands = 2;
    let _worker = bed.worker_with(config).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut handle = bed.hub.exec("w", command("echo; sleep 100")).await.unwrap();
        soon("it runs", handle.next()).await.unwrap();
        held.push(handle);
    }
    assert_eq!(bed.hub.worker("w").unwrap().running, 2);
    let third = bed.hub.exec("w", command("true")).await.unwrap();
    let error = third.output(0).await.unwrap_err();
    assert!(error.to_string().contains("2 commands"), "{error}");
}

#[tokio::test]
async fn a_limit_counts_what_runs_and_is_of_its_kind() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    (config.quotas.commands, config.quotas.shells) = (1, 1);
    let _worker = bed.worker_with(config).await;
    // A result that waits for somebody runs no more.
    let kept = bed.hub.exec("w", command("echo kept")).await.unwrap();
    let kept = kept.detach().await.unwrap();
    soon("it has ended", async {
        while bed.hub.jobs("w").await.unwrap()[0].running {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut held = bed.hub.exec("w", command("echo; sleep 100")).await.unwrap();
    soon("it runs", held.next()).await.unwrap();
    let _shell = crate::shells::start(&bed, "w").await;
    let second = bed.hub.shell("w", crate::shells::SIZE, "dumb").await;
    let error = second.err().unwrap().to_string();
    assert!(error.contains("1 shells"), "{error}");
    let second = bed.hub.exec("w", command("true")).await.unwrap();
    let error = second.output(0).await.unwrap_err().to_string();
    assert!(error.contains("1 commands"), "{error}");
    let kept = bed.hub.attach_exec("w", &kept).await.unwrap();
    assert_eq!(kept.output(100).await.unwrap().stdout, b"kept\n");
}

/// Without one, the newer would take what comes for the older.
#[tokio::test]
async fn an_id_that_is_in_use_is_refused_and_the_older_goes_on() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    let request =
        |line: &str| json!({"type": "execute_command", "request_id": "same", "command": line});
    raw.send(request("until [ -e go ]; do sleep 0.05; done; echo first"))
        .await;
    let reply = answer(&mut raw, request("echo second")).await;
    assert_eq!(
        (&reply["type"], &reply["error"]),
        (&json!("command_error"), &json!("the id \"same\" is in use"))
    );
    std::fs::write(lone.root().join("go"), b"").unwrap();
    assert_eq!(raw.json().await["stdout"], "first\n");
}

/// What it waits for is nobody's to give.
#[tokio::test]
async fn a_command_that_is_given_no_input_finds_its_end() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for worker in ["v1", "v2"] {
        let output = run(&bed, worker, command("cat; echo end")).await;
        assert_eq!(text(&output.stdout), "end\n", "{worker}");
    }
}

#[tokio::test]
async fn every_command_has_its_rows_in_the_audit() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    run(&bed, "w", command("echo hi; exit 4")).await;
    let events = bed.events();
    assert!(events.iter().any(|event| matches!(event,
        HubEvent::CommandStarted { worker, command, .. } if worker == "w" && command == "echo hi; exit 4")));
    assert!(events.iter().any(|event| matches!(event,
        HubEvent::CommandEnded { result, output: 3, .. } if result == "exited 4")));
    assert!(matches!(&events[0], HubEvent::WorkerOnline(info) if info.id == "w"));
}

#[tokio::test]
async fn a_worker_that_repeats_its_registration_has_one_row() {
    let bed = Bed::start().await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    for _ in 0..3 {
        assert_eq!(raw.register("w").await["success"], true);
    }
    let online = |event: &HubEvent| matches!(event, HubEvent::WorkerOnline(_));
    assert_eq!(bed.events().iter().filter(|event| online(event)).count(), 1);
}

#[tokio::test]
async fn nothing_is_told_before_it_is_recorded_and_nothing_waits_for_it() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    bed.events.hold.send_replace(true);
    let mut handle = bed
        .hub
        .exec("w", command("echo said; touch ran"))
        .await
        .unwrap();
    let ran = bed.root("w").join("ran");
    soon("it runs while its row is written", async {
        while !ran.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(futures_util::poll!(std::pin::pin!(handle.next())).is_pending());
    let release = |held: bool| bed.events.hold.send_replace(held);
    release(false);
    assert_eq!(
        soon("its output", handle.next()).await.unwrap(),
        ExecEvent::Stdout("said\n".into())
    );
    release(true);
    // The end is known to the hub when its row is on its way, and to nobody else.
    soon("the end is noted", async {
        loop {
            assert!(futures_util::poll!(std::pin::pin!(handle.next())).is_pending());
            let noted = bed
                .events()
                .iter()
                .any(|event| matches!(event, HubEvent::CommandEnded { .. }));
            if noted {
                break;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(futures_util::poll!(std::pin::pin!(handle.next())).is_pending());
    release(false);
    assert!(matches!(
        soon("its end", handle.next()).await.unwrap(),
        ExecEvent::Ended { .. }
    ));
}

#[tokio::test]
async fn labels_select_workers() {
    let bed = Bed::start().await;
    let mut workers = Vec::new();
    for (id, role) in [("a", "build"), ("b", "test"), ("c", "build")] {
        let mut config = bed.config(id);
        config.labels = BTreeMap::from([
            ("role".to_owned(), role.to_owned()),
            ("name".to_owned(), id.to_owned()),
        ]);
        workers.push(bed.worker_with(config).await);
    }
    let wanted = BTreeMap::from([("role".to_owned(), "build".to_owned())]);
    let ids: Vec<String> = bed.hub.select(&wanted).into_iter().map(|w| w.id).collect();
    assert_eq!(ids, ["a", "c"]);
    let mut both = wanted.clone();
    both.insert("name".to_owned(), "c".to_owned());
    let ids: Vec<String> = bed.hub.select(&both).into_iter().map(|w| w.id).collect();
    assert_eq!(ids, ["c"]);
    workers.remove(0).stop().await;
    bed.status("a", WorkerStatus::Offline).await;
    assert!(matches!(
        bed.hub.exec("a", command("true")).await,
        Err(RequestError::NotOnline {
            status: WorkerStatus::Offline,
            ..
        })
    ));
}

// ---- the worker against a raw hub: v1 to the letter ----

async fn answer(raw: &mut Raw<tokio::net::TcpStream>, request: Value) -> Value {
    raw.send(request).await;
    raw.json().await
}

#[tokio::test]
async fn a_worker_answers_in_the_dialect_of_the_request() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    for key in ["command_id", "request_id"] {
        let mut request = json!({"type": "execute_command", "command": "echo hi"});
        request[key] = json!("7");
        let reply = answer(&mut raw, request).await;
        assert_eq!(reply["type"], "command_output");
        assert_eq!(reply[key], "7");
        assert_eq!(reply["stdout"], "hi\n");
        assert_eq!(reply["exit_code"], 0);
        assert!(reply["duration_ms"].is_u64());
        assert_eq!(reply.as_object().unwrap().len(), 6);
    }
}

#[tokio::test]
async fn what_a_worker_can_t_use_is_answered_with_its_id_and_the_connection_stays() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    raw.send_text("not json".to_owned()).await;
    raw.send_binary(bytes::Bytes::from_static(b"ignored in v1"))
        .await;
    raw.send(json!({"type": "unknown without id"})).await;
    let reply = answer(&mut raw, json!({"type": "bogus", "transfer_id": "t"})).await;
    assert_eq!(reply["type"], "error");
    assert_eq!(
        (&reply["transfer_id"], &reply["recoverable"]),
        (&json!("t"), &json!(true))
    );
    let reply = answer(
        &mut raw,
        json!({"type": "execute_command", "request_id": "r"}),
    )
    .await;
    assert_eq!(
        (&reply["type"], &reply["request_id"]),
        (&json!("error"), &json!("r"))
    );
    let zero =
        json!({"type": "execute_command", "request_id": "z", "command": "true", "timeout_secs": 0});
    let reply = answer(&mut raw, zero).await;
    assert_eq!(
        (&reply["type"], &reply["request_id"]),
        (&json!("command_error"), &json!("z"))
    );
    assert_eq!(reply["error"], "timeout_secs must be at least 1");
    let slow = json!({"type": "execute_command", "request_id": "t", "command": "sleep 60", "timeout_secs": 1});
    let reply = answer(&mut raw, slow).await;
    assert_eq!(
        (&reply["type"], &reply["error"]),
        (&json!("command_error"), &json!("timed out after 1 s"))
    );
}

#[tokio::test]
async fn snapshot_requests_are_never_met_with_silence() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    for request in [
        json!({"type": "create_snapshot", "request_id": "s", "workspace": "/x", "message": null, "tags": null}),
        json!({"type": "restore_snapshot", "request_id": "s", "snapshot_id": "i", "destination": "/x"}),
        json!({"type": "list_snapshots", "request_id": "s", "tags": null}),
        json!({"type": "find_snapshot_by_tag", "request_id": "s", "tag": "t"}),
        json!({"type": "get_snapshot", "request_id": "s", "snapshot_id": "i"}),
        json!({"type": "delete_snapshot", "request_id": "s", "snapshot_id": "i"}),
    ] {
        let reply = answer(&mut raw, request).await;
        assert_eq!(
            (&reply["type"], &reply["request_id"]),
            (&json!("snapshot_error"), &json!("s"))
        );
    }
}

#[tokio::test]
async fn a_lost_v1_connection_ends_its_commands() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    raw.send(json!({"type": "execute_command", "request_id": "r", "command": "sleep 94311"}))
        .await;
    soon("it runs", async {
        while alive("sleep 94311") == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(raw);
    soon("it is killed", async {
        while alive("sleep 94311") > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
