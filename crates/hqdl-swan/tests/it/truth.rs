//! Tests of the SELECTs that read the true values.

use rusqlite::Connection;

use hqdl_swan::Benchmark;
use hqdl_testkit::project::query_rows;

const FORMULA_1: &str = include_str!("../data/formula_1.sql");
const EUROPEAN_FOOTBALL_2: &str = include_str!("../data/european_football_2.sql");

/// Reading a benchmark's truth takes time proportional to its rows, although BIRD's tables have no
/// indexes for a subquery per row.
#[test]
fn the_truth_is_read_without_a_subquery_for_each_row() {
    for (name, sql) in [("formula_1", FORMULA_1), ("european_football_2", EUROPEAN_FOOTBALL_2)] {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(sql).unwrap();
        for truth in Benchmark::find_by_name(name).unwrap().truth {
            let plan = format!("EXPLAIN QUERY PLAN {}", truth.select);
            let plan = query_rows(&db, &plan).unwrap();
            let correlated = plan.iter().any(|r| r[3].to_string().contains("CORRELATED"));
            assert!(!correlated, "{name}: {plan:?}");
        }
    }
}
