//! Tests of endpoints' replies: usage in any format, good and bad streams, models that never stop,
//! endless bodies, rejected row content, and rows without answers. Every published cell is compared
//! with the truth, and the cost with what the endpoint bills.

use std::collections::BTreeMap;
use std::sync::Mutex;

use hqdl::Row;
use hqdl::model::ReportedUsage;
use hqdl::prompt::{PromptFrame, Question};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::Format;
use hqdl::usage::Tokens;
use hqdl::value::Value;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use hqdl_testkit::concurrent::{each, each_of};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, RunawayOutput, StreamFault};
use hqdl_testkit::fixture::{malformed_answers, random_runner};
use hqdl_testkit::project::{
    COLUMN_NAMES, HERO_COUNT, HEROES, Project, check_cells, check_complete, heroes_project,
    heroes_spec, true_value, truthful_endpoint,
};

const FORMATS: [&str; 2] = ["csv", "json"];

/// Returns every one of these cases in each format.
fn in_formats<C: Clone + std::fmt::Debug>(
    cases: impl IntoIterator<Item = C>,
) -> Vec<(String, (C, &'static str))> {
    let both = |c: C| FORMATS.map(|f| (format!("{c:?} {f}"), (c.clone(), f)));
    cases.into_iter().flat_map(both).collect()
}

/// Creates the heroes' project with a model whose tokens can be counted, two rows per request.
fn counted(endpoint: &Endpoint, format: &str, limits: &str) -> Project {
    let project = heroes_project(endpoint, format);
    let text = project.spec_text();
    project.write_spec(
        &text
            .replace("test-model", "gpt-4o-mini")
            .replace("rows_per_request = 4", "rows_per_request = 2")
            .replace("concurrency = 4", &format!("concurrency = 2\n{limits}")),
    );
    project
}

/// Returns what the endpoint bills at the price of these specs.
fn billed(endpoint: &Endpoint) -> f64 {
    let (input, output) = endpoint.billed_tokens();
    (input as f64 + 2.0 * output as f64) / 1e6
}

/// Creates a project with many heroes, `rows` per request, and `at_once` requests in flight.
fn many(endpoint: &Endpoint, format: &str, count: usize, rows: u32, at_once: u32) -> Project {
    let sql = format!(
        "{HEROES} DELETE FROM hero; WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    let text = heroes_spec()
        .replace("rows_per_request = 4", &format!("rows_per_request = {rows}"))
        .replace("concurrency = 4", &format!("concurrency = {at_once}"))
        .replace("format = \"csv\"", &format!("format = \"{format}\""));
    Project::new(endpoint, &sql, &text)
}

fn states<const N: usize>(of: [(&str, usize); N]) -> BTreeMap<String, usize> {
    of.into_iter().map(|(s, n)| (s.to_owned(), n)).collect()
}

/// Returns formats of `usage` without false information: each number is true, or no possible token
/// count.
fn odd_usage() -> Vec<Json> {
    vec![
        Json::Null,
        json!([]),
        json!([{ "prompt_tokens": "in", "completion_tokens": "out" }]),
        json!("many"),
        json!(7),
        json!({}),
        json!({ "prompt_tokens": "in" }),
        json!({ "prompt_tokens": "in", "completion_tokens": null }),
        json!({ "prompt_tokens": "in", "completion_tokens": "out as float" }),
        json!({ "prompt_tokens": "in", "completion_tokens": "out as text" }),
        json!({ "prompt_tokens": "in", "completion_tokens": -12 }),
        json!({ "prompt_tokens": "in", "completion_tokens": 0 }),
        json!({ "prompt_tokens": "in", "completion_tokens": { "text": 4 } }),
        json!({ "prompt_tokens": "in", "completion_tokens": ["out"] }),
        json!({ "prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0 }),
        json!({ "prompt_tokens": null, "completion_tokens": "out" }),
        json!({ "completion_tokens": "out" }),
        json!({ "total_tokens": "total" }),
        json!({ "prompt_tokens": "in", "total_tokens": "total" }),
        json!({ "input_tokens": "in", "output_tokens": "out" }),
        json!({ "prompt_tokens": "in", "completion_tokens": "out",
                "prompt_tokens_details": { "cached_tokens": -3 } }),
    ]
}

/// Returns a random format made of such parts.
fn made_up(rng: &mut fastrand::Rng) -> Json {
    let mut shape = serde_json::Map::new();
    for (name, true_one) in
        [("prompt_tokens", "in"), ("completion_tokens", "out"), ("total_tokens", "total")]
    {
        let parts = [
            None,
            Some(Json::Null),
            Some(true_one.into()),
            Some(0.into()),
            Some(json!(-1.5)),
            Some(json!([])),
            Some(json!({ "n": 3 })),
            Some(json!("")),
            Some(json!(true)),
            Some(json!(1e18)),
            Some(json!(1e300)),
        ];
        let common = if rng.f64() < 0.85 { parts.len() - 2 } else { parts.len() };
        if let Some(part) = parts[rng.usize(..common)].clone() {
            shape.insert(name.to_owned(), part);
        }
    }
    Json::Object(shape)
}

#[test]
fn no_budget_is_exceeded_whatever_usage_is_reported() {
    let seed = std::env::var("HQDL_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("HQDL_TEST_SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let shapes =
        odd_usage().into_iter().chain((0..20).map(|_| made_up(&mut rng)).collect::<Vec<_>>());
    let cases = shapes
        .enumerate()
        .map(|(n, shape)| (format!("{shape} HQDL_TEST_SEED={seed}"), (n, shape)))
        .collect();
    each(cases, |(n, shape)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Usage(shape), Frequency::Always);
        let budget = 0.006;
        let limits = format!("budget_usd = {budget}");
        let project = counted(&endpoint, FORMATS[n % 2], &limits);
        let ended = project.run_materialize(&[]);
        assert!(matches!(ended.code, 0 | 3 | 4), "{ended:?}");
        let first = billed(&endpoint);
        assert!(first > 0.0 && first <= budget, "{first} billed");
        let counted = ended.done_event()["cost_usd"].as_f64().unwrap();
        assert!(counted >= first - 1e-9, "{first} billed, {counted} counted");
        let states = check_cells(&project);
        assert!(states.keys().all(|s| s == "ok" || s == "missing"), "{states:?}");
        if ended.code == 4 {
            assert!(ended.stderr.contains("the endpoint reports usage of"), "{}", ended.stderr);
        }
    });
}

#[test]
fn usage_beyond_the_reservation_stops_the_run_and_keeps_the_answers() {
    let shape = json!({ "prompt_tokens": "in", "completion_tokens": 100_000 });
    each(in_formats(["price", "no price"]), |(price, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Usage(shape.clone()), Frequency::First(1));
        let project = counted(&endpoint, format, "");
        let text = project.spec_text().replace("concurrency = 2", "concurrency = 1");
        if price == "price" {
            project.write_spec(&text);
            let ended = project.run_materialize(&[]).expect_exit_code(4);
            assert!(ended.stderr.contains("the endpoint reports usage of"), "{}", ended.stderr);
            assert_eq!(endpoint.request_count(), 1);
            assert_eq!(check_cells(&project), states([("ok", 8)]));
            // Impossible usage is in no total.
            assert!(ended.done_event()["cost_usd"].as_f64().unwrap() < 0.01, "{ended:?}");
            project.run_materialize(&[]).expect_exit_code(0);
        } else {
            // Nothing is billed, so it is only reported, once.
            project.write_spec(&text.replace("price = { input = 1.0, output = 2.0 }\n", ""));
            let ended = project.run_materialize(&[]).expect_exit_code(0);
            let told = ended
                .lines
                .iter()
                .filter(|l| l.to_string().contains("the endpoint reports usage of"));
            assert_eq!(told.count(), 1, "{ended:?}");
        }
        check_complete(&project);
        assert_eq!(endpoint.cells_since(0).len(), 40);
    });
}

#[test]
fn usage_is_read_or_replaced_and_never_zero() {
    let all = (any_json(), 1u64..5000, 1u64..5000);
    let run = random_runner(2000).run(&all, |(shape, input, output)| {
        let counted = Tokens { input, output, ..Tokens::default() };
        for usage in [
            shape.clone(),
            json!({ "prompt_tokens": shape }),
            json!({ "completion_tokens": shape, "prompt_tokens": input }),
            json!({ "prompt_tokens_details": { "cached_tokens": shape }, "prompt_tokens": 5 }),
        ] {
            let tokens = ReportedUsage::from_json(&usage).with_counted_fallback(counted);
            prop_assert!(tokens.input > 0 && tokens.output > 0, "{usage}: {tokens:?}");
            prop_assert!(tokens.cached_input <= tokens.input, "{usage}: {tokens:?}");
            // Their sums fit into the journal.
            prop_assert!(tokens.input + tokens.output < 1 << 52);
        }
        Ok(())
    });
    run.unwrap();
}

/// An answer counts as runaway only if it repeats itself endlessly, and never before.
#[test]
fn a_valid_answer_is_never_treated_as_runaway() {
    let text = heroes_spec().replace("{base_url}", "http://127.0.0.1:9/v1");
    let project = Project::new(&truthful_endpoint(), HEROES, &text);
    let draft = hqdl::spec::UncheckedSpec::read(&project.path("specs/x.toml")).unwrap();
    let overrides = SpecOverrides::default();
    let spec = Session::open(draft, &overrides, Cache::Temporary).unwrap().spec;
    let expansion = &spec.expansions[0];
    let name = "[a-zA-Z0-9,'\" ]{1,12}";
    let cases = (
        prop::collection::vec((name, prop::option::of(name)), 1..40),
        prop::sample::select(vec![Format::Csv, Format::Json]),
        prop::collection::vec(1usize..30, 1..40),
        "[a-z0-9 ,\n]{1,60}",
    );
    let run = random_runner(200).run(&cases, |(keys, format, lengths, circle)| {
        let rows: Vec<Row> = keys
            .iter()
            .map(|(a, b)| Row {
                key: vec![a.as_str().into(), b.as_deref().map_or(Value::Null, Value::from)],
                context: Vec::new(),
            })
            .collect();
        let prompt = PromptFrame::new(expansion, &[0, 1, 2, 3], format).build_prompt(&rows);
        let question = Question::parse(&prompt.system, &prompt.user).unwrap();
        // Answers whose rows are as similar as possible.
        let answer = question.format_answer(|row, column| match column.name.as_str() {
            "motto" => "so be it ".repeat(lengths[row.number % lengths.len()]).into(),
            "powers" => json!(["Flight", "Speed"]),
            "born" => json!(1900),
            _ => json!("Blue"),
        });
        for end in (0..answer.len()).filter(|at| answer.is_char_boundary(*at)).step_by(37) {
            prop_assert_eq!(prompt.find_runaway_reason(&answer[..end]), None, "{}", &answer[..end]);
        }
        let astray = format!("{answer}{}", circle.repeat(900));
        prop_assert!(prompt.find_runaway_reason(&astray).is_some(), "{circle:?}");
        let strangers: Vec<String> =
            (0..60).map(|n| format!("\n{},who {n},{n}", 100 + n)).collect();
        let strangers = strangers.concat();
        if format == Format::Csv {
            let astray = format!("{answer}{strangers}");
            prop_assert!(prompt.find_runaway_reason(&astray).is_some());
        }
        Ok(())
    });
    run.unwrap();
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "[0-9a-zA-Z.+-]{0,12}".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::vec(("(prompt|completion|total)_tokens", inner), 0..4)
                .prop_map(|fields| Json::Object(fields.into_iter().collect())),
        ]
    })
}

