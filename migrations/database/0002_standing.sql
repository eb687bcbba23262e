-- What a published expansion was made from (JSON): while that has not changed,
-- its tables say what the facts say, and queries may read them instead.
ALTER TABLE hqdl_expansion ADD COLUMN standing TEXT;
