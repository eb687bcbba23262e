//! Tests of several machines that share a server: processes with their own databases share answers,
//! budget and limits, whatever breaks between them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::postgres::{self, Proxy, Server, sql_at};
use hqdl_testkit::project::{
    COLUMN_NAMES, CommandResult, HEROES, MODEL, Project, RunningCommand, check_cells, heroes_spec,
    truthful_endpoint,
};

/// Number of heroes of a machine, in addition to the ten.
const NUMBERS: usize = 110;
const CELLS: usize = (NUMBERS + 10) * COLUMN_NAMES.len();

/// Creates a machine: a database and a spec, the same as on the others.
fn machine(endpoint: &Endpoint, spec: &str) -> Project {
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {NUMBERS})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    Project::new(endpoint, &sql, spec)
}

fn machines(endpoint: &Endpoint, n: usize) -> Vec<Project> {
    (0..n).map(|_| machine(endpoint, &heroes_spec())).collect()
}

/// Starts a run whose lease lasts `lease` seconds.
fn start(project: &Project, cache: &str, lease: &str, flags: &[&str]) -> RunningCommand {
    start_with_key(project, cache, lease, flags, "a key")
}

/// The same with its own API key.
fn start_with_key(
    project: &Project,
    cache: &str,
    lease: &str,
    flags: &[&str],
    key: &str,
) -> RunningCommand {
    let args = [&["materialize", "specs/x.toml", "--json", "--cache", cache], flags].concat();
    let mut command = project.hqdl_command(&args);
    command.env("HQDL_LEASE", lease).env("HQDL_TEST_KEY", key);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    RunningCommand::from_child(command.spawn().unwrap())
}

fn run(project: &Project, cache: &str, lease: &str, flags: &[&str]) -> CommandResult {
    start(project, cache, lease, flags).wait_for_exit()
}

/// Returns the number of times that each cell was requested.
fn asked(endpoint: &Endpoint) -> HashMap<String, usize> {
    let mut times = HashMap::new();
    for cell in endpoint.cells_since(0) {
        *times.entry(format!("{cell:?}")).or_insert(0) += 1;
    }
    times
}

fn assert_once(endpoint: &Endpoint) {
    let asked = asked(endpoint);
    let twice: Vec<_> = asked.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "asked more than once: {twice:?}");
    assert_eq!(asked.len(), CELLS);
}

fn complete() -> BTreeMap<String, usize> {
    BTreeMap::from([("ok".to_owned(), CELLS)])
}

const ROWS: [&str; 4] = ["--rows-per-request", "3", "--concurrency", "3"];

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn machines_share_answers_and_repeat_no_request() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(20)), Frequency::Always);
    let cache = postgres::create_database();
    let all = machines(&endpoint, 4);
    let running: Vec<_> = all.iter().map(|one| start(one, &cache, "60", &ROWS)).collect();
    for (one, running) in all.iter().zip(running) {
        running.wait_for_exit().expect_exit_code(0);
        assert_eq!(check_cells(one), complete());
    }
    assert_once(&endpoint);
    // A machine that starts later requests nothing, plans nothing, and reports the origin of the
    // answers.
    let late = machine(&endpoint, &heroes_spec());
    let before = endpoint.request_count();
    let on_server = ["--cache", cache.as_str()];
    let plan = late.run_plan(&on_server);
    assert_eq!(plan["totals"]["cells"], 0, "{plan}");
    assert_eq!(run(&late, &cache, "60", &ROWS).expect_exit_code(0).done_event()["requests"], 0);
    assert_eq!((check_cells(&late), endpoint.request_count()), (complete(), before));
    let why =
        late.run_hqdl(&["why", "llm", "Zed", "Zed Zedsson", "motto", "--json"]).expect_exit_code(0);
    assert!(why.stdout.contains("test-model"), "{}", why.stdout);
    let query = ["query", "--spec", "specs/x.toml", "SELECT count(*) FROM llm", "--format", "csv"];
    let query = late.run_hqdl(&[&query[..], &on_server].concat()).expect_exit_code(0);
    assert!(query.stdout.contains("120"), "{}", query.stdout);
    let stats = late
        .run_hqdl(&[&["cache", "stats", "--json"][..], &on_server].concat())
        .expect_exit_code(0);
    assert_eq!(stats.lines[0]["entities"], NUMBERS + 10);
    assert_eq!(late.run_hqdl(&[&["cache", "rebuild"][..], &on_server].concat()).code, 0);
    assert_eq!(late.run_hqdl(&[&["cache", "check"][..], &on_server].concat()).code, 0);
}

/// A run that finds rows claimed by another run continues with unclaimed rows.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn no_run_waits_for_another_while_it_can_send_requests() {
    let endpoint = truthful_endpoint();
    // Longer than this test takes.
    endpoint.add_fault(Fault::Latency(Duration::from_secs(300)), Frequency::Once);
    let cache = postgres::create_database();
    let [first, second] = [machine(&endpoint, &heroes_spec()), machine(&endpoint, &heroes_spec())];
    let flags = ["--rows-per-request", "1", "--concurrency", "1"];
    let held = start(&first, &cache, "3", &flags);
    wait_until("the first asks", || endpoint.request_count() == 1);
    let running = start(&second, &cache, "60", &flags);
    let rows = NUMBERS + 10;
    wait_until("all other rows are asked", || endpoint.request_count() == rows);
    held.send_signal("KILL");
    held.wait_for_exit();
    running.wait_for_exit().expect_exit_code(0);
    assert_eq!((check_cells(&second), endpoint.request_count()), (complete(), rows + 1));
}

