-- Processes that use these facts now. The claims of a run or a reservation are valid only while its
-- session is here. Afterwards the run counts as killed, and the reservation is in doubt.
CREATE TABLE session (
  id         TEXT PRIMARY KEY,
  holder     TEXT NOT NULL,
  entered_at TEXT NOT NULL
) WITHOUT ROWID;

ALTER TABLE run ADD COLUMN session TEXT;
ALTER TABLE reservation ADD COLUMN session TEXT;
-- The run that queued a request.
ALTER TABLE request ADD COLUMN run INTEGER;
