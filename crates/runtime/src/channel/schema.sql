-- Browsers that a person has paired, and what the channel needs to know them again.
CREATE TABLE channel_identity (
    one    INTEGER PRIMARY KEY CHECK (one = 1),
    -- The daemon's static X25519 key.
    secret BLOB NOT NULL,
    -- What an upgrade of the original protocol from another machine has to bring.
    token  TEXT NOT NULL
) STRICT;

CREATE TABLE devices (
    id          BLOB PRIMARY KEY,
    name        TEXT NOT NULL,
    -- Seconds since 1970, as all times here.
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,
    revoked_at  INTEGER,
    -- v1: SHA-256 of the access token, and the key of its chat text.
    token_hash  BLOB,
    e2e_key     BLOB,
    -- v2: the device's static public key, and the words that both screens showed.
    static_key  BLOB,
    check_words TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE UNIQUE INDEX devices_token ON devices (token_hash) WHERE token_hash IS NOT NULL;
CREATE UNIQUE INDEX devices_key ON devices (static_key) WHERE static_key IS NOT NULL;

-- v1: nonces that a device has used; they live as long as its key.
CREATE TABLE device_nonces (
    device BLOB NOT NULL,
    nonce  BLOB NOT NULL,
    PRIMARY KEY (device, nonce)
) STRICT, WITHOUT ROWID;

-- v1: what a device calls a session.
CREATE TABLE device_sessions (
    device  BLOB NOT NULL,
    name    TEXT NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (device, name)
) STRICT, WITHOUT ROWID;

-- v1: turns whose end the device has not been sent.
CREATE TABLE device_turns (
    device BLOB NOT NULL,
    turn   INTEGER NOT NULL,
    name   TEXT NOT NULL,
    PRIMARY KEY (device, turn)
) STRICT, WITHOUT ROWID;

-- v2: messages by the key that their device gave them: the same key is the same message.
CREATE TABLE device_sends (
    device  BLOB NOT NULL,
    key     TEXT NOT NULL,
    message INTEGER NOT NULL,
    queued  INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (device, key)
) STRICT, WITHOUT ROWID;
