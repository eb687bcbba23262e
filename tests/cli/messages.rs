//! Messages for wrong input: each says what happened, where, and what to do next.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

/// Runs a command with a wrong argument and checks its exit code and stderr.
pub fn rejects(project: &Project, args: &[&str], code: i32, parts: &[&str]) {
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
    for command in ["plan", "materialize"] {
        let args = [command, "specs/x.toml", "--base-url", "127.0.0.1:1/v1"];
        rejects(&project, &args, 2, &["--base-url", "expected http://"]);
    }
    let other = ["plan", "specs/x.toml", "--model", "other", "--budget", "1"];
    rejects(&project, &other, 2, &["the model `other` has no price", "--price"]);
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
fn recordings_are_not_replayed_as_another_model() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::write(project.path("answers.jsonl"), "").unwrap();
    let text = project.spec_text();
    let is_kept = |line: &&str| !line.starts_with("base_url") && !line.starts_with("provider");
    let text: Vec<&str> = text.lines().filter(is_kept).collect();
    let replay = "[model]\nprovider = \"replay\"\nrecordings = [\"../answers.jsonl\"]";
    let text = text.join("\n").replace("[model]", replay);
    project.write_spec(&text);
    project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0);
    let flags = ["plan", "specs/x.toml", "--model", "gpt-4o"];
    rejects(&project, &flags, 2, &["would replay its recordings", "--provider"]);
    project.write_spec(&format!("{text}\n[model.large]\nname = \"gpt-4o\"\n"));
    let parts = ["[model.large] would replay the answers of [model]", "set `provider`"];
    rejects(&project, &["plan", "specs/x.toml"], 2, &parts);
}

#[test]
fn a_missing_price_names_the_table_of_the_model() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    project.write_spec(&format!("{text}\n[model.large]\nname = \"gpt-9\"\n"));
    let flags = ["plan", "specs/x.toml", "--budget", "1"];
    rejects(&project, &flags, 2, &["`gpt-9` of [model.large]", "set `price` in [model.large]"]);
}

#[test]
fn an_interval_over_published_tables_needs_their_spec() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]);
    let flags = ["query", "--db", "data.sqlite", "--interval", "SELECT count(*) FROM llm"];
    rejects(&project, &flags, 2, &["--interval needs --spec"]);
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
    for command in ["list", "stats", "export", "check", "rebuild"] {
        let args = ["cache", command, "--cache", "no-cache"];
        rejects(&project, &args, 2, &["there is no cache at no-cache", "--cache"]);
    }
    let args = ["cache", "list", "--cache", "no-cache", "--allow-missing", "--json"];
    assert_eq!(project.run_hqdl(&args).expect_exit_code(0).stdout, "");
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
fn check_warns_of_two_columns_that_are_the_same_question_about_other_rows() {
    let endpoint = truthful_endpoint();
    let tables = "CREATE TABLE planet (name); CREATE TABLE element (name);
        INSERT INTO planet VALUES ('Mercury'); INSERT INTO element VALUES ('Mercury');";
    let expansion = |name: &str, about: &str| {
        format!(
            "[[expansion]]\nname = \"of_{name}\"\nsource = \"{name}\"\nkey = [\"name\"]\n\
             [[expansion.column]]\nname = \"discovered_by\"\nabout = \"{about}\"\n"
        )
    };
    let spec = |about: &str| {
        let head = "[database]\npath = \"../data.sqlite\"\n[model]\nname = \"m\"\n";
        [head, &expansion("planet", "Who discovered it?"), &expansion("element", about)].concat()
    };
    let project = Project::new(&endpoint, tables, &spec("Who discovered it?"));
    let check = || project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0).stderr;
    let warning = "`of_element.discovered_by` is the same question as `of_planet.discovered_by`";
    assert_eq!(check().matches(warning).count(), 1, "{}", check());
    project.write_spec(&spec("Who discovered the element?"));
    assert!(!check().contains("the same question"), "{}", check());
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
fn init_says_how_to_repair_a_file_that_it_cannot_read() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::create_dir(project.path("none")).unwrap();
    for (name, bytes, parts) in [
        (
            "ragged.csv",
            &b"a,b\n1,2\n3,4,5\n"[..],
            ["line 3: the line has 3 fields", "needs quotes around it"],
        ),
        ("latin.csv", b"name\nCaf\xe9\n", ["is not UTF-8 text", "iconv"]),
        ("cut.csv", b"\xff\xfen\0a", ["is not complete UTF-16 text", "as UTF-8"]),
        ("book.xlsx", b"PK\x03\x04", ["is not a SQLite database", "export a spreadsheet as CSV"]),
        ("none", b"", ["none contains no CSV file", "end in .csv"]),
    ] {
        if name != "none" {
            std::fs::write(project.path(name), bytes).unwrap();
        }
        rejects(&project, &["init", name], 2, &parts);
    }
    rejects(&project, &["init", "data.sqlite", "-s", "specs"], 2, &["specs is a directory"]);
}

#[test]
fn init_reads_utf_16_with_a_byte_order_mark() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = "\u{feff}name;city\nZo\u{eb};K\u{f6}ln\n\u{1f600};Oslo\n";
    for (name, to_bytes) in
        [("little", u16::to_le_bytes as fn(u16) -> [u8; 2]), ("big", u16::to_be_bytes)]
    {
        let bytes: Vec<u8> = text.encode_utf16().flat_map(to_bytes).collect();
        std::fs::write(project.path(format!("{name}.csv")), bytes).unwrap();
        project.run_hqdl(&["init", &format!("{name}.csv")]).expect_exit_code(0);
        let rows = project.query_rows_of(
            &format!("{name}.sqlite"),
            &format!("SELECT name, city FROM {name} ORDER BY rowid"),
        );
        assert_eq!(
            rows,
            [[json!("Zo\u{eb}"), json!("K\u{f6}ln")], [json!("\u{1f600}"), json!("Oslo")]]
        );
    }
}

