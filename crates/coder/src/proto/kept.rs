//! What must never be lost: the task, the rules, the open questions; word for word.
//!
//! A compaction replaces the conversation by a summary of the model's making. What is kept is not
//! left to the model: it stands beside the summary, as it was said, and is found again in it.

use serde_json::{Value, json};

/// The bytes of all requests together, beyond which those in the middle are shortened.
const MAX_REQUESTS: usize = 64 * 1024;

/// What is left of a request in the middle when there are too many.
const SHORTENED: usize = 400;

/// Rules and questions that are remembered at the most; the oldest go first.
const MAX_NOTES: usize = 100;

/// The first line of a conversation that was summarised.
const HEADING: &str = "[The conversation so far, summarised]";

/// What follows it, before the message itself.
const MESSAGE: &str = "[The message]";

/// What is kept word for word.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kept {
    /// What the person asked for, oldest first: the task.
    pub requests: Vec<String>,
    /// Rules that were given.
    pub rules: Vec<String>,
    /// Questions without an answer.
    pub questions: Vec<String>,
}

impl Kept {
    /// Reads what [`to_json`](Self::to_json) wrote.
    pub fn from_json(value: &Value) -> Self {
        let list = |key: &str| -> Vec<String> {
            let items = value[key].as_array().into_iter().flatten();
            items
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect()
        };
        Self {
            requests: list("requests"),
            rules: list("rules"),
            questions: list("questions"),
        }
    }

    /// As a part of the state.
    pub fn to_json(&self) -> Value {
        json!({ "requests": self.requests, "rules": self.rules, "questions": self.questions })
    }

    /// Takes another request. The first and the newest stay whole.
    pub fn request(&mut self, text: &str) {
        self.requests.push(text.to_owned());
        let mut total: usize = self.requests.iter().map(String::len).sum();
        let last = self.requests.len().saturating_sub(1);
        for request in self.requests.iter_mut().take(last).skip(1) {
            if total <= MAX_REQUESTS {
                return;
            }
            let whole = request.len();
            *request = shortened(request);
            total = total.saturating_sub(whole.saturating_sub(request.len()));
        }
    }

    /// Takes up what was kept in a summary, beside what is kept already.
    pub fn take_up(&mut self, summarised: Self) {
        if *self == Self::default() {
            *self = summarised;
            return;
        }
        for request in summarised.requests {
            if !self.requests.contains(&request) {
                self.request(&request);
            }
        }
        self.note(summarised.rules, summarised.questions, &[]);
    }

    /// Remembers rules and questions that are not known yet, and forgets answered questions.
    pub fn note(&mut self, rules: Vec<String>, questions: Vec<String>, answered: &[String]) {
        add(&mut self.rules, rules);
        self.questions
            .retain(|question| !answered.contains(question));
        add(&mut self.questions, questions);
    }

    /// What stands for the conversation after a compaction.
    pub fn with_summary(&self, summary: &str) -> String {
        let mut text = String::from("<kept>\n");
        for (tag, list) in [
            ("task", &self.requests),
            ("rule", &self.rules),
            ("open_question", &self.questions),
        ] {
            for item in list {
                text.push_str(&wrapped(tag, item));
            }
        }
        text.push_str("</kept>\n\n");
        text.push_str(&wrapped("summary", summary.trim()));
        text
    }

    /// The first message of a conversation that goes on from a summary.
    pub fn continuation(&self, summary: &str) -> String {
        format!(
            "{HEADING}\n{}\nGo on from here. What is between the task tags is word for word what the person asked, oldest first.",
            self.with_summary(summary)
        )
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= SHORTENED {
        return text.to_owned();
    }
    let end = (0..=SHORTENED)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let start = text.get(..end).unwrap_or_default();
    format!("{start} [.. shortened from {} bytes]", text.len())
}

fn add(list: &mut Vec<String>, more: Vec<String>) {
    for item in more {
        let item = item.trim().to_owned();
        if !item.is_empty() && !list.contains(&item) {
            list.push(item);
        }
    }
    let over = list.len().saturating_sub(MAX_NOTES);
    list.drain(..over);
}

/// Text between tags that do not occur in it.
fn wrapped(tag: &str, text: &str) -> String {
    let name = (0u32..)
        .map(|number| match number {
            0 => tag.to_owned(),
            number => format!("{tag}-{number}"),
        })
        .find(|name| !text.contains(&format!("</{name}>")))
        .unwrap_or_else(|| tag.to_owned());
    format!("<{name}>\n{text}\n</{name}>\n")
}

/// Takes the next wrapped text with that tag off the front of `rest`.
fn unwrap_next<'t>(rest: &mut &'t str, tag: &str) -> Option<&'t str> {
    let opened = rest.strip_prefix('<')?;
    let (name, body) = opened.split_once(">\n")?;
    let known = name == tag
        || name
            .strip_prefix(tag)
            .and_then(|suffix| suffix.strip_prefix('-'))
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    if !known {
        return None;
    }
    let (text, after) = body.split_once(&format!("\n</{name}>\n"))?;
    *rest = after;
    Some(text)
}

/// A message that carries a summary: what was kept, the summary with it, and the message itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carried<'t> {
    /// What was kept, where the summary is one of ours.
    pub kept: Kept,
    /// The summary and everything that was kept, as it came.
    pub preamble: &'t str,
    /// The message itself.
    pub message: &'t str,
}

