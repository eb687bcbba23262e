//! Tests docs/reference/json.md: every command runs with `--json`. The page has the schema of its
//! output, inferred from all lines, and one of these lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{CommandResult, Project, heroes_project, truthful_endpoint};

use super::{commands, hold};
use crate::guides::steady;
use hqdl_testkit::swan::{SUPERHERO, questions};

/// Commands whose output the page does not show, with what they print.
const WITHOUT: [(&str, &str); 8] = [
    ("chat", "a line for each question, as `hqdl ask` prints it"),
    ("completions", "a shell script"),
    ("man", "files"),
    ("mcp", "messages of the Model Context Protocol, with and without the flag"),
    ("approve", "nothing; exit code 0 means approved"),
    ("daemon", "`{\"event\": \"said\", \"message\": …}` for each message"),
    (
        "swan report",
        "`{\"event\": \"written\", \"file\": …}` for each file; `report.json` is among them",
    ),
    ("cache export", "its lines are JSON with and without the flag; `cache import` reads them"),
];

/// True years of birth.
const TRUTH: &str = "name,full_name,born
Blaze,Ann Fire,1961
Captain O'Malley,Sean O'Malley,1962
\"Doctor, the\",\"Smith, John\",1963
\"Dwayne \"\"Rock\"\" Stone\",Dwayne Stone,1964
Echo,,1965
Échappée,Zoé Müller,1966
007,James B,1967
Blaze,Bob Fire,1968
Pipe | Line,-,1969
Zed,Zed Zedsson,1970
";

/// Returns the command lines to run, in order.
fn command_lines() -> Vec<(&'static str, Vec<&'static str>)> {
    let hero = ["Zed", "Zed Zedsson", "born"];
    let sql = "SELECT name, {{LLMMap('Is it old?', name)}} AS old FROM hero LIMIT 2";
    let born = "SELECT count(*) AS born FROM llm WHERE born > 1900";
    let truth =
        ["--db", "swan/superhero.sqlite", "--questions", "questions.csv", "--true-values", "swan"];
    vec![
        ("init", vec!["data.sqlite", "-s", "new.toml"]),
        ("check", vec!["specs/x.toml"]),
        ("plan", vec!["specs/x.toml"]),
        ("plan", vec!["specs/x.toml", "--budget", "0.0001", "--limit", "2"]),
        ("prices", vec!["gpt-4o-mini"]),
        ("prices", vec!["gpt-5.6"]),
        ("materialize", vec!["specs/x.toml", "--limit", "4"]),
        ("materialize", vec!["specs/x.toml", "--limit", "2", "--batch-file", "out"]),
        ("import", vec!["specs/x.toml", "answers.jsonl"]),
        ("materialize", vec!["specs/x.toml"]),
        ("plan", vec!["specs/x.toml"]),
        ("query", vec!["--spec", "specs/x.toml", sql]),
        ("explain", vec!["--spec", "specs/x.toml", sql]),
        ("ask", vec!["--spec", "specs/x.toml", "Who are the first two heroes?"]),
        ("map", vec!["--model", "m"]),
        ("suggest", vec!["--spec", "specs/x.toml"]),
        ("why", [&["llm"][..], &hero, &["--spec", "specs/x.toml"]].concat()),
        ("override set", [&["specs/x.toml", "llm"][..], &hero, &["1970"]].concat()),
        ("override list", vec!["specs/x.toml"]),
        ("score", vec!["specs/x.toml", "--truth", "truth.csv"]),
        ("audit", vec!["specs/x.toml", "--columns", "born", "--seed", "1"]),
        ("audit", vec!["specs/x.toml", "--truth", "truth.csv"]),
        ("audit", vec!["specs/x.toml", "--report"]),
        ("query", vec!["--spec", "specs/x.toml", "--interval", "90", born]),
        ("override unset", [&["specs/x.toml", "llm"][..], &hero].concat()),
        ("cache list", vec!["--limit", "2"]),
        ("cache stats", vec![]),
        ("cache check", vec![]),
        ("cache rebuild", vec![]),
        ("cache import", vec!["facts.jsonl"]),
        ("clean", vec!["specs/x.toml"]),
        ("swan prepare", vec!["--bird", "bird", "--out", "swan"]),
        ("swan run", [&truth[..], &["--out", "runs/truth"]].concat()),
        ("swan score", vec!["runs/truth", "--gold", "swan"]),
    ]
}