#[test]
fn init_names_the_database_of_the_current_directory_after_it() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::create_dir(project.path("lists")).unwrap();
    std::fs::write(project.path("lists/city.csv"), "name\nLima\n").unwrap();
    let mut command = project.hqdl_command(&["init", "."]);
    let output = command.current_dir(project.path("lists")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(project.path("lists.sqlite").exists());
}

#[test]
fn a_run_with_refusals_only_says_what_to_do() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::RefusalInWords, Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    let run = || project.run_hqdl(&["materialize", "specs/x.toml", "--columns", "born"]);
    let first = run().expect_exit_code(1).stderr;
    assert!(first.contains("content filter refused all answers: `hqdl why`"), "{first}");
    assert!(!first.contains("got no valid answer"), "{first}");
    let second = run().expect_exit_code(1).stderr;
    assert!(
        second.contains("got no valid answer") && second.contains("--retry-failed"),
        "{second}"
    );
}

#[test]
fn an_endpoint_that_refuses_says_which_setting_to_change() {
    for (status, parts) in [
        (401, ["neither --api-key-env nor", "name the variable with --api-key-env"]),
        (404, [" at http://127.0.0.1:", "often ends in /v1"]),
    ] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::status(status, "no", "no"), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        let text = project.spec_text();
        let names_no_key = |line: &&str| !line.starts_with("api_key_env");
        let lines: Vec<&str> = text.lines().filter(names_no_key).collect();
        project.write_spec(&lines.join("\n"));
        rejects(&project, &["materialize", "specs/x.toml"], 4, &parts);
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

/// Words of libraries and of hqdl's own SQL that no message contains.
const FOREIGN_WORDS: [&str; 12] = [
    "hq_",
    "os error",
    "No such file",
    "CSV error",
    " at line ",
    "error sending",
    "error decoding",
    "error connecting",
    "regex parse error",
    "invalid type",
    "unclosed table",
    "misuse of aggregate",
];

/// Checks that a command fails with wrong input, and that its message has a next step and no word
/// of a library.
fn check_explained(project: &Project, args: &[&str]) {
    let ended = project.run_hqdl(args).expect_exit_code(2);
    let has_next_step = ["help:", "expected "].iter().any(|part| ended.stderr.contains(part));
    assert!(has_next_step, "no next step for {args:?}:\n{}", ended.stderr);
    for word in FOREIGN_WORDS {
        assert!(!ended.stderr.contains(word), "{word:?} for {args:?}:\n{}", ended.stderr);
    }
}

#[test]
fn each_error_in_a_query_has_a_next_step() {
    let project = heroes_project(&truthful_endpoint(), "json");
    project.execute_sql("CREATE TABLE review (text TEXT, stars INTEGER); INSERT INTO review VALUES ('Good.', 4), ('Bad.', 1)");
    for sql in [
        "SELEC 1",
        "SELECT 'abc",
        "SELECT upper() FROM hero",
        "SELECT count(*) FROM hero WHERE sum(stars) > 3",
        "SELECT name FROM hero ORDER BY 7",
        "SELECT 1 UNION SELECT 1, 2",
        "SELECT * FROM review a, review b WHERE stars = 1",
        "SELECT name FROM hero LIMIT abc",
        "SELECT DISTINCT ON (name) name FROM hero",
        "SELECT TOP 3 name FROM hero",
        "SELECT json('{')",
        "SELECT sum(9223372036854775807) FROM hero",
        "SELECT AI_FILTER('good?') FROM review",
        "SELECT AI.IF('good?') FROM review",
        "SELECT {{LLMMap(name, 'Is it?')}} FROM hero",
        "SELECT {{LLMMap('Is it?', name)}} FROM",
        "SELECT {{LLMMap('Is it?', (SELECT name, 1 FROM hero))}}",
        "SELECT {{LLMMap('Is it?', name, regex='[')}} FROM hero",
        "SELECT {{LLMMap('Is it?', name, options=[])}} FROM hero",
        "SELECT {{LLMQA('Which?', (DELETE FROM hero))}}",
        "SELECT {{LLMClassify(text)}} FROM review",
        "SELECT {{LLMExtract('Facts', text)}} FROM review",
        "SELECT {{LLMExtract('Facts', text, '{bad')}} FROM review",
        "SELECT {{LLMRank('nice')}} FROM review",
        "SELECT {{LLMTopK('nice', text)}} FROM review",
        "SELECT {{LLMTopK('nice', text, -1)}} FROM review",
        "SELECT text FROM review WHERE {{LLMTopK('nice', text, 3)}} = 'x'",
        "SELECT {{LLMTopK('nice', (SELECT text, stars FROM review), 3)}}",
        "SELECT text FROM review WHERE {{LLMReduce('Sum', text)}} = 'x'",
        "SELECT {{LLMReduce('Sum', (SELECT text, stars FROM review))}}",
        "SELECT {{LLMReduce('Sum', {{LLMReduce('Sum', text)}})}} FROM review",
        "SELECT sum({{LLMReduce('Sum', text)}}) FROM review",
        "SELECT {{LLMReduce('Sum', count(text))}} FROM review",
        "SELECT {{DT('x')}} FROM hero",
        "SELECT 1 FROM review WHERE {{LLMExtract(text, '{\"food\": \"str\"}')}}.* = 'x'",
    ] {
        check_explained(&project, &["query", "--spec", "specs/x.toml", sql]);
    }
    for (dialect, sql) in [
        ("suql", "SELECT name FROM hero WHERE name ILIKE"),
        ("suql", "SELECT {{LLMClassify(name, ['a'])}} FROM hero"),
        ("suql", "SELECT regexp_replace(name, '[', 'x') FROM hero"),
        ("snowflake", "SELECT AI_CLASSIFY(text) FROM review"),
        ("snowflake", "SELECT AI_SENTIMENT() FROM review"),
        ("bigquery", "SELECT AI.AGG(text, text) FROM review"),
        ("databricks", "SELECT ai_mask(text) FROM review"),
        ("flock", "SELECT llm_complete('x') FROM review"),
    ] {
        let args = ["query", "--spec", "specs/x.toml", "--dialect", dialect, sql];
        check_explained(&project, &args);
    }
}

#[test]
fn an_aggregate_ingredient_is_named_in_its_errors() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for (sql, message) in [
        (
            "SELECT name FROM hero WHERE {{LLMTopK('nice', name, 3)}} = 'x'",
            "the aggregate `LLMTopK` is not allowed here",
        ),
        (
            "SELECT {{LLMReduce('Sum', (SELECT name, 1 FROM hero))}}",
            "the query in `LLMReduce` returns 2 columns",
        ),
        ("SELECT {{LLMTopK('nice', name, 1.5)}} FROM hero", "k of `LLMTopK` is not a whole number"),
        ("SELECT AI_FILTER('good?') FROM hero", "use `--dialect snowflake`"),
        ("SELECT AI.IF('good?') FROM hero", "`--dialect bigquery`"),
        ("SELECT * FROM llm", "publish it first with `hqdl materialize specs/x.toml`"),
    ] {
        rejects(&project, &["query", "--spec", "specs/x.toml", sql], 2, &[message]);
    }
}

