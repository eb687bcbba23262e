-- A small database of heroes nobody drew: duplicates, NULLs, fan-out.
CREATE TABLE publisher (id INTEGER PRIMARY KEY, name TEXT, founded INTEGER);
INSERT INTO publisher VALUES (1, 'Harbour', 1939), (2, 'Dawn', 1961), (3, 'Quill', 1986), (4, NULL, NULL);
CREATE TABLE hero (id INTEGER PRIMARY KEY, name TEXT, full_name TEXT, height INTEGER, city TEXT, publisher_id INTEGER, boss_id INTEGER);
INSERT INTO hero VALUES
  (1, 'Abacus', 'Ann Abel', 170, 'Oslo', 1, NULL),
  (2, 'Anvil', 'Bo Brandt', 195, 'Bergen', 1, 1),
  (3, 'Blaze', 'Ann Fire', 170, 'Oslo', 2, 1),
  (4, 'Blaze', 'Bob Fire', 176, 'Turin', 2, 3),
  (5, 'Captain O''Malley', 'Sean O''Malley', 181, 'Cork', 1, NULL),
  (6, 'Doctor, the', 'Smith, John', 175, NULL, 3, 5),
  (7, 'Dwayne "Rock" Stone', 'Dwayne Stone', 190, 'Oslo', 3, 5),
  (8, 'Echo', NULL, 160, 'Turin', 2, 3),
  (9, 'Échappée', 'Zoé Müller', 168, 'Paris', NULL, 8),
  (10, 'Frost', 'Fay Frost', NULL, 'Oslo', 1, 1),
  (11, 'Gale', 'Gil Gale', 201, 'Bergen', 2, 2),
  (12, NULL, 'Nobody', 150, 'Cork', 4, NULL),
  (13, 'Zed', 'Zed Zedsson', 210, 'Zagreb', 3, 1);
CREATE TABLE power (hero_id INTEGER, power TEXT);
INSERT INTO power VALUES (1, 'Memory'), (2, 'Strength'), (2, 'Armour'), (3, 'Fire'), (3, 'Flight'), (4, 'Fire'),
  (5, 'Strength'), (7, 'Armour'), (7, 'Strength'), (8, 'Voice'), (11, 'Flight'), (11, 'Wind'), (13, 'Flight'), (13, NULL);
CREATE TABLE city (name TEXT PRIMARY KEY, country TEXT);
INSERT INTO city VALUES ('Oslo', 'Norway'), ('Bergen', 'Norway'), ('Turin', 'Italy'), ('Cork', 'Ireland'),
  ('Paris', 'France'), ('Vienna', 'Austria');
-- Names of the same things, as another source spells them.
CREATE TABLE alias (alias TEXT);
INSERT INTO alias VALUES ('Oslo'), ('Ottawa'), ('Berlin'), ('Cork'), ('Cairo'), (NULL);
CREATE TABLE empty (x TEXT, y INTEGER);
CREATE VIEW tall AS SELECT id, name, height FROM hero WHERE height > 180;
CREATE VIEW pair AS SELECT h.name AS hero, p.name AS publisher FROM hero AS h JOIN publisher AS p ON p.id = h.publisher_id;