/// The provenance of the known cells is read in one round trip, however many requests they came
/// from.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn publishing_needs_few_round_trips() {
    let endpoint = truthful_endpoint();
    let cache = postgres::create_database();
    let [first, second] = [machine(&endpoint, &heroes_spec()), machine(&endpoint, &heroes_spec())];
    run(&first, &cache, "60", &["--rows-per-request", "1"]).expect_exit_code(0);
    let words = || -> i64 {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        sql_at(&cache, sql)[0][0].as_ref().unwrap().parse().unwrap()
    };
    let gone = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
        sql_at(&cache, sql)[0][0].as_deref() == Some("1")
    };
    wait_until("the first has gone", gone);
    let before = words();
    run(&second, &cache, "60", &[]).expect_exit_code(0);
    wait_until("the second has gone", gone);
    let all = words() - before;
    assert_eq!(check_cells(&second), complete());
    assert!((10..100).contains(&all), "{all} transactions for {} completions", NUMBERS + 10);
}

/// Processes that start at the same time find no schema, and wait for the one that creates it.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn machines_that_start_together_create_one_schema() {
    let endpoint = truthful_endpoint();
    let one = machine(&endpoint, &heroes_spec());
    for _ in 0..3 {
        let cache = postgres::create_database();
        let held = postgres::HeldLock::acquire(&cache, 0x6871_646c);
        let stats = || {
            let mut command = one.hqdl_command(&["cache", "stats", "--json", "--cache", &cache]);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            RunningCommand::from_child(command.spawn().unwrap())
        };
        let all: Vec<_> = (0..8).map(|_| stats()).collect();
        wait_until("all wait for the lock", || {
            let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            sql_at(&cache, sql)[0][0].as_deref() == Some("8")
        });
        drop(held);
        all.into_iter().for_each(|one| drop(one.wait_for_exit().expect_exit_code(0)));
    }
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn machines_share_the_daily_budget() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(10)), Frequency::Always);
    let cache = postgres::create_database();
    let most = 0.01;
    let limits = format!("concurrency = 4\nbudget_usd_per_day = {most}");
    let spec = heroes_spec().replace("concurrency = 4", &limits);
    let all: Vec<_> = (0..4).map(|_| machine(&endpoint, &spec)).collect();
    let running: Vec<_> = all.iter().map(|one| start(one, &cache, "60", &ROWS)).collect();
    let codes: Vec<i32> = running.into_iter().map(|running| running.wait_for_exit().code).collect();
    assert!(codes.contains(&3), "the budget is not enough for all: {codes:?}");
    let (input, output) = endpoint.billed_tokens();
    let spent = input as f64 / 1e6 + output as f64 * 2.0 / 1e6;
    assert!(spent <= most, "${spent} of ${most}");
    let kept = &sql_at(&cache, "SELECT usd FROM hqdl.day")[0][0];
    let kept: f64 = kept.as_ref().unwrap().parse().unwrap();
    assert!((kept - spent).abs() < 1e-9, "${kept} is kept of ${spent}");
    assert!(asked(&endpoint).values().all(|n| *n == 1));
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn machines_with_any_keys_share_one_rate_limit() {
    // Returns the minimum number of seconds that all requests take at the pace of one limit, and
    // the actual number.
    let paced = |limits: [&str; 3]| {
        let endpoint = truthful_endpoint();
        let cache = postgres::create_database();
        let spec = |limits| {
            heroes_spec().replace("concurrency = 4", &format!("concurrency = 4\n{limits}"))
        };
        let all: Vec<_> = limits.iter().map(|limits| machine(&endpoint, &spec(limits))).collect();
        let began = Instant::now();
        let keyed = |(one, key)| start_with_key(one, &cache, "60", &ROWS, key);
        let keys = ["first key", "second key", "third key"];
        let running: Vec<_> = all.iter().zip(keys).map(keyed).collect();
        running.into_iter().for_each(|running| drop(running.wait_for_exit().expect_exit_code(0)));
        // Each request may arrive late, but not early.
        let requests = endpoint.received_requests();
        let last = requests.iter().map(|r| r.received_at).max().unwrap();
        assert_once(&endpoint);
        ((requests.len() - 1) as f64 * 60.0 / 400.0, last.duration_since(began).as_secs_f64())
    };
    // The strictest limit of all applies.
    let strict = "requests_per_minute = 400";
    let (least, took) = paced([strict, "requests_per_minute = 9000", "requests_per_minute = 900"]);
    assert!(took >= least, "{took} s, not {least} s");
    let each = "requests_per_minute = 400\nper = \"key\"";
    let (least, took) = paced([each; 3]);
    assert!(took < least, "{took} s as with one key, {least} s");
}

/// Each machine has its own daemon, and neither needs the other's.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn daemons_of_two_machines_share_answers() {
    let endpoint = truthful_endpoint();
    let cache = postgres::create_database();
    let all = machines(&endpoint, 2);
    let start = |one| Daemon::start(one, &["--cache", cache.as_str()]);
    let daemons: Vec<_> = all.iter().map(start).collect();
    for (one, daemon) in all.iter().zip(&daemons) {
        daemon.wait_until_idle("complete");
        assert_eq!(check_cells(one), complete());
        assert_eq!(daemon.query_rows("SELECT count(*) FROM llm"), [json!([NUMBERS + 10])]);
    }
    assert_once(&endpoint);
    let before = endpoint.request_count();
    let row = "INSERT INTO hero (name, full_name) VALUES ('New', 'Newcomer')";
    for (one, daemon) in all.iter().zip(&daemons) {
        one.execute_sql(row);
        wait_until("the new hero is there", || {
            !one.query_rows("SELECT 1 FROM llm WHERE name = 'New'").is_empty()
        });
        daemon.wait_until_idle("complete");
    }
    assert_eq!(endpoint.request_count(), before + 1);
    let status = all[0].run_hqdl(&["status", "--cache", &cache]).expect_exit_code(2);
    assert!(status.stderr.contains("over HTTP"), "{}", status.stderr);
    for daemon in daemons {
        daemon.send_signal("TERM");
        assert_eq!(daemon.wait_for_exit(), 0);
    }
}

