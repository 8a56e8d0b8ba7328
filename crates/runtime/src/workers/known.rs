//! Workers that were online under an earlier daemon.
//!
//! The table follows the journal by itself, see `schema_6.sql`.

use quintet_sandbox::hub::WorkerInfo;

use crate::store::{StoreError, WriteTx};

/// So many are kept, those that were online last.
const KEPT: u32 = 1024;

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
    use crate::journal::{Entry, Kind};
    use crate::store::Db;

    #[tokio::test]
    async fn a_worker_that_was_online_is_known_to_the_next_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("q.db");
        let db = Db::open(&path).expect("new");
        for (worker, version) in [("a", "1"), ("b", "1"), ("a", "2")] {
            let data = json!({ "worker": worker, "info": {
                "id": worker, "hostname": "h", "platform": "linux", "arch": "x", "version": version,
                "labels": {"k": "v"}, "state": "online", "protocol": "sandd.v2", "running": 3,
            }});
            db.write(move |tx| tx.append(Entry::new(Kind::WorkerOnline, &data)))
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