#[test]
fn streams_of_any_format_are_read() {
    let wrongs = [
        StreamFault::NotStreamed,
        StreamFault::NoDone,
        StreamFault::NoUsageChunk,
        StreamFault::OneMessage,
        StreamFault::Noise,
        StreamFault::UsageEverywhere,
        StreamFault::StaysOpen,
    ];
    each(in_formats(wrongs), |(wrong, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Stream(wrong), Frequency::Always);
        let project = counted(&endpoint, format, "budget_usd = 1.0");
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(endpoint.request_count(), 5);
        let (spent, truth) = (ended.done_event()["cost_usd"].as_f64().unwrap(), billed(&endpoint));
        // Without a report, all of the prompt may have been written to the prompt cache.
        let most = if wrong == StreamFault::NoUsageChunk { 1.3 } else { 1.1 };
        assert!(spent >= truth - 1e-9 && spent < most * truth, "{spent} spent, {truth} billed");
    });
}

/// The part before a stream broke is kept, and its cost is in doubt.
#[test]
fn a_broken_stream_loses_only_the_missing_part() {
    let wrongs =
        [StreamFault::CutMidEvent, StreamFault::Error, StreamFault::Garbage, StreamFault::Filter];
    each(in_formats(wrongs), |(wrong, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Stream(wrong), Frequency::First(1));
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&["--rows-per-request", "10", "--concurrency", "1"]);
        let ended = ended.expect_exit_code(0);
        check_complete(&project);
        let rows: Vec<usize> =
            endpoint.received_requests().iter().map(|r| r.question.rows.len()).collect();
        assert!(rows[1..].iter().sum::<usize>() < 10, "asked again though it came: {rows:?}");
        assert_eq!(ended.done_event()["in_doubt"]["requests"], 1, "{ended:?}");
    });
    // An endpoint whose streams always break: the run ends, and no cell is wrong.
    each(in_formats(wrongs), |(wrong, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Stream(wrong), Frequency::Always);
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&[]);
        assert!(matches!(ended.code, 1 | 4), "{ended:?}");
        let states = check_cells(&project);
        let known = ["ok", "error", "missing", "refused"];
        assert!(states.keys().all(|s| known.contains(&s.as_str())), "{states:?}");
        assert!(endpoint.request_count() < 120, "{} requests", endpoint.request_count());
    });
}

