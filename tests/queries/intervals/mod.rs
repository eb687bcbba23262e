//! Tests of `hqdl audit` and `hqdl query --interval`: the truth of a sample, and how far the result
//! over the true values can be from the result over the model's answers.

mod truths;

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{CommandResult, MODEL, Project};

/// Number of heroes.
const HEROES: usize = 300;

const SPEC: &str = r#"
[[expansion]]
name = "llm"
source = "hero"
key = ["name"]
format = "csv"
rows_per_request = 50
[[expansion.column]]
name = "race"
values = ["Human", "Alien", "Robot"]
[[expansion.column]]
name = "gender"
[[expansion.column]]
name = "born"
type = "integer"
[[expansion.column]]
name = "weight"
type = "real"
range = [0, 200]
[[expansion.column]]
name = "powers"
many = { table = "llm_power", column = "power" }

[[expansion]]
name = "temper"
source = "hero"
key = ["name"]
format = "csv"
rows_per_request = 50
[[expansion.column]]
name = "mood"
"#;

/// The number in a hero's name.
fn number(name: &str) -> usize {
    name.trim_start_matches("Hero ").parse().unwrap()
}

fn true_race(n: usize) -> &'static str {
    ["Human", "Human", "Alien", "Robot", "Human"][n % 5]
}

fn true_weight(n: usize) -> f64 {
    (50 + n % 100) as f64
}

/// Answers of the model: every seventh race and every ninth weight is wrong.
fn answer(column: &str, name: &str) -> Json {
    let n = number(name);
    match column {
        "race" if n.is_multiple_of(7) => json!("Alien"),
        "race" => json!(true_race(n)),
        "weight" if n.is_multiple_of(9) => json!(0.0),
        "weight" => json!(true_weight(n)),
        "born" => json!(1900 + n),
        "powers" if n.is_multiple_of(4) => json!(["Flight", "Speed"]),
        "powers" => json!(["Speed"]),
        "gender" => json!("Male"),
        _ => json!("calm"),
    }
}

/// A project whose tables are published.
fn heroes() -> (Endpoint, Project) {
    let endpoint = Endpoint::start_answering(|column, row| {
        answer(&column.name, row.key[0].as_str().unwrap_or_default())
    });
    let sql = format!(
        "CREATE TABLE hero (name TEXT, town TEXT, height REAL);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO hero SELECT 'Hero ' || i, CASE WHEN i % 2 THEN 'Gotham' ELSE 'Smallville' END, 150 + i FROM n;
         CREATE TABLE town (town TEXT, name TEXT);
         INSERT INTO town VALUES ('Gotham', 'Hero 1');",
        HEROES - 1
    );
    let project = Project::new(&endpoint, &sql, &[MODEL, SPEC].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    (endpoint, project)
}

fn audit(project: &Project, flags: &[&str]) -> CommandResult {
    project.run_hqdl(&[&["audit", "specs/x.toml"], flags].concat())
}

/// Runs a query with an interval that contains the truth almost surely.
fn query(project: &Project, sql: &str, flags: &[&str]) -> CommandResult {
    project.run_hqdl(
        &[&["query", "--spec", "specs/x.toml", "--json", "--interval", "99.9", sql], flags]
            .concat(),
    )
}

fn sheet(project: &Project) -> PathBuf {
    project.path("specs/x.llm.audit.csv")
}

/// Fills the truths of the first rows of the sheet. `truth` returns a truth by column and hero.
fn fill(project: &Project, rows: usize, truth: impl Fn(&str, usize) -> Option<String>) {
    let text = std::fs::read_to_string(sheet(project)).unwrap();
    let (comment, csv) = text.split_once('\n').unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(reader.headers().unwrap()).unwrap();
    for record in reader.records() {
        let record = record.unwrap();
        let mut fields: Vec<String> = record.iter().map(str::to_owned).collect();
        if fields[0].parse::<usize>().unwrap() <= rows
            && let Some(truth) = truth(&fields[2], number(&fields[1]))
        {
            fields[4] = truth;
        }
        writer.write_record(&fields).unwrap();
    }
    let csv = String::from_utf8(writer.into_inner().unwrap()).unwrap();
    std::fs::write(sheet(project), format!("{comment}\n{csv}")).unwrap();
}

fn truth(column: &str, n: usize) -> Option<String> {
    Some(match column {
        "race" => true_race(n).to_owned(),
        "weight" => true_weight(n).to_string(),
        "powers" if n.is_multiple_of(4) => "Flight|Speed".to_owned(),
        "powers" => "Speed".to_owned(),
        _ => return None,
    })
}

const AUDITED: [&str; 4] = ["--columns", "race,weight,powers", "--seed", "7"];

/// The only row of a result, by column.
fn only_row(result: &CommandResult) -> Json {
    let json = &result.lines[0];
    let names = json["columns"].as_array().unwrap();
    let row = json["rows"][0].as_array().unwrap();
    names.iter().zip(row).map(|(n, v)| (n.as_str().unwrap().to_owned(), v.clone())).collect()
}

#[test]
fn the_interval_of_a_count_contains_the_truth() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "100"]].concat()).expect_exit_code(0);
    fill(&project, 100, truth);
    let true_count = (0..HEROES).filter(|n| true_race(*n) == "Human").count() as f64;
    for sql in [
        "SELECT count(*) AS n FROM llm WHERE race = 'Human'",
        "SELECT count(*) FILTER (WHERE race = 'Human') AS n FROM hero_expanded",
        "SELECT sum(race = 'Human') AS n FROM hero AS h JOIN llm AS l ON h.name = l.name",
        "SELECT count(*) AS n FROM hero AS h, llm AS l WHERE h.name = l.name AND l.race = 'Human'",
        "SELECT count(race) AS n FROM hero AS h LEFT JOIN llm AS l USING (name) WHERE race = 'Human'",
    ] {
        let result = query(&project, sql, &[]).expect_exit_code(0);
        let row = only_row(&result);
        let at = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{sql}: {row}"));
        assert!(at("n_low") <= true_count && true_count <= at("n_high"), "{sql}: {row}");
        assert!(at("n_low") <= at("n_estimate") && at("n_estimate") <= at("n_high"), "{row}");
        assert!(at("n_high") - at("n_low") < 90.0, "{row}");
        let interval = &result.lines[0]["meta"]["interval"];
        assert_eq!((&interval["audited"], &interval["population"]), (&json!(100), &json!(HEROES)));
        assert_eq!(interval["methods"], json!(["two classes"]));
    }
}

