-- The passages in a request, with the quotations of its answer, as JSON.
ALTER TABLE completion ADD COLUMN evidence TEXT;
