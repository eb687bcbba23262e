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
