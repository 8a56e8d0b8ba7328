//! The conversation with the model, as the agent's durable state.
//!
//! ```text
//! { "version": 1,
//!   "messages": [..],   in the Messages format, as they go to the model
//!   "tokens": n,        how large they are for the model
//!   "kept": {..},       what must never be lost
//!   "open": ".." }      the message that has no whole answer yet, or null
//! ```
//! Every change is a patch of what changed, made here and sent where it happens.

use quintet_models::Usage;
use serde_json::{Value, json};

use super::answer::{Answer, Call};
use super::kept::Kept;

/// The version of the state's shape.
const VERSION: u64 = 1;

/// The tool by which the person is asked.
const ASK_USER: &str = "ask_user";

/// Bytes of JSON for a token, where the model has not counted.
const BYTES_PER_TOKEN: usize = 4;

/// What a picture costs, whatever its bytes are.
const IMAGE_TOKENS: u64 = 1600;

/// The state on the agent plane is at most 8 MiB; a conversation beyond this is compacted.
const MAX_BYTES: usize = 5 * 1024 * 1024;

/// What the model is told of a call whose result got lost.
pub const INTERRUPTED: &str = "The agent was interrupted before it saw the result of this call, so what the call did is unknown. Look before you do it again.";

/// What the model is told when its answer ran out of room while it worked.
const CUT: &str = "[Your last answer reached the length that one answer may have and was cut off. Calls of tools in it were not made. Go on from there in smaller parts: write a large file in several calls, and think less before each.]";

/// The conversation so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    messages: Vec<Value>,
    tokens: u64,
    bytes: usize,
    kept: Kept,
    open: Option<String>,
}

/// Operations of RFC 6902 to send.
pub type Patch = Vec<Value>;

impl Conversation {
    /// Reads the state. One of another shape or version is started anew: `None`.
    pub fn from_state(state: &Value) -> Option<Self> {
        if state["version"] != VERSION {
            return None;
        }
        let messages = state["messages"].as_array()?.clone();
        let bytes = messages.iter().map(size).sum();
        Some(Self {
            tokens: state["tokens"].as_u64()?,
            kept: Kept::from_json(&state["kept"]),
            open: state["open"].as_str().map(str::to_owned),
            messages,
            bytes,
        })
    }

    /// The patch that makes this the whole state.
    pub fn whole(&self) -> Patch {
        vec![json!({ "op": "add", "path": "", "value": {
            "version": VERSION,
            "messages": self.messages,
            "tokens": self.tokens,
            "kept": self.kept.to_json(),
            "open": self.open,
        }})]
    }

    /// The messages, as they go to the model.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// What must never be lost.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// How large it is for the model, as far as is known.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether it should be summarised before the model is asked again: it is near the bound.
    pub fn is_large(&self, bound: u64) -> bool {
        self.tokens > bound.saturating_sub(bound / 5) || self.bytes > MAX_BYTES
    }

    /// Takes a message. One that comes again, because its turn was cut or failed, is no second one:
    /// where the model has yet to answer it nothing is added.
    pub fn take(&mut self, text: &str, images: &[Value]) -> Patch {
        let again = self.open.as_deref() == Some(text) && images.is_empty();
        if !again {
            self.open = Some(text.to_owned());
            let mut patch = self.say(text, images);
            patch.push(self.open_patch());
            return patch;
        }
        match self.messages.last() {
            Some(last) if last["role"] == "user" => Vec::new(),
            // It was cut in the middle of an answer, and the model has to be spoken to again.
            _ => self.push(user(text)),
        }
    }

    /// Notes that the message has its answer.
    pub fn done(&mut self) -> Patch {
        match self.open.take() {
            Some(_) => vec![self.open_patch()],
            None => Vec::new(),
        }
    }

    /// Adds what the person says: a message, guidance for the running one.
    pub fn say(&mut self, text: &str, images: &[Value]) -> Patch {
        let mut content = vec![json!({ "type": "text", "text": text })];
        content.extend(images.iter().cloned());
        self.kept.request(text);
        let mut patch = self.push(json!({ "role": "user", "content": content }));
        patch.push(self.kept_patch());
        patch
    }

