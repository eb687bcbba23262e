//! Runs `BlendSQL`'s own test suite as data: the rows equal those of the equivalent plain SQL, and
//! no more values are requested than `BlendSQL` passes. The data are not part of this project;
//! without them the tests report that.

use std::path::Path;

use serde_json::Value as Json;

use hqdl_testkit::endpoint::Request;
use hqdl_testkit::engine::{self, Order, Outcome, Query, check_subset, compare_rows, plain_rows};
use hqdl_testkit::oracle;

/// Queries whose ORDER BY has ties, with the columns that must be in order. `#` before a column's
/// number means its length.
const TIES: [(&str, &[&str]); 9] = [
    ("c003", &["3"]),
    ("c017", &["0"]),
    ("c019", &["0", "#1"]),
    ("c023", &["3"]),
    ("c024", &["0"]),
    ("c042", &["0"]),
    ("c043", &["0"]),
    ("c044", &["1"]),
    ("c066", &["#0"]),
];

/// Those of them in which ties also decide which rows are returned.
const TIES_UNDER_LIMIT: [&str; 2] = ["c019", "c066"];

/// Queries that cannot be answered as written: the expected error, and the reason.
const WRONG: [(&str, &str, &str); 13] = [
    ("l001", "", "DELETE"),
    ("l002", "", "DROP"),
    ("l005", "ingredient", "no such ingredient, and `SELECT * w`"),
    ("l006", "select_first_option", "no such ingredient"),
    ("l007", "NewIngredient", "no such ingredient"),
    ("l020", "list_element", "DuckDB's function"),
    ("l023", "syntax error", "a name of four parts"),
    ("l027", "test_starts_with", "no such ingredient"),
    ("l031", "", "DuckDB's slices and read_text"),
    ("l037", "image=true", "an image is sent only where the call says so"),
    ("l055", "parameter", "a parameter as a type"),
    ("l056", "Player", "no such table"),
    ("l057", "Player", "no such table"),
];

/// Queries that may be rejected or answered, and the reason.
const EITHER: [(&str, &str); 3] = [
    ("l019", "the options are numbers and are compared with a text"),
    ("l025", "SQLite has no names of columns after a subquery's alias"),
    ("l032", "SQLite has no VALUES in FROM without parentheses"),
];

/// Queries whose answers are lists; the endpoint does not learn their length.
const LISTS: [&str; 6] = ["l045", "l048", "l049", "l050", "l051", "l052"];

