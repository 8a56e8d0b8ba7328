//! Memory of the daemon and of everything together, while it runs.
//!
//! The daemon has caches with a limit, which have to be full before its memory can be flat. The
//! journal's newest rows are in after half a minute; the slowest is the page cache of the workspace's
//! history (4 MB), a page for each of its writes. So the beginning of a run is left out.

use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::super::sandbox::memory::resident;
use super::tally::tell;

const EVERY: Duration = Duration::from_secs(10);

/// Samples of a run that is too short for one every ten seconds.
const AT_LEAST: u32 = 20;

/// What was taken, in MiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Of the daemon, resident: the median of the run's second fifth.
    pub(crate) early: f64,
    /// The median of the last fifth.
    pub(crate) late: f64,
    pub(crate) daemon_most: f64,
    /// Of all processes of the test, what they share counted once.
    pub(crate) all_most: f64,
    pub(crate) samples: usize,
}

impl Memory {
    pub(crate) fn growth_percent(&self) -> f64 {
        (self.late / self.early - 1.0) * 100.0
    }

    fn of(daemon: &[f64], all: &[f64]) -> Self {
        let fifth = (daemon.len() / 5).max(1);
        let most = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
        Self {
            early: median(&daemon[fifth.min(daemon.len() - 1)..(2 * fifth).min(daemon.len())]),
            late: median(&daemon[daemon.len() - fifth..]),
            daemon_most: most(daemon),
            all_most: most(all),
            samples: daemon.len(),
        }
    }
}

fn median(samples: &[f64]) -> f64 {
    crate::harness::Spread::of(samples).median
}

/// Samples for so long.
pub(super) async fn sample(daemon: u32, length: Duration) -> anyhow::Result<Memory> {
    let mut ticks = tokio::time::interval(EVERY.min(length / AT_LEAST));
    let (mut of_daemon, mut of_all) = (Vec::new(), Vec::new());
    let sampling = async {
        // The first comes at once.
        ticks.tick().await;
        loop {
            ticks.tick().await;
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let resident = mib(resident(daemon)?);
            let all = mib(tokio::task::spawn_blocking(proportional).await??);
            tell(&format!(
                "          daemon {resident:.1} MiB, all {all:.0} MiB"
            ));
            of_daemon.push(resident);
            of_all.push(all);
        }
    };
    match tokio::time::timeout(length, sampling).await {
        Ok(failed) => failed,
        Err(_over) => Ok(Memory::of(&of_daemon, &of_all)),
    }
}

/// What all processes of this program take, bytes that are shared counted once.
fn proportional() -> anyhow::Result<u64> {
    let program = std::env::current_exe()?;
    let mut kilobytes = 0;
    for process in std::fs::read_dir("/proc")? {
        let process = process?.path();
        if std::fs::read_link(process.join("exe")).ok().as_ref() != Some(&program) {
            continue;
        }
        // It may have ended since.
        let Ok(rollup) = std::fs::read_to_string(process.join("smaps_rollup")) else {
            continue;
        };
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let pss = pss.context("the kernel tells")?.trim();
        kilobytes += pss.trim_end_matches(" kB").parse::<u64>()?;
    }
    Ok(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_from_the_second_fifth_to_the_last() {
        let daemon: Vec<f64> = [1.0, 1.0, 100.0, 104.0, 0.0, 0.0, 0.0, 0.0, 120.0, 132.9]
            .into_iter()
            .collect();
        let memory = Memory::of(&daemon, &[7.0, 9.0, 8.0]);
        assert_eq!((memory.early, memory.all_most), (102.0, 9.0));
        assert!((memory.growth_percent() - 23.97).abs() < 0.01);
    }

    #[test]
    fn one_sample_is_enough() {
        assert_eq!(Memory::of(&[5.0], &[5.0]).growth_percent(), 0.0);
    }

    #[test]
    fn this_process_is_found() {
        assert!(proportional().unwrap() > 1 << 18);
    }
}
