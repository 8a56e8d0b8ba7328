//! Random operations on a master and two replicas, over a network that delays
//! and cuts, with programs that are killed; when all is quiet all trees are
//! equal, every accepted write is in the history, and every refused one is kept.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[path = "model/disk.rs"]
#[allow(
    unreachable_pub,
    clippy::allow_attributes,
    reason = "a part of this test"
)]
mod disk;
#[path = "model/world.rs"]
#[allow(
    unreachable_pub,
    clippy::allow_attributes,
    reason = "a part of this test"
)]
mod world;

use std::time::Duration;

use disk::{DiskOp, operate};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use quintet_workspace::proto::WorkspacePath;
use world::{Conn, Master, Rep};

struct World {
    now: Duration,
    master: Master,
    replicas: Vec<Rep>,
    connections: Vec<Option<Conn>>,
    trace: bool,
}

/// A small generator; each step has its own, so that removing a step does not
/// change the others.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn path(&mut self) -> WorkspacePath {
        let names = ["a", "b", "c", "d"];
        let depth = 1 + self.roll(3);
        let parts: Vec<&str> = (0..depth).map(|_| names[self.roll(4) as usize]).collect();
        WorkspacePath::parse(&parts.join("/")).unwrap()
    }

    fn content(&mut self) -> Vec<u8> {
        let byte = u8::try_from(self.roll(20)).unwrap();
        match self.roll(12) {
            0 => vec![byte; 5_000],
            1 => (0..4u8)
                .flat_map(|part| vec![part.min(byte); 3_000])
                .collect(),
            2 => vec![],
            _ => vec![byte; 10],
        }
    }

    fn disk_op(&mut self) -> DiskOp {
        match self.roll(14) {
            0..=3 => DiskOp::Write(self.path(), self.content()),
            4 => DiskOp::Append(self.path(), 7),
            5 | 6 => DiskOp::Remove(self.path()),
            7 | 8 => DiskOp::Rename(self.path(), self.path()),
            9 => DiskOp::Chmod(self.path(), if self.roll(2) == 0 { 0o700 } else { 0o755 }),
            10..=12 => DiskOp::Folder(self.path()),
            _ => DiskOp::Link(self.path(), "a/b".into()),
        }
    }
}

impl World {
    fn new() -> Self {
        Self {
            now: Duration::ZERO,
            master: Master::new(),
            replicas: vec![Rep::new("one"), Rep::new("two")],
            connections: vec![None, None],
            trace: false,
        }
    }

    /// One whose master has a tree that was never read.
    fn opening(seed: u32) -> Self {
        let mut dice = Dice(u64::from(seed));
        let mut disk = disk::Tree::new();
        for _ in 0..dice.roll(60) {
            operate(&mut disk, dice.disk_op());
        }
        Self {
            master: Master::opening(disk),
            ..Self::new()
        }
    }

    fn step(&mut self, seed: u32) {
        let mut dice = Dice(u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5151);
        let which = dice.roll(2) as usize;
        match dice.roll(100) {
            0..=11 => {
                let op = dice.disk_op();
                self.tell(|| format!("master: {op:?}"));
                operate(&mut self.master.disk, op);
            }
            12..=27 => {
                let op = dice.disk_op();
                self.tell(|| format!("{which}: {op:?}"));
                operate(&mut self.replicas[which].disk, op);
            }
            28..=33 => drop(self.master.look()),
            34..=41 => {
                self.tell(|| format!("{which} looks"));
                self.replicas[which].look(dice.roll(2) == 0);
            }
            42..=57 => self.deliver_down(which),
            58..=69 => self.deliver_up(which),
            70..=80 => {
                self.replica_effect(which, (dice.roll(40) == 0).then(|| dice.roll(4) as usize));
            }
            81..=91 => {
                if let Some(connection) = &mut self.connections[which] {
                    connection.run_effect(&mut self.master);
                }
            }
            92 | 93 => self.now += Duration::from_millis(dice.roll(4_000)),
            94 => self.cut(which),
            95 if dice.roll(4) == 0 => {
                self.cut(which);
                self.tell(|| format!("{which} killed"));
                self.replicas[which].crash();
            }
            96 if dice.roll(6) == 0 => {
                // The master restarts: its sessions are gone, its history is not.
                self.cut(0);
                self.cut(1);
            }
            97 if dice.roll(6) == 0 && !self.master.opening => {
                let current = self.master.ledger.current();
                self.master
                    .ledger
                    .forget_through(current.saturating_sub(dice.roll(20)));
            }
            _ => self.connect(which),
        }
        self.settle();
    }

