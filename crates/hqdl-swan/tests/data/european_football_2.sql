-- A football database in BIRD's form, made up: every question of SWAN's has an answer in it.
CREATE TABLE Country (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE);
CREATE TABLE League (id INTEGER PRIMARY KEY AUTOINCREMENT, country_id INTEGER REFERENCES Country (id), name TEXT UNIQUE);
CREATE TABLE Team (id INTEGER PRIMARY KEY AUTOINCREMENT, team_api_id INTEGER UNIQUE, team_fifa_api_id INTEGER, team_long_name TEXT, team_short_name TEXT);
CREATE TABLE Team_Attributes (id INTEGER PRIMARY KEY AUTOINCREMENT, team_api_id INTEGER, buildUpPlaySpeedClass TEXT, buildUpPlayPassing INTEGER, buildUpPlayPassingClass TEXT, chanceCreationPassingClass TEXT);
CREATE TABLE Match (id INTEGER PRIMARY KEY AUTOINCREMENT, country_id INTEGER REFERENCES Country (id), league_id INTEGER, season TEXT, stage INTEGER, date TEXT,
  match_api_id INTEGER UNIQUE, home_team_api_id INTEGER REFERENCES Team (team_api_id), away_team_api_id INTEGER, home_team_goal INTEGER, away_team_goal INTEGER);
CREATE TABLE Player (id INTEGER PRIMARY KEY AUTOINCREMENT, player_api_id INTEGER UNIQUE, player_name TEXT, player_fifa_api_id INTEGER, birthday TEXT, height INTEGER, weight INTEGER);
CREATE TABLE Player_Attributes (id INTEGER PRIMARY KEY AUTOINCREMENT, player_fifa_api_id INTEGER, player_api_id INTEGER, date TEXT, overall_rating INTEGER, preferred_foot TEXT,
  heading_accuracy INTEGER, sprint_speed INTEGER, finishing INTEGER);
CREATE TABLE n AS WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 400) SELECT i FROM n;
INSERT INTO Country VALUES (1, 'Scotland'), (2, 'Netherlands'), (3, 'Poland'), (4, 'Italy'), (5, 'Spain');
INSERT INTO League VALUES (11, 1, 'Scotland Premier League'), (12, 2, 'Netherlands Eredivisie'), (13, 3, 'Poland Ekstraklasa'), (14, 4, 'Italy Serie A'), (15, 5, 'Spain LIGA BBVA');
INSERT INTO Team SELECT i, 1000 + i, i, CASE i WHEN 1 THEN 'Queens Park Rangers' ELSE 'Club ' || i END, CASE i WHEN 2 THEN 'CLB' ELSE 'T' || (i + 10) END FROM n WHERE i <= 40;
INSERT INTO Team_Attributes SELECT NULL, 1000 + (i - 1) % 40 + 1, CASE i % 3 WHEN 0 THEN 'Fast' ELSE 'Slow' END, 40 + i % 45, CASE i % 4 WHEN 0 THEN 'Short' ELSE 'Long' END,
  CASE i % 7 WHEN 0 THEN 'Risky' ELSE 'Normal' END FROM n WHERE i <= 120;
-- League l has 8 teams; the first l of them play each other at home, so that no two leagues tie.
INSERT INTO Match SELECT NULL, l.i, 10 + l.i, (2007 + s.i) || '/' || (2008 + s.i), h.i, date((2007 + s.i) || '-08-01', '+' || (h.i * 8 + a.i) || ' days') || ' 00:00:00',
  s.i * 100000 + l.i * 1000 + h.i * 20 + a.i, 1000 + (l.i - 1) * 8 + h.i, 1000 + (l.i - 1) * 8 + a.i, (l.i + h.i + a.i) % 4, (h.i * 3 + a.i + s.i) % 3
  FROM n AS l, n AS s, n AS h, n AS a WHERE l.i <= 5 AND s.i <= 8 AND h.i <= l.i + 3 AND a.i <= 8 AND a.i <> h.i;
INSERT INTO Player SELECT i, 5000 + i, 'Player ' || i, 7000 + i, date('1970-10-03', '+' || (i * 77) || ' days') || ' 00:00:00', 157.48 + i * 0.254, 120 + (i * 7) % 60 FROM n WHERE i <= 150;
UPDATE Player SET birthday = '1970-10-' || (10 + id) || ' 00:00:00' WHERE id <= 2;
INSERT INTO Player_Attributes SELECT NULL, 7000 + p.i, 5000 + p.i, (2009 + k.i) || '-03-05 00:00:00', CASE WHEN p.i = 33 AND k.i = 2 THEN 99 ELSE 50 + (p.i + k.i) % 40 END,
  CASE p.i % 3 WHEN 0 THEN 'left' ELSE 'right' END, 30 + (p.i * 13 + k.i) % 60, CASE WHEN p.i % 50 = 0 THEN 97 ELSE 60 END, 20 + (p.i * 11 + k.i) % 70
  FROM n AS p, n AS k WHERE p.i <= 150 AND k.i <= 5;
DROP TABLE n;
