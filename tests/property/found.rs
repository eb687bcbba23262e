//! Minimized queries that once failed: wrong rows, values requested twice, or more requests than
//! `explain` predicted.

/// Their database.
pub const DATABASE: &str = "
CREATE TABLE p (id INTEGER PRIMARY KEY, a TEXT, n INTEGER);
CREATE TABLE q (id INTEGER PRIMARY KEY, pid INTEGER, c TEXT, m INTEGER);
CREATE VIEW pq AS SELECT p.id, p.a, q.c, q.m FROM p JOIN q ON p.id = q.pid WHERE p.n > 1;
CREATE VIEW qs AS SELECT c, m FROM q WHERE EXISTS (SELECT 1 FROM p WHERE p.n = q.m);
CREATE VIEW both AS SELECT a AS t, n AS u FROM p UNION ALL SELECT c, m FROM q JOIN p ON p.id = pid;
CREATE TABLE r (k TEXT, v INTEGER);
INSERT INTO r VALUES ('alma', 3), (NULL, 0), ('gamma', NULL);
INSERT INTO p (a, n) VALUES ('alma', 1), ('Bob', 2), ('gamma', 3), ('echo', 3), (NULL, 4);
INSERT INTO q (pid, c, m) VALUES (1, 'alpha', 9), (2, 'beta', 2), (2, 'delta', 8), (3, 'l', 3),
    (9, 'eve', 7), (4, 'zulu', 4), (1, 'xe', 9);
";

/// Number of queries without an upper bound, because an answer decides what is requested.
pub const UNBOUNDED: usize = 6;

