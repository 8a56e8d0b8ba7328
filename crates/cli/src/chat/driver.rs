//! The terminal and the sockets of the conversation.
//!
//! One task follows the session's journal and dials again by itself; each request has a short
//! connection of its own, so that a slow one holds up nothing. Everything reaches the model
//! through one bounded channel: when the screen is slow, the sockets wait.

use std::io::stdout;
use std::time::Duration;

use crossterm::event::{
    DisableBracketedPaste, EnableBracketedPaste, Event as TerminalEvent, EventStream,
};
use crossterm::style::Colored;
use futures_util::StreamExt;
use jiff::Timestamp;
use quintet_control::wire::{
    AnswerApprovalMsg, CancelMsg, CompactMsg, CompactUndoMsg, EventsMsg, KillMsg, ReplyToAskMsg,
    RetryMsg, SessionsMsg, SetTitleMsg, SteerMsg, StreamEvent, StreamMsg, stream_event,
};
use quintet_control::{Client, ClientError, UnixClient};
use quintet_runtime::home::Home;
use ratatui::DefaultTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::SENDER;
use super::event::Event;
use super::model::{Connection, Effect, Input, Model};
use super::picker::SessionLine;
use super::theme;
use super::view::View;
use crate::commands::chat::Choice;
use crate::connect::{self, Redial};
use crate::error::CommandError;

/// What waits for the model; senders wait beyond that.
const WAITING_INPUTS: usize = 512;
/// So many inputs are taken in before the screen is drawn.
const INPUTS_PER_FRAME: usize = 4_096;
/// Time moves on the screen: seconds and the spinner.
const TICK: Duration = Duration::from_millis(120);

/// Runs the conversation until the person leaves.
pub(crate) async fn run(home: &Home, choice: Choice) -> Result<(), CommandError> {
    let mut screen = Screen::open()?;
    converse(home, choice, &mut screen.terminal).await
}

/// The terminal in its raw state; dropped, it is as it was.
struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    fn open() -> Result<Self, CommandError> {
        // Also restores the terminal when the program panics.
        let terminal = ratatui::try_init()?;
        let screen = Self { terminal };
        crossterm::execute!(stdout(), EnableBracketedPaste)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = crossterm::execute!(stdout(), DisableBracketedPaste);
        ratatui::restore();
    }
}

async fn converse(
    home: &Home,
    choice: Choice,
    terminal: &mut DefaultTerminal,
) -> Result<(), CommandError> {
    let (sender, mut inputs) = mpsc::channel(WAITING_INPUTS);
    let mut model = Model::new(choice.agent, choice.session, Timestamp::now());
    let mut view = View::default();
    let is_plain = Colored::ansi_color_disabled();
    let mut tasks = Tasks {
        home: home.clone(),
        cwd: choice.cwd,
        inputs: sender,
        journal: JoinSet::new(),
        requests: JoinSet::new(),
    };
    tasks.follow(choice.session, model.opened);

    let mut keys = EventStream::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);

    loop {
        model.now = Timestamp::now();
        let mut extent = model.extent;
        terminal.draw(|frame| {
            extent = view.draw(&model, frame);
            if is_plain {
                theme::drop_colors(frame.buffer_mut());
            }
        })?;
        model.extent = extent;

        let mut effects = Vec::new();
        tokio::select! {
            biased;
            event = keys.next() => match event {
                Some(Ok(event)) => {
                    if let Some(input) = terminal_input(event) {
                        effects = model.update(input, Timestamp::now());
                    }
                }
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(()),
            },
            input = inputs.recv() => {
                // The sender in `tasks` keeps the channel open.
                let Some(input) = input else { return Ok(()) };
                effects = model.update(input, Timestamp::now());
                for _ in 0..INPUTS_PER_FRAME {
                    let Ok(input) = inputs.try_recv() else { break };
                    effects.extend(model.update(input, Timestamp::now()));
                }
            }
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            _ = tick.tick(), if model.busy() => {}
        }
        for effect in effects {
            if effect == Effect::Quit {
                return Ok(());
            }
            match effect {
                Effect::Follow { session } => tasks.follow(session, model.opened),
                Effect::Redraw => terminal.clear()?,
                effect => tasks.request(effect, model.agent.clone()),
            }
        }
        tasks.reap();
    }
}

