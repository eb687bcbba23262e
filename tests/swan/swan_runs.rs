//! Tests of `hqdl swan` with small databases in BIRD's layout: the rows that are kept, the specs of
//! all four databases, runs that fail, and runs that are resumed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hqdl::prompt::{AskedColumn, AskedRow};
use rusqlite::Connection;
use serde_json::{Value as Json, json};

use crate::swan::swan;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{CommandResult, query_rows};
use hqdl_testkit::swan::{QUESTIONS, SUPERHERO, line, questions};

const FORMULA_1: &str = "
CREATE TABLE circuits (circuitId INTEGER PRIMARY KEY, circuitRef TEXT, name TEXT, location TEXT, country TEXT, lat REAL, lng REAL, alt INTEGER, url TEXT UNIQUE);
CREATE TABLE constructors (constructorId INTEGER PRIMARY KEY, constructorRef TEXT, name TEXT UNIQUE, nationality TEXT, url TEXT);
CREATE TABLE drivers (driverId INTEGER PRIMARY KEY, driverRef TEXT, number INTEGER, code TEXT, forename TEXT, surname TEXT, dob DATE, nationality TEXT, url TEXT UNIQUE);
CREATE TABLE seasons (year INTEGER NOT NULL PRIMARY KEY, url TEXT NOT NULL UNIQUE);
CREATE TABLE races (raceId INTEGER PRIMARY KEY, year INTEGER, round INTEGER, circuitId INTEGER REFERENCES circuits (circuitId), name TEXT, date DATE, time TEXT, url TEXT UNIQUE);
CREATE TABLE results (resultId INTEGER PRIMARY KEY); CREATE TABLE lapTimes (raceId INTEGER, driverId INTEGER, lap INTEGER, PRIMARY KEY (raceId, driverId, lap)) WITHOUT ROWID;
CREATE TABLE pitStops (raceId INTEGER); CREATE TABLE qualifying (qualifyId INTEGER); CREATE TABLE driverStandings (raceId INTEGER);
CREATE TABLE constructorStandings (raceId INTEGER); CREATE TABLE constructorResults (raceId INTEGER); CREATE TABLE status (statusId INTEGER);
";

const CALIFORNIA_SCHOOLS: &str = r#"
CREATE TABLE frpm (CDSCode TEXT NOT NULL PRIMARY KEY, "Academic Year" TEXT, "County Code" TEXT, "District Code" INTEGER, "School Code" TEXT, "County Name" TEXT,
  "District Name" TEXT, "School Name" TEXT, "District Type" TEXT, "School Type" TEXT, "Educational Option Type" TEXT, "NSLP Provision Status" TEXT,
  "Charter School (Y/N)" INTEGER, "Charter School Number" TEXT, "Charter Funding Type" TEXT, "Enrollment (K-12)" REAL);
CREATE TABLE satscores (cds TEXT NOT NULL PRIMARY KEY, sname TEXT, dname TEXT, cname TEXT, enroll12 INTEGER);
CREATE TABLE schools (CDSCode TEXT NOT NULL PRIMARY KEY, County TEXT, District TEXT, School TEXT, Street TEXT, City TEXT, MailCity TEXT, Website TEXT, FundingType TEXT, Virtual TEXT, Magnet INTEGER);
"#;

const EUROPEAN_FOOTBALL_2: &str = "
CREATE TABLE Country (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE);
CREATE TABLE League (id INTEGER PRIMARY KEY AUTOINCREMENT, country_id INTEGER REFERENCES Country (id), name TEXT UNIQUE);
CREATE TABLE Team (id INTEGER PRIMARY KEY AUTOINCREMENT, team_api_id INTEGER UNIQUE, team_fifa_api_id INTEGER, team_long_name TEXT, team_short_name TEXT);
CREATE TABLE Match (id INTEGER PRIMARY KEY AUTOINCREMENT, country_id INTEGER REFERENCES Country (id), league_id INTEGER, season TEXT, stage INTEGER, date TEXT,
  match_api_id INTEGER UNIQUE, home_team_api_id INTEGER REFERENCES Team (team_api_id), away_team_api_id INTEGER, home_team_goal INTEGER, away_team_goal INTEGER);
CREATE TABLE Player (id INTEGER PRIMARY KEY AUTOINCREMENT, player_api_id INTEGER UNIQUE, player_name TEXT, player_fifa_api_id INTEGER, birthday TEXT, height INTEGER, weight INTEGER);
CREATE TABLE Player_Attributes (id INTEGER PRIMARY KEY AUTOINCREMENT, player_fifa_api_id INTEGER, player_api_id INTEGER, date TEXT, overall_rating INTEGER, preferred_foot TEXT);
CREATE TABLE Team_Attributes (id INTEGER PRIMARY KEY AUTOINCREMENT);
";

