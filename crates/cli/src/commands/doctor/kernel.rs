//! What the kernel offers to keep agents and commands apart. Linux alone has these.

use std::fs;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope,
};

use super::Check;
use super::programs::answers;

const ENOUGH_WATCHES: u64 = 65_536;
const ENOUGH_INSTANCES: u64 = 128;

pub(super) async fn checks() -> Vec<Check> {
    vec![
        kernel(),
        landlock(),
        seccomp(),
        cgroups(),
        user_namespaces().await,
        watches(),
        fuse(),
    ]
}

fn kernel() -> Check {
    let system = rustix::system::uname();
    Check::good(
        "kernel",
        format!(
            "{} {} {}",
            system.sysname().to_string_lossy(),
            system.release().to_string_lossy(),
            system.machine().to_string_lossy()
        ),
    )
}

fn landlock() -> Check {
    const NAME: &str = "landlock";
    const VERSIONS: [(i32, ABI); 6] = [
        (6, ABI::V6),
        (5, ABI::V5),
        (4, ABI::V4),
        (3, ABI::V3),
        (2, ABI::V2),
        (1, ABI::V1),
    ];
    match VERSIONS.iter().find(|(_, abi)| has_landlock(*abi)) {
        Some((version, ABI::V1 | ABI::V2)) => Check::bad(
            NAME,
            format!("ABI {version} is old: truncating a file is not fenced off"),
            "run a kernel of 6.2 or newer",
        ),
        Some((version, _)) => Check::good(
            NAME,
            format!("ABI {version} or newer: files can be fenced off"),
        ),
        None => Check::bad(
            NAME,
            "the kernel offers none: commands are not fenced off by files",
            "run a kernel of 5.13 or newer with landlock in its lsm= parameter",
        ),
    }
}

/// Whether a ruleset with all that this version has can be made; none is applied.
fn has_landlock(abi: ABI) -> bool {
    let ruleset = || -> Result<(), landlock::RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(abi))?;
        if abi >= ABI::V4 {
            ruleset = ruleset.handle_access(AccessNet::from_all(abi))?;
        }
        if abi >= ABI::V6 {
            ruleset = ruleset.scope(Scope::from_all(abi))?;
        }
        ruleset.create()?;
        Ok(())
    };
    ruleset().is_ok()
}

fn seccomp() -> Check {
    match fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
        Ok(actions) => Check::good("seccomp", actions.trim().to_owned()),
        Err(_) => Check::bad(
            "seccomp",
            "the kernel has none: system calls are not filtered",
            "run a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

fn cgroups() -> Check {
    const NAME: &str = "cgroup v2";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let controllers = unified(&mounts)
        .and_then(|point| fs::read_to_string(format!("{point}/cgroup.controllers")).ok());
    let Some(controllers) = controllers else {
        return Check::bad(
            NAME,
            "not mounted: limits of memory hold for each process and not for a whole tree",
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    };
    let controllers = controllers.trim();
    if controllers.split(' ').any(|name| name == "memory") {
        Check::good(NAME, format!("controllers: {controllers}"))
    } else {
        Check::bad(
            NAME,
            match controllers {
                "" => "mounted without any controller".to_owned(),
                some => format!("mounted without the memory controller ({some})"),
            },
            "delegate it: systemctl set-property user@$UID.service Delegate=yes",
        )
    }
}

/// Where the unified hierarchy is mounted: beside the older ones it is not at `/sys/fs/cgroup` itself.
fn unified(mounts: &str) -> Option<&str> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let point = fields.nth(1)?;
        (fields.next()? == "cgroup2").then_some(point)
    })
}

async fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    if answers("unshare", &["--user", "--map-root-user", "true"])
        .await
        .is_ok()
    {
        return Check::good(NAME, "a process can be given its own view of the system");
    }
    let setting = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned());
    if setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        .is_ok_and(|value| value == "1")
    {
        return Check::bad(
            NAME,
            "forbidden by AppArmor",
            "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        );
    }
    if setting("/proc/sys/kernel/unprivileged_userns_clone").is_ok_and(|value| value == "0") {
        return Check::bad(
            NAME,
            "switched off",
            "sudo sysctl kernel.unprivileged_userns_clone=1",
        );
    }
    match setting("/proc/sys/user/max_user_namespaces") {
        Ok(most) if most != "0" => Check::bad(
            NAME,
            format!("up to {most} by the kernel's setting, but none could be made here"),
            "run outside of a container, or allow unshare in its seccomp profile",
        ),
        _ => Check::bad(
            NAME,
            "switched off",
            "sudo sysctl user.max_user_namespaces=15000",
        ),
    }
}

fn watches() -> Check {
    let limit = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("/proc/sys/fs/inotify/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    match (limit("max_user_watches"), limit("max_user_instances")) {
        (Some(watches), Some(instances)) => {
            let detail = format!("{watches} watches, {instances} watchers");
            if watches >= ENOUGH_WATCHES && instances >= ENOUGH_INSTANCES {
                Check::good("inotify", detail)
            } else {
                Check::bad(
                    "inotify",
                    format!("{detail}: large workspaces fall back to scanning"),
                    format!(
                        "sudo sysctl fs.inotify.max_user_watches={} fs.inotify.max_user_instances={}",
                        ENOUGH_WATCHES.max(watches) * 8,
                        ENOUGH_INSTANCES.max(instances) * 4
                    ),
                )
            }
        }
        _ => Check::bad("inotify", "the kernel has none: workspaces are scanned", ""),
    }
}

fn fuse() -> Check {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    match opened {
        Ok(_) => Check::good("fuse", "/dev/fuse can be opened"),
        Err(error) => Check::bad(
            "fuse",
            format!(
                "/dev/fuse can't be opened ({error}): workspaces can't be mounted, only copied"
            ),
            "sudo apt-get install fuse3 && sudo modprobe fuse",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::unified;

    #[test]
    fn the_unified_hierarchy_is_found_where_it_is_mounted() {
        let both = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                    cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        assert_eq!(unified(both), Some("/sys/fs/cgroup/unified"));
        let alone = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(unified(alone), Some("/sys/fs/cgroup"));
        let none = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n";
        assert_eq!(unified(none), None);
    }
}
