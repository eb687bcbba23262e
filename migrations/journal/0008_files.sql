-- Files of requests that somebody else sends: where each was written, and which
-- of its requests are known to have failed there, so that their cells may be
-- written again. An answer that comes all the same is taken in.
ALTER TABLE parcel ADD COLUMN file TEXT;
ALTER TABLE request ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
