//! Messages for wrong input: each says what happened, where, and what to do next.

use std::process::Stdio;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

/// Runs a command with a wrong argument and checks its exit code and stderr.
fn rejects(project: &Project, args: &[&str], code: i32, parts: &[&str]) {
    let ended = project.run_hqdl(args).expect_exit_code(code);
    for part in parts {
        assert!(ended.stderr.contains(part), "{part:?} is not in:\n{}", ended.stderr);
    }
}

#[test]
fn an_invalid_argument_is_named_with_the_expected_form() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let amount = "expected an amount in USD, 0 or more";
    for budget in ["-1", "nan", "free"] {
        for command in ["plan", "materialize"] {
            let args = [command, "specs/x.toml", "--budget", budget];
            rejects(&project, &args, 2, &["--budget", amount]);
        }
    }
    rejects(&project, &["check", "data.sqlite"], 2, &["is a SQLite database", "hqdl init"]);
    rejects(&project, &["plan", "specs"], 2, &["specs is a directory, not a spec"]);
    std::fs::write(project.path("latin.toml"), b"# \xe9").unwrap();
    rejects(&project, &["check", "latin.toml"], 2, &["latin.toml is not UTF-8 text"]);
    let init = ["init", "data.sqlite", "--spec", "specs/x.toml"];
    rejects(&project, &init, 2, &["specs/x.toml exists already", "--spec"]);
    let cache = ["materialize", "specs/x.toml", "--cache", "specs/x.toml"];
    rejects(&project, &cache, 2, &["specs/x.toml is a file", "--cache"]);
}

#[test]
fn a_wrong_field_is_shown_with_the_correct_syntax() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let is_other = |line: &&str| !line.starts_with("provider") && !line.starts_with("price");
    let text = project.spec_text();
    let spec: Vec<&str> = text.lines().filter(is_other).collect();
    let spec = spec.join("\n");
    let key = spec.lines().find(|line| line.starts_with("key")).unwrap();
    for (line, wrong, help) in [
        ("[model]", "[model]\nprovider = \"cohere\"", "provider = \"openai\""),
        ("[model]", "[model]\nprovider = \"antropic\"", "did you mean \"anthropic\"?"),
        ("[model]", "[model]\nprovider = \"openia\"", "did you mean \"openai\"?"),
        ("[model]", "[model]\nprice = 0.15", "write `price = { input = …, output = … }`"),
        ("[model]", "[model]\nprise = { input = 0.15, output = 0.6 }", "did you mean `price`?"),
        (key, "key = \"name\"", "write `key = [\"name\"]`"),
    ] {
        project.write_spec(&spec.replacen(line, wrong, 1));
        rejects(&project, &["check", "specs/x.toml"], 2, &[help]);
    }
}

#[test]
fn a_wrong_key_is_the_only_error_of_an_expansion_with_shots() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    let key = text.lines().find(|line| line.starts_with("key")).unwrap();
    let shots = "shots = [{ name = \"Nova\" }]";
    for wrong in ["key = []", "key = \"name\"", "key = [\"nam\"]"] {
        project.write_spec(&text.replacen(key, &format!("{wrong}\n{shots}"), 1));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert_eq!(ended.stderr.matches("error: ").count(), 1, "{wrong}:\n{}", ended.stderr);
    }
}

#[test]
fn a_cache_that_is_only_read_must_exist() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for command in ["stats", "export", "check", "rebuild"] {
        let args = ["cache", command, "--cache", "no-cache"];
        rejects(&project, &args, 2, &["there is no cache at no-cache", "--cache"]);
    }
    assert!(!project.path("no-cache").exists());
}

#[test]
fn why_explains_that_its_first_argument_is_a_table() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let args = ["why", "nope", "Batman", "powers"];
    rejects(&project, &args, 2, &["no spec in specs/ defines a table `nope`", "--spec"]);
}

