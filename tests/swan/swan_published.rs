//! Tests of SWAN's published files, on its copy of `california_schools` and on generated databases
//! of Formula 1 and football: which answers its queries give with the true values, and which cannot
//! be correct.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hqdl::facts::Facts;
use hqdl::query::{QueryResult, Request};
use hqdl::swan::compare;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value as Json, json};

use crate::swan::swan;
use crate::swan_runs::OTHERS;
use hqdl::swan::oracle::TrueValues;
use hqdl_testkit::engine::shared_folder;
use hqdl_testkit::swan::SUPERHERO;

/// A folder with prepared databases in `prepared`.
struct Bench {
    dir: tempfile::TempDir,
    questions: PathBuf,
}

impl Bench {
    fn new(bird: &Path, swan_data: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bird = bird.display().to_string();
        swan(dir.path(), &["prepare", "--bird", &bird, "--out", "prepared"]).expect_exit_code(0);
        let questions = swan_data.join("questions").canonicalize().unwrap();
        Self { dir, questions }
    }

    /// Creates a generated database under BIRD's name.
    fn of(name: &str, sql: &str, swan_data: &Path) -> Self {
        let bird = tempfile::tempdir().unwrap();
        let db = Connection::open(bird.path().join(format!("{name}.sqlite"))).unwrap();
        db.execute_batch(sql).unwrap();
        drop(db);
        Self::new(bird.path(), swan_data)
    }

    /// Runs SWAN's file of questions and scores the run.
    fn score(&self, name: &str, file: &str, flags: &[&str]) -> Json {
        let questions = self.questions.join(file).display().to_string();
        let db = format!("prepared/{name}.sqlite");
        let out = format!("run-{file}-{}", flags.len());
        let args =
            [&["run", "--db", &db, "--questions", &questions, "--out", &out], flags].concat();
        let ended = swan(self.dir.path(), &args);
        assert!(matches!(ended.code, 0 | 1), "{}", ended.stderr);
        let score = swan(self.dir.path(), &["score", &out, "--gold", "prepared", "--json"]);
        score.expect_exit_code(0).lines[0]["runs"][0].clone()
    }
}

/// Returns the numbers of the questions that are answered wrongly, with the fault of the query.
fn wrong(score: &Json) -> Vec<(String, String)> {
    let questions = score["questions"].as_array().unwrap();
    assert_eq!(questions.len(), 30);
    let wrong = questions.iter().filter(|q| q["swan"] != true);
    wrong
        .map(|q| {
            let number = q["qid"].as_str().unwrap().rsplit('-').next().unwrap().to_owned();
            (number, q["known"].as_str().unwrap_or_default().to_owned())
        })
        .collect()
}

/// Writes the true values of California's schools as completions in SWAN's order of columns.
fn california_recording(data: &Path, to: &Path) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = Connection::open_with_flags(data.join("california_schools.sqlite"), flags).unwrap();
    let mut text = String::new();
    for select in [
        "SELECT \"School Name\", \"District Name\", \"Educational Option Type\", \"Charter School (Y/N)\",
                coalesce(\"Charter Funding Type\", '?') FROM frpm",
        "SELECT Street, School, City, County, Magnet, Website, CASE Virtual WHEN 'F' THEN 'Y' ELSE 'N' END FROM schools",
    ] {
        let mut statement = db.prepare(select).unwrap();
        let width = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let cells: Vec<Json> =
                (0..width).map(|n| compare::to_json(row.get_ref(n).unwrap())).collect();
            let quoted: Vec<String> = cells
                .iter()
                .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned))
                .map(|c| format!("'{}'", c.replace('\'', "''")))
                .collect();
            let line = json!({ "keys": &cells[..2], "content": quoted.join(",") });
            writeln!(text, "{line}").unwrap();
        }
    }
    std::fs::write(to, text).unwrap();
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn true_completions_of_california_answer_everything_answerable() {
    let Some(data) = shared_folder("swan") else { return };
    let bench = Bench::new(&data, &data);
    california_recording(&data, &bench.dir.path().join("true.jsonl"));
    let file = "CASchoolQueries.csv";
    let score = bench.score("california_schools", file, &["--recordings", "true.jsonl"]);
    let wrong = wrong(&score);
    let numbers: Vec<&str> = wrong.iter().map(|(n, _)| n.as_str()).collect();
    // Two queries join by the street alone.
    assert_eq!(numbers, ["17", "27"], "{wrong:?}");
    assert!(wrong.iter().all(|(_, known)| known == "on the true values, too"), "{wrong:?}");
    assert_eq!(score["factuality"]["cells"]["percent"], 100.0);
    // The key is not part of SWAN's count here, and NULL is never correct.
    assert_eq!(score["factuality"]["swan"]["of"], 4674 * 8);
    let notes = score["notes"].as_array().unwrap();
    assert!(notes.iter().any(|n| n.as_str().unwrap().contains("frpm.County Name")), "{notes:?}");
}

