//! Where skills are: in the home folder, whose path the daemon tells, and in the workspace.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::mcp::Mcp;
use crate::proto::skill::{self, SkillHead};
use crate::proto::tool::{Outcome, Toolbox};

/// Skills that are looked at, in each of the two places.
const MAX_SKILLS: usize = 100;

/// A larger SKILL.md is not read.
const MAX_FILE: u64 = 256 * 1024;

/// The skills that can be loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Skills {
    list: Vec<(SkillHead, Place)>,
}

#[derive(Debug, Clone)]
enum Place {
    /// A file of this machine.
    Home(PathBuf),
    /// A file of the workspace.
    Workspace(String),
}

impl Skills {
    /// Finds them. One of the workspace hides one of the home folder with the same name.
    pub(crate) async fn find(home: Option<&Path>, tools: Option<(&Mcp, &Toolbox)>) -> Self {
        let mut skills = Self::default();
        if let Some((mcp, toolbox)) = tools
            && toolbox.own_name("list_files").is_some()
        {
            skills.in_workspace(mcp).await;
        }
        if let Some(home) = home {
            skills.in_home(home).await;
        }
        skills.list.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        skills
    }

    /// What is known of each.
    pub(crate) fn heads(&self) -> Vec<SkillHead> {
        self.list.iter().map(|(head, _)| head.clone()).collect()
    }

    /// Gives a skill's instructions.
    pub(crate) async fn load(&self, name: &str, mcp: Option<&Mcp>) -> Outcome {
        let Some((_, place)) = self.list.iter().find(|(head, _)| head.name == name) else {
            let names: Vec<&str> = self
                .list
                .iter()
                .map(|(head, _)| head.name.as_str())
                .collect();
            return Outcome::failed(format!(
                "there is no skill {name:?}; there are: {}",
                names.join(", ")
            ));
        };
        let text = match (place, mcp) {
            (Place::Home(path), _) => read_file(path).await,
            (Place::Workspace(path), Some(mcp)) => read_from_workspace(mcp, path).await,
            (Place::Workspace(_), None) => None,
        };
        match text {
            Some(text) => Outcome::text(skill::body(&text)),
            None => Outcome::failed(format!("the skill {name:?} can't be read any more")),
        }
    }

    fn add(&mut self, text: &str, place: Place) {
        if let Some(head) = skill::head(text)
            && !self.list.iter().any(|(known, _)| known.name == head.name)
        {
            self.list.push((head, place));
        }
    }

    async fn in_workspace(&mut self, mcp: &Mcp) {
        let asked = json!({ "glob": "skills/*/SKILL.md" });
        let Ok(listed) = mcp.call("list_files", &asked, None).await else {
            return;
        };
        let outcome = Outcome::from_call("list_files", &Default::default(), &listed);
        let text = outcome.shown.as_str().unwrap_or_default();
        let paths: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with("skills/") && line.ends_with("/SKILL.md"))
            .take(MAX_SKILLS)
            .map(str::to_owned)
            .collect();
        for path in paths {
            if let Some(text) = read_from_workspace(mcp, &path).await {
                self.add(&text, Place::Workspace(path));
            }
        }
    }

    async fn in_home(&mut self, home: &Path) {
        let Ok(mut entries) = tokio::fs::read_dir(home).await else {
            return;
        };
        let mut seen = 0usize;
        while let Ok(Some(entry)) = entries.next_entry().await {
            seen = seen.saturating_add(1);
            if seen > MAX_SKILLS {
                return;
            }
            let path = entry.path().join("SKILL.md");
            if let Some(text) = read_file(&path).await {
                self.add(&text, Place::Home(path));
            }
        }
    }
}

async fn read_file(path: &Path) -> Option<String> {
    let about = tokio::fs::metadata(path).await.ok()?;
    if !about.is_file() || about.len() > MAX_FILE {
        return None;
    }
    tokio::fs::read_to_string(path).await.ok()
}

/// A file of the workspace, as the tool gives it.
pub(crate) async fn read_from_workspace(mcp: &Mcp, path: &str) -> Option<String> {
    let result = mcp
        .call("read_file", &json!({ "path": path }), None)
        .await
        .ok()?;
    if result["isError"] == true {
        return None;
    }
    if let Some(content) = result.pointer("/structuredContent/content") {
        return content.as_str().map(str::to_owned);
    }
    let outcome = Outcome::from_call("read_file", &Default::default(), &result);
    outcome.shown.as_str().map(str::to_owned)
}