#[test]
fn missing_streaming_support_is_remembered() {
    let refusals = [
        "Unrecognized request argument supplied: stream_options",
        "Streaming is not supported by this model",
        "extra_forbidden: body.stream",
    ];
    each(in_formats(refusals), |(words, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::RejectsStream(words), Frequency::Always);
        let project = heroes_project(&endpoint, format);
        let flags = ["--rows-per-request", "1", "--concurrency", "1"];
        project.run_materialize(&flags).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(endpoint.request_count(), HERO_COUNT + 1);
        let streamed =
            endpoint.received_requests().iter().filter(|r| r.body["stream"] == true).count();
        assert_eq!(streamed, 1);
    });
    // An error that only sounds similar.
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(400, "upstream says no", "bad"), Frequency::Always);
    heroes_project(&endpoint, "csv").run_materialize(&["--concurrency", "1"]).expect_exit_code(4);
    assert_eq!(endpoint.request_count(), 1);
}

#[test]
fn an_endless_body_is_not_read_completely() {
    const SIZE: usize = 200 << 20;
    let faults = [
        Fault::Huge(200, SIZE),
        Fault::Huge(500, SIZE),
        Fault::Status(200, vec![("content-encoding", "gzip".into())], "\u{1f}".into()),
    ];
    each_of(2, in_formats(faults), |(fault, format)| {
        let endpoint = truthful_endpoint();
        let of_zed = |q: &Question| q.rows.iter().any(|r| r.key[0] == "Zed");
        endpoint.add_fault_where(fault.clone(), Frequency::Always, of_zed);
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&[]).expect_exit_code(1);
        assert_eq!(check_cells(&project), states([("error", 4), ("ok", 36)]));
        let said = format!("{}{}", ended.stdout, ended.stderr);
        let word = match fault {
            Fault::Huge(200, _) => "limit of 16 MiB",
            Fault::Huge(..) => "500",
            _ => "compressed",
        };
        assert!(said.contains(word), "{said}");
        endpoint.clear_faults();
        project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
    });
}

