//! Tests of a user's choices: which columns, which rows, how many; a plan that a script checks;
//! overrides that are checked before they are stored.

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Request};
use hqdl_testkit::project::{CommandResult, Project, heroes_project, truthful_endpoint};

/// Creates a project with two expansions that share a column name, but not the columns of their
/// sources.
fn two() -> (Endpoint, Project) {
    let endpoint = Endpoint::start_with(|column, key| format!("{column} of {}", key[0]).into());
    let spec = "[database]\npath = \"../data.sqlite\"\n\
        [model]\nname = \"test-model\"\nbase_url = \"{base_url}\"\n\
        [[expansion]]\nname = \"llm_album\"\nsource = \"album\"\nkey = [\"title\"]\n\
        [[expansion.column]]\nname = \"genre\"\nabout = \"genre\"\n\
        [[expansion]]\nname = \"llm_artist\"\nsource = \"artist\"\nkey = [\"name\"]\n\
        [[expansion.column]]\nname = \"genre\"\nabout = \"genre\"\n";
    let sql = "CREATE TABLE album (title TEXT, year INTEGER);
        CREATE TABLE artist (name TEXT);
        INSERT INTO album VALUES ('Ten', 1991), ('Vs', 1993), ('Yield', 1998);
        INSERT INTO artist VALUES ('Pearl Jam'), ('Soundgarden');";
    let project = Project::new(&endpoint, sql, spec);
    (endpoint, project)
}

fn warnings(ended: &CommandResult) -> Vec<String> {
    let of = |l: &&Json| l["event"] == "warning";
    ended.lines.iter().filter(of).map(|l| l["message"].to_string()).collect()
}

#[test]
fn where_applies_to_expansions_with_its_columns_and_reports_the_others() {
    let (endpoint, project) = two();
    let ended = project.run_materialize(&["--where", "year > 1992"]).expect_exit_code(0);
    let mut asked: Vec<Json> = endpoint
        .received_requests()
        .iter()
        .flat_map(Request::requested_cells)
        .map(|(key, _)| key[0].clone())
        .collect();
    asked.sort_by_key(ToString::to_string);
    assert_eq!(asked, ["Vs", "Yield"]);
    let told = warnings(&ended);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("llm_artist: skipped, because --where does not apply"), "{told:?}");
    // A column of no expansion is a mistake.
    let ended = project.run_materialize(&["--where", "yeer > 1992"]).expect_exit_code(2);
    assert!(ended.stderr.contains("yeer"), "{}", ended.stderr);
    let ended =
        project.run_hqdl(&["plan", "specs/x.toml", "--where", "year >"]).expect_exit_code(2);
    assert!(ended.stderr.contains("ends too early"), "{}", ended.stderr);
}

#[test]
fn a_column_is_named_with_its_expansion() {
    let (endpoint, project) = two();
    project.run_materialize(&["--columns", "LLM_Album.genre"]).expect_exit_code(0);
    let asked: usize = endpoint.received_requests().iter().map(|r| r.question.rows.len()).sum();
    assert_eq!(asked, 3);
    project.run_materialize(&["--refresh", "llm_album.genre", "--limit", "1"]).expect_exit_code(0);
    project.run_materialize(&["--columns", "llm_album.title"]).expect_exit_code(2);
    project.run_materialize(&["--columns", "genre"]).expect_exit_code(0);
    assert_eq!(project.query_rows("SELECT count(genre) FROM llm_artist")[0][0], 2);
}

#[test]
fn a_fulfilled_limit_is_a_success_and_a_plan_reports_missing_cells_to_scripts() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0);
    project.run_hqdl(&["plan", "specs/x.toml", "--check"]).expect_exit_code(1);
    project.run_materialize(&["--limit", "3"]).expect_exit_code(0);
    project.run_hqdl(&["plan", "specs/x.toml", "--check"]).expect_exit_code(1);
    project.run_materialize(&[]).expect_exit_code(0);
    project.run_hqdl(&["plan", "specs/x.toml", "--check"]).expect_exit_code(0);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New', 'N. Ew')");
    project.run_hqdl(&["plan", "specs/x.toml", "--check"]).expect_exit_code(1);
    project.run_materialize(&[]).expect_exit_code(0);
    project.run_hqdl(&["plan", "specs/x.toml", "--check"]).expect_exit_code(0);
}