#[test]
fn each_error_in_a_spec_has_a_next_step() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    let key = text.lines().find(|line| line.starts_with("key")).unwrap();
    let source = text.lines().find(|line| line.starts_with("source")).unwrap();
    for (line, wrong, help) in [
        ("[model]", "[model", "no closing bracket"),
        ("[limits]", "[limits]\nbudget_usd =", "a value is missing"),
        (key, "key = [\"name\"", "no closing bracket"),
        (source, "source = \"nothing\"", "use one of"),
        (source, "source = [\"hero\"]", "write `source = \"hero\"`"),
        (source, "source = \"DELETE FROM hero\"", "name a table, or write a SELECT"),
        ("[[expansion]]", "[expansion]", "write `[[expansion]]`"),
        ("[[expansion.column]]", "[[column]]", "write `[[expansion.column]]`"),
        (
            "[[expansion.column]]",
            "[[expansion.column]]\nname = \"b\"\n[expansion.column]",
            "write `[[expansion.column]]`: an entry of a list has two brackets",
        ),
        ("[[expansion]]", "[[expansion]]\nimages = [\"zz\"]", "add `zz` to `context`"),
        ("[model]", "[model]\nmax_output_tokens = 0", "expected at least 1"),
        ("[[expansion]]", "[model.large]\nnam = \"x\"\n[[expansion]]", "did you mean `name`?"),
        (
            "[[expansion]]",
            "[[kind]]\ncolumns = [\"hero.zzzz\", \"hero.name\"]\n[[expansion]]",
            "use one of",
        ),
    ] {
        assert!(text.contains(line), "{line}");
        project.write_spec(&text.replacen(line, wrong, 1));
        let args = ["check", "specs/x.toml"];
        check_explained(&project, &args);
        rejects(&project, &args, 2, &[help]);
        let ended = project.run_hqdl(&args);
        let errors = ended.stderr.matches("error: ").count();
        assert!(errors == 1 || line == "[[expansion]]", "{wrong}:\n{}", ended.stderr);
    }
}

