-- Shapes that break assumptions: collations, untyped numbers, ties, rows without partners.
CREATE TABLE g (id INTEGER PRIMARY KEY, k TEXT COLLATE NOCASE, v TEXT, n INTEGER);
INSERT INTO g VALUES (1, 'Ab', 'one', 1), (2, 'aB', 'two', 2), (3, 'AB', 'three', 3), (4, 'b', 'four', 4), (5, 'B', 'five', 5);
CREATE TABLE l (id INTEGER PRIMARY KEY, a TEXT, n INTEGER, in2 INTEGER, by1 INTEGER);
INSERT INTO l VALUES (1, 'alpha', 3, 1, 1), (2, 'beta', 1, 0, 1), (3, 'gamma', NULL, 1, 0), (4, 'delta', 2, 1, 1), (5, NULL, 3, 0, 0), (6, 'alma', 1, 1, 1), (7, 'zeta', NULL, 1, 1);
CREATE TABLE m (id INTEGER PRIMARY KEY, lid INTEGER, c TEXT, d INTEGER, n INTEGER);
INSERT INTO m VALUES (1, 1, 'ant', 5, 3), (2, 1, 'bee', 4, 1), (3, 2, 'cat', 9, 2), (4, 2, 'dog', 1, 8), (5, 9, 'eel', 7, 3),
  (6, 4, 'fox', 2, NULL), (7, NULL, 'gnu', 3, 1), (8, 1, 'ape', 6, 2), (9, 6, 'asp', 8, 3), (10, 3, NULL, 9, 3);
CREATE TABLE x (v, w TEXT);
INSERT INTO x VALUES (1, 'one'), (1.0, 'uno'), (2, 'two'), (2.5, 'half'), ('2', 'text'), (NULL, 'none'), (3, 'three');
CREATE TABLE js (id INTEGER PRIMARY KEY, j TEXT, a TEXT);
INSERT INTO js VALUES (1, '{"t": "apple", "u": [1,2]}', 'apple'), (2, 'no json', 'bear'), (3, '{"t": "cat"}', 'ant'), (4, NULL, 'axe');
CREATE TABLE none (a TEXT, n INTEGER);
