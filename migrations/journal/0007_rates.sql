-- Requests that endpoints may still count against their limits per minute: one
-- row each, written before the request leaves, gone a minute after its answer.
-- `tokens` is the most it may take until its answer says what it took; times are
-- milliseconds since 1970. `endpoint` is a hash that tells endpoint and key apart
-- from others.
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

-- What endpoints said of their limits last, and until when they asked to wait:
-- by endpoint, or by endpoint and model.
CREATE TABLE rate_limit (
  name       TEXT PRIMARY KEY,
  requests   INTEGER,
  tokens     INTEGER,
  wait_until INTEGER,
  heard_at   INTEGER NOT NULL
) WITHOUT ROWID;
