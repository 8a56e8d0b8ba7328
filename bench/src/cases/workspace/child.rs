//! One end of ours as a process: `child workspace master|replica|store HOME`.
//!
//! A replica answers each line when both sides agree, with the bytes that were moved so far; a line
//! `barrier` when it has passed one, with the nanoseconds that took.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_trait::async_trait;
use quintet_workspace::content::Cas;
use quintet_workspace::replica::{Dial, DialFailed};
use quintet_workspace::{Connection, Replica, ReplicaConfig, Workspace, WorkspaceConfig};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(180);

pub(crate) fn run(mut words: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let role = words.next().context("no role")?;
    let home = PathBuf::from(words.next().context("no folder")?);
    let runtime = tokio::runtime::Runtime::new()?;
    match role.to_str() {
        Some("master") => runtime.block_on(master(home))?,
        Some("replica") => runtime.block_on(replica(home))?,
        Some("store") => store(&home)?,
        _ => anyhow::bail!("{} is no end", role.display()),
    }
    Ok(ExitCode::SUCCESS)
}

fn say(line: impl std::fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

async fn master(home: PathBuf) -> anyhow::Result<()> {
    let config = WorkspaceConfig::new(home.join("master"), home.join("state"), home.join("cas"));
    let started = tokio::task::spawn_blocking(move || Workspace::start(&config));
    let (workspace, opening) = started.await??;
    let listener = quintet_framing::unix::bind(&home.join("s")).await?;
    let mut sessions = JoinSet::new();
    let mut opening = std::pin::pin!(async {
        opening.done().await?;
        anyhow::Ok(say("ready")?)
    });
    let mut is_open = false;
    loop {
        let (stream, _) = tokio::select! {
            opened = &mut opening, if !is_open => {
                opened?;
                is_open = true;
                continue;
            }
            accepted = listener.accept() => accepted?,
        };
        let workspace = workspace.clone();
        sessions.spawn(async move {
            let connection = Connection::over_stream(stream);
            workspace.serve(connection, CancellationToken::new()).await
        });
    }
}

async fn replica(home: PathBuf) -> anyhow::Result<()> {
    let config = ReplicaConfig::new(home.join("replica"), home.join("replica-state"), "bench");
    let (replica, runner) = tokio::task::spawn_blocking(move || Replica::open(&config)).await??;
    let bytes = Arc::new(AtomicU64::new(0));
    let dial = Counting {
        path: home.join("s"),
        bytes: Arc::clone(&bytes),
    };
    let mut running = JoinSet::new();
    running.spawn(runner.run(dial, CancellationToken::new()));
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line == "barrier" {
            let started = Instant::now();
            replica.barrier(LONG).await?;
            say(started.elapsed().as_nanos())?;
            continue;
        }
        replica.write_back_and_wait(LONG).await?;
        replica.barrier(LONG).await?;
        say(bytes.load(Ordering::Relaxed))?;
    }
    Ok(())
}

/// Stores the large file, and says how many microseconds that took.
fn store(home: &std::path::Path) -> anyhow::Result<()> {
    let cas = Cas::open(&home.join("cas"))?;
    let file = std::fs::File::open(home.join("master/large")).context("the large file")?;
    let started = Instant::now();
    cas.ingest(file)?;
    cas.sync()?;
    say(started.elapsed().as_micros())?;
    Ok(())
}

/// Dials a socket that counts, as soon as it is there.
struct Counting {
    path: PathBuf,
    bytes: Arc<AtomicU64>,
}

#[async_trait]
impl Dial for Counting {
    async fn dial(&self) -> Result<Connection, DialFailed> {
        loop {
            match UnixStream::connect(&self.path).await {
                Ok(stream) => {
                    let bytes = Arc::clone(&self.bytes);
                    return Ok(Connection::over_stream(Counted { stream, bytes }));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }
}

struct Counted {
    stream: UnixStream,
    bytes: Arc<AtomicU64>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let more = (buffer.filled().len() - before) as u64;
        self.bytes.fetch_add(more, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = &written {
            self.bytes.fetch_add(*written as u64, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
