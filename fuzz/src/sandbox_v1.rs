//! The sandbox plane's JSON text: what is read, written in either dialect, is read as the same.

use quintet_sandbox::proto::{
    Dialect, HubToWorker, MAX_OUTPUT_TEXT, Names, Token, asks_for_sandbox, cut, negotiate, parse,
};

/// Any text of a WebSocket message; the same text is also a token, a list of versions and output.
pub fn sandbox_v1(message: &[u8]) {
    output_fits_into_its_budget(message);
    let Ok(text) = std::str::from_utf8(message) else {
        return;
    };
    if let Ok(mut incoming) = parse::hub_to_worker(text) {
        if let HubToWorker::ExecuteCommand { timeout_secs, .. } = &mut incoming.message {
            // Written out, a limit that was left open has its default.
            timeout_secs.get_or_insert(quintet_sandbox::proto::DEFAULT_TIMEOUT_SECS);
        }
        for names in [
            Names::Only(Dialect::Seed),
            Names::Only(Dialect::Released),
            Names::Both,
        ] {
            let written = incoming.message.encode(names);
            let written = std::str::from_utf8(&written).expect("text");
            let again = parse::hub_to_worker(written).expect("as written");
            assert_eq!(again.message, incoming.message);
        }
    }
    if let Ok(incoming) = parse::worker_to_hub(text) {
        for dialect in [Dialect::Seed, Dialect::Released] {
            let written = incoming.message.encode(dialect);
            let written = std::str::from_utf8(&written).expect("text");
            let again = parse::worker_to_hub(written).expect("as written");
            assert_eq!(again.message, incoming.message);
        }
    }
    if let Err(error) = parse::worker_to_hub(text) {
        assert!(error.log_key().chars().count() <= 64, "{}", error.log_key());
        assert_eq!(error.answer().is_some(), error.id.is_some());
    }
    if let Ok(token) = Token::parse(text) {
        let again = Token::parse(&token.expose()).expect("as written");
        assert!(again.hash("box").matches(&token.hash("box")));
        assert!(!again.hash("box").matches(&token.hash("other")));
    }
    if negotiate(text).is_ok() {
        assert!(asks_for_sandbox(text));
    }
}

fn output_fits_into_its_budget(output: &[u8]) {
    for budget in [0, 1, 7, 64, MAX_OUTPUT_TEXT] {
        let text = cut::text_within(output, 0, budget);
        let written = serde_json::to_string(&text).expect("text is JSON");
        let whole = String::from_utf8_lossy(output) == text;
        assert!(whole || text.contains("[output cut: "));
        // Quotes, and the marker where something is missing.
        assert!(
            written.len() <= budget + 2 + 60,
            "{} of {budget}",
            written.len()
        );
    }
}
