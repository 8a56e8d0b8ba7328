//! cgroup v2 limits for all commands of a worker together.
//!
//! They need the unified hierarchy with the memory, pids and cpu controllers and the right to make
//! groups beneath the one that the worker runs in: as root, or in a unit with `Delegate=yes`.
//!
//! A group whose children have controllers may hold no process itself, the root of the hierarchy
//! excepted. So the worker and its helper first go into a leaf of their own beneath the group they
//! were found in, and the commands' group is made beside it.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

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

/// The helper's: moves this process into a cgroup of its own with `limits`, and its worker out of the
/// way. Says for each limit whether it holds, and which group is to be removed at the end.
pub(super) fn enter(limits: &Limits) -> (Vec<Feature>, Option<PathBuf>) {
    let plan = plan(limits);
    if plan.is_empty() {
        return (Vec::new(), None);
    }
    let worker = rustix::process::getppid().map(Pid::as_raw_pid);
    enter_beneath(own_cgroup(), &plan, worker)
}

/// What this machine has no controller for does not keep the other limits from holding.
fn enter_beneath(
    own: Result<PathBuf, String>,
    plan: &[(&str, &str, String)],
    worker: Option<i32>,
) -> (Vec<Feature>, Option<PathBuf>) {
    let checks: Vec<Result<(), String>> = plan
        .iter()
        .map(|(controller, ..)| usable(base_of(own.as_ref().map_err(Clone::clone)?), controller))
        .collect();
    let held: Vec<_> = plan
        .iter()
        .zip(&checks)
        .filter(|(_, check)| check.is_ok())
        .map(|(limit, _)| limit.clone())
        .collect();
    let entered = match own {
        Ok(own) if !held.is_empty() => Some(Entered::at(&own, &held, worker)),
        _ => None,
    };
    let features = plan
        .iter()
        .zip(checks)
        .map(|((controller, file, value), check)| {
            let name = format!("cgroup.{controller}");
            let failed = entered.as_ref().and_then(|entered| entered.as_ref().err());
            match (check, failed) {
                (Err(reason), _) => Feature::missing(&name, reason, FIX),
                (Ok(()), Some(reason)) => Feature::missing(&name, reason.clone(), FIX),
                (Ok(()), None) => Feature::given(&name, format!("{file} = {value}")),
            }
        })
        .collect();
    let group = entered.and_then(Result::ok).map(|entered| entered.group);
    (features, group)
}

/// Kills everything in a group and removes it. What a helper started outlives it otherwise.
pub(super) fn kill(group: &Path) {
    // A kernel before 5.14 has no such file; there the helper's and the jobs' own killing is all.
    let _ = std::fs::write(group.join("cgroup.kill"), "1");
    let _ = std::fs::remove_dir(group);
}

/// Which controllers a worker could use here, found by using each.
pub(super) fn probe() -> Vec<Feature> {
    let own = own_cgroup();
    [
        ("memory", "memory.max"),
        ("pids", "pids.max"),
        ("cpu", "cpu.max"),
    ]
    .into_iter()
    .map(|(controller, file)| {
        let name = format!("cgroup.{controller}");
        let tried = own.as_deref().map_err(Clone::clone).and_then(|own| {
            Entered::at(own, &[(controller, file, "max".to_owned())], None)?.leave()?;
            Ok(own.display())
        });
        match tried {
            Ok(path) => Feature::given(&name, format!("can be limited beneath {path}")),
            Err(reason) => Feature::missing(&name, reason, FIX),
        }
    })
    .collect()
}

/// What the leaf of a worker is called, before its process id.
const LEAF: &str = "quintet-worker-";

/// What the group of its commands is called.
const GROUP: &str = "quintet-commands-";

/// This process in a group with limits.
struct Entered {
    /// The group that the process was found in, or that a leaf was made in.
    base: PathBuf,
    group: PathBuf,
    /// Made for this; and the controllers that were turned on for it.
    leaf: Option<PathBuf>,
    enabled: Vec<String>,
}

impl Entered {
    /// Puts this process into a new group. `worker` goes into the leaf with it where one is needed.
    fn at(own: &Path, plan: &[(&str, &str, String)], worker: Option<i32>) -> Result<Self, String> {
        let base = base_of(own);
        for (controller, _, _) in plan {
            usable(base, controller)?;
        }
        remove_empty(base);
        let pid = rustix::process::getpid().as_raw_pid();
        let mut entered = Self {
            base: base.to_owned(),
            group: base.join(format!("{GROUP}{pid}")),
            leaf: None,
            enabled: Vec::new(),
        };
        entered.enable(plan, worker, base != own)?;
        match entered.settle(plan, pid) {
            Ok(()) => Ok(entered),
            Err(error) => {
                // Nothing is left behind but what can't be removed.
                let _ = entered.leave();
                Err(error)
            }
        }
    }

