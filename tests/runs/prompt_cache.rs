//! Tests of the endpoint's prompt cache: what requests set, and how much of the repeated prompt is
//! billed as read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hqdl::tokens::Tokenizer;
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, Request, lock_mutex};
use hqdl_testkit::project::{
    CommandResult, EXPANSION, MODEL, Project, true_value, truthful_endpoint,
};

const LATENCY: Duration = Duration::from_millis(60);
/// Minimum tokens of a prefix that is cached.
const LEAST: u64 = 1024;

/// A provider, and how its prompt cache works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    /// Anthropic's models at `OpenRouter`: the part up to `cache_control` is cached.
    Marked,
    /// `OpenAI`, GPT-5.6 or later: prefixes that end at explicit breakpoints, and without
    /// `prompt_cache_options` the whole request, are written for requests with the same key.
    Explicit,
    /// `OpenAI` before GPT-5.6: any prefix is cached for requests with the same key.
    Automatic,
}

impl Provider {
    fn model(self) -> (&'static str, &'static str) {
        match self {
            Self::Marked => ("http://openrouter.ai/api/v1", "anthropic/claude-haiku-4-5"),
            Self::Explicit => ("http://api.openai.com/v1", "gpt-5.6-luna"),
            Self::Automatic => ("http://api.openai.com/v1", "gpt-4o-mini"),
        }
    }
}

/// Input tokens that the endpoint has billed.
#[derive(Default)]
struct Billed {
    /// Time at which each prefix was written.
    written: HashMap<String, Instant>,
    /// Tokens of prefixes that an earlier request had, too.
    repeated: u64,
    read: u64,
    writes: u64,
    /// Tokens of system messages; each different one counts once.
    prefixes: u64,
    seen: HashMap<String, u64>,
}

impl Billed {
    /// Bills a request, and returns its usage.
    fn bill(&mut self, provider: Provider, body: &Json, input: u64, output: u64) -> Json {
        let content = &body["messages"][0]["content"];
        let text = content.as_str().or_else(|| content[0]["text"].as_str()).unwrap();
        let tokens = Tokenizer::for_model(body["model"].as_str().unwrap()).count_tokens(text);
        let key = body["prompt_cache_key"].as_str().unwrap_or("no key");
        let seen = self.seen.entry(text.to_owned()).or_default();
        *seen += 1;
        if *seen > 1 {
            self.repeated += tokens;
        } else {
            self.prefixes += tokens;
        }
        let is_cached = tokens >= LEAST
            && match provider {
                Provider::Marked => content[0]["cache_control"]["type"] == "ephemeral",
                Provider::Explicit => {
                    content[0]["prompt_cache_breakpoint"]["mode"] == "explicit" && key != "no key"
                }
                Provider::Automatic => key != "no key",
            };
        // An entry can be read by requests that arrive after the reply that wrote it began.
        let place = format!("{key} {text}");
        let at = self.written.get(&place).copied();
        let read =
            if is_cached && at.is_some_and(|at| at.elapsed() >= LATENCY) { tokens } else { 0 };
        let mut written = if is_cached && read == 0 { tokens } else { 0 };
        if written > 0 {
            self.written.entry(place).or_insert_with(Instant::now);
        }
        if provider == Provider::Explicit && body["prompt_cache_options"]["mode"] != "explicit" {
            written = input - read;
        }
        self.read += read;
        self.writes += written;
        let mut details = json!({ "cached_tokens": read });
        if provider != Provider::Automatic {
            details["cache_write_tokens"] = written.into();
        }
        json!({
            "prompt_tokens": input, "completion_tokens": output, "prompt_tokens_details": details,
        })
    }
}

