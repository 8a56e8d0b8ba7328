//! The clock of the machine jumps by an hour, both ways, while the daemon works.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use quintet_control::wire::{CreateCronMsg, CronRunsMsg, ExecMsg, SendMsg, TokenCreateMsg};
use quintet_control::{Client, UnixClient};
use rustix::process::Signal;

use crate::daemon::journal;
use crate::harness::Machine;
use crate::points::tool;
use crate::process::Process;
use crate::trials::{chosen, tries};

/// A clock that is off by so many seconds for whoever has it.
struct Clock {
    file: PathBuf,
}

impl Clock {
    fn of(machine: &Machine) -> Self {
        let clock = Self {
            file: machine.path().join("clock"),
        };
        clock.is_off_by(0);
        clock
    }

    fn is_off_by(&self, seconds: i64) {
        use std::io::Write;
        // In place: the file is mapped.
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&self.file)
            .unwrap();
        file.write_all(&seconds.to_ne_bytes()).unwrap();
    }
}

/// The jumps of one trial, in hours.
fn jumps(name: &str) -> Vec<i64> {
    name.split_whitespace()
        .map(|hours| hours.parse().unwrap())
        .collect()
}

/// Everything that a daemon does goes on at whatever time.
async fn works(machine: &Machine, client: &mut UnixClient, session: &mut Option<u64>) {
    let message = SendMsg {
        agent: "shell".into(),
        content: "date > when; cat when".into(),
        session: *session,
        cwd: Some(machine.path().join("project").to_str().unwrap().into()),
        ..SendMsg::default()
    };
    *session = Some(client.send(message).await.unwrap().session);
    let exec = ExecMsg {
        session: *session,
        command: "echo x >> many".into(),
        timeout_ms: Some(20_000),
        ..ExecMsg::default()
    };
    let events: Vec<_> = client.exec(exec).collect().await;
    assert!(events.iter().all(Result::is_ok), "{events:?}");
    client.pair().await.unwrap();
    let token = TokenCreateMsg {
        worker: "other".into(),
    };
    client.token_create(token).await.unwrap();
}

async fn jumped(name: &'static str) -> &'static str {
    let machine = Machine::fresh();
    machine.has_skill("look");
    std::fs::create_dir(machine.path().join("project")).unwrap();
    let clock = Clock::of(&machine);
    let mut command = machine.quintet(&["up", "--listen", "127.0.0.1:0"]);
    command
        .env("LD_PRELOAD", tool("clock.c", &["-shared", "-fPIC"]))
        .env("QUINTET_FAULTS_CLOCK", &clock.file);
    let mut daemon = Process::start(command);
    assert!(daemon.says("is ready at").await);
    let mut client = UnixClient::connect(machine.control_socket()).await.unwrap();
    let mut session = None;
    daemon
        .within("it works", works(&machine, &mut client, &mut session))
        .await;
    // Due once an hour, half an hour from now: no jump makes it due twice.
    let in_half_an_hour = SystemTime::now() + Duration::from_secs(1800);
    let since_1970 = in_half_an_hour
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let minute = since_1970.as_secs() / 60 % 60;
    let on = session.unwrap();
    let schedule = |schedule: String| CreateCronMsg {
        schedule,
        skill: "look".into(),
        session: on,
        timezone: Some("UTC".into()),
        missed: quintet_control::wire::MissedPolicy::RunOnce.into(),
        ..CreateCronMsg::default()
    };
    let hourly = schedule(format!("{minute} * * * *"));
    let cron = client.create_cron(hourly).await.unwrap().id;
    let mut furthest = 0;
    for hours in jumps(name) {
        clock.is_off_by(hours * 3600);
        furthest = furthest.max(hours);
        let working = works(&machine, &mut client, &mut session);
        daemon.within("it works after the jump", working).await;
        // Has the schedules looked at now, and not within the minute that a jump may take.
        let yearly = schedule("0 5 1 1 *".into());
        client.create_cron(yearly).await.unwrap();
    }
    let runs = async {
        loop {
            let request = CronRunsMsg { cron: Some(cron) };
            let runs = client.cron_runs(request).await.unwrap().runs;
            if runs.len() as i64 >= furthest.min(1) {
                return runs;
            }
        }
    };
    let runs = daemon.within("what came due was run", runs).await;
    let mut due: Vec<&str> = runs.iter().map(|run| run.due.as_str()).collect();
    due.sort_unstable();
    let found = due.len();
    due.dedup();
    assert_eq!(due.len(), found, "an occurrence was run twice: {runs:?}");
    assert!(found as i64 <= furthest, "{runs:?}");
    let rows = journal(&mut client).await;
    let numbers: Vec<u64> = rows.iter().map(|row| row.seq).collect();
    assert_eq!(numbers, (1..=rows.len() as u64).collect::<Vec<_>>());
    daemon.signal(Signal::TERM);
    assert!(daemon.ends().await.status.success());
    let lines = std::fs::read_to_string(machine.path().join("project/many")).unwrap();
    assert_eq!(lines.lines().count(), jumps(name).len() + 1);
    "as if nothing had happened"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_an_hour_disturbs_nothing() {
    let places = vec!["1 0 1", "-1", "1 -1 1", "-1 0 -1", "1"];
    tries("clock jumps of an hour", chosen(places, 2), jumped).await;
}