    /// `left` says that worker and helper have left the base already.
    fn enable(
        &mut self,
        plan: &[(&str, &str, String)],
        worker: Option<i32>,
        left: bool,
    ) -> Result<(), String> {
        let control = self.base.join("cgroup.subtree_control");
        let missing: Vec<&str> = plan
            .iter()
            .map(|(controller, _, _)| *controller)
            .filter(|controller| !lists(&control, controller))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let all: Vec<String> = missing.iter().map(|it| format!("+{it}")).collect();
        // In one write, which holds for all or for none.
        let turn_on = || std::fs::write(&control, all.join(" "));
        let failed = |error: io::Error| format!("{}: {error}", control.display());
        // The root of the hierarchy may hold processes beside groups with limits; only it has no
        // type. Elsewhere pids and cpu could be turned on, and nobody could enter the group then.
        if left || !self.base.join("cgroup.type").exists() {
            turn_on().map_err(failed)?;
            self.enabled = missing.into_iter().map(str::to_owned).collect();
            return Ok(());
        }
        let pid = rustix::process::getpid().as_raw_pid();
        let members: Vec<i32> = worker.into_iter().chain([pid]).collect();
        let leaf = self.base.join(format!("{LEAF}{}", members[0]));
        create(&leaf)?;
        let moved = members
            .iter()
            .try_for_each(|member| move_into(&leaf, *member));
        match moved.and_then(|()| turn_on().map_err(failed)) {
            Ok(()) => {
                self.leaf = Some(leaf);
                self.enabled = missing.into_iter().map(str::to_owned).collect();
                Ok(())
            }
            Err(error) => {
                for member in &members {
                    let _ = move_into(&self.base, *member);
                }
                let _ = std::fs::remove_dir(&leaf);
                Err(format!("{error}; other processes may be in it too"))
            }
        }
    }

    fn settle(&self, plan: &[(&str, &str, String)], pid: i32) -> Result<(), String> {
        create(&self.group)?;
        for (_, file, value) in plan {
            write(&self.group.join(file), value)?;
        }
        // Else what is over the limit would go to the swap, where there is one.
        let swap = self.group.join("memory.swap.max");
        if plan.iter().any(|(controller, ..)| *controller == "memory") && swap.exists() {
            write(&swap, "0")?;
        }
        move_into(&self.group, pid)
    }

    /// Puts everything back as it was.
    fn leave(self) -> Result<(), String> {
        let pid = rustix::process::getpid().as_raw_pid();
        let off: Vec<String> = self.enabled.iter().map(|it| format!("-{it}")).collect();
        if !off.is_empty() {
            write(&self.base.join("cgroup.subtree_control"), &off.join(" "))?;
        }
        move_into(&self.base, pid)?;
        remove_empty(&self.base);
        Ok(())
    }
}

/// The group whose worker and helper are in `own`: its parent if it is a leaf that was made for them.
fn base_of(own: &Path) -> &Path {
    let is_leaf = own
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(LEAF.as_bytes()));
    own.parent().filter(|_| is_leaf).unwrap_or(own)
}