#[test]
fn a_file_that_cannot_be_used_is_named_in_plain_words() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let write = |name: &str, bytes: &[u8]| std::fs::write(project.path(name), bytes).unwrap();
    write("rows.csv", b"a,b\n1,2,3\n");
    write("truth.csv", b"name,full_name,born\nZed\n");
    write("short.csv", b"a,b\n1\n");
    write("binary.csv", b"\0\x01PK");
    write("latin.csv", b"a\n\xe9\n");
    write("wide.csv", vec!["a"; 2001].join(",").as_bytes());
    write("bad.gz", b"\x1f\x8b\x08garbage");
    write("bad.jsonl", b"{bad\n");
    let bytes = std::fs::read(project.path("data.sqlite")).unwrap();
    write("part.sqlite", &bytes[..bytes.len() / 2]);
    for (args, message) in [
        (&["init", "rows.csv"][..], "line 2: the line has 3 fields, but the header has 2"),
        (&["init", "short.csv"], "write one field for each column"),
        (&["init", "binary.csv"], "binary.csv is not a text file"),
        (&["init", "latin.csv"], "latin.csv is not UTF-8 text"),
        (&["init", "wide.csv"], "wide.csv has 2001 columns"),
        (&["import", "specs/x.toml", "bad.gz"], "bad.gz: it is not a valid gzip file"),
        (&["cache", "stats", "--cache", "mysql://h/x"], "`mysql://h/x` is not a cache"),
        (&["init", "specs"], "specs contains no CSV file"),
        (&["init", "specs/x.toml"], "specs/x.toml is not a SQLite database"),
        (&["query", "--db", ".", "SELECT 1"], ". is a directory, not a SQLite database"),
        (&["query", "--db", "part.sqlite", "SELECT count(*) FROM hero"], "part.sqlite is damaged"),
        (&["cache", "import", "bad.jsonl"], "line 1: not JSON at column 2"),
        (&["cache", "stats", "--cache", "specs"], "there is no cache at specs"),
        (&["materialize", "specs/x.toml", "--cache", "/proc/none"], "cannot use /proc/none"),
        (&["materialize", "specs/x.toml", "--batch-file", "data.sqlite"], "data.sqlite is a file"),
        (&["plan", "specs/x.toml", "--columns", "borne"], "did you mean `born`?"),
        (&["plan", "specs/x.toml", "--recordings", "bad.jsonl"], "not JSON at column 2"),
        (&["why", "llm", "Zed", "born", "--spec", "none.toml"], "none.toml: it does not exist"),
    ] {
        check_explained(&project, args);
        rejects(&project, args, 2, &[message]);
    }
}

#[test]
fn an_endpoint_that_fails_is_described_in_plain_words() {
    for (fault, message, hint) in [
        (
            Fault::Status(402, Vec::new(), "{\"error\":\"no credit\"}".into()),
            "402: no credit",
            "credit and quota",
        ),
        (
            Fault::Status(400, Vec::new(), "{\"error\":\"bad\"}".into()),
            "400: bad",
            "`parameters` in [model]",
        ),
    ] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(fault, Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        let ended = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(4);
        for part in [message, hint] {
            assert!(ended.stderr.contains(part), "{part:?} is not in:\n{}", ended.stderr);
        }
    }
}

#[test]
fn a_run_without_a_usable_answer_says_what_to_do() {
    let refusing = Endpoint::start_with(|_, _| Json::Null);
    refusing.add_fault(
        Fault::Status(
            400,
            Vec::new(),
            "{\"error\":{\"message\":\"no\",\"code\":\"content_filter\"}}".into(),
        ),
        Frequency::Always,
    );
    let project = heroes_project(&refusing, "json");
    let ended = project.run_hqdl(&["materialize", "specs/x.toml", "--columns", "born"]);
    assert!(ended.stderr.contains("content filter"), "{ended:?}");
    let elsewhere = Endpoint::start_with(|_, _| "Purple".into());
    let project = heroes_project(&elsewhere, "json");
    let ended = project.run_hqdl(&["materialize", "specs/x.toml", "--columns", "eye_color"]);
    assert!(ended.stderr.contains("no answer for `eye_color` is in its value list"), "{ended:?}");
}

/// Without a cache, a message must not promise that answers are kept.
#[test]
fn without_a_cache_no_message_says_that_answers_are_kept() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(401, "no", "no"), Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    let kept = project.run_materialize(&[]).expect_exit_code(4).stderr;
    assert!(kept.contains("all answers are kept"), "{kept}");
    let lost = project.run_materialize(&["--no-cache"]).expect_exit_code(4).stderr;
    assert!(lost.contains("--no-cache keeps no answers") && !lost.contains("are kept"), "{lost}");
}

/// Returns the answers of `hqdl map` to lines on stdin.
fn map_lines(project: &Project, lines: &str) -> Vec<Json> {
    let mut command = project.hqdl_command(&["map", "--spec", "specs/x.toml"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_wrong_request_line_is_named_with_its_field() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for (line, message) in [
        ("hello", "stdin, line 2: not JSON at column 1"),
        ("[]", "stdin, line 2: it is a list, expected an object"),
        (
            r#"{"question":"x?","values":"a"}"#,
            "stdin, line 2: `values` is the text \"a\", expected a list",
        ),
        (
            r#"{"question":"x?","values":["a"],"budget":-1}"#,
            "stdin, line 2: -1 is not a valid budget",
        ),
    ] {
        let answers = map_lines(&project, &format!("\n{line}\n"));
        assert_eq!(answers[0]["message"], message, "{answers:?}");
        assert_eq!(answers[0]["exit"], 2);
    }
    let line = r#"{"question":"Is it {}?","values":["a"],"budget":0.0000001}"#;
    let hint = map_lines(&project, line)[0]["hint"].to_string();
    assert!(hint.contains("larger `budget`") && !hint.contains("--"), "{hint}");
}

#[test]
fn advice_over_http_names_no_command_line_option() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let cell = json!({ "table": "llm", "key": ["nobody"], "column": "born" });
    for (path, body, message) in [
        ("/v1/query", json!({}), "`sql` is missing or empty"),
        ("/v1/query", json!({ "sql": 5 }), "`sql` is the integer `5`, expected a text"),
        ("/v1/query", json!([1]), "it is a list, expected an object"),
        ("/v1/query", json!({ "sql": "SELECT :a" }), "the parameter `:a` has no value"),
        ("/v1/query", json!({ "sql": "SELECT name::text FROM hero" }), "unrecognized token"),
        ("/v1/plan", json!({ "refresh": ["borne"] }), "no expansion has a column `borne`"),
        ("/v1/plan", json!({ "where": "nme > 1" }), "`where`: no such column: nme"),
        ("/v1/overrides", cell, "`value` is missing or empty"),
        (
            "/v1/query",
            json!({ "sql": "SELECT 1", "timeout": 9999 }),
            "9999 is not a valid `timeout`",
        ),
    ] {
        let answer = daemon.post(path, &body).expect_status(400);
        assert!(answer.error_message().contains(message), "{}", answer.body);
        assert!(!answer.body.contains("--"), "{}", answer.body);
    }
    // An error with a location also has the hint at the top level.
    let wrong = json!({ "sql": "SELECT nme FROM hero" });
    let answer = daemon.post("/v1/query", &wrong).expect_status(400);
    assert_eq!(answer.json()["error"]["hint"], "did you mean `name`?", "{}", answer.body);
    let cell = json!({ "table": "llm", "key": ["Zed", "Zed"], "column": "born" });
    let answer = daemon.delete("/v1/overrides", &cell).expect_status(400);
    assert!(answer.body.contains("GET /v1/overrides"), "{}", answer.body);
}

#[test]
fn a_daemon_rejects_a_file_that_is_not_a_spec() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let message = "data.sqlite is a SQLite database, not a spec";
    let arguments = ["daemon", "--listen", "127.0.0.1:0", "--specs", "data.sqlite"];
    rejects(&project, &arguments, 2, &[message]);
}

