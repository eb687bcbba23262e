//! Tests of random prices, endpoints that report false usage, and budgets: whatever an endpoint
//! reports, it never bills a run more than its budget, except in the ways that
//! docs/reference/prices.md lists.
//!
//! `HQDL_PROPERTY_CASES=200 HQDL_PROPERTY_SEED=7 cargo test --test runs budget_schedules` runs more.

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, lock_mutex};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

/// Seeds of schedules that are always run: no usage or zeros while cache writes are billed, and long
/// prompts that are reported as short ones.
const FOUND: [u64; 4] = [20_091, 20_115, 20_120, 30_049];

/// Rates in USD per million tokens.
#[derive(Debug, Clone, Copy)]
struct Rates {
    input: f64,
    cached: f64,
    write: f64,
    output: f64,
}

impl Rates {
    fn random(chance: &mut fastrand::Rng, scale: f64) -> Self {
        let input = scale * (0.2 + 4.0 * chance.f64());
        Self {
            input,
            cached: input * chance.f64(),
            write: input * (1.0 + chance.f64()),
            output: scale * (0.2 + 12.0 * chance.f64()),
        }
    }

    /// Returns the maximum ratio of these rates to the others, at least 1.
    fn ratio(self, others: Self) -> f64 {
        let pairs = [
            (self.input, others.input),
            (self.cached, others.cached),
            (self.write, others.write),
            (self.output, others.output),
        ];
        pairs.into_iter().map(|(one, other)| one / other).fold(1.0, f64::max)
    }
}

/// False usage reports of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lie {
    None,
    /// It reports this multiple of what it bills.
    Above(f64),
    /// It reports less than half of what it bills, or less than a quarter if hqdl does not know
    /// the tokenizer.
    FarBelow(f64),
    /// It reports nothing.
    Missing,
    /// It reports this number for each count.
    Implausible(u64),
    /// It reports a fraction of what it bills that hqdl cannot distinguish from the truth.
    Below(f64),
    /// It bills cache writes that it does not report.
    HiddenWrites,
    /// It bills and reports this multiple of what a request can use.
    Excess(f64),
}

/// A schedule: the endpoint's true prices, and the run.
#[derive(Debug, Clone, Copy)]
struct Schedule {
    model: &'static str,
    short: Rates,
    /// Number of input tokens above which other rates apply, and these rates.
    above: Option<(u64, Rates)>,
    /// Whether the spec omits the price of cache writes, which is 1.25 times that of input.
    assumed: bool,
    /// Price factor of the requested service tier, and the share of requests that it serves.
    tier: Option<(f64, f64)>,
    lie: Lie,
    /// Share of the requests with false usage.
    liars: f64,
    /// First request that may have false usage.
    from: u64,
    /// Interval at which a reply breaks off in the middle.
    breaks: Option<usize>,
    rows: usize,
    concurrency: usize,
    is_query: bool,
    /// Budget, as a share of the plan's likely cost.
    budget: f64,
    /// Share of the requests that write their whole prompt to the cache.
    writes: f64,
}

impl Schedule {
    fn random(chance: &mut fastrand::Rng) -> Self {
        let mut short = Rates::random(chance, 1.0);
        let assumed = chance.bool();
        let scale = 0.5 + 2.5 * chance.f64();
        let above = (chance.u8(..) < 128).then(|| chance.u64(150..700));
        let mut above = above.map(|tokens| (tokens, Rates::random(chance, scale)));
        if assumed {
            short.write = short.input * 1.25;
            above.iter_mut().for_each(|(_, rates)| rates.write = rates.input * 1.25);
        }
        let model = if chance.bool() { "gpt-4o-mini" } else { "test-model" };
        let least = if model == "test-model" { 0.25 } else { 0.5 };
        let lie = match chance.u8(0..11) {
            0..=2 => Lie::None,
            3 => Lie::Above(1.0 + 2.0 * chance.f64()),
            4..=5 => Lie::FarBelow(least * 0.9 * chance.f64()),
            6 => Lie::Missing,
            7 => Lie::Implausible([50_000, 1 << 40, u64::MAX][chance.usize(..3)]),
            8 => Lie::Excess(20.0 + 200.0 * chance.f64()),
            9 => Lie::Below(least + 0.1 + (0.9 - least) * chance.f64()),
            _ => Lie::HiddenWrites,
        };
        Self {
            model,
            short,
            above,
            assumed,
            tier: chance.bool().then(|| (0.3 + 2.0 * chance.f64(), chance.f64())),
            lie,
            liars: [0.2, 0.5, 1.0][chance.usize(..3)],
            from: [0, 0, 3, 8][chance.usize(..4)],
            breaks: (chance.u8(0..4) == 0).then(|| chance.usize(2..6)),
            rows: chance.usize(1..=4),
            concurrency: chance.usize(1..=8),
            is_query: chance.u8(0..3) == 0,
            budget: 0.1 + 0.9 * chance.f64(),
            writes: [0.0, 0.5, 1.0][chance.usize(..3)],
        }
    }

