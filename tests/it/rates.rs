//! Tests of rate limits as an endpoint measures them: in a window that slides over every moment,
//! whatever the endpoint reports meanwhile, and however often the process is killed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use hqdl::limits::{MINUTE, Need, PerMinute, RateLimitHint, Rates};
use tokio::time::Instant;

use crate::sharing::open_with_index;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    EXPANSION, EXPANSION_COLUMNS, HEROES, MODEL, Project, truthful_endpoint,
};

/// An event, at a time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request may be admitted.
    Look,
    /// An admitted request is sent.
    Leave(u64),
    /// It arrives at the endpoint.
    Arrive(u64),
    /// Its answer arrives.
    Answer(u64),
    /// The endpoint has another limit.
    Change,
    /// The process is killed and restarted.
    Kill,
}

struct Sent {
    need: Need,
    used: u64,
    /// Limits known when it was admitted.
    known: PerMinute,
    admitted: u64,
    /// Latency to the endpoint and back, in microseconds.
    there: u64,
    back: u64,
    /// Number of the process that sent it.
    life: u64,
}

/// Rows of the journal: until when each request counts, and for how many tokens.
type Rows = BTreeMap<u64, (u64, u64)>;

/// Simulation of a client and an endpoint.
struct World {
    chance: fastrand::Rng,
    base: Instant,
    rates: Rates,
    life: u64,
    spec: PerMinute,
    /// Limits of the endpoint, and the limits that the client knows.
    allows: PerMinute,
    heard: PerMinute,
    rows: Rows,
    sent: HashMap<u64, Sent>,
    in_flight: u64,
    workers: u64,
    slow: bool,
    /// Latency of every request, if it is constant.
    latency: Option<u64>,
    /// Time of the next admission check.
    look: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Arrivals: time and request.
    arrivals: Vec<(u64, u64)>,
}