/// SWAN's copy gives the published answers.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn californias_gold_gives_the_published_answers() {
    let Some(data) = shared_folder("swan") else { return };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = Connection::open_with_flags(data.join("california_schools.sqlite"), flags).unwrap();
    let text = std::fs::read_to_string(data.join("gold-california_schools.jsonl")).unwrap();
    let published: Vec<Json> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let file = data.join("questions/CASchoolQueries.csv");
    let questions = hqdl::swan::questions::read_questions(&file, "california_schools").unwrap();
    assert_eq!((questions.len(), published.len()), (30, 30));
    let same = |(question, published): (&hqdl::swan::BenchmarkQuestion, &Json)| {
        let rows = hqdl_testkit::project::query_rows(&db, &question.gold).unwrap();
        let answer: Vec<Vec<Json>> = serde_json::from_value(published["answer"].clone()).unwrap();
        compare::is_equal_by_swan_rule(
            &compare::to_cells(&rows),
            &compare::to_cells(&answer),
            &question.gold,
        )
    };
    let other = questions.iter().zip(&published).enumerate().filter(|(_, both)| !same(*both));
    assert_eq!(other.map(|(n, _)| n).collect::<Vec<_>>(), [28]);
}

const FORMULA_1: &str = include_str!("../../crates/hqdl-swan/tests/data/formula_1.sql");
const EUROPEAN_FOOTBALL_2: &str =
    include_str!("../../crates/hqdl-swan/tests/data/european_football_2.sql");

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn generated_databases_answer_everything_answerable() {
    let Some(data) = shared_folder("swan") else { return };
    for (name, sql, kept) in [
        ("formula_1", FORMULA_1, "circuits.url"),
        ("european_football_2", EUROPEAN_FOOTBALL_2, "Player.height"),
    ] {
        let bench = Bench::of(name, sql, &data);
        let truth = ["--true-values", "prepared"];
        let score = bench.score(name, &format!("{name}Queries.csv"), &truth);
        assert_eq!(wrong(&score), [], "{name}");
        assert_eq!((&score["model"], &score["oracle"]), (&json!("the true values"), &json!(true)));
        assert!(score["notes"][0].as_str().unwrap().contains(kept), "{}", score["notes"]);
        // In this database, the questions have answers.
        let record = bench.dir.path().join(format!("run-{name}Queries.csv-2/run.jsonl"));
        let record = std::fs::read_to_string(record).unwrap();
        let lines = record.lines().map(|l| serde_json::from_str::<Json>(l).unwrap());
        let empty = lines.filter(|l| l["rows"].as_array().is_some_and(Vec::is_empty));
        assert!(empty.count() <= 1, "{record}");
    }
}

/// `--shots N` shows the rows of SWAN's own prompts, in their order; the first rows of the database
/// replace those that it lacks.
#[test]
fn shots_are_the_rows_of_swans_own_prompts() {
    let more = "INSERT INTO constructors VALUES (90, '', 'AFM', 'German', 'u'), (91, '', 'BMW Sauber', 'German', 'v');
        INSERT INTO drivers VALUES (90, '', 1, 'HAM', 'Lewis', 'Hamilton', '1985-01-07', 'British', 'w');";
    let bird = tempfile::tempdir().unwrap();
    let db = Connection::open(bird.path().join("formula_1.sqlite")).unwrap();
    db.execute_batch(&format!("{FORMULA_1}{more}")).unwrap();
    drop(db);
    let path = bird.path().display().to_string();
    swan(bird.path(), &["prepare", "--bird", &path, "--out", "out"]).expect_exit_code(0);
    let text = std::fs::read_to_string(bird.path().join("out/formula_1.shots.json")).unwrap();
    let shots: Json = serde_json::from_str(&text).unwrap();
    let people = shots["llm_people"].as_array().unwrap();
    let names: Vec<&str> = people.iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["AFM", "LewisHamilton", "BMW Sauber", "Fore1Sur1", "Team 1"]);
    assert_eq!(
        (&people[0]["dob"], &people[1]["driver_code"]),
        (&Json::Null, &json!("HAM")),
        "{text}"
    );
}