fn terminal_input(event: TerminalEvent) -> Option<Input> {
    match event {
        TerminalEvent::Key(key) => Some(Input::Key(key)),
        TerminalEvent::Paste(text) => Some(Input::Paste(text)),
        // The next drawing asks for the size by itself.
        TerminalEvent::Resize(..)
        | TerminalEvent::FocusGained
        | TerminalEvent::FocusLost
        | TerminalEvent::Mouse(_) => None,
    }
}

/// Everything that runs beside the screen; dropped, it stops.
struct Tasks {
    home: Home,
    /// The folder of new sessions.
    cwd: Option<String>,
    inputs: mpsc::Sender<Input>,
    journal: JoinSet<()>,
    requests: JoinSet<()>,
}

impl Tasks {
    /// Follows another session, in place of the one before.
    fn follow(&mut self, session: Option<u64>, opened: u64) {
        self.journal.abort_all();
        let follower = Follower {
            home: self.home.clone(),
            inputs: self.inputs.clone(),
            session,
            opened,
            cursor: session.map(|_| 0),
        };
        self.journal.spawn(follower.run());
    }

    fn request(&mut self, effect: Effect, agent: String) {
        let (home, cwd) = (self.home.clone(), self.cwd.clone());
        let inputs = self.inputs.clone();
        self.requests.spawn(async move {
            if let Err(refused) = carry_out(&home, effect, agent, cwd, &inputs).await {
                // Without a screen there is nobody to tell.
                let _ = inputs.send(refused).await;
            }
        });
    }

    /// Forgets what is over.
    fn reap(&mut self) {
        while self.journal.try_join_next().is_some() {}
        while self.requests.try_join_next().is_some() {}
    }
}

/// Reads a session's journal without end, over as many connections as it takes.
///
/// Without a session yet it follows the daemon's journal from now on and drops it, to know
/// whether the daemon is there.
struct Follower {
    home: Home,
    inputs: mpsc::Sender<Input>,
    session: Option<u64>,
    opened: u64,
    cursor: Option<u64>,
}

impl Follower {
    async fn run(mut self) {
        let mut redial = Redial::new(&self.home, None);
        let mut attempt = 0;
        loop {
            match connect::dial(&self.home).await {
                Ok(client) => {
                    attempt = 0;
                    redial.connected();
                    match self.read(client).await {
                        Ok(()) => return,
                        Err(error) => tracing::debug!(%error, "the journal's connection ended"),
                    }
                }
                Err(error) => tracing::debug!(%error, "the daemon is away"),
            }
            attempt += 1;
            if self
                .tell(Input::Connection(Connection::Lost { attempt }))
                .await
                .is_err()
            {
                return;
            }
            tokio::time::sleep(redial.pause()).await;
        }
    }

    /// Reads until the connection or the screen is gone; only the first is an error.
    async fn read(&mut self, mut client: UnixClient) -> Result<(), ClientError> {
        if let Some(session) = self.session {
            let about = self.about(&mut client, session).await?;
            if matches!(about, Input::NoSession { .. }) {
                self.session = None;
                self.cursor = None;
            }
            if self.tell(about).await.is_err() {
                return Ok(());
            }
        }
        if self
            .tell(Input::Connection(Connection::Online))
            .await
            .is_err()
        {
            return Ok(());
        }
        let mut events = std::pin::pin!(client.events(EventsMsg {
            session: self.session,
            after_seq: self.cursor,
            follow: true,
        }));
        while let Some(row) = events.next().await {
            let row = row?;
            if self.session.is_some() {
                self.cursor = Some(row.seq);
                let event = Event::from(&row);
                let opened = self.opened;
                if self.tell(Input::Event { opened, event }).await.is_err() {
                    return Ok(());
                }
            }
        }
        Err(ClientError::Closed)
    }

    async fn about(&self, client: &mut UnixClient, session: u64) -> Result<Input, ClientError> {
        let list = client
            .sessions(SessionsMsg {
                include_closed: true,
            })
            .await?;
        let found = list.sessions.into_iter().find(|info| info.id == session);
        Ok(match found {
            Some(info) => Input::About {
                opened: self.opened,
                agent: info.agent,
                title: info.title,
                closed: info.closed,
            },
            None => Input::NoSession {
                opened: self.opened,
                session,
            },
        })
    }

