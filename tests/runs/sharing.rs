//! Tests of a cache that several processes use: commands print the same as when run alone, nothing
//! is requested twice, and no killed or stopped process blocks the others.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hqdl::facts::{Facts, FactsError, Outcome, ReserveOutcome, Throttle};
use hqdl::generate::Listener;
use hqdl::limits::{Need, PerMinute, RateLimitHint};
use hqdl::materialize::{RunMode, Selection};
use hqdl::overrides::{read_lines, remove_override, set_override};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use hqdl::usage::SpentAmount;
use regex::Regex;

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    CommandResult, HERO_COUNT, HEROES, Project, RunningCommand, check_complete, heroes_project,
    heroes_spec, truthful_endpoint,
};

/// Opens the cache of a project in this process, as a daemon does.
pub fn open_with_index(project: &Project) -> Facts {
    Facts::open_with_index(&project.path("cache"), "hqdl test", Duration::ZERO).unwrap()
}

/// Starts a process that holds the index of a cache and can be killed. It is this test program,
/// running [`holds_the_index`].
fn start_index_holder(project: &Project) -> RunningCommand {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sharing::holds_the_index", "--ignored", "--nocapture"]);
    command.env("HQDL_TEST_HOLD", project.path("cache"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let running = RunningCommand::from_child(child);
    let began = Instant::now();
    while !project.path("cache/held").exists() {
        assert!(began.elapsed() < Duration::from_secs(120), "no process holds the index");
        std::thread::sleep(Duration::from_millis(5));
    }
    running
}

#[test]
#[ignore = "holds a cache for the other tests"]
fn holds_the_index() {
    let Some(dir) = std::env::var_os("HQDL_TEST_HOLD") else { return };
    let dir = Path::new(&dir);
    let _facts = Facts::open_with_index(dir, "hqdl test", Duration::from_secs(5)).unwrap();
    std::fs::write(dir.join("held"), "").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Returns the output of a command without times, random ids, and its own location.
fn plain(project: &Project, ended: &CommandResult) -> (i32, String, String) {
    let rules = [
        (r#""seconds":[0-9.e-]+"#, r#""seconds":0"#),
        (r#""(asked_at|bound_at|last_asked)":"[^"]*""#, r#""$1":"then""#),
        (r"time +\S+ \S+", "time"),
        (r"last \d{4}-\S+", "last then"),
        (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "then"),
        (r"\d+\.\d+ s\b", "0 s"),
        (r"hqdl-[0-9a-f]{24}\.jsonl", "hqdl-token.jsonl"),
        // Printed once a second.
        (r"(?m)^\d+/\d+ cells, .*\n", ""),
    ];
    let clean = |text: &str| {
        let mut text = text.replace(&project.path("").display().to_string(), "/project/");
        text = text.replace(project.base_url(), "http://endpoint");
        for (rule, with) in rules {
            text = Regex::new(rule).unwrap().replace_all(&text, with).into_owned();
        }
        text
    };
    (ended.code, clean(&ended.stdout), clean(&ended.stderr))
}

/// Returns all commands that need facts, in an order in which each has something to do.
fn all_commands() -> Vec<Vec<&'static str>> {
    let live =
        "SELECT name, {{LLMMap('Is it a good name?', 'hero::name')}} AS good FROM hero ORDER BY 1";
    let bound =
        "SELECT name, {{LLMMap('What is the eye colour?', 'hero::name')}} FROM hero ORDER BY 1, 2";
    let query =
        |sql: &'static str| vec!["query", "--spec", "specs/x.toml", "--concurrency", "1", sql];
    let mut all: Vec<Vec<&str>> = vec![
        vec!["plan", "specs/x.toml"],
        vec!["plan", "specs/x.toml", "--json"],
        vec!["cache", "stats"],
        vec!["cache", "list"],
        vec!["explain", "--spec", "specs/x.toml", live],
        query(bound),
        query("SELECT {{LLMMap('What is the"),
        vec!["materialize", "specs/x.toml", "--concurrency", "1", "--limit", "3", "--json"],
        vec!["materialize", "specs/x.toml", "--concurrency", "1"],
        vec!["materialize", "specs/x.toml", "--json"],
        vec![
            "materialize",
            "specs/x.toml",
            "--refresh",
            "motto",
            "--limit",
            "4",
            "--concurrency",
            "1",
        ],
        vec!["materialize", "specs/x.toml", "--refresh", "motto", "--concurrency", "1"],
        vec!["materialize", "specs/x.toml", "--retry-failed"],
        vec!["materialize", "specs/x.toml", "--columns", "nothing"],
        vec!["plan", "specs/x.toml", "--refresh", "born"],
        query(live),
        query(live),
        vec!["query", "--spec", "specs/x.toml", "--json", live],
        vec!["explain", "--spec", "specs/x.toml", "--json", live],
        vec!["why", "llm", "Zed", "Zed Zedsson", "born", "--spec", "specs/x.toml"],
        vec!["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "motto", "So long"],
        vec!["materialize", "specs/x.toml"],
        vec!["override", "list", "specs/x.toml"],
        vec!["why", "llm", "Zed", "Zed Zedsson", "motto", "--spec", "specs/x.toml", "--json"],
        vec!["suggest"],
        vec!["suggest", "--spec", "specs/x.toml", "--json"],
        vec!["cache", "list", "--limit", "7"],
        vec!["cache", "list", "--json"],
        vec!["cache", "stats"],
        vec!["cache", "stats", "--json"],
        vec!["cache", "export", "facts.jsonl"],
        vec!["cache", "export"],
        vec!["cache", "import", "facts.jsonl"],
        vec!["cache", "import", "specs/x.toml"],
        vec!["cache", "rebuild"],
        vec!["cache", "list"],
        vec!["materialize", "specs/x.toml", "--batch-file", "batches", "--refresh", "born"],
        vec!["materialize", "specs/x.toml", "--batch", "--refresh", "born"],
        vec!["import", "specs/x.toml", "facts.jsonl"],
        vec!["materialize", "specs/x.toml", "--json"],
    ];
    all.push(vec!["materialize", "nothing.toml"]);
    all
}

#[test]
fn every_command_prints_the_same_beside_another_process() {
    let (one, other) = (truthful_endpoint(), truthful_endpoint());
    let (alone, shared) = (heroes_project(&one, "csv"), heroes_project(&other, "csv"));
    for endpoint in [&one, &other] {
        endpoint.add_fault(Fault::MissingRows, Frequency::Once);
    }
    for project in [&alone, &shared] {
        project.write_spec(&format!(
            "{}\n",
            heroes_spec().replace("[limits]", "[limits]\nbatch_poll_seconds = 1")
        ));
    }
    let facts = open_with_index(&shared);
    for args in all_commands() {
        let expected = plain(&alone, &alone.run_hqdl(&args));
        let printed = plain(&shared, &shared.run_hqdl(&args));
        assert_eq!(printed, expected, "{args:?}");
        println!("{:?} {}", args, expected.0);
    }
    assert_eq!(one.request_count(), other.request_count());
    assert_eq!(alone.stored_cells(), shared.stored_cells());
    // The index of this process contains the facts of the commands.
    let entities = facts.iter().map(|entry| entry.unwrap()).collect::<Vec<_>>();
    for (entity, record) in entities {
        assert_eq!(facts.get(&entity).unwrap(), Some(record), "{entity:?}");
    }
}

#[test]
fn fifty_processes_ask_the_same_cells_once() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(300)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let _facts = open_with_index(&project);
    let sql = "SELECT name, {{LLMMap('What is the eye colour?', 'hero::name')}} AS eyes,
               {{LLMMap('A word for it?', 'hero::name')}} AS word FROM hero ORDER BY id";
    let all: Vec<RunningCommand> = (0..50)
        .map(|n| match n % 5 {
            0 => project.start_hqdl(&["materialize", "specs/x.toml"]),
            _ => project.start_hqdl(&["query", "--spec", "specs/x.toml", "--format", "csv", sql]),
        })
        .collect();
    let mut rows = BTreeSet::new();
    for (n, running) in all.into_iter().enumerate() {
        let ended = running.wait_for_exit();
        let ended = ended.expect_exit_code(0);
        if n % 5 != 0 {
            rows.insert(ended.stdout);
        }
    }
    assert_eq!(rows.len(), 1, "all see the same: {rows:?}");
    check_complete(&project);
    let mut asked = BTreeSet::new();
    for request in endpoint.received_requests() {
        for cell in request.requested_cells() {
            let cell = format!("{cell:?} {}", request.question.columns.len());
            assert!(asked.insert(cell.clone()), "asked twice: {cell}");
        }
    }
}

/// Returns the journal's reservations: whether their session is alive, and whether they are in
/// doubt.
fn reservations(project: &Project) -> Vec<(bool, bool)> {
    let sql = "SELECT session IN (SELECT id FROM session), in_doubt FROM reservation";
    project
        .query_rows_of("cache/journal.sqlite", sql)
        .iter()
        .map(|r| (r[0] == 1, r[1] == 1))
        .collect()
}

#[test]
fn a_killed_process_leaves_its_claims_and_unconfirmed_costs() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let _facts = open_with_index(&project);
    // The very first request is sent alone.
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    let asked = endpoint.request_count();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(20)), Frequency::First(3));
    let killed = project.start_hqdl(&["materialize", "specs/x.toml", "--concurrency", "3"]);
    endpoint.wait_for(asked + 3);
    assert_eq!(reservations(&project), [(true, false); 3]);
    let waiting = project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
    let runs = || project.query_rows_of("cache/journal.sqlite", "SELECT id FROM run").len();
    while runs() < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(endpoint.request_count(), asked + 3, "the other waits");
    killed.send_signal("KILL");
    killed.wait_for_exit();
    let ended = waiting.wait_for_exit().expect_exit_code(0);
    check_complete(&project);
    assert_eq!(reservations(&project), [(false, false); 3]);
    assert_eq!(endpoint.request_count(), asked + 6, "{ended:?}");
    // The next run reports it, and does not use their claims.
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let said = project.run_materialize(&[]).expect_exit_code(0).stdout;
    assert!(said.contains("3 requests were in flight when an earlier run was killed"), "{said}");
    assert_eq!(reservations(&project), [(false, true); 3]);
}

#[test]
fn a_killed_process_does_not_end_other_commands() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let holder = start_index_holder(&project);
    project.run_materialize(&["--limit", "4"]).expect_exit_code(0);
    let count = endpoint.request_count();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(1)), Frequency::Always);
    let under_way = project.start_hqdl(&["materialize", "specs/x.toml", "--concurrency", "1"]);
    let live = "SELECT {{LLMMap('Is it a good name?', 'hero::name')}} FROM hero";
    let query =
        project.start_hqdl(&["query", "--spec", "specs/x.toml", "--concurrency", "1", live]);
    endpoint.wait_for(count + 2);
    holder.send_signal("KILL");
    holder.wait_for_exit();
    for command in [under_way, query] {
        command.wait_for_exit().expect_exit_code(0);
    }
    check_complete(&project);
    let asked = endpoint.cells_since(0);
    let distinct: BTreeSet<String> = asked.iter().map(|cell| format!("{cell:?}")).collect();
    assert_eq!(distinct.len(), asked.len(), "nothing is asked twice");
}

