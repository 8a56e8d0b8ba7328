//! What an agent process sends: any bytes are a message or an error.

use std::collections::HashMap;

use quintet_agent::proto::decode::decode;
use serde_json::value::RawValue;

/// Any payload of a frame.
pub fn agent(payload: &[u8]) {
    if decode(payload).is_ok() {
        // Raw values: an element that is passed on as it came may be nested deeper than a `Value`.
        let fields: HashMap<String, &RawValue> =
            serde_json::from_slice(payload).expect("a message is a JSON object");
        let kind = fields.get("type").expect("a message has a type");
        assert!(kind.get().starts_with('"'), "the type is a string");
    }
}
