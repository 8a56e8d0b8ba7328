use super::*;
use crate::chat::event::{
    Approval, Ask, Choice, Event, FileChange, Message, Purpose, Question, ToolResult, TurnEnd, What,
};
use crate::chat::model::Input;
use crate::chat::picker::{Picker, SessionLine};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn told(all: Vec<What>) -> Model {
    let mut model = Model::new("coder".into(), Some(3), at(0));
    model.update(Input::Connection(Connection::Online), at(0));
    for (index, what) in all.into_iter().enumerate() {
        let event = Event {
            seq: index as u64 + 1,
            at: at(0),
            what,
        };
        model.update(Input::Event { opened: 0, event }, at(5));
    }
    model
}

fn drawn(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let mut view = View::default();
    terminal
        .draw(|frame| {
            view.draw(model, frame);
        })
        .unwrap();
    let first = terminal.backend().to_string();
    // A second frame comes from what was kept and must look the same.
    terminal
        .draw(|frame| {
            view.draw(model, frame);
        })
        .unwrap();
    assert_eq!(terminal.backend().to_string(), first);
    first
}

fn message(id: u64, text: &str) -> What {
    What::Message(Message {
        id,
        text: text.into(),
        sender: "user".into(),
        purpose: Purpose::Message,
    })
}

fn conversation() -> Vec<What> {
    vec![
        message(1, "How many lines has main.rs?"),
        What::TurnStarted,
        What::Titled {
            title: "Counting".into(),
        },
        What::Thinking {
            text: "I should count them with wc.".into(),
        },
        What::ToolCall {
            call_id: "c1".into(),
            name: "exec".into(),
            arguments: r#"{"command":"wc -l src/main.rs"}"#.into(),
        },
        What::ToolResult(ToolResult {
            call_id: "c1".into(),
            output: "31 src/main.rs\n".into(),
            is_error: false,
            duration_ms: 1234,
        }),
        What::ToolCall {
            call_id: "c2".into(),
            name: "read_file".into(),
            arguments: r#"{"path":"nowhere"}"#.into(),
        },
        What::ToolResult(ToolResult {
            call_id: "c2".into(),
            output: "no such file".into(),
            is_error: true,
            duration_ms: 8,
        }),
        What::File(FileChange {
            path: "src/main.rs".into(),
            change: "modified".into(),
            diff: Some("@@ -1 +1 @@\n-old\n+new".into()),
        }),
        What::Text {
            text: "It has **31** lines:\n\n```rust\nfn main() {}\n```".into(),
        },
        What::TurnEnded(TurnEnd::default()),
    ]
}

#[test]
fn a_conversation() {
    insta::assert_snapshot!(drawn(&told(conversation()), 60, 24));
}

#[test]
fn a_conversation_unfolded() {
    let mut model = told(conversation());
    for char in ['t', 'o'] {
        let key = KeyEvent::new(KeyCode::Char(char), KeyModifiers::CONTROL);
        model.update(Input::Key(key), at(5));
    }
    insta::assert_snapshot!(drawn(&model, 60, 36));
}

#[test]
fn a_running_turn_with_a_queue() {
    let mut events = conversation();
    events.truncate(5);
    events.push(message(2, "and lib.rs?"));
    let mut model = told(events);
    model.update(Input::Connection(Connection::Lost { attempt: 2 }), at(5));
    insta::assert_snapshot!(drawn(&model, 60, 14));
}

#[test]
fn a_question() {
    let model = told(vec![
        message(1, "set up a database"),
        What::TurnStarted,
        What::Ask(Ask {
            id: 1,
            questions: vec![Question {
                question: "Which database should it be?".into(),
                header: "Database".into(),
                options: vec![
                    Choice {
                        label: "SQLite".into(),
                        description: "one file".into(),
                    },
                    Choice {
                        label: "PostgreSQL".into(),
                        description: "a server".into(),
                    },
                ],
                multi_select: true,
            }],
        }),
    ]);
    insta::assert_snapshot!(drawn(&model, 60, 20));
}

#[test]
fn an_approval() {
    let model = told(vec![
        message(1, "clean up"),
        What::TurnStarted,
        What::Approval(Approval {
            id: 1,
            action: "exec".into(),
            command: "rm -r build".into(),
            cwd: "/work".into(),
            worker: "local".into(),
            reason: "policy rule 2".into(),
            rule: "{ tool = \"exec\", command = \"rm -r build\", action = \"allow\" }".into(),
            rule_place: "at the end of [policy] rules".into(),
        }),
    ]);
    insta::assert_snapshot!(drawn(&model, 60, 20));
}

#[test]
fn nothing_of_what_is_to_be_approved_is_hidden_unsaid() {
    let told = |command: &str| {
        let model = told(vec![What::Approval(Approval {
            id: 1,
            action: "exec".into(),
            command: command.into(),
            cwd: "/work".into(),
            worker: "local".into(),
            reason: "policy rule 2".into(),
            rule: String::new(),
            rule_place: String::new(),
        })]);
        drawn(&model, 60, 24)
    };
    let hidden = told("echo hi \u{1b}]0;rm -r .\u{7} \u{202e}x");
    assert!(
        hidden.contains("echo hi \\u{1b}]0;rm -r .\\u{7} \\u{202e}x"),
        "{hidden}"
    );
    let long = told(&format!("{}rm -r .", "echo\n".repeat(11)));
    assert!(
        long.contains("4 more lines, which `quintet approvals` shows"),
        "{long}"
    );
    assert!(
        long.contains("exec · local:/work · policy rule 2"),
        "{long}"
    );
}

