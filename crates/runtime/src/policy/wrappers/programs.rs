//! Programs that run what their words tell them, each in a language of its own: interpreters with
//! their code in the line, `awk`, `git -c alias.x='!..'`, `make SHELL=..`, `tar --to-command=..`.
//!
//! Their languages are not read: what such words run could be anything. A file that they are given
//! is not looked at either, but it is named, as the script of a shell is.

use super::options::{self, Options};
use super::{Runs, Word, found, is_input, sed, settings, unknown_if};

/// What a program that is no wrapper runs beside itself.
pub(super) fn runs(name: &str, rest: &[Word]) -> Runs {
    if let Some(interpreter) = Interpreter::named(name) {
        return interpreter.runs(rest);
    }
    match name {
        "awk" | "gawk" | "mawk" | "nawk" | "original-awk" => awk(rest),
        "sed" | "gsed" => sed::runs(rest),
        "git" => git(rest),
        "make" | "gmake" => make(rest),
        "tar" | "gtar" | "bsdtar" => tar(rest),
        "sqlite3" | "psql" | "mysql" | "mariadb" => client(rest),
        // `jobs -x` of bash.
        "jobs" => match rest.iter().position(|word| word.prefix().starts_with("-x")) {
            Some(at) => found(rest.get(at + 1..)),
            None => Runs::Nothing,
        },
        name if is_loader(name) => found(options::NONE.pass(rest, 0)),
        name => listed(name, rest),
    }
}

/// Programs whose words are commands of a language of theirs, or are typed into them.
const ALWAYS: [&str; 51] = [
    "abduco",
    "autossh",
    "capsh",
    "choom",
    "chpst",
    "cpulimit",
    "crontab",
    "daemonize",
    "dc",
    "dtach",
    "ed",
    "emacs",
    "emacsclient",
    "envdir",
    "erl",
    "ex",
    "faketime",
    "ftp",
    "ghci",
    "gnuplot",
    "irb",
    "jshell",
    "lldb",
    "m4",
    "machinectl",
    "mosh",
    "newgrp",
    "nix-shell",
    "nodemon",
    "nvim",
    "octave",
    "osascript",
    "pee",
    "pry",
    "rsh",
    "run-parts",
    "rvim",
    "sbcl",
    "screen",
    "sg",
    "socat",
    "softlimit",
    "ssh",
    "start-stop-daemon",
    "swipl",
    "systemd-nspawn",
    "tmux",
    "vi",
    "view",
    "vim",
    "watchexec",
];

/// Programs whose words, after so many operands, are a command.
const PASS_ON: [(&str, usize); 19] = [
    ("bunx", 0),
    ("catchsegv", 0),
    ("chronic", 0),
    ("dumb-init", 0),
    ("eatmydata", 0),
    ("gosu", 1),
    ("ifne", 0),
    ("npx", 0),
    ("pkexec", 0),
    ("pnpx", 0),
    ("proxychains", 0),
    ("proxychains4", 0),
    ("run0", 0),
    ("setuidgid", 1),
    ("su-exec", 1),
    ("systemd-cat", 0),
    ("systemd-inhibit", 0),
    ("tini", 0),
    ("torsocks", 0),
];

/// Programs with a word behind which, after so many operands, a command is.
const PASS_ON_BEHIND: [(&str, &[&str], usize); 17] = [
    ("asdf", &["exec"], 0),
    ("bundle", &["exec"], 0),
    ("conda", &["run"], 0),
    ("direnv", &["exec"], 1),
    ("hatch", &["run"], 0),
    ("mamba", &["run"], 0),
    ("mise", &["exec", "x"], 0),
    ("npm", &["exec", "x"], 0),
    ("pdm", &["run"], 0),
    ("pipenv", &["run"], 0),
    ("pnpm", &["exec", "dlx"], 0),
    ("poetry", &["run"], 0),
    ("pyenv", &["exec"], 0),
    ("rbenv", &["exec"], 0),
    ("rustup", &["run"], 1),
    ("uv", &["run"], 0),
    ("yarn", &["exec", "dlx"], 0),
];

