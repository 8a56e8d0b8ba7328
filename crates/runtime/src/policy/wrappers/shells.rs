//! Shells: their scripts in the line are read, where they are of the language that is read here.

use super::{Runs, Word, is_input, unknown_if};

/// What a shell's scripts are written in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// That of `sh`.
    Read,
    /// Another one, or `sh` with words that run others: `noglob rm`, `repeat 3 rm`.
    NotRead,
}

impl Language {
    /// That of a program, if it is a shell.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "sh" | "bash" | "rbash" | "dash" | "ksh" | "ksh93" | "rksh" | "ash" | "mksh"
            | "lksh" | "posh" | "yash" => Some(Self::Read),
            "zsh" | "rzsh" | "fish" | "csh" | "tcsh" | "nu" | "pwsh" | "osh" | "elvish"
            | "xonsh" | "rc" | "es" => Some(Self::NotRead),
            _ => None,
        }
    }
}

/// What a shell with these words runs.
pub(super) fn runs(language: Language, rest: &[Word]) -> Runs {
    let mut at = 0;
    let mut is_script = false;
    while let Some(word) = rest.get(at) {
        let Some(text) = word.exact() else {
            return Runs::Unknown;
        };
        match text.as_str() {
            "--version" | "--help" => return Runs::Nothing,
            "-" | "--" => {
                at += 1;
                break;
            }
            "--rcfile" | "--init-file" => at += 1,
            option if option.starts_with(['-', '+']) && language == Language::NotRead => {
                return Runs::Unknown;
            }
            option if option.starts_with("--") => {}
            option if option.starts_with(['-', '+']) => {
                if option.starts_with('-') {
                    is_script |= option.contains('c');
                    if option.contains('s') {
                        return Runs::Unknown;
                    }
                }
                // Each of these takes a word.
                at += option.chars().filter(|c| matches!(c, 'o' | 'O')).count();
            }
            _ => break,
        }
        at += 1;
    }
    let given = rest.get(at).and_then(Word::exact);
    let arguments = rest.get(at + 1..).unwrap_or_default();
    match given {
        Some(_) if arguments.iter().any(Word::keeps_subscript) => Runs::Unknown,
        Some(script) if is_script => Runs::Script(script),
        // A file with a script: what is in it is not known, but which one is.
        Some(file) => unknown_if(is_input(&file)),
        // It runs what it reads, or what is computed.
        None => Runs::Unknown,
    }
}
