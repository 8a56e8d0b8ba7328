//! A question or an approval as choices on the keyboard.

use crossterm::event::{KeyCode, KeyEvent};
use quintet_control::wire::ApprovalScope;

use super::event::{Approval, Ask, Question};

/// What waits for the person.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prompt {
    pub(crate) subject: Subject,
    /// The choice that Enter takes.
    pub(crate) cursor: usize,
    /// The answer is being typed.
    pub(crate) own_words: bool,
    /// The answer is on its way; the journal will say that it is over.
    pub(crate) answered: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Subject {
    Ask(AskState),
    Approval(Approval),
}

/// Several questions are answered one after the other and sent together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AskState {
    pub(crate) ask: Ask,
    answers: Vec<Vec<String>>,
    /// The options chosen so far where several may be.
    pub(crate) ticked: Vec<bool>,
}

/// One line to choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) description: String,
    pub(crate) ticked: Option<bool>,
    pub(crate) key: Option<char>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Reply { ask: u64, text: String },
    Approve { approval: u64, scope: ApprovalScope },
    Deny { approval: u64, reason: String },
}

const OWN_WORDS: &str = "Answer in your own words";

impl AskState {
    pub(crate) fn question(&self) -> Option<&Question> {
        self.ask.questions.get(self.answers.len())
    }
}

impl Prompt {
    pub(crate) fn ask(ask: Ask) -> Self {
        let mut prompt = Self {
            subject: Subject::Ask(AskState {
                ask,
                answers: Vec::new(),
                ticked: Vec::new(),
            }),
            cursor: 0,
            own_words: false,
            answered: false,
        };
        prompt.begin_question();
        prompt
    }

    pub(crate) fn approval(approval: Approval) -> Self {
        Self {
            subject: Subject::Approval(approval),
            cursor: 0,
            own_words: false,
            answered: false,
        }
    }

    /// Begins again, after the answer could not be given.
    pub(crate) fn reopen(&mut self) {
        self.answered = false;
        if let Subject::Ask(state) = &mut self.subject {
            state.answers.clear();
            self.begin_question();
        }
    }

    pub(crate) fn is_ask(&self, id: u64) -> bool {
        matches!(&self.subject, Subject::Ask(state) if state.ask.id == id)
    }

    pub(crate) fn is_approval(&self, id: u64) -> bool {
        matches!(&self.subject, Subject::Approval(approval) if approval.id == id)
    }

    /// What can be chosen now.
    pub(crate) fn lines(&self) -> Vec<Line> {
        match &self.subject {
            Subject::Ask(state) => {
                let Some(question) = state.question() else {
                    return Vec::new();
                };
                let options = question
                    .options
                    .iter()
                    .enumerate()
                    .map(|(index, option)| Line {
                        label: option.label.clone(),
                        description: option.description.clone(),
                        ticked: question
                            .multi_select
                            .then(|| state.ticked.get(index).copied().unwrap_or(false)),
                        key: char::from_digit(index as u32 + 1, 10),
                    });
                options
                    .chain(std::iter::once(Line {
                        label: OWN_WORDS.to_owned(),
                        description: String::new(),
                        ticked: None,
                        key: None,
                    }))
                    .collect()
            }
            Subject::Approval(approval) => approval_choices(approval)
                .map(|choice| Line {
                    label: choice.label().to_owned(),
                    description: String::new(),
                    ticked: None,
                    key: Some(choice.key()),
                })
                .collect(),
        }
    }

    /// Takes a key; an answer comes back when it was the last one needed.
    pub(crate) fn key(&mut self, key: KeyEvent) -> Option<Answer> {
        let lines = self.lines();
        match key.code {
            KeyCode::Up => self.cursor = self.cursor.checked_sub(1).unwrap_or(lines.len() - 1),
            KeyCode::Down | KeyCode::Tab => self.cursor = (self.cursor + 1) % lines.len(),
            KeyCode::Enter => return self.choose(self.cursor),
            KeyCode::Char(' ') if self.tick(self.cursor) => {}
            KeyCode::Char(' ') => return self.choose(self.cursor),
            KeyCode::Char(char) => {
                let picked = lines
                    .iter()
                    .position(|line| line.key == Some(char.to_ascii_lowercase()))?;
                self.cursor = picked;
                if !self.tick(picked) {
                    return self.choose(picked);
                }
            }
            _ => {}
        }
        None
    }

