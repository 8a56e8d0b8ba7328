//! The owner of one TCP socket, asked of the kernel by its addresses: `sock_diag(7)`.
//!
//! The answer costs the same however many sockets there are; the tables in `/proc/net` are written
//! out whole for every reader, which a daemon with thousands of workers would feel.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::Socket;

const HEADER: usize = 16;
const REQUEST: usize = HEADER + 56;
/// As far as the owner and the inode go.
const ANSWER: usize = HEADER + 72;

const TYPE_ERROR: u16 = 2;
const TYPE_BY_FAMILY: u16 = 20;
const FLAG_REQUEST: u16 = 1;
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const NOT_FOUND: i32 = -2;

/// The owner of the established socket that is bound to `local` and connected to `remote`.
pub(super) fn owner(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<Socket>> {
    let kernel = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let request = request(local, remote);
    rustix::net::sendto(
        &kernel,
        &request,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let mut answer = [0; 512];
    // The kernel has answered before it returns from the request.
    let (length, _) = rustix::net::recv(&kernel, &mut answer, RecvFlags::DONTWAIT)?;
    read(answer.get(..length).unwrap_or_default(), &request)
}

fn request(local: SocketAddr, remote: SocketAddr) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        request[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&u32::try_from(REQUEST).unwrap_or_default().to_ne_bytes());
    put(&TYPE_BY_FAMILY.to_ne_bytes());
    put(&FLAG_REQUEST.to_ne_bytes());
    put(&[0; 8]);
    let family = match local.ip() {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    put(&[family.as_raw().to_ne_bytes()[0], TCP, 0, 0]);
    put(&u32::MAX.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&remote.port().to_be_bytes());
    put(&octets(local));
    put(&octets(remote));
    put(&[0; 4]);
    // No cookie: whichever socket has these addresses.
    put(&[0xff; 8]);
    request
}

fn octets(address: SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn read(answer: &[u8], request: &[u8; REQUEST]) -> io::Result<Option<Socket>> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut off");
    let four = |at: usize| {
        answer
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok())
    };
    let kind = u16::from_ne_bytes([
        *answer.get(4).ok_or_else(malformed)?,
        *answer.get(5).ok_or_else(malformed)?,
    ]);
    if kind == TYPE_ERROR {
        return match i32::from_ne_bytes(four(HEADER).ok_or_else(malformed)?) {
            NOT_FOUND => Ok(None),
            code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        };
    }
    if kind != TYPE_BY_FAMILY || answer.len() < ANSWER {
        return Err(malformed());
    }
    // A listener on that port is found too when no connection has these addresses. A dual-stack
    // socket's are mapped; its ports and its state say enough.
    let established = answer.get(HEADER + 1) == Some(&ESTABLISHED);
    let same_ports = answer.get(HEADER + 4..HEADER + 8) == request.get(HEADER + 8..HEADER + 12);
    if !established || !same_ports {
        return Ok(None);
    }
    let number = |at| four(at).map(u32::from_ne_bytes).ok_or_else(malformed);
    Ok(Some(Socket {
        uid: number(ANSWER - 8)?,
        inode: number(ANSWER - 4)?.into(),
    }))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn only_a_connection_with_both_addresses_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let client = TcpStream::connect(here).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let uid = |found: io::Result<Option<Socket>>| found.unwrap().map(|socket| socket.uid);
        assert_eq!(uid(owner(peer, here)), Some(own));
        assert_eq!(uid(owner(here, peer)), Some(own), "the other end");
        let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert_eq!(owner(here, nobody).unwrap(), None, "the listener is not it");
        assert_eq!(owner(nobody, here).unwrap(), None);
        drop((client, server));
    }

    #[test]
    fn another_users_socket_names_that_user_and_a_cut_answer_is_an_error() {
        let (local, remote) = (
            "127.0.0.1:1234".parse().unwrap(),
            "127.0.0.1:7505".parse().unwrap(),
        );
        let request = request(local, remote);
        let mut answer = vec![0; ANSWER];
        answer[4..6].copy_from_slice(&TYPE_BY_FAMILY.to_ne_bytes());
        answer[HEADER + 1] = ESTABLISHED;
        answer[HEADER + 4..HEADER + 8].copy_from_slice(&request[HEADER + 8..HEADER + 12]);
        answer[ANSWER - 8..ANSWER - 4].copy_from_slice(&1000u32.to_ne_bytes());
        answer[ANSWER - 4..].copy_from_slice(&77u32.to_ne_bytes());
        let socket = Socket {
            uid: 1000,
            inode: 77,
        };
        assert_eq!(read(&answer, &request).unwrap(), Some(socket));
        for length in 0..ANSWER {
            assert!(read(&answer[..length], &request).is_err(), "{length}");
        }
    }
}
