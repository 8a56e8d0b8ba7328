//! The released programs' snapshots, from the history of a folder that is being served.
//!
//! A snapshot is a checkpoint of the history, so that nothing prunes it. What the history has no
//! place for, its words and tags, is in one file of the worker. Only a folder that a program has
//! open (`quintet workspace serve`) is answered for: that program holds the folder itself, whatever
//! a command puts in the place of its name. Deleting one forgets it; its checkpoint stays.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use quintet_sandbox::proto::{SnapshotInfo, SnapshotReply, SnapshotRequest};
use quintet_sandbox::worker::Snapshots;
use quintet_workspace::control::{self, AskError, CheckpointLine, Point, Request, RestoreAnswer};
use quintet_workspace::{Past, Place, Role};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::home::write_atomically;

/// The snapshots of one worker.
#[derive(Debug)]
pub struct WorkspaceSnapshots {
    home: PathBuf,
    root: PathBuf,
    /// The file that says what they are; held while it is read and written.
    index: Mutex<PathBuf>,
}

/// One of them, as the file has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    info: SnapshotInfo,
    dir: PathBuf,
    sequence: u64,
}

impl WorkspaceSnapshots {
    /// Of folders beneath a worker's root whose state is in `home`; described in the file `index`.
    pub fn new(home: PathBuf, root: PathBuf, index: PathBuf) -> Self {
        Self {
            home,
            root,
            index: Mutex::new(index),
        }
    }

    async fn create(
        &self,
        folder: &str,
        message: Option<String>,
        tags: Option<Vec<String>>,
    ) -> Result<SnapshotReply, String> {
        let place = self.place(folder)?;
        let id = uuid::Uuid::new_v4().to_string();
        let name = format!("snapshot {id}");
        let made: CheckpointLine = ask(&place, Request::Checkpoint { name }).await?;
        let (dir, sequence) = (place.dir.clone(), made.sequence);
        let (file_count, total_size) = blocking(move || content(&place, sequence)).await?;
        let kept = Kept {
            info: SnapshotInfo {
                id: id.clone(),
                created_at: u64::try_from(made.at_millis).unwrap_or(0) / 1000,
                message: message.unwrap_or_default(),
                tags: tags.unwrap_or_default(),
                file_count,
                total_size,
            },
            dir,
            sequence,
        };
        self.change(move |all| {
            all.push(kept);
            Ok(())
        })
        .await?;
        Ok(SnapshotReply::Created {
            snapshot_id: id,
            file_count,
            total_size,
        })
    }

    async fn restore(&self, id: &str, destination: &str) -> Result<SnapshotReply, String> {
        let kept = self.find(id).await?;
        let place = self.place(destination)?;
        if place.dir != kept.dir {
            return Err(format!(
                "the snapshot {id} is of {0}; it can be restored to {0} alone",
                kept.dir.display()
            ));
        }
        let request = Request::Restore {
            to: Point::Sequence(kept.sequence),
            path: None,
            dry_run: false,
        };
        let _: RestoreAnswer = ask(&place, request).await?;
        Ok(SnapshotReply::Restored {
            file_count: kept.info.file_count,
        })
    }

    async fn list(&self, wanted: impl Fn(&Kept) -> bool) -> Result<Vec<SnapshotInfo>, String> {
        let all = self.all().await?;
        let found = all.into_iter().rev().filter(wanted);
        Ok(found.map(|kept| kept.info).collect())
    }

    async fn find(&self, id: &str) -> Result<Kept, String> {
        let all = self.all().await?;
        let found = all.into_iter().find(|kept| kept.info.id == id);
        found.ok_or_else(|| not_found(id))
    }

    async fn delete(&self, id: String) -> Result<SnapshotReply, String> {
        self.change(move |all| {
            let at = all.iter().position(|kept| kept.info.id == id);
            all.remove(at.ok_or_else(|| not_found(&id))?);
            Ok(())
        })
        .await?;
        Ok(SnapshotReply::Deleted)
    }

    async fn all(&self) -> Result<Vec<Kept>, String> {
        let index = self.index.lock().await;
        let path = index.clone();
        blocking(move || read(&path)).await
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut Vec<Kept>) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let index = self.index.lock().await;
        let path = index.clone();
        blocking(move || {
            let mut all = read(&path)?;
            change(&mut all)?;
            let bytes = serde_json::to_vec(&all).map_err(|error| error.to_string())?;
            write_atomically(&path, &bytes, 0o600)
                .map_err(|error| format!("{}: {error}", path.display()))
        })
        .await
    }

    /// The workspace at a folder beneath the root.
    fn place(&self, folder: &str) -> Result<Place, String> {
        let unusable = |error: io::Error| format!("{folder}: {error}");
        let root = self.root.canonicalize().map_err(unusable)?;
        let place = Place::of(&self.home, &root.join(folder)).map_err(unusable)?;
        if !place.dir.starts_with(&root) {
            return Err(format!("{folder} is outside of this worker's root"));
        }
        match place.role() {
            Some(Role::Master) => Ok(place),
            Some(Role::Replica) => Err(format!("{folder} is a copy; its history is elsewhere")),
            None => Err(format!(
                "{folder} has no history; `quintet workspace serve` on this worker gives it one"
            )),
        }
    }
}

