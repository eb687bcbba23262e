//! Compares the parser of SELECT with a parser generated from `SQLite`'s grammar (`syntaqlite`).

use std::fmt::Debug;
use std::path::Path;

use hqdl_sql::blendsql::parse::{Syntax, parse_query, parse_query_with_syntax};
use hqdl_sql::blendsql::tree::{Body, Expr};
use hqdl_sql::blendsql::{mask_calls, scan_calls};
use proptest::prelude::*;
use proptest::sample::select;
use regex::Regex;

use crate::oracle;

/// Returns a part of a tree as text without spans and without quotes in names, which `syntaqlite`
/// keeps in part.
fn format_without_spans(part: &impl Debug) -> String {
    let ignored = Regex::new(
        "(span|from_end|rows_end|source_text|star_table): (Some\\([^)]*\\)|\"(\\\\.|[^\"\\\\])*\"|[^,}]*),?|[`\\\\\" \n]",
    );
    ignored.unwrap().replace_all(&format!("{part:?}"), "").into_owned()
}

/// Asserts that both grammars read the same tree in a text without calls, or reject it.
fn assert_same_tree(sql: &str) {
    // The grammar of SELECT does not determine where a second statement begins.
    let Ok(calls) = scan_calls(sql) else { return };
    let masked = mask_calls(sql, &calls);
    if masked.contains(';') {
        return;
    }
    match (parse_query(&masked), oracle::parse_query(&masked)) {
        (Ok(ours), Some(theirs)) => {
            assert_eq!(
                format_without_spans(&ours.query),
                format_without_spans(&theirs),
                "{masked}"
            );
        }
        (Err(error), Some(_)) => panic!("rejected: {}", error.render(&masked, false)),
        (Ok(_), None) => panic!("accepted: {masked}"),
        (Err(_), None) => {}
    }
}

/// Returns the queries of the query cases.
fn case_queries() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/queries/cases");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter_map(|path| std::fs::read_to_string(path).ok());
    let is_query = |line: &&str| line.starts_with("query: ") || line.starts_with("plain: ");
    let lines =
        |text: String| text.lines().filter(is_query).map(|l| l[7..].to_owned()).collect::<Vec<_>>();
    texts.flat_map(lines).collect()
}

#[test]
fn query_cases_match_sqlites_grammar() {
    let queries = case_queries();
    assert!(queries.len() > 1_000, "{}", queries.len());
    queries.iter().for_each(|sql| assert_same_tree(sql));
}

/// After WITH, the word RECURSIVE is never the name of a table.
#[test]
fn cte_cannot_be_named_recursive() {
    for sql in [
        "WITH RECURSIVE (id) AS (SELECT 1) SELECT 1",
        "WITH recursive AS (SELECT 1) SELECT 1",
        "WITH RECURSIVE recursive (id) AS (SELECT 1) SELECT 1",
    ] {
        assert_same_tree(sql);
    }
}

/// `x'ab'` is a blob, not the name `x` with the alias `ab`.
#[test]
fn a_blob_is_not_a_name() {
    for sql in [
        "SELECT a FROM x'ab'",
        "SELECT a IN x'ab'",
        "SELECT a AS x'ab'",
        "SELECT a x'ab'",
        "SELECT a FROM t X'ab'",
        "SELECT a FROM t JOIN u USING (x'ab')",
        "SELECT a FROM x 'ab'",
        "SELECT x'ab', a x, t.x'ab'",
    ] {
        assert_same_tree(sql);
    }
}

/// The text of each operand of the result columns.
#[test]
fn a_query_on_a_server_has_the_precedence_of_postgresql() {
    let sql = "SELECT a || b * c, a = b IS NULL, a = ANY (b)::text, -a[1] ^ 2, a NOT LIKE b || c";
    let syntax = Syntax { is_server: true, ..Syntax::default() };
    let query = parse_query_with_syntax(sql, syntax).unwrap().query;
    let Body::Core(core) = &query.body else { panic!() };
    let text = |expr: &Expr| sql[expr.span.clone()].to_owned();
    let operands = core.columns.iter().map(|column| {
        let (operands, _) = column.expr.as_ref().unwrap().children();
        operands.into_iter().map(text).collect::<Vec<_>>()
    });
    let expected = [
        vec!["a", "b * c"],
        vec!["a = b", "NULL"],
        vec!["a = ANY (b)"],
        vec!["-a[1]", "2"],
        vec!["a", "b || c"],
    ];
    assert_eq!(operands.collect::<Vec<_>>(), expected);
}

#[test]
fn the_span_of_an_expression_is_its_text() {
    for sql in case_queries() {
        let Ok(calls) = scan_calls(&sql) else { continue };
        let masked = mask_calls(&sql, &calls);
        let Ok(parsed) = parse_query(&masked) else { continue };
        parsed.query.visit_exprs(&mut |expr| {
            let alone = format!("SELECT {}", &masked[expr.span.clone()]);
            let Body::Core(core) = parse_query(&alone).unwrap().query.body else { panic!() };
            let [column] = core.columns.as_slice() else { panic!("{alone}") };
            assert_eq!(
                format_without_spans(column.expr.as_ref().unwrap()),
                format_without_spans(expr),
                "{masked}"
            );
        });
    }
}

