//! The daemon, killed or refused at each call by which it changes its home folder or a session's.
//!
//! A person's afternoon: messages, a title, configuration, a schedule, a token, a command, an undo,
//! copies to and from a worker, and a stop. What the daemon said is remembered; afterwards another
//! daemon is started on what is left and has to keep it.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use quintet_control::wire::command_event::Event;
use quintet_control::wire::{
    CopyDirection, CopyMsg, CreateCronMsg, EventsMsg, ExecMsg, JournalEvent, SendMsg, SetConfigMsg,
    SetTitleMsg, TokenCreateMsg, UndoMsg,
};
use quintet_control::{Client, ClientError, UnixClient};
use rustix::process::Signal;
use serde_json::Value;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::disk::{Errno, temporary};
use crate::harness::{Machine, within};
use crate::points::{Fault, Plan, Point, Steering, plans};
use crate::process::Process;
use crate::trials::{chosen, tries};

/// What a client was told, and what it was refused.
#[derive(Debug, Default)]
struct Told {
    sequences: Vec<u64>,
    session: Option<u64>,
    title: bool,
    drain: bool,
    cron: Option<u64>,
    token: Option<u64>,
    /// Asked for; told.
    second: (bool, bool),
    undone: (bool, bool),
    copied: bool,
    /// An earlier afternoon ended between the second command and its undo.
    half: bool,
    /// Nothing was answered until the disk was mended.
    waited: bool,
    refusals: Vec<String>,
    done: bool,
}

/// One person's machine with a project in it.
struct Place {
    machine: Machine,
    steering: Steering,
}

impl Place {
    fn new() -> Self {
        let machine = Machine::fresh();
        machine.has_skill("look");
        std::fs::create_dir(machine.path().join("project")).unwrap();
        std::fs::write(machine.path().join("project/kept"), "kept\n").unwrap();
        std::fs::write(machine.path().join("large"), vec![7; 300_000]).unwrap();
        Self {
            machine,
            steering: Steering::new(),
        }
    }

    fn project(&self) -> PathBuf {
        self.machine.path().join("project")
    }

    fn recorded(&self) -> Command {
        let (home, project) = (self.machine.home(), self.project());
        let mut command = self
            .steering
            .records(&self.machine, &[&home, &project], &UP);
        command.envs([PATIENCE]);
        command
    }

    fn broken(&self, point: &Point, fault: Fault) -> Command {
        let (home, project) = (self.machine.home(), self.project());
        let mut command =
            self.steering
                .breaks(&self.machine, &[&home, &project], &UP, point, fault);
        command.envs([PATIENCE]);
        command
    }

    /// Goes through the afternoon until something is not answered.
    async fn afternoon(&self, told: &mut Told) -> Result<(), ClientError> {
        let mut client = UnixClient::connect(self.machine.control_socket()).await?;
        let project = self.project().to_str().unwrap().to_owned();
        let first = SendMsg {
            agent: "shell".into(),
            content: "echo first > first".into(),
            cwd: Some(project),
            ..SendMsg::default()
        };
        let session = client.send(first).await?.session;
        told.session = Some(session);
        let title = SetTitleMsg {
            session,
            title: "an afternoon".into(),
        };
        told.sequences.push(client.set_title(title).await?.seq);
        told.title = true;
        let mut config: Value = serde_json::from_str(&client.get_config().await?.config).unwrap();
        config["daemon"]["drain"] = "7s".into();
        let config = SetConfigMsg {
            config: config.to_string(),
        };
        client.set_config(config).await?;
        told.drain = true;
        let cron = CreateCronMsg {
            schedule: "0 5 1 1 *".into(),
            skill: "look".into(),
            session,
            ..CreateCronMsg::default()
        };
        told.cron = Some(client.create_cron(cron).await?.id);
        let token = TokenCreateMsg {
            worker: "other".into(),
        };
        told.token = Some(client.token_create(token).await?.id);
        told.second.0 = true;
        let second = ExecMsg {
            session: Some(session),
            command: "echo second > second; echo changed > kept".into(),
            ..ExecMsg::default()
        };
        let mut late = Vec::new();
        told.second.1 = all(client.exec(second), told, |event| match &event.event {
            Some(Event::Ended(ended)) => {
                let changes = ended.changes.as_ref();
                late.extend(changes.into_iter().flat_map(|it| it.notes.clone()));
                true
            }
            _ => false,
        })
        .await?;
        if !late.is_empty() {
            // There is nothing to undo yet.
            told.second.1 = false;
            told.refusals.append(&mut late);
            return Ok(());
        }
        told.undone.0 = true;
        let undo = UndoMsg {
            session,
            commands: 1,
        };
        client.undo(undo).await?;
        told.undone.1 = true;
        for (local, direction) in [
            ("large", CopyDirection::ToWorker),
            ("back", CopyDirection::FromWorker),
        ] {
            let copy = CopyMsg {
                worker: "local".into(),
                remote: "there".into(),
                local: self.machine.path().join(local).to_str().unwrap().into(),
                direction: direction.into(),
                recursive: false,
            };
            all(client.copy(copy), told, |_| true).await?;
        }
        told.copied = true;
        told.done = true;
        Ok(())
    }

