-- The last line of the journal that put something else in the place of a value
-- of this meaning: tables published before it are not what is known any more.
ALTER TABLE meaning ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
