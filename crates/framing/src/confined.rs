//! Whether a process on this machine is confined, which tells what a sandbox runs from its user.
//!
//! What runs in a sandbox has its user's uid, and Landlock does not keep it from connecting to a
//! Unix socket or to a port of this machine. It can't shed a seccomp filter, nor can anything that
//! it starts: a process with more of them than this one has is in a sandbox that this one is not in.

use std::sync::OnceLock;

/// Whether the process is under more seccomp filters than this one. One that is gone, or that the
/// system says nothing of, counts as confined.
///
/// A process of another process namespace has no number here: nothing that this machine's sandboxes
/// run leaves ours.
pub fn is_confined(pid: Option<i32>) -> bool {
    let Some(pid) = pid.filter(|pid| *pid != 0) else {
        return false;
    };
    static OURS: OnceLock<u32> = OnceLock::new();
    let ours = OURS.get_or_init(|| filters("self").unwrap_or_default());
    filters(&pid.to_string()).is_none_or(|theirs| theirs > *ours)
}

/// Whether the process runs as `uid`, also where it hides from that user what it has open.
pub fn runs_as(pid: i32, uid: u32) -> bool {
    let ids = field(&pid.to_string(), "Uid:").unwrap_or_default();
    ids.split_whitespace().any(|id| id.parse() == Ok(uid))
}

/// Whether `ancestor` started the process, or what started it.
pub fn descends_from(pid: i32, ancestor: i32) -> bool {
    let mut pid = pid;
    while pid > 1 && pid != ancestor {
        let parent = field(&pid.to_string(), "PPid:").and_then(|text| text.parse().ok());
        pid = parent.unwrap_or_default();
    }
    pid == ancestor
}

fn filters(process: &str) -> Option<u32> {
    field(process, "Seccomp_filters:")?.parse().ok()
}

fn field(process: &str, name: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_this_process_nor_its_children_are_confined() {
        let own = std::process::id().cast_signed();
        assert!(!is_confined(Some(own)));
        assert!(!is_confined(None));
        let uid = rustix::process::geteuid().as_raw();
        assert!(runs_as(own, uid) && !runs_as(own, uid + 1));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("it is everywhere");
        let pid = child.id().cast_signed();
        assert!(!is_confined(Some(pid)));
        assert!(descends_from(pid, own) && descends_from(own, own));
        assert!(!descends_from(own, pid));
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        assert!(is_confined(Some(pid)), "nobody can say who it was");
        assert!(!descends_from(pid, own));
    }
}
