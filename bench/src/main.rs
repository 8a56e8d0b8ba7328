//! Side-by-side measurements against real peers: `bench/run NAME`.
//!
//! Each case is one file of [`cases`]; the rounds, the statistics and the output are the
//! [`harness`]'s. A case must give every contender the same work over the same transport, and check
//! that the work was done.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

mod cases;
mod harness;

const USAGE: &str = "usage: bench/run NAME [--rounds N]\n\ncases:\n";

/// Odd, so that the median is a round that happened.
const ROUNDS: usize = 9;

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (name, rounds) = match words.as_slice() {
        [name] => (*name, ROUNDS),
        [name, "--rounds", rounds] => {
            let rounds = rounds.parse().context("--rounds takes a number")?;
            (*name, rounds)
        }
        _ => return usage(),
    };
    let Some(case) = cases::ALL.iter().find(|case| case.name == name) else {
        return usage();
    };
    let races = (case.races)()?;
    harness::run(
        case.name,
        races,
        rounds,
        &mut io::stderr(),
        &mut io::stdout(),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn usage() -> anyhow::Result<ExitCode> {
    let mut out = io::stderr();
    write!(out, "{USAGE}")?;
    for case in cases::ALL {
        writeln!(out, "  {:<12} {}", case.name, case.about)?;
    }
    Ok(ExitCode::from(2))
}
