//! Tests of the number of rows per request: it shrinks when answers are misaligned or unreadable,
//! and grows when they are not.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value as Json, json};

use hqdl::spec::Format;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, HEROES, Project, check_cells, heroes_spec, true_value, truthful_endpoint,
};

/// Creates a project with the heroes and this many numbers, 32 per request, one request at a time.
fn numbers(endpoint: &Endpoint, numbers: usize) -> Project {
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {numbers})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    let text = heroes_spec()
        .replace("rows_per_request = 4", "rows_per_request = 32")
        .replace("concurrency = 4", "concurrency = 1");
    Project::new(endpoint, &sql, &text)
}

/// Returns the number of rows of each request.
fn sizes(endpoint: &Endpoint) -> Vec<usize> {
    endpoint.received_requests().iter().map(|r| r.question.rows.len()).collect()
}

/// Returns for each request the number of rows that were not requested before.
fn first_sizes(endpoint: &Endpoint) -> Vec<usize> {
    let mut seen: HashSet<String> = HashSet::new();
    let mut sizes = Vec::new();
    for request in endpoint.received_requests() {
        let keys = request.question.rows.iter().map(|r| json!(r.key).to_string());
        if keys.filter(|k| seen.insert(k.clone())).count() > 0 {
            sizes.push(request.question.rows.len());
        }
    }
    sizes
}

#[test]
fn requests_shrink_to_the_models_ability_and_only_failed_rows_are_repeated() {
    let endpoint = truthful_endpoint();
    // The model loses every second row if it gets more than six.
    endpoint.add_fault_where(Fault::MissingRows, Frequency::Always, |q| q.rows.len() > 6);
    let project = numbers(&endpoint, 190);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(
        check_cells(&project),
        BTreeMap::from([("ok".to_owned(), 200 * COLUMN_NAMES.len())])
    );
    let (sizes, first) = (sizes(&endpoint), first_sizes(&endpoint));
    println!("{sizes:?}");
    // The number of rows is halved until a request succeeds; after that it grows by one at a time.
    assert_eq!(first[..4], [32, 16, 8, 4], "{sizes:?}");
    assert!(first[3..].iter().all(|n| *n <= 7), "{sizes:?}");
    assert!(sizes.len() <= 80, "{} requests for 200 rows: {sizes:?}", sizes.len());
    // If a request lost rows, only these are requested again.
    let mut known: HashSet<String> = HashSet::new();
    for request in endpoint.received_requests() {
        let lossy = request.question.rows.len() > 6;
        for (n, row) in request.question.rows.iter().enumerate() {
            let key = json!(row.key).to_string();
            assert!(!known.contains(&key), "{key} was answered and is asked again");
            if !lossy || n % 2 == 0 {
                known.insert(key);
            }
        }
    }
    assert_eq!(known.len(), 200);
}

#[test]
fn requests_grow_back_when_answers_are_good_again() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault_where(Fault::MissingRows, Frequency::First(4), |q| q.rows.len() > 6);
    let project = numbers(&endpoint, 790);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(check_cells(&project)["ok"], 800 * COLUMN_NAMES.len());
    let sizes = sizes(&endpoint);
    println!("{sizes:?}");
    let least = sizes.iter().position(|n| *n <= 4).unwrap();
    assert!(sizes[least..].contains(&32), "it never came back to 32: {sizes:?}");
    let steps = sizes[least..].iter().position(|n| *n == 32).unwrap();
    assert!(steps <= 70, "{steps} requests until it did: {sizes:?}");
}

#[test]
fn many_requests_in_flight_that_fail_together_count_once() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault_where(Fault::MissingRows, Frequency::First(8), |q| q.rows.len() > 16);
    let project = numbers(&endpoint, 500);
    project.run_materialize(&["--concurrency", "8"]).expect_exit_code(0);
    let sizes = sizes(&endpoint);
    println!("{sizes:?}");
    // If each of the eight failures counted, one row per request would be left.
    let least = first_sizes(&endpoint).into_iter().filter(|n| *n >= 12).count();
    assert!(least * 12 > 510 / 2, "{sizes:?}");
}

