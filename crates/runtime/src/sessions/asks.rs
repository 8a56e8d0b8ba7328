//! Questions to the person: durable, answered once.
//!
//! One that waits when the daemon stops is left over, as an approval is: see [`super::approvals`].

use std::collections::BTreeMap;

use quintet_agent::proto::message::{AskOutcome, Question};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde_json::json;

use super::waiting::Waiting;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

/// A question that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Its number.
    pub id: u64,
    /// The session that it was asked in.
    pub session: u64,
    /// The turn that waits for it.
    pub turn: u64,
    /// The agent's own name for it.
    pub key: String,
    /// What is asked.
    pub questions: Vec<Question>,
    /// Microseconds since 1970.
    pub at: i64,
    /// The daemon stopped under its turn; it waits until the same is asked again.
    pub left_over: bool,
}

impl Ask {
    fn from_sql(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get::<_, i64>(0)?.cast_unsigned(),
            session: row.get::<_, i64>(1)?.cast_unsigned(),
            turn: row.get::<_, i64>(2)?.cast_unsigned(),
            key: row.get(3)?,
            questions: serde_json::from_str(row.get_ref(4)?.as_str()?).unwrap_or_default(),
            at: row.get(5)?,
            left_over: row.get(6)?,
        })
    }
}

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// It waits for a person.
    Pending(u64),
    /// It was answered after the turn that first asked was cut.
    Answered(AskOutcome),
}

/// Records a question of a running turn.
pub fn open(
    tx: &mut WriteTx<'_>,
    session: u64,
    turn: u64,
    key: &str,
    questions: &[Question],
) -> Result<Opened, StoreError> {
    let text = serde_json::to_string(questions).unwrap_or_default();
    if let Some((id, answer)) = left_over(tx.sql(), session, &text)? {
        tx.sql()
            .prepare_cached("UPDATE asks SET left_over = 0, turn = ?, key = ? WHERE id = ?")?
            .execute((turn.cast_signed(), key, id.cast_signed()))?;
        let Some((content, by)) = answer else {
            return announce(tx, session, turn, id, questions);
        };
        let data = json!({ "ask": id, "answer": content, "by": by });
        tx.append(Entry::new(Kind::AskAnswered, &data).in_turn(session, turn))?;
        return Ok(Opened::Answered(AskOutcome::Answered {
            answers: split_answer(questions, &content).unwrap_or_else(|| vec![vec![content]]),
        }));
    }
    let now = tx.now();
    tx.sql()
        .prepare_cached(
            "INSERT INTO asks (session, turn, key, questions, at, state)
             VALUES (?, ?, ?, ?, ?, 'pending')",
        )?
        .execute((session.cast_signed(), turn.cast_signed(), key, text, now))?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    announce(tx, session, turn, id, questions)
}

fn announce(
    tx: &mut WriteTx<'_>,
    session: u64,
    turn: u64,
    id: u64,
    questions: &[Question],
) -> Result<Opened, StoreError> {
    let data = json!({ "ask": id, "questions": questions });
    tx.append(Entry::new(Kind::AskUser, &data).in_turn(session, turn))?;
    Ok(Opened::Pending(id))
}

/// The answer to a question, and who gave it.
type Given = (String, String);

/// The same questions, left over, and their answer where there is one.
fn left_over(
    connection: &Connection,
    session: u64,
    questions: &str,
) -> Result<Option<(u64, Option<Given>)>, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT id, answer, by FROM asks
             WHERE session = ? AND left_over = 1 AND questions = ? ORDER BY id LIMIT 1",
        )?
        .query_row((session.cast_signed(), questions), |row| {
            let by: Option<String> = row.get(2)?;
            let answer: Option<String> = row.get(1)?;
            Ok((
                row.get::<_, i64>(0)?.cast_unsigned(),
                answer.map(|answer| (answer, by.unwrap_or_default())),
            ))
        })
        .optional()?;
    Ok(found)
}

/// Every question that waits, or those of one session; oldest first.
pub fn pending(connection: &Connection, session: Option<u64>) -> Result<Vec<Ask>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT id, session, turn, key, questions, at, left_over FROM asks
         WHERE state = 'pending' AND (?1 IS NULL OR session = ?1) ORDER BY id",
    )?;
    let rows = statement.query_map([session.map(u64::cast_signed)], Ask::from_sql)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Answers a question of a session, the oldest where none is named. The first answer wins.