    /// Whether it already holds that summary, as after a turn that was cut.
    pub fn recalls(&self, preamble: &str) -> bool {
        self.messages.contains(&user(preamble))
    }

    /// Adds a summary that a message carried.
    pub fn recall(&mut self, preamble: &str, kept: Kept) -> Patch {
        self.kept.take_up(kept);
        let mut patch = self.push(user(preamble));
        patch.push(self.kept_patch());
        patch
    }

    /// Adds an answer; nothing when there is nothing in it.
    pub fn answered(&mut self, answer: &Answer) -> Patch {
        if answer.content.is_empty() {
            return Vec::new();
        }
        let message = json!({ "role": "assistant", "content": answer.content });
        self.bytes = self.bytes.saturating_add(size(&message));
        self.messages.push(message.clone());
        self.tokens = context_of(&answer.usage).unwrap_or_else(|| {
            let added = answer
                .content
                .iter()
                .map(tokens)
                .fold(0, u64::saturating_add);
            self.tokens.saturating_add(added)
        });
        vec![append(&message), self.tokens_patch()]
    }

    /// Adds the text of an answer that was broken off.
    pub fn broken_off(&mut self, content: &[Value]) -> Patch {
        if content.is_empty() {
            return Vec::new();
        }
        self.push(json!({ "role": "assistant", "content": content }))
    }

    /// Tells the model that its answer was cut off while it worked.
    pub fn cut(&mut self) -> Patch {
        self.push(user(CUT))
    }

    /// Keeps what the person answered to questions, as it was said.
    pub fn heard(&mut self, calls: &[Call], results: &[Value]) -> Patch {
        let asked = calls.iter().zip(results);
        let asked = asked.filter(|(call, _)| call.name == ASK_USER);
        let mut patch = Vec::new();
        for (_, result) in asked.filter(|(_, result)| result["is_error"] != true) {
            self.kept.request(&text_of(&result["content"]));
            patch = vec![self.kept_patch()];
        }
        patch
    }

    /// Adds the results of an answer's calls, and what the person said meanwhile.
    pub fn results(&mut self, results: Vec<Value>, said: &[String]) -> Patch {
        let mut content = results;
        for text in said {
            content.push(json!({ "type": "text", "text": text }));
            self.kept.request(text);
        }
        let mut patch = self.push(json!({ "role": "user", "content": content }));
        if !said.is_empty() {
            patch.push(self.kept_patch());
        }
        patch
    }

    /// Remembers rules and questions.
    pub fn note(
        &mut self,
        rules: Vec<String>,
        questions: Vec<String>,
        answered: &[String],
    ) -> Patch {
        self.kept.note(rules, questions, answered);
        vec![self.kept_patch()]
    }

    /// Lets a summary stand for everything so far.
    pub fn compacted(&mut self, summary: &str) -> Patch {
        let text = self.kept.continuation(summary);
        self.messages = vec![user(&text)];
        self.tokens = self.messages.iter().map(tokens).sum();
        self.bytes = self.messages.iter().map(size).sum();
        self.whole()
    }

    /// Gives calls without a result one that says so: a process may end between the two.
    pub fn repaired(&mut self) -> Patch {
        let open: Vec<Value> = match self.messages.last() {
            Some(last) if last["role"] == "assistant" => last["content"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|block| block["type"] == "tool_use")
                .map(|block| {
                    result(
                        block["id"].as_str().unwrap_or_default(),
                        &INTERRUPTED.into(),
                        true,
                    )
                })
                .collect(),
            _ => Vec::new(),
        };
        match open.is_empty() {
            true => Vec::new(),
            false => self.results(open, &[]),
        }
    }

    fn push(&mut self, message: Value) -> Patch {
        self.tokens = self.tokens.saturating_add(tokens(&message));
        self.bytes = self.bytes.saturating_add(size(&message));
        let patch = vec![append(&message), self.tokens_patch()];
        self.messages.push(message);
        patch
    }

    fn tokens_patch(&self) -> Value {
        json!({ "op": "replace", "path": "/tokens", "value": self.tokens })
    }

    fn open_patch(&self) -> Value {
        // A state of an earlier version has none to replace.
        json!({ "op": "add", "path": "/open", "value": self.open })
    }

    fn kept_patch(&self) -> Value {
        json!({ "op": "replace", "path": "/kept", "value": self.kept.to_json() })
    }
}