#[test]
fn a_stopped_process_does_not_delay_other_commands() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let holder = start_index_holder(&project);
    holder.send_signal("STOP");
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    holder.send_signal("KILL");
    holder.wait_for_exit();
}

#[test]
fn only_one_process_holds_the_index() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let owner = start_index_holder(&project);
    let dir = project.path("cache");
    let second = Facts::open_with_index(&dir, "hqdl daemon", Duration::from_millis(100));
    match second {
        Err(error @ FactsError::Held { .. }) => {
            let said = error.to_string();
            assert!(said.contains(&format!("process {}", owner.id())), "{said}");
        }
        _ => panic!("two hold the index"),
    }
    // A waiting process takes over.
    let waiting = std::thread::spawn(move || {
        Facts::open_with_index(&dir, "hqdl daemon", Duration::from_secs(20))
    });
    std::thread::sleep(Duration::from_millis(100));
    owner.send_signal("KILL");
    owner.wait_for_exit();
    assert!(waiting.join().unwrap().is_ok());
}

#[test]
fn eight_processes_keep_to_one_limit() {
    let endpoint = truthful_endpoint();
    let project = Project::new(
        &endpoint,
        &format!(
            "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
             INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || i FROM n;"
        ),
        &heroes_spec()
            .replace("[limits]", "[limits]\nrequests_per_minute = 600")
            .replace("rows_per_request = 4", "rows_per_request = 1"),
    );
    let lax = project.spec_text().replace("= 600", "= 6000");
    std::fs::write(project.path("specs/y.toml"), lax).unwrap();
    let _facts = open_with_index(&project);
    let start = |spec: &str, filter: &str| {
        project.start_hqdl(&[
            "materialize",
            spec,
            "--quiet",
            "--where",
            filter,
            "--concurrency",
            "8",
        ])
    };
    let spec = |n: usize| if n == 0 { "specs/x.toml" } else { "specs/y.toml" };
    // The process with the strict limit comes first, because its limit applies while it runs.
    let start_one = |n: usize| start(spec(n), &format!("id % 8 = {n}"));
    let mut running: Vec<RunningCommand> = vec![start_one(0)];
    endpoint.wait_for(1);
    running.extend((1..8).map(start_one));
    // Sixty requests take six seconds, on a machine with enough capacity.
    let began = Instant::now();
    while endpoint.request_count() < 60 {
        assert!(began.elapsed() < Duration::from_secs(240), "{} came", endpoint.request_count());
        std::thread::sleep(Duration::from_millis(20));
    }
    for running in running {
        running.send_signal("KILL");
        running.wait_for_exit();
    }
    let mut at: Vec<Instant> = endpoint.received_requests().iter().map(|r| r.received_at).collect();
    at.sort();
    // Whenever the processes start: 600 requests a minute for both together, except for the moment
    // when only one was running. On a busy machine, a request may arrive a second after its permit.
    let took = (*at.last().unwrap() - at[0]).as_secs_f64();
    let most = 10.0 * (took + 1.0) + 12.0;
    assert!(at.len() as f64 <= most, "{} in {took} s", at.len());
}