/// A killed process keeps its claims until its lease ends; then the others take them.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_killed_machine_loses_only_requests_in_flight() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(60)), Frequency::Always);
    let cache = postgres::create_database();
    let all = machines(&endpoint, 3);
    // Only its own lease is short, because a slow machine must not lose the others' leases.
    let leases = ["3", "60", "60"].into_iter();
    let mut running: Vec<_> =
        all.iter().zip(leases).map(|(one, lease)| start(one, &cache, lease, &ROWS)).collect();
    endpoint.wait_for(12);
    let dead = running.remove(0);
    dead.send_signal("KILL");
    dead.wait_for_exit();
    for (one, running) in all[1..].iter().zip(running) {
        running.wait_for_exit().expect_exit_code(0);
        assert_eq!(check_cells(one), complete());
    }
    let asked = asked(&endpoint);
    let twice = asked.values().filter(|n| **n > 1).count();
    // Three requests with three rows and all columns each were in flight.
    assert!(twice <= 3 * 3 * COLUMN_NAMES.len(), "{twice} cells were asked again");
    let most = asked.values().max();
    assert!(most <= Some(&2) && asked.len() == CELLS, "{most:?} times, {} cells", asked.len());
}

/// Processes on the same machine detect the killed process, so they do not wait for its lease, and
/// its run continues with the remaining budget.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn claims_of_a_killed_process_are_released_on_its_machine_at_once() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(300)), Frequency::Once);
    let cache = postgres::create_database();
    let one = machine(&endpoint, &heroes_spec());
    let flags = ["--rows-per-request", "1", "--concurrency", "1"];
    let killed = start(&one, &cache, "600", &flags);
    wait_until("it asks", || endpoint.request_count() == 1);
    killed.send_signal("KILL");
    killed.wait_for_exit();
    run(&one, &cache, "600", &flags).expect_exit_code(0);
    assert_eq!((check_cells(&one), endpoint.request_count()), (complete(), NUMBERS + 11));
    let left = "SELECT count(*) FROM hqdl.session";
    assert_eq!(sql_at(&cache, left)[0][0].as_deref(), Some("0"), "all have left");
}

/// A machine that was suspended for longer than its lease sends no further requests; others do.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_machine_suspended_beyond_its_lease_ends_its_run() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(60)), Frequency::Always);
    let cache = postgres::create_database();
    let all = machines(&endpoint, 2);
    let sleeper = start(&all[0], &cache, "3", &ROWS);
    endpoint.wait_for(4);
    sleeper.send_signal("STOP");
    start(&all[1], &cache, "60", &ROWS).wait_for_exit().expect_exit_code(0);
    assert_eq!(check_cells(&all[1]), complete());
    sleeper.send_signal("CONT");
    let woken = sleeper.wait_for_exit();
    assert!([0, 5].contains(&woken.code), "{}\n{}", woken.code, woken.stderr);
    let asked = asked(&endpoint);
    let twice = asked.values().filter(|n| **n > 1).count();
    assert!(twice <= 3 * 3 * COLUMN_NAMES.len(), "{twice} cells were asked again");
    // Its answers are stored, and the others' answers are available.
    run(&all[0], &cache, "60", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&all[0]), complete());
    assert_eq!(asked.len(), CELLS);
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_server_that_is_killed_and_comes_back_costs_nothing() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(40)), Frequency::Always);
    let server = Server::start_server();
    let cache = server.create_database();
    let all = machines(&endpoint, 3);
    let running: Vec<_> = all.iter().map(|one| start(one, &cache, "120", &ROWS)).collect();
    for requests in [6, 18] {
        endpoint.wait_for(requests);
        server.crash();
        std::thread::sleep(Duration::from_millis(300));
        server.restart();
    }
    for (one, running) in all.iter().zip(running) {
        let ended = running.wait_for_exit().expect_exit_code(0);
        assert_eq!(check_cells(one), complete(), "{}", ended.stderr);
    }
    assert_once(&endpoint);
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_network_outage_costs_nothing() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(40)), Frequency::Always);
    let proxy = Proxy::new_to_port(postgres::shared_server().port());
    proxy.set_delay(2);
    let direct = postgres::create_database();
    let cache = proxy.database_url(&direct);
    let all = machines(&endpoint, 2);
    let there = start(&all[0], &direct, "120", &ROWS);
    let cut_off = start(&all[1], &cache, "120", &ROWS);
    endpoint.wait_for(6);
    proxy.block();
    std::thread::sleep(Duration::from_secs(2));
    proxy.unblock();
    for (one, running) in all.iter().zip([there, cut_off]) {
        running.wait_for_exit().expect_exit_code(0);
        assert_eq!(check_cells(one), complete());
    }
    assert_once(&endpoint);
}

/// Answers that the server does not commit within a second survive a kill.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn answers_during_an_outage_survive_a_kill() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(400)), Frequency::Always);
    let proxy = Proxy::new_to_port(postgres::shared_server().port());
    let direct = postgres::create_database();
    let one = machine(&endpoint, &heroes_spec());
    let flags = ["--rows-per-request", "1", "--concurrency", "16"];
    let killed = start(&one, &proxy.database_url(&direct), "120", &flags);
    endpoint.wait_for(40);
    proxy.block();
    std::thread::sleep(Duration::from_millis(2500));
    killed.send_signal("KILL");
    killed.wait_for_exit();
    proxy.unblock();
    run(&one, &direct, "60", &flags).expect_exit_code(0);
    assert_eq!(check_cells(&one), complete());
    assert_once(&endpoint);
}