    /// Goes through the afternoon until nothing is refused: after a fault of the disk connections
    /// and folders are tried again only after a while.
    async fn works_again(&self, half: bool) -> Told {
        loop {
            let mut again = Told {
                half,
                ..Told::default()
            };
            match self.afternoon(&mut again).await {
                Ok(()) if again.done => return again,
                _ => tokio::task::yield_now().await,
            }
        }
    }

    /// A daemon without faults keeps what was told and does what is asked.
    async fn keeps(&self, told: &Told, seen: &[JournalEvent]) {
        let daemon = self.machine.up().await;
        let mut client = self.client().await;
        let journal = journal(&mut client).await;
        let numbers: Vec<u64> = journal.iter().map(|event| event.seq).collect();
        let whole: Vec<u64> = (1..=journal.len() as u64).collect();
        assert_eq!(numbers, whole, "numbers have a gap");
        for event in seen {
            let kept = usize::try_from(event.seq - 1).unwrap();
            assert_eq!(journal.get(kept), Some(event), "a told event is gone");
        }
        for seq in &told.sequences {
            assert!(*seq <= journal.len() as u64, "accepted {seq} is gone");
        }
        let config = std::fs::read_to_string(self.machine.home().join("config.toml")).unwrap();
        let config: toml::Table = config.parse().unwrap();
        let drain = config.get("daemon").and_then(|daemon| daemon.get("drain"));
        let drain = drain.and_then(toml::Value::as_str);
        match told.drain {
            true => assert_eq!(drain, Some("7s"), "configuration that was told"),
            false => assert!(matches!(drain, None | Some("7s")), "{drain:?}"),
        }
        let crons = client.list_crons().await.unwrap().crons;
        let crons: Vec<u64> = crons.iter().map(|cron| cron.id).collect();
        assert!(told.cron.is_none_or(|id| crons.contains(&id)), "{crons:?}");
        let tokens = client.token_list().await.unwrap().tokens;
        let tokens: Vec<u64> = tokens.iter().map(|token| token.id).collect();
        assert!(
            told.token.is_none_or(|id| tokens.contains(&id)),
            "{tokens:?}"
        );
        self.files_are_whole(told, &commands(&journal));
        // The session, or a new one, goes on.
        let more = SendMsg {
            agent: "shell".into(),
            content: "cat kept".into(),
            session: told.session,
            cwd: Some(self.project().to_str().unwrap().into()),
            ..SendMsg::default()
        };
        let said = within("the shell answers", client.send(more)).await;
        let said = said.unwrap();
        assert!(
            said.content.contains("kept") || said.content.contains("changed"),
            "{said:?}"
        );
        if told.session.is_some() {
            assert_eq!(Some(said.session), told.session);
        }
        let verified = self
            .machine
            .runs(&["workspace", "verify", "--dir", "project"])
            .await;
        verified.succeeds();
        assert!(daemon.stops().await.success());
        assert_eq!(temporary(self.machine.path()), BTreeSet::new());
    }

