//! One turn as a stream of events that a lost connection does not end.
//!
//! The events are a read of the journal from a cursor: after a loss the next connection goes on
//! where the last one stopped. Dropping a [`Turn`] leaves the agent to its work.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use quintet_control::wire::stream_event::Event;
use quintet_control::wire::{AttachMsg, EventsMsg, RetryMsg, StreamEvent, StreamMsg};
use quintet_control::{Client, ClientError, UnixClient};
use quintet_runtime::home::Home;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::chat::event::{self, Approval, What};
use crate::connect::{self, Redial};
use crate::error::CommandError;

/// How long a daemon may be away before the turn is given up here.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events that wait to be shown; the socket waits beyond that.
const WAITING_EVENTS: usize = 256;
const WAITING_ASIDES: usize = 16;

/// What begins the turn.
#[derive(Debug, Clone)]
pub(crate) enum Opening {
    Say(StreamMsg),
    Retry(RetryMsg),
}

/// What a turn shows.
#[derive(Debug)]
pub(crate) enum Seen {
    Event(StreamEvent),
    /// What no event of the stream tells of.
    Aside(Aside),
}

/// What the journal alone tells of a turn.
#[derive(Debug)]
pub(crate) enum Aside {
    /// The agent waits for leave.
    Approval(Approval),
    /// The turn has been quiet for long; the text says what it waits for.
    Stalled(String),
}

/// A turn that is being watched.
#[derive(Debug)]
pub(crate) struct Turn {
    home: Home,
    events: mpsc::Receiver<Result<StreamEvent, CommandError>>,
    asides: mpsc::Receiver<Aside>,
    aside: mpsc::Sender<Aside>,
    session: Option<u64>,
    readers: JoinSet<()>,
}

impl Turn {
    /// Begins a turn over a connection of its own.
    pub(crate) async fn open(home: &Home, opening: Opening) -> Result<Self, CommandError> {
        let client = connect::daemon(home).await?;
        let (sender, events) = mpsc::channel(WAITING_EVENTS);
        let session = match &opening {
            Opening::Say(message) => message.session,
            Opening::Retry(retry) => Some(retry.session),
        };
        let (aside, asides) = mpsc::channel(WAITING_ASIDES);
        let mut turn = Self {
            home: home.clone(),
            events,
            asides,
            aside,
            session,
            readers: JoinSet::new(),
        };
        let home = home.clone();
        turn.readers.spawn(async move {
            if let Err(error) = read(&home, client, opening, &sender).await {
                // The watcher may have gone; then nobody needs the error.
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(turn)
    }

    /// What happens next; `None` after `end`.
    pub(crate) async fn next(&mut self) -> Result<Option<Seen>, CommandError> {
        let event = tokio::select! {
            biased;
            event = self.events.recv() => event.transpose()?,
            // Never ends by itself: the other end is kept in `aside`.
            Some(aside) = self.asides.recv() => return Ok(Some(Seen::Aside(aside))),
        };
        if let Some(StreamEvent {
            event: Some(Event::Start(start)),
            seq,
            ..
        }) = &event
        {
            self.session = Some(start.session);
            let watch = watch_asides(self.home.clone(), start.session, *seq, self.aside.clone());
            self.readers.spawn(watch);
        }
        Ok(event.map(Seen::Event))
    }

    /// The session, as soon as it is known.
    pub(crate) fn session(&self) -> Option<u64> {
        self.session
    }
}

/// Reads the turn to its end, over as many connections as it takes.
async fn read(
    home: &Home,
    mut client: UnixClient,
    opening: Opening,
    events: &mpsc::Sender<Result<StreamEvent, CommandError>>,
) -> Result<(), CommandError> {
    let mut redial = Redial::new(home, Some(PATIENCE));
    let mut place = Place::default();
    let mut opening = Some(opening);
    loop {
        let lost = {
            let mut stream: Pin<
                Box<dyn Stream<Item = Result<StreamEvent, ClientError>> + Send + '_>,
            > = match opening.take() {
                Some(Opening::Say(message)) => Box::pin(client.stream(message)),
                Some(Opening::Retry(retry)) => Box::pin(client.retry(retry)),
                None => Box::pin(client.attach(AttachMsg {
                    session: place.session,
                    after_seq: Some(place.seq),
                    turn: place.turn,
                })),
            };
            loop {
                match stream.next().await {
                    Some(Ok(event)) => {
                        let last = matches!(event.event, Some(Event::End(_)));
                        place.note(&event);
                        if events.send(Ok(event)).await.is_err() || last {
                            return Ok(());
                        }
                    }
                    Some(Err(error)) => break error,
                    None => break ClientError::Closed,
                }
            }
        };
        if place.seq == 0 {
            return Err(match lost {
                ClientError::Closed | ClientError::Io(_) => CommandError::from(lost).hint(
                    "the message may have arrived; `quintet sessions` and `quintet events` show it",
                ),
                lost => lost.into(),
            });
        }
        client = redial.after(lost).await?;
    }
}

/// Looks into the session's journal for as long as the turn is watched.
async fn watch_asides(
    home: Home,
    session: u64,
    mut after_seq: Option<u64>,
    asides: mpsc::Sender<Aside>,
) {
    let mut redial = Redial::new(&home, None);
    loop {
        if let Ok(mut client) = connect::dial(&home).await {
            redial.connected();
            let mut rows = std::pin::pin!(client.events(EventsMsg {
                session: Some(session),
                after_seq,
                follow: true,
            }));
            while let Some(Ok(row)) = rows.next().await {
                after_seq = Some(row.seq);
                let aside = match event::Event::from(&row).what {
                    What::Approval(approval) => Aside::Approval(approval),
                    What::Stalled { text } => Aside::Stalled(text),
                    _ => continue,
                };
                if asides.send(aside).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(redial.pause()).await;
    }
}

/// Where the turn was read to.
#[derive(Debug, Default)]
struct Place {
    session: u64,
    /// Unset until it starts, and with a daemon that does not tell.
    turn: Option<u64>,
    /// 0 until the daemon has accepted the message.
    seq: u64,
}

impl Place {
    fn note(&mut self, event: &StreamEvent) {
        if let Some(Event::Start(start)) = &event.event {
            self.session = start.session;
            self.turn = start.turn;
        }
        // A daemon without cursors can't be read on from one.
        self.seq = event.seq.unwrap_or(0);
    }
}