#[test]
fn a_server_that_never_answers_ends_the_command() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/d?sslmode=disable", silent.local_addr().unwrap());
    let message = "the server does not answer within 5 s";
    rejects(&project, &["query", "--db", &url, "SELECT 1"], 2, &[message, "PostgreSQL"]);
}

#[test]
fn the_usage_line_shows_no_option_that_a_variable_sets() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let mut command = project.hqdl_command(&["approve"]);
    let output = command.env("HQDL_CACHE", "cache").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("<PLAN_ID>") && !stderr.contains("--cache"), "{stderr}");
    let ended = project.run_hqdl(&["prices", "gpt-99", "--price", "1,2"]).expect_exit_code(2);
    assert!(!ended.stderr.contains("-- --price"), "{}", ended.stderr);
}

#[test]
fn check_reads_the_overrides_and_the_directory_of_images() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let overrides = |text: &str| {
        std::fs::write(project.path("specs/x.overrides.csv"), text).unwrap();
    };
    for (text, message) in [
        ("nam,column,value\nBatman,born,1\n", "x.overrides.csv:1: no expansion has the key `nam`"),
        ("name,column,value\nBatman,borne,1\n", "x.overrides.csv:2: no expansion has a column"),
    ] {
        overrides(text);
        rejects(&project, &["check", "specs/x.toml"], 2, &[message, "did you mean"]);
    }
    std::fs::remove_file(project.path("specs/x.overrides.csv")).unwrap();
    let text = project.spec_text();
    project.write_spec(&text.replacen("[database]", "[database]\nimages = \"nothere\"", 1));
    rejects(&project, &["check", "specs/x.toml"], 2, &["there is no directory", "nothere"]);
}

#[test]
fn an_error_of_an_endpoint_names_the_model_and_the_address() {
    for (status, body, message) in [
        (500, "{\"error\":\"no\"}", "answers 500: no"),
        (502, "<html></html>", "answers 502: it sent a web page"),
        (200, "{\"choices\":[{\"mess", "sent a reply that ends too early"),
        (200, "{\"result\":1}", "sent a reply that does not follow OpenAI's"),
    ] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Status(status, Vec::new(), body.into()), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        let ended = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(4);
        let named = format!(" at {} {message}", project.base_url());
        assert!(ended.stderr.contains(&named), "{named:?} is not in:\n{}", ended.stderr);
    }
}

#[test]
fn a_negative_value_is_not_reported_as_an_unknown_flag() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for (args, message) in [
        (&["audit", "specs/x.toml", "--sample", "-1"][..], "expected a whole number, 1 or more"),
        (&["audit", "specs/x.toml", "--seed", "x"], "expected a whole number, 0 or more"),
        (&["daemon", "--grace", "-1"], "expected a whole number, 0 or more"),
        (&["plan", "specs/x.toml", "--price", "-1,2"], "two prices"),
        (&["daemon", "--host", "http://x/"], "expected a host name"),
        (&["query", "--db", "data.sqlite", "-- a comment"], "in --file, or as - on stdin"),
        (&["query", "--db", "data.sqlite", "--param", "=1", "SELECT 1"], "has no name"),
    ] {
        rejects(&project, args, 2, &[message]);
    }
}

#[test]
fn a_daemon_does_not_replace_a_file_with_its_socket() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let before = std::fs::read(project.path("data.sqlite")).unwrap();
    let args = ["daemon", "--listen", "127.0.0.1:0", "--socket", "data.sqlite"];
    rejects(&project, &args, 2, &["cannot listen on data.sqlite: it exists already"]);
    assert_eq!(std::fs::read(project.path("data.sqlite")).unwrap(), before);
}

