//! Tests of grades: by SWAN's rule, by the strict rule, and by the relative error.

use hqdl_swan::compare::is_ordered;
use hqdl_swan::grade::{Grade, grade_answer};
use serde_json::{Value as Json, json};

fn of(ours: Json, gold: Json, tested: &str, ordered: bool) -> Grade {
    let rows = |json: Json| serde_json::from_value::<Vec<Vec<Json>>>(json).unwrap();
    grade_answer(&rows(ours), &rows(gold), tested, ordered)
}

#[test]
fn swans_rule_is_more_lenient_than_the_strict_rule() {
    let cases = [
        // Answer, gold answer, tested query, whether the gold query orders, SWAN's rule, strict
        // rule.
        (json!([[1], [2]]), json!([[2], [1]]), "SELECT", false, true, true),
        (json!([[1], [2]]), json!([[2], [1]]), "SELECT", true, true, false),
        (json!([[1], [2]]), json!([[2], [1]]), "SELECT … Order  By", false, true, true),
        (json!([[1], [2]]), json!([[2], [1]]), "SELECT … order by x", false, false, true),
        // Columns in another order; repeated rows; missing rows.
        (json!([["a", 1]]), json!([[1, "a"]]), "SELECT", false, true, false),
        (json!([[1], [1], [2]]), json!([[1], [2], [2]]), "SELECT", false, true, false),
        (json!([[1], [2]]), json!([[1], [2], [2]]), "SELECT", false, false, false),
        // A whole number is equal as integer and real, but not as text.
        (json!([[1.0]]), json!([[1]]), "SELECT", false, true, true),
        (json!([["1"]]), json!([[1]]), "SELECT", false, false, false),
        (json!([[null]]), json!([[0]]), "SELECT", false, false, false),
        (json!([]), json!([]), "SELECT", true, true, true),
        (json!([[{ "blob": "00ff" }]]), json!([[{ "blob": "00ff" }]]), "SELECT", true, true, true),
    ];
    for (n, (ours, gold, tested, ordered, swan, strict)) in cases.into_iter().enumerate() {
        let grade = of(ours, gold, tested, ordered);
        assert_eq!((grade.swan, grade.strict), (swan, strict), "case {n}: {grade:?}");
        assert_eq!(grade.strict, grade.difference.is_empty(), "case {n}: {grade:?}");
    }
}

#[test]
fn numbers_are_graded_by_relative_error_and_lists_by_f1() {
    let cases = [
        (json!([[90]]), json!([[100]]), 0.9, Some(0.1), "90 instead of 100"),
        (json!([[300]]), json!([[100]]), 0.0, Some(2.0), "300 instead of 100"),
        (json!([[null]]), json!([[100]]), 0.0, Some(1.0), "NULL instead of 100"),
        (json!([[1]]), json!([[0]]), 0.0, Some(1.0), "1 instead of 0"),
        (json!([[-5]]), json!([[-4]]), 0.75, Some(0.25), "-5 instead of -4"),
        (json!([[50, 4]]), json!([[100, 4]]), 0.75, Some(0.25), "50 | 4 instead of 100 | 4"),
        (json!([]), json!([[3]]), 0.0, None, "0 of 1 row; missing: 3"),
        (json!([["many"]]), json!([[3]]), 0.0, None, "0 of 1 row; missing: 3; too many: many"),
        (
            json!([["a"], ["b"], ["x"]]),
            json!([["a"], ["b"], ["c"]]),
            2.0 / 3.0,
            None,
            "2 of 3 rows; missing: c; too many: x",
        ),
        (json!([["a"], ["a"]]), json!([["a"]]), 2.0 / 3.0, None, "1 of 1 row; too many: a"),
        (json!([["a", "b"]]), json!([["b", "a"]]), 1.0, None, "the same values in other columns"),
        (json!([["a", "b"]]), json!([["a"]]), 0.0, None, "2 columns instead of 1"),
        (json!([]), json!([]), 1.0, None, ""),
    ];
    for (n, (ours, gold, graded, error, difference)) in cases.into_iter().enumerate() {
        let grade = of(ours, gold, "SELECT", false);
        assert!((grade.graded - graded).abs() < 1e-9, "case {n}: {grade:?}");
        assert_eq!(grade.relative_error.is_some(), error.is_some(), "case {n}: {grade:?}");
        let off = (grade.relative_error.unwrap_or(0.0) - error.unwrap_or(0.0)).abs();
        assert!(off < 1e-9, "case {n}: {grade:?}");
        assert_eq!(grade.difference, difference, "case {n}");
    }
}

#[test]
fn only_the_outermost_select_orders_a_result() {
    for (sql, ordered) in [
        ("SELECT a FROM t ORDER BY a", true),
        ("WITH x AS (SELECT a FROM t ORDER BY a) SELECT a FROM x", false),
        ("WITH x AS (SELECT a FROM t) SELECT a FROM x order /* so */ by\n 1 LIMIT 5", true),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", false),
        ("SELECT a FROM t WHERE b = 'ORDER BY' -- ORDER BY a", false),
        ("SELECT \"ORDER\" BY_ FROM t", false),
        ("SELECT a FROM t WHERE a = (SELECT a FROM t ORDER BY a LIMIT 1)", false),
        ("SELECT a FROM t UNION SELECT b FROM t ORDER BY 1", true),
    ] {
        assert_eq!(is_ordered(sql).unwrap(), ordered, "{sql}");
    }
    assert!(is_ordered("SELECT 'a").is_err());
}
