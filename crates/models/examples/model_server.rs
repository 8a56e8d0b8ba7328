//! The test server as a process: `model_server ADDRESS SCRIPT [LOG]`.
//!
//! SCRIPT is a JSON list of replies (see `Reply::from_json`). The address is printed when it
//! listens; each request's body is appended to LOG as a line.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use quintet_models::test_server::{Reply, TestServer};
use serde_json::Value;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(address), Some(script)) = (args.next(), args.next()) else {
        return Err("usage: model_server ADDRESS SCRIPT [LOG]".into());
    };
    let log = match args.next() {
        Some(path) => Some(Mutex::new(
            std::fs::File::options()
                .create(true)
                .append(true)
                .open(path)?,
        )),
        None => None,
    };
    let script: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(script)?)?;
    let replies: VecDeque<Reply> = script.iter().map(Reply::from_json).collect();
    let replies = Mutex::new(replies);
    let listener = tokio::net::TcpListener::bind(address).await?;
    let server = TestServer::on(listener, move |received| {
        if received.lists_models() {
            return Reply::error(404, "not_found_error", "no list of models");
        }
        if let Some(log) = &log {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(log, "{}", received.body);
        }
        let mut replies = replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.pop_front().unwrap_or_else(|| Reply::text("Done."))
    });
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", server.url())?;
    stdout.flush()?;
    std::future::pending::<()>().await;
    Ok(())
}
