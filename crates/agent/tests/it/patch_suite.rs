//! The official JSON Patch test suite (json-patch-test-suite 1.1.0 and the cases that its repository
//! has had since, Apache-2.0), one case a line.
//!
//! Cases with two members of one name are left out: a JSON parser gives only one of them.

use quintet_agent::proto::patch::Folded;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    comment: String,
    doc: Value,
    patch: Vec<Value>,
    expected: Option<Value>,
    error: Option<String>,
}

#[test]
fn every_case_of_the_official_suite() {
    let cases: Vec<Case> = include_str!("../vectors/json-patch-suite.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(cases.len(), 99);
    for case in cases {
        let mut state = Folded::new(case.doc.clone());
        match state.apply(&case.patch) {
            Ok(()) => {
                assert_eq!(
                    case.error, None,
                    "{}: {:?} applied",
                    case.comment, case.patch
                );
                if let Some(expected) = case.expected {
                    assert_eq!(*state.value(), expected, "{}", case.comment);
                }
            }
            Err(error) => {
                assert!(case.error.is_some(), "{}: {error}", case.comment);
                assert_eq!(*state.value(), case.doc, "{} left a trace", case.comment);
            }
        }
    }
}
