-- Names and values as they should not be and are.
CREATE TABLE "order" ("select" TEXT, "group by" INTEGER, "from" TEXT);
INSERT INTO "order" VALUES ('Alpha', 1, 'x'), ('Beta', 2, 'y'), ('Gamma', 3, 'x');
CREATE TABLE "two words" ("first name" TEXT, "last.name" TEXT, "it's" TEXT, "say ""hi""" TEXT, "a]b" TEXT, "tick`s" TEXT, "naïve ñ" TEXT);
INSERT INTO "two words" VALUES ('Ann', 'Abel', 'one', 'two', 'three', 'four', 'five'), ('Bo', 'Brandt', 'uno', 'due', 'tre', 'quattro', 'cinque');
CREATE TABLE "a.b" (c TEXT);
INSERT INTO "a.b" VALUES ('dotted'), ('table');
CREATE TABLE "it's" (v TEXT);
INSERT INTO "it's" VALUES ('apostrophe');
CREATE TABLE "{{curly}}" (v TEXT);
INSERT INTO "{{curly}}" VALUES ('brace');
CREATE TABLE CamelCase (MixedName TEXT, UPPER TEXT);
INSERT INTO CamelCase VALUES ('One', 'eins'), ('Two', 'zwei');
-- Names that an engine might take for its own.
CREATE TABLE t (a TEXT);
INSERT INTO t VALUES ('user table t'), ('stays');
CREATE TABLE temp_hqdl (a TEXT);
INSERT INTO temp_hqdl VALUES ('user table');
CREATE TABLE hqdl_map (a TEXT);
INSERT INTO hqdl_map VALUES ('user map');
CREATE TABLE call (llmmap TEXT, hqdl TEXT);
INSERT INTO call VALUES ('apple', 'avocado'), ('banana', 'blueberry');
CREATE TABLE norowid (code TEXT PRIMARY KEY, title TEXT) WITHOUT ROWID;
INSERT INTO norowid VALUES ('a1', 'Amber'), ('b2', 'Beryl'), ('c3', 'Coral'), ('d4', NULL);
CREATE TABLE two_keys (a TEXT, b INTEGER, v TEXT, PRIMARY KEY (a, b)) WITHOUT ROWID;
INSERT INTO two_keys VALUES ('x', 1, 'Ash'), ('x', 2, 'Birch'), ('y', 1, 'Alder');
-- A column declared one way and its neighbour another; every storage class.
CREATE TABLE mixed (id INTEGER PRIMARY KEY, n INTEGER, v);
INSERT INTO mixed VALUES (1, 10, 'abc'), (2, 20, 12), (3, 30, 12.5), (4, 40, NULL), (5, 50, ''), (6, 60, 'abc'),
  (7, 70, '12'), (8, 80, 'two
lines'), (9, 90, '  abc  '), (10, 100, 'Ünïcödé'), (11, 110, 0), (12, 120, -3), (13, 130, 12.0);
CREATE TABLE bytes (id INTEGER PRIMARY KEY, b BLOB, t TEXT);
INSERT INTO bytes VALUES (1, x'00ff10', 'one'), (2, NULL, 'two'), (3, x'616263', 'three'), (4, 'text', 'four');
CREATE TABLE event (id INTEGER PRIMARY KEY, title TEXT, day TEXT, at REAL);
INSERT INTO event VALUES (1, 'Opening', '2019-12-31', 1.5), (2, 'Match', '2020-01-01', 2.25), (3, 'Closing', '2020-06-15', 3.0), (4, 'Unknown', NULL, NULL);
CREATE TABLE doc (id INTEGER PRIMARY KEY, body TEXT);
INSERT INTO doc VALUES (1, '{"name": "Ann", "tags": ["a", "b"]}'), (2, '{"name": "Bob", "tags": []}');
CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT);
INSERT INTO note VALUES (1, 'what :x ?'), (2, '{{LLMMap(''q'', note.text)}}'), (3, '-- no comment'), (4, 'it''s; DROP TABLE note'), (5, '"quoted"'), (6, '/* not */ a comment');
CREATE VIEW v_mixed AS SELECT v AS value, typeof(v) AS kind FROM mixed;
CREATE VIRTUAL TABLE search USING fts5(title, body);
INSERT INTO search VALUES ('Apples', 'red and green'), ('Bananas', 'yellow fruit'), ('Cherries', 'red fruit');
CREATE TABLE generated (a TEXT, b TEXT GENERATED ALWAYS AS (upper(a)) VIRTUAL);
INSERT INTO generated (a) VALUES ('first'), ('second');
CREATE TABLE w (name TEXT, "Won?" TEXT, "Oh!" TEXT, "a;b" TEXT, "{set}" TEXT, "it's" TEXT, "b`t" TEXT, "q""q" TEXT, "x::y" TEXT);
INSERT INTO w VALUES ('n', 'won', 'oh', 'semi', 'set', 'its', 'tick', 'quote', 'colons');
