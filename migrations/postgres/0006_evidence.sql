-- The passages in a request, with the quotations of its answer, as JSON.
ALTER TABLE hqdl.completion ADD COLUMN evidence text;