#[test]
fn processes_share_the_daily_budget() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(50)), Frequency::Always);
    let day = 0.01;
    let project = Project::new(
        &endpoint,
        &format!(
            "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
             INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || i FROM n;"
        ),
        &heroes_spec()
            .replace("test-model", "gpt-4o-mini")
            .replace("[limits]", &format!("[limits]\nbudget_usd_per_day = {day}"))
            .replace("rows_per_request = 4", "rows_per_request = 1")
            .replace("price = {", "max_output_tokens = 100\nprice = {"),
    );
    let _facts = open_with_index(&project);
    let running: Vec<RunningCommand> = (0..4)
        .map(|n| {
            let filter = format!("id % 4 = {n}");
            let args = ["materialize", "specs/x.toml", "--quiet", "--concurrency", "8"];
            project.start_hqdl(&[&args[..], &["--where", &filter]].concat())
        })
        .collect();
    for running in running {
        let ended = running.wait_for_exit().expect_exit_code(3);
        assert!(ended.stderr.contains("the budget of the day is reached"), "{}", ended.stderr);
    }
    let (input, output) = endpoint.billed_tokens();
    let spent = (input as f64 + 2.0 * output as f64) / 1e6;
    assert!(spent <= day, "{spent}");
    assert!(spent >= 0.9 * day, "most of it was used: {spent}");
    assert_eq!(reservations(&project), []);
}

