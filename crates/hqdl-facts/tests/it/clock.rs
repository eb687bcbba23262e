//! Tests of a clock that jumps back: stored times in the future never free a limit or a budget
//! early.

use std::time::{Duration, SystemTime};

use hqdl_facts::limits::{Need, PerMinute};
use hqdl_facts::{Facts, ReserveOutcome};
use hqdl_values::usage::SpentAmount;
use rusqlite::Connection;

fn current_millis() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

#[test]
fn a_request_counts_for_its_minute_after_the_clock_jumps_back() {
    let dir = tempfile::tempdir().unwrap();
    let facts = Facts::open(dir.path(), "hqdl test").unwrap();
    let journal = Connection::open(dir.path().join("journal.sqlite")).unwrap();
    let limits = PerMinute { requests: Some(1), tokens: None };
    let throttle = facts.open_throttle("an endpoint", "a model", limits).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        throttle.acquire_permit(Need::default()).await.mark_sent();
        // Simulates a clock that has jumped back by an hour.
        let hour = 3_600_000;
        journal.execute("UPDATE sent_lately SET leaves_at = leaves_at + ?1", [hour]).unwrap();
        journal.execute("UPDATE rate_limit SET requests_due = requests_due + ?1", [hour]).unwrap();
        let next = throttle.acquire_permit(Need::default());
        let soon = tokio::time::timeout(Duration::from_millis(500), next).await;
        assert!(soon.is_err(), "its minute is not over");
    });
    let sql = "SELECT max(leaves_at) FROM sent_lately";
    let until: i64 = journal.query_row(sql, [], |r| r.get(0)).unwrap();
    let left = until - current_millis();
    assert!((50_000..62_000).contains(&left), "it waits for {left} ms, not for an hour");
}

#[test]
fn the_budget_of_tomorrow_is_not_free_again_today() {
    let dir = tempfile::tempdir().unwrap();
    let facts = Facts::open(dir.path(), "hqdl test").unwrap();
    let run = facts.history().start_run("test", "a spec").unwrap();
    let all = SpentAmount { usd: 1.0, tokens: 1 };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let reserved = facts.reserve_cost(run, all, Some(1.0), None).await.unwrap();
        let ReserveOutcome::Reserved(reservation) = reserved else { panic!("{reserved:?}") };
        facts.finish_reservation(reservation, true).await.unwrap();
        let journal = Connection::open(dir.path().join("journal.sqlite")).unwrap();
        let tomorrow = "UPDATE reservation SET reserved_at = '2999-01-01T00:00:00Z'";
        assert_eq!(journal.execute(tomorrow, []).unwrap(), 1);
        let next = facts.reserve_cost(run, all, Some(1.0), None).await.unwrap();
        assert!(matches!(next, ReserveOutcome::BudgetExceeded(_)), "{next:?}");
    });
}
