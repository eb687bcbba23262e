//! Simulation of a client and an endpoint: whatever the endpoint reports meanwhile, and however
//! often the process is killed, no minute exceeds the limits, and they are nearly used up.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{MAX_SENDING_DELAY, PermitRequest};
use crate::journal::Journal;
use crate::limits::{MINUTE, Need, PerMinute, RateLimitHint};
use crate::sessions::FactsSession;
use crate::throttle::LimiterKey;

/// An event, at a time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedEvent {
    /// A request may be admitted.
    Look,
    /// An admitted request is sent.
    Leave(i64),
    /// It arrives at the endpoint.
    Arrive(i64),
    /// Its answer arrives.
    Answer(i64),
    /// The endpoint has another limit.
    Change,
    /// The process is killed and restarted.
    Kill,
}

struct SimulatedRequest {
    request: PermitRequest,
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

struct Simulation {
    chance: fastrand::Rng,
    dir: tempfile::TempDir,
    journal: Journal,
    key: LimiterKey,
    life: u64,
    spec: PerMinute,
    /// Limits of the endpoint, and the limits that the client knows.
    allows: PerMinute,
    heard: PerMinute,
    sent: HashMap<i64, SimulatedRequest>,
    in_flight: u64,
    workers: u64,
    slow: bool,
    /// Latency of every request, if it is constant.
    latency: Option<u64>,
    /// Time of the next admission check, if a request waits.
    look: Option<u64>,
    events: BinaryHeap<Reverse<(u64, SimulatedEvent)>>,
    /// Arrivals: time and request.
    arrivals: Vec<(u64, i64)>,
}

fn choose_limits(chance: &mut fastrand::Rng, of: u32) -> PerMinute {
    let mut choose = |n: u32| chance.bool().then(|| n.max(1));
    let (requests, tokens) = (choose(of), choose(of * 70));
    PerMinute { requests, tokens }
}

/// Opens the journal in one long transaction, for speed.
fn open_journal(dir: &Path) -> Journal {
    let session = Arc::new(FactsSession::start(dir, "test").unwrap());
    let journal = Journal::open(&dir.join("journal.sqlite"), session).unwrap();
    journal.connection().execute_batch("PRAGMA synchronous = OFF; BEGIN IMMEDIATE").unwrap();
    journal
}

/// Returns the time of the journal's clock, in whole milliseconds.
fn to_millis(micros: u64) -> i64 {
    1_800_000_000_000 + i64::try_from(micros / 1000).unwrap()
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let spec = choose_limits(&mut chance, 200);
        let (workers, slow) = (chance.u64(1..80), chance.bool());
        let mut events = BinaryHeap::from([Reverse((0, SimulatedEvent::Look))]);
        for _ in 0..chance.usize(0..6) {
            events.push(Reverse((chance.u64(0..240_000_000), SimulatedEvent::Change)));
        }
        for _ in 0..chance.usize(0..8) {
            events.push(Reverse((chance.u64(0..240_000_000), SimulatedEvent::Kill)));
        }
        let allows = choose_limits(&mut chance, 100);
        let dir = tempfile::tempdir().unwrap();
        let journal = open_journal(dir.path());
        let endpoint = "an endpoint".to_owned();
        let key = LimiterKey { endpoint, model: "a model".to_owned(), api_key: String::new() };
        Self {
            chance,
            dir,
            journal,
            key,
            life: 0,
            spec,
            allows,
            heard: PerMinute::default(),
            sent: HashMap::new(),
            in_flight: 0,
            workers,
            slow,
            latency: None,
            look: Some(0),
            events,
            arrivals: Vec::new(),
        }
    }

    fn push(&mut self, at: u64, event: SimulatedEvent) {
        self.events.push(Reverse((at, event)));
    }

    fn run(&mut self, until: u64) {
        self.journal.add_member(1, &self.key.endpoint, self.spec).unwrap();
        while let Some(Reverse((now, event))) = self.events.pop().filter(|e| e.0.0 < until) {
            match event {
                SimulatedEvent::Look if Some(now) != self.look => {}
                SimulatedEvent::Look => self.admit(now),
                SimulatedEvent::Leave(id) => self.send(id, now),
                SimulatedEvent::Arrive(id) => {
                    self.arrivals.push((now, id));
                    self.push(now + self.sent[&id].back, SimulatedEvent::Answer(id));
                }
                SimulatedEvent::Answer(id) => self.receive(id, now),
                SimulatedEvent::Change => {
                    let of = self.chance.u32(1..300);
                    self.allows = choose_limits(&mut self.chance, of);
                }
                SimulatedEvent::Kill => self.restart(now),
            }
        }
    }

