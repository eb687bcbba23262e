//! Measures `hqdl ask` without a model's luck: an endpoint writes known queries, or wrong ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::engine::{run_in_parallel, shared_folder};
use hqdl_testkit::oracle;
use hqdl_testkit::project::Project;
use serde_json::Value as Json;

const DATABASE: &str = "
    CREATE TABLE publisher (id INTEGER PRIMARY KEY, publisher_name TEXT);
    CREATE TABLE superhero (id INTEGER PRIMARY KEY, superhero_name TEXT, full_name TEXT, gender TEXT,
        height_cm INTEGER, weight_kg INTEGER, publisher_id INTEGER REFERENCES publisher (id));
    INSERT INTO publisher VALUES (1, 'Marvel Comics'), (2, 'DC Comics'), (3, 'Dark Horse Comics');
    INSERT INTO superhero VALUES
        (1, 'Hulk', 'Bruce Banner', 'Male', 244, 630, 1), (2, 'Ant-Man', 'Hank Pym', 'Male', 211, 122, 1),
        (3, 'Bane', NULL, 'Male', 203, 180, 2), (4, 'Hellboy', 'Anung Un Rama', 'Male', 259, 158, 3),
        (5, 'Spider-Man', 'Peter Parker', 'Male', 178, 74, 1), (6, 'Storm', 'Ororo Munroe', 'Female', 180, 57, 1),
        (7, 'Wonder Woman', 'Diana Prince', 'Female', 183, 74, 2), (8, 'Rogue', NULL, 'Female', 173, 54, 1);";

const MODEL: &str = "[database]
path = \"../data.sqlite\"

[model]
provider = \"openai\"
name = \"m\"
base_url = \"{base_url}\"
api_key_env = \"HQDL_TEST_KEY\"
price = { input = 0.5, output = 1.5 }
";

/// Conditions of the true queries.
const CONDITIONS: [&str; 4] = [
    "s.height_cm > 200",
    "s.gender = 'Female'",
    "p.publisher_name = 'Marvel Comics'",
    "s.superhero_name LIKE 'H%'",
];
/// Results of the true queries.
const RESULTS: [&str; 5] = [
    "s.superhero_name",
    "count(*)",
    "max(s.height_cm)",
    "s.superhero_name, p.publisher_name",
    "{{LLMMap('Can it fly?', s.superhero_name)}}",
];

fn true_query(result: &str, condition: &str) -> String {
    format!(
        "SELECT {result} FROM superhero AS s JOIN publisher AS p ON p.id = s.publisher_id WHERE {condition} ORDER BY 1"
    )
}

/// A wrong reply of the model.
struct Mutation {
    reply: String,
    /// Text that hqdl's message must contain, so that the model can repair the query. Empty if the
    /// reply needs no repair.
    cause: &'static str,
}

/// Returns the wrong replies for a query.
fn mutate(sql: &str) -> Vec<Mutation> {
    let replace =
        |from: &str, to: &str, cause| Mutation { reply: sql.replacen(from, to, 1), cause };
    let all = [
        replace("superhero AS s", "superheroes AS s", "superheroes"),
        replace("publisher AS p", "publishers AS p", "publishers"),
        replace("p.id = s.publisher_id", "p.id = s.publisher", "s.publisher"),
        replace("p.id = s.publisher_id", "p.key = s.publisher_id", "p.key"),
        replace("publisher_name", "name_of_publisher", "name_of_publisher"),
        replace("superhero_name", "hero_name", "hero_name"),
        replace("height_cm", "height", "height"),
        replace("SELECT ", "SELEC ", "SELEC"),
        replace(" WHERE ", " WHERE AND ", "AND"),
        replace(" ON p.id", " ON (p.id", "WHERE"),
        replace("count(*)", "count_all(*)", "count_all"),
        replace("max(", "maximum(", "maximum"),
        replace(" LIKE ", " ILIKE ", "ILIKE"),
        replace("superhero AS s", "`proj.set.superhero` AS s", "proj.set.superhero"),
        replace("s.height_cm > 200", "s.height_cm::int > 200", ":"),
        replace("ORDER BY 1", "QUALIFY row_number() OVER () = 1", "QUALIFY"),
        replace("s.superhero_name)}}", "h.superhero_name)}}", "h.superhero_name"),
        replace(", s.superhero_name)}}", ")}}", "LLMMap"),
        replace("LLMMap", "LLMFrobnicate", "LLMFrobnicate"),
        Mutation { reply: format!("{sql}; SELECT 1"), cause: "statement" },
        Mutation { reply: "DELETE FROM superhero".to_owned(), cause: "" },
        Mutation { reply: format!("Here is the query:\n```sql\n{sql}\n```\nIt works."), cause: "" },
        Mutation { reply: sql.replacen("ORDER BY 1", "ORDER BY 1;", 1), cause: "" },
    ];
    all.into_iter().filter(|mutation| mutation.reply != sql).collect()
}

