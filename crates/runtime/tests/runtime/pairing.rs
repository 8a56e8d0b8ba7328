//! The code that a daemon shows when it starts, and one that somebody asks for.

use quintet_channel::client::Client;
use quintet_control::{Client as _, UnixClient};
use quintet_runtime::daemon::Daemon;
use quintet_runtime::home::Home;

use crate::harness::options;

async fn started(folder: &tempfile::TempDir) -> Daemon {
    let listen = "[http]\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(folder.path().join("config.toml"), listen).expect("writable");
    Daemon::start(options(&Home::new(folder.path())))
        .await
        .expect("starts")
}

fn ws_url(daemon: &Daemon) -> String {
    format!("{}/ws", daemon.run_file().http.replacen("http", "ws", 1))
}

/// A client finds the daemon before its starter has been told of it.
#[tokio::test]
async fn a_code_that_was_asked_for_is_not_replaced_by_the_one_of_the_first_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = started(&folder).await;
    let mut client = UnixClient::connect(&daemon.run_file().control_socket)
        .await
        .expect("listening");
    let made = client.pair().await.expect("made");
    let welcome = daemon.welcome().await.expect("readable");
    // Nor is one shown that would end it.
    assert_eq!(welcome.pairing, None);
    let paired = Client::pair(&ws_url(&daemon), &made.code, "phone").await;
    paired.expect("the code is as good as it was");
    daemon.run_until(std::future::ready(())).await;
}

#[tokio::test]
async fn the_first_start_shows_a_code_until_a_device_is_paired() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = started(&folder).await;
    let shown = daemon.welcome().await.expect("readable").pairing;
    let code = shown.expect("nobody is paired").code;
    let paired = Client::pair(&ws_url(&daemon), &code, "phone").await;
    paired.expect("the code is good");
    daemon.run_until(std::future::ready(())).await;
    let daemon = started(&folder).await;
    let welcome = daemon.welcome().await.expect("readable");
    assert_eq!(welcome.pairing, None);
    daemon.run_until(std::future::ready(())).await;
}
