//! Everything at once, for minutes: workers, agents, browsers and replicas of one daemon.
//!
//! The daemon is a process with its home on the disk of this repository. Its workers are real ones,
//! all in one process; each session has an agent in a process of its own; browsers, clients of the
//! control socket and replicas are in this process. It is no race: nobody else does the same work.
//! Everything that comes is checked, and whatever is lost, doubled, refused or cut is an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use quintet_control::{Client as _, UnixClient};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::sandbox::ours::{Program, daemon};

mod browsers;
mod memory;
mod replicas;
mod result;
mod sessions;
mod stamp;
mod tally;
mod workers;

use browsers::Journal;
use replicas::Replicas;
pub(crate) use result::Load;
pub(super) use stamp::Stamp;
use tally::Tally;

pub(crate) const NAME: &str = "load";
pub(crate) const ABOUT: &str = "everything at once for minutes: errors, memory and latencies";

/// How long what was begun may take to end, once nothing more is begun.
const ENDING: Duration = Duration::from_secs(120);

/// How much there is of everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Size {
    minutes: f64,
    workers: usize,
    sessions: usize,
    browsers: usize,
    replicas: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            minutes: 10.0,
            workers: 1000,
            sessions: 200,
            browsers: 200,
            replicas: 50,
        }
    }
}

impl Size {
    /// Reads `--minutes 0.5 --workers 20` and so on.
    pub(crate) fn of(mut words: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut size = Self::default();
        while let Some(flag) = words.next() {
            let value: f64 = words
                .next()
                .and_then(|word| word.parse().ok())
                .filter(|value| *value > 0.0)
                .with_context(|| format!("{flag} takes a number above 0"))?;
            let count = value.ceil() as usize;
            match flag.as_str() {
                "--minutes" => size.minutes = value,
                "--workers" => size.workers = count,
                "--sessions" => size.sessions = count,
                "--browsers" => size.browsers = count,
                "--replicas" => size.replicas = count,
                _ => bail!("{flag} is no option of {NAME}"),
            }
        }
        ensure!(
            size.browsers > 1,
            "one browser follows everything, another one session: --browsers takes at least 2"
        );
        Ok(size)
    }

    fn duration(self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
    }
}

/// What everybody has to know.
#[derive(Clone)]
struct Bed {
    home: PathBuf,
    /// The daemon's `ws://` address.
    url: String,
    size: Size,
    tally: Arc<Tally>,
    /// Nothing more is begun.
    stop: CancellationToken,
}

impl Bed {
    async fn client(&self) -> anyhow::Result<UnixClient> {
        Ok(UnixClient::connect(self.home.join("run/quintet.sock")).await?)
    }

    /// Waits `every` so long, in step; `false` when nothing more is to be begun.
    async fn tick(&self, ticks: &mut tokio::time::Interval) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            _ = ticks.tick() => true,
        }
    }
}

/// As many open files as this user may have, for this process and those that it starts.
fn raise_open_files() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .context("more open files")
}

/// Runs it. Errors of the load are in what it returns; it fails when it can't begin.
pub(crate) fn run(size: Size) -> anyhow::Result<Load> {
    raise_open_files()?;
    let folder = TempDir::new_in(env!("CARGO_MANIFEST_DIR"))?;
    let home = folder.path().join("home");
    std::fs::create_dir(&home)?;
    let daemon = daemon(&home)?;
    let bed = Bed {
        url: format!("{}/ws", daemon.said.replacen("http", "ws", 1)),
        home,
        size,
        tally: Arc::default(),
        stop: CancellationToken::new(),
    };
    tokio::runtime::Runtime::new()?.block_on(all(&bed, &daemon, folder.path()))
}

async fn all(bed: &Bed, daemon: &Program, folder: &Path) -> anyhow::Result<Load> {
    let began = Instant::now();
    let say = |what: &str| tally::tell(&format!("{:6.1} s  {what}", began.elapsed().as_secs_f64()));
    let _workers = workers::start(bed, &folder.join("workers")).await?;
    say("the workers are online");
    let sessions = sessions::open(bed).await?;
    say("the sessions have their agents");
    let replicas = Replicas::start(bed, &folder.join("workspace")).await?;
    say("the replicas follow");
    let (journal, end) = tokio::sync::watch::channel(None);
    let after = bed.client().await?.journal_report().await?.last_seq;
    let mut browsers = browsers::open(bed, &sessions, after, &end).await?;
    say("the browsers are paired and follow");

    let mut working = JoinSet::new();
    sessions::work(bed, &sessions, &mut working);
    workers::work(bed, &mut working);
    replicas.work(bed, &mut working);
    let memory = memory::sample(daemon.pid(), bed.size.duration()).await?;
    bed.stop.cancel();
    say("nothing more is begun");
    let check = async {
        bed.tally.all(&mut working).await;
        journal.send_replace(Some(Arc::new(Journal::read(bed, after).await?)));
        bed.tally.all(&mut browsers).await;
        replicas.are_equal().await?;
        workers::are_online(bed).await
    };
    let checked = tokio::time::timeout(ENDING, check).await;
    bed.tally
        .note(checked.unwrap_or_else(|_| bail!("the end: not over after {ENDING:?}")));
    say("everything is checked");
    Ok(Load::new(bed.size, &bed.tally, &memory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_change_what_they_name() {
        let words = ["--minutes", "0.5", "--replicas", "2"].map(str::to_owned);
        let size = Size::of(words.into_iter()).unwrap();
        let usual = Size::default();
        assert_eq!((size.minutes, size.replicas), (0.5, 2));
        assert_eq!(size.workers, usual.workers);
        for wrong in [["--workers", "0"], ["--browsers", "1"], ["--what", "1"]] {
            assert!(Size::of(wrong.map(str::to_owned).into_iter()).is_err());
        }
    }
}
