//! Tests of sources whose key is a part of the expansion's key.

use hqdl::Row;
use hqdl::value::Value;
use serde_json::{Value as Json, json};

use hqdl_testkit::fixture::{Fixture, find_problem, position_of};
use hqdl_testkit::project::{MODEL, Project, true_value, truthful_endpoint};

const SQL: &str = "
    CREATE TABLE lunch (school TEXT, district TEXT); CREATE TABLE place (street TEXT, name TEXT);
    INSERT INTO lunch VALUES ('North High', 'North'), ('South High', NULL), ('1 Road', 'Elm');
    INSERT INTO place VALUES ('1 Road', 'Elm'), (NULL, 'Lost Hall'), ('2 Road', 'Oak');";

/// Two sources that both request `kind`; one of them also requests `city`.
const SPEC: &str = r#"
[[expansion]]
name = "llm"
key = ["school", "district", "street", "name"]
rows_per_request = 10
format = "FORMAT"
shots = [
  { school = "West High", district = "West", kind = "high" },
  { street = "9 Road", name = "Ash", kind = "primary", city = "Asheville" },
]
[[expansion.source]]
table = "lunch"
key = ["district", "school"]
columns = ["kind"]
[[expansion.source]]
table = "place"
key = ["street", "name"]
[[expansion.column]]
name = "kind"
[[expansion.column]]
name = "city"
"#;

fn spec(format: &str) -> String {
    [MODEL, &SPEC.replace("FORMAT", format)].concat()
}

fn nulls(key: &[Json]) -> usize {
    key.iter().filter(|k| k.is_null()).count()
}

/// A row is shown with only its source's part of the key, never beside a row with another part, and
/// with examples of its part. Its values are stored in its own row.
#[test]
fn a_row_is_shown_with_its_sources_part_of_the_key() {
    for format in ["csv", "json"] {
        let endpoint = truthful_endpoint();
        let project = Project::new(&endpoint, SQL, &spec(format));
        let plan = project.run_plan(&[]);
        assert_eq!(plan["totals"]["cells"], 9);
        project.run_materialize(&[]).expect_exit_code(0);
        // The parts that a source does not have are not reported as NULLs.
        let said = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0).stderr;
        assert!(said.contains("2 keys have a part that is NULL"), "{said}");
        let requests = endpoint.received_requests();
        assert_eq!(plan["totals"]["requests"], requests.len());
        for request in &requests {
            let body = request.body.to_string();
            let of_lunch = body.contains("North High") || body.contains("South High");
            assert_eq!(body.contains("West High"), of_lunch, "{body}");
            assert_eq!(body.contains("Asheville"), !of_lunch, "{body}");
            assert!(request.question.rows.iter().all(|r| r.key.len() == 2), "{body}");
        }
        let asked: usize = requests.iter().map(|r| r.requested_cells().len()).sum();
        assert_eq!(asked, 9, "each cell once");
        let rows = project.query_rows("SELECT school, district, street, name, kind, city FROM llm");
        assert_eq!(rows.len(), 6);
        for row in &rows {
            let of_lunch = row[3].is_null();
            let key = if of_lunch { &row[..2] } else { &row[2..4] };
            assert!(nulls(&row[..4]) - nulls(key) == 2, "{row:?}");
            assert_eq!(row[4], true_value("kind", key));
            let city = if of_lunch { Json::Null } else { true_value("city", key) };
            assert_eq!(row[5], city);
        }
        // Each source's view finds its rows.
        let found = |view: &str| project.query_rows(&format!("SELECT kind FROM {view}"));
        assert!(found("lunch_expanded").iter().all(|r| !r[0].is_null()));
        assert!(found("place_expanded").iter().all(|r| !r[0].is_null()));
        // Cells that a source does not request are neither reported nor missing.
        let states = project.query_rows(
            "SELECT \"column\", state, count(*), sum(json_extract(key, '$[3]') IS NULL) FROM hqdl_cell GROUP BY 1, 2",
        );
        let told = json!([["city", "ok", 3, 0], ["kind", "ok", 6, 3]]);
        assert_eq!(Json::from(states.into_iter().map(Json::from).collect::<Vec<_>>()), told);
        // Nothing is requested twice, and nothing changes.
        assert_eq!(project.run_materialize(&[]).expect_exit_code(0).done_event()["requests"], 0);
    }
}