/// Returns the model's answer to any question, which is also the truth.
fn answer(column: &AskedColumn, row: &AskedRow) -> Json {
    let one: Json = match (&column.values, column.data_type.as_str()) {
        (Some(values), _) => values[0].as_str().into(),
        (None, "integer" | "boolean") => 1.into(),
        (None, "real") => json!(1.5),
        _ if column.name == "ExclusivelyVirtual" => "Y".into(),
        (None, "date") => "2000-01-02".into(),
        (None, "url") => "http://en.wikipedia.org/wiki/X".into(),
        _ if column.name == "gender" && row.key[0] == "Kept" => "Male".into(),
        _ if column.name == "gender" => "Female".into(),
        _ if column.name == "moral_alignment" => "Good".into(),
        _ => "X".into(),
    };
    match (column.many, row.key[0].as_str()) {
        (true, Some("Once")) => json!([]),
        (true, _) => json!([one]),
        _ => one,
    }
}

/// A folder with BIRD's databases in `bird`, in BIRD's layout, and an endpoint.
struct Bench {
    dir: tempfile::TempDir,
    endpoint: Endpoint,
}

impl Bench {
    fn new(databases: &[(&str, &str)]) -> Self {
        let bench =
            Self { dir: tempfile::tempdir().unwrap(), endpoint: Endpoint::start_answering(answer) };
        for (name, sql) in databases {
            let folder = bench.path("bird").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let db = Connection::open(folder.join(format!("{name}.sqlite"))).unwrap();
            db.execute_batch(sql).unwrap();
        }
        bench
    }

