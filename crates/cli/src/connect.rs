//! Finds the daemon and dials it; dials again when the connection is lost.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use quintet_control::{ClientError, ErrorCode, UnixClient};
use quintet_framing::backoff::{Backoff, BackoffPolicy};
use quintet_runtime::daemon::RunFile;
use quintet_runtime::home::Home;

use crate::error::{CommandError, ErrorKind};

/// A lost daemon is looked for this often at first, and at least every few seconds.
pub(crate) const BACKOFF: BackoffPolicy = BackoffPolicy {
    base: Duration::from_millis(200),
    cap: Duration::from_secs(5),
    stable_after: Duration::from_secs(5),
};

/// The run file, if there is one that can be read.
pub(crate) fn run_file(home: &Home) -> Option<RunFile> {
    let text = std::fs::read(home.run_file()).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Dials the daemon of this home folder.
pub(crate) async fn daemon(home: &Home) -> Result<UnixClient, CommandError> {
    dial(home).await.map_err(|error| not_reached(home, error))
}

pub(crate) async fn dial(home: &Home) -> io::Result<UnixClient> {
    let socket = run_file(home).map_or_else(|| home.control_socket(), |run| run.control_socket);
    UnixClient::connect(socket).await
}

/// What to say when the daemon does not answer.
pub(crate) fn not_reached(home: &Home, error: io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            CommandError::failed(format!("no daemon is running on {}", home.root().display()))
                .hint("start one with `quintet up`")
        }
        _ => {
            let what = format!(
                "can't reach the daemon at {}",
                home.control_socket().display()
            );
            CommandError::new(ErrorKind::Failed, anyhow::Error::new(error).context(what))
                .hint("`quintet doctor` says what is wrong")
        }
    }
}

/// Dials again after a loss, with growing pauses.
#[derive(Debug)]
pub(crate) struct Redial {
    home: Home,
    backoff: Backoff,
    epoch: Instant,
    /// How long to go on; `None` is for ever.
    patience: Option<Duration>,
}

impl Redial {
    pub(crate) fn new(home: &Home, patience: Option<Duration>) -> Self {
        Self {
            home: home.clone(),
            backoff: Backoff::new(BACKOFF),
            epoch: Instant::now(),
            patience,
        }
    }

    /// Notes that the connection stands.
    pub(crate) fn connected(&mut self) {
        self.backoff.connected(self.epoch.elapsed());
    }

    /// The pause before the next try.
    pub(crate) fn pause(&mut self) -> Duration {
        self.backoff.lost(self.epoch.elapsed(), random())
    }

    /// A new connection in place of one that failed with `error`; what is no loss of the
    /// connection is given back.
    pub(crate) async fn after(&mut self, error: ClientError) -> Result<UnixClient, CommandError> {
        if !is_loss(&error) {
            return Err(error.into());
        }
        tracing::info!(%error, "the connection is lost; dialling again");
        let since = Instant::now();
        loop {
            tokio::time::sleep(self.pause()).await;
            match dial(&self.home).await {
                Ok(client) => {
                    self.connected();
                    return Ok(client);
                }
                Err(error)
                    if self
                        .patience
                        .is_some_and(|patience| since.elapsed() > patience) =>
                {
                    return Err(not_reached(&self.home, error));
                }
                Err(error) => tracing::debug!(%error, "the daemon is not back yet"),
            }
        }
    }
}

/// Whether the connection failed, and not the request.
pub(crate) fn is_loss(error: &ClientError) -> bool {
    match error {
        ClientError::Closed | ClientError::Io(_) => true,
        ClientError::Server(_)
        | ClientError::Unexpected(_)
        | ClientError::Abandoned
        | ClientError::Frame(_)
        | ClientError::Undecodable(_) => false,
    }
}

/// Uniform in 0..1; good enough to keep many clients from dialling in step.
fn random() -> f64 {
    let bits = RandomState::new().hash_one(0u8) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

impl From<ClientError> for CommandError {
    fn from(error: ClientError) -> Self {
        match error {
            // The number is for programs; the message says it in words.
            ClientError::Server(refusal) => {
                let code = refusal.code;
                let error = Self::failed(refusal.message);
                match code {
                    ErrorCode::NotFound if error.names_no_command("session") => {
                        error.hint("`quintet sessions` lists them")
                    }
                    ErrorCode::NotFound if error.names_no_command("skill") => error.hint(
                        "a SKILL.md is `---`, `description: WHAT IT IS FOR`, `---`, and then what to do",
                    ),
                    ErrorCode::BadRequest if error.names_no_command("schedule") => error.hint(
                        "`quintet cron add '0 9 * * 1-5' SKILL SESSION` is weekdays at nine; `quintet cron add --help` has more",
                    ),
                    ErrorCode::BadRequest if error.names_no_command("quiet hours") => error.hint(
                        "`--quiet-start 22:00 --quiet-end 07:00` keeps the night quiet",
                    ),
                    ErrorCode::NotFound if error.names_no_command("agent") => {
                        error.hint("`quintet agents` lists them and what each is for")
                    }
                    ErrorCode::NotFound if error.names_no_command("worker") => {
                        error.hint("`quintet workers` lists them")
                    }
                    // What was asked for is at fault, not the machine.
                    ErrorCode::BadRequest if error.names_no_command("") => {
                        error.hint("`--help` shows how it is used")
                    }
                    ErrorCode::NotFound | ErrorCode::Conflict | ErrorCode::OverLimit
                        if error.names_no_command("") =>
                    {
                        error.hint("`quintet status` and `quintet sessions` show what there is")
                    }
                    ErrorCode::Internal => error.hint(
                        "`quintet doctor` checks the machine, and the daemon's log says more",
                    ),
                    _ => error,
                }
            }
            ClientError::Closed => Self::new(ErrorKind::Failed, error)
                .hint("`quintet status` says whether the daemon still runs"),
            error => Self::new(ErrorKind::Failed, error),
        }
    }
}

/// A refusal of the configuration is exit code 64.
pub(crate) fn config_refusal(error: ClientError) -> CommandError {
    match error {
        ClientError::Server(refusal) if refusal.code == ErrorCode::BadRequest => {
            CommandError::config(anyhow::Error::msg(refusal.message))
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ_and_stay_in_range() {
        let numbers: Vec<f64> = (0..32).map(|_| random()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(numbers.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[tokio::test]
    async fn without_a_daemon_it_says_how_to_start_one() {
        let home = tempfile::tempdir().unwrap();
        let error = daemon(&Home::new(home.path())).await.unwrap_err();
        assert_eq!(
            error.message(),
            format!("no daemon is running on {}", home.path().display())
        );
        assert_eq!(error.kind(), ErrorKind::Failed);
    }
}
