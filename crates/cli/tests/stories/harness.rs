//! A home folder, the program in it, and waiting for facts.
//!
//! Every wait has a deadline, and none of them is a pause: a story goes on when a line is printed,
//! a process ends, or an event is in the journal.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Far beyond what anything here takes on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A person's machine: a home folder of its own and nothing from the environment.
pub(crate) struct Machine {
    folder: TempDir,
}

impl Machine {
    pub(crate) fn fresh() -> Self {
        // Sockets have short names: a long TMPDIR must not decide whether the stories pass.
        Self {
            folder: tempfile::Builder::new()
                .prefix("quintet-")
                .tempdir_in("/tmp")
                .unwrap(),
        }
    }

    /// A machine whose configuration knows the agent of the stories, `test`.
    pub(crate) fn with_test_agent() -> Self {
        let machine = Self::fresh();
        let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/test_agent.py");
        machine.configure(&format!(
            "[agents.test]\ncommand = [\"python3\", {:?}]\ndescription = \"does what it is told\"\n",
            agent.to_str().unwrap()
        ));
        machine
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path().join(".quintet")
    }

    pub(crate) fn run_file(&self) -> PathBuf {
        self.home().join("run/quintet.json")
    }

    pub(crate) fn control_socket(&self) -> PathBuf {
        self.home().join("run/quintet.sock")
    }

    pub(crate) fn configure(&self, toml: &str) {
        std::fs::create_dir_all(self.home()).unwrap();
        std::fs::write(self.home().join("config.toml"), toml).unwrap();
    }

    pub(crate) fn has_skill(&self, name: &str) {
        let folder = self.home().join("skills").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!("---\nname: {name}\ndescription: for a story\n---\nsay it is time\n");
        std::fs::write(folder.join("SKILL.md"), text).unwrap();
    }

    /// The program with these arguments, not yet started.
    pub(crate) fn quintet(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_quintet"));
        command.args(arguments);
        command
    }

    /// Any program in this machine's environment.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .current_dir(self.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command to its end.
    pub(crate) async fn runs(&self, arguments: &[&str]) -> Finished {
        Finished::of(self.quintet(arguments)).await
    }

    /// Begins a command that ends later.
    pub(crate) fn begins(&self, arguments: &[&str]) -> Begun {
        let mut task = JoinSet::new();
        task.spawn(Finished::of(self.quintet(arguments)));
        Begun(task)
    }

    /// Runs a command to its end with this text on stdin.
    pub(crate) async fn pipes(&self, text: &str, arguments: &[&str]) -> Finished {
        let mut command = self.quintet(arguments);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(text.as_bytes()).await.unwrap();
        drop(stdin);
        Finished::from(
            within("the command ends", child.wait_with_output())
                .await
                .unwrap(),
        )
    }

    /// A code that a browser pairs with.
    pub(crate) async fn pairing_code(&self) -> String {
        let made = self.runs(&["pair", "--json"]).await.json();
        made["code"].as_str().unwrap().to_owned()
    }

    /// Starts the daemon on any port and waits until it says that it is ready.
    pub(crate) async fn up(&self) -> Daemon {
        self.up_with(&[]).await
    }

    pub(crate) async fn up_with(&self, more: &[&str]) -> Daemon {
        let anywhere: &[&str] = match more.contains(&"--listen") {
            true => &[],
            false => &["--listen", "127.0.0.1:0"],
        };
        let arguments = [&["up"], anywhere, more].concat();
        Daemon::started(self.quintet(&arguments)).await
    }

