-- What rules that ask less have to get right: rows that only some joins and filters leave.
CREATE TABLE a (id INTEGER PRIMARY KEY, s TEXT, n INTEGER, j TEXT);
INSERT INTO a VALUES (1, 'Ann', 3, '{"x": "yes"}'), (2, 'Bob', 1, 'no json'), (3, 'Cid', 2, '{"x": "no"}'), (4, 'Dan', NULL, NULL);
CREATE TABLE b (m INTEGER, aid INTEGER, c TEXT);
INSERT INTO b VALUES (1, 1, 'no'), (2, 1, 'yes'), (3, 2, 'no'), (4, 2, 'yes'), (5, 3, 'maybe'), (6, 9, 'yes'), (7, NULL, 'no');
CREATE VIEW v AS SELECT a.id, a.s, b.m, b.c FROM a LEFT JOIN b ON b.aid = a.id WHERE b.m > 1 OR b.m IS NULL;
CREATE TABLE hq_context (c TEXT);
INSERT INTO hq_context VALUES ('pear'), ('apple');
