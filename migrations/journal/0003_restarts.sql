-- What requests on their way may cost at the worst: written before a request
-- leaves, taken out in the transaction that keeps its answer. A row that stays
-- belongs to a request that may have been billed without an answer: it broke on
-- the way (`in_doubt` 1), or its process was killed (still 0). It counts as spent.
CREATE TABLE reservation (
  id          INTEGER PRIMARY KEY,
  run         INTEGER NOT NULL REFERENCES run(id),
  cost_usd    REAL NOT NULL,
  tokens      INTEGER NOT NULL,
  reserved_at TEXT NOT NULL,
  in_doubt    INTEGER NOT NULL DEFAULT 0
);

-- Rounds of asking again for what is known (`--refresh`, `--retry-failed`): what
-- came from completions up to `up_to` no longer counts. A round without an end
-- was cut off, or limited, and is gone on with.
CREATE TABLE round (
  id        INTEGER PRIMARY KEY,
  kind      TEXT NOT NULL,     -- refresh or retry
  spec      TEXT NOT NULL,
  expansion TEXT NOT NULL,
  meaning   INTEGER NOT NULL REFERENCES meaning(id),
  model     INTEGER NOT NULL REFERENCES model(id),
  scope     TEXT NOT NULL,     -- the SQL of --where; '' for all keys
  up_to     INTEGER NOT NULL,
  begun_at  TEXT NOT NULL,
  ended_at  TEXT
);