/// Questions about the generated databases: gold query and HQDL's query. The last one about each
/// database is wrong even on the true values.
const OWN_QUESTIONS: [(&str, &[[&str; 2]]); 2] = [
    (
        "formula_1",
        &[
            [
                "SELECT name FROM circuits WHERE country = 'Germany'",
                "SELECT name FROM llm_circuits WHERE country = 'Germany'",
            ],
            [
                "SELECT surname FROM drivers WHERE nationality = 'Japanese' AND dob > '1960-01-01'",
                "SELECT surname FROM drivers JOIN llm_people AS p ON p.name = forename || surname
                 WHERE p.nationality = 'Japanese' AND p.dob > '1960-01-01'",
            ],
            [
                "SELECT count(*) FROM constructors WHERE nationality = 'British'",
                "SELECT count(*) FROM constructors JOIN llm_people AS p USING (name)
                 WHERE p.nationality = 'British'",
            ],
            [
                "SELECT name, year FROM races WHERE date >= '2015-09-01'",
                "SELECT name, year FROM llm_races WHERE date >= '2015-09-01'",
            ],
            [
                "SELECT count(*) FROM circuits WHERE lat > 0",
                "SELECT count(*) FROM llm_circuits WHERE lat < 0",
            ],
        ],
    ),
    (
        "european_football_2",
        &[
            [
                "SELECT count(*) FROM Match JOIN Country AS c ON c.id = country_id
                 WHERE c.name = 'Spain' AND home_team_goal > away_team_goal",
                "SELECT count(*) FROM llm_match
                 WHERE country_name = 'Spain' AND home_team_goal > away_team_goal",
            ],
            [
                "SELECT DISTINCT player_name FROM Player JOIN Player_Attributes USING (player_api_id)
                 WHERE preferred_foot = 'left' AND height > 190",
                "SELECT player_name FROM llm_player WHERE preferred_foot = 'left' AND height > 190",
            ],
            [
                "SELECT DISTINCT team_short_name FROM Team JOIN Team_Attributes USING (team_api_id)
                 WHERE buildUpPlayPassing > 70",
                "SELECT DISTINCT l.team_short_name FROM Team JOIN Team_Attributes USING (team_api_id)
                 JOIN llm_team AS l USING (team_long_name) WHERE buildUpPlayPassing > 70",
            ],
        ],
    ),
];

/// With the true values, each question is correct whose query has no fault. The prepared databases
/// contain none of the hidden values, and cannot be prepared again.
#[test]
fn true_values_answer_own_questions() {
    let two_short_names = "INSERT INTO Team VALUES (91, 1091, 91, 'Widzew Łódź', 'LOD'), (92, 1092, 92, 'Widzew Łódź', 'WID');
        INSERT INTO Team_Attributes VALUES (NULL, 1091, 'Slow', 80, 'Long', 'Risky'), (NULL, 1092, 'Slow', 80, 'Long', 'Risky');";
    let football = [EUROPEAN_FOOTBALL_2, two_short_names].concat();
    for ((name, queries), (sql, hidden, fault)) in OWN_QUESTIONS.iter().zip([
        (FORMULA_1, ["Japanese", "nationality"], "instead of"),
        (&*football, ["Eredivisie", "preferred_foot"], "missing: WID"),
    ]) {
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join("questions")).unwrap();
        let mut file = csv::Writer::from_path(data.path().join("questions/own.csv")).unwrap();
        for [gold, hqdl] in *queries {
            file.write_record([name, "Which?", "", gold, "simple", hqdl]).unwrap();
        }
        file.flush().unwrap();
        let bench = Bench::of(name, sql, data.path());
        let bytes =
            std::fs::read(bench.dir.path().join(format!("prepared/{name}.sqlite"))).unwrap();
        for word in hidden {
            assert!(!bytes.windows(word.len()).any(|w| w == word.as_bytes()), "{name}: {word}");
        }
        let again = ["prepare", "--bird", "prepared", "--out", "twice"];
        let again = swan(bench.dir.path(), &again).expect_exit_code(2);
        assert!(again.stderr.contains("it lacks"), "{}", again.stderr);

        let score = bench.score(name, "own.csv", &["--true-values", "prepared"]);
        let questions = score["questions"].as_array().unwrap();
        let (last, others) = questions.split_last().unwrap();
        assert!(others.iter().all(|q| q["swan"] == true), "{score:#}");
        assert_eq!(
            (&last["swan"], &last["known"]),
            (&json!(false), &json!("on the true values, too"))
        );
        assert!(last["difference"].as_str().unwrap().contains(fault), "{last}");
        assert_eq!(score["factuality"]["cells"]["percent"], 100.0);
    }
}

