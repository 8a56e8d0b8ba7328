//! The state of an agent: a list of patches applies whole or not at all, and as RFC 6902 says.

use quintet_agent::proto::MAX_STATE;
use quintet_agent::proto::patch::{Folded, PatchErrorKind};
use serde_json::{Map, Value, json};

use crate::choices::Choices;

/// What is larger is slow and breaks nothing else.
const LARGE: usize = 512;

/// JSON `[state, [patch, ..], ..]`, or else a sequence of small patches on small states.
pub fn json_patch(data: &[u8]) {
    if let Ok(Value::Array(parts)) = serde_json::from_slice(data) {
        let mut parts = parts.into_iter();
        let mut state = Folded::new(parts.next().unwrap_or_default());
        for list in parts {
            let deltas = match list {
                Value::Array(deltas) => deltas,
                other => vec![other],
            };
            one_list(&mut state, &deltas);
        }
        return;
    }
    let mut choices = Choices::new(data);
    let mut state = Folded::new(Value::Null);
    // Each list is compared by itself, so a longer sequence is only slower.
    for _ in 0..16 {
        if choices.is_empty() {
            break;
        }
        let deltas: Vec<Value> = (0..=choices.below(4))
            .map(|_| operation(&mut choices))
            .collect();
        // Copies of copies double it.
        if one_list(&mut state, &deltas) > LARGE {
            break;
        }
    }
}

/// Applies a list; the length of the state afterwards.
fn one_list(state: &mut Folded, deltas: &[Value]) -> usize {
    let before = state.clone();
    let expected = reference(before.value(), deltas);
    match state.apply(deltas) {
        Ok(()) => {
            assert_eq!(Some(state.value()), expected.as_ref(), "{deltas:?}");
        }
        Err(error) => {
            assert!(error.operation < deltas.len());
            assert_eq!(*state, before, "{deltas:?} was applied in part");
            let limit = matches!(
                error.kind,
                PatchErrorKind::TooLarge | PatchErrorKind::TooDeep
            );
            assert!(limit || expected.is_none(), "{error} of {deltas:?}");
            assert!(!error.to_string().is_empty());
        }
    }
    let length = json_length(state.value());
    // A state that was given at the start may have been too large already.
    let fits = length <= MAX_STATE || length <= json_length(before.value());
    assert!(fits, "{length} bytes");
    length
}

fn json_length(value: &Value) -> usize {
    struct Counted(usize);
    impl std::io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    serde_json::to_writer(&mut counted, value).expect("a value is JSON");
    counted.0
}

const TOKENS: [&str; 12] = [
    "a", "b", "c", "0", "1", "2", "-", "01", "", "~0", "m~1n", "~2",
];

fn pointer(choices: &mut Choices<'_>) -> String {
    (0..choices.below(4)).fold(String::new(), |path, _| {
        path + "/" + TOKENS[choices.below(TOKENS.len())]
    })
}

fn operation(choices: &mut Choices<'_>) -> Value {
    let path = pointer(choices);
    match choices.below(8) {
        0 | 1 => json!({"op": "add", "path": path, "value": value(choices, 3)}),
        2 => json!({"op": "remove", "path": path}),
        3 => json!({"op": "replace", "path": path, "value": value(choices, 3)}),
        4 => json!({"op": "move", "from": pointer(choices), "path": path}),
        5 => json!({"op": "copy", "from": pointer(choices), "path": path}),
        6 => json!({"op": "test", "path": path, "value": value(choices, 2)}),
        _ => json!({"op": "test", "path": path, "value": null}),
    }
}

fn value(choices: &mut Choices<'_>, depth: usize) -> Value {
    match choices.below(if depth == 0 { 5 } else { 7 }) {
        0 => Value::Null,
        1 => json!(choices.flag()),
        2 => json!(choices.number()),
        3 => json!(f64::from(choices.byte()) / 4.0),
        4 => json!(TOKENS[choices.below(TOKENS.len())]),
        5 => (0..choices.below(4))
            .map(|_| value(choices, depth - 1))
            .collect(),
        _ => {
            let members: Map<String, Value> = (0..choices.below(4))
                .map(|_| {
                    let key = TOKENS[choices.below(TOKENS.len())].to_owned();
                    (key, value(choices, depth - 1))
                })
                .collect();
            members.into()
        }
    }
}

