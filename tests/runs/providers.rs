//! Tests of differences between providers: keys and where they are looked up, URLs, features that
//! an endpoint rejects, reasoning, and unreachable endpoints.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use hqdl::model::find_profile;
use serde_json::Value as Json;

use hqdl_testkit::create_certificate;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, Request};
use hqdl_testkit::project::{
    CommandResult, Project, check_complete, heroes_project, truthful_endpoint,
};

fn header<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    request.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
}

/// Creates the heroes' project with a spec that names no key.
fn keyless(endpoint: &Endpoint) -> Project {
    let project = heroes_project(endpoint, "json");
    let text = project.spec_text();
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("api_key_env")).collect();
    project.write_spec(&lines.join("\n"));
    project
}

fn run(project: &Project, env: &[(&str, &str)], flags: &[&str]) -> CommandResult {
    let args = [&["materialize", "specs/x.toml", "--json"], flags].concat();
    CommandResult::new(&project.hqdl_command(&args).envs(env.iter().copied()).output().unwrap())
}

#[test]
fn providers_are_recognized_by_their_urls() {
    for (url, name, variable) in [
        ("https://api.openai.com/v1", "OpenAI", Some("OPENAI_API_KEY")),
        (
            "https://x.openai.azure.com/openai/deployments/gpt?api-version=2024-10-21",
            "Azure OpenAI",
            Some("AZURE_OPENAI_API_KEY"),
        ),
        ("https://x.openai.azure.com/openai/v1/", "Azure OpenAI", Some("AZURE_OPENAI_API_KEY")),
        ("https://api.anthropic.com/v1/", "Anthropic", Some("ANTHROPIC_API_KEY")),
        (
            "https://generativelanguage.googleapis.com/v1beta/openai/",
            "Gemini",
            Some("GEMINI_API_KEY"),
        ),
        ("http://127.0.0.1:11434/v1", "Ollama", None),
        ("http://gpu.example:8080/v1", "llama.cpp", None),
        ("http://localhost:8000/v1", "vLLM", None),
        ("http://0.0.0.0:4000", "LiteLLM", None),
        ("https://openrouter.ai/api/v1", "OpenRouter", None),
        ("https://api.openai.com.evil.example/v1", "the endpoint", None),
    ] {
        let habits = find_profile(&url.parse().unwrap());
        assert_eq!((habits.name, habits.key_variable), (name, variable), "{url}");
    }
}

#[test]
fn the_key_comes_from_the_named_variable_and_a_401_names_it() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(401, "No.", "invalid_api_key"), Frequency::Always);
    let project = keyless(&endpoint);
    let refused = |env: &[(&str, &str)], flags: &[&str], says: &str| {
        let ended = run(&project, env, flags).expect_exit_code(4);
        assert!(ended.stderr.contains(says), "{says}: {}", ended.stderr);
        let requests = endpoint.received_requests();
        header(requests.last().unwrap(), "authorization").map(str::to_owned)
    };
    // No key is sent, not even that of another endpoint.
    let openai = [("OPENAI_API_KEY", "sk-openai-1234"), ("MINE", "mine-5678")];
    let sent = refused(
        &openai,
        &[],
        "hqdl sent no key, because neither --api-key-env nor `api_key_env` names one",
    );
    assert_eq!(sent, None);
    let sent = refused(&openai, &["--api-key-env", "MINE"], "hqdl sent the key in MINE");
    assert_eq!(sent.as_deref(), Some("Bearer mine-5678"));
    let sent =
        refused(&[], &["--api-key-env", "MINE"], "hqdl sent no key, because MINE is not set");
    assert_eq!(sent, None);
    let ended = run(&project, &openai, &["--api-key-env", "sk-abcdefgh"]).expect_exit_code(2);
    assert!(ended.stderr.contains("the name of an environment variable"), "{}", ended.stderr);
}

#[test]
fn a_key_of_one_endpoint_is_not_sent_to_another() {
    let (endpoint, other) = (truthful_endpoint(), truthful_endpoint());
    let project = heroes_project(&endpoint, "json");
    run(&project, &[], &["--base-url", &other.base_url(), "--limit", "1"]).expect_exit_code(0);
    assert!(other.received_requests().iter().all(|r| header(r, "authorization").is_none()));
    run(&project, &[], &["--base-url", &endpoint.base_url()]).expect_exit_code(0);
    assert!(endpoint.received_requests().iter().all(|r| header(r, "authorization").is_some()));
}

