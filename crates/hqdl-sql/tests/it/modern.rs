//! Tests that syntax of earlier versions is rewritten to the current syntax.

use hqdl_sql::blendsql::normalize::{normalize_plain_query, normalize_query};
use hqdl_sql::blendsql::parse::{Syntax, parse_query};
use hqdl_sql::blendsql::vendors::Vendor;
use hqdl_sql::{EditText, Edits};

/// Returns the normalized text of a query, or the error.
fn spelled(sql: &str) -> String {
    normalize_query(sql, Syntax::default())
        .map_or_else(|error| error.to_string(), |(normalized, _)| normalized.sql)
}

#[test]
fn older_syntax_becomes_current_syntax() {
    for (written, read) in [
        // A join adds its table.
        (
            "SELECT * FROM w JOIN {{LLMJoin('w::c', 'd::t')}}",
            "SELECT * FROM w JOIN \"d\" ON {{LLMJoin('w::c', 'd::t')}}",
        ),
        (
            "SELECT * FROM d JOIN {{LLMJoin(left_on='w::c', right_on='d::t')}} WHERE d.n > 1",
            "SELECT * FROM d JOIN \"w\" ON {{LLMJoin(left_on='w::c', right_on='d::t')}} WHERE d.n > 1",
        ),
        // At every nesting depth.
        (
            "{{LLMQA('q', (SELECT d.t FROM d JOIN {{LLMJoin('w::c', 'd::t')}} WHERE d.n))}}",
            "{{LLMQA('q', (SELECT d.t FROM d JOIN \"w\" ON {{LLMJoin('w::c', 'd::t')}} WHERE d.n))}}",
        ),
        (
            "SELECT (SELECT 1 FROM w JOIN {{LLMJoin('w::c', 'd::t')}}) FROM w",
            "SELECT (SELECT 1 FROM w JOIN \"d\" ON {{LLMJoin('w::c', 'd::t')}}) FROM w",
        ),
        (
            "SELECT 1 FROM d UNION SELECT 2 FROM w JOIN {{LLMJoin('w::c', 'd::t')}}",
            "SELECT 1 FROM d UNION SELECT 2 FROM w JOIN \"d\" ON {{LLMJoin('w::c', 'd::t')}}",
        ),
        // Several joins in one FROM clause.
        (
            "SELECT * FROM a JOIN {{LLMJoin('a::x', 'b::y')}} JOIN {{LLMJoin('b::y', 'c::z')}}",
            "SELECT * FROM a JOIN \"b\" ON {{LLMJoin('a::x', 'b::y')}} JOIN \"c\" ON {{LLMJoin('b::y', 'c::z')}}",
        ),
        (
            "SELECT * FROM a JOIN {{LLMJoin('a::x', 'b::y')}} JOIN {{LLMJoin('a::z', 'b::z')}}",
            "SELECT * FROM a JOIN \"b\" ON {{LLMJoin('a::x', 'b::y')}} AND {{LLMJoin('a::z', 'b::z')}}",
        ),
        // Joins of tables that FROM already contains.
        (
            "SELECT * FROM a JOIN b ON a.i = b.i OR a.j JOIN {{LLMJoin('a::x', 'b::y')}} WHERE 1",
            "SELECT * FROM a JOIN b ON (a.i = b.i OR a.j) AND {{LLMJoin('a::x', 'b::y')}} WHERE 1",
        ),
        (
            "SELECT * FROM a, b INNER JOIN {{LLMJoin('a::x', 'b::y')}}",
            "SELECT * FROM a, b ON {{LLMJoin('a::x', 'b::y')}}",
        ),
        // The table's alias is used.
        (
            "SELECT {{LLMMap('q', 'w::c d')}} FROM main.w AS x",
            "SELECT {{LLMMap('q', \"x\".\"c d\")}} FROM main.w AS x",
        ),
        (
            "SELECT * FROM w x JOIN {{LLMJoin('w::c', 'd::t')}}",
            "SELECT * FROM w x JOIN \"d\" ON {{LLMJoin(\"x\".\"c\", 'd::t')}}",
        ),
        (
            "SELECT (SELECT {{LLMMap('q', 'w::c')}} FROM d) FROM w x",
            "SELECT (SELECT {{LLMMap('q', \"x\".\"c\")}} FROM d) FROM w x",
        ),
        (
            "SELECT {{LLMMap('q', 'w::c')}} FROM w, w AS x",
            "SELECT {{LLMMap('q', 'w::c')}} FROM w, w AS x",
        ),
        (
            "SELECT {{LLMMap('q', 'w::c')}} FROM w AS x, w AS y",
            "SELECT {{LLMMap('q', 'w::c')}} FROM w AS x, w AS y",
        ),
        // A context table that no FROM clause reads.
        (
            "SELECT {{LLMQA('q', 'd::content', options='t;f')}}",
            "SELECT {{LLMQA('q', (SELECT \"d\".\"content\" FROM \"d\"), options='t;f')}}",
        ),
        ("SELECT {{LLMQA('q', 'd::c')}} FROM d", "SELECT {{LLMQA('q', 'd::c')}} FROM d"),
        // Values and casts.
        (
            "SELECT * FROM VALUES {{LLMQA('q', (SELECT 1))}}",
            "SELECT * FROM (VALUES {{LLMQA('q', (SELECT 1))}})",
        ),
        ("SELECT {{LLMMap('q', c)}}::INT + 1", "SELECT CAST({{LLMMap('q', c)}} AS INT) + 1"),
        (
            "SELECT {{LLMMap('q', c)}}::numeric(5, 2), -{{LLMMap('q', c)}}::double precision",
            "SELECT CAST({{LLMMap('q', c)}} AS numeric(5, 2)), -CAST({{LLMMap('q', c)}} AS double precision)",
        ),
        // One inside the other.
        (
            "SELECT 1 FROM a JOIN b ON {{LLMMap('q', a.x)}}::INT OR b.y JOIN {{LLMJoin('a::x', 'b::y')}}",
            "SELECT 1 FROM a JOIN b ON (CAST({{LLMMap('q', a.x)}} AS INT) OR b.y) AND {{LLMJoin('a::x', 'b::y')}}",
        ),
        (
            "SELECT 1 FROM a JOIN b ON a.i JOIN {{LLMJoin('a::x', 'b::y')}} OR b.z",
            "SELECT 1 FROM a JOIN b ON a.i AND ({{LLMJoin('a::x', 'b::y')}} OR b.z)",
        ),
        // Names of a subquery's columns.
        (
            "SELECT * FROM (SELECT 1, t) AS t(a, b), VALUES {{LLMQA('q', quantifier='{1}')}} u(\"c\")",
            "SELECT * FROM (WITH \"t_\"(a, b) AS (SELECT 1, t) SELECT * FROM \"t_\") AS t, \
             (WITH \"u\"(\"c\") AS (VALUES {{LLMQA('q', quantifier='{1}')}}) SELECT * FROM \"u\") u",
        ),
        (
            "SELECT v FROM {{LLMQA('q', return_type='list[str]')}} AS x(v)",
            "SELECT v FROM (WITH \"x\"(v) AS (SELECT value FROM json_each({{LLMQA('q', return_type='list[str]')}})) SELECT * FROM \"x\") AS x",
        ),
        // A common table expression does not see the tables of the query after it.
        (
            "WITH v AS (SELECT {{LLMMap('q', 'w::c')}} FROM d) SELECT * FROM w AS x",
            "WITH v AS (SELECT {{LLMMap('q', 'w::c')}} FROM d) SELECT * FROM w AS x",
        ),
        // A cast that may fail, also nested and within an argument.
        (
            "SELECT try_cast( TRY_CAST(a AS double precision) + 1 /* of */ as\tbigint ) FROM t",
            "SELECT CAST(hq_try_cast( CAST(hq_try_cast(a , 'real') AS REAL) + 1          , 'integer') AS INTEGER ) FROM t",
        ),
        (
            "SELECT {{LLMMap('q', TRY_CAST(t.c::TEXT AS DATE))}}, t.try_cast, try_cast(a)",
            "TRY_CAST has no type",
        ),
        (
            "SELECT {{LLMMap('q', TRY_CAST(t.c::TEXT AS DATE))}}, try_cast, t.try_cast FROM try_cast t",
            "SELECT {{LLMMap('q', CAST(hq_try_cast(CAST(t.c AS TEXT) , 'date') AS TEXT))}}, try_cast, t.try_cast FROM try_cast t",
        ),
        ("SELECT SAFE_CAST(a AS INT) FROM t", "near \"AS\": syntax error"),
        // A quote escaped as in Python, if the text cannot be parsed otherwise.
        ("SELECT {{LLMMap('it\\'s', c)}}", "SELECT {{LLMMap('it''s', c)}}"),
        (
            "SELECT '\\', {{LLMMap('it\\'s', c)}} FROM t WHERE d = 'x\\'",
            "SELECT '\\', {{LLMMap('it''s', c)}} FROM t WHERE d = 'x\\'",
        ),
        ("SELECT '\\', {{LLMMap('q', c)}}, 'x'", "SELECT '\\', {{LLMMap('q', c)}}, 'x'"),
    ] {
        assert_eq!(spelled(written), read, "{written}");
    }
}

