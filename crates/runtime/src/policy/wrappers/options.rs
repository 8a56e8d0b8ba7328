//! The options of commands that run other commands: which of them take a value, so that it is not
//! taken for the command.

use super::Word;

/// Names without their dashes, one letter or a whole word.
pub(super) struct Options {
    /// The next word is its value, unless one is attached.
    value: &'static [&'static str],
    /// A value, if any, is attached.
    attached: &'static [&'static str],
    plain: &'static [&'static str],
}

pub(super) const NONE: Options = Options {
    value: &[],
    attached: &[],
    plain: &["help", "version"],
};

pub(super) const ENV: Options = Options {
    value: &["u", "C", "a", "unset", "chdir", "argv0"],
    attached: &["block-signal", "default-signal", "ignore-signal"],
    // Without `-S`, which reads a line in a way of its own.
    plain: &[
        "i",
        "0",
        "v",
        "ignore-environment",
        "null",
        "debug",
        "list-signal-handling",
        "help",
        "version",
    ],
};

pub(super) const SUDO: Options = Options {
    value: &[
        "u",
        "g",
        "h",
        "p",
        "C",
        "c",
        "r",
        "t",
        "T",
        "D",
        "R",
        "U",
        "a",
        "user",
        "group",
        "host",
        "prompt",
        "close-from",
        "login-class",
        "role",
        "type",
        "command-timeout",
        "chdir",
        "chroot",
        "other-user",
        "auth-type",
    ],
    attached: &["preserve-env"],
    plain: &[
        "A",
        "b",
        "B",
        "E",
        "e",
        "H",
        "i",
        "K",
        "k",
        "L",
        "l",
        "N",
        "n",
        "P",
        "S",
        "s",
        "V",
        "v",
        "askpass",
        "background",
        "bell",
        "edit",
        "set-home",
        "login",
        "remove-timestamp",
        "reset-timestamp",
        "list",
        "non-interactive",
        "preserve-groups",
        "stdin",
        "shell",
        "validate",
        "version",
        "help",
    ],
};

/// Those with which `sudo` runs a shell.
pub(super) const SUDO_SHELL: Options = Options {
    value: &[],
    attached: &[],
    plain: &["s", "i", "shell", "login"],
};

pub(super) const TIMEOUT: Options = Options {
    value: &["k", "s", "kill-after", "signal"],
    attached: &[],
    plain: &[
        "f",
        "p",
        "v",
        "foreground",
        "preserve-status",
        "verbose",
        "help",
        "version",
    ],
};

pub(super) const NICE: Options = Options {
    value: &["n", "adjustment"],
    attached: DIGITS,
    plain: &["help", "version"],
};

/// As `nice -5`.
const DIGITS: &[&str] = &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

pub(super) const IONICE: Options = Options {
    value: &[
        "c",
        "n",
        "p",
        "P",
        "u",
        "class",
        "classdata",
        "pid",
        "pgid",
        "uid",
    ],
    attached: &[],
    plain: &["t", "h", "V", "ignore", "help", "version"],
};

pub(super) const CHRT: Options = Options {
    value: &[
        "T",
        "P",
        "D",
        "sched-runtime",
        "sched-period",
        "sched-deadline",
    ],
    attached: &[],
    plain: &[
        "a",
        "b",
        "d",
        "e",
        "f",
        "i",
        "m",
        "o",
        "p",
        "R",
        "r",
        "v",
        "all-tasks",
        "batch",
        "deadline",
        "fifo",
        "idle",
        "other",
        "rr",
        "max",
        "pid",
        "reset-on-fork",
        "verbose",
        "help",
        "version",
    ],
};

pub(super) const TASKSET: Options = Options {
    value: &[],
    attached: &[],
    plain: &[
        "a",
        "c",
        "p",
        "all-tasks",
        "cpu-list",
        "pid",
        "help",
        "version",
    ],
};

pub(super) const CHROOT: Options = Options {
    value: &[],
    attached: &["userspec", "groups"],
    plain: &["skip-chdir", "help", "version"],
};

pub(super) const SETSID: Options = Options {
    value: &[],
    attached: &[],
    plain: &["c", "f", "w", "ctty", "fork", "wait", "help", "version"],
};

pub(super) const COMMAND: Options = Options {
    value: &[],
    attached: &[],
    plain: &["p", "v", "V"],
};

/// Those with which `command` runs nothing.
pub(super) const COMMAND_LOOKS: Options = Options {
    value: &[],
    attached: &[],
    plain: &["v", "V"],
};

/// Of programs that only pass on, what several of them have.
pub(super) const PASS_ON: Options = Options {
    value: &[],
    attached: &[],
    plain: &["y", "yes", "q", "help", "version"],
};

pub(super) const EXEC: Options = Options {
    value: &["a"],
    attached: &[],
    plain: &["c", "l"],
};

pub(super) const TIME: Options = Options {
    value: &["f", "o", "format", "output"],
    attached: &[],
    plain: &[
        "a",
        "p",
        "q",
        "v",
        "append",
        "portability",
        "quiet",
        "verbose",
        "help",
        "version",
    ],
};