    /// Says what happens, when a failure is replayed.
    fn tell(&self, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{}", what());
        }
    }

    fn connect(&mut self, which: usize) {
        self.tell(|| format!("{which} connect"));
        if self.replicas[which].core.is_none() {
            self.tell(|| format!("{which} starts"));
            self.replicas[which].start();
        }
        if self.connections[which].is_none() {
            self.replicas[which]
                .core
                .as_mut()
                .unwrap()
                .connected(self.now);
            self.connections[which] = Some(Conn::new(self.now));
        }
    }

    fn cut(&mut self, which: usize) {
        self.tell(|| format!("{which} cut"));
        if self.connections[which].take().is_some()
            && let Some(core) = &mut self.replicas[which].core
        {
            core.disconnected();
        }
    }

    fn deliver_down(&mut self, which: usize) {
        let Some(message) = self.connections[which]
            .as_mut()
            .and_then(|conn| conn.down.pop_front())
        else {
            return;
        };
        self.tell(|| format!("{which} <- {message:?}"));
        let core = self.replicas[which].core.as_mut().unwrap();
        core.handle_message(self.now, message).unwrap();
    }

    fn deliver_up(&mut self, which: usize) {
        let Some(message) = self.connections[which]
            .as_mut()
            .and_then(|conn| conn.up.pop_front())
        else {
            return;
        };
        self.tell(|| format!("{which} -> {message:?}"));
        let session = &mut self.connections[which].as_mut().unwrap().session;
        session
            .handle_message(message, &self.master.ledger)
            .unwrap();
    }

    fn replica_effect(&mut self, which: usize, die_after: Option<usize>) {
        if self.trace
            && let Some(e) = self.replicas[which].effects.front()
        {
            eprintln!("{which} ## {e:?}");
        }
        self.replicas[which].run_effect(self.now, die_after);
        if self.replicas[which].core.is_none() {
            self.tell(|| format!("{which} died"));
            self.connections[which] = None;
        }
    }

    /// Lets the state machines say what they want next.
    fn settle(&mut self) {
        for (replica, connection) in self.replicas.iter_mut().zip(&mut self.connections) {
            replica.drain();
            let Some(connection) = connection else {
                continue;
            };
            let core = replica.core.as_mut().unwrap();
            if core.poll_timeout().is_some_and(|at| at <= self.now) {
                core.handle_timeout(self.now);
            }
            while let Some(message) = core.poll_message() {
                connection.up.push_back(message);
            }
            replica.drain();
            connection.drain(self.now, &self.master.ledger);
        }
    }

    /// Lets everything come to rest.
    fn rest(&mut self) {
        for which in 0..2 {
            self.connect(which);
        }
        let mut quiet = 0;
        for round in 0.. {
            assert!(round < 200, "it does not come to rest: {}", self.describe());
            let before = self.activity();
            self.master.look();
            for which in 0..2 {
                self.replicas[which].look(false);
                self.settle();
                for _ in 0..50 {
                    self.deliver_down(which);
                    self.deliver_up(which);
                    self.replica_effect(which, None);
                    if let Some(connection) = &mut self.connections[which] {
                        connection.run_effect(&mut self.master);
                    }
                    self.settle();
                }
            }
            self.now += Duration::from_millis(1_100);
            let idle = before == self.activity()
                && self.replicas.iter().all(|r| {
                    r.core.as_ref().unwrap().is_current()
                        && r.core.as_ref().unwrap().journal_len() == 0
                });
            quiet = if idle { quiet + 1 } else { 0 };
            if quiet > 3 {
                return;
            }
        }
    }

    fn activity(&self) -> (u64, Vec<u64>) {
        let applied = self
            .replicas
            .iter()
            .map(|r| r.core.as_ref().map_or(0, |core| core.applied_through()))
            .collect();
        (self.master.ledger.current(), applied)
    }

    fn describe(&self) -> String {
        let stuck = self
            .replicas
            .iter()
            .filter_map(|replica| replica.core.as_ref());
        let stuck: Vec<_> = stuck
            .map(|core| {
                (
                    core.applied_through(),
                    core.incoming_len(),
                    core.journal_len(),
                )
            })
            .collect();
        format!("{stuck:?} of {}", self.master.ledger.current())
    }

    fn check(&self) {
        for replica in &self.replicas {
            assert_eq!(
                outline(&replica.disk),
                outline(&self.master.disk),
                "{} and the master differ",
                replica.name
            );
            for settlement in &replica.settled {
                let entry = &settlement.entry;
                match &settlement.result {
                    Ok(0) => {}
                    Ok(sequence) => {
                        let (path, node, _) = self
                            .master
                            .history
                            .get(sequence)
                            .expect("an accepted write is in the history");
                        let renamed = matches!(
                            entry.operation,
                            quintet_workspace::proto::Operation::Rename(_)
                        );
                        assert!(
                            renamed || (path == &entry.path && node == &entry.node),
                            "{sequence} is another change"
                        );
                    }
                    Err(_) => assert!(
                        replica
                            .durable
                            .conflicts
                            .iter()
                            .any(|(kept, _)| kept == entry),
                        "a refused write was not kept"
                    ),
                }
            }
        }
        let numbers: Vec<u64> = self.master.history.keys().copied().collect();
        assert_eq!(
            numbers,
            (1..=numbers.len() as u64).collect::<Vec<_>>(),
            "sequences have no holes"
        );
    }
}

