//! Which workers are let in, and whom they trust.

use serde_json::Value;

use crate::harness::{Machine, Running, within};
use crate::workers::{exec, online, row};

/// A token for the worker `w`, as a script takes it from the program.
async fn token(machine: &Machine) -> String {
    let made = machine.runs(&["token", "create", "--worker", "w"]).await;
    let made = made.succeeds();
    assert_eq!(made.lines().count(), 1);
    made.trim().to_owned()
}

/// A worker that dials this address with a token.
fn dialling<'a>(url: &'a str, id: &'a str, token: &'a str) -> [&'a str; 7] {
    [
        "worker",
        "--server-url",
        url,
        "--daemon-id",
        id,
        "--token",
        token,
    ]
}

#[tokio::test]
async fn a_token_lets_a_worker_in_and_its_end_throws_it_out() {
    let machine = Machine::fresh();
    let daemon = machine
        .up_with(&["--listen", "0.0.0.0:0", "--no-worker"])
        .await;
    // Not loopback, so that being the same user does not count.
    let Some(address) = own_address() else {
        eprintln!("this machine has no address but loopback: this story is skipped");
        return;
    };
    let port = daemon.http().rsplit(':').next().unwrap();
    let url = format!("wss://{address}:{port}/ws");
    let token = token(&machine).await;

    let mut other = Running::start_with_talk(&machine, &dialling(&url, "x", &token));
    other.prints("not valid for x").await;
    let mut worker = Running::start_with_talk(&machine, &dialling(&url, "w", &token));
    worker.prints("online as w").await;
    assert_eq!(
        exec(&machine, &["w", "--", "echo in"]).await.succeeds(),
        "in\n"
    );

    let listed = machine.runs(&["token", "ls", "--json"]).await.json();
    assert_eq!(listed[0]["worker"], "w");
    let waiting = machine.begins(&["exec", "w", "--", "sleep 1000"]);
    row(&machine, "command_started", |data| {
        data["command"] == "sleep 1000"
    })
    .await;
    machine.runs(&["token", "revoke", "1"]).await.succeeds();
    let said = waiting.ends().await.fails(125);
    assert!(said.contains("its token was revoked"), "{said}");
    worker.prints("not connected").await;
    worker.prints("not valid for w").await;
    let said = exec(&machine, &["w", "--", "true"]).await.fails(125);
    assert!(said.contains("quintet token create --worker w"), "{said}");
}

#[tokio::test]
async fn a_worker_of_the_daemon_s_own_home_needs_no_token_with_tls_either() {
    let machine = Machine::fresh();
    let daemon = machine
        .up_with(&["--listen", "0.0.0.0:0", "--no-worker"])
        .await;
    let mut own = Running::start_with_talk(&machine, &["worker", "--daemon-id", "own"]);
    own.prints("online as own").await;
    assert_eq!(
        exec(&machine, &["own", "--", "echo in"]).await.succeeds(),
        "in\n"
    );
    // Whoever does not have the home at hand is told what to do.
    let other = Machine::fresh();
    let port = daemon.http().rsplit(':').next().unwrap();
    let url = format!("wss://127.0.0.1:{port}/ws");
    let dial = ["worker", "--server-url", &url, "--daemon-id", "foreign"];
    let mut foreign = Running::start_with_talk(&other, &dial);
    foreign
        .prints("quintet token create --worker foreign")
        .await;
}

#[tokio::test]
async fn a_token_may_come_in_the_address_and_a_wrong_one_opens_nothing() {
    use futures_util::{SinkExt, StreamExt};
    use quintet_framing::ws::{WsDial, dial_socket};
    use quintet_sandbox::socket::WsMessage;

    let machine = Machine::fresh();
    let listen = ["--listen", "0.0.0.0:0", "--insecure", "--no-worker"];
    let daemon = machine.up_with(&listen).await;
    let Some(address) = own_address() else {
        eprintln!("this machine has no address but loopback: this story is skipped");
        return;
    };
    let port = daemon.http().rsplit(':').next().unwrap();
    let token = token(&machine).await;
    let wrong = format!("qw1.{}", "A".repeat(43));
    // The token in the address, the one in the header, and whether that lets `w` in.
    for (query, header, success) in [
        (format!("?token={token}"), None, true),
        (format!("?token={wrong}"), None, false),
        (String::new(), Some(wrong.as_str()), false),
        (String::new(), Some(&*token), true),
        (String::new(), None, false),
    ] {
        let url = format!("ws://{address}:{port}/ws{query}");
        let dial = WsDial {
            url: &url,
            protocols: &["sandd.v1"],
            token: header,
            tls: None,
        };
        let (mut socket, _) = dial_socket(dial, 65536).await.unwrap();
        let register = serde_json::json!({
            "type": "register", "daemon_id": "w",
            "metadata": {
                "hostname": "h", "platform": "linux", "arch": "x86_64", "version": "1", "labels": {},
            },
        });
        let text = WsMessage::Text(register.to_string().into());
        socket.send(text).await.unwrap();
        let answer = within("an answer", socket.next()).await.unwrap().unwrap();
        let WsMessage::Text(text) = answer else {
            panic!("{answer:?}");
        };
        let answer: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(answer["success"], success, "{query} {header:?} {answer}");
    }
}

#[tokio::test]
async fn a_certificate_that_the_machine_trusts_needs_no_fingerprint() {
    let machine = Machine::fresh();
    // The daemon's own certificate, made by a first start, serves as one from an authority.
    let first = machine
        .up_with(&["--listen", "0.0.0.0:0", "--no-worker"])
        .await;
    assert!(first.stops().await.success());
    let tls = machine.home().join("tls");
    let (cert, key) = (
        machine.path().join("cert.pem"),
        machine.path().join("key.pem"),
    );
    std::fs::copy(tls.join("cert.pem"), &cert).unwrap();
    std::fs::copy(tls.join("key.pem"), &key).unwrap();
    machine.configure(&format!("[http]\ntls_cert = {cert:?}\ntls_key = {key:?}\n"));
    let daemon = machine.up_with(&["--no-worker"]).await;
    let port = daemon.http().rsplit(':').next().unwrap();
    let url = format!("wss://localhost:{port}/ws");
    let token = token(&machine).await;
    assert_eq!(token.matches('.').count(), 1, "no fingerprint is in it");
    let dial = dialling(&url, "w", &token);
    let mut stranger = Running::start_with_talk(&machine, &dial);
    stranger.prints("ertificate").await;
    drop(stranger);
    let mut trusting = machine.program("sh");
    trusting
        .args([
            "-c",
            "exec \"$0\" \"$@\" 2>&1",
            env!("CARGO_BIN_EXE_quintet"),
        ])
        .args(dial)
        .env("SSL_CERT_FILE", &cert);
    let mut trusting = Running::start(trusting);
    trusting.prints("online as w").await;
    assert_eq!(
        exec(&machine, &["w", "--", "echo in"]).await.succeeds(),
        "in\n"
    );
}

/// An address of this machine that is not loopback; none on a machine without a network.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: this asks the routing table.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then_some(ip)
}

#[tokio::test]
async fn no_token_is_made_for_the_name_that_no_worker_can_have() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let made = machine
        .runs(&["token", "create", "--worker", "local"])
        .await;
    let said = made.fails(1);
    assert!(said.contains("--no-worker"), "{said}");
}
