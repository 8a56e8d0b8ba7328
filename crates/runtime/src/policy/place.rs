//! Where a path of a line is: in the workspace, or outside of it.
//!
//! A workspace has the host's path and, on a worker with a copy of its own, that one's. A line may
//! change its folder on the way. Where it certainly has, `cd a && rm ../b`, paths are taken from
//! there; where it may have, `cd a; rm ../b`, from each folder that it may be in.

use super::words::Word;
use super::wrappers::{Chain, Part};

/// Folders that are kept apart; beyond that a line could be anywhere.
const MAX_FOLDERS: usize = 64;

/// The workspace, and the folders that a command may run in.
#[derive(Debug, Clone)]
pub(super) struct Place {
    roots: Vec<String>,
    /// Relative to the workspace, or absolute when outside of it. Never empty.
    folders: Vec<String>,
    /// It may also be in a folder that the line does not name.
    lost: bool,
}

impl Place {
    /// The folder `cwd` of a workspace; `copy` is where the worker has the workspace.
    pub(super) fn new(root: &str, copy: Option<&str>, cwd: &str) -> Self {
        let roots = [Some(root), copy].into_iter().flatten().map(normal);
        let mut place = Self {
            roots: roots.collect(),
            folders: vec![String::new()],
            lost: false,
        };
        place.folders = place.resolve(cwd);
        place
    }

    /// The folders that it may be in.
    pub(super) fn folders(&self) -> &[String] {
        &self.folders
    }

    /// Whether this path could be one that the line does not tell.
    pub(super) fn is_lost(&self, path: &str) -> bool {
        self.lost && !path.starts_with('/')
    }

    /// What a path may be: relative to the workspace, or absolute when it is outside. By its words
    /// alone: links are held by whoever opens it.
    pub(super) fn resolve(&self, path: &str) -> Vec<String> {
        let folders = match path.starts_with('/') {
            true => self.folders.get(..1).unwrap_or_default(),
            false => &self.folders,
        };
        let mut found = Vec::with_capacity(folders.len());
        for folder in folders {
            let path = self.from(folder, path);
            if !found.contains(&path) {
                found.push(path);
            }
        }
        found
    }

    /// Whether a path outside that begins with this text might be one of the workspace.
    pub(super) fn may_lead_inside(&self, begins: &str) -> bool {
        let roots = self.roots.iter();
        begins.starts_with('/') && roots.into_iter().any(|root| root.starts_with(begins))
    }

    /// What a path is, where there is but one answer.
    pub(super) fn only(&self, path: &str) -> Option<String> {
        match self.resolve(path).as_mut_slice() {
            [path] if !self.lost => Some(std::mem::take(path)),
            _ => None,
        }
    }

    /// The unquoted `$PWD` is one word.
    pub(super) fn is_one_word(&self) -> bool {
        let plain = |c: char| !c.is_whitespace() && !"*?[".contains(c);
        self.roots.iter().all(|root| root.chars().all(plain))
    }

    fn from(&self, folder: &str, path: &str) -> String {
        let root = self.roots.first().map_or("/", String::as_str);
        let absolute = if path.starts_with('/') {
            normal(path)
        } else if folder.starts_with('/') {
            normal(&format!("{folder}/{path}"))
        } else {
            normal(&format!("{root}/{folder}/{path}"))
        };
        let inside = self.roots.iter().find_map(|root| beneath(root, &absolute));
        inside.map_or(absolute.clone(), str::to_owned)
    }

    /// The place after a move.
    fn after(&self, step: &Move<'_>) -> Self {
        let to = match step {
            Move::To(word) | Move::Within(word) => word.path(self.is_one_word()),
            Move::Home | Move::Unknown => None,
        };
        match to {
            Some(to) => Self {
                folders: self.resolve(&to),
                ..self.clone()
            },
            None => Self {
                lost: true,
                ..self.clone()
            },
        }
    }

