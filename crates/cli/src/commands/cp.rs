//! `quintet cp`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use futures_util::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quintet_control::Client;
use quintet_control::wire::{CopyDirection, CopyMsg};

use super::Context;
use crate::connect;
use crate::error::CommandError;
use crate::output::{stderr_is_terminal, terminal_text};

const EXAMPLES: &str = "\
Examples:
  quintet cp notes.txt box:                 Into the worker's root
  quintet cp src box:/work/src              A folder, as /work/src
  quintet cp box:out/result.bin .           Into this folder

A destination that ends with / is a folder to put it in, as is a folder of this machine that is
there and, for a file, one of the worker's. Mode and time of change are kept; links are left out.
Run the same command again after an interruption: what has arrived is not sent again. Of a folder,
files with the same size, mode and time are taken to be there.";

/// Copy files and folders to or from a worker
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CpArgs {
    /// What to copy: PATH or WORKER:PATH
    source: String,

    /// Where to: PATH or WORKER:PATH
    destination: String,

    /// Taken for those who are used to it: folders are copied anyway
    #[arg(short, long, hide = true)]
    recursive: bool,
}

pub(crate) async fn run(context: &Context, args: CpArgs) -> Result<ExitCode, CommandError> {
    let request = request(&args.source, &args.destination)?;
    let bar = bar(context);
    let name = args.source.trim_end_matches('/').rsplit(['/', ':']).next();
    bar.set_message(name.unwrap_or_default().to_owned());
    let mut daemon = connect::daemon(&context.home).await?;
    let progress = daemon.copy(request);
    tokio::pin!(progress);
    while let Some(told) = progress.next().await {
        let told = match told {
            Ok(told) => told,
            Err(error) => {
                bar.abandon();
                return Err(error.into());
            }
        };
        if !told.skipped.is_empty() {
            bar.suspend(|| {
                let path = terminal_text::one_line(&told.path);
                context
                    .output
                    .talk(format_args!("left out: {path} ({})", told.skipped));
            });
            continue;
        }
        bar.set_length(told.total);
        bar.set_position(told.bytes);
        if !told.path.is_empty() {
            bar.set_message(terminal_text::one_line(&told.path));
        }
    }
    bar.finish_and_clear();
    Ok(ExitCode::SUCCESS)
}

fn bar(context: &Context) -> ProgressBar {
    if !stderr_is_terminal() || context.output.is_quiet() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{bar:30} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left  {wide_msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn request(source: &str, destination: &str) -> Result<CopyMsg, CommandError> {
    match (remote(source), remote(destination)) {
        (None, Some((worker, path))) => {
            let local = absolute(Path::new(source))?;
            Ok(CopyMsg {
                worker: worker.to_owned(),
                remote: named(path, local.file_name().map(|name| name.to_string_lossy())),
                local: text(&local)?,
                direction: CopyDirection::ToWorker.into(),
                recursive: true,
            })
        }
        (Some((worker, path)), None) => {
            let mut local = absolute(Path::new(destination))?;
            if (destination.ends_with('/') || local.is_dir())
                && let Some(name) = path.trim_end_matches('/').rsplit('/').next()
                && !["", ".", ".."].contains(&name)
            {
                local.push(name);
            }
            Ok(CopyMsg {
                worker: worker.to_owned(),
                // A worker's path that is left out is its root, as in a destination.
                remote: if path.is_empty() { "." } else { path }.to_owned(),
                local: text(&local)?,
                direction: CopyDirection::FromWorker.into(),
                recursive: true,
            })
        }
        (Some(_), Some(_)) => Err(
            CommandError::usage("one of the two has to be on this machine")
                .hint("copy it here first"),
        ),
        (None, None) => Err(CommandError::usage("one of the two has to be WORKER:PATH")
            .hint("`quintet workers` lists them")),
    }
}

/// `WORKER:PATH`; a path with a slash before its colon is one of this machine.
fn remote(word: &str) -> Option<(&str, &str)> {
    word.split_once(':')
        .filter(|(worker, _)| !worker.is_empty() && !worker.contains('/'))
}

/// A remote destination, with the source's name when it is a folder to put it in.
fn named(path: &str, name: Option<std::borrow::Cow<'_, str>>) -> String {
    match name {
        Some(name) if path.is_empty() || path == "." => name.into_owned(),
        Some(name) if path.ends_with('/') => format!("{path}{name}"),
        _ => path.to_owned(),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    Ok(std::path::absolute(path)?)
}

fn text(path: &Path) -> Result<String, CommandError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| CommandError::usage(format!("{} is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stands_before_the_first_colon() {
        assert_eq!(remote("box:/a/b"), Some(("box", "/a/b")));
        assert_eq!(remote("box:"), Some(("box", "")));
        for local in ["./a:b", "/a:b", "a", ":b"] {
            assert_eq!(remote(local), None, "{local}");
        }
    }

    #[test]
    fn a_folder_is_copied_into_and_a_name_is_taken_as_it_is() {
        let to = |destination: &str| request("/x/a.txt", destination).unwrap().remote;
        assert_eq!(to("w:"), "a.txt");
        assert_eq!(to("w:dir/"), "dir/a.txt");
        assert_eq!(to("w:dir/b"), "dir/b");
        let from = |source: &str, to: &str| request(source, to).unwrap().local;
        assert_eq!(from("w:d/a.txt", "/tmp"), "/tmp/a.txt");
        assert_eq!(from("w:d/a.txt", "/tmp/none/b"), "/tmp/none/b");
        let root = request("w:", "/tmp/whole").unwrap();
        assert_eq!(
            (root.remote.as_str(), root.local.as_str()),
            (".", "/tmp/whole")
        );
        assert!(request("a", "b").is_err());
        assert!(request("v:a", "w:b").is_err());
    }
}
