//! Tests that the pages of `docs/reference` match the code, from which they are generated. To write
//! them after a change: `HQDL_WRITE_REFERENCE=1 cargo test --test docs reference`.

mod json_output;
mod response_fields;
mod spec_fields;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};
use serde_json::{Value as Json, json};

use self::response_fields::{describe_response, field_row};
use self::spec_fields::kind;
use crate::tidy::sources;
use hqdl::cli::{EXAMPLES, build_command, wrap_example};
use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::project::{heroes_project, truthful_endpoint};

fn page(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name)
}

/// Compares a page with the generated text, or writes it.
fn hold(name: &str, text: &str) {
    let text = format!("<!-- Made from the code; see CONTRIBUTING.md. -->\n{}\n", text.trim_end());
    let path = page(name);
    if std::env::var_os("HQDL_WRITE_REFERENCE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "docs/reference/{name} differs from the code; write it anew with \
         HQDL_WRITE_REFERENCE=1 cargo test --test docs reference, and read the difference"
    );
}

/// Formats text for a cell of a Markdown table. Clippy requires backticks around product names.
fn cell(text: &str) -> String {
    let plain = ["SQLite", "PostgreSQL", "OpenAI"]
        .iter()
        .fold(text.to_owned(), |text, name| text.replace(&format!("`{name}`"), name));
    plain.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

/// Returns the commands without subcommands, with their paths: `cache list`.
fn commands() -> Vec<(String, Command)> {
    fn collect(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        for inner in command.get_subcommands().filter(|c| c.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name()).trim_start().to_owned();
            if inner.has_subcommands() {
                collect(inner, &path, found);
            } else {
                found.push((path, inner.clone()));
            }
        }
    }
    let mut root = build_command();
    root.build();
    let mut found = Vec::new();
    collect(&root, "", &mut found);
    found
}

fn examples(path: &str) -> &'static [&'static str] {
    EXAMPLES.iter().find(|(name, _)| *name == path).map_or(&[], |(_, examples)| examples)
}

/// Formats an argument: `--limit <N>`, `--resume [ID]`, `<SPEC>`, `<FILE>...`
fn spelling(argument: &Arg) -> String {
    let mut names: Vec<String> = Vec::new();
    names.extend(argument.get_long().map(|long| format!("--{long}")));
    names.extend(argument.get_short().map(|short| format!("-{short}")));
    let names = names.join(", ");
    if !argument.get_action().takes_values() {
        return names;
    }
    let is_optional = argument.get_num_args().is_some_and(|n| n.min_values() == 0);
    let (open, close) = if is_optional { ('[', ']') } else { ('<', '>') };
    let names_of_values = argument.get_value_names().unwrap_or_default();
    let values: Vec<String> =
        names_of_values.iter().map(|name| format!("{open}{name}{close}")).collect();
    let many = argument.get_num_args().is_some_and(|n| n.max_values() == usize::MAX);
    let values = values.join(" ") + if many { "..." } else { "" };
    format!("{names} {values}").trim().to_owned()
}

/// Splits a help text into the meaning and the default. The help names a default that is computed,
/// as in `Output file [default: stdout]. Never overwritten.`
fn split_default(help: &str) -> (String, String) {
    let parts = help.split_once(" [default: ").and_then(|(before, rest)| {
        let (default, after) = rest.split_once(']')?;
        Some((format!("{before}{after}"), default.to_owned()))
    });
    parts.unwrap_or((help.to_owned(), String::new()))
}

#[test]
fn a_default_in_a_help_text_ends_at_its_bracket() {
    let (help, default) = split_default("Output file [default: stdout]. It is never overwritten.");
    assert_eq!((&*help, &*default), ("Output file. It is never overwritten.", "stdout"));
}

fn row(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, computed) = split_default(&help);
    let written: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|v| v.to_string_lossy().into_owned())
        .filter(|value| argument.get_action().takes_values() && !value.is_empty())
        .collect();
    let default = if written.is_empty() { computed } else { format!("`{}`", written.join("`, `")) };
    let variable =
        argument.get_env().map(|v| format!("`{}`", v.to_string_lossy())).unwrap_or_default();
    let choices: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|_| argument.get_action().takes_values())
        .map(|v| format!("`{}`", v.get_name()))
        .collect();
    let choices =
        if choices.is_empty() { String::new() } else { format!(" One of {}.", choices.join(", ")) };
    format!(
        "| `{}` | {}.{choices} | {default} | {variable} |\n",
        spelling(argument).replace('|', "\\|"),
        cell(help.trim_end_matches('.')),
    )
}