    /// Takes up where else it may be.
    fn or(&mut self, other: &Self) {
        for folder in &other.folders {
            if !self.folders.contains(folder) {
                self.folders.push(folder.clone());
            }
        }
        if self.folders.len() > MAX_FOLDERS {
            self.folders.truncate(1);
            self.folders.push("/".to_owned());
        }
        self.lost |= other.lost;
    }
}

fn beneath<'p>(root: &str, path: &'p str) -> Option<&'p str> {
    let rest = path.strip_prefix(root)?;
    match rest.strip_prefix('/') {
        Some(inside) => Some(inside),
        None => (rest.is_empty() || root == "/").then_some(rest),
    }
}

/// An absolute path without `.`, `..` and double slashes.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Where a command that changes the folder goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Move<'a> {
    To(&'a Word),
    /// For what it runs itself, and nothing after that.
    Within(&'a Word),
    /// The home folder of whoever runs it.
    Home,
    /// Back to one that was left, or wherever a word says that is computed.
    Unknown,
}

impl<'a> Move<'a> {
    /// Whether a part changes the folder, for itself or for what comes after it.
    pub(super) fn of(part: &'a Part) -> Option<Self> {
        let name = part.words.first()?.exact()?;
        let words = part.words.get(1..).unwrap_or_default();
        let operand = words.iter().find(|word| !word.prefix().starts_with('-'));
        let is_back = words.iter().any(|word| word.raw == "-");
        match name.rsplit('/').next().unwrap_or_default() {
            "cd" | "pushd" | "popd" if is_back => Some(Self::Unknown),
            "cd" => Some(operand.map_or(Self::Home, Self::To)),
            "pushd" => Some(operand.map_or(Self::Unknown, Self::To)),
            "popd" => Some(Self::Unknown),
            "env" => chdir(words, "-C"),
            "sudo" | "doas" => chdir(words, "-D"),
            _ => None,
        }
    }
}

/// The folder that an option names, as a word of its own.
fn chdir<'a>(words: &'a [Word], option: &str) -> Option<Move<'a>> {
    let letter = option.trim_start_matches('-');
    let at = words.iter().position(|word| {
        let text = word.prefix();
        match text.strip_prefix("--") {
            Some(long) => long.starts_with("chd"),
            None => text.starts_with('-') && text.contains(letter),
        }
    })?;
    let word = words.get(at)?;
    match word.raw == option || word.raw == "--chdir" {
        true => words.get(at + 1).map(Move::Within),
        // Together with its option it is not taken apart.
        false => Some(Move::Unknown),
    }
}

/// Follows a line from part to part.
#[derive(Debug)]
pub(super) struct Course {
    /// Everywhere that it may be.
    all: Place,
    /// Where the commands of a chain certainly are.
    sure: Option<(Chain, Place)>,
}

impl Course {
    pub(super) fn new(place: Place) -> Self {
        Self {
            all: place,
            sure: None,
        }
    }

    /// Where a part runs.
    pub(super) fn at(&self, part: &Part) -> &Place {
        match &self.sure {
            Some((chain, place)) if Some(*chain) == part.chain => place,
            _ => &self.all,
        }
    }

    /// Takes up what a part does to the folder of those that come after it.
    pub(super) fn pass(&mut self, part: &Part) {
        let Some(step) = Move::of(part) else {
            return;
        };
        // CDPATH, for one, sends it elsewhere.
        let step = match part.altered_by {
            Some(_) => Move::Unknown,
            None => step,
        };
        let to = self.at(part).after(&step);
        self.all.or(&to);
        let lasts = part.goes_on && matches!(step, Move::To(_) | Move::Home);
        self.sure = match (part.chain, self.sure.take()) {
            (Some(chain), _) if lasts => Some((chain, to)),
            (Some(chain), Some((sure, mut place))) if chain == sure => {
                place.or(&to);
                Some((sure, place))
            }
            // A command of another chain may have moved this one too: `eval`.
            _ => None,
        };
    }
}
