//! A cgroup v2 for each process tree, where the daemon may make one.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The cgroup of this daemon, in which it can make others.
#[derive(Debug, Clone)]
pub(crate) struct CgroupRoot(PathBuf);

impl CgroupRoot {
    /// Finds this process's cgroup and tries whether one can be made and killed in it.
    pub(crate) fn detect() -> Option<Self> {
        let (mount_root, mount_point) = unified_mount(&fs::read("/proc/self/mountinfo").ok()?)?;
        let membership = fs::read("/proc/self/cgroup").ok()?;
        let own = membership
            .split(|byte| *byte == b'\n')
            .find_map(|line| line.strip_prefix(b"0::"))?;
        let inside = Path::new(OsStr::from_bytes(own))
            .strip_prefix(&mount_root)
            .ok()?
            .to_owned();
        let root = Self(mount_point.join(inside));
        let probe = root.create("quintet-probe").ok()?;
        let usable = probe.path.join("cgroup.kill").exists();
        probe.remove();
        usable.then_some(root)
    }

    /// Makes a cgroup whose name starts with `prefix`.
    pub(crate) fn create(&self, prefix: &str) -> io::Result<Cgroup> {
        let path = self.0.join(format!("{prefix}-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path)?;
        Ok(Cgroup { path })
    }
}

/// The root and the mount point of the cgroup v2 hierarchy.
fn unified_mount(mountinfo: &[u8]) -> Option<(PathBuf, PathBuf)> {
    mountinfo.split(|byte| *byte == b'\n').find_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        (*fields.get(separator + 1)? == b"cgroup2").then_some(())?;
        let path = |at: usize| Some(PathBuf::from(OsStr::from_bytes(fields.get(at)?)));
        Some((path(3)?, path(4)?))
    })
}

/// The cgroup of one process tree.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// A cgroup that an earlier daemon made.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where a process writes `0` to enter.
    pub(crate) fn open_procs(&self) -> io::Result<OwnedFd> {
        let procs = fs::OpenOptions::new()
            .write(true)
            .open(self.path.join("cgroup.procs"))?;
        Ok(procs.into())
    }

    /// Limits the memory of the tree; `false` where no memory controller is here.
    pub(crate) fn limit_memory(&self, bytes: u64) -> bool {
        fs::write(self.path.join("memory.max"), bytes.to_string()).is_ok()
    }

    /// The processes in it, without those of cgroups that the tree made inside.
    pub(crate) fn members(&self) -> Vec<i32> {
        let procs = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        procs.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// Kills every process in it.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match fs::write(self.path.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Whether a process that is not a zombie is in it.
    pub(crate) fn is_populated(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events"))
            .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// Removes it and what the tree made inside; one that is still in use stays for the next sweep.
    pub(crate) fn remove(&self) {
        remove_tree(&self.path);
    }
}

fn remove_tree(path: &Path) {
    if let Ok(children) = fs::read_dir(path) {
        for child in children.flatten() {
            if child.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_tree(&child.path());
            }
        }
    }
    if let Err(error) = fs::remove_dir(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(path = %path.display(), %error, "the cgroup stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_among_others() {
        let mountinfo = b"25 24 0:23 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
            34 24 0:30 /a /sys/fs/cgroup/unified rw,relatime shared:10 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            unified_mount(mountinfo),
            Some((PathBuf::from("/a"), PathBuf::from("/sys/fs/cgroup/unified")))
        );
        assert_eq!(
            unified_mount(b"25 24 0:23 / / rw - ext4 /dev/sda rw\n"),
            None
        );
    }
}
