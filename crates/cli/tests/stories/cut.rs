//! A connection that is cut at any place loses nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::harness::{Finished, Machine};

/// Stands between the program and the daemon, and cuts the first connection.
struct Cutter {
    home: PathBuf,
    _tasks: JoinSet<()>,
}

impl Cutter {
    /// A home folder whose daemon seems to live at the cutter's socket.
    fn before(machine: &Machine, after_frames: usize) -> Self {
        let home = machine.path().join(format!("cut-{after_frames}"));
        let socket = home.join("run/cut.sock");
        std::fs::create_dir_all(home.join("run")).unwrap();
        let text = std::fs::read_to_string(machine.run_file()).unwrap();
        let mut run: serde_json::Value = serde_json::from_str(&text).unwrap();
        run["control_socket"] = socket.to_str().unwrap().into();
        std::fs::write(home.join("run/quintet.json"), run.to_string()).unwrap();

        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = machine.control_socket();
        let accepted = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let first = accepted.fetch_add(1, Ordering::Relaxed) == 0;
                let most = if first { after_frames } else { usize::MAX };
                connections.spawn(pass(client, daemon.clone(), most));
            }
        });
        Self {
            home,
            _tasks: tasks,
        }
    }

    fn home(&self) -> &Path {
        &self.home
    }
}

/// Passes bytes on; after so many frames from the daemon both ends are closed.
async fn pass(client: UnixStream, daemon: PathBuf, most: usize) {
    let daemon = UnixStream::connect(daemon).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_daemon, mut to_daemon) = daemon.into_split();
    let down = async {
        for _ in 0..most {
            let length = from_daemon.read_u32().await?;
            let mut frame = vec![0; length as usize];
            from_daemon.read_exact(&mut frame).await?;
            to_client.write_u32(length).await?;
            to_client.write_all(&frame).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    tokio::select! {
        // Either side may end it; that is what this is for.
        _ = down => {}
        _ = tokio::io::copy(&mut from_client, &mut to_daemon) => {}
    }
}

#[tokio::test]
async fn an_answer_is_whole_wherever_the_connection_is_cut() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let send = |home: &Path| {
        let home = home.to_str().unwrap();
        machine.quintet(&[
            "--home",
            home,
            "send",
            "test",
            "say one two three four five",
            "--json",
        ])
    };
    let frames = |stdout: &str| stdout.lines().count();
    let kinds = |stdout: &str| -> Vec<String> {
        stdout
            .lines()
            .map(|line| {
                let event: serde_json::Value = serde_json::from_str(line).unwrap();
                format!("{} {}", event["kind"], event["data"]["content"])
            })
            .collect()
    };
    let whole = Finished::of(send(&machine.home())).await.succeeds();
    for cut in 1..frames(&whole) {
        let cutter = Cutter::before(&machine, cut);
        let told = Finished::of(send(cutter.home())).await.succeeds();
        let text = |kinds: Vec<String>| kinds.concat().replace("\"chunk\" ", "").replace('"', "");
        assert_eq!(text(kinds(&told)), text(kinds(&whole)), "cut after {cut}");
        assert_eq!(
            kinds(&told)
                .iter()
                .filter(|kind| kind.starts_with("\"end\""))
                .count(),
            1
        );
    }

    // Cut before the first event, nobody can know whether the message arrived.
    let cutter = Cutter::before(&machine, 0);
    let stderr = Finished::of(send(cutter.home())).await.fails(1);
    assert!(
        stderr.contains("hint: the message may have arrived"),
        "{stderr}"
    );
}
