//! Side-by-side measurements against real peers: `bench/run NAME`.
//!
//! Each case is one file of [`cases`]; the rounds, the statistics and the output are the
//! [`harness`]'s. A case must give every contender the same work over the same transport, and check
//! that the work was done.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;

mod cases;
mod document;
mod goals;
mod harness;

use cases::load;
use harness::Line;

const USAGE: &str = "\
usage: bench/run NAME [--rounds N] [--only VARIANT] [--alone]
       bench/run load [--minutes N] [--workers N] [--sessions N] [--browsers N] [--replicas N]
       bench/run all [--rounds N]    every case, into docs/benchmarks/results.jsonl, then the document
       bench/run document            docs/benchmarks.md and its plots from the results of the last `all`

  --rounds N       measured rounds, 9 unless told; odd, so that the median is one that happened
  --only VARIANT   only the variants whose name holds this
  --alone          without the peers, for a profile

The line that `load` prints belongs at the end of docs/benchmarks/results.jsonl.

cases:
";

const ROUNDS: usize = 9;

fn main() -> anyhow::Result<ExitCode> {
    let mut args = env::args().skip(1);
    let name = args.next().unwrap_or_default();
    if name == "child" && env::args().nth(2).as_deref() == Some("sandbox") {
        return cases::sandbox::child::run(env::args_os().skip(3));
    }
    if name == "child" && env::args().nth(2).as_deref() == Some("workspace") {
        return cases::workspace::child::run(env::args_os().skip(3));
    }
    if name == "child" {
        let words: Vec<String> = args.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        cases::agent::child::run(&words)?;
        return Ok(ExitCode::SUCCESS);
    }
    if name == "document" {
        document::write()?;
        return Ok(ExitCode::SUCCESS);
    }
    if name == load::NAME {
        return load(load::Size::of(args)?, &mut io::stdout());
    }
    let wanted: Vec<_> = cases::ALL
        .iter()
        .filter(|case| name == "all" || case.name == name)
        .collect();
    if wanted.is_empty() {
        return usage();
    }
    let mut rounds = ROUNDS;
    let mut only = String::new();
    let mut alone = false;
    while let Some(flag) = args.next() {
        if flag == "--alone" {
            alone = true;
            continue;
        }
        match (flag.as_str(), args.next()) {
            ("--rounds", Some(value)) => {
                rounds = value.parse().context("--rounds takes a number")?
            }
            ("--only", Some(value)) => only = value,
            _ => return usage(),
        }
    }
    let mut data: Box<dyn Write> = match name.as_str() {
        "all" => Box::new(results()?),
        _ => Box::new(io::stdout()),
    };
    for case in wanted {
        let mut races = (case.races)()?;
        races.retain(|race| race.variant.contains(&only));
        if alone {
            races
                .iter_mut()
                .for_each(|race| race.contenders.truncate(1));
        }
        harness::run(case.name, races, rounds, &mut io::stderr(), &mut data)?;
    }
    if name == "all" {
        let ended = load(load::Size::default(), &mut data)?;
        document::write()?;
        return Ok(ended);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the load and writes its line; fails with what went wrong.
fn load(size: load::Size, data: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let load = load::run(size)?;
    let mut talk = io::stderr();
    writeln!(talk, "{}", load.section()?)?;
    for error in load.errors() {
        writeln!(talk, "error: {error}")?;
    }
    let ended = match load.errors() {
        [] => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    };
    writeln!(data, "{}", serde_json::to_string(&Line::Load(load))?)?;
    Ok(ended)
}

/// The file of a whole run, which says first where it was.
fn results() -> anyhow::Result<File> {
    let path = document::results_file();
    fs::create_dir_all(path.parent().context("a file in a folder")?)?;
    let mut file = File::create(path)?;
    let machine = serde_json::json!({ "machine": document::machine() });
    writeln!(file, "{machine}")?;
    Ok(file)
}

fn usage() -> anyhow::Result<ExitCode> {
    let mut out = io::stderr();
    write!(out, "{USAGE}")?;
    for case in cases::ALL {
        writeln!(out, "  {:<12} {}", case.name, case.about)?;
    }
    writeln!(out, "  {:<12} {}", load::NAME, load::ABOUT)?;
    Ok(ExitCode::from(2))
}
