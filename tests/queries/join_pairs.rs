//! Tests that `LLMJoin` asks about each pair of a left value and a candidate only once, whatever
//! lists of candidates the passes and queries have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hqdl::key::{ColumnIdentity, ListHash};
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, Request};
use hqdl_testkit::oracle;
use hqdl_testkit::project::{CommandResult, Project};

const DATA: &str = "
    CREATE TABLE l (name TEXT, rank INTEGER);
    INSERT INTO l VALUES ('Oslo', 1), ('Bergen', 2), ('Turin', 3), ('Cork', 4);
    CREATE TABLE r (name TEXT, rank INTEGER);
    INSERT INTO r VALUES ('Oslo', 1), ('Berlin', 2), ('Cork', 3);
";

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
name = "test"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 1.0 }
"#;

const JOIN: &str = "SELECT l.name, r.name FROM l JOIN r ON {{LLMJoin(l.name, r.name)}} ORDER BY 1";

fn project() -> (Endpoint, Project) {
    let endpoint = oracle::start_endpoint();
    let project = Project::new(&endpoint, DATA, SPEC);
    (endpoint, project)
}

fn query(project: &Project, sql: &str, flags: &[&str]) -> CommandResult {
    project.run_hqdl(&[&["query", "--spec", "specs/x.toml", "--json"], flags, &[sql]].concat())
}

/// Number of times that requests ask about each pair.
fn count_pairs<'r>(
    requests: impl IntoIterator<Item = &'r Request>,
) -> BTreeMap<(String, String), usize> {
    let mut pairs = BTreeMap::new();
    for request in requests {
        for column in request.question.columns.iter().filter(|column| column.many) {
            for row in &request.question.rows {
                for candidate in column.values.iter().flatten() {
                    let left = row.key[0].as_str().unwrap().to_owned();
                    *pairs.entry((left, candidate.clone())).or_insert(0) += 1;
                }
            }
        }
    }
    pairs
}

/// Number of times that the endpoint was asked about each pair since its request `first`.
fn pairs_since(endpoint: &Endpoint, first: usize) -> BTreeMap<(String, String), usize> {
    count_pairs(&endpoint.received_requests()[first..])
}

/// Runs a query after `explain`, which must bound it. Returns the rows, and the pairs that the
/// endpoint was asked about.
fn ask(
    (endpoint, project): &(Endpoint, Project),
    sql: &str,
    flags: &[&str],
) -> (Json, Vec<(String, String)>) {
    let explain = ["explain", "--spec", "specs/x.toml", "--json", sql];
    let bound = project.run_hqdl(&explain).expect_exit_code(0).lines[0].clone();
    let first = endpoint.request_count();
    let ended = query(project, sql, flags).expect_exit_code(0);
    let meta = &ended.lines[0]["meta"];
    if !flags.contains(&"--refresh") {
        for count in ["values_asked", "requests"] {
            let (asked, most) = (meta[count].as_u64().unwrap(), bound[count].as_u64().unwrap());
            assert!(asked <= most, "{count}: {asked} instead of at most {most}: {bound}");
        }
    }
    let pairs = pairs_since(endpoint, first);
    assert!(pairs.values().all(|times| *times == 1), "{pairs:?}");
    (ended.lines[0]["rows"].clone(), pairs.into_keys().collect())
}

fn lefts_with(candidate: &str) -> Vec<(String, String)> {
    ["Bergen", "Cork", "Oslo", "Turin"].map(|l| (l.to_owned(), candidate.to_owned())).to_vec()
}

#[test]
fn a_new_row_costs_only_its_pairs() {
    let both = project();
    let (rows, pairs) = ask(&both, JOIN, &[]);
    assert_eq!((rows, pairs.len()), (json!([["Cork", "Cork"], ["Oslo", "Oslo"]]), 12));
    both.1.execute_sql("INSERT INTO r VALUES ('Turin', 4)");
    let (rows, pairs) = ask(&both, JOIN, &[]);
    assert_eq!(rows, json!([["Cork", "Cork"], ["Oslo", "Oslo"], ["Turin", "Turin"]]));
    assert_eq!(pairs, lefts_with("Turin"));
    both.1.execute_sql("INSERT INTO l VALUES ('Rome', 5); DELETE FROM r WHERE name = 'Oslo'");
    let (rows, pairs) = ask(&both, JOIN, &[]);
    assert_eq!(rows, json!([["Cork", "Cork"], ["Turin", "Turin"]]));
    let rome = ["Berlin", "Cork", "Turin"].map(|r| ("Rome".to_owned(), r.to_owned()));
    assert_eq!(pairs, rome);
    let explain = ["explain", "--spec", "specs/x.toml", "--json", JOIN];
    let bound = both.1.run_hqdl(&explain).expect_exit_code(0).lines[0].clone();
    assert_eq!((&bound["values_asked"], &bound["requests"]), (&json!(0), &json!(0)));
}