/// A question about a row of either source finds the cell that its table shows.
#[test]
fn a_question_is_answered_from_the_row_of_its_source() {
    let endpoint = truthful_endpoint();
    let asks = spec("csv")
        .replace("name = \"kind\"\n", "name = \"kind\"\nquestions = [\"What kind is it?\"]\n");
    let project = Project::new(&endpoint, SQL, &asks);
    project.run_materialize(&[]).expect_exit_code(0);
    for (source, column, key) in [("lunch", "school", [0, 1]), ("place", "name", [2, 3])] {
        let sql = format!(
            "SELECT {column}, {{{{LLMMap('What kind is it?', '{source}::{column}')}}}} FROM {source} ORDER BY 1"
        );
        let ended = project
            .run_hqdl(&["query", "--spec", "specs/x.toml", "--json", &sql])
            .expect_exit_code(0);
        assert_eq!(ended.lines[0]["meta"]["requests"], 0, "{}", ended.stdout);
        let rows = ended.lines[0]["rows"].as_array().unwrap().clone();
        assert_eq!(rows.len(), 3);
        let llm = project.query_rows("SELECT school, district, street, name, kind FROM llm");
        for row in rows {
            let same = llm.iter().filter(|l| key.iter().any(|k| l[*k] == row[0]));
            let kinds: Vec<&Json> = same.map(|l| &l[4]).collect();
            assert_eq!(kinds, [&row[1]], "{sql}: {row}");
        }
    }
}

/// A question can name the values of all rows of a column's sources, if the column has no list;
/// each source has its own part of the key.
#[test]
fn a_question_names_the_values_of_sources_with_parts() {
    let endpoint = truthful_endpoint();
    let named =
        "name = \"city\"\nquestions = [{ ask = \"Is it in {value}?\", sql = \"city = {value}\" }]";
    let project = Project::new(&endpoint, SQL, &spec("csv").replace("name = \"city\"", named));
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let rows = project.query_rows("SELECT city FROM llm WHERE street = '2 Road'");
    let serde_json::Value::String(city) = &rows[0][0] else { panic!("{rows:?}") };
    let sql = format!(
        "SELECT name FROM place WHERE {{{{LLMMap('Is it in {}?', place.street)}}}}",
        city.to_lowercase()
    );
    let ended =
        project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", &sql]).expect_exit_code(0);
    let routes = &ended.lines[0]["meta"]["routes"];
    assert_eq!(routes[0]["route"], "bound", "{routes}");
    let found = ended.lines[0]["rows"].as_array().unwrap();
    assert!(found.contains(&json!(["Oak"])), "{found:?}");
    assert_eq!(endpoint.request_count(), asked);
}

/// Facts whose other key parts were explicitly NULL are known.
#[test]
fn facts_of_keys_with_explicit_nulls_are_reused() {
    let endpoint = truthful_endpoint();
    let before = spec("csv")
        .replace(
            "table = \"lunch\"\nkey = [\"district\", \"school\"]",
            "select = \"SELECT school, district, NULL AS street, NULL AS name FROM lunch\"",
        )
        .replace(
            "table = \"place\"\nkey = [\"street\", \"name\"]",
            "select = \"SELECT NULL AS school, NULL AS district, street, name FROM place\"",
        );
    let project = Project::new(&endpoint, SQL, &before);
    project.run_materialize(&[]).expect_exit_code(0);
    let rows = project.query_rows("SELECT * FROM llm");
    project.write_spec(&spec("csv"));
    assert_eq!(project.run_materialize(&[]).expect_exit_code(0).done_event()["requests"], 0);
    assert_eq!(project.query_rows("SELECT * FROM llm"), rows);
}

/// Recordings are found by the part of the key that the source has.
#[test]
fn recordings_are_found_by_the_part() {
    let endpoint = truthful_endpoint();
    let project = Project::new(&endpoint, SQL, &spec("csv"));
    let line = |keys: Json, content: &str| json!({ "keys": keys, "content": content }).to_string();
    let lines = [
        line(json!(["North High", "North"]), "'North High','North','high'"),
        line(json!(["South High", null]), "'South High','','middle'"),
        line(json!(["1 Road", "Elm"]), "'1 Road','Elm','primary','Elmville'"),
        line(json!([null, "Lost Hall"]), "'','Lost Hall','hall','Nowhere'"),
        line(json!(["2 Road", "Oak"]), "'2 Road','Oak','primary','Oakland'"),
    ];
    std::fs::write(project.path("r.jsonl"), lines.join("\n")).unwrap();
    // ("1 Road", "Elm") is a school and its district in one source, a street and a
    // school in the other: the line has too many fields for the first.
    let ended = project.run_materialize(&["--recordings", "r.jsonl"]).expect_exit_code(1);
    let rows =
        project.query_rows("SELECT name, kind, city FROM llm WHERE name IS NOT NULL ORDER BY name");
    let row = |cells: [&str; 3]| cells.map(Json::from).to_vec();
    assert_eq!(
        rows,
        [
            row(["Elm", "primary", "Elmville"]),
            row(["Lost Hall", "hall", "Nowhere"]),
            row(["Oak", "primary", "Oakland"])
        ]
    );
    assert_eq!(ended.done_event()["cells"]["ok"], 8);
    let kinds =
        project.query_rows("SELECT kind FROM llm WHERE school LIKE '% High' ORDER BY school");
    assert_eq!(kinds, [[json!("high")], [json!("middle")]]);
}