    fn send(&mut self, id: i64, now: u64) {
        let Some(sent) = self.sent.get(&id).filter(|s| s.life == self.life) else { return };
        if Duration::from_micros(now - sent.admitted) > MAX_SENDING_DELAY {
            self.journal.mark_sent_late(&sent.request, to_millis(now)).unwrap();
        }
        let arrival = now + sent.there;
        self.push(arrival, SimulatedEvent::Arrive(id));
    }

    fn receive(&mut self, id: i64, now: u64) {
        let Some(sent) = self.sent.get(&id).filter(|s| s.life == self.life) else { return };
        let (journal, at) = (&self.journal, to_millis(now));
        journal.reconcile_usage(&sent.request, sent.used, at).unwrap();
        let hint = RateLimitHint { limits: self.allows, wait: None };
        journal.store_limits(&self.key.reported_limits_name(), hint, at).unwrap();
        self.heard.requests = self.allows.requests.or(self.heard.requests);
        self.heard.tokens = self.allows.tokens.or(self.heard.tokens);
        self.in_flight -= 1;
        if self.look.is_none() {
            self.admit(now);
        }
    }

    /// Replaces the killed process. Only the journal's file survives.
    fn restart(&mut self, now: u64) {
        self.journal.connection().execute_batch("COMMIT").unwrap();
        self.journal = open_journal(self.dir.path());
        self.journal.prune_sessions().unwrap();
        self.journal.add_member(1, &self.key.endpoint, self.spec).unwrap();
        self.life += 1;
        self.in_flight = 0;
        self.admit(now);
    }

    /// Admits all requests that may be sent now.
    fn admit(&mut self, now: u64) {
        self.look = None;
        while self.in_flight < self.workers {
            let ticket = i64::try_from(self.sent.len() + 1).unwrap();
            let max = self.chance.u64(20..400);
            let need = Need { likely: max / 3, max };
            let request = PermitRequest { limiter_key: self.key.clone(), need, ticket };
            if let Some(wait) = self.journal.try_acquire(&request, to_millis(now)).unwrap() {
                let wait = u64::try_from(wait.as_micros()).unwrap();
                let look = now + wait.clamp(1, 100_000);
                self.look = Some(look);
                self.push(look, SimulatedEvent::Look);
                return;
            }
            let longest = if self.slow { 30_000_000 } else { 400_000 };
            let all = self.chance.u64(1000..longest);
            let all = self.latency.unwrap_or(all);
            let there = self.chance.u64(0..all.min(900_000));
            let sent = SimulatedRequest {
                request,
                used: self.chance.u64(1..=max),
                known: self.spec.stricter_limits(self.heard),
                admitted: now,
                there,
                back: all - there,
                life: self.life,
            };
            self.sent.insert(ticket, sent);
            self.in_flight += 1;
            // A few requests leave so late that they are counted again.
            let is_late = self.latency.is_none() && self.chance.u8(0..20) == 0;
            let delay = self.chance.u64(0..if is_late { 2_000_000 } else { 30_000 });
            self.push(now + delay, SimulatedEvent::Leave(ticket));
        }
    }

    /// Asserts that no minute contained more than the limit known when the last of its requests was
    /// admitted. A request that is larger than the limit is sent alone.
    fn check(&self, seed: u64) {
        let minute = u64::try_from(MINUTE.as_micros()).unwrap();
        let (mut within, mut tokens) = (VecDeque::new(), 0);
        // Requests within the minute that were admitted after all later ones.
        let mut latest: VecDeque<(u64, i64)> = VecDeque::new();
        for (at, id) in &self.arrivals {
            while within.front().is_some_and(|(then, _): &(u64, i64)| *then + minute <= *at) {
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
    let seeds = std::env::var("HQDL_TEST_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(25);
    let mut arrivals = 0;
    for seed in 0..seeds {
        let mut simulation = Simulation::new(seed);
        simulation.run(300_000_000);
        simulation.check(seed);
        arrivals += simulation.arrivals.len();
    }
    assert!(arrivals as u64 > 50 * seeds, "{arrivals} requests");
}

#[test]
fn nearly_all_of_a_limit_is_used() {
    for (limit, latency, workers, minutes) in
        [(3000, 200_000, 64, 2), (60, 5_000_000, 16, 10), (600, 1_000, 4, 4)]
    {
        let mut simulation = Simulation::new(1);
        simulation.events = BinaryHeap::from([Reverse((0, SimulatedEvent::Look))]);
        simulation.spec = PerMinute { requests: Some(limit), tokens: None };
        (simulation.allows, simulation.workers) = (PerMinute::default(), workers);
        simulation.latency = Some(latency);
        simulation.run(minutes * 60_000_000);
        simulation.check(1);
        let used = simulation.arrivals.len() as f64 / (minutes as f64 * f64::from(limit));
        println!("{used:.4} of {limit} a minute at {latency} µs");
        assert!(used >= 0.97, "{used} of {limit} a minute at {latency}");
    }
}
