//! Putting a change in place without losing what a person does meanwhile.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::TreeError;
use super::capture::{Capture, Captured};
use super::live::LiveTree;
use super::root::{self, Fingerprint, Replaced, Source, Temporary};
use super::seen::Seen;
use crate::content::Cas;
use crate::proto::{Kind, Node, WorkspacePath};

/// Where the content of a change comes from.
pub(crate) enum Content<'a> {
    /// The path has it already.
    Keep,
    Bytes(&'a [u8]),
    Owned(Vec<u8>),
    /// A temporary file that holds it.
    Temporary(Temporary),
    /// Writes it to a file.
    Write(&'a mut dyn FnMut(&File) -> io::Result<()>),
}

/// What became of a change.
#[derive(Debug)]
pub(crate) enum Applied {
    /// It is in place.
    Done,
    /// A folder that should go still holds something.
    LeftFolder(Node),
    /// The path holds something that was not seen before; nothing was touched.
    Diverged(Option<Captured>),
    /// The content is not there, contrary to what was expected.
    NeedContent,
    /// Something else has to change first.
    InTheWay(String),
}

impl LiveTree {
    /// Makes a path hold `node`, if it still holds what was last seen there.
    pub(crate) fn apply(
        &mut self,
        path: &WorkspacePath,
        node: Option<&Node>,
        content: Content<'_>,
        cas: &Cas,
    ) -> Result<Applied, TreeError> {
        let error = |source| TreeError::Io {
            path: self.root.absolute(Some(path)),
            source,
        };
        let _lifted = self.root.lift(path);
        // Everything below happens in this folder, whatever becomes of its name.
        let parent = match self.root.parent(path) {
            Ok(parent) => Some(parent),
            Err(error) if root::is_absence(&error) => None,
            Err(source) => return Err(error(source)),
        };
        let stat = match &parent {
            Some(parent) => root::stat_in(parent.as_fd(), path.name()).map_err(error)?,
            None => None,
        };
        let expected = self.seen.get(path).cloned();
        let as_seen = match (&stat, &expected) {
            (None, None) => true,
            (Some(stat), Some(seen)) => {
                let same_file =
                    seen.node.is_directory() || Fingerprint::of(stat) == seen.fingerprint;
                root::kind(stat) == Some(seen.node.kind)
                    && root::mode(stat) == seen.node.mode
                    && same_file
            }
            _ => false,
        };
        let mut expected = expected;
        if !as_seen {
            match self.root.capture(path, cas)? {
                Capture::Absent if expected.is_none() => {}
                Capture::Absent if node.is_none() => {
                    self.see(path, None);
                    return Ok(Applied::Done);
                }
                // That it was removed is told to nobody, and nothing is lost here.
                Capture::Absent if self.is_left_out(path) => {
                    self.see(path, None);
                    expected = None;
                }
                Capture::Absent => return Ok(Applied::Diverged(None)),
                // It looked different and holds the same.
                Capture::Is(captured)
                    if expected.as_ref().map(|seen| &seen.node) == Some(&captured.seen.node) =>
                {
                    expected = Some(captured.seen.clone());
                    self.see(path, Some(captured.seen));
                }
                // Somebody made the very same change.
                Capture::Is(captured) if node == Some(&captured.seen.node) => {
                    self.see(path, Some(captured.seen));
                    return Ok(Applied::Done);
                }
                Capture::Is(captured) => return Ok(Applied::Diverged(Some(captured))),
                Capture::Special => {
                    return Ok(Applied::InTheWay(
                        "a socket, pipe or device is in its place".to_owned(),
                    ));
                }
                Capture::Unstable => {
                    return Ok(Applied::InTheWay("it is being written to".to_owned()));
                }
                Capture::Unreadable(error) => return Ok(Applied::InTheWay(error.to_string())),
            }
        }
        if expected.as_ref().map(|seen| &seen.node) == node {
            return Ok(Applied::Done);
        }
        match node {
            None => self.apply_removal(path, expected.as_ref()),
            Some(node) => self.apply_node(path, node, content, expected.as_ref(), parent),
        }
        .map_err(|source| TreeError::Io {
            path: self.root.absolute(Some(path)),
            source,
        })
    }

    fn apply_removal(
        &mut self,
        path: &WorkspacePath,
        expected: Option<&Seen>,
    ) -> io::Result<Applied> {
        let Some(seen) = expected else {
            return Ok(Applied::Done);
        };
        let replaced = match seen.node.kind {
            Kind::Directory => self.root.remove_folder(path),
            Kind::File | Kind::Symlink => self.root.remove(path, seen.fingerprint),
        };
        match replaced {
            Ok(Replaced::Done(_)) => {
                self.see(path, None);
                Ok(Applied::Done)
            }
            Ok(Replaced::InTheWay) => Ok(Applied::LeftFolder(seen.node.clone())),
            Ok(Replaced::Changed) => Ok(Applied::InTheWay("it changed at this moment".to_owned())),
            Err(error) if root::is_absence(&error) => {
                self.see(path, None);
                Ok(Applied::Done)
            }
            Err(error) => Err(error),
        }
    }

    fn apply_node(
        &mut self,
        path: &WorkspacePath,
        node: &Node,
        content: Content<'_>,
        expected: Option<&Seen>,
        parent: Option<OwnedFd>,
    ) -> io::Result<Applied> {
        if expected.is_some_and(|seen| seen.node.same_content(node)) {
            let now = self.root.set_mode(path, node.mode)?;
            let before = expected.map_or(Fingerprint::UNTRUSTED, |seen| seen.fingerprint);
            let fingerprint =
                now.map_or(before.unproven(), |now| before.after_a_change_of_ours(now));
            self.see(
                path,
                Some(Seen {
                    node: node.clone(),
                    fingerprint,
                }),
            );
            return Ok(Applied::Done);
        }
        if node.is_directory() {
            return self.apply_folder(path, node, expected);
        }
        let owned;
        let source = match content {
            Content::Keep => return Ok(Applied::NeedContent),
            Content::Owned(bytes) => {
                owned = bytes;
                Source::Bytes(&owned)
            }
            Content::Bytes(bytes) => Source::Bytes(bytes),
            Content::Temporary(temporary) => Source::Temporary(temporary),
            Content::Write(write) => Source::Write(write),
        };
        let parent = match parent {
            Some(parent) => parent,
            None if self.parents(path)? => self.root.parent(path)?,
            None => {
                return Ok(Applied::InTheWay(
                    "a folder that it would be in is not a folder here".to_owned(),
                ));
            }
        };
        // It would be back a moment later, and whoever is in it would miss it until then; for
        // good, if this program were killed in between.
        let is_folder = expected.is_some_and(|seen| seen.node.is_directory());
        if is_folder && self.root.is_empty(path).is_ok_and(|is_empty| !is_empty) {
            return Ok(Applied::InTheWay(
                "a folder with files is in its place".to_owned(),
            ));
        }
        // To move a folder away takes permission for what is in it.
        let _lifted = is_folder.then(|| self.root.lift_folder(path));
        let fingerprint = expected.map(|seen| seen.fingerprint);
        match self.root.put(
            &parent,
            path.name(),
            node,
            source,
            fingerprint,
            &mut self.unsynced,
        )? {
            Replaced::Done(fingerprint) => {
                self.see(
                    path,
                    Some(Seen {
                        node: node.clone(),
                        fingerprint,
                    }),
                );
                Ok(Applied::Done)
            }
            Replaced::Changed => Ok(Applied::InTheWay("it changed at this moment".to_owned())),
            Replaced::InTheWay => Ok(Applied::InTheWay(
                "a folder with files is in its place".to_owned(),
            )),
        }
    }

    fn apply_folder(
        &mut self,
        path: &WorkspacePath,
        node: &Node,
        expected: Option<&Seen>,
    ) -> io::Result<Applied> {
        if let Some(seen) = expected.filter(|seen| !seen.node.is_directory()) {
            match self.root.remove(path, seen.fingerprint)? {
                Replaced::Done(_) => self.see(path, None),
                Replaced::Changed | Replaced::InTheWay => {
                    return Ok(Applied::InTheWay("it changed at this moment".to_owned()));
                }
            }
        }
        if !self.parents(path)? {
            return Ok(Applied::InTheWay(
                "a folder that it would be in is not a folder here".to_owned(),
            ));
        }
        Ok(if self.put_folder(path, node)? {
            Applied::Done
        } else {
            Applied::InTheWay("it changed at this moment".to_owned())
        })
    }

    /// `false` when something else is there.
    fn put_folder(&mut self, path: &WorkspacePath, node: &Node) -> io::Result<bool> {
        let Some((fingerprint, is_made)) = self.root.put_folder(path, node.mode)? else {
            return Ok(false);
        };
        let node = node.clone();
        self.see(path, Some(Seen { node, fingerprint }));
        if is_made {
            self.folder_made(path);
        }
        Ok(true)
    }

    /// Makes the folders that a path is in. They are not changes of this side:
    /// the other one names them too, sooner or later.
    fn parents(&mut self, path: &WorkspacePath) -> io::Result<bool> {
        let Some(parent) = path.parent() else {
            return Ok(true);
        };
        let is_folder = |stat: &rustix::fs::Stat| root::kind(stat) == Some(Kind::Directory);
        if self.root.stat(&parent)?.as_ref().is_some_and(is_folder) {
            return Ok(true);
        }
        for ancestor in path.ancestors() {
            match self.root.stat(&ancestor)? {
                Some(stat) if is_folder(&stat) => {}
                Some(_) => return Ok(false),
                // A person removed it; that is to be noticed first.
                None if self.seen.contains_key(&ancestor) => {
                    self.look_again(ancestor, std::time::Instant::now());
                    return Ok(false);
                }
                None if !self.put_folder(&ancestor, &Node::directory(0o755))? => {
                    return Ok(false);
                }
                None => {}
            }
        }
        Ok(true)
    }
}
