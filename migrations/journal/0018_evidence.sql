-- The passages that a request showed, with the quotations of its answer, as JSON.
ALTER TABLE completion ADD COLUMN evidence TEXT;
