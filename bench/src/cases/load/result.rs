//! What a load brought.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::memory::Memory;
use super::tally::{Latency, Tally};
use super::{Size, browsers, replicas, sessions, workers};

/// More than this between the second and the last fifth of a run is no flat memory.
const MAX_GROWTH_PERCENT: f64 = 10.0;

/// In a shorter run the caches are still being filled.
const MEMORY_JUDGED_MINUTES: f64 = 5.0;

/// The line of a load in the results.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    case: String,
    minutes: f64,
    workers: usize,
    sessions: usize,
    browsers: usize,
    replicas: usize,
    latencies: Vec<Measured>,
    memory: Memory,
    errors: Vec<String>,
}

/// One latency, in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    plane: String,
    what: String,
    count: u64,
    p50: f64,
    p99: f64,
    max: f64,
}

impl Load {
    pub(super) fn new(size: Size, tally: &Tally, memory: &Memory) -> Self {
        let mut errors = tally.errors();
        let measured = |(latency, plane, what): (Latency, &str, String)| {
            let histogram = tally.histogram(latency);
            if histogram.count() == 0 {
                errors.push(format!("{plane}: nothing was measured of: {what}"));
            }
            let millis = |time: Duration| time.as_secs_f64() * 1e3;
            Measured {
                plane: plane.to_owned(),
                what,
                count: histogram.count(),
                p50: millis(histogram.at(0.5)),
                p99: millis(histogram.at(0.99)),
                max: millis(histogram.max()),
            }
        };
        let latencies = done(size).into_iter().map(measured).collect();
        let growth = memory.growth_percent();
        if size.minutes >= MEMORY_JUDGED_MINUTES && growth > MAX_GROWTH_PERCENT {
            errors.push(format!("the daemon's memory grew by {growth:.1} %"));
        }
        Self {
            case: super::NAME.to_owned(),
            minutes: size.minutes,
            workers: size.workers,
            sessions: size.sessions,
            browsers: size.browsers,
            replicas: size.replicas,
            latencies,
            memory: memory.clone(),
            errors,
        }
    }

    /// A sentence for each kind of error.
    pub(crate) fn errors(&self) -> &[String] {
        &self.errors
    }

    /// As a section of the document.
    pub(crate) fn section(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        writeln!(
            out,
            "\n## Load\n\n{} workers, {} sessions with streaming agents, {} browsers and {} replicas of \
             one daemon for {} min, all on this machine. Every answer, element, row and file was \
             checked: none lost, none doubled, none out of order, or it is an error.\n\n\
             | plane | what | count | p50 | p99 | max |\n|---|---|--:|--:|--:|--:|",
            self.workers, self.sessions, self.browsers, self.replicas, self.minutes
        )?;
        for it in &self.latencies {
            writeln!(
                out,
                "| {} | {} | {} | {:.2} ms | {:.2} ms | {:.2} ms |",
                it.plane, it.what, it.count, it.p50, it.p99, it.max
            )?;
        }
        let memory = &self.memory;
        writeln!(
            out,
            "\n| | |\n|---|---|\n\
             | the daemon's memory | {:.1} MiB in the second fifth of the time, {:.1} MiB in the last: \
             {:+.1} %; {:.1} MiB at the most |\n\
             | memory of everything | {:.0} MiB at the most: daemon, agents, workers, clients |\n\
             | errors | {} |",
            memory.early,
            memory.late,
            memory.growth_percent(),
            memory.daemon_most,
            memory.all_most,
            match self.errors.as_slice() {
                [] => "none".to_owned(),
                errors => errors.join("; "),
            }
        )?;
        Ok(out)
    }
}

/// Everything that is measured: on which plane, and what was done.
fn done(size: Size) -> Vec<(Latency, &'static str, String)> {
    let a_second = |count: usize, every: Duration| {
        let rate = count as f64 / every.as_secs_f64();
        format!("{}/s", (rate * 10.0).round() / 10.0)
    };
    let elements = a_second(size.sessions, sessions::EVERY);
    let watchers = size.browsers.div_ceil(browsers::WATCHERS);
    let writers = size.replicas.div_ceil(replicas::WRITERS);
    vec![
        (
            Latency::Ping,
            "control",
            format!(
                "ping, {} over {} connections",
                a_second(sessions::PINGERS, sessions::PING_EVERY),
                sessions::PINGERS
            ),
        ),
        (
            Latency::TurnStart,
            "control",
            format!(
                "a message to its turn's first event, turns of {} elements",
                sessions::ELEMENTS
            ),
        ),
        (
            Latency::ElementToClient,
            "agent",
            format!("an element of an agent to its client, {elements}, through the journal"),
        ),
        (
            Latency::Exec,
            "sandbox",
            format!(
                "exec of echo on each worker in turn, {}",
                a_second(workers::ASKERS, workers::EVERY)
            ),
        ),
        (
            Latency::WriteToReplica,
            "workspace",
            format!(
                "a write on the host to each of the replicas, {} of {} bytes",
                a_second(1, replicas::HOST_EVERY),
                replicas::BYTES
            ),
        ),
        (
            Latency::ReplicaToHost,
            "workspace",
            format!(
                "a write on a replica to the host, {} by {writers} of them",
                a_second(writers, replicas::WRITER_EVERY)
            ),
        ),
        (
            Latency::ElementToBrowser,
            "channel",
            format!(
                "an element of an agent to a browser, {} follow one session each",
                size.browsers - watchers
            ),
        ),
        (
            Latency::ElementToWatcher,
            "channel",
            format!("an element of an agent to a browser, {watchers} follow everything"),
        ),
    ]
}
