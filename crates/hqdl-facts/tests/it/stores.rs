//! Contract tests of the fact stores. Each test runs with two sessions that share a store of each
//! kind: [`local`] and [`server`].

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hqdl_facts::limits::{Need, PerMinute, RateLimitHint};
use hqdl_facts::{
    BatchedRequest, ClaimKey, CommitUnit, Completion, Fact, FactStore, Facts, Outcome, Record,
    RemainingWait, ReserveOutcome, RunId,
};
use hqdl_values::Row;
use hqdl_values::cell::{Answer, CellValue};
use hqdl_values::key::{ColumnIdentity, Entity, KeyColumns};
use hqdl_values::usage::SpentAmount;
use hqdl_values::value::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use hqdl_testkit::daemon::wait_until;
use hqdl_testkit::postgres;

/// Two sessions that share a store of some kind.
struct Pair {
    what: &'static str,
    one: Facts,
    other: Facts,
    runtime: Runtime,
    _keeps: Keeps,
}

/// Resources that live as long as a pair.
enum Keeps {
    Local { _dir: TempDir },
    Server { _dir: TempDir },
}

fn local() -> Vec<Pair> {
    let pair = |what, indexed: [bool; 2]| {
        let dir = tempfile::tempdir().unwrap();
        let open = |with_index: bool| {
            if with_index {
                Facts::open_with_index(dir.path(), "hqdl test", Duration::ZERO).unwrap()
            } else {
                Facts::open(dir.path(), "hqdl test").unwrap()
            }
        };
        let [one, other] = indexed.map(open);
        let runtime = Runtime::new().unwrap();
        Pair { what, one, other, runtime, _keeps: Keeps::Local { _dir: dir } }
    };
    vec![
        pair("a daemon and a command", [true, false]),
        pair("a command and a daemon", [false, true]),
        pair("two commands", [false, false]),
    ]
}

fn server() -> Vec<Pair> {
    let dir = tempfile::tempdir().unwrap();
    let url = postgres::create_database();
    let begin = || {
        let say = Arc::new(|line: &str| println!("{line}"));
        Facts::connect_to_server(&url, dir.path(), "hqdl test", say).unwrap()
    };
    let (one, other) = (begin(), begin());
    let runtime = Runtime::new().unwrap();
    vec![Pair { what: "a server", one, other, runtime, _keeps: Keeps::Server { _dir: dir } }]
}