#[test]
fn an_unknown_value_is_an_answer_unless_values_are_required() {
    let endpoint = Endpoint::start_with(|_, _| Json::Null);
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&["--limit", "2"]).expect_exit_code(0);
    project.run_materialize(&["--limit", "1", "--require-values"]).expect_exit_code(1);
    let query =
        ["query", "--spec", "specs/x.toml", "SELECT {{LLMMap('Is it odd?', name)}} FROM hero"];
    let ended = project.run_hqdl(&query).expect_exit_code(0);
    assert!(ended.stderr.contains("the model does not know"), "{}", ended.stderr);
    project.run_hqdl(&[&query[..], &["--require-values"]].concat()).expect_exit_code(1);
}

#[test]
fn an_override_is_checked_before_it_is_stored() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let set = |words: &[&str]| {
        project.run_hqdl(&[&["override", "set", "specs/x.toml", "llm"], words].concat())
    };
    let file = project.path("specs/x.overrides.csv");
    // All problems are reported at once.
    let ended = set(&["Nobody", "No Body", "eye_color", "Octarine"]).expect_exit_code(2);
    assert!(ended.stderr.contains("no source of `llm` has the key (Nobody, No Body)"));
    assert!(
        ended.stderr.contains("\"Octarine\" is not a valid value for `eye_color`"),
        "{}",
        ended.stderr
    );
    let ended = set(&["Nobody", "colour", "x"]).expect_exit_code(2);
    assert!(ended.stderr.contains("2 parts, not 1"), "{}", ended.stderr);
    assert!(ended.stderr.contains("no column `colour`"), "{}", ended.stderr);
    set(&["Zed", "Zed Zedsson", "born", "yesterday"]).expect_exit_code(2);
    assert!(!file.exists());
    set(&["Zed", "Zed Zedsson", "motto", "Zzz"]).expect_exit_code(0);
    set(&["Nobody", "No Body", "motto", "Me", "--force"]).expect_exit_code(0);
    assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 3);
}

#[test]
fn why_shows_the_reason_of_an_invalid_answer() {
    let endpoint = Endpoint::start_with(|_, _| "about 30".into());
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&["--columns", "born"]).expect_exit_code(1);
    let why = ["why", "llm", "Zed", "Zed Zedsson", "born", "--spec", "specs/x.toml"];
    let why = project.run_hqdl(&why).expect_exit_code(0).stdout;
    for line in ["state        invalid", "raw answer   about 30", "reason       not an integer"] {
        assert!(why.contains(line), "{why}");
    }
}

#[test]
fn an_override_shows_its_note_and_the_answer_of_the_model() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let motto = || {
        project.run_materialize(&[]).expect_exit_code(0);
        let why = ["why", "llm", "Zed", "Zed Zedsson", "motto", "--spec", "specs/x.toml"];
        project.run_hqdl(&why).expect_exit_code(0).stdout
    };
    let set = |words: &[&str]| {
        let key = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson"];
        project.run_hqdl(&[&key, words].concat())
    };
    set(&["motto", "Zzz", "--note", "heard it"]).expect_exit_code(0);
    let why = motto();
    for line in ["state        overridden", "value        Zzz", "note         heard it"] {
        assert!(why.contains(line), "{why}");
    }
    assert!(why.contains("raw answer   The motto of Zed"), "{why}");
    assert!(!why.contains("repaired"), "{why}");
    let cell = "SELECT state, raw IS NULL, repair, note FROM hqdl_cell WHERE \"column\" = 'motto' AND key LIKE '[\"Zed\"%'";
    assert_eq!(
        project.query_rows(cell),
        [[json!("overridden"), json!(0), Json::Null, json!("heard it")]]
    );
    // No value is right.
    set(&["motto", "--unknown", "--note", "made up"]).expect_exit_code(0);
    let why = motto();
    for line in ["state        unknown", "raw answer   The motto of Zed", "note         made up"] {
        assert!(why.contains(line), "{why}");
    }
    let file = std::fs::read_to_string(project.path("specs/x.overrides.csv")).unwrap();
    assert!(file.contains("motto,?,made up"), "{file}");
    // No later run asks about the cell.
    project.run_materialize(&["--retry-failed"]).expect_exit_code(0);
    assert!(motto().contains("state        unknown"));
    project.run_hqdl(&["plan", "specs/x.toml", "--check"]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked);
    assert_eq!(project.query_rows("SELECT motto FROM llm WHERE name = 'Zed'"), [[Json::Null]]);
    // Words that mean "unknown" are no values, and the message says what to do.
    for (column, value, part) in [
        ("motto", "NULL", "it means that the value is not known; "),
        ("eye_color", "n/a", "it means that the value is not known; "),
        ("born", "yesterday", "not an integer"),
    ] {
        let refused = set(&[column, value]).expect_exit_code(2).stderr;
        let refused = refused.replace("\nhelp: ", "; ");
        assert!(refused.contains(part), "{column} {value}: {refused}");
        assert_eq!(refused.contains("--unknown"), value != "yesterday", "{refused}");
    }
    set(&["--unknown"]).expect_exit_code(2);
}