/// Returns the JSON Schema of a value.
fn infer(value: &Json) -> Json {
    match value {
        Json::Null => json!({ "type": "null" }),
        Json::Bool(_) => json!({ "type": "boolean" }),
        Json::Number(n) if n.is_f64() => json!({ "type": "number" }),
        Json::Number(_) => json!({ "type": "integer" }),
        Json::String(_) => json!({ "type": "string" }),
        Json::Array(items) => {
            let items = items.iter().map(infer).reduce(|a, b| merge(&a, &b));
            items.map_or(json!({ "type": "array" }), |i| json!({ "type": "array", "items": i }))
        }
        Json::Object(fields) => {
            let properties: Map<String, Json> =
                fields.iter().map(|(name, field)| (name.clone(), infer(field))).collect();
            let required: Vec<&String> = fields.keys().collect();
            json!({ "type": "object", "properties": properties, "required": required })
        }
    }
}

fn types(schema: &Json) -> Vec<String> {
    match &schema["type"] {
        Json::Array(types) => types.iter().filter_map(Json::as_str).map(str::to_owned).collect(),
        one => one.as_str().map(str::to_owned).into_iter().collect(),
    }
}

/// Returns a schema that accepts what either accepts.
fn merge(a: &Json, b: &Json) -> Json {
    let mut all = [types(a), types(b)].concat();
    all.sort();
    all.dedup();
    if all.contains(&"number".to_owned()) {
        all.retain(|t| t != "integer");
    }
    let mut merged = Map::new();
    merged.insert("type".into(), if all.len() == 1 { json!(all[0]) } else { json!(all) });
    match (a.get("items"), b.get("items")) {
        (Some(a), Some(b)) => drop(merged.insert("items".into(), merge(a, b))),
        (Some(one), None) | (None, Some(one)) => drop(merged.insert("items".into(), one.clone())),
        (None, None) => {}
    }
    let of = |schema: &Json| schema["properties"].as_object().cloned();
    let (left, right) = (of(a), of(b));
    if left.is_some() || right.is_some() {
        let mut properties = left.clone().unwrap_or_default();
        for (name, field) in right.clone().unwrap_or_default() {
            let both = properties.get(&name).map_or(field.clone(), |known| merge(known, &field));
            properties.insert(name, both);
        }
        let is_required = |schema: &Json, name: &String| {
            schema["properties"].is_null()
                || schema["required"].as_array().unwrap().contains(&json!(name))
        };
        let required: Vec<&String> =
            properties.keys().filter(|n| is_required(a, n) && is_required(b, n)).collect();
        merged.insert("required".into(), json!(required));
        merged.insert("properties".into(), properties.into());
    }
    merged.into()
}

/// Returns true if a value matches a schema that [`infer`] and [`merge`] return.
fn is_valid(value: &Json, schema: &Json) -> bool {
    let kind = types(&infer(value)).remove(0);
    let allowed = types(schema);
    let is_type =
        allowed.contains(&kind) || kind == "integer" && allowed.contains(&"number".into());
    let has_fields = value.as_object().is_none_or(|fields| {
        let required = schema["required"].as_array().into_iter().flatten();
        required.filter_map(Json::as_str).all(|name| fields.contains_key(name))
            && fields.iter().all(|(name, field)| is_valid(field, &schema["properties"][name]))
    });
    let items = value.as_array().into_iter().flatten();
    is_type && has_fields && items.into_iter().all(|item| is_valid(item, &schema["items"]))
}

