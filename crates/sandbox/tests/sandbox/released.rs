//! The released programs: their server with our worker, their daemon with our hub.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use quintet_sandbox::hub::{ExecOutcome, ExecRequest, HubSettings, RequestError, TerminalSize};
use serde_json::json;

use crate::bed::{Bed, Program};
use crate::commands::{command, run, text};
use crate::shells::start;

/// A program that `install-peers.sh` has put into the cache.
fn installed(path: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../.cache")
        .join(path);
    assert!(
        path.exists(),
        "{} is missing: run crates/sandbox/tests/install-peers.sh",
        path.display()
    );
    path
}

#[test]
fn the_released_server_drives_our_worker() {
    let python = installed("sandd-py/bin/python");
    let dir = tempfile::tempdir().unwrap();
    // The server takes no port 0; the worker dials until it is there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut workers = Vec::new();
    for (id, role) in [("w1", "build"), ("w2", "test")] {
        let root = dir.path().join(id);
        std::fs::create_dir(&root).unwrap();
        let settings = json!({
            "server_url": format!("ws://127.0.0.1:{port}/ws"),
            "daemon_id": id,
            "root": root,
            "spool": dir.path().join(format!("spool-{id}")),
            "labels": {"team": "a", "role": role},
        });
        workers.push(Program::start(&settings, &[]));
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/released_server.py");
    let output = Command::new(python)
        .arg(script)
        .arg(port.to_string())
        .arg(dir.path().join("w1"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    assert_eq!(text(&output.stdout), "ok\n");
}

/// The released daemon, killed when dropped.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_released_daemon_works_under_our_hub() {
    let settings = HubSettings {
        patience: Duration::from_secs(2),
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let root = bed.root("d");
    let child = Command::new(installed("sandd-daemon/bin/sandd"))
        .args([
            "--server-url",
            &bed.url(),
            "--daemon-id",
            "d",
            "--label",
            "env=test",
        ])
        .current_dir(&root)
        .env("HOME", bed.dir.path())
        .env("SANDD_ROOT", bed.dir.path().join("sandd"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _daemon = Daemon(child);
    bed.online("d").await;
    let info = bed.hub.worker("d").unwrap();
    assert_eq!(
        (info.protocol.as_str(), info.version.as_str()),
        ("sandd.v1", "0.0.1")
    );
    assert_eq!(
        info.labels,
        BTreeMap::from([("env".to_owned(), "test".to_owned())])
    );

    let request = ExecRequest {
        env: BTreeMap::from([("FOO".to_owned(), "bar".to_owned())]),
        cwd: Some("/tmp".to_owned()),
        ..command("echo $FOO; pwd; echo bad >&2; exit 3")
    };
    let output = run(&bed, "d", request).await;
    assert_eq!(
        (text(&output.stdout), text(&output.stderr)),
        ("bar\n/tmp\n", "bad\n")
    );
    assert_eq!(output.outcome, ExecOutcome::Exited(3));
    assert_eq!(
        run(&bed, "d", command("kill -9 $$")).await.outcome,
        ExecOutcome::Exited(-1)
    );
    let request = ExecRequest {
        timeout: Some(Duration::from_secs(1)),
        ..command("sleep 5")
    };
    assert_eq!(
        run(&bed, "d", request).await.outcome,
        ExecOutcome::TimedOut { secs: 1 }
    );

    std::fs::write(root.join("file"), vec![7; 200_000]).unwrap();
    let path = root.join("file");
    let mut download = bed
        .hub
        .download("d", path.to_str().unwrap(), None)
        .await
        .unwrap();
    let mut bytes = Vec::new();
    while let Some(part) = download.next().await.unwrap() {
        bytes.extend_from_slice(&part);
    }
    assert!(bytes == vec![7; 200_000]);
    let mut missing = bed.hub.download("d", "/nonexistent", None).await.unwrap();
    assert!(matches!(
        missing.next().await,
        Err(RequestError::Failed { .. })
    ));

    let mut shell = start(&bed, "d").await;
    shell.type_line("stty size; echo sess-$((40+2))").await;
    shell.until("24 80").await;
    shell.until("sess-42").await;
    shell
        .input
        .resize(TerminalSize {
            rows: 40,
            cols: 100,
        })
        .await
        .unwrap();
    shell.type_line("stty size").await;
    shell.until("40 100").await;
    shell.type_line("exit 7").await;
    // It says 0 whatever the shell said.
    assert_eq!(shell.end().await, ExecOutcome::Exited(0));

    // It never confirms an upload; the caller is told and does not wait for ever.
    let request = quintet_sandbox::hub::UploadRequest {
        path: root.join("up").to_str().unwrap().to_owned(),
        size: 3,
        mode: None,
        modified: None,
    };
    let mut source = std::io::Cursor::new(b"abc".to_vec());
    let result = bed.hub.upload("d", &request, &mut source, |_| {}).await;
    assert!(
        matches!(result, Err(RequestError::NoAnswer { .. })),
        "{result:?}"
    );
}