#[test]
fn a_hint_does_not_repeat_what_the_query_says() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for (sql, parts) in [
        ("SELECT name hero", ["no such column: name", "a column of `hero`, which must be in FROM"]),
        ("SELECT name FROM hero LIMIT name", ["no such column: name", "are not visible here"]),
        ("SELECT 'abc", ["a quoted text is never closed", "close the text"]),
        ("SHOW TABLES", ["syntax error", "list the tables with"]),
        ("SELECT load_extension('x')", ["is not allowed", "leave this function out"]),
        ("VALUES (1, 2), (3)", ["<query>:1:1", "the same number of values"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ["circular reference", "WITH RECURSIVE"]),
        ("SELECT name + INTERVAL '1 day' FROM hero", ["<query>:1:15", "PostgreSQL syntax"]),
        ("SELECT EXTRACT(year FROM name) FROM hero", ["syntax error", "PostgreSQL syntax"]),
        ("SELECT name = ANY (ARRAY['x']) FROM hero", ["syntax error", "PostgreSQL syntax"]),
        ("SELECT \"abc", ["unrecognized token", "close the name"]),
        ("SELECT [name FROM hero", ["unrecognized token", "close the name with a `]`"]),
        ("SELECT name FORM hero", ["syntax error", "did you mean FROM instead of FORM?"]),
        ("SELECT lenght(name) FROM hero", ["no such function", "did you mean `length`?"]),
        (
            "SELECT name FROM hero WHERE name = \u{2018}x\u{2019}",
            ["no such column", "straight quotes"],
        ),
        ("SELECT name FROM hero WHERE name MATCH 'x'", ["<query>:1:34", "use LIKE"]),
        ("SELECT name FROM hero ORDER BY 7", ["<query>:1:23", "not a result column"]),
        ("SELECT 1 UNION SELECT 1, 2", ["<query>:1:10", "different numbers of columns"]),
        ("SELECT row_number() FROM hero", ["the window function `row_number`", "OVER (ORDER BY"]),
        (
            "WITH c(a, b) AS (SELECT 1) SELECT * FROM c",
            ["`c` has 1 value for 2 columns", "list one name"],
        ),
    ] {
        rejects(&project, &["query", "--spec", "specs/x.toml", sql], 2, &parts);
    }
    let sql = "SELECT AI.SCORE(name FROM hero";
    let args = ["query", "--spec", "specs/x.toml", "--dialect", "bigquery", sql];
    let ended = project.run_hqdl(&args).expect_exit_code(2);
    assert!(!ended.stderr.contains("another dialect"), "{}", ended.stderr);
}

#[test]
fn a_mistake_in_a_spec_is_described_in_the_words_of_the_spec() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    let source = text.lines().find(|line| line.starts_with("source")).unwrap();
    let column = "[[expansion.column]]\n";
    for (line, wrong, parts) in [
        (source, "source = \"\"", ["`source` is empty", "use one of"]),
        (source, "source = \"SELECT name FROM\"", ["it ends too early", "this SELECT"]),
        (
            column,
            "[[expansion.column]]\nrange = [1]\n",
            ["`range` has 1 value", "expected 2 values"],
        ),
        (
            "questions = [\"What is the eye colour?\"]",
            "questions = [5]",
            ["`questions`", "write `{ ask = …, sql = … }`"],
        ),
        (
            column,
            "[[expansion.column]]\naliases = [\"x\"]\n",
            ["`aliases` is a list", "\"…\" = \"…\""],
        ),
        ("[model]\n", "[[model]]\n", ["`model` is a list", "write `[model]`"]),
        ("[limits]\n", "[limits]\nconcurrency = 2_\n", ["not between digits", "TOML"]),
    ] {
        assert!(text.contains(line), "{line}");
        project.write_spec(&text.replacen(line, wrong, 1));
        rejects(&project, &["check", "specs/x.toml"], 2, &parts);
    }
}

/// `check` counts the keys that stand for no value and proposes a source without them. That several
/// rows have a key is a note, and runs do not mention it.
#[test]
fn placeholder_keys_are_a_warning_and_shared_keys_a_note() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let placeholders = "('N/A'), ('-'), (''), ('Unknown'), ('NULL'), ('- -')";
    project.execute_sql(&format!(
        "CREATE TABLE city (\"the name\" TEXT);
         INSERT INTO city VALUES ('Oslo'), ('Oslo'), ('Lima'), (NULL), {placeholders}"
    ));
    let spec = project.spec_text();
    let head = spec.split("[[expansion]]").next().unwrap();
    let expansion = |source: &str| {
        let key = "key = [\"the name\"]\n[[expansion.column]]\nname = \"country\"\n";
        project.write_spec(&format!("{head}[[expansion]]\nname = \"place\"\n{source}\n{key}"));
        project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0)
    };
    let checked = expansion("source = \"city\"");
    let placeholders = "warning: 5 keys stand for no value, but a run asks about them: \"\", \"-\", \"N/A\", \"NULL\", \"Unknown\"";
    assert!(checked.stderr.contains(placeholders), "{}", checked.stderr);
    let shared = "note: 1 key occurs in several rows";
    assert!(checked.stderr.contains(shared), "{}", checked.stderr);
    assert!(!checked.stderr.contains("warning: 1 key occurs"), "{}", checked.stderr);
    let hint = checked.stderr.split("to leave them out, write ").nth(1).unwrap();
    let without = expansion(hint.lines().next().unwrap());
    assert!(!without.stderr.contains("stand for no value"), "{}", without.stderr);
    assert!(without.stdout.contains("keys 3"), "{}", without.stdout);
    let planned = project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0);
    assert!(!planned.stderr.contains("several rows"), "{}", planned.stderr);
    // A key with a real part is a key.
    project.write_spec(&spec);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('Zorro', '-')");
    let checked = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    assert!(!checked.stderr.contains("stand for no value"), "{}", checked.stderr);
}

