//! Worker tokens: made, listed, taken back, and checked at every registration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use quintet_sandbox::hub::{AuthError, PeerInfo, WorkerAuth, auth};
use quintet_sandbox::proto::{Fingerprint, Token, TokenHash};
use rusqlite::Connection;
use serde_json::json;

use super::LOCAL;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{Db, StoreError, WriteTx};

/// One row, without what opens anything.
pub(crate) struct TokenRow {
    pub(crate) id: u64,
    pub(crate) worker: String,
    /// Microseconds since 1970.
    pub(crate) created_at: i64,
    pub(crate) revoked_at: Option<i64>,
}

/// Makes a token with random content.
pub(crate) fn mint(fingerprint: Option<Fingerprint>) -> Result<Token, Refusal> {
    let secret = quintet_sandbox::tls::random_secret()
        .map_err(|error| Refusal::Internal(error.to_string()))?;
    Ok(Token::mint(secret, fingerprint))
}

/// Stores a token for a worker; returns its number.
pub(crate) fn insert(tx: &mut WriteTx<'_>, worker: &str, token: &Token) -> Result<u64, Refusal> {
    tx.sql().execute(
        "INSERT INTO worker_tokens (worker, hash, created_at) VALUES (?, ?, ?)",
        (worker, token.hash(worker).as_bytes().as_slice(), tx.now()),
    )?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    let data = json!({ "id": id, "worker": worker });
    tx.append(Entry::new(Kind::TokenCreated, &data))?;
    Ok(id)
}

/// Takes a token back. Returns the journal number and whose it was.
pub(crate) fn revoke(tx: &mut WriteTx<'_>, id: u64) -> Result<(u64, String), Refusal> {
    let found = list(tx.sql())?.into_iter().find(|row| row.id == id);
    let Some(row) = found else {
        return Err(Refusal::NotFound(format!(
            "token {id} not found; `quintet token ls` lists them"
        )));
    };
    if row.revoked_at.is_some() {
        return Err(Refusal::Conflict(format!(
            "token {id} was revoked before; `quintet token ls` lists those that work"
        )));
    }
    tx.sql().execute(
        "UPDATE worker_tokens SET revoked_at = ? WHERE id = ?",
        (tx.now(), id.cast_signed()),
    )?;
    let data = json!({ "id": id, "worker": row.worker });
    let seq = tx.append(Entry::new(Kind::TokenRevoked, &data))?;
    Ok((seq, row.worker))
}

/// All tokens, oldest first.
pub(crate) fn list(connection: &Connection) -> Result<Vec<TokenRow>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT id, worker, created_at, revoked_at FROM worker_tokens ORDER BY id",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(TokenRow {
            id: row.get::<_, i64>(0)?.cast_unsigned(),
            worker: row.get(1)?,
            created_at: row.get(2)?,
            revoked_at: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn valid(connection: &Connection, worker: &str) -> Result<Vec<TokenHash>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT hash FROM worker_tokens WHERE worker = ? AND revoked_at IS NULL")?;
    let hashes = statement.query_map([worker], |row| row.get::<_, [u8; 32]>(0))?;
    Ok(hashes
        .map(|hash| hash.map(TokenHash::from_bytes))
        .collect::<Result<_, _>>()?)
}

/// Lets workers in by the table, and the built-in one by what only this process knows.
pub(crate) struct TokenAuth {
    db: Db,
    builtin: TokenHash,
    /// There is a built-in worker.
    has_local: Arc<AtomicBool>,
}

impl TokenAuth {
    pub(crate) fn new(db: Db, builtin: TokenHash, has_local: Arc<AtomicBool>) -> Self {
        Self {
            db,
            builtin,
            has_local,
        }
    }
}

