//! Tests of queries over a spec: what is routed to stored columns, what is asked live, and how
//! kills, exhausted budgets and overrides are handled.

use std::time::Duration;

use hqdl::prompt::{AskedColumn, AskedRow};
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{CommandResult, MODEL, Project};

const HEROES: &str = "
    CREATE TABLE hero (id INTEGER PRIMARY KEY, name TEXT, real TEXT, height INTEGER);
    INSERT INTO hero (name, real, height)
      WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40)
      SELECT 'Hero ' || i, CASE WHEN i % 5 = 0 THEN NULL ELSE 'Real ' || i END, 150 + i FROM n;
    CREATE TABLE nick (hero TEXT);
    INSERT INTO nick VALUES ('Hero 1'), ('Hero 1'), ('Hero 2');
";

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
name = "test"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 1.0 }

[[expansion]]
name = "llm"
source = "hero"
key = ["name", "real"]
format = "json"
rows_per_request = 4

[[expansion.column]]
name = "publisher"
values = ["Marvel", "DC"]
questions = ["Who is the publisher?", { ask = "Is the publisher {value}?", sql = "publisher = {value}" }]

[[expansion.column]]
name = "born"
type = "integer"
questions = [
  "When was the hero born?",
  { ask = "Was the hero born after {number}?", sql = "born > {number}" },
  { ask = "Is it a {value} hero born late?", sql = "publisher = {value} AND born > 1950" },
]

[[expansion.column]]
name = "powers"
many = { table = "llm_power", column = "power" }
values = ["Flight", "Speed"]
questions = [{ ask = "Does the hero have {value}?", sql = "EXISTS {value}" }, { ask = "Has the hero more than {number} powers?", sql = "count(*) > {number}" }]
"#;

/// Returns the truth about `Hero n`.
fn truth(column: &str, key: &[Json]) -> Json {
    let n: i64 =
        key[0].as_str().unwrap_or_default().trim_start_matches("Hero ").parse().unwrap_or(0);
    match column {
        "publisher" => if n % 2 == 0 { "Marvel" } else { "DC" }.into(),
        "born" => (1900 + n * 2).into(),
        "powers" => match n % 3 {
            0 => json!([]),
            1 => json!(["Flight"]),
            _ => json!(["Flight", "Speed"]),
        },
        _ => (n % 2 == 0).into(),
    }
}

fn project() -> (Endpoint, Project) {
    let endpoint = Endpoint::start_with(truth);
    let project = Project::new(&endpoint, HEROES, SPEC);
    (endpoint, project)
}

fn query(project: &Project, sql: &str, flags: &[&str]) -> CommandResult {
    project.run_hqdl(&[&["query", "--spec", "specs/x.toml", "--json"], flags, &[sql]].concat())
}

fn rows(ended: &CommandResult) -> Json {
    ended.lines[0]["rows"].clone()
}

fn meta<'e>(ended: &'e CommandResult, name: &str) -> &'e Json {
    &ended.lines[0]["meta"][name]
}

const COUNT: &str = "SELECT count(*) FROM hero h WHERE h.height > 170 AND {{LLMMap('Is the publisher Marvel?', h.name)}}";

