//! The guide does what it says: its screens are typed and its files are written, page by page.
//!
//! A block of `console` is a screen: a line with `$ ` is run by a shell, what follows is what it
//! prints. Any number stands for any other, `...` for anything, on a line of its own for any lines.
//! A block whose first line is a comment with a path is that file. Blocks of `sh` are not run: they
//! need a key, another machine, or root.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::harness::{Finished, Machine, Running};

/// A page of the repository, run on a machine of its own.
struct Page {
    machine: Machine,
    name: &'static str,
    text: String,
    /// What a screen left running.
    running: Vec<Running>,
}

/// A command of a screen, and what the page shows after it.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    shown: Vec<String>,
}

impl Page {
    fn open(name: &'static str) -> Self {
        let machine = Machine::fresh();
        // As `pip install ./sdk/python` would.
        std::os::unix::fs::symlink(
            repository().join("sdk/python/src/quintet_agent"),
            machine.path().join("quintet_agent"),
        )
        .unwrap();
        Self {
            machine,
            name,
            text: fs::read_to_string(repository().join(name)).unwrap(),
            running: Vec::new(),
        }
    }

    /// Does everything that the page says, in order; returns how many commands that were.
    async fn plays(mut self) -> usize {
        let mut count = 0;
        for (language, lines) in blocks(&self.text) {
            if let Some(file) = file_named(&lines) {
                self.writes(&file, &lines);
            } else if language == "console" {
                for step in steps(&lines) {
                    self.types(&step).await;
                    count += 1;
                }
            }
        }
        for running in self.running {
            running.signal(rustix::process::Signal::TERM);
            assert!(running.ends().await.success(), "{}", self.name);
        }
        count
    }

    fn writes(&self, file: &str, lines: &[String]) {
        let path = match file.strip_prefix("~/") {
            Some(beneath) => self.machine.path().join(beneath),
            None => self.machine.path().join(file),
        };
        let text = self.with_paths(&lines.join("\n"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        writeln!(file, "\n{text}").unwrap();
    }

    /// `/path/to` is the repository where it is followed by a folder of it, else this machine.
    fn with_paths(&self, text: &str) -> String {
        let examples = repository().join("examples");
        text.replace("/path/to/examples", examples.to_str().unwrap())
            .replace("/path/to", self.machine.path().to_str().unwrap())
    }

    async fn types(&mut self, step: &Step) {
        let command = self.with_paths(&step.command);
        let printed = match command.strip_suffix('&') {
            Some(command) => {
                let mut running = Running::start(self.shell(&format!("exec {command}")));
                let mut printed = Vec::new();
                for _ in step.shown.iter().take_while(|line| *line != "...") {
                    printed.push(running.line().await);
                }
                self.running.push(running);
                self.waits_for_its_worker().await;
                printed
            }
            None => {
                let finished = Finished::of(self.shell(&command)).await;
                assert_eq!(
                    finished.code,
                    Some(0),
                    "{}: {step:?}: {finished:#?}",
                    self.name
                );
                finished.stdout.lines().map(str::to_owned).collect()
            }
        };
        let home = self.machine.path().to_str().unwrap();
        let printed: Vec<String> = printed
            .iter()
            .map(|line| line.replace(home, "/home/you"))
            .collect();
        assert!(
            is_shown(&step.shown, &printed),
            "{}: {}\nshows\n{}\nand prints\n{}",
            self.name,
            step.command,
            step.shown.join("\n"),
            printed.join("\n")
        );
    }

    /// A person types slower than the daemon's own worker dials.
    async fn waits_for_its_worker(&self) {
        let follow = ["events", "--json", "--follow", "--after", "0"];
        Running::start(self.machine.quintet(&follow))
            .prints("\"worker_online\"")
            .await;
    }

    fn shell(&self, line: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_quintet"));
        let mut path = OsString::from(binary.parent().unwrap());
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = self.machine.program("sh");
        command
            .args(["-c", line])
            .env("PATH", path)
            .env("QUINTET_LISTEN", "127.0.0.1:0");
        command
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The fenced blocks of a page: their language and their lines.
fn blocks(text: &str) -> Vec<(String, Vec<String>)> {
    let mut blocks: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match (line.strip_prefix("```"), inside) {
            (Some(language), false) => {
                blocks.push((language.to_owned(), Vec::new()));
                inside = true;
            }
            (Some(_), true) => inside = false,
            (None, true) => blocks.last_mut().unwrap().1.push(line.to_owned()),
            (None, false) => {}
        }
    }
    blocks
}

fn file_named(lines: &[String]) -> Option<String> {
    let path = lines.first()?.strip_prefix("# ")?;
    let is_path = path.contains('.') && !path.contains(' ');
    is_path.then(|| path.to_owned())
}

fn steps(lines: &[String]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in lines {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push(Step {
                command: command.trim_end().to_owned(),
                shown: Vec::new(),
            }),
            None => steps
                .last_mut()
                .expect("a screen begins with a command")
                .shown
                .push(line.clone()),
        }
    }
    for step in &mut steps {
        while step.shown.last().is_some_and(String::is_empty) {
            step.shown.pop();
        }
    }
    steps
}

/// Whether `printed` is what a page shows.
fn is_shown(shown: &[String], printed: &[String]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((any, rest)), _) if any == "..." => {
            (0..=printed.len()).any(|skipped| is_shown(rest, &printed[skipped..]))
        }
        (Some((shown, more)), Some((line, rest))) => is_alike(shown, line) && is_shown(more, rest),
        _ => false,
    }
}