/// Known pairs decide rows before hqdl asks about them, even if other pairs are unknown.
#[test]
fn known_pairs_save_other_questions() {
    let both = project();
    let sql = "SELECT coalesce(r.rank, {{LLMMap('fn:vowels', l.name, return_type='int')}}) FROM l \
               LEFT JOIN r ON {{LLMJoin(l.name, r.name)}} \
               WHERE {{LLMMap('fn:length', l.name, return_type='int')}} > 3";
    query(&both.1, sql, &[]).expect_exit_code(0);
    let list = |first: usize| {
        let requests = both.0.received_requests();
        let asked = requests[first..].iter().flat_map(|r| {
            let is_vowels = r.question.columns.iter().any(|c| c.about.contains("vowels"));
            r.question.rows.iter().filter(move |_| is_vowels).map(|row| row.key[0].to_string())
        });
        asked.collect::<BTreeSet<_>>()
    };
    let answered = list(0);
    both.1.execute_sql("INSERT INTO l VALUES ('Athens', 5)");
    let first = both.0.request_count();
    query(&both.1, sql, &[]).expect_exit_code(0);
    assert!(!answered.contains("\"Oslo\""), "{answered:?}");
    assert_eq!(Vec::from_iter(list(first)), ["\"Athens\""]);
}

/// A second run may test other conditions first. The pairs of a join that it only looks up are known,
/// too.
#[test]
fn known_pairs_count_for_conditions_that_are_tested_first() {
    let both = project();
    both.1.execute_sql("INSERT INTO r VALUES ('Dublin', 4), ('Egede', 5)");
    let upper = "{{LLMMap('fn:upper', r.name)}}";
    let sql = format!(
        "SELECT l.name FROM l JOIN r ON {{{{LLMJoin(l.name, r.name)}}}} \
         WHERE {{{{LLMMap('fn:null_if:e', {upper})}}}} IS NOT NULL"
    );
    let first = query(&both.1, &sql, &[]).expect_exit_code(0).lines[0]["meta"].clone();
    assert!(first["values_asked"].as_u64() > Some(0), "{first}");
    let again = query(&both.1, &sql, &[]).expect_exit_code(0).lines[0]["meta"].clone();
    assert_eq!(again["values_asked"], 0, "{again}");
}

/// A group is reduced once its rows are known, not while pairs of a join are open.
#[test]
fn a_reduction_waits_for_the_pairs_of_a_join() {
    let both = project();
    let sql = "SELECT {{LLMReduce('fn:least', l.name)}} FROM l, r \
               WHERE l.rank = r.rank OR {{LLMJoin(l.name, r.name)}}";
    query(&both.1, sql, &[]).expect_exit_code(0);
    let requests = both.0.received_requests();
    let is_reduction = |r: &&Request| r.question.columns.iter().any(|c| c.about.contains("least"));
    assert_eq!(requests.iter().filter(is_reduction).count(), 1);
}

/// The answers of one join divide the lists of another one, which `explain` must bound.
#[test]
fn two_joins_of_a_query_share_their_pairs() {
    let both = project();
    let join = "SELECT l.name, r.name FROM l JOIN r ON {{LLMJoin(l.name, r.name)}}";
    let union = format!("{join} AND l.rank = 1 AND r.rank = 2 UNION {join}");
    let (rows, pairs) = ask(&both, &union, &[]);
    assert_eq!((rows, pairs.len()), (json!([["Cork", "Cork"], ["Oslo", "Oslo"]]), 12));
    assert_eq!(ask(&both, JOIN, &[]).1, []);
}

/// Joins that name different models share their pairs if the answers of one count for the other:
/// both names mean the same model, or the answers of any model count.
#[test]
fn joins_with_different_models_share_their_pairs() {
    for (reuse, name) in [("same-model", "test"), ("any-model", "other")] {
        let both = project();
        let large = format!("[model.large]\nname = \"{name}\"\nmax_output_tokens = 500\n");
        let price = "price = { input = 1.0, output = 1.0 }\n";
        both.1.write_spec(&format!("{SPEC}reuse = \"{reuse}\"\n{large}{price}"));
        let join = "SELECT l.name, r.name FROM l JOIN r ON {{LLMJoin(l.name, r.name)}}";
        let other = join.replace("r.name)}}", "r.name, model='large')}}");
        let union = format!("{other} AND l.rank = 1 AND r.rank = 2 UNION {join}");
        let (rows, pairs) = ask(&both, &union, &[]);
        assert_eq!((rows, pairs.len()), (json!([["Cork", "Cork"], ["Oslo", "Oslo"]]), 12));
    }
}

