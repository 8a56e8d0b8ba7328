//! A proxy that knows where frames begin, and does something wrong at one of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    Cut,
    Delay,
    Duplicate,
    Truncate,
    Flip,
}

pub(crate) const ALL: [Wrong; 5] = [
    Wrong::Cut,
    Wrong::Delay,
    Wrong::Duplicate,
    Wrong::Truncate,
    Wrong::Flip,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

/// What goes wrong, and at which frame of the first connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) wrong: Wrong,
    pub(crate) direction: Direction,
    pub(crate) frame: usize,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:?} frame {}.",
            self.wrong, self.direction, self.frame
        )
    }
}

/// How frames are told apart.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Format {
    BigEndian,
    LittleEndian,
    /// Also the heads of the handshake are frames.
    WebSocket,
}

impl Format {
    /// The length of the first frame, when all of it is there. `first` is the handshake's.
    fn frame(self, bytes: &[u8], first: bool) -> Option<usize> {
        let length = match self {
            Self::BigEndian => 4 + u32::from_be_bytes(*bytes.first_chunk()?) as usize,
            Self::LittleEndian => 4 + u32::from_le_bytes(*bytes.first_chunk()?) as usize,
            Self::WebSocket if first => bytes.windows(4).position(|end| end == b"\r\n\r\n")? + 4,
            Self::WebSocket => {
                let mask = if bytes.get(1)? & 0x80 == 0 { 0 } else { 4 };
                mask + match bytes.get(1)? & 0x7f {
                    126 => 4 + usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?)),
                    127 => 10 + u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?) as usize,
                    short => 2 + usize::from(short),
                }
            }
        };
        (bytes.len() >= length).then_some(length)
    }
}

/// How many frames passed on the first connection, by direction.
type Counts = Arc<[AtomicUsize; 2]>;

pub(crate) struct Proxy {
    counts: Counts,
    _tasks: JoinSet<()>,
}

/// The two halves of a connection.
type Halves = (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
);

/// Where connections come from, and where they go.
enum Between {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener, String),
}

impl Between {
    async fn accept(&self) -> io::Result<Halves> {
        Ok(match self {
            Self::Unix(listener, _) => halves(listener.accept().await?.0.into_split()),
            Self::Tcp(listener, _) => halves(listener.accept().await?.0.into_split()),
        })
    }

    async fn dial(&self) -> io::Result<Halves> {
        Ok(match self {
            Self::Unix(_, to) => halves(UnixStream::connect(to).await?.into_split()),
            Self::Tcp(_, to) => halves(TcpStream::connect(to).await?.into_split()),
        })
    }
}

fn halves<R, W>((read, write): (R, W)) -> Halves
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    (Box::new(read), Box::new(write))
}

impl Proxy {
    /// Between whoever dials `at` and the Unix socket `to`.
    pub(crate) fn unix(at: &Path, to: PathBuf, format: Format, plan: Option<Plan>) -> Self {
        let listener = UnixListener::bind(at).unwrap();
        Self::new(Between::Unix(listener, to), format, plan)
    }

    /// Between whoever dials the address that is returned and the address `to`.
    pub(crate) async fn tcp(to: String, format: Format, plan: Option<Plan>) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        (Self::new(Between::Tcp(listener, to), format, plan), at)
    }

    fn new(between: Between, format: Format, plan: Option<Plan>) -> Self {
        let counts = Counts::default();
        let (counted, between) = (counts.clone(), Arc::new(between));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            let mut first = Some(plan);
            while let Ok(client) = between.accept().await {
                let plan = first.take();
                let (between, counted) = (between.clone(), counted.clone());
                connections.spawn(async move {
                    if let Ok(server) = between.dial().await {
                        pass(client, server, format, plan, counted).await;
                    }
                });
            }
        });
        Self {
            counts,
            _tasks: tasks,
        }
    }

    /// One plan for each frame that passed and each thing that can go wrong with it.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        for direction in [Direction::Up, Direction::Down] {
            for frame in 0..self.counts[direction as usize].load(Ordering::Relaxed) {
                plans.extend(ALL.map(|wrong| Plan {
                    wrong,
                    direction,
                    frame,
                }));
            }
        }
        plans
    }
}

/// Passes frames on until either side ends or the plan ends it. Only the first connection has a
/// plan, if only the one to do nothing wrong.
async fn pass(
    client: Halves,
    server: Halves,
    format: Format,
    plan: Option<Option<Plan>>,
    counts: Counts,
) {
    let of = |direction: Direction| {
        plan.map(|plan| (plan.filter(|plan| plan.direction == direction), direction))
    };
    tokio::select! {
        () = relay(client.0, server.1, format, of(Direction::Up), &counts) => {}
        () = relay(server.0, client.1, format, of(Direction::Down), &counts) => {}
    }
}

async fn relay<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    mut from: R,
    mut to: W,
    format: Format,
    plan: Option<(Option<Plan>, Direction)>,
    counts: &Counts,
) {
    let mut bytes = Vec::new();
    let mut index = 0;
    // Either end may go at any time; that is what this is for.
    while let Ok(1..) = from.read_buf(&mut bytes).await {
        while let Some(length) = format.frame(&bytes, index == 0) {
            let mut frame: Vec<u8> = bytes.drain(..length).collect();
            let now = plan
                .and_then(|(plan, _)| plan)
                .filter(|plan| plan.frame == index);
            index += 1;
            if let Some((_, direction)) = plan {
                counts[direction as usize].fetch_max(index, Ordering::Relaxed);
            }
            match now.map(|plan| plan.wrong) {
                None => {}
                Some(Wrong::Cut) => return,
                Some(Wrong::Delay) => tokio::time::sleep(Duration::from_millis(300)).await,
                Some(Wrong::Duplicate) => frame.extend_from_within(..),
                Some(Wrong::Truncate) => {
                    let _ = to.write_all(&frame[..length / 2]).await;
                    return;
                }
                Some(Wrong::Flip) => {
                    let middle = (4 + length) / 2;
                    if let Some(byte) = frame.get_mut(middle) {
                        *byte ^= 1;
                    }
                }
            }
            if to.write_all(&frame).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    }
}
