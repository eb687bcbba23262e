//! Masking the calls of a query leaves the rest of it unchanged, and rewriting a parsed query
//! leaves no call in it.

#![no_main]

use hqdl::blendsql::normalize::normalize_query;
use hqdl::blendsql::parse::Syntax;
use hqdl::blendsql::rewrite::{CallSite, Rewriter, Statistics};
use hqdl::blendsql::scope::Schema;
use hqdl::blendsql::{mask_calls, scan_calls};
use libfuzzer_sys::fuzz_target;

/// Schema in which tables with short names have two columns; others do not exist.
struct TestSchema;

impl Schema for TestSchema {
    fn column_names(&self, table: &str) -> Option<Vec<String>> {
        (table.len() < 8).then(|| vec!["id".to_owned(), "name".to_owned()])
    }
}

fuzz_target!(|sql: &str| {
    let Ok(calls) = scan_calls(sql) else { return };
    let masked = mask_calls(sql, &calls);
    let mut end = 0;
    for (number, call) in calls.iter().enumerate() {
        assert_eq!(sql[end..call.span.start], masked[end..call.span.start]);
        assert_eq!(masked[call.span.clone()], call.placeholder(number));
        end = call.span.end;
    }
    assert_eq!(sql[end..], masked[end..]);
    let Ok((normalized, parsed)) = normalize_query(sql, Syntax::default()) else { return };
    let sites = vec![CallSite::default(); parsed.calls.len()];
    let statistics = Statistics::default();
    let rewritten =
        Rewriter::new(&normalized.sql, &sites, &TestSchema, &statistics).rewrite(&parsed);
    assert!(scan_calls(&rewritten.sql).is_ok_and(|calls| calls.is_empty()), "{}", rewritten.sql);
});