/// Fewer rows per request fix misalignment, not ignorance.
#[test]
fn a_column_that_is_always_wrong_does_not_make_every_request_a_single_row() {
    let endpoint = Endpoint::start_with(|column, key| {
        if column == "born" { "long ago".into() } else { true_value(column, key) }
    });
    let project = numbers(&endpoint, 630);
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["invalid"], 640);
    assert_eq!(ended.done_event()["cells"]["ok"], 640 * 3);
    let first = first_sizes(&endpoint);
    println!("{first:?}, {} requests in all", endpoint.request_count());
    assert!(first.len() < 70, "{} requests for 640 rows: {first:?}", first.len());
    assert!(first[first.len() - 8..].iter().any(|n| *n >= 24), "{first:?}");
}

#[test]
fn a_cell_that_keeps_failing_ends_as_invalid_with_its_raw_answer() {
    let endpoint = Endpoint::start_with(|column, key| match (column, key[0].as_str()) {
        ("born", Some("Zed")) => "in the dark ages".into(),
        _ => true_value(column, key),
    });
    let project = numbers(&endpoint, 30);
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["invalid"], 1);
    let cell = project.query_rows(
        "SELECT state, value, raw FROM hqdl_cell WHERE key LIKE '[\"Zed%' AND \"column\" = 'born'",
    );
    assert_eq!(cell, [[json!("invalid"), Json::Null, json!("in the dark ages")]]);
    let mut asked: HashMap<String, usize> = HashMap::new();
    endpoint.cells_since(0).iter().for_each(|c| *asked.entry(format!("{c:?}")).or_default() += 1);
    let again: Vec<_> = asked.iter().filter(|(_, n)| **n > 1).collect();
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].0.contains("Zed") && again[0].0.contains("born") && *again[0].1 == 3);
    // One malformed row does not reduce the size of requests.
    let whole = endpoint.received_requests();
    let whole: Vec<usize> = whole
        .iter()
        .filter(|r| r.question.columns.len() == 4)
        .map(|r| r.question.rows.len())
        .collect();
    assert_eq!(whole, [32, 8]);
}

/// Creates the heroes' project with one request at a time, and answers in this format.
fn heroes_in(format: &str, endpoint: &Endpoint) -> Project {
    let text = heroes_spec()
        .replace("concurrency = 4", "concurrency = 1")
        .replace("format = \"csv\"", &format!("format = \"{format}\""));
    Project::new(endpoint, HEROES, &text)
}

#[test]
fn a_model_whose_csv_is_unreadable_is_asked_in_json() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault_where(Fault::Renumbered, Frequency::Always, |q| q.format == Format::Csv);
    let project = heroes_in("csv", &endpoint);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(check_cells(&project), BTreeMap::from([("ok".to_owned(), 40)]));
    let formats: Vec<Format> =
        endpoint.received_requests().iter().map(|request| request.question.format).collect();
    let switch = formats.iter().position(|format| *format == Format::Json).unwrap();
    assert_eq!(switch, 3, "{formats:?}");
    assert!(formats[switch..].iter().all(|format| *format == Format::Json), "{formats:?}");
    let note = "had no readable value, so hqdl asks it in JSON";
    assert_eq!(ended.stderr.matches(note).count() + ended.stdout.matches(note).count(), 1);
    // A model that answered in CSV before is still asked in CSV.
    let endpoint = truthful_endpoint();
    endpoint.add_fault_where(Fault::Renumbered, Frequency::Always, |q| {
        q.rows.iter().any(|row| row.key_text().starts_with('Z'))
    });
    heroes_in("csv", &endpoint).run_materialize(&[]).expect_exit_code(1);
    assert!(endpoint.received_requests().iter().all(|r| r.question.format == Format::Csv));
}

#[test]
fn a_model_that_answers_one_row_of_a_request_is_asked_about_single_rows() {
    let endpoint = truthful_endpoint();
    // The model answers only the first row.
    endpoint.add_fault_where(Fault::FirstRowOnly, Frequency::Always, |q| q.rows.len() > 1);
    let project = heroes_in("json", &endpoint);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(check_cells(&project), BTreeMap::from([("ok".to_owned(), 40)]));
    let sizes = sizes(&endpoint);
    assert_eq!(sizes[..4], [4, 1, 1, 1], "{sizes:?}");
    let note = "asks it about one row at a time";
    assert_eq!(ended.stderr.matches(note).count() + ended.stdout.matches(note).count(), 1);
}
