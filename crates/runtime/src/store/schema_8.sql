-- How a message came in; those from before came mostly from the command line.
ALTER TABLE messages ADD COLUMN channel TEXT NOT NULL DEFAULT 'cli';
