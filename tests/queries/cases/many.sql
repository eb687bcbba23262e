-- Enough rows for what is asked to matter: 400 items, names all different, the
-- first letter going round A to H (Alpha is 1, 9, 17 …), 25 makers, 5 kinds.
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, kind TEXT, price INTEGER, note TEXT, maker_id INTEGER);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
INSERT INTO item SELECT i,
  CASE i % 8 WHEN 1 THEN 'Alpha' WHEN 2 THEN 'Bravo' WHEN 3 THEN 'Cargo' WHEN 4 THEN 'Delta' WHEN 5 THEN 'Echo'
    WHEN 6 THEN 'Fox' WHEN 7 THEN 'Golf' ELSE 'Hotel' END || printf(' %03d', i),
  'kind ' || (i % 5), (i * 37) % 400, CASE WHEN i % 10 <> 0 THEN 'note ' || (i % 40) END, i % 25
FROM n;
CREATE TABLE maker (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 24)
INSERT INTO maker SELECT i, char(65 + i) || ' Works', CASE i % 3 WHEN 0 THEN 'NO' WHEN 1 THEN 'IT' ELSE 'AT' END FROM n;
-- Two visits an item.
CREATE TABLE visit (item_id INTEGER, day INTEGER);
INSERT INTO visit SELECT id, id % 30 FROM item UNION ALL SELECT id, (id + 7) % 30 FROM item;
CREATE TABLE edge (parent INTEGER, child INTEGER);
INSERT INTO edge SELECT id / 2, id FROM item WHERE id BETWEEN 2 AND 31;
