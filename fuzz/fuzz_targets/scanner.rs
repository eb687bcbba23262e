//! Any text is read as a query or refused with a place in it.

#![no_main]

use hqdl::blendsql::{mask, scan};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|sql: &str| {
    match scan(sql) {
        Ok(calls) => {
            let masked = mask(sql, &calls);
            assert_eq!(masked.len(), sql.len());
            assert_eq!(scan(&masked), Ok(Vec::new()));
            for call in &calls {
                assert!(sql[call.span.clone()].starts_with("{{"));
                assert!(sql[call.span.clone()].ends_with("}}"));
            }
        }
        Err(error) => {
            assert!(!sql[error.span.clone()].is_empty());
            error.render(sql, true).clear();
        }
    }
});
