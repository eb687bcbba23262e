//! Tests the thirty `BlendSQL` queries that SWAN published in 2024 for its superhero database, over
//! a spec that expands it: which calls are routed to a stored column, and which queries were never
//! valid. The data are not part of this project; without them the tests report that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::swan::true_recording;
use hqdl_testkit::engine::{Outcome, Query, shared_folder};

/// Queries that are invalid SQL as published: `, WITH` before the second of two common table
/// expressions.
const NO_SQL: [&str; 1] = ["superhero-00"];

/// Minimum number of queries with a call that a column answers. The others ask what no column of
/// the spec answers.
const ROUTED: usize = 27;

/// Returns the questions' numbers and published queries.
fn queries(swan: &Path) -> Vec<(String, String)> {
    let mut reader = csv::Reader::from_path(swan.join("questions-superhero.csv")).unwrap();
    let rows = reader.deserialize::<BTreeMap<String, String>>().map(Result::unwrap);
    rows.map(|row| (row["qid"].clone(), row["blendsql_2024"].clone())).collect()
}

fn run(swan: &Path, recording: &Path, cache: PathBuf, sql: &str) -> Outcome {
    let spec = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/hqdl-swan/specs/superhero.toml");
    let flags = ["--spec".into(), spec.display().to_string(), "--recordings".into()];
    let query = Query {
        db: swan.join("superhero.sqlite"),
        cache,
        base_url: None,
        model: "",
        rows_per_request: 1,
        flags: flags.into_iter().chain([recording.display().to_string()]).collect(),
        sql,
    };
    query.run_query()
}

/// Returns the routes of a query's calls, one per line.
fn routes(outcome: &Outcome) -> Vec<String> {
    let text = |json: &Json| json.as_str().unwrap_or("-").to_owned();
    let routes = outcome.meta["routes"].as_array().cloned().unwrap_or_default();
    let line = |r: &Json| {
        let call: String = text(&r["call"]).split_whitespace().collect::<Vec<_>>().join(" ");
        format!("{:<7} {}.{}  {call}", text(&r["route"]), text(&r["expansion"]), text(&r["column"]))
    };
    routes.iter().map(line).collect()
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn published_swan_queries_are_routed() {
    let Some(swan) = shared_folder("swan") else { return };
    let dir = tempfile::tempdir().unwrap();
    let recording = true_recording(&swan, dir.path());
    let (mut routed, mut failed) = (0, Vec::new());
    for (qid, sql) in queries(&swan) {
        let outcome = run(&swan, &recording, dir.path().join("cache"), &sql);
        if NO_SQL.contains(&qid.as_str()) {
            println!("{qid}  no SQL: {}", outcome.stderr.lines().next().unwrap_or_default());
            if outcome.code != 2 || !outcome.stderr.contains("WITH") {
                failed.push(format!("{qid}: no clear error, exit {}", outcome.code));
            }
            continue;
        }
        // The recording contains the spec's columns; other questions have no answer.
        if let Err(why) = outcome.check_exit_code(&[0, 1]) {
            failed.push(format!("{qid}: {why}\n{sql}"));
        }
        let routes = routes(&outcome);
        let found = outcome.meta["routes"].as_array().is_some_and(|r| {
            r.iter().any(|r| matches!(r["route"].as_str(), Some("column" | "bound")))
        });
        routed += usize::from(found);
        println!("{qid}  {} rows\n    {}", outcome.rows.len(), routes.join("\n    "));
    }
    println!("{routed} of 30 have a call that a column answers");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(routed >= ROUTED, "{routed} routed, not {ROUTED}");
}