    /// Takes what was typed as the answer.
    pub(crate) fn typed(&mut self, text: String) -> Option<Answer> {
        self.own_words = false;
        match &self.subject {
            Subject::Ask(_) => self.answer(vec![text]),
            Subject::Approval(approval) => Some(Answer::Deny {
                approval: approval.id,
                reason: text,
            }),
        }
    }

    /// Whether more than one option may be chosen.
    pub(crate) fn takes_several(&self) -> bool {
        match &self.subject {
            Subject::Ask(state) => state.question().is_some_and(|asked| asked.multi_select),
            Subject::Approval(_) => false,
        }
    }

    /// Ticks or unticks an option where several may be chosen.
    fn tick(&mut self, index: usize) -> bool {
        let several = self.takes_several();
        let Subject::Ask(state) = &mut self.subject else {
            return false;
        };
        match state.ticked.get_mut(index).filter(|_| several) {
            Some(ticked) => {
                *ticked = !*ticked;
                true
            }
            None => false,
        }
    }

    fn choose(&mut self, index: usize) -> Option<Answer> {
        match &self.subject {
            Subject::Approval(approval) => {
                let choice = approval_choices(approval).nth(index)?;
                let approval = approval.id;
                match choice {
                    ApprovalChoice::Yes(scope) => Some(Answer::Approve { approval, scope }),
                    ApprovalChoice::No => Some(Answer::Deny {
                        approval,
                        reason: String::new(),
                    }),
                    ApprovalChoice::NoBecause => {
                        self.own_words = true;
                        None
                    }
                }
            }
            Subject::Ask(state) => {
                let question = state.question()?;
                let Some(option) = question.options.get(index) else {
                    self.own_words = true;
                    return None;
                };
                let ticked: Vec<String> = question
                    .options
                    .iter()
                    .zip(&state.ticked)
                    .filter(|(_, ticked)| **ticked)
                    .map(|(option, _)| option.label.clone())
                    .collect();
                let answer = if ticked.is_empty() {
                    vec![option.label.clone()]
                } else {
                    ticked
                };
                self.answer(answer)
            }
        }
    }

    /// Notes the answer to one question; after the last, all of them are one reply.
    fn answer(&mut self, chosen: Vec<String>) -> Option<Answer> {
        let Subject::Ask(state) = &mut self.subject else {
            return None;
        };
        state.answers.push(chosen);
        if state.question().is_some() {
            self.begin_question();
            return None;
        }
        let text = match state.answers.as_slice() {
            [only] if only.len() == 1 => only[0].clone(),
            // A list for each question, so that no answer can be taken for two.
            lists => serde_json::to_string(lists).unwrap_or_default(),
        };
        Some(Answer::Reply {
            ask: state.ask.id,
            text,
        })
    }

    fn begin_question(&mut self) {
        let Subject::Ask(state) = &mut self.subject else {
            return;
        };
        let options = state
            .question()
            .map_or(0, |question| question.options.len());
        state.ticked = vec![false; options];
        self.cursor = 0;
        self.own_words = options == 0;
    }
}

/// What can be said to a request for leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApprovalChoice {
    Yes(ApprovalScope),
    No,
    NoBecause,
}

impl ApprovalChoice {
    fn key(self) -> char {
        match self {
            Self::Yes(ApprovalScope::Once) => 'y',
            Self::Yes(ApprovalScope::Session) => 's',
            Self::Yes(ApprovalScope::Rule) => 'a',
            Self::No => 'n',
            Self::NoBecause => 'w',
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Yes(ApprovalScope::Once) => "Yes, this once",
            Self::Yes(ApprovalScope::Session) => "Yes, for the rest of this session",
            Self::Yes(ApprovalScope::Rule) => "Always: write this rule",
            Self::No => "No",
            Self::NoBecause => "No, and say why",
        }
    }
}

