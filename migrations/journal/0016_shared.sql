-- Any number of processes open the cache, so exclusive rights and the limits that processes ask for
-- are rows. A claim is the right to ask for a cell, or a named right; `key` is its hash. Claims and
-- limits of a session are valid while the session is in `session`.
CREATE TABLE claim (
  key     INTEGER PRIMARY KEY,
  session INTEGER NOT NULL     -- its number
);
ALTER TABLE session ADD COLUMN number INTEGER;

-- The limits per minute that the users of an endpoint ask for.
CREATE TABLE rate_member (
  session  TEXT NOT NULL,
  member   INTEGER NOT NULL,
  endpoint TEXT NOT NULL,
  requests INTEGER,
  tokens   INTEGER,
  PRIMARY KEY (session, member)
) WITHOUT ROWID;

-- The time at which the next request is due, in milliseconds since 1970, and the limits per minute
-- from which it is computed.
ALTER TABLE rate_limit ADD COLUMN requests_due REAL NOT NULL DEFAULT 0;
ALTER TABLE rate_limit ADD COLUMN tokens_due REAL NOT NULL DEFAULT 0;
ALTER TABLE rate_limit ADD COLUMN paced_requests INTEGER;
ALTER TABLE rate_limit ADD COLUMN paced_tokens INTEGER;
CREATE INDEX sent_lately_endpoint ON sent_lately(endpoint, model, leaves_at, tokens);
