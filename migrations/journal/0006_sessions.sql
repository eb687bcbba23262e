-- Processes that use these facts now: the owner of the cache and those it lends
-- it to. What a run or a reservation says is so only while its session is here;
-- afterwards the run was killed, and the reservation is in doubt. The owner
-- takes a session out when its connection breaks, and all of them when it begins.
CREATE TABLE session (
  id         TEXT PRIMARY KEY,
  holder     TEXT NOT NULL,
  entered_at TEXT NOT NULL
) WITHOUT ROWID;

ALTER TABLE run ADD COLUMN session TEXT;
ALTER TABLE reservation ADD COLUMN session TEXT;
-- The run that put a request in the queue.
ALTER TABLE request ADD COLUMN run INTEGER;
