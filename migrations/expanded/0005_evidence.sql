-- The passages in a request, with the quotations of its answer, as JSON.
ALTER TABLE hqdl_completion ADD COLUMN evidence text;

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
       q.evidence::json ->> 'digest' AS evidence
FROM hqdl_record AS r
JOIN hqdl_object AS e ON e.name = r.expansion AND e.spec IS NOT NULL
CROSS JOIN LATERAL json_each(r.cells::json) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = (c.value ->> 2)::bigint;

-- Every passage that was shown for a cell, with the answer's quotations from it: one row per
-- quotation, or one row without any.
CREATE VIEW hqdl_evidence AS
SELECT c.expansion,
       c."table",
       c.key,
       c."column",
       c.evidence,
       p.value ->> 'passage' AS passage,
       p.value ->> 'source' AS source,
       p.value ->> 'text' AS text,
       u.value ->> 'item' AS item,
       u.value ->> 'quote' AS quote
FROM hqdl_cell AS c
JOIN hqdl_completion AS q ON q.expansion = c.expansion AND q.id = c.completion
CROSS JOIN LATERAL json_array_elements(q.evidence::json -> 'passages') AS p
LEFT JOIN LATERAL json_array_elements(q.evidence::json -> 'quotes') AS u
  ON u.value ->> 'column' = c."column" AND u.value ->> 'passage' = p.value ->> 'passage';
