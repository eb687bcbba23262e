//! Tests of which calls a column of the spec answers: their values must be those of its key,
//! whatever their names, and it must give what the call asks for. The stored answer of exactly that
//! entity is then used; every other call is asked live.

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{MODEL, Project};

const CIRCUITS: &str = "
CREATE TABLE circuits (id INTEGER PRIMARY KEY, name TEXT, location TEXT, alt INTEGER);
INSERT INTO circuits VALUES (1, 'Albert Park', 'Melbourne', 10), (2, 'Old Park', 'Melbourne', 20),
  (3, 'Monza', 'Monza', 162), (4, 'Adria', NULL, 5), (5, 'Suzuka', 'Suzuka', 45);
CREATE TABLE races (id INTEGER PRIMARY KEY, year INTEGER, name TEXT, circuit INTEGER);
INSERT INTO races VALUES (1, 2008, 'First', 1), (2, 2009, 'First', 1), (3, 2009, 'Second', 3);
CREATE TABLE drivers (id INTEGER PRIMARY KEY, forename TEXT, surname TEXT);
INSERT INTO drivers VALUES (1, 'Ann', 'Abel'), (2, 'Bo', 'Abel'), (3, 'Cy', 'Cole');
";

const SPEC: &str = r#"
[[expansion]]
name = "llm_circuits"
about = "Race tracks."
source = "circuits"
key = ["location", "name"]

[[expansion.column]]
name = "country"
about = "the country"
questions = ["Which country?", { ask = "Is it in {value}?", sql = "country = {value}" }]

[[expansion.column]]
name = "street"
type = "boolean"
about = "whether it is a street circuit"
questions = ["Is it a street circuit?"]

[[expansion.column]]
name = "turns"
type = "integer"
about = "how many turns"
questions = ["How many turns?", { ask = "Are there more than {number} turns?", sql = "turns > {number}" }]

[[expansion]]
name = "llm_people"
about = "Drivers."
key = ["name"]

[[expansion.source]]
name = "driver_names"
select = "SELECT forename || ' ' || surname AS name FROM drivers"

[[expansion.column]]
name = "nationality"
about = "the nationality"
values = ["British", "French"]
questions = ["Which nationality?", { ask = "Is the driver {value}?", sql = "nationality = {value}" }]

[[expansion]]
name = "llm_races"
about = "Races."
source = "races"
key = ["name", "year"]

[[expansion.column]]
name = "winner"
about = "who won"
questions = ["Who won?"]
"#;

/// Returns the truth about a key. Live questions get recognizable answers.
fn truth(column: &str, key: &[Json]) -> Json {
    let text = |n: usize| key.get(n).and_then(Json::as_str).unwrap_or_default();
    match column {
        "country" => match text(1) {
            "Albert Park" => "Australia".into(),
            "Old Park" => "New Zealand".into(),
            "Monza" => "Italy".into(),
            "Suzuka" => "Japan".into(),
            _ => Json::Null,
        },
        "street" => (text(1) == "Albert Park").into(),
        "turns" => (text(1).len() as u64).into(),
        "nationality" => if text(0) == "Ann Abel" { "British" } else { "French" }.into(),
        "winner" => format!("{} of {}", text(0), key[1]).into(),
        _ => "live".into(),
    }
}

fn project() -> (Project, Endpoint) {
    let endpoint = Endpoint::start_with(truth);
    let project = Project::new(&endpoint, CIRCUITS, &[MODEL, SPEC].concat());
    project.run_materialize(&[]);
    (project, endpoint)
}

/// Returns the rows of a query, and how its first call was answered.
fn ask(project: &Project, sql: &str) -> (Json, String, u64) {
    let ended = project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql]);
    assert!(matches!(ended.code, 0 | 1), "{sql}\n{}", ended.stderr);
    let json: Json = serde_json::from_str(&ended.stdout).unwrap();
    let route = json["meta"]["routes"][0]["route"].as_str().unwrap().to_owned();
    (json["rows"].clone(), route, json["meta"]["values_asked"].as_u64().unwrap())
}

fn stored(project: &Project, sql: &str, rows: &Json) {
    let (found, route, asked) = ask(project, sql);
    assert_eq!((&found, asked), (rows, 0), "{sql}");
    assert_ne!(route, "ad-hoc", "{sql}");
}

