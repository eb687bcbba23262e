-- hqdl's bookkeeping in an expanded database, beside the published tables.

-- Every object that hqdl created here; hqdl never drops or writes any other object.
CREATE TABLE hqdl_object (
  name      TEXT PRIMARY KEY COLLATE NOCASE,
  type      TEXT NOT NULL,
  expansion TEXT
) WITHOUT ROWID;

CREATE TABLE hqdl_expansion (
  name         TEXT PRIMARY KEY COLLATE NOCASE,
  spec         TEXT NOT NULL,
  key          TEXT NOT NULL,  -- JSON array of the key columns
  columns      TEXT NOT NULL,  -- JSON object: column -> the table that shows it
  digest       TEXT NOT NULL,  -- of everything published; the same means nothing to do
  rows         INTEGER NOT NULL,
  published_at TEXT NOT NULL
) WITHOUT ROWID;

-- The requests that the published cells came from.
CREATE TABLE hqdl_completion (
  expansion     TEXT NOT NULL COLLATE NOCASE,
  id            INTEGER NOT NULL,
  run           INTEGER,
  model         TEXT,
  prompt_hash   TEXT,
  asked_at      TEXT,
  input_tokens  INTEGER,
  output_tokens INTEGER,
  cost_usd      REAL,
  cells         INTEGER,
  error         TEXT,
  PRIMARY KEY (expansion, id)
) WITHOUT ROWID;

-- One row per entity: its published key (JSON array), and for each column [state, value,
-- completion, raw, repair] without trailing nulls.
CREATE TABLE hqdl_record (
  expansion TEXT NOT NULL COLLATE NOCASE,
  key       TEXT NOT NULL,
  cells     TEXT NOT NULL,
  PRIMARY KEY (expansion, key)
) WITHOUT ROWID;

-- Every cell with its state and provenance. `value` of a one-to-many column is a JSON array; tokens
-- and price are the cell's share of its request.
CREATE VIEW hqdl_cell AS
SELECT r.expansion AS expansion,
       (SELECT t.value FROM json_each(e.columns) AS t WHERE t.key = c.key) AS "table",
       r.key AS key,
       c.key AS "column",
       c.value ->> 0 AS state,
       c.value ->> 1 AS value,
       c.value ->> 3 AS raw,
       c.value ->> 4 AS repair,
       q.model AS model,
       q.run AS run,
       q.id AS completion,
       q.asked_at AS asked_at,
       q.prompt_hash AS prompt_hash,
       q.input_tokens * 1.0 / q.cells AS input_tokens,
       q.output_tokens * 1.0 / q.cells AS output_tokens,
       q.cost_usd / q.cells AS cost_usd,
       q.error AS error
FROM hqdl_record AS r
JOIN hqdl_expansion AS e ON e.name = r.expansion
JOIN json_each(r.cells) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = c.value ->> 2;
