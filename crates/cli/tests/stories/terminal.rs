//! The conversation in a real terminal.

use std::num::NonZeroU16;
use std::path::Path;

use pty_process::{Pty, Size};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

use crate::harness::{Finished, Machine, within};

const ROWS: NonZeroU16 = NonZeroU16::new(30).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(80).unwrap();

/// A person in front of a terminal.
struct Person {
    pty: Pty,
    child: Child,
    terminal: vt100::Parser,
}

impl Person {
    fn opens(machine: &Machine, arguments: &[&str]) -> Self {
        Self::opens_program(env!("CARGO_BIN_EXE_quintet").as_ref(), machine, arguments)
    }

    fn opens_program(program: &Path, machine: &Machine, arguments: &[&str]) -> Self {
        Self::opens_with(program, machine, arguments, &[])
    }

    fn opens_with(
        program: &Path,
        machine: &Machine,
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Self {
        let (pty, pts) = pty_process::open().unwrap();
        pty.resize(Size::new(ROWS.get(), COLUMNS.get())).unwrap();
        let child = pty_process::Command::new(program)
            .args(arguments)
            .env_clear()
            .env("HOME", machine.path())
            .env("TERM", "xterm-256color")
            .envs(env.iter().copied())
            .current_dir(machine.path())
            .kill_on_drop(true)
            .spawn(pts)
            .unwrap();
        Self {
            pty,
            child,
            terminal: vt100::Parser::new(ROWS, COLUMNS, 0),
        }
    }

    async fn types(&mut self, keys: &str) {
        self.pty.write_all(keys.as_bytes()).await.unwrap();
    }

    /// Reads the screen until it shows this text.
    async fn sees(&mut self, text: &str) {
        let what = format!("the screen shows {text:?}");
        let mut bytes = [0; 4096];
        let reading = async {
            while !self.terminal.screen().contents().contains(text) {
                let count = self.pty.read(&mut bytes).await.unwrap();
                assert!(
                    count > 0,
                    "it ended:\n{}",
                    self.terminal.screen().contents()
                );
                self.terminal.process(&bytes[..count]);
            }
        };
        within(&what, reading).await;
    }

    /// How the first cell of this text looks, where the screen shows it last.
    fn looks_at(&self, text: &str) -> Look {
        let screen = self.terminal.screen();
        let lines = screen.contents();
        let numbered: Vec<(&str, u16)> = lines.lines().zip(0..).collect();
        let found = numbered
            .iter()
            .rev()
            .find_map(|&(line, row)| Some((row, line.split_once(text)?.0.chars().count())));
        let (row, column) = found.unwrap_or_else(|| panic!("no {text:?} in\n{lines}"));
        let cell = screen.cell(row, u16::try_from(column).unwrap()).unwrap();
        Look {
            color: cell.fgcolor(),
            bold: cell.bold(),
        }
    }

    fn resizes(&mut self, rows: NonZeroU16, columns: NonZeroU16) {
        self.pty
            .resize(Size::new(rows.get(), columns.get()))
            .unwrap();
        self.terminal.screen_mut().set_size(rows, columns);
    }

    /// Waits until the program reads keys one by one, as at a prompt: what is typed while it still
    /// changes the terminal's mode is thrown away.
    async fn is_asked(&self) {
        let by_line = || {
            let mode = rustix::termios::tcgetattr(&self.pty).unwrap();
            mode.local_modes
                .contains(rustix::termios::LocalModes::ICANON)
        };
        let asked = async {
            while by_line() {
                tokio::task::yield_now().await;
            }
        };
        within("it reads keys", asked).await;
    }

    async fn leaves(mut self) {
        self.types("\u{4}").await;
        let mut bytes = [0; 4096];
        // The end of a terminal's output comes as an error.
        while let Ok(count @ 1..) = within("it ends", self.pty.read(&mut bytes)).await {
            self.terminal.process(&bytes[..count]);
        }
        assert!(
            within("it ends", self.child.wait())
                .await
                .unwrap()
                .success()
        );
        assert!(
            !self.terminal.screen().alternate_screen(),
            "the terminal is as it was"
        );
    }
}

#[derive(Debug, PartialEq)]
struct Look {
    color: vt100::Color,
    bold: bool,
}

#[tokio::test]
async fn code_has_colours_and_with_no_color_none() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let text = "say Look:\n\n# Title\n\n**strong**\n\n```rust\nfn main() { say(\"hello\", 42); } // note\n```";
    machine.runs(&["send", "test", text]).await.succeeds();
    let program = Path::new(env!("CARGO_BIN_EXE_quintet"));
    let chat = ["chat", "--session", "1"];
    let mut looks = Vec::new();
    for env in [&[][..], &[("NO_COLOR", "1")]] {
        let mut person = Person::opens_with(program, &machine, &chat, env);
        person.sees("● online").await;
        person.sees("// note").await;
        let seen = ["fn main", "\"hello\"", "42", "main()", "Title", "strong"];
        looks.push(seen.map(|text| person.looks_at(text)));
        person.leaves().await;
    }
    let colors = |looks: &[Look; 6]| looks.each_ref().map(|look| look.color);
    let default = vt100::Color::Default;
    let [keyword, string, number, name, title, _] = colors(&looks[0]);
    for color in [keyword, string, number, title] {
        assert_ne!(color, default, "{looks:?}");
    }
    assert!(keyword != string && string != number, "{looks:?}");
    assert_eq!(name, default, "{looks:?}");
    assert_eq!(colors(&looks[1]), [default; 6]);
    // What is not a colour stays.
    for [.., title, strong] in &looks {
        assert!(title.bold && strong.bold, "{looks:?}");
    }
}

