//! Workers that were online under an earlier daemon.
//!
//! A worker is written with the row that says that it is online.

use quintet_sandbox::hub::WorkerInfo;

use crate::store::{StoreError, WriteTx};

/// So many are kept, those that were online last.
const KEPT: u32 = 1024;

/// Keeps a worker that is online, as it is now.
pub(super) fn keep(tx: &mut WriteTx<'_>, id: &str, info: &str) -> Result<(), StoreError> {
    let now = tx.now();
    tx.sql()
        .prepare_cached("INSERT OR REPLACE INTO workers VALUES (?, ?, ?)")?
        .execute((id, info, now))?;
    Ok(())
}

/// The workers, and no more of them than are kept.
pub(crate) fn load(tx: &mut WriteTx<'_>) -> Result<Vec<WorkerInfo>, StoreError> {
    tx.sql().execute(
        "DELETE FROM workers WHERE id NOT IN (SELECT id FROM workers ORDER BY seen_at DESC LIMIT ?)",
        [KEPT],
    )?;
    let mut statement = tx.sql().prepare("SELECT info FROM workers")?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    let mut known = Vec::new();
    for row in rows {
        // What another version wrote and this one can't read comes back with the worker.
        if let Ok(info) = serde_json::from_str(&row?) {
            known.push(info);
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::Db;

    #[tokio::test]
    async fn a_worker_that_was_online_is_known_to_the_next_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("q.db");
        let db = Db::open(&path).expect("new");
        for (worker, version) in [("a", "1"), ("b", "1"), ("a", "2")] {
            let info = json!({
                "id": worker, "hostname": "h", "platform": "linux", "arch": "x", "version": version,
                "labels": {"k": "v"}, "state": "online", "protocol": "sandd.v2", "running": 3,
            });
            db.write(move |tx| keep(tx, worker, &info.to_string()))
                .await
                .expect("written");
        }
        drop(db);
        let db = Db::open(&path).expect("there");
        let mut known = db.write(load).await.expect("read");
        known.sort_by(|a, b| a.id.cmp(&b.id));
        let seen: Vec<_> = known
            .iter()
            .map(|it| (&*it.id, &*it.version, it.labels.len()))
            .collect();
        assert_eq!(seen, [("a", "2", 1), ("b", "1", 1)]);
    }
}
