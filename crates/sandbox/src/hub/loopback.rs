//! Whether a TCP peer is a process of this user on this machine.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};

mod diag;
mod holder;

/// Whether the peer of a connection dials over loopback from a socket of this process's user, as
/// the kernel says, and from no sandbox. Reads `/proc`: call it where blocking is allowed.
pub fn is_same_user(local: SocketAddr, peer: SocketAddr) -> bool {
    let (local, peer) = (canonical(local), canonical(peer));
    if !peer.ip().is_loopback() || !local.ip().is_loopback() {
        return false;
    }
    let own = rustix::process::geteuid().as_raw();
    let found = known(diag::owner(peer, local), || in_tables(local, peer));
    found.is_some_and(|socket| socket.uid == own && holder::is_free(socket.inode, own))
}

/// A socket as the kernel lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Socket {
    uid: u32,
    inode: u64,
}

/// What the kernel answered, or the tables say. A kernel that can't be asked of sockets answers as if
/// there were none.
fn known(
    asked: io::Result<Option<Socket>>,
    tables: impl FnOnce() -> Option<Socket>,
) -> Option<Socket> {
    asked.ok().flatten().or_else(tables)
}

/// What the tables of sockets say, which any process may read.
fn in_tables(local: SocketAddr, peer: SocketAddr) -> Option<Socket> {
    // A dual-stack socket of the peer's is listed in the second table.
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .find_map(|table| {
            let text = std::fs::read_to_string(table).ok()?;
            owner(&text, peer, local)
        })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The owner of the socket that is bound to `local` and connected to `remote`.
fn owner(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<Socket> {
    let spellings = |address: SocketAddr| [spell(address, false), spell(address, true)];
    let (local, remote) = (spellings(local), spellings(remote));
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (from, to) = (fields.next()?, fields.next()?);
        let matches = local.iter().any(|spelled| spelled == from)
            && remote.iter().any(|spelled| spelled == to);
        if !matches {
            return None;
        }
        // After the addresses: state, queues, timer, retransmits, uid, timeouts, inode.
        Some(Socket {
            uid: fields.nth(4)?.parse().ok()?,
            inode: fields.nth(1)?.parse().ok()?,
        })
    })
}

/// An address as the kernel prints it: words of the machine's byte order in hex.
fn spell(address: SocketAddr, mapped: bool) -> String {
    let octets: Vec<u8> = match (address.ip(), mapped) {
        (IpAddr::V4(v4), false) => v4.octets().to_vec(),
        (IpAddr::V4(v4), true) => v4.to_ipv6_mapped().octets().to_vec(),
        (IpAddr::V6(v6), _) => v6.octets().to_vec(),
    };
    let mut text = String::new();
    for word in octets.chunks_exact(4) {
        let word = [word[0], word[1], word[2], word[3]];
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(word));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn a_connection_of_this_process_is_of_this_user() {
        for bind in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else {
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let host = if bind.starts_with("127") || bind == "[::]:0" {
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            } else {
                "::1".parse().unwrap()
            };
            let client = TcpStream::connect((host, port)).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let here = server.local_addr().unwrap();
            assert!(is_same_user(here, peer), "{bind}");
            let own = rustix::process::geteuid().as_raw();
            let listed = in_tables(canonical(here), canonical(peer)).expect("listed");
            assert_eq!(listed.uid, own);
            assert!(holder::is_free(listed.inode, own));
            drop(client);
        }
    }

    #[test]
    fn the_tables_are_asked_where_the_kernel_knows_no_socket() {
        let socket = |uid| Some(Socket { uid, inode: 77 });
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        assert_eq!(known(Ok(None), || socket(1)), socket(1));
        assert_eq!(known(Err(unsupported()), || socket(1)), socket(1));
        assert_eq!(known(Ok(socket(2)), || socket(1)), socket(2));
    }

    #[test]
    fn a_remote_peer_and_another_user_are_not() {
        let here: SocketAddr = "127.0.0.1:7505".parse().unwrap();
        assert!(!is_same_user(here, "192.0.2.1:1234".parse().unwrap()));
        assert!(!is_same_user(here, "127.0.0.1:1".parse().unwrap()));
        let table = "header\n 0: 0100007F:04D2 0100007F:1D51 01 00000000:00000000 00:00000000 00000000  1000        0 77 1\n";
        let peer: SocketAddr = "127.0.0.1:1234".parse().unwrap();
        let socket = Socket {
            uid: 1000,
            inode: 77,
        };
        assert_eq!(owner(table, peer, here), Some(socket));
        assert_eq!(owner(table, here, peer), None);
    }
}
