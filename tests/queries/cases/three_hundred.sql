-- 300 values: 17 groups of equal size, 10 groups of equal size, and groups of which two are large.
-- A third of the names starts with A.
CREATE TABLE r (id INTEGER PRIMARY KEY, name TEXT NOT NULL, grp TEXT NOT NULL, ten TEXT NOT NULL,
  big TEXT NOT NULL, oid INTEGER NOT NULL, x INTEGER NOT NULL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
INSERT INTO r SELECT i, char(65 + i % 3) || i, 'g' || (i % 17), 't' || (i % 10),
  'b' || CASE WHEN i <= 45 THEN 1 WHEN i <= 77 THEN 2 ELSE 3 + i % 20 END, 1 + i * 5 % 34, i * 77 % 307 FROM n;
CREATE TABLE o (id INTEGER PRIMARY KEY, label TEXT NOT NULL);
INSERT INTO o SELECT DISTINCT oid, 'o' || oid FROM r;
CREATE TABLE small (name TEXT NOT NULL);
INSERT INTO small SELECT name FROM r WHERE id % 11 = 0;
