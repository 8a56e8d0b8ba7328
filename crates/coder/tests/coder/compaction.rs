//! Long conversations: a summary stands for them, and nothing that matters is lost.

use quintet_agent::{FinishReason, TurnEnd};
use quintet_models::test_server::{Block, Message, Reply};
use serde_json::json;

use crate::bed::{Bed, messages};

const TASK: &str = "Port the parser.\n  Keep </task> and <kept> as they are!  ";
const SUMMARY: &str = "The lexer is done.\n<rules>\n- never touch main.c\n</rules>\n<open_questions>\nwhich encoding?\n</open_questions>";

fn large(blocks: Vec<Block>) -> Reply {
    let mut message = Message::new(blocks);
    message.input_tokens = 9_000;
    Reply::Message(message)
}

fn exec() -> Block {
    Block::Tool {
        id: "t1".into(),
        name: "exec".into(),
        input: json!({"command": "make"}),
    }
}

fn completed(end: &TurnEnd) -> bool {
    matches!(
        end,
        TurnEnd::Completed {
            finish_reason: FinishReason::EndTurn,
            ..
        }
    )
}

#[tokio::test]
async fn a_large_conversation_is_summarised_before_the_next_call() {
    let remember = Block::Tool {
        id: "r".into(),
        name: "remember".into(),
        input: json!({"rules": ["tabs only"], "open_questions": ["which port?"]}),
    };
    let bed = Bed::with(
        vec![
            large(vec![remember, exec()]),
            Reply::text(SUMMARY),
            Reply::text("All ported."),
        ],
        json!({"context_tokens": 10_000}),
    )
    .await;
    let end = bed.say(TASK).await;
    assert!(completed(&end), "{end:?}");
    assert_eq!(bed.text(), "All ported.", "the summary is nobody's answer");
    let asked = bed.asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[1].body["tool_choice"]["type"], "none");
    let [message] = &messages(&asked[2])[..] else {
        panic!("one message stands for all");
    };
    let text = message["content"][0]["text"].as_str().unwrap();
    for part in [
        TASK,
        "tabs only",
        "never touch main.c",
        "which port?",
        "which encoding?",
        "The lexer is done.",
    ] {
        assert!(text.contains(part), "{part:?} is in {text}");
    }
    let state = bed.agent.state().await;
    assert_eq!(state["kept"]["requests"], json!([TASK]));
    assert_eq!(
        state["kept"]["rules"],
        json!(["tabs only", "never touch main.c"])
    );
    bed.finish().await;
}

#[tokio::test]
async fn an_error_during_the_summary_ends_the_turn_and_leaves_the_conversation() {
    for (status, kind) in [(403, "permission_error"), (401, "authentication_error")] {
        let bed = Bed::with(
            vec![
                large(vec![exec()]),
                Reply::error(status, kind, "not now"),
                Reply::text(SUMMARY),
                Reply::text("Went on."),
            ],
            json!({"context_tokens": 10_000}),
        )
        .await;
        let end = bed.say(TASK).await;
        let TurnEnd::Completed { finish_reason, .. } = &end else {
            panic!("{end:?}");
        };
        assert_eq!(*finish_reason, FinishReason::Error);
        assert_eq!(bed.text().matches("not now").count(), 1, "{}", bed.text());
        let state = bed.agent.state().await;
        let kept = state["messages"].to_string();
        assert!(kept.contains("tool_result"), "{kept}");
        assert!(!kept.contains("could not be summarised"), "{kept}");

        let end = bed.say("go on").await;
        assert!(completed(&end), "{end:?}");
        let text = messages(&bed.asked()[3])[0]["content"][0]["text"].clone();
        assert!(
            text.as_str().unwrap().contains("The lexer is done."),
            "{text}"
        );
        bed.finish().await;
    }
}

#[tokio::test]
async fn what_is_too_long_to_be_summarised_leaves_what_is_kept() {
    let bed = Bed::with(
        vec![
            large(vec![exec()]),
            Reply::error(400, "invalid_request_error", "prompt is too long"),
            Reply::text("Went on."),
        ],
        json!({"context_tokens": 10_000}),
    )
    .await;
    let end = bed.say(TASK).await;
    assert!(completed(&end), "{end:?}");
    let text = messages(&bed.asked()[2])[0]["content"][0]["text"].clone();
    assert!(text.as_str().unwrap().contains(TASK), "{text}");
    bed.finish().await;
}

