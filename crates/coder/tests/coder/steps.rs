//! Steps of a turn: tools, steers, cancels, restarts, refusals.

use quintet_agent::{Element, FileChangeKind, FinishReason, Steered, TurnEnd};
use quintet_models::test_server::{Block, Message, Reply, Step, TestServer, messages_stream};
use serde_json::{Value, json};

use crate::bed::{Bed, last_block, messages};

fn tool(id: &str, name: &str, input: Value) -> Block {
    Block::Tool {
        id: id.into(),
        name: name.into(),
        input,
    }
}

fn ended(end: &TurnEnd) -> &FinishReason {
    match end {
        TurnEnd::Completed { finish_reason, .. } => finish_reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_turn_thinks_calls_tools_at_once_and_answers() {
    let signature = "EqQBCgIYAhIkZ+/==";
    let first = Reply::blocks(vec![
        Block::Thinking("both at once".into(), signature.into()),
        Block::Text("I will look.".into()),
        // Ends only after the other: the order of the results is that of their ends.
        tool("slow", "exec", json!({"command": "wait"})),
        tool("quick", "exec", json!({"command": "release"})),
        tool(
            "file",
            "write_file",
            json!({"path": "a.txt", "content": "x"}),
        ),
        tool("skill", "load_skill", json!({"name": "release"})),
        tool("odd", "no_such_tool", json!({})),
    ]);
    let bed = Bed::new(vec![first, Reply::text("Done.")]).await;
    bed.tools.file("AGENTS.md", "Always write tests.");
    bed.tools.file(
        "skills/tidy/SKILL.md",
        "---\nname: tidy\ndescription: puts things away\n---\nTidy up.\n",
    );
    let end = bed.say("make a.txt").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    let TurnEnd::Completed { usage, .. } = &end else {
        unreachable!();
    };
    assert_eq!(usage.unwrap().input_tokens, 200);
    let usages: Vec<u64> = bed
        .usages()
        .iter()
        .map(|usage| usage.input_tokens)
        .collect();
    assert_eq!(usages, [100, 200], "told while it works");

    let elements = bed.elements();
    let results: Vec<(&str, bool)> = elements
        .iter()
        .filter_map(|element| match element {
            Element::ToolResult {
                call_id, is_error, ..
            } => Some((call_id.as_str(), *is_error)),
            _ => None,
        })
        .collect();
    let place = |id: &str| results.iter().position(|(call, _)| *call == id).unwrap();
    assert_eq!(results.len(), 5);
    assert!(place("quick") < place("slow"), "{results:?}");
    assert!(results[place("odd")].1);
    assert!(elements.contains(&Element::FileChange {
        path: "a.txt".into(),
        change: FileChangeKind::Created,
        diff: Some("+new".into()),
    }));
    let thought: String = elements
        .iter()
        .filter_map(|element| match element {
            Element::Thinking { text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(thought, "both at once");
    assert_eq!(bed.text(), "I will look.\n\nDone.");
    assert_eq!(
        elements.last(),
        Some(&Element::TextFinal {
            text: "I will look.\n\nDone.".into()
        })
    );

    let asked = bed.asked();
    let [before, after] = &asked[..] else {
        panic!("two model calls");
    };
    let system = before.body["system"][0]["text"].as_str().unwrap();
    assert!(system.contains("Always write tests."), "{system}");
    assert!(system.contains("- release: makes a release"), "{system}");
    assert!(system.contains("- tidy: puts things away"), "{system}");
    assert!(
        !system.contains("First tag"),
        "a skill is read when it is loaded"
    );
    let names: Vec<&str> = before.body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    let all = [
        "read_file",
        "write_file",
        "list_files",
        "exec",
        "remember",
        "load_skill",
    ];
    assert_eq!(names, all);
    assert_eq!(before.body["thinking"]["type"], "enabled");
    assert_eq!(before.header("authorization"), "Bearer instance-key");
    let history = messages(after);
    assert_eq!(history.len(), 3);
    assert_eq!(history[1]["content"][0]["signature"], signature);
    let ids: Vec<&str> = history[2]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["tool_use_id"].as_str().unwrap())
        .collect();
    assert_eq!(
        ids,
        ["slow", "quick", "file", "skill", "odd"],
        "in the order of the calls"
    );
    assert_eq!(history[2]["content"][3]["content"], "First tag, then push.");
    bed.finish().await;
}

#[tokio::test]
async fn the_conversation_outlives_its_process() {
    let bed = Bed::new(vec![Reply::text("one"), Reply::text("two")]).await;
    bed.say("first").await;
    bed.agent.shutdown("idle_timeout").await;
    bed.say("second").await;
    let history = messages(&bed.asked()[1]);
    let texts: Vec<&str> = history
        .iter()
        .map(|message| message["content"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["first", "one", "second"]);
    assert_eq!(
        bed.agent.state().await["messages"]
            .as_array()
            .unwrap()
            .len(),
        4
    );
    bed.finish().await;
}

#[tokio::test]
async fn a_skill_and_instructions_that_were_written_meanwhile_are_known() {
    let bed = Bed::new(vec![
        Reply::text("ready"),
        Reply::tool("t1", "load_skill", json!({"name": "tidy"})),
        Reply::text("tidy now"),
    ])
    .await;
    bed.say("first").await;
    let skill = "---\nname: tidy\ndescription: puts things away\n---\nTidy up.\n";
    bed.tools.file("skills/how to tidy/SKILL.md", skill);
    bed.tools.file("AGENTS.md", "Always write tests.");
    bed.say("second").await;
    let asked = bed.asked();
    let system = |at: usize| asked[at].body["system"][0]["text"].as_str().unwrap();
    assert!(!system(0).contains("tidy"), "{}", system(0));
    assert!(system(1).contains("- tidy: puts things away"));
    assert!(system(1).contains("Always write tests."));
    assert_eq!(last_block(&asked[2])["content"], "Tidy up.");
    bed.finish().await;
}

#[tokio::test]
async fn a_skill_of_the_workspace_hides_the_one_of_that_name_at_home() {
    let load = Reply::tool("t1", "load_skill", json!({"name": "release"}));
    let bed = Bed::new(vec![load, Reply::text("released")]).await;
    let skill = "---\nname: release\ndescription: as this project does\n---\nAsk first.\n";
    bed.tools.file("skills/release/SKILL.md", skill);
    bed.say("release it").await;
    let asked = bed.asked();
    let system = asked[0].body["system"][0]["text"].as_str().unwrap();
    assert_eq!(system.matches("- release: ").count(), 1, "{system}");
    assert!(
        system.contains("- release: as this project does"),
        "{system}"
    );
    assert_eq!(last_block(&asked[1])["content"], "Ask first.");
    bed.finish().await;
}

#[tokio::test]
async fn a_call_that_a_crash_cut_off_is_told_to_the_model() {
    let bed = Bed::new(vec![
        Reply::tool("t1", "exec", json!({"command": "wait for ever"})),
        Reply::text("I looked again."),
    ])
    .await;
    let crash = async {
        bed.tools.called(1).await;
        bed.crash();
    };
    let (end, ()) = tokio::join!(bed.say("run it"), crash);
    assert!(matches!(end, TurnEnd::Failed { .. }), "{end:?}");
    let end = bed.say("and?").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    let history = messages(&bed.asked()[1]);
    assert_eq!(history.len(), 4);
    let result = &history[2]["content"][0];
    assert_eq!(result["tool_use_id"], "t1");
    assert!(
        result["content"].as_str().unwrap().contains("unknown"),
        "{result}"
    );
    bed.finish().await;
}

#[tokio::test]
async fn a_message_that_is_sent_again_after_a_crash_reaches_the_model_once() {
    let begun = Message::new(vec![Block::Text("Half an answer".into())]);
    let parts = messages_stream(&begun, "m").into_iter().take(5);
    let stalled = parts.map(Step::Bytes).chain([Step::Stall]).collect();
    let bed = Bed::new(vec![
        Reply::Raw(stalled),
        Reply::tool("t1", "exec", json!({"command": "wait for ever"})),
        Reply::text("whole"),
        Reply::text("once more"),
    ])
    .await;
    let crash = async {
        bed.said("Half an answer").await;
        bed.crash();
    };
    let (end, ()) = tokio::join!(bed.say("explain it"), crash);
    assert!(matches!(end, TurnEnd::Failed { .. }), "{end:?}");
    let crash = async {
        bed.tools.called(1).await;
        bed.crash();
    };
    let (end, ()) = tokio::join!(bed.say("explain it"), crash);
    assert!(matches!(end, TurnEnd::Failed { .. }), "{end:?}");
    let end = bed.say("explain it").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    bed.say("explain it").await;

    let asked = bed.asked();
    let said = |at: usize| {
        let messages = messages(&asked[at]);
        let texts = messages.iter().map(|message| {
            let block = &message["content"][0];
            let text = block["text"].as_str().or(block["type"].as_str());
            text.unwrap().to_owned()
        });
        texts.collect::<Vec<_>>()
    };
    assert_eq!(said(1), ["explain it"]);
    assert_eq!(said(2), ["explain it", "tool_use", "tool_result"]);
    let again = [
        "explain it",
        "tool_use",
        "tool_result",
        "whole",
        "explain it",
    ];
    assert_eq!(said(3), again, "its turn had ended");
    bed.finish().await;
}

#[tokio::test]
async fn guidance_reaches_the_model_at_the_next_step() {
    let bed = Bed::new(vec![
        Reply::tool("t1", "exec", json!({"command": "wait"})),
        Reply::text("As you say."),
    ])
    .await;
    let steer = async {
        bed.tools.called(1).await;
        assert_eq!(
            bed.agent.steer("use tabs instead").await,
            Steered::Delivered
        );
        bed.tools.shared.gate.notify_one();
    };
    let (end, ()) = tokio::join!(bed.say("run it"), steer);
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    assert_eq!(last_block(&bed.asked()[1])["text"], "use tabs instead");
    let state = bed.agent.state().await;
    assert_eq!(
        state["kept"]["requests"],
        json!(["run it", "use tabs instead"])
    );
    bed.finish().await;
}

/// The model's answer waits in a thread of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn guidance_that_comes_during_the_last_answer_is_a_step_of_its_own() {
    let (asked, mut is_asked) = tokio::sync::mpsc::unbounded_channel();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let model = TestServer::answering(move |received| {
        asked.send(()).unwrap();
        match messages(received).len() {
            1 => {
                gate.lock().unwrap().recv().unwrap();
                Reply::text("Done with spaces.")
            }
            _ => Reply::text("Now with tabs."),
        }
    });
    let bed = Bed::over(model.await, json!({})).await;
    let steer = async {
        is_asked.recv().await.unwrap();
        let steered = bed.agent.steer("use tabs instead").await;
        assert_eq!(steered, Steered::Delivered);
        go.send(()).unwrap();
    };
    let (end, ()) = tokio::join!(bed.say("write it"), steer);
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    let asked = bed.asked();
    assert_eq!(asked.len(), 2);
    assert_eq!(last_block(&asked[1])["text"], "use tabs instead");
    assert!(bed.text().ends_with("Now with tabs."), "{}", bed.text());
    bed.finish().await;
}

#[tokio::test]
async fn a_cancelled_answer_keeps_what_was_said() {
    let begun = Message::new(vec![Block::Text("Half an answer that goes on".into())]);
    let parts = messages_stream(&begun, "m").into_iter().take(5);
    let stalled = parts.map(Step::Bytes).chain([Step::Stall]).collect();
    let bed = Bed::new(vec![
        Reply::Raw(stalled),
        Reply::tool("t1", "exec", json!({"command": "wait"})),
        Reply::text("fine"),
    ])
    .await;
    let cancel = async {
        bed.said("goes on").await;
        assert!(bed.agent.cancel().await);
    };
    let (end, ()) = tokio::join!(bed.say("talk"), cancel);
    assert_eq!(ended(&end), &FinishReason::Cancelled);
    bed.model.wait_for_gone(1).await;

    // A call that is cancelled has a result that says so.
    let cancel = async {
        bed.tools.called(1).await;
        assert!(bed.agent.cancel().await);
    };
    let (end, ()) = tokio::join!(bed.say("run"), cancel);
    assert_eq!(ended(&end), &FinishReason::Cancelled);
    let end = bed.say("again").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    let history = messages(&bed.asked()[2]);
    assert_eq!(
        history[1]["content"][0]["text"],
        "Half an answer that goes on"
    );
    let result = &history[4]["content"][0];
    assert!(
        result["content"].as_str().unwrap().contains("cancelled"),
        "{result}"
    );
    bed.finish().await;
}

#[tokio::test]
async fn refusals_end_the_turn_with_a_sentence() {
    let refused = |status, kind: &str, message: &str| Reply::error(status, kind, message);
    let overloaded = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"anthropic is overloaded\"}}\n\n";
    let broken = messages_stream(&Message::new(vec![Block::Text("so far".into())]), "m");
    let broken = broken
        .into_iter()
        .take(5)
        .chain([overloaded.into()])
        .map(Step::Bytes)
        .collect();
    let bed = Bed::new(vec![
        refused(
            402,
            "budget_error",
            "the budget of 1 for the day is used up",
        ),
        refused(
            403,
            "permission_error",
            "anthropic refused the key; set another",
        ),
        Reply::Raw(broken),
        Reply::Raw(vec![Step::Cut]),
        Reply::text("better now"),
    ])
    .await;
    let end = bed.say("one").await;
    assert_eq!(ended(&end), &FinishReason::Budget);
    assert_eq!(bed.text(), "the budget of 1 for the day is used up");
    let end = bed.say("two").await;
    assert_eq!(ended(&end), &FinishReason::Error);
    assert!(
        bed.text()
            .ends_with("anthropic refused the key; set another")
    );
    let end = bed.say("three").await;
    assert_eq!(ended(&end), &FinishReason::Error);
    assert!(
        bed.text().ends_with("so far\n\nanthropic is overloaded"),
        "{}",
        bed.text()
    );
    // An answer that breaks before its text is asked for again.
    let end = bed.say("four").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    assert!(bed.text().ends_with("better now"));
    bed.finish().await;
}

#[tokio::test]
async fn an_answer_without_a_word_is_said_to_be_one() {
    let bed = Bed::new(vec![
        Reply::blocks(Vec::new()),
        Reply::blocks(vec![
            Block::Text("looking".into()),
            tool("toolu_1", "list_files", json!({})),
        ]),
        Reply::blocks(Vec::new()),
    ])
    .await;
    assert_eq!(ended(&bed.say("hello?").await), &FinishReason::EndTurn);
    assert_eq!(
        bed.text(),
        "The model ended without a word. Ask again, or in other words."
    );
    // After work that it told of it has nothing to add.
    assert_eq!(ended(&bed.say("look").await), &FinishReason::EndTurn);
    assert!(bed.text().ends_with("looking"), "{}", bed.text());
    bed.finish().await;
}

#[tokio::test]
async fn a_model_that_does_not_think_is_asked_without() {
    let bed = Bed::new(vec![
        Reply::error(
            400,
            "invalid_request_error",
            "thinking is not supported by this model",
        ),
        Reply::text("ok"),
    ])
    .await;
    let end = bed.say("hi").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    assert_eq!(bed.asked()[1].body.get("thinking"), None);
    bed.finish().await;
}

#[tokio::test]
async fn an_answer_without_room_for_its_calls_goes_on_in_smaller_parts() {
    let cut = || {
        let mut message = Message::new(vec![
            Block::Thinking("a large file".into(), "signed".into()),
            tool(
                "t1",
                "write_file",
                json!({"path": "a.txt", "content": "half"}),
            ),
        ]);
        message.stop_reason = "max_tokens".into();
        Reply::Message(message)
    };
    let bed = Bed::new(vec![
        cut(),
        cut(),
        Reply::text("Written in parts."),
        cut(),
        cut(),
        cut(),
        Reply::text("Going on."),
    ])
    .await;
    let end = bed.say("write it").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    assert_eq!(bed.text(), "Written in parts.");
    let asked = bed.asked();
    let told = last_block(&asked[1]);
    let told = told["text"].as_str().unwrap();
    assert!(told.contains("were not made"), "{told}");
    let roles = |at: usize| {
        let messages = messages(&asked[at]);
        let roles = messages.iter().map(|it| it["role"].as_str().unwrap());
        roles.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        roles(2),
        ["user", "user", "user"],
        "a thought is no message"
    );

    let end = bed.say("and another").await;
    assert_eq!(ended(&end), &FinishReason::MaxTokens);
    assert!(
        bed.text().contains("The answer was cut off"),
        "{}",
        bed.text()
    );
    assert_eq!(ended(&bed.say("go on").await), &FinishReason::EndTurn);
    bed.finish().await;
}

#[tokio::test]
async fn a_text_without_room_for_its_end_is_said_to_be_cut_off() {
    let mut message = Message::new(vec![Block::Text("Once upon a".into())]);
    message.stop_reason = "max_tokens".into();
    let bed = Bed::new(vec![Reply::Message(message)]).await;
    let end = bed.say("tell a story").await;
    assert_eq!(ended(&end), &FinishReason::MaxTokens);
    let text = bed.text();
    let rest = text.strip_prefix("Once upon a\n\n").unwrap();
    assert!(rest.contains("Say `go on`"), "{rest}");
    bed.finish().await;
}

#[tokio::test]
async fn a_call_that_the_end_of_the_process_cut_off_was_cancelled_by_nobody() {
    let bed = Bed::new(vec![
        Reply::tool("t1", "exec", json!({"command": "wait for ever"})),
        Reply::text("I looked again."),
    ])
    .await;
    let stop = async {
        bed.tools.called(1).await;
        bed.agent.shutdown("reload").await;
    };
    let (_, ()) = tokio::join!(bed.say("run it"), stop);
    let end = bed.say("and?").await;
    assert_eq!(ended(&end), &FinishReason::EndTurn);
    let result = messages(&bed.asked()[1])[2]["content"][0]["content"].clone();
    let result = result.as_str().unwrap();
    assert!(
        result.contains("interrupted") && !result.contains("cancelled"),
        "{result}"
    );
    bed.finish().await;
}