#[test]
fn a_query_with_a_wrong_name_lists_the_existing_names() {
    let project = heroes_project(&truthful_endpoint(), "json");
    project.execute_sql("CREATE TABLE other (title TEXT)");
    for (sql, help) in [
        ("SELECT hero.nam FROM hero", "did you mean `name`?"),
        (
            "SELECT {{LLMMap('Is it even?', other.title)}} FROM hero",
            "FROM has no table or alias `other`",
        ),
        ("SELECT h.zzz FROM hero h", "`h` must be a table or an alias in FROM"),
        ("SELECT * FROM her", "did you mean `hero`?"),
        ("SELECT * FROM hero WHERE name ILIKE 'a%'", "--dialect suql"),
        ("SELECT name::text FROM hero", "CAST(value AS type)"),
    ] {
        rejects(&project, &["query", "--spec", "specs/x.toml", sql], 2, &[help]);
    }
}

#[test]
fn check_reads_the_specs_of_a_directory() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    std::fs::write(project.path("specs/y.toml"), text).unwrap();
    let ended = project.run_hqdl(&["check", "specs"]).expect_exit_code(0);
    let names: Vec<&str> = ended.stdout.lines().filter_map(|l| l.split(':').next()).collect();
    assert_eq!(names, ["specs/x.toml", "specs/y.toml"]);
    std::fs::create_dir(project.path("none")).unwrap();
    rejects(&project, &["check", "none"], 2, &["none has no *.toml file"]);
}

#[test]
fn a_question_without_a_recording_names_the_flags_once() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::write(project.path("answers.jsonl"), "").unwrap();
    let sql = "SELECT {{LLMMap('Is it funny?', name)}} FROM hero LIMIT 3";
    let flags = ["--recordings", "answers.jsonl", "--rows-per-request", "1", sql];
    let ended = project
        .run_hqdl(&[&["query", "--db", "data.sqlite"], &flags[..]].concat())
        .expect_exit_code(1);
    assert_eq!(ended.stderr.matches("--provider openai --model NAME").count(), 1, "{ended:?}");
}

#[test]
fn a_closed_pipe_does_not_end_a_completion_script_in_a_panic() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let mut command = project.hqdl_command(&["completions", "bash"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success());
}

#[test]
fn a_csv_column_that_gets_another_name_is_noted() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::write(project.path("twice.csv"), "a,b,A,\n1,2,3,4\n").unwrap();
    let ended = project.run_hqdl(&["init", "twice.csv"]).expect_exit_code(0);
    for note in
        ["a second column `A` is imported as `A_2`", "without a name is imported as `column_4`"]
    {
        assert!(ended.stderr.contains(note), "{}", ended.stderr);
    }
}

#[test]
fn a_run_with_unreadable_answers_suggests_json() {
    let endpoint = Endpoint::start_with(|_, _| "no number".into());
    let project = heroes_project(&endpoint, "csv");
    let ended = project.run_hqdl(&["materialize", "specs/x.toml", "--columns", "born"]);
    assert!(ended.stderr.contains("`format = \"json\"`"), "{ended:?}");
}

#[test]
fn keys_with_a_null_part_are_noted_only_by_check() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let note = "a part that is NULL";
    assert!(project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0).stderr.contains(note));
    for command in ["plan", "materialize"] {
        let ended = project.run_hqdl(&[command, "specs/x.toml"]).expect_exit_code(0);
        assert!(!ended.stderr.contains(note), "{command}: {}", ended.stderr);
    }
}

#[test]
fn why_reads_a_joined_view() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
    let why = |table| {
        project.run_hqdl(&["why", table, "Zed", "Zed Zedsson", "motto"]).expect_exit_code(0).stdout
    };
    assert_eq!(why("hero_expanded"), why("llm"));
    let ended = project.run_hqdl(&["why", "hero_expanded", "Zed", "full_name"]);
    assert_eq!(ended.code, 2, "{ended:?}");
}
