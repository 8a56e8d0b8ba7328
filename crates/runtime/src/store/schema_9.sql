-- Commands of sessions that began and have no row in the journal yet. What is here at a start was
-- cut with the daemon.
CREATE TABLE open_commands (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES sessions (id),
    worker  TEXT NOT NULL,
    -- The worker's name for it; empty until it was sent.
    job     TEXT NOT NULL DEFAULT '',
    command TEXT NOT NULL,
    cwd     TEXT,
    -- The workspace's sequence when it began.
    before  INTEGER NOT NULL,
    -- Who writes its files; nobody in particular where it runs in the folder itself.
    author  TEXT
) STRICT;