fn live(project: &Project, sql: &str) {
    let ended =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", sql]).expect_exit_code(0);
    let routes = ended.lines[0]["routes"].clone();
    assert_eq!(routes[0]["route"], "ad-hoc", "{sql}\n{routes:#}");
}

/// A sign and a separator change a number, so a question with them is another question.
#[test]
fn a_number_of_a_question_has_its_sign_and_its_separator() {
    let (project, _endpoint) = project();
    let sql = |number: &str| {
        format!(
            "SELECT count(*) FROM circuits WHERE {{{{LLMMap('Are there more than {number} turns?', circuits.name)}}}}"
        )
    };
    let expected = |condition: &str| {
        let select = "SELECT count(*) FROM circuits_expanded WHERE location IS NOT NULL";
        project.query_rows(&format!("{select} AND {condition}"))
    };
    for (number, condition) in [
        ("5", "turns > 5"),
        ("-5", "turns > -5"),
        ("5.5", "turns > 5.5"),
        ("\u{2212}100", "turns > -100"),
    ] {
        stored(&project, &sql(number), &json!(expected(condition)));
    }
    for number in ["1,500", "nan", "5-6", "1.2.3", "inf"] {
        live(&project, &sql(number));
    }
}

#[test]
fn a_value_is_traced_to_the_columns_it_consists_of() {
    let (project, _endpoint) = project();
    let melbourne = json!([["Albert Park", "Australia"], ["Old Park", "New Zealand"]]);
    for sql in [
        "SELECT name, {{LLMMap('Which country?', circuits.location)}} FROM circuits \
         WHERE location = 'Melbourne' ORDER BY id",
        // As SWAN writes it.
        "WITH temp AS (SELECT *, 'Location: '||location||', Name: '||name AS circuit FROM circuits) \
         SELECT temp.name, {{LLMMap('Which country?', 'temp::circuit')}} FROM temp \
         WHERE location = 'Melbourne' ORDER BY temp.id",
        // The row contains only the computed part of the key.
        "SELECT n, {{LLMMap('Which country?', t.c)}} FROM (SELECT substr(name, 1) AS n, \
         location || ': ' || name AS c, id FROM circuits) AS t WHERE n LIKE '% Park' ORDER BY id",
        "WITH a AS (SELECT name AS n, location AS l FROM circuits), b AS (SELECT l AS m, n FROM a) \
         SELECT x.n, {{LLMMap('Which country?', x.m)}} FROM b AS x JOIN b AS y ON x.n = y.n \
         WHERE y.m = 'Melbourne' ORDER BY x.n",
        "SELECT c.name, {{LLMMap('Which country?', c.location || '/' || c.name)}} \
         FROM circuits AS c WHERE c.id < 3 ORDER BY c.id",
    ] {
        stored(&project, sql, &melbourne);
    }
    stored(
        &project,
        "WITH d AS (SELECT forename||' '||surname AS full FROM drivers) \
         SELECT full FROM d WHERE {{LLMMap('Is the driver British?', d.full)}}",
        &json!([["Ann Abel"]]),
    );
    // Two values that together are the key.
    stored(
        &project,
        "SELECT surname FROM drivers WHERE {{LLMMap('Which nationality?', forename, surname)}} = 'British'",
        &json!([["Abel"]]),
    );
    stored(
        &project,
        "WITH r AS (SELECT year||' '||name AS k FROM races) SELECT {{LLMMap('Who won?', r.k)}} FROM r ORDER BY 1",
        &json!([["First of 2008"], ["First of 2009"], ["Second of 2009"]]),
    );
}

const VIEWS: &str = "
CREATE VIEW tracks AS SELECT id AS number, name AS track, location AS town FROM circuits;
CREATE VIEW parks (town, n) AS SELECT t.town, t.track FROM tracks AS t WHERE t.track LIKE '% Park';
CREATE VIEW people AS SELECT d.id, forename || ' ' || surname AS person FROM drivers AS d;
CREATE VIEW held AS SELECT r.year AS y, c.name AS track, c.location AS town
  FROM races AS r LEFT JOIN circuits AS c ON c.id = r.circuit;