/// RFC 6902 as plainly as it can be written, on a copy of the whole. `None` is a failure.
fn reference(state: &Value, deltas: &[Value]) -> Option<Value> {
    let mut state = state.clone();
    for delta in deltas {
        let text = |field: &str| delta.as_object()?.get(field)?.as_str();
        let path = tokens(text("path")?)?;
        let op = text("op")?;
        let from = match op {
            "move" | "copy" => Some(tokens(text("from")?)?),
            _ => None,
        };
        let value = match op {
            "add" | "replace" | "test" => Some(delta.get("value")?.clone()),
            _ => None,
        };
        // What every agent holds before its first patch.
        let at_root = path.is_empty() || from.as_ref().is_some_and(Vec::is_empty);
        if state.is_null() && !at_root {
            state = json!({});
        }
        match (op, from, value) {
            ("add", _, Some(value)) => put(&mut state, &path, value, true)?,
            ("replace", _, Some(value)) => put(&mut state, &path, value, false)?,
            ("remove", ..) => remove(&mut state, &path)?,
            ("move", Some(from), _) => {
                let moved = find(&state, &from)?.clone();
                if path.len() > from.len() && path.starts_with(&from) {
                    return None;
                }
                remove(&mut state, &from)?;
                put(&mut state, &path, moved, true)?;
            }
            ("copy", Some(from), _) => {
                let copied = find(&state, &from)?.clone();
                put(&mut state, &path, copied, true)?;
            }
            ("test", _, Some(value)) => equal(find(&state, &path)?, &value).then_some(())?,
            _ => return None,
        }
    }
    Some(state)
}

fn tokens(pointer: &str) -> Option<Vec<String>> {
    if pointer.is_empty() {
        return Some(Vec::new());
    }
    let mut tokens = Vec::new();
    for token in pointer.strip_prefix('/')?.split('/') {
        let escapes = token.matches('~').count();
        if escapes != token.matches("~0").count() + token.matches("~1").count() {
            return None;
        }
        tokens.push(token.replace("~1", "/").replace("~0", "~"));
    }
    Some(tokens)
}

fn position(token: &str) -> Option<usize> {
    let number: usize = token.parse().ok()?;
    (number.to_string() == token).then_some(number)
}

fn find<'v>(value: &'v Value, path: &[String]) -> Option<&'v Value> {
    let Some((first, rest)) = path.split_first() else {
        return Some(value);
    };
    let inner = match value {
        Value::Object(members) => members.get(first)?,
        Value::Array(list) => list.get(position(first)?)?,
        _ => return None,
    };
    find(inner, rest)
}

/// With `insert` an element of a list moves the others up and a member may be new.
fn put(value: &mut Value, path: &[String], new: Value, insert: bool) -> Option<()> {
    let Some((first, rest)) = path.split_first() else {
        *value = new;
        return Some(());
    };
    match value {
        Value::Object(members) if insert && rest.is_empty() => {
            members.insert(first.clone(), new);
        }
        Value::Object(members) => put(members.get_mut(first)?, rest, new, insert)?,
        Value::Array(list) if insert && rest.is_empty() => {
            let at = match first.as_str() {
                "-" => list.len(),
                token => position(token).filter(|at| *at <= list.len())?,
            };
            list.insert(at, new);
        }
        Value::Array(list) => put(list.get_mut(position(first)?)?, rest, new, insert)?,
        _ => return None,
    }
    Some(())
}

fn remove(value: &mut Value, path: &[String]) -> Option<()> {
    let Some((first, rest)) = path.split_first() else {
        *value = Value::Null;
        return Some(());
    };
    match value {
        Value::Object(members) if rest.is_empty() => drop(members.remove(first)?),
        Value::Object(members) => remove(members.get_mut(first)?, rest)?,
        Value::Array(list) => {
            let at = position(first).filter(|at| *at < list.len())?;
            match rest.is_empty() {
                true => drop(list.remove(at)),
                false => remove(&mut list[at], rest)?,
            }
        }
        _ => return None,
    }
    Some(())
}

/// Numbers are equal by value (RFC 6902, 4.6).
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, a)| b.get(k).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}
