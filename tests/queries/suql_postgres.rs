//! Tests that `SUQL` has `PostgreSQL`'s semantics: both run random expressions over the same rows.
//! A rejected query is not a failure, as long as few are rejected.
//!
//! To run more: `HQDL_PROPERTY_SEED=7 HQDL_PROPERTY_CASES=20000 cargo test --test queries suql_postgres`

use fastrand::Rng;
use hqdl::suql::{TableColumns, functions, translate_with_columns};
use rusqlite::Connection;
use rusqlite::types::Value;

use hqdl_testkit::postgres;

const COLUMNS: [(&str, &str); 12] = [
    ("id", "INTEGER"),
    ("n", "INTEGER"),
    ("b", "BIGINT"),
    ("x", "DOUBLE PRECISION"),
    ("m", "NUMERIC(8,2)"),
    ("s", "TEXT"),
    ("c", "VARCHAR(20)"),
    ("d", "DATE"),
    ("ts", "TIMESTAMP"),
    ("tm", "TIME"),
    ("ok", "BOOLEAN"),
    ("tags", "TEXT[]"),
];

/// Rows in `SQLite`'s syntax; arrays are JSON.
const ROWS: [&str; 7] = [
    "1, 3, 10, 1.5, 1.50, 'abc', 'Hello World', '2024-01-31', '2024-01-31 10:20:30', '10:20:00', TRUE, '[\"a\",\"b\"]'",
    "2, NULL, 7, 2.25, -7.25, '', 'x,y', '2023-12-25', '2023-12-25 00:00:00', '00:00:00', FALSE, '[]'",
    "3, -1, NULL, -0.5, 0.10, 'it''s', 'a_b', NULL, '2000-02-29 23:59:59', '23:59:59', NULL, NULL",
    "4, 7, 100, NULL, NULL, 'Hello', '10', '2000-02-29', NULL, NULL, TRUE, '[\"c\"]'",
    "5, 0, 0, 0.0, 0.00, NULL, 'abc', '1999-12-31', '1999-12-31 12:00:00', '12:00:00', FALSE, '[\"a\",\"c\",\"a\"]'",
    "6, 10, -5, 10.0, 100.00, 'a1b22', NULL, '2024-12-30', '2024-12-30 01:02:03', '01:02:03', TRUE, '[\"x y\",\"b\"]'",
    "7, 2, 2, 2.5, 2.50, ' pad ', 'ABC', '2021-03-01', '2021-03-01 08:00:00', '08:00:00', NULL, '[\"z\"]'",
];

