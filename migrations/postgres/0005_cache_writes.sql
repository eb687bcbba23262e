-- Input tokens that were written to the endpoint's prompt cache and billed at an assumed rate.
ALTER TABLE hqdl.completion ADD COLUMN assumed_cache_writes bigint NOT NULL DEFAULT 0;