/// If every row is audited, nothing is uncertain, whatever the model answered.
#[test]
fn a_complete_audit_gives_the_truth() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "300"]].concat()).expect_exit_code(0);
    fill(&project, HEROES, truth);
    let humans = || (0..HEROES).filter(|n| true_race(*n) == "Human");
    let count = humans().count() as f64;
    let mean = |number: fn(usize) -> f64| humans().map(number).sum::<f64>() / count;
    let flying = (0..HEROES).filter(|n| n.is_multiple_of(4) && true_race(*n) == "Human").count();
    for (sql, expected) in [
        ("SELECT count(*) AS n FROM llm WHERE race = 'Human'", count),
        ("SELECT count(*) AS n FROM llm WHERE race <> 'Human' OR race IS NULL", HEROES as f64 - count),
        ("SELECT avg(height) AS n FROM hero_expanded WHERE race = 'Human'", mean(|n| (150 + n) as f64)),
        ("SELECT avg(weight) AS n FROM llm WHERE race = 'Human'", mean(true_weight)),
        ("SELECT sum(weight) AS n FROM llm WHERE race = 'Human'", mean(true_weight) * count),
        ("SELECT 100.0 * count(*) FILTER (WHERE race = 'Human') / count(*) AS n FROM llm", count / 3.0),
        ("SELECT avg(race = 'Human') AS n FROM llm", count / 300.0),
        (
            "SELECT count(*) AS n FROM llm WHERE race = 'Human' AND EXISTS (SELECT 1 FROM llm_power AS p
             WHERE p.name = llm.name AND p.power = 'Flight')",
            flying as f64,
        ),
    ] {
        let row = only_row(&query(&project, sql, &[]).expect_exit_code(0));
        for name in ["n_low", "n_high", "n_estimate"] {
            let found = row[name].as_f64().unwrap_or_else(|| panic!("{sql}: {row}"));
            assert!((found - expected).abs() < 1e-4, "{sql}: {name} of {row}, not {expected}");
        }
    }
}

#[test]
fn each_group_has_its_own_interval() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "150"]].concat()).expect_exit_code(0);
    fill(&project, 150, truth);
    let sql = "SELECT race, town, count(*) AS n, avg(height) AS h FROM hero_expanded GROUP BY 1, town ORDER BY race, 2";
    let width = |flags: &[&str]| {
        let result = query(&project, sql, flags).expect_exit_code(0);
        let rows = result.lines[0]["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 6);
        let mut width = 0.0;
        for row in &rows {
            let heroes = (0..HEROES)
                .filter(|n| true_race(*n) == row[0] && ["Smallville", "Gotham"][n % 2] == row[1]);
            let count = heroes.clone().count() as f64;
            let mean = heroes.map(|n| (150 + n) as f64).sum::<f64>() / count;
            let at = |n: usize| row[n].as_f64().unwrap();
            assert!(at(3) <= count && count <= at(4), "{row}");
            assert!(at(7) <= mean && mean <= at(8), "{row}");
            width += at(4) - at(3);
        }
        width
    };
    assert!(width(&["--simultaneous"]) > width(&[]));
}

