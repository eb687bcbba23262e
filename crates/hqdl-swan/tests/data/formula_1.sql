-- A Formula 1 database in BIRD's form, made up: every question of SWAN's has an answer in it.
CREATE TABLE circuits (circuitId INTEGER PRIMARY KEY, circuitRef TEXT, name TEXT, location TEXT, country TEXT, lat REAL, lng REAL, alt INTEGER, url TEXT UNIQUE);
CREATE TABLE constructors (constructorId INTEGER PRIMARY KEY, constructorRef TEXT, name TEXT UNIQUE, nationality TEXT, url TEXT);
CREATE TABLE drivers (driverId INTEGER PRIMARY KEY, driverRef TEXT, number INTEGER, code TEXT, forename TEXT, surname TEXT, dob DATE, nationality TEXT, url TEXT UNIQUE);
CREATE TABLE seasons (year INTEGER NOT NULL PRIMARY KEY, url TEXT NOT NULL UNIQUE);
CREATE TABLE races (raceId INTEGER PRIMARY KEY, year INTEGER, round INTEGER, circuitId INTEGER REFERENCES circuits (circuitId), name TEXT, date DATE, time TEXT, url TEXT UNIQUE);
CREATE TABLE results (raceId INTEGER, driverId INTEGER, time TEXT, fastestLapTime TEXT, fastestLapSpeed TEXT);
CREATE TABLE lapTimes (raceId INTEGER, driverId INTEGER, lap INTEGER, time TEXT);
CREATE TABLE qualifying (raceId INTEGER, driverId INTEGER, q2 TEXT, q3 TEXT);
CREATE TABLE driverStandings (raceId INTEGER, driverId INTEGER, points REAL, wins INTEGER);
CREATE TABLE constructorResults (raceId INTEGER, constructorId INTEGER, points REAL);
CREATE TABLE n AS WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 990) SELECT i FROM n;
INSERT INTO circuits SELECT i, 'c' || i,
  CASE i WHEN 1 THEN 'Circuit de Barcelona-Catalunya' WHEN 2 THEN 'Sepang International Circuit' WHEN 3 THEN 'Brands Hatch' ELSE 'Ring ' || i END,
  CASE i WHEN 4 THEN 'Shanghai' ELSE 'Town ' || i END,
  CASE i % 6 WHEN 0 THEN 'Germany' WHEN 1 THEN 'Spain' WHEN 2 THEN 'Malaysia' WHEN 3 THEN 'UK' WHEN 4 THEN 'China' ELSE 'USA' END,
  i * 1.37 - 20, 100 - i * 3.21, 7, 'http://en.wikipedia.org/wiki/Ring_' || i FROM n WHERE i <= 24;
INSERT INTO constructors SELECT i, 't' || i, 'Team ' || i, CASE i % 3 WHEN 0 THEN 'Italian' ELSE 'British' END, 'http://en.wikipedia.org/wiki/Team_' || i FROM n WHERE i <= 14;
INSERT INTO drivers SELECT i, 'd' || i, i, CASE WHEN i % 3 > 0 THEN 'C' || (i + 10) END, 'Fore' || i, CASE i WHEN 5 THEN 'O''Hara' ELSE 'Sur' || i END,
  date('1940-01-01', '+' || (i * 437) || ' days'), CASE i % 4 WHEN 0 THEN 'Japanese' WHEN 1 THEN 'British' ELSE 'German' END, 'http://en.wikipedia.org/wiki/Driver_' || i FROM n WHERE i <= 60;
INSERT INTO seasons SELECT 1949 + i, 'http://en.wikipedia.org/wiki/' || (1949 + i) || '_season' FROM n WHERE i <= 66;
INSERT INTO races SELECT i, 1950 + (i - 1) / 15, (i - 1) % 15 + 1, (i * 7) % 24 + 1,
  CASE (i - 1) % 15 WHEN 0 THEN 'Australian' WHEN 1 THEN 'Malaysian' WHEN 2 THEN 'British' WHEN 3 THEN 'Abu Dhabi' ELSE 'Prize ' || ((i - 1) % 15) END || ' Grand Prix',
  date((1950 + (i - 1) / 15) || '-03-01', '+' || (14 * ((i - 1) % 15)) || ' days'), '', 'http://en.wikipedia.org/wiki/Race_' || i FROM n;
UPDATE races SET date = '1983-07-16' WHERE year = 1983 AND round = 10;
UPDATE races SET date = '2015-11-29' WHERE year = 2015 AND round = 15;
UPDATE races SET circuitId = 3 WHERE name = 'British Grand Prix' AND year % 2 = 0;
INSERT INTO results SELECT r.i, (r.i * 3 + k.i) % 60 + 1, CASE WHEN k.i % 3 > 0 THEN '1:3' || k.i END, CASE WHEN k.i % 5 > 0 THEN '1:2' || k.i END, 150 + r.i * 0.02 + k.i * 0.001
  FROM n AS r, n AS k WHERE k.i <= 15;
INSERT INTO qualifying SELECT r.i, k.i, CASE WHEN r.i = 355 AND k.i = 7 THEN '1:40.1' WHEN r.i = 347 AND k.i = 8 THEN '1:15.2' ELSE '1:20.0' END,
  CASE WHEN r.i = 45 AND k.i = 10 THEN '1:33.3' END FROM n AS r, n AS k WHERE k.i <= 12 AND r.i < 400;
INSERT INTO lapTimes SELECT 161, i, 1, CASE i WHEN 5 THEN '1:27.5' ELSE '1:30.0' END FROM n WHERE i <= 12;
INSERT INTO driverStandings SELECT k.i, d.i, d.i * 2.5 + k.i, 1 FROM n AS d, n AS k WHERE d.i <= 60 AND k.i <= d.i;
INSERT INTO constructorResults SELECT 9, i, i FROM n WHERE i <= 14 UNION ALL SELECT 24, 3, 1 UNION ALL SELECT 24, 4, 2;
DROP TABLE n;
