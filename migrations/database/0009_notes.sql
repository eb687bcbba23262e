-- The note of the person who overrode a cell, the sixth member of its record. Before, the note was
-- published as the cell's repair; the next run publishes those cells again.
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
       CAST(q.parameters AS TEXT) AS parameters,
       CAST(q.assumed_cache_writes * 1.0 / q.cells AS REAL) AS assumed_cache_writes,
       CAST(q.evidence ->> 'digest' AS TEXT) AS evidence,
       CAST(c.value ->> 5 AS TEXT) AS note
FROM hqdl_record AS r
JOIN hqdl_object AS e ON e.name = r.expansion AND e.spec IS NOT NULL
JOIN json_each(r.cells) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = c.value ->> 2;