/// `?` counts as true and as false; a sum is then rejected.
#[test]
fn unknowable_truths_widen_a_count() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "100"]].concat()).expect_exit_code(0);
    let count = "SELECT count(*) AS n FROM llm WHERE race = 'Human'";
    let width = |row: &Json| row["n_high"].as_f64().unwrap() - row["n_low"].as_f64().unwrap();
    fill(&project, 100, truth);
    let known = only_row(&query(&project, count, &[]).expect_exit_code(0));
    fill(&project, 5, |column, _| (column == "race").then(|| "?".to_owned()));
    let unknown = only_row(&query(&project, count, &[]).expect_exit_code(0));
    assert!(width(&unknown) > width(&known) + 5.0, "{known} {unknown}");
    let sum = query(&project, "SELECT avg(height) FROM hero_expanded WHERE race = 'Human'", &[]);
    assert!(sum.expect_exit_code(2).stderr.contains("5 rows have a truth that cannot be known"));
}

/// Later answers, overrides and applied truths change the published result, not its interval.
#[test]
fn an_interval_keeps_using_the_drawn_answers() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "100"]].concat()).expect_exit_code(0);
    fill(&project, 100, truth);
    let sql = "SELECT count(*) AS n FROM llm WHERE race = 'Human'";
    let before = only_row(&query(&project, sql, &[]).expect_exit_code(0));
    let applied = audit(&project, &["--apply", "--json"]).expect_exit_code(0);
    assert!(applied.lines[0]["cells"].as_u64().unwrap() > 10, "{applied:?}");
    project.run_materialize(&[]).expect_exit_code(0);
    let after = only_row(&query(&project, sql, &[]).expect_exit_code(0));
    assert_ne!(before["n"], after["n"]);
    for name in ["n_low", "n_high", "n_estimate"] {
        assert_eq!(before[name], after[name]);
    }
    let report = audit(&project, &["--columns", "race", "--report", "--json"]).expect_exit_code(0);
    assert!(report.lines[0]["changed"].as_u64().unwrap() > 10, "{report:?}");
    // Applying again changes nothing.
    let again = audit(&project, &["--columns", "race", "--apply", "--json"]).expect_exit_code(0);
    assert_eq!(again.lines[0]["cells"], 0);
    // The case of a header does not matter.
    let path = project.path("specs/x.overrides.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    let (header, lines) = text.split_once('\n').unwrap();
    std::fs::write(&path, format!("{}\n{lines}", header.replace("name", "NAME"))).unwrap();
    let again = audit(&project, &["--columns", "race", "--apply", "--json"]).expect_exit_code(0);
    assert_eq!(again.lines[0]["cells"], 0);
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
}

/// Entities that were added later may all satisfy a condition; deleted ones leave the population.
#[test]
fn sources_may_change_after_the_draw() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "300"]].concat()).expect_exit_code(0);
    fill(&project, HEROES, truth);
    project.execute_sql(
        "INSERT INTO hero VALUES ('Hero 1000', 'Gotham', 1), ('Hero 1001', 'Gotham', 1)",
    );
    project.execute_sql("DELETE FROM hero WHERE name IN ('Hero 0', 'Hero 2')");
    project.run_materialize(&[]).expect_exit_code(0);
    let row = only_row(
        &query(&project, "SELECT count(*) AS n FROM llm WHERE race = 'Human'", &[])
            .expect_exit_code(0),
    );
    // Hero 0 was human, and Hero 2 an alien.
    assert_eq!((&row["n_low"], &row["n_high"]), (&json!(179), &json!(181)), "{row}");
    let average =
        query(&project, "SELECT avg(height) FROM hero_expanded WHERE race = 'Human'", &[]);
    assert!(average.expect_exit_code(2).stderr.contains("2 rows were added after the draw"));
    let report = audit(&project, &["--columns", "race", "--report"]).expect_exit_code(0);
    assert!(report.stdout.contains("2 of these rows no longer exist"), "{}", report.stdout);
}

