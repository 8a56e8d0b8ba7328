//! What an agent process sends, and what it is sent: any bytes are a message or an error.

use std::collections::HashMap;

use quintet_agent::proto::decode::decode;
use quintet_agent::proto::message::{AgentToCoordinator, CoordinatorToAgent};
use serde_json::value::RawValue;

/// Any payload of a frame, in both directions.
pub fn agent(payload: &[u8]) {
    if let Ok(decoded) = decode(payload) {
        // Raw values: an element that is passed on as it came may be nested deeper than a `Value`.
        let fields: HashMap<String, &RawValue> =
            serde_json::from_slice(payload).expect("a message is a JSON object");
        let kind = fields.get("type").expect("a message has a type");
        assert!(kind.get().starts_with('"'), "the type is a string");
        if !matches!(decoded.message, AgentToCoordinator::Unknown { .. }) {
            an_unknown_field_changes_nothing(payload, &decoded.message);
            what_the_sdk_writes_is_read_back(&decoded.message);
        }
    }
    if let Ok(message) = serde_json::from_slice::<CoordinatorToAgent>(payload) {
        let short = CoordinatorToAgent::decode(payload).expect("both ways agree");
        assert_eq!(short, message);
        let text = serde_json::to_vec(&message).expect("a message is JSON");
        let again: CoordinatorToAgent = serde_json::from_slice(&text).expect("as written");
        let twice = serde_json::to_vec(&again).expect("a message is JSON");
        assert_eq!(text, twice);
    }
}

/// The short way for text does not take it, so this also holds the two ways against each other.
fn an_unknown_field_changes_nothing(payload: &[u8], message: &AgentToCoordinator<'_>) {
    let end = payload.iter().rposition(|byte| *byte == b'}');
    let mut longer = payload[..end.expect("an object ends")].to_vec();
    longer.extend_from_slice(b",\"unheard of\":0}");
    let longer = decode(&longer).expect("an unknown field is ignored");
    assert_eq!(longer.message, *message);
    assert!(
        longer
            .unknown_fields
            .iter()
            .any(|field| field.ends_with(".unheard of"))
    );
}

fn what_the_sdk_writes_is_read_back(message: &AgentToCoordinator<'_>) {
    let text = serde_json::to_vec(message).expect("a message is JSON");
    let again = decode(&text).expect("as written");
    let twice = serde_json::to_vec(&again.message).expect("a message is JSON");
    assert_eq!(text, twice);
}