#[test]
fn a_complete_table_answers_without_requests() {
    let (endpoint, project) = project();
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let ended = query(&project, COUNT, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[10]]));
    assert_eq!(meta(&ended, "routes")[0]["route"], "bound");
    assert_eq!(meta(&ended, "routes")[0]["column"], "publisher");
    assert_eq!(meta(&ended, "values_asked"), 0);
    for (sql, expected) in [
        (
            "SELECT {{LLMMap('Who is the publisher?', hero.name)}} AS p FROM hero WHERE id = 2",
            json!([["Marvel"]]),
        ),
        (
            "SELECT count(*) FROM hero WHERE {{LLMMap('Was the hero born after 1960?', hero.name)}}",
            json!([[10]]),
        ),
        (
            "SELECT count(*) FROM hero WHERE {{LLMMap('Does the hero have Speed?', hero.name)}} = TRUE",
            json!([[13]]),
        ),
        (
            "SELECT count(*) FROM hero WHERE NOT {{LLMMap('Does the hero have Flight?', hero.name)}}",
            json!([[13]]),
        ),
        (
            "SELECT count(*) FROM hero WHERE {{LLMMap('Has the hero more than 1 powers?', hero.name)}}",
            json!([[13]]),
        ),
        (
            "SELECT count(*) FROM hero WHERE {{LLMMap('Is it a DC hero born late?', hero.name)}}",
            json!([[7]]),
        ),
        (
            "WITH tall AS (SELECT name, real FROM hero WHERE height > 170) SELECT count(*) FROM tall t WHERE {{LLMMap('Is the publisher DC?', 't::name')}}",
            json!([[10]]),
        ),
    ] {
        let ended = query(&project, sql, &[]).expect_exit_code(0);
        assert_eq!(rows(&ended), expected, "{sql}");
        assert_ne!(meta(&ended, "routes")[0]["route"], "ad-hoc", "{sql}");
    }
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn an_incomplete_expansion_is_filled_only_for_the_needed_keys() {
    let (endpoint, project) = project();
    let ended = query(&project, COUNT, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[10]]));
    assert_eq!(meta(&ended, "values_asked"), 20);
    assert_eq!(endpoint.cells_since(0).len(), 20);
    // A run does not repeat a query's requests, nor a query those of a run.
    let done = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(done.done_event()["cells_reused"], 20);
    project.execute_sql("INSERT INTO hero (name, real, height) VALUES ('Hero 42', 'New', 190)");
    let before = endpoint.request_count();
    let ended = query(&project, COUNT, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[11]]));
    assert_eq!(endpoint.cells_since(before).len(), 1);
}

#[test]
fn a_part_of_the_key_is_enough_if_it_determines_the_rest() {
    let (_endpoint, project) = project();
    let sql = "SELECT hero FROM (SELECT DISTINCT name AS hero FROM hero WHERE id < 4) AS d WHERE {{LLMMap('Is the publisher Marvel?', d.hero)}}";
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([["Hero 2"]]));
    assert_eq!(meta(&ended, "routes")[0]["route"], "bound");
    project.execute_sql("INSERT INTO hero (name, real, height) VALUES ('Hero 2', 'Another', 190)");
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    let route = &meta(&ended, "routes")[0];
    assert_eq!(route["route"], "ad-hoc", "{route}");
    assert!(route["why"].as_str().unwrap().contains("does not determine"), "{route}");
}

#[test]
fn a_bare_part_of_the_key_belongs_to_the_row() {
    let (_endpoint, project) = project();
    let sql = "WITH t AS (SELECT name FROM hero WHERE id IN (3, 4)) SELECT name, {{LLMMap('Who is the publisher?', name)}} AS p FROM t ORDER BY name";
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([["Hero 3", "DC"], ["Hero 4", "Marvel"]]));
}

#[test]
fn a_value_that_is_not_in_the_list_prevents_a_route() {
    let (_endpoint, project) = project();
    let sql = "SELECT count(*) FROM hero WHERE id < 3 AND {{LLMMap('Is the publisher Image?', hero.name)}}";
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    let route = &meta(&ended, "routes")[0];
    assert_eq!(route["route"], "ad-hoc");
    assert!(route["why"].as_str().unwrap().contains("is not one of its values"), "{route}");
}

#[test]
fn an_override_takes_precedence_in_queries_too() {
    let (_endpoint, project) = project();
    project.run_materialize(&[]).expect_exit_code(0);
    project
        .run_hqdl(&[
            "override",
            "set",
            "specs/x.toml",
            "llm",
            "Hero 39",
            "Real 39",
            "publisher",
            "Marvel",
        ])
        .expect_exit_code(0);
    let ended = query(&project, COUNT, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[11]]));
}

