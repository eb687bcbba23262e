-- Live questions of queries: the columns that their values came from (empty if the values are not
-- those of a column), and the value list, of which a meaning has only the hash.
CREATE TABLE question (
  meaning       INTEGER NOT NULL REFERENCES meaning(id),
  origin_table  TEXT NOT NULL,
  origin_column TEXT NOT NULL,
  list          TEXT,            -- a JSON array; NULL without a list
  asked_at      TEXT NOT NULL,   -- the last time
  PRIMARY KEY (meaning, origin_table, origin_column)
) WITHOUT ROWID;

-- Questions that a model bound to a column, or to none (operator `none`, no column): one row per
-- question text, set of candidate columns, and model.
CREATE TABLE binding (
  id         INTEGER PRIMARY KEY,
  offered    TEXT NOT NULL,      -- hash of the expansions and columns offered
  question   TEXT NOT NULL,      -- as it is compared
  ask        TEXT NOT NULL,      -- as it was asked
  model      INTEGER NOT NULL REFERENCES model(id),
  expansion  TEXT NOT NULL,
  "column"   TEXT NOT NULL,
  operator   TEXT NOT NULL,
  literal    TEXT NOT NULL,
  completion INTEGER NOT NULL REFERENCES completion(id),
  bound_at   TEXT NOT NULL,
  UNIQUE (offered, question, model)
);
