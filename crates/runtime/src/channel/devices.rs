//! Paired devices, as they are kept.

use quintet_channel::proto::device::{Device, DeviceId, Seconds, Seen, TokenHash};
use quintet_channel::proto::keys::{KeyPair, PublicKey, Secret32};
use quintet_channel::proto::v1::E2eKey;
use quintet_channel::server::{Credential, NewDevice};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde_json::json;

use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

/// How long a message's key is remembered.
const SENDS_KEPT: i64 = 7 * 24 * 3600;

/// The daemon's own keys.
pub(crate) struct Identity {
    pub(crate) keys: KeyPair,
    /// For upgrades of the original protocol from other machines.
    pub(crate) token: String,
}

impl Identity {
    /// The keys of this home, made of `fresh` random bytes when there are none yet.
    pub(crate) fn load_or_make(
        tx: &WriteTx<'_>,
        fresh: &Secret32,
        token: &str,
    ) -> Result<Self, StoreError> {
        tx.sql().execute(
            "INSERT OR IGNORE INTO channel_identity (one, secret, token) VALUES (1, ?, ?)",
            (fresh.expose().as_slice(), token),
        )?;
        let (secret, token): ([u8; 32], String) =
            tx.sql()
                .query_row("SELECT secret, token FROM channel_identity", [], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?;
        Ok(Self {
            keys: KeyPair::new(&Secret32::new(secret)),
            token,
        })
    }
}

/// A device as it is listed.
pub(crate) struct Listed {
    pub(crate) device: Device,
    pub(crate) first_seen: Seconds,
    pub(crate) check_words: Vec<String>,
}

fn device(row: &SqlRow<'_>) -> rusqlite::Result<Device> {
    Ok(Device {
        id: DeviceId(row.get(0)?),
        name: row.get(1)?,
        last_seen: row.get::<_, i64>(2)?.cast_unsigned(),
        expires_at: row.get::<_, i64>(3)?.cast_unsigned(),
    })
}

/// A v1 device that is not revoked.
pub(crate) fn by_token(
    connection: &Connection,
    token: &TokenHash,
) -> Result<Option<(Device, Option<E2eKey>)>, StoreError> {
    Ok(connection
        .prepare_cached(
            "SELECT id, name, last_seen, expires_at, e2e_key FROM devices
             WHERE token_hash = ? AND revoked_at IS NULL",
        )?
        .query_row([token.0.as_slice()], |row| {
            let key: Option<[u8; 32]> = row.get(4)?;
            Ok((device(row)?, key.map(E2eKey::from_stored)))
        })
        .optional()?)
}

/// A v2 device that is not revoked.
pub(crate) fn by_key(
    connection: &Connection,
    key: &PublicKey,
) -> Result<Option<Device>, StoreError> {
    Ok(connection
        .prepare_cached(
            "SELECT id, name, last_seen, expires_at FROM devices
             WHERE static_key = ? AND revoked_at IS NULL",
        )?
        .query_row([key.0.as_slice()], device)
        .optional()?)
}

/// Keeps a device that was paired.
pub(crate) fn add(tx: &mut WriteTx<'_>, new: &NewDevice) -> Result<(), StoreError> {
    let device = &new.device;
    let (token, key, fixed, words) = match &new.credential {
        Credential::V1 { token, key } => (
            Some(token.0),
            key.as_ref().map(|key| *key.expose()),
            None,
            String::new(),
        ),
        Credential::V2 { key, check_words } => (None, None, Some(key.0), check_words.join(" ")),
    };
    tx.sql().execute(
        "INSERT INTO devices (id, name, first_seen, last_seen, expires_at, token_hash, e2e_key,
                              static_key, check_words)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            device.id.0.as_slice(),
            &device.name,
            device.last_seen.cast_signed(),
            device.last_seen.cast_signed(),
            device.expires_at.cast_signed(),
            token.as_ref().map(<[u8; 32]>::as_slice),
            key.as_ref().map(<[u8; 32]>::as_slice),
            fixed.as_ref().map(<[u8; 32]>::as_slice),
            words,
        ),
    )?;
    let data = json!({ "device": device.id.to_string(), "name": device.name });
    tx.append(Entry::new(Kind::DevicePaired, &data))?;
    Ok(())
}

/// Notes a use.
pub(crate) fn seen(tx: &WriteTx<'_>, id: DeviceId, seen: Seen) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached("UPDATE devices SET last_seen = ?, expires_at = ? WHERE id = ?")?
        .execute((
            seen.at.cast_signed(),
            seen.expires_at.cast_signed(),
            id.0.as_slice(),
        ))?;
    Ok(())
}

