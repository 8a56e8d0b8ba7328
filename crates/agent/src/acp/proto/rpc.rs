//! JSON-RPC 2.0, one message a line.

use agent_client_protocol_schema::v1::{Error, RequestId};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// What an ACP agent says.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::acp) enum Incoming {
    /// It wants an answer.
    Request {
        id: RequestId,
        method: String,
        params: Value,
    },
    /// It wants none.
    Notification { method: String, params: Value },
    /// It answers.
    Response {
        id: RequestId,
        outcome: Result<Value, Error>,
    },
}

/// A line that is no JSON-RPC message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON-RPC message: {detail}")]
pub(in crate::acp) struct BadLine {
    detail: String,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Value,
    // Present and null is a result: `session/load` may answer so.
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    #[serde(default)]
    error: Option<Error>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Reads one line.
pub(in crate::acp) fn parse(line: &[u8]) -> Result<Incoming, BadLine> {
    let line: Line = serde_json::from_slice(line).map_err(|error| BadLine {
        detail: error.to_string(),
    })?;
    match line {
        Line {
            method: Some(method),
            id: Some(id),
            params,
            ..
        } => Ok(Incoming::Request { id, method, params }),
        Line {
            method: Some(method),
            params,
            ..
        } => Ok(Incoming::Notification { method, params }),
        Line {
            id: Some(id),
            error: Some(error),
            ..
        } => Ok(Incoming::Response {
            id,
            outcome: Err(error),
        }),
        Line {
            id: Some(id),
            result: Some(result),
            ..
        } => Ok(Incoming::Response {
            id,
            outcome: Ok(result),
        }),
        _ => Err(BadLine {
            detail: "it has neither a method nor an id with a result or an error".to_owned(),
        }),
    }
}

#[derive(Serialize)]
struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    method: &'a str,
    params: P,
}

#[derive(Serialize)]
struct Answer<'a> {
    jsonrpc: &'static str,
    id: &'a RequestId,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Error>,
}

/// A request as one line.
pub(super) fn request<P: Serialize>(id: i64, method: &str, params: P) -> Vec<u8> {
    line(&Call {
        jsonrpc: "2.0",
        id: Some(id),
        method,
        params,
    })
}

/// A notification as one line.
pub(super) fn notification<P: Serialize>(method: &str, params: P) -> Vec<u8> {
    line(&Call {
        jsonrpc: "2.0",
        id: None,
        method,
        params,
    })
}

/// An answer as one line.
pub(super) fn response(id: &RequestId, outcome: &Result<Value, Error>) -> Vec<u8> {
    line(&Answer {
        jsonrpc: "2.0",
        id,
        result: outcome.as_ref().ok(),
        error: outcome.as_ref().err(),
    })
}

fn line<T: Serialize>(message: &T) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("types with string keys only are JSON");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_kind_of_line_is_told_apart() {
        let id = RequestId::Number(7);
        for (line, expected) in [
            (
                json!({"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"a": 1}}),
                Incoming::Request {
                    id: id.clone(),
                    method: "m".to_owned(),
                    params: json!({"a": 1}),
                },
            ),
            (
                json!({"jsonrpc": "2.0", "method": "m"}),
                Incoming::Notification {
                    method: "m".to_owned(),
                    params: Value::Null,
                },
            ),
            (
                json!({"jsonrpc": "2.0", "id": 7, "result": null}),
                Incoming::Response {
                    id: id.clone(),
                    outcome: Ok(Value::Null),
                },
            ),
            (
                json!({"jsonrpc": "2.0", "id": 7, "error": {"code": -32601, "message": "no"}}),
                Incoming::Response {
                    id,
                    outcome: Err(Error::new(-32601, "no")),
                },
            ),
        ] {
            assert_eq!(parse(line.to_string().as_bytes()).unwrap(), expected);
        }
        for bad in [
            "",
            "npm notice",
            "[]",
            "{}",
            r#"{"id":7}"#,
            r#"{"method":5}"#,
            "\u{0}",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn lines_are_the_specifications_json() {
        assert_eq!(
            String::from_utf8(request(1, "m", json!({"a": "x\ny"}))).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\",\"params\":{\"a\":\"x\\ny\"}}\n"
        );
        assert_eq!(
            String::from_utf8(notification("m", json!([]))).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"method\":\"m\",\"params\":[]}\n"
        );
        assert_eq!(
            String::from_utf8(response(&RequestId::Str("a".to_owned()), &Ok(Value::Null))).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"result\":null}\n"
        );
        assert_eq!(
            String::from_utf8(response(
                &RequestId::Number(2),
                &Err(Error::new(-32601, "no"))
            ))
            .unwrap(),
            "{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\":-32601,\"message\":\"no\"}}\n"
        );
    }
}