/// Rows of which half are known, looked up one by one in the order of the table.
#[test]
fn a_query_over_many_rows_requests_only_unknown_cells() {
    let (one, other) = (truthful_endpoint(), truthful_endpoint());
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)
         INSERT INTO hero (name, full_name)
         SELECT char(65 + (i * 7) % 26) || ' hero ' || (i * 7919 % 1500), 'Person ' || i FROM n;"
    );
    let spec = heroes_spec().replace("rows_per_request = 4", "rows_per_request = 50");
    let (direct, through) = (Project::new(&one, &sql, &spec), Project::new(&other, &sql, &spec));
    let query = "SELECT id, name, {{LLMMap('What is the eye colour?', 'hero::name')}} AS eyes
                 FROM hero ORDER BY id";
    let _facts = open_with_index(&through);
    let mut said = Vec::new();
    for project in [&direct, &through] {
        project.run_materialize(&["--limit", "700", "--columns", "eye_color"]).expect_exit_code(0);
        let args = ["query", "--spec", "specs/x.toml", "--json", "--concurrency", "1", query];
        for _ in 0..2 {
            said.push(plain(project, &project.run_hqdl(&args)));
        }
    }
    assert_eq!(said[0], said[2]);
    assert_eq!(said[1], said[3]);
    assert_eq!(one.request_count(), other.request_count());
}