/// Whatever parts the sources have, a prompt shows all columns of a key that are not NULL, in
/// order, and for a source's row only its part.
#[test]
fn no_value_of_a_key_is_hidden() {
    let fixture = Fixture::new();
    let toml = |parts: &[Vec<usize>]| {
        let names = ["superhero_name", "full_name", "height_cm"];
        let mut text =
            "[database]\npath = \"x.sqlite\"\n[model]\nname = \"m\"\n[[expansion]]\nname = \"t\"\n\
                        key = [\"superhero_name\", \"full_name\", \"height_cm\"]\n"
                .to_owned();
        for part in parts {
            let part: Vec<&str> = part.iter().map(|n| names[*n]).collect();
            text += &format!("[[expansion.source]]\ntable = \"superhero\"\nkey = {part:?}\n");
        }
        text + "[[expansion.column]]\nname = \"race\"\n"
    };
    let sets: Vec<Vec<usize>> =
        (1..8_usize).map(|bits| (0..3).filter(|n| bits >> n & 1 == 1).collect()).collect();
    for a in &sets {
        for b in &sets {
            if (0..3).any(|n| !a.contains(&n) && !b.contains(&n)) {
                continue;
            }
            let expansion = fixture.only_expansion(&toml(&[a.clone(), b.clone()]));
            for bits in 1..8_usize {
                let value =
                    |n: usize| if bits >> n & 1 == 1 { Value::from("x") } else { Value::Null };
                let key: Vec<Value> = (0..3).map(value).collect();
                let there = |n: &usize| key[*n] != Value::Null;
                let of =
                    [a, b].into_iter().filter(|p| (0..3).filter(there).all(|n| p.contains(&n)));
                let Some(least) = of.map(Vec::len).min() else { continue };
                let row = Row { key: key.clone(), context: Vec::new() };
                let shown = expansion.build_shown_row(&row);
                assert_eq!(shown.key.len(), least, "{a:?} {b:?} {key:?}");
                let values = |key: &[Value]| key.iter().filter(|v| **v != Value::Null).count();
                assert_eq!(values(&shown.key), values(&key));
                assert_eq!(expansion.choose_prompt_key_names(&key).len(), least);
                assert_eq!(
                    expansion.reduce_to_key_part(&key).key.names(),
                    &*expansion.choose_prompt_key_names(&key)
                );
            }
        }
    }
}

#[test]
fn a_key_that_is_not_a_part_is_reported_with_its_location() {
    let fixture = Fixture::new();
    let toml = |key: &str| {
        format!(
            "[database]\npath = \"x.sqlite\"\n[model]\nname = \"m\"\n[[expansion]]\nname = \"t\"\n\
             key = [\"superhero_name\", \"full_name\"]\n[[expansion.source]]\ntable = \"superhero\"\n\
             key = {key}\n[[expansion.column]]\nname = \"race\"\n"
        )
    };
    for (key, says, place) in [
        ("[\"full_nam\"]", "the key of `t` has no column `full_nam`", "\"full_nam\""),
        ("[]", "the key of this source is empty", "[]"),
        (
            "[\"full_name\", \"full_name\"]",
            "occurs twice in the key of this source",
            "\"full_name\"]\n[[expansion.column",
        ),
        ("[\"full_name\"]", "no source has the key column `superhero_name`", "\"superhero_name\""),
    ] {
        let toml = toml(key);
        let problems = fixture.spec_problems(&toml);
        if key == "[\"full_name\"]" || key == "[]" {
            find_problem(&problems, says.split(" `super").next().unwrap());
        }
        let found = problems.problems.iter().find(|p| p.message.contains(says));
        let found = found.unwrap_or_else(|| panic!("{says}: {}", problems.render(false)));
        assert_eq!(problems.find_line_column(found), position_of(&toml, place), "{key}");
    }
}
