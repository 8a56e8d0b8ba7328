//! TCP as a byte transport.

use std::io;

use tokio::net::{TcpStream, ToSocketAddrs};

/// Dials with Nagle's algorithm off: frames are batched by the writer, not by the kernel.
pub async fn dial(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
