-- Requests that endpoints may still count against their limits per minute: one row each, written
-- before the request is sent, and deleted a minute after its answer. `tokens` is the maximum until
-- the answer reports the actual number. Times are milliseconds since 1970. `endpoint` is a hash of
-- the endpoint and its key.
CREATE TABLE sent_lately (
  id          INTEGER PRIMARY KEY,
  endpoint    TEXT NOT NULL,
  model       TEXT NOT NULL,
  tokens      INTEGER NOT NULL,
  leaves_at   INTEGER NOT NULL,
  reservation INTEGER            -- its note, until it is answered
);
CREATE INDEX sent_lately_leaves ON sent_lately(leaves_at);
CREATE INDEX sent_lately_reservation ON sent_lately(reservation) WHERE reservation IS NOT NULL;

-- The limits that endpoints reported last, and the ends of the pauses that they asked for, by
-- endpoint, or by endpoint and model.
CREATE TABLE rate_limit (
  name       TEXT PRIMARY KEY,
  requests   INTEGER,
  tokens     INTEGER,
  wait_until INTEGER,
  heard_at   INTEGER NOT NULL
) WITHOUT ROWID;