#[tokio::test]
async fn a_conversation_survives_the_terminal_and_the_daemon() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut person = Person::opens(&machine, &["chat", "test"]);
    person.sees("● online").await;
    person.types("say **hello** there\r").await;
    person.sees("› say **hello** there").await;
    person.sees("hello there").await;
    person.types("ask\r").await;
    person.sees("Which colour?").await;
    person.sees("❯ 1 red").await;
    // Keys that come at once are taken for typing that was under way: look first.
    person.types("\u{1b}").await;
    person.sees("it keeps waiting").await;
    person.types("\u{7}").await;
    person.sees("❯ 1 red").await;
    person.leaves().await;
    machine.runs(&["reply", "1", "blue"]).await.succeeds();

    // Another terminal shows the same conversation.
    let mut person = Person::opens(&machine, &["chat", "test"]);
    person.sees("› say **hello** there").await;
    person.sees("you said blue").await;

    // The daemon goes away and comes back, and so does the conversation.
    assert!(daemon.stops().await.success());
    person.sees("daemon away").await;
    person.types("say again").await;
    person.sees("say again").await;
    let _daemon = machine.up().await;
    person.sees("● online").await;
    person.types("\r").await;
    person.sees("› say again").await;
    person.resizes(NonZeroU16::new(12).unwrap(), NonZeroU16::new(40).unwrap());
    person
        .sees("╭ Enter sends · Alt-Enter new line · F1╮")
        .await;
    person.types("/switch 77\r").await;
    person.sees("session 77 not found").await;
    person.leaves().await;
    assert_eq!(
        machine.runs(&["sessions", "--json"]).await.json()[0]["messages"],
        3
    );
}

/// The released command line of the original protocol; `install-peers.sh` installs it.
const CRABTALK: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../.cache/crabtalk/bin/crabtalk"
);

#[tokio::test]
async fn the_original_command_line_talks_to_the_daemon() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up_with(&["--crabtalk-compat"]).await;
    let mut reload = machine.program(CRABTALK);
    reload.args(["daemon", "reload"]);
    assert_eq!(Finished::of(reload).await.succeeds(), "daemon reloaded\n");

    let attach = ["attach", "--agent", "test"];
    let mut person = Person::opens_program(CRABTALK.as_ref(), &machine, &attach);
    person.sees("Ctrl+D to exit").await;
    person.types("say hello there\r").await;
    person.sees("⏺ hello there").await;
    machine.sees("turn_ended", 1).await;
    person.types("ask\r").await;
    person.sees("Which colour?").await;
    // The arrow down chooses, and this client sends its answers as JSON.
    person.types("\u{1b}[B\r").await;
    person.sees("Review your answers").await;
    person.types("\r").await;
    person.sees(r#"you said {"Which colour?":"blue"}"#).await;
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["messages"], 2, "one session, two messages");
    person.is_asked().await;
    person.leaves().await;
}

#[tokio::test]
async fn a_workspace_shows_how_far_it_is_and_what_changed_in_colour() {
    let machine = Machine::fresh();
    let work = machine.path().join("work");
    std::fs::create_dir(&work).unwrap();
    // A hole, which takes a while to read.
    let large = std::fs::File::create(work.join("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    let mut serving = Person::opens(&machine, &["workspace", "serve", "work"]);
    serving.sees("reading ").await;
    serving.sees("is ready at").await;
    let words = ["--connect", "nowhere", "--sandbox-id", "a"];
    let mut following = Person::opens(
        &machine,
        &[&["workspace", "mirror", "a"], &words[..]].concat(),
    );
    following.sees("not connected").await;
    following.sees("0 files to come").await;

    std::fs::write(work.join("f"), "kept\nremoved\n").unwrap();
    let checkpoint = ["workspace", "checkpoint", "first", "--dir", "work"];
    machine.runs(&checkpoint).await.succeeds();
    std::fs::write(work.join("f"), "kept\nadded\n").unwrap();
    let diff = ["workspace", "diff", "first..", "--dir", "work"];
    let mut reading = Person::opens(&machine, &diff);
    reading.sees("+added").await;
    let looks = ["+added", "-removed", " kept"].map(|text| reading.looks_at(text).color);
    assert!(
        looks[0] != looks[1] && looks[0] != looks[2] && looks[1] != looks[2],
        "{looks:?}"
    );
    assert_eq!(looks[2], vt100::Color::Default);
}
