//! Terminals on workers, through the channel.

use std::path::Path;

use quintet_channel::client::{Client, ServerMessage};
use serde_json::{Value, json};

use super::browser::ws_url;
use super::ours::{asks, paired, refused};
use crate::harness::{Machine, Running, within};

/// A shell that a device is attached to, and what it has printed.
struct Shell {
    id: Value,
    stream: u32,
    /// Where its bytes begin.
    from: u64,
    shown: Vec<u8>,
}

impl Shell {
    fn of(answer: &Value) -> Self {
        Self {
            id: answer["shell"].clone(),
            stream: u32::try_from(answer["stream"].as_u64().unwrap()).unwrap(),
            from: answer["from"].as_u64().unwrap(),
            shown: Vec::new(),
        }
    }

    async fn opens(client: &mut Client, worker: &str, session: Option<u64>) -> Self {
        let mut args = json!({ "worker": worker, "rows": 24, "cols": 80 });
        if let Some(session) = session {
            args["session"] = session.into();
        }
        Self::of(&asks(client, "shells.open", args).await)
    }

    async fn attaches(client: &mut Client, worker: &str, id: &Value, from: u64) -> Self {
        let args = json!({ "worker": worker, "shell": id, "rows": 24, "cols": 80, "from": from });
        Self::of(&asks(client, "shells.attach", args).await)
    }

    async fn types(&self, client: &mut Client, line: &str) {
        let line = format!("{line}\n");
        client
            .send_bytes(self.stream, line.as_bytes())
            .await
            .unwrap();
    }

    async fn prints(&mut self, client: &mut Client, text: &str) {
        while !String::from_utf8_lossy(&self.shown).contains(text) {
            if let ServerMessage::Bytes { stream, bytes } =
                within("the terminal prints", client.next()).await.unwrap()
            {
                assert_eq!(stream, self.stream);
                self.shown.extend(bytes);
            }
        }
    }

    async fn ends(&self, client: &mut Client) -> Value {
        loop {
            let message = within("it ends", client.next()).await.unwrap();
            if let ServerMessage::Json(mut message) = message
                && message["stream_end"]["stream"] == self.stream
            {
                return message["stream_end"].take();
            }
        }
    }
}

async fn online(client: &mut Client, worker: &str) {
    loop {
        let listed = asks(client, "workers.list", json!({})).await;
        let mut workers = listed["workers"].as_array().unwrap().iter();
        if workers.any(|it| it["id"] == worker && it["state"] == "online") {
            return;
        }
    }
}

#[tokio::test]
async fn a_terminal_runs_through_the_channel_and_can_be_attached_to_again() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let (mut phone, identity) = paired(&machine, &daemon, "phone").await;
    online(&mut phone, "local").await;
    let mut shell = Shell::opens(&mut phone, "local", None).await;
    shell.types(&mut phone, "echo a$((40+2))b").await;
    shell.prints(&mut phone, "a42b").await;
    let size = json!({ "stream": shell.stream, "rows": 10, "cols": 40 });
    asks(&mut phone, "shells.resize", size).await;
    drop(phone);

    let mut phone = Client::resume(&ws_url(&daemon), &identity).await.unwrap();
    let listed = asks(&mut phone, "shells.list", json!({ "worker": "local" })).await;
    assert_eq!(listed["shells"][0]["id"], shell.id);
    let again = Shell::attaches(&mut phone, "local", &shell.id, 0).await;
    again.types(&mut phone, "exit 7").await;
    let ended = again.ends(&mut phone).await;
    assert_eq!(ended, json!({ "stream": again.stream, "code": 7 }));
}

#[tokio::test]
async fn a_device_that_has_the_beginning_gets_only_the_rest() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let (mut phone, identity) = paired(&machine, &daemon, "phone").await;
    online(&mut phone, "local").await;
    let mut shell = Shell::opens(&mut phone, "local", None).await;
    assert_eq!(shell.from, 0);
    shell.types(&mut phone, "echo be$((1))fore").await;
    shell.prints(&mut phone, "be1fore").await;
    let seen = shell.shown.len() as u64;
    drop(phone);

    let mut phone = Client::resume(&ws_url(&daemon), &identity).await.unwrap();
    let mut again = Shell::attaches(&mut phone, "local", &shell.id, seen).await;
    assert_eq!(again.from, seen);
    again.types(&mut phone, "echo af$((2))ter").await;
    again.prints(&mut phone, "af2ter").await;
    let rest = again.shown.clone();
    assert!(!String::from_utf8_lossy(&rest).contains("be1fore"));
    asks(
        &mut phone,
        "shells.detach",
        json!({ "stream": again.stream }),
    )
    .await;

    // Both parts together are what somebody sees who asks for all of it.
    let mut whole = Shell::attaches(&mut phone, "local", &shell.id, 0).await;
    whole.prints(&mut phone, "af2ter").await;
    let joined = [shell.shown, rest].concat();
    let shorter = joined.len().min(whole.shown.len());
    assert_eq!(whole.shown[..shorter], joined[..shorter]);
}

#[tokio::test]
async fn a_second_device_takes_the_shell_and_the_first_is_told() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let (mut phone, _) = paired(&machine, &daemon, "phone").await;
    let (mut laptop, _) = paired(&machine, &daemon, "laptop").await;
    online(&mut phone, "local").await;
    let mut shell = Shell::opens(&mut phone, "local", None).await;
    shell.types(&mut phone, "echo o$((3))ne").await;
    shell.prints(&mut phone, "o3ne").await;
    let mut taken = Shell::attaches(&mut laptop, "local", &shell.id, 0).await;
    let ended = shell.ends(&mut phone).await;
    assert_eq!(ended["code"], Value::Null);
    assert_eq!(ended["reason"], "somebody else attached");
    taken.types(&mut laptop, "echo t$((4))wo").await;
    taken.prints(&mut laptop, "t4wo").await;
}

#[tokio::test]
async fn a_sessions_terminal_starts_among_its_files_on_any_worker() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let root = machine.path().join("elsewhere");
    std::fs::create_dir(&root).unwrap();
    let join = ["worker", "--daemon-id", "box", "--root", path(&root)];
    let _box = Running::start_with_talk(&machine, &join);
    let (mut phone, _) = paired(&machine, &daemon, "phone").await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("a"), "from-the-host").unwrap();
    let create = json!({ "agent": "shell", "cwd": path(&project) });
    let made = asks(&mut phone, "sessions.create", create).await;
    let session = made["session"].as_u64().unwrap();
    for worker in ["local", "box"] {
        online(&mut phone, worker).await;
        let mut shell = Shell::opens(&mut phone, worker, Some(session)).await;
        let line = format!("echo [$(cat a)]; echo $((5))-{worker} > by-{worker}; exit");
        shell.types(&mut phone, &line).await;
        shell.prints(&mut phone, "[from-the-host]").await;
        assert_eq!(shell.ends(&mut phone).await["code"], 0);
        // The end is told when the host has what was written.
        let written = std::fs::read_to_string(project.join(format!("by-{worker}")));
        assert_eq!(written.unwrap(), format!("5-{worker}\n"));
    }
    let gone = json!({ "worker": "local", "rows": 24, "cols": 80, "session": 999 });
    assert_eq!(refused(&mut phone, "shells.open", gone).await, "not_found");
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