    async fn tell(&self, input: Input) -> Result<(), mpsc::error::SendError<Input>> {
        self.inputs.send(input).await
    }
}

/// Does what the model asked for; what went wrong comes back as the input to tell it by.
async fn carry_out(
    home: &Home,
    effect: Effect,
    agent: String,
    cwd: Option<String>,
    inputs: &mpsc::Sender<Input>,
) -> Result<(), Input> {
    let unsent = match &effect {
        Effect::Send { text, .. } | Effect::Steer { text, .. } => Some(text.clone()),
        _ => None,
    };
    let mut client = connect::dial(home).await.map_err(|error| Input::Refused {
        message: connect::not_reached(home, error).message(),
        unsent: unsent.clone(),
    })?;
    let done = ask(&mut client, effect, agent, cwd, inputs).await;
    done.map_err(|error| {
        // After a loss nobody knows whether it arrived; the journal shows it if it did.
        let unsent = unsent.filter(|_| !connect::is_loss(&error));
        Input::Refused {
            message: CommandError::from(error).message(),
            unsent,
        }
    })
}

async fn ask(
    client: &mut UnixClient,
    effect: Effect,
    agent: String,
    cwd: Option<String>,
    inputs: &mpsc::Sender<Input>,
) -> Result<(), ClientError> {
    let told = match effect {
        Effect::Send { session, text } => {
            let turn = client.stream(StreamMsg {
                agent,
                content: text,
                session,
                sender: Some(SENDER.to_owned()),
                cwd,
                new_chat: session.is_none(),
                ..StreamMsg::default()
            });
            begin(turn, inputs).await?;
            None
        }
        Effect::Retry { session } => {
            begin(client.retry(RetryMsg { session }), inputs).await?;
            None
        }
        Effect::Steer { session, text } => {
            let content = text;
            client.steer(SteerMsg { session, content }).await?;
            None
        }
        Effect::Cancel { session } => {
            client.cancel(CancelMsg { session }).await?;
            None
        }
        Effect::Kill { session } => {
            client.kill(KillMsg { session }).await?;
            None
        }
        Effect::Compact { session } => {
            client.compact(CompactMsg { session }).await?;
            None
        }
        Effect::UndoCompact { session } => {
            client.compact_undo(CompactUndoMsg { session }).await?;
            None
        }
        Effect::SetTitle { session, title } => {
            client.set_title(SetTitleMsg { session, title }).await?;
            None
        }
        Effect::Reply { session, ask, text } => {
            let request = ReplyToAskMsg {
                session,
                content: text,
                ask: Some(ask),
            };
            client.reply_to_ask(request).await?;
            None
        }
        Effect::AnswerApproval {
            approval,
            approved,
            scope,
            reason,
        } => {
            let request = AnswerApprovalMsg {
                id: approval,
                approved,
                reason,
                scope: scope.into(),
                rule: String::new(),
            };
            client.answer_approval(request).await?;
            None
        }
        Effect::ListSessions => {
            let list = client.sessions(SessionsMsg::default()).await?;
            let lines = list.sessions.into_iter().map(|info| SessionLine {
                id: info.id,
                agent: info.agent,
                title: info.title,
                messages: info.message_count,
                active: info.active,
            });
            Some(Input::Sessions(lines.collect()))
        }
        // These two are the loop's own.
        Effect::Follow { .. } | Effect::Redraw | Effect::Quit => None,
    };
    if let Some(input) = told {
        // Without a screen there is nobody to tell.
        let _ = inputs.send(input).await;
    }
    Ok(())
}

/// Waits until the turn begins; the journal shows the rest.
async fn begin(
    turn: impl futures_util::Stream<Item = Result<StreamEvent, ClientError>>,
    inputs: &mpsc::Sender<Input>,
) -> Result<(), ClientError> {
    let mut turn = std::pin::pin!(turn);
    while let Some(event) = turn.next().await {
        if let Some(stream_event::Event::Start(start)) = event?.event {
            // Without a screen there is nobody to tell.
            let _ = inputs
                .send(Input::Started {
                    session: start.session,
                })
                .await;
            return Ok(());
        }
    }
    Ok(())
}
