//! kill -9 at 200 random moments of a run that counts in its state.

use std::sync::Mutex;
use std::time::Duration;

use quintet_agent::{
    AgentId, CgroupUse, FailReason, InboundMessage, InstanceEvent, Observer, TurnEnd,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{PATIENCE, World};

const KILLS: usize = 200;

/// Keeps the counts that were reported as durable.
struct Counts {
    all: Mutex<Vec<u64>>,
    newest: watch::Sender<u64>,
}

impl Observer for Counts {
    async fn observe(&self, _: &AgentId, batch: Vec<InstanceEvent>) {
        for event in batch {
            if let InstanceEvent::StateApplied { patches, .. } = event {
                let count = patches[0]["value"].as_u64().unwrap();
                self.all.lock().unwrap().push(count);
                self.newest.send_replace(count);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_is_always_the_last_durable_one_and_each_turn_ends_once() {
    let observer = Counts {
        all: Mutex::default(),
        newest: watch::Sender::new(0),
    };
    let world = World::with(CgroupUse::WherePossible, observer);
    let agent = world.open(world.python("seed_agent.py", &[])).await;
    let mut random = Random(0x5eed);
    let mut counted_in = 0;
    let mut last = 0;
    for kill in 0..KILLS {
        let kill_at_some_point = async {
            let started = agent.wait_for(|status| status.pid.is_some());
            let status = tokio::time::timeout(PATIENCE, started)
                .await
                .unwrap()
                .unwrap();
            let pid = i32::try_from(status.pid.unwrap()).unwrap();
            // A random moment is the point here: of the start, or of the count.
            let moment = random.below(30);
            if moment < 10 {
                tokio::time::sleep(Duration::from_micros(random.below(50_000))).await;
            } else {
                let mut newest = world.observer.newest.subscribe();
                let reached = newest.wait_for(|count| *count > last + moment - 10);
                tokio::time::timeout(PATIENCE, reached)
                    .await
                    .unwrap()
                    .unwrap();
                tokio::time::sleep(Duration::from_micros(random.below(2_000))).await;
            }
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        };
        let message = InboundMessage::text(format!("m{kill}"), "count 1000000");
        let (end, ()) = tokio::join!(agent.run(message), kill_at_some_point);
        let TurnEnd::Failed { reason, .. } = end else {
            panic!("{end:?}");
        };
        assert!(
            matches!(reason, FailReason::Crashed | FailReason::NotReady),
            "{reason:?}"
        );

        let counts = std::mem::take(&mut *world.observer.all.lock().unwrap());
        let expected: Vec<u64> = (last + 1..).take(counts.len()).collect();
        assert_eq!(
            counts, expected,
            "a new process goes on from the durable state"
        );
        if let Some(newest) = counts.last() {
            last = *newest;
            counted_in += 1;
        }
        let durable = match last {
            0 => Value::Null,
            last => json!({ "count": last }),
        };
        assert_eq!(agent.state().await, durable);
    }
    assert!(
        counted_in > KILLS / 2,
        "only {counted_in} of the runs got as far as counting"
    );
    assert_eq!(agent.status().restarts as usize, KILLS);
    world.finish().await;
}

/// A small generator with a fixed seed: the moments are random, the test is repeatable.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