fn append(message: &Value) -> Value {
    json!({ "op": "add", "path": "/messages/-", "value": message })
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": [{ "type": "text", "text": text }] })
}

/// The text of a result.
fn text_of(content: &Value) -> String {
    if let Some(text) = content.as_str() {
        return text.to_owned();
    }
    let blocks = content.as_array().into_iter().flatten();
    let texts: Vec<&str> = blocks.filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n")
}

/// A block with the result of a call.
pub fn result(id: &str, content: &Value, is_error: bool) -> Value {
    json!({ "type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error })
}

/// What the next call will read at least: all that this one read and wrote.
fn context_of(usage: &Usage) -> Option<u64> {
    let total = usage.total_input().saturating_add(usage.output);
    (usage.total_input() > 0).then_some(total)
}

/// Tokens of a part of the conversation, estimated.
pub fn tokens(value: &Value) -> u64 {
    match value {
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "image") => {
            IMAGE_TOKENS
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| tokens(value).saturating_add(key.len() as u64 / 8))
            .fold(1, u64::saturating_add),
        Value::Array(items) => items.iter().map(tokens).fold(1, u64::saturating_add),
        Value::String(text) => text.len().div_ceil(BYTES_PER_TOKEN) as u64,
        _ => 1,
    }
}

fn size(value: &Value) -> usize {
    value.to_string().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quintet_agent::proto::patch::Folded;

    fn answer(calls: &[&str], input: u64) -> Answer {
        let mut content = vec![json!({"type": "text", "text": "ok"})];
        content.extend(calls.iter().map(
            |id| json!({"type": "tool_use", "id": id, "name": "exec", "input": {"command": "x"}}),
        ));
        Answer {
            content,
            calls: Vec::new(),
            stop_reason: "end_turn".into(),
            cut_in_work: false,
            usage: Usage {
                input,
                output: 5,
                ..Usage::default()
            },
        }
    }

    #[test]
    fn what_the_person_answered_is_kept_as_it_was_said() {
        let call = |name: &str| Call {
            id: name.to_owned(),
            name: name.to_owned(),
            input: serde_json::Map::new(),
        };
        let mut conversation = Conversation::default();
        conversation.say("Paint it.", &[]);
        let calls = [call("exec"), call("ask_user"), call("ask_user")];
        let results = [
            result("exec", &json!("made"), false),
            result(
                "ask_user",
                &json!([{"type": "text", "text": "Which? PURPLE, never red"}]),
                false,
            ),
            result("ask_user", &json!("nobody answered"), true),
        ];
        let patch = conversation.heard(&calls, &results);
        assert_eq!(patch.len(), 1);
        let requests = &conversation.kept().requests;
        assert_eq!(*requests, ["Paint it.", "Which? PURPLE, never red"]);
        assert!(conversation.heard(&calls[..1], &results[..1]).is_empty());
    }

    #[test]
    fn the_models_own_count_is_taken() {
        let mut conversation = Conversation::default();
        conversation.say("hello there", &[]);
        assert!(conversation.tokens() > 2);
        conversation.answered(&answer(&[], 1000));
        assert_eq!(conversation.tokens(), 1005);
        assert!(conversation.is_large(1200));
        assert!(!conversation.is_large(2000));
    }

    #[test]
    fn calls_without_a_result_get_one_that_says_so() {
        let mut conversation = Conversation::default();
        conversation.say("do it", &[]);
        conversation.answered(&answer(&["a", "b"], 10));
        assert!(!conversation.repaired().is_empty());
        let last = conversation.messages().last().unwrap();
        assert_eq!(last["role"], "user");
        assert_eq!(last["content"][1]["tool_use_id"], "b");
        assert_eq!(last["content"][0]["is_error"], true);
        assert!(conversation.repaired().is_empty());
    }

    #[test]
    fn a_compaction_keeps_every_request_word_for_word() {
        let mut conversation = Conversation::default();
        conversation.say("build the thing; never touch main.c", &[]);
        conversation.answered(&answer(&[], 90_000));
        conversation.note(vec!["no tabs".into()], vec!["which port?".into()], &[]);
        conversation.compacted("half done");
        let [message] = conversation.messages() else {
            panic!("one message");
        };
        let text = message["content"][0]["text"].as_str().unwrap();
        for part in [
            "build the thing; never touch main.c",
            "no tabs",
            "which port?",
            "half done",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(conversation.tokens() < 1000);
    }

    #[test]
    fn a_summary_that_is_recalled_leaves_what_is_kept() {
        let mut conversation = Conversation::default();
        conversation.take("build it", &[]);
        conversation.note(vec!["no tabs".into()], Vec::new(), &[]);
        // As after a compaction was undone: the transcript since is no summary of ours.
        conversation.recall("user: and test it", Kept::default());
        assert_eq!(conversation.kept().requests, ["build it"]);
        let carried = Kept {
            requests: vec!["build it".into(), "and test it".into()],
            rules: vec!["no tabs".into(), "no spaces".into()],
            questions: Vec::new(),
        };
        conversation.recall("we talked", carried);
        assert_eq!(conversation.kept().requests, ["build it", "and test it"]);
        assert_eq!(conversation.kept().rules, ["no tabs", "no spaces"]);
    }

    #[test]
    fn a_message_that_comes_again_is_said_once() {
        let mut conversation = Conversation::default();
        conversation.take("build it", &[]);
        conversation.take("build it", &[]);
        assert_eq!(conversation.messages().len(), 1, "no answer began");

        conversation.answered(&answer(&["t1"], 10));
        conversation.repaired();
        conversation.take("build it", &[]);
        assert_eq!(conversation.messages().len(), 3, "a call was cut");

        conversation.broken_off(&[json!({"type": "text", "text": "I have"})]);
        conversation.take("build it", &[]);
        assert_eq!(conversation.messages().len(), 5, "an answer was cut");
        assert_eq!(conversation.kept().requests, ["build it"]);

        conversation.answered(&answer(&[], 10));
        conversation.done();
        conversation.take("build it", &[]);
        assert_eq!(conversation.messages().len(), 7, "it is asked for anew");
        conversation.take("and test it", &[]);
        assert_eq!(conversation.messages().len(), 8);
        assert_eq!(
            conversation.kept().requests,
            ["build it", "build it", "and test it"]
        );
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(String),
        Done,
        Say(String),
        Answer(u8),
        Results(u8, Vec<String>),
        Note(String),
        Compact,
        Broken(String),
        Repair,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            "[a-c]".prop_map(Step::Take),
            Just(Step::Done),
            ".{0,12}".prop_map(Step::Say),
            (0u8..3).prop_map(Step::Answer),
            (1u8..3, prop::collection::vec("[a-z]{1,4}", 0..2))
                .prop_map(|(n, said)| Step::Results(n, said)),
            "[a-z]{1,4}".prop_map(Step::Note),
            Just(Step::Compact),
            ".{0,5}".prop_map(Step::Broken),
            Just(Step::Repair),
        ]
    }

    proptest! {
        /// The state that the patches make is the conversation, at every step.
        #[test]
        fn the_state_is_the_conversation(steps in prop::collection::vec(step(), 0..20)) {
            let mut conversation = Conversation::default();
            let mut folded = Folded::new(Value::Null);
            folded.apply(&conversation.whole()).unwrap();
            for step in steps {
                let patch = match step {
                    Step::Take(text) => conversation.take(&text, &[]),
                    Step::Done => conversation.done(),
                    Step::Say(text) => conversation.say(&text, &[]),
                    Step::Answer(calls) => {
                        let ids: Vec<String> = (0..calls).map(|n| format!("t{n}")).collect();
                        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                        conversation.answered(&answer(&ids, 10))
                    }
                    Step::Results(count, said) => {
                        let results = (0..count).map(|n| result(&format!("t{n}"), &"r".into(), false));
                        conversation.results(results.collect(), &said)
                    }
                    Step::Note(rule) => conversation.note(vec![rule], Vec::new(), &[]),
                    Step::Compact => conversation.compacted("so far"),
                    Step::Broken(text) => conversation.broken_off(&[json!({"type": "text", "text": text})]),
                    Step::Repair => conversation.repaired(),
                };
                folded.apply(&patch).unwrap();
                let read = Conversation::from_state(folded.value()).unwrap();
                prop_assert_eq!(&read, &conversation);
            }
        }
    }
}