#[test]
fn an_exhausted_budget_ends_a_query_with_3_and_everything_kept() {
    let (endpoint, project) = project();
    let sql = "SELECT count(*) FROM hero WHERE {{LLMMap('Is it so?', hero.name)}}";
    let ended =
        query(&project, sql, &["--budget", "0.002", "--concurrency", "1"]).expect_exit_code(3);
    assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
    let asked = endpoint.cells_since(0).len();
    assert!(asked > 0 && asked < 40, "{asked}");
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[20]]));
    assert_eq!(endpoint.cells_since(0).len(), 40);
}

#[test]
fn a_killed_query_requests_only_what_is_missing() {
    let (endpoint, project) = project();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(60)), Frequency::Always);
    let sql = "SELECT count(*) FROM hero WHERE {{LLMMap('Is it so?', hero.name)}}";
    let args = ["query", "--spec", "specs/x.toml", "--concurrency", "1", sql];
    let mut child = project.hqdl_command(&args).spawn().unwrap();
    endpoint.wait_for(4);
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[20]]));
    // Only the request in flight at the kill may be repeated.
    let asked = endpoint.cells_since(0).len();
    assert!((40..=44).contains(&asked), "{asked}");
}

#[test]
fn the_compared_value_is_shown_as_an_example() {
    let (endpoint, project) = project();
    let sql = "SELECT count(*) FROM hero WHERE id < 3 AND {{LLMMap('Which state is it?', hero.name)}} = 'CA'";
    query(&project, sql, &[]).expect_exit_code(0);
    let asked = endpoint.received_requests();
    let system = asked[0].body["messages"][0]["content"].as_str().unwrap();
    assert!(system.contains(r#"An answer looks like "CA"."#), "{system}");
    // The example is not part of the question: another example causes no new request.
    query(&project, &sql.replace("'CA'", "'NY'"), &[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked.len());
}

#[test]
fn explain_sends_no_request_and_names_the_price() {
    let (endpoint, project) = project();
    let ended = project
        .run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", COUNT])
        .expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 0);
    let meta = ended.lines[0].get("meta").unwrap_or(&ended.lines[0]);
    assert_eq!(meta["values_asked"], 20, "{meta}");
    assert_eq!(meta["requests"], 5);
    assert!(meta["cost_usd"].as_f64().unwrap() > 0.0);
}

/// The calls' parts of the bound add up to it. A value counts for the first call that needs it.
#[test]
fn explain_divides_the_bound_among_the_calls() {
    let (_endpoint, project) = project();
    let sql = "SELECT {{LLMMap('Is it old?', hero.name)}}, {{LLMMap('Is it new?', hero.name)}}, \
               {{LLMMap('Is it OLD?', upper(hero.name))}}, {{LLMMap('Is it old?', name)}} FROM hero";
    let explain = |flags: &[&str]| {
        let command = ["explain", "--spec", "specs/x.toml"];
        project.run_hqdl(&[&command[..], flags, &[sql]].concat()).expect_exit_code(0)
    };
    let json = explain(&["--json"]).lines[0].clone();
    let parts = |count: &str| -> Vec<u64> {
        let routes = json["routes"].as_array().unwrap();
        routes.iter().map(|route| route[count].as_u64().unwrap()).collect()
    };
    assert_eq!(parts("values_asked"), [40, 40, 40, 0]);
    for count in ["values_asked", "requests", "input_tokens", "output_tokens"] {
        let all = json[count].as_u64().unwrap();
        assert!(all > 0 && parts(count).iter().sum::<u64>() == all, "{count}: {json}");
    }
    let costs = json["routes"].as_array().unwrap().iter().map(|r| r["cost_usd"].as_f64().unwrap());
    assert!((costs.sum::<f64>() / json["cost_usd"].as_f64().unwrap() - 1.0).abs() < 1e-9);
    let text = explain(&[]).stdout;
    assert_eq!(text.matches("  asks     at most 40 values in ").count(), 3, "{text}");
    assert!(text.contains("  asks     at most 0 values in 0 requests\n"), "{text}");
}

/// A join's maximum assumes the largest request, whichever list of candidates is the last.
#[test]
fn the_order_of_a_joins_lists_does_not_change_its_maximum() {
    let endpoint = Endpoint::start_answering(|_, _| Json::Null);
    let max_cost = |long_list: &str, short_list: &str| {
        let long = |n: i32| format!("('{long_list} {n} {}', 'long')", "candidate ".repeat(20));
        let short = |n: i32| format!("('{short_list} {n}', 'short')");
        let candidates = (0..9).map(long).chain((0..9).map(short)).collect::<Vec<_>>().join(",");
        let data = format!(
            "CREATE TABLE l(name TEXT, kind TEXT, real TEXT);
             CREATE TABLE r(name TEXT, kind TEXT);
             INSERT INTO l (name, kind) VALUES ('One', 'long'), ('Two', 'short'), ('Three', 'short');
             INSERT INTO r VALUES {candidates};"
        );
        let project = Project::new(&endpoint, &data, &SPEC.replace("hero", "l"));
        let sql = "SELECT l.name FROM l JOIN r ON l.kind = r.kind \
                   AND {{LLMJoin(l.name, r.name)}} LIMIT 1";
        let explain = ["explain", "--spec", "specs/x.toml", "--json", sql];
        let explained = project.run_hqdl(&explain).expect_exit_code(0);
        explained.lines[0]["cost_usd"].as_f64().unwrap()
    };
    let (first, last) = (max_cost("a", "z"), max_cost("z", "a"));
    assert!((first / last - 1.0).abs() < 0.02, "{first} {last}");
}

/// Arguments without effect in hqdl are reported.
#[test]
fn arguments_without_effect_are_reported() {
    let (_endpoint, project) = project();
    let sql = "SELECT {{LLMMap('Is it old?', hero.name, batch_size=5, searcher=x)}}, \
               {{LLMQA('Who?', (SELECT name FROM hero), max_tokens=9)}} FROM hero WHERE id < 3";
    let told = ["`batch_size`, `searcher` has no effect here", "`max_tokens` has no effect"];
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", sql]).expect_exit_code(0).stdout;
    let json = project
        .run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", sql])
        .expect_exit_code(0)
        .stdout;
    let asked = query(&project, sql, &[]).expect_exit_code(0);
    let meta = asked.lines[0]["meta"]["routes"].to_string();
    for said in told {
        for text in [&explained, &json, &meta, &asked.stderr] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}

/// A call in FROM is a table with its answer: one row, or one row per value of a list.
#[test]
fn a_call_in_from_is_a_table() {
    let endpoint = Endpoint::start_answering(|column, _| {
        if column.many { json!(["Hero 7", "Nobody"]) } else { "Hero 7".into() }
    });
    let project = Project::new(&endpoint, HEROES, SPEC);
    let rows = |sql: &str| query(&project, sql, &[]).expect_exit_code(0).lines[0]["rows"].clone();
    let list = "{{LLMQA('Which?', (SELECT name FROM hero), return_type='list[str]')}}";
    let one = "{{LLMQA('Who?', (SELECT name FROM hero))}}";
    for (sql, expected) in [
        (format!("SELECT * FROM {list}"), json!([["Hero 7"], ["Nobody"]])),
        (format!("SELECT * FROM {one}"), json!([["Hero 7"]])),
        (
            format!("SELECT t.value, o.value FROM {list} AS t, {one} o WHERE t.value <> o.value"),
            json!([["Nobody", "Hero 7"]]),
        ),
        (
            format!("SELECT DISTINCT hero.name FROM hero JOIN {list} t ON t.value = hero.name"),
            json!([["Hero 7"]]),
        ),
        (
            format!(
                "WITH a AS (SELECT upper(value) AS v FROM {list} WHERE value LIKE 'Hero 7%') SELECT count(*), min(v) FROM a"
            ),
            json!([[1, "HERO 7"]]),
        ),
        (
            format!(
                "SELECT 1 IN (SELECT count(*) FROM {one} UNION SELECT 7), {one}, (1, {one}) = (1, 'x') FROM hero LIMIT 1"
            ),
            json!([[1, "Hero 7", 0]]),
        ),
    ] {
        assert_eq!(rows(&sql), expected, "{sql}");
    }
    let nested = format!("SELECT {{{{LLMQA('Best?', (SELECT * FROM {list}))}}}}");
    assert_eq!(rows(&nested), json!([["Hero 7"]]));
    assert_eq!(endpoint.request_count(), 3, "each question once");
}

/// Options that the model itself provides.
const NESTED: &str = "SELECT {{LLMMap('Which kind is it?', hero.name, \
    options=(SELECT {{LLMMap('What is its kind?', nick.hero)}} FROM nick))}} FROM hero WHERE id < 9";

fn kinds(column: &AskedColumn, row: &AskedRow) -> Json {
    let n = row.key[0].as_str().unwrap_or_default().len() % 2;
    if column.about.starts_with("What") || n == 0 { "odd".into() } else { "even".into() }
}

#[test]
fn explain_asked_what_options_come_from() {
    let endpoint = Endpoint::start_answering(kinds);
    let project = Project::new(&endpoint, HEROES, SPEC);
    let explain = ["explain", "--spec", "specs/x.toml", "--json", NESTED];
    let ended = project.run_hqdl(&explain).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 0, "{}", ended.stdout);
    // Eight heroes, and two of the names that the options come from.
    assert_eq!(ended.lines[0]["values_asked"], 10, "{}", ended.stdout);
    assert!(
        ended.stdout.contains("its options come from calls that are not answered yet"),
        "{}",
        ended.stdout
    );
    // Once these are known, the options are known, too.
    query(&project, NESTED, &[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let ended = project.run_hqdl(&explain).expect_exit_code(0);
    assert_eq!(
        (ended.lines[0]["values_asked"].clone(), endpoint.request_count()),
        (0.into(), before)
    );
}

#[test]
fn a_query_within_a_query_was_a_run_of_its_own() {
    let endpoint = Endpoint::start_answering(kinds);
    let project = Project::new(&endpoint, HEROES, SPEC);
    let ended = query(&project, NESTED, &[]).expect_exit_code(0);
    assert_eq!(meta(&ended, "values_asked"), 10, "{}", ended.stdout);
    assert_eq!(meta(&ended, "requests"), endpoint.request_count());
    let stats = project.run_hqdl(&["cache", "stats", "--json"]).expect_exit_code(0);
    assert_eq!(stats.lines[0]["runs"], 1, "{}", stats.stdout);
}

/// A bound belongs to `explain`, also for a call within another one.
#[test]
fn a_query_that_was_run_prints_no_bound() {
    let endpoint = Endpoint::start_answering(kinds);
    let project = Project::new(&endpoint, HEROES, SPEC);
    let run = ["query", "--spec", "specs/x.toml", "--meta", NESTED];
    let ended = project.run_hqdl(&run).expect_exit_code(0);
    assert!(ended.stderr.contains("What is its kind?"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("at most"), "{}", ended.stderr);
}

#[test]
fn questions_about_different_tables_are_sent_side_by_side() {
    let (endpoint, project) = project();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(300)), Frequency::Always);
    let sql = "SELECT {{LLMMap('Is it so?', hero.name)}}, {{LLMMap('Is it tall?', nick.hero)}},
                 {{LLMMap('Is it high?', hero.height)}}
               FROM hero, nick WHERE hero.id = 1 AND nick.hero = 'Hero 2'";
    query(&project, sql, &[]).expect_exit_code(0);
    // The first request to an endpoint is sent alone.
    assert_eq!((endpoint.request_count(), endpoint.most_in_flight()), (3, 2));
}

#[test]
fn failed_cells_are_requested_again_on_demand() {
    let (endpoint, project) = project();
    let sql = "SELECT count(*) FROM hero WHERE {{LLMMap('Is it so?', hero.name)}}";
    endpoint.add_fault(Fault::RefusalInWords, Frequency::First(3));
    let first = query(&project, sql, &["--rows-per-request", "1"]).expect_exit_code(1);
    let missing = meta(&first, "values_missing").as_u64().unwrap();
    assert!(missing > 0, "{}", first.stdout);
    assert!(first.stderr.contains("--retry-failed"), "{}", first.stderr);
    let asked = endpoint.request_count();
    query(&project, sql, &[]).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), asked, "a refusal is an answer until one asks again");
    let again = query(&project, sql, &["--retry-failed"]).expect_exit_code(0);
    assert_eq!(rows(&again), json!([[20]]));
    assert_eq!(meta(&again, "values_asked").as_u64().unwrap(), missing);
    let asked = endpoint.request_count();
    query(&project, sql, &["--retry-failed"]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked);
    let all = query(&project, sql, &["--refresh"]).expect_exit_code(0);
    assert_eq!(meta(&all, "values_asked"), 40);
    assert_eq!(rows(&all), json!([[20]]));
}

#[test]
fn hundreds_of_conditions_with_calls_behave_like_a_few() {
    let (endpoint, project) = project();
    let chain = |word: &str, not: &str| {
        let call = |i| format!("{not} {{{{LLMMap('Is it {i}?', h.name)}}}}");
        let calls: Vec<String> = (0..200).map(call).collect();
        format!("SELECT count(*) FROM hero h WHERE h.id = 1 AND ({})", calls.join(word))
    };
    // No answer about the first hero is yes.
    let but_one = format!("{} AND {{{{LLMMap('Is it 7?', h.name)}}}}", chain(" AND ", "NOT"));
    for (sql, count) in [(chain(" AND ", "NOT"), 1), (but_one, 0), (chain(" OR ", ""), 0)] {
        assert_eq!(rows(&query(&project, &sql, &[]).expect_exit_code(0)), json!([[count]]));
    }
    assert_eq!(endpoint.cells_since(0).len(), 200);
}

#[test]
fn a_refresh_passes_by_published_tables() {
    let (endpoint, project) = project();
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.cells_since(0).len();
    let ended = query(&project, COUNT, &["--refresh"]).expect_exit_code(0);
    assert_eq!(rows(&ended), json!([[10]]));
    assert_eq!(meta(&ended, "values_asked"), 20);
    assert_eq!(endpoint.cells_since(0).len() - before, 20);
}

#[test]
fn a_long_chain_of_conditions_overflowed_the_stack() {
    let (_endpoint, project) = project();
    let call = "{{LLMMap('Is the publisher Marvel?', h.name)}}";
    let chain = |n: usize| {
        let ids: Vec<String> = (1..=n).map(|id| format!("h.id = {id}")).collect();
        format!("SELECT count(*) FROM hero h WHERE {call} AND ({})", ids.join(" OR "))
    };
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(rows(&query(&project, &chain(900), &[]).expect_exit_code(0)), json!([[20]]));
    for deep in [
        chain(3000),
        format!("SELECT {}{call}{} FROM hero h", "(".repeat(3000), ")".repeat(3000)),
        format!(
            "SELECT {call} FROM {}hero h{}",
            "(SELECT name FROM ".repeat(3000),
            ")".repeat(3000)
        ),
    ] {
        let ended = query(&project, &deep, &[]).expect_exit_code(2);
        assert!(ended.stderr.contains("more than 1000 levels deep"), "{}", ended.stderr);
    }
}

#[test]
fn a_query_without_a_spec_could_have_no_budget() {
    let (endpoint, project) = project();
    let sql = "SELECT count(*) FROM hero WHERE {{LLMMap('Is it so?', hero.name)}}";
    let url = endpoint.base_url();
    let bare = ["query", "--db", "data.sqlite", "--model", "test", "--base-url", &url, "--json"];
    let run = |more: &[&str]| project.run_hqdl(&[&bare, more, &[sql]].concat());
    let ended = run(&["--budget", "0.002"]).expect_exit_code(2);
    assert!(ended.stderr.contains("--price IN,OUT"), "{}", ended.stderr);
    run(&["--price", "1,-1"]).expect_exit_code(2);
    let budget = ["--price", "1,1", "--budget", "0.002", "--concurrency", "1"];
    run(&[&budget[..], &["--rows-per-request", "1"]].concat()).expect_exit_code(3);
    let asked = endpoint.cells_since(0).len();
    assert!(asked > 0 && asked < 40, "{asked}");
    assert!(
        meta(&run(&["--price", "1,1"]).expect_exit_code(0), "cost_usd").as_f64().unwrap() > 0.0
    );
}

#[test]
fn a_view_without_its_table_does_not_affect_other_tables() {
    let (_endpoint, project) = project();
    project.execute_sql("CREATE VIEW lost AS SELECT gone.x FROM gone");
    let sql = "SELECT count(*) FROM hero WHERE id < 3 AND {{LLMMap('Is the publisher Marvel?', hero.name)}}";
    query(&project, sql, &[]).expect_exit_code(0);
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    project.run_hqdl(&["init", "data.sqlite", "-s", "specs/new.toml"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
}

/// A small model copies the example of the prompt. Its copy is not a value, in one request about
/// several values and in one about a single value.
#[test]
fn a_copied_placeholder_is_not_stored_as_a_value() {
    let endpoint = Endpoint::start_with(|_, _| "your answer".into());
    let sql = "CREATE TABLE t (x TEXT); INSERT INTO t VALUES ('Dog'), ('Cat'), ('Cow');";
    let project = Project::new(&endpoint, sql, MODEL);
    let question = "What does it eat?";
    let query = format!("SELECT x, {{{{LLMMap('{question}', 't::x')}}}} FROM t");
    let ended = project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", &query]);
    let rows = ended.lines.last().unwrap()["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 3, "{}", ended.stdout);
    assert!(rows.iter().all(|row| row[1].is_null()), "{rows:?}");
    let list = |flags: &[&str]| project.run_hqdl(&[&["cache", "list"], flags].concat()).stdout;
    assert_eq!(
        list(&[]).matches("answer \"What does it eat?\": invalid").count(),
        3,
        "{}",
        list(&[])
    );
    assert!(list(&["--json"]).contains("\"question\":\"What does it eat?\""));
    let why = project.run_hqdl(&["why", "values", "cow", question, "--spec", "specs/x.toml"]);
    let why = why.expect_exit_code(0).stdout;
    for line in [
        "values [\"Cow\"] What does it eat?",
        "state        invalid",
        "raw answer   your answer",
        "reason       the reply repeats the example",
    ] {
        assert!(why.contains(line), "{why}");
    }
    let other = ["why", "values", "Cow", "What else?", "--spec", "specs/x.toml"];
    project.run_hqdl(&other).expect_exit_code(2);
    // A file that does not exist contains no cell; one that cannot be read may contain it.
    let ask_db = |db| project.run_hqdl(&["why", "values", "Cow", question, "--db", db]);
    assert!(ask_db("missing.sqlite").expect_exit_code(0).stdout.contains("invalid"));
    std::fs::write(project.path("damaged.sqlite"), "x".repeat(8192)).unwrap();
    let damaged = ask_db("damaged.sqlite").expect_exit_code(2).stderr;
    assert!(damaged.contains("damaged.sqlite"), "{damaged}");
}

/// The key of a column's identity decides whether the column answers an ad-hoc question.
#[test]
fn a_column_of_a_spec_that_is_called_answer_is_no_question() {
    let endpoint = Endpoint::start_with(|_, _| "Dog".into());
    let sql = "CREATE TABLE t (x TEXT); INSERT INTO t VALUES ('Dog');";
    let expansion = r#"
[[expansion]]
name = "e"
source = "t"
key = ["x"]
[[expansion.column]]
name = "answer"
about = "what it says"
"#;
    let project = Project::new(&endpoint, sql, &format!("{MODEL}{expansion}"));
    project.run_materialize(&[]).expect_exit_code(0);
    let join = "SELECT a.x FROM t AS a JOIN t AS b ON {{LLMJoin(a.x, b.x, join_criteria='eats')}}";
    let list = || project.run_hqdl(&["cache", "list"]).expect_exit_code(0).stdout;
    assert!(list().contains(" answer: ok \"Dog\""), "{}", list());
    project.run_hqdl(&["query", "--spec", "specs/x.toml", join]).expect_exit_code(0);
    assert!(list().contains(" partners \"eats\": "), "{}", list());
}
