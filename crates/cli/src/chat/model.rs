//! The conversation's state: what happened and what was pressed in, what to do out.
//!
//! No sockets, no terminal, no clock: the driver brings [`Input`] and the time, and carries out
//! every [`Effect`].

use std::collections::VecDeque;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use jiff::Timestamp;
use quintet_control::wire::ApprovalScope;
use rust_decimal::Decimal;

use super::composer::Composer;
use super::event::{Event, What};
use super::picker::{Picked, Picker, SessionLine};
use super::prompt::{Answer, Prompt};
use super::slash::{self, Slash};
use super::transcript::{Block, Tone, Transcript};

/// A prompt takes no key for this long, so that what was being typed does not answer it.
const PROMPT_GUARD: Duration = Duration::from_millis(400);

/// Lines of the help that a page is.
const HELP_PAGE: usize = 10;

/// What reaches the conversation.
#[derive(Debug)]
pub(crate) enum Input {
    /// A row of the journal; `opened` says for which conversation it was read.
    Event {
        opened: u64,
        event: Event,
    },
    Key(KeyEvent),
    Paste(String),
    Connection(Connection),
    /// The first message made a session, or found one.
    Started {
        session: u64,
    },
    /// A request was refused or could not be made; a message comes back to be sent again.
    Refused {
        message: String,
        unsent: Option<String>,
    },
    Sessions(Vec<SessionLine>),
    /// There is no such session.
    NoSession {
        opened: u64,
        session: u64,
    },
    /// What the daemon knows of the session that is open.
    About {
        opened: u64,
        agent: String,
        title: String,
        closed: bool,
    },
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Effect {
    /// Send a message; without a session to a new one.
    Send {
        session: Option<u64>,
        text: String,
    },
    Steer {
        session: u64,
        text: String,
    },
    Cancel {
        session: u64,
    },
    Retry {
        session: u64,
    },
    Kill {
        session: u64,
    },
    Compact {
        session: u64,
    },
    UndoCompact {
        session: u64,
    },
    SetTitle {
        session: u64,
        title: String,
    },
    Reply {
        session: u64,
        ask: u64,
        text: String,
    },
    AnswerApproval {
        approval: u64,
        approved: bool,
        scope: ApprovalScope,
        reason: String,
    },
    ListSessions,
    /// Read this session's journal from the beginning and go on with it; `None` reads nothing.
    Follow {
        session: Option<u64>,
    },
    /// Draw the screen from nothing: another program has written on it.
    Redraw,
    Quit,
}

/// How the journal is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connection {
    Connecting,
    Online,
    /// The daemon is away; it is dialled again by itself.
    Lost {
        attempt: u32,
    },
}

/// What Enter does while the agent works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhileBusy {
    /// Speak into the running turn.
    Steer,
    /// Wait for the next one.
    Queue,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scroll {
    /// The end stays in view.
    Follow,
    /// This line of the conversation is the first in view.
    At(usize),
}

/// What the last drawing took, for the keys that move by pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) lines: usize,
    pub(crate) height: usize,
    /// How many lines of the help lie beyond what is in view.
    pub(crate) help: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) agent: String,
    pub(crate) session: Option<u64>,
    /// The session that was open before, to go back to when there is no such session.
    before: Option<u64>,
    pub(crate) title: String,
    pub(crate) connection: Connection,
    /// The last number of the journal that is in the transcript.
    pub(crate) cursor: u64,
    pub(crate) transcript: Transcript,
    /// Counts the conversations that were opened: rows and drawings of another are not used.
    pub(crate) opened: u64,
    /// When the running turn began.
    pub(crate) turn: Option<Timestamp>,
    pub(crate) cost: Decimal,
    pub(crate) closed: bool,
    pub(crate) composer: Composer,
    pub(crate) while_busy: WhileBusy,
    pub(crate) prompts: VecDeque<Prompt>,
    /// Keys go to the prompt, not to the composer.
    pub(crate) prompt_focus: bool,
    prompt_since: Timestamp,
    /// The foldable block that is chosen.
    pub(crate) chosen: Option<usize>,
    pub(crate) scroll: Scroll,
    pub(crate) extent: Extent,
    pub(crate) notice: Option<Notice>,
    /// A message was not sent because the daemon is away.
    kept_back: bool,
    pub(crate) picker: Option<Picker>,
    /// The first line of the help that is in view, while that is open.
    pub(crate) help: Option<usize>,
    /// A first message is on its way and its session is not known yet.
    pub(crate) starting: Option<String>,
    /// The next Ctrl-C leaves.
    leaving: bool,
    pub(crate) now: Timestamp,
}