/// Templates of expressions of a type. Brackets contain the types of operands; templates before `0`
/// have none.
const EXPRESSIONS: [(&str, &str, &str); 9] = [
    (
        "int",
        "id|n|n|b|b|0|1|2|3|-1|10|NULL::int",
        "([int] + [int])|([int] - [int])|([int] * [int])|([int] / 3)|([int] % 4)|-([int])|abs([int])|\
         length([text])|octet_length([text])|ascii([text])|position([text] in [text])|\
         strpos([text], [text])|extract(year from [day])::int|extract(dow from [day])::int|\
         extract(week from [day])::int|date_part('quarter', [day])::int|([date] - [date])|\
         [bool]::int|floor([number])::int|round([number])::int|[number]::int|trunc([num])::int|\
         coalesce(array_length([tags], 1), 0)|cardinality([tags])|array_position([tags], 'b')|\
         mod([int], 5)|div([int], 2)::int|gcd([int], 4)|sign([number])::int|'12'::int|\
         regexp_count([text], [regex])|(SELECT count(*) FROM q WHERE q.rid < [int])::int|\
         (SELECT sum(v) FROM q WHERE v > [int])::int|\
         (extract(epoch from ([ts] - [ts])) / 3600)::int",
    ),
    (
        "float",
        "x|x|1.5::float8|2.25::float8|-0.5::float8|2.5::double precision",
        "([float] + [number])|([float] - [int])|([float] * [number])|(floor([number]) / 2)|\
         (sign([number]) / 2)|(ceil([int]) / 3)|round([float])|round([float]) / 4|trunc([float])|\
         power([int], 2) / 3|sqrt(abs([float]))|[int]::float8|[num]::float8|cbrt([int])|abs([float])",
    ),
    (
        "num",
        "m|m|1.5|2.50|0.1|3.0|-7.25",
        "([num] + [int])|([num] - [num])|([num] * [num])|([num] / 2.0)|([int] / 4.0)|([num] / 2)|\
         round([num], 1)|round([num], -1)|round([int] / 3.0, 2)|round([num])|trunc([num], 1)|\
         floor([num])|ceiling([num])|abs([num])|mod([num], 2)|([num] % 2)|[int]::numeric|\
         [number]::numeric(10,1)|extract(second from [ts])|(SELECT avg(v) FROM q WHERE v < [int])",
    ),
    (
        "text",
        "s|s|c|'a'|'abc'|''|'Hello World'|'x,y'|'a_b'|NULL::text",
        "([text] || [text])|([text] || [int])|upper([text])|lower([text])|initcap([text])|\
         substring([text] from 2 for 2)|substr([text], -1, 4)|left([text], -1)|right([text], 2)|\
         trim([text])|btrim([text], 'aH ')|ltrim([text], 'a')|rtrim([text])|reverse([text])|\
         concat([text], [int], [bool])|concat_ws(',', [text], [int], [date])|\
         lpad([text], 6, '*')|rpad([text], 5)|repeat([text], 2)|split_part([text], ',', 2)|\
         split_part([text], 'l', -1)|[int]::text|[date]::text|[ts]::text|[bool]::text|\
         to_char([day], [form])|to_char([num], 'FM990.00')|regexp_replace([text], [regex], '_')|\
         regexp_replace([text], [regex], '_', 'g')|substring([text] from [regex])|\
         (regexp_match([text], [regex]))[1]|array_to_string([tags], '-')|\
         array_to_string([tags], '-', '?')|([tags])[2]|translate([text], 'abl', 'xy')|\
         overlay([text] placing 'zz' from 2 for 1)|[text]::varchar(3)|format('%s-%s', [text], [int])|\
         (SELECT string_agg(v::text, ',' ORDER BY v) FROM q WHERE rid = [int])|\
         (json_build_object('k', [text]) ->> 'k')",
    ),
    (
        "date",
        "d|d|DATE '2024-01-31'|'2023-12-25'::date|DATE '2000-02-29'",
        "([date] + [int])|([date] - 30)|[ts]::date|([day] + interval '1 month')::date|\
         ([date] - interval '1 year 2 days')::date|date_trunc('month', [day])::date|\
         date_trunc('week', [date])::date|to_date('2024-03-05', 'YYYY-MM-DD')|make_date(1999, 12, 5)",
    ),
    (
        "ts",
        "ts|ts|TIMESTAMP '2024-01-31 10:20:30'|'2023-12-25'::timestamp",
        "([ts] + interval '90 minutes')|([ts] - interval '2 months')|([date] + interval '3 hours')|\
         date_trunc('quarter', [ts])|date_trunc('hour', [ts])|[date]::timestamp|([date] + tm)|\
         greatest([ts], [date])|coalesce([date], [ts])|([ts] + interval '1 day' * 3)",
    ),
    (
        "tags",
        "tags|tags|ARRAY['a','b']|'{a,c}'::text[]|ARRAY[]::text[]",
        "array_append([tags], 'z')|string_to_array([text], ',')|([tags] || [tags])|\
         array_remove([tags], 'a')|array_prepend('b', [tags])",
    ),
    (
        "bool",
        "ok|ok|true|false",
        "([int] = [number])|([number] < [number])|([text] >= [text])|([text] <> [text])|\
         ([day] > [day])|([bool] = [bool])|([int] IS DISTINCT FROM [int])|\
         ([text] IS NOT DISTINCT FROM [text])|([date] > '2010-05-05')|([date] = '2024-01-31')|\
         ([ts] < '2024-01-31 10:20:30')|([int] > '2')|([num] = '1.50')|([bool] = 'no')|\
         ([bool] AND [bool])|([bool] OR [bool])|(NOT [bool])|([text] IS NULL)|([bool] IS NOT TRUE)|\
         ([bool] IS UNKNOWN)|([text] LIKE 'a%')|([text] NOT LIKE '%l%')|([text] ILIKE '_B%')|\
         ([text] LIKE '%\\_%')|([text] ~ [regex])|([text] !~* [regex])|([text] SIMILAR TO '(a|H)%')|\
         ([int] IN ([int], 3))|([int] NOT IN ([int], 3))|([date] IN ('2024-01-31', [date]))|\
         ([date] BETWEEN [date] AND [day])|([num] NOT BETWEEN [int] AND [num])|\
         ([int] BETWEEN SYMMETRIC [int] AND [int])|([text] = ANY([tags]))|([text] <> ALL([tags]))|\
         ([text] LIKE ANY(ARRAY['a%', '%o']))|([int] <> ALL('{1,3}'::int[]))|([tags] @> [tags])|\
         ([tags] && [tags])|([tags] = [tags])|starts_with([text], 'a')|[int]::boolean|\
         (([int], [text]) < ([int], [text]))|EXISTS (SELECT 1 FROM q WHERE q.rid = [int])|\
         ([int] IN (SELECT v FROM q WHERE v IS NOT NULL))|([int] NOT IN (SELECT v FROM q))|\
         ([int] = SOME (SELECT rid FROM q))|((SELECT max(v) FROM q WHERE q.rid = [int]) > [int])|\
         ([ts] - [ts] > '2 days')|(tm > '09:00')|([bool]::text = 'true')",
    ),
    ("regex", "'^a'|'[0-9]+'|'l+'|'(a|H)'|'o$'|'[[:upper:]]'|'.'", "[regex]"),
];