/// Programs with a word behind which anything may be run, somewhere.
const BEHIND: [(&str, &[&str]); 13] = [
    ("buildah", &["run"]),
    ("deno", &["eval", "repl"]),
    ("docker", &["run", "exec", "create"]),
    ("flatpak", &["run"]),
    ("incus", &["exec"]),
    ("ip", &["exec"]),
    ("kubectl", &["exec", "run", "debug"]),
    ("lxc", &["exec"]),
    ("nerdctl", &["run", "exec", "create"]),
    ("nix", &["run", "shell", "develop"]),
    ("podman", &["run", "exec", "create"]),
    ("snap", &["run"]),
    ("vagrant", &["ssh"]),
];

/// Programs with options that name a command: letters, and long ones that may be cut short.
const BY_OPTION: [(&str, &str, &[&str]); 16] = [
    ("bat", "", &["--pager"]),
    ("batcat", "", &["--pager"]),
    ("cmake", "E", &[]),
    ("man", "PH", &["--pager", "--html"]),
    ("nc", "ec", &[]),
    ("ncat", "ec", &["--exec", "--sh-exec", "--lua-exec"]),
    ("netcat", "ec", &[]),
    ("rg", "", &["--pre", "--hostname-bin"]),
    ("rsync", "e", &["--rsh", "--rsync-path"]),
    ("scp", "So", &[]),
    ("sftp", "SDob", &[]),
    ("sort", "", &["--compress-program"]),
    ("split", "", &["--filter"]),
    ("tcpdump", "z", &[]),
    ("wget", "", &["--use-askpass"]),
    ("zip", "T", &["--unzip-command"]),
];

fn listed(name: &str, rest: &[Word]) -> Runs {
    if ALWAYS.contains(&name) {
        return Runs::Unknown;
    }
    if let Some((_, operands)) = PASS_ON.iter().find(|(it, _)| *it == name) {
        return found(options::PASS_ON.pass(rest, *operands));
    }
    if let Some((_, words, operands)) = PASS_ON_BEHIND.iter().find(|(it, _, _)| *it == name) {
        let at = rest.iter().position(|word| is_one_of(word, words));
        return match at.and_then(|at| rest.get(at + 1..)) {
            Some(command) => found(options::PASS_ON.pass(command, *operands)),
            None => unknown_if(rest.first().is_some_and(|word| word.exact().is_none())),
        };
    }
    if let Some((_, words)) = BEHIND.iter().find(|(it, _)| *it == name) {
        let computed = rest.first().is_some_and(|word| word.exact().is_none());
        return unknown_if(computed || rest.iter().any(|word| is_one_of(word, words)));
    }
    if let Some((_, letters, long)) = BY_OPTION.iter().find(|(it, _, _)| *it == name) {
        return unknown_if(rest.iter().any(|word| gives(word, letters, long)));
    }
    Runs::Nothing
}

fn is_one_of(word: &Word, texts: &[&str]) -> bool {
    word.exact()
        .is_some_and(|text| texts.contains(&text.as_str()))
}

/// Whether a word has one of these letters as an option, or one of the long ones.
fn gives(word: &Word, letters: &str, long: &[&str]) -> bool {
    let text = word.prefix();
    if text.starts_with("--") {
        let name = text.split_once('=').map_or(text, |(name, _)| name);
        return name.len() > 3 && long.iter().any(|it| it.starts_with(name));
    }
    let given = text.strip_prefix('-').unwrap_or_default();
    given.chars().any(|letter| letters.contains(letter))
}

/// The system's loader, which runs the program that it is given.
fn is_loader(name: &str) -> bool {
    ["ld-linux", "ld-musl", "ld.so", "ld64.so"]
        .iter()
        .any(|loader| name.starts_with(loader))
}

/// A program that runs a file, what it reads, or code in its words.
struct Interpreter {
    name: &'static str,
    /// Options whose value is code.
    code: &'static str,
    /// Options whose value may be attached, so that its letters are no options.
    value: &'static str,
}

const fn interpreter(name: &'static str, code: &'static str, value: &'static str) -> Interpreter {
    Interpreter { name, code, value }
}