/// If the server does not notice that a connection has ended in the middle of a transaction, the
/// transaction's locks must not block the other processes.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn locks_of_a_half_open_connection_are_released() {
    let endpoint = truthful_endpoint();
    let proxy = Proxy::new_to_port(postgres::shared_server().port());
    let direct = postgres::create_database();
    let [one, other] = [machine(&endpoint, &heroes_spec()), machine(&endpoint, &heroes_spec())];
    run(&one, &direct, "60", &["--limit", "1"]).expect_exit_code(0);
    let held = postgres::HeldLock::acquire_by(&direct, "BEGIN; SELECT 1 FROM hqdl.head FOR UPDATE");
    let killed = start(&one, &proxy.database_url(&direct), "60", &ROWS);
    let is_in_transaction = || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND wait_event_type = 'Lock' AND query LIKE '%FROM hqdl.head FOR UPDATE'";
        sql_at(&direct, sql)[0][0].as_deref() == Some("1")
    };
    wait_until("it waits for the lock in a transaction", is_in_transaction);
    // The server receives nothing more from the killed process, not even the end of the connection.
    proxy.half_open(0);
    killed.send_signal("KILL");
    killed.wait_for_exit();
    drop(held);
    run(&other, &direct, "12", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&other), complete());
}

/// Ways in which the connection to the server breaks, in turn.
const BREAKS: [fn(&Proxy); 4] = [
    |proxy| proxy.sever(80),
    |proxy| proxy.half_open(150),
    |proxy| {
        proxy.block();
        std::thread::sleep(Duration::from_millis(1500));
        proxy.unblock();
    },
    |proxy| proxy.sever(0),
];

/// Proxies that delay, break the connection after the commit and leave connections half open, and
/// processes that are killed: a cell is requested twice only if the first process was killed while
/// the request was in flight, and every answer is stored. `HQDL_FLEET_KILLS=10` runs more kills.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn network_failures_and_kills_cost_only_requests_in_flight() {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let kills: usize = number("HQDL_FLEET_KILLS").unwrap_or(2);
    let endpoint = truthful_endpoint();
    let latency = Duration::from_millis(150);
    endpoint.add_fault(Fault::Latency(latency), Frequency::Always);
    let direct = postgres::create_database();
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;",
        kills * 150
    );
    let machines: Vec<_> = (0..3).map(|_| Project::new(&endpoint, &sql, &heroes_spec())).collect();
    let proxies: Vec<_> =
        machines.iter().map(|_| Proxy::new_to_port(postgres::shared_server().port())).collect();
    proxies.iter().for_each(|proxy| proxy.set_delay(3));
    let mut times = 0;
    let mut start = |n: usize| {
        times += 1;
        let (cache, key) = (proxies[n].database_url(&direct), format!("asker-{times}"));
        let flags = ["--json", "--rows-per-request", "1", "--concurrency", "3", "--cache", &cache];
        let mut command =
            machines[n].hqdl_command(&[&["materialize", "specs/x.toml"], &flags[..]].concat());
        command.env("HQDL_LEASE", "60").env("HQDL_TEST_KEY", &key);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        (key, RunningCommand::from_child(command.spawn().unwrap()))
    };
    let mut running: Vec<_> = (0..machines.len()).map(&mut start).collect();
    let mut killed = HashMap::new();
    for n in 0..kills {
        let before = endpoint.request_count();
        let ended = std::cell::Cell::new(None);
        let children = std::cell::RefCell::new(&mut running);
        wait_until("it goes on", || {
            ended.set(children.borrow_mut().iter_mut().position(|(_, child)| child.has_ended()));
            let count = endpoint.request_count();
            ended.get().is_some() || count >= before + 20 || n == 0 && count > 20
        });
        if let Some(at) = ended.get() {
            // A child ends by itself only when no cell is left, so there is nothing more to kill.
            let (_, child) = std::mem::replace(&mut running[at], start(at));
            child.wait_for_exit().expect_exit_code(0);
            assert!(n > 0, "the first kill came too late");
            break;
        }
        for (proxy, shift) in proxies.iter().zip(0..) {
            BREAKS[(n + shift) % BREAKS.len()](proxy);
        }
        let at = n % machines.len();
        let (key, dead) = std::mem::replace(&mut running[at], start(at));
        dead.send_signal("KILL");
        killed.insert(format!("Bearer {key}"), Instant::now());
        dead.wait_for_exit();
    }
    for (project, (_, running)) in machines.iter().zip(running) {
        let ended = running.wait_for_exit().expect_exit_code(0);
        assert_eq!(check_cells(project).keys().collect::<Vec<_>>(), ["ok"], "{}", ended.stderr);
    }
    let (mut askers, mut in_flight): (HashMap<String, Vec<usize>>, _) = (HashMap::new(), 0);
    let requests = endpoint.received_requests();
    for (n, request) in requests.iter().enumerate() {
        for cell in request.requested_cells() {
            askers.entry(format!("{cell:?}")).or_default().push(n);
        }
    }
    let mut again: Vec<usize> =
        askers.values().flat_map(|all| all[..all.len() - 1].to_vec()).collect();
    again.sort_unstable();
    again.dedup();
    for n in again {
        let key = requests[n].headers.iter().find(|(name, _)| name == "authorization");
        let dead = key.and_then(|(_, key)| killed.get(key));
        // One second until the answer is in a file, and another for a busy machine.
        let most = latency + Duration::from_secs(2);
        let excused =
            dead.is_some_and(|at| at.saturating_duration_since(requests[n].received_at) < most);
        assert!(excused, "request {n} of {key:?} was asked again: {:?}", requests[n].question);
        in_flight += 1;
    }
    let kept = sql_at(&direct, "SELECT count(*) FROM hqdl.completion")[0][0].clone().unwrap();
    println!(
        "{} kills: {} requests, {kept} kept, {in_flight} of killed askers asked again",
        killed.len(),
        requests.len()
    );
    assert_eq!(kept.parse::<usize>().unwrap(), requests.len() - in_flight, "an answer is lost");
}

