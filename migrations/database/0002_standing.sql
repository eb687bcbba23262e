-- The inputs of a published expansion (JSON). While they are unchanged, its tables agree with the
-- facts, and queries may read them instead.
ALTER TABLE hqdl_expansion ADD COLUMN standing TEXT;
