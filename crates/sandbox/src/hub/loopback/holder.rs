//! Which processes have a socket open, as `/proc` shows them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use quintet_framing::confined::{is_confined, runs_as};

/// Whether no process of `uid` that is in a sandbox has the socket open.
///
/// One can hide what it has open. Then a process that is in no sandbox has to be seen to have it.
pub(super) fn is_free(inode: u64, uid: u32) -> bool {
    let mut hidden = false;
    for (pid, folder) in processes() {
        if !is_confined(Some(pid)).unwrap_or(true) || !runs_as(pid, uid) {
            continue;
        }
        match has_open(&folder, inode) {
            Ok(true) => return false,
            Ok(false) => {}
            Err(error) => hidden |= error.kind() != io::ErrorKind::NotFound,
        }
    }
    !hidden || is_seen(inode, uid)
}

/// Whether a process of `uid` that is in no sandbox has the socket open.
fn is_seen(inode: u64, uid: u32) -> bool {
    processes()
        .filter(|(_, folder)| std::fs::metadata(folder).is_ok_and(|found| found.uid() == uid))
        .filter(|(pid, _)| is_confined(Some(*pid)).is_ok_and(|confined| !confined))
        .any(|(_, folder)| has_open(&folder, inode).unwrap_or(false))
}

fn processes() -> impl Iterator<Item = (i32, PathBuf)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

fn has_open(process: &Path, inode: u64) -> io::Result<bool> {
    let name = format!("socket:[{inode}]");
    let mut descriptors = std::fs::read_dir(process.join("fd"))?.flatten();
    Ok(descriptors.any(|descriptor| {
        std::fs::read_link(descriptor.path()).is_ok_and(|target| target.as_os_str() == &*name)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_socket_is_seen_with_its_process_and_nobodys_is_not() {
        let own = rustix::process::geteuid().as_raw();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let name = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let name = name.to_str().unwrap();
        let inode = name
            .strip_prefix("socket:[")
            .and_then(|it| it.strip_suffix(']'));
        let inode: u64 = inode.unwrap().parse().unwrap();
        assert!(is_seen(inode, own));
        assert!(is_free(inode, own));
        assert!(!is_seen(u64::MAX, own));
    }
}