    /// Prepares the superhero database, and writes five questions into `questions.csv`.
    fn heroes() -> Self {
        let bench = Self::new(&[("superhero", SUPERHERO)]);
        bench.swan(&["prepare", "--bird", "bird", "--out", "out"]).expect_exit_code(0);
        bench.write("questions.csv", &questions(true));
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn swan(&self, args: &[&str]) -> CommandResult {
        swan(self.dir.path(), args)
    }

    fn start(&self, args: &[&str]) -> Child {
        Command::new(env!("CARGO_BIN_EXE_hqdl"))
            .arg("swan")
            .args(args)
            .current_dir(self.dir.path())
            .env_remove("HQDL_CACHE")
            .env("OPENAI_API_KEY", "sk-none")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn run(&self, more: &[&str]) -> CommandResult {
        self.swan(&args(&self.endpoint.base_url(), more))
    }

    /// Returns the worst-case cost of the smallest request, in USD, as a run without enough budget
    /// reports it.
    fn may_cost(&self, more: &[&str]) -> f64 {
        let ended = self.run(&[&["--budget", "0.0001"], more].concat()).expect_exit_code(3);
        std::fs::remove_dir_all(self.path("run")).unwrap();
        let stopped = ended.lines.iter().find(|l| l["event"] == "stopped").unwrap();
        let message = stopped["message"].as_str().unwrap();
        message.rsplit_once("may cost $").unwrap().1.parse().unwrap()
    }

    fn score(&self) -> Json {
        let ended = self.swan(&["score", "run", "--gold", "out", "--json"]).expect_exit_code(0);
        ended.lines[0]["runs"][0].clone()
    }

    fn rows(&self, db: &str, sql: &str) -> Vec<Vec<Json>> {
        query_rows(&Connection::open(self.path(db)).unwrap(), sql).unwrap()
    }
}

/// Returns the arguments of a run into `run`.
fn args<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["run", "--db", "out/superhero.sqlite", "--json", "--base-url", url];
    [&fixed, &["--questions", "questions.csv", "--out", "run"][..], more].concat()
}

fn answers(ended: &CommandResult) -> Vec<&Json> {
    ended.lines.iter().filter(|l| l["event"] == "answer").collect()
}

#[test]
fn prepare_keeps_swans_rows_and_hides_swans_columns() {
    let bench = Bench::heroes();
    let kept = |db: &str| bench.rows(db, "SELECT id FROM superhero ORDER BY id");
    // Heroes that cannot be distinguished are not kept; one of two is kept if the other is dropped
    // for another reason.
    let ids: Vec<Vec<Json>> = [1, 8, 9].iter().map(|id| vec![json!(id)]).collect();
    assert_eq!(
        (kept("out/superhero.sqlite"), kept("out/gold/superhero.sqlite")),
        (ids.clone(), ids)
    );
    assert_eq!(bench.rows("out/gold/superhero.sqlite", "SELECT count(*) FROM hero_power")[0][0], 3);
    assert_eq!(bench.rows("out/superhero.sqlite", "SELECT * FROM hero_attribute").len(), 1);
    // The remaining part of a table is unchanged.
    let schema = "SELECT name FROM sqlite_schema WHERE name LIKE 'by%'";
    assert_eq!(bench.rows("out/superhero.sqlite", schema), [[json!("by_height")]]);
    let defaults = "SELECT dflt_value, pk FROM pragma_table_info('superhero') WHERE name IN ('id', 'height_cm')";
    let [id, height] = &bench.rows("out/superhero.sqlite", defaults)[..] else { panic!() };
    assert_eq!((id[1].as_i64(), height[0].as_str()), (Some(1), Some("170")));
    let shots: Json = serde_json::from_str(
        &std::fs::read_to_string(bench.path("out/superhero.shots.json")).unwrap(),
    )
    .unwrap();
    assert_eq!(shots["llm"][0]["powers"], json!(["Flight"]));
    // No file is overwritten without `--force`, and the source never.
    let again = bench.swan(&["prepare", "--bird", "bird", "--out", "out"]);
    assert!(again.expect_exit_code(2).stderr.contains("out/superhero.sqlite exists"));
    let json = bench.swan(&["prepare", "--bird", "bird", "--out", "out", "--force", "--json"]);
    assert_eq!(json.expect_exit_code(0).lines[0]["rows_removed"]["superhero"], 7);
    bench
        .swan(&["prepare", "--bird", "bird", "--out", "bird/superhero", "--force"])
        .expect_exit_code(2);
    assert_eq!(kept("bird/superhero/superhero.sqlite").len(), 10);
    // A missing database is reported.
    let none =
        bench.swan(&["prepare", "--bird", "out/gold/none", "--out", "x"]).expect_exit_code(2);
    assert!(none.stderr.contains("out/gold/none is not a directory"), "{}", none.stderr);
    std::fs::create_dir(bench.path("empty")).unwrap();
    let none = bench.swan(&["prepare", "--bird", "empty", "--out", "x"]).expect_exit_code(2);
    assert!(none.stderr.contains("empty contains no BIRD database"), "{}", none.stderr);
    bench
        .swan(&["prepare", "--bird", "bird", "--out", "x", "--only", "hockey"])
        .expect_exit_code(2);
    bench
        .swan(&["prepare", "--bird", "bird", "--out", "x", "--only", "formula_1"])
        .expect_exit_code(2);
    assert!(!bench.path("x/superhero.sqlite").exists());
}

#[test]
fn all_four_specs_fit_their_databases() {
    let all = [
        ("superhero", SUPERHERO),
        ("formula_1", FORMULA_1),
        ("california_schools", CALIFORNIA_SCHOOLS),
        ("european_football_2", EUROPEAN_FOOTBALL_2),
    ];
    let bench = Bench::new(&all);
    bench.swan(&["prepare", "--bird", "bird", "--out", "out"]).expect_exit_code(0);
    for (name, _) in all {
        let spec = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("crates/hqdl-swan/specs/{name}.toml"));
        // The specs are valid for BIRD's own tables, and for the prepared ones.
        for db in [format!("bird/{name}/{name}.sqlite"), format!("out/{name}.sqlite")] {
            let check = Command::new(env!("CARGO_BIN_EXE_hqdl"))
                .current_dir(bench.dir.path())
                .arg("check")
                .arg(&spec)
                .args(["--json", "--db", &db])
                .output()
                .unwrap();
            let check = CommandResult::new(&check).expect_exit_code(0);
            let problems = check.lines[0]["specs"][0]["problems"].as_array().unwrap().clone();
            // Warnings concern the heroes that SWAN drops, and NULLs.
            let of_keys = |p: &Json| p["message"].as_str().unwrap().contains(" key");
            assert!(problems.iter().all(of_keys), "{name}: {problems:?}");
        }
    }
}