/// The rows of greatest leverage are drawn for certain.
#[test]
fn an_audit_for_an_average_draws_the_greatest_rows() {
    let (_endpoint, project) = heroes();
    let sql = "SELECT sum(height) AS n FROM hero_expanded WHERE race = 'Human'";
    let drawn = audit(&project, &["--for", sql, "--sample", "40", "--seed", "3", "--json"])
        .expect_exit_code(0);
    assert_eq!(
        (&drawn.lines[0]["design"], &drawn.lines[0]["columns"]),
        (&json!("leverage"), &json!(["race"]))
    );
    let text = std::fs::read_to_string(sheet(&project)).unwrap();
    for n in HEROES - 10..HEROES {
        assert!(text.contains(&format!(",Hero {n},")), "Hero {n} is not in the sample");
    }
    fill(&project, 40, truth);
    let row = only_row(&query(&project, sql, &[]).expect_exit_code(0));
    let sum =
        (0..HEROES).filter(|n| true_race(*n) == "Human").map(|n| (150 + n) as f64).sum::<f64>();
    assert!(
        row["n_low"].as_f64().unwrap() <= sum && sum <= row["n_high"].as_f64().unwrap(),
        "{row}"
    );
    let count = "SELECT count(*) AS n FROM llm WHERE race = 'Human'";
    query(&project, count, &[]).expect_exit_code(0);
    // A query that only counts needs no certain rows.
    std::fs::remove_file(sheet(&project)).unwrap();
    std::fs::remove_file(project.path("specs/x.llm.audit.jsonl")).unwrap();
    let drawn = audit(&project, &["--for", count, "--json"]).expect_exit_code(0);
    assert_eq!(drawn.lines[0]["design"], "uniform");
}

/// Only a filled prefix counts, in the random order of the sheet.
#[test]
fn only_a_filled_prefix_counts() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "60"]].concat()).expect_exit_code(0);
    let sql = "SELECT count(*) AS n FROM llm WHERE race = 'Human'";
    let refused = query(&project, sql, &[]).expect_exit_code(2);
    assert!(refused.stderr.contains("none of its rows is audited"), "{}", refused.stderr);
    fill(&project, 30, |column, n| truth(column, n).filter(|_| column == "race"));
    let audited =
        |sql: &str| query(&project, sql, &[]).lines[0]["meta"]["interval"]["audited"].clone();
    assert_eq!(audited(sql), 30);
    let refused = query(&project, "SELECT avg(weight) FROM llm", &[]).expect_exit_code(2);
    assert!(refused.stderr.contains("none of its rows is audited"), "{}", refused.stderr);
}

#[test]
fn a_person_can_answer_in_the_terminal() {
    use std::io::Write as _;
    let (_endpoint, project) = heroes();
    audit(&project, &["--columns", "race", "--sample", "20", "--seed", "1"]).expect_exit_code(0);
    let mut command =
        project.hqdl_command(&["audit", "specs/x.toml", "--columns", "race", "--ask-me"]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"\nOrc\nRobot\n?\n").unwrap();
    let ended = CommandResult::new(&child.wait_with_output().unwrap()).expect_exit_code(0);
    assert!(
        ended.stderr.contains("\"Orc\" is not in the value list of `race`"),
        "{}",
        ended.stderr
    );
    let report = audit(&project, &["--columns", "race", "--report", "--json"]).expect_exit_code(0);
    let race = &report.lines[0]["columns"][0];
    assert_eq!((&race["rows"], &race["cannot_be_known"]), (&json!(3), &json!(1)), "{race}");
}

#[test]
fn a_reference_fills_the_sheet_and_the_report_shows_the_result() {
    let (_endpoint, project) = heroes();
    audit(&project, &["--columns", "race", "--sample", "100", "--seed", "1"]).expect_exit_code(0);
    let rows: Vec<String> = (0..HEROES).map(|n| format!("Hero {n},{}\n", true_race(n))).collect();
    let csv = rows.concat();
    std::fs::write(project.path("truth.csv"), format!("name,race\n{csv}")).unwrap();
    let filled = audit(&project, &["--columns", "race", "--truth", "truth.csv", "--json"])
        .expect_exit_code(0);
    assert_eq!(filled.lines[0]["cells"], 100);
    let report = audit(&project, &["--columns", "race", "--report", "--json"]).expect_exit_code(0);
    let race = &report.lines[0]["columns"][0];
    let accuracy: Vec<f64> =
        race["accuracy"].as_array().unwrap().iter().map(|a| a.as_f64().unwrap()).collect();
    let wrong = (0..HEROES).filter(|n| n.is_multiple_of(7) && true_race(*n) != "Alien").count();
    let truth = 1.0 - wrong as f64 / HEROES as f64;
    assert!(accuracy[1] <= truth && truth <= accuracy[2], "{race}");
    assert_eq!((&race["evidence"], &race["rows"]), (&json!("truth"), &json!(100)));
    assert_eq!(race["confusions"][0]["answer"], "Alien");
    // The same command with a reference is `hqdl score`.
    let flags = ["--report", "--truth", "truth.csv", "--json"];
    let score = project.run_hqdl(&["score", "specs/x.toml", "--truth", "truth.csv", "--json"]);
    assert_eq!(audit(&project, &flags).expect_exit_code(0).lines, score.lines);
    // Another model's answer is not the truth.
    let text = std::fs::read_to_string(sheet(&project)).unwrap();
    std::fs::write(sheet(&project), text.replace("truth.csv", "model:gpt-4o")).unwrap();
    let report = audit(&project, &["--columns", "race", "--report", "--json"]).expect_exit_code(0);
    let columns = report.lines[0]["columns"].as_array().unwrap();
    assert_eq!((&columns[0]["evidence"], &columns[0]["rows"]), (&json!("truth"), &json!(0)));
    assert_eq!((&columns[1]["evidence"], &columns[1]["rows"]), (&json!("model"), &json!(100)));
    let refused = query(&project, "SELECT count(*) FROM llm WHERE race = 'Human'", &[]);
    refused.expect_exit_code(2);
}