/// Templates for every type.
const ANY: &str = "coalesce([t], [t])|nullif([t], [t])|CASE WHEN [bool] THEN [t] ELSE [t] END|\
                   CASE [int] WHEN [int] THEN [t] END|([t])";
const FORMS: [&str; 6] =
    ["'YYYY-MM-DD'", "'DD Mon YYYY'", "'FMMonth DD, YYYY'", "'HH24:MI:SS'", "'Day'", "'FMDD'"];

const QUERIES: [&str; 14] = [
    "SELECT id, <any>, <any> FROM r ORDER BY id",
    "SELECT id, <any>, <any> FROM r ORDER BY id",
    "SELECT id FROM r WHERE [bool] ORDER BY id",
    "SELECT id FROM r WHERE [bool] ORDER BY id",
    "SELECT count(*), sum([int]), avg([number]), min([text]), bool_or([bool])::int FROM r WHERE [bool]",
    "SELECT max([date]), count(DISTINCT [text]), sum([num]) FILTER (WHERE [bool]) FROM r",
    "SELECT [text] AS g, count(*), max([int]) FROM r GROUP BY 1 ORDER BY 1 NULLS FIRST",
    "SELECT v, w FROM (SELECT [date] AS v, [int] AS w FROM r) AS z WHERE v = '2024-01-31' OR w > '2' ORDER BY w NULLS FIRST, v NULLS FIRST",
    "SELECT id, <any> FROM r ORDER BY [text] DESC NULLS LAST, id LIMIT 5",
    "SELECT id, max([num]) OVER (PARTITION BY ok ORDER BY id), lag([text]) OVER (ORDER BY id) FROM r ORDER BY id",
    "WITH z AS (SELECT id, [int] AS v FROM r) SELECT id, v, rank() OVER (ORDER BY v NULLS FIRST) FROM z WHERE v IS NOT NULL ORDER BY id",
    "SELECT r.id, z.av FROM r LEFT JOIN (SELECT rid, avg(v) AS av FROM q GROUP BY rid) AS z ON z.rid = r.id ORDER BY [number] NULLS FIRST, id",
    "SELECT [text] FROM r UNION SELECT [text] FROM r ORDER BY 1 NULLS FIRST",
    "SELECT [date] FROM r EXCEPT SELECT [date] FROM r ORDER BY 1 NULLS FIRST",
];

