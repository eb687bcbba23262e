-- Demo database of hqdl: well-known characters and the values they may take.
-- Which character has which publisher, colours, race, gender, alignment and
-- powers is left out on purpose: those are the columns hqdl fills in.
-- Build:  rm -f superhero.sqlite && sqlite3 superhero.sqlite < superhero.sql

BEGIN;

CREATE TABLE superhero (
    id             INTEGER PRIMARY KEY,
    superhero_name TEXT NOT NULL,
    full_name      TEXT,     -- NULL: the character has no other name
    height_cm      INTEGER,  -- NULL: not well known
    weight_kg      INTEGER   -- NULL: not well known
);

INSERT INTO superhero (id, superhero_name, full_name, height_cm, weight_kg) VALUES
    (1, 'Abe Sapien', 'Langdon Everett Caul', NULL, NULL),
    (2, 'Ant-Man', 'Hank Pym', 183, 84),
    (3, 'Aquaman', 'Arthur Curry', 185, 147),
    (4, 'Barb Wire', 'Barbara Kopetski', NULL, NULL),
    (5, 'Batman', 'Bruce Wayne', 188, 95),
    (6, 'Beast', 'Hank McCoy', 180, 182),
    (7, 'Black Canary', 'Dinah Lance', 170, NULL),
    (8, 'Black Panther', 'T''Challa', 183, 91),
    (9, 'Black Widow', 'Natasha Romanoff', 170, 59),
    (10, 'Bloodshot', 'Ray Garrison', NULL, NULL),
    (11, 'Buffy', 'Buffy Anne Summers', NULL, NULL),
    (12, 'Captain America', 'Steve Rogers', 188, 109),
    (13, 'Catwoman', 'Selina Kyle', 175, 61),
    (14, 'Cyborg', 'Victor Stone', 198, 175),
    (15, 'Daredevil', 'Matt Murdock', 183, 91),
    (16, 'Darkseid', 'Uxas', 267, 824),
    (17, 'Darth Vader', 'Anakin Skywalker', 202, 136),
    (18, 'Data', NULL, 180, 100),
    (19, 'Deadpool', 'Wade Wilson', 188, 95),
    (20, 'Doctor Doom', 'Victor von Doom', 188, 102),
    (21, 'Doctor Strange', 'Stephen Strange', 189, 82),
    (22, 'Donatello', 'Hamato Donatello', NULL, NULL),
    (23, 'Doomsday', NULL, 244, NULL),
    (24, 'Ellen Ripley', 'Ellen Louise Ripley', NULL, NULL),
    (25, 'Flash', 'Barry Allen', 183, 88),
    (26, 'Goku', 'Son Goku', 175, 62),
    (27, 'Green Goblin', 'Norman Osborn', 180, 84),
    (28, 'Green Lantern', 'Hal Jordan', 188, 90),
    (29, 'Green Lantern', 'John Stewart', 185, NULL),
    (30, 'Groot', NULL, NULL, NULL),
    (31, 'Harley Quinn', 'Harleen Quinzel', 170, 64),
    (32, 'Harry Potter', 'Harry James Potter', NULL, NULL),
    (33, 'Hellboy', 'Anung Un Rama', NULL, NULL),
    (34, 'Hermione Granger', 'Hermione Jean Granger', NULL, NULL),
    (35, 'Hulk', 'Bruce Banner', 244, 635),
    (36, 'Human Torch', 'Johnny Storm', 178, 77),
    (37, 'Iceman', 'Bobby Drake', 173, 66),
    (38, 'Indiana Jones', 'Henry Walton Jones, Jr.', 185, NULL),
    (39, 'Invincible', 'Mark Grayson', NULL, NULL),
    (40, 'Invisible Woman', 'Susan Storm', 168, 54),
    (41, 'Iron Man', 'Tony Stark', 185, 102),
    (42, 'Joker', 'Jack Napier', 196, 86),
    (43, 'Judge Anderson', 'Cassandra Anderson', NULL, NULL),
    (44, 'Leonardo', 'Hamato Leonardo', NULL, NULL),
    (45, 'Lex Luthor', 'Alexander Joseph Luthor', 188, 95),
    (46, 'Loki', 'Loki Laufeyson', 193, 238),
    (47, 'Lord Voldemort', 'Tom Marvolo Riddle', NULL, NULL),
    (48, 'Luffy', 'Monkey D. Luffy', 174, NULL),
    (49, 'Luke Skywalker', 'Luke Skywalker', 172, 77),
    (50, 'Magneto', 'Max Eisenhardt', 188, 86),
    (51, 'Martian Manhunter', 'J''onn J''onzz', 201, 136),
    (52, 'Mister Fantastic', 'Reed Richards', 185, 82),
    (53, 'Mystique', 'Raven Darkhölme', 178, 54),
    (54, 'Naruto', 'Naruto Uzumaki', 166, 51),
    (55, 'Nightcrawler', 'Kurt Wagner', 175, 73),
    (56, 'Poison Ivy', 'Pamela Isley', 168, 50),
    (57, 'Professor X', 'Charles Xavier', 183, 86),
    (58, 'Ra''s al Ghul', 'Ra''s al Ghul', 196, 98),
    (59, 'Sailor Moon', 'Usagi Tsukino', 150, NULL),
    (60, 'Spawn', 'Al Simmons', NULL, NULL),
    (61, 'Spider-Man', 'Miles Morales', 173, NULL),
    (62, 'Spider-Man', 'Peter Parker', 178, 76),
    (63, 'Spock', 'S''chn T''gai Spock', 185, NULL),
    (64, 'Storm', 'Ororo Munroe', 180, 66),
    (65, 'Supergirl', 'Kara Zor-El', 165, 54),
    (66, 'Superman', 'Clark Kent', 191, 107),
    (67, 'Thanos', 'Thanos', 201, 447),
    (68, 'Thor', 'Thor Odinson', 198, 290),
    (69, 'Vision', 'Victor Shade', 191, 136),
    (70, 'Wolverine', 'James Howlett', 160, 136),
    (71, 'Wonder Woman', 'Diana Prince', 183, 75),
    (72, 'Yoda', NULL, 66, 17);

