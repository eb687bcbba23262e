//! Tests that rates and budgets are never exceeded, and nearly used up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hqdl_facts::{Facts, Throttle};
use hqdl_model::budget::{Budget, Caps};
use hqdl_model::limits::{Need, PerMinute};
use hqdl_model::rate_headers::{parse_openai_limits, parse_retry_after};
use hqdl_values::usage::SpentAmount;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(n, v)| (n.parse::<HeaderName>().unwrap(), HeaderValue::from_str(v).unwrap()))
        .collect()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work)
}

fn open_throttle(facts: &Facts, requests: Option<u32>, tokens: Option<u32>) -> Throttle {
    facts.open_throttle("an endpoint", "a model", PerMinute { requests, tokens }).unwrap()
}

/// Sends a request that uses no tokens.
async fn send_request(throttle: &Throttle) {
    throttle.acquire_permit(Need::default()).await.mark_sent();
}

/// Returns the admissions during `span`, with many competing tasks.
fn admissions(
    requests: Option<u32>,
    tokens: Option<u32>,
    need: u64,
    span: Duration,
) -> Vec<Duration> {
    let facts = Facts::open_temporary().unwrap();
    run(async {
        let throttle = Arc::new(open_throttle(&facts, requests, tokens));
        let began = Instant::now();
        let mut tasks: tokio::task::JoinSet<()> = tokio::task::JoinSet::new();
        let all = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..32 {
            let (throttle, all) = (Arc::clone(&throttle), Arc::clone(&all));
            tasks.spawn(async move {
                loop {
                    throttle.acquire_permit(Need::from_tokens(need)).await.mark_sent();
                    all.lock().unwrap().push(began.elapsed());
                }
            });
        }
        tokio::time::sleep(span).await;
        tasks.shutdown().await;
        let mut all = all.lock().unwrap().clone();
        all.sort();
        all
    })
}
#[test]
fn six_thousand_requests_a_minute_are_not_exceeded() {
    let span = Duration::from_secs(3);
    let admitted = admissions(Some(6000), None, 1, span);
    let allowed = 300.0;
    assert!(admitted.len() as f64 <= allowed + 30.0, "{} in 3 s", admitted.len());
    // Benchmarks measure how much of the limit is used; a busy machine may be late.
    assert!(admitted.len() as f64 >= 0.5 * allowed, "{} in 3 s", admitted.len());
}

#[test]
fn tokens_a_minute_hold_for_requests_larger_than_a_burst() {
    // 6,000 tokens a minute are 100 a second; each request takes 150.
    let span = Duration::from_secs(4);
    let admitted = admissions(None, Some(6000), 150, span);
    assert!((1..=4).contains(&admitted.len()), "{admitted:?}");
}

#[test]
fn tokens_beyond_the_admitted_ones_are_paid_back_first() {
    let facts = Facts::open_temporary().unwrap();
    run(async {
        let throttle = open_throttle(&facts, None, Some(60_000));
        throttle.acquire_permit(Need::from_tokens(10)).await.reconcile_usage(1510);
        // The commit thread records the usage.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let began = Instant::now();
        send_request(&throttle).await;
        assert!(began.elapsed() > Duration::from_millis(300), "{:?}", began.elapsed());
    });
}

