-- Id of the last completion of versions that stored the facts about a row with a context under its
-- key alone.
ALTER TABLE hqdl.head ADD COLUMN keyed_until bigint NOT NULL DEFAULT 0;
UPDATE hqdl.head SET keyed_until = completion;
