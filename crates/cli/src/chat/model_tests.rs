use super::*;
use crate::chat::event::{Approval, Ask, Choice, Message, Purpose, Question, TurnEnd, Usage};

/// A conversation whose clock goes one second further with every input.
struct Talk {
    model: Model,
    seq: u64,
    now: Timestamp,
}

impl Talk {
    fn new(session: Option<u64>) -> Self {
        let now = Timestamp::UNIX_EPOCH;
        let mut talk = Self {
            model: Model::new("coder".into(), session, now),
            seq: 0,
            now,
        };
        talk.input(Input::Connection(Connection::Online));
        talk
    }

    fn input(&mut self, input: Input) -> Vec<Effect> {
        self.now += jiff::SignedDuration::from_secs(1);
        self.model.update(input, self.now)
    }

    fn happens(&mut self, what: What) {
        self.seq += 1;
        let event = Event {
            seq: self.seq,
            at: self.now,
            what,
        };
        let opened = self.model.opened;
        assert_eq!(self.input(Input::Event { opened, event }), []);
    }

    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> Vec<Effect> {
        self.input(Input::Key(KeyEvent::new(code, modifiers)))
    }

    fn key(&mut self, code: KeyCode) -> Vec<Effect> {
        self.press(code, KeyModifiers::NONE)
    }

    fn control(&mut self, char: char) -> Vec<Effect> {
        self.press(KeyCode::Char(char), KeyModifiers::CONTROL)
    }

    fn types(&mut self, text: &str) {
        for char in text.chars() {
            assert_eq!(self.key(KeyCode::Char(char)), []);
        }
    }

    fn says(&mut self, text: &str) -> Vec<Effect> {
        self.types(text);
        self.key(KeyCode::Enter)
    }

    fn turn(&mut self) {
        self.happens(What::Message(Message {
            id: self.seq + 1,
            text: "do it".into(),
            sender: "user".into(),
            purpose: Purpose::Message,
        }));
        self.happens(What::TurnStarted);
    }
}

fn approval(id: u64) -> What {
    What::Approval(Approval {
        id,
        action: "exec".into(),
        command: "make".into(),
        cwd: String::new(),
        worker: String::new(),
        reason: String::new(),
        rule: "{ command = \"make\", action = \"allow\" }".into(),
        rule_place: "at the end of [policy] rules".into(),
    })
}

fn ask(id: u64) -> What {
    What::Ask(Ask {
        id,
        questions: vec![Question {
            question: "Which?".into(),
            header: String::new(),
            options: vec![Choice {
                label: "this".into(),
                description: String::new(),
            }],
            multi_select: false,
        }],
    })
}

#[test]
fn the_first_message_makes_a_session_and_follows_it() {
    let mut talk = Talk::new(None);
    assert_eq!(
        talk.says("hi"),
        [Effect::Send {
            session: None,
            text: "hi".into()
        }]
    );
    assert_eq!(
        talk.says("more"),
        [],
        "one at a time until the session is known"
    );
    assert_eq!(
        talk.input(Input::Started { session: 7 }),
        [Effect::Follow { session: Some(7) }]
    );
    assert_eq!(
        talk.key(KeyCode::Enter),
        [Effect::Send {
            session: Some(7),
            text: "more".into()
        }]
    );
}

#[test]
fn enter_while_the_agent_works_steers_and_tab_makes_it_queue() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    assert_eq!(
        talk.says("left"),
        [Effect::Steer {
            session: 1,
            text: "left".into()
        }]
    );
    talk.key(KeyCode::Tab);
    assert_eq!(
        talk.says("later"),
        [Effect::Send {
            session: Some(1),
            text: "later".into()
        }]
    );
    talk.happens(What::TurnEnded(TurnEnd::default()));
    talk.turn();
    assert_eq!(
        talk.model.while_busy,
        WhileBusy::Steer,
        "each turn begins with steering"
    );
}