#[test]
fn a_list_that_shrinks_or_grows_asks_only_about_unknown_pairs() {
    let both = project();
    let some = "SELECT l.name, r.name FROM l JOIN r ON {{LLMJoin(l.name, r.name)}}
                WHERE {{LLMMap('fn:starts_with:B', r.name)}}";
    let first = ask(&both, some, &[]).1;
    let second = ask(&both, JOIN, &[]).1;
    assert!(first.iter().all(|pair| !second.contains(pair)), "{first:?} {second:?}");
    assert_eq!(first.len() + second.len(), 12);
    let fewer = "SELECT l.name, r.name FROM l JOIN r ON {{LLMJoin(l.name, r.name)}}
                 WHERE NOT {{LLMMap('fn:starts_with:B', r.name)}} AND r.rank > l.rank - 2";
    assert_eq!(ask(&both, fewer, &[]).1, []);
    // Another criterion is another question.
    let initials = JOIN.replace("r.name)}}", "r.name, join_criteria='fn:same_initial')}}");
    assert_eq!(ask(&both, &initials, &[]).1.len(), 12);
}

#[test]
fn narrow_and_blocking_ask_only_about_unknown_pairs() {
    let both = project();
    let narrow = JOIN.replace("r.name)}}", "r.name, narrow=2)}}");
    let (rows, pairs) = ask(&both, &narrow, &[]);
    assert_eq!((rows, pairs.len()), (json!([["Cork", "Cork"], ["Oslo", "Oslo"]]), 8));
    assert_eq!(ask(&both, &narrow, &[]).1, []);
    assert_eq!(ask(&both, JOIN, &[]).1.len(), 4);
    let block = JOIN.replace("r.name)}}", "r.name, block='trigrams')}}");
    assert_eq!(ask(&both, &block, &[]).1, []);
    both.1.execute_sql("INSERT INTO r VALUES ('Oslo.', 4), ('Bergen', 5)");
    let (_, pairs) = ask(&both, &block, &[]);
    let pair = |l: &str, r: &str| (l.to_owned(), r.to_owned());
    assert_eq!(pairs, [pair("Bergen", "Bergen"), pair("Oslo", "Oslo.")]);
}

#[test]
fn a_refresh_asks_again_and_its_answers_count() {
    let all_match = Arc::new(AtomicBool::new(false));
    let all = Arc::clone(&all_match);
    let endpoint = Endpoint::start_answering(move |column, row| {
        let candidates = column.values.clone().unwrap_or_default();
        let matches =
            |c: &String| all.load(Ordering::Relaxed) || row.key[0].as_str() == Some(c.as_str());
        candidates.into_iter().filter(matches).map(Json::from).collect()
    });
    let project = Project::new(&endpoint, DATA, SPEC);
    let both = (endpoint, project);
    assert_eq!(ask(&both, JOIN, &[]).1.len(), 12);
    all_match.store(true, Ordering::Relaxed);
    let some = JOIN.replace("ORDER", "WHERE r.rank = 2 ORDER");
    let (rows, pairs) = ask(&both, &some, &["--refresh"]);
    assert_eq!((rows.as_array().unwrap().len(), pairs), (4, lefts_with("Berlin")));
    let (rows, pairs) = ask(&both, JOIN, &[]);
    assert_eq!((rows.as_array().unwrap().len(), pairs.len()), (6, 0));
}

#[test]
fn a_failed_list_is_asked_again() {
    let both = project();
    both.0.add_fault_where(Fault::status(400, "no", "no"), Frequency::Always, |question| {
        question.rows.iter().any(|row| row.key_text().contains("Oslo"))
    });
    let flags = ["--rows-per-request", "1"];
    let ended = query(&both.1, JOIN, &flags);
    assert_ne!(ended.code, 0, "{ended:?}");
    both.0.clear_faults();
    both.1.execute_sql("INSERT INTO r VALUES ('Turin', 4)");
    let (rows, _) = ask(&both, JOIN, &flags);
    assert_eq!(rows.as_array().unwrap().len(), 3);
    let answered = both.0.received_requests();
    let pairs = count_pairs(answered.iter().filter(|request| request.is_answered));
    assert!(pairs.len() == 16 && pairs.values().all(|times| *times == 1), "{pairs:?}");
    assert_eq!(ask(&both, JOIN, &flags).1, []);
}