/// Rows without any answer are alone in the end, and no other row lacks an answer.
#[test]
fn failing_rows_are_isolated_and_their_neighbours_answered() {
    let places: [(&str, &[usize]); 4] = [
        ("scattered", &[3, 41, 77, 110, 149, 190, 202, 255]),
        ("first", &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("last", &[293, 294, 295, 296, 297, 298, 299, 300]),
        ("one request", &[11, 12, 13, 14, 15, 16, 17, 18]),
    ];
    let kinds = ["500", "filter", "broken"];
    let cases: Vec<_> = places
        .into_iter()
        .flat_map(|(name, rows)| kinds.map(|k| (format!("{name} {k}"), (rows, k))))
        .collect();
    each(cases, |(poison, kind)| {
        let endpoint = truthful_endpoint();
        let names: Vec<String> = poison.iter().map(|n| format!("Number {n}")).collect();
        let fault = match kind {
            "500" => Fault::Status(500, vec![("retry-after-ms", "1".into())], "{}".into()),
            "filter" => Fault::azure_filter(),
            _ => Fault::Body("text/html", "<html>no</html>"),
        };
        endpoint.add_fault_where(fault, Frequency::Always, move |q| {
            q.rows.iter().any(|r| names.iter().any(|n| r.key[0] == *n))
        });
        let project = many(&endpoint, "csv", 300, 10, 3);
        let ended = project.run_materialize(&[]).expect_exit_code(1);
        let state = if kind == "filter" { "refused" } else { "error" };
        let (bad, all) = (poison.len() * COLUMN_NAMES.len(), 300 * COLUMN_NAMES.len());
        assert_eq!(check_cells(&project), states([("ok", all - bad), (state, bad)]));
        assert_eq!(ended.done_event()["cells"][state], bad);
        // 30 requests; a failing row is part of at most five that fail.
        let most = if kind == "filter" { 30 + 8 * 8 } else { 30 + 8 * (6 + 4 * 4 + 4) };
        assert!(endpoint.request_count() <= most, "{} requests", endpoint.request_count());
        if kind == "filter" {
            let before = endpoint.request_count();
            project.run_materialize(&[]).expect_exit_code(1);
            assert_eq!(endpoint.request_count(), before, "a refusal is an answer");
        }
    });
}

#[test]
fn an_endpoint_that_rejects_all_rows_gets_each_once_alone() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::azure_filter(), Frequency::Always);
    let project = many(&endpoint, "json", 100, 10, 2);
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(check_cells(&project), states([("refused", 400)]));
    assert!(endpoint.request_count() <= 100 + 10 + 16, "{} requests", endpoint.request_count());
}

