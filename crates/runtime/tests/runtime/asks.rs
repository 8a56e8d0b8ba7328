//! Questions and approvals wait for a person, whoever is connected.

use futures_util::StreamExt;
use quintet_control::Client;
use quintet_control::wire::{
    AnswerApprovalMsg, ApprovalScope, AttachMsg, ReplyToAskMsg, stream_event::Event,
};

use crate::harness::{TestDaemon, again, code, run, script, streamed, text_of};

#[tokio::test]
async fn a_question_waits_for_a_client_that_comes_later_and_the_first_answer_wins() {
    let daemon = TestDaemon::start().await;
    let mut first = daemon.client().await;
    let stream = first.stream(streamed(script(&[r#"{"ask": "really?"}"#])));
    let begun: Vec<_> = stream.take(1).collect().await;
    assert_eq!(begun.len(), 1);
    drop(first);
    let session = 1;
    daemon.wait_for(session, "ask_user").await;

    let mut later = daemon.client().await;
    let pending = later.asks().await.expect("lists").asks;
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].questions[0].question, "really?");
    let mut second = daemon.client().await;
    let attached = second.attach(AttachMsg {
        session,
        after_seq: None,
        turn: None,
    });
    tokio::pin!(attached);
    loop {
        let event = attached.next().await.expect("goes on").expect("streams");
        if let Some(Event::AskUser(ask)) = event.event {
            assert_eq!(ask.questions[0].options[0].label, "yes");
            break;
        }
    }
    let reply = |content: &str| ReplyToAskMsg {
        ask: None,
        session,
        content: content.into(),
    };
    later.reply_to_ask(reply("yes")).await.expect("pending");
    assert_eq!(code(later.reply_to_ask(reply("no")).await), 404);
    let rest: Vec<_> = attached
        .map(|event| event.expect("streams"))
        .collect()
        .await;
    assert_eq!(
        text_of(&rest),
        r#"{"status": "answered", "answers": [["yes"]]}"#
    );
    assert!(later.asks().await.expect("lists").asks.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn an_approval_is_bound_to_the_action_and_lasts_as_long_as_was_said() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let decide = async |approved: bool, scope: ApprovalScope, reason: &str| {
        let mut other = daemon.client().await;
        let approval = loop {
            if let Some(first) = other.approvals().await.expect("lists").approvals.pop() {
                break first;
            }
        };
        assert_eq!(
            (approval.action.as_str(), approval.cwd.as_str()),
            ("run", "/w")
        );
        let answer = AnswerApprovalMsg {
            id: approval.id,
            approved,
            reason: reason.into(),
            scope: scope.into(),
            rule: String::new(),
        };
        other
            .answer_approval(answer.clone())
            .await
            .expect("pending");
        assert_eq!(code(other.answer_approval(answer).await), 409);
        approval.command
    };
    let ask = |command: &str| format!(r#"{{"approve": "{command}"}}"#);

    let (denied, command) = tokio::join!(
        run(&mut client, script(&[&ask("rm x")])),
        decide(false, ApprovalScope::Once, "too dangerous"),
    );
    assert_eq!(
        (text_of(&denied).as_str(), command.as_str()),
        ("denied: too dangerous", "rm x")
    );
    let session = 1;
    let (once, _) = tokio::join!(
        run(&mut client, again(session, &[&ask("make")])),
        decide(true, ApprovalScope::Session, ""),
    );
    assert_eq!(text_of(&once), "approved");
    let granted = run(&mut client, again(session, &[&ask("make")])).await;
    assert_eq!(
        text_of(&granted),
        "approved",
        "the session has leave for the same action"
    );
    let (other, command) = tokio::join!(
        run(&mut client, again(session, &[&ask("make install")])),
        decide(true, ApprovalScope::Once, ""),
    );
    assert_eq!(
        (text_of(&other).as_str(), command.as_str()),
        ("approved", "make install")
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_question_is_withdrawn_with_its_turn() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let stream = client.stream(streamed(script(&[r#"{"ask": "really?"}"#])));
    tokio::pin!(stream);
    let _start = stream.next().await;
    daemon.wait_for(1, "ask_user").await;
    let mut other = daemon.client().await;
    let kill = quintet_control::wire::KillMsg { session: 1 };
    other.kill(kill).await.expect("there");
    while stream.next().await.is_some() {}
    assert!(other.asks().await.expect("lists").asks.is_empty());
    assert!(
        daemon
            .journal(Some(1))
            .await
            .iter()
            .any(|event| event.kind == "ask_withdrawn")
    );
    daemon.stop().await;
}
