//! The workspace plane against rsync, unison, lsyncd, syncthing, `cp -r` and `tar | tar`.
//!
//! Everything lies in memory (`/dev/shm`), so that no disk is measured. Ours is a master and a
//! replica in processes of their own over a Unix socket; it keeps the whole history, which none of
//! the others does. A first sync of ours begins with a folder that was never seen: reading it,
//! hashing it and storing it is in its time. rsync is a daemon on loopback and a client; tar is two
//! of them with a pipe between.
//!
//! A time is shown as how often a second it fits: more is better everywhere. Bytes that were moved
//! and the most memory that was used go to stderr, beside the table.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Case;
use crate::harness::{Contender, Race};

pub(crate) mod child;
mod copies;
mod lsyncd;
mod ours;
mod peer;
mod rsync;
mod syncthing;
pub(super) mod trees;
mod unison;

use peer::Peer;
use trees::Place;

pub(crate) const CASE: Case = Case {
    name: "workspace",
    about: "first sync, one change, a large file's change, bursts against rsync, unison, lsyncd, syncthing, tar",
    races,
};

const FILES: usize = 10_000;
const LARGE: usize = 1 << 30;
const CHANGES: usize = 200;
const BURST: usize = 1_000;

type Start = fn(Place) -> anyhow::Result<Box<dyn Peer>>;

/// Who can follow a folder while it changes.
const FOLLOWERS: [(&str, Start); 4] = [
    ("quintet workspace", ours::start),
    ("lsyncd, delay 0", lsyncd::start),
    ("unison -repeat watch", unison::start),
    ("syncthing", syncthing::start),
];

fn races() -> anyhow::Result<Vec<Race>> {
    peer::install(&["rsync", "unison", "lsyncd", "syncthing"])?;
    let mut races = vec![
        first(
            "first sync, 10,000 small files",
            "files/s",
            FILES,
            None,
            trees::small,
        ),
        first(
            "first sync, one file of 1 GiB",
            "MiB/s",
            LARGE >> 20,
            Some(1 << 20),
            trees::large,
        ),
    ];
    races.extend(changes());
    races.push(burst());
    races.push(barrier());
    races.push(inside_a_large_file());
    races.push(store());
    Ok(races)
}

/// How long it takes until an empty folder is the same as a full one. What would go on from there
/// is ended outside of that time.
fn first(
    variant: &str,
    unit: &'static str,
    units: usize,
    bytes_each: Option<u64>,
    fill: fn(&Place) -> anyhow::Result<()>,
) -> Race {
    type Work = fn(&Place) -> anyhow::Result<Option<Box<dyn Peer>>>;
    let timed = move |place: Place, work: Work| {
        fill(&place)?;
        let started = Instant::now();
        let goes_on = work(&place)?;
        let taken = started.elapsed();
        if let Some(peer) = goes_on {
            peer.memory();
        }
        trees::same(&place)?;
        Ok(units as f64 / taken.as_secs_f64())
    };
    let contender = |name, work: Work| Contender::new(name, move || timed(Place::new()?, work));
    Race {
        variant: variant.to_owned(),
        unit,
        bytes_each,
        contenders: vec![
            contender("quintet workspace, history and all", ours::first),
            Contender::new("quintet workspace, master already open", move || {
                let place = Place::new()?;
                fill(&place)?;
                let master = ours::Master::start(&place)?;
                let started = Instant::now();
                let mut replica = ours::Replica::start(&place)?;
                replica.agree()?;
                let taken = started.elapsed();
                trees::same(&place)?;
                drop(master);
                Ok(units as f64 / taken.as_secs_f64())
            }),
            contender("tar | tar", copies::tar),
            contender("cp -r", copies::cp),
            Contender::new("rsync over a socket", move || {
                let place = Place::new()?;
                fill(&place)?;
                let daemon = rsync::Daemon::start(&place)?;
                let started = Instant::now();
                daemon.sync(&[])?;
                let taken = started.elapsed();
                trees::same(&place)?;
                Ok(units as f64 / taken.as_secs_f64())
            }),
            contender("unison", unison::first),
            contender("lsyncd", lsyncd::first),
            contender("syncthing", syncthing::first),
        ],
    }
}

/// One changed file of 10,000, until it is visible on the other side.
fn changes() -> [Race; 2] {
    let race = |variant: &str, contenders| Race {
        variant: variant.to_owned(),
        unit: "changes/s",
        bytes_each: None,
        contenders,
    };
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for (name, start) in FOLLOWERS {
        let waiting: Rc<RefCell<VecDeque<f64>>> = Rc::default();
        let told = Rc::clone(&waiting);
        medians.push(Contender::new(name, move || {
            let times = one_by_one(start)?;
            told.borrow_mut()
                .push_back(1.0 / times[CHANGES * 99 / 100].as_secs_f64());
            Ok(1.0 / times[CHANGES / 2].as_secs_f64())
        }));
        // Of the same changes; both races have the same rounds.
        tails.push(Contender::new(name, move || {
            let next = waiting.borrow_mut().pop_front();
            next.context("the medians were not measured")
        }));
    }
    [
        race("one change visible, p50 of 200", medians),
        race("one change visible, p99 of 200", tails),
    ]
}

