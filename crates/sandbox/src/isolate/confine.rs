//! The confinement itself, applied to the calling thread and what it starts.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, LandlockStatus,
    RestrictionStatus, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;

use super::{Feature, IsolationConfig, Limits, Network, cgroup, seccomp};

/// Folders of the system that commands may read and execute from.
const SYSTEM: &[&str] = &[
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc",
    "/sys", "/dev/shm", "/run", "/var/lib", "/nix", "/snap",
];

/// Of devices commands see the names, and open only those below: root would read any disk.
const LISTED: &[&str] = &["/dev"];

/// Devices that commands may read and write.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// What rights are asked for; an older kernel gives what it has, which the status says.
const TARGET: ABI = ABI::V6;

/// Confines the calling thread. It must be the only one of its process.
pub(super) fn apply(config: &IsolationConfig, root: &Path) -> (Vec<Feature>, Option<PathBuf>) {
    // Before Landlock, which would forbid writing to the hierarchy.
    let (mut features, group) = cgroup::enter(&config.limits);
    let rlimits = rlimits(&config.limits, &features);
    features.push(rlimits);
    if config.confine {
        features.extend(confine_thread(config, root));
    }
    (features, group)
}

/// What this kernel gives, with the network on or off, found by confining a thread that then ends.
pub fn probe(network: Network) -> Vec<Feature> {
    let config = IsolationConfig {
        helper: super::HelperCommand {
            program: PathBuf::from("/proc/self/exe"),
            args: Vec::new(),
        },
        confine: true,
        network,
        read: Vec::new(),
        write: Vec::new(),
        temp: PathBuf::from(super::TEMP),
        limits: Limits::default(),
    };
    let tried = std::thread::Builder::new()
        .name("isolation-probe".to_owned())
        .spawn(move || confine_thread(&config, Path::new("/tmp")))
        .ok()
        .and_then(|thread| thread.join().ok());
    let mut features = tried.unwrap_or_else(|| {
        vec![Feature::missing(
            "isolation",
            "a thread to try it on could not be started",
            "free some memory or raise the limit of processes",
        )]
    });
    features.push(Feature::given(
        "rlimits",
        "memory, processes, CPU time, open files and file size of each process",
    ));
    features.extend(cgroup::probe());
    features
}

/// What root keeps of its powers: those over files and users, which Landlock bounds. With any
/// other it could look into this machine's other processes, its disks or its network.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

fn give_up_capabilities() -> Feature {
    let given_up = || -> rustix::io::Result<()> {
        let mut sets = rustix::thread::capabilities(None)?;
        if sets.permitted.is_empty() {
            // Without new privileges there is no way to get any.
            return Ok(());
        }
        // What root executes gets all that is in the bounding set.
        for capability in CapabilitySet::all().difference(KEPT).iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // One that this kernel does not know.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        for set in [
            &mut sets.effective,
            &mut sets.permitted,
            &mut sets.inheritable,
        ] {
            *set &= KEPT;
        }
        rustix::thread::set_capabilities(None, sets)
    };
    match given_up() {
        Ok(()) => Feature::given(
            "capabilities",
            "root has no power over processes, devices and the network",
        ),
        Err(errno) => Feature::missing(
            "capabilities",
            errno.to_string(),
            "start it as another user, or with CAP_SETPCAP",
        ),
    }
}

fn confine_thread(config: &IsolationConfig, root: &Path) -> Vec<Feature> {
    let capabilities = give_up_capabilities();
    let privileges = match rustix::thread::set_no_new_privs(true) {
        Ok(()) => Feature::given("no_new_privs", "setuid programs gain nothing"),
        Err(errno) => Feature::missing("no_new_privs", errno.to_string(), "needs Linux 3.5"),
    };
    let landlock = match restrict(config, root) {
        Ok(status) => describe(&status.ruleset, &status.landlock),
        Err(error) => Feature::missing(
            "landlock",
            error.to_string(),
            "start the kernel with landlock in its lsm= list",
        ),
    };
    let seccomp = match seccomp::apply(config.network) {
        Ok(()) => Feature::given(
            "seccomp",
            match config.network {
                Network::On => "mounts, namespaces, modules, keys and the clock are out of reach",
                Network::Off => {
                    "mounts, namespaces, modules, keys, the clock and the network are out of reach"
                }
            },
        ),
        Err(error) => Feature::missing("seccomp", error, "needs CONFIG_SECCOMP_FILTER"),
    };
    vec![capabilities, privileges, landlock, seccomp]
}

