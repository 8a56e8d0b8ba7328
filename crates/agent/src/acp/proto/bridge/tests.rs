//! Both conversations, without a process.
#![expect(
    clippy::needless_pass_by_value,
    reason = "calls read better with json!(..) than with &json!(..)"
)]

use super::*;
use crate::proto::message::{ApprovalResult, Init};
use agent_client_protocol_schema::v1::PermissionOptionKind;
use serde_json::json;

const NOW: Duration = Duration::from_millis(5);

/// What came out of a bridge, as JSON: `{"up": ..}`, `{"down": ..}`, `{"log": ..}`, ..
fn out(bridge: &mut Bridge) -> Vec<Value> {
    std::iter::from_fn(|| bridge.poll())
        .map(|effect| match effect {
            Effect::Up(message) => json!({"up": message}),
            Effect::Down(line) => {
                json!({"down": serde_json::from_slice::<Value>(&line).unwrap()})
            }
            Effect::Log { level, message } => json!({"log": [level, message]}),
            Effect::Read { path, .. } => json!({"read": path}),
            Effect::Write { path, content, .. } => json!({"write": [path, content]}),
            Effect::Stop => json!("stop"),
        })
        .collect()
}

fn init(state: Value, config: Value) -> CoordinatorToAgent {
    CoordinatorToAgent::Init(Init {
        agent_id: "a".into(),
        agent_type: "acp".to_owned(),
        workspace: "/w".to_owned(),
        config: config.as_object().unwrap().clone(),
        state,
    })
}

fn say(bridge: &mut Bridge, message: CoordinatorToAgent) -> Vec<Value> {
    bridge.coordinator(message).unwrap();
    out(bridge)
}

fn hear(bridge: &mut Bridge, line: &Value) -> Vec<Value> {
    let incoming = rpc::parse(line.to_string().as_bytes()).unwrap();
    bridge.agent(incoming, NOW).unwrap();
    out(bridge)
}

fn result(id: i64, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn update(update: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s1", "update": update}})
}

fn text(text: &str) -> Value {
    update(
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}),
    )
}

fn message(id: &str, text: &str) -> CoordinatorToAgent {
    CoordinatorToAgent::Message(InboundMessage::text(id, text))
}

fn prompt(id: i64, texts: &[&str]) -> Value {
    let blocks: Vec<_> = texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}))
        .collect();
    json!({"down": {"jsonrpc": "2.0", "id": id, "method": "session/prompt",
                    "params": {"sessionId": "s1", "prompt": blocks}}})
}

fn complete(reason: &str) -> Value {
    json!({"up": {"type": "complete", "message_id": "m1_out", "finish_reason": reason}})
}

/// A bridge whose session `s1` is open, with request 3 next.
fn open() -> Bridge {
    let mut bridge = Bridge::new();
    say(&mut bridge, init(Value::Null, json!({})));
    hear(&mut bridge, &result(1, json!({"protocolVersion": 1})));
    hear(&mut bridge, &result(2, json!({"sessionId": "s1"})));
    bridge
}

/// An open bridge with message `m1` running as prompt 3.
fn running() -> Bridge {
    let mut bridge = open();
    assert_eq!(say(&mut bridge, message("m1", "hi")), [prompt(3, &["hi"])]);
    bridge
}

#[test]
fn a_new_agent_is_greeted_and_its_session_kept() {
    let mut bridge = Bridge::new();
    let config = json!({"prompt": "Be kind.", "mcp_url": "http://h/mcp", "mcp_token": "t"});
    let hello = say(&mut bridge, init(Value::Null, config));
    assert_eq!(hello.len(), 1);
    assert_eq!(hello[0]["down"]["method"], "initialize");
    assert_eq!(hello[0]["down"]["params"]["protocolVersion"], 1);
    assert_eq!(
        hello[0]["down"]["params"]["clientCapabilities"]["fs"],
        json!({"readTextFile": true, "writeTextFile": true})
    );
    assert_eq!(
        hello[0]["down"]["params"]["clientCapabilities"]["terminal"],
        false
    );

    // A message that comes meanwhile waits.
    assert_eq!(say(&mut bridge, message("m1", "hi")), Vec::<Value>::new());
    let new = hear(
        &mut bridge,
        &result(
            1,
            json!({"protocolVersion": 1, "agentCapabilities": {"mcpCapabilities": {"http": true}}}),
        ),
    );
    assert_eq!(
        new,
        [
            json!({"down": {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {
            "cwd": "/w", "mcpServers": [{"type": "http", "name": "quintet", "url": "http://h/mcp",
            "headers": [{"name": "Authorization", "value": "Bearer t"}]}]}}})
        ]
    );
    assert_eq!(
        hear(&mut bridge, &result(2, json!({"sessionId": "s1"}))),
        [
            json!({"up": {"type": "state_delta", "deltas":
                   [{"op": "replace", "path": "", "value": {"session_id": "s1", "cost": "0"}}]}}),
            prompt(3, &["Be kind.", "hi"]),
        ]
    );
}

