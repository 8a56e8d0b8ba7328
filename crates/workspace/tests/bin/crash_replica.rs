//! A replica that is killed: the crash test runs it as a process of its own.
//!
//! `crash_replica HOME NAME` keeps `HOME/NAME` like the master at
//! `HOME/master.sock`. For each line on its input it waits until both agree,
//! and answers with the sequence and the number of conflicts; for `failure`
//! until something keeps it from that, and says what.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a part of a test")]

use std::path::PathBuf;
use std::time::Duration;

use quintet_workspace::replica::UnixDial;
use quintet_workspace::{Replica, ReplicaConfig};
use tokio::io::AsyncBufReadExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let home = PathBuf::from(args.next().expect("usage: crash_replica HOME NAME"));
    let name = args.next().expect("usage: crash_replica HOME NAME");
    let config = ReplicaConfig::new(home.join(&name), home.join(format!("{name}-state")), name);
    let (replica, runner) = tokio::task::spawn_blocking(move || Replica::open(&config).unwrap())
        .await
        .unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(runner.run(
        UnixDial {
            path: home.join("master.sock"),
        },
        CancellationToken::new(),
    ));
    println!("ready");
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line == "failure" {
            println!("{}", failure(&replica).await);
            continue;
        }
        let agreed = async {
            replica.write_back_and_wait(LONG).await?;
            replica.barrier(LONG).await
        };
        match agreed.await {
            Ok(passed) => {
                let conflicts = replica.conflicts().await.unwrap().len();
                println!("{} {conflicts}", passed.sequence);
            }
            Err(error) => panic!("{error}: {:?}", replica.status().await),
        }
    }
}

async fn failure(replica: &Replica) -> String {
    loop {
        if let Some(failure) = replica.status().await.unwrap().failure {
            return failure;
        }
    }
}