/// Creates a project that uses one of these providers; returns it with what the endpoint bills.
fn asking(endpoint: &Endpoint, provider: Provider) -> (Project, Arc<Mutex<Billed>>) {
    let billed: Arc<Mutex<Billed>> = Arc::default();
    let sums = Arc::clone(&billed);
    let meter =
        move |body: &Json, input, output| lock_mutex(&sums).bill(provider, body, input, output);
    endpoint.add_fault(Fault::Latency(LATENCY), Frequency::Always);
    endpoint.set_usage_fn(meter);
    let rows: Vec<String> = (0..200).map(|n| format!("('Hero {n}', 'Full {n}')")).collect();
    let values: Vec<String> = (0..400).map(|n| format!("\"Colour {n}\"")).collect();
    let columns = format!(
        "[[expansion.column]]\nname = \"eye_color\"\nvalues = [\"Blue\", \"Brown\", \"Green\", {}]\n\
         [[expansion.column]]\nname = \"born\"\ntype = \"integer\"\n",
        values.join(", ")
    );
    let (url, name) = provider.model();
    let model = MODEL
        .replace("{base_url}", url)
        .replace("test-model", name)
        .replace("{ input = 1.0, output = 2.0 }", "{ input = 0, output = 0 }")
        .replace("concurrency = 4", "concurrency = 8");
    let table = "CREATE TABLE hero (name TEXT, full_name TEXT);";
    let sql = format!("{table} INSERT INTO hero VALUES {};", rows.join(", "));
    (Project::new(endpoint, &sql, &[&model, EXPANSION, &columns].concat()), billed)
}

/// Runs hqdl with the endpoint as the proxy to all hosts.
fn run(project: &Project, args: &[&str]) -> CommandResult {
    let proxy = project.base_url().trim_end_matches("/v1").to_owned();
    let mut command = project.hqdl_command(args);
    CommandResult::new(&command.env("http_proxy", proxy).output().unwrap())
}

fn materialize(project: &Project) -> CommandResult {
    run(project, &["materialize", "specs/x.toml", "--json"])
}

/// Returns the system message of a request, with its breakpoint.
fn system(request: &Request) -> &Json {
    &request.body["messages"][0]["content"]
}

/// The requirement: at least 80 % of the repeated prefix is read from the cache. Nothing but the
/// prefix is written to it, and only once.
#[test]
fn repeated_prefixes_are_read_from_the_cache() {
    for provider in [Provider::Marked, Provider::Explicit, Provider::Automatic] {
        let endpoint = truthful_endpoint();
        let (project, billed) = asking(&endpoint, provider);
        let done = materialize(&project).expect_exit_code(0).done_event().clone();
        let billed = lock_mutex(&billed);
        let part = billed.read as f64 / billed.repeated as f64;
        println!(
            "{provider:?}: {} requests, {} of {} repeated prefix tokens read ({:.1} %), {} written",
            endpoint.request_count(),
            billed.read,
            billed.repeated,
            part * 100.0,
            billed.writes
        );
        assert!(endpoint.request_count() >= 50 && billed.prefixes >= LEAST, "{provider:?}");
        assert!(part >= 0.8, "{provider:?}");
        let writes = if provider == Provider::Automatic { 2 * billed.prefixes } else { 0 };
        assert!(billed.writes <= billed.prefixes + writes, "{provider:?}");
        assert_eq!(done["cells"]["ok"], 400, "{provider:?}");
        let rows = project.query_rows("SELECT name, full_name, born FROM llm");
        assert!(rows.iter().all(|row| row[2] == true_value("born", &row[..2])));
    }
}

