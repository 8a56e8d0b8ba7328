-- What a turn waited for when the daemon stopped goes on waiting, until the same is asked again.
ALTER TABLE asks ADD COLUMN left_over INTEGER NOT NULL DEFAULT 0;
ALTER TABLE approvals ADD COLUMN left_over INTEGER NOT NULL DEFAULT 0;
CREATE INDEX asks_left_over ON asks (session) WHERE left_over = 1;
CREATE INDEX approvals_left_over ON approvals (session) WHERE left_over = 1;
-- Whoever writes the row of a worker writes the worker too.
DROP TRIGGER workers_online;