/// Every form above is parsed completely, and spans map back to the original text.
#[test]
fn spans_map_back_to_the_original() {
    for sql in [
        "SELECT * FROM a JOIN b ON a.i OR a.j JOIN {{LLMJoin('a::x', 'b::y')}} WHERE marked",
        "SELECT {{LLMQA('q', 'd::content')}}, {{LLMMap('q', 'w::c')}}::REAL, marked FROM w AS x",
        "SELECT 1 FROM a INNER JOIN {{LLMJoin('a::x', 'b::y')}} WHERE marked",
        "SELECT x FROM VALUES {{LLMQA('q', (SELECT 1))}} WHERE ? AND marked",
    ] {
        let (spelled, _) = normalize_query(sql, Syntax::default()).unwrap();
        let at = spelled.sql.find("marked").unwrap();
        let place = spelled.map_span_to_original(&(at..at + 6));
        assert_eq!(&sql[place], "marked", "{}", spelled.sql);
        let call = spelled.sql.find("{{").unwrap();
        assert_eq!(&sql[spelled.map_span_to_original(&(call..call + 2))], "{{", "{}", spelled.sql);
        for at in 0..=spelled.sql.len() {
            assert!(spelled.map_span_to_original(&(at..at)).end <= sql.len());
        }
    }
    let sql = "SELECT {{LLMQA('q', 'd::content')}}";
    let text = spelled(sql);
    assert!(parse_query(&text).is_ok());
}

