//! cgroup v2 limits for all commands of a worker together.
//!
//! They need the unified hierarchy with the memory, pids and cpu controllers enabled for children
//! of the cgroup that the worker runs in, and the right to make one there: as root, or in a unit
//! with `Delegate=yes`.

use std::path::{Path, PathBuf};

use super::{Feature, Limits};

const FIX: &str = "run the worker in a systemd unit with Delegate=yes on a machine with cgroup v2";

/// The period over which CPU time is counted, in microseconds.
const PERIOD_MICROS: u64 = 100_000;

/// What each limit needs: the controller, its file and the value to write.
fn plan(limits: &Limits) -> Vec<(&'static str, &'static str, String)> {
    let mut plan = Vec::new();
    if let Some(bytes) = limits.memory_bytes {
        plan.push(("memory", "memory.max", bytes.to_string()));
    }
    if let Some(processes) = limits.processes {
        plan.push(("pids", "pids.max", processes.to_string()));
    }
    if let Some(percent) = limits.cpu_percent {
        let quota = percent.saturating_mul(PERIOD_MICROS / 100);
        plan.push(("cpu", "cpu.max", format!("{quota} {PERIOD_MICROS}")));
    }
    plan
}

/// Moves this process into a cgroup of its own with `limits`. Says for each limit whether it holds.
pub(super) fn enter(limits: &Limits) -> Vec<Feature> {
    let plan = plan(limits);
    if plan.is_empty() {
        return Vec::new();
    }
    let found = own_cgroup().and_then(|own| enter_at(&own, &plan));
    plan.iter()
        .map(|(controller, file, value)| {
            let name = format!("cgroup.{controller}");
            match &found {
                Ok(()) => Feature::given(&name, format!("{file} = {value}")),
                Err(reason) => Feature::missing(&name, reason.clone(), FIX),
            }
        })
        .collect()
}

/// Which controllers a worker could use here.
pub(super) fn probe() -> Vec<Feature> {
    let own = own_cgroup();
    ["memory", "pids", "cpu"]
        .into_iter()
        .map(|controller| {
            let name = format!("cgroup.{controller}");
            match own
                .as_deref()
                .map_err(Clone::clone)
                .and_then(|own| usable(own, controller).map(|()| own.display().to_string()))
            {
                Ok(path) => Feature::given(&name, format!("can be limited beneath {path}")),
                Err(reason) => Feature::missing(&name, reason, FIX),
            }
        })
        .collect()
}

fn own_cgroup() -> Result<PathBuf, String> {
    let text = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let relative = unified_path(&text).ok_or("this process is in no cgroup v2 hierarchy")?;
    // Where v1 and v2 are mixed, the unified hierarchy has a folder of its own and, mostly, no
    // controllers.
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(|mount| Path::new(mount).join(relative.trim_start_matches('/')))
        .find(|path| path.join("cgroup.controllers").exists())
        .ok_or_else(|| "no cgroup v2 hierarchy is mounted".to_owned())
}

fn unified_path(proc_self_cgroup: &str) -> Option<&str> {
    proc_self_cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
}

fn usable(own: &Path, controller: &str) -> Result<(), String> {
    if !lists(&own.join("cgroup.controllers"), controller) {
        return Err(format!("{} has no {controller} controller", own.display()));
    }
    rustix::fs::access(own.join("cgroup.procs"), rustix::fs::Access::WRITE_OK)
        .map_err(|errno| format!("{}: {errno}", own.display()))
}

fn enter_at(own: &Path, plan: &[(&str, &str, String)]) -> Result<(), String> {
    for (controller, _, _) in plan {
        usable(own, controller)?;
        let enabled = own.join("cgroup.subtree_control");
        if !lists(&enabled, controller) {
            write(&enabled, &format!("+{controller}"))?;
        }
    }
    let pid = rustix::process::getpid().as_raw_nonzero();
    let group = own.join(format!("quintet-{pid}"));
    std::fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
    for (_, file, value) in plan {
        write(&group.join(file), value)?;
    }
    write(&group.join("cgroup.procs"), &pid.to_string())
}

fn lists(file: &Path, controller: &str) -> bool {
    std::fs::read_to_string(file)
        .is_ok_and(|text| text.split_whitespace().any(|name| name == controller))
}

fn write(file: &Path, value: &str) -> Result<(), String> {
    std::fs::write(file, value).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_values_of_controller_files() {
        let limits = Limits {
            memory_bytes: Some(1 << 30),
            processes: Some(64),
            cpu_percent: Some(150),
            ..Limits::default()
        };
        assert_eq!(
            plan(&limits),
            [
                ("memory", "memory.max", "1073741824".to_owned()),
                ("pids", "pids.max", "64".to_owned()),
                ("cpu", "cpu.max", "150000 100000".to_owned()),
            ]
        );
        assert!(plan(&Limits::default()).is_empty());
    }

    #[test]
    fn the_unified_hierarchy_is_found_among_others() {
        let mixed = "2:cpu:/x\n1:name=systemd:/y\n0::/user.slice/a\n";
        assert_eq!(unified_path(mixed), Some("/user.slice/a"));
        assert_eq!(unified_path("2:cpu:/x\n"), None);
    }

    #[test]
    fn a_missing_controller_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "cpu io").unwrap();
        std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        assert!(usable(dir.path(), "cpu").is_ok());
        assert!(usable(dir.path(), "memory").unwrap_err().contains("memory"));
    }
}
