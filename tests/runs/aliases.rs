//! Tests of aliases: stored answers are read through them, without new requests.

use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::Project;

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "test-model"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"

[[expansion]]
name = "llm"
source = "place"
key = ["name"]

[[expansion.column]]
name = "country"
about = "the country it is in"
values = { list = ["UK", "France", "Spain"] }
ALIASES
"#;

fn spec(aliases: &str) -> String {
    SPEC.replace("ALIASES", aliases)
}

const PLACES: &str = "CREATE TABLE place (name TEXT PRIMARY KEY);
     INSERT INTO place VALUES ('Leeds'), ('Lyon'), ('Vigo'), ('York')";

fn endpoint() -> Endpoint {
    Endpoint::start_with(|_, key| match key[0].as_str().unwrap_or_default() {
        "Leeds" => "United Kingdom".into(),
        "York" => "uk".into(),
        "Lyon" => "Gaul".into(),
        _ => "Spain".into(),
    })
}

fn cells(project: &Project) -> Vec<Vec<Json>> {
    project.query_rows(
        "SELECT l.name, l.country, h.state FROM llm AS l
         JOIN hqdl_cell AS h ON h.key = json_array(l.name) ORDER BY 1",
    )
}

#[test]
fn stored_answers_are_read_through_aliases_without_requests() {
    let endpoint = endpoint();
    let project = Project::new(&endpoint, PLACES, &spec(""));
    project.run_materialize(&[]).expect_exit_code(1);
    let asked = endpoint.request_count();
    let without = [
        [json!("Leeds"), Json::Null, json!("not_in_list")],
        [json!("Lyon"), Json::Null, json!("not_in_list")],
        [json!("Vigo"), json!("Spain"), json!("ok")],
        [json!("York"), json!("UK"), json!("ok")],
    ];
    assert_eq!(cells(&project), without);
    let mut with = without.clone();
    with[0] = [json!("Leeds"), json!("UK"), json!("ok")];
    project.write_spec(&spec("aliases = { \"united kingdom\" = \"UK\" }"));
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(cells(&project), with);
    // Aliases from a file, with another target: the model's original text counts.
    std::fs::write(
        project.path("specs/words.csv"),
        "said,means\nUnited Kingdom,Spain\nGaul,France\n",
    )
    .unwrap();
    project.write_spec(&spec("aliases = \"words.csv\""));
    project.run_materialize(&[]).expect_exit_code(0);
    with[0] = [json!("Leeds"), json!("Spain"), json!("ok")];
    with[1] = [json!("Lyon"), json!("France"), json!("ok")];
    assert_eq!(cells(&project), with);
    let why = project
        .run_hqdl(&["why", "llm", "Leeds", "country", "--spec", "specs/x.toml"])
        .expect_exit_code(0);
    assert!(why.stdout.contains("United Kingdom"), "{}", why.stdout);
    // Without the aliases, the original state returns.
    project.write_spec(&spec(""));
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(cells(&project), without);
    assert_eq!(endpoint.request_count(), asked);
}

/// An open list keeps values that are not on it, except aliases. Lists of a one-to-many column are
/// checked value by value.
#[test]
fn open_lists_and_lists_of_values_have_aliases() {
    for (open, many) in [(true, false), (false, true), (true, true)] {
        let endpoint = endpoint();
        let mut toml = spec("ALIASES").replace("] }", &format!("], open = {open} }}"));
        if many {
            toml.push_str("many = { table = \"llm_country\", column = \"country\" }\n");
        }
        let plain = toml.replace("ALIASES", "");
        let project = Project::new(&endpoint, PLACES, &plain);
        project.run_materialize(&[]);
        let asked = endpoint.request_count();
        let table = if many { "llm_country" } else { "llm" };
        let of_leeds =
            || project.query_rows(&format!("SELECT country FROM {table} WHERE name = 'Leeds'"));
        let before = of_leeds();
        project.write_spec(&toml.replace("ALIASES", "aliases = { \"United Kingdom\" = \"UK\" }"));
        project.run_materialize(&[]);
        assert_eq!(of_leeds(), [[json!("UK")]], "open {open}, many {many}");
        project.write_spec(&plain);
        project.run_materialize(&[]);
        assert_eq!(of_leeds(), before, "open {open}, many {many}");
        assert_eq!(endpoint.request_count(), asked, "open {open}, many {many}");
    }
}

