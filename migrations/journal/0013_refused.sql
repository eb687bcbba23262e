-- Features of requests to endpoints that have rejected some: by a hash of the endpoint, the model
-- and its settings. They are deleted after a day, or when they no longer work. `heard_at` is
-- milliseconds since 1970.
CREATE TABLE request_form (
  endpoint TEXT PRIMARY KEY,
  form     TEXT NOT NULL,      -- JSON
  heard_at INTEGER NOT NULL
) WITHOUT ROWID;
