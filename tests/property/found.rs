//! Queries that the generator found wrong once, made small: rows, values asked twice,
//! or more asked than `explain` said.

/// What they are about.
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

/// With calls, and with functions.
pub const QUERIES: [(&str, &str); 7] = [
    // Which rows LIMIT leaves is another thing once the answers are there.
    (
        "WITH g AS (SELECT c, sum({{LLMMap('fn:length', q.c, return_type='int')}} + q.m) AS x FROM q \
         GROUP BY c) SELECT g.x, {{LLMMap('fn:vowels', g.c, return_type='int')}} FROM g \
         ORDER BY 1 DESC, g.c LIMIT 2",
        "WITH g AS (SELECT c, sum(hq_length(c) + m) AS x FROM q GROUP BY c) \
         SELECT x, hq_vowels(c) FROM g ORDER BY 1 DESC, c LIMIT 2",
    ),
    // SQLite makes a join of the EXISTS in a view, and evaluated the call before it.
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
    // A LEFT JOIN that WHERE makes an inner one is read in any order.
    (
        "SELECT q.pid, r.k FROM r LEFT JOIN q ON r.v = q.m AND NOT {{LLMMap('fn:contains:a', q.c)}} \
         WHERE NOT EXISTS (SELECT 1 FROM qs WHERE qs.m = q.m AND {{LLMMap('fn:contains:z', qs.c)}}) \
         AND q.pid > 3",
        "SELECT q.pid, r.k FROM r LEFT JOIN q ON r.v = q.m AND NOT hq_contains(q.c, 'a') WHERE \
         NOT EXISTS (SELECT 1 FROM qs WHERE qs.m = q.m AND hq_contains(c, 'z')) AND q.pid > 3",
    ),
    // Beside answers and numbers a truth is a number.
    (
        "SELECT a FROM p WHERE {{LLMMap('fn:length', p.a)}} IN (SELECT EXISTS (SELECT 1 FROM q WHERE c = 'no') \
         UNION ALL SELECT m FROM q)",
        "SELECT a FROM p WHERE hq_length(a) IN (SELECT 0 UNION ALL SELECT m FROM q)",
    ),
    // The number of a row and a key of digits are not the key of another row.
    (
        "SELECT id FROM p WHERE {{LLMMap('fn:initial', p.id + 8, return_type='str')}} = '1'",
        "SELECT id FROM p WHERE hq_initial(id + 8) = '1'",
    ),
];
