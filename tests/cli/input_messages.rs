//! Messages for wrong flags, specs and files: what is wrong, and what to write instead.

use std::process::Stdio;

use hqdl_testkit::endpoint::{Fault, Frequency};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

use crate::messages::rejects;

/// Runs a command with stdout on a full disk. Returns its exit code and stderr.
#[cfg(target_os = "linux")]
fn run_on_full_disk(project: &Project, args: &[&str]) -> (Option<i32>, String) {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = project.hqdl_command(args);
    command.stdout(full).stderr(Stdio::piped());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_of_every_command() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for args in [
        &["check", "--schema"][..],
        &["check", "specs/x.toml"],
        &["plan", "specs/x.toml"],
        &["plan", "specs/x.toml", "--json"],
        &["explain", "--db", "data.sqlite", "SELECT 1"],
        &["query", "--db", "data.sqlite", "--json", "SELECT 1"],
        &["init", "data.sqlite"],
        &["prices", "--json"],
        &["mcp", "--spec", "specs/x.toml", "--print-config", "claude"],
        &["completions", "bash"],
        &["help", "query"],
        &["--version"],
    ] {
        let (code, stderr) = run_on_full_disk(&project, args);
        assert_eq!(code, Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains("the disk is full") && !stderr.contains("panicked"), "{stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{args:?}: {stderr}");
    }
}

/// A run whose progress cannot be printed continues to its end.
#[cfg(target_os = "linux")]
#[test]
fn a_run_on_a_full_disk_loses_no_answer() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let args = ["materialize", "specs/x.toml", "--json", "--rows-per-request", "1"];
    let (code, stderr) = run_on_full_disk(&project, &args);
    assert_eq!(code, Some(2), "{stderr}");
    assert_eq!(stderr.matches("the disk is full").count(), 1, "{stderr}");
    let requests = endpoint.request_count();
    project.run_materialize(&[]);
    assert!(requests > 1 && endpoint.request_count() == requests, "{requests}");
}

#[test]
fn a_wrong_flag_is_shown_with_the_correct_one() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::write(project.path("empty.jsonl"), "").unwrap();
    project.run_materialize(&[]);
    let spec = "specs/x.toml";
    for (args, parts) in [
        (&["--spec", spec, "query", "SELECT 1"][..], &["`hqdl query --spec …`"][..]),
        (&["plan", spec, "--where", "nme > 1"], &["no such column: nme", "did you mean `name`?"]),
        (
            &["plan", spec, "--where", "name = Kyoto"],
            &["no source column `Kyoto`", "if it is a text, write 'Kyoto'"],
        ),
        (&["plan", spec, "--where", "{{LLMMap('x', name)}}"], &["cannot contain calls"]),
        (&["plan", spec, "--where", "nme = '{{x}}'"], &["no such column: nme"]),
        (
            &["plan", spec, "--recordings", "data.sqlite"],
            &["is a SQLite database, not a recording"],
        ),
        (&["score", spec, "--truth", "none.csv"], &["none.csv does not exist", "name a CSV file"]),
        (
            &["audit", spec, "--columns", "born,borne"],
            &["no expansion has a column `borne`", "did you mean `born`?"],
        ),
        (&["audit", spec, "--budget", "1"], &["--budget has no effect without --ask-model"]),
        (&["cache", "stats", "--cache", spec], &["x.toml is a file, but a cache is a directory"]),
        (&["materialize", spec, "--output", spec], &["--output: specs/x.toml exists and is not"]),
        (
            &["query", "--spec", spec, "--output", "none.db", "SELECT 1"],
            &["--output: there is no file none.db"],
        ),
        (&["check", "--schema", spec], &["cannot be used with"]),
        (&["daemon", "--client-burst", "0"], &["--client-burst", "1 or more"]),
        (
            &["query", "--db", "postgres://me@127.0.0.1/x?sslmode=maybe", "SELECT 1"],
            &["unknown sslmode `maybe`", "verify-ca"],
        ),
        (
            &["query", "--db", "postgres://me@127.0.0.1/x?foo=1", "SELECT 1"],
            &["unknown option `foo`", "known options: "],
        ),
        (
            &["query", "--spec", spec, "SELECT {{LLMMap('Nice?', name || )}} FROM hero"],
            &["this expression ends too early"],
        ),
    ] {
        rejects(&project, args, 2, parts);
    }
    for (args, part) in [
        (&["plan", spec, "--where", "1 = 0"][..], "--where selects no row"),
        (&["cache", "import", "empty.jsonl"], "empty.jsonl contains no facts"),
    ] {
        let ended = project.run_hqdl(args).expect_exit_code(0);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn a_mistake_in_a_spec_is_shown_with_the_correction() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    let head = "[[expansion.column]]\n";
    for (from, to, count, parts) in [
        (head, "[[expansion.column]]\nabout = \"a\nb\"\n", 1, &["a text has no closing quote"][..]),
        (head, "[[expansion.column]]\nvalues = [\"a\"\n", 1, &["no closing bracket", "`]`"]),
        (head, "[[expansion.column]]\nunify = True\n", 1, &["neither `true` nor", "lower case"]),
        (head, "[expansion.column]\n", 1, &["write `[[expansion.column]]`"]),
        ("[database]\n", "database = \"c.db\"\n[nothing]\n", 1, &["`path = \"c.db\"`"]),
    ] {
        project.write_spec(&text.replacen(from, to, 1));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.matches("error: ").count() <= count, "{to}: {}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
        }
    }
}

#[test]
fn a_media_directory_may_be_the_directory_of_the_spec() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text().replace("[database]\n", "[database]\nmedia = \".\"\n");
    let text = text.replace("../data.sqlite", "data.sqlite");
    std::fs::write(project.path("x.toml"), text).unwrap();
    project.run_hqdl(&["check", "x.toml"]).expect_exit_code(0);
}

#[test]
fn recordings_without_an_answer_are_named_with_the_row() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let line = "{\"keys\": [\"Rome\"], \"content\": \"1,Rome,Tiber\"}\n";
    for (content, part) in
        [("", "r.jsonl contains no recording"), (line, "r.jsonl has no answer for [\"")]
    {
        std::fs::write(project.path("r.jsonl"), content).unwrap();
        let args = ["materialize", "specs/x.toml", "--no-cache", "--recordings", "r.jsonl"];
        let ended = project.run_hqdl(&args).expect_exit_code(1);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

#[test]
fn truncated_answers_name_the_limit() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(
        Fault::Body(
            "application/json",
            r#"{"choices":[{"finish_reason":"length","message":{"content":"[{\""}}],"usage":{"prompt_tokens":50,"completion_tokens":1}}"#,
        ),
        Frequency::Always,
    );
    let project = heroes_project(&endpoint, "json");
    let ended = project.run_hqdl(&["materialize", "specs/x.toml", "--columns", "born"]);
    assert!(ended.stderr.contains("raise `max_output_tokens` ("), "{}", ended.stderr);
}

#[test]
fn a_model_does_not_audit_its_own_answers() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]);
    project.run_hqdl(&["audit", "specs/x.toml", "--columns", "born"]).expect_exit_code(0);
    let text = project.spec_text();
    let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
    let args = ["audit", "specs/x.toml", "--ask-model", "--columns", "born", "--model"];
    let args = [&args[..], &[name.trim_matches('"')]].concat();
    rejects(
        &project,
        &args,
        2,
        &["produced the answers that this audit checks", "name another model"],
    );
}
