-- The note of the person who overrode a cell, the sixth member of its record. Before, the note was
-- published as the cell's repair; the next run publishes those cells again.
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
       q.parameters,
       q.assumed_cache_writes::double precision / nullif(q.cells, 0) AS assumed_cache_writes,
       q.evidence::json ->> 'digest' AS evidence,
       c.value ->> 5 AS note
FROM hqdl_record AS r
JOIN hqdl_object AS e ON e.name = r.expansion AND e.spec IS NOT NULL
CROSS JOIN LATERAL json_each(r.cells::json) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = (c.value ->> 2)::bigint;
