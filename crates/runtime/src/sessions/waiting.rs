//! What a turn waits for a person for: withdrawn, where it is pending, when nobody waits any more.
//!
//! What waits when the daemon stops is left over: it is the session's from then on, until a turn of
//! it asks for the same again or ends without having asked.

use rusqlite::OptionalExtension;
use serde_json::json;

use crate::journal::{Entry, Kind};
use crate::store::{StoreError, WriteTx};

/// A kind of thing that is waited for: a table with `id`, `session`, `turn`, `state` and
/// `left_over`.
pub(super) struct Waiting {
    pub(super) table: &'static str,
    /// Its name in the journal's row.
    pub(super) key: &'static str,
    pub(super) withdrawn: Kind,
}

impl Waiting {
    /// Withdraws one; one that is answered stays so.
    pub(super) fn withdraw_one(&self, tx: &mut WriteTx<'_>, id: u64) -> Result<(), StoreError> {
        let table = self.table;
        let found: Option<(i64, i64, bool)> = tx
            .sql()
            .prepare_cached(&format!(
                "SELECT session, turn, left_over FROM {table} WHERE id = ? AND state = 'pending'"
            ))?
            .query_row([id.cast_signed()], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let Some((session, turn, left_over)) = found else {
            return Ok(());
        };
        tx.sql()
            .prepare_cached(&format!(
                "UPDATE {table} SET state = 'withdrawn' WHERE id = ?"
            ))?
            .execute([id.cast_signed()])?;
        let entry = Entry::new(self.withdrawn.clone(), &json!({ self.key: id }));
        tx.append(match left_over {
            true => entry.in_session(session.cast_unsigned()),
            false => entry.in_turn(session.cast_unsigned(), turn.cast_unsigned()),
        })?;
        Ok(())
    }

    /// Withdraws everything that a turn still waits for.
    pub(super) fn withdraw_all(&self, tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
        for id in self.ids(tx, "turn = ? AND state = 'pending'", turn)? {
            self.withdraw_one(tx, id)?;
        }
        Ok(())
    }

    /// Leaves what a turn waits for to the session: the daemon stops under it.
    pub(super) fn leave(&self, tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
        let table = self.table;
        tx.sql()
            .prepare_cached(&format!(
                "UPDATE {table} SET left_over = 1 WHERE turn = ? AND state = 'pending'"
            ))?
            .execute([turn.cast_signed()])?;
        Ok(())
    }

    /// Withdraws what was left over in a session, and forgets answers that nobody came for.
    pub(super) fn withdraw_left_over(
        &self,
        tx: &mut WriteTx<'_>,
        session: u64,
    ) -> Result<(), StoreError> {
        let table = self.table;
        for id in self.ids(tx, "session = ? AND left_over = 1", session)? {
            self.withdraw_one(tx, id)?;
            tx.sql()
                .prepare_cached(&format!("UPDATE {table} SET left_over = 0 WHERE id = ?"))?
                .execute([id.cast_signed()])?;
        }
        Ok(())
    }

    fn ids(
        &self,
        tx: &mut WriteTx<'_>,
        condition: &str,
        value: u64,
    ) -> Result<Vec<u64>, StoreError> {
        let table = self.table;
        let ids = tx
            .sql()
            .prepare_cached(&format!("SELECT id FROM {table} WHERE {condition}"))?
            .query_map([value.cast_signed()], |row| {
                Ok(row.get::<_, i64>(0)?.cast_unsigned())
            })?
            .collect::<Result<_, _>>()?;
        Ok(ids)
    }
}