#[test]
fn help_and_the_list_of_sessions() {
    let mut model = told(Vec::new());
    model.help = Some(0);
    insta::assert_snapshot!("help", drawn(&model, 86, 36));
    insta::assert_snapshot!("help_narrow", drawn(&model, 40, 24));
    model.help = None;
    model.picker = Some(Picker::new(
        (1..=3)
            .map(|id| SessionLine {
                id,
                agent: "coder".into(),
                title: format!("Session {id}"),
                messages: id * 2,
                active: id == 2,
            })
            .collect(),
        Some(3),
    ));
    insta::assert_snapshot!("picker", drawn(&model, 70, 12));
    insta::assert_snapshot!("picker_narrow", drawn(&model, 40, 12));
}

#[test]
fn commands_are_suggested() {
    let mut model = told(Vec::new());
    for char in "/c".chars() {
        model.update(
            Input::Key(KeyEvent::new(KeyCode::Char(char), KeyModifiers::NONE)),
            at(5),
        );
    }
    insta::assert_snapshot!(drawn(&model, 60, 12));
}

#[test]
fn any_size_can_be_drawn() {
    let model = told(conversation());
    for (width, height) in [(1, 1), (3, 2), (10, 4), (20, 8), (300, 80)] {
        drawn(&model, width, height);
    }
    let mut help = told(Vec::new());
    help.help = Some(0);
    drawn(&help, 2, 2);
}

#[test]
fn a_drawing_follows_its_block_when_blocks_move() {
    let mut terminal = Terminal::new(TestBackend::new(40, 20)).unwrap();
    let mut view = View::default();
    let mut model = told(vec![
        message(1, "first"),
        What::TurnStarted,
        message(2, "second"),
        What::Text { text: "one".into() },
    ]);
    terminal
        .draw(|frame| {
            view.draw(&model, frame);
        })
        .unwrap();
    for (index, what) in [
        What::TurnEnded(TurnEnd::default()),
        What::TurnStarted,
        What::Text { text: "two".into() },
    ]
    .into_iter()
    .enumerate()
    {
        let event = Event {
            seq: 10 + index as u64,
            at: at(5),
            what,
        };
        model.update(Input::Event { opened: 0, event }, at(5));
        terminal
            .draw(|frame| {
                view.draw(&model, frame);
            })
            .unwrap();
    }
    assert_eq!(terminal.backend().to_string(), drawn(&model, 40, 20));
}

#[test]
fn scrolled_up_it_says_how_much_is_below() {
    let mut model = told((1..=30).map(|id| message(id, "hello")).collect());
    model.scroll = Scroll::At(3);
    insta::assert_snapshot!(drawn(&model, 40, 12));
}

#[test]
fn a_long_title_is_cut_and_hides_nothing() {
    let mut talk = conversation();
    talk.push(What::Titled {
        title: "a title that is as long as the message it was made of".into(),
    });
    let screen = drawn(&told(talk), 50, 12);
    let status = screen.lines().last().unwrap();
    assert!(status.contains("… ● online"), "{status}");
}

#[test]
fn nothing_of_a_flag_stays_when_it_is_gone() {
    let mut terminal = Terminal::new(TestBackend::new(30, 12)).unwrap();
    let mut view = View::default();
    let mut frame = |model: &Model| {
        let mut drawn = Buffer::empty(Rect::ZERO);
        terminal
            .draw(|frame| {
                view.draw(model, frame);
                drawn = frame.buffer_mut().clone();
            })
            .unwrap();
        drawn
    };
    let first = frame(&told(vec![message(1, "x 🇩🇪 👍🏽 y")]));
    let flag = first.content.iter().position(|cell| cell.symbol() == "🇩🇪");
    let flag = flag.expect("it is one character");
    let mut other = told(vec![message(1, "plain")]);
    other.opened += 1;
    let second = frame(&other);
    // Where a terminal drew each half by itself, the second one is written over, too.
    assert!(
        second
            .diff(&second)
            .iter()
            .any(|(x, y, _)| { usize::from(*y) * 30 + usize::from(*x) == flag + 1 })
    );
}

#[test]
fn a_wide_character_does_not_reach_into_an_overlay() {
    let text = "日本語\n\n".repeat(8);
    let mut model = told(vec![
        message(1, "hi"),
        What::TurnStarted,
        What::Text { text },
    ]);
    let mut terminal = Terminal::new(TestBackend::new(60, 14)).unwrap();
    let mut at_the_edge = |model: &Model| {
        let mut view = View::default();
        terminal
            .draw(|frame| {
                view.draw(model, frame);
            })
            .unwrap();
        let buffer = terminal.backend().buffer();
        (2..12).filter(|y| buffer[(1, *y)].symbol() == "日").count()
    };
    assert!(at_the_edge(&model) > 0, "there are some");
    model.help = Some(0);
    assert_eq!(at_the_edge(&model), 0);
}

#[test]
fn a_long_notice_is_shown_whole() {
    let mut model = told(Vec::new());
    for char in "/nonsense".chars() {
        let key = KeyEvent::new(KeyCode::Char(char), KeyModifiers::NONE);
        model.update(Input::Key(key), at(5));
    }
    let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
    model.update(Input::Key(enter), at(6));
    let drawn = drawn(&model, 40, 14);
    assert!(drawn.contains("there is no /nonsense"), "{drawn}");
    assert!(drawn.contains("sends it as it is"), "{drawn}");
}
