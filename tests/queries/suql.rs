//! Tests of `SUQL`: its dialect, and its published queries.

use std::path::Path;
use std::time::Instant;

use hqdl::blendsql::scan_calls;
use hqdl::suql::translate;
use regex::Regex;
use rusqlite::Connection;
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::engine::{self, Order, Outcome, Query, check_subset, compare_rows};
use hqdl_testkit::project::query_rows;
use hqdl_testkit::restaurants::{self, COUNT, PlantedQuestion};

fn query<'a>(dir: &Path, endpoint: &Endpoint, sql: &'a str, flags: &[&str]) -> Query<'a> {
    Query {
        db: dir.join("data.sqlite"),
        cache: dir.join("cache"),
        base_url: Some(endpoint.base_url()),
        model: "gpt-4o-mini",
        rows_per_request: 10,
        flags: flags.iter().map(|f| (*f).to_owned()).collect(),
        sql,
    }
}

fn run(dir: &Path, endpoint: &Endpoint, sql: &str) -> Outcome {
    query(dir, endpoint, sql, &["--dialect", "suql"]).run_query()
}

/// Returns the questions of some queries, and their possible answers.
fn planted(queries: &[String]) -> Vec<PlantedQuestion> {
    let mut all: Vec<PlantedQuestion> = Vec::new();
    let compared = Regex::new(r"^ (?:=|LIKE) '([^']*)'").unwrap();
    for sql in queries {
        for call in scan_calls(sql).unwrap() {
            let hqdl::blendsql::Argument::Sql(span) = &call.values[0] else { continue };
            let column = sql[span.clone()].to_owned();
            let answer = compared.captures(&sql[call.span.end..]).map(|c| c[1].to_owned());
            let known = all.iter().position(|p| p.column == column && p.question == call.question);
            let at = known.unwrap_or_else(|| {
                let answers = if call.question.starts_with("wh") || call.question.starts_with("how")
                {
                    vec!["something else".to_owned()]
                } else {
                    Vec::new()
                };
                all.push(PlantedQuestion { column, question: call.question.clone(), answers });
                all.len() - 1
            });
            if let Some(answer) = answer.filter(|a| a != "Yes") {
                all[at].answers.push(answer.replace("%PM", "11 PM"));
            }
        }
    }
    all.retain(|p| !p.question.starts_with("what is the summary"));
    all
}

/// Returns the same query in `SQLite`'s dialect, for the few constructs that the published queries
/// use.
fn in_plain_words(sql: &str) -> String {
    let replaced = [
        (
            r"('(?:[^']|'')*') = ANY \((\w+)\)",
            "EXISTS (SELECT 1 FROM json_each($2) WHERE value = $1)",
        ),
        (
            r"(\w+) (?:@>|&&) ARRAY\[('[^']*')\]",
            "EXISTS (SELECT 1 FROM json_each($1) WHERE value = $2)",
        ),
        (r"(\w+) != ARRAY\['([^']*)'\]", "$1 <> '[\"$2\"]'"),
        (r"ILIKE", "LIKE"),
    ];
    replaced.iter().fold(sql.trim_end_matches(';').to_owned(), |sql, (from, to)| {
        Regex::new(from).unwrap().replace_all(&sql, *to).into_owned()
    })
}