#[test]
fn a_known_session_is_loaded_and_its_history_not_told_again() {
    let mut bridge = Bridge::new();
    say(
        &mut bridge,
        init(
            json!({"session_id": "s1", "cost": "0.5"}),
            json!({"prompt": "p"}),
        ),
    );
    let capable = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}});
    let load = hear(&mut bridge, &result(1, capable));
    assert_eq!(
        load,
        [
            json!({"down": {"jsonrpc": "2.0", "id": 2, "method": "session/load",
                         "params": {"sessionId": "s1", "cwd": "/w", "mcpServers": []}}})
        ]
    );
    assert_eq!(
        hear(&mut bridge, &text("an old answer")),
        Vec::<Value>::new()
    );
    assert_eq!(
        hear(&mut bridge, &result(2, Value::Null)),
        Vec::<Value>::new()
    );
    assert_eq!(say(&mut bridge, message("m1", "hi")), [prompt(3, &["hi"])]);
}

#[test]
fn a_lost_session_is_replaced_by_a_new_one() {
    let mut bridge = Bridge::new();
    say(&mut bridge, init(json!({"session_id": "old"}), json!({})));
    let capable = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true}});
    hear(&mut bridge, &result(1, capable));
    let lost = hear(
        &mut bridge,
        &json!({"jsonrpc": "2.0", "id": 2, "error": {"code": -32002, "message": "gone"}}),
    );
    assert_eq!(lost[0]["log"][0], "warn");
    assert_eq!(lost[1]["down"]["method"], "session/new");

    // An agent that cannot load gets a new one at once.
    let mut bridge = Bridge::new();
    say(&mut bridge, init(json!({"session_id": "old"}), json!({})));
    let new = hear(&mut bridge, &result(1, json!({"protocolVersion": 1})));
    assert_eq!(new[0]["down"]["method"], "session/new");
}

#[test]
fn a_turn_streams_and_completes_with_its_usage() {
    let mut bridge = running();
    assert_eq!(
        hear(&mut bridge, &text("Hello")),
        [
            json!({"up": {"type": "stream_update", "message_id": "m1_out",
                       "element": {"type": "text_delta", "text": "Hello"}}})
        ]
    );
    let cost = |amount: f64| {
        update(
            json!({"sessionUpdate": "usage_update", "used": 1, "size": 2,
                      "cost": {"amount": amount, "currency": "USD"}}),
        )
    };
    let told = hear(&mut bridge, &cost(0.1));
    assert_eq!(
        told[0],
        json!({"up": {"type": "usage", "token_usage":
                       {"input_tokens": 0, "output_tokens": 0, "cost": "0.1"}}})
    );
    assert_eq!(told[1]["up"]["deltas"][0]["value"]["cost"], "0.1");
    let told = hear(&mut bridge, &cost(0.3));
    assert_eq!(
        told[0]["up"]["token_usage"]["cost"], "0.3",
        "the turn's sum"
    );
    assert_eq!(hear(&mut bridge, &cost(0.3)), Vec::<Value>::new());
    let done = json!({"stopReason": "end_turn", "usage": {"totalTokens": 9, "inputTokens": 7, "outputTokens": 2}});
    assert_eq!(
        hear(&mut bridge, &result(3, done)),
        [
            json!({"up": {"type": "complete", "message_id": "m1_out", "finish_reason": "end_turn",
                       "token_usage": {"input_tokens": 7, "output_tokens": 2, "cost": "0.3"}}})
        ]
    );
    // Nothing belongs to a turn that is over.
    assert_eq!(hear(&mut bridge, &text("late")), Vec::<Value>::new());
}

#[test]
fn stop_reasons_are_finish_reasons() {
    for (stop, finish) in [
        ("end_turn", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("refusal", "refusal"),
        ("max_turn_requests", "max_turn_requests"),
        ("cancelled", "cancelled"),
    ] {
        let mut bridge = running();
        assert_eq!(
            hear(&mut bridge, &result(3, json!({"stopReason": stop}))),
            [complete(finish)]
        );
    }
}

#[test]
fn a_refused_prompt_ends_the_turn_with_an_error_that_is_told() {
    let mut bridge = running();
    let failed = hear(
        &mut bridge,
        &json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -32603, "message": "overloaded"}}),
    );
    assert_eq!(failed[0]["log"][0], "error");
    assert_eq!(
        failed[1]["up"]["element"]["text"],
        "The agent failed: overloaded"
    );
    assert_eq!(failed[2], complete("error"));
    assert_eq!(
        say(&mut bridge, message("m2", "again")),
        [prompt(4, &["again"])]
    );
}

