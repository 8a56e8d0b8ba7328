//! The sandbox plane against OpenSSH, the released sandd pair, and what the machine itself can do.
//!
//! Ours is a hub in this process and a worker in another, over loopback, as a daemon and a worker
//! on one machine are. "Through the daemon" adds the control socket and an audit that is on disk
//! before the result is told. Files are copied from memory to memory (`/dev/shm`), so that no disk
//! is measured.
//!
//! A latency is shown as how often a second it fits: more is better everywhere. The released
//! sandd is not in the transfers: its download waits 5 s between chunks that it buffers whole, and
//! its upload never arrives.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;

use super::Case;
use crate::harness::{Contender, Race};

mod bare;
pub(crate) mod child;
mod files;
pub(super) mod memory;
pub(super) mod ours;
mod relay;
mod sandd;
mod ssh;

use files::Direction;
use ours::{Ours, Variant};
use relay::Relay;

pub(crate) const CASE: Case = Case {
    name: "sandbox",
    about: "exec, shell echo, files and memory against ssh, sandd, fork and exec, PTY, WebSocket",
    races,
};

/// Commands in one round of a latency race.
const EXECS: usize = 200;

/// Key presses in one round.
const KEYS: usize = 1000;

fn races() -> anyhow::Result<Vec<Race>> {
    let peers = Peers::default();
    let mut races = latencies("exec of true", "execs/s", &exec_contenders(&peers));
    for at_once in [1, 8, 32] {
        races.push(throughput(&peers, at_once));
    }
    races.extend(latencies(
        "shell echo",
        "echoes/s",
        &echo_contenders(&peers),
    ));
    for direction in [Direction::Upload, Direction::Download] {
        races.push(files::race(&peers, direction));
    }
    for workers in [1000, 5000] {
        races.push(memory::race(workers));
    }
    Ok(races)
}

/// Everything that is started once and used by several races.
#[derive(Default, Clone)]
struct Peers {
    plain: Shared<Ours>,
    isolated: Shared<Ours>,
    v1: Shared<Ours>,
    daemon: Shared<ours::ThroughDaemon>,
    ssh: Shared<ssh::Ssh>,
    sandd: Shared<sandd::Pair>,
}

