//! A query whose calls are masked is the same query everywhere else, and one
//! that is parsed is rewritten: no call is left in it.

#![no_main]

use hqdl::blendsql::parse::parse;
use hqdl::blendsql::rewrite::{Costs, Rewriter, Site};
use hqdl::blendsql::scope::Schema;
use hqdl::blendsql::spelling::Spelled;
use hqdl::blendsql::{mask, scan};
use libfuzzer_sys::fuzz_target;

/// Tables with one column each, and some that nobody knows.
struct Tables;

impl Schema for Tables {
    fn columns(&self, table: &str) -> Option<Vec<String>> {
        (table.len() < 8).then(|| vec!["id".to_owned(), "name".to_owned()])
    }
}

fuzz_target!(|sql: &str| {
    let Ok(calls) = scan(sql) else { return };
    let masked = mask(sql, &calls);
    let mut at = 0;
    for (number, call) in calls.iter().enumerate() {
        assert_eq!(sql[at..call.span.start], masked[at..call.span.start]);
        assert_eq!(masked[call.span.clone()], call.placeholder(number));
        at = call.span.end;
    }
    assert_eq!(sql[at..], masked[at..]);
    let Ok(spelled) = Spelled::of(sql) else { return };
    let Ok(calls) = scan(&spelled.text) else { return };
    let Ok(parsed) = parse(&spelled.text, calls) else { return };
    let site = Site { function: "hq_call", ..Site::default() };
    let sites = vec![site; parsed.calls.len()];
    let costs = Costs::default();
    let rewritten = Rewriter::new(&spelled.text, &sites, &Tables, &costs).run(&parsed);
    assert!(scan(&rewritten.sql).is_ok_and(|left| left.is_empty()), "{}", rewritten.sql);
});
