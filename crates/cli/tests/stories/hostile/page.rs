//! A web page in the user's browser that tries this machine's port.

use super::asks;
use crate::harness::Machine;

const EVIL: &str = "http://evil.example";

/// A browser's request: to this host, from a page of that origin.
fn head(request: &str, host: &str, origin: Option<&str>, more: &str) -> String {
    let origin = origin
        .map(|it| format!("\r\nOrigin: {it}"))
        .unwrap_or_default();
    format!("{request} HTTP/1.1\r\nHost: {host}{origin}{more}")
}

const UPGRADE: &str = "\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";

#[tokio::test]
async fn a_page_of_another_origin_reaches_nothing() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let http = daemon.http();
    let here = http.split_once("://").unwrap().1;
    let rebound = format!("evil.example:{}", here.rsplit(':').next().unwrap());
    let own_name = format!("http://{rebound}");

    // A socket says whose page opens it, and every plane looks.
    for (host, origin) in [(here, EVIL), (&rebound, own_name.as_str()), (here, "null")] {
        for (path, offer) in [
            ("/ws", ""),
            ("/ws", "\r\nSec-WebSocket-Protocol: quintet.channel.v2"),
            ("/ws", "\r\nSec-WebSocket-Protocol: sandd.v2"),
            ("/workspaces/0000000000000000", ""),
        ] {
            let more = format!("{UPGRADE}{offer}");
            let asked = head(&format!("GET {path}"), host, Some(origin), &more);
            let answer = asks(http, &asked, "").await;
            let refused = answer.starts_with("HTTP/1.1 403");
            assert!(refused, "{path} {offer} from {origin}: {answer}");
        }
    }

    // What a page may send without being asked first, with all that it can know.
    for path in ["/mcp", "/v1/messages", "/v1/chat/completions", "/exec"] {
        for kind in ["text/plain", "application/x-www-form-urlencoded"] {
            let more = format!("\r\nContent-Type: {kind}");
            let asked = head(&format!("POST {path}"), here, Some(EVIL), &more);
            let answer = asks(http, &asked, r#"{"command":"touch ran"}"#).await;
            let status = answer.split(' ').nth(1).unwrap();
            assert!(["401", "403", "415"].contains(&status), "{path}: {answer}");
        }
        // Whatever a browser asks leave for first is not given.
        let more = "\r\nAccess-Control-Request-Method: POST\r\n\
                    Access-Control-Request-Headers: authorization,content-type";
        let asked = head(&format!("OPTIONS {path}"), here, Some(EVIL), more);
        let answer = asks(http, &asked, "").await.to_lowercase();
        assert!(!answer.contains("access-control-allow"), "{path}: {answer}");
    }
    for path in ["/", "/healthz", "/metrics"] {
        let asked = head(&format!("GET {path}"), here, Some(EVIL), "");
        let answer = asks(http, &asked, "").await.to_lowercase();
        assert!(!answer.contains("access-control-allow"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_name_that_points_here_reads_no_numbers_and_uses_no_tools() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let http = daemon.http();
    let here = http.split_once("://").unwrap().1;
    let port = here.rsplit(':').next().unwrap();
    for (host, status) in [
        (here.to_owned(), "200"),
        (format!("localhost:{port}"), "200"),
        (format!("evil.example:{port}"), "401"),
        ("evil.example".to_owned(), "401"),
        (format!("127.0.0.1.evil.example:{port}"), "401"),
    ] {
        let answer = asks(http, &head("GET /metrics", &host, None, ""), "").await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{host}: {answer}");
    }
    // With a key, which no page has, tools still want their own host.
    let peers = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    let agent = format!(
        "[agents.hands]\ncommand = [\"python3\", {:?}]\n",
        peers.join("mcp_agent.py")
    );
    machine.configure(&agent);
    machine.runs(&["reload"]).await.succeeds();
    let said = machine.runs(&["send", "hands", "token"]).await.succeeds();
    let (_, token): (String, String) = serde_json::from_str(&said).unwrap();
    let more = format!(
        "\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream"
    );
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    for (host, origin, status) in [
        (here, None, "200"),
        (&format!("evil.example:{port}"), None, "403"),
        (here, Some(EVIL), "403"),
    ] {
        let answer = asks(http, &head("POST /mcp", host, origin, &more), body).await;
        let got = answer.split(' ').nth(1);
        assert_eq!(got, Some(status), "{host} {origin:?}: {answer}");
    }
}
