-- The journal: every completion, and the facts read from it. It is the source of truth; the index
-- beside it can be rebuilt from here.

-- Id of the journal. An index of another journal is ignored.
CREATE TABLE journal (id TEXT NOT NULL);
INSERT INTO journal VALUES (lower(hex(randomblob(16))));

CREATE TABLE run (
  id         INTEGER PRIMARY KEY,
  started_at TEXT NOT NULL,
  ended_at   TEXT,
  command    TEXT NOT NULL,
  spec       TEXT,
  outcome    TEXT
);

CREATE TABLE model (
  id   INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
);

-- Identity of a column; `meaning` is the JSON that `fingerprint` hashes.
CREATE TABLE meaning (
  id          INTEGER PRIMARY KEY,
  fingerprint TEXT NOT NULL UNIQUE,
  name        TEXT NOT NULL,
  meaning     TEXT NOT NULL
);

CREATE TABLE value_list (
  id   INTEGER PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE
);

-- One row per request: its reply or its error, and its cost.
CREATE TABLE completion (
  id                  INTEGER PRIMARY KEY,
  run                 INTEGER NOT NULL REFERENCES run(id),
  model               INTEGER NOT NULL REFERENCES model(id),
  prompt_hash         TEXT NOT NULL,
  content             TEXT,
  error               TEXT,
  input_tokens        INTEGER NOT NULL,
  cached_input_tokens INTEGER NOT NULL,
  output_tokens       INTEGER NOT NULL,
  cost_usd            REAL NOT NULL,
  asked_at            TEXT NOT NULL,
  seconds             REAL NOT NULL,
  cells               INTEGER NOT NULL
);

-- One row per entity and completion. `cells` is a JSON array of [meaning, value_list, state, value,
-- raw, repair] without trailing nulls. A later row replaces an earlier one, but an error never
-- replaces an answer.
CREATE TABLE answer (
  id         INTEGER PRIMARY KEY,
  completion INTEGER NOT NULL REFERENCES completion(id),
  entity     TEXT NOT NULL,
  cells      TEXT NOT NULL
);
