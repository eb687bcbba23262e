-- Four tables of hqdl's own instead of seven. `hqdl_object` now also contains the published state
-- of each expansion (at its main table), its checksums, and the version of these tables (at the
-- object `hqdl_version`).
ALTER TABLE hqdl_object ADD COLUMN spec TEXT;
ALTER TABLE hqdl_object ADD COLUMN key TEXT;           -- JSON array of the key columns
ALTER TABLE hqdl_object ADD COLUMN columns TEXT;       -- JSON object: column -> the table that shows it
ALTER TABLE hqdl_object ADD COLUMN layout TEXT;        -- hash of the tables' columns
ALTER TABLE hqdl_object ADD COLUMN rows INTEGER;
ALTER TABLE hqdl_object ADD COLUMN published_at TEXT;
ALTER TABLE hqdl_object ADD COLUMN inputs TEXT;        -- JSON: what its values were made from
ALTER TABLE hqdl_object ADD COLUMN checksums TEXT;     -- JSON object: bucket -> sum of its rows' versions

UPDATE hqdl_object AS o
SET (spec, key, columns, layout, rows, published_at, inputs) =
      (SELECT e.spec, e.key, e.columns, e.digest, e.rows, e.published_at, e.standing
       FROM hqdl_expansion AS e WHERE e.name = o.name),
    checksums = (SELECT json_group_object(b.bucket, b.sum) FROM hqdl_bucket AS b
                 WHERE b.expansion = o.name AND b.sum <> 0)
WHERE o.type = 'table' AND EXISTS (SELECT 1 FROM hqdl_expansion AS e WHERE e.name = o.name);

-- Every cell with its state and provenance. `value` is text, whatever the type of the cell's own
-- column; tokens and price are the cell's share of its request.
DROP VIEW IF EXISTS hqdl_cell;
CREATE VIEW hqdl_cell AS
SELECT CAST(r.expansion AS TEXT) AS expansion,
       CAST((SELECT t.value FROM json_each(e.columns) AS t WHERE t.key = c.key) AS TEXT) AS "table",
       CAST(r.key AS TEXT) AS key,
       CAST(c.key AS TEXT) AS "column",
       CAST(c.value ->> 0 AS TEXT) AS state,
       CAST(c.value ->> 1 AS TEXT) AS value,
       CAST(c.value ->> 3 AS TEXT) AS raw,
       CAST(c.value ->> 4 AS TEXT) AS repair,
       CAST(q.model AS TEXT) AS model,
       CAST(q.run AS INTEGER) AS run,
       CAST(q.id AS INTEGER) AS completion,
       CAST(q.asked_at AS TEXT) AS asked_at,
       CAST(q.prompt_hash AS TEXT) AS prompt_hash,
       CAST(q.input_tokens * 1.0 / q.cells AS REAL) AS input_tokens,
       CAST(q.output_tokens * 1.0 / q.cells AS REAL) AS output_tokens,
       CAST(q.cost_usd / q.cells AS REAL) AS cost_usd,
       CAST(q.error AS TEXT) AS error,
       CAST(q.parameters AS TEXT) AS parameters
FROM hqdl_record AS r
JOIN hqdl_object AS e ON e.name = r.expansion AND e.spec IS NOT NULL
JOIN json_each(r.cells) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = c.value ->> 2;

DROP TABLE hqdl_expansion;
DROP TABLE hqdl_bucket;
DROP TABLE IF EXISTS hqdl_migration;