/// Runs each of these tests with every kind of store.
macro_rules! of_every_store {
    ($($name:ident)*) => {
        mod on_one_machine {
            $(#[test] fn $name() { super::$name(super::local()); })*
        }
        mod on_a_server {
            $(
                #[test]
                #[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
                fn $name() { super::$name(super::server()); }
            )*
        }
    };
}

of_every_store! {
    sessions_share_records_and_history
    all_facts_about_an_entity_are_found
    ids_are_shared_and_permanent
    one_session_at_a_time_owns_a_key_and_waiters_are_notified
    a_session_that_ends_releases_everything
    sessions_of_a_store_share_the_daily_budget
    facts_are_imported_once_and_invalid_ones_never
    the_last_of_many_lines_for_a_cell_is_imported
    stored_values_are_read_unchanged
    replaced_values_outdate_published_tables
    no_session_sees_older_values_than_before
    a_split_request_is_one_or_two
    sessions_share_the_rate_limits
    the_strictest_limit_reported_to_any_key_applies
    a_column_costs_the_shares_of_its_cells
    rejected_features_are_shared
}

fn entity(name: &str) -> Entity {
    KeyColumns::new(vec!["name".to_owned()]).build_entity(&[Value::from(name.to_owned())])
}

fn identity() -> ColumnIdentity {
    ColumnIdentity {
        key: vec!["name".to_owned()],
        column: "motto".to_owned(),
        kind: "text".to_owned(),
        about: "the motto".to_owned(),
        many: false,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    }
}

/// Returns a commit unit with answers about some entities, for a run.
fn unit(facts: &Facts, run: RunId, names: &[&str], value: &str) -> CommitUnit {
    let history = facts.history();
    let (model, of) = (
        history.intern_model("a model").unwrap(),
        history.intern_column_identity(&identity()).unwrap(),
    );
    let fact = Fact {
        identity_id: of,
        model,
        list: None,
        completion: 0,
        asked: 0,
        answer: Answer::ok(CellValue::One(Value::from(value.to_owned()))),
        logprob: Some(-0.125),
    };
    CommitUnit {
        completion: Completion {
            run,
            model,
            prompt_hash: format!("p1:{value}"),
            content: Some(value.to_owned()),
            parameters: Some(format!(r#"{{"seed":"{value}"}}"#)),
            cost_usd: 0.25,
            assumed_cache_writes: 7,
            asked_at: "2026-11-21T00:00:00Z".to_owned(),
            cells: names.len() as u64,
            ..Completion::default()
        },
        facts: names.iter().map(|name| (entity(name), vec![fact.clone()])).collect(),
        ..CommitUnit::default()
    }
}

fn values(found: &[Option<Record>]) -> Vec<Option<String>> {
    let value = |record: &Record| match &record.facts[0].answer.value {
        CellValue::One(value) => value.to_string(),
        other => panic!("{other:?}"),
    };
    found.iter().map(|record| record.as_ref().map(value)).collect()
}

fn sessions_share_records_and_history(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        runtime.block_on(one.commit_unit(unit(one, run, &["B", "A"], "first"))).unwrap();
        runtime.block_on(other.commit_unit(unit(other, run, &["C"], "second"))).unwrap();
        let (a, b, c, d) = (entity("A"), entity("B"), entity("C"), entity("D"));
        let asked = [&c, &a, &d, &b];
        let expected = ["second", "first", "", "first"];
        let expected: Vec<_> =
            expected.map(|v| Some(v.to_owned()).filter(|v| !v.is_empty())).to_vec();
        for facts in [one, other] {
            let latest = runtime.block_on(facts.get_latest_records(&asked)).unwrap();
            assert_eq!(values(&latest), expected, "{what}");
            assert_eq!(values(&facts.sync().get_records(&asked).unwrap()), expected, "{what}");
            let all: Vec<Entity> = facts.iter().map(|entry| entry.unwrap().0).collect();
            assert_eq!(all, [a.clone(), b.clone(), c.clone()], "{what}: in the order of entities");
            assert!(facts.read_page(c.as_str()).unwrap().is_empty(), "{what}: none after the last");
            let spent = facts.history().sum_run_cost(run).unwrap();
            assert!((spent.usd - 0.5).abs() < 1e-9, "{what}: {spent:?}");
            let totals = facts.history().load_totals().unwrap();
            assert_eq!((totals.requests, totals.assumed_cache_writes), (2, 14), "{what}");
            let last = facts.history().load_last_completion_id().unwrap();
            let (completion, model) = facts.history().load_completion(last).unwrap().unwrap();
            assert_eq!((completion.assumed_cache_writes, &*model), (7, "a model"), "{what}");
        }
        assert_eq!(
            one.history().load_journal_position().unwrap(),
            other.history().load_journal_position().unwrap(),
            "{what}"
        );
        assert_eq!(one.rebuild_records().unwrap(), 3, "{what}");
        assert_eq!(values(&other.get_records(&asked).unwrap()), expected, "{what}: made again");
    }
}

fn all_facts_about_an_entity_are_found(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        for value in ["first", "second"] {
            runtime.block_on(one.commit_unit(unit(one, run, &["A", "B"], value))).unwrap();
        }
        let found = other.history().load_facts(&entity("A")).unwrap();
        let values: Vec<String> =
            found.iter().map(|f| f.answer.value.to_json().to_string()).collect();
        assert_eq!(values, ["\"first\"", "\"second\""], "{what}");
        assert!(found[0].completion < found[1].completion, "{what}");
        assert_eq!(other.history().load_facts(&entity("Z")).unwrap(), [], "{what}");
    }
}

fn ids_are_shared_and_permanent(pairs: Vec<Pair>) {
    for Pair { what, one, other, .. } in &pairs {
        let (one, other) = (one.history(), other.history());
        for _ in 0..2 {
            assert_eq!(one.intern_model("m").unwrap(), other.intern_model("m").unwrap(), "{what}");
            assert_eq!(
                other.intern_column_identity(&identity()).unwrap(),
                one.intern_column_identity(&identity()).unwrap()
            );
        }
        assert_eq!(one.load_journal_id().unwrap(), other.load_journal_id().unwrap(), "{what}");
    }
}

fn one_session_at_a_time_owns_a_key_and_waiters_are_notified(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in pairs {
        let key = |name: &str| ClaimKey::Cell { entity: entity(name), identity_id: 1, model: 1 };
        runtime.block_on(async {
            let first = one.claim_keys(vec![key("A"), key("B")]).await.unwrap();
            assert_eq!(first.granted(), [true, true], "{what}");
            let second = other.claim_keys(vec![key("B"), key("C")]).await.unwrap();
            assert_eq!(second.granted(), [false, true], "{what}");
            let wanted = key("B");
            let mut waiting = other.wait_for_release(&wanted);
            assert!((&mut waiting).now_or_never().is_none(), "{what}: it is held");
            drop(first);
            waiting.await.unwrap();
            drop(second);
            let again = other.claim_keys(vec![key("B")]).await.unwrap();
            assert_eq!(again.granted(), [true], "{what}");
            drop(again);
        });
        let lock = one.try_lock("a lock").unwrap().unwrap();
        assert!(other.try_lock("a lock").unwrap().is_none(), "{what}");
        drop(lock);
        let (_go, interrupt) = tokio::sync::watch::channel(false);
        assert!(other.lock("a lock", &interrupt).unwrap().is_some(), "{what}");
    }
}

/// A session that has ended owns nothing, and the cost of its requests in flight is in doubt.
fn a_session_that_ends_releases_everything(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in pairs {
        let (gone, stays) = (other, one);
        let run = gone.history().start_run("test", "a spec").unwrap();
        let key = ClaimKey::Name("something".to_owned());
        let most = SpentAmount { usd: 1.0, tokens: 10 };
        runtime.block_on(async {
            // Claim without a guard that releases the key, as if the process were killed.
            let granted = FactStore::claim_keys(&*gone, std::slice::from_ref(&key)).await.unwrap();
            assert_eq!(granted, [true], "{what}");
            let noted = gone.reserve_cost(run, most, None, None).await.unwrap();
            assert!(matches!(noted, ReserveOutcome::Reserved(_)), "{what}: {noted:?}");
        });
        assert!(stays.history().is_run_active(run).unwrap(), "{what}: it is somebody's");
        drop(gone);
        runtime.block_on(async {
            stays.wait_for_release(&key).await.unwrap();
            assert_eq!(stays.claim_keys(vec![key]).await.unwrap().granted(), [true], "{what}");
        });
        let began = Instant::now();
        while stays.history().is_run_active(run).unwrap() {
            assert!(began.elapsed() < Duration::from_secs(120), "{what}: its session goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (next, doubt) = stays.history().resume_or_start_run("test", "a spec").unwrap();
        assert_eq!((next, doubt.requests, doubt.max_spent), (run, 1, most), "{what}");
    }
}

fn sessions_of_a_store_share_the_daily_budget(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        let next = other.history().start_run("test", "another spec").unwrap();
        let all = SpentAmount { usd: 1.0, tokens: 1 };
        runtime.block_on(async {
            let ReserveOutcome::Reserved(note) =
                one.reserve_cost(run, all, Some(1.0), None).await.unwrap()
            else {
                panic!("{what}: the day has begun");
            };
            let mut waiting = other.reserve_cost(next, all, Some(1.0), None);
            assert!((&mut waiting).now_or_never().is_none(), "{what}: it is held");
            one.finish_reservation(note, false).await.unwrap();
            let ReserveOutcome::Reserved(note) = waiting.await.unwrap() else {
                panic!("{what}: it is free")
            };
            // A reservation in doubt counts for the rest of the day.
            other.finish_reservation(note, true).await.unwrap();
            let beyond = one.reserve_cost(run, all, Some(1.0), None).await.unwrap();
            assert!(
                matches!(beyond, ReserveOutcome::BudgetExceeded(gone) if gone >= 1.0),
                "{what}: {beyond:?}"
            );
        });
        let history = one.history();
        assert!((other.history().sum_run_cost(next).unwrap().usd - 1.0).abs() < 1e-9, "{what}");
        history.finish_run(run, Outcome::Complete).unwrap();
        assert!(!other.history().is_run_active(run).unwrap(), "{what}");
        let ended = runtime.block_on(one.reserve_cost(run, all, None, None)).unwrap();
        assert_eq!(
            ended,
            ReserveOutcome::RunEnded,
            "{what}: nothing leaves for a run that has ended"
        );
    }
}

fn facts_are_imported_once_and_invalid_ones_never(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        runtime.block_on(one.commit_unit(unit(one, run, &["A", "B"], "value"))).unwrap();
        let mut lines = Vec::new();
        assert_eq!(other.export(&mut lines).unwrap(), 2, "{what}");
        assert_eq!(other.import_facts(&mut &*lines).unwrap(), 0, "{what}: all is known");
        let fresh = Facts::open_temporary().unwrap();
        assert_eq!(fresh.import_facts(&mut &*lines).unwrap(), 2, "{what}");
        assert_eq!(values(&[fresh.get(&entity("A")).unwrap()]), [Some("value".to_owned())]);
        let more = String::from_utf8(lines).unwrap().replace("\"A\"", "\"Z\"");
        let broken = format!("{more}no line\n");
        let error = other.import_facts(&mut broken.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 3"), "{what}: {error}");
        assert_eq!(other.sync().get(&entity("Z")).unwrap(), None, "{what}: none of it");
    }
}

/// An import with more lines than are held in memory at once, and lines for one cell far apart.
fn the_last_of_many_lines_for_a_cell_is_imported(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        runtime.block_on(one.commit_unit(unit(one, run, &["A"], "value"))).unwrap();
        let mut lines = Vec::new();
        one.export(&mut lines).unwrap();
        let line = String::from_utf8(lines).unwrap().replace("2026-11-21", "2026-11-22");
        let mut all: String =
            (0..5000).map(|n| line.replace("\"A\"", &format!("\"N{n}\""))).collect();
        for (name, value) in [("N0", "later"), ("A", "other")] {
            all += &line
                .replace("\"A\"", &format!("\"{name}\""))
                .replace(":\"value\"", &format!(":\"{value}\""));
        }
        assert_eq!(other.import_facts(&mut all.as_bytes()).unwrap(), 5002, "{what}");
        let names = ["A", "N0", "N1", "N4999"].map(entity);
        let found = runtime.block_on(one.get_latest_records(&names.each_ref())).unwrap();
        let expected = ["other", "later", "value", "value"].map(|v| Some(v.to_owned()));
        assert_eq!(values(&found), expected, "{what}");
        assert_eq!(other.import_facts(&mut line.as_bytes()).unwrap(), 0, "{what}");
    }
}

/// A model can write any text, but a server's text cannot contain NUL.
fn stored_values_are_read_unchanged(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        let long = "text of a page. ".repeat(1 << 20);
        for value in ["a\0b", "\\u0000 \\ \"quoted\"", "\u{1F600}\r\n\t", &long] {
            runtime.block_on(one.commit_unit(unit(one, run, &[value], value))).unwrap();
            let name = entity(value);
            let found = runtime.block_on(other.get_latest_records(&[&name])).unwrap();
            assert_eq!(values(&found), [Some(value.to_owned())], "{what}");
            let completion = found[0].as_ref().unwrap().facts[0].completion;
            let (kept, _) = other.history().load_completion(completion).unwrap().unwrap();
            assert!(kept.content.as_deref() == Some(value), "{what}: {} bytes", value.len());
        }
        // Compare what the store itself reports, not only what the test stored.
        assert!(one.history().find_damage(0).unwrap().is_empty(), "{what}");
        assert_eq!(other.iter().count(), 4, "{what}");
    }
}