/// A score publishes the true values without a run. The tables equal those of a run in which every
/// answer is true, also for two spellings of a key.
#[test]
fn published_true_values_equal_those_of_a_run() {
    let (california, schema, data) = OTHERS[1];
    let spelled = "INSERT INTO Team VALUES (91, 1091, 91, 'Zagłębie', 'ZAG'), (92, 1092, 92, ' Zagłębie ', 'OTH');
        INSERT INTO Player (id, player_name) VALUES (900, '?');";
    for (name, sql) in [
        ("superhero", SUPERHERO.to_owned()),
        ("formula_1", FORMULA_1.to_owned()),
        (california, [schema, data].concat()),
        ("european_football_2", [EUROPEAN_FOOTBALL_2, spelled].concat()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = |file: &str| dir.path().join(file);
        std::fs::create_dir(path("bird")).unwrap();
        let db = Connection::open(path(&format!("bird/{name}.sqlite"))).unwrap();
        db.execute_batch(&sql).unwrap();
        drop(db);
        swan(dir.path(), &["prepare", "--bird", "bird", "--out", "."]).expect_exit_code(0);
        std::fs::write(path("q.csv"), "Any?,,simple,SELECT 1,SELECT 1\n").unwrap();
        let db = format!("{name}.sqlite");
        let args = ["run", "--db", &db, "--questions", "q.csv", "--out", "run", "--true-values"];
        let ended = swan(dir.path(), &[&args[..], &["."]].concat());
        assert!(matches!(ended.code, 0 | 1), "{}", ended.stderr);

        let benchmark = hqdl::swan::Benchmark::find_by_name(name).unwrap();
        let mut draft = benchmark.parse_spec().unwrap();
        draft.set_database(path(&db));
        let (spec, _) = draft.check(&hqdl::database::Database::open(&path(&db)).unwrap()).unwrap();
        let gold = path(&format!("gold/{db}"));
        TrueValues::read(benchmark, &gold).unwrap().publish_tables(&spec).unwrap();
        let direct = Connection::open(path(&db)).unwrap();
        let run = Connection::open(path("run/expanded.sqlite")).unwrap();
        for expansion in &spec.expansions {
            let lists = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
            for table in lists.chain([&expansion.name]) {
                let select = format!("SELECT rowid, * FROM {table} ORDER BY rowid");
                let rows = |db| hqdl_testkit::project::query_rows(db, &select).unwrap();
                assert!(!rows(&run).is_empty(), "{name}: {table}");
                assert_eq!(rows(&direct), rows(&run), "{name}: {table}");
            }
        }
        let views = "SELECT name, sql FROM sqlite_schema WHERE type = 'view' ORDER BY name";
        let rows = |db| hqdl_testkit::project::query_rows(db, views).unwrap();
        assert_eq!(rows(&direct), rows(&run), "{name}");
    }
}

/// The score of a `BlendSQL` run stores the true values once, so that its queries read the published
/// tables, also for cells without a value, and request nothing.
#[test]
fn calls_read_the_stored_true_values() {
    let hidden = "UPDATE drivers SET code = NULL WHERE driverId % 2 = 0";
    let two_spellings = "INSERT INTO Team VALUES (91, 1091, 91, 'Zagłębie', 'ZAG'), (92, 1092, 92, ' Zagłębie ', 'OTH');
        INSERT INTO Player (id, player_name) VALUES (900, '?');";
    for (name, sql, calls) in [
        (
            "formula_1",
            [FORMULA_1, hidden].concat(),
            [
                ("{{LLMMap('Provide the race date.', races.name, races.year)}}", "races"),
                (
                    "{{LLMMap('Provide the latitude based on location (float).', circuits.location, circuits.name)}}",
                    "circuits",
                ),
                ("{{LLMMap('Provide the date of birth.', constructors.name)}}", "constructors"),
            ],
        ),
        (
            "european_football_2",
            [EUROPEAN_FOOTBALL_2, two_spellings].concat(),
            [
                (
                    "{{LLMMap('Provide the player height (int).', Player.player_name, Player.weight)}}",
                    "Player",
                ),
                (
                    "{{LLMMap('Is the player preferred foot left?', Player.player_name, Player.weight)}}",
                    "Player",
                ),
                (
                    "{{LLMMap('Provide the 3 letters team short name.', Team.team_long_name)}}",
                    "Team",
                ),
            ],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let gold = dir.path().join(format!("{name}.sqlite"));
        Connection::open(&gold).unwrap().execute_batch(&sql).unwrap();
        let args = ["prepare", "--bird", ".", "--out", "prepared"];
        swan(dir.path(), &args).expect_exit_code(0);
        let path = dir.path().join(format!("prepared/{name}.sqlite"));
        let benchmark = hqdl::swan::Benchmark::find_by_name(name).unwrap();
        let mut draft = benchmark.parse_spec().unwrap();
        draft.set_database(path.clone());
        let (spec, _) = draft.check(&hqdl::database::Database::open(&path).unwrap()).unwrap();
        let (asking, reading) =
            (Facts::open_temporary().unwrap(), Facts::open_temporary().unwrap());
        let model = Arc::new(TrueValues::read(benchmark, &gold).unwrap());
        let run = |facts: &Facts, sql: &str| {
            let model = Arc::clone(&model) as Arc<dyn hqdl::model::Model>;
            let request = Request { model: Some(model), ..Request::new(&spec, &path, facts, sql) };
            let mut result = QueryResult::default();
            let meta = hqdl::query::run(&request, &mut result).unwrap();
            (compare::to_rows(&result), meta)
        };
        // Before the tables are there, the queries ask for the cells.
        let query = |(call, table): &(&str, &str)| {
            format!("SELECT rowid, {call}, typeof({call}) FROM {table} ORDER BY 1")
        };
        let asked: Vec<_> = calls.iter().map(|call| run(&asking, &query(call))).collect();
        model.store_and_publish(&spec, &reading).unwrap();
        for (call, (rows, meta)) in calls.iter().zip(asked) {
            assert!(meta.values_asked > 0, "{call:?}");
            let (stored, meta) = run(&reading, &query(call));
            assert_eq!(stored, rows, "{call:?}");
            assert_eq!((meta.values_asked, meta.passes.len()), (0, 1), "{call:?}");
            // Not all keys of `llm_people` are in one table.
            let is_joined = meta.sql.contains("LEFT JOIN");
            assert_eq!(is_joined, call.1 != "constructors", "{}", meta.sql);
        }
    }
}

/// With football's true values, 28 questions are correct: two rows of `Team` are called "Widzew
/// Łódź" and have different short names. A key has one value, and HQDL's SQL joins by the long
/// name, so the questions that list short names lack one. With a row for each row of `Team` all 30
/// would be correct, but a model would get the same question twice.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn a_team_with_two_short_names_leaves_two_questions_wrong() {
    let Some(data) = shared_folder("swan") else { return };
    let name = "european_football_2";
    // Both play a risky and a long game; as in BIRD, only the second has a unique short name.
    let two = "INSERT INTO Team VALUES (91, 1091, 91, 'Widzew Łódź', 'LOD'), (92, 1092, 92, 'Widzew Łódź', 'WID');
        INSERT INTO Team_Attributes VALUES (NULL, 1091, 'Slow', 80, 'Long', 'Risky'), (NULL, 1092, 'Slow', 80, 'Long', 'Risky');";
    let bench = Bench::of(name, &format!("{EUROPEAN_FOOTBALL_2}{two}"), &data);
    let truth = ["--true-values", "prepared"];
    let score = bench.score(name, &format!("{name}Queries.csv"), &truth);
    let known = |n: &str| (n.to_owned(), "on the true values, too".to_owned());
    assert_eq!(wrong(&score), [known("16"), known("27")]);
    assert!(score["questions"][16]["difference"].to_string().contains("missing: WID"), "{score}");
    // A row of `llm_team` for each row of `Team`.
    let out = bench.dir.path().join(format!("run-{name}Queries.csv-2/expanded.sqlite"));
    let db = Connection::open(out).unwrap();
    let rows = "CREATE TABLE rows AS SELECT team_long_name, team_short_name FROM llm_team;
        INSERT INTO rows VALUES ('Widzew Łódź', 'WID');
        DROP VIEW Team_expanded; DROP TABLE llm_team; ALTER TABLE rows RENAME TO llm_team;";
    db.execute_batch(rows).unwrap();
    let file = data.join("questions/european_football_2Queries.csv");
    let questions = hqdl::swan::questions::read_questions(&file, name).unwrap();
    let gold =
        Connection::open(bench.dir.path().join(format!("prepared/gold/{name}.sqlite"))).unwrap();
    for question in [&questions[16], &questions[27]] {
        let cells = |db: &Connection, sql: &str| {
            compare::to_cells(&hqdl_testkit::project::query_rows(db, sql).unwrap())
        };
        let ours = cells(&db, question.hqdl.as_ref().unwrap());
        assert!(compare::is_equal_by_swan_rule(
            &ours,
            &cells(&gold, &question.gold),
            &question.gold
        ));
    }
}

/// SWAN's eight files can be read unchanged, each kind for its mode.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn swans_own_files_are_read_unchanged() {
    let Some(data) = shared_folder("swan") else { return };
    for (database, hqdl, blendsql) in [
        ("california_schools", "CASchoolQueries.csv", "CASchool_HybridQueries.csv"),
        (
            "european_football_2",
            "european_football_2Queries.csv",
            "european_football_2_HybridQueries.csv",
        ),
        ("formula_1", "formula_1Queries.csv", "formula_1_HybridQueries.csv"),
        ("superhero", "superheroQueries.csv", "superhero_HybridQueries.csv"),
    ] {
        let read = |file: &str| {
            hqdl::swan::questions::read_questions(&data.join("questions").join(file), database)
                .unwrap()
        };
        for (file, calls) in [(hqdl, false), (blendsql, true)] {
            let questions = read(file);
            assert_eq!(questions.len(), 30, "{file}");
            for (n, q) in questions.iter().enumerate() {
                assert_eq!(q.qid, format!("{database}-{n:02}"));
                assert_eq!((q.hqdl.is_some(), q.blendsql.is_some()), (!calls, calls), "{file}");
                let query = q.hqdl.as_ref().or(q.blendsql.as_ref()).unwrap();
                assert!(q.gold.to_uppercase().contains("SELECT") && !q.gold.contains("{{"));
                assert_eq!(query.contains("{{"), calls, "{file} {n}: {query}");
            }
        }
        let path = data.join("questions").join(hqdl);
        let other = if database == "superhero" { "formula_1" } else { "superhero" };
        let error = hqdl::swan::questions::read_questions(&path, other).unwrap_err().to_string();
        assert!(error.contains(&format!("is about {database}, not about {other}")), "{error}");
    }
}