    /// Returns the price in the spec.
    fn price(&self) -> String {
        let rates = |rates: Rates| {
            let Rates { input, cached, write, output } = rates;
            let write =
                if self.assumed { String::new() } else { format!(", cache_write = {write:.9}") };
            format!("input = {input:.9}, cached_input = {cached:.9}, output = {output:.9}{write}")
        };
        let above = self.above.map_or(String::new(), |(tokens, above)| {
            format!(", above = {{ input_tokens = {tokens}, {} }}", rates(above))
        });
        let tier = self.tier.map_or(String::new(), |(part, _)| format!(", service_tier = {part}"));
        format!("price = {{ {}{above}{tier} }}", rates(self.short))
    }

    /// Returns the rates of a request.
    fn rates(&self, input: u64) -> Rates {
        match self.above {
            Some((tokens, rates)) if input > tokens => rates,
            _ => self.short,
        }
    }

    /// Returns the factor by which the bill may exceed the budget, because hqdl cannot detect it
    /// (docs/reference/prices.md).
    fn undetectable(&self) -> f64 {
        match self.lie {
            // A long prompt may be reported as a short one.
            Lie::Below(part) => self.above.map_or(1.0, |(_, long)| long.ratio(self.short)) / part,
            Lie::HiddenWrites => {
                let ratio = |rates: Rates| rates.write / rates.input;
                self.above.map_or(1.0, |(_, rates)| ratio(rates)).max(ratio(self.short))
            }
            _ => 1.0,
        }
    }
}

/// The endpoint's own accounts.
#[derive(Debug, Default)]
struct Books {
    requests: u64,
    /// USD.
    bill: f64,
    /// Number of requests billed more than they can use; `bill` contains only what they can use.
    excessive: usize,
}

impl Books {
    /// Bills a request, and returns the usage that the endpoint reports.
    fn bill(
        &mut self,
        schedule: &Schedule,
        chance: &mut fastrand::Rng,
        input: u64,
        output: u64,
    ) -> Json {
        let rates = schedule.rates(input);
        let lies = self.requests >= schedule.from && chance.f64() < schedule.liars;
        let lie = if lies { schedule.lie } else { Lie::None };
        let (cached, written) = if chance.f64() < schedule.writes {
            (0, input)
        } else {
            let cached = if chance.bool() { chance.u64(0..=input) } else { 0 };
            (cached, chance.u64(0..=input - cached))
        };
        let (served, confirms) = (chance.f64(), chance.bool());
        let (part, tier) = match schedule.tier {
            None => (1.0, None),
            Some((part, often)) if served < often => (part, Some("flex")),
            Some(_) => (1.0, Some("default")),
        };
        let plain = input - cached - written;
        let usd = plain as f64 * rates.input
            + cached as f64 * rates.cached
            + written as f64 * rates.write
            + output as f64 * rates.output;
        self.requests += 1;
        self.bill += usd * part / 1e6;
        self.excessive += usize::from(matches!(lie, Lie::Excess(_)));
        let times = |part: f64| {
            let times = |tokens: u64| (tokens as f64 * part) as u64;
            (times(input), times(cached), times(written), times(output))
        };
        let (input, cached, written, output) = match lie {
            Lie::None => (input, cached, written, output),
            Lie::Above(part) | Lie::FarBelow(part) | Lie::Excess(part) => times(part),
            Lie::Below(part) => {
                let up = |tokens: u64| (tokens as f64 * part).ceil() as u64;
                (up(input), up(cached).min(up(input)), up(written), up(output))
            }
            Lie::Missing => return Json::Null,
            Lie::Implausible(tokens) => (tokens, 0, 0, tokens),
            Lie::HiddenWrites => (input, cached, 0, output),
        };
        let mut usage = json!({
            "prompt_tokens": input, "completion_tokens": output,
            "prompt_tokens_details": { "cached_tokens": cached, "cache_write_tokens": written },
        });
        if let Some(tier) = tier.filter(|_| confirms) {
            usage["service_tier"] = tier.into();
        }
        usage
    }
}