impl Model {
    pub(crate) fn new(agent: String, session: Option<u64>, now: Timestamp) -> Self {
        Self {
            agent,
            session,
            before: None,
            title: String::new(),
            connection: Connection::Connecting,
            cursor: 0,
            transcript: Transcript::default(),
            opened: 0,
            turn: None,
            cost: Decimal::ZERO,
            closed: false,
            composer: Composer::default(),
            while_busy: WhileBusy::Steer,
            prompts: VecDeque::new(),
            prompt_focus: false,
            prompt_since: now,
            chosen: None,
            scroll: Scroll::Follow,
            extent: Extent::default(),
            notice: None,
            kept_back: false,
            picker: None,
            help: None,
            starting: None,
            leaving: false,
            now,
        }
    }

    /// Takes in one thing and says what to do.
    pub(crate) fn update(&mut self, input: Input, now: Timestamp) -> Vec<Effect> {
        self.now = now;
        match input {
            Input::Event { opened, event } => {
                if opened == self.opened {
                    self.event(event);
                }
                Vec::new()
            }
            Input::Key(key) if key.kind == KeyEventKind::Release => Vec::new(),
            Input::Key(key) => self.key(key),
            Input::Paste(text) => {
                self.composer.paste(&text);
                Vec::new()
            }
            Input::Connection(connection) => {
                self.connection = connection;
                if connection == Connection::Online
                    && std::mem::take(&mut self.kept_back)
                    && !self.composer.is_empty()
                {
                    self.tell("the daemon is back; Enter sends the message", Tone::Plain);
                }
                Vec::new()
            }
            Input::Started { session } => self.started(session),
            Input::Refused { message, unsent } => {
                self.starting = None;
                self.tell(message, Tone::Bad);
                self.prompts
                    .iter_mut()
                    .filter(|prompt| prompt.answered)
                    .for_each(Prompt::reopen);
                if let Some(text) = unsent.filter(|_| self.composer.is_empty()) {
                    self.composer.set(&text);
                }
                Vec::new()
            }
            Input::Sessions(lines) => {
                self.picker = Some(Picker::new(lines, self.session));
                Vec::new()
            }
            Input::NoSession { opened, session } => {
                if opened != self.opened {
                    return Vec::new();
                }
                self.session = None;
                let effects = match self.before.take() {
                    Some(before) => self.switch(Some(before)),
                    None => Vec::new(),
                };
                let told = format!("session {session} not found; /sessions lists them");
                self.tell(told, Tone::Bad);
                effects
            }
            Input::About {
                opened,
                agent,
                title,
                closed,
            } => {
                if opened == self.opened {
                    self.agent = agent;
                    self.title = title;
                    self.closed = closed;
                }
                Vec::new()
            }
        }
    }