/// The truths of a column that the spec no longer has stay in the sheet.
#[test]
fn an_audit_survives_the_removal_of_a_column() {
    let (_endpoint, project) = heroes();
    audit(&project, &["--columns", "race,gender", "--sample", "5"]).expect_exit_code(0);
    let fill = |columns: &str, values: &str| {
        let rows: Vec<String> = (0..HEROES).map(|n| format!("Hero {n},{values}\n")).collect();
        let csv = format!("name,{columns}\n{}", rows.concat());
        std::fs::write(project.path("truth.csv"), csv).unwrap();
        let filled = audit(&project, &["--columns", "race", "--truth", "truth.csv", "--json"]);
        assert_eq!(filled.expect_exit_code(0).lines[0]["cells"], 5);
    };
    fill("gender", "Female");
    let spec = project.spec_text();
    project.write_spec(&spec.replacen("name = \"gender\"", "name = \"sex\"", 1));
    fill("race", "Human");
    let report = audit(&project, &["--columns", "race", "--report", "--json"]).expect_exit_code(0);
    assert_eq!(report.lines[0]["columns"].as_array().unwrap().len(), 1);
    project.write_spec(&spec);
    let text = std::fs::read_to_string(sheet(&project)).unwrap();
    assert_eq!((text.matches(",Female,").count(), text.matches(",Human,").count() >= 5), (5, true));
    audit(&project, &["--columns", "race", "--report"]).expect_exit_code(0);
}

/// A process that hangs does not block others without a message.
#[test]
fn a_locked_audit_is_an_error() {
    let (_endpoint, project) = heroes();
    audit(&project, &["--columns", "race", "--sample", "5"]).expect_exit_code(0);
    std::fs::write(project.path("truth.csv"), "name,race\nHero 1,Human\n").unwrap();
    let fill = || audit(&project, &["--columns", "race", "--truth", "truth.csv"]);
    let lock = std::fs::File::open(sheet(&project).with_extension("jsonl")).unwrap();
    lock.lock().unwrap();
    let ended = fill().expect_exit_code(2);
    assert!(ended.stderr.contains("another process has locked this audit"), "{ended:?}");
    drop(lock);
    fill().expect_exit_code(0);
}