pub fn answer(
    tx: &mut WriteTx<'_>,
    session: u64,
    named: Option<u64>,
    content: &str,
    by: &str,
) -> Result<(Ask, AskOutcome), Refusal> {
    let Some(ask) = pending(tx.sql(), Some(session))?
        .into_iter()
        .find(|ask| named.is_none_or(|id| ask.id == id))
    else {
        return Err(nothing_pending(tx.sql(), session)?);
    };
    if content.trim().is_empty() {
        return Err(Refusal::Bad(format!(
            "the answer is empty; {}",
            wanted(&ask.questions)
        )));
    }
    let Some(answers) = split_answer(&ask.questions, content) else {
        return Err(Refusal::Bad(format!(
            "that is no answer to all {} questions; {}",
            ask.questions.len(),
            wanted(&ask.questions)
        )));
    };
    let outcome = AskOutcome::Answered { answers };
    tx.sql()
        .prepare_cached("UPDATE asks SET state = 'answered', answer = ?, by = ? WHERE id = ?")?
        .execute((content, by, ask.id.cast_signed()))?;
    let data = json!({ "ask": ask.id, "answer": content, "by": by });
    let entry = Entry::new(Kind::AskAnswered, &data);
    tx.append(match ask.left_over {
        true => entry.in_session(ask.session),
        false => entry.in_turn(ask.session, ask.turn),
    })?;
    Ok((ask, outcome))
}

const WAITING: Waiting = Waiting {
    table: "asks",
    key: "ask",
    withdrawn: Kind::AskWithdrawn,
};

/// Withdraws one that nobody waits for any more; one that is answered stays so.
pub fn withdraw_one(tx: &mut WriteTx<'_>, id: u64) -> Result<(), StoreError> {
    WAITING.withdraw_one(tx, id)
}

/// Withdraws what a turn still asks, because it is over.
pub fn withdraw(tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
    WAITING.withdraw_all(tx, turn)
}

/// Leaves what a turn asks to the session: the daemon stops under it.
pub fn leave(tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
    WAITING.leave(tx, turn)
}

/// Withdraws what was left over in a session, and forgets answers that nobody came for.
pub fn withdraw_left_over(tx: &mut WriteTx<'_>, session: u64) -> Result<(), StoreError> {
    WAITING.withdraw_left_over(tx, session)
}

fn nothing_pending(connection: &Connection, session: u64) -> Result<Refusal, StoreError> {
    let last: Option<Option<String>> = connection
        .prepare_cached(
            "SELECT by FROM asks WHERE session = ? AND state = 'answered' ORDER BY id DESC LIMIT 1",
        )?
        .query_row([session.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(Refusal::NotFound(match last.flatten() {
        Some(by) => format!(
            "no question is pending in session {session}; the last one was answered by {by}; `quintet asks` lists those that wait"
        ),
        None => format!(
            "no question is pending in session {session}; `quintet asks` lists those that wait"
        ),
    }))
}

/// What a person has to say.
fn wanted(questions: &[Question]) -> String {
    let asked: Vec<&str> = questions.iter().map(|it| it.question.as_str()).collect();
    match asked.as_slice() {
        [] => "say something".to_owned(),
        [one] => format!("say what to answer to: {one}"),
        several => format!(
            "answer each on a line of its own, in this order: {}",
            several.join(" / ")
        ),
    }
}

/// One answer for each question: a JSON list of lists or of texts as it is, or an object with the
/// questions as its keys; else a line for each question, and for the last one all that is left.
/// `None` when it is not enough.
fn split_answer(questions: &[Question], content: &str) -> Option<Vec<Vec<String>>> {
    if let Ok(lists) = serde_json::from_str::<Vec<Vec<String>>>(content) {
        return Some(lists);
    }
    if let Ok(texts) = serde_json::from_str::<Vec<String>>(content) {
        return Some(match questions {
            [_] => vec![texts],
            _ => texts.into_iter().map(|text| vec![text]).collect(),
        });
    }
    let last = match questions {
        [] | [_] => return Some(vec![vec![content.to_owned()]]),
        several => several.len() - 1,
    };
    // As the original protocol's client answers.
    if let Ok(by_question) = serde_json::from_str::<BTreeMap<String, String>>(content) {
        let answer = |it: &Question| by_question.get(&it.question).cloned();
        let answers = questions.iter().map(|it| Some(vec![answer(it)?]));
        return answers.collect();
    }
    let mut rest = content.trim();
    let mut answers = Vec::with_capacity(questions.len());
    for _ in 0..last {
        let (line, after) = rest.split_once('\n')?;
        answers.push(vec![line.trim().to_owned()]);
        rest = after;
    }
    answers.push(vec![rest.trim().to_owned()]);
    Some(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_split_over_its_questions() {
        let questions = |count| vec![Question::default(); count];
        let split = |count, text| split_answer(&questions(count), text).expect("enough");
        assert_eq!(split(1, "two\nlines"), [["two\nlines"]]);
        assert_eq!(split(1, r#"["a","b"]"#), [["a", "b"]]);
        assert_eq!(split(2, "a\n b "), [["a"], ["b"]]);
        assert_eq!(split(2, r#"["a","b"]"#), [["a"], ["b"]]);
        assert_eq!(split(2, "a\nb\n  c\n"), [["a"], ["b\n  c"]]);
        assert_eq!(split(3, "a\n\nc"), [["a"], [""], ["c"]]);
        for short in ["a", "a\n", "\na"] {
            assert_eq!(split_answer(&questions(2), short), None, "{short:?}");
        }
        assert_eq!(
            split(2, r#"[["a","c"],["b"]]"#),
            [vec!["a", "c"], vec!["b"]]
        );
    }
}
