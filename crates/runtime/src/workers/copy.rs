//! Files and folders between a worker and this machine.
//!
//! A copy that is made again goes on where it was cut: the file under way from its part, and of a
//! folder's files those are left as they are that have the same size, mode and time already.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use async_stream::stream;
use futures_util::Stream;
use quintet_control::wire::{CopyDirection, CopyMsg, CopyProgress};
use quintet_sandbox::hub::{
    ExecOutcome, ExecRequest, FolderRequest, Hub, RequestError, UploadRequest,
};
use quintet_sandbox::mtime;
use quintet_sandbox::proto::frame::{Entry, EntryKind, LeftOut};

use super::Workers;
use super::place::Part;
use crate::refusal::Refusal;

/// How often a client hears of progress.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Entries of one folder at the most; a larger one is an archive's work.
const MAX_ENTRIES: usize = 1_000_000;

/// Copies, telling the client how far it is. Dropped, it stops; what was copied stays and the file
/// under way is continued by the next attempt.
pub(crate) fn copy(
    workers: Arc<Workers>,
    request: CopyMsg,
) -> impl Stream<Item = Result<CopyProgress, Refusal>> + Send {
    stream! {
        let told = Told::default();
        let work = copy_all(&workers.hub, &request, &told);
        tokio::pin!(work);
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let result = loop {
            tokio::select! {
                result = &mut work => break result,
                _ = tick.tick() => {
                    for progress in told.news() {
                        yield Ok(progress);
                    }
                }
            }
        };
        for progress in told.news() {
            yield Ok(progress);
        }
        if let Err(refusal) = result {
            yield Err(refusal);
        }
    }
}

/// What the client has to hear next.
#[derive(Default)]
struct Told(Mutex<State>);

#[derive(Default)]
struct State {
    current: CopyProgress,
    /// Bytes of the files that are done.
    before: u64,
    skipped: Vec<CopyProgress>,
    changed: bool,
}

impl Told {
    fn with(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.changed = true;
    }

    fn total(&self, total: u64) {
        self.with(|state| state.current.total = total);
    }

    fn begin(&self, path: &str) {
        self.with(|state| path.clone_into(&mut state.current.path));
    }

    fn bytes(&self, bytes: u64) {
        self.with(|state| state.current.bytes = state.before + bytes);
    }

    fn end(&self, size: u64) {
        self.with(|state| {
            state.before += size;
            state.current.bytes = state.before;
        });
    }

    fn skip(&self, path: &str, why: &str) {
        self.with(|state| {
            state.skipped.push(CopyProgress {
                path: path.to_owned(),
                skipped: why.to_owned(),
                ..CopyProgress::default()
            });
        });
    }

    fn news(&self) -> Vec<CopyProgress> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut news = std::mem::take(&mut state.skipped);
        if std::mem::take(&mut state.changed) {
            news.push(state.current.clone());
        }
        news
    }
}

async fn copy_all(hub: &Hub, request: &CopyMsg, told: &Told) -> Result<(), Refusal> {
    let local = PathBuf::from(&request.local);
    if !local.is_absolute() {
        return Err(Refusal::Bad(format!("{} is not absolute", request.local)));
    }
    match request.direction() {
        CopyDirection::ToWorker => send(hub, request, &local, told).await,
        CopyDirection::FromWorker => fetch(hub, request, &local, told).await,
    }
}

/// A file or a folder to send.
struct Local {
    path: PathBuf,
    /// Relative to the folder; "" for that folder itself, and for a single file.
    name: String,
    size: u64,
    mode: u32,
    modified: Option<SystemTime>,
    kind: LocalKind,
}

