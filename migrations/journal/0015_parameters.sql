-- The spec's parameters that a request was sent with, as JSON.
ALTER TABLE completion ADD COLUMN parameters TEXT;
