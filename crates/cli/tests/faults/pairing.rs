//! Pairing, in both versions, through a proxy that does something wrong at one frame.
//!
//! A browser that believes that it is paired is: it is heard, and hears the daemon that shows the same
//! words. One that was disturbed pairs with the next code.

use std::time::Duration;

use quintet_channel::client::Client;
use serde_json::json;

use crate::harness::Machine;
use crate::original::{Page, nonce};
use crate::proxy::{Format, Plan, Proxy, Wrong};
use crate::trials::at_every_frame;

/// How long a browser waits for what a bent frame keeps from coming.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Pairs and talks; nothing when something did not come or was not right.
    async fn pairs(self, url: &str, code: &str) -> Option<()> {
        match self {
            Self::One => pairs_and_says(url, code).await,
            Self::Two => pairs_and_asks(url, code).await,
        }
    }
}

async fn pairs_and_says(url: &str, code: &str) -> Option<()> {
    let mut page = Page::opens(url).await?;
    let paired = page.pairs(code).await?;
    let message = paired.sealed(nonce(1, 0), "say hello", Some("test"));
    page.sends(&message).await?;
    loop {
        let event = page.hears().await?;
        let text = paired.text(&event)?;
        assert_eq!(text, "hello");
        if event["type"] == "assistant_final" {
            page.leaves().await;
            return Some(());
        }
    }
}

async fn pairs_and_asks(url: &str, code: &str) -> Option<()> {
    let (mut client, identity) = Client::pair(url, code, "phone").await.ok()?;
    let hello = match client.request("hello", json!({})).await {
        Ok(hello) => hello,
        // Cut behind the pairing: its keys open another connection.
        Err(_) => {
            client = Client::resume(url, &identity).await.ok()?;
            client.request("hello", json!({})).await.ok()?
        }
    };
    assert_eq!(hello["check_words"], json!(identity.check_words));
    assert_eq!(hello["device"]["name"], "phone");
    client.close().await;
    Some(())
}

async fn pairing(version: Version, plan: Option<Plan>) -> (&'static str, Vec<Plan>) {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let to = daemon.http().trim_start_matches("http://").to_owned();
    let (proxy, at) = Proxy::tcp(to, Format::WebSocket, plan).await;
    let url = format!("ws://{at}/ws");
    let mut codes = 0;
    loop {
        let code = machine.pairing_code().await;
        codes += 1;
        let paired = tokio::time::timeout(PATIENCE, version.pairs(&url, &code)).await;
        if paired == Ok(Some(())) {
            break;
        }
        assert!(codes == 1, "a sound connection did not pair");
    }
    let wrong = plan.map(|plan| plan.wrong);
    assert!(codes == 1 || !matches!(wrong, None | Some(Wrong::Delay)));
    // The daemon's last word may be the one that was lost: then it has a device that nobody is.
    let devices = machine.runs(&["devices", "--json"]).await.json();
    let devices = devices.as_array().unwrap().len();
    assert!((1..=codes).contains(&devices), "{devices} devices");
    assert!(daemon.stops().await.success());
    match codes {
        1 => ("paired", proxy.plans()),
        _ => ("paired with another code", proxy.plans()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pairing_in_the_first_version_through_a_bad_proxy() {
    at_every_frame("proxy on pairing, version 1", |plan| {
        pairing(Version::One, plan)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pairing_through_a_bad_proxy() {
    at_every_frame("proxy on pairing, version 2", |plan| {
        pairing(Version::Two, plan)
    })
    .await;
}