fn is_alike(shown: &str, line: &str) -> bool {
    let (shown, line) = (without_numbers(shown), without_numbers(line));
    let mut pieces = shown.split("...");
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let mut open = false;
    for piece in pieces {
        open = piece.is_empty();
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    open || rest.is_empty()
}

/// Numbers and widths of columns are another machine's.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    for letter in line.trim_end().chars() {
        let letter = if letter.is_ascii_digit() { '0' } else { letter };
        if !(matches!(letter, '0' | ' ') && out.ends_with(letter)) {
            out.push(letter);
        }
    }
    out
}

#[test]
fn a_screen_is_compared_but_for_its_numbers() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let shown =
        lines("$ quintet up &\nat 127.0.0.1:7505\n...\n\n$ cat a\none ... 3\n{\"a\":{...}}\n");
    let steps = steps(&shown);
    assert_eq!(steps[0].command, "quintet up &");
    assert!(is_shown(
        &steps[0].shown,
        &lines("at 127.0.0.1:40112\nx\ny")
    ));
    assert!(is_shown(
        &steps[1].shown,
        &lines("one two 14\n{\"a\":{\"b\":2}}")
    ));
    for wrong in [
        "one two\n{\"a\":{}}",
        "one two 3",
        "two 3\n{\"a\":{}}",
        "one 3\n{\"a\":{}}\nmore",
    ] {
        assert!(!is_shown(&steps[1].shown, &lines(wrong)), "{wrong}");
    }
}

#[tokio::test]
async fn the_screen_and_the_agent_of_the_readme() {
    assert!(Page::open("README.md").plays().await >= 6);
}

#[tokio::test]
async fn the_first_ten_minutes() {
    assert!(Page::open("docs/start.md").plays().await >= 12);
}

#[tokio::test]
async fn sandboxes() {
    assert!(Page::open("docs/sandboxes.md").plays().await >= 5);
}

#[tokio::test]
async fn example_agents() {
    assert!(Page::open("examples/agents/README.md").plays().await >= 3);
}

#[tokio::test]
async fn example_programs() {
    assert!(Page::open("examples/programs/README.md").plays().await >= 5);
}

/// The pages of both folders are played above.
#[test]
fn every_example_is_on_a_page_that_is_run() {
    for folder in fs::read_dir(repository().join("examples")).unwrap() {
        let folder = folder.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(["agents", "programs"].contains(&name), "{name} is not run");
        let page = fs::read_to_string(folder.join("README.md")).unwrap();
        let run: String = blocks(&page)
            .into_iter()
            .filter(|(language, lines)| language == "console" || file_named(lines).is_some())
            .flat_map(|(_, lines)| lines)
            .collect();
        for file in fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let path = format!("/path/to/examples/{name}/{file}");
            assert!(
                file == "README.md" || run.contains(&path),
                "{path} is not run"
            );
        }
    }
}

#[test]
fn every_page_is_in_the_index_and_every_link_leads_somewhere() {
    let index = fs::read_to_string(repository().join("docs/README.md")).unwrap();
    for page in fs::read_dir(repository().join("docs")).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") && name != "README.md" {
            assert!(
                index.contains(&format!("]({name})")),
                "{name} is not in docs/README.md"
            );
        }
    }
    let pages = fs::read_dir(repository().join("docs"))
        .unwrap()
        .map(|page| page.unwrap().path());
    let pages = pages.chain([
        repository().join("README.md"),
        repository().join("examples/agents/README.md"),
        repository().join("examples/programs/README.md"),
    ]);
    for page in pages.filter(|page| page.extension().is_some_and(|it| it == "md")) {
        let text = fs::read_to_string(&page).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.contains("://") {
                let target = page.parent().unwrap().join(file);
                assert!(target.exists(), "{}: {link}", page.display());
            }
        }
    }
}
