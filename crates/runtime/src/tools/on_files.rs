//! The tools that read, write and look for files.

use std::path::Path;

use quintet_mcp::ToolOutcome;
use quintet_workspace::proto::path::RESERVED;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::commands::{Cause, FileChange, SessionCommands};
use super::files::{self, LINES, Target};
use super::find;
use super::seen::Seen;
use super::{Call, Outcome, ToolServer, read, said, shortened, target};
use crate::workspaces::ToolWrite;

/// The most of a diff that is shown.
const MAX_DIFF: usize = 8 * 1024;

impl ToolServer {
    pub(super) async fn read_file(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            path: String,
            offset: Option<usize>,
            limit: Option<usize>,
            at: Option<u64>,
        }
        let Arguments {
            path,
            offset,
            limit,
            at,
        } = read(arguments)?;
        let target = target(call, &path);
        if at.is_some() && target.root != Path::new(&call.session.workspace) {
            return Err(format!(
                "{} is outside of the workspace, whose files alone have a history; leave out `at`",
                target.shown
            ));
        }
        self.begin_with(call, &target, cancelled).await?;
        let text = match at {
            Some(sequence) => {
                let bytes = self
                    .runtime
                    .file_at(call.session.id, &target.name, sequence)
                    .await
                    .map_err(said)?;
                target.text(bytes).map_err(said)?
            }
            None => {
                let file = target.clone();
                let text = blocking(move || file.read()).await?.map_err(said)?;
                self.see(call, &target, Seen::of(&text, now_millis())).await;
                text
            }
        };
        let (mut shown, note) = files::lines(
            &text,
            offset.unwrap_or(1).max(1),
            limit.unwrap_or(LINES).max(1),
        );
        if let Some(note) = note {
            if !shown.is_empty() && !shown.ends_with('\n') {
                shown.push('\n');
            }
            shown.push_str(&note);
        }
        Ok(ToolOutcome::text(shown))
    }

    pub(super) async fn write_file(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            path: String,
            content: String,
        }
        let Arguments { path, content } = read(arguments)?;
        let target = target(call, &path);
        self.begin_with(call, &target, cancelled).await?;
        let _writing = self.runtime.tools.writing.lock().await;
        let (bytes, shown) = (content.len(), target.shown.clone());
        let there = target.clone();
        let created = !blocking(move || there.exists()).await?;
        self.write(call, &target, content).await?;
        Ok(ToolOutcome::text(format!("wrote {shown}, {bytes} bytes"))
            .with_structured(json!({ "path": shown, "bytes": bytes, "created": created })))
    }

    pub(super) async fn edit_file(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            path: String,
            old: String,
            new: String,
        }
        let Arguments { path, old, new } = read(arguments)?;
        let target = target(call, &path);
        self.begin_with(call, &target, cancelled).await?;
        let _writing = self.runtime.tools.writing.lock().await;
        let file = target.clone();
        let text = blocking(move || file.read()).await?.map_err(said)?;
        if let Some(seen) = self.seen(call, &target).await
            && !seen.is(&text)
        {
            return Err(self.stale(call, &target, &seen, &text).await);
        }
        let (edited, line) = files::replace_once(&target.shown, &text, &old, &new)
            .map_err(|error| error.to_string())?;
        let diff = diff(&target.shown, &text, &edited);
        self.write(call, &target, edited).await?;
        let shown = target.shown;
        Ok(
            ToolOutcome::text(format!("edited {shown} at line {line}\n{diff}"))
                .with_structured(json!({ "path": shown, "line": line })),
        )
    }

    /// Writes a file; in the workspace that is a command of the session, which can be taken back.
    async fn write(&self, call: &Call, target: &Target, text: String) -> Result<(), String> {
        let (file, written) = (target.clone(), text.clone());
        let meant = target.clone();
        if blocking(move || meant.is_reserved()).await? {
            return Err(format!(
                "{} is in {RESERVED}/, which is the daemon's own: it has no history and no worker has \
                 it; write it elsewhere in the workspace",
                target.shown
            ));
        }
        let writing = async { blocking(move || file.write(&written)).await?.map_err(said) };
        if target.root == Path::new(&call.session.workspace) {
            let write = ToolWrite {
                session: call.session.id,
                tool: &call.tool,
                path: &target.name,
            };
            self.runtime.write_in_session(write, writing).await?;
        } else {
            writing.await?;
        }
        let now = now_millis();
        let memory = &self.runtime.tools.memory;
        memory.wrote(call.instance.as_str(), &target.path(), &text, now);
        self.see(call, target, Seen::of(&text, now)).await;
        Ok(())
    }

    /// Notes what an instance has seen of a file.
    async fn see(&self, call: &Call, target: &Target, seen: Seen) {
        let path = target.path();
        if let Err(error) = seen.keep(&self.runtime.db, call.session.id, &path).await {
            tracing::warn!(%error, "what was read of a file is not known after a restart");
        }
        let memory = &self.runtime.tools.memory;
        memory.see(call.instance.as_str(), &path, seen);
    }

    /// What an instance last saw of a file, also before the daemon was started.
    async fn seen(&self, call: &Call, target: &Target) -> Option<Seen> {
        let path = target.path();
        if let Some(seen) = self
            .runtime
            .tools
            .memory
            .seen(call.instance.as_str(), &path)
        {
            return Some(seen);
        }
        match Seen::kept(&self.runtime.db, call.session.id, &path).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(%error, "what was read of a file is not known");
                None
            }
        }
    }

    /// Says who changed a file since the instance read it, and how.
    async fn stale(&self, call: &Call, target: &Target, seen: &Seen, text: &str) -> String {
        let by = self.changer(call, target, seen, text).await;
        let how = match &seen.text {
            Some(before) => diff(&target.shown, before, text),
            None => {
                "it is too long to show the difference, or was read before a restart".to_owned()
            }
        };
        format!(
            "{} was changed since you read it, {by}. Read it again before you edit it. What changed:\n{how}",
            target.shown
        )
    }

    async fn changer(&self, call: &Call, target: &Target, seen: &Seen, text: &str) -> String {
        let changes = match target.root == Path::new(&call.session.workspace) {
            true => self
                .runtime
                .changes_since(call.session.id, &target.name, seen.at_millis)
                .await
                .unwrap_or_default(),
            false => Vec::new(),
        };
        let last = changes.last();
        if let Some(FileChange {
            sequence,
            change,
            cause: Cause::Undo,
            ..
        }) = last
        {
            return format!(
                "by an undo, which put back what was there before ({change}, sequence {sequence})"
            );
        }
        // Text that an undo has put back may be an agent's too.
        if let Some(instance) = self.runtime.tools.memory.writer(&target.path(), text) {
            return format!("by the agent {instance}, with a tool");
        }
        let Some(last) = last else {
            return "by somebody on this machine".to_owned();
        };
        let FileChange {
            sequence,
            change,
            author,
            ..
        } = last;
        match &last.cause {
            Cause::Command(command) => format!(
                "by the command `{}` ({author}, sequence {sequence})",
                shortened(command)
            ),
            Cause::Undo | Cause::Unknown => format!(
                "by {author} ({change}, sequence {sequence}), not by a command of this session"
            ),
        }
    }

    pub(super) async fn list_files(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            path: Option<String>,
            glob: Option<String>,
        }
        let Arguments { path, glob } = read(arguments)?;
        let target = target(call, path.as_deref().unwrap_or_default());
        self.begin_with(call, &target, cancelled).await?;
        let stop = cancelled.clone();
        let sight = self.sight(call, &target);
        let found = blocking(move || {
            find::list(&target, glob.as_deref(), &stop, &|path| sight.reaches(path))
        })
        .await??;
        Ok(ToolOutcome::text(found_text(
            &found,
            "no files",
            "give a path or a glob",
        )))
    }

    pub(super) async fn search(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            pattern: String,
            path: Option<String>,
            glob: Option<String>,
        }
        let Arguments {
            pattern,
            path,
            glob,
        } = read(arguments)?;
        let target = target(call, path.as_deref().unwrap_or_default());
        self.begin_with(call, &target, cancelled).await?;
        let stop = cancelled.clone();
        let sight = self.sight(call, &target);
        let found = blocking(move || {
            let may = |path: &str| sight.reaches(path);
            find::search(&target, &pattern, glob.as_deref(), &stop, &may)
        })
        .await??;
        Ok(ToolOutcome::text(found_text(
            &found,
            "no matches",
            "make the pattern narrower",
        )))
    }
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| "the daemon stops".to_owned())
}

fn now_millis() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn found_text(found: &find::Found, nothing: &str, narrower: &str) -> String {
    let mut text = match found.lines.as_slice() {
        [] => nothing.to_owned(),
        lines => lines.join("\n"),
    };
    if found.more {
        text.push_str(&format!("\n[there is more; {narrower}]"));
    }
    match found.kept_back {
        0 => {}
        1 => text.push_str("\n[1 path is kept back by the policy]"),
        many => text.push_str(&format!("\n[{many} paths are kept back by the policy]")),
    }
    text
}

fn diff(path: &str, before: &str, after: &str) -> String {
    let diff = similar::TextDiff::from_lines(before, after);
    let text = diff
        .unified_diff()
        .context_radius(2)
        .header(path, path)
        .to_string();
    match text.char_indices().nth(MAX_DIFF) {
        Some((end, _)) => format!("{}\n[cut]", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