#[test]
fn guidance_is_the_turns_next_prompt() {
    let mut bridge = running();
    let steer = CoordinatorToAgent::Steer {
        content: "left".to_owned(),
    };
    assert_eq!(say(&mut bridge, steer), Vec::<Value>::new());
    let end = json!({"stopReason": "end_turn"});
    assert_eq!(
        hear(&mut bridge, &result(3, end.clone())),
        [prompt(4, &["left"])]
    );
    assert_eq!(hear(&mut bridge, &result(4, end)), [complete("end_turn")]);
}

fn permission(id: i64) -> Value {
    let option =
        |kind: PermissionOptionKind, id: &str| json!({"optionId": id, "name": id, "kind": kind});
    json!({"jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s1",
        "toolCall": {"toolCallId": "c", "title": "Run it", "kind": "execute", "rawInput": {"command": "make"}},
        "options": [option(PermissionOptionKind::AllowOnce, "yes"), option(PermissionOptionKind::RejectOnce, "no")]}})
}

fn chosen(id: i64, outcome: Value) -> Value {
    json!({"down": {"jsonrpc": "2.0", "id": id, "result": {"outcome": outcome}}})
}

#[test]
fn a_permission_request_is_an_approval() {
    let mut bridge = running();
    assert_eq!(
        hear(&mut bridge, &permission(70)),
        [
            json!({"up": {"type": "stream_update", "message_id": "m1_out", "element":
                   {"type": "tool_call", "call_id": "c", "name": "execute", "arguments": {"command": "make"}}}}),
            json!({"up": {"type": "approval_request", "request_id": "permission_1", "action": "Run it",
                          "command": "make"}}),
        ]
    );
    let approve = |approved| {
        CoordinatorToAgent::ApprovalResult(ApprovalResult {
            request_id: "permission_1".to_owned(),
            approved,
            ..ApprovalResult::default()
        })
    };
    let selected = json!({"outcome": "selected", "optionId": "yes"});
    assert_eq!(say(&mut bridge, approve(true)), [chosen(70, selected)]);
    assert_eq!(say(&mut bridge, approve(false)), Vec::<Value>::new());
}

#[test]
fn a_cancel_reaches_the_agent_and_answers_what_is_open() {
    let mut bridge = running();
    hear(&mut bridge, &permission(70));
    let cancel = |id: &str| CoordinatorToAgent::Cancel {
        message_id: id.into(),
    };
    assert_eq!(say(&mut bridge, cancel("another")), Vec::<Value>::new());
    assert_eq!(
        say(&mut bridge, cancel("m1")),
        [
            json!({"down": {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}}),
            chosen(70, json!({"outcome": "cancelled"})),
        ]
    );
    assert_eq!(say(&mut bridge, cancel("m1")), Vec::<Value>::new());
    assert_eq!(
        hear(&mut bridge, &permission(71)),
        [chosen(71, json!({"outcome": "cancelled"}))]
    );
    // Some agents answer a cancelled prompt with an error.
    let end = hear(
        &mut bridge,
        &json!({"jsonrpc": "2.0", "id": 3, "error": {"code": -32800, "message": "cancelled"}}),
    );
    assert_eq!(end.last().unwrap(), &complete("cancelled"));
    assert_eq!(end.first().unwrap()["up"]["element"]["type"], "tool_result");
}

#[test]
fn a_shutdown_cancels_the_turn_first() {
    let shutdown = || CoordinatorToAgent::Shutdown {
        reason: "user".to_owned(),
    };
    assert_eq!(say(&mut open(), shutdown()), [json!("stop")]);
    let mut bridge = running();
    let cancel = say(&mut bridge, shutdown());
    assert_eq!(cancel[0]["down"]["method"], "session/cancel");
    assert_eq!(
        hear(&mut bridge, &result(3, json!({"stopReason": "cancelled"}))),
        [complete("cancelled"), json!("stop")]
    );
}

#[test]
fn requests_are_for_files_and_nothing_else() {
    let mut bridge = open();
    let request = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 9, "method": method, "params": params});
    assert_eq!(
        hear(
            &mut bridge,
            &request(
                "fs/read_text_file",
                json!({"sessionId": "s1", "path": "/w/a"})
            )
        ),
        [json!({"read": "/w/a"})]
    );
    let write = json!({"sessionId": "s1", "path": "/w/a", "content": "x"});
    assert_eq!(
        hear(&mut bridge, &request("fs/write_text_file", write)),
        [json!({"write": ["/w/a", "x"]})]
    );
    for (method, params, code) in [
        ("fs/read_text_file", json!({}), -32602),
        ("fs/write_text_file", json!({"sessionId": "s1"}), -32602),
        ("session/request_permission", json!(5), -32602),
        (
            "terminal/create",
            json!({"sessionId": "s1", "command": "ls"}),
            -32601,
        ),
        ("_vendor/thing", json!({}), -32601),
    ] {
        let refused = hear(&mut bridge, &request(method, params));
        assert_eq!(refused[0]["down"]["error"]["code"], code, "{method}");
        assert_eq!(refused[0]["down"]["id"], 9);
    }
    // Outside of a turn there is nobody to ask.
    assert_eq!(
        hear(&mut bridge, &permission(70)),
        [chosen(70, json!({"outcome": "cancelled"}))]
    );
}

