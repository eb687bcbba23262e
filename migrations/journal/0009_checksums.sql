-- Checksum of an answer: the upper half covers its entity, the lower half all of it including the
-- model. An answer that does not match its checksum is reported and asked for again. Answers of
-- versions without checksums are accepted as they are, and get a checksum when the journal is
-- opened.
ALTER TABLE answer ADD COLUMN checksum INTEGER;
UPDATE answer SET checksum = hqdl_checksum(
  entity, completion, (SELECT model FROM completion AS c WHERE c.id = answer.completion), cells);