/// Operands, operators and clauses of random queries.
const WORDS: &[&str] = &[
    "a",
    "b",
    "t.c",
    "'x'",
    "1",
    "1.5e3",
    "0x1f",
    "x'ab'",
    "\"q\"",
    "[z]",
    "NULL",
    "?1",
    ":p",
    "f(a)",
    "count(*)",
    "(a)",
    "CURRENT_TIME",
    "true",
    "(SELECT 1)",
    "(a, b)",
    "CAST(a AS INT)",
    "EXISTS (SELECT 1)",
    "CASE WHEN a THEN b END",
    "f(DISTINCT a ORDER BY b)",
    "sum(a) FILTER (WHERE b)",
    "sum(a) OVER w",
    "sum(a) OVER (PARTITION BY b ORDER BY a ROWS 1 PRECEDING)",
    "replace(a, b)",
    "like",
    "key",
    "if",
    "end",
    "(",
    ")",
    ",",
    ".",
    "*",
    "+",
    "-",
    "~",
    "/",
    "%",
    "||",
    "->",
    "->>",
    "=",
    "==",
    "<>",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "<<",
    ">>",
    "&",
    "|",
    "NOT",
    "AND",
    "OR",
    "IS",
    "IS NOT",
    "IS DISTINCT FROM",
    "ISNULL",
    "NOTNULL",
    "NOT NULL",
    "LIKE",
    "NOT LIKE",
    "GLOB",
    "MATCH",
    "ESCAPE",
    "BETWEEN",
    "NOT BETWEEN",
    "IN",
    "NOT IN",
    "IN (1, 2)",
    "IN (SELECT 1)",
    "IN t",
    "COLLATE nocase",
    "AS",
    "FROM",
    "FROM t",
    "FROM t AS u",
    "JOIN u",
    "LEFT JOIN u ON a",
    "NATURAL JOIN u",
    "CROSS JOIN u",
    "USING (a)",
    "ON",
    ", json_each(a)",
    ", (SELECT 1) AS s",
    ", (t JOIN u)",
    "INDEXED BY i",
    "WHERE",
    "GROUP BY",
    "HAVING",
    "ORDER BY",
    "DESC",
    "ASC",
    "NULLS FIRST",
    "LIMIT 1",
    "LIMIT 1, 2",
    "LIMIT 1 OFFSET 2",
    "UNION",
    "UNION ALL",
    "EXCEPT",
    "INTERSECT",
    "SELECT",
    "DISTINCT",
    "ALL",
    "VALUES (1)",
    "VALUES (1, 2), (3, 4)",
    "WITH c AS (SELECT 1)",
    "WITH RECURSIVE c(x, y) AS MATERIALIZED (VALUES (1))",
    "WINDOW w AS (ORDER BY a)",
    "RAISE(IGNORE)",
    "1_0",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_expressions_match_sqlites_grammar(
        words in prop::collection::vec(select(&WORDS[..79]), 1..9),
    ) {
        assert_same_tree(&format!("SELECT {}", words.join(" ")));
    }

    #[test]
    fn random_queries_match_sqlites_grammar(
        words in prop::collection::vec(select(WORDS), 1..12),
    ) {
        assert_same_tree(&format!("SELECT {}", words.join(" ")));
    }

    #[test]
    fn random_text_yields_a_tree_or_an_error(words in "[ -~\n]{0,60}") {
        let _ = parse_query(&format!("SELECT {words}"));
    }

    #[test]
    fn case_without_one_word_matches_sqlites_grammar(
        query in select(case_queries()),
        at in any::<prop::sample::Index>(),
    ) {
        let words: Vec<&str> = query.split_inclusive(' ').collect();
        let dropped = at.index(words.len());
        let kept = words.iter().enumerate().filter(|(n, _)| *n != dropped).map(|(_, word)| *word);
        assert_same_tree(&kept.collect::<String>());
    }
}

#[test]
fn deep_queries_are_parsed_or_rejected() {
    let nested = |open: &str, close: &str, levels: usize| {
        format!("SELECT {}1{}", open.repeat(levels), close.repeat(levels))
    };
    let shapes = [
        ("(", ")"),
        ("f(", ")"),
        ("(SELECT ", ")"),
        ("NOT ", ""),
        ("- ", ""),
        ("1 + (", ")"),
        ("", " + 1"),
        ("", " AND 1"),
        ("", " || 1"),
        ("1 IN (", ")"),
        ("CASE WHEN ", " THEN 1 END"),
        ("a BETWEEN 1 AND (", ")"),
        ("(SELECT 1 FROM (SELECT ", "))"),
        ("{{LLMMap('q', f(", "))}}"),
    ];
    let thread = std::thread::Builder::new().stack_size(64 << 20);
    let checks = move || {
        for (open, close) in shapes {
            let levels = if open.starts_with("{{") { 60 } else { 240 };
            let parsed = parse_query(&nested(open, close, levels));
            assert!(parsed.is_ok(), "{open}: {:?}", parsed.err());
            assert!(parse_query(&nested(open, close, 50_000)).is_err(), "{open}");
            assert!(parse_query(&format!("SELECT {}", open.repeat(50_000))).is_err(), "{open}");
        }
    };
    thread.spawn(checks).unwrap().join().unwrap();
}

#[test]
fn thousands_of_calls_are_parsed() {
    let calls = vec!["{{LLMMap('q', upper(t.c), options=('a', 'b'))}}"; 20_000];
    let parsed = parse_query(&format!("SELECT {} FROM t", calls.join(", "))).unwrap();
    assert_eq!(parsed.calls.len(), 20_000);
}
