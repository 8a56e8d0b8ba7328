//! The repository's own chores, run as `cargo xtask NAME`.
//!
//! `layering` holds the rules of ARCHITECTURE.md that neither rustc nor clippy can hold.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod layering;

const USAGE: &str = "\
usage: cargo xtask layering [--root DIR]

  layering   check the layering rules; prints each break as file:line and exits 1 if there is one
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["layering"] => check_layering(&repository_root()),
        ["layering", "--root", root] => check_layering(Path::new(root)),
        ["-h" | "--help"] => io::stdout()
            .write_all(USAGE.as_bytes())
            .map(|()| ExitCode::SUCCESS),
        _ => io::stderr()
            .write_all(USAGE.as_bytes())
            .map(|()| ExitCode::from(2)),
    };
    outcome.unwrap_or_else(|error| {
        // Nothing is left to try when stderr itself is gone.
        let _ = writeln!(io::stderr(), "error: {error}");
        ExitCode::FAILURE
    })
}

/// The folder above this crate's, so that the check works from any folder inside the repository.
///
/// Cargo tells it at run time; the path at build time may be another clone's when they share a
/// target folder.
fn repository_root() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent()
        .map_or_else(|| here.clone(), Path::to_path_buf)
}

fn check_layering(root: &Path) -> io::Result<ExitCode> {
    let report = layering::check(root)?;
    let mut out = io::stdout().lock();
    for broken in &report.broken {
        writeln!(out, "{broken}")?;
    }
    let (files, crates) = (report.files, report.crates);
    if report.broken.is_empty() {
        writeln!(
            out,
            "layering: {crates} crates, {files} source files, every rule holds"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let count = report.broken.len();
    writeln!(
        out,
        "layering: {count} broken in {crates} crates, {files} source files"
    )?;
    Ok(ExitCode::FAILURE)
}
