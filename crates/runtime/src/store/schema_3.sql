-- What lets a worker of another machine or user in. The hash binds the secret to the worker's id.
CREATE TABLE worker_tokens (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    worker     TEXT NOT NULL,
    hash       BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT;
CREATE INDEX worker_tokens_valid ON worker_tokens (worker) WHERE revoked_at IS NULL;