#[test]
fn an_attachment_goes_along_where_the_agent_takes_it() {
    let mut bridge = open();
    let mut inbound = InboundMessage::text("m1", "look");
    inbound.data.attachments = vec![
        json!({"type": "resource_link", "name": "a", "uri": "file:///w/a"}),
        json!({"type": "image", "data": "AA==", "mimeType": "image/png"}),
        json!({"what": "is this"}),
    ];
    let sent = say(&mut bridge, CoordinatorToAgent::Message(inbound));
    assert_eq!([&sent[0]["log"][0], &sent[1]["log"][0]], ["warn", "warn"]);
    assert_eq!(
        sent[2]["down"]["params"]["prompt"],
        json!([{"type": "text", "text": "look"},
               {"type": "resource_link", "name": "a", "uri": "file:///w/a"}])
    );
}

#[test]
fn what_cannot_go_on_is_an_error_that_says_why() {
    let handshake = |answer: Value| {
        let mut bridge = Bridge::new();
        say(&mut bridge, init(Value::Null, json!({})));
        let incoming = rpc::parse(answer.to_string().as_bytes()).unwrap();
        bridge.agent(incoming, NOW).unwrap_err()
    };
    assert_eq!(
        handshake(result(1, json!({"protocolVersion": 2}))),
        BridgeError::Version { version: 2 }
    );
    assert!(matches!(
        handshake(result(1, json!("hello"))),
        BridgeError::WrongAnswer {
            method: "initialize",
            ..
        }
    ));
    assert!(matches!(
        handshake(json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}})),
        BridgeError::Refused {
            method: "initialize",
            ..
        }
    ));

    let mut bridge = Bridge::new();
    assert!(bridge.coordinator(message("m1", "early")).is_err());
    let mut bridge = open();
    assert!(bridge.coordinator(init(Value::Null, json!({}))).is_err());
    for n in 0..=MESSAGE_LIMIT {
        bridge.coordinator(message(&format!("m{n}"), "x")).unwrap();
    }
    assert!(bridge.coordinator(message("one too many", "x")).is_err());
}

#[test]
fn noise_is_logged_and_passed_over() {
    let mut bridge = running();
    bridge.bad_line(&rpc::parse(b"npm notice").unwrap_err());
    assert_eq!(out(&mut bridge)[0]["log"][0], "warn");
    assert_eq!(
        hear(&mut bridge, &result(99, json!({})))[0]["log"][0],
        "warn"
    );
    let unknown = update(json!({"sessionUpdate": "hologram"}));
    assert_eq!(hear(&mut bridge, &unknown)[0]["log"][0], "debug");
    let other = json!({"jsonrpc": "2.0", "method": "_vendor/note", "params": {}});
    assert_eq!(hear(&mut bridge, &other), Vec::<Value>::new());
    let another = json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s2",
        "update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}}});
    assert_eq!(hear(&mut bridge, &another), Vec::<Value>::new());
}

#[test]
fn an_agent_that_wants_a_login_says_so_until_it_has_one() {
    let mut bridge = Bridge::new();
    say(&mut bridge, init(Value::Null, json!({})));
    let methods = json!([{"id": "o", "name": "OAuth"}, {"id": "k", "name": "API key"}]);
    let greeting = json!({"protocolVersion": 1, "authMethods": methods});
    hear(&mut bridge, &result(1, greeting));
    let locked = |id: i64| json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": "login"}});
    assert_eq!(hear(&mut bridge, &locked(2)).len(), 1);
    assert!(!bridge.is_opening());

    let again = say(&mut bridge, message("m1", "hi"));
    assert_eq!(again[0]["down"]["method"], "session/new");
    let refused = hear(&mut bridge, &locked(3));
    let told = refused[1]["up"]["element"]["text"].as_str().unwrap();
    assert!(told.contains("OAuth, API key"), "{told}");
    assert_eq!(refused[2], complete("error"));

    say(&mut bridge, message("m2", "hi"));
    let open = hear(&mut bridge, &result(4, json!({"sessionId": "s1"})));
    assert_eq!(open[1], prompt(5, &["hi"]));
}