#[test]
fn an_interrupted_process_leaves_nothing_in_flight() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(40)), Frequency::Always);
    endpoint.add_fault(Fault::too_many("retry-after-ms", "100"), Frequency::Every(3));
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(
        &heroes_spec()
            .replace("test-model", "gpt-4o-mini")
            .replace("[limits]", "[limits]\nbudget_usd_per_day = 0.004")
            .replace("rows_per_request = 4", "rows_per_request = 1"),
    );
    let _facts = open_with_index(&project);
    for wait in [0, 30, 60, 90] {
        let count = endpoint.request_count();
        let args = ["materialize", "specs/x.toml", "--concurrency", "8", "--limit", "8"];
        let mut running = project.start_hqdl(&args);
        while endpoint.request_count() == count && !running.has_ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(wait));
        if !running.has_ended() {
            running.send_signal("INT");
        }
        running.wait_for_exit();
        assert_eq!(reservations(&project), [], "after {wait} ms");
    }
}

#[test]
fn batches_of_a_spec_belong_to_one_run_at_a_time() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&heroes_spec().replace("[limits]", "[limits]\nbatch_poll_seconds = 1"));
    let _facts = open_with_index(&project);
    let batch = ["materialize", "specs/x.toml", "--batch", "--json"];
    let running =
        [project.start_hqdl(&batch), project.start_hqdl(&batch), project.start_hqdl(&batch)];
    let live = project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
    // Cells that the other run requests may still be missing.
    for running in running.into_iter().chain([live]) {
        let ended = running.wait_for_exit();
        assert!(ended.code < 2, "{}: {}", ended.code, ended.stderr);
    }
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    let cells = |n: usize| n * 4;
    assert_eq!(project.stored_cells().len(), cells(HERO_COUNT));
    let journal = "SELECT count(*) FROM answer AS a, json_each(a.cells)";
    let answered = project.query_rows_of("cache/journal.sqlite", journal);
    assert_eq!(answered[0][0], cells(HERO_COUNT), "each cell was answered once");
}

