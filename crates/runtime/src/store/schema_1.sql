-- The journal: one append-only table, one number. Times are microseconds since 1970, UTC.
CREATE TABLE journal (
    seq     INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    session INTEGER,
    turn    INTEGER,
    kind    TEXT NOT NULL,
    data    TEXT NOT NULL
) STRICT;
CREATE INDEX journal_by_session ON journal (session, seq) WHERE session IS NOT NULL;

-- AUTOINCREMENT: an id is never used again, also when its row is gone.
CREATE TABLE sessions (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    agent      TEXT NOT NULL,
    created_by TEXT NOT NULL,
    title      TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    closed_at  INTEGER,
    workspace  TEXT NOT NULL,
    worker     TEXT NOT NULL DEFAULT '',
    -- A summary that the next message carries to the agent, after a compaction.
    preamble   TEXT
) STRICT;
CREATE INDEX sessions_by_sender ON sessions (agent, created_by, id);

-- A message is queued, then running, then over: done, failed or removed. Its id is the turn's id.
CREATE TABLE messages (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    session    INTEGER NOT NULL REFERENCES sessions (id),
    sender     TEXT NOT NULL,
    text       TEXT NOT NULL,
    purpose    TEXT NOT NULL DEFAULT 'message',
    at         INTEGER NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'removed')),
    first_seq  INTEGER,
    last_seq   INTEGER
) STRICT;
CREATE INDEX messages_waiting ON messages (session, id) WHERE state IN ('queued', 'running');
CREATE INDEX messages_by_session ON messages (session, id);

CREATE TABLE asks (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    session   INTEGER NOT NULL REFERENCES sessions (id),
    turn      INTEGER NOT NULL,
    key       TEXT NOT NULL,
    questions TEXT NOT NULL,
    at        INTEGER NOT NULL,
    state     TEXT NOT NULL CHECK (state IN ('pending', 'answered', 'withdrawn')),
    answer    TEXT,
    by        TEXT
) STRICT;
CREATE INDEX asks_pending ON asks (session, id) WHERE state = 'pending';

CREATE TABLE approvals (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES sessions (id),
    turn    INTEGER NOT NULL,
    key     TEXT NOT NULL,
    action  TEXT NOT NULL,
    command TEXT NOT NULL,
    cwd     TEXT NOT NULL,
    worker  TEXT NOT NULL,
    reason  TEXT NOT NULL,
    -- Of action, command, folder and worker: what an approval is bound to.
    bound_to TEXT NOT NULL,
    at      INTEGER NOT NULL,
    state   TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'withdrawn')),
    scope   TEXT,
    note    TEXT,
    by      TEXT
) STRICT;
CREATE INDEX approvals_pending ON approvals (session, id) WHERE state = 'pending';
CREATE INDEX approvals_granted ON approvals (session, bound_to) WHERE scope = 'session';

CREATE TABLE compactions (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    session   INTEGER NOT NULL REFERENCES sessions (id),
    summary   TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    -- The agent's state before, to go back to.
    state     TEXT NOT NULL,
    at        INTEGER NOT NULL,
    undone_at INTEGER
) STRICT;

-- Money is a decimal in text, added up in the program.
CREATE TABLE usage (
    turn          INTEGER PRIMARY KEY,
    session       INTEGER NOT NULL,
    agent         TEXT NOT NULL,
    day           TEXT NOT NULL,
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost          TEXT NOT NULL
) STRICT;
CREATE INDEX usage_by_day ON usage (agent, day);
CREATE INDEX usage_by_session ON usage (session);