fn some(chance: &mut fastrand::Rng, of: u32) -> PerMinute {
    let mut one = |n: u32| chance.bool().then(|| n.max(1));
    let (requests, tokens) = (one(of), one(of * 70));
    PerMinute { requests, tokens }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let spec = some(&mut chance, 200);
        let base = Instant::now();
        let mut rates = Rates::default();
        rates.add_member(0, spec, base);
        let (workers, slow) = (chance.u64(1..80), chance.bool());
        let mut events = BinaryHeap::from([Reverse((0, Event::Look))]);
        for _ in 0..chance.usize(0..6) {
            events.push(Reverse((chance.u64(0..240_000_000), Event::Change)));
        }
        for _ in 0..chance.usize(0..8) {
            events.push(Reverse((chance.u64(0..240_000_000), Event::Kill)));
        }
        let allows = some(&mut chance, 100);
        Self {
            chance,
            base,
            rates,
            life: 0,
            spec,
            allows,
            heard: PerMinute::default(),
            rows: Rows::new(),
            sent: HashMap::new(),
            in_flight: 0,
            workers,
            slow,
            latency: None,
            look: 0,
            events,
            arrivals: Vec::new(),
        }
    }

    fn at(&self, micros: u64) -> Instant {
        self.base + Duration::from_micros(micros)
    }

    fn push(&mut self, at: u64, event: Event) {
        self.events.push(Reverse((at, event)));
    }

    fn run(&mut self, until: u64) {
        while let Some(Reverse((now, event))) = self.events.pop().filter(|e| e.0.0 < until) {
            match event {
                Event::Look if now != self.look => continue,
                Event::Look => self.look = u64::MAX,
                Event::Leave(id) => {
                    let Some(sent) = self.sent.get(&id).filter(|s| s.life == self.life) else {
                        continue;
                    };
                    let (most, there) = (sent.need.max, sent.there);
                    self.rates.mark_sent(id, self.at(now));
                    self.rows.insert(id, (now + 61_000_000, most));
                    self.push(now + there, Event::Arrive(id));
                }
                Event::Arrive(id) => {
                    self.arrivals.push((now, id));
                    let back = self.sent[&id].back;
                    self.push(now + back, Event::Answer(id));
                }
                Event::Answer(id) => {
                    let sent = &self.sent[&id];
                    if sent.life != self.life {
                        continue;
                    }
                    self.in_flight -= 1;
                    let used = sent.used;
                    self.rates.reconcile_usage(id, used, self.at(now));
                    let row = self.rows.get_mut(&id).unwrap();
                    *row = (row.0.min(now + 60_000_000), used);
                    let hint = RateLimitHint { limits: self.allows, wait: None };
                    self.rates.apply_hint(hint, self.at(now));
                    self.heard.requests = self.allows.requests.or(self.heard.requests);
                    self.heard.tokens = self.allows.tokens.or(self.heard.tokens);
                }
                Event::Change => {
                    let of = self.chance.u32(1..300);
                    self.allows = some(&mut self.chance, of);
                }
                Event::Kill => {
                    self.life += 1;
                    self.in_flight = 0;
                    self.rates = Rates::default();
                    let now_there = self.at(now);
                    for (id, (leaves, tokens)) in &self.rows {
                        let counts = Duration::from_micros(leaves.saturating_sub(now));
                        if !counts.is_zero() {
                            self.rates.restore_request(*id, *tokens, counts, now_there);
                        }
                    }
                    self.rates
                        .apply_hint(RateLimitHint { limits: self.heard, wait: None }, now_there);
                    self.rates.add_member(0, self.spec, now_there);
                }
            }
            self.admit(now);
        }
    }

    /// Admits all requests that may be sent now.
    fn admit(&mut self, now: u64) {
        while self.in_flight < self.workers {
            let id = self.sent.len() as u64 + 1;
            let most = self.chance.u64(20..400);
            let need = Need { likely: most / 3, max: most };
            let admitted = self.rates.try_acquire(id, need, self.at(now));
            if let Err(until) = admitted {
                let wait = until.duration_since(self.at(now)).as_micros() as u64;
                let look = now + wait.max(1);
                if look < self.look || self.look <= now {
                    self.look = look;
                    self.push(look, Event::Look);
                }
                return;
            }
            let longest = if self.slow { 30_000_000 } else { 400_000 };
            let all = self.chance.u64(1000..longest);
            let all = self.latency.unwrap_or(all);
            let there = self.chance.u64(0..all.min(900_000));
            let sent = Sent {
                need,
                used: self.chance.u64(1..=most),
                known: self.spec.stricter_limits(self.heard),
                admitted: now,
                there,
                back: all - there,
                life: self.life,
            };
            self.sent.insert(id, sent);
            self.in_flight += 1;
            let soon = now + self.chance.u64(0..30_000);
            self.push(soon, Event::Leave(id));
        }
    }

    /// Asserts that no minute contained more than the limit known when the last of its requests was
    /// admitted. A request that is larger than the limit is sent alone.
    fn check(&self, seed: u64) {
        let minute = MINUTE.as_micros() as u64;
        let (mut within, mut tokens) = (VecDeque::new(), 0);
        // Requests within the minute that were admitted after all later ones.
        let mut latest: VecDeque<(u64, u64)> = VecDeque::new();
        for (at, id) in &self.arrivals {
            while within.front().is_some_and(|(then, _): &(u64, u64)| *then + minute <= *at) {
                let gone = within.pop_front().unwrap();
                tokens -= self.sent[&gone.1].used;
            }
            let sent = &self.sent[id];
            while latest.back().is_some_and(|(_, last)| self.sent[last].admitted <= sent.admitted) {
                latest.pop_back();
            }
            latest.push_back((*at, *id));
            latest.retain(|(then, _)| *then + minute > *at);
            within.push_back((*at, *id));
            tokens += sent.used;
            let (known, count) = (self.sent[&latest[0].1].known, within.len());
            let most = known.requests.map_or(usize::MAX, |n| n as usize);
            assert!(count <= most, "seed {seed}: {count} of {most} requests");
            let most = known.tokens.map_or(u64::MAX, u64::from);
            assert!(count == 1 || tokens <= most, "seed {seed}: {tokens} of {most} tokens");
        }
    }
}