fn table(title: &str, arguments: &[&Arg]) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let rows: String = arguments.iter().map(|a| row(a)).collect();
    format!("| {title} | meaning | default | variable |\n|---|---|---|---|\n{rows}\n")
}

/// Returns true for flags that every command accepts.
fn is_common(argument: &Arg) -> bool {
    ["json", "quiet", "verbose", "log", "help", "version"].contains(&argument.get_id().as_str())
}

#[test]
fn every_command_and_flag_is_on_the_page() {
    let mut text = String::from(
        "# Commands\n\nEvery command of `hqdl`, with its arguments and flags. `hqdl help COMMAND` prints \
         the same text.\n\n",
    );
    let mut root = build_command();
    root.build();
    let common: Vec<&Arg> = root
        .get_arguments()
        .filter(|a| is_common(a) && !["help", "version"].contains(&a.get_id().as_str()))
        .collect();
    let _ = write!(text, "Flags of every command:\n\n{}", table("flag", &common));
    for (path, command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "## hqdl {path}\n\n{}.\n\n", about.trim_end_matches('.'));
        let own: Vec<&Arg> =
            command.get_arguments().filter(|a| !is_common(a) && !a.is_hide_set()).collect();
        let (values, flags): (Vec<&Arg>, Vec<&Arg>) =
            own.into_iter().partition(|a| a.is_positional());
        let shown: Vec<String> = examples(&path).iter().map(|e| wrap_example(e)).collect();
        let _ = write!(
            text,
            "{}{}```sh\n{}\n```\n\n",
            table("argument", &values),
            table("flag", &flags),
            shown.join("\n")
        );
    }
    text.push_str(&exit_codes());
    text.push_str("\n## Environment variables\n\n| variable | meaning |\n|---|---|\n");
    for (name, meaning) in VARIABLES {
        let _ = writeln!(text, "| `{name}` | {meaning} |");
    }
    hold("commands.md", &text);
}

/// Environment variables that hqdl reads.
const VARIABLES: [(&str, &str); 14] = [
    (
        "HQDL_CACHE",
        "cache of facts: a directory or a `postgres://` URL; `--cache` takes precedence",
    ),
    ("HQDL_LOG_FILE", "log file; `--log` takes precedence"),
    ("RUST_LOG", "log level, such as `hqdl=info`"),
    ("HQDL_TOKEN", "token that clients of the daemon must send; at least 16 characters"),
    ("HQDL_LEASE", "lease of a cache session on a PostgreSQL server, in seconds; default: 90"),
    (
        "OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, AZURE_OPENAI_API_KEY",
        "API key of the endpoint; see [Endpoints](endpoints.md)",
    ),
    ("PGPASSWORD", "password of a PostgreSQL server"),
    ("PGPASSFILE", "password file to use instead of `~/.pgpass`"),
    ("PGUSER", "user of a PostgreSQL server, if the URL names none"),
    ("HTTP_PROXY, HTTPS_PROXY", "proxy for requests to endpoints; lower case works, too"),
    ("SSL_CERT_FILE", "file of certificates to trust instead of the system's"),
    ("HQDL", "SQLite extension: path of the program `hqdl`, if it is not in `PATH`"),
    ("HQDL_FLAGS", "SQLite extension: flags for `hqdl map`"),
    ("HQDL_ASK", "SQLite extension: `never` disables `hqdl_ask`"),
];

/// Variables of the tests and of the build.
const INTERNAL: [&str; 6] = [
    "HQDL_POSTGRES",
    "HQDL_SHARED",
    "HQDL_TESTS_ON_SERVER",
    "HQDL_TEST_KEY",
    "HQDL_TEST_SEEDS",
    "HQDL_VERSION",
];

