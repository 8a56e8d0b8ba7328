//! Skills: `skills/NAME/SKILL.md`, known by name and description, read when they are needed.

/// A description may be as long as this.
const MAX_DESCRIPTION: usize = 300;

/// What is known of a skill before it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillHead {
    /// Its name.
    pub name: String,
    /// When to use it.
    pub description: String,
}

/// Reads the front matter of a SKILL.md; `None` where it has no name.
pub fn head(text: &str) -> Option<SkillHead> {
    let matter = text
        .trim_start_matches('\u{feff}')
        .strip_prefix("---\n")?
        .split_once("\n---")?
        .0;
    let field = |key: &str| {
        matter.lines().find_map(|line| {
            let value = line.strip_prefix(key)?.strip_prefix(':')?.trim();
            Some(value.trim_matches(['"', '\'']).to_owned())
        })
    };
    let name = field("name").filter(|name| !name.is_empty())?;
    let description: String = field("description")
        .unwrap_or_default()
        .chars()
        .take(MAX_DESCRIPTION)
        .collect();
    Some(SkillHead { name, description })
}

/// What a SKILL.md says below its front matter.
pub fn body(text: &str) -> &str {
    let below = text
        .trim_start_matches('\u{feff}')
        .strip_prefix("---\n")
        .and_then(|rest| rest.split_once("\n---"))
        .map(|(_, below)| below.split_once('\n').map_or("", |(_, body)| body));
    below.unwrap_or(text).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_bodies() {
        let text =
            "---\nname: tidy\ndescription: \"Puts things away\"\nother: x\n---\n\n# How\nSo.\n";
        assert_eq!(
            head(text),
            Some(SkillHead {
                name: "tidy".into(),
                description: "Puts things away".into()
            })
        );
        assert_eq!(body(text), "# How\nSo.");
        assert_eq!(head("# no front matter"), None);
        assert_eq!(head("---\ndescription: x\n---\n"), None);
        assert_eq!(body("# plain"), "# plain");
    }
}