#[test]
fn a_file_or_flag_in_the_wrong_place_is_named_with_the_right_one() {
    let project = heroes_project(&truthful_endpoint(), "json");
    std::fs::write(project.path("cities.csv"), "name\nLima\n").unwrap();
    std::fs::create_dir(project.path("none")).unwrap();
    for (args, parts) in [
        (
            &["check", "specs/x.toml", "--db", "no.sqlite"][..],
            ["--db: no database at no.sqlite", "relative to the current directory"],
        ),
        (
            &["check", "specs/x.toml", "--db", "~/c.sqlite"],
            ["--db: no database at ~/c.sqlite", "write the full path"],
        ),
        (
            &["clean", "specs/x.toml", "--db", "no.sqlite"],
            ["--db: no database at no.sqlite", "relative"],
        ),
        (
            &["query", "--db", "no.sqlite", "SELECT 1"],
            ["--db: no database at no.sqlite", "relative"],
        ),
        (
            &["check", "cities.csv"],
            ["cities.csv is a CSV file, not a spec", "hqdl init cities.csv"],
        ),
        (&["materialize", "cities.csv"], ["cities.csv is a CSV file, not a spec", "first spec"]),
        (
            &["materialize", "specs/x.toml", "--output", "cities.csv/x.db"],
            ["cannot use cities.csv/x.db", "cities.csv is a file, not a directory"],
        ),
        (
            &["materialize", "specs/x.toml", "--output", "/proc/x.db"],
            ["cannot use /proc/x.db", "nothing can be created there"],
        ),
        (
            &["plan", "specs/x.toml", "--recordings", "none"],
            ["--recordings: none is a directory", "none/*.jsonl"],
        ),
        (
            &["plan", "specs/x.toml", "--provider", "replay"],
            ["--provider replay needs recordings", "--recordings FILE"],
        ),
        (
            &["materialize", "specs/x.toml", "--refresh-evidence"],
            ["no expansion has [expansion.evidence]", "leave the flag out"],
        ),
        (
            &["clean", "specs/x.toml", "--output", "no.sqlite"],
            ["--output: there is no file no.sqlite", "check the path"],
        ),
        (
            &["query", "specs/x.toml"],
            ["specs/x.toml is a spec, not a query", "--spec specs/x.toml"],
        ),
        (&["query", "specs/x.toml", "SELECT 1"], ["unexpected argument", "--spec specs/x.toml"]),
        (&["query", "data.sqlite", "SELECT 1"], ["unexpected argument", "--db data.sqlite"]),
        (
            &["explain", "data.sqlite"],
            ["data.sqlite is a database, not a query", "--db data.sqlite"],
        ),
        (
            &["map", "--question", "Is it?"],
            ["unexpected argument '--question'", "write the question on stdin"],
        ),
        (
            &["plan", "specs/x.toml", "-q", "-v"],
            ["--quiet and --verbose exclude each other", "remove one"],
        ),
        (&["daemon", "--max-rows", "0"], ["--max-rows", "1 or more"]),
        (&["daemon", "--max-bytes", "0"], ["--max-bytes", "1 or more"]),
        (&["daemon", "--allow-usd", "5"], ["--allow-usd 5 is more than --max-usd 1", "at least 5"]),
        (
            &["mcp", "--db", "data.sqlite", "--allow-usd", "5"],
            ["--allow-usd 5 is more than --max-usd 1", "at least 5"],
        ),
        (
            &[
                "override",
                "set",
                "specs/x.toml",
                "llm",
                "Zed",
                "Zed Zedsson",
                "born",
                "1990",
                "--unknown",
            ],
            ["--unknown and the value `1990` exclude each other", "remove one"],
        ),
    ] {
        rejects(&project, args, 2, &parts);
    }
}

#[test]
fn a_slip_in_a_spec_is_recognized() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let text = project.spec_text();
    let model = "name = \"test-model\"";
    let key = text.lines().find(|line| line.starts_with("key")).unwrap();
    for (line, wrong, parts) in [
        ("../data.sqlite", "~/c.sqlite", ["hqdl does not expand `~`", "write the full path"]),
        (
            "{ input = 1.0, output = 2.0 }",
            "{ input = 0,15, output = 0,6 }",
            ["a number has a comma", "a point: 0.15"],
        ),
        ("[limits]", "[limits]\nbudget_usd = 0,5", ["a number has a comma", "a point: 0.5"]),
        (
            model,
            "name = \u{201c}llm\u{201d}",
            ["\u{201c} is not a quote of TOML", "straight quotes: \"llm\""],
        ),
        (
            "[[expansion]]",
            "[[expansion.column]]\nname = \"a\"\n\n[[expansion]]",
            ["[[expansion.column]] comes before its [[expansion]]", "move it below"],
        ),
        (
            key,
            &format!("{key}\nevidence = {{ documents = \"none/*.txt\" }}"),
            ["`documents` is a SELECT, but \"none/*.txt\" is not one", "`folder = \"none\"`"],
        ),
    ] {
        assert!(text.contains(line), "{line}");
        project.write_spec(&text.replacen(line, wrong, 1));
        rejects(&project, &["check", "specs/x.toml"], 2, &parts);
    }
}

