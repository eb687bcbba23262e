-- Files of requests that the user sends: their paths, and the requests that are known to have
-- failed, so that their cells may be exported again. An answer that arrives later is still
-- accepted.
ALTER TABLE parcel ADD COLUMN file TEXT;
ALTER TABLE request ADD COLUMN failed INTEGER NOT NULL DEFAULT 0;
