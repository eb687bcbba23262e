-- Places with what is said of them: texts, arrays of texts, and what is neither.
-- Of 60 places every third has noodles, every fourth a terrace, every fifth is loud.
CREATE TABLE place (id INTEGER PRIMARY KEY, name TEXT, city TEXT, price INTEGER, about TEXT, reviews TEXT, hours TEXT, tags TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
INSERT INTO place SELECT i, printf('Place %02d', i), CASE i % 4 WHEN 0 THEN 'Oslo' WHEN 1 THEN 'Rome' WHEN 2 THEN 'Bern' ELSE 'Graz' END,
  (i * 17) % 60,
  printf('Place %02d, described at length. ', i) || CASE WHEN i % 3 = 0 THEN 'They have noodles.' ELSE 'They have bread.' END,
  json_array(printf('A first review of %02d.', i),
    CASE WHEN i % 4 = 0 THEN 'We sat on the terrace.' ELSE 'We sat inside.' END,
    CASE WHEN i % 5 = 0 THEN 'It is loud!' ELSE 'It is quiet.' END),
  CASE i % 3 WHEN 0 THEN '9 AM to 5 PM' WHEN 1 THEN '11 AM to 11 PM' ELSE 'noon to 9 PM' END,
  CASE i % 3 WHEN 0 THEN '["asian","noodles"]' WHEN 1 THEN '["bakery"]' ELSE '[]' END
FROM n;
-- One text for two places, and one array that is one text.
CREATE TABLE odd (id INTEGER PRIMARY KEY, what TEXT, doc);
INSERT INTO odd VALUES
  (1, 'null', NULL), (2, 'empty', ''), (3, 'blanks', '  '), (4, 'no elements', '[]'), (5, 'empty elements', '["", null]'),
  (6, 'text', 'noodles'), (7, 'one element', '["noodles"]'), (8, 'blanks around', ' noodles '), (9, 'broken array', '[noodles'),
  (10, 'object', '{"a": "noodles"}'), (11, 'number', 42), (12, 'bytes', x'6e6f6f646c6573ff'), (13, 'no text', CAST(x'ff6e' AS TEXT)),
  (14, 'nested', '["rice", ["noodles", "x"]]');
CREATE TABLE visitor (name TEXT, place_id INTEGER);
INSERT INTO visitor VALUES ('Ann', 3), ('Ann', 4), ('Bob', 5), ('Bob', 60), ('Cid', 7), ('Dora', NULL);
