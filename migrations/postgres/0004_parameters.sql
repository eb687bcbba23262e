-- The spec's parameters that a request was sent with, as JSON.
ALTER TABLE hqdl.completion ADD COLUMN parameters text;