/// A process that cannot reach the server within the retry time ends with a separate exit code, and
/// its answers are sent later.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn answers_are_kept_while_the_server_is_unreachable() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(100)), Frequency::Always);
    let server = Server::start_server();
    let cache = server.create_database();
    let one = machine(&endpoint, &heroes_spec());
    let running = start(&one, &cache, "6", &ROWS);
    endpoint.wait_for(7);
    server.crash();
    let ended = running.wait_for_exit().expect_exit_code(5);
    assert!(ended.stderr.contains("cannot be reached"), "{}", ended.stderr);
    assert!(ended.stderr.contains("all answers are kept"), "{}", ended.stderr);
    let answered = endpoint.received_requests().iter().filter(|r| r.is_answered).count();
    // The same if the server is unreachable from the start.
    let again = run(&one, &cache, "1", &ROWS).expect_exit_code(5);
    assert!(again.stderr.contains("hqdl retries"), "{}", again.stderr);
    server.restart();
    // A server that accepts connections and never answers is handled like an unreachable one.
    let silent = Proxy::new_to_port(server.port());
    silent.block();
    let says = run(&one, &silent.database_url(&cache), "1", &ROWS).expect_exit_code(5);
    assert!(says.stderr.contains("no connection within"), "{}", says.stderr);
    run(&one, &cache, "60", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&one), complete());
    let asked = asked(&endpoint);
    assert!(answered > 0 && asked.values().all(|n| *n == 1), "{answered}: {asked:?}");
    assert_eq!(asked.len(), CELLS);
}