#[async_trait]
impl Snapshots for WorkspaceSnapshots {
    async fn answer(&self, request: SnapshotRequest) -> SnapshotReply {
        let answer = match request {
            SnapshotRequest::Create {
                workspace,
                message,
                tags,
            } => self.create(&workspace, message, tags).await,
            SnapshotRequest::Restore {
                snapshot_id,
                destination,
            } => self.restore(&snapshot_id, &destination).await,
            SnapshotRequest::List { tags } => {
                let carries = |kept: &Kept| {
                    let mut tags = tags.iter().flatten();
                    tags.any(|tag| kept.info.tags.contains(tag))
                };
                let found = self.list(|kept| tags.is_none() || carries(kept));
                found.await.map(SnapshotReply::List)
            }
            SnapshotRequest::FindByTag { tag } => {
                let found = self.list(|kept| kept.info.tags.contains(&tag)).await;
                found.map(|found| SnapshotReply::Details(found.into_iter().next()))
            }
            SnapshotRequest::Get { snapshot_id } => {
                let found = self.find(&snapshot_id).await;
                found.map(|kept| SnapshotReply::Details(Some(kept.info)))
            }
            SnapshotRequest::Delete { snapshot_id } => self.delete(snapshot_id).await,
        };
        answer.unwrap_or_else(SnapshotReply::Error)
    }
}

fn not_found(id: &str) -> String {
    format!("Snapshot {id} not found")
}

/// Asks the program that has the folder open.
async fn ask<T: DeserializeOwned>(place: &Place, request: Request) -> Result<T, String> {
    let answer = control::ask(&place.state_dir, &request, |_| {}, io::sink()).await;
    answer.map_err(|error| match error {
        AskError::NotRunning => format!(
            "nobody serves the history of {0}; `quintet workspace serve {0}` on this worker does",
            place.dir.display()
        ),
        error => error.to_string(),
    })
}

/// How many files a state has, and their bytes.
fn content(place: &Place, sequence: u64) -> Result<(u64, u64), String> {
    let tree = Past::open(place).and_then(|past| past.tree(sequence));
    let tree = tree.map_err(|error| error.to_string())?;
    let files = tree.values().map(|version| &version.node);
    let files = files.filter(|node| !node.is_directory());
    Ok(files.fold((0, 0), |(count, size), node| (count + 1, size + node.size)))
}

fn read(index: &Path) -> Result<Vec<Kept>, String> {
    match std::fs::read(index) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", index.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!("{}: {error}", index.display())),
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|join| Err(join.to_string()))
}

#[cfg(test)]
mod tests {
    use quintet_workspace::control::Open;
    use quintet_workspace::{Workspace, WorkspaceConfig};
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use super::*;

    struct Bed {
        _home: tempfile::TempDir,
        root: PathBuf,
        snapshots: WorkspaceSnapshots,
        served: JoinSet<()>,
    }

    /// A worker's root with a folder `ws` in it that has a history and is served.
    async fn bed() -> Bed {
        let home = tempfile::tempdir().expect("a folder");
        let root = home.path().join("root");
        let dir = root.join("ws");
        std::fs::create_dir_all(&dir).expect("a folder");
        let place = Place::of(home.path(), &dir).expect("there");
        let config = WorkspaceConfig::new(&dir, &place.state_dir, &place.cas_dir);
        let open = move || Workspace::open(&config).expect("new");
        let workspace = tokio::task::spawn_blocking(open).await.expect("opened");
        let mut served = JoinSet::new();
        let (stop, state_dir) = (CancellationToken::new(), place.state_dir.clone());
        served.spawn(async move {
            let served = control::serve(Open::Master(workspace), state_dir, stop);
            served.await.expect("a socket");
        });
        while !place.state_dir.join(control::SOCKET).exists() {
            tokio::task::yield_now().await;
        }
        let index = home.path().join("snapshots.json");
        Bed {
            snapshots: WorkspaceSnapshots::new(home.path().to_owned(), root.clone(), index),
            _home: home,
            root,
            served,
        }
    }

    impl Bed {
        async fn create(&self, folder: &str, tags: &[&str]) -> SnapshotReply {
            let request = SnapshotRequest::Create {
                workspace: folder.to_owned(),
                message: Some("words".to_owned()),
                tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()),
            };
            self.snapshots.answer(request).await
        }

