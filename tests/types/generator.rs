//! Generates random queries with untyped calls, each in two spellings: with calls, and with
//! functions. While the query is assembled, a call is written as `«function¦value»`.
//!
//! No query contradicts the answer's natural type: a text is not added, and a number is not
//! compared with a text literal.

use fastrand::Rng;

/// A database with a column of every affinity.
pub const DATABASE: &str = "
CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT, n INTEGER, r REAL, d DATE, x);
INSERT INTO t VALUES
 (1, 'ann', 3, 1.75, '2020-01-02', 3), (2, 'bert', 4, 2.25, '2021-05-05', 'BERT'),
 (3, 'carla', 2, 3.0, 5, 2.75), (4, 'do', NULL, 1.25, NULL, NULL), (5, NULL, 1, NULL, '1', 1),
 (6, 'eve, the', 8, 4.25, 8, 'x'), (7, 'ann', 0, 0.75, 'ANN', 'ANN'), (8, 'z', 5, 5.5, 1, '1');
CREATE TABLE u (id INTEGER PRIMARY KEY, tid INTEGER, s TEXT, n INTEGER);
INSERT INTO u VALUES (1, 1, 'ANN', 3), (2, 2, 'bert', 1), (3, 2, 'a', 4), (4, 6, 'do', 5),
 (5, NULL, NULL, NULL), (6, 3, 'CARLA', 2);
CREATE VIEW v AS SELECT t.id, t.s, t.n + 0 AS n, t.r, t.d, t.x FROM t;
";

/// A query in both spellings.
pub struct Generated {
    pub query: String,
    pub plain: String,
    /// Whether the order matters.
    pub ordered: bool,
}

/// Replaces the calls by one of their spellings.
fn spell(text: &str, live: bool) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.rfind('«') {
        let end = start + text[start..].find('»').unwrap();
        let (function, value) = text[start + '«'.len_utf8()..end].split_once('¦').unwrap();
        let call = if live {
            format!("{{{{LLMMap('fn:{function}', {value})}}}}")
        } else {
            format!("hq_{function}({value})")
        };
        text.replace_range(start..end + '»'.len_utf8(), &call);
    }
    text
}

/// Returns a random query.
pub fn query(rng: &mut Rng) -> Generated {
    let mut writer = Writer { rng };
    let (text, ordered) = writer.query();
    Generated { query: spell(&text, true), plain: spell(&text, false), ordered }
}

/// SQL of the available values: calls, or columns with calls.
struct Values {
    number: String,
    real: String,
    text: String,
    truth: String,
    /// Table whose columns are also used.
    of: String,
}

impl Values {
    fn calls(of: &str) -> Self {
        let call = |function| format!("«{function}¦{of}.s»");
        Self {
            number: call("length"),
            real: call("half"),
            text: call("upper"),
            truth: call("loud"),
            of: of.to_owned(),
        }
    }

    fn names(of: &str) -> Self {
        let name = |name| format!("{of}.{name}");
        Self {
            number: name("l"),
            real: name("h"),
            text: name("w"),
            truth: name("b"),
            of: of.to_owned(),
        }
    }
}

struct Writer<'r> {
    rng: &'r mut Rng,
}

