-- Version of each published row; only rows whose version has changed are written again.
ALTER TABLE hqdl_record ADD COLUMN version INTEGER;

-- The versions of an expansion's rows, summed by the hash of their keys. If a sum is unchanged,
-- none of its rows has changed.
CREATE TABLE hqdl_bucket (
  expansion TEXT NOT NULL COLLATE NOCASE,
  bucket    INTEGER NOT NULL,
  sum       INTEGER NOT NULL,
  PRIMARY KEY (expansion, bucket)
) WITHOUT ROWID;

-- Number of published cells that came from a request. Without any, the request is deleted.
ALTER TABLE hqdl_completion ADD COLUMN shown INTEGER;

-- Published rows that another program has written, recorded by triggers of the tables.
CREATE TABLE hqdl_edit (
  expansion TEXT NOT NULL COLLATE NOCASE,
  "table"   TEXT NOT NULL,
  key       TEXT,              -- a JSON array
  edited_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
