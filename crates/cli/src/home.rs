//! Finds the home folder: `--home`, else `QUINTET_HOME` (clap reads both), else `~/.quintet`.

use std::path::{Path, PathBuf};

use crate::error::CommandError;

const FOLDER: &str = ".quintet";

/// The home folder as an absolute path; it need not be there yet.
pub(crate) fn find(chosen: Option<&Path>) -> Result<PathBuf, CommandError> {
    let path = match chosen {
        Some(path) if path.as_os_str().is_empty() => {
            return Err(CommandError::usage("the home folder is an empty path")
                .hint("pass --home DIR, or unset QUINTET_HOME"));
        }
        Some(path) => path.to_owned(),
        None => user_home()?.join(FOLDER),
    };
    Ok(std::path::absolute(path)?)
}

/// The home folder of the person, not of the program.
pub(crate) fn user_home() -> Result<PathBuf, CommandError> {
    etcetera::home_dir().map_err(|_| {
        CommandError::usage("this account has no home folder")
            .hint("say where to keep the data with --home DIR")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_home_becomes_absolute() {
        let found = find(Some(Path::new("here"))).unwrap();
        assert_eq!(found, std::env::current_dir().unwrap().join("here"));
    }

    #[test]
    fn an_empty_home_is_refused() {
        assert!(find(Some(Path::new(""))).is_err());
    }
}