#[test]
fn a_dead_endpoint_ends_the_run_soon() {
    // Number of rows, of answers before the endpoint dies, and maximum number of requests.
    for (rows, alive, most) in [(300, 0, 8 * 6), (300, 5, 5 + 11 * 6), (10, 0, 60)] {
        let endpoint = truthful_endpoint();
        let asked = std::sync::atomic::AtomicUsize::new(0);
        endpoint.add_fault_where(
            Fault::Status(500, vec![("retry-after-ms", "1".into())], "{}".into()),
            Frequency::Always,
            move |_| asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) >= alive,
        );
        let project = many(&endpoint, "csv", rows, 10, 3);
        let ended = project.run_materialize(&[]).expect_exit_code(4);
        assert!(ended.stderr.contains("no request got an answer"), "{}", ended.stderr);
        // The table counts requests with a reply, like the total below it.
        let is_row = |line: &&str| line.trim_start().starts_with("llm ");
        let row = ended.stderr.lines().find(is_row);
        assert!(alive > 0 || row.is_none_or(|row| row.contains(" 0 ")), "{row:?}");
        assert!(
            endpoint.request_count() <= most,
            "{rows}, {alive}: {} requests",
            endpoint.request_count()
        );
        endpoint.clear_faults();
        project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(check_cells(&project), states([("ok", rows * COLUMN_NAMES.len())]));
    }
}

