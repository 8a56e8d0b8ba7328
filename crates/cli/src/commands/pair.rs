//! `quintet pair`.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use quintet_control::Client;
use quintet_control::wire::PairingCode;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;

/// Make a code that a browser pairs with, once
#[derive(Debug, Args)]
pub(crate) struct PairArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    code: String,
    url: String,
    expires_in: u64,
    ws: String,
}

pub(crate) async fn run(context: &Context, args: &PairArgs) -> Result<ExitCode, CommandError> {
    let made = connect::daemon(&context.home).await?.pair().await?;
    if args.json.json {
        let row = Row {
            code: made.code,
            url: made.url,
            expires_in: made.expires_in_secs,
            ws: made.ws_url,
        };
        context.output.json(&row)?;
    } else {
        context.output.line(invitation(&made).trim_end())?;
        if let Some(address) = address_with_token(&made) {
            context
                .output
                .line(format_args!("Other clients: {address}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A pairing code as a person reads it: digits, link, and the link to be scanned.
pub(crate) fn invitation(made: &PairingCode) -> String {
    let mut text = String::new();
    let (first, last) = made.code.split_at(made.code.len() / 2);
    let _ = writeln!(text, "Code:  {first} {last}");
    let _ = writeln!(text, "Link:  {}", made.url);
    let _ = writeln!(
        text,
        "Valid for {}, once. Compare the four words that the browser shows with `quintet devices`.",
        spoken(made.expires_in_secs)
    );
    if is_of_this_machine(&made.url) {
        text.push_str("The link works on this machine only; for a phone: `quintet up --listen 0.0.0.0:7505`.\n");
    }
    // A link that is too long for a code can still be typed.
    if let Ok(code) = QrCode::new(&made.url) {
        // Light modules are drawn: terminals are mostly dark, and scanners read both.
        let drawn = code
            .render::<Dense1x2>()
            .dark_color(Dense1x2::Light)
            .light_color(Dense1x2::Dark)
            .build();
        let _ = writeln!(text, "\n{drawn}");
    }
    text
}

/// Whether a link leads whoever opens it to their own machine.
fn is_of_this_machine(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    ["127.", "[::1]", "localhost"]
        .iter()
        .any(|here| host.starts_with(here))
}

/// The address for clients of the original protocol, where nobody can know it without being told.
/// Not part of the invitation, which `quintet up` prints where logs are kept.
fn address_with_token(made: &PairingCode) -> Option<&str> {
    Some(made.ws_url.as_str()).filter(|address| address.contains("?token="))
}

fn spoken(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (1, 0) => "a minute".to_owned(),
        (minutes, 0) => format!("{minutes} minutes"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_has_the_code_the_link_and_something_to_scan() {
        let text = invitation(&PairingCode {
            code: "012345".into(),
            url: "http://127.0.0.1:7505/#pair=012345".into(),
            expires_in_secs: 300,
            ws_url: String::new(),
        });
        assert!(text.starts_with("Code:  012 345\nLink:  http://127.0.0.1:7505/#pair=012345\n"));
        assert!(text.contains("Valid for 5 minutes, once."));
        assert!(text.contains("on this machine only"), "{text}");
        let elsewhere = invitation(&PairingCode {
            url: "https://192.0.2.7:7505/#pair=012345".into(),
            ..PairingCode::default()
        });
        assert!(!elsewhere.contains("machine only"), "{elsewhere}");
        let blocks = text.chars().filter(|c| "▀▄█".contains(*c)).count();
        assert!(blocks > 200, "{text}");
    }
}