#[test]
fn no_minute_exceeds_the_known_limit() {
    let seeds = std::env::var("HQDL_TEST_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(300);
    let mut arrivals = 0;
    for seed in 0..seeds {
        let mut world = World::new(seed);
        world.run(300_000_000);
        world.check(seed);
        arrivals += world.arrivals.len();
    }
    assert!(arrivals as u64 > 50 * seeds, "{arrivals} requests");
}

#[test]
fn nearly_all_of_a_limit_is_used() {
    for (limit, latency, workers) in [(6000, 200_000, 64), (60, 5_000_000, 16), (600, 1_000, 4)] {
        let mut world = World::new(1);
        let spec = PerMinute { requests: Some(limit), tokens: None };
        world.events = BinaryHeap::from([Reverse((0, Event::Look))]);
        (world.spec, world.allows, world.workers) = (spec, PerMinute::default(), workers);
        world.rates = Rates::default();
        world.rates.add_member(0, spec, world.base);
        world.latency = Some(latency);
        world.run(600_000_000);
        world.check(1);
        let used = world.arrivals.len() as f64 / (10.0 * f64::from(limit));
        assert!(used >= 0.97, "{used} of {limit} a minute at {latency}");
    }
}

/// Creates a project with enough heroes for every minute of a test, one per request.
fn many(endpoint: &Endpoint, limits: &str) -> Project {
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 790)
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    let settings = MODEL.replace("concurrency = 4", &format!("concurrency = 16\n{limits}"));
    let spec = [&settings, EXPANSION, EXPANSION_COLUMNS].concat();
    Project::new(endpoint, &sql, &spec.replace("rows_per_request = 4", "rows_per_request = 1"))
}

/// Runs several processes at once and kills them around their first request, several times;
/// `HQDL_TEST_KILLS` sets how many.
fn kill_again_and_again(endpoint: &Endpoint, project: &Project, processes: usize) -> usize {
    let mut chance = fastrand::Rng::new();
    let named = std::env::var("HQDL_TEST_KILLS").ok().and_then(|s| s.parse().ok());
    let (lives, mut kills) = (named.unwrap_or(6), 0);
    while kills < lives {
        let (before, began) = (endpoint.request_count(), std::time::Instant::now());
        let args = ["materialize", "specs/x.toml"];
        let running: Vec<_> = (0..processes).map(|_| project.start_hqdl(&args)).collect();
        // Processes that may send nothing have no first request.
        let patience = Duration::from_secs(if before == 0 { 120 } else { 2 });
        while endpoint.request_count() == before && began.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(chance.u64(0..300)));
        for one in running {
            one.send_signal("KILL");
            one.wait_for_exit();
            kills += 1;
        }
    }
    kills
}

/// Returns the maximum sum within a minute.
fn busiest_minute(all: &[(std::time::Instant, u64)]) -> u64 {
    let within = |(n, (from, _)): (usize, &(std::time::Instant, u64))| -> u64 {
        all[n..].iter().take_while(|(at, _)| *at < *from + MINUTE).map(|(_, n)| n).sum()
    };
    all.iter().enumerate().map(within).max().unwrap_or(0)
}

#[test]
fn an_endpoints_limits_survive_kills() {
    for is_shared in [false, true] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Latency(Duration::from_millis(20)), Frequency::Always);
        endpoint.set_response_header("x-ratelimit-limit-requests", "12");
        let project = many(&endpoint, "requests_per_minute = 600");
        let facts = is_shared.then(|| open_with_index(&project));
        let kills = kill_again_and_again(&endpoint, &project, if is_shared { 3 } else { 1 });
        drop(facts);
        let requests: Vec<_> =
            endpoint.received_requests().iter().map(|r| (r.received_at, 1)).collect();
        let most = busiest_minute(&requests);
        println!("{most} of 12 requests in a minute, {kills} kills");
        assert!((1..=12).contains(&most), "{most} of 12 in a minute, {kills} kills");
    }
}

#[test]
fn token_counts_survive_kills() {
    let endpoint = truthful_endpoint();
    let project = many(&endpoint, "tokens_per_minute = 3000");
    let kills = kill_again_and_again(&endpoint, &project, 1);
    let most = busiest_minute(&endpoint.billed_answers());
    println!("{most} of 3000 tokens in a minute, {kills} kills");
    assert!((1..=3000).contains(&most), "{most} tokens in a minute");
}

/// A request that is larger than the limit is sent alone.
#[test]
fn a_request_larger_than_the_limit_is_sent_alone() {
    let endpoint = truthful_endpoint();
    let project = many(&endpoint, "tokens_per_minute = 50");
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    std::thread::sleep(Duration::from_millis(500));
    running.send_signal("KILL");
    running.wait_for_exit();
    assert_eq!(endpoint.request_count(), 1);
}
