//! Unix sockets as a byte transport: private to one user, safe to rebind after a crash.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

use crate::confined::is_confined;

/// Longest path that the kernel takes for a Unix socket, without the closing zero.
const MAX_SOCKET_PATH: usize = 107;

/// Why a socket can't be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process answers on that path.
    #[error("{} is in use by a running process", .0.display())]
    InUse(PathBuf),
    /// Something that is not a socket stands there, and is left alone.
    #[error("{} exists and is not a socket; remove it or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// The kernel's limit on socket paths.
    #[error("{} is {} bytes long; a socket path has at most {MAX_SOCKET_PATH}, so use a shorter folder", .0.display(), .0.as_os_str().len())]
    PathTooLong(PathBuf),
    /// The system refused.
    #[error("binding {} failed: {source}", path.display())]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Binds `path` with mode 0600.
///
/// A socket left by a process that is gone is replaced; a live one, or any other file, is not.
pub async fn bind(path: &Path) -> Result<UnixListener, BindError> {
    if path.as_os_str().len() > MAX_SOCKET_PATH {
        return Err(BindError::PathTooLong(path.to_owned()));
    }
    let io_error = |source| BindError::Io {
        path: path.to_owned(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket(path.to_owned()));
        }
        Ok(_) => match UnixStream::connect(path).await {
            Ok(_) => return Err(BindError::InUse(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(io_error)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(error)),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error(error)),
    }
    let listener = UnixListener::bind(path).map_err(io_error)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(io_error)?;
    Ok(listener)
}

/// Dials `path`.
pub async fn dial(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

/// Whether the process at the other end runs as this process's user, and not in a sandbox.
///
/// The mode of the socket already keeps other users out; this holds also where the folder was
/// opened up. A mode keeps nobody out who runs in a sandbox of this user.
pub fn peer_is_users_own(stream: &UnixStream) -> io::Result<bool> {
    let peer = stream.peer_cred()?;
    Ok(peer.uid() == rustix::process::geteuid().as_raw() && !is_confined(peer.pid())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.sock");
        drop(bind(&path).await.expect("free"));
        assert!(path.exists(), "a dropped listener leaves its file");
        let live = bind(&path).await.expect("stale, so replaced");
        let mode = std::fs::metadata(&path)
            .expect("bound")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(bind(&path).await, Err(BindError::InUse(_))));

        let (near, accepted) = tokio::join!(dial(&path), live.accept());
        let (far, _) = accepted.expect("dialled");
        assert!(peer_is_users_own(&near.expect("bound")).expect("known"));
        assert!(peer_is_users_own(&far).expect("known"));
    }

    #[tokio::test]
    async fn a_file_of_the_user_is_never_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notes");
        std::fs::write(&path, "mine").expect("writable");
        assert!(matches!(bind(&path).await, Err(BindError::NotASocket(_))));
        assert_eq!(std::fs::read(&path).expect("still there"), b"mine");
    }

    #[tokio::test]
    async fn a_path_that_the_kernel_would_cut_is_refused() {
        let path = PathBuf::from(format!("/tmp/{}", "x".repeat(120)));
        assert!(matches!(bind(&path).await, Err(BindError::PathTooLong(_))));
    }
}