#[test]
fn the_query_of_an_example_is_checked_before_the_tables_are_published() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let text = project.spec_text();
    for (sql, code) in [
        ("SELECT nme FROM hero", 2),
        ("SELECT name FROM hero", 0),
        ("SELECT born FROM llm", 0),
        ("SELECT born FROM main.llm", 0),
        ("SELECT born FROM hero", 0),
        ("SELECT * FROM hqdl_cell", 0),
        ("SELECT born FROM hero_expanded", 0),
        ("SELECT {{LLMMap('Is it tall?', hero.name)}} FROM hero", 0),
    ] {
        project.write_spec(&format!("{text}\n[[example]]\nquestion = \"Who?\"\nsql = \"{sql}\"\n"));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(code);
        let message = "the query of this example fails: no such column: nme";
        assert_eq!(ended.stderr.contains(message), code == 2, "{sql}: {}", ended.stderr);
    }
    // A column of another table is an error as soon as its own table is published.
    project.write_spec(&text);
    project.run_materialize(&[]).expect_exit_code(0);
    let example = "[[example]]\nquestion = \"Who?\"\nsql = \"SELECT born FROM hero\"\n";
    project.write_spec(&format!("{text}\n{example}"));
    let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("no such column: born"), "{}", ended.stderr);
}

#[test]
fn two_override_lines_of_one_cell_are_rejected() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let header = "name,full_name,column,value";
    let lines = format!("{header}\nZed,Zed Zedsson,born,1990\nZed,Zed Zedsson,born,1991\n");
    std::fs::write(project.path("specs/x.overrides.csv"), lines).unwrap();
    let parts = ["x.overrides.csv:3: line 2 sets the same cell already", "delete one"];
    rejects(&project, &["check", "specs/x.toml"], 2, &parts);
    rejects(&project, &["materialize", "specs/x.toml"], 2, &parts);
}

#[test]
fn a_command_without_a_result_says_so() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
    project.execute_sql("CREATE TABLE nobody (name TEXT, full_name TEXT)");
    for (args, message) in [
        (&["cache", "list", "contnent"][..], "no key contains `contnent` ("),
        (&["override", "list", "specs/x.toml"], "no overrides in specs/x.overrides.csv"),
    ] {
        rejects(&project, args, 0, &[message]);
    }
    project.write_spec(&project.spec_text().replacen(
        "source = \"hero\"",
        "source = \"nobody\"",
        1,
    ));
    let message = "the source of `llm` has no row with a key";
    rejects(&project, &["check", "specs/x.toml"], 0, &[message]);
}

#[test]
fn an_export_replaces_only_an_export() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
    let spec = project.spec_text();
    let message = "specs/x.toml exists and is not an export of a cache";
    rejects(&project, &["cache", "export", "specs/x.toml"], 2, &[message, "choose another file"]);
    assert_eq!(project.spec_text(), spec);
    for _ in 0..2 {
        project.run_hqdl(&["cache", "export", "facts.jsonl"]).expect_exit_code(0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_log_that_cannot_be_written_is_reported_once() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let args = ["materialize", "specs/x.toml", "--log", "/dev/full"];
    let ended = project.run_hqdl(&args).expect_exit_code(0);
    let message = "warning: cannot log to /dev/full: the disk is full";
    assert_eq!(ended.stderr.matches(message).count(), 1, "{}", ended.stderr);
}

#[test]
fn an_argument_of_a_call_in_the_wrong_place_is_explained() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for (sql, parts) in [
        ("SELECT {LLMMap('x', name)} FROM hero", ["unrecognized token", "in double braces"]),
        (
            "SELECT {{DocumentSearch('x')}}",
            ["`DocumentSearch` needs a question", "{{DocumentSearch('…?', documents.text)}}"],
        ),
        (
            "SELECT {{LLMAgg(name)}} FROM hero",
            ["`LLMAgg` has no question", "{{LLMAgg('…', t.column)}}"],
        ),
        (
            "SELECT {{LLMReduce('Sum')}} FROM hero",
            ["`LLMReduce` has no values", "{{LLMReduce('…', t.column)}}"],
        ),
        (
            "SELECT {{LLMMap('What?', name, options='none.col')}} FROM hero",
            ["the options are a text, not a column", "without quotes: options=none.col"],
        ),
        (
            "SELECT {{LLMClassify('Kind?', name)}} FROM hero",
            ["the first argument of `LLMClassify` is a text", "{{LLMClassify(t.note"],
        ),
        (
            "SELECT {{LLMClassify('Kind?', name, labels='a')}} FROM hero",
            ["`labels` appears twice: as argument 2 and as `labels=`", "{{LLMClassify(t.note"],
        ),
    ] {
        rejects(&project, &["query", "--spec", "specs/x.toml", sql], 2, &parts);
    }
}

#[test]
fn a_text_that_is_the_name_of_a_column_is_noted() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    for (value, is_noted) in [("'name'", true), ("'nme'", false), ("name", false)] {
        let sql = format!("SELECT {{{{LLMMap('What is the motto?', {value})}}}} FROM hero LIMIT 1");
        let ended = project.run_hqdl(&["query", "--spec", "specs/x.toml", &sql]);
        let note = "note: 'name' is a text, so hqdl asks about this word";
        assert_eq!(ended.stderr.contains(note), is_noted, "{value}: {}", ended.stderr);
    }
}

#[test]
fn an_mcp_server_without_a_client_says_what_it_read() {
    let project = heroes_project(&truthful_endpoint(), "json");
    for (input, message) in [
        ("", "no client began the protocol on stdin"),
        ("junk\n", "the first line on stdin is not JSON-RPC"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"nope\"}\n",
            "the client did not send `initialize` before stdin ended",
        ),
    ] {
        let mut command = project.hqdl_command(&["mcp", "--spec", "specs/x.toml"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        for part in [message, "--print-config claude"] {
            assert!(stderr.contains(part), "{part:?} is not in:\n{stderr}");
        }
    }
}