/// Threads of one process share the facts as processes do.
#[test]
fn runs_of_one_process_request_nothing_twice() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(100)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&heroes_spec().replace("api_key_env = \"HQDL_TEST_KEY\"", ""));
    let facts = open_with_index(&project);
    let path = project.path("specs/x.toml");
    std::thread::scope(|scope| {
        let begin = || {
            let draft = UncheckedSpec::read(&path).unwrap();
            let cache = Cache::Open(facts.clone());
            let session = Session::open(draft, &SpecOverrides::default(), cache).unwrap();
            let selection = Selection::default();
            let work = session
                .new_materializer(session.connect_model().unwrap(), &selection, RunMode::Live)
                .unwrap();
            let (_keep, interrupt) = tokio::sync::watch::channel(false);
            let listener: Listener = Arc::new(|_| {});
            let report = work.materialize("test", &listener, &interrupt).unwrap();
            assert_eq!(report.cells.total(), 40);
        };
        for _ in 0..4 {
            scope.spawn(begin);
        }
        project.run_materialize(&[]).expect_exit_code(0);
    });
    check_complete(&project);
    assert_eq!(endpoint.request_count(), 3, "10 rows, 4 a request");
}

/// Overrides set concurrently by processes and by threads like the daemon's.
#[test]
fn concurrent_overrides_are_all_kept() {
    let endpoint: Endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let draft = UncheckedSpec::read(&project.path("specs/x.toml")).unwrap();
    let session = Session::open(draft, &SpecOverrides::default(), Cache::Temporary).unwrap();
    let spec = session.spec;
    let key = |n: usize| [format!("Number {n}"), "Person".to_owned()];
    let set = |n: usize| {
        drop(set_override(&spec, "llm", &key(n), "motto", &format!("No {n}"), "").unwrap());
    };
    (100..104).for_each(set);
    std::thread::scope(|scope| {
        let running: Vec<RunningCommand> = (0..16)
            .map(|n| {
                let (name, value) = (format!("Number {n}"), format!("No {n}"));
                let words = [name.as_str(), "Person", "motto", &value];
                let change = ["override", "set", "specs/x.toml", "--force", "llm"];
                project.start_hqdl(&[&change[..], &words].concat())
            })
            .collect();
        let (spec, set) = (&spec, &set);
        (16..32).for_each(|n| drop(scope.spawn(move || set(n))));
        for n in 100..104 {
            scope.spawn(move || remove_override(spec, "llm", &key(n), "motto").unwrap());
        }
        for running in running {
            running.wait_for_exit().expect_exit_code(0);
        }
    });
    let lines = read_lines(&spec.overrides_path()).unwrap();
    let kept: BTreeSet<String> = lines.into_iter().map(|(_, line)| line.value).collect();
    assert_eq!(kept, (0..32).map(|n| format!("No {n}")).collect());
    let beside: Vec<_> = std::fs::read_dir(project.path("specs"))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("overrides"))
        .collect();
    assert_eq!(beside, ["x.overrides.csv"], "nothing is left beside it");
}

#[test]
fn waiting_for_a_lock_can_be_interrupted() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&heroes_spec().replace("[limits]", "[limits]\nbatch_poll_seconds = 1"));
    let facts = open_with_index(&project);
    let database = UncheckedSpec::read(&project.path("specs/x.toml")).unwrap().database();
    let database = database.canonicalize().unwrap();
    // As if a run were suspended while it publishes.
    let turn = facts.try_lock(&format!("publish {}", database.display())).unwrap().unwrap();
    let (stop, interrupt) = tokio::sync::watch::channel(false);
    let interrupted = |mut running: RunningCommand| {
        let began = Instant::now();
        running.send_signal("INT");
        while !running.has_ended() {
            assert!(began.elapsed() < Duration::from_secs(120), "it waits still");
            std::thread::sleep(Duration::from_millis(10));
        }
        running.wait_for_exit().expect_exit_code(130)
    };
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(3);
    std::thread::sleep(Duration::from_millis(500));
    let ended = interrupted(running);
    assert!(ended.stderr.contains("another run publishes"), "{}", ended.stderr);
    assert!(!project.has_table("llm"));
    drop(turn);
    // All answers are stored, and the process with the lock publishes them.
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.request_count(), 3);
    let name =
        format!("batches {}", project.path("specs/x.toml").canonicalize().unwrap().display());
    let turn = facts.try_lock(&name).unwrap().unwrap();
    let batch = ["materialize", "specs/x.toml", "--batch", "--refresh", "born"];
    let running = project.start_hqdl(&batch);
    std::thread::sleep(Duration::from_millis(500));
    interrupted(running);
    // The same within this process.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| facts.lock(&name, &interrupt).map(|t| t.is_some()));
        std::thread::sleep(Duration::from_millis(100));
        stop.send_replace(true);
        assert!(!waiting.join().unwrap().unwrap());
    });
    drop(turn);
    assert!(facts.lock(&name, &interrupt).unwrap().is_some(), "nobody has it");
}