fn read(folder: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(folder.join("cases.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs a case from an empty cache.
fn run(folder: &Path, case: &Json, url: &str, flags: &[&str]) -> Outcome {
    let cache = tempfile::tempdir().unwrap();
    let query = Query {
        db: folder.join(case["db"].as_str().unwrap_or("db/generic.db")),
        cache: cache.path().to_owned(),
        base_url: Some(url.to_owned()),
        model: case["id"].as_str().unwrap(),
        rows_per_request: 10,
        flags: flags.iter().map(|f| (*f).to_owned()).collect(),
        sql: case["blendsql_llm"].as_str().unwrap(),
    };
    query.run_query()
}

/// Returns the rows without the columns that only `BlendSQL` adds.
fn dropped(case: &Json, outcome: &Outcome) -> Vec<Vec<Json>> {
    let drop = case["drop_columns"].as_array().unwrap();
    let keep: Vec<bool> =
        outcome.columns.iter().map(|c| !drop.iter().any(|d| d == c.as_str())).collect();
    let kept = |row: &Vec<Json>| {
        row.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(v, _)| v.clone()).collect()
    };
    outcome.rows.iter().map(kept).collect()
}

/// Returns the columns of each row that must be in order.
fn keys(rows: &[Vec<Json>], columns: &[&str]) -> Vec<Vec<Json>> {
    let cell = |row: &Vec<Json>, column: &str| match column.strip_prefix('#') {
        Some(n) => row[n.parse::<usize>().unwrap()].as_str().unwrap_or_default().len().into(),
        None => row[column.parse::<usize>().unwrap()].clone(),
    };
    rows.iter().map(|row| columns.iter().map(|c| cell(row, c)).collect()).collect()
}

fn compare(folder: &Path, case: &Json, outcome: &Outcome) -> Result<(), String> {
    let id = case["id"].as_str().unwrap();
    let db = folder.join(case["db"].as_str().unwrap());
    let sql = case["sql"].as_str().unwrap();
    let expected = plain_rows(&db, sql)?;
    let ours = dropped(case, outcome);
    if let Some(accept) = case["accept_first_value"].as_array() {
        let wrong = ours.iter().find(|row| !accept.contains(&row[0]));
        return match wrong {
            Some(row) => Err(format!("{row:?} is not among the rows that may be")),
            None if ours.len() == expected.len() => Ok(()),
            None => Err(format!("{} rows instead of {}", ours.len(), expected.len())),
        };
    }
    if let Some((all, limit)) = sql.rsplit_once("LIMIT")
        && limit.trim().parse::<u32>().is_ok()
        && !sql.contains("ORDER BY")
    {
        return check_subset(&ours, expected.len(), &plain_rows(&db, all)?);
    }
    let ties = TIES.iter().find(|(tied, _)| *tied == id);
    match (case["compare"].as_str().unwrap(), ties) {
        ("ordered", Some((_, columns))) => {
            if !TIES_UNDER_LIMIT.contains(&id) {
                compare_rows(&ours, &expected, Order::Unordered)?;
            }
            compare_rows(&keys(&ours, columns), &keys(&expected, columns), Order::Ordered)
        }
        ("ordered", None) => compare_rows(&ours, &expected, Order::Ordered),
        ("unordered", _) => compare_rows(&ours, &expected, Order::Unordered),
        (other, _) => Err(format!("compare {other}?")),
    }
}

/// Asserts that calls of `LLMMap` request no more values than `BlendSQL` passes: with the fake
/// ingredients of its tests, or with a model if looking ahead makes that more. (`BlendSQL` counts
/// the rows of a QA's context, hqdl counts one.)
fn count(case: &Json, outcome: &Outcome, requests: &[Request]) -> Result<(u64, u64), String> {
    let all = oracle::count_pairs(requests).len() as u64;
    if outcome.meta_count("values_asked")? != all {
        return Err(format!("the endpoint saw {all} values: {}", outcome.meta));
    }
    let is_map = |r: &&Request| {
        let question = &r.question;
        question.columns.iter().all(|c| !c.many)
            && question.rows.iter().all(|r| r.context.is_empty())
    };
    let maps: Vec<Request> = requests.iter().filter(is_map).cloned().collect();
    let asked = oracle::count_pairs(&maps).len() as u64;
    let Some(expected) = case["expected_values_passed"].as_u64() else {
        return Ok((asked, u64::MAX));
    };
    let with_model = &case["observed_blendsql_0_1_27"]["sqlite_llm_stub"]["values_passed"];
    let most = expected.max(with_model.as_u64().unwrap_or(0));
    if asked > most {
        return Err(format!("asked for {asked} values instead of {most}"));
    }
    Ok((asked, expected))
}

/// The plain SQL of every case runs; this needs no engine.
#[test]
fn plain_sql_of_the_blendsql_cases_runs() {
    let Some(folder) = engine::shared_folder("blendsql") else { return };
    let cases = read(&folder);
    let plain_cases: Vec<&Json> = cases.iter().filter(|c| c["sql"].is_string()).collect();
    assert_eq!((cases.len(), plain_cases.len()), (125, 68));
    for case in plain_cases {
        let db = folder.join(case["db"].as_str().unwrap());
        let rows = plain_rows(&db, case["sql"].as_str().unwrap()).unwrap();
        assert_eq!(case["expected_n_rows"].as_u64(), Some(rows.len() as u64), "{}", case["id"]);
    }
}

#[test]
fn blendsql_cases_give_the_rows_of_plain_sql() {
    let Some(folder) = engine::shared_folder("blendsql") else { return };
    let cases: Vec<Json> = read(&folder).into_iter().filter(|c| c["sql"].is_string()).collect();
    let endpoint = oracle::start_endpoint();
    let url = endpoint.base_url();
    let totals = std::sync::Mutex::new((0, 0));
    let failed = engine::run_in_parallel(&cases, |case| {
        let outcome = run(&folder, case, &url, &[]);
        let held = outcome
            .check_exit_code(&[0])
            .and_then(|()| compare(&folder, case, &outcome))
            .and_then(|()| {
                let requests = endpoint.requests_to(case["id"].as_str().unwrap());
                count(case, &outcome, &requests)
            });
        match held {
            Ok((asked, expected)) if expected < u64::MAX => {
                let mut totals = totals.lock().unwrap();
                *totals = (totals.0 + asked, totals.1 + expected);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(why) => Err(format!("== {}\n{why}\n{}\n", case["id"], query_text(case))),
        }
    });
    let (asked, expected) = *totals.lock().unwrap();
    println!(
        "{} of 68 hold; {asked} values asked where BlendSQL passes {expected}",
        68 - failed.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn query_text(case: &Json) -> &str {
    case["blendsql_llm"].as_str().unwrap()
}

#[test]
fn blendsql_cases_for_real_models_succeed() {
    let Some(folder) = engine::shared_folder("blendsql") else { return };
    let cases: Vec<Json> = read(&folder).into_iter().filter(|c| c["sql"].is_null()).collect();
    assert_eq!(cases.len(), 57);
    let endpoint = oracle::start_endpoint();
    let url = endpoint.base_url();
    let failed = engine::run_in_parallel(&cases, |case| {
        let id = case["id"].as_str().unwrap();
        let flags: &[&str] = match id {
            "l033" => &["--param", "1=5"],
            _ => &[],
        };
        let outcome = run(&folder, case, &url, flags);
        let wrong = WRONG.iter().find(|(wrong, ..)| *wrong == id);
        let codes: &[i32] = match wrong {
            Some(_) => &[2],
            None if EITHER.iter().any(|(either, _)| *either == id) => &[0, 1, 2],
            None if LISTS.contains(&id) => &[0, 1],
            None => &[0],
        };
        let says = wrong.map_or("", |(_, says, _)| *says);
        let clear = match outcome.code {
            2 if outcome.stderr.trim().is_empty() => Err("the error says nothing".to_owned()),
            2 if !outcome.stderr.contains(says) => {
                Err(format!("the error does not say {says}: {}", outcome.stderr))
            }
            2 => Ok(()),
            _ if outcome.columns.is_empty() => Err("no columns".to_owned()),
            _ => Ok(()),
        };
        outcome
            .check_exit_code(codes)
            .and(clear)
            .map_err(|why| format!("== {id}\n{why}\n{}\n", query_text(case)))
    });
    println!("{} of 57 end well", 57 - failed.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
