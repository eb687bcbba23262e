-- The last journal row that replaced a value of this meaning. Tables published before it are
-- outdated.
ALTER TABLE meaning ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
