-- What a tool writes is open until its row is there, as any command is.
ALTER TABLE open_commands ADD COLUMN tool TEXT;
