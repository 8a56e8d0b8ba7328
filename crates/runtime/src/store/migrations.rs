//! The database's format, one step a version. A step that has shipped is never edited.

use rusqlite::Connection;

use super::StoreError;

const STEPS: &[&str] = &[
    include_str!("schema_1.sql"),
    include_str!("../cron/schema.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("../channel/schema.sql"),
    include_str!("schema_6.sql"),
    include_str!("../channel/schema_asks.sql"),
    include_str!("schema_8.sql"),
    include_str!("schema_9.sql"),
    include_str!("schema_10.sql"),
    include_str!("schema_11.sql"),
    include_str!("schema_12.sql"),
];

/// Brings the database to the newest format.
pub(super) fn run(connection: &mut Connection) -> Result<(), StoreError> {
    let found: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = STEPS.len() as u32;
    if found > known {
        return Err(StoreError::TooNew { found, known });
    }
    for (version, step) in (1..).zip(STEPS).skip(found as usize) {
        let tx = connection.transaction()?;
        tx.execute_batch(step)?;
        tx.pragma_update(None, "user_version", version)?;
        tx.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_format_is_refused_and_left_alone() {
        let mut connection = Connection::open_in_memory().expect("memory");
        connection
            .pragma_update(None, "user_version", 99)
            .expect("writable");
        assert!(matches!(
            run(&mut connection),
            Err(StoreError::TooNew { found: 99, .. })
        ));
    }
}