/// Devices that are paired, the one that was used last first.
pub(crate) fn list(connection: &Connection, now: Seconds) -> Result<Vec<Listed>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT id, name, last_seen, expires_at, first_seen, check_words FROM devices
         WHERE revoked_at IS NULL AND expires_at > ? ORDER BY last_seen DESC, id",
    )?;
    let rows = statement.query_map([now.cast_signed()], |row| {
        let words: String = row.get(5)?;
        Ok(Listed {
            device: device(row)?,
            first_seen: row.get::<_, i64>(4)?.cast_unsigned(),
            check_words: words.split_whitespace().map(str::to_owned).collect(),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The words of one device.
pub(crate) fn check_words(
    connection: &Connection,
    id: DeviceId,
) -> Result<Vec<String>, StoreError> {
    let words: Option<String> = connection
        .prepare_cached("SELECT check_words FROM devices WHERE id = ?")?
        .query_row([id.0.as_slice()], |row| row.get(0))
        .optional()?;
    let words = words.unwrap_or_default();
    Ok(words.split_whitespace().map(str::to_owned).collect())
}

/// The device that a person names: by its id, or by a beginning of it that is only one's.
fn find(connection: &Connection, named: &str) -> Result<(DeviceId, String), Refusal> {
    let mut statement =
        connection.prepare_cached("SELECT id, name FROM devices WHERE revoked_at IS NULL")?;
    let rows = statement.query_map([], |row| {
        Ok((DeviceId(row.get(0)?), row.get::<_, String>(1)?))
    })?;
    let mut found = None;
    for row in rows {
        let (id, name) = row?;
        let text = id.to_string();
        if text == named {
            return Ok((id, name));
        }
        if named.len() >= 4 && text.starts_with(named) {
            if found.is_some() {
                return Err(Refusal::Bad(format!(
                    "several devices begin with {named:?}; give more of its id, `quintet devices` lists them"
                )));
            }
            found = Some((id, name));
        }
    }
    found.ok_or_else(|| {
        Refusal::NotFound(format!(
            "device {named:?} not found; `quintet devices` lists them"
        ))
    })
}

/// Ends a device's pairing. What it may have opened has to be closed as well.
pub(crate) fn revoke(
    tx: &mut WriteTx<'_>,
    named: &str,
    by: &str,
) -> Result<(DeviceId, u64), Refusal> {
    let (id, name) = find(tx.sql(), named)?;
    let now = tx.now() / 1_000_000;
    // The keys are of no more use, and a copy of the database should not hold them.
    tx.sql().execute(
        "UPDATE devices SET revoked_at = ?, token_hash = NULL, e2e_key = NULL, static_key = NULL
         WHERE id = ?",
        (now, id.0.as_slice()),
    )?;
    for table in [
        "device_nonces",
        "device_sessions",
        "device_turns",
        "device_asks",
        "device_sends",
    ] {
        tx.sql().execute(
            &format!("DELETE FROM {table} WHERE device = ?"),
            [id.0.as_slice()],
        )?;
    }
    let data = json!({ "device": id.to_string(), "name": name, "by": by });
    let seq = tx.append(Entry::new(Kind::DeviceRevoked, &data))?;
    Ok((id, seq))
}

/// Gives a device another name.
pub(crate) fn rename(tx: &WriteTx<'_>, named: &str, name: &str) -> Result<(), Refusal> {
    let (id, _) = find(tx.sql(), named)?;
    tx.sql().execute(
        "UPDATE devices SET name = ? WHERE id = ?",
        (name, id.0.as_slice()),
    )?;
    Ok(())
}

/// Remembers a nonce; false when the device used it before.
pub(crate) fn take_nonce(
    tx: &WriteTx<'_>,
    id: DeviceId,
    nonce: &[u8; 12],
) -> Result<bool, StoreError> {
    let added = tx
        .sql()
        .prepare_cached("INSERT OR IGNORE INTO device_nonces (device, nonce) VALUES (?, ?)")?
        .execute((id.0.as_slice(), nonce.as_slice()))?;
    Ok(added == 1)
}

/// The session that a device calls by a name.
pub(crate) fn session_named(
    connection: &Connection,
    id: DeviceId,
    name: &str,
) -> Result<Option<u64>, StoreError> {
    Ok(connection
        .prepare_cached("SELECT session FROM device_sessions WHERE device = ? AND name = ?")?
        .query_row((id.0.as_slice(), name), |row| row.get::<_, i64>(0))
        .optional()?
        .map(i64::cast_unsigned))
}

/// What a device calls a session.
pub(crate) fn name_of_session(
    connection: &Connection,
    id: DeviceId,
    session: u64,
) -> Result<Option<String>, StoreError> {
    Ok(connection
        .prepare_cached(
            "SELECT name FROM device_sessions WHERE device = ? AND session = ?
             ORDER BY name <> 'default', name LIMIT 1",
        )?
        .query_row((id.0.as_slice(), session.cast_signed()), |row| row.get(0))
        .optional()?)
}

/// Gives a session the name that a device calls it by.
pub(crate) fn name_session(
    tx: &WriteTx<'_>,
    id: DeviceId,
    name: &str,
    session: u64,
) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached(
            "INSERT INTO device_sessions (device, name, session) VALUES (?, ?, ?)
             ON CONFLICT (device, name) DO UPDATE SET session = excluded.session",
        )?
        .execute((id.0.as_slice(), name, session.cast_signed()))?;
    Ok(())
}

/// Notes that a device waits for a turn's end.
pub(crate) fn await_turn(
    tx: &WriteTx<'_>,
    id: DeviceId,
    turn: u64,
    name: &str,
) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached("INSERT INTO device_turns (device, turn, name) VALUES (?, ?, ?)")?
        .execute((id.0.as_slice(), turn.cast_signed(), name))?;
    Ok(())
}

/// A turn that a device hears of.
pub(crate) struct DeviceTurn {
    pub(crate) turn: u64,
    pub(crate) session: u64,
    /// What the device calls the session.
    pub(crate) name: String,
    pub(crate) agent: String,
}

impl DeviceTurn {
    fn from_sql(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            turn: row.get::<_, i64>(0)?.cast_unsigned(),
            session: row.get::<_, i64>(1)?.cast_unsigned(),
            name: row.get(2)?,
            agent: row.get(3)?,
        })
    }
}

