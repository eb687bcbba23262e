-- The passages in a request, with the quotations of its answer, as JSON.
ALTER TABLE hqdl_completion ADD COLUMN evidence TEXT;

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
       CAST(q.parameters AS TEXT) AS parameters,
       CAST(q.assumed_cache_writes * 1.0 / q.cells AS REAL) AS assumed_cache_writes,
       CAST(q.evidence ->> 'digest' AS TEXT) AS evidence
FROM hqdl_record AS r
JOIN hqdl_object AS e ON e.name = r.expansion AND e.spec IS NOT NULL
JOIN json_each(r.cells) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = c.value ->> 2;

-- Every passage that was shown for a cell, with the answer's quotations from it: one row per
-- quotation, or one row without any.
CREATE VIEW hqdl_evidence AS
SELECT c.expansion,
       c."table",
       c.key,
       c."column",
       c.evidence,
       CAST(p.value ->> 'passage' AS TEXT) AS passage,
       CAST(p.value ->> 'source' AS TEXT) AS source,
       CAST(p.value ->> 'text' AS TEXT) AS text,
       CAST(u.value ->> 'item' AS TEXT) AS item,
       CAST(u.value ->> 'quote' AS TEXT) AS quote
FROM hqdl_cell AS c
JOIN hqdl_completion AS q ON q.expansion = c.expansion AND q.id = c.completion
JOIN json_each(q.evidence, '$.passages') AS p
LEFT JOIN json_each(q.evidence, '$.quotes') AS u
  ON u.value ->> 'column' = c."column" AND u.value ->> 'passage' = p.value ->> 'passage';
