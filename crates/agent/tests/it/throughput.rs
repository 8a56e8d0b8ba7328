//! A runaway agent: as many deltas as it can, against an observer that is slower.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quintet_agent::proto::element::Element;
use quintet_agent::{
    AgentId, CgroupUse, FinishReason, InboundMessage, InstanceEvent, Observer, TurnEnd,
};

use crate::harness::World;

/// Bytes of text in each delta of the agent.
const DELTA: u64 = 200;

/// Counts bytes of text and takes its time.
#[derive(Default)]
struct Slow {
    bytes: AtomicU64,
    batches: AtomicU64,
    largest: AtomicU64,
    pause: Duration,
}

impl Observer for Slow {
    async fn observe(&self, _: &AgentId, batch: Vec<InstanceEvent>) {
        let bytes = batch
            .iter()
            .map(|event| match event {
                InstanceEvent::Element {
                    element: Element::TextDelta { text },
                    ..
                } => text.len() as u64,
                _ => 0,
            })
            .sum();
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.batches.fetch_add(1, Ordering::Relaxed);
            self.largest.fetch_max(bytes, Ordering::Relaxed);
            tokio::time::sleep(self.pause).await;
        }
    }
}

/// The most memory that this process ever had, in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn flood(count: u64, pause: Duration) -> (Slow, u64) {
    let observer = Slow {
        pause,
        ..Slow::default()
    };
    let world = World::with(CgroupUse::WherePossible, observer);
    let agent = world.open(world.example("flood_agent")).await;
    agent.run(InboundMessage::text("warm", "100")).await;
    let before = peak_memory();
    let end = agent
        .run(InboundMessage::text("flood", count.to_string()))
        .await;
    let complete = TurnEnd::Completed {
        finish_reason: FinishReason::EndTurn,
        usage: None,
    };
    assert_eq!(end, complete);
    let grown = peak_memory() - before;
    let observer = std::sync::Arc::clone(&world.observer);
    world.finish().await;
    (std::sync::Arc::into_inner(observer).unwrap(), grown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runaway_agent_waits_for_a_slow_observer_and_memory_stays_bounded() {
    // 40 MB of text, which would all be here if the socket were read ahead of the observer.
    let (observer, grown) = flood(200_000, Duration::from_micros(200)).await;
    assert_eq!(observer.bytes.into_inner(), 200_100 * DELTA);
    let largest = observer.largest.into_inner();
    assert!(largest <= 1024 * DELTA, "a batch has a limit");
    assert!(grown < 16 * 1024, "memory grew by {grown} KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_arrive_together_are_handed_over_together() {
    let (observer, _) = flood(50_000, Duration::from_millis(1)).await;
    let batches = observer.batches.into_inner();
    assert!(batches < 10_000, "{batches} batches for 50,100 deltas");
}