/// Turns whose end a device waits for.
pub(crate) fn awaited_turns(
    connection: &Connection,
    id: DeviceId,
) -> Result<Vec<DeviceTurn>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT device_turns.turn, messages.session, device_turns.name, sessions.agent
         FROM device_turns
         JOIN messages ON messages.id = device_turns.turn
         JOIN sessions ON sessions.id = messages.session
         WHERE device_turns.device = ? ORDER BY device_turns.turn",
    )?;
    let rows = statement.query_map([id.0.as_slice()], DeviceTurn::from_sql)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Turns of sessions that a device has named, whoever asked for them: this one, or those that run.
pub(crate) fn followed_turns(
    connection: &Connection,
    id: DeviceId,
    turn: Option<u64>,
) -> Result<Vec<DeviceTurn>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT messages.id, messages.session, device_sessions.name, sessions.agent
         FROM messages
         JOIN sessions ON sessions.id = messages.session
         JOIN device_sessions ON device_sessions.session = messages.session
         WHERE device_sessions.device = ?1 AND messages.purpose = 'message'
           AND (messages.id = ?2 OR ?2 IS NULL AND messages.state = 'running')
         ORDER BY messages.id, device_sessions.name <> 'default', device_sessions.name",
    )?;
    let turn = turn.map(u64::cast_signed);
    let rows = statement.query_map((id.0.as_slice(), turn), DeviceTurn::from_sql)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Notes that a device was sent a turn's end.
pub(crate) fn turn_told(tx: &WriteTx<'_>, id: DeviceId, turn: u64) -> Result<(), StoreError> {
    for sql in [
        "DELETE FROM device_turns WHERE device = ? AND turn = ?",
        "DELETE FROM device_asks WHERE device = ?
         AND ask IN (SELECT id FROM asks WHERE turn = ?)",
    ] {
        tx.sql()
            .prepare_cached(sql)?
            .execute((id.0.as_slice(), turn.cast_signed()))?;
    }
    Ok(())
}

/// Notes that a device was sent a question.
pub(crate) fn ask_told(tx: &WriteTx<'_>, id: DeviceId, ask: u64) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached("INSERT OR IGNORE INTO device_asks (device, ask) VALUES (?, ?)")?
        .execute((id.0.as_slice(), ask.cast_signed()))?;
    Ok(())
}

/// Whether a device was sent a question.
pub(crate) fn was_asked(
    connection: &Connection,
    id: DeviceId,
    ask: u64,
) -> Result<bool, StoreError> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM device_asks WHERE device = ? AND ask = ?")?
        .exists((id.0.as_slice(), ask.cast_signed()))?)
}

/// A message that a device sent before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) message: u64,
    pub(crate) queued: bool,
}

/// What became of the message with this key, if it was sent before.
pub(crate) fn sent(
    connection: &Connection,
    id: DeviceId,
    key: &str,
) -> Result<Option<Sent>, StoreError> {
    Ok(connection
        .prepare_cached("SELECT message, queued FROM device_sends WHERE device = ? AND key = ?")?
        .query_row((id.0.as_slice(), key), |row| {
            Ok(Sent {
                message: row.get::<_, i64>(0)?.cast_unsigned(),
                queued: row.get(1)?,
            })
        })
        .optional()?)
}

/// Remembers what became of a message's key.
pub(crate) fn remember_sent(
    tx: &WriteTx<'_>,
    id: DeviceId,
    key: &str,
    sent: Sent,
) -> Result<(), StoreError> {
    let now = tx.now() / 1_000_000;
    tx.sql()
        .prepare_cached("DELETE FROM device_sends WHERE device = ? AND at < ?")?
        .execute((id.0.as_slice(), now - SENDS_KEPT))?;
    tx.sql()
        .prepare_cached(
            "INSERT OR REPLACE INTO device_sends (device, key, message, queued, at)
             VALUES (?, ?, ?, ?, ?)",
        )?
        .execute((
            id.0.as_slice(),
            key,
            sent.message.cast_signed(),
            sent.queued,
            now,
        ))?;
    Ok(())
}