#[test]
fn several_lines_are_one_message() {
    let mut talk = Talk::new(Some(1));
    talk.types("a");
    talk.press(KeyCode::Enter, KeyModifiers::ALT);
    talk.types("b");
    talk.control('j');
    talk.input(Input::Paste("c\nd".into()));
    assert_eq!(
        talk.key(KeyCode::Enter),
        [Effect::Send {
            session: Some(1),
            text: "a\nb\nc\nd".into()
        }]
    );
}

#[test]
fn nothing_typed_is_lost_while_the_daemon_is_away() {
    let mut talk = Talk::new(Some(1));
    talk.input(Input::Connection(Connection::Lost { attempt: 1 }));
    assert_eq!(talk.says("important"), []);
    assert_eq!(talk.model.composer.text(), "important");
    talk.input(Input::Connection(Connection::Online));
    let notice = talk
        .model
        .notice
        .as_ref()
        .map(|notice| notice.text.as_str());
    assert_eq!(notice, Some("the daemon is back; Enter sends the message"));
    assert_eq!(
        talk.key(KeyCode::Enter),
        [Effect::Send {
            session: Some(1),
            text: "important".into()
        }]
    );
    talk.input(Input::Refused {
        message: "the connection was lost".into(),
        unsent: Some("important".into()),
    });
    assert_eq!(
        talk.model.composer.text(),
        "important",
        "what was not sent comes back"
    );
}

#[test]
fn rows_seen_before_and_rows_of_another_conversation_are_skipped() {
    let mut talk = Talk::new(Some(1));
    let event = Event {
        seq: 5,
        at: talk.now,
        what: What::Text {
            text: "once".into(),
        },
    };
    talk.input(Input::Event {
        opened: 0,
        event: event.clone(),
    });
    talk.input(Input::Event {
        opened: 0,
        event: event.clone(),
    });
    talk.input(Input::Event {
        opened: 7,
        event: Event { seq: 6, ..event },
    });
    let [entry] = talk.model.transcript.entries() else {
        panic!("one block");
    };
    assert_eq!(
        entry.block,
        Block::Answer {
            text: "once".into()
        }
    );
    assert_eq!(talk.model.cursor, 5);
}

#[test]
fn an_approval_takes_the_keys_when_nothing_is_being_typed() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(approval(3));
    assert_eq!(
        talk.key(KeyCode::Char('s')),
        [Effect::AnswerApproval {
            approval: 3,
            approved: true,
            scope: ApprovalScope::Session,
            reason: String::new(),
        }]
    );
    assert!(talk.model.prompt().is_none() && !talk.model.prompt_focus);

    talk.input(Input::Refused {
        message: "the connection was lost".into(),
        unsent: None,
    });
    assert!(
        talk.model.prompt().is_some(),
        "it still waits for an answer"
    );
    talk.happens(What::ApprovalOver {
        approval: 3,
        approved: Some(true),
    });
    assert!(talk.model.prompts.is_empty());
}

#[test]
fn what_is_being_typed_never_answers_an_approval() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.types("sa");
    talk.happens(approval(3));
    talk.types("y");
    assert_eq!(talk.model.composer.text(), "say");
    talk.control('c');

    talk.model.prompts.clear();
    talk.happens(approval(4));
    let at_once = talk.model.now + jiff::SignedDuration::from_millis(100);
    let key = Input::Key(KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE));
    assert_eq!(talk.model.update(key, at_once), [], "the guard holds");
    assert_eq!(talk.model.prompts.len(), 1);
}

#[test]
fn always_writes_the_rule_that_is_shown() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(approval(3));
    assert_eq!(
        talk.key(KeyCode::Char('a')),
        [Effect::AnswerApproval {
            approval: 3,
            approved: true,
            scope: ApprovalScope::Rule,
            reason: String::new(),
        }]
    );
}

#[test]
fn a_denial_can_say_why() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(approval(3));
    assert_eq!(talk.key(KeyCode::Char('w')), []);
    assert_eq!(
        talk.says("too risky"),
        [Effect::AnswerApproval {
            approval: 3,
            approved: false,
            scope: ApprovalScope::Once,
            reason: "too risky".into(),
        }]
    );
}

