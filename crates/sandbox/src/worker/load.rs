//! How busy this machine is.

use crate::proto::Load;

/// What the processors have done since the machine started, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

/// Tells the load of the time since it was last asked.
#[derive(Debug)]
pub(super) struct LoadMeter {
    before: Option<Ticks>,
}

impl LoadMeter {
    pub(super) fn new() -> Self {
        Self { before: ticks() }
    }

    /// `None` where the kernel does not tell, or when no time has passed.
    pub(super) fn read(&mut self) -> Option<Load> {
        let now = ticks()?;
        let cpu = self
            .before
            .replace(now)
            .and_then(|before| between(before, now));
        let memory = memory_used(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
        Some(Load { cpu: cpu?, memory })
    }
}

fn ticks() -> Option<Ticks> {
    ticks_of(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// Reads `/proc/stat`, whose first line is of all processors.
fn ticks_of(stat: &str) -> Option<Ticks> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
    let ticks: Vec<u64> = numbers
        .split_whitespace()
        .take(8)
        .map_while(|number| number.parse().ok())
        .collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    Some(Ticks {
        busy: all.saturating_sub(idle),
        all,
    })
}

fn between(before: Ticks, now: Ticks) -> Option<u8> {
    let all = now.all.checked_sub(before.all)?;
    percent(now.busy.saturating_sub(before.busy), all)
}

/// Reads `/proc/meminfo`.
fn memory_used(meminfo: &str) -> Option<u8> {
    let of = |key: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let total = of("MemTotal:")?;
    percent(total.saturating_sub(of("MemAvailable:")?), total)
}

fn percent(part: u64, whole: u64) -> Option<u8> {
    let percent = part.saturating_mul(100).checked_div(whole)?;
    Some(u8::try_from(percent.min(100)).unwrap_or(100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_is_what_is_neither_idle_nor_waiting_for_a_disk() {
        let before = ticks_of("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        assert_eq!(before, Ticks { busy: 20, all: 100 });
        let now = ticks_of("cpu  40 0 30 110 20 0 0 0 0 0\n").unwrap();
        assert_eq!(between(before, now), Some(50));
        assert_eq!(between(now, now), None, "no time has passed");
        assert_eq!(ticks_of("cpu0 1 2 3"), None);
        assert_eq!(ticks_of("cpu  1 2"), None);
    }

    #[test]
    fn memory_that_could_be_had_is_not_used() {
        let text = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  750 kB\n";
        assert_eq!(memory_used(text), Some(25));
        assert_eq!(memory_used("MemTotal: 0 kB\nMemAvailable: 0 kB\n"), None);
        assert_eq!(memory_used("nothing"), None);
    }

    #[test]
    fn this_machine_has_a_load() {
        let mut meter = LoadMeter {
            before: Some(Ticks { busy: 0, all: 0 }),
        };
        let load = meter.read().expect("linux tells");
        assert!(load.cpu <= 100 && load.memory <= 100, "{load:?}");
    }
}