#[test]
fn the_provider_names_the_variable_that_is_missing() {
    let endpoint = truthful_endpoint();
    let project = keyless(&endpoint);
    for (url, variable) in [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
        ("https://x.openai.azure.com/openai/deployments/gpt", "AZURE_OPENAI_API_KEY"),
    ] {
        let mut command = project.hqdl_command(&["materialize", "specs/x.toml", "--base-url", url]);
        let ended =
            CommandResult::new(&command.env_remove(variable).output().unwrap()).expect_exit_code(4);
        let says = format!("the environment variable {variable} is not set");
        assert!(ended.stderr.contains(&says), "{}", ended.stderr);
    }
}

#[test]
fn azures_classic_url_keeps_its_query_and_has_its_own_header() {
    let endpoint = truthful_endpoint();
    let base = endpoint.base_url().replace("/v1", "/openai/deployments/gpt-4o");
    for (given, wanted) in [
        (format!("{base}?api-version=2025-01-01"), "api-version=2025-01-01"),
        (format!("{base}/chat/completions?api-version=2025-02-02"), "api-version=2025-02-02"),
        (format!("{base}/"), "api-version=2024-10-21"),
    ] {
        let project = keyless(&endpoint);
        let env = [("AZURE_OPENAI_API_KEY", "azure-1234")];
        run(&project, &env, &["--base-url", &given]).expect_exit_code(0);
        let request = endpoint.received_requests().pop().unwrap();
        let uri = format!("/openai/deployments/gpt-4o/chat/completions?{wanted}");
        assert_eq!(request.uri, uri, "{given}");
        assert_eq!(header(&request, "api-key"), Some("azure-1234"));
        assert_eq!(header(&request, "authorization"), None);
        check_complete(&project);
    }
}

#[test]
fn rejected_features_are_left_out_and_reported_once() {
    let all = ["max_tokens", "temperature", "response_format", "stream_options"];
    for parameters in [
        &["max_tokens"][..],
        &["max_tokens", "max_completion_tokens"],
        &["temperature"],
        &["response_format"],
        &["stream_options"],
        &["stream"],
        &["max_tokens", "max_completion_tokens", "temperature", "response_format", "stream"],
    ] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::RejectsParameters(parameters), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        let text = project.spec_text().replace("[model]", "[model]\ntemperature = 0.0");
        project.write_spec(&text);
        let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
        check_complete(&project);
        let requests = endpoint.received_requests();
        let refused = |r: &Request| parameters.iter().any(|p| r.body.get(*p).is_some());
        let (failed, others): (Vec<_>, Vec<_>) = requests.iter().partition(|r| refused(r));
        assert_eq!(failed.len(), parameters.len(), "{parameters:?}");
        // Features that it accepts are still sent.
        for name in
            all.iter().filter(|n| !parameters.contains(n) && !parameters.contains(&"stream"))
        {
            assert!(others.iter().all(|r| r.body.get(*name).is_some()), "{name}, {parameters:?}");
        }
        let instead = parameters == ["max_tokens"];
        assert!(others.iter().all(|r| r.body.get("max_completion_tokens").is_some() == instead));
        let told = |l: &&Json| {
            l["event"] == "warning" && l["message"].to_string().contains("hqdl retries")
        };
        assert_eq!(ended.lines.iter().filter(told).count(), parameters.len(), "{:?}", ended.lines);
    }
}

/// Returns the number of requests since the `from`-th that send one of these parameters.
fn sending(endpoint: &Endpoint, from: usize, parameters: &[&str]) -> usize {
    let sends = |r: &&Request| parameters.iter().any(|p| r.body.get(*p).is_some());
    endpoint.received_requests()[from..].iter().filter(sends).count()
}

/// No command repeats a request that an earlier one found to be rejected.
#[test]
fn the_next_command_does_not_send_rejected_features() {
    let lists: [&[&str]; 3] = [
        &["max_tokens"],
        &["response_format", "stream"],
        &["max_tokens", "max_completion_tokens", "temperature", "response_format", "stream"],
    ];
    for parameters in lists {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::RejectsParameters(parameters), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        project.write_spec(&project.spec_text().replace("[model]", "[model]\ntemperature = 0.0"));
        project.run_materialize(&["--limit", "3", "--concurrency", "1"]).expect_exit_code(0);
        assert_eq!(sending(&endpoint, 0, parameters), parameters.len(), "{parameters:?}");
        let before = endpoint.request_count();
        project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
        check_complete(&project);
        assert!(endpoint.request_count() > before);
        assert_eq!(sending(&endpoint, before, parameters), 0, "{parameters:?}");
    }
}