    /// The prompt that takes the keys now.
    pub(crate) fn prompt(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|prompt| !prompt.answered)
    }

    fn prompt_mut(&mut self) -> Option<&mut Prompt> {
        self.prompts.iter_mut().find(|prompt| !prompt.answered)
    }

    pub(crate) fn busy(&self) -> bool {
        self.turn.is_some()
    }

    // --- what happened ---------------------------------------------------------------------------

    fn event(&mut self, event: Event) {
        // After a reconnect the first rows may be ones that were seen.
        if event.seq <= self.cursor {
            return;
        }
        self.cursor = event.seq;
        match &event.what {
            What::Message(message) if message.sender == super::SENDER => {
                self.composer.remember(&message.text);
            }
            What::TurnStarted => self.turn = Some(event.at),
            What::TurnEnded(end) => {
                self.turn = None;
                self.while_busy = WhileBusy::Steer;
                self.cost += end.usage.cost;
            }
            What::Titled { title } => self.title.clone_from(title),
            What::Closed => {
                self.closed = true;
                self.turn = None;
                self.prompts.clear();
            }
            // A retry asks again what its turn was cut with.
            What::Ask(ask) => {
                self.prompts.retain(|prompt| !prompt.is_ask(ask.id));
                self.open(Prompt::ask(ask.clone()));
            }
            What::Approval(approval) => {
                self.prompts
                    .retain(|prompt| !prompt.is_approval(approval.id));
                self.open(Prompt::approval(approval.clone()));
            }
            What::AskOver { ask, .. } => self.prompts.retain(|prompt| !prompt.is_ask(*ask)),
            What::ApprovalOver { approval, .. } => {
                self.prompts.retain(|prompt| !prompt.is_approval(*approval));
            }
            _ => {}
        }
        if self.prompt().is_none() {
            self.prompt_focus = false;
        }
        self.transcript.apply(event);
    }

    fn open(&mut self, prompt: Prompt) {
        if self.prompt().is_none() {
            self.prompt_since = self.now;
            // Somebody who is typing goes on typing; Ctrl-G goes to the prompt.
            self.prompt_focus = self.composer.is_empty();
        }
        self.prompts.push_back(prompt);
    }

    fn started(&mut self, session: u64) -> Vec<Effect> {
        self.starting = None;
        if self.session.is_some() {
            return Vec::new();
        }
        self.session = Some(session);
        self.opened += 1;
        vec![Effect::Follow {
            session: Some(session),
        }]
    }

    // --- what was pressed ------------------------------------------------------------------------

    fn key(&mut self, key: KeyEvent) -> Vec<Effect> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let leaving = std::mem::take(&mut self.leaving);
        match key.code {
            KeyCode::Char('c') if control => return self.interrupt(leaving),
            KeyCode::Char('d') if control && self.composer.is_empty() => return vec![Effect::Quit],
            KeyCode::Char('l') if control => return vec![Effect::Redraw],
            _ => {}
        }
        if let Some(top) = self.help {
            let most = self.extent.help;
            self.help = match key.code {
                KeyCode::Up if most > 0 => Some(top.saturating_sub(1)),
                KeyCode::Down if most > 0 => Some((top + 1).min(most)),
                KeyCode::PageUp if most > 0 => Some(top.saturating_sub(HELP_PAGE)),
                KeyCode::PageDown if most > 0 => Some((top + HELP_PAGE).min(most)),
                _ => None,
            };
            return Vec::new();
        }
        if let Some(picker) = &mut self.picker {
            return match picker.key(key) {
                None => Vec::new(),
                Some(Picked::Nothing) => {
                    self.picker = None;
                    Vec::new()
                }
                Some(Picked::Session(line)) => {
                    self.picker = None;
                    self.agent = line.agent;
                    self.switch(Some(line.id))
                }
            };
        }
        self.notice = None;
        if self.moves(key) {
            return Vec::new();
        }
        if self.prompt_focus && !self.own_words() {
            return self.prompt_key(key);
        }
        let alt = key.modifiers.contains(KeyModifiers::ALT);
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::Enter if !alt && !shift => self.enter(),
            KeyCode::Tab => {
                self.tab();
                Vec::new()
            }
            KeyCode::Esc => {
                self.escape();
                Vec::new()
            }
            _ => {
                self.composer.key(key);
                Vec::new()
            }
        }
    }

    /// Ctrl-C: what was typed, then the turn, then the program.
    fn interrupt(&mut self, leaving: bool) -> Vec<Effect> {
        if self.help.is_some() || self.picker.is_some() {
            self.help = None;
            self.picker = None;
            return Vec::new();
        }
        if !self.composer.is_empty() {
            self.composer.set("");
            return Vec::new();
        }
        if leaving {
            return vec![Effect::Quit];
        }
        self.leaving = true;
        match self.session.filter(|_| self.busy()) {
            Some(session) => {
                self.tell("stopping the turn; Ctrl-C again leaves", Tone::Plain);
                vec![Effect::Cancel { session }]
            }
            None => {
                self.tell("Ctrl-C again leaves; the session stays", Tone::Plain);
                Vec::new()
            }
        }
    }

    /// The keys that look around, whatever has the focus.
    fn moves(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = self.extent.height.saturating_sub(1).max(1);
        match key.code {
            KeyCode::PageUp => self.scroll_up(page),
            KeyCode::PageDown => self.scroll_down(page),
            KeyCode::Up if control => self.scroll_up(1),
            KeyCode::Down if control => self.scroll_down(1),
            KeyCode::Home if control => self.scroll = Scroll::At(0),
            KeyCode::End if control => self.scroll = Scroll::Follow,
            KeyCode::Char('t') if control => {
                self.transcript
                    .toggle(|block| matches!(block, Block::Thinking { .. }));
            }
            KeyCode::Char('o') if control => match self.chosen {
                Some(index) => self.transcript.toggle_one(index),
                None => self
                    .transcript
                    .toggle(|block| !matches!(block, Block::Thinking { .. })),
            },
            KeyCode::Char('p') if control => self.choose_earlier(),
            KeyCode::Char('n') if control => self.choose_later(),
            KeyCode::Char('g') if control && self.prompt().is_some() => {
                self.prompt_focus = !self.prompt_focus;
                self.prompt_since = self.now;
            }
            KeyCode::F(1) => self.help = Some(0),
            _ => return false,
        }
        true
    }

    fn scroll_up(&mut self, lines: usize) {
        let bottom = self.extent.lines.saturating_sub(self.extent.height);
        let top = match self.scroll {
            Scroll::Follow => bottom,
            Scroll::At(top) => top.min(bottom),
        };
        if bottom > 0 {
            self.scroll = Scroll::At(top.saturating_sub(lines));
        }
    }

    fn scroll_down(&mut self, lines: usize) {
        let bottom = self.extent.lines.saturating_sub(self.extent.height);
        if let Scroll::At(top) = self.scroll {
            self.scroll = if top + lines >= bottom {
                Scroll::Follow
            } else {
                Scroll::At(top + lines)
            };
        }
    }

    fn choose_earlier(&mut self) {
        let entries = self.transcript.entries();
        let before = self.chosen.unwrap_or(entries.len());
        self.chosen = entries
            .iter()
            .take(before)
            .rposition(super::transcript::Entry::folds)
            .or(self.chosen);
    }

    fn choose_later(&mut self) {
        let Some(chosen) = self.chosen else { return };
        self.chosen = self
            .transcript
            .entries()
            .iter()
            .enumerate()
            .skip(chosen + 1)
            .find(|(_, entry)| entry.folds())
            .map(|(index, _)| index);
    }

    fn tab(&mut self) {
        let typed = self.composer.text();
        if let Some((name, argument, _)) = slash::matching(&typed).first() {
            let space = if argument.is_empty() { "" } else { " " };
            self.composer.set(&format!("/{name}{space}"));
        } else if self.busy() {
            self.while_busy = match self.while_busy {
                WhileBusy::Steer => WhileBusy::Queue,
                WhileBusy::Queue => WhileBusy::Steer,
            };
        }
    }

    fn escape(&mut self) {
        if self.own_words() {
            if let Some(prompt) = self.prompt_mut() {
                prompt.own_words = false;
            }
            self.prompt_focus = false;
        } else if self.chosen.take().is_none() {
            self.scroll = Scroll::Follow;
        }
    }

    fn own_words(&self) -> bool {
        self.prompt_focus && self.prompt().is_some_and(|prompt| prompt.own_words)
    }

    fn prompt_key(&mut self, key: KeyEvent) -> Vec<Effect> {
        if key.code == KeyCode::Esc {
            self.prompt_focus = false;
            self.tell("it keeps waiting; Ctrl-G goes back to it", Tone::Plain);
            return Vec::new();
        }
        let guard = jiff::SignedDuration::try_from(PROMPT_GUARD).unwrap_or_default();
        if self.now.duration_since(self.prompt_since) < guard {
            return Vec::new();
        }
        let answer = self.prompt_mut().and_then(|prompt| prompt.key(key));
        self.answered(answer)
    }

    fn answered(&mut self, answer: Option<Answer>) -> Vec<Effect> {
        let (Some(answer), Some(session)) = (answer, self.session) else {
            return Vec::new();
        };
        // It leaves the screen at once, and comes back should the daemon not take it.
        if let Some(prompt) = self.prompt_mut() {
            prompt.answered = true;
        }
        self.prompt_since = self.now;
        self.prompt_focus = self.prompt().is_some();
        vec![match answer {
            Answer::Reply { ask, text } => Effect::Reply { session, ask, text },
            Answer::Approve { approval, scope } => Effect::AnswerApproval {
                approval,
                approved: true,
                scope,
                reason: String::new(),
            },
            Answer::Deny { approval, reason } => Effect::AnswerApproval {
                approval,
                approved: false,
                scope: ApprovalScope::Once,
                reason,
            },
        }]
    }

    fn enter(&mut self) -> Vec<Effect> {
        let text = self.composer.text();
        if text.trim().is_empty() {
            return Vec::new();
        }
        if self.own_words() {
            self.composer.set("");
            let answer = self.prompt_mut().and_then(|prompt| prompt.typed(text));
            return self.answered(answer);
        }
        match slash::parse(&text) {
            Some(Ok(command)) => {
                self.composer.set("");
                self.command(command)
            }
            Some(Err(mistake)) => {
                self.tell(mistake, Tone::Bad);
                Vec::new()
            }
            None => self.say(),
        }
    }

    fn say(&mut self) -> Vec<Effect> {
        if self.connection != Connection::Online {
            self.kept_back = true;
            self.tell(
                "the daemon is away; the message stays here until it is back",
                Tone::Bad,
            );
            return Vec::new();
        }
        if self.closed {
            self.tell("this session is closed; /new starts another", Tone::Bad);
            return Vec::new();
        }
        if self.starting.is_some() {
            self.tell("one moment: the session is being made", Tone::Plain);
            return Vec::new();
        }
        let text = self.composer.take();
        self.scroll = Scroll::Follow;
        match self.session {
            Some(session) if self.busy() && self.while_busy == WhileBusy::Steer => {
                vec![Effect::Steer { session, text }]
            }
            Some(session) => vec![Effect::Send {
                session: Some(session),
                text,
            }],
            None => {
                self.starting = Some(text.clone());
                vec![Effect::Send {
                    session: None,
                    text,
                }]
            }
        }
    }

    fn command(&mut self, command: Slash) -> Vec<Effect> {
        match command {
            Slash::Help => {
                self.help = Some(0);
                Vec::new()
            }
            Slash::New => self.switch(None),
            Slash::Sessions => vec![Effect::ListSessions],
            Slash::Switch(session) => self.switch(Some(session)),
            Slash::Quit => vec![Effect::Quit],
            Slash::Cost => {
                let cost = self.cost.normalize();
                self.tell(format!("this session has cost {cost}"), Tone::Plain);
                Vec::new()
            }
            Slash::Title(title) => self.in_session(|session| Effect::SetTitle { session, title }),
            Slash::Compact => self.in_session(|session| Effect::Compact { session }),
            Slash::UndoCompact => self.in_session(|session| Effect::UndoCompact { session }),
            Slash::Cancel => self.in_session(|session| Effect::Cancel { session }),
            Slash::Retry => self.in_session(|session| Effect::Retry { session }),
            Slash::Kill => self.in_session(|session| Effect::Kill { session }),
        }
    }

    fn in_session(&mut self, effect: impl FnOnce(u64) -> Effect) -> Vec<Effect> {
        match self.session {
            Some(session) => vec![effect(session)],
            None => {
                self.tell("there is no session yet; say something first", Tone::Bad);
                Vec::new()
            }
        }
    }

    /// Goes to another session, or to a new one; what was typed stays.
    fn switch(&mut self, session: Option<u64>) -> Vec<Effect> {
        self.before = std::mem::replace(&mut self.session, session);
        self.title.clear();
        self.cursor = 0;
        self.transcript = Transcript::default();
        self.opened += 1;
        self.turn = None;
        self.cost = Decimal::ZERO;
        self.closed = false;
        self.prompts.clear();
        self.prompt_focus = false;
        self.chosen = None;
        self.scroll = Scroll::Follow;
        self.composer.forget_history();
        vec![Effect::Follow { session }]
    }

    fn tell(&mut self, text: impl Into<String>, tone: Tone) {
        self.notice = Some(Notice {
            text: text.into(),
            tone,
        });
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