    fn files_are_whole(&self, told: &Told, commands: &str) {
        let read = |name: &str| std::fs::read_to_string(self.project().join(name)).ok();
        let first = read("first");
        // What the earlier afternoon left in place was no change of this one's second command, and
        // the undo took back the last command that was one.
        match told.session.is_some() && !told.half {
            true => assert_eq!(first.as_deref(), Some("first\n"), "{commands}"),
            false => assert!(
                matches!(first.as_deref(), None | Some("first\n")),
                "{first:?}"
            ),
        }
        let (second, kept) = (read("second"), read("kept"));
        let before = (None, Some("kept\n"));
        let after = (Some("second\n"), Some("changed\n"));
        let is = (second.as_deref(), kept.as_deref());
        match (told.second, told.undone) {
            _ if told.half => {}
            (_, (_, true)) | ((false, _), _) => assert_eq!(is, before, "{commands}"),
            ((_, true), (false, _)) => assert_eq!(is, after, "{commands}"),
            _ => {
                // Two files: either may be there before the other, but none in part.
                assert!(is.0 == before.0 || is.0 == after.0, "{is:?}");
                assert!(is.1 == before.1 || is.1 == after.1, "{is:?}");
            }
        }
        if told.copied {
            let back = std::fs::read(self.machine.path().join("back")).unwrap();
            assert_eq!(back, vec![7; 300_000]);
        }
    }

    async fn client(&self) -> UnixClient {
        UnixClient::connect(self.machine.control_socket())
            .await
            .unwrap()
    }
}

/// How long a disk fails when nothing is answered before.
const DISK_STAYS: Duration = Duration::from_secs(20);

/// A disk that stays full is waited for, and each trial has to end.
const PATIENCE: (&str, &str) = ("QUINTET_WORKSPACE__PATIENCE", "5s");

const UP: [&str; 3] = ["up", "--listen", "127.0.0.1:0"];

/// Reads a reply to its end; a refusal in the midst of it is one.
async fn all<T>(
    reply: impl futures_util::Stream<Item = Result<T, ClientError>>,
    told: &mut Told,
    mut is_end: impl FnMut(&T) -> bool,
) -> Result<bool, ClientError> {
    tokio::pin!(reply);
    let mut ended = false;
    while let Some(event) = reply.next().await {
        match event {
            Ok(event) => ended |= is_end(&event),
            Err(error) => {
                told.refusals.push(error.to_string());
                return Err(error);
            }
        }
    }
    Ok(ended)
}

pub(crate) async fn journal(client: &mut UnixClient) -> Vec<JournalEvent> {
    let request = EventsMsg {
        session: None,
        after_seq: Some(0),
        follow: false,
    };
    let events: Vec<_> = client.events(request).collect().await;
    events.into_iter().map(|event| event.unwrap()).collect()
}

/// What commands did to files, for the message of a failure.
fn commands(journal: &[JournalEvent]) -> String {
    let rows = journal.iter().filter(|row| row.kind.starts_with("command"));
    rows.map(|row| format!("\n{} {} {}", row.seq, row.kind, row.data))
        .collect()
}

/// What agents said.
async fn answers(client: &mut UnixClient) -> String {
    let rows = journal(client).await.into_iter();
    let said = rows.filter(|row| row.kind.starts_with("text"));
    said.map(|row| row.data).collect()
}

/// Follows the journal until the daemon is gone; returns what it was told.
async fn follow(socket: PathBuf) -> Vec<JournalEvent> {
    let mut told = Vec::new();
    let Ok(mut client) = UnixClient::connect(socket).await else {
        return told;
    };
    let request = EventsMsg {
        session: None,
        after_seq: Some(0),
        follow: true,
    };
    let events = client.events(request);
    tokio::pin!(events);
    while let Some(Ok(event)) = events.next().await {
        told.push(event);
    }
    told
}

/// Starts it and goes through the afternoon; returns what was told and the daemon.
async fn runs(place: &Place, command: Command) -> (Told, Process, JoinSet<Vec<JournalEvent>>) {
    let mut told = Told::default();
    let mut daemon = Process::start(command);
    let mut follower = JoinSet::new();
    if daemon.says("is ready at").await {
        follower.spawn(follow(place.machine.control_socket()));
        let mut waited = false;
        let answered = {
            let afternoon = place.afternoon(&mut told);
            tokio::pin!(afternoon);
            tokio::select! {
                answered = &mut afternoon => answered,
                () = tokio::time::sleep(DISK_STAYS) => {
                    waited = true;
                    place.steering.mend();
                    daemon.within("the afternoon ends", afternoon).await
                }
            }
        };
        told.waited = waited;
        if let Err(error) = answered {
            told.refusals.push(error.to_string());
        }
    }
    (told, daemon, follower)
}