pub(super) const STDBUF: Options = Options {
    value: &["i", "o", "e", "input", "output", "error"],
    attached: &[],
    plain: &["help", "version"],
};

pub(super) const STRACE: Options = Options {
    value: &[
        "a", "b", "e", "E", "I", "o", "O", "p", "P", "s", "S", "u", "U", "X",
    ],
    attached: &["trace", "output", "attach", "string-limit", "signal"],
    plain: &[
        "A", "c", "C", "D", "d", "f", "F", "h", "i", "k", "n", "q", "r", "t", "T", "v", "V", "w",
        "x", "y", "Y", "z", "Z",
    ],
};

pub(super) const XARGS: Options = Options {
    value: &[
        "a",
        "d",
        "E",
        "I",
        "L",
        "n",
        "P",
        "s",
        "arg-file",
        "delimiter",
        "max-args",
        "max-procs",
        "max-chars",
        "process-slot-var",
    ],
    attached: &["e", "i", "l", "eof", "replace", "max-lines"],
    plain: &[
        "0",
        "o",
        "p",
        "r",
        "t",
        "x",
        "null",
        "open-tty",
        "interactive",
        "no-run-if-empty",
        "verbose",
        "exit",
        "show-limits",
        "help",
        "version",
    ],
};

/// One option of a word, and whether the next word belongs to it.
struct Given {
    name: &'static str,
    attached: Option<String>,
    takes_next: bool,
}

impl Options {
    /// Options by their names.
    pub(super) const fn new(
        value: &'static [&'static str],
        attached: &'static [&'static str],
        plain: &'static [&'static str],
    ) -> Self {
        Self {
            value,
            attached,
            plain,
        }
    }

    /// What follows the options and so many operands; `None` where a word on the way is computed
    /// or an option is not known.
    pub(super) fn pass<'a>(&self, words: &'a [Word], operands: usize) -> Option<&'a [Word]> {
        let mut at = 0;
        let mut operands = operands;
        while let Some(word) = words.get(at) {
            let text = word.exact()?;
            if text == "--" {
                return words.get(at + 1 + operands..).or(Some(&[]));
            }
            if text.starts_with('-') && text.len() > 1 {
                let takes_next = self.read(&text)?.last().is_some_and(|it| it.takes_next);
                at += 1 + usize::from(takes_next);
            } else if operands > 0 {
                operands -= 1;
                at += 1;
            } else {
                return words.get(at..);
            }
        }
        Some(&[])
    }

    /// Whether one of these stands among the words.
    pub(super) fn any_of(&self, words: &[Word]) -> bool {
        let words = words.iter().filter_map(Word::exact);
        words.into_iter().any(|text| match text.strip_prefix("--") {
            Some(long) => self.named(long).is_some(),
            None => text.strip_prefix('-').is_some_and(|letters| {
                let mut letters = letters.chars();
                letters.any(|letter| self.letter(letter).is_some())
            }),
        })
    }

    /// The value of the last of these options; an empty one where it has none.
    pub(super) fn value_of(&self, words: &[Word], names: &[&str]) -> Option<String> {
        let mut value = None;
        for (at, word) in words.iter().enumerate() {
            for given in word.exact().and_then(|text| self.read(&text))? {
                if names.contains(&given.name) {
                    let next = words.get(at + 1).filter(|_| given.takes_next);
                    value = given.attached.or_else(|| next.and_then(Word::exact));
                    value.get_or_insert_default();
                }
            }
        }
        value
    }

    /// The options that a word holds; `None` where one is not known.
    fn read(&self, text: &str) -> Option<Vec<Given>> {
        if let Some(long) = text.strip_prefix("--") {
            let (name, attached) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let name = self.named(name)?;
            let takes_next = attached.is_none() && self.value.contains(&name);
            return Some(vec![Given {
                name,
                attached,
                takes_next,
            }]);
        }
        let letters = text.strip_prefix('-').unwrap_or_default();
        let mut found = Vec::new();
        for (at, letter) in letters.char_indices() {
            let name = self.letter(letter)?;
            let rest = letters.get(at + letter.len_utf8()..).unwrap_or_default();
            let ends = !self.plain.contains(&name);
            found.push(Given {
                name,
                attached: (ends && !rest.is_empty()).then(|| rest.to_owned()),
                takes_next: rest.is_empty() && self.value.contains(&name),
            });
            if ends {
                break;
            }
        }
        Some(found)
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        let all = self.value.iter().chain(self.attached).chain(self.plain);
        all.copied()
    }

    fn letter(&self, letter: char) -> Option<&'static str> {
        self.names()
            .find(|name| name.len() == 1 && name.starts_with(letter))
    }

    /// A long option by its name or the beginning of it.
    fn named(&self, name: &str) -> Option<&'static str> {
        let mut long = self.names().filter(|it| it.len() > 1);
        let exact = long.find(|it| *it == name);
        exact.or_else(|| {
            let mut long = self.names().filter(|it| it.len() > 1);
            let found = long.find(|it| it.starts_with(name))?;
            // One that could be two is refused by the program itself.
            long.all(|it| !it.starts_with(name)).then_some(found)
        })
    }
}