        async fn created(&self, tags: &[&str]) -> String {
            match self.create("ws", tags).await {
                SnapshotReply::Created { snapshot_id, .. } => snapshot_id,
                other => panic!("{other:?}"),
            }
        }

        async fn ids(&self, tags: Option<&[&str]>) -> Vec<String> {
            let tags = tags.map(|tags| tags.iter().map(|tag| (*tag).to_owned()).collect());
            match self.snapshots.answer(SnapshotRequest::List { tags }).await {
                SnapshotReply::List(found) => found.into_iter().map(|it| it.id).collect(),
                other => panic!("{other:?}"),
            }
        }

        async fn restore(&self, id: &str, destination: &str) -> SnapshotReply {
            let request = SnapshotRequest::Restore {
                snapshot_id: id.to_owned(),
                destination: destination.to_owned(),
            };
            self.snapshots.answer(request).await
        }
    }

    #[tokio::test]
    async fn a_snapshot_is_taken_found_put_back_and_forgotten() {
        let bed = bed().await;
        let ws = bed.root.join("ws");
        std::fs::create_dir(ws.join("src")).expect("a folder");
        std::fs::write(ws.join("src/a"), "first").expect("writable");
        std::fs::write(ws.join("b"), "bb").expect("writable");
        let absolute = ws.to_str().expect("UTF-8").to_owned();
        let first = match bed.create(&absolute, &["v1", "kept"]).await {
            SnapshotReply::Created {
                snapshot_id,
                file_count: 2,
                total_size: 7,
            } => snapshot_id,
            other => panic!("{other:?}"),
        };
        std::fs::write(ws.join("src/a"), "second").expect("writable");
        std::fs::remove_file(ws.join("b")).expect("removable");
        std::fs::write(ws.join("c"), "c").expect("writable");
        let second = bed.created(&["v2"]).await;

        assert_eq!(bed.ids(None).await, [second.clone(), first.clone()]);
        assert_eq!(bed.ids(Some(&["kept", "other"])).await, [first.as_str()]);
        assert!(bed.ids(Some(&[])).await.is_empty());
        for (tag, expected) in [("v1", Some(&first)), ("v2", Some(&second)), ("v3", None)] {
            let request = SnapshotRequest::FindByTag {
                tag: tag.to_owned(),
            };
            match bed.snapshots.answer(request).await {
                SnapshotReply::Details(found) => {
                    assert_eq!(found.as_ref().map(|it| &it.id), expected);
                }
                other => panic!("{other:?}"),
            }
        }
        let get = |id: &str| SnapshotRequest::Get {
            snapshot_id: id.to_owned(),
        };
        match bed.snapshots.answer(get(&first)).await {
            SnapshotReply::Details(Some(info)) => {
                assert_eq!((info.message.as_str(), info.file_count), ("words", 2));
                assert!(info.created_at > 1_700_000_000, "{info:?}");
            }
            other => panic!("{other:?}"),
        }

        let restored = bed.restore(&first, "ws").await;
        assert_eq!(restored, SnapshotReply::Restored { file_count: 2 });
        let text = |name: &str| std::fs::read_to_string(ws.join(name)).ok();
        assert_eq!(text("src/a").as_deref(), Some("first"));
        assert_eq!(text("b").as_deref(), Some("bb"));
        assert_eq!(text("c"), None);

        let delete = SnapshotRequest::Delete {
            snapshot_id: first.clone(),
        };
        assert_eq!(
            bed.snapshots.answer(delete.clone()).await,
            SnapshotReply::Deleted
        );
        let gone = SnapshotReply::Error(format!("Snapshot {first} not found"));
        assert_eq!(bed.snapshots.answer(delete).await, gone);
        assert_eq!(bed.snapshots.answer(get(&first)).await, gone);
        assert_eq!(bed.ids(None).await, [second]);
    }

    #[tokio::test]
    async fn what_has_no_history_here_is_refused_with_the_reason() {
        let mut bed = bed().await;
        let taken = bed.created(&[]).await;
        std::fs::create_dir(bed.root.join("plain")).expect("a folder");
        std::os::unix::fs::symlink("/usr", bed.root.join("out")).expect("a link");
        for (folder, word) in [
            ("plain", "no history"),
            ("missing", "missing"),
            ("out", "outside"),
            ("..", "outside"),
            ("/usr", "outside"),
        ] {
            for reply in [
                bed.create(folder, &[]).await,
                bed.restore(&taken, folder).await,
            ] {
                match reply {
                    SnapshotReply::Error(error) => assert!(error.contains(word), "{error}"),
                    other => panic!("{folder}: {other:?}"),
                }
            }
        }
        bed.served.shutdown().await;
        match bed.create("ws", &[]).await {
            SnapshotReply::Error(error) => assert!(error.contains("nobody serves"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