/// The spans of errors in and around a cast that may fail refer to the original text.
#[test]
fn errors_of_try_cast_name_the_type() {
    let bigquery = Syntax { vendor: Some(Vendor::BigQuery), ..Syntax::default() };
    for (sql, marked, message) in [
        ("SELECT TRY_CAST(a AS MONEY)", "AS MONEY", "TRY_CAST has no type `MONEY`"),
        ("SELECT safe_cast(a AS DECIMAL(5, 2))", "AS DECIMAL(5, 2)", "no type `DECIMAL(5, 2)`"),
        ("SELECT TRY_CAST(a AS), b", "AS", "TRY_CAST has no type"),
        ("SELECT TRY_CAST(a), b", ")", "TRY_CAST has no type"),
        ("SELECT TRY_CAST(a AS INT b)", "AS INT b", "no type `INT b`"),
        ("SELECT TRY_CAST(a AS INT + b)", "AS INT + b)", "no type `INT + b`"),
        (
            "SELECT TRY_CAST(a AS TIMESTAMP WITH TIME ZONE)",
            "AS TIMESTAMP WITH",
            "TRY_CAST has no type `TIMESTAMP WITH TIME ZONE`",
        ),
        ("SELECT SAFE_CAST(a AS ARRAY<INT64>)", "AS ARRAY", "no type `ARRAY<INT64>`"),
        ("SELECT TRY_CAST(a AS DECIMAL(max)), (b)", "AS DEC", "no type `DECIMAL(max)`"),
        ("SELECT TRY_CAST(a AS INT FROM t", "FROM t", "near \"FROM\": syntax error"),
        ("SELECT TRY_CAST(a AS MONEY(2)", "", "incomplete SQL statement"),
        ("SELECT TRY_CAST(a b AS INT)", "b AS INT)", "near \"b\": syntax error"),
        ("SELECT TRY_CAST(a AS INT) FROM", "", "incomplete SQL statement"),
    ] {
        let error = normalize_query(sql, bigquery).map(|_| ()).unwrap_err();
        assert!(error.message.contains(message), "{sql}: {}", error.message);
        assert!(sql[error.span.start..].starts_with(marked), "{sql}: {:?}", error.span);
        let help = error.help.unwrap_or_default();
        assert_eq!(help.contains("the types are INTEGER"), message.contains("no type"), "{sql}");
    }
    let (written, _) = normalize_query("SELECT SAFE_CAST(\"1\" AS INT64)", bigquery).unwrap();
    assert_eq!(written.sql, "SELECT CAST(hq_try_cast('1' , 'integer') AS INTEGER)");
    // The text of the server is not rewritten.
    let server = Syntax { is_server: true, ..Syntax::default() };
    assert!(normalize_query("SELECT TRY_CAST(a AS INT) FROM t", server).is_err());
}