impl Writer<'_> {
    fn pick(&mut self, from: &[&str]) -> String {
        from[self.rng.usize(..from.len())].to_owned()
    }

    fn chance(&mut self, percent: u8) -> bool {
        self.rng.u8(..100) < percent
    }

    fn sign(&mut self) -> String {
        self.pick(&["=", "=", "<>", "<", "<=", ">", ">=", "IS", "IS NOT", "=="])
    }

    /// Returns a number without a call.
    fn number(&mut self, of: &str) -> String {
        let all = [
            "3",
            "2.5",
            "1+2",
            "-(-3)",
            "(SELECT 3)",
            "(SELECT max(n) FROM u)",
            "0x4",
            "(SELECT count(*) FROM u)",
            "abs(-4)",
            "CAST('3' AS INTEGER)",
            "length('four')",
            "(VALUES (4))",
            "CASE WHEN 1 THEN 3 ELSE 4.5 END",
        ];
        if self.chance(45) {
            return self.pick(&all);
        }
        let one = self.pick(&[
            "@.n",
            "@.n+0",
            "+@.n",
            "coalesce(@.n, 0)",
            "length(@.s)",
            "@.r",
            "@.r*2",
            "abs(@.n)",
            "(SELECT @.n)",
            "iif(@.n > 2, @.n, 3)",
            "(SELECT max(n) FROM u WHERE u.tid = @.id)",
            "nullif(@.n, 4)",
            "max(@.n, 2)",
            "CASE @.n WHEN 3 THEN 3 ELSE 4 END",
            "@.id",
        ]);
        one.replace('@', of)
    }

    /// Returns a text without a call.
    fn text(&mut self, of: &str) -> String {
        let all = ["'ANN'", "'CARLA'", "(SELECT 'ANN')", "upper('ann')", "'A'||'NN'", "'b'", "''"];
        if self.chance(40) {
            return self.pick(&all);
        }
        let one = self.pick(&[
            "@.s",
            "@.x",
            "@.d",
            "upper(@.s)",
            "@.s||''",
            "coalesce(@.s, 'BERT')",
            "(SELECT max(s) FROM u)",
            "(SELECT upper(u.s) FROM u WHERE u.tid = @.id)",
            "substr(@.s, 1, 3)",
            "CASE WHEN @.n > 2 THEN 'ANN' ELSE @.s END",
            "replace(@.s, 'a', 'A')",
        ]);
        one.replace('@', of)
    }

    /// Returns a number computed from an answer, possibly without anything that determines its
    /// type.
    fn answer(&mut self, v: &Values) -> String {
        let one = if self.chance(60) { &v.number } else { &v.real };
        let form = self.pick(&[
            "#",
            "#",
            "#",
            "#",
            "(#)",
            "+#",
            "coalesce(#, 0)",
            "(SELECT #)",
            "ifnull(#, 2)",
            "iif(@.n > 1, #, 0)",
            "CASE WHEN @.n > 2 THEN # ELSE 3 END",
            "nullif(#, 4)",
            "# + 1",
            "# * 2",
            "-#",
            "abs(#)",
            "min(#, 4)",
            "round(#)",
            "CAST(# AS REAL)",
            "(SELECT max(k.y) FROM (SELECT # AS y) AS k)",
            "likely(#)",
        ]);
        form.replace('#', one).replace('@', &v.of)
    }

    fn words(&mut self, v: &Values) -> String {
        let form = self.pick(&[
            "#",
            "#",
            "#",
            "#",
            "(#)",
            "coalesce(#, '')",
            "(SELECT #)",
            "# || ''",
            "iif(@.n > 1, #, '')",
            "CASE WHEN @.n > 2 THEN # ELSE 'b' END",
            "nullif(#, 'DO')",
            "substr(#, 1, 3)",
            "max(#, 'B')",
            "CAST(# AS TEXT)",
            "lower(#)",
        ]);
        form.replace('#', &v.text).replace('@', &v.of)
    }

    /// Returns the truth of an answer, in some position of a condition.
    fn position(&mut self, v: &Values) -> String {
        let form = self.pick(&[
            "#",
            "NOT #",
            "# = TRUE",
            "# IS FALSE",
            "# IS NOT TRUE",
            "# = (@.n > 2)",
            "(SELECT #)",
            "coalesce(#, 0)",
            "iif(@.n > 2, #, 0)",
            "CASE # WHEN TRUE THEN 1 ELSE 0 END",
            "CASE WHEN # THEN 0 ELSE 1 END",
            "# AND @.n > 1",
            "(@.n > 2) <> #",
            "# IN (TRUE)",
            "# = EXISTS (SELECT 1 FROM u WHERE u.tid = @.id)",
            "CASE @.n > 2 WHEN # THEN 1 END",
            "ifnull(#, @.n > 2)",
            "EXISTS (SELECT 1 FROM u WHERE u.tid = @.id AND #)",
            "CASE WHEN @.n > 2 THEN # ELSE 0 END",
            "(#, 1) = (@.n > 2, 1)",
        ]);
        form.replace('#', &v.truth).replace('@', &v.of)
    }

    fn condition(&mut self, v: &Values, depth: u8) -> String {
        if depth > 0 && self.chance(35) {
            let (a, b) = (self.condition(v, depth - 1), self.condition(v, depth - 1));
            let both = self.pick(&["AND", "OR"]);
            return format!("({a} {both} {b})");
        }
        if self.chance(8) {
            return format!("NOT ({})", self.condition(v, 0));
        }
        let of = v.of.clone();
        match self.rng.u8(..20) {
            0..6 => {
                let (a, sign, b) = (self.answer(v), self.sign(), self.number(&of));
                if self.chance(50) { format!("{a} {sign} {b}") } else { format!("{b} {sign} {a}") }
            }
            6..10 => {
                let (a, sign, b) = (self.words(v), self.sign(), self.text(&of));
                if self.chance(50) { format!("{a} {sign} {b}") } else { format!("{b} {sign} {a}") }
            }
            10 => {
                let (a, b, c) = (self.answer(v), self.number(&of), self.number(&of));
                let list = self.pick(&[
                    "$ IN (%, &)",
                    "$ NOT IN (%, &)",
                    "$ BETWEEN % AND &",
                    "$ IN (SELECT n FROM u)",
                    "$ IN (SELECT n + 0 FROM u)",
                    "$ IN (VALUES (3), (4))",
                    "% IN (&, $)",
                    "$ IN (SELECT % UNION SELECT &)",
                    "$ NOT IN (SELECT n FROM u WHERE n > 2)",
                    "% BETWEEN $ AND &",
                    "$ IN (WITH k AS (SELECT 3 AS y) SELECT y FROM k)",
                    "% IN (SELECT $)",
                ]);
                list.replace('$', &a).replace('%', &b).replace('&', &c)
            }
            11 => {
                let (a, b, c) = (self.words(v), self.text(&of), self.text(&of));
                let list = self.pick(&[
                    "$ IN (%, &)",
                    "$ NOT IN (%, &)",
                    "$ BETWEEN % AND &",
                    "$ IN (SELECT s FROM u)",
                    "$ IN (SELECT upper(s) FROM u)",
                    "$ IN (VALUES ('ANN'), ('DO'))",
                    "% IN (&, $)",
                    "$ LIKE '%A%'",
                    "$ GLOB '*N*'",
                    "% IN (SELECT $)",
                ]);
                list.replace("'%A%'", "'\u{1}A\u{1}'")
                    .replace('$', &a)
                    .replace('%', &b)
                    .replace('&', &c)
                    .replace('\u{1}', "%")
            }
            12 => {
                let (number, other) = (self.answer(v), self.number(&of));
                let (words, text) = (self.words(v), self.text(&of));
                let row = self.pick(&[
                    "($, €) = (%, &)",
                    "(€, $) < (&, %)",
                    "($, €) IN (SELECT n, s FROM u)",
                    "($, €) IN (VALUES (3, 'ANN'), (4, 'BERT'))",
                    "($, €) = (SELECT %, &)",
                ]);
                row.replace('$', &number)
                    .replace('%', &other)
                    .replace('€', &words)
                    .replace('&', &text)
            }
            13 => {
                let (a, b, c) = (self.answer(v), self.number(&of), self.number(&of));
                format!("CASE {a} WHEN {b} THEN 1 WHEN {c} THEN 0 ELSE 1 END")
            }
            14 => {
                let (a, b) = (self.words(v), self.text(&of));
                format!("CASE {a} WHEN {b} THEN 1 ELSE 0 END")
            }
            15 => format!("{} {} {}", v.number, self.sign(), v.real),
            _ => self.position(v),
        }
    }

    /// Returns a SELECT whose columns are answers under other names.
    fn named(&mut self) -> String {
        let from = self.pick(&["t AS o", "v AS o", "t AS o LEFT JOIN u AS p ON p.tid = o.id"]);
        let v = Values::calls("o");
        let filter = if self.chance(30) {
            format!(" WHERE {}", self.condition(&v, 0))
        } else {
            String::new()
        };
        let columns = "o.id, o.s, o.n, o.r, o.d, o.x";
        let answers =
            format!("{} AS l, {} AS h, {} AS w, {} AS b", v.number, v.real, v.text, v.truth);
        let select = format!("SELECT {columns}, {answers} FROM {from}{filter}");
        match self.rng.u8(..10) {
            0 => format!("{select} UNION ALL SELECT 9, 'q', 3, 1.5, 'ANN', 3, 3, 2.25, 'ANN', 1"),
            1 => format!("SELECT * FROM ({select})"),
            2 => format!("WITH i AS ({select}) SELECT * FROM i"),
            _ => select,
        }
    }

    fn query(&mut self) -> (String, bool) {
        let (with, from, v) = match self.rng.u8(..10) {
            0..3 => {
                let from = self.pick(&["t AS a", "v AS a", "t AS a JOIN u AS z ON z.tid = a.id"]);
                (String::new(), from, Values::calls("a"))
            }
            3..7 => (String::new(), format!("({}) AS a", self.named()), Values::names("a")),
            _ => {
                let with = format!("WITH c AS ({}) ", self.named());
                let from = self.pick(&["c AS a", "c AS a", "c AS a JOIN u AS z ON z.tid = a.id"]);
                (with, from, Values::names("a"))
            }
        };
        let filter = format!(" WHERE {}", self.condition(&v, 2));
        match self.rng.u8(..10) {
            0 => {
                let (sign, number) = (self.sign(), self.number("u"));
                let number = if number.contains("u.") { "4".to_owned() } else { number };
                let have = self.pick(&["max(#)", "min(#)", "sum(#)", "avg(#)", "total(#)"]);
                let have = have.replace('#', &v.number);
                let sql = format!(
                    "{with}SELECT a.n % 2, count(*), {have} AS k FROM {from} GROUP BY a.n % 2 \
                     HAVING {have} {sign} {number}"
                );
                (sql, false)
            }
            1 => {
                let condition = self.condition(&v, 0);
                let sql = format!(
                    "{with}SELECT count(*) FILTER (WHERE {condition}), sum({}), max({}), \
                     count(DISTINCT {}) FROM {from}",
                    v.number, v.text, v.real
                );
                (sql, false)
            }
            2 => {
                let sql = format!(
                    "{with}SELECT a.id, {} AS k FROM {from}{filter} ORDER BY k, a.id",
                    v.number
                );
                (sql, true)
            }
            3 => {
                // Its own alias in a condition.
                let (answer, sign, number) = (self.answer(&v), self.sign(), self.number("a"));
                (
                    format!("{with}SELECT a.id, {answer} AS k FROM {from} WHERE k {sign} {number}"),
                    false,
                )
            }
            4 => {
                let (number, text) = (self.answer(&v), self.words(&v));
                (format!("{with}SELECT a.id, {number}, {text} FROM {from}{filter}"), false)
            }
            _ => (format!("{with}SELECT a.id FROM {from}{filter}"), false),
        }
    }
}