CREATE VIEW names AS SELECT name AS n FROM circuits UNION ALL SELECT 'x' FROM races;
CREATE VIEW loud AS SELECT upper(name) AS n, location AS l FROM circuits;
CREATE VIEW last AS SELECT max(name) AS n, location AS l FROM circuits GROUP BY location;
";

/// Values are traced through a view as through a subquery.
#[test]
fn a_value_is_traced_through_views() {
    let endpoint = Endpoint::start_with(truth);
    let project = Project::new(&endpoint, &[CIRCUITS, VIEWS].concat(), &[MODEL, SPEC].concat());
    project.run_materialize(&[]);
    let melbourne = json!([["Albert Park", "Australia"], ["Old Park", "New Zealand"]]);
    for sql in [
        "SELECT track, {{LLMMap('Which country?', tracks.track)}} FROM tracks \
         WHERE town = 'Melbourne' ORDER BY number",
        "SELECT n, {{LLMMap('Which country?', p.n)}} FROM parks AS p ORDER BY n",
        "SELECT n, {{LLMMap('Which country?', p.town, p.n)}} FROM parks AS p ORDER BY n",
        "SELECT a.n, {{LLMMap('Which country?', a.n)}} FROM parks AS a JOIN parks AS b ON a.n = b.n \
         ORDER BY a.n",
    ] {
        stored(&project, sql, &melbourne);
    }
    stored(
        &project,
        "SELECT id FROM people WHERE {{LLMMap('Is the driver British?', people.person)}}",
        &json!([[1]]),
    );
    stored(
        &project,
        "SELECT y, {{LLMMap('Which country?', held.track)}} FROM held ORDER BY y, track",
        &json!([[2008, "Australia"], [2009, "Australia"], [2009, "Italy"]]),
    );
    for sql in [
        "SELECT {{LLMMap('Which country?', names.n)}} FROM names",
        "SELECT {{LLMMap('Which country?', loud.n)}} FROM loud",
        "SELECT {{LLMMap('Which country?', last.n)}} FROM last",
    ] {
        live(&project, sql);
    }
}

/// The value must be the key: a value that only determines it is a different subject.
#[test]
fn a_value_that_is_not_the_key_is_asked_live() {
    let (project, _endpoint) = project();
    for value in [
        "name || '1'",
        "'the opposite of ' || name",
        "upper(name)",
        "trim(name)",
        "lower(name)",
        "substr(name, 1)",
        "replace(name, ' ', '')",
        "name || name",
        "name || ' '",
        "' ' || name",
        "printf('%s', name)",
        "coalesce(name, 'x')",
        "CAST(name AS BLOB)",
        "name || ''",
        "location || name || location",
        "name || ', ' || location",
        "location || ' or ' || name",
        "location || ', not ' || name",
        "'not ' || location || ', ' || name",
        "location || name || '!'",
        "'Country: ' || name",
        "location || ', Location: ' || name",
        "location || 1 || name",
        "location || x'2C' || name",
        "location || NULL || name",
        "name, alt",
        "name, 'Park'",
        "upper(location), name",
        "concat(name, location)",
        "id || name",
        "-id",
        "name > 'a'",
    ] {
        live(&project, &format!("SELECT {{{{LLMMap('Which country?', {value})}}}} FROM circuits"));
    }
    for value in
        ["surname", "forename", "surname || ', ' || forename", "name || 2009", "upper(name)"]
    {
        let from = if value.contains("name || 2009") || value == "upper(name)" {
            "circuits"
        } else {
            "drivers"
        };
        let question = if from == "drivers" { "Which nationality?" } else { "Which country?" };
        live(&project, &format!("SELECT {{{{LLMMap('{question}', {value})}}}} FROM {from}"));
    }
    // Other expressions that equal the key.
    for value in [
        "(name)",
        "+name",
        "name COLLATE NOCASE",
        "((+name) COLLATE BINARY)",
        "location, name",
        "location || ', ' || name",
        "location || ' / ' || name",
        "location || '; Name: ' || name",
        "'Location: ' || location || ', Name: ' || name",
        "concat(location, ' - ', name)",
        "'Name: ' || name || ', Location: ' || location",
        "'Name: ' || name",
        "'circuits location: ' || location || ' and Name: ' || name",
        "CAST(location AS TEXT) || ' ' || name",
    ] {
        let sql = format!(
            "SELECT {{{{LLMMap('Which country?', {value})}}}} FROM circuits WHERE id < 3 ORDER BY id"
        );
        stored(&project, &sql, &json!([["Australia"], ["New Zealand"]]));
    }
}

