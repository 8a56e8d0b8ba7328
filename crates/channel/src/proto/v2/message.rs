//! What records hold.
//!
//! ```text
//! request   {"id": 7, "op": "sessions.list", "args": {...}}       device, ids count up
//! cancel    {"cancel": 7}                                         device
//! credit    {"credit": {"stream": 3, "bytes": 65536}}             device
//! answer    {"id": 7, "ok": {...}} or {"id": 7, "error": {"code": "...", "message": "..."}}
//! items     {"id": 7, "items": [...]}                             any number before the answer
//! end       {"stream_end": {"stream": 3, "code": 0}}, code null and a "reason" where it failed
//! farewell  {"error": {"code": "unauthorized", "message": "..."}} then the connection closes
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::MAX_PLAINTEXT;

/// The first byte of a record with JSON.
pub const JSON: u8 = 0;

/// The first byte of a record with a stream's bytes.
pub const BYTES: u8 = 1;

/// The longest piece of a stream in one record.
pub const MAX_PIECE: usize = MAX_PLAINTEXT - 5;

/// What a device says.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    /// Asks for something.
    Request {
        /// Its number.
        id: u64,
        /// What.
        op: String,
        /// With what.
        args: Value,
    },
    /// Needs a request's answer no more.
    Cancel {
        /// The request.
        id: u64,
    },
    /// Can take more of a stream.
    Credit {
        /// The stream.
        stream: u32,
        /// How much more.
        bytes: u32,
    },
    /// Sends into a stream.
    Bytes {
        /// The stream.
        stream: u32,
        /// What.
        bytes: Vec<u8>,
    },
}

/// A record that opened and makes no sense. The connection ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a record that is not of this protocol: {0}")]
pub struct Malformed(pub &'static str);

#[derive(Deserialize)]
#[serde(untagged)]
enum Json {
    Request {
        id: u64,
        op: String,
        #[serde(default)]
        args: Value,
    },
    Cancel {
        cancel: u64,
    },
    Credit {
        credit: CreditFields,
    },
}

#[derive(Deserialize)]
struct CreditFields {
    stream: u32,
    bytes: u32,
}

/// Reads a record's plaintext.
pub fn parse(plaintext: &[u8]) -> Result<ClientMessage, Malformed> {
    match plaintext.split_first() {
        Some((&JSON, json)) => {
            let json = serde_json::from_slice(json).map_err(|_| Malformed("its JSON"))?;
            Ok(match json {
                Json::Request { id, op, args } => ClientMessage::Request { id, op, args },
                Json::Cancel { cancel } => ClientMessage::Cancel { id: cancel },
                Json::Credit { credit } => ClientMessage::Credit {
                    stream: credit.stream,
                    bytes: credit.bytes,
                },
            })
        }
        Some((&BYTES, rest)) => {
            let (stream, bytes) = rest
                .split_first_chunk::<4>()
                .ok_or(Malformed("a stream without a number"))?;
            Ok(ClientMessage::Bytes {
                stream: u32::from_be_bytes(*stream),
                bytes: bytes.to_vec(),
            })
        }
        Some(_) => Err(Malformed("its first byte")),
        None => Err(Malformed("it is empty")),
    }
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct OpError {
    /// For the program.
    pub code: String,
    /// For the person.
    pub message: String,
}

impl OpError {
    /// An error with a code of this protocol.
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.to_owned(),
            message: message.into(),
        }
    }
}

/// A plaintext of JSON.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    let mut plaintext = vec![JSON];
    serde_json::to_writer(&mut plaintext, value).expect("answers have string keys only");
    plaintext
}

/// The answer to a request.
pub fn answer(id: u64, outcome: &Result<Value, OpError>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Answer<'a> {
        id: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        ok: Option<&'a Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a OpError>,
    }
    json(&Answer {
        id,
        ok: outcome.as_ref().ok(),
        error: outcome.as_ref().err(),
    })
}

/// A stream's bytes; at most [`MAX_PIECE`] fit.
pub fn bytes(stream: u32, bytes: &[u8]) -> Vec<u8> {
    let mut plaintext = Vec::with_capacity(bytes.len().saturating_add(5).saturating_add(16));
    plaintext.push(BYTES);
    plaintext.extend_from_slice(&stream.to_be_bytes());
    plaintext.extend_from_slice(bytes);
    plaintext
}

/// Items of a request, put together from texts that are JSON already.
#[derive(Debug)]
pub struct Items {
    plaintext: Vec<u8>,
    empty: bool,
}

impl Items {
    /// None yet.
    pub fn new(id: u64) -> Self {
        let mut plaintext = vec![JSON];
        plaintext.extend_from_slice(format!(r#"{{"id":{id},"items":["#).as_bytes());
        Self {
            plaintext,
            empty: true,
        }
    }

    /// Adds one that `write` writes as JSON.
    pub fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.empty {
            self.plaintext.push(b',');
        }
        self.empty = false;
        write(&mut self.plaintext);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.empty
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.plaintext.len()
    }

    /// The record's plaintext.
    pub fn finish(mut self) -> Vec<u8> {
        self.plaintext.extend_from_slice(b"]}");
        self.plaintext
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn with_first(first: u8, rest: &[u8]) -> Vec<u8> {
        [&[first], rest].concat()
    }

    #[test]
    fn what_a_device_says() {
        let json = |text: &str| parse(&with_first(JSON, text.as_bytes()));
        assert_eq!(
            json(r#"{"id":7,"op":"x","args":{"a":1}}"#),
            Ok(ClientMessage::Request {
                id: 7,
                op: "x".into(),
                args: json!({"a":1})
            })
        );
        assert_eq!(json(r#"{"cancel":7}"#), Ok(ClientMessage::Cancel { id: 7 }));
        assert_eq!(
            json(r#"{"credit":{"stream":3,"bytes":9}}"#),
            Ok(ClientMessage::Credit {
                stream: 3,
                bytes: 9
            })
        );
        assert_eq!(
            parse(&bytes(258, b"in")),
            Ok(ClientMessage::Bytes {
                stream: 258,
                bytes: b"in".to_vec()
            })
        );
    }

    #[test]
    fn what_makes_no_sense() {
        for record in [
            vec![],
            vec![9],
            vec![BYTES, 0, 0],
            with_first(JSON, b"{}"),
            with_first(JSON, br#"{"id":-1,"op":"x"}"#),
            with_first(JSON, b"\xff"),
        ] {
            assert!(parse(&record).is_err(), "{record:?}");
        }
    }

    #[test]
    fn answers_and_items() {
        let shown = |record: &[u8]| String::from_utf8(record[1..].to_vec()).unwrap();
        assert_eq!(shown(&answer(7, &Ok(json!({})))), r#"{"id":7,"ok":{}}"#);
        assert_eq!(
            shown(&answer(7, &Err(OpError::new("c", "m")))),
            r#"{"id":7,"error":{"code":"c","message":"m"}}"#
        );
        let mut items = Items::new(7);
        items.push(|out| out.extend_from_slice(b"1"));
        items.push(|out| out.extend_from_slice(b"2"));
        assert_eq!(shown(&items.finish()), r#"{"id":7,"items":[1,2]}"#);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