const INTERPRETERS: [Interpreter; 20] = [
    interpreter("Rscript", "e", ""),
    interpreter("R", "e", "f"),
    interpreter("bun", "ep", "r"),
    interpreter("elixir", "e", "r"),
    interpreter("groovy", "e", ""),
    interpreter("guile", "c", "lLs"),
    interpreter("ipython", "c", ""),
    interpreter("julia", "eE", "L"),
    interpreter("lua", "ei", "l"),
    interpreter("luajit", "ei", "l"),
    interpreter("node", "epi", "rC"),
    interpreter("nodejs", "epi", "rC"),
    interpreter("perl", "eEMm", "IFxDV"),
    interpreter("php", "rBREF", "dcztSf"),
    interpreter("pypy", "c", "WXQm"),
    interpreter("python", "c", "WXQm"),
    interpreter("racket", "e", "tlpr"),
    interpreter("ruby", "e", "IrCFKTWE"),
    interpreter("tclsh", "", ""),
    interpreter("wish", "", ""),
];

/// Modules of Python that run code of their words.
const CODE_MODULES: [&str; 5] = ["code", "pdb", "timeit", "IPython", "asyncio"];

impl Interpreter {
    fn named(name: &str) -> Option<&'static Self> {
        let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        INTERPRETERS.iter().find(|it| it.name == bare)
    }

    fn runs(&self, rest: &[Word]) -> Runs {
        let mut after_option = false;
        let mut file = None;
        for (at, word) in rest.iter().enumerate() {
            let Some(text) = word.exact() else {
                // A file of a name that is computed, or code.
                return Runs::Unknown;
            };
            match text.as_str() {
                "--version" | "--help" | "-V" | "-h" => return Runs::Nothing,
                "-m" if self.name.starts_with("py") => {
                    let module = rest.get(at + 1).and_then(Word::exact);
                    let runs_code = |name: String| CODE_MODULES.contains(&name.as_str());
                    return unknown_if(module.is_none_or(runs_code));
                }
                "-" | "--" => return Runs::Unknown,
                option if option.starts_with("--") => {
                    let code = [
                        "--eval",
                        "--print",
                        "--run",
                        "--process",
                        "--exec",
                        "--code",
                    ];
                    if code.iter().any(|it| option.starts_with(it)) {
                        return Runs::Unknown;
                    }
                    after_option = true;
                }
                option if option.starts_with('-') => {
                    let letters = option.chars().skip(1);
                    let mut letters = letters.take_while(|letter| !self.value.contains(*letter));
                    if letters.any(|letter| self.code.contains(letter)) {
                        return Runs::Unknown;
                    }
                    after_option = true;
                }
                path => {
                    file = Some(is_input(path));
                    // It may be the value of the option before it.
                    if !after_option {
                        break;
                    }
                    after_option = false;
                }
            }
        }
        // Without a file it runs what it reads.
        unknown_if(file.unwrap_or(true))
    }
}

fn awk(rest: &[Word]) -> Runs {
    let mut at = 0;
    while let Some(word) = rest.get(at) {
        at += 1;
        let Some(text) = word.exact() else {
            return Runs::Unknown;
        };
        match text.as_str() {
            "--version" | "--help" => return Runs::Nothing,
            "-F" | "-v" => at += 1,
            "-f" | "--file" => {
                let file = rest.get(at).and_then(Word::exact);
                return unknown_if(file.is_none_or(|file| is_input(&file)));
            }
            option if option.starts_with("-F") || option.starts_with("-v") => {}
            option if option.starts_with('-') && option.len() > 1 => return Runs::Unknown,
            program => {
                let without_or = program.replace("||", "");
                let runs = ["system", "|", "getline", "@"];
                return unknown_if(runs.iter().any(|it| without_or.contains(it)));
            }
        }
    }
    Runs::Nothing
}

/// Options before the subcommand of git that take the next word.
const GIT: Options = Options::new(
    &[
        "C",
        "git-dir",
        "work-tree",
        "namespace",
        "super-prefix",
        "attr-source",
    ],
    &["list-cmds"],
    &[
        "p",
        "P",
        "paginate",
        "no-pager",
        "bare",
        "no-replace-objects",
        "no-lazy-fetch",
        "no-optional-locks",
        "no-advice",
        "literal-pathspecs",
        "glob-pathspecs",
        "noglob-pathspecs",
        "icase-pathspecs",
        "html-path",
        "man-path",
        "info-path",
        "version",
        "help",
        "v",
        "h",
    ],
);