fn one_by_one(start: Start) -> anyhow::Result<Vec<Duration>> {
    let place = Place::new()?;
    trees::small(&place)?;
    let peer = start(place.clone())?;
    // syncthing looks once in a second or more: fewer changes tell as much.
    let count = peer.changes().min(CHANGES);
    let mut times = Vec::with_capacity(CHANGES);
    for round in 0..count {
        let name = trees::name(round * 37 % FILES);
        let content = format!("changed in round {round}");
        peer.at_rest()?;
        let started = Instant::now();
        std::fs::write(place.master().join(&name), &content)?;
        peer::visible(&place.replica().join(&name), content.as_bytes())?;
        times.push(started.elapsed());
    }
    peer.memory();
    let measured = times.clone();
    while times.len() < CHANGES {
        times.extend_from_slice(&measured);
    }
    times.truncate(CHANGES);
    times.sort_unstable();
    Ok(times)
}

fn burst() -> Race {
    let contender = |(name, start): (&'static str, Start)| {
        Contender::new(name, move || {
            let place = Place::new()?;
            trees::small(&place)?;
            let _peer = start(place.clone())?;
            let started = Instant::now();
            for round in 0..BURST {
                let name = trees::name(round * 7);
                std::fs::write(place.master().join(name), format!("burst {round}"))?;
            }
            for round in 0..BURST {
                let path = place.replica().join(trees::name(round * 7));
                peer::visible(&path, format!("burst {round}").as_bytes())?;
            }
            Ok(BURST as f64 / started.elapsed().as_secs_f64())
        })
    };
    Race {
        variant: "a burst of 1,000 changes".to_owned(),
        unit: "changes/s",
        bytes_each: None,
        contenders: FOLLOWERS.map(contender).into(),
    }
}

/// How long a replica of 10,000 files waits at a barrier that nothing else runs beside. The peers
/// have none: they can't say that both sides are the same.
fn barrier() -> Race {
    let at = |name, share: usize| {
        Contender::new(name, move || {
            let place = Place::new()?;
            trees::small(&place)?;
            let mut times = ours::barriers(&place, CHANGES)?;
            times.sort_unstable();
            Ok(1.0 / times[CHANGES * share / 100].as_secs_f64())
        })
    };
    Race {
        variant: "a barrier on 10,000 files, of 200".to_owned(),
        unit: "barriers/s",
        bytes_each: None,
        contenders: vec![
            at("quintet workspace, p50", 50),
            at("quintet workspace, p99", 99),
        ],
    }
}

/// 1 MiB in the middle of 1 GiB is written anew.
fn inside_a_large_file() -> Race {
    Race {
        variant: "1 MiB changed inside 1 GiB".to_owned(),
        unit: "changes/s",
        bytes_each: None,
        contenders: vec![
            Contender::new("quintet workspace", || {
                let place = Place::new()?;
                trees::large(&place)?;
                let master = ours::Master::start(&place)?;
                let mut replica = ours::Replica::start(&place)?;
                let before = replica.agree()?;
                let started = Instant::now();
                trees::change_inside(&place)?;
                let after = replica.agree()?;
                let taken = started.elapsed();
                trees::same(&place)?;
                peer::moved("quintet workspace", after.bytes - before.bytes, taken);
                drop(master);
                Ok(1.0 / taken.as_secs_f64())
            }),
            Contender::new("rsync over a socket", || {
                let place = Place::new()?;
                trees::large(&place)?;
                let daemon = rsync::Daemon::start(&place)?;
                daemon.sync(&[])?;
                let started = Instant::now();
                trees::change_inside(&place)?;
                let bytes = daemon.sync(&["--no-whole-file"])?;
                let taken = started.elapsed();
                trees::same(&place)?;
                peer::moved("rsync", bytes, taken);
                Ok(1.0 / taken.as_secs_f64())
            }),
        ],
    }
}

/// Hashing, chunking and storing, on one core.
fn store() -> Race {
    let stored = |name, fill: fn(&Place) -> anyhow::Result<()>| {
        Contender::new(name, move || {
            let place = Place::new()?;
            fill(&place)?;
            let taken = ours::store_on_one_core(&place)?;
            Ok((LARGE >> 20) as f64 / taken.as_secs_f64())
        })
    };
    Race {
        variant: "hash, chunk and store 1 GiB, one core".to_owned(),
        unit: "MiB/s",
        bytes_each: Some(1 << 20),
        contenders: vec![
            stored("quintet, bytes that do not compress", trees::large),
            stored("quintet, text", trees::text),
        ],
    }
}
