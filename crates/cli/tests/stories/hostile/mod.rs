//! What somebody gets who is let in as one thing and tries to be more. docs/security.md names
//! these stories.

mod agent;
mod command;
mod page;
mod proxy;
mod replica;
mod secrets;
mod worker;

use quintet_framing::ws::{DialError, DialledWs, WsDial, WsLimits, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::within;
use crate::workers::row;

/// Dials a path of the daemon's port.
async fn dialled(
    url: &str,
    protocols: &[&str],
    token: Option<&str>,
) -> Result<DialledWs, DialError> {
    let asked = WsDial {
        url,
        protocols,
        token,
        tls: None,
    };
    let limits = WsLimits {
        max_message: 16 << 20,
        read_buffer: 4096,
    };
    let (socket, _) = within("an answer", dial(asked, limits)).await?;
    Ok(socket)
}

/// Sends a request as it stands and returns the whole answer.
async fn asks(http: &str, head: &str, body: &str) -> String {
    let address = http.split_once("://").unwrap().1;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within("the answer ends", stream.read_to_end(&mut answer))
        .await
        .unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}
