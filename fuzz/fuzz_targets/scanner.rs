//! Scans any text as a query, or rejects it with an error that points into the text.

#![no_main]

use hqdl::blendsql::{mask_calls, scan_calls};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|sql: &str| {
    match scan_calls(sql) {
        Ok(calls) => {
            let masked = mask_calls(sql, &calls);
            assert_eq!(masked.len(), sql.len());
            assert_eq!(scan_calls(&masked), Ok(Vec::new()));
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
