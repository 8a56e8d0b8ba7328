//! RFC 6902 patches onto the folded state.
//!
//! The whole list applies or none of it does. Patches come from a process that may be wrong or
//! hostile, so two limits hold while a list is applied, not after it: the state's size as JSON (one
//! `copy` doubles it, and a frame has room for hundreds of thousands) and its depth (a JSON parser
//! stops at 128 levels, so a deeper state could be stored and never be read again).

use serde_json::{Map, Value};

use super::MAX_STATE;

/// The deepest nesting of a state.
const MAX_DEPTH: usize = 100;

/// Why a list of patches does not apply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operation {operation} does not apply: {kind}")]
pub struct PatchError {
    /// The position in the list, from 0.
    pub operation: usize,
    /// What is wrong.
    pub kind: PatchErrorKind,
}

/// What is wrong with an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchErrorKind {
    /// It is no operation of RFC 6902.
    #[error("not an operation: {0}")]
    Malformed(String),
    /// A pointer leads nowhere.
    #[error("nothing is at {0:?}")]
    NoSuchPath(String),
    /// A value would be moved into itself.
    #[error("{from:?} can't be moved into its own part {path:?}")]
    IntoItself {
        /// What would move.
        from: String,
        /// Where to.
        path: String,
    },
    /// `test` found another value.
    #[error("the value at {0:?} is not the tested one")]
    TestFailed(String),
    /// The state would be too large.
    #[error("the state would be over {MAX_STATE} bytes")]
    TooLarge,
    /// The state would be nested too deeply.
    #[error("the state would be over {MAX_DEPTH} levels deep")]
    TooDeep,
}

/// The state of an instance: all its patches folded.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    value: Value,
    /// Never less than the length of the state's JSON text.
    size_bound: usize,
}

impl Folded {
    /// Starts from a state that was stored.
    pub fn new(value: Value) -> Self {
        Self {
            size_bound: json_len(&value),
            value,
        }
    }

    /// The state.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Applies a list of operations, all or none.
    pub fn apply(&mut self, deltas: &[Value]) -> Result<(), PatchError> {
        let before = self.size_bound;
        let mut undo = Vec::with_capacity(deltas.len());
        let was_null = self.value.is_null();
        for (operation, delta) in deltas.iter().enumerate() {
            let applied = Op::parse(delta).and_then(|op| {
                if self.value.is_null() && !op.is_at_root() {
                    self.value = Value::Object(Map::new());
                }
                self.step(op, &mut undo)
            });
            if let Err(kind) = applied {
                while let Some(step) = undo.pop() {
                    step.revert(&mut self.value);
                }
                if was_null {
                    self.value = Value::Null;
                }
                self.size_bound = before;
                return Err(PatchError { operation, kind });
            }
        }
        Ok(())
    }

