-- The passages that a request showed, with the quotations of its answer, as JSON.
ALTER TABLE hqdl.completion ADD COLUMN evidence text;