/// If the value of a call is NULL, its answer is NULL, whatever the rest of the key is.
#[test]
fn a_key_with_a_null_part_gives_null() {
    let endpoint = Endpoint::start_with(truth);
    let tables = format!("{CIRCUITS} INSERT INTO circuits (id, location) VALUES (90, 'Nowhere');");
    let project = Project::new(&endpoint, &tables, &[MODEL, SPEC].concat());
    project.run_materialize(&[]);
    for (value, answer) in
        [("name", Json::Null), ("location || ', ' || name", Json::Null), ("location", json!(0))]
    {
        let sql = format!(
            "SELECT {{{{LLMMap('How many turns?', {value})}}}} FROM circuits WHERE id = 90"
        );
        stored(&project, &sql, &json!([[answer]]));
    }
}

#[test]
fn values_that_determine_no_key_are_asked_live() {
    let (project, _endpoint) = project();
    for sql in [
        // Two circuits have the same location.
        "SELECT {{LLMMap('Which country?', l)}} FROM (SELECT DISTINCT location AS l FROM circuits)",
        "SELECT location, {{LLMMap('Which country?', location)}} FROM circuits GROUP BY location",
        "SELECT {{LLMMap('Which nationality?', surname)}} FROM drivers",
        "SELECT {{LLMMap('Which country?', substr(name, 1, 1))}} FROM circuits",
        // Parts of two rows are not a key.
        "SELECT {{LLMMap('Which country?', t.l)}} FROM (SELECT a.location AS l, b.name AS name \
         FROM circuits AS a JOIN circuits AS b ON a.id <> b.id) AS t",
        "SELECT {{LLMMap('Which country?', a.location || b.name)}} FROM circuits AS a JOIN circuits AS b",
        "WITH c AS (SELECT * FROM circuits) SELECT {{LLMMap('Which country?', x.l)}} FROM \
         (SELECT p.location AS l, q.name AS n FROM c AS p JOIN c AS q) AS x",
        // The value contains another column, or another row's value.
        "SELECT {{LLMMap('Which country?', name || alt)}} FROM circuits",
        "SELECT {{LLMMap('Which country?', max(location))}} FROM circuits",
        "SELECT {{LLMMap('Which country?', lag(location) OVER (ORDER BY id))}} FROM circuits",
        "SELECT {{LLMMap('Which country?', l)}} FROM (SELECT location AS l FROM circuits UNION SELECT 'x')",
        "SELECT {{LLMMap('Which country?', (SELECT location FROM circuits WHERE id = 3))}}",
    ] {
        live(&project, sql);
    }
    // A value that the group determines is certain.
    stored(
        &project,
        "SELECT name, {{LLMMap('Which country?', name)}} FROM circuits WHERE id IN (3, 5) GROUP BY name",
        &json!([["Monza", "Italy"], ["Suzuka", "Japan"]]),
    );
}