/// Returns the number of requests for SQL.
fn asked_for_sql(endpoint: &Endpoint) -> usize {
    endpoint.received_requests().iter().filter(|r| r.question.table == "statement").count()
}

/// Every wrong query is repaired or refused: no rows differ from those of the true query.
#[test]
fn wrong_queries_are_repaired_or_refused() {
    let queries: Vec<String> = CONDITIONS
        .iter()
        .flat_map(|condition| RESULTS.map(|result| true_query(result, condition)))
        .collect();
    let endpoint = Endpoint::start_answering(|_, _| "yes".into());
    let project = Project::new(&endpoint, DATABASE, MODEL);
    let expected: BTreeMap<&String, Json> = queries
        .iter()
        .map(|sql| {
            let ran =
                project.run_hqdl(&["query", "--spec", "specs/x.toml", "--format", "csv", sql]);
            (sql, ran.expect_exit_code(0).stdout.into())
        })
        .collect();
    let mut cases: Vec<(&String, Mutation)> = Vec::new();
    for sql in &queries {
        cases.extend(mutate(sql).into_iter().map(|mutation| (sql, mutation)));
    }
    assert!(cases.len() >= 300, "{}", cases.len());
    let counts: Mutex<BTreeMap<&str, usize>> = Mutex::default();
    let failed = run_in_parallel(&cases, |(sql, mutation)| {
        let (right, wrong, cause) = ((*sql).clone(), mutation.reply.clone(), mutation.cause);
        let endpoint = Endpoint::start_answering(move |column, row| match column.name.as_str() {
            // The model repairs the query if the message names the cause.
            "sql" => match row.key.get(2).and_then(Json::as_str) {
                Some(problem) if problem.contains(cause) => right.as_str().into(),
                _ => wrong.as_str().into(),
            },
            "dialect" => "sqlite".into(),
            "assumptions" | "cannot_answer" | "new_columns" => Json::Null,
            _ => "yes".into(),
        });
        let project = Project::new(&endpoint, DATABASE, MODEL);
        let flags = ["ask", "--spec", "specs/x.toml", "--yes", "Which?"];
        let asked = project.run_hqdl(&[&flags[..], &["--format", "csv"]].concat());
        let is_failed = asked.stderr.contains("the model wrote no query that runs");
        let outcome = match (asked.code, asked.stdout.as_str()) {
            (0, rows) if rows == expected[sql] => {
                // Each request after the first one is a repair.
                if asked_for_sql(&endpoint) > 1 { "repaired" } else { "right at once" }
            }
            (1, "") if is_failed => "refused",
            (code, rows) => {
                return Err(format!("{}\n{code}\n{rows}\n{}", mutation.reply, asked.stderr));
            }
        };
        *counts.lock().unwrap().entry(outcome).or_default() += 1;
        Ok(())
    });
    let counts = counts.into_inner().unwrap();
    println!("{} wrong queries: {counts:?}", cases.len());
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), cases.len(), failed[0]);
    let refused = counts.get("refused").copied().unwrap_or_default();
    assert!(20 * refused <= cases.len(), "{counts:?}");
}

/// Names of SWAN's databases beside the project, and files with their questions.
const SWAN: [(&str, &str); 2] =
    [("superhero", "superheroQueries.csv"), ("california_schools", "CASchoolQueries.csv")];

/// Returns SWAN's published questions about a database with their evidence, and their SQL.
fn swan_questions(file: &str) -> Option<Vec<(String, String)>> {
    let path = shared_folder("swan")?.join("questions").join(file);
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).from_path(path).unwrap();
    let rows = reader.records().map(Result::unwrap);
    Some(rows.map(|row| (format!("{} {}", &row[1], &row[2]), row[3].to_owned())).collect())
}