/// All points of an afternoon that nothing disturbs.
async fn recorded() -> Vec<Point> {
    let place = Place::new();
    let (told, mut daemon, _follower) = runs(&place, place.recorded()).await;
    assert!(told.done, "{:?}", told.refusals);
    daemon.signal(Signal::TERM);
    assert!(daemon.ends().await.status.success());
    place.keeps(&told, &[]).await;
    place.steering.recorded()
}

async fn killed(plan: Plan) -> &'static str {
    let place = Place::new();
    let (told, mut daemon, follower) = runs(&place, place.broken(&plan.point, plan.fault)).await;
    daemon.signal(Signal::TERM);
    let ended = daemon.ends().await;
    let hit = place.steering.hit();
    assert_eq!(hit, ended.status.signal() == Some(9), "{ended:?}");
    let seen = follower.join_all().await.concat();
    place.keeps(&told, &seen).await;
    if hit { "killed" } else { "not reached" }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_the_daemon_keeps_what_it_told() {
    let points = recorded().await;
    eprintln!("faults: the daemon has {} points", points.len());
    let plans = plans(&points, &[Fault::Kill, Fault::Tear]);
    tries("kill -9 of the daemon", chosen(plans, 16), killed).await;
}

async fn refused(plan: Plan) -> &'static str {
    let (Fault::Once(errno) | Fault::Lasting(errno)) = plan.fault else {
        unreachable!("no fault of the disk")
    };
    let place = Place::new();
    let (told, mut daemon, mut follower) =
        runs(&place, place.broken(&plan.point, plan.fault)).await;
    let hit = place.steering.hit();
    let lives = daemon.lives();
    place.steering.mend();
    if !lives {
        let ended = daemon.ends().await;
        assert!(errno.is_named_in(&ended.stderr), "unclear: {ended:?}");
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        let seen = follower.join_all().await.concat();
        place.keeps(&told, &seen).await;
        return "ended with the reason";
    }
    let mut in_the_log = told.waited;
    for refusal in &told.refusals {
        if refusal.contains("not at the host") {
            in_the_log = true;
            continue;
        }
        // An agent says in its answer what went wrong, and then that it did.
        let said = match refusal.contains("the agent reported an error") {
            true => answers(&mut place.client().await).await,
            false => refusal.clone(),
        };
        assert!(errno.is_named_in(&said), "unclear: {refusal}: {said}");
    }
    let again = daemon.within("it works again", place.works_again(told.second.0));
    let again = again.await;
    daemon.signal(Signal::TERM);
    let ended = daemon.ends().await;
    assert!(ended.status.success(), "{ended:?}");
    let mut seen = Vec::new();
    while let Some(events) = follower.join_next().await {
        seen.extend(events.unwrap());
    }
    place.keeps(&again, &seen).await;
    if in_the_log {
        assert!(errno.is_named_in(&ended.stderr), "unclear: {ended:?}");
    }
    match (hit, told.refusals.is_empty()) {
        (false, _) => "not reached",
        (true, false) => "refused with the reason",
        (true, true) if told.waited => "waited for the disk",
        (true, true) => "not needed",
    }
}

/// The daemon says why, and goes on afterwards.
async fn on_a_disk_that_fails(row: &str, errno: Errno) {
    let points = recorded().await;
    let plans = plans(&points, &[Fault::Lasting(errno), Fault::Once(errno)]);
    tries(row, chosen(plans, 3), refused).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_nothing_stops_for_good() {
    on_a_disk_that_fails("disk full under the daemon", Errno::Full).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_disk_is_named_and_nothing_stops_for_good() {
    on_a_disk_that_fails("disk read-only under the daemon", Errno::ReadOnly).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_a_disk_are_named_and_nothing_stops_for_good() {
    on_a_disk_that_fails("disk I/O errors under the daemon", Errno::Broken).await;
}
