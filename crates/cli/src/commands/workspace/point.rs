//! States of a history as people write them.

use std::path::{Component, Path, PathBuf};

use quintet_workspace::Place;
use quintet_workspace::control::Point;

use crate::error::CommandError;

/// A sequence, the name of a checkpoint, or `now`.
pub(super) fn parse(text: &str) -> Result<Point, String> {
    match text {
        "" => Err("a state is a sequence, a checkpoint's name, or `now`".to_owned()),
        "now" => Ok(Point::Now),
        text => Ok(match text.parse() {
            Ok(sequence) => Point::Sequence(sequence),
            Err(_) => Point::Checkpoint(text.to_owned()),
        }),
    }
}

/// `A..B`; a missing B is now, a missing A the beginning.
pub(super) fn range(text: &str) -> Result<(Point, Point), String> {
    let (from, to) = text.split_once("..").unwrap_or((text, ""));
    let from = match from {
        "" => Point::Sequence(0),
        from => parse(from)?,
    };
    let to = match to {
        "" => Point::Now,
        to => parse(to)?,
    };
    Ok((from, to))
}

/// A time such as `2026-01-31T12:00:00Z`, `2026-01-31 12:00` here, `2026-01-31T12:00[Asia/Tokyo]`
/// there, or `10m` ago.
pub(super) fn time(text: &str) -> Result<Point, String> {
    let zone = jiff::tz::TimeZone::system();
    let at = if text.ends_with(']') {
        // The others would skip the zone that it names.
        let at = text.parse::<jiff::Zoned>();
        at.map_err(|error| format!("{text:?} is no time: {error}"))?
            .timestamp()
    } else if let Ok(at) = text.parse::<jiff::Timestamp>() {
        at
    } else if let Ok(at) = text.parse::<jiff::civil::DateTime>() {
        at.to_zoned(zone)
            .map_err(|error| error.to_string())?
            .timestamp()
    } else if let Ok(ago) = quintet_runtime::config::units::parse_duration(text) {
        jiff::Timestamp::now()
            .checked_sub(ago)
            .map_err(|error| error.to_string())?
    } else {
        return Err(format!(
            "{text:?} is no time; write 2026-01-31T12:00:00Z, \"2026-01-31 12:00\", or 10m for ten minutes ago"
        ));
    };
    Ok(Point::AtMillis(at.as_millisecond()))
}

/// A path of the command line as the workspace names it: relative to the current folder when that
/// is inside, else to the workspace's root. `None` is the root itself.
pub(super) fn inside(place: &Place, path: &Path) -> Result<Option<String>, CommandError> {
    let here = std::env::current_dir()?;
    let base = match here.canonicalize() {
        Ok(here) if here.starts_with(&place.dir) => here,
        _ => place.dir.clone(),
    };
    let mut parts: Vec<&str> = Vec::new();
    let relative = beneath(&place.dir, &base.join(path)).ok_or_else(|| {
        CommandError::usage(format!(
            "{} is not inside {}",
            path.display(),
            place.dir.display()
        ))
    })?;
    for part in relative.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if parts.pop().is_some() => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) => parts.push(name),
                None => return Err(CommandError::usage("names that are not UTF-8 are not kept")),
            },
            _ => {
                return Err(CommandError::usage(format!(
                    "{} is not inside {}",
                    path.display(),
                    place.dir.display()
                )));
            }
        }
    }
    Ok((!parts.is_empty()).then(|| parts.join("/")))
}

/// What of a path is below a folder, which a link may lead to. Links in the folder are its own.
fn beneath(dir: &Path, path: &Path) -> Option<PathBuf> {
    if let Ok(relative) = path.strip_prefix(dir) {
        return Some(relative.to_owned());
    }
    let above: Vec<&Path> = path.ancestors().collect();
    above.into_iter().rev().find_map(|above| {
        let real = above.canonicalize().ok()?;
        let rest = path.strip_prefix(above).ok()?;
        Some(real.strip_prefix(dir).ok()?.join(rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lead_to_the_folder_through_a_link() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let dir = home.join("work");
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, home.join(name)).unwrap();
        link(&dir, "link");
        link(&dir.join("sub"), "deep");
        link(&home, "work/out");
        for (path, expected) in [
            ("work/a", Some("a")),
            ("link/a", Some("a")),
            ("link/not/there", Some("not/there")),
            ("deep/a", Some("sub/a")),
            ("link/out", Some("out")),
            ("link/out/x", Some("out/x")),
            ("other", None),
        ] {
            let found = beneath(&dir, &home.join(path));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{path}");
        }
    }

    #[test]
    fn states_and_ranges() {
        assert_eq!(parse("12"), Ok(Point::Sequence(12)));
        assert_eq!(parse("now"), Ok(Point::Now));
        assert_eq!(parse("v1"), Ok(Point::Checkpoint("v1".to_owned())));
        let both = (Point::Sequence(1), Point::Sequence(2));
        assert_eq!(range("1..2"), Ok(both));
        assert_eq!(range("1.."), Ok((Point::Sequence(1), Point::Now)));
        assert_eq!(range("1"), Ok((Point::Sequence(1), Point::Now)));
        let checkpoint = Point::Checkpoint("v1".to_owned());
        assert_eq!(range("..v1"), Ok((Point::Sequence(0), checkpoint)));
    }

    #[test]
    fn times() {
        let millis = 1_769_860_800_000;
        assert_eq!(time("2026-01-31T12:00:00Z"), Ok(Point::AtMillis(millis)));
        assert!(matches!(time("10m"), Ok(Point::AtMillis(_))));
        assert!(matches!(time("2026-01-31 12:00"), Ok(Point::AtMillis(_))));
        assert_eq!(
            time("2026-01-31T21:00:00[Asia/Tokyo]"),
            Ok(Point::AtMillis(millis))
        );
        assert_eq!(
            time("2026-01-31T21:00:00+09:00[Asia/Tokyo]"),
            Ok(Point::AtMillis(millis))
        );
        for wrong in [
            "soon",
            "2026-01-31T12:00:00[Nowhere/Land]",
            "2026-01-31T12:00:00+01:00[Asia/Tokyo]",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