impl Local {
    /// Whether a file of the worker's is this one, as far as can be told without reading it.
    fn arrived(&self, there: &Entry) -> bool {
        there.size == self.size
            && there.mode & 0o777 == self.mode
            && self.modified.is_some()
            && mtime::join(there.mtime_ms, Some(there.mtime_ns)) == self.modified
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalKind {
    File,
    Folder { empty: bool },
}

/// What a folder allows its owner until everything is in it.
const OPEN_TO_OWNER: u32 = 0o700;

async fn send(hub: &Hub, request: &CopyMsg, local: &Path, told: &Told) -> Result<(), Refusal> {
    let (root, recursive) = (local.to_owned(), request.recursive);
    let walked = tokio::task::spawn_blocking(move || walk(&root, recursive)).await;
    let walked = walked.map_err(|error| Refusal::Internal(error.to_string()))?;
    let (entries, skipped) = walked.map_err(|error| unusable(local, &error))?;
    for (name, why) in skipped {
        told.skip(&name, why);
    }
    told.total(entries.iter().map(|entry| entry.size).sum());
    let target = match entries.as_slice() {
        [only] if only.kind == LocalKind::File => {
            file_target(hub, &request.worker, &request.remote, local).await
        }
        _ => request.remote.clone(),
    };
    let there = match entries.as_slice() {
        [_] => HashMap::new(),
        _ => files_at(hub, &request.worker, &target).await,
    };
    for entry in &entries {
        let remote = beneath(&target, &entry.name);
        if let LocalKind::Folder { empty } = entry.kind {
            if !remote.is_empty() {
                let folder = FolderRequest {
                    path: remote,
                    mode: Some(entry.mode | OPEN_TO_OWNER),
                    modified: None,
                };
                make_folder(hub, &request.worker, &folder, empty).await?;
            }
            continue;
        }
        told.begin(&entry.name);
        if there.get(&entry.name).is_some_and(|it| entry.arrived(it)) {
            told.end(entry.size);
            continue;
        }
        let mut file = tokio::fs::File::open(&entry.path)
            .await
            .map_err(|error| unusable(&entry.path, &error))?;
        let upload = UploadRequest {
            path: remote,
            size: entry.size,
            mode: Some(entry.mode),
            modified: entry.modified,
        };
        hub.upload(&request.worker, &upload, &mut file, |bytes| {
            told.bytes(bytes);
        })
        .await?;
        told.end(entry.size);
    }
    // Last, and from the inside out: what is put into a folder changes its time.
    for entry in entries.iter().rev() {
        let remote = beneath(&target, &entry.name);
        if entry.kind == LocalKind::File || remote.is_empty() {
            continue;
        }
        let folder = FolderRequest {
            path: remote,
            mode: Some(entry.mode),
            modified: entry.modified,
        };
        make_folder(hub, &request.worker, &folder, false).await?;
    }
    Ok(())
}

/// What a worker has of a folder's files, by name; nothing where it can't tell.
async fn files_at(hub: &Hub, worker: &str, folder: &str) -> HashMap<String, Entry> {
    let listed = hub.list(worker, folder).await.unwrap_or_default();
    listed
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::File)
        .map(|entry| (entry.path.clone(), entry))
        .collect()
}

/// Where a single file goes: into the folder of that name, where there is one.
async fn file_target(hub: &Hub, worker: &str, remote: &str, local: &Path) -> String {
    let name = local.file_name().and_then(|name| name.to_str());
    // What can't be looked at is the upload's to complain of; an old worker has no such folders.
    match (hub.look(worker, remote).await, name) {
        (Ok(found), Some(name)) if found.kind == EntryKind::Folder => beneath(remote, name),
        _ => remote.to_owned(),
    }
}

/// Makes a folder, or gives it its mode and time. A worker that can't be asked for it is left to
/// make the folders of its files, and makes one that is `empty` by a command, which every worker can.
async fn make_folder(
    hub: &Hub,
    worker: &str,
    request: &FolderRequest,
    empty: bool,
) -> Result<(), Refusal> {
    match hub.make_folder(worker, request).await {
        Err(RequestError::NeedsV2 { .. }) if empty => {
            make_folder_by_command(hub, worker, &request.path).await
        }
        Ok(()) | Err(RequestError::NeedsV2 { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn make_folder_by_command(hub: &Hub, worker: &str, path: &str) -> Result<(), Refusal> {
    if has_parent(path) {
        return Err(Refusal::Bad(format!(
            "{path:?} is outside the worker's root; use a path beneath it"
        )));
    }
    let request = ExecRequest {
        command: format!("mkdir -p -- '{}'", path.replace('\'', r"'\''")),
        ..ExecRequest::default()
    };
    let output = hub.exec(worker, request).await?.output(4096).await?;
    if output.outcome == ExecOutcome::Exited(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Refusal::Bad(format!(
        "{path} can't be made: {}",
        said.trim()
    )))
}

type Walked = (Vec<Local>, Vec<(String, &'static str)>);

/// The files beneath `root`, or the one that it is; links are not followed.
fn walk(root: &Path, recursive: bool) -> io::Result<Walked> {
    let metadata = fs::metadata(root)?;
    if metadata.is_file() {
        let file = entry(root, String::new(), &metadata, LocalKind::File);
        return Ok((vec![file], Vec::new()));
    }
    if !metadata.is_dir() {
        return Err(io::Error::other("neither a file nor a folder"));
    }
    if !recursive {
        return Err(io::Error::other("a folder; copy it recursively"));
    }
    let mut found = Vec::new();
    let mut skipped = Vec::new();
    let mut folders = vec![(root.to_owned(), String::new())];
    while let Some((folder, name)) = folders.pop() {
        let mut empty = true;
        for child in fs::read_dir(&folder)? {
            let child = child?;
            empty = false;
            let Ok(child_name) = child.file_name().into_string() else {
                skipped.push((
                    beneath(&name, &child.file_name().to_string_lossy()),
                    "its name is not UTF-8",
                ));
                continue;
            };
            let child_name = match name.as_str() {
                "" => child_name,
                name => format!("{name}/{child_name}"),
            };
            let metadata = child.metadata()?;
            if metadata.is_dir() {
                folders.push((child.path(), child_name));
            } else if metadata.is_file() {
                let file = entry(&child.path(), child_name, &metadata, LocalKind::File);
                found.push(file);
            } else if metadata.is_symlink() {
                skipped.push((child_name, "a link"));
            } else {
                skipped.push((child_name, "neither a file nor a folder"));
            }
            if found.len() > MAX_ENTRIES {
                return Err(io::Error::other("too many files; pack them first"));
            }
        }
        let metadata = fs::metadata(&folder)?;
        let kind = LocalKind::Folder { empty };
        found.push(entry(&folder, name, &metadata, kind));
    }
    // A folder stands before what is in it.
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((found, skipped))
}

fn entry(path: &Path, name: String, metadata: &fs::Metadata, kind: LocalKind) -> Local {
    Local {
        path: path.to_owned(),
        name,
        size: match kind {
            LocalKind::File => metadata.len(),
            LocalKind::Folder { .. } => 0,
        },
        mode: metadata.permissions().mode() & 0o777,
        modified: metadata.modified().ok(),
        kind,
    }
}

async fn fetch(hub: &Hub, request: &CopyMsg, local: &Path, told: &Told) -> Result<(), Refusal> {
    let worker = &request.worker;
    let listed = match hub.list(worker, &request.remote).await {
        Ok(listed) => listed,
        // An old worker can't list; it can still send one file.
        Err(RequestError::NeedsV2 { .. }) => {
            return fetch_file(hub, worker, &request.remote, local, told).await;
        }
        Err(error) => return Err(error.into()),
    };
    if let [only] = listed.as_slice()
        && only.kind == EntryKind::File
    {
        told.total(only.size);
        return fetch_file(hub, worker, &request.remote, local, told).await;
    }
    if !request.recursive {
        let text = format!("{} is a folder; copy it recursively", request.remote);
        return Err(Refusal::Bad(text));
    }
    let files = listed.iter().filter(|entry| entry.kind == EntryKind::File);
    told.total(files.map(|entry| entry.size).sum());
    // A folder that is not there yet has its name when it is whole, as a file does.
    let part = match local.symlink_metadata() {
        Ok(_) => None,
        Err(_) => Some(Part::of_folder(local)?),
    };
    let place = part.as_ref().map_or(local, Part::path).to_owned();
    if place.is_symlink() {
        return Err(Refusal::Bad(format!("{} is a link", place.display())));
    }
    let mut folders = Vec::new();
    let mut unread = 0;
    for entry in &listed {
        let target = inside(&place, &entry.path)?;
        match &entry.left_out {
            Some(LeftOut::Name) => {
                told.skip(&entry.path, "its name is not UTF-8");
                continue;
            }
            Some(LeftOut::Unreadable(why)) => {
                told.skip(&entry.path, &format!("what is in it can't be read: {why}"));
                unread += 1;
                continue;
            }
            None => {}
        }
        match entry.kind {
            EntryKind::Folder => {
                fs::create_dir_all(&target).map_err(|error| unusable(&target, &error))?;
                folders.push((target, entry));
            }
            EntryKind::File => {
                told.begin(&entry.path);
                if here(&target).is_some_and(|it| it.arrived(entry)) {
                    told.end(entry.size);
                    continue;
                }
                let remote = beneath(&request.remote, &entry.path);
                fetch_file(hub, worker, &remote, &target, told).await?;
            }
            EntryKind::Link => told.skip(&entry.path, "a link"),
            EntryKind::Other => told.skip(&entry.path, "neither a file nor a folder"),
        }
    }
    // Last, and from the inside out: a folder may not allow what was put into it.
    for (target, entry) in folders.iter().rev() {
        settle(target, entry).map_err(|error| unusable(target, &error))?;
    }
    if let Some(part) = part {
        part.publish()?;
    }
    match unread {
        0 => Ok(()),
        _ => Err(Refusal::Bad(format!(
            "{unread} of what is named above could not be read on {worker}, and the rest is here; see \
             that the worker may read it, then copy again"
        ))),
    }
}

/// A file of this machine, where there is one.
fn here(path: &Path) -> Option<Local> {
    let metadata = path.symlink_metadata().ok()?;
    let file = metadata.is_file();
    file.then(|| entry(path, String::new(), &metadata, LocalKind::File))
}

fn settle(folder: &Path, entry: &Entry) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(entry.mode & 0o777))?;
    match mtime::join(entry.mtime_ms, Some(entry.mtime_ns)) {
        Some(modified) => fs::File::open(folder)?.set_modified(modified),
        None => Ok(()),
    }
}

/// Receives into a file beside the target and puts it in place when it is whole.
async fn fetch_file(
    hub: &Hub,
    worker: &str,
    remote: &str,
    target: &Path,
    told: &Told,
) -> Result<(), Refusal> {
    let part = Part::of_file(target)?;
    let failed = |error: io::Error| unusable(target, &error);
    let mut file = tokio::fs::File::from_std(part.file().map_err(failed)?);
    let received = hub
        .download_to(worker, remote, &mut file, |bytes| told.bytes(bytes))
        .await;
    let size = file.metadata().await.map_or(0, |data| data.len());
    let remote = match received {
        Ok(remote) => remote,
        Err(error) => {
            if size == 0 {
                // Nothing to continue from.
                part.discard();
            }
            return Err(error.into());
        }
    };
    let file = file.into_std().await;
    let mode = remote.mode.unwrap_or(0o644) & 0o777;
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed)?;
    if let Some(modified) = remote.modified {
        file.set_modified(modified).map_err(failed)?;
    }
    part.publish_file()?;
    told.end(size);
    Ok(())
}

/// A path of the worker's word beneath a folder of ours: it names nothing outside.
fn inside(folder: &Path, path: &str) -> Result<PathBuf, Refusal> {
    let relative = Path::new(path);
    if relative
        .components()
        .any(|part| !matches!(part, Component::Normal(_)))
    {
        return Err(Refusal::Bad(format!(
            "the worker named {path:?}, which is not beneath its folder"
        )));
    }
    Ok(if path.is_empty() {
        folder.to_owned()
    } else {
        folder.join(relative)
    })
}

fn has_parent(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    parts.any(|part| part == Component::ParentDir)
}

/// A path of a worker's, which has its own rules.
fn beneath(folder: &str, name: &str) -> String {
    match (folder.trim_end_matches('/'), name) {
        (_, "") => folder.to_owned(),
        ("", name) if folder.is_empty() => name.to_owned(),
        (folder, name) => format!("{folder}/{name}"),
    }
}

pub(super) fn unusable(path: &Path, error: &io::Error) -> Refusal {
    Refusal::Bad(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_can_name_nothing_outside_of_the_folder() {
        let folder = Path::new("/here");
        assert_eq!(inside(folder, "").expect("itself"), folder);
        assert_eq!(inside(folder, "a/b").expect("inside"), folder.join("a/b"));
        for path in ["..", "a/../../b", "/etc/passwd", "../x"] {
            assert!(inside(folder, path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_remote_path_keeps_its_kind() {
        assert_eq!(beneath("/w/dir/", "a/b"), "/w/dir/a/b");
        assert_eq!(beneath("dir", "a"), "dir/a");
        assert_eq!(beneath("", "a"), "a");
        assert_eq!(beneath("/", "a"), "/a");
        assert_eq!(beneath("dir/file", ""), "dir/file");
    }
}
