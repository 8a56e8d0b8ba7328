//! `quintet workspace diff`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{DiffLine, Request};

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, point, size};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::output::{BAD, DIM, GOOD, stdout_is_terminal, styled, terminal_text};

/// Compare two states, as a unified diff
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The states, as A..B; without B, up to now
    #[arg(value_name = "A..B")]
    range: String,

    /// Compare this path alone, with what is beneath it
    path: Option<PathBuf>,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: DiffArgs) -> Result<ExitCode, CommandError> {
    let (from, to) = point::range(&args.range).map_err(CommandError::usage)?;
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let path = match &args.path {
        Some(path) => point::inside(&target.place, path)?,
        None => None,
    };
    let lines: Vec<DiffLine> = target
        .ask(Request::Diff { from, to, path }, "comparing", Content::None)
        .await?;
    if args.json.json {
        context.output.json(&lines)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in &lines {
        for text in header(line) {
            context
                .output
                .line(styled(DIM, terminal_text::one_line(&text)))?;
        }
        let Some(unified) = &line.unified else {
            continue;
        };
        if !stdout_is_terminal() {
            // A patch, to the byte.
            context.output.piece(unified)?;
            continue;
        }
        for text in unified.lines() {
            context.output.line(coloured(text))?;
        }
    }
    if lines.is_empty() {
        context.output.talk("nothing differs");
    }
    Ok(ExitCode::SUCCESS)
}

/// What a unified diff alone would not say.
fn header(line: &DiffLine) -> Vec<String> {
    let mut header = Vec::new();
    match (line.old_mode, line.new_mode) {
        (Some(old), Some(new)) if old != new => {
            header.push(format!("mode of {}: {old:o} -> {new:o}", line.path));
        }
        _ => {}
    }
    if line.unified.is_none() && line.change != "chmod" {
        let of = |size_of: Option<u64>| size_of.map_or_else(|| "nothing".to_owned(), size);
        header.push(format!(
            "{}: {} -> {}",
            line.path,
            of(line.old_size),
            of(line.new_size)
        ));
    }
    header
}

fn coloured(text: &str) -> String {
    let text = terminal_text::harmless(text);
    match text.as_bytes().first() {
        Some(b'+') => styled(GOOD, text),
        Some(b'-') => styled(BAD, text),
        Some(b'@') => styled(DIM, text),
        _ => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_what_went_and_where_have_colours_of_their_own() {
        for (text, style) in [("+new", GOOD), ("-old", BAD), ("@@ -1 +1 @@", DIM)] {
            assert_eq!(coloured(text), format!("{style}{text}{style:#}"));
        }
        assert_eq!(coloured(" as before"), " as before");
        let hostile = coloured("+\u{1b}[2J");
        assert!(!hostile.contains("\u{1b}[2J"), "{hostile:?}");
    }
}