#[test]
fn every_variable_is_on_the_page() {
    let literal =
        regex::Regex::new(r#""(HQDL_[A-Z_]+|PG[A-Z]{4,}|[A-Z_]+_API_KEY|RUST_LOG)""#).unwrap();
    let listed: Vec<&str> = VARIABLES.iter().flat_map(|(names, _)| names.split(", ")).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["src", "crates", "sqlite/src"].map(|folder| sources(&root.join(folder)));
    for file in files.concat() {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in literal.captures_iter(&text).map(|found| found[1].to_owned()) {
            let is_known = listed.contains(&&*name) || INTERNAL.contains(&&*name);
            let is_test = file.components().any(|c| c.as_os_str() == "tests");
            assert!(is_known || is_test, "{name} of {} is not on the page", file.display());
        }
    }
}

/// Explanations of exit codes, longer than those in `hqdl help`.
const EXIT_CODES: [(&str, &str); 8] = [
    ("0", "every cell has an answer, which may be \"unknown\""),
    (
        "1",
        "`invalid`, `not_in_list`, `refused`, `error`; with `--require-values` also a cell without a value",
    ),
    ("2", "a flag, spec, query, file or database"),
    ("3", "hqdl keeps all answers; run again with a higher budget"),
    ("4", "such as a wrong API key, an unknown model or no connection; hqdl keeps all answers"),
    ("5", "the PostgreSQL server with the cache; hqdl loses no answer"),
    (
        "6",
        "without a terminal, `hqdl ask` and `hqdl chat` print the id of the plan to approve; also if you answer no",
    ),
    ("130", "by Ctrl-C; the next run continues from there"),
];

/// Returns the exit codes as `hqdl help` lists them.
fn exit_codes() -> String {
    let help = build_command().get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut text = String::from("## Exit codes\n\n| code | meaning | detail |\n|---|---|---|\n");
    let codes = help.trim_start_matches("Exit: ").trim_end_matches('.').split(", ");
    for (code, meaning) in codes.filter_map(|c| c.split_once(' ')) {
        let detail = EXIT_CODES.iter().find(|(known, _)| *known == code).expect(code).1;
        let _ = writeln!(text, "| {code} | {meaning} | {detail} |");
    }
    text
}

/// Splits an example into words as a shell does.
fn words(example: &str) -> Vec<String> {
    let start = example.find("hqdl ").unwrap();
    let line = &example[start..];
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in line.chars() {
        match c {
            '"' => (quoted, any) = (!quoted, true),
            '<' | '>' if !quoted => break,
            ' ' if !quoted => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[test]
fn examples_are_command_lines_and_every_flag_has_one() {
    let all: Vec<Vec<String>> =
        EXAMPLES.iter().flat_map(|(_, lines)| lines.iter().map(|l| words(l))).collect();
    for words in &all {
        if let Err(error) = build_command().try_get_matches_from(words) {
            panic!("{words:?}: {error}");
        }
    }
    let mut without = Vec::new();
    for (path, command) in commands() {
        assert!(!examples(&path).is_empty(), "hqdl {path} has no example");
        for flag in command.get_arguments().filter_map(Arg::get_long) {
            let written = format!("--{flag}");
            let shown = all.iter().flatten().any(|w| *w == written);
            if !shown && flag != "help" && flag != "version" {
                without.push(format!("{path} {written}"));
            }
        }
    }
    assert!(without.is_empty(), "no example has {without:?}");
}

/// Returns a request for each HTTP operation, to the daemon of a project with the spec `x`.
fn requests() -> Vec<(&'static str, &'static str, &'static str, Json)> {
    let cell = json!({ "table": "llm", "key": ["Zed", "Zed Zedsson"], "column": "born" });
    let word = |value: Json| {
        let mut word = cell.clone();
        word["value"] = value;
        word
    };
    vec![
        ("post", "/v1/query", "", json!({ "spec": "x", "sql": "SELECT name FROM hero LIMIT 2" })),
        ("post", "/v1/explain", "", json!({ "spec": "x", "sql": "SELECT name FROM hero" })),
        ("post", "/v1/plan", "", json!({ "spec": "x", "columns": ["born"] })),
        ("get", "/v1/status", "", Json::Null),
        ("get", "/v1/specs", "", Json::Null),
        ("get", "/v1/specs/{spec}", "/v1/specs/x", Json::Null),
        ("post", "/v1/runs", "", json!({ "spec": "x", "limit": 2, "wait": true })),
        ("get", "/v1/runs", "", Json::Null),
        ("get", "/v1/runs/{run}", "/v1/runs/1", Json::Null),
        ("post", "/v1/facts", "", json!({ "spec": "x", "keys": [["Zed", "Zed Zedsson"]] })),
        (
            "get",
            "/v1/why",
            "/v1/why?spec=x&table=llm&column=born&key=Zed&key=Zed%20Zedsson",
            Json::Null,
        ),
        ("post", "/v1/overrides", "", word(json!("1970"))),
        ("get", "/v1/overrides", "", Json::Null),
        ("delete", "/v1/overrides", "", cell.clone()),
        ("get", "/healthz", "", Json::Null),
        ("get", "/metrics", "", Json::Null),
    ]
}

/// Each operation is called as in its example.
#[test]
fn every_operation_over_http_is_on_the_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let document = daemon.get("/v1/openapi.json").expect_status(200).json();
    let mut text = String::from(
        "# HTTP operations of the daemon\n\nThe daemon listens on `127.0.0.1:4735` unless `--listen` sets another address. \
         If `HQDL_TOKEN` is set, send the token as `Authorization: Bearer …`. `GET /v1/openapi.json` returns \
         this page as an OpenAPI 3.1 document. An error is `{\"error\": {\"message\", \"hint\", \"exit\"}}`, with \
         the exit code of the command line. A client that exceeds its limits \
         (`--client-requests`, `--client-streams`, `--client-megabytes`) gets status 429 with `Retry-After`.\n\n",
    );
    let mut described = 0;
    for (method, path, target, body) in requests() {
        let operation = &document["paths"][path][method];
        let summary = operation["summary"].as_str().unwrap_or_else(|| panic!("{method} {path}"));
        described += 1;
        let url = if target.is_empty() { path } else { target };
        let answer = match method {
            "get" => daemon.get(url),
            "delete" => daemon.delete(url, &body),
            _ => daemon.post(url, &body),
        };
        let answer = answer.expect_status(200).body;
        let data = if body.is_null() {
            String::new()
        } else {
            format!(" \\\n  -H 'Content-Type: application/json' -d '{body}'")
        };
        let flag = if method == "delete" { "-X DELETE " } else { "" };
        let _ = write!(
            text,
            "## {} {path}\n\n{summary}\n\n```sh\ncurl {flag}'http://127.0.0.1:4735{url}'{data}\n```\n\n",
            method.to_uppercase(),
        );
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if let Some(properties) = schema["properties"].as_object().filter(|p| !p.is_empty()) {
            text.push_str("| field of the request | type | meaning |\n|---|---|---|\n");
            for (name, field) in properties {
                let about = field["description"].as_str().unwrap_or_default();
                let kind = kind(field, &schema["$defs"]);
                let _ = writeln!(text, "| `{name}` | {} | {} |", cell(&kind), cell(about));
            }
            text.push('\n');
        }
        let _ = writeln!(text, "{}", describe_response(path, &answer));
    }
    let all: usize =
        document["paths"].as_object().unwrap().values().map(|p| p.as_object().unwrap().len()).sum();
    // The event stream does not end, and a finished run cannot be ended.
    assert_eq!(all, described + 2);
    let interrupted: String =
        ["run", "interrupted"].iter().map(|name| field_row("/v1/runs/{run}", name)).collect();
    let interrupted = format!(
        "Response: a JSON object.\n\n| field of the response | meaning |\n|---|---|\n{interrupted}"
    );
    let events = "curl -N 'http://127.0.0.1:4735/v1/runs/events'";
    let interrupt = "curl -X DELETE 'http://127.0.0.1:4735/v1/runs/1'";
    for (method, path, curl, response) in [
        ("get", "/v1/runs/events", events, "Response: server-sent events.\n"),
        ("delete", "/v1/runs/{run}", interrupt, &interrupted),
    ] {
        let summary = document["paths"][path][method]["summary"].as_str().unwrap();
        let _ = write!(
            text,
            "## {} {path}\n\n{summary}\n\n```sh\n{curl}\n```\n\n{response}\n",
            method.to_uppercase()
        );
    }
    hold("http.md", &text);
}

#[test]
fn every_metric_is_on_the_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let mut text = String::from(
        "# Metrics of the daemon\n\n`GET /metrics` returns the metrics in Prometheus's text format.\n\n\
         | metric | type | meaning |\n|---|---|---|\n",
    );
    let body = daemon.get("/metrics").expect_status(200).body;
    let lines: Vec<&str> = body.lines().collect();
    for pair in lines.windows(2) {
        let Some((name, help)) = pair[0].strip_prefix("# HELP ").and_then(|l| l.split_once(' '))
        else {
            continue;
        };
        let kind = pair[1].rsplit(' ').next().unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {kind} | {} |", cell(help));
    }
    hold("metrics.md", &text);
}

/// The page is written by hand; it must contain each of hqdl's own tables and every column of
/// `hqdl_cell`.
#[test]
fn every_published_table_is_on_the_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let text = std::fs::read_to_string(page("tables.md")).unwrap();
    let names = |sql: &str| -> Vec<String> {
        project.query_rows(sql).iter().map(|row| row[0].as_str().unwrap().to_owned()).collect()
    };
    let told = |heading: &str| -> Vec<String> {
        let section = text.split(&format!("## {heading}\n")).nth(1).unwrap_or_default();
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows = section.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next());
        rows.map(str::to_owned).collect()
    };
    let columns = names("SELECT name FROM pragma_table_info('hqdl_cell') ORDER BY cid");
    assert_eq!(told("hqdl_cell"), columns);
    let mut tables = names(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'hqdl\\_%' ESCAPE '\\'",
    );
    let mut written = told("Tables of hqdl's own");
    tables.sort();
    written.sort();
    assert_eq!(written, tables);
}