/// Expands the brackets of a template.
fn written(template: &str, depth: u8, rng: &mut Rng) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        let Some((name, behind)) = after.split_once(']') else { break };
        let of = match name {
            "number" => *rng.choice(&["int", "float", "num"]).unwrap(),
            "day" => *rng.choice(&["date", "ts"]).unwrap(),
            other => other,
        };
        match EXPRESSIONS.iter().find(|(of_type, ..)| *of_type == of) {
            Some(_) => out.push_str(&expression(of, depth, rng)),
            None if of == "form" => out.push_str(rng.choice(&FORMS).unwrap()),
            None => out.push_str(&format!("[{name}]")),
        }
        rest = behind;
    }
    out + rest
}

fn expression(of: &str, depth: u8, rng: &mut Rng) -> String {
    let (_, leaves, deeper) = EXPRESSIONS.iter().find(|(of_type, ..)| *of_type == of).unwrap();
    let alternatives = |all: &str| -> Vec<String> {
        // A `|` within parentheses or quotes is not a separator.
        let (mut found, mut inside, mut quoted) = (vec![String::new()], 0, false);
        let mut letters = all.chars().peekable();
        while let Some(c) = letters.next() {
            quoted ^= c == '\'';
            inside += i32::from(c == '(' && !quoted) - i32::from(c == ')' && !quoted);
            if c == '|' && inside == 0 && !quoted && letters.peek() != Some(&'|') {
                found.push(String::new());
            } else {
                found.last_mut().unwrap().push(c);
            }
        }
        found
    };
    if depth == 0 || of == "regex" || rng.u8(0..4) == 0 {
        return rng.choice(alternatives(leaves)).unwrap();
    }
    let mut all = alternatives(deeper);
    if of != "tags" {
        all.extend(alternatives(ANY).into_iter().map(|any| any.replace("[t]", &format!("[{of}]"))));
    }
    written(&rng.choice(all).unwrap(), depth - 1, rng)
}

fn query(rng: &mut Rng) -> String {
    let mut query = (*rng.choice(&QUERIES).unwrap()).to_owned();
    while query.contains("<any>") {
        // Types that both format in the same way: numbers and texts.
        let any = [
            "[int]",
            "[float]",
            "[num]",
            "[text]",
            "[date]",
            "[ts]",
            "([bool])::int",
            "array_to_string([tags], '|')",
        ];
        query = query.replacen("<any>", rng.choice(&any).unwrap(), 1);
    }
    let depth = rng.u8(1..4);
    written(&query, depth, rng)
}

fn sqlite() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    functions::register(&connection).unwrap();
    hqdl::query::connection::math::register_math_functions(&connection).unwrap();
    let columns = COLUMNS.map(|(name, kind)| format!("{name} {kind}")).join(", ");
    let rows = ROWS.map(|row| format!("({row})")).join(", ");
    let make = format!(
        "CREATE TABLE r ({columns}); CREATE TABLE q (rid INTEGER, v INTEGER);
         INSERT INTO r VALUES {rows};
         INSERT INTO q VALUES (1, 5), (1, NULL), (2, 3), (3, -1), (5, 7), (9, 1);"
    );
    connection.execute_batch(&make).unwrap();
    connection
}