CREATE TABLE publisher (
    id             INTEGER PRIMARY KEY,
    publisher_name TEXT UNIQUE NOT NULL
);

INSERT INTO publisher (id, publisher_name) VALUES
    (1, '20th Century Fox'),
    (2, 'Archie Comics'),
    (3, 'Bloomsbury'),
    (4, 'Dark Horse Comics'),
    (5, 'DC Comics'),
    (6, 'Dynamite Entertainment'),
    (7, 'IDW Publishing'),
    (8, 'Image Comics'),
    (9, 'Kodansha'),
    (10, 'Lucasfilm'),
    (11, 'Marvel Comics'),
    (12, 'Paramount'),
    (13, 'Rebellion'),
    (14, 'Shueisha'),
    (15, 'Valiant Comics');

CREATE TABLE colour (
    id     INTEGER PRIMARY KEY,
    colour TEXT UNIQUE NOT NULL
);

INSERT INTO colour (id, colour) VALUES
    (1, 'No Colour'),
    (2, 'Amber'),
    (3, 'Auburn'),
    (4, 'Black'),
    (5, 'Blond'),
    (6, 'Blue'),
    (7, 'Bronze'),
    (8, 'Brown'),
    (9, 'Gold'),
    (10, 'Green'),
    (11, 'Grey'),
    (12, 'Hazel'),
    (13, 'Indigo'),
    (14, 'Orange'),
    (15, 'Pink'),
    (16, 'Purple'),
    (17, 'Red'),
    (18, 'Silver'),
    (19, 'Turquoise'),
    (20, 'Violet'),
    (21, 'White'),
    (22, 'Yellow');

CREATE TABLE race (
    id   INTEGER PRIMARY KEY,
    race TEXT UNIQUE NOT NULL
);

INSERT INTO race (id, race) VALUES
    (1, 'Altered Human'),
    (2, 'Amazon'),
    (3, 'Android'),
    (4, 'Asgardian'),
    (5, 'Atlantean'),
    (6, 'Cyborg'),
    (7, 'Demon'),
    (8, 'Eternal'),
    (9, 'Flora Colossus'),
    (10, 'Frost Giant'),
    (11, 'Human'),
    (12, 'Inhuman'),
    (13, 'Kryptonian'),
    (14, 'Martian'),
    (15, 'Metahuman'),
    (16, 'Mutant'),
    (17, 'New God'),
    (18, 'Saiyan'),
    (19, 'Vampire'),
    (20, 'Viltrumite'),
    (21, 'Vulcan'),
    (22, 'Yoda''s Species');

CREATE TABLE gender (
    id     INTEGER PRIMARY KEY,
    gender TEXT UNIQUE NOT NULL
);

INSERT INTO gender (id, gender) VALUES
    (1, 'Male'),
    (2, 'Female'),
    (3, 'None');

CREATE TABLE alignment (
    id        INTEGER PRIMARY KEY,
    alignment TEXT UNIQUE NOT NULL
);

INSERT INTO alignment (id, alignment) VALUES
    (1, 'Good'),
    (2, 'Bad'),
    (3, 'Neutral');

CREATE TABLE superpower (
    id         INTEGER PRIMARY KEY,
    power_name TEXT UNIQUE NOT NULL
);

INSERT INTO superpower (id, power_name) VALUES
    (1, 'Agility'),
    (2, 'Animal Communication'),
    (3, 'Claws'),
    (4, 'Cold Control'),
    (5, 'Danger Sense'),
    (6, 'Duplication'),
    (7, 'Durability'),
    (8, 'Elasticity'),
    (9, 'Electricity Control'),
    (10, 'Energy Blasts'),
    (11, 'Fire Control'),
    (12, 'Flight'),
    (13, 'Force Fields'),
    (14, 'Gadgets'),
    (15, 'Heat Vision'),
    (16, 'Illusions'),
    (17, 'Immortality'),
    (18, 'Intangibility'),
    (19, 'Intelligence'),
    (20, 'Invisibility'),
    (21, 'Invulnerability'),
    (22, 'Magic'),
    (23, 'Magnetism'),
    (24, 'Marksmanship'),
    (25, 'Martial Arts'),
    (26, 'Mind Control'),
    (27, 'Necromancy'),
    (28, 'Plant Control'),
    (29, 'Powered Armour'),
    (30, 'Regeneration'),
    (31, 'Shapeshifting'),
    (32, 'Size Changing'),
    (33, 'Sonic Scream'),
    (34, 'Stealth'),
    (35, 'Super Senses'),
    (36, 'Super Speed'),
    (37, 'Super Strength'),
    (38, 'Swordsmanship'),
    (39, 'Telekinesis'),
    (40, 'Telepathy'),
    (41, 'Teleportation'),
    (42, 'The Force'),
    (43, 'Time Travel'),
    (44, 'Wall Crawling'),
    (45, 'Water Breathing'),
    (46, 'Weather Control'),
    (47, 'Web Creation'),
    (48, 'X-Ray Vision');

COMMIT;

VACUUM;
