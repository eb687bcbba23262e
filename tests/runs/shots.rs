//! Tests of `shots = "overrides"`: overrides are used as examples.

use std::collections::BTreeSet;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, heroes_project, heroes_spec, truthful_endpoint};

/// Creates the heroes' project with this setting for shots, and these overrides.
fn project(endpoint: &Endpoint, shots: &str, format: &str, overrides: &str) -> Project {
    let project = heroes_project(endpoint, format);
    let line = format!("format = \"{format}\"");
    project.write_spec(
        &heroes_spec()
            .replace("format = \"csv\"", &format!("{line}\ncontext = [\"height\"]\n{shots}")),
    );
    let head = "name,full_name,column,value,note\n";
    std::fs::write(project.path("specs/x.overrides.csv"), [head, overrides].concat()).unwrap();
    project
}

/// Returns the examples of every different system message that was sent.
fn examples(endpoint: &Endpoint) -> BTreeSet<(String, String)> {
    endpoint
        .received_requests()
        .iter()
        .map(|r| {
            let system = r.body["messages"][0]["content"].as_str().unwrap().to_owned();
            let examples = system.split_once("## Examples\n").map_or("", |(_, e)| e).to_owned();
            let columns: Vec<&str> = r.question.columns.iter().map(|c| c.name.as_str()).collect();
            (columns.join(","), examples)
        })
        .collect()
}

const WORDS: &str = "Zed,Zed Zedsson,born,1234,as he says
Zed,Zed Zedsson,motto,\"Last, not least\",
Echo,,powers,Flight|Speed,
007,James B,motto,Shaken,
Nobody,At All,motto,Not in the source,
Blaze,Ann Fire,eye_color,Plaid,not in the list
";

#[test]
fn overrides_with_most_columns_are_the_first_examples() {
    let endpoint = truthful_endpoint();
    let project = project(&endpoint, "shots = \"overrides\"", "csv", WORDS);
    project.run_materialize(&[]).expect_exit_code(0);
    let shown = examples(&endpoint);
    let whole = shown.iter().find(|(c, _)| c == "eye_color,born,powers,motto").unwrap();
    assert_eq!(
        whole.1,
        "Here ? stands for what the example leaves out.
[\"row\",\"name\",\"full_name\",\"height\"]
[\"1 Zed\",\"Zed\",\"Zed Zedsson\",210]
[\"2 James\",\"007\",\"James B\",183]
[\"3 Echo\",\"Echo\",null,160]
Answer:
1 Zed,?,1234,?,\"Last, not least\"
2 James,?,?,?,Shaken
3 Echo,?,?,Flight|Speed,?
"
    );
}

/// A row that lacks some cells is not shown as an example without them.
#[test]
fn no_row_is_its_own_example() {
    for format in ["csv", "json"] {
        let endpoint = truthful_endpoint();
        let project = project(&endpoint, "shots = \"overrides\"", format, WORDS);
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(ended.done_event()["cells"]["ok"], 35);
        assert!(
            ended.stdout.contains("\\\"Plaid\\\" is not in the value list"),
            "{}",
            ended.stdout
        );
        for request in endpoint.received_requests() {
            let system = request.body["messages"][0]["content"].as_str().unwrap();
            for row in &request.question.rows {
                let name = row.key[0].as_str().unwrap();
                let line = format!("\"{name}\",");
                assert!(!system.contains(&line), "{name} is asked, and stands in\n{system}");
            }
        }
        // All requests about the same columns still share a prefix.
        let shown = examples(&endpoint);
        let columns: BTreeSet<&String> = shown.iter().map(|(c, _)| c).collect();
        assert_eq!(columns.len(), shown.len());
    }
}

#[test]
fn shots_have_a_limit_and_change_no_fingerprint() {
    let endpoint = truthful_endpoint();
    let shots = "shots = { overrides = true, limit = 1 }";
    let project = project(&endpoint, shots, "json", WORDS);
    project.run_materialize(&[]).expect_exit_code(0);
    let shown = examples(&endpoint);
    let whole = shown.iter().find(|(c, _)| c == "eye_color,born,powers,motto").unwrap();
    assert!(whole.1.contains("Zed Zedsson") && !whole.1.contains("James B"), "{}", whole.1);
    assert!(whole.1.starts_with("Here null stands for"), "{}", whole.1);
    let count = endpoint.request_count();
    project.edit_spec(shots, "");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), count);
}

#[test]
fn shots_come_from_one_place() {
    let endpoint = truthful_endpoint();
    for (shots, said) in [
        ("shots = {}", "expected either `sql` or `overrides = true`"),
        ("shots = { sql = \"SELECT 1\", overrides = true }", "expected either `sql` or"),
        ("shots = \"override\"", "overrides"),
    ] {
        let project = project(&endpoint, shots, "csv", "");
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(said), "{shots}: {}", ended.stderr);
    }
    // Without overrides there is no example, and that is not an error.
    let project = project(&endpoint, "shots = \"overrides\"", "csv", "");
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    assert!(examples(&endpoint).iter().all(|(_, e)| e.is_empty()));
}

/// The rows of a sample are no examples until the audit is complete.
#[test]
fn rows_of_an_open_audit_are_no_examples() {
    let endpoint = truthful_endpoint();
    let project = project(&endpoint, "shots = \"overrides\"", "csv", "");
    project.run_materialize(&[]).expect_exit_code(0);
    let audit = |flags: &[&str]| {
        project.run_hqdl(&[&["audit", "specs/x.toml"], flags].concat()).expect_exit_code(0)
    };
    audit(&["--columns", "motto", "--sample", "2", "--seed", "1"]);
    let sheet = project.path("specs/x.audit.csv");
    let text = std::fs::read_to_string(&sheet).unwrap();
    let fill = |lines: usize| {
        let fill = |(n, line): (usize, &str)| match line.strip_suffix(",,,") {
            Some(cell) if (2..2 + lines).contains(&n) => format!("{cell},Truth {n},,\n"),
            _ => format!("{line}\n"),
        };
        let filled: String = text.lines().enumerate().map(fill).collect();
        std::fs::write(&sheet, filled).unwrap();
        audit(&["--apply"]);
        let before = endpoint.request_count();
        project.run_materialize(&["--refresh", "motto"]).expect_exit_code(0);
        let sent = endpoint.received_requests();
        let sent = sent[before..].iter().map(|r| r.body["messages"][0]["content"].to_string());
        sent.collect::<String>()
    };
    assert!(!fill(1).contains("Truth"));
    let prompts = fill(2);
    assert!(prompts.contains("Truth 2") && prompts.contains("Truth 3"), "{prompts}");
}
