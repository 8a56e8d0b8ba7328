//! Whether a process on this machine is confined, which tells what a sandbox runs from its user.
//!
//! What runs in a sandbox has its user's uid, and Landlock does not keep it from connecting to a
//! Unix socket or to a port of this machine. It can't shed a seccomp filter, nor can anything that
//! it starts: a process with more of them than this one has is in a sandbox that this one is not in.

use std::io;
use std::sync::OnceLock;

use crate::descriptors::is_exhausted;

/// Whether the process is under more seccomp filters than this one. One that is gone, or that the
/// system says nothing of, counts as confined. An error says that nobody could look: the system is
/// out of descriptors or memory.
///
/// A process of another process namespace has no number here: nothing that this machine's sandboxes
/// run leaves ours.
pub fn is_confined(pid: Option<i32>) -> io::Result<bool> {
    let Some(pid) = pid.filter(|pid| *pid != 0) else {
        return Ok(false);
    };
    static OURS: OnceLock<u32> = OnceLock::new();
    let ours = match OURS.get() {
        Some(ours) => *ours,
        None => {
            let found = filters("self")?.unwrap_or_default();
            *OURS.get_or_init(|| found)
        }
    };
    Ok(filters(&pid.to_string())?.is_none_or(|theirs| theirs > ours))
}

/// Whether the process runs as `uid`, also where it hides from that user what it has open.
pub fn runs_as(pid: i32, uid: u32) -> bool {
    let ids = field(&pid.to_string(), "Uid:").ok().flatten();
    let ids = ids.unwrap_or_default();
    ids.split_whitespace().any(|id| id.parse() == Ok(uid))
}

/// Whether `ancestor` started the process, or what started it.
pub fn descends_from(pid: i32, ancestor: i32) -> bool {
    let mut pid = pid;
    while pid > 1 && pid != ancestor {
        let parent = field(&pid.to_string(), "PPid:").ok().flatten();
        pid = parent
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
    }
    pid == ancestor
}

fn filters(process: &str) -> io::Result<Option<u32>> {
    let count = field(process, "Seccomp_filters:")?;
    Ok(count.and_then(|text| text.parse().ok()))
}

fn field(process: &str, name: &str) -> io::Result<Option<String>> {
    let status = match std::fs::read_to_string(format!("/proc/{process}/status")) {
        Ok(status) => status,
        Err(error) if is_exhausted(&error) => return Err(error),
        Err(_) => return Ok(None),
    };
    let value = status.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.map(|value| value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_this_process_nor_its_children_are_confined() {
        let own = std::process::id().cast_signed();
        let confined = |pid| is_confined(pid).expect("can look");
        assert!(!confined(Some(own)));
        assert!(!confined(None));
        let uid = rustix::process::geteuid().as_raw();
        assert!(runs_as(own, uid) && !runs_as(own, uid + 1));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("it is everywhere");
        let pid = child.id().cast_signed();
        assert!(!confined(Some(pid)));
        assert!(descends_from(pid, own) && descends_from(own, own));
        assert!(!descends_from(own, pid));
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        assert!(confined(Some(pid)), "nobody can say who it was");
        assert!(!descends_from(pid, own));
    }
}
