-- Id of the last completion of versions that stored the facts about a row with a context under its
-- key alone.
ALTER TABLE journal ADD COLUMN keyed_until INTEGER NOT NULL DEFAULT 0;
UPDATE journal SET keyed_until = (SELECT coalesce(max(id), 0) FROM completion);