/// A peer that is started when it is first used.
pub(super) struct Shared<T>(Rc<RefCell<Option<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Shared<T> {
    pub(super) fn with<R>(
        &self,
        start: impl FnOnce() -> anyhow::Result<T>,
        work: impl FnOnce(&mut T) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let mut slot = self.0.borrow_mut();
        if slot.is_none() {
            *slot = Some(start()?);
        }
        work(slot.as_mut().context("it was started above")?)
    }
}

/// Takes one round's samples.
pub(super) type Sampler = Rc<dyn Fn() -> anyhow::Result<Vec<Duration>>>;

fn exec_contenders(peers: &Peers) -> Vec<(&'static str, Sampler)> {
    let (plain, isolated, daemon) = (
        peers.plain.clone(),
        peers.isolated.clone(),
        peers.daemon.clone(),
    );
    let (ssh, sandd) = (peers.ssh.clone(), peers.sandd.clone());
    let relay = Shared::<Relay>::default();
    vec![
        (
            "quintet",
            Rc::new(move || plain.with(|| Ours::start(Variant::V2), |ours| ours.execs(EXECS))),
        ),
        (
            "quintet, isolated worker",
            Rc::new(move || {
                isolated.with(|| Ours::start(Variant::Isolated), |ours| ours.execs(EXECS))
            }),
        ),
        (
            "quintet, through the daemon",
            Rc::new(move || daemon.with(ours::ThroughDaemon::start, |it| it.execs(EXECS))),
        ),
        (
            "bare fork and exec of sh -c true",
            Rc::new(|| bare::execs(EXECS)),
        ),
        (
            "the same, asked for over loopback",
            Rc::new(move || relay.with(Relay::of_execs, |relay| relay.trips(EXECS))),
        ),
        (
            "ssh, multiplexed",
            Rc::new(move || ssh.with(ssh::Ssh::start, |ssh| ssh.execs(EXECS))),
        ),
        (
            "sandd 0.2.1 and its daemon 0.0.1",
            Rc::new(move || sandd.with(sandd::Pair::start, |pair| pair.execs(EXECS))),
        ),
    ]
}

fn echo_contenders(peers: &Peers) -> Vec<(&'static str, Sampler)> {
    let (plain, ssh, sandd) = (peers.plain.clone(), peers.ssh.clone(), peers.sandd.clone());
    let relay = Shared::<Relay>::default();
    vec![
        (
            "quintet",
            Rc::new(move || plain.with(|| Ours::start(Variant::V2), |ours| ours.echoes(KEYS))),
        ),
        ("local PTY", Rc::new(|| bare::echoes(KEYS))),
        (
            "the same, relayed over loopback",
            Rc::new(move || relay.with(Relay::of_a_terminal, |relay| relay.trips(KEYS))),
        ),
        (
            "ssh, multiplexed",
            Rc::new(move || ssh.with(ssh::Ssh::start, |ssh| ssh.echoes(KEYS))),
        ),
        (
            "sandd 0.2.1 and its daemon 0.0.1",
            Rc::new(move || sandd.with(sandd::Pair::start, |pair| pair.echoes(KEYS))),
        ),
    ]
}

/// Two races over the same rounds: the median, and the 99th of 100.
pub(super) fn latencies(
    what: &str,
    unit: &'static str,
    contenders: &[(&'static str, Sampler)],
) -> Vec<Race> {
    let kept: Vec<Rc<RefCell<VecDeque<Vec<Duration>>>>> =
        contenders.iter().map(|_| Rc::default()).collect();
    let race = |percentile: usize| Race {
        variant: format!("{what}, p{percentile}"),
        unit,
        bytes_each: None,
        contenders: contenders
            .iter()
            .zip(&kept)
            .map(|((name, sampler), kept)| {
                let (sampler, kept) = (sampler.clone(), kept.clone());
                Contender::new(name, move || {
                    let samples = match percentile {
                        50 => {
                            let samples = sampler()?;
                            kept.borrow_mut().push_back(samples.clone());
                            samples
                        }
                        // The rounds of the race before, unless it was left out.
                        _ => match kept.borrow_mut().pop_front() {
                            Some(samples) => samples,
                            None => sampler()?,
                        },
                    };
                    Ok(1.0 / at(samples, percentile)?.as_secs_f64())
                })
            })
            .collect(),
    };
    vec![race(50), race(99)]
}

fn at(mut samples: Vec<Duration>, percentile: usize) -> anyhow::Result<Duration> {
    samples.sort_unstable();
    let index = (samples.len() * percentile / 100).min(samples.len().saturating_sub(1));
    samples.get(index).copied().context("there are samples")
}

fn throughput(peers: &Peers, at_once: usize) -> Race {
    let peers = peers.clone();
    let each = 480 / at_once;
    let count = (each * at_once) as u64;
    Race {
        variant: format!("exec of true, {at_once} at once"),
        unit: "execs/s",
        bytes_each: None,
        contenders: vec![
            {
                let peer = peers.plain;
                Contender::new("quintet", move || {
                    peer.with(
                        || Ours::start(Variant::V2),
                        |ours| crate::harness::rate(count, || ours.execs_at_once(at_once, each)),
                    )
                })
            },
            {
                let peer = peers.isolated;
                Contender::new("quintet, isolated worker", move || {
                    peer.with(
                        || Ours::start(Variant::Isolated),
                        |ours| crate::harness::rate(count, || ours.execs_at_once(at_once, each)),
                    )
                })
            },
            {
                let peer = peers.daemon;
                Contender::new("quintet, through the daemon", move || {
                    peer.with(ours::ThroughDaemon::start, |daemon| {
                        crate::harness::rate(count, || daemon.execs_at_once(at_once, each))
                    })
                })
            },
            Contender::new("bare fork and exec of sh -c true", move || {
                crate::harness::rate(count, || bare::execs_at_once(at_once, each))
            }),
            {
                let peer = peers.ssh;
                Contender::new("ssh, multiplexed", move || {
                    let each = (each / 4).max(1);
                    peer.with(ssh::Ssh::start, |ssh| {
                        crate::harness::rate((each * at_once) as u64, || {
                            ssh.execs_at_once(at_once, each)
                        })
                    })
                })
            },
            {
                let peer = peers.sandd;
                Contender::new("sandd 0.2.1 and its daemon 0.0.1", move || {
                    peer.with(sandd::Pair::start, |pair| {
                        let seconds = pair.execs_at_once(at_once, each)?;
                        Ok(count as f64 / seconds)
                    })
                })
            },
        ],
    }
}
