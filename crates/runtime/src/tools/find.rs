//! Listing and searching a workspace, with ripgrep's own libraries.

use std::path::Path;

use globset::{Glob, GlobMatcher};
use grep_regex::RegexMatcherBuilder;
use grep_searcher::sinks::Lossy;
use grep_searcher::{BinaryDetection, SearcherBuilder};
use ignore::WalkBuilder;
use quintet_sandbox::paths::Root;
use quintet_workspace::proto::path::RESERVED;
use tokio_util::sync::CancellationToken;

use super::files::{Target, name_of_open};

/// Paths of one listing.
const MAX_PATHS: usize = 2000;

/// Matches of one search.
const MAX_MATCHES: usize = 500;

/// The longest line of a match, in characters.
const MAX_LINE: usize = 500;

/// The most memory that a pattern may take when it is compiled.
const MAX_REGEX: usize = 8 << 20;

/// What was found, and whether there is more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) lines: Vec<String>,
    pub(super) more: bool,
    /// Paths that the policy keeps back.
    pub(super) kept_back: usize,
}

/// Whether the policy lets a path be seen.
pub(super) type May<'a> = &'a dyn Fn(&str) -> bool;

/// Files and folders below a folder, in order; folders end with a slash.
pub(super) fn list(
    target: &Target,
    glob: Option<&str>,
    cancelled: &CancellationToken,
    may: May<'_>,
) -> Result<Found, String> {
    let mut found = Found {
        lines: Vec::new(),
        more: false,
        kept_back: 0,
    };
    let kept_back = walk(target, glob, cancelled, may, |shown, _, is_folder| {
        if found.lines.len() == MAX_PATHS {
            found.more = true;
            return Ok(Next::Stop);
        }
        // A glob is of files; a folder that matches would say nothing.
        if !is_folder {
            found.lines.push(shown.to_owned());
        } else if glob.is_none() {
            found.lines.push(format!("{shown}/"));
        }
        Ok(Next::Go)
    })?;
    found.kept_back = kept_back;
    Ok(found)
}

/// Lines that match, as `PATH:LINE:TEXT`.
pub(super) fn search(
    target: &Target,
    pattern: &str,
    glob: Option<&str>,
    cancelled: &CancellationToken,
    may: May<'_>,
) -> Result<Found, String> {
    let matcher = RegexMatcherBuilder::new()
        .size_limit(MAX_REGEX)
        .line_terminator(Some(b'\n'))
        .build(pattern)
        .map_err(|error| format!("the pattern is no regular expression: {error}"))?;
    let mut searcher = SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(true)
        .build();
    let mut found = Found {
        lines: Vec::new(),
        more: false,
        kept_back: 0,
    };
    let root = Root::open(&target.root).map_err(|error| error.to_string())?;
    let mut through_links = 0;
    let kept_back = walk(target, glob, cancelled, may, |shown, name, is_folder| {
        if is_folder {
            return Ok(Next::Go);
        }
        // Opened beneath the root, so that a link that was planted since leads nowhere.
        let Ok(file) = root.read(name) else {
            return Ok(Next::Go);
        };
        // What a link leads to is kept back as by its own name.
        let real = name_of_open(&root, &file).filter(|real| real != name);
        if real.is_some_and(|real| !may(&shown_as(target, &real))) {
            through_links += 1;
            return Ok(Next::Go);
        }
        let sink = Lossy(|number, line| {
            if found.lines.len() == MAX_MATCHES {
                found.more = true;
                return Ok(false);
            }
            let text: String = line.trim_end().chars().take(MAX_LINE).collect();
            found.lines.push(format!("{shown}:{number}:{text}"));
            Ok(!cancelled.is_cancelled())
        });
        searcher
            .search_file(&matcher, &file, sink)
            .map_err(|error| format!("{shown}: {error}"))?;
        Ok(if found.more { Next::Stop } else { Next::Go })
    })?;
    found.kept_back = kept_back + through_links;
    Ok(found)
}

enum Next {
    Go,
    Stop,
}

/// Visits what is below a folder, or the file itself: as it is shown, its name beneath the root,
/// and whether it is a folder. Says how many the policy keeps back.
fn walk(
    target: &Target,
    glob: Option<&str>,
    cancelled: &CancellationToken,
    may: May<'_>,
    mut visit: impl FnMut(&str, &str, bool) -> Result<Next, String>,
) -> Result<usize, String> {
    let mut kept_back = 0;
    let matcher = glob.map(compiled).transpose()?;
    // Refuses what leads out before anything is walked.
    let root = Root::open(&target.root).map_err(|error| error.to_string())?;
    let name = match target.name.as_str() {
        "" => ".",
        name => name,
    };
    root.look(name).map_err(|error| {
        format!(
            "{}: {error}; `list_files` shows what is there",
            target.shown
        )
    })?;
    let linked = target.through_links().map(|real| real.name);
    let start = target.path();
    let is_whole_folder = start.is_dir();
    let reserved = target.root.join(RESERVED);
    let walker = WalkBuilder::new(&start)
        .hidden(false)
        .require_git(false)
        .git_global(false)
        .parents(false)
        .follow_links(false)
        .filter_entry(move |entry| entry.file_name() != ".git" && entry.path() != reserved)
        .sort_by_file_path(Path::cmp)
        .build();
    for entry in walker {
        if cancelled.is_cancelled() {
            return Err("it was cancelled".to_owned());
        }
        // What can't be read is left out, as it would be from any listing.
        let Ok(entry) = entry else { continue };
        let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
        if entry.depth() == 0 && is_whole_folder {
            continue;
        }
        let Ok(name) = entry.path().strip_prefix(&target.root) else {
            continue;
        };
        let name = name.to_string_lossy();
        let shown = shown_as(target, &name);
        if matcher.as_ref().is_some_and(|glob| !glob.is_match(&*shown)) {
            continue;
        }
        // Below a link a path has two names.
        let real = linked.as_ref().and_then(|linked| {
            let rest = name.strip_prefix(target.name.as_str())?;
            Some(format!("{linked}{rest}"))
        });
        let real = real.map(|real| shown_as(target, real.trim_start_matches('/')));
        if !may(&shown) || real.is_some_and(|real| !may(&real)) {
            kept_back += 1;
            continue;
        }
        if let Next::Stop = visit(&shown, &name, is_folder)? {
            break;
        }
    }
    Ok(kept_back)
}