    fn step(&mut self, op: Op, undo: &mut Vec<Undo>) -> Result<(), PatchErrorKind> {
        match op {
            Op::Add { path, value } => {
                self.grow(&path, &value)?;
                undo.push(add(&mut self.value, &path, value)?);
            }
            Op::Remove { path } => {
                let (removed, mut step) = remove(&mut self.value, &path)?;
                step.give_back(removed);
                undo.push(step);
            }
            Op::Replace { path, value } => {
                self.grow(&path, &value)?;
                let target = path
                    .find_mut(&mut self.value)
                    .ok_or_else(|| path.missing())?;
                let old = std::mem::replace(target, value);
                undo.push(Undo::Put { at: path, old });
            }
            Op::Move { from, path } => {
                if path.tokens.len() > from.tokens.len() && path.tokens.starts_with(&from.tokens) {
                    return Err(PatchErrorKind::IntoItself {
                        from: from.to_string(),
                        path: path.to_string(),
                    });
                }
                let (moved, mut step) = remove(&mut self.value, &from)?;
                step.give_back(moved.clone());
                undo.push(step);
                self.grow(&path, &moved)?;
                undo.push(add(&mut self.value, &path, moved)?);
            }
            Op::Copy { from, path } => {
                let value = from.find(&self.value).ok_or_else(|| from.missing())?;
                let value = value.clone();
                self.grow(&path, &value)?;
                undo.push(add(&mut self.value, &path, value)?);
            }
            Op::Test { path, value } => {
                let found = path.find(&self.value).ok_or_else(|| path.missing())?;
                if !same_json(found, &value) {
                    return Err(PatchErrorKind::TestFailed(path.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Makes room for `value` at `path`, or says which limit it breaks.
    fn grow(&mut self, path: &Pointer, value: &Value) -> Result<(), PatchErrorKind> {
        if path.tokens.len().saturating_add(depth(value)) > MAX_DEPTH {
            return Err(PatchErrorKind::TooDeep);
        }
        let key = path.tokens.last().map_or(0, |key| string_len(key));
        // A key, a colon and a comma beside the value itself.
        let added = json_len(value).saturating_add(key).saturating_add(2);
        self.size_bound = self.size_bound.saturating_add(added);
        if self.size_bound > MAX_STATE {
            self.size_bound = json_len(&self.value).saturating_add(added);
        }
        match self.size_bound > MAX_STATE {
            true => Err(PatchErrorKind::TooLarge),
            false => Ok(()),
        }
    }
}

enum Op {
    Add { path: Pointer, value: Value },
    Remove { path: Pointer },
    Replace { path: Pointer, value: Value },
    Move { from: Pointer, path: Pointer },
    Copy { from: Pointer, path: Pointer },
    Test { path: Pointer, value: Value },
}

impl Op {
    fn parse(delta: &Value) -> Result<Self, PatchErrorKind> {
        let malformed = |what: &str| PatchErrorKind::Malformed(what.to_owned());
        let object = delta.as_object().ok_or_else(|| malformed("no object"))?;
        let pointer = |field: &str| {
            let text = object
                .get(field)
                .and_then(Value::as_str)
                .ok_or_else(|| malformed(&format!("`{field}` is missing or no text")))?;
            Pointer::parse(text)
        };
        let value = || {
            object
                .get("value")
                .cloned()
                .ok_or_else(|| malformed("`value` is missing"))
        };
        let op = object
            .get("op")
            .and_then(Value::as_str)
            .ok_or_else(|| malformed("`op` is missing or no text"))?;
        let path = pointer("path")?;
        Ok(match op {
            "add" => Self::Add {
                path,
                value: value()?,
            },
            "remove" => Self::Remove { path },
            "replace" => Self::Replace {
                path,
                value: value()?,
            },
            "move" => Self::Move {
                from: pointer("from")?,
                path,
            },
            "copy" => Self::Copy {
                from: pointer("from")?,
                path,
            },
            "test" => Self::Test {
                path,
                value: value()?,
            },
            other => return Err(malformed(&format!("`op` is {other:?}"))),
        })
    }

    fn is_at_root(&self) -> bool {
        match self {
            Self::Add { path, .. }
            | Self::Remove { path }
            | Self::Replace { path, .. }
            | Self::Test { path, .. } => path.tokens.is_empty(),
            Self::Move { from, path } | Self::Copy { from, path } => {
                path.tokens.is_empty() || from.tokens.is_empty()
            }
        }
    }
}

/// An RFC 6901 pointer.
#[derive(Clone)]
struct Pointer {
    tokens: Vec<String>,
}

impl Pointer {
    fn parse(text: &str) -> Result<Self, PatchErrorKind> {
        let malformed = || PatchErrorKind::Malformed(format!("{text:?} is no JSON pointer"));
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
        let tokens = text
            .strip_prefix('/')
            .ok_or_else(malformed)?
            .split('/')
            .map(|token| {
                let mut plain = String::with_capacity(token.len());
                let mut chars = token.chars();
                while let Some(c) = chars.next() {
                    plain.push(match c {
                        '~' => match chars.next() {
                            Some('0') => '~',
                            Some('1') => '/',
                            _ => return Err(malformed()),
                        },
                        c => c,
                    });
                }
                Ok(plain)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { tokens })
    }

    fn missing(&self) -> PatchErrorKind {
        PatchErrorKind::NoSuchPath(self.to_string())
    }

    fn find<'v>(&self, root: &'v Value) -> Option<&'v Value> {
        self.tokens
            .iter()
            .try_fold(root, |value, token| match value {
                Value::Object(map) => map.get(token),
                Value::Array(list) => list.get(index(token)?),
                _ => None,
            })
    }

    fn find_mut<'v>(&self, root: &'v mut Value) -> Option<&'v mut Value> {
        walk_mut(root, &self.tokens)
    }

    /// The container that holds the target, and the target's name in it.
    fn parent_mut<'v>(&self, root: &'v mut Value) -> Option<(&'v mut Value, &str)> {
        let (last, parents) = self.tokens.split_last()?;
        Some((walk_mut(root, parents)?, last))
    }
}

impl std::fmt::Display for Pointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for token in &self.tokens {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

fn walk_mut<'v>(root: &'v mut Value, tokens: &[String]) -> Option<&'v mut Value> {
    tokens.iter().try_fold(root, |value, token| match value {
        Value::Object(map) => map.get_mut(token),
        Value::Array(list) => list.get_mut(index(token)?),
        _ => None,
    })
}

/// An array index: digits without leading zeros.
fn index(token: &str) -> Option<usize> {
    let plain =
        token.bytes().all(|b| b.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
    plain.then(|| token.parse().ok()).flatten()
}

/// How to take one step back.
enum Undo {
    /// Put `old` at a place that exists.
    Put {
        at: Pointer,
        old: Value,
    },
    /// Remove what was added.
    TakeKey {
        at: Pointer,
    },
    TakeIndex {
        parent: Pointer,
        index: usize,
    },
    /// Give back what was removed.
    GiveKey {
        at: Pointer,
        old: Value,
    },
    GiveIndex {
        parent: Pointer,
        index: usize,
        old: Value,
    },
}

impl Undo {
    fn give_back(&mut self, removed: Value) {
        match self {
            Self::Put { old, .. } | Self::GiveKey { old, .. } | Self::GiveIndex { old, .. } => {
                *old = removed;
            }
            Self::TakeKey { .. } | Self::TakeIndex { .. } => {}
        }
    }

    /// Steps are reverted in reverse order, so every place is again as it was after the step.
    fn revert(self, root: &mut Value) {
        match self {
            Self::Put { at, old } => {
                if let Some(place) = at.find_mut(root) {
                    *place = old;
                }
            }
            Self::TakeKey { at } => {
                if let Some((Value::Object(map), key)) = at.parent_mut(root) {
                    map.remove(key);
                }
            }
            Self::TakeIndex { parent, index } => {
                if let Some(Value::Array(list)) = parent.find_mut(root)
                    && index < list.len()
                {
                    list.remove(index);
                }
            }
            Self::GiveKey { at, old } => {
                if let Some((Value::Object(map), key)) = at.parent_mut(root) {
                    map.insert(key.to_owned(), old);
                }
            }
            Self::GiveIndex { parent, index, old } => {
                if let Some(Value::Array(list)) = parent.find_mut(root)
                    && index <= list.len()
                {
                    list.insert(index, old);
                }
            }
        }
    }
}

fn add(root: &mut Value, path: &Pointer, value: Value) -> Result<Undo, PatchErrorKind> {
    let Some((last, parents)) = path.tokens.split_last() else {
        let old = std::mem::replace(root, value);
        return Ok(Undo::Put {
            at: path.clone(),
            old,
        });
    };
    match walk_mut(root, parents) {
        Some(Value::Object(map)) => Ok(match map.insert(last.clone(), value) {
            Some(old) => Undo::Put {
                at: path.clone(),
                old,
            },
            None => Undo::TakeKey { at: path.clone() },
        }),
        Some(Value::Array(list)) => {
            let position = match last.as_str() {
                "-" => list.len(),
                token => index(token)
                    .filter(|index| *index <= list.len())
                    .ok_or_else(|| path.missing())?,
            };
            list.insert(position, value);
            Ok(Undo::TakeIndex {
                parent: Pointer {
                    tokens: parents.to_vec(),
                },
                index: position,
            })
        }
        _ => Err(path.missing()),
    }
}

/// Removes a value; the returned step still has to be given the value back.
fn remove(root: &mut Value, path: &Pointer) -> Result<(Value, Undo), PatchErrorKind> {
    let Some((last, parents)) = path.tokens.split_last() else {
        return Ok((
            std::mem::take(root),
            Undo::Put {
                at: path.clone(),
                old: Value::Null,
            },
        ));
    };
    match walk_mut(root, parents) {
        Some(Value::Object(map)) => {
            let removed = map.remove(last).ok_or_else(|| path.missing())?;
            Ok((
                removed,
                Undo::GiveKey {
                    at: path.clone(),
                    old: Value::Null,
                },
            ))
        }
        Some(Value::Array(list)) => {
            let position = index(last)
                .filter(|index| *index < list.len())
                .ok_or_else(|| path.missing())?;
            Ok((
                list.remove(position),
                Undo::GiveIndex {
                    parent: Pointer {
                        tokens: parents.to_vec(),
                    },
                    index: position,
                    old: Value::Null,
                },
            ))
        }
        _ => Err(path.missing()),
    }
}

/// RFC 6902 4.6: numbers are equal when their values are, however they are written.
fn same_json(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_json(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same_json(a, b)))
        }
        _ => a == b,
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// The length of a value's JSON text.
fn json_len(value: &Value) -> usize {
    match value {
        Value::Null => 4,
        Value::Bool(_) => 5,
        Value::Number(number) => number.to_string().len(),
        Value::String(text) => string_len(text),
        Value::Array(list) => list.iter().map(|value| json_len(value) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            map.iter()
                .map(|(key, value)| string_len(key) + json_len(value) + 2)
                .sum::<usize>()
                + 2
        }
    }
}

fn string_len(text: &str) -> usize {
    let escaped: usize = text
        .bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | 0x08 | 0x09 | 0x0a | 0x0c | 0x0d => 2,
            0..0x20 => 6,
            _ => 1,
        })
        .sum();
    escaped + 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn apply(doc: Value, patch: &Value) -> Result<Value, PatchErrorKind> {
        let before = doc.clone();
        let mut state = Folded::new(doc);
        match state.apply(patch.as_array().unwrap()) {
            Ok(()) => {
                assert!(state.size_bound >= serde_json::to_string(state.value()).unwrap().len());
                Ok(state.value)
            }
            Err(error) => {
                assert_eq!(state, Folded::new(before), "a refused list left a trace");
                Err(error.kind)
            }
        }
    }

    #[test]
    fn a_state_that_was_never_set_starts_as_an_object() {
        let add = json!([{"op": "add", "path": "/count", "value": 1}]);
        assert_eq!(apply(Value::Null, &add), Ok(json!({"count": 1})));
        let root = json!([{"op": "add", "path": "", "value": [1]}]);
        assert_eq!(apply(Value::Null, &root), Ok(json!([1])));
        let wrong = json!([{"op": "replace", "path": "/count", "value": 1}]);
        assert!(apply(Value::Null, &wrong).is_err());
    }

    #[test]
    fn a_failed_move_puts_back_what_it_took() {
        let doc = json!({"a": {"b": 1}, "l": [1, 2]});
        for patch in [
            json!([{"op": "move", "from": "/a", "path": "/none/x"}]),
            json!([{"op": "move", "from": "/a", "path": ""}, {"op": "test", "path": "/x", "value": 1}]),
            json!([{"op": "move", "from": "/l/0", "path": "/l/-"}, {"op": "remove", "path": "/none"}]),
            json!([{"op": "remove", "path": ""}, {"op": "spam", "path": ""}]),
            json!([{"op": "copy", "from": "", "path": "/a/b"}, {"op": "add", "path": "/l/9", "value": 1}]),
        ] {
            assert!(apply(doc.clone(), &patch).is_err());
        }
    }

    #[test]
    fn copies_that_double_the_state_stop_at_the_limit() {
        let mut bomb = vec![json!({"op": "add", "path": "/a", "value": "x".repeat(1000)})];
        for step in 0..90 {
            bomb.push(json!({"op": "copy", "from": "", "path": format!("/k{step}")}));
        }
        assert_eq!(
            apply(json!({}), &Value::Array(bomb)),
            Err(PatchErrorKind::TooLarge)
        );
    }

    #[test]
    fn a_state_never_gets_too_deep_to_be_read_again() {
        let mut state = Folded::new(json!({}));
        let mut path = String::new();
        let refused = (0..200).find_map(|_| {
            path.push_str("/d");
            state
                .apply(&[json!({"op": "add", "path": path, "value": {}})])
                .err()
        });
        assert_eq!(refused.unwrap().kind, PatchErrorKind::TooDeep);
        let text = serde_json::to_string(state.value()).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            *state.value()
        );
    }

    #[test]
    fn replacing_the_same_large_value_again_and_again_is_not_growth() {
        let mut state = Folded::new(json!({}));
        let large = json!({"op": "add", "path": "/v", "value": "x".repeat(3_000_000)});
        for _ in 0..10 {
            state.apply(std::slice::from_ref(&large)).unwrap();
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0i64..4).prop_map(Value::from),
            "[a-c~/\"\n\u{1}]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[ab0-]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn operation() -> impl Strategy<Value = Value> {
        let path = "(/[ab0-]){1,3}";
        prop_oneof![
            (path, value()).prop_map(|(p, v)| json!({"op": "add", "path": p, "value": v})),
            path.prop_map(|p| json!({"op": "remove", "path": p})),
            (path, value()).prop_map(|(p, v)| json!({"op": "replace", "path": p, "value": v})),
            (path, path).prop_map(|(f, p)| json!({"op": "move", "from": f, "path": p})),
            (path, path).prop_map(|(f, p)| json!({"op": "copy", "from": f, "path": p})),
            (path, value()).prop_map(|(p, v)| json!({"op": "test", "path": p, "value": v})),
        ]
    }

    proptest! {
        /// The reference implementation is not atomic over a failed `move`, so only its verdict and
        /// its result of lists that apply are compared.
        #[test]
        fn agrees_with_the_reference_implementation(
            doc in value().prop_filter("null is our own rule", |doc| !doc.is_null()),
            patch in proptest::collection::vec(operation(), 1..5),
        ) {
            let mut expected = doc.clone();
            let parsed: json_patch::Patch = serde_json::from_value(json!(patch)).unwrap();
            let reference = json_patch::patch_unsafe(&mut expected, &parsed);
            let ours = apply(doc, &Value::Array(patch));
            prop_assert_eq!(ours.is_ok(), reference.is_ok());
            if let Ok(ours) = ours {
                prop_assert_eq!(ours, expected);
            }
        }
    }
}