/// Every change of the sheet that is not a truth is an error with its line.
#[test]
fn a_sheet_with_errors_is_rejected() {
    let (_endpoint, project) = heroes();
    audit(&project, &["--columns", "race", "--sample", "3", "--seed", "1"]).expect_exit_code(0);
    let text = std::fs::read_to_string(sheet(&project)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let second = lines[3];
    let key = second.split(',').nth(1).unwrap();
    let reject = |changed: String, message: &str| {
        std::fs::write(sheet(&project), changed).unwrap();
        let ended = audit(&project, &["--columns", "race", "--apply"]).expect_exit_code(2);
        assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
        assert!(!project.path("specs/x.overrides.csv").exists());
    };
    reject(text.replacen("audit", "check", 1), "line 1: the header is not that of audit");
    reject(text.replacen("row,name", "row,title", 1), "line 2: the header was changed");
    reject(text.replacen(key, "Hero 9999", 1), "line 4: row 2 has another key");
    reject(text.replacen("\n2,", "\n9,", 1), "line 4: the audit has no row 9");
    reject(text.replacen("\n2,", "\n1,", 1), "line 4: row 1 has another key");
    reject(format!("{text}{second}\n"), "line 6: row 2 has `race` twice");
    reject(
        text.replacen(second, &second.replace(",race,", ",gender,"), 1),
        "line 4: `gender` is not an audited column",
    );
    let with_truth = |truth: &str| {
        let mut fields: Vec<&str> = second.split(',').collect();
        fields[4] = truth;
        text.replacen(second, &fields.join(","), 1)
    };
    reject(with_truth("Orc"), "line 4: \"Orc\" is not in the value list of `race`");
    let windows = with_truth("Orc").replace('\n', "\r\n");
    reject(windows, "line 4: \"Orc\" is not in the value list of `race`");
    reject(
        text.replacen(second, &format!("\n\n{second},x"), 1),
        "line 6: the line has 8 fields, but the header has 7",
    );
    reject(with_truth("unknown"), "line 4: \"unknown\" is not a value; write none");
    reject(with_truth("\"Human"), "line 4: a quoted field begins here");
    reject(
        text.replacen(&format!("{second}\n"), "", 1),
        "line 4: row 2, column `race`, is missing here",
    );
    let last = lines[4];
    reject(
        text.replacen(&format!("{last}\n"), "", 1),
        "line 5: row 3, column `race`, is missing here",
    );
    // A note with a line break takes two lines.
    let noted = format!("{},\"a\nb\"\n", lines[2].strip_suffix(',').unwrap());
    reject(
        text.replacen(&format!("{}\n", lines[2]), &noted, 1).replacen(
            &format!("{second}\n"),
            "",
            1,
        ),
        "line 5: row 2, column `race`, is missing here",
    );
    let mut bytes = text.clone().into_bytes();
    let at = text.find(last).unwrap();
    bytes[at + last.len() - 1] = 0xFF;
    std::fs::write(sheet(&project), bytes).unwrap();
    let ended = audit(&project, &["--columns", "race", "--report"]).expect_exit_code(2);
    assert!(ended.stderr.contains("line 5: the line is not UTF-8 text"), "{}", ended.stderr);
    let mut fields: Vec<&str> = second.split(',').collect();
    fields[3] = "Nothing";
    reject(text.replacen(second, &fields.join(","), 1), "line 4: the answer was changed");
    std::fs::write(sheet(&project), &text).unwrap();
    // A reference with a value outside the list fills nothing.
    std::fs::write(project.path("truth.csv"), format!("name,race\nHero 9999,Human\n{key},Orc\n"))
        .unwrap();
    let flags = ["--columns", "race", "--truth", "truth.csv"];
    let ended = audit(&project, &flags).expect_exit_code(2);
    let message = "truth.csv, line 3: \"Orc\" is not in the value list of `race`";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
    assert_eq!(std::fs::read_to_string(sheet(&project)).unwrap(), text);
    let again = audit(&project, &["--columns", "race"]).expect_exit_code(2);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    let draw = project.path("specs/x.llm.audit.jsonl");
    let drawn = std::fs::read_to_string(&draw).unwrap();
    std::fs::write(&draw, drawn.replacen("\"hqdl_audit\":1", "\"hqdl_audit\":2", 1)).unwrap();
    let ended = audit(&project, &["--columns", "race", "--report"]).expect_exit_code(2);
    assert!(ended.stderr.contains("line 1: another version of hqdl"), "{}", ended.stderr);
    let changed = drawn.replacen("Hero 17\"", "Hero 18\"", 1);
    std::fs::write(&draw, changed).unwrap();
    let ended = audit(&project, &["--columns", "race", "--report"]).expect_exit_code(2);
    assert!(ended.stderr.contains("the file was changed since the draw"), "{}", ended.stderr);
}

/// A database whose texts compare without case, with infinite and very small numbers, and rows
/// without a key.
fn odd_heroes() -> (Endpoint, Project) {
    let endpoint = Endpoint::start_answering(|column, row| {
        answer(&column.name, row.key[0].as_str().unwrap_or_default())
    });
    let tables = "CREATE TABLE hero (name TEXT, town TEXT COLLATE NOCASE, height REAL);
        WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 79)
        INSERT INTO hero SELECT 'Hero ' || i, iif(i % 2, 'Gotham', 'GOTHAM'),
          CASE i WHEN 0 THEN 9e999 WHEN 1 THEN -9e999 ELSE i END FROM n;
        INSERT INTO hero VALUES (NULL, 'Nowhere', 1.0);";
    let project = Project::new(&endpoint, tables, &[MODEL, SPEC].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    audit(&project, &[&AUDITED[..], &["--sample", "80"]].concat()).expect_exit_code(0);
    fill(&project, 80, truth);
    (endpoint, project)
}

const ODD_JOIN: &str = "FROM hero JOIN llm USING (name) WHERE race = 'Human'";

#[test]
fn groups_are_those_of_the_columns_collation() {
    let (_endpoint, project) = odd_heroes();
    for group in ["town", "town COLLATE NOCASE", "town || ' ' COLLATE RTRIM", "lower(town)"] {
        let sql = format!("SELECT {group} AS g, count(*) AS n {ODD_JOIN} GROUP BY 1");
        let found = query(&project, &sql, &[]);
        let found = found.expect_exit_code(0).lines[0]["rows"].clone();
        let n = |row: &Json| [row[2].as_i64().unwrap(), row[3].as_i64().unwrap()];
        let ends: Vec<[i64; 2]> = found.as_array().unwrap().iter().map(n).collect();
        // All rows are audited, so the interval is the truth.
        let expected = if group.contains("RTRIM") { vec![[24, 24]; 2] } else { vec![[48, 48]] };
        assert_eq!(ends, expected, "{group}: {found}");
    }
}

#[test]
fn numbers_without_a_sum_have_no_interval() {
    let (_endpoint, project) = odd_heroes();
    for (aggregate, reason) in [
        ("sum(height)", "a value is infinite"),
        ("avg(height)", "a value is infinite"),
        ("avg(iif(height BETWEEN 2 AND 99, height, 2) * 1e307)", "a value is infinite"),
        ("sum(iif(height BETWEEN 2 AND 99, height, 2) * 1e306)", "the sum of the values is too"),
        ("count(*) / 0.0", "the aggregate is divided by 0"),
        ("1.0 * count(*) / (0 * count(*))", "the aggregate is divided by 0"),
    ] {
        let found = query(&project, &format!("SELECT {aggregate} {ODD_JOIN}"), &[]);
        let stderr = found.expect_exit_code(2).stderr;
        assert!(stderr.contains(reason), "{aggregate}: {stderr}");
    }
    let found = query(&project, "SELECT sum(weight) FROM hero_expanded", &[]);
    assert!(found.expect_exit_code(2).stderr.contains("the key is NULL"));
}

/// A sample of all rows but a few leaves little room, and the truth is in it.
#[test]
fn an_interval_of_very_small_numbers_is_not_empty() {
    let (_endpoint, project) = odd_heroes();
    fill(&project, 80, |_, _| Some(String::new()));
    fill(&project, 40, truth);
    let sql = format!("SELECT sum(height * 1e-300) AS n {ODD_JOIN} AND height BETWEEN 2 AND 99");
    let row = only_row(&query(&project, &sql, &[]));
    let [low, high] = ["n_low", "n_high"].map(|end| row[end].as_f64().unwrap());
    assert!(low < high * 0.99, "{row}");
}

/// Each process reads the sheet again and waits for the others, so that no truth is lost.
#[test]
fn reviewers_at_once_lose_no_truth() {
    let (_endpoint, project) = heroes();
    audit(&project, &["--columns", "race", "--seed", "7", "--sample", "24"]).expect_exit_code(0);
    let spec = hqdl::spec::UncheckedSpec::read(&project.path("specs/x.toml")).unwrap();
    let overrides = hqdl::session::SpecOverrides::default();
    let session =
        hqdl::session::Session::open(spec, &overrides, hqdl::session::Cache::Temporary).unwrap();
    let (spec, expansion) = (&session.spec, &session.spec.expansions[0]);
    std::thread::scope(|scope| {
        for reviewer in 0..8 {
            scope.spawn(move || {
                let mut audit = hqdl::audit::Audit::read(spec, expansion).unwrap();
                let rows = audit.draw.sample().to_vec();
                for row in rows.iter().skip(reviewer).step_by(8) {
                    let value = hqdl::value::Value::Text("Human".to_owned());
                    let truth = hqdl::audit::CellTruth {
                        value: Some(hqdl::cell::CellValue::One(value)),
                        source: format!("person {reviewer}"),
                        note: String::new(),
                    };
                    audit.record_truth(spec, expansion, (*row, 0), truth).unwrap();
                }
            });
        }
    });
    let audit = hqdl::audit::Audit::read(spec, expansion).unwrap();
    assert_eq!(audit.count_filled_rows(&[0], hqdl::audit::Evidence::Truth), 24);
}

#[test]
fn draws_at_once_leave_one_audit() {
    let (_endpoint, project) = heroes();
    let spec = hqdl::spec::UncheckedSpec::read(&project.path("specs/x.toml")).unwrap();
    let overrides = hqdl::session::SpecOverrides::default();
    let session =
        hqdl::session::Session::open(spec, &overrides, hqdl::session::Cache::Temporary).unwrap();
    let (spec, expansion) = (&session.spec, &session.spec.expansions[0]);
    let published = hqdl::database::Database::open(spec.target()).unwrap();
    let draws = (0..8).map(|n| {
        let request = hqdl::audit::DrawRequest {
            columns: vec![0],
            sample: 20 + n,
            seed: n as u64,
            ..hqdl::audit::DrawRequest::default()
        };
        hqdl::audit::Draw::sample_rows(&session.database, &published, expansion, &request).unwrap()
    });
    let draws: Vec<_> = draws.collect();
    let start = std::sync::Barrier::new(draws.len());
    let created: Vec<String> = std::thread::scope(|scope| {
        let create = |draw: &hqdl::audit::Draw| {
            start.wait();
            hqdl::audit::Audit::create(draw, spec, expansion)
        };
        let running: Vec<_> =
            draws.iter().map(|draw| (draw, scope.spawn(move || create(draw)))).collect();
        let created =
            running.into_iter().filter_map(|(draw, thread)| match thread.join().unwrap() {
                Ok(_) => Some(draw.id.clone()),
                Err(hqdl::audit::AuditError::Exists(_)) => None,
                Err(error) => panic!("{error}"),
            });
        created.collect()
    });
    let audit = hqdl::audit::Audit::read(spec, expansion).unwrap();
    assert_eq!(created, [audit.draw.id]);
    let files = std::fs::read_dir(project.path("specs")).unwrap();
    let names = files.map(|f| f.unwrap().file_name().to_string_lossy().into_owned());
    assert_eq!(names.filter(|name| name.ends_with(".part")).count(), 0);
}

/// Every query of `refused.sql` is refused with its reason.
#[test]
fn queries_without_an_interval_are_rejected_with_the_reason() {
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "60"]].concat()).expect_exit_code(0);
    fill(&project, 60, truth);
    let mut reason = "";
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in include_str!("refused.sql").lines().filter(|line| !line.is_empty()) {
        if let Some(text) = line.strip_prefix("-- ") {
            reason = text;
            continue;
        }
        count += 1;
        let ended = query(&project, line, &[]);
        let has_reason = ended.stderr.contains(&format!("no interval: {reason}"));
        if ended.code != 2 || !has_reason {
            wrong.push(format!("{line}\n  expected: {reason}\n  {}", ended.stderr));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 60, "{count}");
}