#[test]
fn the_endpoints_latest_limit_applies_if_it_is_stricter() {
    let facts = Facts::open_temporary().unwrap();
    run(async {
        let throttle = open_throttle(&facts, Some(60_000), None);
        throttle
            .apply_hint(parse_openai_limits(&headers(&[("x-ratelimit-limit-requests", "120")])));
        let began = Instant::now();
        for _ in 0..3 {
            send_request(&throttle).await;
        }
        assert!(began.elapsed() > Duration::from_millis(900), "{:?}", began.elapsed());
        // A hint without limits changes nothing.
        throttle
            .apply_hint(parse_openai_limits(&headers(&[("x-ratelimit-remaining-requests", "7")])));
        let began = Instant::now();
        send_request(&throttle).await;
        assert!(began.elapsed() > Duration::from_millis(300), "{:?}", began.elapsed());
        // A higher limit that it reports later applies; at 120 a minute this would take 10 s.
        throttle
            .apply_hint(parse_openai_limits(&headers(&[("x-ratelimit-limit-requests", "60000")])));
        let began = Instant::now();
        for _ in 0..20 {
            send_request(&throttle).await;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        // But never more than the spec allows.
        let facts = Facts::open_temporary().unwrap();
        let throttle = open_throttle(&facts, Some(120), None);
        throttle
            .apply_hint(parse_openai_limits(&headers(&[("x-ratelimit-limit-requests", "60000")])));
        let began = Instant::now();
        for _ in 0..3 {
            send_request(&throttle).await;
        }
        assert!(began.elapsed() > Duration::from_millis(900), "{:?}", began.elapsed());
    });
}

#[test]
fn no_request_is_admitted_before_a_reset() {
    let facts = Facts::open_temporary().unwrap();
    run(async {
        let throttle = open_throttle(&facts, None, None);
        throttle.apply_hint(parse_openai_limits(&headers(&[
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "400ms"),
        ])));
        let began = Instant::now();
        send_request(&throttle).await;
        assert!(began.elapsed() >= Duration::from_millis(390), "{:?}", began.elapsed());
    });
}

#[test]
fn every_format_of_retry_after_is_parsed() {
    let wait = |name: &str, value: &str| parse_retry_after(&headers(&[(name, value)]));
    assert_eq!(wait("retry-after", "2"), Some(Duration::from_secs(2)));
    assert_eq!(wait("retry-after-ms", "250"), Some(Duration::from_millis(250)));
    assert_eq!(wait("retry-after", "6m0s"), Some(Duration::from_secs(360)));
    assert_eq!(wait("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
    assert_eq!(wait("retry-after", "soon"), None);
}

#[test]
fn no_schedule_exceeds_a_budget() {
    run(async {
        let caps = Caps { usd: Some(1.0), ..Caps::default() };
        let budget = Arc::new(Budget::new(caps, SpentAmount::default()));
        let most = Arc::new(AtomicU64::new(0));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..64u64 {
            let (budget, most) = (Arc::clone(&budget), Arc::clone(&most));
            tasks.spawn(async move {
                for i in 0..20 {
                    let worst = SpentAmount { usd: 0.04, tokens: 10 };
                    let Ok(reservation) = budget.reserve_cost(worst).await else { return };
                    tokio::time::sleep(Duration::from_micros(n * 37 % 900)).await;
                    // Answers, refusals and broken connections, in any order.
                    match (n + i) % 4 {
                        0 => drop(reservation),
                        1 => reservation.settle_in_doubt(),
                        _ => reservation.settle(SpentAmount { usd: 0.013, tokens: 4 }),
                    }
                    most.fetch_max((budget.spent().usd * 1e9) as u64, Ordering::Relaxed);
                }
            });
        }
        tasks.join_all().await;
        let spent = budget.spent().usd;
        assert!(spent <= 1.0 + 1e-9, "{spent}");
        assert!(most.load(Ordering::Relaxed) <= 1_000_000_001);
        assert!(spent > 0.9, "nearly all of it is used: {spent}");
    });
}

#[test]
fn tokens_are_capped_without_a_price() {
    run(async {
        let budget = Budget::new(
            Caps { tokens: Some(100), ..Caps::default() },
            SpentAmount { usd: 0.0, tokens: 60 },
        );
        let worst = SpentAmount { usd: 0.0, tokens: 40 };
        budget.reserve_cost(worst).await.unwrap().settle(SpentAmount { usd: 0.0, tokens: 35 });
        let reached = budget.reserve_cost(worst).await.unwrap_err();
        assert!(reached.to_string().contains("95 of 100 tokens"), "{reached}");
    });
}