fn restrict(config: &IsolationConfig, root: &Path) -> Result<RestrictionStatus, RulesetError> {
    let read = AccessFs::from_read(TARGET);
    let all = AccessFs::from_all(TARGET);
    let device: BitFlags<AccessFs> =
        AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let writable = config
        .write
        .iter()
        .map(PathBuf::as_path)
        .chain([root, config.temp.as_path()]);
    let readable = config
        .read
        .iter()
        .map(PathBuf::as_path)
        .chain([config.helper.program.as_path()])
        .chain(SYSTEM.iter().map(Path::new));
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(TARGET))?
        .create()?
        // A folder that does not exist is left out: there is nothing to read in it.
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(LISTED, AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(writable, all))?
        .add_rules(path_beneath_rules(DEVICES, device))?
        .restrict_self()
}

fn describe(ruleset: &RulesetStatus, landlock: &LandlockStatus) -> Feature {
    let abi = match landlock {
        LandlockStatus::Available { effective_abi, .. } => format!("{effective_abi:?}"),
        LandlockStatus::NotEnabled => "not enabled at boot".to_owned(),
        LandlockStatus::NotImplemented => "not in this kernel".to_owned(),
    };
    match ruleset {
        RulesetStatus::FullyEnforced => Feature::given("landlock", format!("enforced, ABI {abi}")),
        RulesetStatus::PartiallyEnforced => Feature {
            fix: "a newer kernel has them; Linux 6.12 has all".to_owned(),
            ..Feature::given(
                "landlock",
                format!("enforced in part: ABI {abi} lacks some rights"),
            )
        },
        RulesetStatus::NotEnforced => Feature::missing(
            "landlock",
            abi,
            "start the kernel with landlock in its lsm= list; it needs Linux 5.13",
        ),
    }
}

/// The limits of each process; what holds for all commands together needs none of its own, which
/// would count other processes of the user too.
fn rlimits(limits: &Limits, groups: &[Feature]) -> Feature {
    let unless_grouped = |controller: &str, limit: Option<u64>| {
        let held = |feature: &Feature| feature.name == controller && feature.available;
        limit.filter(|_| !groups.iter().any(held))
    };
    let memory = unless_grouped("cgroup.memory", limits.memory_bytes);
    let processes = unless_grouped("cgroup.pids", limits.processes);
    let wanted = [
        (Resource::Data, memory, "memory"),
        (Resource::Nproc, processes, "processes"),
        (Resource::Cpu, limits.cpu_secs, "CPU time"),
        (Resource::Nofile, limits.open_files, "open files"),
        (Resource::Fsize, limits.file_bytes, "file size"),
        (Resource::Core, Some(0), "core dumps"),
    ];
    let mut set = Vec::new();
    for (resource, limit, name) in wanted {
        let Some(limit) = limit else { continue };
        let hard = rustix::process::getrlimit(resource).maximum;
        let limit = Some(hard.map_or(limit, |hard| hard.min(limit)));
        let new = Rlimit {
            current: limit,
            maximum: limit,
        };
        match rustix::process::setrlimit(resource, new) {
            Ok(()) => set.push(name),
            Err(errno) => {
                return Feature::missing(
                    "rlimits",
                    format!("{name}: {errno}"),
                    "ask for less than the hard limit",
                );
            }
        }
    }
    Feature::given("rlimits", format!("each process: {}", set.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_landlock_gives_in_part_is_said_with_what_would_give_the_rest() {
        let given = |ruleset| describe(&ruleset, &LandlockStatus::NotImplemented);
        let part = given(RulesetStatus::PartiallyEnforced);
        assert!(part.available && part.detail.contains("in part") && !part.fix.is_empty());
        let full = given(RulesetStatus::FullyEnforced);
        assert!(full.available && full.fix.is_empty());
        let none = given(RulesetStatus::NotEnforced);
        assert!(!none.available && !none.fix.is_empty());
    }
}