/// The published queries return the same rows as plain SQL over columns with the answers, and send
/// no request the second time.
#[test]
fn published_queries_give_the_rows_of_plain_sql() {
    let Some(folder) = engine::shared_folder("suql") else { return };
    let lines = std::fs::read_to_string(folder.join("queries.jsonl")).unwrap();
    let queries: Vec<String> = lines
        .lines()
        .map(|l| serde_json::from_str::<Json>(l).unwrap()["suql"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(queries.len(), 100);
    let dir = tempfile::tempdir().unwrap();
    restaurants::create_database(&dir.path().join("data.sqlite"), COUNT, &planted(&queries));
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let connection = Connection::open(dir.path().join("data.sqlite")).unwrap();
    restaurants::register_functions(&connection);
    let began = Instant::now();
    let (mut failed, mut found, mut asked) = (Vec::new(), 0, 0);
    for (n, sql) in queries.iter().enumerate() {
        let plain = in_plain_words(sql);
        let expected = query_rows(&connection, &plain).unwrap();
        let ours = run(dir.path(), &endpoint, sql);
        found += usize::from(!expected.is_empty());
        asked += ours.meta_count("values_asked").unwrap_or(0);
        let checked = ours.check_exit_code(&[0, 1]).and_then(|()| {
            if plain.contains("ORDER BY") {
                return compare_rows(&ours.rows, &expected, Order::Ordered);
            }
            let limit = plain.rfind(" LIMIT").unwrap();
            let every = query_rows(&connection, &plain[..limit]).unwrap();
            check_subset(&ours.rows, expected.len(), &every)
        });
        if let Err(why) = checked {
            failed.push(format!("{}: {sql}\n{why}", n + 1));
        }
    }
    println!(
        "{} of 100 hold, {found} have rows; {asked} values in {} requests, {:.1} s",
        100 - failed.len(),
        endpoint.request_count(),
        began.elapsed().as_secs_f64()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(found > 60, "only {found} queries find anything");
    let before = endpoint.request_count();
    for sql in &queries {
        let again = run(dir.path(), &endpoint, sql);
        assert_eq!(again.meta_count("values_asked"), Ok(0), "{sql}");
    }
    assert_eq!(endpoint.request_count(), before);
}

/// The original text, and the translated text.
#[test]
fn postgresql_syntax_becomes_sqlites() {
    let same = [
        // Text that is valid in SQLite, too, is unchanged, byte by byte.
        "SELECT a, \"B c\", t.* FROM t AS t -- so\nWHERE a = 'it''s' AND b IS NOT NULL ORDER BY a DESC NULLS LAST, b LIMIT 3 OFFSET 2;",
        "WITH c (x) AS (SELECT 1) SELECT x, count(*) FILTER (WHERE x > 1) OVER (PARTITION BY x ORDER BY x) FROM c GROUP BY x HAVING count(DISTINCT x) > 0",
        "SELECT CASE WHEN a = 1 THEN 'x' ELSE NULL END, EXISTS (SELECT 1 FROM u WHERE u.a = t.a), (SELECT max(b) FROM u), a IN (1, 2), a NOT IN (SELECT b FROM u), a BETWEEN 1 AND 2 AND NOT b FROM t LEFT JOIN u USING (a)",
        "SELECT answer(reviews, 'is it?') = 'Yes', summary(x) FROM t WHERE a = TRUE AND b IS NOT FALSE",
        "SELECT {{LLMMap('q?', t.a, options=['x', 'y'])}} FROM t WHERE date('now') > :day",
        "SELECT date, time, array, row, e FROM t",
        "VALUES (1, 2), (3, 4)",
        "SELECT a -> '$.x', -a, a - -1, 1 + 2 * 3 FROM t",
        "DELETE FROM t",
        "",
    ];
    for sql in same {
        assert_eq!(translate(sql).unwrap().sql, sql);
    }
    let written = [
        (
            "SELECT 'x' = ANY (c), a = ANY(ARRAY['y', 'z']), a <> ALL (SELECT b FROM u)",
            "SELECT suql_any('x', '=', c), a IN ('y', 'z'), a NOT IN (SELECT b FROM u)",
        ),
        (
            "SELECT 3 < ALL (c), a LIKE ANY (ARRAY['x%'])",
            "SELECT suql_all(3, '<', c), suql_any(a, 'like', json_array('x%'))",
        ),
        (
            "SELECT c @> ARRAY['x'], ARRAY['x'] <@ c, c && ARRAY['x', 'y'], c != ARRAY['x'], c = ARRAY['x']",
            "SELECT suql_contains(c, json_array('x')), suql_contains(c, json_array('x')), suql_overlaps(c, json_array('x', 'y')), NOT suql_same(c, json_array('x')), suql_same(c, json_array('x'))",
        ),
        (
            "SELECT a ILIKE '%x%', a NOT ILIKE 'é', a LIKE '%PM', a LIKE '5%', a ~* 'x', a !~ 'y', a SIMILAR TO 'x|y'",
            "SELECT a LIKE '%x%', NOT suql_ilike(a, 'é'), suql_like(a, '%PM'), a LIKE '5%', suql_imatch(a, 'x'), NOT suql_match(a, 'y'), suql_similar(a, 'x|y')",
        ),
        (
            "SELECT a::text, a::int, (a + 1)::float8, a::numeric(3, 1), a::boolean, 'x'::varchar(3), '2024-01-01'::date, b::text[], CAST(a AS double precision)",
            "SELECT CAST(a AS TEXT), CAST(suql_integer(a, 32) AS INTEGER), CAST(suql_number((a + 1)) AS REAL), suql_round(CAST(suql_number(a) AS NUMERIC), 1), suql_truth(a), substr(CAST('x' AS TEXT), 1, 3), date('2024-01-01'), b, CAST(suql_number(a) AS REAL)",
        ),
        (
            "SELECT answer(r, 'how many?')::int > 3, (answer(r, 'is it?'))::bool, answer(r::text, 'x')",
            "SELECT CAST(answer(r, 'how many?') AS INTEGER) > 3, CAST((answer(r, 'is it?')) AS BOOLEAN), answer(CAST(r AS TEXT), 'x')",
        ),
        (
            "SELECT a || b * c, a + b || c, a = b IN (1), a < b IS NULL",
            "SELECT a || (b * c), (a + b) || c, a = (b IN (1)), (a < b) IS NULL",
        ),
        (
            "SELECT a = ANY (c)::text, a IN (SELECT b FROM u)::int, public.t.a, public.t.*, pg_catalog.lower(a)",
            "SELECT suql_said(suql_any(a, '=', c)), CAST(suql_integer(a IN (SELECT b FROM u), 32) AS INTEGER), t.a, t.*, suql_lower(a)",
        ),
        (
            "SELECT unnest(c), n FROM t WHERE n > 1",
            "SELECT hq_each1.value AS \"unnest\", n FROM t, json_each(suql_array(c)) AS hq_each1 WHERE n > 1",
        ),
        (
            "SELECT unnest(c) AS x, count(*) FROM t GROUP BY unnest(c) ORDER BY 2",
            "SELECT hq_each1.value AS x, count(*) FROM t, json_each(suql_array(c)) AS hq_each1 GROUP BY hq_each1.value ORDER BY 2",
        ),
        (
            "SELECT generate_series(1, 3)",
            "SELECT hq_each1.value AS \"unnest\" FROM json_each(suql_array(suql_series(1, 3))) AS hq_each1",
        ),
        (
            "SELECT count(*) FROM t GROUP BY unnest(c)",
            "SELECT count(*) FROM t, json_each(suql_array(c)) AS hq_each1 GROUP BY hq_each1.value",
        ),
        (
            "SELECT x, t.a FROM t, unnest(t.c) AS x WHERE x = 'y' ORDER BY x",
            "SELECT \"x\".value AS \"x\", t.a FROM t, json_each(suql_array(t.c)) AS \"x\" WHERE \"x\".value = 'y' ORDER BY \"x\".value",
        ),
        (
            "SELECT u.e FROM t CROSS JOIN LATERAL unnest(t.c) AS u(e)",
            "SELECT \"u\".value AS \"e\" FROM t CROSS JOIN json_each(suql_array(t.c)) AS \"u\"",
        ),
        (
            "SELECT s.x FROM (SELECT a, b FROM t) AS s(x, y)",
            "SELECT s.x FROM (WITH hq_each1(\"x\", \"y\") AS (SELECT a, b FROM t) SELECT * FROM hq_each1) AS \"s\"",
        ),
        (
            "(SELECT 1) UNION DISTINCT (SELECT 2)",
            "SELECT * FROM (SELECT 1) UNION  SELECT * FROM (SELECT 2)",
        ),
        ("SELECT a FROM t OFFSET 2", "SELECT a FROM t LIMIT -1 OFFSET 2"),
        (
            "SELECT a FROM t OFFSET 2 ROWS FETCH FIRST 3 ROWS ONLY",
            "SELECT a FROM t LIMIT 3 OFFSET 2",
        ),
        ("SELECT a FROM t LIMIT ALL", "SELECT a FROM t LIMIT -1"),
        (
            "SELECT now() - INTERVAL '1 month 2 days', CURRENT_DATE + INTERVAL '1' DAY, DATE '2024-01-01', EXTRACT(YEAR FROM d), date_trunc('month', d)",
            "SELECT datetime(datetime('now'), '-1 months', 'floor', '-2 days'), datetime(CURRENT_DATE, '+1 days'), date('2024-01-01'), CAST(strftime('%Y', d) AS INTEGER), suql_trunc('month', d)",
        ),
        (
            "SELECT array_length(c, 1), cardinality(c), array_agg(DISTINCT a ORDER BY a), bool_or(a = 1), substring(a FROM 2 FOR 3), position('x' IN a), left(a, 2), c[1]",
            "SELECT nullif(json_array_length(suql_array(c)), 0), json_array_length(suql_array(c)), json_group_array(DISTINCT a ORDER BY a), max(a = 1), suql_substr(a, 2, 3), instr(a, 'x'), suql_left(a, 2), suql_element(c, 1)",
        ),
        (
            r"SELECT E'it\'s', '{a,b}'::text[], a IS UNKNOWN, string_agg(a, ', ')",
            "SELECT 'it''s', '[\"a\",\"b\"]', a IS NULL, string_agg(a, ', ')",
        ),
    ];
    for (sql, expected) in written {
        assert_eq!(translate(sql).unwrap().sql, expected, "{sql}");
    }
}

/// Most of these are from `PostgreSQL`'s documentation.
#[test]
fn to_char_formats_dates_and_numbers_like_postgresql() {
    let connection = Connection::open_in_memory().unwrap();
    hqdl::suql::functions::register(&connection).unwrap();
    let said = |call: &str| {
        let sql = translate(&format!("SELECT {call}")).unwrap().sql;
        connection.query_row(&sql, [], |row| row.get::<_, Option<String>>(0))
    };
    let at = "'2024-03-09 15:04:05.123456'";
    for (of, format, expected) in [
        (at, "YYYY-MM-DD HH24:MI:SS", "2024-03-09 15:04:05"),
        (at, "Day, DD  HH12:MI:SS am", "Saturday , 09  03:04:05 pm"),
        (at, "FMDay, FMDD  HH12:MI:SS", "Saturday, 9  03:04:05"),
        (at, "Month YYYY", "March     2024"),
        (at, "FMMonth DDth, YYYY", "March 09th, 2024"),
        (at, "MON dy Q IW DDD D ID CC YY", "MAR sat 1 10 069 7 6 21 24"),
        (at, "mon\"th\" MS US", "marth 123 123456"),
        ("'2024-03-09'", "HH24:MI", "00:00"),
        ("'2024-01-01T00:30:00Z'", "HH:MI AM FMHH24", "12:30 AM 0"),
        ("-0.1", "99.99", "  -.10"),
        ("-0.1", "FM9.99", "-.1"),
        ("0.1", "0.9", " 0.1"),
        ("12", "9990999.9", "    0012.0"),
        ("12", "FM9990999.9", "0012."),
        ("485", "999", " 485"),
        ("-485", "999", "-485"),
        ("1485", "9,999", " 1,485"),
        ("148.5", "999.999", " 148.500"),
        ("148.5", "FM999.999", "148.5"),
        ("148.5", "FM999.990", "148.500"),
        ("3148.5", "9G999D999", " 3,148.500"),
        ("12345", "999", " ###"),
        ("0", "999", "   0"),
        ("-0.001", "9.9", "  .0"),
    ] {
        let call = format!("to_char({of}, '{format}')");
        assert_eq!(said(&call).unwrap().as_deref(), Some(expected), "{call}");
    }
    assert_eq!(said("to_char(NULL, 'YYYY')").unwrap(), None);
    assert_eq!(said("to_char('no date', 'YYYY')").unwrap(), None);
    for unknown in ["to_char('2024-03-09', 'YYYY TZ')", "to_char(1, '9RN')"] {
        assert!(said(unknown).unwrap_err().to_string().contains("does not support"), "{unknown}");
    }
}

/// A construct that `SQLite` cannot express is an error that points at it.
#[test]
fn unsupported_syntax_is_an_error_with_its_location() {
    let cases = [
        ("SELECT DISTINCT ON (a) * FROM t", "DISTINCT ON"),
        ("SELECT a FROM t, LATERAL (SELECT t.a) AS x", "LATERAL"),
        ("SELECT a FROM t FOR UPDATE", "FOR"),
        ("SELECT a COLLATE \"de_DE\" FROM t", "\"de_DE\""),
        ("SELECT a AT TIME ZONE 'UTC' FROM t", "AT TIME ZONE"),
        ("SELECT a::hstore FROM t", "hstore"),
        ("SELECT 'x'::foo FROM t", "'x'::foo"),
        ("SELECT 'maybe'::boolean", "'maybe'"),
        ("SELECT a IS NULL = 'maybe' FROM t", "'maybe'"),
        ("SELECT INTERVAL '1 day'", "INTERVAL '1 day'"),
        ("SELECT d + INTERVAL 'a while' FROM t", "INTERVAL 'a while'"),
        ("SELECT a FROM t WHERE unnest(c) = 'x'", "unnest(c)"),
        ("SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY a) FROM t", "WITHIN"),
        ("SELECT a FROM t WHERE c < ARRAY['x']", "c < ARRAY['x']"),
        ("SELECT (a FROM t", "FROM"),
        ("SELECT a FROM t WHERE", ""),
        ("SELECT a FROM t WHERE a = 1 b = 2", "b"),
    ];
    for (sql, place) in cases {
        let error = translate(sql).unwrap_err();
        assert_eq!(&sql[error.span.clone()], place, "{sql}: {error:?}");
    }
}

/// Errors of later steps point into the original query.
#[test]
fn errors_point_into_the_original_query() {
    let dir = tempfile::tempdir().unwrap();
    restaurants::create_database(&dir.path().join("data.sqlite"), 3, &[]);
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let cases = [
        ("SELECT name FROM restaurants WHERE 'x' = ANY (cuisines) AND nme = 'y'", "<query>:1:61"),
        ("SELECT name::text, rating::int FROM restaurnts", "<query>:1:37"),
        (
            "SELECT name FROM restaurants WHERE 'x' = ANY (cuisines) AND answer(reviews, name) = 'y'",
            "<query>:1:77",
        ),
        (
            "SELECT name FROM restaurants WHERE 'x' = ANY (cuisines) AND answer(reviews, 'q') = nme",
            "<query>:1:84",
        ),
    ];
    for (sql, place) in cases {
        let ended = run(dir.path(), &endpoint, sql);
        assert!(ended.code == 2 && ended.stderr.contains(place), "{sql}\n{}", ended.stderr);
    }
    assert_eq!(endpoint.request_count(), 0);
}

/// The functions that implement the operators, with NULLs and with values that are not arrays.
#[test]
fn arrays_and_patterns_follow_postgresql() {
    let connection = Connection::open_in_memory().unwrap();
    hqdl::suql::functions::register(&connection).unwrap();
    let cases = [
        ("'a' = ANY ('[\"a\",\"b\"]')", json!(1)),
        ("'c' = ANY ('[\"a\",\"b\"]')", json!(0)),
        ("'c' = ANY ('[\"a\",null]')", json!(null)),
        ("'a' = ANY ('[\"a\",null]')", json!(1)),
        ("'a' = ANY ('[]')", json!(0)),
        ("'a' <> ALL ('[]')", json!(1)),
        ("'a' = ANY (NULL)", json!(null)),
        ("NULL = ANY ('[\"a\"]')", json!(null)),
        ("2 = ANY ('[1,2.0]')", json!(1)),
        ("2 < ALL ('[3,4]')", json!(1)),
        ("'a' = ANY ('a')", json!(1)),
        ("'a' = ANY ('[a')", json!(0)),
        ("'x' = ANY ('[\"a\"')", json!(0)),
        ("'[\"a\",\"b\"]' @> ARRAY['a']", json!(1)),
        ("'[\"a\"]' && ARRAY['b','a']", json!(1)),
        ("'[\"a\", \"b\"]' = ARRAY['a','b']", json!(1)),
        ("'[\"a\", \"b\"]' != ARRAY['b','a']", json!(1)),
        ("NULL @> ARRAY['a']", json!(null)),
        ("'Ab' LIKE 'ab'", json!(0)),
        ("'Ab' ILIKE 'aB'", json!(1)),
        ("'CAFÉ' ILIKE 'café'", json!(1)),
        (r"'a%' LIKE 'a\%'", json!(1)),
        (r"'ab' LIKE 'a\%'", json!(0)),
        ("'a.c' LIKE 'a.c' AND NOT 'abc' LIKE 'a.c'", json!(1)),
        ("'abc' ~ '^a' AND 'ABC' ~* 'b' AND 'abc' !~ 'x'", json!(1)),
        ("'abc' SIMILAR TO '(a|b)%' AND NOT 'abc' SIMILAR TO 'b%'", json!(1)),
        ("NULL ILIKE 'é'", json!(null)),
        ("3.7::int", json!(4)),
        ("'yes'::boolean", json!(1)),
        ("('ye' || 's')::boolean", json!(1)),
        ("array_length('[]', 1)", json!(null)),
        ("array_length(ARRAY['a', 'b'], 1)", json!(2)),
        ("array_to_string(ARRAY['a', 'b'], '-')", json!("a-b")),
        ("(ARRAY['a', 'b'])[2]", json!("b")),
        ("'[\"a\"]' || ARRAY['b']", json!("[\"a\",\"b\"]")),
        ("ARRAY(SELECT 1 UNION SELECT 2)", json!("[1,2]")),
        ("DATE '2024-01-31' + INTERVAL '1 day'", json!("2024-02-01 00:00:00")),
        ("DATE '2024-01-31' + INTERVAL '1 month'", json!("2024-02-29 00:00:00")),
        ("DATE '2024-03-31' - INTERVAL '1 month 1 day'", json!("2024-02-28 00:00:00")),
        ("DATE '2024-02-29' - INTERVAL '1 year'", json!("2023-02-28 00:00:00")),
        ("'Da Mario'::varchar(2)", json!("Da")),
        ("CAST('Da' || ' Mario' AS character varying(4))", json!("Da M")),
        ("-2 || 'x'", json!("-2x")),
    ];
    for (expression, expected) in cases {
        let sql = translate(&format!("SELECT {expression}")).unwrap().sql;
        let found = query_rows(&connection, &sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(found, [[expected]], "{expression}: {sql}");
    }
    for wrong in [
        "'a' ~ ('(' || '')",
        "('may' || 'be')::boolean",
        "('a' || 1)::int",
        r"'a' LIKE ('a' || '\')",
        "(32767 + 1)::smallint",
        "(9e18 * 2)::bigint",
    ] {
        let sql = translate(&format!("SELECT {wrong}")).unwrap().sql;
        assert!(query_rows(&connection, &sql).is_err(), "{sql}");
    }
    for wrong in ["'a' ~ '('", r"'a' LIKE 'a\'", "'99999'::int2", "'9223372036854775808'::int8"] {
        assert!(translate(&format!("SELECT {wrong}")).is_err(), "{wrong}");
    }
}

/// Whatever is truncated or omitted, a query is translated or rejected.
#[test]
fn broken_queries_are_errors_with_a_location() {
    let queries = [
        "SELECT DISTINCT a::int, unnest(c) AS x, E'i\\t', ARRAY['é', 'b'][1] FROM t, unnest(t.c) u(e) WHERE 'x' = ANY (c) AND a ILIKE '%é%' OR b NOT IN (SELECT 1) ORDER BY a DESC NULLS LAST LIMIT 3 OFFSET 1;",
        "WITH c (x) AS (SELECT now() - INTERVAL '1 day') SELECT answer(x, 'is it? 🎷')::bool, summary(c.x), count(*) FILTER (WHERE x IS NOT NULL) OVER (PARTITION BY x ORDER BY x ROWS 1 PRECEDING) FROM (VALUES (1, 2)) AS v(a, b) LEFT JOIN c ON c.x::text = v.a::text GROUP BY 1 HAVING max(a) > ALL ('{1,2}'::int[])",
        "SELECT CASE WHEN a <> 1 THEN EXTRACT(year FROM d) ELSE position('x' IN b) END, substring(a FROM 1 FOR 2), {{LLMMap('é?', t.a)}} FROM t WHERE c @> ARRAY['a'] AND ST_Distance_Sphere(a, 'b') < 5 -- ö",
    ];
    for sql in queries {
        translate(sql).unwrap();
        let places: Vec<usize> = sql.char_indices().map(|(at, _)| at).collect();
        for at in &places {
            let next = places.iter().find(|n| *n > at).copied().unwrap_or(sql.len());
            let without = format!("{}{}", &sql[..*at], &sql[next..]);
            let doubled = format!("{}{}", &sql[..next], &sql[*at..]);
            for broken in [&sql[..*at], &sql[*at..], &without, &doubled] {
                match translate(broken) {
                    Ok(translated) => {
                        let end = translated.sql.len();
                        let place = translated.map_span_to_original(&(end.saturating_sub(1)..end));
                        assert!(place.end <= broken.len(), "{broken}");
                    }
                    Err(error) => {
                        assert!(error.span.start <= broken.len(), "{broken}: {error:?}");
                        assert!(!error.render(broken, false).is_empty());
                    }
                }
            }
        }
    }
    let deep = format!("SELECT {}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(translate(&deep).unwrap_err().message.contains("deep"));
    let deep = format!("SELECT {} 1", "NOT ".repeat(5000));
    assert!(translate(&deep).is_err());
}