#[tokio::test]
async fn the_daemon_gets_what_is_kept_of_a_conversation_that_is_too_long() {
    let bed = Bed::new(vec![
        Reply::text("Begun."),
        Reply::error(400, "invalid_request_error", "prompt is too long"),
    ])
    .await;
    bed.say(TASK).await;
    let end = bed.send(Bed::summary_request()).await;
    assert!(completed(&end), "{end:?}");
    let summary = bed.text();
    assert!(
        summary.contains(TASK) && summary.contains("could not be summarised"),
        "{summary}"
    );
    bed.finish().await;
}

#[tokio::test]
async fn the_daemons_summary_keeps_the_task_over_an_empty_state() {
    let bed = Bed::new(vec![
        Reply::text("Begun."),
        Reply::text(SUMMARY),
        Reply::text("Going on."),
        Reply::text("Going on."),
        Reply::text("Second summary."),
        Reply::text("Third summary."),
    ])
    .await;
    bed.say(TASK).await;
    let before = bed.text().len();
    let end = bed.send(Bed::summary_request()).await;
    assert!(completed(&end), "{end:?}");
    let summary = bed.text()[before..].trim().to_owned();
    assert!(
        summary.contains(TASK) && summary.contains("never touch main.c"),
        "{summary}"
    );

    // What the daemon does then: an empty state, and a message that carries the summary.
    bed.agent
        .replace_state(serde_json::Value::Null)
        .await
        .unwrap();
    let text = format!(
        "[The conversation so far, summarised]\n{summary}\n\n[The message]\nand the tests too"
    );
    bed.say(&text).await;
    // As after a turn that did not end well.
    bed.say(&text.replace("and the tests too", "all of them"))
        .await;
    let state = bed.agent.state().await;
    assert_eq!(
        state["kept"]["requests"],
        json!([TASK, "and the tests too", "all of them"])
    );
    let recalled = state["messages"]
        .to_string()
        .matches("Port the parser")
        .count();
    assert_eq!(recalled, 1, "{state}");
    assert_eq!(state["kept"]["rules"], json!(["never touch main.c"]));
    assert_eq!(state["kept"]["questions"], json!(["which encoding?"]));

    let before = bed.text().len();
    bed.send(Bed::summary_request()).await;
    let second = bed.text()[before..].to_owned();
    assert!(
        second.contains(TASK) && second.contains("and the tests too"),
        "{second}"
    );

    // Of a conversation that no message was said in since.
    bed.agent
        .replace_state(serde_json::Value::Null)
        .await
        .unwrap();
    let mut request = Bed::summary_request();
    request.data.text = format!(
        "[The conversation so far, summarised]\n{}\n\n[The message]\n{}",
        second.trim(),
        request.data.text
    );
    let before = bed.text().len();
    bed.send(request).await;
    let third = bed.text()[before..].to_owned();
    assert!(
        third.contains(TASK) && third.contains("never touch main.c"),
        "{third}"
    );
    bed.finish().await;
}

#[tokio::test]
async fn what_a_provider_finds_too_long_is_summarised_and_asked_again() {
    let bed = Bed::new(vec![
        Reply::text("one"),
        Reply::error(400, "invalid_request_error", "prompt is too long: 9 > 8"),
        Reply::text(SUMMARY),
        Reply::text("two"),
    ])
    .await;
    bed.say(TASK).await;
    let end = bed.say("go on").await;
    assert!(completed(&end), "{end:?}");
    assert_eq!(bed.text(), "onetwo");
    let asked = bed.asked();
    let [message] = &messages(&asked[3])[..] else {
        panic!("one message stands for all");
    };
    let text = message["content"][0]["text"].as_str().unwrap();
    for part in [TASK, "go on", "The lexer is done."] {
        assert!(text.contains(part), "{part:?} is in {text}");
    }
    bed.finish().await;
}
