//! The journal against plain SQLite inserts with the same durability: WAL, synchronous FULL.
//!
//! Both write rows of the same table with the same index to a folder of this repository's disk,
//! because that is where a sync costs what it costs.

use std::path::Path;

use anyhow::Context as _;
use quintet_runtime::journal::{Entry, Kind};
use quintet_runtime::store::Db;
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::Case;
use crate::harness::{Contender, Race, rate};

pub(crate) const CASE: Case = Case {
    name: "journal",
    about: "durable events/s against plain SQLite inserts with the same durability",
    races,
};

const TEXT: &str = "a piece of text about as long as a model's usual delta";

/// How events come.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Rows in one append, and in one transaction of the peer.
    batch: u64,
    /// Appends that wait at once; the peer has one connection and no group commit.
    writers: u64,
    /// Appends of each writer.
    appends: u64,
}

const LOADS: [Load; 3] = [
    Load {
        name: "1,000 rows at once",
        batch: 1000,
        writers: 1,
        appends: 60,
    },
    Load {
        name: "one row at a time",
        batch: 1,
        writers: 1,
        appends: 1500,
    },
    Load {
        name: "one row at a time, 64 writers",
        batch: 1,
        writers: 64,
        appends: 100,
    },
];

fn races() -> anyhow::Result<Vec<Race>> {
    Ok(LOADS.map(race).into())
}

fn race(load: Load) -> Race {
    let rows = load.batch * load.writers * load.appends;
    Race {
        variant: load.name.to_owned(),
        unit: "events/s",
        bytes_each: None,
        contenders: vec![
            Contender::new("quintet journal", move || {
                let folder = folder()?;
                let runtime = tokio::runtime::Runtime::new()?;
                let db = Db::open(&folder.path().join("q.db"))?;
                rate(rows, || runtime.block_on(append(db, load)))
            }),
            Contender::new("SQLite inserts", move || {
                let folder = folder()?;
                let connection = plain(&folder.path().join("plain.db"))?;
                rate(rows, || insert(&connection, load))
            }),
        ],
    }
}

/// On the repository's disk: a tmpfs syncs for free.
fn folder() -> anyhow::Result<TempDir> {
    TempDir::new_in(env!("CARGO_MANIFEST_DIR")).context("a folder on disk")
}

/// What both serialise for every row.
fn data() -> serde_json::Value {
    serde_json::json!({ "message_id": "out_1", "text": TEXT })
}

async fn append(db: Db, load: Load) -> anyhow::Result<()> {
    let mut writers = JoinSet::new();
    for _ in 0..load.writers {
        let db = db.clone();
        writers.spawn(async move {
            let data = data();
            let entry = |_| Entry::new(Kind::TextDelta, &data).in_turn(1, 1);
            for _ in 0..load.appends {
                db.append((0..load.batch).map(entry).collect()).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    Ok(())
}

fn plain(path: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
    connection.execute_batch(
        "CREATE TABLE journal (seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, session INTEGER,
             turn INTEGER, kind TEXT NOT NULL, data TEXT NOT NULL) STRICT;
         CREATE INDEX journal_by_session ON journal (session, seq) WHERE session IS NOT NULL;",
    )?;
    Ok(connection)
}

fn insert(connection: &Connection, load: Load) -> anyhow::Result<()> {
    let data = data();
    for _ in 0..load.writers * load.appends {
        let tx = connection.unchecked_transaction()?;
        {
            let mut insert = tx.prepare_cached(
                "INSERT INTO journal (at, session, turn, kind, data) VALUES (?, ?, ?, ?, ?)",
            )?;
            for _ in 0..load.batch {
                insert.execute((
                    1_i64,
                    1_i64,
                    1_i64,
                    "text_delta",
                    serde_json::to_string(&data)?,
                ))?;
            }
        }
        tx.commit()?;
    }
    Ok(())
}