fn outline(tree: &disk::Tree) -> Vec<String> {
    tree.iter()
        .map(|(path, (node, _))| {
            format!(
                "{path} {:?} {:o} {:.8}",
                node.kind,
                node.mode,
                node.hash.to_string()
            )
        })
        .collect()
}

/// The seed that is asked for, or any.
fn seed(variable: &str) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap();
            now.subsec_nanos().into()
        })
}

#[test]
fn quiet_trees_are_equal_and_nothing_is_lost() {
    let steps = proptest::collection::vec(any::<u32>(), 1..1_000);
    explore(2_000, steps, |steps| (World::new(), steps));
}

#[test]
fn a_tree_that_is_served_while_it_is_read_is_the_same_everywhere() {
    let steps = proptest::collection::vec(any::<u32>(), 1..300);
    explore(1_000, (any::<u32>(), steps), |(tree, steps)| {
        (World::opening(tree), steps)
    });
}

/// Takes random steps, lets everything come to rest and looks at what came of it.
fn explore<S: Strategy>(cases: u32, strategy: S, world: impl Fn(S::Value) -> (World, Vec<u32>)) {
    let seed = seed("QUINTET_MODEL_SEED");
    eprintln!("QUINTET_MODEL_SEED={seed}");
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 30_000,
        failure_persistence: None,
        ..Config::default()
    };
    let ran = std::cell::Cell::new(0);
    let result = TestRunner::new(config).run(&strategy, |case| {
        let (mut world, seeds) = world(case);
        ran.set(ran.get() + seeds.len());
        for seed in seeds {
            world.step(seed);
        }
        world.rest();
        world.check();
        Ok(())
    });
    eprintln!("{} steps", ran.get());
    result.unwrap();
}

/// A day of people and programs that write on three machines, by the clock of the model: a network
/// that is cut and slow, programs that are killed, silence at night.
#[test]
fn a_day_of_traffic_ends_with_equal_trees_and_nothing_waiting() {
    let seed = seed("QUINTET_FAULTS_SEED");
    eprintln!("QUINTET_FAULTS_SEED={seed}");
    let mut dice = Dice(seed);
    let mut world = World::new();
    let day = Duration::from_secs(24 * 60 * 60);
    let (mut steps, mut hours) = (0, 0);
    while world.now < day {
        // From six to six there is something every few seconds, else every few minutes.
        let hour = world.now.as_secs() / 3600;
        let pause = if (6..18).contains(&hour) {
            4_000
        } else {
            400_000
        };
        world.now += Duration::from_millis(dice.roll(pause));
        for _ in 0..dice.roll(12) {
            world.step(u32::try_from(dice.roll(1 << 31)).unwrap());
            steps += 1;
        }
        if world.now.as_secs() / 3600 > hour {
            world.rest();
            world.check();
            hours += 1;
        }
    }
    world.rest();
    world.check();
    for replica in &world.replicas {
        let core = replica.core.as_ref().unwrap();
        assert_eq!((core.incoming_len(), core.journal_len()), (0, 0));
    }
    for connection in world.connections.iter().flatten() {
        assert!(connection.up.is_empty() && connection.down.is_empty());
    }
    eprintln!("faults: 24 h of a workspace: {steps} steps, {hours} hours compared");
}

#[test]
fn what_once_went_wrong_goes_right() {
    let found = include_str!("model/found.txt").lines();
    for line in found.filter(|line| !line.starts_with('#')) {
        match line.split_once(':') {
            Some((tree, steps)) => run(World::opening(tree.parse().unwrap()), steps),
            None => run(World::new(), line),
        }
    }
}

/// Takes these steps and looks at what came of them.
fn run(mut world: World, steps: &str) {
    for seed in steps.split(',') {
        world.step(seed.trim().parse().unwrap());
    }
    world.rest();
    world.check();
}

#[test]
fn replay() {
    let Ok(steps) = std::env::var("QUINTET_MODEL_STEPS") else {
        return;
    };
    let mut world = match std::env::var("QUINTET_MODEL_TREE") {
        Ok(tree) => World::opening(tree.parse().unwrap()),
        Err(_) => World::new(),
    };
    world.trace = true;
    run(world, &steps);
}