/// Rows whose truth equals the endpoint's answers.
pub const OTHERS: [(&str, &str, &str); 3] = [
    (
        "formula_1",
        FORMULA_1,
        "INSERT INTO circuits VALUES (1, 'a', 'Ring', 'Town', 'X', 1.5, '1.5', 7, 'http://en.wikipedia.org/wiki/X');
         INSERT INTO constructors VALUES (1, 'f', 'Ferrari', 'X', 'http://en.wikipedia.org/wiki/X');
         INSERT INTO drivers VALUES (1, 'a', 3, 'X', 'Ann', 'O''Hara', '2000-01-02', 'X', 'http://en.wikipedia.org/wiki/X');
         INSERT INTO seasons VALUES (2009, 'http://en.wikipedia.org/wiki/X');
         INSERT INTO races VALUES (1, 2009, 1, 1, 'Grand Prix', '2000-01-02', '', 'y');",
    ),
    (
        "california_schools",
        CALIFORNIA_SCHOOLS,
        "INSERT INTO frpm VALUES ('1', '', '', 1, '', 'X', 'D', 'S', '', '', 'Traditional', '', 1, '', 'X', 9);
         INSERT INTO satscores VALUES ('1', 'S', 'D', 'X', 3);
         INSERT INTO schools VALUES ('1', 'X', 'D', 'S', '1 Road', 'X', 'X', 'X', NULL, 'F', 1), ('2', 'X', 'D', NULL, 'Office', 'X', 'X', 'X', NULL, 'F', 1);",
    ),
    (
        "european_football_2",
        EUROPEAN_FOOTBALL_2,
        "INSERT INTO Country VALUES (1, 'X'); INSERT INTO League VALUES (1, 1, 'X');
         INSERT INTO Team VALUES (1, 11, 1, 'Home', 'X'), (2, 12, 1, 'Away', 'X');
         INSERT INTO Match VALUES (1, 1, 1, '2008/2009', 1, '2008-08-17 00:00:00', 5, 11, 12, 1, 1);
         INSERT INTO Player VALUES (1, 21, 'Ann', 31, 'X', 1.5, 150);
         INSERT INTO Player_Attributes VALUES (1, 31, 21, '2010', 60, 'X'), (2, 31, 21, '2011', 61, 'X');",
    ),
];

/// The other three databases run all steps with an example: every answer equals its true value.
#[test]
fn the_other_databases_run_with_examples() {
    for (name, schema, data) in OTHERS {
        let bench = Bench::new(&[(name, &[schema, data].concat())]);
        bench.swan(&["prepare", "--bird", "bird", "--out", "out"]).expect_exit_code(0);
        let gold = "SELECT count(*) FROM sqlite_schema WHERE name = 'x'";
        bench.write("q.csv", &line(&["Any?", "", "moderate", gold, "SELECT 0"]));
        let db = format!("out/{name}.sqlite");
        let url = bench.endpoint.base_url();
        let args = ["run", "--db", &db, "--questions", "q.csv", "--out", "run", "--base-url", &url];
        bench.swan(&[&args, &["--shots", "1"][..]].concat()).expect_exit_code(0);
        let score = bench.score();
        assert!(score["questions_file"].as_str().unwrap().ends_with("q.csv"));
        assert_eq!(score["questions"][0]["qid"], format!("{name}-00"));
        let facts = &score["factuality"];
        assert_eq!(facts["cells"]["percent"], 100.0, "{facts:#}");
        assert_eq!(facts["swan"]["percent"], 100.0, "{facts:#}");
        // A question without a name is named after its database and number.
        assert_eq!(score["ex"]["right"], 1.0);
    }
}