#[async_trait]
impl WorkerAuth for TokenAuth {
    async fn authorize(&self, peer: &PeerInfo, daemon_id: &str) -> Result<(), AuthError> {
        // The newer of two with one name wins, so that another `local` would end the built-in one,
        // and with it what sessions run.
        if daemon_id == LOCAL && self.has_local.load(Ordering::Relaxed) {
            let builtin = PeerInfo {
                same_user: false,
                ..peer.clone()
            };
            return auth::check(&builtin, daemon_id, [self.builtin]).map_err(|_| {
                AuthError::Reserved {
                    daemon_id: daemon_id.to_owned(),
                }
            });
        }
        let worker = daemon_id.to_owned();
        let mut hashes = self
            .db
            .read(move |connection| valid(connection, &worker))
            .await
            .map_err(|error| AuthError::Unavailable(error.to_string()))?;
        if daemon_id == LOCAL {
            hashes.push(self.builtin);
        }
        auth::check(peer, daemon_id, hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(token: &Token) -> PeerInfo {
        PeerInfo {
            address: None,
            same_user: false,
            token: Some(token.expose()),
        }
    }

    #[tokio::test]
    async fn a_token_opens_its_worker_until_it_is_taken_back_and_is_not_in_the_database() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("q.db");
        let db = Db::open(&path).expect("new");
        let builtin = mint(None).expect("random");
        let auth = TokenAuth::new(db.clone(), builtin.hash(LOCAL), Arc::default());
        let token = mint(None).expect("random");
        let stored = token.clone();
        let id = db
            .write(move |tx| insert(tx, "w", &stored))
            .await
            .expect("durable");
        assert_eq!(auth.authorize(&remote(&token), "w").await, Ok(()));
        assert!(auth.authorize(&remote(&token), "other").await.is_err());
        assert!(auth.authorize(&remote(&token), LOCAL).await.is_err());
        assert_eq!(auth.authorize(&remote(&builtin), LOCAL).await, Ok(()));

        let (_, worker) = db.write(move |tx| revoke(tx, id)).await.expect("durable");
        assert_eq!(worker, "w");
        assert!(auth.authorize(&remote(&token), "w").await.is_err());
        let again = db.write(move |tx| revoke(tx, id)).await;
        assert!(matches!(again, Err(Refusal::Conflict(_))));
        let unknown = db.write(move |tx| revoke(tx, id + 1)).await;
        assert!(matches!(unknown, Err(Refusal::NotFound(_))));

        let secret = token.expose().replace("qw1.", "");
        for file in std::fs::read_dir(folder.path()).expect("readable") {
            let bytes = std::fs::read(file.expect("there").path()).expect("readable");
            assert!(
                !bytes
                    .windows(secret.len())
                    .any(|part| part == secret.as_bytes())
            );
        }
    }

    #[tokio::test]
    async fn the_built_in_worker_s_name_is_its_alone_while_there_is_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let builtin = mint(None).expect("random");
        let has_local = Arc::new(AtomicBool::new(false));
        let auth = TokenAuth::new(db.clone(), builtin.hash(LOCAL), has_local.clone());
        let token = mint(None).expect("random");
        let stored = token.clone();
        db.write(move |tx| insert(tx, LOCAL, &stored))
            .await
            .expect("durable");
        let same_user = PeerInfo {
            address: None,
            same_user: true,
            token: None,
        };
        assert_eq!(auth.authorize(&same_user, LOCAL).await, Ok(()));
        assert_eq!(auth.authorize(&remote(&token), LOCAL).await, Ok(()));

        has_local.store(true, Ordering::Relaxed);
        let reserved = Err(AuthError::Reserved {
            daemon_id: LOCAL.to_owned(),
        });
        assert_eq!(auth.authorize(&same_user, LOCAL).await, reserved);
        assert_eq!(auth.authorize(&remote(&token), LOCAL).await, reserved);
        assert_eq!(auth.authorize(&remote(&builtin), LOCAL).await, Ok(()));
        assert_eq!(auth.authorize(&same_user, "box").await, Ok(()));
    }
}