/// A file with an answer that waits for the server and is damaged costs only this answer.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_damaged_unsent_answer_is_requested_again() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(100)), Frequency::Always);
    let server = Server::start_server();
    let cache = server.create_database();
    let one = machine(&endpoint, &heroes_spec());
    let running = start(&one, &cache, "6", &ROWS);
    endpoint.wait_for(7);
    server.crash();
    running.wait_for_exit().expect_exit_code(5);
    server.restart();
    let id = sql_at(&cache, "SELECT cache FROM hqdl.head")[0][0].clone().unwrap();
    let found = std::process::Command::new("find")
        .arg(one.path("."))
        .args(["-path", &format!("*{id}/unsent/*.answer")])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let unsent: Vec<&str> = found.lines().collect();
    assert!(unsent.len() > 1, "{found}");
    let bytes = std::fs::read(unsent[0]).unwrap();
    std::fs::write(unsent[0], &bytes[..bytes.len() / 2]).unwrap();
    let ended = run(&one, &cache, "60", &ROWS).expect_exit_code(0);
    assert!(ended.stderr.contains("damaged"), "{}", ended.stderr);
    assert_eq!(check_cells(&one), complete());
    let twice = asked(&endpoint).values().filter(|n| **n > 1).count();
    assert_eq!(twice, 3 * COLUMN_NAMES.len(), "the cells of one request");
    assert!(!run(&one, &cache, "60", &ROWS).expect_exit_code(0).stderr.contains("damaged"));
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn facts_move_to_a_server_and_back_unchanged() {
    let endpoint = truthful_endpoint();
    let one = machine(&endpoint, &heroes_spec());
    one.run_materialize(&["--rows-per-request", "20"]).expect_exit_code(0);
    let (first, second) = (postgres::create_database(), postgres::create_database());
    let export = |cache: &str| {
        one.run_hqdl(&["cache", "export", "--cache", cache]).expect_exit_code(0).stdout
    };
    let sorted = |text: &str| {
        // Tokens and price are the cell's share of its request; an import is not a request.
        let fact = |line: &str| {
            let mut json: Json = serde_json::from_str(line).unwrap();
            ["input_tokens", "output_tokens", "cost_usd"].iter().for_each(|name| {
                json.as_object_mut().unwrap().remove(*name);
            });
            json.to_string()
        };
        let mut lines: Vec<String> = text.lines().map(fact).collect();
        lines.sort();
        lines
    };
    let here = one.path("cache").display().to_string();
    let lines = export(&here);
    std::fs::write(one.path("facts.jsonl"), &lines).unwrap();
    for cache in [first.as_str(), second.as_str(), "back"] {
        let import = |expected: usize| {
            let said =
                one.run_hqdl(&["cache", "import", "facts.jsonl", "--json", "--cache", cache]);
            assert_eq!(said.expect_exit_code(0).lines[0]["imported"], expected, "{cache}");
        };
        import(CELLS);
        import(0);
        let again = export(cache);
        assert_eq!(sorted(&again), sorted(&lines), "{cache}");
        std::fs::write(one.path("facts.jsonl"), again).unwrap();
    }
    // The facts count on the server, too.
    let before = endpoint.request_count();
    run(&machine(&endpoint, &heroes_spec()), &first, "60", &ROWS).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before);
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn denied_access_is_explained_without_the_password() {
    let endpoint = truthful_endpoint();
    let one = machine(&endpoint, &heroes_spec());
    let server = postgres::shared_server();
    let cache = server.create_database();
    let name = cache.rsplit('/').next().unwrap();
    let port = server.port();
    server.execute_sql("postgres", "CREATE DATABASE guarded");
    let roles = "CREATE ROLE keeper LOGIN PASSWORD 'a word nobody knows'; CREATE ROLE guest LOGIN";
    server.execute_sql("postgres", roles);
    let guarded = format!("postgres://keeper@127.0.0.1:{port}/guarded");
    let tried = |cache: &str, variable: (&str, &str)| {
        let args = ["cache", "stats", "--cache", cache];
        let mut command = one.hqdl_command(&args);
        command.env("HQDL_LEASE", "1").env(variable.0, variable.1);
        let ended = CommandResult::new(&command.output().unwrap());
        for text in [&ended.stdout, &ended.stderr] {
            assert!(!text.contains("a word nobody knows"), "{text}");
        }
        ended
    };
    let none = ("PGAPPNAME", "");
    let refuses = |cache: &str, variable, code, words: &[&str]| {
        let ended = tried(cache, variable).expect_exit_code(code);
        for word in words {
            assert!(ended.stderr.contains(word), "no {word:?} in:\n{}", ended.stderr);
        }
    };
    refuses(
        "postgres://keeper:a word nobody knows@127.0.0.1/x",
        none,
        2,
        &["contains a password", "PGPASSWORD"],
    );
    refuses(&format!("{guarded}?password=a%20word"), none, 2, &["contains a password"]);
    refuses("postgres://127.0.0.1:99999999/x", none, 2, &["postgres://user@host:port/database"]);
    refuses("postgres://127.0.0.1/x?sslmode=nonsense", none, 2, &["nonsense", "verify-full"]);
    refuses("postgres://127.0.0.1/x?nonsense=1", none, 2, &["nonsense"]);
    refuses("postgres://owner@127.0.0.1:1/x", none, 5, &["cannot be reached", "hqdl retries"]);
    refuses(&format!("{cache}nowhere"), none, 2, &["does not exist", "createdb"]);
    refuses(&guarded, none, 2, &["password", "~/.pgpass"]);
    refuses(&guarded, ("PGPASSWORD", "wrong"), 2, &["password authentication failed", "~/.pgpass"]);
    refuses(&format!("{cache}?sslmode=require"), none, 2, &["sslmode"]);
    // The right password is accepted, from the environment and from the file.
    server.execute_sql("guarded", "CREATE SCHEMA hqdl AUTHORIZATION keeper");
    tried(&guarded, ("PGPASSWORD", "a word nobody knows")).expect_exit_code(0);
    let file = one.path(".pgpass");
    std::fs::write(&file, "*:*:elsewhere:*:no\n127.0.0.1:*:guarded:keeper:a word nobody knows\n")
        .unwrap();
    refuses(&guarded, none, 2, &["~/.pgpass"]);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    tried(&guarded, none).expect_exit_code(0);
    // A guest can neither create nor read anything; a reader can read.
    let guest = cache.replace("owner@", "guest@");
    refuses(&guest, none, 2, &["permission denied", "a role with this permission"]);
    tried(&cache, none).expect_exit_code(0);
    refuses(&guest, none, 2, &["permission denied", "a role with this permission"]);
    server.execute_sql(
        name,
        "GRANT USAGE ON SCHEMA hqdl TO guest; GRANT SELECT ON ALL TABLES IN SCHEMA hqdl TO guest",
    );
    tried(&guest, none).expect_exit_code(0);
    // A newer schema, and one that is read-only.
    server.execute_sql(
        name,
        &format!("ALTER DATABASE {name} SET default_transaction_read_only = on"),
    );
    let asks =
        one.run_hqdl(&["materialize", "specs/x.toml", "--cache", &cache]).expect_exit_code(2);
    assert!(
        asks.stderr.contains("read-only") && asks.stderr.contains("primary"),
        "{}",
        asks.stderr
    );
    server.execute_sql(
        "postgres",
        &format!("ALTER DATABASE {name} RESET default_transaction_read_only"),
    );
    server.execute_sql(name, "INSERT INTO hqdl.migration (version) VALUES (999)");
    refuses(&cache, none, 2, &["version 999", "newer"]);
    assert_eq!(endpoint.request_count(), 0);
}

