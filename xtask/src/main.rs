//! The repository's own chores, run as `cargo xtask NAME`.
//!
//! `layering` holds the rules of ARCHITECTURE.md that neither rustc nor clippy can hold, `protocol`
//! makes docs/protocol.md from the code, `licences` the list that a package carries, and `measure`
//! says what an idle daemon takes.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod layering;
mod licences;
mod measure;
mod protocol;

const USAGE: &str = "\
usage: cargo xtask layering [--root DIR]
       cargo xtask protocol [--check] [--root DIR]
       cargo xtask licences
       cargo xtask measure [BINARY]

  layering   check the layering rules; prints each break as file:line and exits 1 if there is one
  protocol   make docs/protocol.md from the code; with --check only say whether it is fresh
  licences   print the licences of everything that is inside the binary
  measure    print the size of the release binary, its time to ready and its idle memory
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["layering"] => check_layering(&repository_root()),
        ["layering", "--root", root] => check_layering(Path::new(root)),
        ["protocol"] => write_protocol(&repository_root()),
        ["protocol", "--root", root] => write_protocol(Path::new(root)),
        ["protocol", "--check"] => check_protocol(&repository_root()),
        ["protocol", "--check", "--root", root] => check_protocol(Path::new(root)),
        ["licences"] => licences::render(&repository_root())
            .and_then(|page| io::stdout().write_all(page.as_bytes()))
            .map(|()| ExitCode::SUCCESS),
        ["measure"] => measure(&release_binary()),
        ["measure", binary] => measure(Path::new(binary)),
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

fn write_protocol(root: &Path) -> io::Result<ExitCode> {
    fs::write(root.join(protocol::PAGE), protocol::render(root)?)?;
    writeln!(io::stdout(), "protocol: {} is written", protocol::PAGE)?;
    Ok(ExitCode::SUCCESS)
}

fn check_protocol(root: &Path) -> io::Result<ExitCode> {
    let page = fs::read_to_string(root.join(protocol::PAGE)).unwrap_or_default();
    let fresh = protocol::render(root)?;
    let mut out = io::stdout().lock();
    if page == fresh {
        let lines = fresh.lines().count();
        writeln!(out, "protocol: {} is fresh, {lines} lines", protocol::PAGE)?;
        return Ok(ExitCode::SUCCESS);
    }
    let differs = page.lines().zip(fresh.lines()).position(|(a, b)| a != b);
    let line = differs.unwrap_or_else(|| page.lines().count().min(fresh.lines().count())) + 1;
    writeln!(
        out,
        "{}:{line}: is not what the code says\n    fix: cargo xtask protocol",
        protocol::PAGE
    )?;
    Ok(ExitCode::FAILURE)
}

/// Where `cargo build --release` puts the program.
fn release_binary() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository_root().join("target"), PathBuf::from);
    target.join("release/quintet")
}

fn measure(binary: &Path) -> io::Result<ExitCode> {
    write!(io::stdout(), "{}", measure::measure(binary)?)?;
    Ok(ExitCode::SUCCESS)
}