/// An unreadable reply does not count for a longer list.
#[test]
fn a_longer_list_repeats_unreadable_pairs() {
    let both = project();
    both.0.add_fault(Fault::Prose, Frequency::Always);
    query(&both.1, JOIN, &[]);
    both.0.clear_faults();
    both.1.execute_sql("INSERT INTO r VALUES ('Turin', 4)");
    let (rows, _) = ask(&both, JOIN, &[]);
    assert_eq!(rows.as_array().unwrap().len(), 3);
}

/// Facts of earlier versions, whose identity has the list's hash instead of its candidates, answer
/// the questions that they answered.
#[test]
fn lists_of_earlier_versions_count() {
    let both = project();
    ask(&both, JOIN, &[]);
    let lists = both.1.query_facts("SELECT id, meaning FROM meaning WHERE name = 'partners'");
    assert!(!lists.is_empty());
    for list in lists {
        let mut identity: ColumnIdentity = serde_json::from_str(list[1].as_str().unwrap()).unwrap();
        let candidates = std::mem::take(&mut identity.candidates);
        let hash = ListHash::new(&candidates);
        identity.about = format!("{} {}", identity.about, hash.as_str());
        both.1.change_facts(&format!(
            "UPDATE meaning SET fingerprint = '{}', meaning = '{}' WHERE id = {}",
            identity.fingerprint(),
            serde_json::to_string(&identity).unwrap().replace('\'', "''"),
            list[0]
        ));
    }
    let (rows, pairs) = ask(&both, JOIN, &[]);
    assert_eq!((rows.as_array().unwrap().len(), pairs.len()), (2, 0));
    both.1.execute_sql("INSERT INTO r VALUES ('Turin', 4)");
    assert_eq!(ask(&both, JOIN, &[]).1.len(), 16);
    assert_eq!(ask(&both, JOIN, &[]).1, []);
}

#[test]
fn exported_pairs_are_known_where_they_are_imported() {
    let both = project();
    ask(&both, JOIN, &[]);
    both.1.run_hqdl(&["cache", "export", "facts.jsonl"]).expect_exit_code(0);
    let import = ["cache", "import", "facts.jsonl", "--cache", "other"];
    both.1.run_hqdl(&import).expect_exit_code(0);
    let some = JOIN.replace("ORDER", "WHERE r.rank > 1 ORDER");
    assert_eq!(ask(&both, &some, &["--cache", "other"]).1, []);
}

/// Two processes with different lists do not ask about the same pair.
#[test]
fn two_processes_share_the_pairs_of_a_join() {
    let both = project();
    both.0.add_fault(Fault::Latency(Duration::from_millis(400)), Frequency::Always);
    let fewer = JOIN.replace("ORDER", "WHERE r.rank > 1 ORDER");
    let command = |sql: &str| {
        let one_row = ["--rows-per-request", "1"];
        let query = ["query", "--spec", "specs/x.toml", "--json"];
        both.1.start_hqdl(&[&query[..], &one_row, &[sql]].concat())
    };
    let running = [command(JOIN), command(&fewer)];
    let rows = running.map(|command| {
        command.wait_for_exit().expect_exit_code(0).lines[0]["rows"].as_array().unwrap().len()
    });
    assert_eq!(rows, [2, 1]);
    let pairs = pairs_since(&both.0, 0);
    assert_eq!(pairs.len(), 12);
    assert!(pairs.values().all(|times| *times == 1), "{pairs:?}");
}

/// A join in which each of 24 left values has its own list of candidates.
fn blocked_project() -> ((Endpoint, Project), String) {
    let both = project();
    let values: Vec<String> =
        ('a'..='x').map(|c| format!("('{}', 1)", c.to_string().repeat(5))).collect();
    let values = values.join(", ");
    both.1.execute_sql(&format!(
        "DELETE FROM l; INSERT INTO l VALUES {values}; DELETE FROM r; INSERT INTO r VALUES {values}"
    ));
    both.0.add_fault(Fault::Latency(Duration::from_millis(100)), Frequency::Always);
    (both, JOIN.replace("r.name)}}", "r.name, block='trigrams')}}"))
}