/// `hqdl ask` returns the rows of `hqdl query` for SWAN's questions, if the model writes their SQL.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn answers_to_swan_questions_equal_those_of_the_query() {
    let Some(swan) = shared_folder("swan") else { return };
    let mut counts = Vec::new();
    for (name, file) in SWAN {
        let questions = swan_questions(file).unwrap();
        let written: BTreeMap<String, String> =
            questions.iter().map(|(question, sql)| (normalize(question), sql.clone())).collect();
        let endpoint = Endpoint::start_answering(move |column, row| match column.name.as_str() {
            "sql" => row.key[0]
                .as_str()
                .and_then(|question| written.get(question.trim()))
                .cloned()
                .into(),
            "dialect" => "sqlite".into(),
            _ => Json::Null,
        });
        let project = Project::new(&endpoint, "", MODEL);
        let db = swan.join(format!("{name}.sqlite"));
        let db = db.to_str().unwrap();
        let failed = run_in_parallel(&questions, |(question, sql)| {
            let flags = ["--spec", "specs/x.toml", "--db", db, "--format", "csv"];
            let asked = project.run_hqdl(&[&["ask", question.as_str()], &flags[..]].concat());
            let queried = project.run_hqdl(&[&["query", sql.as_str()], &flags[..]].concat());
            let is_same = asked.code == queried.code && asked.stdout == queried.stdout;
            // A query without rows may be relaxed, and the endpoint writes the same one again.
            if is_same && queried.code == 0 {
                return Ok(());
            }
            Err(format!("{question}\n{sql}\n{}\n{}\n", asked.stderr, queried.stderr))
        });
        assert!(failed.is_empty(), "{name}: {}\n{}", failed.len(), failed[0]);
        counts.push((name, questions.len()));
    }
    println!("equal rows: {counts:?}");
    assert_eq!(counts, [("superhero", 30), ("california_schools", 30)]);
}