#[test]
fn invalid_aliases_are_reported() {
    let endpoint = endpoint();
    let project = Project::new(&endpoint, PLACES, &spec(""));
    std::fs::write(project.path("specs/three.csv"), "said,means\na,UK,b\n").unwrap();
    // Mistakes that would otherwise go unnoticed.
    for (name, text, said) in [
        ("none.csv", "", "line 1 has 0 fields instead of 2"),
        ("semicolons.csv", "said;means\na;UK\n", "line 1 has 1 field instead of 2"),
        ("open.csv", "\"said,means\na,UK\n", "line 1 has 1 field instead of 2"),
        ("bare.csv", "Britain,UK\nGB,UK\n", "line 1 contains an alias, but must be a header"),
        (
            "twice.csv",
            "said,means\na,UK\na,France\n",
            "line 3: the alias \"a\" already means \"UK\"",
        ),
    ] {
        std::fs::write(project.path(format!("specs/{name}")), text).unwrap();
        project.write_spec(&spec(&format!("aliases = \"{name}\"")));
        let told = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2).stderr;
        assert!(told.contains(said), "{name}: {told}");
    }
    std::fs::write(project.path("specs/bytes.csv"), b"said,means\n\xff,UK\n").unwrap();
    project.write_spec(&spec("aliases = \"bytes.csv\""));
    let told = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2).stderr;
    assert!(told.contains("bytes.csv") && told.contains("UTF-8"), "{told}");
    for (aliases, told) in [
        ("aliases = { \"Gaul\" = \"Italy\" }", "\"Italy\" is not in the value list of `country`"),
        ("aliases = { \"Spain\" = \"UK\" }", "\"Spain\" is already a value of the list"),
        ("aliases = { \"gaul\" = \"UK\", \"Gaul\" = \"France\" }", "has two values"),
        ("aliases = \"nowhere.csv\"", "nowhere.csv"),
        ("aliases = \"three.csv\"", "three.csv"),
        ("aliases = 3", "aliases"),
    ] {
        project.write_spec(&spec(aliases));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(told), "{aliases}: {}", ended.stderr);
    }
    for (aliases, told) in [
        ("{ \"Britain\" = \"UK\", \"uk\" = \"GB\" }", "\"uk\" is already a value of other aliases"),
        ("{ \"gaul\" = \"UK\", \"Gaul\" = \"France\" }", "has two values"),
    ] {
        project.write_spec(&spec(&format!("aliases = {aliases}")).replace(LIST, ""));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(told), "{aliases}: {}", ended.stderr);
    }
    let year = spec("type = \"integer\"\naliases = { \"Gaul\" = \"France\" }").replace(LIST, "");
    project.write_spec(&year);
    let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("\"France\" is not of type integer"), "{}", ended.stderr);
}

const LIST: &str = "values = { list = [\"UK\", \"France\", \"Spain\"] }";

/// A column without a list can also have aliases. They affect only the words that they name, and
/// the letter case of the values that they mean.
#[test]
fn a_column_without_a_list_has_aliases() {
    let endpoint = Endpoint::start_with(|_, key| match key[0].as_str().unwrap_or_default() {
        "Leeds" => "United Kingdom".into(),
        "York" => "uk".into(),
        "Lyon" => "Frances".into(),
        _ => "".into(),
    });
    let plain = spec("").replace(LIST, "");
    let project = Project::new(&endpoint, PLACES, &plain);
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let cell = |value: &str| json!(value);
    let without = ["United Kingdom", "Frances", "", "uk"].map(cell);
    let values = || cells(&project).into_iter().map(|row| row[1].clone()).collect::<Vec<_>>();
    assert_eq!(values(), without);
    let aliases = "aliases = { \"united kingdom\" = \"UK\", \"Gaul\" = \"France\" }";
    project.write_spec(&spec(aliases).replace(LIST, ""));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(values(), ["UK", "Frances", "", "UK"].map(cell));
    let why = project
        .run_hqdl(&["why", "llm", "Leeds", "country", "--spec", "specs/x.toml"])
        .expect_exit_code(0);
    assert!(why.stdout.contains("alias brought to the alias's value"), "{}", why.stdout);
    project.write_spec(&plain);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(values(), without);
    assert_eq!(endpoint.request_count(), asked);
    // The prompt is the same with and without aliases.
    let fresh = Project::new(&endpoint, PLACES, &spec(aliases).replace(LIST, ""));
    fresh.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(fresh.query_rows("SELECT country FROM llm ORDER BY name")[0][0], "UK");
}

#[test]
fn a_daemon_notices_a_changed_alias_file() {
    let endpoint = endpoint();
    let project = Project::new(&endpoint, PLACES, &spec("aliases = \"words.csv\""));
    let write = |lines: &str| {
        std::fs::write(project.path("specs/words.csv"), format!("said,means\n{lines}")).unwrap();
    };
    write("Gaul,France\n");
    let _daemon = Daemon::start(&project, &[]);
    let country = |n: usize| {
        project.has_table("llm") && cells(&project).get(n).is_some_and(|row| row[1] != Json::Null)
    };
    wait_until("the tables", || country(1));
    assert!(!country(0));
    let asked = endpoint.request_count();
    write("Gaul,France\nUnited Kingdom,UK\n");
    wait_until("the new alias", || country(0));
    assert_eq!(endpoint.request_count(), asked);
}