#[test]
fn a_column_gives_the_type_that_the_call_declares() {
    let (project, _endpoint) = project();
    let count =
        |call: &str| format!("SELECT count(*) FROM circuits AS c WHERE c.id < 4 AND {call}");
    for (call, rows) in [
        ("{{LLMMap('Is it a street circuit?', c.name, options=('Yes', 'No'))}} = 'Yes'", 1),
        ("{{LLMMap('Is it a street circuit?', c.name, options=('no', 'yes'))}} = 'no'", 2),
        ("{{LLMMap('Is it a street circuit?', c.name)}} = 'No'", 2),
        ("{{LLMMap('Is it a street circuit?', c.name, options=(0, 1))}} = 1", 1),
        ("{{LLMMap('Is it a street circuit?', c.name, return_type='int')}} = 1", 1),
        ("{{LLMMap('Are there more than 5 turns?', c.name, options=('Yes', 'No'))}} = 'Yes'", 2),
        ("typeof({{LLMMap('How many turns?', c.name, return_type='float')}}) = 'real'", 3),
        ("{{LLMMap('How many turns?', c.name, return_type='int')}} = 5", 1),
        ("{{LLMMap('Which country?', c.name, return_type='str')}} = 'Italy'", 1),
    ] {
        stored(&project, &count(call), &json!([[rows]]));
    }
    stored(
        &project,
        "SELECT {{LLMMap('Is the driver British?', forename || ' ' || surname, options=('Yes', 'No'))}} \
         FROM drivers ORDER BY id",
        &json!([["Yes"], ["No"], ["No"]]),
    );
    for call in [
        "{{LLMMap('Is it a street circuit?', c.name, options=('Yes', 'No', 'Maybe'))}} = 'Yes'",
        "{{LLMMap('Is it a street circuit?', c.name, options=('A', 'B'))}} = 'A'",
        "{{LLMMap('Is it a street circuit?', c.name, return_type='str')}} = 'Yes'",
        "{{LLMMap('Is it a street circuit?', c.name)}} = 'certainly'",
        "{{LLMMap('Which country?', c.name, options=('Italy', 'Japan'))}} = 'Italy'",
        "{{LLMMap('Which country?', c.name, return_type='bool')}}",
        "{{LLMMap('Which country?', c.name, return_type='int')}} = 3",
        "{{LLMMap('Which country?', c.name, return_type='list[str]')}} = '[]'",
        "{{LLMMap('Which country?', c.name)}} = TRUE",
        "{{LLMMap('How many turns?', c.name, return_type='str')}} = '5'",
    ] {
        live(&project, &count(call));
    }
    for call in [
        "{{LLMMap('Which nationality?', d.forename || ' ' || d.surname, options=('British', 'French', 'Dutch'))}} = 'French'",
        "{{LLMMap('Which nationality?', d.forename || ' ' || d.surname, options=(SELECT 'British' UNION SELECT 'French'))}} = 'French'",
    ] {
        stored(&project, &format!("SELECT count(*) FROM drivers AS d WHERE {call}"), &json!([[2]]));
    }
    live(
        &project,
        "SELECT 1 FROM drivers AS d WHERE {{LLMMap('Which nationality?', d.forename, \
         options=(SELECT 'British'))}} = 'British'",
    );
}

const GAMES: &str = "
CREATE TABLE teams (id INTEGER PRIMARY KEY, name TEXT, town TEXT);
INSERT INTO teams VALUES (1, 'Ajax', 'A'), (2, 'Betis', 'B'), (3, 'Celtic', 'C');
CREATE TABLE games (id INTEGER PRIMARY KEY, day TEXT, home_id INTEGER, away_id INTEGER, seen INTEGER);
INSERT INTO games VALUES (1, '2020-01-01', 1, 2, 10), (2, '2020-01-02', 2, 1, 20),
  (3, '2020-01-03', 1, 2, 30), (4, '2020-01-04', 3, 1, 40);
";

const GAME: &str = r#"
[[expansion]]
name = "llm_game"
key = ["home", "away", "day"]
[[expansion.source]]
name = "played"
select = """SELECT h.name AS home, a.name AS away, g.day AS day FROM games AS g
JOIN teams AS h ON h.id = g.home_id JOIN teams AS a ON a.id = g.away_id"""
[[expansion.column]]
name = "result"
questions = ["What was the result?"]
"#;

