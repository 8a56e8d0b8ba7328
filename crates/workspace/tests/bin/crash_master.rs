//! A master that is killed: the crash test runs it as a process of its own.
//!
//! `crash_master HOME` serves `HOME/work` on `HOME/master.sock`. For each line on
//! its input it says how it notices changes.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a part of a test")]

use std::path::PathBuf;

use quintet_workspace::master::{ServeError, WorkspaceError};
use quintet_workspace::{Connection, Workspace, WorkspaceConfig};
use tokio::io::AsyncBufReadExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() {
    let home = PathBuf::from(std::env::args().nth(1).expect("usage: crash_master HOME"));
    let config = WorkspaceConfig::new(home.join("work"), home.join("state"), home.join("cas"));
    let started = tokio::task::spawn_blocking(move || Workspace::start(&config).unwrap());
    let (workspace, opening) = started.await.unwrap();
    let listener = quintet_framing::unix::bind(&home.join("master.sock"))
        .await
        .unwrap();
    println!("ready");
    let mut sessions = JoinSet::new();
    let mut opening = std::pin::pin!(opening.done());
    let mut is_open = false;
    let mut questions = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    loop {
        let (stream, _) = tokio::select! {
            Ok(Some(_)) = questions.next_line() => {
                println!("{:?}", workspace.status().await.unwrap().watch);
                continue;
            }
            opened = &mut opening, if !is_open => {
                opened.unwrap();
                is_open = true;
                continue;
            }
            accepted = listener.accept() => accepted.unwrap(),
        };
        let workspace = workspace.clone();
        sessions.spawn(async move {
            let connection = Connection::over_stream(stream);
            let served = workspace.serve(connection, CancellationToken::new()).await;
            if let Err(ServeError::Workspace(WorkspaceError::Store(error))) = served
                && error.is_full()
            {
                println!("the disk is full");
            }
        });
    }
}