#[test]
fn intervals_are_served_over_http() {
    use hqdl_testkit::daemon::Daemon;
    let (_endpoint, project) = heroes();
    audit(&project, &[&AUDITED[..], &["--sample", "300"]].concat()).expect_exit_code(0);
    fill(&project, HEROES, truth);
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let sql = "SELECT count(*) AS n FROM llm WHERE race = 'Human'";
    let asked = json!({ "sql": sql, "interval": 95 });
    let lines = daemon.post("/v1/query", &asked).expect_status(200).json_lines();
    assert_eq!(lines[0], json!({ "columns": ["n", "n_low", "n_high", "n_estimate"] }));
    assert_eq!(lines[1].as_array().unwrap()[1..], [json!(180), json!(180), json!(180.0)]);
    assert_eq!(lines[2]["meta"]["interval"]["audited"], HEROES);
    for (wrong, message) in [
        (json!({ "sql": sql, "interval": 100 }), "100 is not a valid `interval`"),
        (json!({ "sql": "SELECT max(race) FROM llm", "interval": 95 }), "max() is not COUNT"),
    ] {
        let refused = daemon.post("/v1/query", &wrong).expect_status(400);
        assert!(refused.error_message().contains(message), "{}", refused.body);
    }
}

/// Another model's answers are paid for once, never published, and do not count as truth.
#[test]
fn another_model_shows_agreement() {
    let (endpoint, project) = heroes();
    audit(&project, &["--columns", "race", "--sample", "30", "--seed", "1"]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let flags =
        ["--columns", "race", "--model", "large", "--price", "1,1", "--budget", "1", "--json"];
    let filled = audit(&project, &flags).expect_exit_code(0);
    assert_eq!(filled.lines.last().unwrap()["cells"], 30);
    assert_eq!(endpoint.request_count() - asked, 1);
    let text = std::fs::read_to_string(sheet(&project)).unwrap();
    assert_eq!(text.matches("model:large").count(), 30, "{text}");
    let report = audit(&project, &["--columns", "race", "--report", "--json"]).expect_exit_code(0);
    let columns = report.lines[0]["columns"].as_array().unwrap();
    assert_eq!((&columns[1]["evidence"], &columns[1]["right"]), (&json!("model"), &json!(30)));
    assert_eq!(columns[0]["rows"], 0);
    let models = project.query_rows("SELECT DISTINCT model FROM hqdl_cell");
    assert_eq!(models, [[json!("test-model")]]);
}