#[test]
fn failures_are_reported_and_the_run_continues() {
    let bench = Bench::heroes();
    let ended = bench.run(&[]).expect_exit_code(1);
    let answers = answers(&ended);
    assert_eq!(answers.len(), 5);
    assert!(answers[2]["error"].as_str().unwrap().contains("SELEKT"), "{}", answers[2]);
    let last = ended.lines.last().unwrap();
    assert_eq!((&last["answered"], &last["failed"]), (&4.into(), &1.into()));
    let score = bench.score();
    let swan: Vec<&Json> =
        score["questions"].as_array().unwrap().iter().map(|q| &q["swan"]).collect();
    assert_eq!(swan, [&json!(true), &json!(true), &json!(false), &json!(false), &Json::Null]);
    let of = |n: usize, name: &str| score["questions"][n][name].clone();
    assert_eq!((of(1, "difference"), of(1, "graded")), ("".into(), 1.0.into()));
    assert_eq!((of(2, "difference"), of(2, "graded")), ("".into(), 0.0.into()));
    assert_eq!(
        (of(3, "difference"), of(3, "strict")),
        ("the same rows in another order".into(), false.into())
    );
    assert!(
        of(4, "error").as_str().unwrap().contains("the gold SQL fails: no such table: nowhere")
    );
    assert_eq!((&score["ex"]["of"], &score["ex"]["right"]), (&4.into(), &2.0.into()));
    assert_eq!(
        score["notes"][0],
        "the gold SQL of 1 of 5 questions fails, so the score ignores it"
    );
    // BlendSQL's queries, in a separate folder: one is invalid, one is missing.
    let other = bench.run(&["--mode", "blendsql"]).expect_exit_code(2);
    assert!(
        other.stderr.contains("run already contains a run of superhero in mode hqdl with 0 shots")
    );
    let url = bench.endpoint.base_url();
    let mut args = args(&url, &["--mode", "blendsql"]);
    let out = args.iter().rposition(|a| *a == "run").unwrap();
    args[out] = "blend";
    let ended = bench.swan(&args).expect_exit_code(1);
    let answers = self::answers(&ended);
    let error = |n: usize| answers[n]["error"].as_str().unwrap_or_default().to_owned();
    assert_eq!((error(0), error(1)), (String::new(), String::new()));
    assert!(!error(2).is_empty() && answers[2]["rows"].is_null());
    assert_eq!(answers[3]["rows"], json!([["Kept"], ["Twice"], ["Once"]]));
    assert_eq!((&answers[3]["requests"], &answers[3]["values_asked"]), (&1.into(), &3.into()));
    assert_eq!(error(4), "the questions file has no blendsql query for this question");
    // Faults of the queries themselves were found by running them on the true values.
    let known = |n: usize| score["questions"][n]["known"].clone();
    assert_eq!((known(0), known(1), known(4)), (Json::Null, Json::Null, Json::Null));
    assert_eq!(
        (known(2), known(3)),
        ("on the true values, too".into(), "on the true values, too".into())
    );
}

#[test]
fn questions_come_as_swan_publishes_them_and_with_a_header() {
    let bench = Bench::heroes();
    let asked = |text: String| {
        bench.write("questions.csv", &text);
        let ended = bench.run(&[]).expect_exit_code(1);
        answers(&ended).iter().map(|a| (a["qid"].clone(), a["query"].clone())).collect::<Vec<_>>()
    };
    let with_header = asked(questions(true));
    assert_eq!(with_header.len(), 5);
    assert_eq!(asked(questions(false)), with_header);
    assert_eq!(asked(format!("\u{feff}{}", questions(true))), with_header);
    // Six columns: without BlendSQL's queries, or without names.
    let six = |at: usize| {
        QUESTIONS
            .map(|[qid, gold, hqdl, blendsql]| {
                let mut fields = vec![qid, "Which?", "", "simple", gold, hqdl, blendsql];
                fields.remove(at);
                line(&fields)
            })
            .concat()
    };
    assert_eq!(asked(six(6)), with_header);
    assert_eq!(asked(six(0)), with_header);
    // SWAN's own files: one file for each kind of query, some with a remark.
    let own = |at: usize, remark: &[&str]| {
        let rows = QUESTIONS.map(|q| {
            let fields = ["superhero", "Which?", "by heart", q[1], "simple", q[at]];
            line(&[&fields, remark].concat())
        });
        rows.concat()
    };
    assert_eq!(asked(own(2, &[])), with_header);
    assert_eq!(asked(own(2, &["No such id"])), with_header);
    bench.write("questions.csv", &own(3, &[]));
    let ended = bench.run(&[]).expect_exit_code(2);
    assert!(ended.stderr.contains("questions.csv has no hqdl queries"), "{}", ended.stderr);
    bench.write("questions.csv", &own(2, &[]).replace("superhero,", "formula_1,"));
    let ended = bench.run(&[]).expect_exit_code(2);
    assert!(ended.stderr.contains("is about formula_1, not about superhero"), "{}", ended.stderr);
    // Columns in any order, with a header.
    let shuffled = QUESTIONS.map(|[qid, gold, hqdl, _]| line(&[hqdl, qid, gold, "?"])).concat();
    assert_eq!(asked(format!("hqdl_sql,qid,gold_sql,question\n{shuffled}")), with_header);

    let refused = |bytes: &[u8], said: &str| {
        std::fs::write(bench.path("questions.csv"), bytes).unwrap();
        let ended = bench.run(&[]).expect_exit_code(2);
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    };
    refused(b"", "questions.csv contains no questions");
    refused(b"superhero,\"What is it?", "line 1: a quoted field begins here and has no end");
    refused(b"qid,question,gold_sql,hqdl_sql\n", "contains no questions");
    refused(b"a,b\n1,2\n", "line 1: a row of 2 columns matches no format of SWAN");
    refused(
        b"qid,question,gold_sql\nx,y,z\n",
        "no column `hqdl_sql` among qid, question, gold_sql",
    );
    refused(b"q,\xe9t\xe9?,e,simple,SELECT 1,SELECT 1\n", "line 1: text that is not UTF-8");
    refused(b"q,?,e,simple,,SELECT 1\n", "line 1: no gold SQL");
    let twice = b"q,?,e,simple,SELECT 1,SELECT 1\nq,?,e,simple,SELECT 1,SELECT 1\n";
    refused(twice, "line 2: a second question has the id q");
    std::fs::remove_file(bench.path("questions.csv")).unwrap();
    assert!(bench.run(&[]).expect_exit_code(2).stderr.contains("questions.csv"));
}

