//! A small database of SWAN with its questions.

/// Tables and rows of a small `superhero`.
pub const SUPERHERO: &str = "
CREATE TABLE alignment (id INTEGER NOT NULL PRIMARY KEY, alignment TEXT);
CREATE TABLE attribute (id INTEGER NOT NULL PRIMARY KEY, attribute_name TEXT);
CREATE TABLE colour (id INTEGER NOT NULL PRIMARY KEY, colour TEXT);
CREATE TABLE gender (id INTEGER NOT NULL PRIMARY KEY, gender TEXT);
CREATE TABLE publisher (id INTEGER NOT NULL PRIMARY KEY, publisher_name TEXT);
CREATE TABLE race (id INTEGER NOT NULL PRIMARY KEY, race TEXT);
CREATE TABLE superhero (id INTEGER NOT NULL PRIMARY KEY, superhero_name TEXT, full_name TEXT,
  gender_id INTEGER, eye_colour_id INTEGER, hair_colour_id INTEGER, skin_colour_id INTEGER, race_id INTEGER,
  publisher_id INTEGER, alignment_id INTEGER, height_cm INTEGER DEFAULT 170, weight_kg INTEGER,
  FOREIGN KEY (alignment_id) REFERENCES alignment (id), FOREIGN KEY (gender_id) REFERENCES gender (id));
CREATE INDEX by_height ON superhero (height_cm);
CREATE INDEX by_race ON superhero (race_id, height_cm);
CREATE TABLE hero_attribute (hero_id INTEGER REFERENCES superhero (id), attribute_id INTEGER, attribute_value INTEGER);
CREATE TABLE superpower (id INTEGER NOT NULL PRIMARY KEY, power_name TEXT);
CREATE TABLE hero_power (hero_id INTEGER, power_id INTEGER);
INSERT INTO alignment VALUES (1, 'Good'), (2, 'Bad');
INSERT INTO attribute VALUES (1, 'Speed');
INSERT INTO colour VALUES (1, 'Blue'), (2, 'Brown');
INSERT INTO gender VALUES (1, 'Male'), (2, 'Female'), (3, 'N/A');
INSERT INTO publisher VALUES (1, 'Marvel Comics'), (2, 'DC Comics');
INSERT INTO race VALUES (1, '-'), (2, 'Human');
INSERT INTO superpower VALUES (1, 'Flight'), (2, 'Agility');
INSERT INTO superhero VALUES
  (1, 'Kept', 'Ann', 1, 1, 1, 1, 1, 1, 1, 180, 80),
  (2, 'No race', 'Bob', 1, 1, 1, 1, NULL, 1, 1, 180, 80),
  (3, 'No publisher', 'Cid', 1, 1, 1, 1, 1, NULL, 1, 180, 80),
  (4, 'No alignment', 'Dan', 1, 1, 1, 1, 1, 1, NULL, 180, 80),
  (5, 'No gender', 'Eve', 3, 1, 1, 1, 1, 1, 1, 180, 80),
  (6, 'Twice', 'Fay', 1, 1, 1, 1, 1, 1, 1, 180, 80),
  (7, 'Twice', 'Fay', 2, 1, 1, 1, 1, 1, 1, 180, 80),
  (8, 'Twice', 'Gil', 2, 1, 1, 1, 1, 1, 1, 190, 80),
  (9, 'Once', NULL, 2, 1, 1, 1, 1, 1, 1, 150, 80),
  (10, 'Once', NULL, 2, 1, 1, 1, 2, NULL, 1, 150, 80);
INSERT INTO hero_power VALUES (1, 1), (2, 1), (8, 1), (8, 2);
INSERT INTO hero_attribute VALUES (1, 1, 10), (5, 1, 10);
";

/// One question per line: name, gold query, HQDL's query, `BlendSQL`'s query.
pub const QUESTIONS: [[&str; 4]; 5] = [
    [
        "superhero-00",
        "SELECT count(*) FROM superhero JOIN gender ON gender.id = gender_id WHERE gender = 'Female'",
        "SELECT count(*) FROM superhero JOIN llm USING (superhero_name) WHERE gender = 'Female'",
        "SELECT count(*) FROM superhero WHERE {{LLMMap('Is the hero female?', 'superhero::superhero_name')}} = TRUE",
    ],
    [
        "superhero-01",
        "SELECT superhero_name FROM superhero JOIN hero_power ON hero_id = superhero.id JOIN superpower AS p ON p.id = power_id WHERE power_name = 'Flight'",
        "SELECT superhero_name FROM llm_hero_2_power WHERE power_name = 'Flight'",
        "SELECT superhero_name FROM superhero WHERE {{LLMMap('Does the hero has Flight power?', 'superhero::superhero_name')}} = TRUE",
    ],
    [
        "superhero-02",
        "SELECT superhero_name FROM superhero ORDER BY height_cm DESC",
        "SELEKT superhero_name",
        "SELECT superhero_name FROM superhero WHERE {{LLMMap('Is it', }}",
    ],
    [
        "superhero-03",
        "SELECT superhero_name FROM superhero ORDER BY height_cm DESC",
        "SELECT superhero_name FROM superhero ORDER BY height_cm",
        "SELECT superhero_name FROM superhero WHERE {{LLMMap('Is this one tall?', 'superhero::superhero_name')}}",
    ],
    ["superhero-04", "SELECT x FROM nowhere", "SELECT 1", ""],
];

/// Returns a line of a CSV file.
pub fn line(fields: &[&str]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields).unwrap();
    String::from_utf8(writer.into_inner().unwrap()).unwrap()
}

/// Returns the questions as CSV, with or without `BlendSQL`'s queries.
pub fn questions(header: bool) -> String {
    let mut text = String::new();
    if header {
        text += "qid,question,evidence,difficulty,gold_sql,hqdl_sql,blendsql_2024\n";
    }
    for [qid, gold, hqdl, blendsql] in QUESTIONS {
        text += &line(&[qid, "Which, \"if\" any?", "by heart", "simple", gold, hqdl, blendsql]);
    }
    text
}