/// "Always" is offered only where there is a rule to show.
fn approval_choices(approval: &Approval) -> impl Iterator<Item = ApprovalChoice> {
    let always = !approval.rule.is_empty();
    [
        ApprovalChoice::Yes(ApprovalScope::Once),
        ApprovalChoice::Yes(ApprovalScope::Session),
        ApprovalChoice::Yes(ApprovalScope::Rule),
        ApprovalChoice::No,
        ApprovalChoice::NoBecause,
    ]
    .into_iter()
    .filter(move |choice| always || *choice != ApprovalChoice::Yes(ApprovalScope::Rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::event::Choice;
    use crossterm::event::KeyModifiers;

    fn question(header: &str, options: &[&str], multi_select: bool) -> Question {
        Question {
            question: format!("Which {header}?"),
            header: header.into(),
            options: options
                .iter()
                .map(|label| Choice {
                    label: (*label).into(),
                    description: String::new(),
                })
                .collect(),
            multi_select,
        }
    }

    fn press(prompt: &mut Prompt, codes: impl IntoIterator<Item = KeyCode>) -> Option<Answer> {
        codes
            .into_iter()
            .find_map(|code| prompt.key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn one_question_is_answered_with_the_label() {
        let ask = Ask {
            id: 4,
            questions: vec![question("colour", &["red", "blue"], false)],
        };
        let reply = |text: &str| {
            Some(Answer::Reply {
                ask: 4,
                text: text.into(),
            })
        };
        assert_eq!(
            press(
                &mut Prompt::ask(ask.clone()),
                [KeyCode::Down, KeyCode::Enter]
            ),
            reply("blue")
        );
        assert_eq!(
            press(&mut Prompt::ask(ask.clone()), [KeyCode::Char('1')]),
            reply("red")
        );
        let mut own = Prompt::ask(ask);
        assert_eq!(press(&mut own, [KeyCode::Up, KeyCode::Enter]), None);
        assert!(own.own_words);
        assert_eq!(own.typed("green".into()), reply("green"));
    }

    #[test]
    fn several_questions_make_one_reply() {
        let mut prompt = Prompt::ask(Ask {
            id: 5,
            questions: vec![
                question("colours", &["red", "blue", "green"], true),
                question("name", &[], false),
            ],
        });
        assert_eq!(
            press(
                &mut prompt,
                [KeyCode::Char('1'), KeyCode::Char('3'), KeyCode::Enter]
            ),
            None
        );
        assert!(
            prompt.own_words,
            "a question without options is answered in own words"
        );
        assert_eq!(
            prompt.typed("Ada".into()),
            Some(Answer::Reply {
                ask: 5,
                text: r#"[["red","green"],["Ada"]]"#.into()
            })
        );
    }

    #[test]
    fn approvals_have_a_key_each() {
        let approval = Approval {
            id: 9,
            action: "exec".into(),
            command: "rm -r build".into(),
            cwd: "/w".into(),
            worker: "local".into(),
            reason: String::new(),
            rule: "{ command = \"rm -r build\", action = \"allow\" }".into(),
            rule_place: "at the end of [policy] rules".into(),
        };
        let answered = |key| {
            press(
                &mut Prompt::approval(approval.clone()),
                [KeyCode::Char(key)],
            )
        };
        let approve = |scope| Some(Answer::Approve { approval: 9, scope });
        assert_eq!(answered('y'), approve(ApprovalScope::Once));
        assert_eq!(answered('s'), approve(ApprovalScope::Session));
        assert_eq!(answered('a'), approve(ApprovalScope::Rule));
        let mut no_rule = Prompt::approval(Approval {
            rule: String::new(),
            ..approval.clone()
        });
        assert_eq!(
            press(&mut no_rule, [KeyCode::Char('a')]),
            None,
            "no rule, no always"
        );
        assert_eq!(
            press(&mut no_rule, [KeyCode::Char('n')]),
            answered('n'),
            "the others keep their keys"
        );
        assert_eq!(
            answered('n'),
            Some(Answer::Deny {
                approval: 9,
                reason: String::new()
            })
        );
        let mut with_reason = Prompt::approval(approval.clone());
        assert_eq!(press(&mut with_reason, [KeyCode::Char('w')]), None);
        assert_eq!(
            with_reason.typed("not now".into()),
            Some(Answer::Deny {
                approval: 9,
                reason: "not now".into()
            })
        );
    }
}