/// Shortens long lists of an example.
fn shorten(value: &Json) -> Json {
    match value {
        Json::Array(items) => items.iter().take(2).map(shorten).collect(),
        Json::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.clone(), shorten(field)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// Lines of a command by their event, in the order of their first occurrence.
#[derive(Default)]
struct Output {
    events: Vec<String>,
    lines: BTreeMap<String, Vec<Json>>,
}

impl Output {
    fn add(&mut self, ended: &CommandResult, project: &Project) {
        let whole = serde_json::from_str::<Json>(&ended.stdout).ok();
        for line in whole.map_or_else(|| ended.lines.clone(), |json| vec![json]) {
            let event = line["event"].as_str().unwrap_or_default().to_owned();
            if !self.events.contains(&event) {
                self.events.push(event.clone());
            }
            let line = serde_json::from_str(&steady_json(&line, project)).unwrap();
            self.lines.entry(event).or_default().push(line);
        }
    }

    fn write(&self, text: &mut String) {
        for event in &self.events {
            let lines = &self.lines[event];
            let schema = lines.iter().map(infer).reduce(|a, b| merge(&a, &b)).unwrap();
            let example = shorten(&lines[0]);
            assert!(is_valid(&example, &schema), "{example}\n{schema}");
            if !event.is_empty() {
                let _ = write!(text, "Event `{event}`:\n\n");
            }
            let pretty = |json: &Json| serde_json::to_string_pretty(json).unwrap();
            let _ = write!(
                text,
                "```json\n{}\n```\n\n<details><summary>JSON Schema</summary>\n\n```json\n{schema}\n```\n\n</details>\n\n",
                pretty(&example)
            );
        }
    }
}

/// Returns a line with everything that differs between runs replaced.
fn steady_json(line: &Json, project: &Project) -> String {
    let mut text = steady(&line.to_string(), project);
    for (rule, with) in [
        (r#""(seconds|price_seconds|first_seconds|at|elapsed)":[0-9.e-]+"#, "\"$1\":0.3"),
        (r#""(\w*seconds)":[0-9.e-]+"#, "\"$1\":0.3"),
        (r#""(pid|memory_bytes|uptime)":\d+"#, "\"$1\":4711"),
    ] {
        text = regex::Regex::new(rule).unwrap().replace_all(&text, with).into_owned();
    }
    text
}

/// Answers the batch file in `out`, as if a user had submitted it.
fn answer_batch(endpoint: &Endpoint, project: &Project) {
    let file = std::fs::read_dir(project.path("out")).unwrap().next().unwrap().unwrap();
    let (answers, _) = endpoint.run_file(&std::fs::read_to_string(file.path()).unwrap());
    std::fs::write(project.path("answers.jsonl"), answers).unwrap();
}

/// Runs a command line with `--json`.
fn run(endpoint: &Endpoint, project: &Project, path: &str, args: &[&str]) -> CommandResult {
    let line: Vec<&str> = path.split(' ').chain(args.iter().copied()).chain(["--json"]).collect();
    if path == "import" {
        answer_batch(endpoint, project);
    }
    if path != "map" {
        return project.run_hqdl(&line);
    }
    let request = r#"{"question": "Is it a fruit?", "values": ["fig", null], "type": "bool"}"#;
    std::fs::write(project.path("requests.jsonl"), request).unwrap();
    let base = format!("--base-url={}", project.base_url());
    let mut command = project.hqdl_command(&[&line[..], &[&base]].concat());
    command.stdin(std::fs::File::open(project.path("requests.jsonl")).unwrap());
    CommandResult::new(&command.output().unwrap())
}

#[test]
fn every_json_output_is_on_the_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    for (file, content) in
        [("truth.csv", TRUTH), ("facts.jsonl", ""), ("questions.csv", &questions(true))]
    {
        std::fs::write(project.path(file), content).unwrap();
    }
    std::fs::create_dir_all(project.path("bird/superhero")).unwrap();
    project.execute_sql_in("bird/superhero/superhero.sqlite", SUPERHERO);
    let mut outputs: Vec<(&str, Output)> = Vec::new();
    let mut silent = Vec::new();
    for (path, args) in command_lines() {
        let ended = run(&endpoint, &project, path, &args);
        assert!(matches!(ended.code, 0 | 1), "{path}: {ended:?}");
        if ended.stdout.trim().is_empty() {
            silent.push(path);
        }
        match outputs.iter_mut().find(|(known, _)| *known == path) {
            Some((_, output)) => output.add(&ended, &project),
            None => {
                let mut output = Output::default();
                output.add(&ended, &project);
                outputs.push((path, output));
            }
        }
    }
    assert!(silent.is_empty(), "with --json these print nothing: {silent:?}");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let mut status = Output::default();
    status.add(&run(&endpoint, &project, "status", &[]), &project);
    outputs.push(("status", status));
    drop(daemon);
    let mut failure = Output::default();
    failure.add(&run(&endpoint, &project, "check", &["specs/none.toml"]), &project);
    write_page(&outputs, &failure);
}

fn write_page(outputs: &[(&str, Output)], failure: &Output) {
    let mut text = String::from(
        "# JSON output\n\nWith `--json`, a command prints JSON on stdout: one document, or a line for each event. Each \
         section has an example, with lists shortened to two items, and a JSON Schema. A test infers the schemas from \
         real output: a field in `required` is in every line, and a type includes `null` if the field was null in \
         some line. In field names, `unasked` refers to the cells that other pages call missing.\n\nA release can \
         add fields and events, so ignore those that you do not know. The changelog lists changes to existing \
         fields. A command that starts a run prints an event for each step; the last one is `done`. \
         [Commands](commands.md) describes the flags.\n\n## Errors\n\nIf a command fails, the last line that it prints is an `error` event with the exit code.\n\n",
    );
    failure.write(&mut text);
    for (path, output) in outputs {
        let _ = write!(text, "## hqdl {path}\n\n");
        output.write(&mut text);
    }
    text.push_str(
        "## Commands whose output is not shown here\n\n| command | prints |\n|---|---|\n",
    );
    for (path, reason) in WITHOUT {
        let _ = writeln!(text, "| `hqdl {path}` | {reason} |");
    }
    for (path, _) in commands() {
        let known = text.contains(&format!("## hqdl {path}\n"))
            || text.contains(&format!("| `hqdl {path}` |"));
        assert!(known, "hqdl {path} is not on the page of JSON outputs");
    }
    hold("json.md", &text);
}
