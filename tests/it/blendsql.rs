//! The calls in a query: found, read, and refused with a caret at the place.

use hqdl::blendsql::{Argument, mask, scan};

#[test]
fn a_call_is_found_and_masked() {
    let sql = "SELECT '{{' FROM t WHERE {{LLMMap('Old?', t.age)}} = TRUE";
    let calls = scan(sql).unwrap();
    assert_eq!(calls[0].values, [Argument::Sql(42..47)]);
    assert_eq!(mask(sql, &calls), "SELECT '{{' FROM t WHERE _hq0_____________________ = TRUE");
}
