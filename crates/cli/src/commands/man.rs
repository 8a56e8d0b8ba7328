//! `quintet man`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::args::Cli;
use crate::error::CommandError;

const EXAMPLES: &str = "\
Examples:
  quintet man ~/.local/share/man/man1
  man quintet-up";

/// Write the manual pages, one for each command, to a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// The folder; made if need be
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub(crate) fn run(args: &ManArgs) -> Result<ExitCode, CommandError> {
    let folder = &args.folder;
    let mut command = Cli::command();
    // A parent's flags and name reach its subcommands only when it is built.
    command.build();
    std::fs::create_dir_all(folder)
        .and_then(|()| write(command, folder))
        .map_err(|error| CommandError::failed(format!("{}: {error}", folder.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// The pages of a command and of all below it, but for those that are not for people.
fn write(command: clap::Command, folder: &Path) -> io::Result<()> {
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    for subcommand in shown.cloned() {
        write(subcommand, folder)?;
    }
    Man::new(command)
        .source(concat!("quintet ", env!("CARGO_PKG_VERSION")))
        .manual("Quintet")
        .generate_to(folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let args = ManArgs {
            folder: folder.path().join("man1"),
        };
        run(&args).unwrap();

        let mut expected = Vec::new();
        let mut command = Cli::command();
        command.build();
        names(&command, &mut expected);
        expected.sort();
        assert!(expected.contains(&"quintet-workspace-conflicts-take".to_owned()));

        let mut pages: Vec<String> = std::fs::read_dir(&args.folder)
            .unwrap()
            .map(|page| page.unwrap().file_name().into_string().unwrap())
            .map(|page| page.strip_suffix(".1").unwrap().to_owned())
            .collect();
        pages.sort();
        assert_eq!(pages, expected);
        for name in pages {
            let page = std::fs::read_to_string(args.folder.join(format!("{name}.1"))).unwrap();
            let escaped = name.replace('-', "\\-");
            assert!(page.contains(&format!(".SH NAME\n{escaped} ")), "{page}");
        }
    }

    fn names(command: &clap::Command, into: &mut Vec<String>) {
        let name = command.get_display_name().unwrap_or(command.get_name());
        into.push(name.to_owned());
        let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
        for subcommand in shown {
            names(subcommand, into);
        }
    }
}
