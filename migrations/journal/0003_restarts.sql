-- Worst-case costs of requests in flight. A row is written before its request is sent, and deleted
-- in the transaction that stores the answer. A row that stays belongs to a request that may have
-- been billed without an answer: its connection broke (`in_doubt` is 1), or its process was killed
-- (still 0). It counts as spent.
CREATE TABLE reservation (
  id          INTEGER PRIMARY KEY,
  run         INTEGER NOT NULL REFERENCES run(id),
  cost_usd    REAL NOT NULL,
  tokens      INTEGER NOT NULL,
  reserved_at TEXT NOT NULL,
  in_doubt    INTEGER NOT NULL DEFAULT 0
);

-- Refresh jobs (`--refresh`, `--retry-failed`): facts of completions up to `up_to` no longer count.
-- A job without an end was interrupted or limited, and is resumed.
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