/// Published tables count as outdated exactly if a value is replaced by a different one, no matter
/// which session replaces it.
fn replaced_values_outdate_published_tables(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        let of = one.history().intern_column_identity(&identity()).unwrap();
        let keep = |facts: &Facts, names: &[&str], value| {
            runtime.block_on(facts.commit_unit(unit(facts, run, names, value))).unwrap();
            let (id, last) = one.history().load_journal_position().unwrap();
            assert_eq!(other.history().load_journal_position().unwrap(), (id, last), "{what}");
            last
        };
        assert_eq!(
            (keep(one, &["A", "B"], "x"), one.history().find_last_changed_row(of).unwrap()),
            (2, 0)
        );
        assert_eq!(
            (keep(other, &["A"], "x"), one.history().find_last_changed_row(of).unwrap()),
            (3, 0)
        );
        assert_eq!(
            (keep(other, &["B", "C"], "y"), one.history().find_last_changed_row(of).unwrap()),
            (5, 4)
        );
        let since = other.history().find_entities_answered_since(3, &[of]).unwrap();
        assert_eq!(since, [entity("B"), entity("C")].into(), "{what}");
    }
}

/// Whatever two sessions do in whatever order, a session reads one of the values that an entity has
/// had. It never reads an older value than it has seen, or than the store had when the session last
/// accessed it in any way.
fn no_session_sees_older_values_than_before(pairs: Vec<Pair>) {
    const NAMES: [&str; 4] = ["A", "B", "C", "D"];
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        let of = one.history().intern_column_identity(&identity()).unwrap();
        let all: Vec<Entity> = NAMES.iter().map(|name| entity(name)).collect();
        let mut kept = [0; NAMES.len()];
        // Minimum that each session must see: versions of the entities, and the line that changed a
        // value.
        let mut floors = [[0; NAMES.len()]; 2];
        let (mut changed, mut lines) = (0, [0; 2]);
        let mut random = fastrand::Rng::with_seed(17);
        for step in 1..=400 {
            let who = random.usize(..2);
            let facts = [one, other][who];
            let wanted: Vec<usize> = (0..NAMES.len()).filter(|_| random.bool()).collect();
            let entities: Vec<&Entity> = wanted.iter().map(|n| &all[*n]).collect();
            let mut seen = true;
            match random.usize(..8) {
                0 | 1 => {
                    let names: Vec<&str> = wanted.iter().map(|n| NAMES[*n]).collect();
                    let unit = unit(facts, run, &names, &step.to_string());
                    runtime.block_on(facts.commit_unit(unit)).unwrap();
                    changed = facts.history().find_last_changed_row(of).unwrap();
                    wanted.iter().for_each(|n| kept[*n] = step);
                }
                2 => drop(facts.history().load_journal_position().unwrap()),
                3 => drop(runtime.block_on(facts.get_latest_records(&entities)).unwrap()),
                4 => facts.catch_up().unwrap(),
                _ => seen = false,
            }
            if seen {
                (floors[who], lines[who]) = (kept, changed);
            }
            for (n, value) in wanted.iter().zip(values(&facts.get_records(&entities).unwrap())) {
                let value = value.map_or(0, |v| v.parse::<i32>().unwrap());
                let floor = &mut floors[who][*n];
                assert!((*floor..=kept[*n]).contains(&value), "{what}, step {step}: {value}");
                *floor = value;
            }
            let line = facts.history().find_last_changed_row(of).unwrap();
            assert!((lines[who]..=changed).contains(&line), "{what}, step {step}: line {line}");
            lines[who] = line;
        }
        let all: Vec<&Entity> = all.iter().collect();
        for facts in [one, other] {
            wait_until("what the other has kept is seen", || {
                values(&facts.sync_for_read().get_records(&all).unwrap())
                    == kept.map(|v| Some(v.to_string()))
            });
        }
    }
}

