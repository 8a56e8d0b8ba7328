//! One turn as a stream of events that a lost connection does not end.
//!
//! The events are a read of the journal from a cursor: after a loss the next connection goes on
//! where the last one stopped. Dropping a [`Turn`] leaves the agent to its work.

use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use quintet_control::wire::stream_event::Event;
use quintet_control::wire::{AttachMsg, RetryMsg, StreamEvent, StreamMsg};
use quintet_control::{Client, ClientError, UnixClient};
use quintet_runtime::home::Home;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::connect::{self, Redial};
use crate::error::CommandError;

/// How long a daemon may be away before the turn is given up here.
const PATIENCE: Duration = Duration::from_secs(60);
/// Events that wait to be shown; the socket waits beyond that.
const WAITING_EVENTS: usize = 256;

/// What begins the turn.
#[derive(Debug, Clone)]
pub(crate) enum Opening {
    Say(StreamMsg),
    Retry(RetryMsg),
}

/// A turn that is being watched.
#[derive(Debug)]
pub(crate) struct Turn {
    events: mpsc::Receiver<Result<StreamEvent, CommandError>>,
    session: Option<u64>,
    _reader: JoinSet<()>,
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
        let home = home.clone();
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            if let Err(error) = read(&home, client, opening, &sender).await {
                // The watcher may have gone; then nobody needs the error.
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(Self {
            events,
            session,
            _reader: reader,
        })
    }

    /// The next event; `None` after `end`.
    pub(crate) async fn next(&mut self) -> Result<Option<StreamEvent>, CommandError> {
        let event = self.events.recv().await.transpose()?;
        if let Some(Event::Start(start)) = event.as_ref().and_then(|event| event.event.as_ref()) {
            self.session = Some(start.session);
        }
        Ok(event)
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

/// Where the turn was read to.
#[derive(Debug, Default)]
struct Place {
    session: u64,
    /// 0 until the daemon has accepted the message.
    seq: u64,
}

impl Place {
    fn note(&mut self, event: &StreamEvent) {
        if let Some(Event::Start(start)) = &event.event {
            self.session = start.session;
        }
        // A daemon without cursors can't be read on from one.
        self.seq = event.seq.unwrap_or(0);
    }
}