/// Rejections are not remembered for another model or temperature, nor after a day.
#[test]
fn rejected_features_are_tried_with_other_models_and_after_a_day() {
    let refused = ["temperature"];
    for what in ["model", "temperature", "a day"] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::RejectsParameters(&["temperature"]), Frequency::Once);
        let project = heroes_project(&endpoint, "json");
        project.write_spec(&project.spec_text().replace("[model]", "[model]\ntemperature = 0.0"));
        project.run_materialize(&["--limit", "3", "--concurrency", "1"]).expect_exit_code(0);
        let before = endpoint.request_count();
        assert!(sending(&endpoint, 0, &refused) < before);
        let text = project.spec_text();
        match what {
            "model" => project.write_spec(&text.replace("test-model", "other-model")),
            "temperature" => {
                project.write_spec(&text.replace("temperature = 0.0", "temperature = 1.0"));
            }
            _ => {
                let day = "UPDATE request_form SET heard_at = heard_at - 24 * 60 * 60 * 1000";
                project.execute_sql_in("cache/journal.sqlite", day);
            }
        }
        project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
        let sent = endpoint.request_count() - before;
        assert_eq!(sending(&endpoint, before, &refused), sent, "{what}");
    }
}

/// If leaving a feature out no longer works, all features are sent again.
#[test]
fn rejected_features_that_are_required_now_are_sent() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::RejectsParameters(&["temperature"]), Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    project.write_spec(&project.spec_text().replace("[model]", "[model]\ntemperature = 0.0"));
    project.run_materialize(&["--limit", "3", "--concurrency", "1"]).expect_exit_code(0);
    endpoint.clear_faults();
    endpoint.add_fault(Fault::RequiresParameter("temperature"), Frequency::Always);
    let before = endpoint.request_count();
    project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.request_count() - before - sending(&endpoint, before, &["temperature"]), 1);
    let before = endpoint.request_count();
    project.run_materialize(&["--refresh", "motto", "--concurrency", "1"]).expect_exit_code(0);
    let sent = endpoint.request_count() - before;
    assert!(sent > 0 && sending(&endpoint, before, &["temperature"]) == sent);
}

/// A plan's price includes reasoning, if the model's name or its latest answers show that it
/// reasons.
#[test]
fn a_plan_counts_the_reasoning() {
    for (model, first) in [("o4-mini", false), ("test-model", true)] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::HiddenReasoning(1500), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        project.write_spec(&project.spec_text().replace("test-model", model));
        if first {
            project.run_materialize(&["--limit", "4", "--concurrency", "1"]).expect_exit_code(0);
        }
        let totals = project.run_plan(&[])["totals"].clone();
        let cost = |which: &str| totals["cost_usd"][which].as_f64().unwrap();
        let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
        check_complete(&project);
        let done = ended.done_event();
        let spent = done["cost_usd"].as_f64().unwrap();
        assert!(spent <= cost("most"), "{model}: {spent} of {totals}");
        assert!(cost("likely") * 2.5 >= spent && cost("likely") <= cost("most"), "{totals}");
        // No answer was truncated during reasoning.
        assert_eq!(done["requests"], totals["requests"], "{model}");
        let wanted = "SELECT {{LLMMap('Which planet is it from?', hero.name)}} FROM hero";
        let query = ["query", "--spec", "specs/x.toml", "--json", wanted];
        let explain = ["explain", "--spec", "specs/x.toml", "--json", wanted];
        let usd = |args: &[&str]| {
            let ended = project.run_hqdl(args).expect_exit_code(0);
            let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
            let meta = json.get("meta").unwrap_or(&json).clone();
            meta["cost_usd"].as_f64().unwrap_or_else(|| panic!("{meta}"))
        };
        let most = usd(&explain);
        let spent = usd(&query);
        assert!(spent > 0.0 && spent <= most, "{model}: {spent} of {most}");
    }
}

#[test]
fn an_error_about_a_value_is_not_a_rejection_of_the_parameter() {
    let endpoint = truthful_endpoint();
    let words = "max_tokens is too large: 4096. This model supports at most 100 tokens.";
    endpoint.add_fault(Fault::status(400, words, "invalid_value"), Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(4);
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 1);
}

#[test]
fn reasoning_is_paid_for_and_has_room() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::HiddenReasoning(1500), Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    let ended = project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
    check_complete(&project);
    // One answer ends during reasoning and is requested again in halves; the others have room for
    // it.
    let requests = endpoint.request_count();
    let rows: usize =
        project.query_rows("SELECT count(*) FROM hero")[0][0].as_u64().unwrap() as usize;
    assert!(requests <= rows.div_ceil(4) + 2, "{requests} requests for {rows} rows");
    let (input, output) = endpoint.billed_tokens();
    let done = ended.done_event();
    assert!(output >= 1500 * (requests as u64 - 1));
    assert_eq!(done["output_tokens"], output);
    assert_eq!(done["input_tokens"], input);
}