/// The rows of a queued request are always in exactly one queued request, even if the split fails
/// halfway.
fn a_split_request_is_one_or_two(pairs: Vec<Pair>) {
    for Pair { what, one, .. } in &pairs {
        let history = one.history();
        let run = history.start_run("test", "a spec").unwrap();
        let row = |name: &&str| {
            let key = vec![Value::from((*name).to_owned())];
            (entity(name), Row { key, context: Vec::new() })
        };
        let rows: Vec<_> = ["A", "B", "C"].iter().map(row).collect();
        let request = BatchedRequest {
            id: 0,
            template: history.store_template("a form").unwrap(),
            model: history.intern_model("a model").unwrap(),
            columns: vec![0],
            source_columns: vec![0],
            identity_ids: vec![history.intern_column_identity(&identity()).unwrap()],
            rows: rows.clone(),
            attempt: 1,
            sent_count: 0,
            run,
            sent_at: String::new(),
            worst_case: SpentAmount::default(),
        };
        history.enqueue_requests(run, &[request]).unwrap();
        let mut first = history.find_next_request(run, 0).unwrap().unwrap();
        let journal = one.dir().join("journal.sqlite");
        if journal.exists() {
            // Simulate a full disk when the second request is written.
            let journal = rusqlite::Connection::open(journal).unwrap();
            let full = "CREATE TRIGGER full BEFORE INSERT ON request BEGIN SELECT RAISE(ABORT, 'full'); END";
            journal.execute_batch(full).unwrap();
            history.split_request(run, &mut first, 1).unwrap_err();
            assert_eq!(first.rows, rows, "{what}: in memory");
            let kept = history.find_next_request(run, 0).unwrap().unwrap();
            assert_eq!(kept.rows, rows, "{what}: in the journal");
            journal.execute_batch("DROP TRIGGER full").unwrap();
        }
        history.split_request(run, &mut first, 1).unwrap();
        let kept = history.find_next_request(run, 0).unwrap().unwrap();
        let rest = history.find_next_request(run, kept.id).unwrap().unwrap();
        assert_eq!(
            (&first.rows, kept.rows, rest.rows),
            (&rows[..1].to_vec(), rows[..1].to_vec(), rows[1..].to_vec()),
            "{what}"
        );
        assert_eq!(history.count_queued_requests(run).unwrap(), 2, "{what}");
    }
}