/// A name beneath the target's root, as agents and rules know it.
fn shown_as(target: &Target, name: &str) -> String {
    match target.root == Path::new("/") {
        true => format!("/{name}"),
        false => name.to_owned(),
    }
}

fn compiled(glob: &str) -> Result<GlobMatcher, String> {
    // As in .gitignore: a name without a slash is found at any depth.
    let anywhere = match glob.contains('/') {
        true => glob.to_owned(),
        false => format!("**/{glob}"),
    };
    let glob = globset::GlobBuilder::new(&anywhere)
        .literal_separator(true)
        .build()
        .map_err(|error| format!("the glob can't be read: {error}"))?;
    Ok(Glob::compile_matcher(&glob))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> (tempfile::TempDir, Target) {
        let space = tempfile::tempdir().unwrap();
        for (path, text) in [
            (".gitignore", "target\n"),
            ("src/main.rs", "fn main() {}\nlet Needle = 1;\n"),
            ("src/deep/lib.rs", "// needle\n"),
            ("target/out.rs", "needle\n"),
            ("notes.md", "a needle\n"),
            (".quintet/tmp/new", "needle\n"),
        ] {
            let path = space.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::write(space.path().join("bin"), b"needle\0").unwrap();
        std::os::unix::fs::symlink("/etc", space.path().join("way")).unwrap();
        let target = Target::new(&space.path().canonicalize().unwrap(), "");
        (space, target)
    }

    #[test]
    fn files_are_listed_without_what_is_ignored() {
        let (_space, target) = space();
        let listed = list(&target, None, &CancellationToken::new(), &|_| true).unwrap();
        assert_eq!(
            listed.lines,
            [
                ".gitignore",
                "bin",
                "notes.md",
                "src/",
                "src/deep/",
                "src/deep/lib.rs",
                "src/main.rs",
                "way"
            ]
        );
        let rust = list(&target, Some("*.rs"), &CancellationToken::new(), &|_| true).unwrap();
        assert_eq!(rust.lines, ["src/deep/lib.rs", "src/main.rs"]);
        let one = list(
            &target,
            Some("src/*.rs"),
            &CancellationToken::new(),
            &|_| true,
        )
        .unwrap();
        assert_eq!(one.lines, ["src/main.rs"]);
    }

    #[test]
    fn lines_are_found() {
        let (_space, target) = space();
        let found = |pattern: &str, glob| {
            search(&target, pattern, glob, &CancellationToken::new(), &|_| true)
        };
        assert_eq!(
            found("(?i)needle", None).unwrap().lines,
            [
                "notes.md:1:a needle",
                "src/deep/lib.rs:1:// needle",
                "src/main.rs:2:let Needle = 1;"
            ]
        );
        assert_eq!(
            found("needle", Some("*.md")).unwrap().lines,
            ["notes.md:1:a needle"]
        );
        assert!(found("(", None).unwrap_err().contains("regular expression"));
        assert!(found("x", Some("[")).unwrap_err().contains("glob"));
    }

    #[test]
    fn what_the_policy_keeps_back_is_neither_listed_nor_searched() {
        let (_space, target) = space();
        let may = |path: &str| !path.starts_with("src");
        let listed = list(&target, None, &CancellationToken::new(), &may).unwrap();
        assert_eq!(listed.lines, [".gitignore", "bin", "notes.md", "way"]);
        assert_eq!(listed.kept_back, 4);
        let found = search(&target, "needle", None, &CancellationToken::new(), &may).unwrap();
        assert_eq!(found.lines, ["notes.md:1:a needle"]);
    }

    #[test]
    fn what_the_policy_keeps_back_is_not_searched_through_a_link() {
        let (space, target) = space();
        std::os::unix::fs::symlink("src/main.rs", space.path().join("other")).unwrap();
        std::os::unix::fs::symlink("notes.md", space.path().join("read")).unwrap();
        let may = |path: &str| !path.starts_with("src");
        let found = search(&target, "(?i)needle", None, &CancellationToken::new(), &may).unwrap();
        assert_eq!(
            found.lines,
            ["notes.md:1:a needle", "read:1:a needle"],
            "a link to what may be read is read"
        );
        assert_eq!(found.kept_back, 5);

        std::os::unix::fs::symlink("src", space.path().join("code")).unwrap();
        let code = Target::new(&target.root, "code");
        let listed = |may: May<'_>| list(&code, None, &CancellationToken::new(), may).unwrap();
        let all = listed(&|_| true).lines;
        assert_eq!(all, ["code/deep/", "code/deep/lib.rs", "code/main.rs"]);
        let some = listed(&|path: &str| path != "src/main.rs");
        assert_eq!(some.lines, ["code/deep/", "code/deep/lib.rs"]);
        assert_eq!(some.kept_back, 1);
    }

    #[test]
    fn a_folder_through_a_link_is_refused() {
        let (space, _) = space();
        let way = Target::new(&space.path().canonicalize().unwrap(), "way/ssl");
        assert!(list(&way, None, &CancellationToken::new(), &|_| true).is_err());
    }
}
