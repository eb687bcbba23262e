//! Generates random queries, each in two spellings: with calls, and with the same functions as
//! functions of plain `SQLite`.
//!
//! While the query is assembled, a call is written as `«function¦parameter¦type¦argument»`, with
//! other arguments after a `;` in the type; [`Generated`] has both spellings. `TRY_CAST(… AS
//! INTEGER)` is `try_integer(…)` of plain `SQLite`. The functions `rank`, `extract` and `classify`
//! are `LLMRank`, `LLMExtract` and `LLMClassify`.

use fastrand::Rng;

/// Various words; none of them means "no answer".
const WORDS: [&str; 14] = [
    "alpha",
    "Alma",
    "beta",
    "Bob",
    "gamma",
    "delta",
    "Echo",
    "eve",
    "x",
    "zulu, the",
    "it's",
    "a|b",
    "Ünï",
    "say \"hi\"",
];

/// Options without the 2, which `fn:mod:3` also answers.
const SOME_OPTIONS: &str = "options=(0, 1)";

/// Fields of `extract`, each with the function that has its name.
const SCHEMA: &str = r#"{"upper": "str", "length": "int", "initial": "str", "vowels": "int"}"#;

/// A query in both spellings.
#[derive(Debug)]
pub struct Generated {
    /// With calls.
    pub query: String,
    /// With functions.
    pub plain: String,
    /// The same without a LIMIT whose rows are ambiguous.
    pub every: Option<String>,
    /// Columns whose order matters.
    pub ordered: Vec<usize>,
}

/// Returns the statements that create a small database.
pub fn database(rng: &mut Rng) -> String {
    // Use COLLATE rarely, because it hides other bugs.
    let collate = if rng.u8(0..8) == 0 { " COLLATE NOCASE" } else { "" };
    let mut sql = format!(
        "CREATE TABLE p (id INTEGER PRIMARY KEY, a TEXT, b TEXT, n INTEGER);
         CREATE TABLE q (id INTEGER PRIMARY KEY, pid INTEGER, c TEXT, m INTEGER);
         CREATE TABLE r (k TEXT{collate}, v INTEGER);\n",
    );
    let (n, m) = (rng.u8(0..6), rng.u8(0..6));
    let left = ["JOIN", "LEFT JOIN", "LEFT JOIN"][rng.usize(..3)];
    let on = ["p.id = q.pid", "p.n = q.m", "p.n = q.pid AND q.m < 5"][rng.usize(..3)];
    sql.push_str(&format!(
        "CREATE VIEW pq AS SELECT p.id, p.a, p.n, q.c, q.m FROM p {left} q ON {on} WHERE p.n <> {n};
         CREATE VIEW qs AS SELECT c, m FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.n = q.m OR p.id = {m});
         CREATE VIEW some AS SELECT DISTINCT a AS w, n FROM p WHERE n >= {m} OR a < 'c';\n"
    ));
    let union = ["UNION", "UNION ALL"][rng.usize(..2)];
    sql.push_str(&format!(
        "CREATE VIEW grp AS SELECT c AS g, count(*) AS z, max(m) AS y FROM q GROUP BY c;
         CREATE VIEW both AS SELECT a AS t, n AS u FROM p {union} SELECT c, m FROM q WHERE m > {n};
         CREATE VIEW deep AS SELECT pq.id, pq.a, pq.c, s.n FROM pq LEFT JOIN some AS s ON s.n = pq.n WHERE s.w IS NULL OR pq.m > {n};
         CREATE VIEW top AS SELECT id, a, n FROM p ORDER BY n DESC, id LIMIT 3;\n"
    ));
    if rng.u8(0..4) == 0 {
        sql.push_str("CREATE INDEX p_n ON p (n); CREATE INDEX q_pid ON q (pid, m);\n");
    }
    for _ in 0..rng.usize(4..14) {
        let (a, b, n) = (word(rng), word(rng), number(rng));
        sql.push_str(&format!("INSERT INTO p (a, b, n) VALUES ({a}, {b}, {n});\n"));
    }
    for _ in 0..rng.usize(3..18) {
        let (pid, c, m) = (number(rng), word(rng), number(rng));
        sql.push_str(&format!("INSERT INTO q (pid, c, m) VALUES ({pid}, {c}, {m});\n"));
    }
    for _ in 0..rng.usize(2..7) {
        let (k, v) = (word(rng), number(rng));
        sql.push_str(&format!("INSERT INTO r VALUES ({k}, {v});\n"));
    }
    sql
}

/// Returns a word as a literal, or NULL.
fn word(rng: &mut Rng) -> String {
    if rng.u8(0..8) == 0 { "NULL".to_owned() } else { literal(rng) }
}

fn literal(rng: &mut Rng) -> String {
    format!("'{}'", WORDS[rng.usize(..WORDS.len())].replace('\'', "''"))
}

fn number(rng: &mut Rng) -> String {
    if rng.u8(0..8) == 0 { "NULL".to_owned() } else { rng.u8(0..7).to_string() }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Int,
}

/// Visible columns: their SQL and their kind.
type Scope = Vec<(String, Kind)>;

/// Assembles a query.
struct Writer<'r> {
    rng: &'r mut Rng,
    aliases: usize,
    /// CTEs that may be read: name and columns.
    ctes: Vec<(String, Vec<(String, Kind)>)>,
}

/// Returns a random query.
pub fn query(rng: &mut Rng) -> Generated {
    let mut writer = Writer { rng, aliases: 0, ctes: Vec::new() };
    let text = writer.query();
    let spell = |text: &str, live| spell(text, live);
    Generated {
        query: spell(&text.sql, true),
        plain: spell(&text.sql, false),
        every: text.every.map(|t| spell(&t, false)),
        ordered: text.ordered,
    }
}

struct Text {
    sql: String,
    every: Option<String>,
    ordered: Vec<usize>,
}

/// Replaces the calls, innermost first, by one of their spellings.
fn spell(text: &str, live: bool) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.rfind('«') {
        let end = start + text[start..].find('»').unwrap();
        let parts: Vec<&str> = text[start + '«'.len_utf8()..end].splitn(4, '¦').collect();
        let [function, parameter, kind, argument] = parts[..] else { panic!("{text}") };
        let (kind, more) = kind.split_once(';').unwrap_or((kind, ""));
        let call = if function == "join" {
            let (left, right) = argument.split_once('¦').unwrap();
            if live {
                format!("{{{{LLMJoin({left}, {right}{more})}}}}")
            } else {
                format!("({left} = {right} COLLATE BINARY)")
            }
        } else if function == "reduce" {
            if live {
                format!("{{{{LLMReduce('fn:{parameter}', {argument})}}}}")
            } else {
                format!("min({argument} COLLATE BINARY)")
            }
        } else if function == "rank" {
            if live {
                format!("{{{{LLMRank('fn:{parameter}', {argument})}}}}")
            } else {
                format!("(hq_{parameter}({argument}) + 0.0)")
            }
        } else if function == "extract" {
            if live {
                // Each field is another question about the same value, with its own function.
                format!("({{{{LLMExtract('fn', {argument}, '{SCHEMA}')}}}}{more})")
            } else {
                format!("hq_{parameter}({argument})")
            }
        } else if function == "classify" {
            if live {
                format!(
                    "{{{{LLMClassify({argument}, ['Yes', 'No'], question='fn:starts_with:{parameter}')}}}}"
                )
            } else {
                let found = format!("hq_starts_with({argument}, '{parameter}')");
                format!("CASE {found} WHEN 1 THEN 'Yes' WHEN 0 THEN 'No' END")
            }
        } else if live {
            let question = if parameter.is_empty() {
                format!("fn:{function}")
            } else {
                format!("fn:{function}:{parameter}")
            };
            let kind =
                if kind.is_empty() { String::new() } else { format!(", return_type='{kind}'") };
            format!("{{{{LLMMap('{question}', {argument}{kind}{more})}}}}")
        } else if more.contains(SOME_OPTIONS) {
            format!("nullif(hq_{function}({argument}, '{parameter}'), 2)")
        } else if parameter.is_empty() {
            format!("hq_{function}({argument})")
        } else {
            format!("hq_{function}({argument}, '{parameter}')")
        };
        text.replace_range(start..end + '»'.len_utf8(), &call);
    }
    if live {
        return text;
    }
    text.replace("TRY_CAST(", "try_integer(").replace(" AS INTEGER)", ")")
}

