//! Another program holds the write lock of a database, for longer than the daemon waits for it.

use std::path::PathBuf;

use futures_util::StreamExt;
use quintet_control::wire::{EventsMsg, ExecMsg, SendMsg, SetTitleMsg};
use quintet_control::{Client, UnixClient};
use rustix::process::Signal;

use crate::harness::Machine;
use crate::process::Process;
use crate::trials::tries;

/// The lock of a database, until it is dropped.
struct Held {
    _connection: rusqlite::Connection,
}

impl Held {
    fn of(path: PathBuf) -> Self {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection
            .busy_timeout(std::time::Duration::from_secs(20))
            .unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self {
            _connection: connection,
        }
    }
}

struct Place {
    machine: Machine,
    session: u64,
}

impl Place {
    async fn client(&self) -> UnixClient {
        UnixClient::connect(self.machine.control_socket())
            .await
            .unwrap()
    }

    /// The history of the session's folder.
    fn history(&self) -> PathBuf {
        let folders = std::fs::read_dir(self.machine.home().join("workspaces")).unwrap();
        let mut found = folders.map(|folder| folder.unwrap().path().join("history.db"));
        found.find(|file| file.exists()).unwrap()
    }

    async fn writes(&self, file: &str) -> Vec<String> {
        let exec = ExecMsg {
            session: Some(self.session),
            command: format!("echo {file} > {file}"),
            ..ExecMsg::default()
        };
        let mut client = self.client().await;
        let events: Vec<_> = client.exec(exec).collect().await;
        events
            .into_iter()
            .filter_map(|event| event.err().map(|error| error.to_string()))
            .collect()
    }
}

async fn locked(name: &'static str) -> &'static str {
    let machine = Machine::fresh();
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let mut daemon = Process::start(machine.quintet(&["up", "--listen", "127.0.0.1:0"]));
    assert!(daemon.says("is ready at").await);
    let mut client = UnixClient::connect(machine.control_socket()).await.unwrap();
    let first = SendMsg {
        agent: "shell".into(),
        content: "echo first > first".into(),
        cwd: Some(project.to_str().unwrap().into()),
        ..SendMsg::default()
    };
    let session = daemon.within("the shell answers", client.send(first)).await;
    let session = session.unwrap().session;
    let place = Place { machine, session };
    let title = |title: &str| SetTitleMsg {
        session,
        title: title.into(),
    };
    match name {
        "the journal" => {
            let held = Held::of(place.machine.home().join("quintet.db"));
            let refused = client.set_title(title("locked"));
            let refused = daemon.within("a refusal", refused).await.unwrap_err();
            assert!(refused.to_string().contains("locked"), "{refused}");
            // Reading needs no lock.
            let events = EventsMsg {
                session: None,
                after_seq: Some(0),
                follow: false,
            };
            assert!(client.events(events).count().await > 3);
            let waiting = client.set_title(title("free"));
            let (waiting, ()) = tokio::join!(waiting, async { drop(held) });
            waiting.unwrap();
        }
        _ => {
            let held = Held::of(place.history());
            std::fs::write(project.join("of-the-host"), "x").unwrap();
            // A message and a title are no matter of the folder's history.
            client.set_title(title("still")).await.unwrap();
            let (refusals, ()) = tokio::join!(place.writes("second"), async {
                client.set_title(title("free")).await.unwrap();
                drop(held);
            });
            assert_eq!(refusals, Vec::<String>::new());
        }
    }
    let refusals = daemon.within("it works", place.writes("last")).await;
    assert_eq!(refusals, Vec::<String>::new());
    assert_eq!(
        std::fs::read_to_string(project.join("last")).unwrap(),
        "last\n"
    );
    daemon.signal(Signal::TERM);
    assert!(daemon.ends().await.status.success());
    match name {
        "the journal" => "refused with the reason, read meanwhile",
        _ => "waited for the lock",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_is_waited_for_and_then_said() {
    let places = vec!["the journal", "the history of a folder"];
    tries("SQLite busy", places, locked).await;
}