#[test]
fn a_budget_ends_the_run_and_the_next_one_continues() {
    let bench = Bench::heroes();
    let few = ["--rows-per-request", "1", "--concurrency", "1"];
    // A request costs half a cent, and its worst case is higher: two fit.
    let budget = bench.may_cost(&few) + 0.006;
    let ended =
        bench.run(&[&few[..], &["--budget", &budget.to_string()]].concat()).expect_exit_code(3);
    let stopped = ended.lines.iter().find(|l| l["event"] == "stopped").unwrap();
    assert!(stopped["message"].as_str().unwrap().contains("budget"), "{stopped}");
    assert!(stopped["cost_usd"].as_f64().unwrap() <= budget);
    assert!(answers(&ended).is_empty());
    let paid = bench.endpoint.request_count();
    assert_eq!(paid, 2);
    let score = bench.score();
    assert_eq!(
        (&score["ex"]["right"], &score["runs"][0]["finished"]),
        (&0.0.into(), &false.into())
    );
    assert_eq!(score["notes"][1], "5 of 5 questions were never run, so they count as wrong");
    // Paid answers are not paid for again.
    let ended = bench.run(&few).expect_exit_code(1);
    assert_eq!((answers(&ended).len(), bench.endpoint.request_count()), (5, 3));
    assert_eq!(bench.run(&few).expect_exit_code(1).lines.last().unwrap()["requests"], 0);
    let score = bench.score();
    assert_eq!(score["runs"].as_array().unwrap().len(), 3);
    assert_eq!((&score["ex"]["right"], &score["spent"]["requests"]), (&2.0.into(), &3.into()));
}

/// The budget applies to the whole run: the cost of the tables reduces what is left for the
/// questions.
#[test]
fn questions_share_the_budget_with_the_tables() {
    let bench = Bench::heroes();
    // A question that costs more than the tables.
    let long = format!("Is this one tall{}?", ", truly".repeat(6000));
    let dear =
        format!("SELECT count(*) FROM superhero WHERE {{{{LLMMap('{long}', 'superhero::id')}}}}");
    let line = |qid, query| line(&[qid, "?", "", "simple", "SELECT 1", "SELECT 1", query]);
    bench.write("questions.csv", &[line("free", "SELECT 1"), line("dear", &dear)].concat());
    // The reported cost is the worst case of the smallest request, with one row: three rows in one
    // request cost no more than three such requests.
    let budget = (bench.may_cost(&[]) * 3.0).to_string();
    let blendsql = ["--mode", "blendsql"];
    let ended = bench.run(&[&blendsql[..], &["--budget", &budget]].concat());
    assert_eq!(ended.code, 3, "{}", ended.stderr);
    assert_eq!((bench.endpoint.request_count(), answers(&ended).len()), (1, 1));
    let ended = bench.run(&[&blendsql[..], &["--budget", "1"]].concat()).expect_exit_code(0);
    assert_eq!((bench.endpoint.request_count(), answers(&ended).len()), (2, 2));
}