/// The roles of docs/guides/shared-cache.md, created as described: what each may do, and the error
/// otherwise.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn owner_worker_and_reader_have_their_roles_permissions() {
    let endpoint = truthful_endpoint();
    let one = machine(&endpoint, &heroes_spec());
    let server = Server::start_server();
    server.execute_sql("postgres", "CREATE DATABASE facts");
    let text = std::fs::read_to_string(
        hqdl_testkit::repository_root().join("docs/guides/shared-cache.md"),
    )
    .unwrap();
    let sql = text.split("```sql\n").nth(1).unwrap().split("```").next().unwrap();
    let (owner, others) = sql.split_once("\n\n").unwrap();
    server.execute_sql("facts", owner);
    let cache = |role: &str| server.database_url("facts").replace("owner@", &format!("{role}@"));
    let stats = |role: &str| one.run_hqdl(&["cache", "stats", "--json", "--cache", &cache(role)]);
    stats("hqdl_owner").expect_exit_code(0);
    server.execute_sql("facts", others);
    server.execute_sql(
        "facts",
        "CREATE ROLE worker LOGIN IN ROLE hqdl_worker; CREATE ROLE reader LOGIN IN ROLE hqdl_reader",
    );
    run(&one, &cache("worker"), "60", &["--limit", "40"]).expect_exit_code(0);
    assert_eq!(stats("reader").expect_exit_code(0).lines[0]["entities"], 40);
    let reader = cache("reader");
    let query = |sql: &str| {
        one.run_hqdl(&[
            "query",
            "--spec",
            "specs/x.toml",
            "--cache",
            &reader,
            "--format",
            "csv",
            sql,
        ])
    };
    let known = query("SELECT count(motto) FROM llm").expect_exit_code(0);
    assert_eq!(known.stdout.trim(), "count(motto)\n40");
    // A call whose column is complete is read from the facts, and so is a live question with stored
    // answers.
    let routed = "SELECT count({{LLMMap('What is the eye colour?', hero.name, hero.full_name)}}) AS n FROM hero WHERE id <= 5";
    let live = "SELECT {{LLMMap('What is the motto?', hero.name)}} AS motto FROM hero WHERE id = 1";
    let as_worker =
        ["query", "--spec", "specs/x.toml", "--cache", &cache("worker"), "--format", "csv", live];
    let brought = one.run_hqdl(&as_worker).expect_exit_code(0).stdout;
    let asked = endpoint.request_count();
    assert_eq!(query(routed).expect_exit_code(0).stdout.trim(), "n\n5");
    assert_eq!(query(live).expect_exit_code(0).stdout, brought);
    one.run_hqdl(&["plan", "specs/x.toml", "--cache", &reader]).expect_exit_code(0);
    one.run_hqdl(&["cache", "export", "x.jsonl", "--cache", &reader]).expect_exit_code(0);
    let live = query("SELECT {{LLMMap('Is it real?', hero.name)}} FROM hero").expect_exit_code(2);
    assert!(live.stderr.contains("permission denied"), "{}", live.stderr);
    assert!(live.stderr.contains("a role with this permission"), "{}", live.stderr);
    let fills =
        one.run_hqdl(&["materialize", "specs/x.toml", "--cache", &reader]).expect_exit_code(2);
    assert!(fills.stderr.contains("permission denied"), "{}", fills.stderr);
    assert_eq!(endpoint.request_count(), asked);
}

/// Answers that arrive while the server's disk is full are kept, and sent when there is space.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_full_disk_of_the_server_costs_nothing() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(40)), Frequency::Always);
    let cache = postgres::create_database();
    let one = machine(&endpoint, &heroes_spec());
    let running = start(&one, &cache, "6", &ROWS);
    endpoint.wait_for(8);
    let full = "CREATE FUNCTION hqdl.is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100';
        END $$;
        CREATE TRIGGER is_full BEFORE INSERT ON hqdl.completion EXECUTE FUNCTION hqdl.is_full()";
    sql_at(&cache, full);
    let ended = running.wait_for_exit().expect_exit_code(5);
    assert!(ended.stderr.contains("No space left on device"), "{}", ended.stderr);
    assert!(ended.stderr.contains("all answers are kept"), "{}", ended.stderr);
    sql_at(&cache, "DROP TRIGGER is_full ON hqdl.completion");
    run(&one, &cache, "60", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&one), complete());
    assert_once(&endpoint);
}

/// A self-signed certificate is trusted if a file contains it, whatever its purpose; if encryption
/// is only preferred, it is not checked.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn connections_are_encrypted_and_certificates_checked() {
    let endpoint = truthful_endpoint();
    let one = machine(&endpoint, &heroes_spec());
    let server = Server::start_server();
    let own = hqdl_testkit::create_certificate(&one.path("."), true).expect("openssl makes one");
    server.enable_tls(&own);
    std::fs::write(one.path("own.pem"), &own.0).unwrap();
    let other = hqdl_testkit::create_certificate(&one.path("."), false).unwrap();
    std::fs::write(one.path("other.pem"), &other.0).unwrap();
    std::fs::write(one.path("none.pem"), "none").unwrap();
    server.execute_sql("postgres", "CREATE DATABASE secured");
    let stats = |parameters: &str| {
        let mut cache = server.database_url("secured");
        cache.push_str(parameters);
        let args = ["cache", "stats", "--json", "--cache", &cache];
        let mut command = one.hqdl_command(&args);
        command.env("HQDL_LEASE", "1");
        CommandResult::new(&command.output().unwrap())
    };
    wait_until("the server encrypts", || stats("").code == 0);
    stats("?sslmode=require&sslrootcert=own.pem").expect_exit_code(0);
    stats("?sslmode=verify-full&sslrootcert=own.pem").expect_exit_code(0);
    stats("?sslrootcert=own.pem").expect_exit_code(0);
    for (parameters, says) in [
        ("?sslmode=disable", "no encryption"),
        ("?sslmode=require", "certificate"),
        ("?sslmode=require&sslrootcert=other.pem", "certificate"),
        ("?sslrootcert=other.pem", "certificate"),
        ("?sslmode=require&sslrootcert=none.pem", "it contains no certificate"),
        ("?sslmode=require&sslrootcert=nowhere.pem", "nowhere.pem"),
    ] {
        let ended = stats(parameters).expect_exit_code(2);
        assert!(ended.stderr.contains(says), "{parameters}: {}", ended.stderr);
    }
    let cache = format!("{}?sslmode=require&sslrootcert=own.pem", server.database_url("secured"));
    run(&one, &cache, "60", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&one), complete());
}

