-- What each published row says, in brief: only rows of which that has changed are
-- written again.
ALTER TABLE hqdl_record ADD COLUMN version INTEGER;

-- The versions of an expansion's rows, summed up by the hash of their keys: where a
-- sum is what it was, no row of it has changed.
CREATE TABLE hqdl_bucket (
  expansion TEXT NOT NULL COLLATE NOCASE,
  bucket    INTEGER NOT NULL,
  sum       INTEGER NOT NULL,
  PRIMARY KEY (expansion, bucket)
) WITHOUT ROWID;

-- Published cells that came from a request; without any, it is told of no more.
ALTER TABLE hqdl_completion ADD COLUMN shown INTEGER;

-- Published rows that somebody else has written, noted by triggers of the tables.
CREATE TABLE hqdl_edit (
  expansion TEXT NOT NULL COLLATE NOCASE,
  "table"   TEXT NOT NULL,
  key       TEXT,              -- a JSON array
  edited_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
);