/// Ids read from one cache are not used for another cache.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn ids_are_reread_if_another_cache_replaces_one() {
    let (dir, url) = (tempfile::tempdir().unwrap(), postgres::create_database());
    let begin =
        || Facts::connect_to_server(&url, dir.path(), "hqdl test", Arc::new(|_: &str| ())).unwrap();
    let one = begin();
    let ids = ["a", "b"].map(|name| one.history().intern_model(name).unwrap());
    postgres::sql_at(&url, "DROP SCHEMA hqdl CASCADE");
    let other = begin();
    let turned = ["b", "a"].map(|name| other.history().intern_model(name).unwrap());
    assert_eq!(turned, ids);
    one.catch_up().unwrap();
    assert_eq!(["b", "a"].map(|name| one.history().intern_model(name).unwrap()), turned);
}

/// All sessions that share a store share its limits, and the requests admitted under them.
fn sessions_share_the_rate_limits(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let limits = PerMinute { requests: None, tokens: Some(1000) };
        let first = one.open_throttle("an endpoint", "a model", limits).unwrap();
        let second =
            other.open_throttle("an endpoint", "another model", PerMinute::default()).unwrap();
        let elsewhere = other.open_throttle("elsewhere", "a model", PerMinute::default()).unwrap();
        runtime.block_on(async {
            let all = first.acquire_permit(Need::from_tokens(1000)).await;
            all.mark_sent();
            let mut waiting = pin!(second.acquire_permit(Need::from_tokens(10)));
            let soon = tokio::time::timeout(Duration::from_millis(400), &mut waiting).await;
            assert!(soon.is_err(), "{what}: the minute is full");
            let wait = second.remaining_wait().await;
            let Some(RemainingWait::MinuteLimit(remaining)) = wait else {
                panic!("{what}: {wait:?}")
            };
            assert!(remaining > Duration::from_secs(30), "{what}: {remaining:?}");
            drop(elsewhere.acquire_permit(Need::from_tokens(1000)).await);
            // The request used no tokens after all.
            all.reconcile_usage(0);
            let admitted = waiting.await;
            assert_eq!(admitted.limiter_key().model, "another model", "{what}");
            drop(admitted);
            first.pause_for(Duration::from_secs(600));
            let paused = tokio::time::timeout(
                Duration::from_millis(400),
                first.acquire_permit(Need::default()),
            );
            assert!(paused.await.is_err(), "{what}: the endpoint asked to wait");
        });
    }
}

