-- What a session has seen of files, so that an edit after a restart is not of what it never read.
CREATE TABLE seen_files (
    session   INTEGER NOT NULL REFERENCES sessions (id),
    path      TEXT NOT NULL,
    -- SHA-256 of the text.
    hash      BLOB NOT NULL,
    -- Milliseconds since 1970.
    at_millis INTEGER NOT NULL,
    PRIMARY KEY (session, path)
) STRICT, WITHOUT ROWID;
