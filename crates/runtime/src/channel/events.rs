//! The journal, for a v2 device: from a cursor on, or a page of the past.

use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::Request;
use rusqlite::named_params;
use serde::Deserialize;
use serde_json::{Value, json};

use super::op_error;
use super::ops::{Answer, answered, args};
use crate::daemon::Runtime;
use crate::journal::{Filter, Reader, Row};
use crate::refusal::Refusal;
use crate::sessions;
use crate::store::StoreError;

/// A record is closed when its rows have this many bytes.
const RECORD: usize = 128 * 1024;

/// A page's rows have this many bytes at the most, whatever its limit is.
const PAGE: usize = 768 * 1024;

/// The largest data that is sent whole; of a larger one the texts are cut.
const MAX_DATA: usize = 512 * 1024;

/// A text of cut data keeps this much.
const CUT_TEXT: usize = 32 * 1024;

/// Rows of a page at the most.
const MAX_PAGE: u32 = 1000;

#[derive(Deserialize)]
struct Follow {
    #[serde(default)]
    after: u64,
    session: Option<u64>,
}

/// Sends what is there, says so, then sends what comes, until it is cancelled.
pub(super) async fn follow(runtime: &Runtime, request: &Request) -> Answer {
    let Follow { after, session } = args(&request.args)?;
    if let Some(session) = session {
        let known = runtime.db.read(move |db| sessions::find(db, session)).await;
        match known {
            Ok(Some(_)) => {}
            Ok(None) => return Err(op_error(&Refusal::no_session(session))),
            Err(error) => return Err(op_error(&error.into())),
        }
    }
    let filter = Filter {
        session,
        turn: None,
    };
    let failed = |error: StoreError| op_error(&error.into());
    let gone = |_| OpError::new("connection_lost", "the connection has ended");
    let mut reader = Reader::new(&runtime.db, filter, after);
    let mut caught_up = false;
    loop {
        let rows = if caught_up {
            reader.follow().await.map_err(failed)?
        } else {
            reader.next_batch().await.map_err(failed)?
        };
        if rows.is_empty() {
            if caught_up {
                return Err(OpError::new("internal", "the daemon is stopping"));
            }
            caught_up = true;
            let mut items = request.items();
            let cursor = reader.cursor();
            items.push(|out| {
                out.extend_from_slice(format!(r#"{{"caught_up":{cursor}}}"#).as_bytes());
            });
            request.send_items(items).await.map_err(gone)?;
            continue;
        }
        let mut items = request.items();
        for row in rows {
            items.push(|out| write_row(&row, out));
            if items.len() >= RECORD {
                let full = std::mem::replace(&mut items, request.items());
                request.send_items(full).await.map_err(gone)?;
            }
        }
        if !items.is_empty() {
            request.send_items(items).await.map_err(gone)?;
        }
    }
}

#[derive(Deserialize)]
struct Page {
    session: u64,
    before: Option<u64>,
    limit: u32,
}

/// The newest rows of a session before a number, oldest first.
pub(super) async fn page(runtime: &Runtime, given: &Value) -> Answer {
    let Page {
        session,
        before,
        limit,
    } = args(given)?;
    let rows = runtime
        .db
        .read(move |db| {
            sessions::find(db, session)?.ok_or_else(|| Refusal::no_session(session))?;
            let mut statement = db.prepare_cached(
                "SELECT seq, at, session, turn, kind, data FROM journal
                 WHERE session = :session AND seq < :before ORDER BY seq DESC LIMIT :limit",
            )?;
            let rows = statement.query_map(
                named_params! {
                    ":session": session.cast_signed(),
                    ":before": before.map_or(i64::MAX, u64::cast_signed),
                    ":limit": limit.min(MAX_PAGE),
                },
                Row::from_sql,
            )?;
            let mut page = Vec::new();
            let mut size = 0_usize;
            for row in rows {
                let row = row?;
                size = size.saturating_add(row.data.len().min(MAX_DATA));
                if size > PAGE && !page.is_empty() {
                    break;
                }
                page.push(row);
            }
            page.reverse();
            Ok::<_, Refusal>(page)
        })
        .await;
    answered(rows.map(|rows| {
        let events: Vec<Value> = rows
            .iter()
            .map(|row| {
                let mut text = Vec::new();
                write_row(row, &mut text);
                serde_json::from_slice(&text).unwrap_or_default()
            })
            .collect();
        json!({ "events": events })
    }))
}

/// A row as JSON. Its data is JSON already and is copied as it is. Where it is cut, the row has
/// `"cut":true`: such a text must not be written back.
fn write_row(row: &Row, out: &mut Vec<u8>) {
    use std::io::Write as _;
    let kind = Value::from(row.kind.as_str());
    let number = |number: Option<u64>| number.map_or(Value::Null, Value::from);
    // Writing to memory does not fail.
    let _ = write!(
        out,
        r#"{{"seq":{},"at":"{}","session":{},"turn":{},"kind":{kind},"data":"#,
        row.seq,
        row.rfc3339(),
        number(row.session),
        number(row.turn),
    );
    if row.data.len() <= MAX_DATA {
        out.extend_from_slice(row.data.as_bytes());
    } else {
        let mut data = row.value();
        cut(&mut data);
        let text = data.to_string();
        if text.len() <= MAX_DATA {
            out.extend_from_slice(text.as_bytes());
        } else {
            let _ = write!(out, r#"{{"truncated":{}}}"#, row.data.len());
        }
        out.extend_from_slice(br#","cut":true"#);
    }
    out.push(b'}');
}

/// Keeps the beginning of long texts.
fn cut(value: &mut Value) {
    match value {
        Value::String(text) if text.len() > CUT_TEXT => {
            let left = text.len() - CUT_TEXT;
            text.truncate(text.floor_char_boundary(CUT_TEXT));
            text.push_str(&format!("… ({left} bytes more)"));
        }
        Value::Array(values) => values.iter_mut().for_each(cut),
        Value::Object(fields) => fields.values_mut().for_each(cut),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Kind;

    fn row(data: String) -> Row {
        Row {
            seq: 7,
            at: 1_000_000,
            session: Some(3),
            turn: None,
            kind: Kind::Other("odd\"kind".into()),
            data: data.into(),
        }
    }

    fn written(row: &Row) -> Value {
        let mut out = Vec::new();
        write_row(row, &mut out);
        serde_json::from_slice(&out).expect("JSON")
    }

    #[test]
    fn a_row_is_written_as_it_is() {
        assert_eq!(
            written(&row(r#"{"text":"ü"}"#.into())),
            json!({
                "seq": 7, "at": "1970-01-01T00:00:01.000000Z", "session": 3, "turn": null,
                "kind": "odd\"kind", "data": { "text": "ü" },
            })
        );
    }

    #[test]
    fn long_texts_are_cut_and_say_so() {
        let long = json!({ "output": ["x".repeat(2 * MAX_DATA)], "id": 1 }).to_string();
        let mut cut = written(&row(long));
        assert_eq!(cut["cut"], true);
        let data = cut["data"].take();
        assert_eq!(data["id"], 1);
        let text = data["output"][0].as_str().expect("text");
        assert!(text.ends_with("bytes more)") && text.len() < CUT_TEXT + 40);
        let many = json!(vec!["x".repeat(CUT_TEXT); 40]).to_string();
        let many = format!(r#"{{"list":{many}}}"#);
        let size = many.len();
        let cut = written(&row(many));
        assert_eq!(cut["data"], json!({ "truncated": size }));
        assert_eq!(cut["cut"], true);
    }
}