fn postgresql() -> String {
    let url = postgres::create_database();
    let columns = COLUMNS.map(|(name, kind)| format!("{name} {kind}")).join(", ");
    let array = |row: &str| format!("({})", row.replace("'[", "'{").replace("]'", "}'"));
    let rows = ROWS.map(array).join(", ");
    postgres::sql_at(
        &url,
        &format!(
            "CREATE TABLE r ({columns}); CREATE TABLE q (rid INTEGER, v INTEGER);
             INSERT INTO r VALUES {rows};
             INSERT INTO q VALUES (1, 5), (1, NULL), (2, 3), (3, -1), (5, 7), (9, 1);"
        ),
    );
    url
}

/// Returns the rows of a query in `SUQL`, or the error.
fn here(connection: &Connection, query: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let columns = |table: &str| {
        let all: Vec<(&str, &str)> = match table {
            "r" => COLUMNS.to_vec(),
            "q" => vec![("rid", "INTEGER"), ("v", "INTEGER")],
            _ => return None,
        };
        let (names, types) = all.into_iter().map(|(n, t)| (n.to_owned(), t.to_owned())).unzip();
        Some(TableColumns { names, types, has_rowid: true })
    };
    let sql = translate_with_columns(query, None, &columns).map_err(|e| e.message)?.sql;
    let error = |e: rusqlite::Error| e.to_string();
    let mut statement = connection.prepare(&sql).map_err(error)?;
    let count = statement.column_count();
    let said = |value: Value| match value {
        Value::Null => None,
        Value::Integer(i) => Some(i.to_string()),
        Value::Real(r) => Some(r.to_string()),
        Value::Text(text) => Some(text),
        Value::Blob(bytes) => Some(format!("{bytes:?}")),
    };
    let row = |r: &rusqlite::Row<'_>| (0..count).map(|n| r.get(n).map(said)).collect();
    statement.query_map([], row).map_err(error)?.collect::<Result<_, _>>().map_err(error)
}

/// Returns true if both values are equal, in any spelling of a number.
fn alike(here: Option<&String>, there: Option<&String>) -> bool {
    let (Some(here), Some(there)) = (here, there) else { return here == there };
    let number = |text: &str| text.parse::<f64>().ok().filter(|_| !text.starts_with(' '));
    match (number(here), number(there)) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0),
        _ => here == there,
    }
}

#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
#[test]
fn random_expressions_have_postgresqls_results() {
    let of = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (seed, cases) = (of("HQDL_PROPERTY_SEED").unwrap_or(1), of("HQDL_PROPERTY_CASES"));
    let queries: Vec<(u64, String)> =
        (seed..seed + cases.unwrap_or(600)).map(|s| (s, query(&mut Rng::with_seed(s)))).collect();
    let connection = sqlite();
    let there = postgres::try_all(&postgresql(), queries.iter().map(|(_, query)| query.as_str()));
    let (mut refused, mut ran, mut wrong) = (Vec::new(), 0, String::new());
    for ((seed, query), there) in queries.iter().zip(there) {
        let Ok(there) = there else { continue };
        ran += 1;
        let here = match here(&connection, query) {
            Ok(here) => here,
            Err(why) => {
                refused.push(format!("{seed}: {why}: {query}"));
                continue;
            }
        };
        let same = here.len() == there.len()
            && here.iter().zip(&there).all(|(a, b)| {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a.as_ref(), b.as_ref()))
            });
        if !same {
            let differs = here
                .iter()
                .zip(&there)
                .find(|(a, b)| !a.iter().zip(b.iter()).all(|(a, b)| alike(a.as_ref(), b.as_ref())));
            wrong +=
                &format!("{seed}: {query}\n  {differs:?} of {} and {}\n", here.len(), there.len());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    println!("{}\n{ran} of {} run there", refused.join("\n"), queries.len());
    assert!(ran > queries.len() * 9 / 10, "{ran} of {} run there", queries.len());
    assert!(refused.len() * 50 <= ran, "{} of {ran} are refused here", refused.len());
}