#[test]
fn a_question_that_another_client_answered_goes_away() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(ask(8));
    talk.happens(ask(9));
    talk.happens(What::AskOver {
        ask: 8,
        answer: Some("that".into()),
    });
    assert_eq!(
        talk.key(KeyCode::Char('1')),
        [Effect::Reply {
            session: 1,
            ask: 9,
            text: "this".into()
        }]
    );
}

#[test]
fn a_question_can_wait_and_is_found_again() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(ask(8));
    assert_eq!(talk.key(KeyCode::Esc), []);
    talk.types("x");
    assert_eq!(talk.model.composer.text(), "x");
    talk.control('g');
    assert_eq!(
        talk.key(KeyCode::Enter),
        [Effect::Reply {
            session: 1,
            ask: 8,
            text: "this".into()
        }]
    );
}

#[test]
fn control_c_clears_then_stops_then_leaves() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.types("draft");
    assert_eq!(talk.control('c'), []);
    assert!(talk.model.composer.is_empty());
    assert_eq!(talk.control('c'), [Effect::Cancel { session: 1 }]);
    assert_eq!(talk.control('c'), [Effect::Quit]);

    let mut idle = Talk::new(Some(1));
    assert_eq!(idle.control('c'), []);
    idle.types("x");
    idle.key(KeyCode::Backspace);
    assert_eq!(idle.control('c'), [], "another key in between starts again");
    assert_eq!(idle.control('c'), [Effect::Quit]);
}

#[test]
fn slash_commands_do_what_they_say() {
    let mut talk = Talk::new(Some(4));
    for (typed, want) in [
        (
            "/title a name",
            Effect::SetTitle {
                session: 4,
                title: "a name".into(),
            },
        ),
        ("/compact", Effect::Compact { session: 4 }),
        ("/undo-compact", Effect::UndoCompact { session: 4 }),
        ("/cancel", Effect::Cancel { session: 4 }),
        ("/retry", Effect::Retry { session: 4 }),
        ("/kill", Effect::Kill { session: 4 }),
        ("/sessions", Effect::ListSessions),
        ("/quit", Effect::Quit),
    ] {
        assert_eq!(talk.says(typed), [want], "{typed}");
        assert!(talk.model.composer.is_empty());
    }
    assert_eq!(
        talk.says("/switch 9"),
        [Effect::Follow { session: Some(9) }]
    );
    assert_eq!(talk.says("/new"), [Effect::Follow { session: None }]);
    assert_eq!(talk.says("/kill"), []);
    assert!(talk.model.notice.is_some(), "there is no session to kill");
}

#[test]
fn tab_completes_a_command() {
    let mut talk = Talk::new(Some(4));
    talk.types("/ti");
    talk.key(KeyCode::Tab);
    assert_eq!(talk.model.composer.text(), "/title ");
}

#[test]
fn another_session_starts_with_a_clean_page() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(approval(3));
    talk.happens(What::Text { text: "old".into() });
    talk.input(Input::Sessions(vec![
        SessionLine {
            id: 1,
            agent: "coder".into(),
            title: String::new(),
            messages: 1,
            active: true,
        },
        SessionLine {
            id: 2,
            agent: "shell".into(),
            title: String::new(),
            messages: 1,
            active: false,
        },
    ]));
    talk.key(KeyCode::Up);
    assert_eq!(
        talk.key(KeyCode::Enter),
        [Effect::Follow { session: Some(2) }]
    );
    let model = &talk.model;
    assert_eq!(model.agent, "shell");
    assert_eq!(model.cursor, 0);
    assert!(model.transcript.entries().is_empty() && model.prompts.is_empty() && !model.busy());
}