fn git(rest: &[Word]) -> Runs {
    // `-c` sets anything, and much of that is commands.
    let Some(words) = GIT.pass(rest, 0) else {
        return Runs::Unknown;
    };
    let Some((command, arguments)) = words.split_first() else {
        return Runs::Nothing;
    };
    let Some(command) = command.exact() else {
        return Runs::Unknown;
    };
    let (letters, long): (&str, &[&str]) = match command.as_str() {
        "filter-branch" | "mergetool" => return Runs::Unknown,
        "bisect" => return unknown_if(arguments.iter().any(|word| is_one_of(word, &["run"]))),
        "submodule" => {
            return unknown_if(arguments.iter().any(|word| is_one_of(word, &["foreach"])));
        }
        "config" => return settings::of_git_config(arguments),
        "rebase" => ("x", &["--exec"]),
        "difftool" => ("x", &["--extcmd"]),
        "grep" => ("O", &["--open-files-in-pager"]),
        "clone" | "fetch-pack" => ("u", &["--upload-pack", "--config"]),
        "fetch" | "pull" | "ls-remote" => ("", &["--upload-pack"]),
        "push" | "send-pack" => ("", &["--receive-pack", "--exec"]),
        "archive" => ("", &["--exec"]),
        "send-email" => ("", &["--sendmail-cmd", "--to-cmd", "--cc-cmd"]),
        _ => ("", &[]),
    };
    if arguments.iter().any(|word| gives(word, letters, long)) {
        return Runs::Unknown;
    }
    match words.len() == rest.len() {
        true => Runs::Nothing,
        // `git -C x push` is `git push` for a rule about that.
        false => Runs::Same(words.to_vec()),
    }
}

fn make(rest: &[Word]) -> Runs {
    let mut words = rest.iter().peekable();
    while let Some(word) = words.next() {
        let Some(text) = word.exact() else {
            continue;
        };
        let file = match text.as_str() {
            "-f" | "--file" | "--makefile" => words.peek().and_then(|word| word.exact()),
            text => text
                .strip_prefix("-f")
                .or_else(|| text.strip_prefix("--file="))
                .or_else(|| text.strip_prefix("--makefile="))
                .map(str::to_owned),
        };
        let sets = |(name, value): (&str, &str)| {
            let name = name.trim_end_matches([':', '+', '?', '!']);
            let shell = ["SHELL", ".SHELLFLAGS", "MAKEFLAGS", "MAKEFILES"].contains(&name);
            shell || value.contains(|c: char| c.is_whitespace() || "$`;|&<>(".contains(c))
        };
        if file.is_some_and(|file| file == "-" || is_input(&file))
            || gives(word, "E", &["--eval"])
            || (!text.starts_with('-') && text.split_once('=').is_some_and(sets))
        {
            return Runs::Unknown;
        }
    }
    Runs::Nothing
}

fn tar(rest: &[Word]) -> Runs {
    let long = [
        "--checkpoint-action",
        "--to-command",
        "--use-compress-program",
        "--info-script",
        "--new-volume-script",
        "--rsh-command",
        "--rmt-command",
    ];
    // The first word needs no dash: `tar cIf`.
    let bundled = rest.first().is_some_and(|word| {
        let text = word.prefix();
        !text.starts_with('-') && text.contains(['I', 'F'])
    });
    unknown_if(bundled || rest.iter().any(|word| gives(word, "IF", &long)))
}

/// A client of a database: it runs shell commands from what it is told, or from what it reads.
fn client(rest: &[Word]) -> Runs {
    let operands = rest.iter().filter(|word| !word.prefix().starts_with('-'));
    let tells = |word: &Word| {
        let Some(text) = word.exact() else {
            return false;
        };
        let text = text.to_lowercase();
        text.contains('\\')
            || text.lines().any(|line| line.trim_start().starts_with('.'))
            || ["program", "system", "edit(", "load_extension"]
                .iter()
                .any(|it| text.contains(it))
    };
    unknown_if(operands.count() < 2 || rest.iter().any(tells))
}