/// Removes the groups of workers that are gone; one that holds a process stays.
fn remove_empty(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(LEAF.as_bytes()) || name.starts_with(GROUP.as_bytes()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

fn create(group: &Path) -> Result<(), String> {
    std::fs::create_dir(group).map_err(|error| format!("{}: {error}", group.display()))
}

fn move_into(group: &Path, pid: i32) -> Result<(), String> {
    write(&group.join("cgroup.procs"), &pid.to_string())
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

    #[test]
    fn a_missing_controller_does_not_keep_the_other_limits_from_holding() {
        let limits = Limits {
            memory_bytes: Some(64 << 20),
            processes: Some(32),
            ..Limits::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path();
        std::fs::write(own.join("cgroup.controllers"), "cpu pids").unwrap();
        std::fs::write(own.join("cgroup.procs"), "").unwrap();
        std::fs::write(own.join("cgroup.subtree_control"), "").unwrap();
        let (features, group) = enter_beneath(Ok(own.to_owned()), &plan(&limits), None);
        let [memory, pids] = &features[..] else {
            panic!("{features:?}");
        };
        assert!(!memory.available && memory.detail.contains("no memory controller"));
        assert!(pids.available, "{pids:?}");
        let written = std::fs::read_to_string(group.unwrap().join("pids.max")).unwrap();
        assert_eq!(written, "32");
        let (features, group) = enter_beneath(Err("none here".into()), &plan(&limits), None);
        assert!(features.iter().all(|feature| !feature.available) && group.is_none());
    }

    /// What the kernel lets be turned on in a group with processes, and lets nobody use then.
    #[test]
    fn a_unit_with_processes_is_left_before_its_controllers_are_turned_on() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path();
        for (file, text) in [
            ("cgroup.controllers", "cpu pids"),
            ("cgroup.procs", ""),
            ("cgroup.subtree_control", ""),
            ("cgroup.type", "domain"),
        ] {
            std::fs::write(own.join(file), text).unwrap();
        }
        let plan = [("pids", "pids.max", "32".to_owned())];
        let entered = Entered::at(own, &plan, Some(77)).unwrap();
        let leaf = entered.leaf.unwrap();
        assert_eq!(leaf, own.join("quintet-worker-77"));
        let moved = std::fs::read_to_string(leaf.join("cgroup.procs")).unwrap();
        assert_eq!(moved, std::process::id().to_string(), "the last of two");
    }

    /// A folder stands for the hierarchy, where this machine's has none of the controllers: what is
    /// written is what the kernel would be told.
    #[test]
    fn every_limit_is_written_before_the_group_is_entered() {
        let limits = Limits {
            memory_bytes: Some(64 << 20),
            processes: Some(32),
            cpu_percent: Some(50),
            ..Limits::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path();
        std::fs::write(own.join("cgroup.controllers"), "cpu io memory pids").unwrap();
        std::fs::write(own.join("cgroup.procs"), "").unwrap();
        std::fs::write(own.join("cgroup.subtree_control"), "io").unwrap();
        let entered = Entered::at(own, &plan(&limits), None).unwrap();
        let read = |file: PathBuf| std::fs::read_to_string(file).unwrap();
        assert_eq!(
            read(own.join("cgroup.subtree_control")),
            "+memory +pids +cpu"
        );
        for (file, value) in [
            ("memory.max", "67108864"),
            ("pids.max", "32"),
            ("cpu.max", "50000 100000"),
            ("cgroup.procs", &std::process::id().to_string()),
        ] {
            assert_eq!(read(entered.group.join(file)), value, "{file}");
        }

        // A limit that can't be written lets nobody in, and leaves the group as it was.
        std::fs::write(own.join("cgroup.procs"), "").unwrap();
        std::fs::remove_dir_all(&entered.group).unwrap();
        let bad = [("memory", "no/such/file", "1".to_owned())];
        std::fs::write(own.join("cgroup.subtree_control"), "").unwrap();
        assert!(Entered::at(own, &bad, None).is_err());
        assert!(!entered.group.exists());
        assert_eq!(read(own.join("cgroup.subtree_control")), "-memory");
    }

    /// The kernel's own rules, with whatever controller this machine has in its unified hierarchy:
    /// the limits themselves need others, but what is refused in a group with processes is the same.
    #[test]
    fn a_group_with_processes_is_left_for_a_leaf_and_put_back() {
        let hierarchy = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let Some((root, controller)) = hierarchy.into_iter().find_map(|root| {
            let controllers = std::fs::read_to_string(root.join("cgroup.controllers")).ok()?;
            Some((root, controllers.split_whitespace().next()?.to_owned()))
        }) else {
            eprintln!("skipped: no controller in a cgroup v2 hierarchy here");
            return;
        };
        let pid = rustix::process::getpid().as_raw_pid();
        let before = own_cgroup().unwrap();
        let control = root.join("cgroup.subtree_control");
        let had = lists(&control, &controller);
        let own = root.join(format!("quintet-test-{pid}"));
        if (!had && write(&control, &format!("+{controller}")).is_err()) || create(&own).is_err() {
            eprintln!("skipped: groups can't be made in {}", root.display());
            return;
        }
        // Another process stands for the worker.
        let mut worker = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let worker_pid = i32::try_from(worker.id()).unwrap();
        for member in [worker_pid, pid] {
            move_into(&own, member).unwrap();
        }
        let plan = [(controller.as_str(), "cgroup.max.depth", "max".to_owned())];

        // A stranger in the group is not moved, and everybody is back where they were.
        let mut stranger = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let refused = Entered::at(&own, &plan, Some(worker_pid));
        assert!(refused.is_err_and(|reason| reason.contains("other processes")));
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        let members = std::fs::read_to_string(own.join("cgroup.procs")).unwrap();
        assert_eq!(members.lines().count(), 2);

        let entered = Entered::at(&own, &plan, Some(worker_pid)).unwrap();
        assert_eq!(own_cgroup().unwrap(), entered.group);
        assert!(lists(&own.join("cgroup.subtree_control"), &controller));
        let leaf = entered.leaf.clone().unwrap();
        // A helper that is started again by the worker finds the way from its leaf.
        move_into(&leaf, pid).unwrap();
        std::fs::remove_dir(&entered.group).unwrap();
        let again = Entered::at(&leaf, &plan, Some(worker_pid)).unwrap();
        assert_eq!((&again.base, &again.leaf), (&own, &None));

        worker.kill().unwrap();
        worker.wait().unwrap();
        let entered = Entered {
            leaf: Some(leaf),
            enabled: vec![controller.clone()],
            ..again
        };
        entered.leave().unwrap();
        assert_eq!(own_cgroup().unwrap(), own);
        move_into(&before, pid).unwrap();
        std::fs::remove_dir(&own).unwrap();
        if !had {
            write(&control, &format!("-{controller}")).unwrap();
        }
    }
}