/// Returns a local port on which no process listens.
fn nobody() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn an_unreachable_endpoint_is_reported_in_one_line() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let url = format!("http://127.0.0.1:{}/v1", nobody());
    let args = ["materialize", "specs/x.toml", "--base-url", &url];
    let ended = project.run_hqdl(&args).expect_exit_code(4);
    let lines: Vec<&str> = ended.stderr.lines().filter(|l| l.contains("onnect")).collect();
    let [line] = lines[..] else { panic!("{}", ended.stderr) };
    assert!(line.starts_with("error: no connection to 127.0.0.1:"), "{line}");
    assert!(line.ends_with("connection refused"), "{line}");
    // No request was sent, so no summary is printed and nothing is published.
    assert!(!ended.stdout.contains("requests"), "{}", ended.stdout);
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
}

/// Starts a TLS proxy to an address.
fn secured(cert: &[u8], key: &[u8], to: std::net::SocketAddr) -> std::net::SocketAddr {
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(cert).unwrap()],
            PrivateKeyDer::from_pem_slice(key).unwrap(),
        )
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            std::thread::spawn(move || {
                let mut tls = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                // Read one request to the end of its body, and return its answer.
                let mut request = Vec::new();
                let mut piece = [0; 16 << 10];
                let whole = |request: &[u8]| {
                    let text = String::from_utf8_lossy(request).into_owned();
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let head = head.to_lowercase();
                    let length = head.split("content-length: ").nth(1)?.lines().next()?;
                    (body.len() >= length.trim().parse().ok()?).then_some(())
                };
                while whole(&request).is_none() {
                    match tls.read(&mut piece) {
                        Ok(0) | Err(_) => return,
                        Ok(read) => request.extend_from_slice(&piece[..read]),
                    }
                }
                let text = String::from_utf8_lossy(&request).into_owned();
                let text = text.replacen("\r\n", "\r\nconnection: close\r\n", 1);
                let mut there = std::net::TcpStream::connect(to).unwrap();
                there.write_all(text.as_bytes()).unwrap();
                let mut answer = Vec::new();
                there.read_to_end(&mut answer).unwrap();
                tls.write_all(&answer).unwrap();
                tls.conn.send_close_notify();
                let _ = tls.flush();
            });
        }
    });
    address
}

#[test]
fn a_self_signed_certificate_is_a_tls_error_unless_the_system_trusts_it() {
    let dir = tempfile::tempdir().unwrap();
    let authority = create_certificate(dir.path(), true).expect("openssl makes a certificate");
    let server = create_certificate(dir.path(), false).expect("openssl makes a certificate");
    let endpoint = truthful_endpoint();
    let to = endpoint.base_url().split('/').nth(2).unwrap().parse().unwrap();
    for (cert, key) in [authority, server] {
        let project = heroes_project(&endpoint, "json");
        let file = project.path("trusted.pem");
        std::fs::write(&file, &cert).unwrap();
        let url = format!("https://{}/v1", secured(&cert, &key, to));
        let flags = ["--base-url", &url, "--concurrency", "1"];
        let ended = run(&project, &[], &flags).expect_exit_code(4);
        assert!(
            ended.stderr.contains("error: no TLS connection to 127.0.0.1:"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("SSL_CERT_FILE"), "{}", ended.stderr);
        let file = file.display().to_string();
        run(&project, &[("SSL_CERT_FILE", &file)], &flags).expect_exit_code(0);
        check_complete(&project);
        // The certificate is that of one host only.
        let localhost = url.replace("127.0.0.1", "localhost");
        let flags = ["--base-url", &localhost, "--concurrency", "1", "--no-cache"];
        let ended = run(&project, &[("SSL_CERT_FILE", &file)], &flags).expect_exit_code(4);
        assert!(ended.stderr.contains("not valid for name"), "{}", ended.stderr);
    }
    // A server without TLS.
    let project = heroes_project(&endpoint, "json");
    let url = endpoint.base_url().replace("http://", "https://");
    let ended = run(&project, &[], &["--base-url", &url]).expect_exit_code(4);
    assert!(ended.stderr.contains("does not use TLS"), "{}", ended.stderr);
}

/// The advice to start Ollama does not replace the advice to write `http://`.
#[cfg(target_os = "linux")]
#[test]
fn ollama_without_tls_is_not_reported_as_stopped() {
    let process = std::process::id();
    let host = format!("127.{}.{}.7", process >> 8 & 127, process & 255);
    // hqdl recognizes Ollama by its port. The address differs between concurrent tests.
    let listener = std::net::TcpListener::bind((host.as_str(), 11434)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = std::io::Read::read(&mut stream, &mut [0; 1024]);
            let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let project = heroes_project(&truthful_endpoint(), "json");
    let url = format!("https://{host}:11434/v1");
    let ended =
        project.run_hqdl(&["materialize", "specs/x.toml", "--base-url", &url]).expect_exit_code(4);
    for part in ["the server does not use TLS", "write http:// instead of https://"] {
        assert!(ended.stderr.contains(part), "{part:?} is not in:\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("running?"), "{}", ended.stderr);
}