/// With calls, and with functions.
pub const QUERIES: [(&str, &str); 45] = [
    // A subquery over a common table expression with calls waits for them, even if it reads none of
    // the answers.
    (
        "WITH t AS (SELECT p.id, {{LLMMap('fn:upper', p.a, return_type='str')}} AS y FROM p WHERE p.id < 3) SELECT \
         count(*) FROM q WHERE {{LLMMap('fn:contains:e', q.c)}} AND q.id = (SELECT max(t.id) FROM t)",
        "SELECT count(*) FROM q WHERE hq_contains(c, 'e') AND id = (SELECT max(id) FROM p WHERE id < 3)",
    ),
    // A row decided what others waited for, and a condition that reads both kept waiting.
    (
        "WITH t AS (SELECT min({{LLMMap('fn:upper', p.a, return_type='str')}} || '!') AS y FROM p WHERE p.n IN \
         (SELECT q.m FROM q WHERE NOT {{LLMMap('fn:contains:e', q.c)}})) SELECT t.y FROM t WHERE \
         {{LLMMap('fn:length', t.y, return_type='int')}} > 9 OR {{LLMMap('fn:starts_with:E', t.y)}}",
        "WITH t AS (SELECT min(hq_upper(a) || '!') AS y FROM p WHERE n IN (SELECT m FROM q WHERE NOT \
         hq_contains(c, 'e'))) SELECT y FROM t WHERE hq_length(y) > 9 OR hq_starts_with(y, 'E')",
    ),
    // A result that references no column does not wait for a row of its subquery.
    (
        "SELECT {{LLMMap('fn:upper', t.y, return_type='str')}} FROM p JOIN (SELECT 'Bob' AS y FROM r WHERE r.v < r.v) \
         AS t WHERE {{LLMMap('fn:contains:o', t.y)}}",
        "SELECT hq_upper(t.y) FROM p JOIN (SELECT 'Bob' AS y FROM r WHERE r.v < r.v) AS t WHERE hq_contains(t.y, 'o')",
    ),
    // Rows are compared only as far as needed: values that need fewer comparisons share fewer
    // requests.
    (
        "SELECT {{LLMMap('fn:null_if:e', p.a, return_type='str')}} AS g, count(*) FILTER (WHERE (p.n, \
         {{LLMMap('fn:vowels', p.a, return_type='int')}}) = (2, p.n)) AS h FROM p GROUP BY 1",
        "SELECT hq_null_if(a, 'e') AS g, count(*) FILTER (WHERE (n, hq_vowels(a)) = (2, n)) AS h FROM p GROUP BY 1",
    ),
    // A column that is computed from an answer depends on it, too.
    (
        "SELECT t.i FROM (SELECT s.i, s.k, s.y || '!' AS z FROM (SELECT p.id AS i, nullif(p.n, p.n) AS k, \
         {{LLMMap('fn:upper', p.a, return_type='str')}} AS y FROM p) AS s) AS t WHERE t.z = 'BOB!' OR \
         {{LLMMap('fn:initial', t.k, return_type='str')}} = '4' OR {{LLMMap('fn:contains:a', t.k)}}",
        "SELECT i FROM (SELECT id AS i, nullif(n, n) AS k, hq_upper(a) || '!' AS z FROM p) WHERE z = 'BOB!' OR \
         hq_initial(k) = '4' OR hq_contains(k, 'a')",
    ),
    // So does one that a subquery reads from a common table expression.
    (
        "WITH RECURSIVE g AS (SELECT q.pid AS k, {{LLMMap('fn:upper', q.c, return_type='str')}} AS x FROM q UNION ALL \
         SELECT g.k + 100, g.x FROM g WHERE g.k < 100), d AS (SELECT (SELECT g.x FROM g WHERE g.k = p.id ORDER BY 1 \
         LIMIT 1) AS y, {{LLMMap('fn:contains:a', p.a)}} AS z FROM p) SELECT DISTINCT r.k FROM r WHERE EXISTS (SELECT 1 \
         FROM d WHERE d.z = (r.v IS NOT NULL) AND {{LLMMap('fn:length', d.y, return_type='int')}} NOT BETWEEN 1 AND 3)",
        "WITH RECURSIVE g AS (SELECT pid AS k, hq_upper(c) AS x FROM q UNION ALL SELECT k + 100, x FROM g WHERE k < 100), \
         d AS (SELECT (SELECT x FROM g WHERE k = id ORDER BY 1 LIMIT 1) AS y, hq_contains(a, 'a') AS z FROM p) SELECT \
         DISTINCT k FROM r WHERE EXISTS (SELECT 1 FROM d WHERE z = (v IS NOT NULL) AND hq_length(y) NOT BETWEEN 1 AND 3)",
    ),
    // If a value is computed once, for the first row, the other rows wait for it, too.
    (
        "WITH t AS (SELECT p.id AS i, (SELECT max(q.c) FROM q WHERE {{LLMMap('fn:initial', q.c)}} IS NOT NULL) AS x \
         FROM p WHERE NOT {{LLMMap('fn:contains:o', p.a)}}) SELECT {{LLMMap('fn:length', t.x, \
         return_type='int')}} FROM t LIMIT 9",
        "WITH t AS (SELECT id AS i, (SELECT max(c) FROM q WHERE hq_initial(c) IS NOT NULL) AS x FROM p WHERE NOT \
         hq_contains(a, 'o')) SELECT hq_length(x) FROM t LIMIT 9",
    ),
    // A condition that cannot be looked up in advance is undecided, not false, although it contains
    // no answer.
    (
        "WITH t AS (SELECT q.m AS x FROM q WHERE {{LLMMap('fn:contains:a', q.c)}}) SELECT p.a FROM p WHERE \
         NOT EXISTS (SELECT 1 FROM t WHERE t.x = p.id) OR ({{LLMMap('fn:contains:z', p.a)}} = TRUE AND \
         {{LLMMap('fn:initial', p.a)}} IS NULL)",
        "WITH t AS (SELECT m AS x FROM q WHERE hq_contains(c, 'a')) SELECT a FROM p WHERE NOT EXISTS (SELECT 1 \
         FROM t WHERE x = p.id) OR (hq_contains(a, 'z') = TRUE AND hq_initial(a) IS NULL)",
    ),
    // The right side is requested once the left side is known to have rows.
    (
        "SELECT q.c, count(*) FROM q WHERE {{LLMMap('fn:upper', q.c)}} IS NOT NULL GROUP BY q.c HAVING \
         count(*) > 0 INTERSECT SELECT {{LLMMap('fn:initial', p.a)}}, p.n FROM p",
        "SELECT c, count(*) FROM q WHERE hq_upper(c) IS NOT NULL GROUP BY c HAVING count(*) > 0 INTERSECT \
         SELECT hq_initial(a), n FROM p",
    ),
    // Rows of an INTERSECT depend on answers, although its values are those of the left side.
    (
        "WITH t AS (SELECT r.k AS x FROM r WHERE r.v > 9 INTERSECT SELECT {{LLMMap('fn:initial', p.a)}} FROM p) \
         SELECT q.m FROM q JOIN t ON 1 WHERE {{LLMMap('fn:length', q.c, return_type='int')}} IS NOT NULL",
        "WITH t AS (SELECT k AS x FROM r WHERE v > 9 INTERSECT SELECT hq_initial(a) FROM p) SELECT q.m FROM q \
         JOIN t ON 1 WHERE hq_length(q.c) IS NOT NULL",
    ),
    // A LEFT JOIN that WHERE turns into an inner one may be read first.
    (
        "SELECT count(*) FROM p JOIN r ON p.n = r.v + 90 AND p.n > 93 LEFT JOIN q ON q.m = r.v AND NOT \
         {{LLMMap('fn:contains:a', q.c)}} WHERE q.id BETWEEN 4 AND 4",
        "SELECT count(*) FROM p JOIN r ON p.n = r.v + 90 AND p.n > 93 LEFT JOIN q ON q.m = r.v AND NOT \
         hq_contains(q.c, 'a') WHERE q.id BETWEEN 4 AND 4",
    ),
    // Answers decide whether there are rows, although no column with answers is read.
    (
        "WITH t AS (SELECT {{LLMMap('fn:initial', p.a)}} AS x FROM p) SELECT {{LLMMap('fn:length', 'alma', \
         return_type='int')}} FROM (SELECT 5 AS y FROM t AS t1 NATURAL JOIN t AS t2) AS s LIMIT 1",
        "WITH t AS (SELECT hq_initial(a) AS x FROM p) SELECT hq_length('alma') FROM (SELECT 5 AS y FROM t \
         AS t1 NATURAL JOIN t AS t2) AS s LIMIT 1",
    ),
    // Tables that a subquery reads by name are joined before its calls are evaluated, too.
    (
        "WITH t AS (SELECT {{LLMMap('fn:initial', q.c)}} AS x FROM p JOIN q ON p.n = q.m) SELECT r.k \
         FROM r WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.x = r.k AND t.x IS NOT NULL LIMIT 2)",
        "WITH t AS (SELECT hq_initial(q.c) AS x FROM p JOIN q ON p.n = q.m) SELECT k FROM r WHERE NOT \
         EXISTS (SELECT 1 FROM t WHERE x = r.k AND x IS NOT NULL LIMIT 2)",
    ),
    // A table without rows, which no condition can wait for.
    (
        "SELECT q.m FROM q CROSS JOIN (SELECT {{LLMMap('fn:upper', r.k)}} AS x FROM r CROSS JOIN p WHERE \
         p.a = 'nobody') AS s WHERE {{LLMMap('fn:initial', q.c)}} IS NOT NULL",
        "SELECT q.m FROM q CROSS JOIN (SELECT hq_upper(r.k) AS x FROM r CROSS JOIN p WHERE p.a = 'nobody') \
         AS s WHERE hq_initial(q.c) IS NOT NULL",
    ),
    // A certain row decides EXISTS, whatever other rows wait for.
    (
        "SELECT p.a FROM p WHERE EXISTS (SELECT 1 FROM q WHERE q.pid = p.id AND NOT EXISTS (SELECT 1 \
         FROM r WHERE r.v = q.m AND {{LLMMap('fn:initial', r.k)}} < 'zz'))",
        "SELECT a FROM p WHERE EXISTS (SELECT 1 FROM q WHERE pid = p.id AND NOT EXISTS (SELECT 1 \
         FROM r WHERE v = q.m AND hq_initial(k) < 'zz'))",
    ),
    // No column of the source can make it wait.
    (
        "WITH t AS (SELECT {{LLMMap('fn:length', p.a, return_type='int')}} AS x FROM p WHERE p.n < p.n) \
         SELECT t.x FROM t WHERE {{LLMMap('fn:contains:a', 'alma')}}",
        "WITH t AS (SELECT hq_length(a) AS x FROM p WHERE n < n) SELECT x FROM t WHERE hq_contains('alma', 'a')",
    ),
    // A condition that waits for a row does not evaluate a call for that.
    (
        "WITH t AS (SELECT {{LLMMap('fn:length', s.x, return_type='int')}} AS x FROM (SELECT \
         min({{LLMMap('fn:initial', p.a)}}) AS x FROM p) AS s) SELECT q.c FROM q WHERE NOT EXISTS \
         (SELECT 1 FROM t WHERE 'x' = q.c AND {{LLMMap('fn:initial', 'Bob')}} <> 'a')",
        "WITH t AS (SELECT hq_length(s.x) AS x FROM (SELECT min(hq_initial(a)) AS x FROM p) AS s) \
         SELECT c FROM q WHERE NOT EXISTS (SELECT 1 FROM t WHERE 'x' = q.c AND hq_initial('Bob') <> 'a')",
    ),
    (
        "WITH t AS (SELECT p.n AS x FROM p WHERE p.n < p.n) SELECT t.x FROM t WHERE \
         {{LLMMap('fn:initial', 'alma')}} <> 'x' AND {{LLMMap('fn:contains:a', 'beta')}} = TRUE",
        "WITH t AS (SELECT n AS x FROM p WHERE n < n) SELECT x FROM t WHERE \
         hq_initial('alma') <> 'x' AND hq_contains('beta', 'a') = TRUE",
    ),
    // A subquery that runs once is recorded with the first row only, which OFFSET skips.
    (
        "SELECT {{LLMMap('fn:vowels', p.a, return_type='int')}}, \
         (SELECT {{LLMMap('fn:null_if:e', q.c)}} FROM q ORDER BY q.m, q.id LIMIT 1 OFFSET 1) \
         FROM p, r LIMIT 6 OFFSET 1",
        "SELECT hq_vowels(a), (SELECT hq_null_if(c, 'e') FROM q ORDER BY m, id LIMIT 1 OFFSET 1) \
         FROM p, r LIMIT 6 OFFSET 1",
    ),
    // SQLite evaluates conditions on rows that have matches, as if they had none.
    (
        "SELECT p.a FROM q FULL JOIN p ON q.pid >= p.id \
         WHERE NOT {{LLMMap('fn:ends_with:a', coalesce(q.c, 'none'))}}",
        "SELECT a FROM q FULL JOIN p ON pid >= p.id WHERE NOT hq_ends_with(coalesce(c, 'none'), 'a')",
    ),
    // A condition that references no table is evaluated before a row is read.
    (
        "SELECT p.a FROM p WHERE p.n < p.n AND \
         (SELECT {{LLMMap('fn:initial', q.c)}} FROM q ORDER BY q.m LIMIT 1) = 'd'",
        "SELECT a FROM p WHERE n < n AND (SELECT hq_initial(c) FROM q ORDER BY m LIMIT 1) = 'd'",
    ),
    (
        "WITH t AS (SELECT q.c FROM q WHERE q.m > 10) \
         SELECT t.c FROM t WHERE {{LLMMap('fn:length', 'alma', return_type='int')}} > 3",
        "WITH t AS (SELECT c FROM q WHERE m > 10) SELECT c FROM t WHERE hq_length('alma') > 3",
    ),
    // A subquery without a call may still read answers.
    (
        "WITH t AS (SELECT {{LLMMap('fn:length', r.k, return_type='int')}} AS x FROM r WHERE EXISTS \
         (SELECT 1 FROM p WHERE p.n = r.v AND p.a = 'no')) \
         SELECT s.x FROM (SELECT t.x FROM t WHERE t.x > 3) AS s",
        "WITH t AS (SELECT hq_length(k) AS x FROM r WHERE EXISTS (SELECT 1 FROM p WHERE p.n = r.v \
         AND p.a = 'no')) SELECT s.x FROM (SELECT t.x FROM t WHERE t.x > 3) AS s",
    ),
    // The answers change which rows a LIMIT keeps.
    (
        "WITH g AS (SELECT c, sum({{LLMMap('fn:length', q.c, return_type='int')}} + q.m) AS x FROM q \
         GROUP BY c) SELECT g.x, {{LLMMap('fn:vowels', g.c, return_type='int')}} FROM g \
         ORDER BY 1 DESC, g.c LIMIT 2",
        "WITH g AS (SELECT c, sum(hq_length(c) + m) AS x FROM q GROUP BY c) \
         SELECT x, hq_vowels(c) FROM g ORDER BY 1 DESC, c LIMIT 2",
    ),
    // SQLite turns the EXISTS in a view into a join, and evaluated the call before it.
    (
        "SELECT count(*), min(t.c) FROM (SELECT c FROM qs WHERE {{LLMMap('fn:contains:l', qs.c)}}) AS t",
        "SELECT count(*), min(c) FROM qs WHERE hq_contains(c, 'l')",
    ),
    // The same with the joins of a view.
    (
        "SELECT count(*) FROM pq WHERE {{LLMMap('fn:contains:a', pq.c)}} AND pq.a > 'C' AND pq.m < 9",
        "SELECT count(*) FROM pq WHERE hq_contains(c, 'a') AND a > 'C' AND m < 9",
    ),
    (
        "SELECT p.a, b.t FROM p LEFT JOIN both AS b ON b.u = p.n AND {{LLMMap('fn:contains:a', b.t)}}",
        "SELECT p.a, b.t FROM p LEFT JOIN both AS b ON b.u = p.n AND hq_contains(b.t, 'a')",
    ),
    // A LEFT JOIN that WHERE turns into an inner one is read in any order.
    (
        "SELECT q.pid, r.k FROM r LEFT JOIN q ON r.v = q.m AND NOT {{LLMMap('fn:contains:a', q.c)}} \
         WHERE NOT EXISTS (SELECT 1 FROM qs WHERE qs.m = q.m AND {{LLMMap('fn:contains:z', qs.c)}}) \
         AND q.pid > 3",
        "SELECT q.pid, r.k FROM r LEFT JOIN q ON r.v = q.m AND NOT hq_contains(q.c, 'a') WHERE \
         NOT EXISTS (SELECT 1 FROM qs WHERE qs.m = q.m AND hq_contains(c, 'z')) AND q.pid > 3",
    ),
    // Combined with answers and numbers, a truth is a number.
    (
        "SELECT a FROM p WHERE {{LLMMap('fn:length', p.a)}} IN (SELECT EXISTS (SELECT 1 FROM q WHERE c = 'no') \
         UNION ALL SELECT m FROM q)",
        "SELECT a FROM p WHERE hq_length(a) IN (SELECT 0 UNION ALL SELECT m FROM q)",
    ),
    // A row number and a key made of digits are not the key of another row.
    (
        "SELECT id FROM p WHERE {{LLMMap('fn:initial', p.id + 8, return_type='str')}} = '1'",
        "SELECT id FROM p WHERE hq_initial(id + 8) = '1'",
    ),
    // Rows computed from calls were computed while the calls were pending, and not again.
    (
        "WITH g AS MATERIALIZED (SELECT {{LLMMap('fn:upper', q.c, return_type='str')}} AS x FROM q \
         WHERE {{LLMMap('fn:contains:a', q.c)}}) SELECT 'one' AS y FROM p WHERE \
         {{LLMMap('fn:contains:e', p.a)}} AND {{LLMMap('fn:length', p.a, return_type='int')}} NOT IN \
         (SELECT 6 FROM g) UNION SELECT {{LLMMap('fn:initial', g.x, return_type='str')}} FROM g",
        "WITH g AS (SELECT hq_upper(c) AS x FROM q WHERE hq_contains(c, 'a')) SELECT 'one' AS y FROM p \
         WHERE hq_contains(a, 'e') AND hq_length(a) NOT IN (SELECT 6 FROM g) \
         UNION SELECT hq_initial(x) FROM g",
    ),
    // They were computed for the first row that needed them, and looked complete for the next row.
    (
        "WITH g AS MATERIALIZED (SELECT q.c, q.m FROM q WHERE {{LLMMap('fn:contains:a', q.c)}}) \
         SELECT {{LLMMap('fn:vowels', p.a, return_type='int')}} FROM p WHERE NOT EXISTS (SELECT 1 \
         FROM g WHERE g.m > p.n AND {{LLMMap('fn:contains:l', g.c)}}) LIMIT 3",
        "WITH g AS (SELECT c, m FROM q WHERE hq_contains(c, 'a')) SELECT hq_vowels(a) FROM p \
         WHERE NOT EXISTS (SELECT 1 FROM g WHERE g.m > p.n AND hq_contains(g.c, 'l')) LIMIT 3",
    ),
    // An OR that is used as a value is decided by what is known, whatever order was learned.
    (
        "SELECT id FROM q WHERE CASE WHEN {{LLMMap('fn:length', q.c)}} > 3 THEN \
         ({{LLMMap('fn:ends_with:a', q.c)}} OR NOT {{LLMMap('fn:contains:a', q.c)}}) ELSE \
         {{LLMMap('fn:starts_with:x', q.c)}} END",
        "SELECT id FROM q WHERE CASE WHEN hq_length(c) > 3 THEN (hq_ends_with(c, 'a') OR NOT \
         hq_contains(c, 'a')) ELSE hq_starts_with(c, 'x') END",
    ),
    // So is an OR next to a condition that cannot be looked up.
    (
        "WITH g AS (SELECT sum({{LLMMap('fn:length', q.c, return_type='int')}}) AS x FROM q) \
         SELECT p.id FROM g JOIN p ON p.n < g.x WHERE {{LLMMap('fn:contains:b', p.a)}} OR \
         {{LLMMap('fn:length', p.a)}} > 3 OR {{LLMMap('fn:initial', p.a, return_type='str')}} <> 'g'",
        "WITH g AS (SELECT sum(hq_length(c)) AS x FROM q) SELECT p.id FROM g JOIN p ON p.n < g.x \
         WHERE hq_contains(a, 'b') OR hq_length(a) > 3 OR hq_initial(a) <> 'g'",
    ),
    // The value of an `iif` in a join condition waits for its truth.
    (
        "SELECT p.id FROM p JOIN q ON p.id = q.pid AND iif({{LLMMap('fn:ends_with:a', q.c)}}, \
         {{LLMMap('fn:vowels', q.c, return_type='int')}} > 1, q.c IS NOT NULL)",
        "SELECT p.id FROM p JOIN q ON p.id = q.pid AND iif(hq_ends_with(c, 'a'), hq_vowels(c) > 1, \
         c IS NOT NULL)",
    ),
    // A call is evaluated for the rows that an inner LIMIT keeps.
    (
        "WITH g AS (SELECT s.id, {{LLMMap('fn:upper', s.c, return_type='str')}} AS x FROM (SELECT \
         id, c FROM q ORDER BY m DESC, id LIMIT 3) AS s) SELECT d.i FROM (SELECT a.id AS i FROM \
         (SELECT * FROM (SELECT e.x AS k, e.id FROM g AS e)) AS a FULL JOIN (SELECT * FROM (SELECT \
         e.x AS k FROM g AS e)) AS b USING (k), g AS f WHERE k > 'A') AS d WHERE \
         {{LLMMap('fn:starts_with:a', 'ab')}}",
        "WITH g AS (SELECT s.id, hq_upper(s.c) AS x FROM (SELECT id, c FROM q ORDER BY m DESC, id \
         LIMIT 3) AS s) SELECT d.i FROM (SELECT a.id AS i FROM (SELECT * FROM (SELECT e.x AS k, e.id \
         FROM g AS e)) AS a FULL JOIN (SELECT * FROM (SELECT e.x AS k FROM g AS e)) AS b USING (k), \
         g AS f WHERE k > 'A') AS d WHERE hq_starts_with('ab', 'a')",
    ),
    // A row with undecided matches counts as unmatched, and a LIMIT ends before other rows.
    (
        "SELECT DISTINCT r.v, p.a FROM p LEFT JOIN r ON p.n = r.v AND {{LLMMap('fn:length', p.id)}} <> 3 WHERE p.n = 3 \
         AND NOT (r.k COLLATE NOCASE IS NOT NULL) LIMIT 1",
        "SELECT DISTINCT r.v, p.a FROM p LEFT JOIN r ON p.n = r.v AND hq_length(p.id) <> 3 WHERE p.n = 3 AND NOT \
         (r.k COLLATE NOCASE IS NOT NULL) LIMIT 1",
    ),
    // An aggregate over columns of an outer SELECT belongs to that SELECT, and covers all its rows.
    (
        "SELECT (SELECT count({{LLMMap('fn:upper', p.a, return_type='str')}}) FROM q AS d WHERE d.m = p.n) FROM p",
        "SELECT (SELECT count(hq_upper(p.a)) FROM q AS d WHERE d.m = p.n) FROM p",
    ),
    (
        "SELECT (SELECT max({{LLMMap('fn:length', p.a, return_type='int')}}) FILTER (WHERE p.n > 1) FROM q AS d \
         WHERE d.m = 9 AND d.pid = 2) FROM p",
        "SELECT (SELECT max(hq_length(p.a)) FILTER (WHERE p.n > 1) FROM q AS d WHERE d.m = 9 AND d.pid = 2) FROM p",
    ),
    (
        "SELECT p.n, (SELECT group_concat({{LLMMap('fn:initial', p.a, return_type='str')}} ORDER BY p.id) FROM q AS d \
         WHERE d.pid = 77) FROM p GROUP BY p.n",
        "SELECT p.n, (SELECT group_concat(hq_initial(p.a) ORDER BY p.id) FROM q AS d WHERE d.pid = 77) FROM p GROUP BY p.n",
    ),
    (
        "SELECT p.n FROM p GROUP BY p.n HAVING (SELECT max({{LLMMap('fn:length', p.a, return_type='int')}}) FROM q AS d \
         WHERE d.pid = p.n) > 2",
        "SELECT p.n FROM p GROUP BY p.n HAVING (SELECT max(hq_length(p.a)) FROM q AS d WHERE d.pid = p.n) > 2",
    ),
    (
        "SELECT (SELECT (SELECT sum({{LLMMap('fn:length', p.a, return_type='int')}}) FROM r WHERE r.v > 5) FROM q AS d \
         WHERE d.m = 9) FROM p",
        "SELECT (SELECT (SELECT sum(hq_length(p.a)) FROM r WHERE r.v > 5) FROM q AS d WHERE d.m = 9) FROM p",
    ),
    // An aggregate includes the columns of its calls: replacing a call by NULL moved it to the
    // outer SELECT.
    (
        "SELECT p.id FROM p WHERE p.id < (SELECT max({{LLMMap('fn:length', u.a, return_type='int')}} + p.id) FROM p AS u) - 4",
        "SELECT p.id FROM p WHERE p.id < (SELECT max(hq_length(u.a) + p.id) FROM p AS u) - 4",
    ),
    // The second run read the known pairs of the join only after it had asked about rows that they
    // exclude.
    (
        "SELECT coalesce(r.v, {{LLMMap('fn:vowels', p.a, return_type='int')}}) FROM p LEFT JOIN r ON \
         {{LLMJoin(p.a, r.k)}} WHERE {{LLMMap('fn:length', p.a, return_type='int')}} > 3",
        "SELECT coalesce(r.v, hq_vowels(p.a)) FROM p LEFT JOIN r ON p.a = r.k WHERE hq_length(p.a) > 3",
    ),
    // `explain` took a common table expression that is declared later for a table.
    (
        "WITH v AS (SELECT p.a AS w FROM p JOIN z ON z.id = p.id WHERE z.x <> 'BOB'), z AS (SELECT p.id, \
         {{LLMMap('fn:upper', p.a, return_type='str')}} AS x FROM p) SELECT {{LLMMap('fn:length', v.w, \
         return_type='int')}} AS n FROM v",
        "WITH v AS (SELECT p.a AS w FROM p JOIN z ON z.id = p.id WHERE z.x <> 'BOB'), z AS (SELECT p.id, \
         hq_upper(p.a) AS x FROM p) SELECT hq_length(v.w) AS n FROM v",
    ),
];
