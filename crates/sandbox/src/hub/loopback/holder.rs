//! Which processes have a socket open, as `/proc` shows them.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use quintet_framing::confined::is_confined;

/// Whether processes of `uid` have the socket open and none of them is in a sandbox.
///
/// A process can hide its descriptors; then nobody is seen to have the socket, and it is not free.
pub(super) fn is_free(inode: u64, uid: u32) -> bool {
    // What the last look found: of many workers that dial at once, most are found by one look.
    // Held while looking, so that those who wait profit from it.
    static FREE: Mutex<Option<HashSet<u64>>> = Mutex::new(None);
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.as_ref().is_some_and(|free| free.contains(&inode)) {
        return true;
    }
    free.insert(free_sockets(uid)).contains(&inode)
}

/// The sockets that processes of `uid` have open, but for those that one in a sandbox has.
fn free_sockets(uid: u32) -> HashSet<u64> {
    let (mut free, mut confined) = (HashSet::new(), HashSet::new());
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|it| it.parse().ok());
        let Some(pid) = pid else { continue };
        if process.metadata().is_ok_and(|found| found.uid() == uid) {
            let sockets = sockets_of(&process.path());
            match is_confined(Some(pid)) {
                true => confined.extend(sockets),
                false => free.extend(sockets),
            }
        }
    }
    &free - &confined
}

fn sockets_of(process: &Path) -> Vec<u64> {
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter();
    descriptors
        .flatten()
        .flatten()
        .filter_map(|descriptor| {
            let target = std::fs::read_link(descriptor.path()).ok()?;
            let inode = target.to_str()?.strip_prefix("socket:[")?;
            inode.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_nobody_is_seen_to_have_is_not_free() {
        let own = rustix::process::geteuid().as_raw();
        assert!(!is_free(u64::MAX, own));
    }
}
