//! Other programs, that are told something and answer in lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub const MASTER: &str = env!("CARGO_BIN_EXE_crash-master");
pub const REPLICA: &str = env!("CARGO_BIN_EXE_crash-replica");

/// The most memory that a program of `/proc` ever held.
pub fn peak_memory_of(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Has the most memory of this program counted from now on.
pub fn forget_peak_memory() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// A program that ends with this value.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        Self {
            child,
            input,
            output,
        }
    }

    /// One end of the crash test, once it is ready.
    pub fn end(program: &str, home: &Path, name: &str) -> Self {
        let mut process = Self::start(Command::new(program).arg(home).arg(name));
        assert_eq!(process.line(), "ready");
        process
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says; empty when it ended.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Has a replica wait until both sides agree; says at which sequence.
    pub fn agree(&mut self) -> u64 {
        self.tell("");
        let line = self.line();
        let (sequence, _) = line
            .split_once(' ')
            .unwrap_or_else(|| panic!("it said {line:?}"));
        sequence.parse().unwrap()
    }

    pub fn peak_memory(&self) -> u64 {
        peak_memory_of(&self.id().to_string())
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