#[test]
fn lists_of_a_blocked_join_are_sent_side_by_side() {
    let (both, block) = blocked_project();
    let (rows, pairs) = ask(&both, &block, &["--concurrency", "6"]);
    assert_eq!((rows.as_array().unwrap().len(), pairs.len()), (24, 24));
    assert_eq!((both.0.request_count(), both.0.most_in_flight()), (24, 6));
    assert_eq!(ask(&both, &block, &[]).1, []);
}

/// A list whose requests fail does not stop the other lists, and only this list is asked again.
#[test]
fn a_failed_list_of_a_blocked_join_is_asked_again() {
    let (both, block) = blocked_project();
    let too_long = Fault::status(400, "too long", "context_length_exceeded");
    both.0.add_fault_where(too_long, Frequency::Always, |question| {
        question.rows.iter().any(|row| row.key_text().contains("aaaaa"))
    });
    let ended = query(&both.1, &block, &[]).expect_exit_code(1);
    assert_eq!(ended.lines[0]["rows"].as_array().unwrap().len(), 23);
    both.0.clear_faults();
    let first = both.0.request_count();
    let ended = query(&both.1, &block, &["--retry-failed"]).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"].as_array().unwrap().len(), 24);
    let pairs: Vec<_> = pairs_since(&both.0, first).into_keys().collect();
    assert_eq!(pairs, [("aaaaa".to_owned(), "aaaaa".to_owned())]);
}

#[test]
fn two_processes_share_the_lists_of_a_blocked_join() {
    let (both, block) = blocked_project();
    let command =
        || both.1.start_hqdl(&["query", "--spec", "specs/x.toml", "--json", block.as_str()]);
    for command in [command(), command()] {
        let ended = command.wait_for_exit().expect_exit_code(0);
        assert_eq!(ended.lines[0]["rows"].as_array().unwrap().len(), 24);
    }
    let pairs = pairs_since(&both.0, 0);
    assert!(pairs.len() == 24 && pairs.values().all(|times| *times == 1), "{pairs:?}");
}

#[test]
fn a_budget_ends_with_several_lists_in_flight() {
    let (both, block) = blocked_project();
    both.1.edit_spec("price =", "max_output_tokens = 100\nprice =");
    let budget = 0.004;
    let flags = ["--concurrency", "6", "--budget", &budget.to_string()];
    query(&both.1, &block, &flags).expect_exit_code(3);
    let (input, output) = both.0.billed_tokens();
    assert!((input + output) as f64 / 1e6 <= budget, "{input} + {output}");
    let asked = both.0.request_count();
    assert!(both.0.most_in_flight() > 1 && asked > 6 && asked < 24, "{asked}");
    let (rows, pairs) = ask(&both, &block, &[]);
    assert_eq!((rows.as_array().unwrap().len(), asked + pairs.len()), (24, 24));
}

/// Only the requests in flight at the kill are repeated.
#[test]
fn a_kill_loses_only_the_lists_in_flight() {
    let (both, block) = blocked_project();
    let args = ["query", "--spec", "specs/x.toml", "--concurrency", "6", block.as_str()];
    let running = both.1.start_hqdl(&args);
    both.0.wait_for(9);
    running.send_signal("KILL");
    running.wait_for_exit();
    assert_eq!(both.0.most_in_flight(), 6);
    let (rows, _) = ask(&both, &block, &[]);
    assert_eq!(rows.as_array().unwrap().len(), 24);
    let pairs = pairs_since(&both.0, 0);
    let repeated = pairs.values().sum::<usize>() - 24;
    assert!(pairs.len() == 24 && repeated <= 6, "{pairs:?}");
}

/// A growing right side, and its pairs in a store on a server.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn pairs_are_known_on_a_server() {
    let both = project();
    let cache = hqdl_testkit::postgres::create_database();
    let at_server = ["--cache", cache.as_str()];
    let run = |sql: &str| {
        let first = both.0.request_count();
        let ended = query(&both.1, sql, &at_server).expect_exit_code(0);
        (ended.lines[0]["rows"].clone(), pairs_since(&both.0, first))
    };
    assert_eq!(run(JOIN).1.len(), 12);
    both.1.execute_sql("INSERT INTO r VALUES ('Turin', 4)");
    let (rows, pairs) = run(JOIN);
    assert_eq!(rows.as_array().unwrap().len(), 3);
    assert_eq!(pairs.into_keys().collect::<Vec<_>>(), lefts_with("Turin"));
    assert_eq!(run(&JOIN.replace("ORDER", "WHERE r.rank > 1 ORDER")).1.len(), 0);
}
