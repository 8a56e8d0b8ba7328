-- The workers that were ever online, as their last row of the journal has them: the journal can be
-- shortened, and a worker that is away is still one.
CREATE TABLE workers (
    id      TEXT PRIMARY KEY,
    info    TEXT NOT NULL,
    seen_at INTEGER NOT NULL
) STRICT;
CREATE INDEX workers_by_seen ON workers (seen_at);
INSERT OR REPLACE INTO workers
    SELECT json_extract(data, '$.worker'), json_extract(data, '$.info'), at
    FROM journal WHERE kind = 'worker_online' ORDER BY seq;
-- In the transaction of the row, so that neither is there without the other.
CREATE TRIGGER workers_online AFTER INSERT ON journal WHEN NEW.kind = 'worker_online' BEGIN
    INSERT OR REPLACE INTO workers
        VALUES (json_extract(NEW.data, '$.worker'), json_extract(NEW.data, '$.info'), NEW.at);
END;
