-- What an answer was when it was kept: a checksum of its entity (the upper half)
-- and of all that it says, with the model that said it (the lower half). One that
-- is not what it was is told, and asked again. Answers kept by versions without
-- checksums are taken as they are, and have none until somebody opens them here.
ALTER TABLE answer ADD COLUMN checksum INTEGER;
UPDATE answer SET checksum = hqdl_checksum(
  entity, completion, (SELECT model FROM completion AS c WHERE c.id = answer.completion), cells);
