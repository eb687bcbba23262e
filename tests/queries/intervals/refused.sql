-- Queries that have no interval, each below the reason that hqdl prints.

-- the query has a common table expression
WITH h AS (SELECT * FROM hero_expanded) SELECT count(*) FROM h WHERE race = 'Human'
-- the query has a common table expression
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT count(*) FROM n
-- the query has UNION
SELECT count(*) FROM llm WHERE race = 'Human' UNION SELECT count(*) FROM llm WHERE race = 'Alien'
-- the query has UNION ALL
SELECT count(*) FROM llm WHERE race = 'Human' UNION ALL SELECT count(*) FROM llm
-- the query has INTERSECT
SELECT count(*) FROM llm WHERE race = 'Human' INTERSECT SELECT 3
-- the query has EXCEPT
SELECT count(*) FROM llm WHERE race = 'Human' EXCEPT SELECT 3
-- the query is VALUES
VALUES (1)
-- LIMIT selects rows by the values of the aggregates
SELECT race, count(*) FROM llm GROUP BY race LIMIT 3
-- LIMIT selects rows by the values of the aggregates
SELECT race, count(*) FROM llm GROUP BY race ORDER BY 2 DESC LIMIT 1
-- LIMIT selects rows by the values of the aggregates
SELECT count(*) FROM llm WHERE race = 'Human' LIMIT 1 OFFSET 0
-- DISTINCT merges rows of the result
SELECT DISTINCT count(*) FROM llm GROUP BY race
-- HAVING selects rows by the values of the aggregates
SELECT race, count(*) FROM llm GROUP BY race HAVING count(*) > 3
-- HAVING selects rows by the values of the aggregates
SELECT count(*) FROM llm WHERE race = 'Human' HAVING count(*) > 1
-- the query has a window
SELECT count(*) FROM llm WHERE race = 'Human' WINDOW w AS (ORDER BY race)
-- the query has a window function
SELECT race, count(*) OVER () FROM llm GROUP BY race
-- the query has a window function
SELECT race, sum(count(*)) OVER () FROM llm GROUP BY race
-- the query has a window function
SELECT count(*) FILTER (WHERE race = 'Human') OVER (PARTITION BY gender) FROM llm
-- the query reads no table
SELECT count(*)
-- FROM has a subquery
SELECT count(*) FROM (SELECT * FROM llm) WHERE race = 'Human'
-- FROM has a subquery
SELECT max(n) FROM (SELECT race, count(*) AS n FROM llm GROUP BY race)
-- FROM has a function
SELECT count(*) FROM json_each('[1]')
-- FROM has a join in parentheses
SELECT count(*) FROM (hero JOIN llm ON hero.name = llm.name) WHERE race = 'Human'
-- a table is named with its schema
SELECT count(*) FROM main.llm WHERE race = 'Human'
-- the join is NATURAL, RIGHT or FULL
SELECT count(*) FROM hero NATURAL JOIN llm WHERE race = 'Human'
-- the join is NATURAL, RIGHT or FULL
SELECT count(*) FROM hero RIGHT JOIN llm ON hero.name = llm.name WHERE race = 'Human'
-- the join is NATURAL, RIGHT or FULL
SELECT count(*) FROM hero FULL JOIN llm ON hero.name = llm.name WHERE race = 'Human'
-- a one-to-many table has several rows for an entity; use EXISTS
SELECT count(*) FROM llm_power WHERE power = 'Flight'
-- a one-to-many table has several rows for an entity; use EXISTS
SELECT count(*) FROM llm JOIN llm_power ON llm.name = llm_power.name WHERE power = 'Flight'
-- the join is not between an expansion and its source
SELECT count(*) FROM hero JOIN town ON hero.town = town.town
-- the join is not between an expansion and its source
SELECT count(*) FROM llm AS a JOIN llm AS b ON a.name = b.name WHERE a.race = 'Human'
-- the join is not between an expansion and its source
SELECT count(*) FROM hero_expanded JOIN town ON hero_expanded.town = town.town WHERE race = 'Human'
-- `town` is not the source of `llm`
SELECT count(*) FROM llm JOIN town ON llm.name = town.name WHERE race = 'Human'
-- the query joins more than an expansion and its source
SELECT count(*) FROM hero JOIN llm ON hero.name = llm.name JOIN town ON town.town = hero.town WHERE race = 'Human'
-- the tables are joined on more than the key
SELECT count(*) FROM hero JOIN llm ON hero.name = llm.name AND race = 'Human'
-- the tables are joined on more than the key
SELECT count(*) FROM hero JOIN llm ON hero.name = llm.name OR hero.height > 100
-- the tables are not joined on `name` of the key
SELECT count(*) FROM hero, llm WHERE race = 'Human'
-- the tables are not joined on `name` of the key
SELECT count(*) FROM hero JOIN llm WHERE race = 'Human'
-- the query reads columns of several expansions
SELECT count(*) FROM hero_expanded WHERE race = 'Human' AND mood = 'calm'
-- the query reads no column of an expansion by its name; a view or a copy of one is not supported
SELECT count(*) FROM hero
-- the query reads no column of an expansion by its name; a view or a copy of one is not supported
SELECT count(*) FROM hqdl_cell WHERE value = 'Human'
-- the query reads no column of an expansion by its name; a view or a copy of one is not supported
SELECT avg(height) FROM hero_expanded WHERE town = 'Gotham'
-- the query has a subquery
SELECT count(*) FROM llm WHERE race = (SELECT 'Human')
-- the query has a subquery
SELECT count(*) FROM llm WHERE name IN (SELECT name FROM llm_power WHERE power = 'Flight')
-- the query has a subquery
SELECT (SELECT count(*) FROM llm WHERE race = 'Human') FROM hero_expanded
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM llm_power AS p WHERE p.power = 'Flight')
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM llm_power AS p WHERE p.name = llm.name)
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM llm_power AS p WHERE p.name = llm.name AND p.power LIKE 'F%')
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM hero AS h WHERE h.name = llm.name AND h.town = 'Gotham')
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM llm_power AS p WHERE p.name = llm.name AND llm.race = 'Human')
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM llm_power AS p WHERE p.name = llm.name AND race = 'Human')
-- EXISTS is not of the form: the entity has the value v
SELECT count(*) FROM llm WHERE EXISTS (SELECT 1 FROM llm_power AS p WHERE p.name = llm.name AND p.name = 'Hero 1')
-- `rowid` depends on the order of the rows
SELECT count(*) FROM llm WHERE race = 'Human' AND rowid < 100
-- `OID` depends on the order of the rows
SELECT sum(llm.OID) FROM llm WHERE race = 'Human'
-- CAST changes an aggregate, other than to REAL
SELECT CAST(avg(weight) AS FLOATING POINT) FROM llm
-- the query asks a model
SELECT count(*) FROM hero WHERE {{LLMMap('Is the hero human?', 'hero::name')}} = 1
-- random() is not the same for each row
SELECT count(*) FROM llm WHERE race = 'Human' AND random() > 0
-- a group is not a column of the result
SELECT count(*) FROM llm GROUP BY race
-- a group is not a column of the result
SELECT race, count(*) FROM llm GROUP BY race, gender
-- a group is not a column of the result
SELECT race AS gender, count(*) FROM llm GROUP BY gender
-- ORDER BY sorts by something other than a group
SELECT race, count(*) FROM llm GROUP BY race ORDER BY count(*)
-- ORDER BY sorts by something other than a group
SELECT race, count(*) AS n FROM llm GROUP BY race ORDER BY n DESC
-- the result has *
SELECT * FROM llm
-- a result column is neither a group nor an aggregate
SELECT race FROM llm
-- a result column is neither a group nor an aggregate
SELECT race, name, count(*) FROM llm GROUP BY race
-- a result column is neither a group nor an aggregate
SELECT 1, count(*) FROM llm WHERE race = 'Human'
-- the query has no aggregate
SELECT race FROM llm GROUP BY race
-- CAST changes an aggregate, other than to REAL
SELECT CAST(count(*) AS TEXT) FROM llm WHERE race = 'Human'
-- max() is not COUNT, SUM or AVG
SELECT max(height) FROM hero_expanded WHERE race = 'Human'
-- min() is not COUNT, SUM or AVG
SELECT min(race) FROM llm
-- group_concat() is not COUNT, SUM or AVG
SELECT group_concat(name) FROM llm WHERE race = 'Human'
-- round() is not COUNT, SUM or AVG
SELECT round(avg(height)) FROM hero_expanded WHERE race = 'Human'
-- DISTINCT counts values, not rows
SELECT count(DISTINCT race) FROM llm
-- DISTINCT counts values, not rows
SELECT sum(DISTINCT height) FROM hero_expanded WHERE race = 'Human'
-- `born` needs `range = [lo, hi]` in the spec
SELECT avg(born) FROM llm
-- the aggregate is over an expression of a model-filled number
SELECT avg(weight * 2) FROM llm
-- the aggregate is over an expression of a model-filled number
SELECT sum(CASE WHEN race = 'Human' THEN 1 ELSE 0 END) FROM llm
-- the division is between whole numbers; multiply by 1.0 first
SELECT count(*) FILTER (WHERE race = 'Human') / count(*) FROM llm
-- the arithmetic is more than a ratio of two aggregates
SELECT count(*) FILTER (WHERE race = 'Human') + count(*) FROM llm
-- the arithmetic is more than a ratio of two aggregates
SELECT avg(height) / avg(height) FROM hero_expanded WHERE race = 'Human'
-- the arithmetic is more than a ratio of two aggregates
SELECT 1.0 * count(*) * count(*) FROM llm WHERE race = 'Human'
-- the audit of `llm` has no column `gender`
SELECT count(*) FROM llm WHERE gender = 'Male'