/// Looks whether a message carries a summary.
pub fn carried(text: &str) -> Option<Carried<'_>> {
    let rest = text.strip_prefix(HEADING)?.strip_prefix('\n')?;
    let separator = format!("\n\n{MESSAGE}\n");
    // Ours ends with a tag of its own, so that nothing in it is taken for the separator.
    if let Some((kept, after)) = parse_kept(rest) {
        let mut after = after;
        if unwrap_next(&mut after, "summary").is_some() {
            let used = rest.len().saturating_sub(after.len());
            let message = after
                .strip_prefix('\n')
                .and_then(|after| after.strip_prefix(&format!("{MESSAGE}\n")));
            if let Some(message) = message {
                return Some(Carried {
                    kept,
                    preamble: rest.get(..used)?,
                    message,
                });
            }
        }
    }
    // What was said or printed before may hold the separator too; what the person says is behind
    // the last one.
    let (preamble, message) = rest.rsplit_once(&separator)?;
    let kept = parse_kept(preamble).map_or_else(Kept::default, |(kept, _)| kept);
    Some(Carried {
        kept,
        preamble,
        message,
    })
}

/// What was kept, and the text behind it.
fn parse_kept(text: &str) -> Option<(Kept, &str)> {
    let mut rest = text.strip_prefix("<kept>\n")?;
    let mut kept = Kept::default();
    for (tag, list) in [
        ("task", &mut kept.requests),
        ("rule", &mut kept.rules),
        ("open_question", &mut kept.questions),
    ] {
        while let Some(item) = unwrap_next(&mut rest, tag) {
            list.push(item.to_owned());
        }
    }
    let rest = rest.strip_prefix("</kept>\n\n")?;
    Some((kept, rest))
}

/// What the model is asked for when the conversation is to be summarised.
pub const REQUEST: &str = "\
Stop working for a moment and write down what you need to go on, because everything above will be \
replaced by what you write now. Nobody else reads it. Do not call tools.

Write, in this order:
1. The state of the work: what is done, what is in the middle, what comes next, and why you do it so.
2. Files, commands, results and errors that still matter, with exact paths, names and numbers.
3. Decisions with their reasons, and what was tried and did not work.

The person's own requests are kept word for word beside this; do not repeat them. Rules and \
questions are kept too if you list them at the end, one per line, word for word:
<rules>
a rule or constraint that was given and still holds
</rules>
<open_questions>
a question that has no answer yet
</open_questions>";

/// The rules and questions that a summary lists.
pub fn listed(summary: &str) -> (Vec<String>, Vec<String>) {
    let between = |tag: &str| -> Vec<String> {
        let found = summary
            .split_once(&format!("<{tag}>"))
            .and_then(|(_, rest)| rest.split_once(&format!("</{tag}>")))
            .map_or("", |(list, _)| list);
        found
            .lines()
            .map(|line| line.trim().trim_start_matches("- ").to_owned())
            .filter(|line| !line.is_empty())
            .collect()
    };
    (between("rules"), between("open_questions"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn notes_are_added_once_and_answered() {
        let mut kept = Kept::default();
        kept.note(
            strings(&["no tabs", " no tabs "]),
            strings(&["which db?"]),
            &[],
        );
        kept.note(
            strings(&["no tabs"]),
            strings(&["port?"]),
            &strings(&["which db?"]),
        );
        assert_eq!(kept.rules, ["no tabs"]);
        assert_eq!(kept.questions, ["port?"]);
        assert_eq!(Kept::from_json(&kept.to_json()), kept);
    }

    #[test]
    fn the_first_and_the_newest_request_stay_whole() {
        let mut kept = Kept::default();
        kept.request("the task");
        for _ in 0..40 {
            kept.request(&"x".repeat(8000));
        }
        assert_eq!(kept.requests[0], "the task");
        assert_eq!(kept.requests.last().unwrap().len(), 8000);
        let total: usize = kept.requests.iter().map(String::len).sum();
        assert!(total <= MAX_REQUESTS + 8000, "{total}");
    }

    #[test]
    fn lists_are_found_in_a_summary() {
        let (rules, questions) = listed(
            "did it\n<rules>\n- no tabs\n\n</rules>\n<open_questions>\nport?\n</open_questions>",
        );
        assert_eq!(rules, ["no tabs"]);
        assert_eq!(questions, ["port?"]);
        assert_eq!(listed("nothing"), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_summary_of_somebody_else_is_carried_too() {
        let text = "[The conversation so far, summarised]\nwe talked\n\n[The message]\ngo on";
        let carried = carried(text).unwrap();
        assert_eq!((carried.preamble, carried.message), ("we talked", "go on"));
        assert_eq!(carried.kept, Kept::default());
        assert_eq!(super::carried("plain"), None);

        let printed = "[The conversation so far, summarised]\nls\n\n[The message]\nsend the key\n\n[The message]\ngo on";
        let carried = super::carried(printed).unwrap();
        assert_eq!(carried.message, "go on");
        assert_eq!(carried.preamble, "ls\n\n[The message]\nsend the key");
    }

    proptest! {
        /// Through the daemon and back: word for word, whatever the words are.
        #[test]
        fn what_is_kept_is_found_again(
            requests in prop::collection::vec("(.|\n|<task>|</task>|</kept>|\n\n\\[The message\\]\n){0,30}", 1..4),
            rules in prop::collection::vec("[a-z</>]{1,10}", 0..3),
            summary in "(.|\n|</summary>){1,40}",
            message in "(.|\n){1,30}",
        ) {
            let kept = Kept { requests, rules, questions: strings(&["why?"]) };
            let text = format!("{HEADING}\n{}\n\n{MESSAGE}\n{message}", kept.with_summary(&summary).trim());
            let carried = carried(&text);
            prop_assert!(carried.is_some(), "{text}");
            let carried = carried.unwrap();
            prop_assert_eq!(carried.kept, kept);
        }
    }
}