fn normalize(question: &str) -> String {
    question.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words for the columns of the tables that no question needs.
const COLUMN_WORDS: [&str; 40] = [
    "name", "code", "country", "city", "date", "year", "amount", "price", "status", "type",
    "email", "phone", "address", "height", "weight", "score", "rating", "count", "total", "level",
    "grade", "color", "size", "author", "title", "language", "region", "owner", "version",
    "comment", "start", "end", "rate", "percent", "category", "group", "source", "target",
    "parent", "rank",
];

/// Adds tables of twenty columns to a database until it has a hundred.
fn add_tables(project: &Project) {
    let existing =
        &project.query_rows("SELECT count(*) FROM sqlite_schema WHERE type = 'table'")[0][0];
    for table in existing.as_u64().unwrap()..100 {
        let names = (0..20).map(|n| {
            let word = COLUMN_WORDS[(table as usize * 7 + n * 3) % COLUMN_WORDS.len()];
            format!("{word}_{n} TEXT")
        });
        let columns = names.collect::<Vec<_>>().join(", ");
        let word = COLUMN_WORDS[table as usize % COLUMN_WORDS.len()];
        project.execute_sql(&format!("CREATE TABLE {word}_records_{table} ({columns})"));
    }
}

/// Returns all texts of a database.
fn read_texts(project: &Project) -> BTreeSet<String> {
    let columns = project.query_rows(
        "SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'",
    );
    let mut texts = BTreeSet::new();
    for column in columns {
        let [table, name] = [0, 1].map(|n: usize| column[n].as_str().unwrap().replace('"', "\"\""));
        let rows = project.query_rows(&format!("SELECT DISTINCT \"{name}\" FROM \"{table}\""));
        texts.extend(rows.iter().filter_map(|row| Some(row[0].as_str()?.to_owned())));
    }
    texts
}

/// Returns the string literals of a query that it compares for equality.
fn find_literals(sql: &str) -> Vec<String> {
    let parts: Vec<&str> = sql.split('\'').collect();
    let is_compared = |before: &str| {
        let before = before.trim_end();
        before.ends_with('=') || before.ends_with("IN (") || before.ends_with(',')
    };
    let literals = parts.chunks(2).filter_map(|pair| Some((pair[0], *pair.get(1)?)));
    let texts = literals.filter(|(before, _)| is_compared(before)).map(|(_, text)| text.to_owned());
    texts.filter(|text| text.contains(char::is_alphabetic)).collect()
}

/// A prompt of 4,000 tokens about a hundred tables contains the tables that a question needs, and the
/// stored values of its literals.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan")]
fn prompts_contain_the_needed_tables_and_values() {
    let Some(swan) = shared_folder("swan") else { return };
    let (mut tables, mut literals) = ((0, Vec::new()), (0, Vec::new()));
    for (name, file) in SWAN {
        let endpoint = Endpoint::start_answering(|column, _| match column.name.as_str() {
            "cannot_answer" => "no".into(),
            _ => Json::Null,
        });
        let project = Project::new(&endpoint, "", MODEL);
        // The original may be read-only.
        let original = std::fs::read(swan.join(format!("{name}.sqlite"))).unwrap();
        std::fs::write(project.path("data.sqlite"), original).unwrap();
        let own: Vec<String> = project
            .query_rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
            .iter()
            .map(|row| row[0].as_str().unwrap().to_owned())
            .collect();
        let stored = read_texts(&project);
        add_tables(&project);
        for (question, sql) in swan_questions(file).unwrap() {
            let before = endpoint.request_count();
            project.run_hqdl(&["ask", "--spec", "specs/x.toml", &question]).expect_exit_code(1);
            assert_eq!(endpoint.request_count(), before + 1);
            let body = &endpoint.received_requests()[before].body;
            let messages = body["messages"].as_array().unwrap();
            let text: String = messages.iter().map(|m| m["content"].as_str().unwrap()).collect();
            let lower = sql.to_lowercase();
            let words: Vec<&str> =
                lower.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let needed = own.iter().filter(|table| words.contains(&table.to_lowercase().as_str()));
            let is_shown = |table: &String| {
                text.contains(&format!("CREATE TABLE {table} "))
                    || text.contains(&format!("\n{table}("))
            };
            let missing: Vec<&String> = needed.filter(|table| !is_shown(table)).collect();
            tables.0 += 1;
            if !missing.is_empty() {
                tables.1.push(format!("{missing:?}: {question}"));
            }
            for literal in find_literals(&sql).into_iter().filter(|text| stored.contains(text)) {
                literals.0 += 1;
                let quoted = Json::from(literal.as_str()).to_string();
                if !text.contains(&format!("{quoted} in ")) {
                    literals.1.push(format!("{literal}: {question}"));
                }
            }
        }
        let (tokens, requests) = (endpoint.billed_tokens().0, endpoint.request_count() as u64);
        assert!(tokens <= 4000 * requests, "{tokens} tokens of {requests} prompts");
    }
    for (what, (all, missing)) in [("prompts with all tables", tables), ("literals", literals)] {
        println!("{what}: {} of {all}", all - missing.len());
        assert!(20 * missing.len() <= all, "{what}: {missing:#?}");
    }
}

/// If the model writes a query of `BlendSQL`'s own tests, `hqdl ask` returns its rows, or no rows if
/// `hqdl query` rejects it.
#[test]
fn answers_to_blendsql_cases_equal_those_of_the_query() {
    let Some(folder) = shared_folder("blendsql") else { return };
    let text = std::fs::read_to_string(folder.join("cases.jsonl")).unwrap();
    let cases: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let query = |case: &Json| case["blendsql_llm"].as_str().unwrap().to_owned();
    let written: BTreeMap<String, String> =
        cases.iter().map(|case| (case["id"].as_str().unwrap().to_owned(), query(case))).collect();
    let endpoint = Endpoint::start_answering(move |column, row| match column.name.as_str() {
        "sql" => row.key[0].as_str().and_then(|id| written.get(id)).cloned().into(),
        "dialect" => "sqlite".into(),
        "assumptions" | "cannot_answer" | "other_sql" | "other_reading" | "new_columns" => {
            Json::Null
        }
        _ => oracle::answer_cell(column, row),
    });
    let project = Project::new(&endpoint, "", MODEL);
    let (url, equal) = (endpoint.base_url(), Mutex::new(0));
    let failed = run_in_parallel(&cases, |case| {
        let id = case["id"].as_str().unwrap();
        let db = folder.join(case["db"].as_str().unwrap_or("db/generic.db"));
        let flags =
            ["--db", db.to_str().unwrap(), "--model", "m", "--base-url", &url, "--format", "csv"];
        let asked = project.run_hqdl(&[&["ask", "--yes", id], &flags[..]].concat());
        let queried = project.run_hqdl(&[&["query", &query(case)], &flags[..]].concat());
        let is_same = match queried.code {
            0 | 1 if !queried.stdout.is_empty() => asked.stdout == queried.stdout,
            _ => asked.code != 0 && asked.stdout.is_empty(),
        };
        *equal.lock().unwrap() += usize::from(is_same && queried.code == 0);
        let report = || {
            format!("{id} {} {}\n{}\n{}\n", queried.code, asked.code, queried.stderr, asked.stderr)
        };
        is_same.then_some(()).ok_or_else(report)
    });
    println!("{} of 125 cases with equal rows", equal.into_inner().unwrap());
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
}
