//! Clients in another language, written from the protocols' specifications alone.

use std::path::Path;

use crate::harness::{Finished, Machine};

#[tokio::test]
async fn a_python_client_does_all_fifteen_requests() {
    let machine = Machine::with_test_agent();
    machine.has_skill("clock");
    let _daemon = machine.up().await;
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/control_client.py");
    let mut command = machine.program("python3");
    command.arg(client).arg(machine.control_socket());
    command.arg(machine.home().join("config.toml"));
    let told = Finished::of(command).await.succeeds();
    assert_eq!(told.lines().count(), 15, "{told}");
}

#[tokio::test]
async fn a_client_of_the_original_protocol_finds_the_daemon_at_its_own_path() {
    let machine = Machine::with_test_agent();
    machine.has_skill("clock");
    let daemon = machine.up_with(&["--crabtalk-compat"]).await;
    let socket = machine.path().join(".crabtalk/run/crabtalk.sock");
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/control_client.py");
    let mut command = machine.program("python3");
    command.arg(client).arg(&socket);
    command.arg(machine.home().join("config.toml"));
    Finished::of(command).await.succeeds();
    assert!(daemon.stops().await.success());
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_python_client_pairs_chats_and_is_revoked_on_the_original_channel() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let made = machine.runs(&["pair", "--json"]).await.json();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/channel_client.py");
    let mut command = machine.program("python3");
    command
        .arg(client)
        .args([made["ws"].as_str().unwrap(), made["code"].as_str().unwrap()])
        .args([env!("CARGO_BIN_EXE_quintet"), "devices", "revoke"]);
    let told = Finished::of(command).await.succeeds();
    assert_eq!(told.lines().count(), 10, "{told}");
}