    /// Starts the daemon behind `ulimit` with this.
    pub(crate) async fn up_limited(&self, ulimit: &str, more: &[&str]) -> Daemon {
        let mut command = self.program("sh");
        command
            .arg("-c")
            .arg(format!(r#"ulimit {ulimit} && exec "$0" "$@""#))
            .args([
                env!("CARGO_BIN_EXE_quintet"),
                "up",
                "--listen",
                "127.0.0.1:0",
            ])
            .args(more);
        Daemon::started(command).await
    }

    /// Waits until an event of this kind is in a session's journal, and returns its row.
    pub(crate) async fn sees(&self, kind: &str, session: u64) -> Value {
        // Without --session: the session may not be there yet.
        let mut events =
            Running::start(self.quintet(&["events", "--json", "--follow", "--after", "0"]));
        loop {
            let row: Value = serde_json::from_str(&events.line().await).unwrap();
            if row["kind"] == kind && row["session"] == session {
                return row;
            }
        }
    }

    /// The rows of the journal of that kind.
    pub(crate) async fn rows(&self, kind: &str) -> Vec<Value> {
        let said = self.runs(&["events", "--json"]).await.succeeds();
        let rows = said
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.filter(|row| row["kind"] == kind).collect()
    }

    /// Waits until so many messages are in the queue: each arrival is an event of the journal.
    pub(crate) async fn queue_reaches(&self, count: usize) -> Value {
        let mut events =
            Running::start(self.quintet(&["events", "--json", "--follow", "--after", "0"]));
        loop {
            events.line().await;
            let queue = self.runs(&["queue", "ls", "--json"]).await.json();
            if queue.as_array().unwrap().len() == count {
                return queue;
            }
        }
    }
}

/// A daemon in the foreground of its own process.
pub(crate) struct Daemon {
    process: Running,
    ready: String,
}

impl Daemon {
    async fn started(command: Command) -> Self {
        let mut process = Running::start(command);
        let ready = process.prints("is ready at").await;
        Self { process, ready }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address in the line that says it is ready.
    pub(crate) fn http(&self) -> &str {
        self.ready.rsplit(' ').next().unwrap()
    }

    /// Ends it in order and returns how it ended.
    pub(crate) async fn stops(self) -> ExitStatus {
        self.process.signal(rustix::process::Signal::TERM);
        self.process.ends().await
    }

    /// Ends it as a power cut would.
    pub(crate) async fn dies(self) {
        self.process.signal(rustix::process::Signal::KILL);
        self.process.ends().await;
    }

    /// The same, with a client: nobody cancels what it waits for, nobody comes back for it.
    pub(crate) async fn dies_with(self, client: Running) {
        client.signal(rustix::process::Signal::STOP);
        self.dies().await;
        client.signal(rustix::process::Signal::KILL);
        client.ends().await;
    }
}

/// A command that runs.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Starts the program with what it says on stderr between what it prints.
    pub(crate) fn start_with_talk(machine: &Machine, arguments: &[&str]) -> Self {
        let mut command = machine.program("sh");
        command
            .args([
                "-c",
                "exec \"$0\" \"$@\" 2>&1",
                env!("CARGO_BIN_EXE_quintet"),
            ])
            .args(arguments);
        Self::start(command)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it has not been waited for")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The next line that it prints.
    pub(crate) async fn line(&mut self) -> String {
        let line = within("a line is printed", self.lines.next_line())
            .await
            .unwrap();
        line.expect("it ended before it printed the line")
    }

    /// Waits for a line with this text.
    pub(crate) async fn prints(&mut self, text: &str) -> String {
        loop {
            let line = self.line().await;
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The lines that it prints from here to its end.
    pub(crate) async fn rest(mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(line) = within("it ends", self.lines.next_line()).await.unwrap() {
            lines.push(line);
        }
        lines
    }

    pub(crate) async fn ends(mut self) -> ExitStatus {
        within("the process ends", self.child.wait()).await.unwrap()
    }
}

/// A command that runs while the story goes on.
pub(crate) struct Begun(JoinSet<Finished>);

impl Begun {
    pub(crate) async fn ends(mut self) -> Finished {
        self.0.join_next().await.unwrap().unwrap()
    }
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Finished {
    pub(crate) async fn of(mut command: Command) -> Self {
        Self::from(within("the command ends", command.output()).await.unwrap())
    }

    /// Its stdout; it has to have ended well.
    #[track_caller]
    pub(crate) fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.stdout
    }

    /// Its stdout as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.succeeds()).unwrap()
    }

    /// Its stderr; it has to have failed with this exit code.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self.stderr
    }
}

impl From<std::process::Output> for Finished {
    fn from(output: std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {DEADLINE:?} in vain until {what}"),
    }
}