/// However long an unreadable answer is, it causes no more requests than an empty one, and only its
/// beginning is stored.
#[test]
fn a_long_unreadable_answer_causes_no_more_requests_than_silence() {
    let kinds = [("silence", String::new())].into_iter().chain(malformed_answers(1 << 18));
    let asked = Mutex::new(BTreeMap::new());
    each_of(
        2,
        kinds.map(|(name, words)| (name.to_owned(), (name, words))).collect(),
        |(name, words)| {
            let endpoint = truthful_endpoint();
            let reply = json!({ "choices": [{ "message": { "content": words }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": 300, "completion_tokens": 40 } });
            let reply: &'static str = reply.to_string().leak();
            endpoint.add_fault(Fault::Body("application/json", reply), Frequency::Always);
            let project = heroes_project(&endpoint, "csv");
            // If it is billed, a report so far below the text's length stops the run.
            project.write_spec(
                &project.spec_text().replace("price = { input = 1.0, output = 2.0 }", ""),
            );
            project
                .run_materialize(&["--where", "name < 'C'", "--concurrency", "1"])
                .expect_exit_code(1);
            assert!(!check_cells(&project).contains_key("ok"));
            asked.lock().unwrap().insert(name, endpoint.request_count());
        },
    );
    let asked = asked.into_inner().unwrap();
    println!("{asked:?}");
    assert!(asked.values().all(|n| *n == asked["silence"]), "{asked:?}");
}

/// A runaway answer is cut off: by hqdl if it streams, otherwise by its cap, which is close to what
/// its rows need.
#[test]
fn a_runaway_answer_is_cut_off_and_its_valid_part_kept() {
    let hows = [
        RunawayOutput::Repetition,
        RunawayOutput::UnknownRows,
        RunawayOutput::Prose,
        RunawayOutput::ExceedsCap,
    ];
    let streams = [true, false];
    let cases: Vec<_> = hows.into_iter().flat_map(|h| streams.map(|s| (h, s))).collect();
    each(in_formats(cases), |((how, streams), format)| {
        // An endpoint that ignores the cap bills more than was reserved.
        let code = if how == RunawayOutput::ExceedsCap { 4 } else { 0 };
        if code == 4 && !streams {
            return;
        }
        let endpoint = truthful_endpoint();
        let always = how == RunawayOutput::Repetition && streams;
        let fault = if streams { Fault::Runaway(how) } else { Fault::RunawayUnstreamed(how) };
        endpoint.add_fault(fault, if always { Frequency::Always } else { Frequency::First(2) });
        let project = heroes_project(&endpoint, format);
        let text = project.spec_text().replace("test-model", "gpt-4o-mini");
        project.write_spec(&text.replace("concurrency = 4", "concurrency = 1"));
        let flags = ["--rows-per-request", "10"];
        let ended = project.run_materialize(&flags).expect_exit_code(code);
        if code == 4 {
            assert!(ended.stderr.contains("the endpoint reports usage of"), "{}", ended.stderr);
            endpoint.clear_faults();
            project.run_materialize(&flags).expect_exit_code(0);
        }
        check_complete(&project);
        let (_, output) = endpoint.billed_tokens();
        let count = endpoint.request_count();
        println!("{how:?} {format} streams {streams}: {output} tokens, {count} requests");
        // Ten rows may use less than 3,400 tokens, twice: the second time five rows with twice the
        // cap.
        let bound = if code == 4 { 40_000 } else { 2 * 3_400 + 1_000 };
        assert!(output < bound, "{output} tokens");
        assert!(!always || count == 1, "all had come");
    });
    // Even if every answer is runaway, the run ends soon. An estimated tokenizer counts what was
    // cut off, and does not stop the run.
    let models = ["gpt-4o-mini", "test-model"];
    let hows = [RunawayOutput::UnknownRows, RunawayOutput::Prose].into_iter();
    let cases = hows.flat_map(|how| models.map(|model| (how, model)));
    each(in_formats(cases), |((how, model), format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Runaway(how), Frequency::Always);
        let project = heroes_project(&endpoint, format);
        let text = project.spec_text().replace("test-model", model);
        project.write_spec(&text);
        project.run_materialize(&[]).expect_exit_code(1);
        let states = check_cells(&project);
        assert_eq!(states.values().sum::<usize>(), 40);
        let (_, output) = endpoint.billed_tokens();
        println!(
            "{how:?} {format} always: {output} tokens, {} requests, {states:?}",
            endpoint.request_count()
        );
        assert!(output < 60_000, "{output} tokens");
        assert!(endpoint.request_count() <= 40);
    });
}

/// A cap that is too small grows, so no answer is lost to it.
#[test]
fn a_long_answer_is_never_lost_to_the_cap() {
    let long = |column: &str, key: &[Json]| match column {
        "motto" => (0..700).map(|n| format!("{} {n}", key[0])).collect::<Vec<_>>().join(" ").into(),
        _ => true_value(column, key),
    };
    each(in_formats([1, 4]), |(rows, format)| {
        let endpoint = Endpoint::start_with(long);
        let project = heroes_project(&endpoint, format);
        let text = project.spec_text().replace("test-model", "gpt-4o-mini");
        project.write_spec(&text.replace("api_key_env", "max_output_tokens = 16000\napi_key_env"));
        let rows = rows.to_string();
        project
            .run_materialize(&["--rows-per-request", &rows, "--concurrency", "2"])
            .expect_exit_code(0);
        let read = project.query_rows("SELECT name, full_name, motto FROM llm");
        assert_eq!(read.len(), HERO_COUNT);
        assert!(read.iter().all(|r| r[2] == long("motto", &r[..2])));
        println!("{format}, {rows} rows: {} requests", endpoint.request_count());
        assert!(
            endpoint.request_count() <= 3 * HERO_COUNT,
            "{} requests",
            endpoint.request_count()
        );
    });
}

#[test]
fn a_batch_line_is_billed_split_and_rejected_like_a_live_request() {
    for format in FORMATS {
        let endpoint = truthful_endpoint();
        endpoint.add_fault_where(Fault::azure_filter(), Frequency::Always, |q| {
            q.rows.iter().any(|r| r.key[0] == "Zed")
        });
        let odd = json!({ "prompt_tokens": "in", "completion_tokens": null });
        endpoint.add_fault(Fault::Usage(odd), Frequency::Always);
        let project = counted(&endpoint, format, "batch_poll_seconds = 0.03\nbudget_usd = 1.0");
        let ended = project.run_materialize(&["--batch"]).expect_exit_code(1);
        assert_eq!(check_cells(&project), states([("ok", 36), ("refused", 4)]));
        let (spent, truth) =
            (ended.done_event()["cost_usd"].as_f64().unwrap(), billed(&endpoint) / 2.0);
        assert!(spent >= truth - 1e-9 && spent < 1.1 * truth, "{spent} spent, {truth} billed");
    }
}
