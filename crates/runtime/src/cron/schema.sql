-- Times are microseconds since 1970, UTC.
CREATE TABLE crons (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    schedule    TEXT NOT NULL,
    skill       TEXT NOT NULL,
    session     INTEGER NOT NULL REFERENCES sessions (id),
    quiet_start TEXT NOT NULL,
    quiet_end   TEXT NOT NULL,
    once        INTEGER NOT NULL,
    missed      TEXT NOT NULL CHECK (missed IN ('skip', 'run_once')),
    overlap     TEXT NOT NULL CHECK (overlap IN ('skip', 'queue')),
    created_at  INTEGER NOT NULL,
    -- Every occurrence up to here has been decided; it never goes back.
    decided     INTEGER NOT NULL,
    -- Deleted, its session closed, or started when it was to be started once.
    ended_at    INTEGER
) STRICT;

-- One row for each occurrence, and never a second one.
CREATE TABLE cron_runs (
    cron        INTEGER NOT NULL REFERENCES crons (id),
    due         INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('due', 'started', 'finished', 'failed',
                                               'skipped_quiet', 'skipped_overlap', 'missed')),
    -- Of the session's queue, from 'started' on.
    message     INTEGER,
    started_at  INTEGER,
    finished_at INTEGER,
    note        TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (cron, due)
) STRICT, WITHOUT ROWID;
CREATE INDEX cron_runs_open ON cron_runs (state, cron) WHERE state IN ('due', 'started');
