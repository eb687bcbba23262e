//! Tests of `hqdl score`: published cells compared with the user's reference.

use hqdl::truth::Share;
use serde_json::{Value as Json, json};

use hqdl_testkit::project::{CommandResult, MODEL, Project, true_value, truthful_endpoint};

const SPEC: &str = r#"
[[expansion]]
name = "llm"
source = "hero"
key = ["name", "year"]
format = "csv"
[[expansion.column]]
name = "eye_color"
[[expansion.column]]
name = "born"
type = "integer"
[[expansion.column]]
name = "powers"
many = { table = "llm_power", column = "power" }
"#;

const SQL: &str = "CREATE TABLE hero (name TEXT, year INTEGER);
    INSERT INTO hero VALUES ('Ann', 1962), ('Bob', 1963), ('Cy, the \"Third\"', NULL), ('Dee', 1970);";

fn project(endpoint: &hqdl_testkit::endpoint::Endpoint) -> Project {
    let project = Project::new(endpoint, SQL, &[MODEL, SPEC].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    project
}

fn score(project: &Project, csv: &str, flags: &[&str]) -> CommandResult {
    std::fs::write(project.path("truth.csv"), csv).unwrap();
    project.run_hqdl(&[&["score", "specs/x.toml", "--truth", "truth.csv"], flags].concat())
}

fn text(json: &Json) -> String {
    json.as_str().map_or_else(|| json.to_string(), str::to_owned)
}

/// If the reference equals the endpoint's answers, everything is correct; with one changed cell,
/// only that one is not.
#[test]
fn an_equal_reference_finds_everything_correct() {
    let endpoint = truthful_endpoint();
    let project = project(&endpoint);
    let keys = [json!(["Ann", 1962]), json!(["Bob", 1963]), json!(["Cy, the \"Third\"", null])];
    let csv = |wrong: &str| {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["year", "power", "Eye_Color", "born", "name", "remark"]).unwrap();
        for key in &keys {
            let key = key.as_array().unwrap();
            let powers: Vec<String> =
                true_value("powers", key).as_array().unwrap().iter().map(text).collect();
            let powers = if powers.is_empty() { "none".to_owned() } else { powers.join("|") };
            let year = key[1].as_i64().map_or(String::new(), |y| y.to_string());
            let name = key[0].as_str().unwrap();
            let born = if name == wrong { "7".to_owned() } else { text(&true_value("born", key)) };
            let eyes = text(&true_value("eye_color", key));
            writer.write_record([year.as_str(), &powers, &eyes, &born, name, "x"]).unwrap();
        }
        String::from_utf8(writer.into_inner().unwrap()).unwrap()
    };
    let ended = score(&project, &csv("nobody"), &["--json"]).expect_exit_code(0);
    let columns = ended.lines[0]["columns"].as_array().unwrap();
    assert_eq!(columns.len(), 3);
    for column in columns {
        assert_eq!(
            (&column["accuracy"]["right"], &column["accuracy"]["of"]),
            (&json!(3.0), &json!(3))
        );
        assert_eq!((&column["f1"]["percent"], &column["differs"]), (&json!(100.0), &json!([])));
        assert_eq!(column["states"]["ok"]["right"], 3.0);
        assert_eq!(column["models"]["test-model"]["of"], 3);
    }
    let ended = score(&project, &csv("Bob"), &["--json"]).expect_exit_code(0);
    let born = &ended.lines[0]["columns"][1];
    assert_eq!((&born["column"], &born["accuracy"]["right"]), (&json!("born"), &json!(2.0)));
    assert_eq!(born["differs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&born["differs"][0]["key"], &born["differs"][0]["truth"]),
        (&json!(["Bob", "1963"]), &json!(7))
    );
    let shown = score(&project, &csv("Bob"), &[]).expect_exit_code(0);
    assert!(shown.stdout.contains("instead of 7"), "{}", shown.stdout);
    assert!(shown.stderr.contains("remark"), "{}", shown.stderr);
    assert_eq!(endpoint.request_count(), 1, "scoring asks nothing");
}

/// Cells without a value and missing rows count as wrong; cells that the reference omits do not
/// count.
#[test]
fn missing_cells_are_wrong_and_omitted_references_do_not_count() {
    let endpoint = truthful_endpoint();
    let project = project(&endpoint);
    let csv = "name,year,born\nAnn,1962,\nNobody,1950,7\nDee,1970,1\n";
    let ended = score(&project, csv, &["--json"]).expect_exit_code(0);
    let born = &ended.lines[0]["columns"][0];
    assert_eq!((&born["accuracy"]["right"], &born["accuracy"]["of"]), (&json!(0.0), &json!(2)));
    assert_eq!(
        (&born["states"]["absent"]["of"], &born["states"]["ok"]["of"]),
        (&json!(1), &json!(1))
    );
    // One value is stated, two are true, and none matches.
    assert_eq!((&born["f1"]["right"], &born["f1"]["of"]), (&json!(0.0), &json!(3)));
}

#[test]
fn invalid_references_are_reported() {
    let endpoint = truthful_endpoint();
    let project = project(&endpoint);
    let says = |csv: &str, said: &str| {
        let ended = score(&project, csv, &[]).expect_exit_code(2);
        assert!(ended.stderr.contains(said), "{csv:?}: {}", ended.stderr);
    };
    says(
        "name,born\nAnn,7\n",
        "line 1: the header lacks key columns or value columns: for `llm` it needs `name`, `year`",
    );
    says("", "truth.csv is empty");
    says("name,year,boern\nAnn,1962,7\n", "did you mean `born` instead of `boern`?");
    says("name,year,born\n", "truth.csv has no value for any cell");
    says(
        "name,year,born\nAnn,1962,7\nAnn,1962,8\n",
        "line 3: two values of `born` for the same key",
    );
    says("name,year,born\nAnn,1962\n", "truth.csv, line 2");
    says("name,year,born,Born\nAnn,1962,1962,1\n", "the header names the column `Born` twice");
    says("name,year,born\nAnn,1962,\"1962\n", "truth.csv, line 2: a quoted field begins here");
    let ended =
        project.run_hqdl(&["score", "specs/x.toml", "--truth", "nowhere.csv"]).expect_exit_code(2);
    assert!(ended.stderr.contains("nowhere.csv"), "{}", ended.stderr);
    let ended = project.run_hqdl(&[
        "score",
        "specs/x.toml",
        "--truth",
        "truth.csv",
        "--output",
        "no.sqlite",
    ]);
    assert!(ended.expect_exit_code(2).stderr.contains("no.sqlite does not exist yet"));
}

/// Wilson's intervals as published: for 15 of 20 and 0 of 10; and properties of all.
/// A database without published tables has no accuracy.
#[test]
fn a_database_without_published_tables_is_not_scored() {
    let endpoint = truthful_endpoint();
    let project = Project::new(&endpoint, SQL, &[MODEL, SPEC].concat());
    let ended = score(&project, "name,year,born\nAnn,1962,1962\n", &[]).expect_exit_code(2);
    assert!(ended.stderr.contains("data.sqlite has no published tables"), "{ended:?}");
    assert_eq!(ended.stdout, "");
}

#[test]
fn intervals_are_wilsons() {
    let of = |right: f64, of: u64| Share { correct: right, total: of }.interval();
    let near = |(low, high): (f64, f64), wanted: (f64, f64)| {
        assert!((low - wanted.0).abs() < 0.05 && (high - wanted.1).abs() < 0.05, "{low} {high}");
    };
    near(of(15.0, 20), (53.1, 88.8));
    near(of(0.0, 10), (0.0, 27.8));
    near(of(10.0, 10), (72.2, 100.0));
    near(of(0.0, 0), (0.0, 100.0));
    for n in 1..60_u64 {
        for right in 0..=n {
            let (low, high) = of(right as f64, n);
            let p = 100.0 * right as f64 / n as f64;
            assert!(0.0 <= low && low <= p + 1e-9 && p <= high + 1e-9 && high <= 100.0);
        }
    }
}
