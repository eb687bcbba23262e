-- hqdl's bookkeeping in the schema of a PostgreSQL database that it publishes into, beside the
-- published tables. The names are those of an expanded SQLite database.

-- Every object that hqdl created here; hqdl never drops or writes any other object.
CREATE TABLE hqdl_object (
  name       text PRIMARY KEY,
  type       text NOT NULL,
  expansion  text,
  definition text              -- of a view
);

CREATE TABLE hqdl_expansion (
  name         text PRIMARY KEY,
  spec         text NOT NULL,
  key          text NOT NULL,  -- JSON array of the key columns
  columns      text NOT NULL,  -- JSON object: column -> the table that shows it
  digest       text NOT NULL,
  rows         bigint NOT NULL,
  published_at text NOT NULL,
  standing     text,           -- JSON: what its values are from
  shape        text            -- its columns with their types
);

-- The requests that the published cells came from.
CREATE TABLE hqdl_completion (
  expansion     text NOT NULL,
  id            bigint NOT NULL,
  run           bigint,
  model         text,
  prompt_hash   text,
  asked_at      text,
  input_tokens  bigint,
  output_tokens bigint,
  cost_usd      double precision,
  cells         bigint,
  error         text,
  shown         bigint,        -- published cells that came from it
  PRIMARY KEY (expansion, id)
);

-- One row per entity: its published key (JSON array), and for each column [state, value,
-- completion, raw, repair] without trailing nulls. The hash is that of the key, which may be too
-- long for an index; the bucket is that of the hash.
CREATE TABLE hqdl_record (
  expansion text NOT NULL,
  bucket    integer NOT NULL,
  hash      bigint NOT NULL,
  key       text NOT NULL,
  cells     text NOT NULL,
  version   bigint NOT NULL,
  PRIMARY KEY (expansion, bucket, hash)
);

-- The versions of an expansion's rows, summed by bucket.
CREATE TABLE hqdl_bucket (
  expansion text NOT NULL,
  bucket    integer NOT NULL,
  sum       bigint NOT NULL,
  PRIMARY KEY (expansion, bucket)
);

-- Published rows that another program has written, recorded by triggers of the tables.
CREATE TABLE hqdl_edit (
  expansion text NOT NULL,
  "table"   text NOT NULL,
  key       text,              -- a JSON array; null where all rows were taken out at once
  edited_at timestamptz NOT NULL DEFAULT now()
);

-- Its arguments are the expansion and the names of the key columns. It runs with the rights of the
-- publisher, because a role that may write to a table may lack the right to write here.
CREATE FUNCTION hqdl_note_edit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  line jsonb;
  key  jsonb := '[]';
BEGIN
  IF TG_OP = 'TRUNCATE' THEN
    key := NULL;
  ELSE
    line := CASE WHEN TG_OP = 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
    FOR n IN 1 .. TG_NARGS - 1 LOOP
      key := key || jsonb_build_array(line -> TG_ARGV[n]);
    END LOOP;
  END IF;
  EXECUTE format('INSERT INTO %I.hqdl_edit (expansion, "table", key) VALUES ($1, $2, $3)', TG_TABLE_SCHEMA)
    USING TG_ARGV[0], TG_TABLE_NAME::text, key::text;
  RETURN NULL;
END $$;

-- Every cell with its state and provenance. `value` of a one-to-many column is a JSON array; tokens
-- and price are the cell's share of its request.
CREATE VIEW hqdl_cell AS
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
       q.error
FROM hqdl_record AS r
JOIN hqdl_expansion AS e ON e.name = r.expansion
CROSS JOIN LATERAL json_each(r.cells::json) AS c
LEFT JOIN hqdl_completion AS q
  ON q.expansion = r.expansion AND q.id = (c.value ->> 2)::bigint;

COMMENT ON VIEW hqdl_cell IS 'Every cell that hqdl published, with its state and where it came from';
