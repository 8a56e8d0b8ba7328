//! What a worker and a hub hold in memory.

use quintet_sandbox::hub::{ExecEvent, UploadRequest};
use quintet_sandbox::proto::Protocol;
use serde_json::json;

use crate::bed::{Bed, raw_worker, soon};
use crate::commands::command;

const GIB: u64 = 1 << 30;

/// A figure of `/proc/PID/status`, in bytes.
fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    let number = line.split_whitespace().nth(1).unwrap();
    number.parse::<u64>().unwrap() * 1024
}

/// Holds a running program to 64 MiB of its own memory; an allocation beyond it fails.
fn limit_memory(pid: u32) {
    let limit = Some(64 << 20);
    let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap());
    let new = rustix::process::Rlimit {
        current: limit,
        maximum: limit,
    };
    rustix::process::prlimit(pid, rustix::process::Resource::Data, new).unwrap();
}

/// A file of zeros that is not in memory.
struct Zeros {
    at: u64,
    len: u64,
}

impl tokio::io::AsyncRead for Zeros {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let most = usize::try_from(self.len - self.at)
            .unwrap()
            .min(buffer.remaining());
        buffer.initialize_unfilled_to(most);
        buffer.advance(most);
        self.at += most as u64;
        std::task::Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncSeek for Zeros {
    fn start_seek(
        mut self: std::pin::Pin<&mut Self>,
        to: std::io::SeekFrom,
    ) -> std::io::Result<()> {
        if let std::io::SeekFrom::Start(at) = to {
            self.at = at;
        }
        Ok(())
    }

    fn poll_complete(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<u64>> {
        std::task::Poll::Ready(Ok(self.at))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_gibibytes_go_through_sixty_four_mebibytes() {
    through_sixty_four_mebibytes(Protocol::V2, 10 * GIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_larger_goes_through_sixty_four_mebibytes_of_the_first_version_too() {
    through_sixty_four_mebibytes(Protocol::V1, GIB / 8).await;
}

async fn through_sixty_four_mebibytes(protocol: Protocol, down: u64) {
    let bed = Bed::start().await;
    // Holes of a file in memory take no memory, and reading them none either.
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let settings = json!({"root": root.path(), "v1_only": protocol == Protocol::V1});
    let program = bed.program("w", settings).await;
    assert_eq!(bed.hub.worker("w").unwrap().protocol, protocol.name());
    limit_memory(program.pid());
    let file = std::fs::File::create(root.path().join("sparse")).unwrap();
    file.set_len(down).unwrap();
    let mut download = bed.hub.download("w", "sparse", None).await.unwrap();
    let mut received = 0;
    while let Some(bytes) = soon("a chunk", download.next()).await.unwrap() {
        received += bytes.len() as u64;
    }
    assert_eq!(received, down);
    let request = UploadRequest {
        path: "back".to_owned(),
        size: GIB / 8,
        mode: None,
        modified: None,
    };
    let mut source = Zeros {
        at: 0,
        len: GIB / 8,
    };
    bed.hub
        .upload("w", &request, &mut source, |_| {})
        .await
        .unwrap();
    assert_eq!(
        std::fs::metadata(root.path().join("back")).unwrap().len(),
        GIB / 8
    );
    let peak = status(program.pid(), "VmHWM");
    assert!(peak < 64 << 20, "{peak} bytes at the most");
}

#[tokio::test]
async fn output_of_the_first_version_is_cut_before_it_fills_memory() {
    let bed = Bed::start().await;
    let program = bed.program("w", json!({"v1_only": true})).await;
    limit_memory(program.pid());
    let line = "head -c 300000000 /dev/zero | tr '\\0' x; echo end >&2";
    let output = crate::commands::run(&bed, "w", command(line)).await;
    assert!(output.stdout.len() < 16 << 20, "{}", output.stdout.len());
    assert_eq!(output.stderr, b"end\n");
    let peak = status(program.pid(), "VmHWM");
    assert!(peak < 64 << 20, "{peak} bytes at the most");
}

#[tokio::test]
async fn output_that_nobody_reads_is_not_held_in_memory() {
    let bed = Bed::start().await;
    let program = bed.program("w", json!({})).await;
    limit_memory(program.pid());
    let mut handle = bed
        .hub
        .exec("w", command("head -c 300000000 /dev/zero; touch finished"))
        .await
        .unwrap();
    soon("the first bytes", handle.next()).await.unwrap();
    // The program ends although nobody reads: its output is on disk.
    soon("it ends", async {
        while !bed.root("w").join("finished").exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let mut bytes = 0;
    loop {
        match soon("output", handle.next()).await.unwrap() {
            ExecEvent::Stdout(part) => bytes += part.len(),
            ExecEvent::Stderr(_) | ExecEvent::Dropped { .. } => {}
            ExecEvent::Ended { .. } => break,
        }
    }
    assert!(bytes > 299_000_000);
    assert!(status(program.pid(), "VmHWM") < 64 << 20);
}

#[tokio::test]
async fn an_idle_worker_costs_the_hub_little() {
    let bed = Bed::start().await;
    // A few first, so that what the first ones allocate for all is not counted.
    let mut workers = Vec::new();
    let mut before = 0;
    for number in 0..320 {
        if number == 20 {
            before = status(std::process::id(), "VmRSS");
        }
        let mut raw = raw_worker(&bed.url(), &["sandd.v2"]).await;
        raw.register(&format!("w{number}")).await;
        workers.push(raw);
    }
    let each = (status(std::process::id(), "VmRSS") - before) / 300;
    // Both ends are in this process; the raw one is small, and counted against the hub.
    assert!(
        each < 45 * 1024,
        "{each} bytes for both ends of a connection"
    );
}