#[test]
fn an_interrupted_run_continues_where_it_stopped() {
    let bench = Bench::heroes();
    bench.endpoint.add_fault(Fault::Latency(Duration::from_millis(1500)), Frequency::Always);
    let url = bench.endpoint.base_url();
    let args = args(&url, &["--rows-per-request", "1", "--concurrency", "1"]);
    let child = bench.start(&args);
    bench.endpoint.wait_for(1);
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let ended = CommandResult::new(&child.wait_with_output().unwrap()).expect_exit_code(130);
    assert!(ended.stderr.contains("run this again to continue"), "{}", ended.stderr);
    // Killed while writing: an incomplete line is ignored.
    let mut record = std::fs::read_to_string(bench.path("run/run.jsonl")).unwrap();
    record.push_str("{\"event\":\"answ");
    bench.write("run/run.jsonl", &record);
    bench.endpoint.clear_faults();
    let before = bench.endpoint.request_count();
    let ended = bench.run(&["--rows-per-request", "1"]).expect_exit_code(1);
    assert_eq!(answers(&ended).len(), 5);
    assert_eq!(bench.endpoint.request_count() - before, 2, "one of three was answered before");
    assert_eq!(bench.score()["ex"]["right"], 2.0);
}

/// The requests of a killed run count against the rate limits of the next one.
#[test]
fn a_killed_run_and_the_next_one_share_the_rate_limits() {
    let bench = Bench::heroes();
    let spec = include_str!("../../crates/hqdl-swan/specs/superhero.toml");
    bench.write("slow.toml", &spec.replace("requests_per_minute = 500", "requests_per_minute = 1"));
    let url = bench.endpoint.base_url();
    let args = args(&url, &["--spec", "slow.toml", "--rows-per-request", "1"]);
    // Each run reports that it waits for the limit before it is killed.
    for run in ["first", "second"] {
        let mut child = bench.start(&args);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let waits = |line: &String| line.contains("requests or tokens per minute is used up");
        assert!(lines.into_iter().any(|line| waits(&line)), "the {run} run did not wait");
        assert!(child.try_wait().unwrap().is_none(), "the {run} run has ended");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(bench.endpoint.request_count(), 1, "after the {run} run");
    }
}

#[test]
fn an_endpoint_that_refuses_ends_the_run() {
    let bench = Bench::heroes();
    bench
        .endpoint
        .add_fault(Fault::status(401, "no such key", "invalid_api_key"), Frequency::Always);
    let ended = bench.run(&[]).expect_exit_code(4);
    assert!(answers(&ended).is_empty());
    assert!(ended.lines.iter().any(|l| l["event"] == "stopped"));
}

/// The cache key does not include the number of examples, so each number has its own facts.
#[test]
fn runs_with_and_without_examples_share_no_facts() {
    let bench = Bench::heroes();
    let url = bench.endpoint.base_url();
    let requests = |out: &str, shots: &str, more: &[&str]| {
        let fixed = ["run", "--db", "out/superhero.sqlite", "--questions", "questions.csv"];
        let flags =
            ["--cache", "facts", "--base-url", &url, "--json", "--out", out, "--shots", shots];
        let ended = bench.swan(&[&fixed[..], &flags, more].concat()).expect_exit_code(1);
        ended.lines.last().unwrap()["requests"].as_u64().unwrap()
    };
    assert_eq!(requests("a", "0", &[]), 1);
    assert_eq!(requests("b", "1", &[]), 1);
    assert_eq!(requests("c", "1", &[]), 0);
    assert_eq!(requests("d", "1", &["--model", "other", "--price", "1,2"]), 1);
    let score = bench.swan(&["score", "a", "d", "--gold", "out", "--json"]).expect_exit_code(0);
    let price =
        |n: usize| score.lines[0]["runs"][n]["runs"][0]["total"]["cost_usd"].as_f64().unwrap();
    assert!(price(1) < price(0));
    // Another model has no known price.
    assert_eq!(requests("e", "0", &["--model", "third"]), 1);
    let table = bench.swan(&["score", "a", "e", "--gold", "out"]).expect_exit_code(0).stdout;
    assert!(table.lines().last().unwrap().trim_end().ends_with('?'), "{table}");
    // More examples than exist.
    let args = args(&url, &["--shots", "4"]);
    let many = bench.swan(&args).expect_exit_code(2);
    assert!(
        many.stderr.contains("contains 3 examples for `llm`, but --shots asks for 4"),
        "{}",
        many.stderr
    );
    std::fs::remove_file(bench.path("out/superhero.shots.json")).unwrap();
    assert!(
        bench
            .run(&["--shots", "1"])
            .expect_exit_code(2)
            .stderr
            .contains("cannot read examples from")
    );
}