#[test]
fn scrolling_up_stays_and_the_end_follows_again() {
    let mut talk = Talk::new(Some(1));
    talk.model.extent = Extent {
        lines: 100,
        height: 21,
        help: 0,
    };
    talk.key(KeyCode::PageUp);
    assert_eq!(talk.model.scroll, Scroll::At(59));
    talk.press(KeyCode::Up, KeyModifiers::CONTROL);
    assert_eq!(talk.model.scroll, Scroll::At(58));
    talk.key(KeyCode::PageDown);
    talk.key(KeyCode::PageDown);
    assert_eq!(talk.model.scroll, Scroll::Follow);
    talk.model.extent = Extent {
        lines: 5,
        height: 21,
        help: 0,
    };
    talk.key(KeyCode::PageUp);
    assert_eq!(talk.model.scroll, Scroll::Follow, "all of it is in view");
}

#[test]
fn one_block_can_be_chosen_and_unfolded() {
    let mut talk = Talk::new(Some(1));
    talk.happens(What::Thinking { text: "hm".into() });
    talk.happens(What::Text { text: "a".into() });
    talk.happens(What::ToolCall {
        call_id: "c".into(),
        name: "exec".into(),
        arguments: "{}".into(),
    });
    let unfolded = |talk: &Talk| -> Vec<bool> {
        talk.model
            .transcript
            .entries()
            .iter()
            .map(|entry| entry.unfolded)
            .collect()
    };
    talk.control('p');
    assert_eq!(talk.model.chosen, Some(2));
    talk.control('p');
    assert_eq!(talk.model.chosen, Some(0));
    talk.control('o');
    assert_eq!(unfolded(&talk), [true, false, false]);
    talk.key(KeyCode::Esc);
    talk.control('o');
    assert_eq!(unfolded(&talk), [true, false, true]);
    talk.control('t');
    assert_eq!(unfolded(&talk), [false, false, true]);
}

#[test]
fn costs_add_up_as_decimals() {
    let mut talk = Talk::new(Some(1));
    for cost in ["0.1", "0.2"] {
        talk.happens(What::TurnEnded(TurnEnd {
            usage: Usage {
                cost: cost.parse().unwrap(),
            },
            ..TurnEnd::default()
        }));
    }
    assert_eq!(talk.model.cost.to_string(), "0.3");
}

#[test]
fn a_closed_session_takes_no_more() {
    let mut talk = Talk::new(Some(1));
    talk.turn();
    talk.happens(What::Closed);
    assert_eq!(talk.says("hello?"), []);
    assert!(talk.model.notice.is_some());
}

#[test]
fn a_session_that_is_not_there_is_not_open() {
    let mut talk = Talk::new(Some(1));
    assert_eq!(
        talk.says("/switch 9"),
        [Effect::Follow { session: Some(9) }]
    );
    let opened = talk.model.opened;
    talk.input(Input::NoSession {
        opened: opened - 1,
        session: 1,
    });
    assert_eq!(talk.model.session, Some(9), "told of another conversation");
    let back = talk.input(Input::NoSession { opened, session: 9 });
    assert_eq!(back, [Effect::Follow { session: Some(1) }]);
    assert_eq!(talk.model.session, Some(1), "back to the one before");
    assert!(talk.model.notice.is_some());
    let opened = talk.model.opened;
    assert_eq!(
        talk.input(Input::NoSession { opened, session: 1 }),
        [],
        "where there is none before, it is a new one"
    );
    assert_eq!(talk.model.session, None);
}

#[test]
fn the_help_scrolls_where_it_does_not_fit() {
    let mut talk = Talk::new(Some(1));
    talk.key(KeyCode::F(1));
    assert_eq!(talk.model.help, Some(0));
    talk.key(KeyCode::Down);
    assert_eq!(
        talk.model.help, None,
        "all of it is in view: any key closes"
    );

    talk.key(KeyCode::F(1));
    talk.model.extent.help = 12;
    for (key, top) in [
        (KeyCode::Down, 1),
        (KeyCode::PageDown, 11),
        (KeyCode::PageDown, 12),
        (KeyCode::Up, 11),
        (KeyCode::PageUp, 1),
    ] {
        talk.key(key);
        assert_eq!(talk.model.help, Some(top), "{key:?}");
    }
    talk.key(KeyCode::Esc);
    assert_eq!(talk.model.help, None);
    assert_eq!(talk.control('l'), [Effect::Redraw]);
}