/// A plain query is normalized only if it contains a cast that `SQLite` lacks.
#[test]
fn plain_queries_stay_as_they_are() {
    let is_plain = |sql: &str, vendor| normalize_plain_query(sql, vendor).unwrap().is_none();
    for sql in ["EXPLAIN QUERY PLAN SELECT safe_cast, try_cast FROM t", "SELECT try_cast, (1)"] {
        assert!(is_plain(sql, None) && is_plain(sql, Some(Vendor::BigQuery)), "{sql}");
    }
    let sql = "SELECT SAFE_CAST(a AS INT64) FROM t";
    assert!(is_plain(sql, None) && is_plain(sql, Some(Vendor::Snowflake)));
    assert!(!is_plain(sql, Some(Vendor::BigQuery)));
    assert!(!is_plain("SELECT try_cast /* of */ (a AS INT)", None));
    let sql = "/* é */ EXPLAIN QUERY PLAN /* of */ SELECT TRY_CAST(a AS INT) FROM t";
    let explained = normalize_plain_query(sql, None).unwrap().unwrap().sql;
    let (head, select) = explained.split_at(sql.find("SELECT").unwrap());
    assert!(head == &sql[..head.len()] && select.starts_with("SELECT CAST("), "{explained}");
}

/// No error shows the placeholders that replace calls.
#[test]
fn errors_show_no_placeholders() {
    for sql in [
        "SELECT FROM {{LLMQA('q', (SELECT 1))}} x y",
        "SELECT a AS {{LLMMap('q', c)}} b FROM t",
        "SELECT 1 {{LLMMap('q', c)}} 2",
    ] {
        let error = match parse_query(sql).map(|_| ()) {
            Ok(()) => panic!("{sql} was read"),
            Err(error) => error,
        };
        assert!(!error.message.contains("_hq"), "{}", error.message);
    }
}

#[test]
fn an_edit_applies_wherever_its_range_is_moved_or_copied() {
    let sql = "SELECT f(a, g(b)) FROM t";
    let mut edits = Edits::default();
    let (outer, inner) = (7..17, 12..16);
    let copied = || EditText::from(inner.clone());
    let new = [copied(), ", ".into(), copied(), ", ".into(), (9..10).into(), ")".into()];
    edits
        .replace(outer.clone(), EditText::join(["x(".into()].into_iter().chain(new).collect(), ""));
    edits.replace(inner.clone(), EditText::concat(["h(".into(), (14..15).into(), ")".into()]));
    edits.replace(15..15, "1");
    let written = edits.apply_to(sql).unwrap();
    assert_eq!(written.sql, "SELECT x(h(b1), h(b1), a) FROM t");
    for (part, original) in
        [("b", 14..15), ("a", 9..10), ("x(", outer), ("h(", inner), ("t", 23..24)]
    {
        let at = written.sql.rfind(part).unwrap();
        assert_eq!(written.map_span_to_original(&(at..at + part.len())), original, "{part}");
    }
    // Edits of the result have positions in the same source.
    let mut more = Edits::default();
    let at = written.sql.rfind('b').unwrap();
    more.replace(at..at + 1, "long");
    let again = written.with_edits(more).unwrap();
    assert_eq!(again.sql, "SELECT x(h(b1), h(long1), a) FROM t");
    for (part, original) in [("long", 14..15), ("a", 9..10), ("h(", 12..16), ("t", 23..24)] {
        let at = again.sql.rfind(part).unwrap();
        assert_eq!(again.map_span_to_original(&(at..at + part.len())), original, "{part}");
    }
}