/// Limits that an endpoint reports for a model apply to that model, and are remembered if no
/// process uses it. Limits that the spec sets apply to all of its models.
#[test]
fn an_endpoints_limits_are_kept_for_each_model() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let facts = open_with_index(&project);
    let other = Facts::open(&project.path("cache"), "hqdl test").unwrap();
    let told = |requests: u32| RateLimitHint {
        limits: PerMinute { requests: Some(requests), tokens: None },
        wait: None,
    };
    let free = PerMinute::default();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // At 120 requests a minute, 50 would take 25 s.
    let takes = |throttle: &Throttle, requests: usize| {
        let began = Instant::now();
        for _ in 0..requests {
            drop(runtime.block_on(throttle.acquire_permit(Need::default())));
        }
        began.elapsed().as_secs_f64()
    };
    for (own, facts) in [(true, &facts), (false, &other)] {
        let [one, other] = ["one", "other"].map(|m| facts.open_throttle("e", m, free).unwrap());
        one.apply_hint(told(120));
        assert!(takes(&other, 50) < 10.0, "{own}: the other model is not slowed down");
        assert!(takes(&one, 3) > 0.9, "{own}: what is told holds");
        one.apply_hint(told(600_000));
        assert!(takes(&one, 50) < 10.0, "{own}: what is told last holds");
        one.apply_hint(told(120));
        drop(one);
        let one = facts.open_throttle("e", "one", free).unwrap();
        assert!(takes(&one, 3) > 0.9, "{own}: it is remembered, whoever asks next");
        one.apply_hint(told(600_000));
        let strict = PerMinute { requests: Some(120), tokens: None };
        let third = facts.open_throttle("e", "third", strict).unwrap();
        assert!(takes(&one, 2) + takes(&third, 2) > 0.9, "{own}: for all models");
    }
}

/// Costs that a run reserved but never used are available to others when it ends.
#[test]
fn a_freed_daily_budget_wakes_waiting_requests() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let facts = open_with_index(&project);
    let begin = || facts.history().start_run("test", "nothing.toml").unwrap();
    let (one, other) = (begin(), begin());
    let all = SpentAmount { usd: 1.0, tokens: 1 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let noted = facts.reserve_cost(one, all, Some(1.0), None).await.unwrap();
        assert!(matches!(noted, ReserveOutcome::Reserved(_)), "{noted:?}");
        let waiting = facts.reserve_cost(other, all, Some(1.0), None);
        tokio::pin!(waiting);
        let soon = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
        assert!(soon.is_err(), "it is held: {soon:?}");
        facts.history().finish_run(one, Outcome::Interrupted).unwrap();
        let noted = tokio::time::timeout(Duration::from_secs(120), waiting).await;
        let noted = noted.expect("nobody looks again").unwrap();
        let ReserveOutcome::Reserved(note) = noted else { panic!("{noted:?}") };
        facts.finish_reservation(note, false).await.unwrap();
    });
    assert_eq!(reservations(&project), []);
}