/// A damaged line affects only its own cells.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_damaged_line_is_skipped_and_its_cells_requested_again() {
    let endpoint = truthful_endpoint();
    let cache = postgres::create_database();
    let [one, other] = [machine(&endpoint, &heroes_spec()), machine(&endpoint, &heroes_spec())];
    run(&one, &cache, "60", &ROWS).expect_exit_code(0);
    let damage = "UPDATE hqdl.answer SET cells = 'no JSON' || cells
        WHERE line = (SELECT min(line) FROM hqdl.answer) RETURNING line";
    assert_eq!(sql_at(&cache, damage).len(), 1);
    let before = endpoint.cells_since(0).len();
    run(&other, &cache, "60", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&other), complete());
    assert_eq!(endpoint.cells_since(0).len() - before, COLUMN_NAMES.len());
    // If it was published before, its rows are checked again.
    run(&one, &cache, "60", &ROWS).expect_exit_code(0);
    assert_eq!(check_cells(&one), complete());
    let changed = "SELECT count(*) FROM hqdl.meaning WHERE changed > 0";
    assert_eq!(sql_at(&cache, changed)[0][0].as_deref(), Some("4"));
    // The spending for the others is counted.
    let daemon = Daemon::start(&one, &["--cache", &cache]);
    daemon.wait_until_idle("complete");
    daemon.get("/").expect_status(200);
}

/// Keys and values that a server's text, or an index, cannot contain.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn values_of_every_type_and_size_are_stored_unchanged() {
    let endpoint = truthful_endpoint();
    let spec = [MODEL, "[[expansion]]\nname = \"llm\"\nsource = \"page\"\nkey = [\"text\"]\nrows_per_request = 1\n\n[[expansion.column]]\nname = \"motto\"\n"].concat();
    // Keys with a long common prefix, and different endings in another order.
    let sql = "CREATE TABLE page (text TEXT);
        INSERT INTO page VALUES ('a' || char(0) || 'b'), ('back\\slash'), (''), ('short');
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12)
        INSERT INTO page SELECT replace(hex(zeroblob(1000)), '0', 'ab') || (i * 7 % 12) FROM n;
        INSERT INTO page SELECT replace(hex(zeroblob(2000)), '0', 'cd');";
    let one = Project::new(&endpoint, sql, &spec);
    let cache = postgres::create_database();
    one.run_materialize(&["--cache", &cache]).expect_exit_code(0);
    let shown = "SELECT count(*), count(motto), count(DISTINCT motto) FROM llm";
    let rows = one.query_rows(shown);
    one.execute_sql("DROP TABLE llm");
    let before = endpoint.request_count();
    one.run_materialize(&["--cache", &cache]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before, "all of it was known");
    assert_eq!(one.query_rows(shown), rows);
    let listed = one.run_hqdl(&["cache", "list", "--json", "--cache", &cache]).expect_exit_code(0);
    let here = one.run_hqdl(&["cache", "export", "x.jsonl", "--cache", &cache]).expect_exit_code(0);
    assert_eq!(here.code, 0);
    one.run_hqdl(&["cache", "import", "x.jsonl", "--cache", "local"]).expect_exit_code(0);
    let local = one.run_hqdl(&["cache", "list", "--json", "--cache", "local"]).expect_exit_code(0);
    assert_eq!(listed.stdout, local.stdout, "the same facts in the same order");
}

/// Measures the figures of docs/reference/shared-cache.md that depend on waiting, not on
/// processors, and prints them.
#[test]
#[ignore = "measures for a minute or more: cargo test --test runs -- --ignored --nocapture fleet::measure"]
fn measure_a_shared_limit_and_a_high_latency() {
    let many = |endpoint: &Endpoint, rows: usize, spec: &str| {
        let sql = format!(
            "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
        );
        Project::new(endpoint, &sql, spec)
    };
    let one_row = ["--rows-per-request", "1", "--concurrency", "16"];
    let slow = || {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Latency(Duration::from_millis(200)), Frequency::Always);
        endpoint
    };
    // A high latency to the server costs a run little.
    for delay in [0, 25] {
        let endpoint = slow();
        let proxy = Proxy::new_to_port(postgres::shared_server().port());
        proxy.set_delay(delay);
        let cache = proxy.database_url(&postgres::create_database());
        let one = many(&endpoint, 1500, &heroes_spec());
        for what in ["asks", "knows"] {
            let began = Instant::now();
            run(&one, &cache, "90", &one_row).expect_exit_code(0);
            let took = began.elapsed().as_secs_f64();
            println!("{} ms there and back: it {what} in {took:.2} s", delay * 2);
        }
    }
    let endpoint = slow();
    let cache = postgres::create_database();
    let limited =
        heroes_spec().replace("concurrency = 4", "concurrency = 4\nrequests_per_minute = 6000");
    let all: Vec<_> = (0..8).map(|_| many(&endpoint, 3500, &limited)).collect();
    let began = Instant::now();
    let running: Vec<_> = all.iter().map(|one| start(one, &cache, "90", &one_row)).collect();
    running.into_iter().for_each(|running| drop(running.wait_for_exit().expect_exit_code(0)));
    let took = began.elapsed().as_secs_f64();
    let mut times: Vec<_> = endpoint.received_requests().iter().map(|r| r.received_at).collect();
    times.sort();
    let within = |seconds: f64| {
        let end =
            |n: usize| times.partition_point(|t| *t < times[n] + Duration::from_secs_f64(seconds));
        (0..times.len()).map(|n| end(n) - n).max().unwrap()
    };
    let first = times[0];
    let of_20 = times.iter().filter(|t| (4.0..24.0).contains(&(**t - first).as_secs_f64())).count();
    println!(
        "{} requests in {took:.1} s, {of_20} in 20 s of them: {:.3} of the limit",
        times.len(),
        of_20 as f64 / 2000.0
    );
    println!(
        "the most in a second {}, in 20 s {}, in a minute {}",
        within(1.0),
        within(20.0),
        within(60.0)
    );
}