#[test]
fn a_listed_question_mark_is_a_value_and_never_means_no_value() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.edit_spec("\"Green\"]", "\"Green\", \"?\"]");
    let set = |words: &[&str]| {
        let key = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson"];
        project.run_hqdl(&[&key, words].concat())
    };
    let refused = set(&["eye_color", "--unknown"]).expect_exit_code(2).stderr;
    assert!(refused.contains("cannot be set to no value"), "{refused}");
    assert!(!project.path("specs/x.overrides.csv").exists());
    set(&["eye_color", "?"]).expect_exit_code(0);
    set(&["motto", "--unknown"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    let published = "SELECT eye_color, motto FROM llm WHERE name = 'Zed'";
    assert_eq!(project.query_rows(published), [[json!("?"), Json::Null]]);
}

#[test]
fn prompts_can_be_printed_before_a_run() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let ended =
        project.run_hqdl(&["plan", "specs/x.toml", "--show-prompt", "--json"]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 0);
    project.run_materialize(&["--concurrency", "1"]).expect_exit_code(0);
    let sent = &endpoint.received_requests()[0].body["messages"];
    assert_eq!(ended.lines[0]["system"], sent[0]["content"]);
    assert_eq!(ended.lines[0]["user"], sent[1]["content"]);
}

#[test]
fn the_schema_has_a_name_with_a_version() {
    let project = heroes_project(&truthful_endpoint(), "json");
    let ended = project.run_hqdl(&["check", "--schema"]).expect_exit_code(0);
    let schema: Json = serde_json::from_str(&ended.stdout).unwrap();
    let id = format!("urn:hqdl:spec:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(schema["$id"], id);
}

#[test]
fn an_override_is_stored_in_the_spelling_of_the_list_and_keeps_its_note() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let set = |words: &[&str]| {
        let key = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "eye_color"];
        project.run_hqdl(&[&key, words].concat()).expect_exit_code(0).stderr
    };
    let line = || {
        let text = std::fs::read_to_string(project.path("specs/x.overrides.csv")).unwrap();
        text.lines().last().unwrap().to_owned()
    };
    let stderr = set(&["green", "--note", "a photo"]);
    assert!(stderr.contains("set to `Green` in"), "{stderr}");
    assert!(line().ends_with("eye_color,Green,a photo"), "{}", line());
    set(&["Green"]);
    assert!(line().ends_with("eye_color,Green,a photo"), "{}", line());
    let stderr = set(&["Brown"]);
    assert!(stderr.contains("set in"), "{stderr}");
    assert!(line().ends_with("eye_color,Brown,a photo,Green"), "{}", line());
    set(&["Blue"]);
    assert!(line().ends_with("eye_color,Blue,a photo,Brown"), "{}", line());
    set(&["Green", "--note", "a film"]);
    assert!(line().ends_with("eye_color,Green,a film,Blue"), "{}", line());
    let listed = project.run_hqdl(&["override", "list", "specs/x.toml"]).expect_exit_code(0);
    assert!(listed.stdout.ends_with("= Green  (a film; replaced Blue)\n"), "{}", listed.stdout);
    // A note that looks like the text of a replaced value remains as it is.
    set(&["Green", "--note", "a film; replaced in 2020"]);
    set(&["Brown"]);
    assert!(line().ends_with("eye_color,Brown,a film; replaced in 2020,Green"), "{}", line());
}

#[test]
fn an_override_of_an_unknown_key_suggests_the_nearest_one() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let set = |name: &str| {
        let words = ["override", "set", "specs/x.toml", "llm", name, "Zed Zedsson", "motto", "x"];
        project.run_hqdl(&words).expect_exit_code(2).stderr
    };
    for wrong in ["zed", "Zedd"] {
        assert!(set(wrong).contains("did you mean (Zed, Zed Zedsson)?"), "{}", set(wrong));
    }
    assert!(!set("Entirely Different Person").contains("did you mean"));
}