fn write_spec(project: &Project, schedule: &Schedule) {
    let tier = match schedule.tier {
        Some(_) => "[model.parameters]\nservice_tier = \"flex\"\n\n[limits]",
        None => "[limits]",
    };
    let text = project.spec_text();
    project.write_spec(
        &text
            .replace("test-model", schedule.model)
            .replace("price = { input = 1.0, output = 2.0 }", &schedule.price())
            .replace("[limits]", tier)
            .replace("concurrency = 4", &format!("concurrency = {}", schedule.concurrency))
            .replace("rows_per_request = 4", &format!("rows_per_request = {}", schedule.rows)),
    );
}

/// Runs a schedule. Returns what the endpoint billed (within the limits of each request), the
/// budget, and what hqdl counted.
fn run(seed: u64, schedule: &Schedule) -> (f64, f64, f64) {
    let endpoint: Endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, if seed.is_multiple_of(2) { "csv" } else { "json" });
    project.execute_sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150)
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n",
    );
    write_spec(&project, schedule);
    let likely = project.run_plan(&[])["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    // A query asks about one of the four columns.
    let budget = likely * schedule.budget * if schedule.is_query { 0.4 } else { 1.0 };
    if let Some(every) = schedule.breaks {
        endpoint.add_fault(Fault::DroppedMidBody, Frequency::Every(every));
    }
    let books: Arc<Mutex<Books>> = Arc::default();
    let (kept, truth) = (Arc::clone(&books), *schedule);
    let chance = Mutex::new(fastrand::Rng::with_seed(seed));
    let meter = move |_: &Json, input, output| {
        lock_mutex(&kept).bill(&truth, &mut lock_mutex(&chance), input, output)
    };
    endpoint.set_usage_fn(meter);
    let budget_flag = format!("{budget:.12}");
    let ended = if schedule.is_query {
        let sql = "SELECT name, {{LLMMap('What does the hero fear?', hero.name)}} FROM hero";
        project.run_hqdl(&[
            "query",
            "--spec",
            "specs/x.toml",
            "--json",
            "--budget",
            &budget_flag,
            sql,
        ])
    } else {
        project.run_materialize(&["--budget", &budget_flag])
    };
    assert!((0..=4).contains(&ended.code), "{seed} {schedule:?}\n{}", ended.stderr);
    let Books { bill: billed, excessive, .. } = *lock_mutex(&books);
    // All of them were sent before the first one was reported.
    assert!(excessive <= schedule.concurrency, "{seed}: {excessive:?} {schedule:?}");
    let done = ended.lines.iter().rev().find(|line| line.get("cost_usd").is_some());
    let counted = done.map_or(f64::NAN, |done| {
        let in_doubt = done["in_doubt"]["cost_usd"].as_f64().unwrap_or(0.0);
        done["cost_usd"].as_f64().unwrap() + in_doubt
    });
    (billed, budget, counted)
}

#[test]
fn no_endpoint_bills_a_run_more_than_its_budget() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed = setting("HQDL_PROPERTY_SEED").unwrap_or(1);
    let cases = setting("HQDL_PROPERTY_CASES").unwrap_or(12);
    let (mut above, mut undetectable, mut reached) = (Vec::new(), 0, 0);
    for seed in FOUND.into_iter().chain(seed..seed + cases) {
        let schedule = Schedule::random(&mut fastrand::Rng::with_seed(seed));
        let (billed, budget, counted) = run(seed, &schedule);
        let allowed = budget * schedule.undetectable();
        if std::env::var_os("HQDL_PROPERTY_VERBOSE").is_some() {
            println!("{seed}: billed {billed:.6} counted {counted:.6} of {budget:.6} {schedule:?}");
        }
        reached += usize::from(billed > budget * 0.5);
        undetectable += usize::from(billed > budget + 1e-12 && billed <= allowed + 1e-12);
        if billed > allowed + 1e-12 {
            above.push(format!(
                "seed {seed}: ${billed:.6} billed, ${counted:.6} counted of ${budget:.6}: {schedule:?}"
            ));
        }
    }
    println!(
        "{cases} schedules: {} above the budget, {undetectable} above it by what cannot be \
         noticed, {reached} spent more than half of it",
        above.len()
    );
    assert!(above.is_empty(), "{}", above.join("\n"));
    assert!(cases < 12 || reached * 4 > cases as usize, "{reached} of {cases} spent half");
}
