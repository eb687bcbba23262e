//! Tests of values as JSON.

use hqdl_values::value::Value;

/// A prompt and the bookkeeping contain the exact value, whatever its magnitude.
#[test]
fn only_null_is_null_in_json() {
    let reals = [f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN_POSITIVE, -0.0, 0.1];
    let all = reals.map(Value::Real).into_iter();
    for value in all.chain([Value::Integer(i64::MIN), Value::from(""), Value::from("Inf")]) {
        let json = value.to_json();
        assert!(!json.is_null(), "{value}");
        assert_eq!(Value::from_json(&json).canonical_text(), value.canonical_text());
    }
    assert!(Value::Null.to_json().is_null());
}