/// An endpoint may report different limits to several API keys. For each key the last report
/// counts, and the strictest of all keys applies.
fn the_strictest_limit_reported_to_any_key_applies(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let throttle = |facts: &Facts, key: &str| {
            let all = facts.open_throttle("an endpoint", "a model", PerMinute::default());
            all.unwrap().with_api_key(key)
        };
        let (first, second) = (throttle(one, "first"), throttle(other, "second"));
        let told = |requests: u32| RateLimitHint {
            limits: PerMinute { requests: Some(requests), tokens: None },
            wait: None,
        };
        let soon = Duration::from_millis(400);
        runtime.block_on(async {
            first.apply_hint(told(1));
            // A server learns of it a moment later.
            while let Ok(permit) =
                tokio::time::timeout(soon, first.acquire_permit(Need::default())).await
            {
                permit.mark_sent();
                permit.reconcile_usage(0);
            }
            second.apply_hint(told(60_000));
            for _ in 0..3 {
                let admitted = tokio::time::timeout(soon, second.acquire_permit(Need::default()));
                assert!(admitted.await.is_err(), "{what}: the first key's limit holds");
            }
        });
    }
}

fn a_column_costs_the_shares_of_its_cells(pairs: Vec<Pair>) {
    for Pair { what, one, other, runtime, .. } in &pairs {
        let run = one.history().start_run("test", "a spec").unwrap();
        // Three of four cells were answered, one of them with text that contains NUL.
        let mut partial = unit(one, run, &["A", "B\u{0}", "C"], "a\u{0}\"b");
        partial.completion.cells = 4;
        runtime.block_on(one.commit_unit(partial)).unwrap();
        let (line, found) = other.history().load_column_costs(0, "2026-01-01").unwrap();
        let [day] = &found[..] else { panic!("{what}: {found:?}") };
        assert_eq!((day.cells, day.usd), (3, 0.25 / 4.0 * 3.0), "{what}");
        let of: ColumnIdentity = serde_json::from_str(&day.identity).unwrap();
        assert_eq!(of, identity(), "{what}");
        // A later call returns only the new answers.
        runtime.block_on(other.commit_unit(unit(other, run, &["D"], "second"))).unwrap();
        let (last, found) = one.history().load_column_costs(line, "2026-01-01").unwrap();
        assert!(last > line && found.len() == 1 && found[0].cells == 1, "{what}: {found:?}");
        assert!(
            one.history().load_column_costs(last, "2026-01-01").unwrap().1.is_empty(),
            "{what}"
        );
        assert!(one.history().load_column_costs(0, "2999-01-01").unwrap().1.is_empty(), "{what}");
        let latest =
            |model: &str, most| one.history().load_latest_completions(model, most).unwrap();
        let last = latest("a model", 1);
        assert_eq!(last[0].1.content.as_deref(), Some("second"), "{what}");
        assert_eq!(latest("a model", 9).len(), 2, "{what}");
        // The position is the model's own, however many answers other models have given since.
        let other_model = one.history().intern_model("another").unwrap();
        for n in 0..5 {
            let mut of_another = unit(one, run, &["E"], &format!("other {n}"));
            of_another.completion.model = other_model;
            runtime.block_on(one.commit_unit(of_another)).unwrap();
        }
        assert_eq!(latest("a model", 1)[0].1.content, last[0].1.content, "{what}");
        assert_eq!((latest("another", 9).len(), latest("nobody", 9).len()), (5, 0), "{what}");
    }
}

fn rejected_features_are_shared(pairs: Vec<Pair>) {
    for Pair { what, one, other, .. } in &pairs {
        let (one, other) = (one.history(), other.history());
        assert_eq!(one.load_endpoint_features("here").unwrap(), None, "{what}");
        one.store_endpoint_features("here", Some("first")).unwrap();
        one.store_endpoint_features("here", Some("second")).unwrap();
        assert_eq!(
            other.load_endpoint_features("here").unwrap().as_deref(),
            Some("second"),
            "{what}"
        );
        assert_eq!(other.load_endpoint_features("there").unwrap(), None, "{what}");
        other.store_endpoint_features("here", None).unwrap();
        assert_eq!(one.load_endpoint_features("here").unwrap(), None, "{what}");
    }
}
