//! SWAN's superhero database and the models' real completions of 2024: every
//! cell ends in a state, and nothing that the models knew is lost on the way.
//! The data are not part of this project; without them the tests say so.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::{Connection, OpenFlags};

use crate::engine::shared;

/// The folder of the data, when it is there.
fn data() -> Option<PathBuf> {
    shared("swan")
}

fn truth(swan: &Path) -> Connection {
    Connection::open_with_flags(swan.join("superhero.sqlite"), OpenFlags::SQLITE_OPEN_READ_ONLY)
        .unwrap()
}

/// Materializes the recordings; returns the tables and the `done` event.
fn materialize(swan: &Path, recording: &Path, dir: &Path) -> (Connection, serde_json::Value) {
    let output = dir.join("expanded.sqlite");
    let run = Command::new(env!("CARGO_BIN_EXE_hqdl"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("HQDL_CACHE")
        .args(["materialize", "specs/swan/superhero.toml", "--json", "--no-cache", "--db"])
        .arg(swan.join("superhero.sqlite"))
        .arg("--output")
        .arg(&output)
        .arg("--recordings")
        .arg(recording)
        .output()
        .unwrap();
    let stdout = String::from_utf8(run.stdout).unwrap();
    assert!(matches!(run.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&run.stderr));
    let done = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    (Connection::open(output).unwrap(), done)
}

/// Rows as SWAN compares them: each a sorted tuple of its values as text.
fn rows(db: &Connection, sql: &str) -> Result<Vec<Vec<String>>, rusqlite::Error> {
    let mut statement = db.prepare(sql)?;
    let width = statement.column_count();
    let found = statement.query_map([], |row| {
        let mut cells: Vec<String> = (0..width)
            .map(|n| row.get_ref(n).map(|v| format!("{v:?}")))
            .collect::<Result<_, _>>()?;
        cells.sort();
        Ok(cells)
    })?;
    found.collect()
}

/// Questions answered right by SWAN's rule.
fn score(swan: &Path, db: &Connection) -> Vec<String> {
    let truth = truth(swan);
    let mut reader = csv::Reader::from_path(swan.join("questions-superhero.csv")).unwrap();
    let mut right = Vec::new();
    for question in reader.deserialize::<BTreeMap<String, String>>() {
        let question = question.unwrap();
        let (ours, gold) = (
            rows(db, &question["hqdl_sql"]).unwrap(),
            rows(&truth, &question["gold_sql"]).unwrap(),
        );
        let ordered = question["hqdl_sql"].to_uppercase().contains("ORDER BY");
        let same = ours.len() == gold.len()
            && if ordered {
                ours == gold
            } else {
                ours.iter().collect::<BTreeSet<_>>() == gold.iter().collect::<BTreeSet<_>>()
            };
        if same {
            right.push(question["qid"].clone());
        }
    }
    right
}

const TRUE_CELLS: &str = "
    SELECT s.superhero_name, s.full_name, e.colour, h.colour, k.colour, p.publisher_name, r.race, g.gender, a.alignment,
           (SELECT group_concat(w.power_name, '|') FROM hero_power AS hp JOIN superpower AS w ON w.id = hp.power_id
            WHERE hp.hero_id = s.id)
    FROM superhero AS s
    JOIN colour AS e ON e.id = s.eye_colour_id JOIN colour AS h ON h.id = s.hair_colour_id
    JOIN colour AS k ON k.id = s.skin_colour_id JOIN publisher AS p ON p.id = s.publisher_id
    JOIN race AS r ON r.id = s.race_id JOIN gender AS g ON g.id = s.gender_id
    JOIN alignment AS a ON a.id = s.alignment_id";

type Hero = (String, Option<String>);

fn true_cells(swan: &Path) -> BTreeMap<Hero, (Vec<String>, BTreeSet<String>)> {
    let truth = truth(swan);
    let mut statement = truth.prepare(TRUE_CELLS).unwrap();
    let rows = statement
        .query_map([], |row| {
            let cells = (2..9).map(|n| row.get(n)).collect::<Result<Vec<String>, _>>()?;
            let powers: Option<String> = row.get(9)?;
            let powers = powers.iter().flat_map(|p| p.split('|')).map(str::to_owned).collect();
            Ok(((row.get(0)?, row.get(1)?), (cells, powers)))
        })
        .unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

/// A recording of a model that knows everything.
pub fn true_recording(swan: &Path, dir: &Path) -> PathBuf {
    let recording = dir.join("oracle.jsonl");
    let mut file = std::fs::File::create(&recording).unwrap();
    for ((name, full_name), (cells, powers)) in true_cells(swan) {
        let mut line = csv::WriterBuilder::new().from_writer(Vec::new());
        let powers = if powers.is_empty() {
            "none".to_owned()
        } else {
            powers.into_iter().collect::<Vec<_>>().join("|")
        };
        let key = ["1", &name, full_name.as_deref().unwrap_or("")];
        line.write_record(
            key.into_iter().chain(cells.iter().map(String::as_str)).chain([powers.as_str()]),
        )
        .unwrap();
        let content = String::from_utf8(line.into_inner().unwrap()).unwrap();
        writeln!(file, "{}", serde_json::json!({ "keys": [name, full_name], "content": content }))
            .unwrap();
    }
    recording
}

/// Percent of the seven attributes that are right, and micro-F1 of the powers.
fn factuality(swan: &Path, db: &Connection) -> (f64, f64) {
    let truth = true_cells(swan);
    let mut right = 0;
    let mut statement = db.prepare("SELECT * FROM llm").unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let hero: Hero = (row.get(0).unwrap(), row.get(1).unwrap());
        let (cells, _) = &truth[&hero];
        right += (0..7)
            .filter(|n| row.get::<_, Option<String>>(2 + n).unwrap().as_ref() == Some(&cells[*n]))
            .count();
    }
    let mut given: BTreeMap<Hero, BTreeSet<String>> = BTreeMap::new();
    let mut statement = db.prepare("SELECT * FROM llm_hero_2_power").unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let hero: Hero = (row.get(0).unwrap(), row.get(1).unwrap());
        given.entry(hero).or_default().insert(row.get(2).unwrap());
    }
    let (mut hit, mut all) = (0, 0);
    for (hero, (_, powers)) in &truth {
        let empty = BTreeSet::new();
        let given = given.get(hero).unwrap_or(&empty);
        hit += given.intersection(powers).count();
        all += given.len() + powers.len();
    }
    (100.0 * right as f64 / (7 * truth.len()) as f64, 200.0 * hit as f64 / all as f64)
}

/// No cell is lost, shifted or taken from another row: every one of the
/// 699 × 8 has a state, and a value exactly when its state shows one.
fn every_cell_ends_in_a_state(db: &Connection, done: &serde_json::Value) {
    let total: u64 = done["cells"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(total, 699 * 8);
    assert_eq!(done["cells"]["error"], 0);
    let count = |sql: &str| db.query_row(sql, [], |r| r.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM llm"), 699);
    assert_eq!(count("SELECT count(*) FROM hqdl_cell"), 699 * 8);
    assert_eq!(
        count("SELECT count(*) FROM hqdl_cell WHERE (state = 'ok') <> (value IS NOT NULL)"),
        0
    );
    assert_eq!(
        count(
            "SELECT count(*) FROM llm JOIN hqdl_cell AS c ON c.key = json_array(superhero_name, full_name)
             WHERE (c.\"column\" = 'race' AND c.value IS NOT race)
                OR (c.\"column\" = 'eye_color' AND c.value IS NOT eye_color)"
        ),
        0
    );
}

#[test]
fn eight_recordings_score_what_their_models_knew() {
    let Some(swan) = data() else { return };
    let least = [
        ("gpt35_0shot", 4),
        ("gpt35_1shot", 6),
        ("gpt35_3shot", 7),
        ("gpt35_5shot", 7),
        ("gpt4turbo_0shot", 7),
        ("gpt4turbo_1shot", 7),
        ("gpt4turbo_3shot", 8),
        ("gpt4turbo_5shot", 7),
    ];
    for (recording, least) in least {
        let dir = tempfile::tempdir().unwrap();
        let path = swan.join(format!("recordings/superhero_{recording}.jsonl.gz"));
        let (db, done) = materialize(&swan, &path, dir.path());
        every_cell_ends_in_a_state(&db, &done);
        let right = score(&swan, &db);
        let (attributes, powers) = factuality(&swan, &db);
        println!(
            "{recording}: EX {} of 30, attributes {attributes:.2} %, powers F1 {powers:.2} %",
            right.len()
        );
        assert!(right.len() >= least, "{recording}: {} of 30, not {least}: {right:?}", right.len());
        if recording == "gpt4turbo_5shot" {
            assert!(attributes >= 76.3, "attributes {attributes}");
            assert!(powers >= 41.9, "powers {powers}");
        }
    }
}

#[test]
fn with_true_values_as_the_model_all_questions_are_right() {
    let Some(swan) = data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let recording = true_recording(&swan, dir.path());
    let (db, done) = materialize(&swan, &recording, dir.path());
    every_cell_ends_in_a_state(&db, &done);
    let right = score(&swan, &db);
    assert_eq!(right.len(), 30, "{right:?}");
    let (attributes, powers) = factuality(&swan, &db);
    assert!(attributes == 100.0 && powers == 100.0, "{attributes} {powers}");
}