/// Requests to other endpoints and models are unchanged.
#[test]
fn only_documented_models_get_cache_fields() {
    for (url, model, field, has_key) in [
        ("http://openrouter.ai/api/v1", "anthropic/claude-opus-5", "cache_control", false),
        ("http://openrouter.ai/api/v1", "openai/gpt-6-sol", "prompt_cache_breakpoint", false),
        ("http://openrouter.ai/api/v1", "openai/gpt-4o", "", false),
        ("http://openrouter.ai/api/v1", "google/gemini-2.5-pro", "", false),
        ("http://litellm.example:4000", "claude-sonnet-5", "cache_control", false),
        ("http://litellm.example:4000", "gpt-6-sol", "", false),
        ("http://api.openai.com/v1", "gpt-6.1-sol", "prompt_cache_breakpoint", true),
        ("http://api.openai.com/v1", "gpt-5.5", "", true),
        // Anthropic's OpenAI-compatible endpoint has no prompt cache.
        ("http://api.anthropic.com/v1", "claude-opus-5", "", false),
        ("http://proxy.example/v1", "gpt-6-sol", "", false),
        ("http://proxy.example/v1", "claude-opus-5", "", false),
    ] {
        let endpoint = truthful_endpoint();
        let (project, _) = asking(&endpoint, Provider::Automatic);
        let (base, name) = Provider::Automatic.model();
        project.write_spec(&project.spec_text().replace(base, url).replace(name, model));
        let ended = run(&project, &["materialize", "specs/x.toml", "--json", "--limit", "4"]);
        ended.expect_exit_code(0);
        let request = endpoint.received_requests().into_iter().next().unwrap();
        let body = &request.body;
        assert_eq!(system(&request).is_string(), field.is_empty(), "{url} {model}: {body}");
        assert_eq!(body.get("prompt_cache_key").is_some(), has_key, "{url} {model}");
        let is_explicit = field == "prompt_cache_breakpoint";
        assert_eq!(body.get("prompt_cache_options").is_some(), is_explicit, "{url} {model}");
        if !field.is_empty() {
            assert!(system(&request)[0].get(field).is_some(), "{url} {model}: {body}");
        }
    }
}

/// An endpoint that rejects a breakpoint or a key gets requests without it, in this run and the
/// next.
#[test]
fn a_refused_breakpoint_is_forgotten() {
    for refused in ["prompt_cache_key", "prompt_cache_options", "messages"] {
        let endpoint = truthful_endpoint();
        let words = match refused {
            "messages" => "Invalid type for 'messages[0].content': expected a string.".to_owned(),
            name => format!("Unrecognized request argument supplied: {name}"),
        };
        endpoint
            .add_fault(Fault::status(400, &words, "invalid_request_error"), Frequency::First(1));
        let (project, _) = asking(&endpoint, Provider::Explicit);
        let limited = ["materialize", "specs/x.toml", "--json", "--limit", "4"];
        run(&project, &limited).expect_exit_code(0);
        assert_eq!(endpoint.request_count(), 2, "{refused}");
        run(&project, &["materialize", "specs/x.toml", "--json", "--limit", "12"])
            .expect_exit_code(0);
        let requests = endpoint.received_requests();
        assert!(requests.len() > 3, "{refused}");
        for request in &requests[1..] {
            let has_key = request.body.get("prompt_cache_key").is_some();
            assert_eq!(has_key, refused != "prompt_cache_key", "{refused}: {}", request.body);
            assert_eq!(system(request).is_array(), refused == "prompt_cache_key", "{refused}");
        }
    }
}

/// Parameters of the spec for the cache are sent unchanged.
#[test]
fn parameters_of_the_spec_replace_the_key() {
    let endpoint = truthful_endpoint();
    let (project, _) = asking(&endpoint, Provider::Explicit);
    let parameters = "[model.parameters]\nprompt_cache_key = \"mine\"\n\
        prompt_cache_options = { mode = \"implicit\" }\n\n[limits]";
    project.write_spec(&project.spec_text().replacen("[limits]", parameters, 1));
    run(&project, &["materialize", "specs/x.toml", "--json", "--limit", "4"]).expect_exit_code(0);
    let body = endpoint.received_requests().into_iter().next().unwrap().body;
    assert_eq!(body["prompt_cache_key"], "mine");
    assert_eq!(body["prompt_cache_options"]["mode"], "implicit");
}
