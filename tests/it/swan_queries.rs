//! The thirty `BlendSQL` queries that SWAN published in 2024 for its superhero
//! database, over a spec that expands it: which calls are routed to a stored
//! column, and which queries were never valid. The data are not part of this
//! project; without them the tests say so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::engine::{self, Outcome, Query, shared};
use crate::swan::true_recording;

/// Queries that are no SQL as published: `, WITH` before the second of two
/// common table expressions.
const NO_SQL: [&str; 1] = ["superhero-00"];

/// At least so many of the thirty have a call that a column answers. The others
/// ask what no column of the spec was declared to answer.
const ROUTED: usize = 14;

/// Question's number and published query.
fn queries(swan: &Path) -> Vec<(String, String)> {
    let mut reader = csv::Reader::from_path(swan.join("questions-superhero.csv")).unwrap();
    let rows = reader.deserialize::<BTreeMap<String, String>>().map(Result::unwrap);
    rows.map(|row| (row["qid"].clone(), row["blendsql_2024"].clone())).collect()
}

/// Many were published without the comma between question and column, and some
/// with a column that is neither a literal nor a name (`(superhero::name)`).
/// An engine may understand them or say why not.
fn is_as_it_should_be(sql: &str) -> bool {
    with_commas(sql) == sql && !sql.contains("(superhero::")
}

/// With the comma that is missing between two literals.
fn with_commas(sql: &str) -> String {
    let mut mended = String::new();
    let mut rest = sql;
    while let Some(at) = ["'T1::", "'marvel::"].iter().filter_map(|n| rest.find(n)).min() {
        let before = rest[..at].trim_end();
        mended.push_str(before);
        if before.ends_with('\'') {
            mended.push(',');
        }
        mended.push_str(&rest[before.len()..=at]);
        rest = &rest[at + 1..];
    }
    mended + rest
}

fn run(swan: &Path, recording: &Path, cache: PathBuf, sql: &str) -> Outcome {
    let spec = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs/swan/superhero.toml");
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
    query.run()
}

/// The routes of a query's calls, one a line.
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
fn commas_are_found_where_they_are_missing() {
    let mended = with_commas("{{ LLMMap('Is it?'\n 'T1::n') }} AND {{ LLMMap('q', 'T1::n') }}");
    assert_eq!(mended, "{{ LLMMap('Is it?',\n 'T1::n') }} AND {{ LLMMap('q', 'T1::n') }}");
    assert!(is_as_it_should_be("LLMMap('q', 'T1::n')"));
}

#[test]
fn published_swan_queries_are_routed() {
    let Some(swan) = shared("swan") else { return };
    if !engine::has_query() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let recording = true_recording(&swan, dir.path());
    let (mut routed, mut failed) = (0, Vec::new());
    for (qid, sql) in queries(&swan) {
        let cache = dir.path().join("cache");
        // As published: never a crash, and an error that says where.
        let published = run(&swan, &recording, cache.clone(), &sql);
        let codes: &[i32] = match (NO_SQL.contains(&qid.as_str()), is_as_it_should_be(&sql)) {
            (true, _) => &[2],
            (false, true) => &[0, 1],
            (false, false) => &[0, 1, 2],
        };
        if let Err(why) = published.exits(codes) {
            failed.push(format!("{qid} as published: {why}\n{sql}"));
        } else if published.code == 2 && published.stderr.trim().is_empty() {
            failed.push(format!("{qid}: the error says nothing"));
        }
        let outcome = run(&swan, &recording, cache, &with_commas(&sql));
        if NO_SQL.contains(&qid.as_str()) {
            println!("{qid}  no SQL: {}", outcome.stderr.lines().next().unwrap_or_default());
            continue;
        }
        let codes: &[i32] =
            if is_as_it_should_be(&with_commas(&sql)) { &[0, 1] } else { &[0, 1, 2] };
        if let Err(why) = outcome.exits(codes) {
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