impl Writer<'_> {
    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(0..100) < percent
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.rng.usize(..from.len())]
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("t{}", self.aliases)
    }

    fn query(&mut self) -> Text {
        let mut with = Vec::new();
        for _ in 0..[0, 0, 0, 1, 1, 2][self.rng.usize(..6)] {
            let name = format!("c{}", self.ctes.len() + 1);
            let (body, columns) =
                if self.chance(20) { self.recursive(&name) } else { self.select(1) };
            with.push(format!("{name} AS ({body})"));
            self.ctes.push((name, columns));
        }
        let with = if with.is_empty() {
            String::new()
        } else {
            format!("WITH RECURSIVE {} ", with.join(", "))
        };
        if self.chance(35) {
            return self.plainly_ordered(&with);
        }
        if self.chance(30) {
            return self.few_of_many(&with);
        }
        if self.chance(15)
            && let Some((body, columns)) = self.select_shadowed()
        {
            let ordered = (0..columns.len()).collect();
            return Text { sql: format!("{with}{body}"), every: None, ordered };
        }
        let (mut body, columns) = self.select(2);
        if self.chance(15) {
            // Both sides of a compound query have the same columns.
            let kinds: Vec<Kind> = columns.iter().map(|(_, kind)| *kind).collect();
            let other = self.core(1, Some(&kinds)).0;
            let operator = self.pick(&["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]);
            body = format!("{body} {operator} {other}");
        }
        let positions: Vec<usize> = if self.chance(60) {
            (0..columns.len()).collect()
        } else {
            vec![self.rng.usize(..columns.len())]
        };
        let order: Vec<String> =
            positions.iter().map(|n| format!("{}{}", self.position(n + 1), self.way())).collect();
        let order = format!(" ORDER BY {}", order.join(", "));
        let k = match self.rng.u8(0..16) {
            0 => "(SELECT count(*) FROM r)".to_owned(),
            1 => "-1".to_owned(),
            2 => "(SELECT «length¦¦int¦'two'»)".to_owned(),
            n => [6, 1, 2, 3, 4, 6, 9][usize::from(n) % 7].to_string(),
        };
        let offset = ["", "", "", " OFFSET 1", " OFFSET 1 + 1"][self.rng.usize(..5)];
        // Without an order over all columns the rows are ambiguous, also among equals.
        let whole = positions.len() == columns.len();
        let (tail, ordered, choice) = match self.rng.u8(0..12) {
            0..4 => (String::new(), Vec::new(), false),
            4 | 5 => (order, positions, false),
            6..9 => (format!("{order} LIMIT {k}{offset}"), positions, !whole),
            9 => (format!(" ORDER BY random() LIMIT {k}{offset}"), Vec::new(), true),
            _ => (format!(" LIMIT {k}{offset}"), Vec::new(), true),
        };
        // A compound cannot be ordered by an expression.
        let tail =
            if body.contains("UNION") || body.contains("EXCEPT") || body.contains("INTERSECT") {
                tail.replace(" ORDER BY random()", "")
            } else {
                tail
            };
        let every = choice.then(|| format!("{with}{body}"));
        Text { sql: format!("{with}{body}{tail}"), every, ordered }
    }

    /// Returns rows of any source, in an order without calls and with calls elsewhere: queries for
    /// the rules that save requests.
    fn plainly_ordered(&mut self, with: &str) -> Text {
        let (from, scope) = if self.chance(60) { self.beneath() } else { self.from(1) };
        let mut plain = vec![self.bare(&scope, Kind::Int)];
        if self.chance(50) {
            plain.push(self.bare(&scope, Kind::Text));
        }
        let ordered = plain.len();
        if self.chance(75) {
            let argument = self.argument(&scope);
            let kind = if self.chance(50) { Kind::Text } else { Kind::Int };
            plain.push(if self.chance(60) {
                self.call(kind, &argument)
            } else {
                self.value(&scope, kind, 1)
            });
        }
        let distinct = if self.chance(30) { "DISTINCT " } else { "" };
        let filter = if self.chance(70) {
            format!(" WHERE {}", self.predicate(&scope, 1))
        } else {
            String::new()
        };
        let body = format!("SELECT {distinct}{} FROM {from}{filter}", plain.join(", "));
        let order: Vec<String> =
            (1..=ordered).map(|n| format!("{}{}", self.position(n), self.way())).collect();
        let k = [1, 1, 2, 3, 4, 6][self.rng.usize(..6)];
        let offset = if self.chance(25) { " OFFSET 1" } else { "" };
        let limit = format!(" LIMIT {k}{offset}");
        let (tail, positions): (String, Vec<usize>) = match self.rng.u8(0..10) {
            0 => (" ORDER BY random()".to_owned() + &limit, Vec::new()),
            1 | 2 => (limit, Vec::new()),
            _ => (format!(" ORDER BY {}{limit}", order.join(", ")), (0..ordered).collect()),
        };
        Text {
            sql: format!("{with}{body}{tail}"),
            every: Some(format!("{with}{body}")),
            ordered: positions,
        }
    }

    /// Returns a number that is not a position in GROUP BY or ORDER BY.
    fn number_of(&mut self, scope: &Scope) -> String {
        self.column(scope, Kind::Int).unwrap_or_else(|| "length('ab')".to_owned())
    }

    /// Returns queries whose result depends on few of the passing rows.
    fn few_of_many(&mut self, with: &str) -> Text {
        let (from, scope) = if self.chance(40) { self.beneath() } else { self.from(1) };
        let (key, number) = (self.bare(&scope, Kind::Text), self.number_of(&scope));
        let (call, other) = (self.predicate(&scope, 1), self.predicate(&scope, 0));
        let filter = format!("{from} WHERE {call}");
        let aggregate = self.pick(&["min", "max"]);
        let compared = format!("{} {}", self.pick(&[">", ">=", "=", "<", "<="]), self.rng.u8(0..4));
        let plain =
            |sql: String| Text { sql: format!("{with}{sql}"), every: None, ordered: vec![] };
        match self.rng.u8(0..17) {
            13 | 14 => self.first_by_window(with, &from, &scope),
            15 | 16 => {
                let is_integer = self.bare(&scope, Kind::Int);
                let group = match self.rng.u8(0..4) {
                    0 => number,
                    // Equal numbers of two types are one group.
                    1 => format!("iif({is_integer} > 2, {number}, {number} + 0.0)"),
                    _ => key,
                };
                let (ways, offset) = ([self.way(), self.way()], self.pick(&["", "", " OFFSET 1"]));
                let sql = format!(
                    "SELECT {group} AS k1, count(*) AS x1 FROM {filter} GROUP BY {group} ORDER BY count(*){}, 1{} LIMIT {}{offset}",
                    ways[0],
                    ways[1],
                    self.rng.u8(1..4)
                );
                Text { sql: format!("{with}{sql}"), every: None, ordered: vec![0, 1] }
            }
            0 => plain(format!("SELECT {aggregate}({number}) AS x1 FROM {filter}")),
            1 | 2 => {
                let having = if self.chance(25) {
                    format!(" HAVING count(*) {compared}")
                } else {
                    String::new()
                };
                plain(format!(
                    "SELECT {key} AS k1, {aggregate}({number}) AS x1 FROM {filter} GROUP BY {key}{having}"
                ))
            }
            3 => plain(format!("SELECT count(*) {compared} AS x1 FROM {filter}")),
            4 => plain(format!(
                "SELECT {key} AS k1 FROM {filter} GROUP BY {key} HAVING count(*) {compared}"
            )),
            5 => plain(format!("SELECT {number} AS k1 FROM {filter} GROUP BY {number}")),
            6 | 7 => {
                let count = if self.chance(50) {
                    format!("count(*) FILTER (WHERE {call})")
                } else {
                    format!("count({})", self.call(Kind::Text, &key))
                };
                plain(format!(
                    "SELECT {key} AS k1, {count} {compared} AS x1 FROM {from} GROUP BY {key}"
                ))
            }
            8 => self.first_of_union(with),
            9 | 10 => {
                let columns = format!("{key} AS x1, {number} AS x2");
                let (source, of) = self.source(0);
                let (a, b) = (self.bare(&of, Kind::Text), self.bare(&of, Kind::Int));
                let side = format!("SELECT {a}, {b} FROM {source}");
                let operator = self.pick(&["INTERSECT", "EXCEPT"]);
                if self.chance(50) {
                    plain(format!("SELECT {columns} FROM {filter} {operator} {side}"))
                } else {
                    plain(format!("{side} {operator} SELECT {columns} FROM {filter}"))
                }
            }
            11 => {
                let value = self.call(Kind::Int, &key);
                let plain_filter =
                    if other.contains('«') { String::new() } else { format!(" WHERE {other}") };
                let sql = format!(
                    "SELECT {number} AS k1, sum({value}) AS x1 FROM {from}{plain_filter} GROUP BY {number}"
                );
                if self.chance(50) {
                    return plain(format!("{sql} HAVING count(*) {compared}"));
                }
                let (way, limit) = (self.pick(&["", " DESC"]), self.rng.u8(1..4));
                let tail = format!(" ORDER BY count(*){way}, {number} LIMIT {limit}");
                Text { sql: format!("{with}{sql}{tail}"), every: None, ordered: vec![0] }
            }
            _ => {
                let (source, of) = self.source(0);
                let (own, outer) = (self.bare(&of, Kind::Int), self.bare(&scope, Kind::Int));
                let (inner, value) = (self.predicate(&of, 0), self.number_of(&of));
                let rows = format!("FROM {source} WHERE {own} = {outer} AND {inner}");
                let value = match self.rng.u8(0..4) {
                    0 => format!("(SELECT {aggregate}({value}) {rows})"),
                    1 => format!("(SELECT {value} {rows} ORDER BY {value}{} LIMIT 1)", self.way()),
                    2 => format!("((SELECT count(*) {rows}) > 0)"),
                    _ => format!("(SELECT count(*) > 0 {rows})"),
                };
                if self.chance(50) {
                    plain(format!("SELECT {key} AS x1, {value} AS x2 FROM {from}"))
                } else {
                    plain(format!("SELECT {key} AS x1 FROM {from} WHERE {value} > 0 AND {other}"))
                }
            }
        }
    }

    /// Returns the first rows of each partition of a window. Rows that are equal in the order have
    /// equal results.
    fn first_by_window(&mut self, with: &str, from: &str, scope: &Scope) -> Text {
        let (key, number) = (self.bare(scope, Kind::Text), self.bare(scope, Kind::Int));
        let (function, ways) = (self.pick(&["row_number", "rank"]), [self.way(), self.way()]);
        let window = match self.rng.u8(0..4) {
            0 => format!("ORDER BY {number} + 0{}, {key} || ''{}", ways[0], ways[1]),
            1 => format!("PARTITION BY {number} ORDER BY {key} || ''{}", ways[0]),
            _ => format!("PARTITION BY {key} ORDER BY {number} + 0{}", ways[0]),
        };
        let filter = self.filter(scope, 1);
        let value = if self.chance(50) { self.call(Kind::Int, &key) } else { "0".to_owned() };
        let inner = format!(
            "SELECT {key} AS w1, {number} AS w2, {value} AS w3, {function}() OVER ({window}) AS k FROM {from}{filter}"
        );
        let mut outer: Scope =
            vec![("s.w1".to_owned(), Kind::Text), ("s.w2".to_owned(), Kind::Int)];
        let mut join = String::new();
        if self.chance(20) {
            let (source, columns) = self.source(0);
            let (kind, own) = (self.pick(&["JOIN", "LEFT JOIN"]), self.bare(&columns, Kind::Int));
            join = format!(" {kind} {source} ON {own} = s.w2");
            outer.extend(columns);
        }
        let limit = self.pick(&["= 1", "= 1", "<= 2", "< 2", "< 4"]);
        let limit = if self.chance(15) { "1 = s.k".to_owned() } else { format!("s.k {limit}") };
        let more = self.filter(&outer, 0).replacen(" WHERE ", " AND ", 1);
        let shown = if self.chance(40) { self.call(Kind::Text, "s.w1") } else { "s.k".to_owned() };
        let select = format!("SELECT s.w1 AS x1, s.w2 AS x2, s.w3 AS x3, {shown} AS x4 FROM");
        let sql = if self.chance(30) {
            let with = match with.strip_suffix(' ') {
                Some(with) => format!("{with}, s AS ({inner})"),
                None => format!("WITH s AS ({inner})"),
            };
            format!("{with} {select} s{join} WHERE {limit}{more}")
        } else {
            format!("{with}{select} ({inner}) AS s{join} WHERE {limit}{more}")
        };
        Text { sql, every: None, ordered: Vec::new() }
    }

    /// Returns the first rows of a UNION ALL.
    fn first_of_union(&mut self, with: &str) -> Text {
        let mut arms = Vec::new();
        for _ in 0..self.rng.usize(2..4) {
            let (from, scope) = self.from(0);
            let (filter, number) = (self.predicate(&scope, 1), self.bare(&scope, Kind::Int));
            let text = if self.chance(30) {
                let argument = self.argument(&scope);
                self.call(Kind::Text, &argument)
            } else {
                self.bare(&scope, Kind::Text)
            };
            arms.push(format!("SELECT {number} AS x1, {text} AS x2 FROM {from} WHERE {filter}"));
        }
        let body = format!("{with}{}", arms.join(" UNION ALL "));
        let (k, offset) = (self.rng.u8(1..6), self.pick(&["", "", " OFFSET 1"]));
        if self.chance(50) {
            let sql = format!("{body} ORDER BY 1{}, 2{} LIMIT {k}{offset}", self.way(), self.way());
            return Text { sql, every: None, ordered: vec![0, 1] };
        }
        Text { sql: format!("{body} LIMIT {k}{offset}"), every: Some(body), ordered: vec![] }
    }

    /// Returns a view, CTE or subquery with joins and filters, which `SQLite` flattens.
    fn beneath(&mut self) -> (String, Scope) {
        let (from, scope) = self.from(0);
        let mut columns = Vec::new();
        let mut written = Vec::new();
        for n in 0..self.rng.usize(2..5) {
            let kind = if n == 0 || self.chance(40) { Kind::Int } else { Kind::Text };
            written.push(format!("{} AS y{n}", self.bare(&scope, kind)));
            columns.push((format!("y{n}"), kind));
        }
        let filter = match self.rng.u8(0..4) {
            0 => String::new(),
            1 => format!(" WHERE {}", self.predicate(&scope, 0)),
            _ => {
                let (column, other) = (self.bare(&scope, Kind::Int), self.bare(&scope, Kind::Text));
                format!(
                    " WHERE {column} > {} OR {other} = {}",
                    self.rng.u8(0..4),
                    literal(self.rng)
                )
            }
        };
        let distinct = if self.chance(15) { "DISTINCT " } else { "" };
        let alias = self.alias();
        let scope = columns.into_iter().map(|(c, kind)| (format!("{alias}.{c}"), kind)).collect();
        (format!("(SELECT {distinct}{} FROM {from}{filter}) AS {alias}", written.join(", ")), scope)
    }

    /// Returns a result column's position, as a term of ORDER BY or GROUP BY.
    fn position(&mut self, n: usize) -> String {
        match self.rng.u8(0..12) {
            0 => format!("+{n}"),
            1 => format!("({n})"),
            2 => format!("0x{n:x}"),
            3 => format!("{n} COLLATE BINARY"),
            _ => n.to_string(),
        }
    }

    /// Returns the direction of an ORDER BY term.
    fn way(&mut self) -> &'static str {
        self.pick(&["", "", "", " DESC", " DESC NULLS FIRST", " NULLS LAST", " ASC NULLS FIRST"])
    }

    /// Returns a SELECT for a CTE, a subquery in FROM or the outermost query; its columns are named
    /// `x1`, `x2` …
    fn select(&mut self, depth: u8) -> (String, Vec<(String, Kind)>) {
        match self.rng.u8(0..20) {
            0..4 => self.grouped(depth),
            4 | 5 if depth < 2 => self.compound(depth),
            6..9 if depth < 2 => self.limited(&[Kind::Text, Kind::Int]),
            9 | 10 if depth < 2 => self.select_shadowed().unwrap_or_else(|| self.core(depth, None)),
            _ => self.core(depth, None),
        }
    }

    /// Returns a compound of two SELECTs, sometimes limited to its first rows.
    fn compound(&mut self, depth: u8) -> (String, Vec<(String, Kind)>) {
        let kinds = [Kind::Text, Kind::Int];
        let (kinds, at) = (&kinds[..self.rng.usize(1..3)], self.rng.usize(..2));
        let kinds = if at == 0 { kinds.to_vec() } else { kinds.iter().rev().copied().collect() };
        let (left, columns) = self.core(depth, Some(&kinds));
        let right = if self.chance(15) {
            let row = |writer: &mut Self| {
                let values: Vec<String> = (kinds.iter())
                    .map(|kind| match kind {
                        Kind::Text => word(writer.rng),
                        Kind::Int => number(writer.rng),
                    })
                    .collect();
                format!("({})", values.join(", "))
            };
            format!("VALUES {}, {}", row(self), row(self))
        } else {
            self.core(depth, Some(&kinds)).0
        };
        let operator = self.pick(&[
            "UNION",
            "UNION",
            "UNION ALL",
            "UNION ALL",
            "UNION ALL",
            "EXCEPT",
            "INTERSECT",
        ]);
        // VALUES takes no ORDER BY.
        let limit = if !right.starts_with("VALUES") && self.chance(30) {
            let positions: Vec<String> = (1..=columns.len()).map(|n| n.to_string()).collect();
            let way = self.way();
            format!(" ORDER BY {}{way} LIMIT {}", positions.join(", "), self.rng.u8(1..5))
        } else {
            String::new()
        };
        (format!("{left} {operator} {right}{limit}"), columns)
    }

    /// Returns the first rows of a SELECT whose aliases equal column names of its sources, ordered
    /// and grouped by these names; `None` if no name is suitable.
    fn select_shadowed(&mut self) -> Option<(String, Vec<(String, Kind)>)> {
        let (from, scope) = self.from(0);
        let name_of = |column: &str| column.rsplit('.').next().unwrap_or(column).to_owned();
        // A name that two sources have is ambiguous within an expression; scopes omit some columns
        // called `id`.
        let named = scope.iter().map(|(column, _)| name_of(column));
        let mut names: Vec<String> = named.filter(|name| name != "id").collect();
        names.sort();
        let names: Vec<String> =
            names.chunk_by(|a, b| a == b).filter(|c| c.len() == 1).map(|c| c[0].clone()).collect();
        // A column of an inner query may be a truth, which its name would no longer show.
        let plain: Scope = scope.iter().filter(|(c, _)| !c.contains(".x")).cloned().collect();
        if names.is_empty() || plain.is_empty() {
            return None;
        }
        let is_grouped = self.chance(35);
        let (mut written, mut columns) = (Vec::new(), Vec::new());
        for n in 0..self.rng.usize(1..4) {
            let kind = if self.chance(50) { Kind::Text } else { Kind::Int };
            let column = self.bare(&plain, kind);
            let value = if self.chance(60) { self.call(kind, &column) } else { column };
            let name = names[self.rng.usize(..names.len())].clone();
            let is_taken = columns.iter().any(|(other, _)| *other == name);
            let name = if is_taken { format!("z{n}") } else { name };
            let aggregate = self.pick(&["min", "max"]);
            let value = if is_grouped { format!("{aggregate}({value})") } else { value };
            written.push(format!("{value} AS {name}"));
            columns.push((name, kind));
        }
        let by = names[self.rng.usize(..names.len())].clone();
        let filter = self.filter(&scope, 0);
        let mut order = Vec::new();
        for _ in 0..self.rng.usize(1..3) {
            let alias = columns[self.rng.usize(..columns.len())].0.clone();
            // Within an expression, the column must be that of the groups.
            let is_alone = is_grouped && alias != by;
            let term = if is_alone { alias } else { self.wrap(&alias) };
            order.push(format!("{term}{}", self.way()));
        }
        order.extend((1..=columns.len()).map(|n| n.to_string()));
        let group =
            if is_grouped { format!(" GROUP BY {}", self.wrap(&by)) } else { String::new() };
        let limit = self.pick(&[" LIMIT 1", " LIMIT 2", " LIMIT 3", " LIMIT 3 OFFSET 1", ""]);
        let sql = format!(
            "SELECT {} FROM {from}{filter}{group} ORDER BY {}{limit}",
            written.join(", "),
            order.join(", ")
        );
        Some((sql, columns))
    }

    /// Returns a name, alone or in an expression with the same value.
    fn wrap(&mut self, name: &str) -> String {
        match self.rng.u8(0..10) {
            0 => format!("+{name}"),
            1 => format!("({name})"),
            2 => format!("likely({name})"),
            3 => format!("{name} COLLATE BINARY"),
            4 => format!("(+{name}) COLLATE BINARY"),
            5 => format!("coalesce({name}, NULL)"),
            _ => name.to_owned(),
        }
    }

    fn core(&mut self, depth: u8, kinds: Option<&[Kind]>) -> (String, Vec<(String, Kind)>) {
        let (from, scope) = self.from(depth);
        let mut columns = Vec::new();
        let mut written = Vec::new();
        for n in 0..kinds.map_or_else(|| self.rng.usize(1..4), <[Kind]>::len) {
            let kind = match kinds {
                Some(kinds) => kinds[n],
                None if self.chance(60) => Kind::Text,
                None => Kind::Int,
            };
            let value = self.value(&scope, kind, depth);
            written.push(format!("{value} AS x{}", n + 1));
            columns.push((format!("x{}", n + 1), kind));
        }
        let distinct = if self.chance(25) { "DISTINCT " } else { "" };
        let filter = self.filter(&scope, depth);
        let limit = if depth < 2 && kinds.is_none() && self.chance(15) {
            let positions: Vec<String> = (1..=columns.len()).map(|n| n.to_string()).collect();
            let offset = self.pick(&["", "", " OFFSET 1"]);
            let way = self.way();
            format!(" ORDER BY {}{way} LIMIT {}{offset}", positions.join(", "), self.rng.u8(1..6))
        } else {
            String::new()
        };
        (format!("SELECT {distinct}{} FROM {from}{filter}{limit}", written.join(", ")), columns)
    }

    /// Returns the first rows in a plain order, or one per group, filtered by calls; they do not
    /// depend on outer rows. A call in its results is about a result column, so that equal rows
    /// have equal answers.
    fn limited(&mut self, kinds: &[Kind]) -> (String, Vec<(String, Kind)>) {
        let (from, scope) = self.from(0);
        let filter = self.predicate(&scope, 0);
        let (mut written, mut columns) = (Vec::new(), Vec::new());
        let mut text = None;
        for (n, kind) in kinds.iter().enumerate() {
            let column = self.bare(&scope, *kind);
            written.push(format!("{column} AS x{}", n + 1));
            columns.push((format!("x{}", n + 1), *kind));
            text = text.or((*kind == Kind::Text).then_some(column));
        }
        let order: Vec<String> = (1..=kinds.len()).map(|n| format!("{n}{}", self.way())).collect();
        let offset = self.pick(&["", "", " OFFSET 1"]);
        let mut limit =
            format!(" ORDER BY {} LIMIT {}{offset}", order.join(", "), self.rng.u8(1..5));
        let mut distinct = "";
        if self.chance(30) {
            distinct = "DISTINCT ";
            if self.chance(50) {
                limit = String::new();
            }
        } else if let Some(text) = text.filter(|_| self.chance(50)) {
            written.push(format!("{} AS x0", self.call(Kind::Text, &text)));
            columns.push(("x0".to_owned(), Kind::Text));
        }
        let sql =
            format!("SELECT {distinct}{} FROM {from} WHERE {filter}{limit}", written.join(", "));
        (sql, columns)
    }

    /// Returns a CTE that reads itself a few times.
    fn recursive(&mut self, name: &str) -> (String, Vec<(String, Kind)>) {
        let (from, scope) = self.from(0);
        let (start, filter) = (self.value(&scope, Kind::Text, 0), self.filter(&scope, 0));
        let alias = self.alias();
        let own: Scope =
            vec![(format!("{alias}.x1"), Kind::Int), (format!("{alias}.x2"), Kind::Text)];
        let (step, on) = (self.value(&own, Kind::Text, 0), self.predicate(&own, 1));
        let union = self.pick(&["UNION", "UNION ALL"]);
        let sql = format!(
            "SELECT 1 AS x1, {start} AS x2 FROM {from}{filter} {union} \
             SELECT {alias}.x1 + 1, {step} FROM {name} AS {alias} WHERE {alias}.x1 < 3 AND {on}"
        );
        (sql, vec![("x1".to_owned(), Kind::Int), ("x2".to_owned(), Kind::Text)])
    }

    fn grouped(&mut self, depth: u8) -> (String, Vec<(String, Kind)>) {
        let (from, scope) = self.from(depth);
        let filter = self.filter(&scope, depth);
        let (text, int) = (self.value(&scope, Kind::Text, 0), self.value(&scope, Kind::Int, 0));
        let aggregates = [
            "count(*)".to_owned(),
            format!("count(DISTINCT {text})"),
            format!("sum({int})"),
            format!("max({int})"),
            format!("count({text})"),
            format!("sum(CASE WHEN {} THEN 1 ELSE 0 END)", self.predicate(&scope, 0)),
            format!("count(*) FILTER (WHERE {})", self.predicate(&scope, 0)),
            format!("count(DISTINCT {int}) FILTER (WHERE {})", self.predicate(&scope, 0)),
            format!("sum(DISTINCT {int})"),
            format!("total({int} > 1)"),
            format!("length(«reduce¦least¦¦{}»)", self.bare(&scope, Kind::Text)),
        ];
        let aggregate = aggregates[self.rng.usize(..aggregates.len())].clone();
        if self.chance(10) {
            // An aggregate of these rows in a subquery.
            let of = self.bare(&scope, Kind::Int);
            let aggregate = match self.rng.u8(0..3) {
                0 => format!("max({of})"),
                1 => format!("count({of}) FILTER (WHERE {of} > 1)"),
                _ => format!("count(*) FILTER (WHERE {of} > 1)"),
            };
            let sql = format!("SELECT (SELECT {aggregate}) AS x1, 'a' AS x2 FROM {from}{filter}");
            return (sql, vec![("x1".to_owned(), Kind::Int), ("x2".to_owned(), Kind::Text)]);
        }
        if self.chance(35) {
            // Without rows, there is one group, or none.
            let having = if self.chance(25) {
                format!(" HAVING count({text}) >= {}", self.rng.u8(0..3))
            } else {
                String::new()
            };
            let sql =
                format!("SELECT {aggregate} AS x1, min({text}) AS x2 FROM {from}{filter}{having}");
            return (sql, vec![("x1".to_owned(), Kind::Int), ("x2".to_owned(), Kind::Text)]);
        }
        // Names that no source has, for GROUP BY and HAVING.
        let (one, two) = (format!("g{}", self.alias()), format!("g{}", self.alias()));
        let key = self.value(&scope, Kind::Text, 0);
        let by = match self.rng.u8(0..6) {
            0 => one.clone(),
            1 => self.position(1),
            2 => format!("{key}, {}", self.position(1)),
            _ => key.clone(),
        };
        let having = match self.rng.u8(0..6) {
            2 => {
                format!(" HAVING {two} > {} OR {}", self.rng.u8(0..3), self.call(Kind::Text, &one))
            }
            3 => format!(" HAVING max({int}) > {}", self.bare_number()),
            0 => format!(" HAVING count(*) > {}", self.rng.u8(0..3)),
            1 => {
                format!(" HAVING {aggregate} >= 1 AND {} IS NOT NULL", self.call(Kind::Text, &key))
            }
            _ => String::new(),
        };
        let sql = format!(
            "SELECT {key} AS {one}, {aggregate} AS {two} FROM {from}{filter} GROUP BY {by}{having}"
        );
        (sql, vec![(one, Kind::Text), (two, Kind::Int)])
    }

    fn filter(&mut self, scope: &Scope, depth: u8) -> String {
        if self.chance(65) {
            format!(" WHERE {}", self.predicate(scope, depth))
        } else {
            String::new()
        }
    }

    /// Returns one to three joined sources.
    fn from(&mut self, depth: u8) -> (String, Scope) {
        let (mut from, mut scope) = self.source(depth);
        for _ in 0..[0, 0, 0, 1, 1, 2][self.rng.usize(..6)] {
            let (source, columns) = self.source(depth.saturating_sub(1));
            let (left, right) = (self.column(&scope, Kind::Int), self.column(&columns, Kind::Int));
            let texts = (self.column(&scope, Kind::Text), self.column(&columns, Kind::Text));
            let equal = match (left, right) {
                _ if texts.0.is_some() && texts.1.is_some() && self.chance(6) => {
                    let block = self.pick(&[";", ";, block='trigrams'"]);
                    let (left, right) = (texts.0.unwrap_or_default(), texts.1.unwrap_or_default());
                    format!("«join¦¦{block}¦{left}¦{right}»")
                }
                (Some(left), Some(right)) => format!("{left} = {right}"),
                _ => "1".to_owned(),
            };
            if self.chance(8) {
                // A column of both sources that is merged.
                (from, scope) = self.using(&from, &scope, &source, &columns);
                continue;
            }
            scope.extend(columns);
            let join = self.pick(&[
                "JOIN",
                "JOIN",
                "LEFT JOIN",
                "LEFT JOIN",
                "CROSS JOIN",
                ",",
                "RIGHT JOIN",
                "FULL JOIN",
            ]);
            from = match join {
                "CROSS JOIN" => format!("{from} CROSS JOIN {source}"),
                "," => format!("{from}, {source}"),
                // Common names determine the condition; with more than two tables they may be
                // ambiguous.
                _ if !from.contains([',', '(']) && !from.contains(" JOIN ") && self.chance(8) => {
                    format!("{from} NATURAL {join} {source}")
                }
                _ if self.chance(40) => {
                    let more = self.predicate(&scope, 0);
                    format!("{from} {join} {source} ON {equal} AND {more}")
                }
                _ => format!("{from} {join} {source} ON {equal}"),
            };
        }
        (from, scope)
    }

    /// Returns two sources as stars, joined by name.
    fn using(&mut self, from: &str, scope: &Scope, other: &str, of: &Scope) -> (String, Scope) {
        let mut sides = Vec::new();
        let mut all = Scope::new();
        for (from, scope) in [(from, scope), (other, of)] {
            let alias = self.alias();
            let key = self.bare(scope, Kind::Int);
            let mut written = Vec::new();
            for (n, (column, kind)) in scope.iter().enumerate() {
                let name = format!("{alias}_{n}");
                written.push(format!("{column} AS {name}"));
                all.push((format!("{alias}.{name}"), *kind));
            }
            written.push(format!("{key} AS j"));
            sides.push(format!(
                "(SELECT * FROM (SELECT {} FROM {from})) AS {alias}",
                written.join(", ")
            ));
        }
        let join = self.pick(&["JOIN", "LEFT JOIN", "FULL JOIN"]);
        all.push(("j".to_owned(), Kind::Int));
        (format!("{} {join} {} USING (j)", sides[0], sides[1]), all)
    }

    fn source(&mut self, depth: u8) -> (String, Scope) {
        let alias = self.alias();
        let (source, columns) = if depth > 0 && self.chance(20) {
            let (body, columns) = self.select(depth - 1);
            (format!("({body})"), columns)
        } else if !self.ctes.is_empty() && self.chance(60) {
            self.ctes[self.rng.usize(..self.ctes.len())].clone()
        } else {
            let (name, columns): (&str, &[(&str, Kind)]) = match self.rng.u8(0..9) {
                7 => [
                    ("grp", &[("g", Kind::Text), ("z", Kind::Int), ("y", Kind::Int)][..]),
                    ("both", &[("t", Kind::Text), ("u", Kind::Int)][..]),
                ][self.rng.usize(..2)],
                8 => [
                    (
                        "deep",
                        &[
                            ("id", Kind::Int),
                            ("a", Kind::Text),
                            ("c", Kind::Text),
                            ("n", Kind::Int),
                        ][..],
                    ),
                    ("top", &[("id", Kind::Int), ("a", Kind::Text), ("n", Kind::Int)][..]),
                ][self.rng.usize(..2)],
                0 | 1 => (
                    "p",
                    &[("id", Kind::Int), ("a", Kind::Text), ("b", Kind::Text), ("n", Kind::Int)],
                ),
                2 | 3 => ("q", &[("pid", Kind::Int), ("c", Kind::Text), ("m", Kind::Int)]),
                4 => (
                    "pq",
                    &[
                        ("id", Kind::Int),
                        ("a", Kind::Text),
                        ("n", Kind::Int),
                        ("c", Kind::Text),
                        ("m", Kind::Int),
                    ],
                ),
                5 if self.chance(50) => ("qs", &[("c", Kind::Text), ("m", Kind::Int)]),
                5 => ("some", &[("w", Kind::Text), ("n", Kind::Int)]),
                _ => ("r", &[("k", Kind::Text), ("v", Kind::Int)]),
            };
            (name.to_owned(), columns.iter().map(|(c, kind)| ((*c).to_owned(), *kind)).collect())
        };
        let scope = columns.into_iter().map(|(c, kind)| (format!("{alias}.{c}"), kind)).collect();
        (format!("{source} AS {alias}"), scope)
    }

    fn column(&mut self, scope: &Scope, kind: Kind) -> Option<String> {
        let fit: Vec<&String> = scope.iter().filter(|(_, k)| *k == kind).map(|(c, _)| c).collect();
        if fit.is_empty() { None } else { Some(fit[self.rng.usize(..fit.len())].clone()) }
    }

    /// Returns a column of a kind, or a literal if there is none.
    fn bare(&mut self, scope: &Scope, kind: Kind) -> String {
        self.column(scope, kind).unwrap_or_else(|| match kind {
            Kind::Text => literal(self.rng),
            Kind::Int => self.rng.u8(0..7).to_string(),
        })
    }

    fn bare_number(&mut self) -> u8 {
        self.rng.u8(0..5)
    }

    /// Returns the value of a call: mostly a column, sometimes an expression or a call.
    fn argument(&mut self, scope: &Scope) -> String {
        let column = self.bare(scope, Kind::Text);
        match self.rng.u8(0..14) {
            0 => format!("{column} || '-' || {}", self.bare(scope, Kind::Text)),
            1 => format!("«upper¦¦str¦{column}»"),
            2 => format!("coalesce({column}, 'nothing')"),
            3 => self.bare(scope, Kind::Int),
            _ => column,
        }
    }

    /// Returns a call of a kind with an argument and an explicit type.
    fn call(&mut self, kind: Kind, argument: &str) -> String {
        let (function, name) = match kind {
            Kind::Text => (self.pick(&["upper¦", "initial¦", "null_if¦e"]), "str"),
            Kind::Int => (self.pick(&["length¦", "vowels¦", "mod¦3"]), "int"),
        };
        if self.chance(12) {
            return self.other_ingredient(kind, argument);
        }
        let more = self.more_arguments(function, kind, argument);
        format!("«{function}¦{name}{more}¦{argument}»")
    }

    /// Returns a call of an ingredient that hqdl rewrites as `LLMMap`.
    fn other_ingredient(&mut self, kind: Kind, argument: &str) -> String {
        let field = |function: &str, is_member: bool| {
            if is_member { format!(".{function}") } else { format!(" ->> '{function}'") }
        };
        let is_member = self.chance(50);
        match (kind, self.rng.u8(0..2)) {
            (Kind::Text, 0) => {
                format!("«classify¦{}¦¦{argument}»", self.pick(&["a", "A", "b", "e"]))
            }
            (Kind::Text, _) => {
                let function = self.pick(&["upper", "initial"]);
                format!("«extract¦{function}¦;{}¦{argument}»", field(function, is_member))
            }
            (Kind::Int, 0) => format!("«rank¦{}¦¦{argument}»", self.pick(&["length", "vowels"])),
            (Kind::Int, _) => {
                let function = self.pick(&["length", "vowels"]);
                format!("«extract¦{function}¦;{}¦{argument}»", field(function, is_member))
            }
        }
    }

    /// Returns further arguments of a call, mostly none, after a `;`.
    fn more_arguments(&mut self, function: &str, kind: Kind, argument: &str) -> String {
        match self.rng.u8(0..24) {
            0 if function == "mod¦3" => ";, options=(0, 1, 2)".to_owned(),
            1 if function == "mod¦3" => format!(";, {SOME_OPTIONS}"),
            2 if kind == Kind::Text => ";, examples=[('some', 'SOME')]".to_owned(),
            3 if kind == Kind::Int => ";, examples=[('some', 4)]".to_owned(),
            4 if !argument.contains('«') => {
                let from = self.pick(&["q.c", "p.a", "r.k"]);
                format!(";, context=search({from}, {argument}, 2)")
            }
            _ => String::new(),
        }
    }

    /// Returns a yes-or-no call whose type follows from its position.
    fn yes_or_no(&mut self, scope: &Scope) -> String {
        let function = self.pick(&["starts_with¦", "contains¦", "ends_with¦"]);
        let letter = self.pick(&["a", "A", "b", "e", "l"]);
        let argument = self.argument(scope);
        format!("«{function}{letter}¦¦{argument}»")
    }

    fn value(&mut self, scope: &Scope, kind: Kind, depth: u8) -> String {
        let argument = self.argument(scope);
        let call = self.call(kind, &argument);
        let bare = self.bare(scope, kind);
        match (self.rng.u8(0..12), kind) {
            (0..4, _) => bare,
            (4, _) => self.computed(scope, kind, depth),
            (5..8, _) => call,
            (8, Kind::Text) => format!("coalesce({call}, {bare})"),
            (8, Kind::Int) if self.chance(40) => {
                // A word, or a number as a text.
                let text = self.call(Kind::Text, &argument);
                let value = if self.chance(50) { call } else { text };
                format!("TRY_CAST({value} AS INTEGER)")
            }
            (8, Kind::Int) => format!("{call} + {bare}"),
            (9, Kind::Text) => format!("{call} || '!'"),
            (9, Kind::Int) => format!("coalesce({bare}, {call}, 0)"),
            (10, _) => {
                let condition = self.predicate(scope, 0);
                format!("CASE WHEN {condition} THEN {bare} ELSE {call} END")
            }
            (_, Kind::Int) if depth > 1 && self.chance(40) => self.window(scope),
            (_, Kind::Int) if depth > 0 && self.chance(15) => {
                let (from, filter) = self.correlated(scope);
                format!("EXISTS (SELECT 1 FROM {from} WHERE {filter})")
            }
            (11, Kind::Int) if self.chance(50) => {
                let other = self.bare(scope, Kind::Int);
                format!("CASE {call} WHEN {bare} THEN 1 WHEN 2 THEN {other} ELSE 0 END")
            }
            (11, Kind::Text) if self.chance(30) => {
                format!("CASE {call} WHEN {bare} THEN 'same' WHEN 'A' THEN {call} END")
            }
            (_, Kind::Text) if depth > 0 && self.chance(50) => {
                let (source, columns) = self.source(0);
                let (own, other) = (self.bare(&columns, Kind::Int), self.bare(scope, Kind::Int));
                let value = self.value(&columns, Kind::Text, 0);
                let way = self.way();
                let offset = self.pick(&["", " OFFSET 1"]);
                format!(
                    "(SELECT {value} AS y1 FROM {source} WHERE {own} = {other} ORDER BY 1{way} LIMIT 1{offset})"
                )
            }
            (_, Kind::Int) if depth > 0 && self.chance(30) => {
                // The aggregate belongs to the outer SELECT if its column does.
                let (own, aggregate) = (self.bare(scope, Kind::Int), self.pick(&["min", "max"]));
                let (source, columns) = self.source(0);
                let other = self.bare(&columns, Kind::Int);
                format!("(SELECT {aggregate}({own} + {other}) FROM {source})")
            }
            (_, Kind::Int) if depth > 0 => {
                let (from, filter) = self.correlated(scope);
                format!("(SELECT count(*) FROM {from} WHERE {filter})")
            }
            (_, Kind::Text) if depth > 0 && self.chance(50) => self.first_of(scope, depth - 1),
            (_, Kind::Text) if depth > 0 => {
                let (source, columns) = self.source(0);
                let filter = self.predicate(&columns, 0);
                let column = self.bare(&columns, Kind::Text);
                format!("(SELECT max({column}) FROM {source} WHERE {filter})")
            }
            _ => bare,
        }
    }

    /// Returns a value without a call, computed from columns.
    fn computed(&mut self, scope: &Scope, kind: Kind, depth: u8) -> String {
        let (text, int) = (self.bare(scope, Kind::Text), self.bare(scope, Kind::Int));
        let other = self.bare(scope, kind);
        match (self.rng.u8(0..7), kind) {
            (0, Kind::Text) => format!("{text} || '!'"),
            (1, Kind::Text) => format!("coalesce({text}, 'nothing')"),
            (2, Kind::Text) => format!("substr({text}, 1, 2)"),
            (3, Kind::Text) => format!("nullif({text}, {other})"),
            (4, Kind::Text) => format!("CASE WHEN {int} > 2 THEN {text} ELSE {other} END"),
            (0, Kind::Int) => format!("{int} + 1"),
            (1, Kind::Int) => format!("length({text})"),
            (2, Kind::Int) => format!("({text} IS NULL)"),
            (3, Kind::Int) => format!("({int} >= {other})"),
            (4, Kind::Int) => format!("iif({text} > 'c', {int}, {other})"),
            (5, _) if depth > 0 => format!("(SELECT {other})"),
            _ => other,
        }
    }

    /// Returns a window function whose value is the same whichever of equal rows comes first.
    fn window(&mut self, scope: &Scope) -> String {
        let argument = self.argument(scope);
        let (text, int) = (self.call(Kind::Text, &argument), self.call(Kind::Int, &argument));
        let (own, other) = (self.bare(scope, Kind::Int), self.bare(scope, Kind::Text));
        match self.rng.u8(0..7) {
            0 => format!("rank() OVER (ORDER BY {int}, {other})"),
            1 => format!("dense_rank() OVER (PARTITION BY {other} ORDER BY {text})"),
            2 => format!("sum({int}) OVER (PARTITION BY {other} ORDER BY {own})"),
            3 => format!("count(*) FILTER (WHERE {int} > 1) OVER (PARTITION BY {own})"),
            4 => format!("max({own}) OVER (ORDER BY {text} DESC)"),
            5 => format!("sum({own}) OVER ()"),
            _ => format!("count({own}) OVER (PARTITION BY {text})"),
        }
    }

    /// Returns the first row in a plain order, filtered by calls, with a call as its value.
    fn first_of(&mut self, outside: &Scope, depth: u8) -> String {
        let alias = self.alias();
        let (table, column, text, key) =
            if self.chance(50) { ("p", "n", "a", "id") } else { ("q", "m", "c", "pid") };
        let scope: Scope = vec![
            (format!("{alias}.{column}"), Kind::Int),
            (format!("{alias}.{text}"), Kind::Text),
            (format!("{alias}.{key}"), Kind::Int),
        ];
        let value = self.value(&scope, Kind::Text, 0);
        let joined = match self.column(outside, Kind::Int) {
            Some(other) if self.chance(70) => format!("{alias}.{key} = {other}"),
            _ => "1".to_owned(),
        };
        let more = if self.chance(60) {
            format!(" AND {}", self.predicate(&scope, depth))
        } else {
            String::new()
        };
        let way = self.way();
        let offset = self.pick(&["", "", " OFFSET 1"]);
        format!(
            "(SELECT {value} FROM {table} AS {alias} WHERE {joined}{more} \
             ORDER BY {alias}.{column}{way}, {alias}.rowid LIMIT 1{offset})"
        )
    }

    /// Returns a source whose rows depend on the outer row, and its condition.
    fn correlated(&mut self, outside: &Scope) -> (String, String) {
        let (source, columns) = self.source(0);
        let kind = if self.chance(70) { Kind::Int } else { Kind::Text };
        let (own, other) = (self.bare(&columns, kind), self.bare(outside, kind));
        let filter = self.predicate(&columns, 0);
        (source, format!("{own} = {other} AND {filter}"))
    }

    /// Returns less common conditions: row values, collations, patterns.
    fn uncommon(&mut self, scope: &Scope) -> String {
        let argument = self.argument(scope);
        let (text, int) = (self.call(Kind::Text, &argument), self.call(Kind::Int, &argument));
        let (own, number) = (self.bare(scope, Kind::Text), self.bare(scope, Kind::Int));
        match self.rng.u8(0..16) {
            6 => {
                // Only the comparison determines the type of the answer.
                let operator = self.pick(&["=", "<>", ">", "<=", "IS", "IS NOT"]);
                let other = match self.rng.u8(0..4) {
                    0 => format!("{number} + 1"),
                    1 => "1 + 2".to_owned(),
                    2 => format!("length({own})"),
                    // A column of a query may be a truth.
                    _ if number.contains(".x") => format!("{number} + 0"),
                    _ => number,
                };
                if self.rng.bool() {
                    format!("«length¦¦¦{argument}» {operator} {other}")
                } else {
                    format!("{other} {operator} «vowels¦¦¦{argument}»")
                }
            }
            7 => {
                let (source, columns) = self.source(0);
                let column = self.bare(&columns, Kind::Int);
                let not = self.pick(&["", "NOT "]);
                // A column of a query may be a truth, and a call that is compared with truths
                // answers yes or no.
                let number = if source.starts_with('c') { " + 0" } else { "" };
                format!("«length¦¦¦{argument}» {not}IN (SELECT {column}{number} FROM {source})")
            }
            8 => {
                let not = self.pick(&["", "NOT "]);
                format!("{int} {not}IN (2, NULL, {number})")
            }
            9 => format!("{text} IS {}{own}", self.pick(&["NOT ", "", "NOT DISTINCT FROM "])),
            10 => {
                let (from, filter) = self.correlated(scope);
                let limit = self.pick(&["LIMIT 1", "LIMIT 1", "LIMIT 1 OFFSET 1", "LIMIT 2"]);
                let not = self.pick(&["", "NOT "]);
                format!("{not}EXISTS (SELECT 1 FROM {from} WHERE {filter} {limit})")
            }
            11 => format!("coalesce({}, 0)", self.yes_or_no(scope)),
            12 => format!("{} = ({number} > 2)", self.yes_or_no(scope)),
            13 => format!("(SELECT {})", self.yes_or_no(scope)),
            14 => format!(
                "CASE {} WHEN TRUE THEN {number} > 1 ELSE {own} < 'm' END",
                self.yes_or_no(scope)
            ),
            15 if self.chance(40) => {
                let (body, _) = self.limited(&[Kind::Int]);
                let not = self.pick(&["", "NOT "]);
                match self.pick(&["in", "exists", "value"]) {
                    "in" => format!("{int} {not}IN ({body})"),
                    "exists" => format!("{not}EXISTS ({body})"),
                    _ => format!("{int} >= ({body})"),
                }
            }
            15 => {
                let (body, columns) = self.compound(0);
                let not = self.pick(&["", "NOT "]);
                let operand = if columns.len() > 1 {
                    match columns[0].1 {
                        Kind::Text => format!("({own}, {int})"),
                        Kind::Int => format!("({int}, {own})"),
                    }
                } else if columns[0].1 == Kind::Text {
                    own
                } else {
                    int
                };
                format!("{operand} {not}IN ({body})")
            }
            0 => format!("({number}, {int}) {} (2, 3)", self.pick(&["=", "<", "<>", ">="])),
            1 => format!("({own}, {int}) = ({}, {number})", literal(self.rng)),
            2 => format!("{text} COLLATE NOCASE = {}", literal(self.rng)),
            3 => format!("{text} {} '%a%'", self.pick(&["LIKE", "NOT LIKE"])),
            4 => format!("iif({}, {int} > 1, {own} IS NOT NULL)", self.yes_or_no(scope)),
            _ => {
                let (source, columns) = self.source(0);
                let (a, b) = (self.bare(&columns, Kind::Text), self.bare(&columns, Kind::Int));
                let not = self.pick(&["", "NOT "]);
                format!("({own}, {int}) {not}IN (SELECT {a}, {b} FROM {source})")
            }
        }
    }

    fn predicate(&mut self, scope: &Scope, depth: u8) -> String {
        let more = |writer: &mut Self| writer.predicate(scope, depth.saturating_sub(1));
        let budget: u8 = if depth == 0 { 13 } else { 20 };
        if self.chance(8) {
            return self.uncommon(scope);
        }
        match self.rng.u8(0..budget) {
            0 => format!("{} > {}", self.bare(scope, Kind::Int), self.rng.u8(0..5)),
            1 => {
                let list: Vec<String> = (0..5).map(|_| literal(self.rng)).collect();
                let not = self.pick(&["", "NOT "]);
                format!("{} {not}IN ({})", self.bare(scope, Kind::Text), list.join(", "))
            }
            2 => {
                let kind = if self.chance(50) { Kind::Text } else { Kind::Int };
                let not = self.pick(&["", "NOT "]);
                format!("{} IS {not}NULL", self.bare(scope, kind))
            }
            3 | 4 => self.yes_or_no(scope),
            5 => format!("{} = {}", self.yes_or_no(scope), self.pick(&["TRUE", "FALSE", "1"])),
            6 => format!("NOT {}", self.yes_or_no(scope)),
            7 => {
                let (argument, least) = (self.argument(scope), self.rng.u8(0..5));
                let operator = self.pick(&[">", "<=", "<>"]);
                format!("«length¦¦¦{argument}» {operator} {least}")
            }
            8 => {
                let argument = self.argument(scope);
                let call = self.call(Kind::Int, &argument);
                let not = self.pick(&["", "NOT "]);
                format!("{call} {not}BETWEEN 1 AND {}", self.rng.u8(1..5))
            }
            9 => {
                let argument = self.argument(scope);
                let not = self.pick(&["", "NOT "]);
                format!("«initial¦¦str¦{argument}» {not}IN ('a', 'A', 'b')")
            }
            10 => {
                let argument = self.argument(scope);
                let call = self.call(Kind::Text, &argument);
                let not = self.pick(&["", "NOT "]);
                format!("{call} IS {not}NULL")
            }
            11 => {
                let argument = self.argument(scope);
                let call = self.call(Kind::Text, &argument);
                format!("{call} {} {}", self.pick(&["<>", "<", ">", "NOT LIKE"]), literal(self.rng))
            }
            12 => format!("{} < {}", self.bare(scope, Kind::Int), self.bare(scope, Kind::Int)),
            13 | 14 => format!("({} AND {})", more(self), more(self)),
            15 | 16 => format!("({} OR {})", more(self), more(self)),
            17 => format!("NOT ({})", more(self)),
            18 => {
                let (if_, then, else_) = (more(self), more(self), more(self));
                format!("CASE WHEN {if_} THEN {then} ELSE {else_} END")
            }
            19 if self.chance(40) => {
                let first = self.first_of(scope, 0);
                let other = self.bare(scope, Kind::Text);
                match self.rng.u8(0..4) {
                    0 => format!("{first} = {other}"),
                    1 => format!("{first} > {}", literal(self.rng)),
                    2 => format!("{other} IN {first}"),
                    _ => format!("{first} IS NOT NULL"),
                }
            }
            _ => {
                let not = self.pick(&["", "NOT "]);
                if self.chance(50) {
                    let (from, filter) = self.correlated(scope);
                    format!("{not}EXISTS (SELECT 1 FROM {from} WHERE {filter})")
                } else if self.rng.bool() {
                    let (from, filter) = self.correlated(scope);
                    let own = self.bare(scope, Kind::Int);
                    let alias = from.rsplit(' ').next().unwrap_or_default().to_owned();
                    let column = match from.split(' ').next() {
                        Some("p") => "n",
                        Some("q") => "m",
                        Some("r") => "v",
                        _ => return format!("{not}EXISTS (SELECT 1 FROM {from} WHERE {filter})"),
                    };
                    let distinct = self.pick(&["", "DISTINCT "]);
                    let limit = self.pick(&[
                        "",
                        " ORDER BY 1 LIMIT 2",
                        " ORDER BY 1 DESC LIMIT 1 OFFSET 1",
                    ]);
                    format!(
                        "{own} {not}IN (SELECT {distinct}{alias}.{column} FROM {from} WHERE {filter}{limit})"
                    )
                } else {
                    let (source, columns) = self.source(0);
                    let filter = self.predicate(&columns, 0);
                    let (own, column) =
                        (self.bare(scope, Kind::Text), self.value(&columns, Kind::Text, 0));
                    format!("{own} {not}IN (SELECT {column} FROM {source} WHERE {filter})")
                }
            }
        }
    }
}
