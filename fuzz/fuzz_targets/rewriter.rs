//! A query whose calls are masked is the same query everywhere else.

#![no_main]

use hqdl::blendsql::{mask, scan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|sql: &str| {
    let Ok(calls) = scan(sql) else { return };
    let masked = mask(sql, &calls);
    let mut at = 0;
    for (number, call) in calls.iter().enumerate() {
        assert_eq!(sql[at..call.span.start], masked[at..call.span.start]);
        assert_eq!(masked[call.span.clone()], call.hole(number));
        at = call.span.end;
    }
    assert_eq!(sql[at..], masked[at..]);
});