/// A key may consist of rows of several tables, if the query joins them as the source of the keys
/// does.
#[test]
fn a_value_from_joined_tables_identifies_the_joining_row() {
    let result = |_: &str, key: &[Json]| -> Json {
        let text = |n: usize| key.get(n).and_then(Json::as_str).unwrap_or("-");
        format!("{} {} {}", text(0), text(1), text(2)).into()
    };
    let endpoint = Endpoint::start_with(result);
    let project = Project::new(&endpoint, GAMES, &[MODEL, GAME].concat());
    project.run_materialize(&[]);
    let all = json!([
        ["Ajax Betis 2020-01-01"],
        ["Betis Ajax 2020-01-02"],
        ["Ajax Betis 2020-01-03"],
        ["Celtic Ajax 2020-01-04"]
    ]);
    for sql in [
        // As SWAN writes it: the joins determine the roles, whatever the aliases are.
        "WITH t AS (SELECT g.id, x.name AS n, y.name AS m, g.day,
           'Home: ' || y.name || ', Away: ' || x.name || ', Day: ' || g.day AS k FROM games AS g
           INNER JOIN teams AS x ON g.away_id = x.id INNER JOIN teams AS y ON g.home_id = y.id)
         SELECT {{LLMMap('What was the result?', 't::k')}} FROM t ORDER BY id",
        // Without separate names, by the value alone.
        "WITH t AS (SELECT g.id, h.name || '/' || a.name || '/' || g.day AS k FROM teams a, teams h, games g
           WHERE g.home_id = h.id AND (a.id = g.away_id AND g.seen > 0))
         SELECT {{LLMMap('What was the result?', t.k)}} FROM t ORDER BY id",
        // One part, with the rest in the row, and separate values.
        "SELECT {{LLMMap('What was the result?', g.day)}} FROM games g JOIN teams h ON h.id = g.home_id
           JOIN teams a ON a.id = g.away_id ORDER BY g.id",
        "SELECT {{LLMMap('What was the result?', h.name, a.name, day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id = g.away_id ORDER BY g.id",
        // A CTE that is read twice yields two games.
        "WITH t AS (SELECT g.id, h.name || a.name || g.day AS k FROM games g JOIN teams h ON h.id = g.home_id
           JOIN teams a ON a.id = g.away_id)
         SELECT {{LLMMap('What was the result?', p.k)}} FROM t AS p JOIN t AS q ON p.id = q.id ORDER BY p.id",
        // An additional LEFT JOIN changes nothing.
        "SELECT {{LLMMap('What was the result?', h.name || a.name || day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id = g.away_id LEFT JOIN teams o ON o.id = g.id ORDER BY g.id",
    ] {
        stored(&project, sql, &all);
    }
    let from = "FROM games g JOIN teams h ON h.id = g.home_id JOIN teams a ON a.id = g.away_id";
    for sql in [
        // Tables that are not joined, or joined differently.
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g, teams h, teams a".to_owned(),
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id > g.away_id".to_owned(),
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id = g.away_id OR g.seen = 10".to_owned(),
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id = g.home_id".to_owned(),
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id LEFT JOIN teams a ON a.id = g.away_id".to_owned(),
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id FULL JOIN teams a ON a.id = g.id JOIN teams b ON b.id = g.away_id".to_owned(),
        // Both names are those of the guests.
        "SELECT {{LLMMap('What was the result?', a.name || b.name || g.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id = g.away_id JOIN teams b ON b.id = g.away_id".to_owned(),
        // A value of another game, or a condition only in a subquery.
        "SELECT {{LLMMap('What was the result?', h.name || a.name || o.day)}} FROM games g JOIN teams h
           ON h.id = g.home_id JOIN teams a ON a.id = g.away_id JOIN games o".to_owned(),
        "SELECT {{LLMMap('What was the result?', h.name || a.name || g.day)}} FROM games g, teams h, teams a
           WHERE EXISTS (SELECT 1 FROM teams t WHERE g.home_id = h.id AND g.away_id = a.id)".to_owned(),
        // Two games have the value; it contains another column; a group has several values.
        format!("WITH t AS (SELECT h.name || a.name AS k {from}) SELECT {{{{LLMMap('What was the result?', k)}}}} FROM t"),
        format!("SELECT {{{{LLMMap('What was the result?', h.name || a.name || day || h.town)}}}} {from}"),
        format!("SELECT {{{{LLMMap('What was the result?', h.name)}}}} {from} GROUP BY h.name"),
    ] {
        live(&project, &sql);
    }
}

#[test]
fn a_slot_accepts_existing_values() {
    let (project, _endpoint) = project();
    let sql = |value: &str| {
        format!(
            "SELECT name FROM circuits WHERE {{{{LLMMap('Is it in {value}?', name)}}}} ORDER BY id"
        )
    };
    stored(&project, &sql("Italy"), &json!([["Monza"]]));
    stored(&project, &sql("new  zealand"), &json!([["Old Park"]]));
    // No circuit has this value, so only the model can tell what it means.
    live(&project, &sql("Europe"));
    live(&project, "SELECT 1 FROM drivers WHERE {{LLMMap('Is the driver Dutch?', forename)}}");
    // A circuit whose country is not known may match.
    project.execute_sql("INSERT INTO circuits VALUES (6, 'Imola', 'Imola', 37)");
    live(&project, &sql("Italy"));
}
