-- Any number of processes open the cache, so what only one of them may do, and what each asks of an
-- endpoint, are rows. A claim is the right to ask for a cell, or a named right; `key` is its hash.
-- Claims and limits of a session count while the session is in `session`.
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

-- When the next request is due at the allowed pace, in milliseconds since 1970, and the limits per
-- minute that the pace is computed with.
ALTER TABLE rate_limit ADD COLUMN requests_due REAL NOT NULL DEFAULT 0;
ALTER TABLE rate_limit ADD COLUMN tokens_due REAL NOT NULL DEFAULT 0;
ALTER TABLE rate_limit ADD COLUMN paced_requests INTEGER;
ALTER TABLE rate_limit ADD COLUMN paced_tokens INTEGER;
CREATE INDEX sent_lately_endpoint ON sent_lately(endpoint, model, leaves_at, tokens);