#[test]
fn invalid_runs_and_scores_are_reported() {
    let bench = Bench::heroes();
    let says = |args: &[&str], said: &str| {
        let ended = bench.swan(args).expect_exit_code(2);
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    };
    let questions = ["run", "--questions", "questions.csv"];
    let with = |more: &[&'static str]| [&questions, more].concat();
    says(&with(&[]), "no database to query");
    says(&with(&["--db", "nowhere.sqlite"]), "SWAN has no database `nowhere`");
    says(&with(&["--db", "out/gold/no/superhero.sqlite"]), "no database at");
    says(&with(&["--db", "questions.csv"]), "SWAN has no database `questions`");
    says(
        &with(&["--db", "out/superhero.sqlite", "--on-demand"]),
        "its SQL reads materialized tables",
    );
    says(&with(&["--db", "out/superhero.sqlite", "--price", "x"]), "expected two prices");
    says(&["score", "nothing", "--gold", "out"], "there is no run in");
    bench.run(&[]).expect_exit_code(1);
    says(&["score", "run", "--gold", "nothing"], "no gold database of superhero at nothing");
    bench.write("run/run.jsonl", "{}\n{}\n");
    says(&["score", "run", "--gold", "out"], "line 1");
}

#[test]
fn a_report_is_markdown_json_and_charts() {
    let bench = Bench::heroes();
    bench.run(&[]).expect_exit_code(1);
    bench.run(&[]).expect_exit_code(1);
    let args = ["report", "run", "--gold", "out", "--out", "report", "--json"];
    let written = bench.swan(&args).expect_exit_code(0);
    let names = ["report.md", "report.json", "shots.svg", "cost.svg", "requests.svg"];
    assert_eq!(written.lines.len(), names.len());
    let read = |name: &str| std::fs::read_to_string(bench.path("report").join(name)).unwrap();
    let report = read("report.md");
    for said in [
        "| run | superhero | hqdl | gpt-4-turbo | 0 | 2/4 | 50.0 % | 2/4 |",
        "| HQDL, GPT-4 Turbo (2024) | 23.3 | 23.3 | 26.7 | 23.3 |",
        "| superhero-03 | wrong | the same rows in another order (the query itself: on the true values, too) | 1.00 | – |",
        "no such table: nowhere",
        "| run | 2 | 0 | 0 | 0 | 0 | 0 | 0 | $0.0000 |",
        "superhero-10 depends on the order of rows",
        "![Score by cost; each point is labeled with its shots](cost.svg)",
    ] {
        assert!(report.contains(said), "{said}\n{report}");
    }
    let json: Json = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(json["runs"][0]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(json["published"]["superhero"][1]["ex_percent_by_shots"]["5"], 23.3);
    for chart in ["shots.svg", "cost.svg", "requests.svg"] {
        let svg = read(chart);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

/// Each database has its own tables, and costs of zero have no chart.
#[test]
fn a_report_of_several_databases_has_a_table_for_each() {
    let (name, schema, data) = OTHERS[0];
    let bench = Bench::new(&[("superhero", SUPERHERO), (name, &[schema, data].concat())]);
    bench.swan(&["prepare", "--bird", "bird", "--out", "out"]).expect_exit_code(0);
    let url = bench.endpoint.base_url();
    bench.write("q.csv", &line(&["Any?", "", "moderate", "SELECT 0", "SELECT 0"]));
    for name in ["superhero", name] {
        let db = format!("out/{name}.sqlite");
        let args = ["run", "--db", &db, "--questions", "q.csv", "--out", name, "--base-url", &url];
        bench.swan(&[&args, &["--price", "0,0"][..]].concat()).expect_exit_code(0);
    }
    std::fs::create_dir(bench.path("report")).unwrap();
    bench.write("report/cost.svg", "of an earlier report");
    bench
        .swan(&["report", "superhero", name, "--gold", "out", "--out", "report"])
        .expect_exit_code(0);
    let report = std::fs::read_to_string(bench.path("report/report.md")).unwrap();
    assert!(!report.contains("cost.svg") && !bench.path("report/cost.svg").exists(), "{report}");
    for said in [
        "## Questions: superhero\n",
        "| question | asked | superhero |\n",
        &format!("## Questions: {name}\n"),
        &format!("| question | asked | {name} |\n"),
        "(Wilson 95 %): superhero\n",
        "| system | 0 shots | 1 shot | 3 shots | 5 shots |",
    ] {
        assert!(report.contains(said), "{said}\n{report}");
    }
    // A single database is not named in the headings.
    bench.swan(&["report", "superhero", "--gold", "out", "--out", "report"]).expect_exit_code(0);
    let report = std::fs::read_to_string(bench.path("report/report.md")).unwrap();
    assert!(report.contains("## Questions\n"), "{report}");
}
