-- Four tables of hqdl's own instead of seven. `hqdl_object` now also contains the published state
-- of each expansion (at its main table), its checksums, the version of these tables (at the object
-- `hqdl_version`), and whether hqdl created the schema (`hqdl_schema`).
ALTER TABLE hqdl_object
  ADD COLUMN spec text,
  ADD COLUMN key text,           -- JSON array of the key columns
  ADD COLUMN columns text,       -- JSON object: column -> the table that shows it
  ADD COLUMN layout text,        -- hash of the spec's columns
  ADD COLUMN shape text,         -- the tables' columns with their types
  ADD COLUMN rows bigint,
  ADD COLUMN published_at text,
  ADD COLUMN inputs text,        -- JSON: what its values were made from
  ADD COLUMN checksums text;     -- JSON object: bucket -> sum of its rows' versions

UPDATE hqdl_object AS o
SET spec = e.spec, key = e.key, columns = e.columns, layout = e.digest, shape = e.shape,
    rows = e.rows, published_at = e.published_at, inputs = e.standing,
    checksums = coalesce((SELECT json_object_agg(b.bucket, b.sum)::text FROM hqdl_bucket AS b
                          WHERE b.expansion = o.name AND b.sum <> 0), '{}')
FROM hqdl_expansion AS e
WHERE o.type = 'table' AND e.name = o.name;

INSERT INTO hqdl_object (name, type)
SELECT 'hqdl_schema', 'schema' FROM hqdl_migration HAVING bool_or(made_schema);

CREATE OR REPLACE VIEW hqdl_cell AS
SELECT r.expansion,
       e.columns::json ->> c.key AS "table",
       r.key,
       c.key AS "column",
       c.value ->> 0 AS state,
       c.value ->> 1 AS value,
       c.value ->> 3 AS raw,
       c.value ->> 4 AS repair,
       q.model,
       q.run,
       q.id AS completion,
       q.asked_at,
       q.prompt_hash,
       q.input_tokens::double precision / nullif(q.cells, 0) AS input_tokens,
       q.output_tokens::double precision / nullif(q.cells, 0) AS output_tokens,
       q.cost_usd / nullif(q.cells, 0) AS cost_usd,
       q.error,
       q.parameters
FROM hqdl_record AS r
JOIN hqdl_object AS e ON e.name = r.expansion AND e.spec IS NOT NULL
CROSS JOIN LATERAL json_each(r.cells::json) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = (c.value ->> 2)::bigint;

DROP TABLE hqdl_expansion, hqdl_bucket, hqdl_migration;
