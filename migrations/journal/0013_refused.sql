-- What requests to an endpoint hold, where it has refused some of what they held:
-- by a hash of the endpoint, the model and its settings. Forgotten after a day, and
-- when it no longer serves. `heard_at` is milliseconds since 1970.
CREATE TABLE request_form (
  endpoint TEXT PRIMARY KEY,
  form     TEXT NOT NULL,      -- JSON
  heard_at INTEGER NOT NULL
) WITHOUT ROWID;