/// Rows that each of SWAN's rules drops, and similar ones that it keeps.
#[test]
fn swans_row_rules_drop_and_keep() {
    let school = "CREATE TABLE frpm (CDSCode TEXT PRIMARY KEY, \"District Name\" TEXT, \"School Name\" TEXT, \"County Code\" TEXT, \"County Name\" TEXT,
          \"Educational Option Type\" TEXT, \"Charter School (Y/N)\" INTEGER, \"Charter School Number\" TEXT, \"Charter Funding Type\" TEXT);
        CREATE TABLE satscores (cds TEXT PRIMARY KEY, cname TEXT);
        CREATE TABLE schools (CDSCode TEXT PRIMARY KEY, School TEXT, Street TEXT, County TEXT, City TEXT, MailCity TEXT, Magnet INTEGER, Website TEXT, Virtual TEXT, FundingType TEXT);
        INSERT INTO satscores VALUES ('01000', 'X'), ('19000', 'Y');
        INSERT INTO frpm (CDSCode, \"District Name\", \"School Name\", \"Charter Funding Type\") VALUES
          ('01', 'D', 'Kept', 'Locally funded'), ('02', 'D', 'No website', NULL), ('03', 'D', 'No name', NULL),
          ('04', 'D', 'Other funding', 'Locally funded'), ('05', 'D', 'Funding of one', 'Locally funded'),
          ('06', 'D', 'Twice', NULL), ('07', 'D', 'Twice', NULL), ('08', 'D', 'Same street', NULL),
          ('09', 'E', 'Same street', NULL), ('10', 'D', 'Not among schools', NULL), ('13', 'D', 'After no website', NULL);
        INSERT INTO schools (CDSCode, School, Street, Website, FundingType) VALUES
          ('01', 'A', '1', 'w', 'Locally funded'), ('02', 'B', '2', NULL, NULL), ('03', NULL, '3', 'w', NULL),
          ('04', 'D', '4', 'w', 'Directly funded'), ('05', 'E', '5', 'w', NULL), ('06', 'F', '6', 'w', NULL),
          ('07', 'G', '7', 'w', NULL), ('08', 'H', '8', 'w', NULL), ('09', 'H', '8', 'w', NULL),
          ('11', 'Not in frpm', '9', 'w', NULL), ('12', 'I', '12', NULL, NULL), ('13', 'I', '12', 'w', NULL);";
    // A player is dropped with all namesakes if he has two feet, a foot and NULL, or no attributes,
    // or if he shares name and weight.
    let football = "CREATE TABLE Country (id INTEGER PRIMARY KEY, name TEXT);
        CREATE TABLE League (id INTEGER PRIMARY KEY, country_id INTEGER, name TEXT);
        CREATE TABLE Team (id INTEGER PRIMARY KEY, team_api_id INTEGER, team_long_name TEXT, team_short_name TEXT);
        CREATE TABLE Match (id INTEGER PRIMARY KEY, country_id INTEGER, league_id INTEGER, date TEXT, home_team_api_id INTEGER, away_team_api_id INTEGER, home_team_goal INTEGER, away_team_goal INTEGER);
        CREATE TABLE Player (id INTEGER PRIMARY KEY, player_api_id INTEGER, player_name TEXT, birthday TEXT, height REAL, weight INTEGER);
        CREATE TABLE Player_Attributes (id INTEGER PRIMARY KEY, player_api_id INTEGER, preferred_foot TEXT);
        INSERT INTO Player VALUES (1, 1, 'Kept', '', 1, 150), (2, 2, 'Two feet', '', 1, 150), (3, 3, 'Foot and none', '', 1, 150),
          (4, 4, 'No rows', '', 1, 150), (5, 5, 'Namesake', '', 1, 150), (6, 6, 'Namesake', '', 1, 160),
          (7, 7, 'Shared key', '', 1, 150), (8, 8, 'Shared key', '', 1, 150), (9, 9, 'Shared name', '', 1, 150), (10, 10, 'Shared name', '', 1, 151),
          (11, 11, 'Never told', '', 1, 150);
        INSERT INTO Player_Attributes (player_api_id, preferred_foot) VALUES (1, 'left'), (1, 'left'), (2, 'left'), (2, 'right'),
          (3, 'left'), (3, NULL), (5, 'left'), (6, 'left'), (6, 'right'), (7, 'left'), (8, 'left'), (9, 'left'), (10, 'right'), (11, NULL);";
    for (name, sql, kept) in [
        (
            "california_schools",
            school,
            vec![
                ("SELECT CDSCode FROM frpm ORDER BY 1", vec!["01", "05", "06", "08", "13"]),
                ("SELECT CDSCode FROM schools ORDER BY 1", vec!["01", "05", "06", "08", "13"]),
                ("SELECT cds FROM satscores ORDER BY 1", vec!["1000", "19000"]),
            ],
        ),
        (
            "european_football_2",
            football,
            vec![
                ("SELECT CAST(id AS TEXT) FROM Player ORDER BY id", vec!["1", "9", "10", "11"]),
                ("SELECT CAST(count(*) AS TEXT) FROM Player_Attributes", vec!["14"]),
            ],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bird")).unwrap();
        let db = Connection::open(dir.path().join(format!("bird/{name}.sqlite"))).unwrap();
        db.execute_batch(sql).unwrap();
        drop(db);
        swan(dir.path(), &["prepare", "--bird", "bird", "--out", "out"]).expect_exit_code(0);
        for copy in ["out", "out/gold"] {
            let db = Connection::open(dir.path().join(format!("{copy}/{name}.sqlite"))).unwrap();
            for (select, kept) in &kept {
                let rows = hqdl_testkit::project::query_rows(&db, select).unwrap();
                let found: Vec<&str> = rows.iter().map(|r| r[0].as_str().unwrap()).collect();
                assert_eq!(found, *kept, "{copy}: {select}");
            }
        }
    }
}

/// Prints for each of SWAN's `BlendSQL` files which calls a column answers, and why the others are
/// live.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn routes_of_the_published_calls_are_printed() {
    let Some(data) = shared_folder("swan") else { return };
    // Number of calls that a column answers in a run with materialized tables, and of all calls.
    for (name, file, sql, of_run) in [
        ("california_schools", "CASchool_HybridQueries.csv", None, (35, 35)),
        (
            "european_football_2",
            "european_football_2_HybridQueries.csv",
            Some(EUROPEAN_FOOTBALL_2),
            (38, 40),
        ),
        ("formula_1", "formula_1_HybridQueries.csv", Some(FORMULA_1), (30, 34)),
        ("superhero", "superhero_HybridQueries.csv", None, (36, 36)),
    ] {
        let bench = match sql {
            Some(sql) => Bench::of(name, sql, &data),
            None => Bench::new(&data, &data),
        };
        let questions =
            hqdl::swan::questions::read_questions(&bench.questions.join(file), name).unwrap();
        let spec = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("crates/hqdl-swan/specs/{name}.toml"));
        let (mut routed, mut calls) = (0, 0);
        for question in &questions {
            let explained = std::process::Command::new(env!("CARGO_BIN_EXE_hqdl"))
                .args(["explain", "--json", "--no-cache", "--spec"])
                .arg(&spec)
                .arg("--db")
                .arg(bench.dir.path().join(format!("prepared/{name}.sqlite")))
                .arg(question.blendsql.as_ref().unwrap())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&explained.stdout).into_owned();
            let Ok(json) = serde_json::from_str::<Json>(&text) else {
                let why = String::from_utf8_lossy(&explained.stderr);
                println!("{}  no plan: {}", question.qid, why.lines().next().unwrap_or_default());
                continue;
            };
            let routes =
                json["routes"].as_array().or_else(|| json.pointer("/meta/routes")?.as_array());
            for route in routes.cloned().unwrap_or_default() {
                calls += 1;
                let bound = matches!(route["route"].as_str(), Some("column" | "bound"));
                routed += usize::from(bound);
                let call: String = route["call"]
                    .as_str()
                    .unwrap_or_default()
                    .split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" ");
                let name = |of: &str| route[of].as_str().unwrap_or("-").to_owned();
                let to = if bound {
                    format!("{}.{}", name("expansion"), name("column"))
                } else {
                    format!("asked live: {}", name("why"))
                };
                println!("{}  {call}\n    {to}", question.qid);
            }
        }
        println!("{name}: {routed} of {calls} calls are answered by a column at first");
        assert!(calls > 20, "{name}: {calls} calls");
        bench.score(name, file, &["--true-values", "prepared", "--mode", "blendsql"]);
        let record = bench.dir.path().join(format!("run-{file}-4/run.jsonl"));
        let record = std::fs::read_to_string(record).unwrap();
        let lines = record.lines().map(|l| serde_json::from_str::<Json>(l).unwrap());
        let routes: Vec<Json> =
            lines.flat_map(|l| l["routes"].as_array().cloned().unwrap_or_default()).collect();
        let routed = routes.iter().filter(|r| *r != "ad-hoc").count();
        println!("{name}: {routed} of {} once its tables are there\n", routes.len());
        assert_eq!((routed, routes.len()), of_run, "{name}");
    }
}
