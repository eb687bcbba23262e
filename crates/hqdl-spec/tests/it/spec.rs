//! Tests of the spec check: every problem is reported at once, with its location.

use std::path::Path;

use hqdl_database::Database;
use hqdl_spec::{ReadError, UncheckedSpec};
use hqdl_values::problem::Severity;

use hqdl_testkit::fixture::{Fixture, find_problem, position_of};

const GOOD: &str = r#"[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "superhero"
key = ["superhero_name", "full_name"]
context = ["height_cm"]
[[expansion.column]]
name = "publisher_name"
values = { sql = "SELECT publisher_name FROM publisher" }
questions = [
  "Who is the publisher?",
  { ask = "Is the publisher {value}?", sql = "publisher_name = {value}" },
]
[[expansion.column]]
name = "powers"
many = { table = "llm_power", column = "power_name" }
values = { sql = "SELECT power_name FROM superpower" }
questions = [{ ask = "Does the hero have {value}?", sql = "EXISTS {value}" }]
"#;

#[test]
fn a_valid_spec_has_no_problems_and_loads_its_lists() {
    let (spec, warnings) = Fixture::new().check_spec(GOOD).unwrap();
    assert_eq!(warnings.problems, []);
    assert_eq!(spec.database, Path::new("specs/heroes.sqlite"));
    assert_eq!(spec.overrides_path(), Path::new("specs/x.overrides.csv"));
    let expansion = &spec.expansions[0];
    assert_eq!(expansion.rows_per_request, 20);
    assert_eq!(expansion.key_types, [Some("TEXT".to_owned()), Some("TEXT".to_owned())]);
    let publishers = expansion.columns[0].values.as_ref().unwrap();
    // NULLs and repeats are removed; the order is kept.
    assert_eq!(publishers.values, ["Marvel Comics", "DC Comics", "Dark Horse Comics"]);
    assert!(!publishers.open);
    assert_eq!(expansion.find_column("POWER_NAME"), Some(1));
}

/// An edit of the valid spec, the expected message, and the text of the edited spec that the
/// location must point at ("" for a missing item).
struct Mistake {
    from: &'static str,
    to: &'static str,
    message: &'static str,
    place: &'static str,
    help: &'static str,
}

const fn mistake(
    from: &'static str,
    to: &'static str,
    message: &'static str,
    place: &'static str,
    help: &'static str,
) -> Mistake {
    Mistake { from, to, message, place, help }
}

const MISTAKES: &[Mistake] = &[
    // Fields.
    mistake(
        "[model]\n",
        "[model]\ntemprature = 0.5\n",
        "unknown field `temprature` in [model]",
        "temprature",
        "did you mean `temperature`?",
    ),
    mistake(
        "context =",
        "contxt =",
        "unknown field `contxt` in [[expansion]]",
        "contxt",
        "did you mean `context`?",
    ),
    mistake(
        "many = { table = \"llm_power\", column",
        "many = { table = \"llm_power\", colum = 'x', column",
        "unknown field `colum` in [expansion.column.many]",
        "colum = 'x'",
        "did you mean `column`?",
    ),
    mistake(
        "[model]\n",
        "[limit]\nconcurrency = 2\n[model]\n",
        "unknown field `limit` in the spec",
        "limit]",
        "did you mean `limits`?",
    ),
    mistake(
        "path = \"heroes.sqlite\"\n",
        "",
        "[database] has no `path`",
        "[database]",
        "name a SQLite database in `path`, or a PostgreSQL database in `url`",
    ),
    mistake("source = \"superhero\"\n", "", "[[expansion]] has no `source`", "[[expansion]]", ""),
    mistake(
        "name = \"powers\"\n",
        "",
        "[[expansion.column]] has no `name`",
        "[[expansion.column]]\nmany",
        "",
    ),
    // Types.
    mistake(
        "key = [\"superhero_name\", \"full_name\"]",
        "key = \"superhero_name\"",
        "`key` is a string",
        "\"superhero_name\"",
        "write `key = [\"superhero_name\"]`",
    ),
    mistake("context = [\"height_cm\"]", "context = [12]", "`context` is an integer", "12", ""),
    mistake("name = \"test\"", "name = true", "`name` is a boolean", "true", ""),
    mistake(
        "[model]\n",
        "[limits]\nconcurrency = -1\n[model]\n",
        "`concurrency` is out of range",
        "-1",
        "",
    ),
    mistake(
        "[model]\n",
        "[limits]\nconcurrency = 4294967296\n[model]\n",
        "`concurrency` is out of range",
        "4294967296",
        "",
    ),
    mistake(
        "name = \"publisher_name\"\n",
        "name = \"publisher_name\"\ntype = \"txt\"\n",
        "`type` cannot be \"txt\"",
        "\"txt\"",
        "did you mean \"text\"?",
    ),
    mistake(
        "context =",
        "format = \"yaml\"\ncontext =",
        "`format` cannot be \"yaml\"",
        "\"yaml\"",
        "",
    ),
    // Settings.
    mistake(
        "[model]\n",
        "[limits]\nrequests_per_minute = 0\n[model]\n",
        "`requests_per_minute` is 0",
        "0\n[model]",
        "",
    ),
    mistake(
        "[model]\n",
        "[limits]\nbudget_usd = -2.0\n[model]\n",
        "`budget_usd` is not a valid amount",
        "-2.0",
        "",
    ),
    mistake("[model]\n", "[limits]\nbudget_usd = nan\n[model]\n", "`budget_usd`", "nan", ""),
    mistake("[model]\n", "[model]\ntemperature = 3\n", "`temperature` is out of range", "3\n", ""),
    mistake("[model]\n", "[model]\nparameters = 3\n", "`parameters` is an integer", "3\n", ""),
    mistake(
        "[model]\n",
        "[model]\nparameters = { top_p = inf }\n",
        "`top_p` is out of range",
        "inf",
        "",
    ),
    mistake(
        "[model]\n",
        "[model]\nparameters.max_tokens = 30\n",
        "`max_tokens` cannot be in [model.parameters]",
        "30\n",
        "set `max_output_tokens` in [model]",
    ),
    mistake(
        "[model]\n",
        "[model]\nparameters = { seed = 1, n = 2 }\n",
        "`n` cannot be in [model.parameters]",
        "2 }",
        "hqdl reads only one answer per request, but the endpoint would bill all of them",
    ),
    mistake(
        "[model]\n",
        "[model]\nparameters.temperature = 0.5\n",
        "`temperature` cannot be in [model.parameters]",
        "0.5\n",
        "set `temperature` in [model]",
    ),
    mistake(
        "[model]\n",
        "[model.cheap]\nname = \"x\"\nparameters.stream = true\n[model]\n",
        "`stream` cannot be in [model.cheap.parameters]",
        "true\n[model]",
        "hqdl reads the answers, so it chooses their form; see `format` of an expansion",
    ),
    mistake(
        "[model]\n",
        "[model]\nparameters.search = [{ api_key = \"abc\" }]\n",
        "`search` holds a key",
        "[{",
        "name its environment variable in `api_key_env`; if this is a real key, revoke it",
    ),
    mistake(
        "[model]\n",
        "[limits]\nbudget_usd = 1\n[model]\nprice = { input = 1, output = 1 }\n\
         parameters.web_search_options = {}\n",
        "hqdl cannot keep a budget with `web_search_options`",
        "{}\n",
        "remove it, or limit tokens with `budget_tokens` instead",
    ),
    mistake(
        "[model]\n",
        "[model]\nreuse = \"any-model\"\nparameters_identity = true\n",
        "`parameters_identity` has no effect",
        "true\n",
        "remove one of the two",
    ),
    mistake(
        "[model]\n",
        "[model]\nprice = { input = -1.0, output = 1.0 }\n",
        "`input` is not a valid price",
        "-1.0",
        "",
    ),
    mistake(
        "[model]\n",
        "[model]\nprice = { input = 1.0, output = 1.0, batch = -0.5 }\n",
        "`batch` is not a valid multiplier",
        "-0.5",
        "",
    ),
    mistake(
        "[model]\n",
        "[model]\nbase_url = \"localhost:1\"\n",
        "`localhost:1` is not the URL of an endpoint",
        "\"localhost:1\"",
        "",
    ),
    mistake(
        "[model]\n",
        "[model]\napi_key_env = \"sk-proj-12345\"\n",
        "`api_key_env` is not the name of an environment variable",
        "\"sk-proj",
        "never write a key into a spec; if this is one, revoke it",
    ),
    mistake(
        "name = \"test\"\n",
        "",
        "the model has no name",
        "[model]",
        "set `name` in [model], or pass --model",
    ),
    mistake(
        "[model]\n",
        "[model]\nprovider = \"replay\"\n",
        "provider \"replay\" has no recordings",
        "\"replay\"",
        "name files in `recordings`, or pass --recordings FILE",
    ),
    mistake(
        "[model]\n",
        "[model]\nprovider = \"replay\"\nrecordings = [\"no.jsonl\"]\n",
        "the recording specs/no.jsonl does not exist",
        "\"no.jsonl\"",
        "",
    ),
    // Names.
    mistake(
        "source = \"superhero\"",
        "source = \"superheroes\"",
        "the database has no table `superheroes`",
        "\"superheroes\"",
        "did you mean `superhero`?",
    ),
    mistake(
        "\"full_name\"]",
        "\"fullname\"]",
        "table `superhero` has no column `fullname`",
        "\"fullname\"",
        "did you mean `full_name`?",
    ),
    mistake(
        "\"height_cm\"",
        "\"weight\"",
        "table `superhero` has no column `weight`",
        "\"weight\"",
        "",
    ),
    mistake(
        "source = \"superhero\"",
        "source = \"SELECT superhero_name, height_cm FROM superhero\"",
        "this SELECT has no column `full_name`",
        "\"full_name\"",
        "",
    ),
    mistake(
        "source = \"superhero\"",
        "source = \"SELECT * FORM superhero\"",
        "the database rejects the SELECT of this source",
        "\"SELECT * FORM",
        "write one SELECT that runs in the database's own shell",
    ),
    mistake(
        "key = [\"superhero_name\", \"full_name\"]",
        "key = []",
        "the key of the expansion is empty",
        "[]",
        "",
    ),
    mistake(
        "\"full_name\"]",
        "\"SUPERHERO_NAME\"]",
        "`SUPERHERO_NAME` occurs twice in `key`",
        "\"SUPERHERO_NAME\"",
        "",
    ),
    mistake(
        "name = \"powers\"",
        "name = \"Publisher_Name\"",
        "column `Publisher_Name` occurs twice in `llm`",
        "\"Publisher_Name\"",
        "",
    ),
    mistake(
        "name = \"powers\"",
        "name = \"Full_Name\"",
        "column `Full_Name` has the same name as a key column",
        "\"Full_Name\"",
        "",
    ),
    mistake(
        "column = \"power_name\" }",
        "column = \"full_name\" }",
        "`full_name` has the same name as a key column",
        "{ table = \"llm_power\"",
        "",
    ),
    mistake(
        "name = \"llm\"",
        "name = \"Publisher\"",
        "the database has a table `Publisher` that hqdl did not make",
        "\"Publisher\"",
        "choose another name; hqdl never changes your own tables",
    ),
    mistake(
        "table = \"llm_power\"",
        "table = \"LLM\"",
        "the spec defines the table `LLM` twice",
        "{ table = \"LLM\"",
        "rename one of the two",
    ),
    mistake(
        "table = \"llm_power\"",
        "table = \"superpower\"",
        "the database has a table `superpower` that hqdl did not make",
        "{ table = \"superpower\"",
        "choose another name; hqdl never changes your own tables",
    ),
    mistake(
        "name = \"llm\"",
        "name = \"hqdl_cell\"",
        "the name `hqdl_cell` is reserved",
        "\"hqdl_cell\"",
        "",
    ),
    // Value lists.
    mistake(
        "{ sql = \"SELECT publisher_name FROM publisher\" }",
        "[]",
        "the value list of `publisher_name` is empty",
        "[]",
        "",
    ),
    mistake(
        "SELECT publisher_name FROM publisher\"",
        "SELECT x FROM empty\"",
        "the value list of `publisher_name` is empty",
        "{ sql = \"SELECT x",
        "",
    ),
    mistake(
        "SELECT publisher_name FROM publisher\"",
        "SELECT * FROM film\"",
        "a value list is one column, but this SELECT returns 4",
        "\"SELECT * FROM film",
        "",
    ),
    mistake(
        "SELECT publisher_name FROM publisher\"",
        "SELECT name FROM publisher\"",
        "the database rejects the SELECT of this value list: no such column: name",
        "\"SELECT name",
        "write one SELECT that runs in the database's own shell",
    ),
    mistake(
        "SELECT publisher_name FROM publisher\"",
        "DELETE FROM publisher RETURNING publisher_name\"",
        "the database rejects the SELECT of this value list: it is not a SELECT, but would change the database",
        "\"DELETE",
        "write one SELECT that runs in the database's own shell",
    ),
    mistake(
        "name = \"publisher_name\"\nvalues = { sql = \"SELECT publisher_name FROM publisher\" }",
        "name = \"publisher_name\"\ntype = \"integer\"\nvalues = [1, \"two\"]",
        "the value list of `publisher_name` contains \"two\", which is not a valid integer",
        "[1, \"two\"]",
        "",
    ),
    mistake(
        "name = \"publisher_name\"\nvalues = { sql = \"SELECT publisher_name FROM publisher\" }",
        "name = \"publisher_name\"\ntype = \"integer\"\nvalues = { sql = \"SELECT n FROM publisher\" }",
        "the database rejects the SELECT of this value list",
        "\"SELECT n ",
        "write one SELECT that runs in the database's own shell",
    ),
    mistake(
        "values = { sql = \"SELECT publisher_name FROM publisher\" }",
        "open = true",
        "column `publisher_name` is `open` but has no `values`",
        "true",
        "",
    ),
    mistake(
        "{ sql = \"SELECT publisher_name FROM publisher\" }",
        "{ open = true }",
        "`values` has neither `sql` nor `list`",
        "{ open",
        "",
    ),
    // Shots.
    mistake(
        "context =",
        "shots = [{ superhero_name = \"Batman\", full_name = \"Bruce Wayne\", publisher_name = \"Detective\" }]\ncontext =",
        "a shot has an invalid value: `publisher_name` cannot be \"Detective\"",
        "\"Detective\"",
        "shots must be valid answers, because the model imitates them",
    ),
    mistake(
        "context =",
        "shots = [{ superhero_name = \"Batman\", publisher = \"DC Comics\", powers = [\"Flight\"] }]\ncontext =",
        "the shot has `publisher`, which is not in the key, the context or the columns",
        "\"DC Comics\"",
        "",
    ),
    mistake(
        "context =",
        "shots = [{ publisher_name = \"DC Comics\" }]\ncontext =",
        "a shot needs the key columns",
        "{ publisher_name = \"DC",
        "",
    ),
    mistake(
        "context =",
        "shots = { sql = \"SELECT * FROM heros\" }\ncontext =",
        "the database rejects the SELECT of the shots: no such table: heros",
        "\"SELECT * FROM heros",
        "write one SELECT that runs in the database's own shell",
    ),
    // Questions.
    mistake(
        "\"Who is the publisher?\"",
        "\"Who is {value}?\"",
        "the question \"Who is {value}?\" has a placeholder but no SQL that uses it",
        "\"Who is {value}?\"",
        "write { ask = \"…\", sql = \"…\" }",
    ),
    mistake(
        "publisher {value}?",
        "publisher {value} since {date}?",
        "{date} occurs in the question but not in its SQL",
        "{ ask = \"Is the publisher",
        "write the placeholder in the SQL, or remove it from the question",
    ),
    mistake(
        "sql = \"publisher_name = {value}\"",
        "sql = \"publisher_name = {value} OR {number} > 1\"",
        "{number} occurs in the SQL but not in the question",
        "{ ask = \"Is the publisher",
        "write the placeholder in the question, or remove it from the SQL",
    ),
    mistake(
        "sql = \"publisher_name = {value}\"",
        "sql = \"publisher = {value}\"",
        "the database rejects the SQL of \"Is the publisher {value}?\": no such column: publisher",
        "{ ask = \"Is the publisher",
        "write a condition over the columns of the expansion",
    ),
    mistake(
        "sql = \"EXISTS {value}\"",
        "sql = \"EXISTS {value} AND\"",
        "the database rejects the SQL of \"Does the hero have {value}?\"",
        "{ ask = \"Does the hero",
        "write a condition over the columns of the expansion",
    ),
    mistake(
        "questions = [{ ask = \"Does the hero have {value}?\", sql = \"EXISTS {value}\" }]",
        "questions = [\"who is the PUBLISHER\"]",
        "belongs to `publisher_name` already",
        "\"who is the PUBLISHER\"",
        "",
    ),
    // Sources.
    mistake("source = \"superhero\"", "source = []", "expansion `llm` has no source", "[]", ""),
    mistake(
        "source = \"superhero\"",
        "source = [{ name = \"s\" }]",
        "a source needs `table` or `select`",
        "{ name = \"s\" }",
        "",
    ),
    mistake(
        "source = \"superhero\"",
        "source = [{ table = \"superhero\", select = \"SELECT 1\" }]",
        "this source has both `table` and `select`",
        "{ table = \"superhero\"",
        "remove `table` or `select`",
    ),
    mistake(
        "source = \"superhero\"",
        "source = [{ table = \"superhero\", columns = [\"publisher_name\", \"power\"] }]",
        "`llm` has no column `power`",
        "\"power\"]",
        "did you mean `powers`?",
    ),
    mistake(
        "source = \"superhero\"",
        "source = [{ table = \"superhero\", columns = [\"publisher_name\"] }]",
        "no source fills column `powers`",
        "\"powers\"",
        "add it to the `columns` of a source",
    ),
    mistake(
        "context =",
        "rows_per_request = 0\ncontext =",
        "`rows_per_request` is 0",
        "0\ncontext",
        "",
    ),
];

#[test]
fn each_mistake_is_reported_with_its_location() {
    let fixture = Fixture::new();
    for m in MISTAKES {
        assert_eq!(GOOD.matches(m.from).count().min(1), 1, "{:?}", m.from);
        let toml = GOOD.replacen(m.from, m.to, 1);
        let problems = fixture.spec_problems(&toml);
        let (found, place) = find_problem(&problems, m.message);
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(place, position_of(&toml, m.place), "{}", problems.render(false));
        let help = found.help.as_deref().unwrap_or_default();
        if m.help.is_empty() {
            let has_next_step = !(help.is_empty() && found.label.is_empty());
            assert!(has_next_step, "{}", problems.render(false));
        } else {
            assert_eq!(help, m.help, "{}", m.message);
        }
    }
}

/// Mistakes without consequences are reported alone.
#[test]
fn no_mistake_is_reported_twice() {
    let fixture = Fixture::new();
    let follows = [
        // Without a key or a source, the rest is still checked.
        "`key` is a string",
        "this SELECT has no column `full_name`",
        "`type` cannot be \"txt\"",
        "occurs twice in",
        // Nor is the column filled that the name was meant for.
        "`llm` has no column `power`",
    ];
    for m in MISTAKES.iter().filter(|m| !follows.contains(&m.message)) {
        let toml = GOOD.replacen(m.from, m.to, 1);
        let problems = fixture.spec_problems(&toml);
        let errors = problems.problems.iter().filter(|p| p.severity == Severity::Error).count();
        assert_eq!(errors, 1, "{}:\n{}", m.message, problems.render(false));
    }
}

const TWELVE: &str = r#"[database]
pth = "heroes.sqlite"

[model]
name = "test"
temprature = 0.0
base_url = "localhost"

[limits]
concurrency = "many"
budget_usd = -1

[[expansion]]
name = "publisher"
source = "superhero"
key = ["superhero_name", "ful_name"]
context = ["weight"]
shots = [ { superhero_name = "Ä Batman", publisher_name = "Detective" } ]

[[expansion.column]]
name = "publisher_name"
values = { sql = "SELECT publisher_name FROM publisher" }
questions = [{ ask = "Is the publisher {value}?", sql = "publisher = {value}" }]

[[expansion.column]]
name = "empty"
values = []

[[expansion.column]]
name = "powers"
type = "number"
many = { table = "publisher", column = "power_name" }
"#;

#[test]
fn a_dozen_mistakes_are_reported_together_in_text_order() {
    let problems = Fixture::new().spec_problems(TWELVE);
    let expected = [
        ("unknown field `pth` in [database]", position_of(TWELVE, "pth")),
        ("unknown field `temprature` in [model]", position_of(TWELVE, "temprature")),
        ("`localhost` is not the URL of an endpoint", position_of(TWELVE, "\"localhost\"")),
        ("`concurrency` is a string", position_of(TWELVE, "\"many\"")),
        ("`budget_usd` is not a valid amount", position_of(TWELVE, "-1")),
        (
            "the database has a table `publisher` that hqdl did not make",
            position_of(TWELVE, "\"publisher\"\nsource"),
        ),
        ("table `superhero` has no column `ful_name`", position_of(TWELVE, "\"ful_name\"")),
        ("table `superhero` has no column `weight`", position_of(TWELVE, "\"weight\"")),
        (
            "a shot has an invalid value: `publisher_name` cannot be \"Detective\"",
            position_of(TWELVE, "\"Detective\""),
        ),
        (
            "the database rejects the SQL of \"Is the publisher {value}?\": no such column: publisher",
            position_of(TWELVE, "{ ask"),
        ),
        ("the value list of `empty` is empty", position_of(TWELVE, "[]")),
        ("`type` cannot be \"number\"", position_of(TWELVE, "\"number\"")),
        (
            "the spec defines the table `publisher` twice",
            position_of(TWELVE, "{ table = \"publisher\""),
        ),
    ];
    let told: Vec<(&str, _)> = problems
        .problems
        .iter()
        .map(|p| (p.message.as_str(), problems.find_line_column(p)))
        .collect();
    assert_eq!(told, expected, "{}", problems.render(false));
    let json = problems.to_json();
    assert_eq!(json.as_array().unwrap().len(), expected.len());
    assert_eq!(json[0]["line"], 2);
    assert_eq!(json[0]["column"], 1);
    assert_eq!(json[0]["severity"], "error");
    assert_eq!(json[0]["file"], "specs/x.toml");
    assert_eq!(json[0]["help"], "did you mean `path`?");
}

#[test]
fn a_rendered_problem_has_file_line_column_and_a_caret_under_it() {
    let rendered = Fixture::new().spec_problems(TWELVE).render(false);
    assert!(!rendered.contains('\u{1b}'), "colour where none was asked for");
    for (message, place, source, caret) in [
        (
            "error: unknown field `temprature` in [model]",
            "specs/x.toml:6:1",
            "temprature = 0.0",
            "^^^^^^^^^^",
        ),
        (
            "error: table `superhero` has no column `ful_name`",
            "specs/x.toml:16:26",
            "key = [\"superhero_name\", \"ful_name\"]",
            "                         ^^^^^^^^^^",
        ),
        (
            "error: a shot has an invalid value: `publisher_name` cannot be \"Detective\"",
            "specs/x.toml:18:59",
            "shots = [ { superhero_name = \"Ä Batman\", publisher_name = \"Detective\" } ]",
            "                                                          ^^^^^^^^^^^",
        ),
    ] {
        let block = rendered
            .split("\n\n")
            .find(|b| b.starts_with(message))
            .unwrap_or_else(|| panic!("no {message} in\n{rendered}"));
        assert!(block.contains(place), "{block}");
        let lines: Vec<&str> = block.lines().collect();
        let at =
            lines.iter().position(|l| l.ends_with(source)).unwrap_or_else(|| panic!("{block}"));
        let indent = lines[at].chars().count() - source.chars().count();
        let below: String = lines[at + 1].chars().skip(indent).collect();
        assert!(below.starts_with(caret), "{block}");
    }
    assert!(rendered.contains("help: did you mean `temperature`?"));
    assert!(
        rendered.contains("expected true or false") || rendered.contains("expected a whole number")
    );
}

#[test]
fn syntax_errors_are_reported_with_their_location() {
    for (toml, place) in [
        ("[database]\npath = \n", (2, 8)),
        ("[database\npath = 'x'\n", (1, 10)),
        ("[database]\npath = 'x'\npath = 'y'\n", (3, 1)),
        ("[database]\npath = 'x\n", (2, 8)),
    ] {
        let problems = UncheckedSpec::parse(Path::new("specs/x.toml"), toml.to_owned())
            .map(|_| ())
            .expect_err(toml);
        let first = &problems.problems[0];
        let (line, _) = problems.find_line_column(first).unwrap();
        assert_eq!(line, place.0, "{}", problems.render(false));
        assert!(first.message.contains("not TOML") && first.help.is_some());
        assert!(problems.render(false).contains(&format!("specs/x.toml:{}:", place.0)));
    }
    // Every syntax error is reported.
    let problems = UncheckedSpec::parse(
        Path::new("specs/x.toml"),
        "[database]\npath = \n[model]\nname = \n".to_owned(),
    )
    .map(|_| ())
    .unwrap_err();
    let lines: Vec<usize> =
        problems.problems.iter().map(|p| problems.find_line_column(p).unwrap().0).collect();
    assert_eq!(lines, [2, 4]);
}

#[test]
fn an_empty_spec_is_reported_with_what_is_missing() {
    let problems = Fixture::new().spec_problems("");
    find_problem(&problems, "the spec has no `database`");
    find_problem(&problems, "the model has no name");
    find_problem(&problems, "the spec has no expansion");
    assert_eq!(problems.problems.len(), 3, "{}", problems.render(false));
    assert!(problems.render(true).contains("\u{1b}["));
}

#[test]
fn a_key_pasted_into_api_key_env_is_not_repeated_in_the_message() {
    let toml = GOOD.replace("[model]\n", "[model]\napi_key_env = \"sk-proj-12345\"\n");
    let problems = Fixture::new().spec_problems(&toml);
    assert!(!problems.to_json().to_string().contains("12345"));
    assert!(!problems.to_string().contains("12345"));
    assert!(!problems.render(false).contains("12345"), "{}", problems.render(false));
    let good = GOOD.replace("[model]\n", "[model]\napi_key_env = \"OPENAI_API_KEY\"\n");
    assert!(Fixture::new().check_spec(&good).is_ok());
}

#[test]
fn a_shot_may_be_written_in_another_case_than_its_columns() {
    let toml = GOOD.replace(
        "context =",
        "shots = [{ Superhero_Name = \"Batman\", FULL_NAME = \"Bruce Wayne\", Publisher_name = \"dc comics\", Power_Name = [\"stamina\"] }]\ncontext =",
    );
    let (spec, _) = Fixture::new().check_spec(&toml).unwrap();
    let shot = &spec.expansions[0].shots[0];
    assert_eq!(shot.key, ["Batman".into(), "Bruce Wayne".into()]);
    assert_eq!(shot.cells[0].to_json(), "DC Comics");
    assert_eq!(shot.cells[1].to_json(), serde_json::json!(["Stamina"]));
}

#[test]
fn a_shot_without_columns_is_a_warning() {
    let toml = GOOD.replace("context =", "shots = [{ superhero_name = \"Batman\" }]\ncontext =");
    let (_, warnings) = Fixture::new().check_spec(&toml).unwrap();
    let (found, place) = find_problem(&warnings, "a shot shows no column");
    assert_eq!(found.severity, Severity::Warning);
    assert_eq!(place, position_of(&toml, "{ superhero_name"));
}

#[test]
fn two_expansions_cannot_create_the_same_table() {
    let second = GOOD.split("[[expansion]]").nth(1).unwrap();
    let toml = format!(
        "{GOOD}[[expansion]]{}",
        second
            .replace("\"llm_power\"", "\"other\"")
            .replace("publisher?\"", "maker?\"")
            .replace("publisher {value}?", "maker {value}?")
            .replace("hero have", "hero own")
    );
    let problems = Fixture::new().spec_problems(&toml);
    let (found, place) = find_problem(&problems, "the spec defines the table `llm` twice");
    let later = position_of(&toml[GOOD.len()..], "\"llm\"").unwrap();
    let lines = GOOD.matches('\n').count();
    assert_eq!(place, Some((later.0 + lines, later.1)));
    assert_eq!(found.help.as_deref(), Some("rename one of the two"));
    assert_eq!(problems.problems.len(), 1, "{}", problems.render(false));
}

#[test]
fn a_table_that_hqdl_created_can_be_recreated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("CREATE TABLE superhero (superhero_name, full_name, height_cm); CREATE TABLE publisher (publisher_name); INSERT INTO publisher VALUES ('DC Comics'); CREATE TABLE superpower (power_name); INSERT INTO superpower VALUES ('Flight'); CREATE TABLE llm (x);")
        .unwrap();
    let check = |draft: &str| {
        let draft = UncheckedSpec::parse(Path::new("specs/x.toml"), draft.to_owned()).unwrap();
        draft.check(&Database::open(&path).unwrap()).map(|_| ())
    };
    find_problem(&check(GOOD).unwrap_err(), "that hqdl did not make");
    hqdl_database::migrate::migrate_database(&connection).unwrap();
    connection.execute("INSERT INTO hqdl_object (name, type) VALUES ('llm', 'table')", []).unwrap();
    assert_eq!(check(GOOD), Ok(()));
}

#[test]
fn several_sources_fill_several_columns() {
    let toml = GOOD.replace("context = [\"height_cm\"]\n", "").replace(
        "source = \"superhero\"",
        "source = [{ table = \"superhero\", columns = [\"publisher_name\"] }, { name = \"films\", select = \"SELECT k1 AS superhero_name, k2 AS full_name FROM film\", columns = [\"POWERS\"] }]",
    );
    let (spec, _) = Fixture::new().check_spec(&toml).unwrap();
    let sources = &spec.expansions[0].sources;
    assert_eq!(sources[0].name.as_deref(), Some("superhero"));
    assert_eq!(sources[0].columns, [0]);
    assert_eq!(sources[1].name.as_deref(), Some("films"));
    assert_eq!(sources[1].columns, [1]);
    // Declared types are used only if all sources agree.
    assert_eq!(spec.expansions[0].key_types, [None, None]);
}

#[test]
fn a_missing_spec_is_reported() {
    let error = UncheckedSpec::read(Path::new("no/such/spec.toml")).unwrap_err();
    assert!(matches!(error, ReadError::File { .. }));
    assert!(error.to_string().starts_with("cannot read spec no/such/spec.toml: "));
}

#[test]
fn secrets_are_masked_in_any_text() {
    for (text, shown) in [
        ("key = \"sk-proj-12345\"", "key = \"*************\""),
        (
            "url = \"postgres://u:a b'@c@h/db?x=y\" # z",
            "url = \"postgres://u:******@h/db?***\" # z",
        ),
        ("url = 'postgres://u:a\"b@h/db'\r\n", "url = 'postgres://u:***@h/db'\r\n"),
        ("url = \"postgres://u:a\\\"b@h\"", "url = \"postgres://u:****@h\""),
        ("url = \"postgres://u:a?b@h", "url = \"postgres://u:***@h"),
        (
            "# https://u:é@h/v1 and https://h:80/?k=v\n",
            "# https://u:**@h/v1 and https://h:80/?***\n",
        ),
        ("about = \"see https://h:80/x\", me@x.org", "about = \"see https://h:80/x\", me@x.org"),
    ] {
        assert_eq!(hqdl_spec::mask_secrets(text), shown);
        assert_eq!(hqdl_spec::mask_secrets(text).len(), text.len());
    }
    let many = "a://b ".repeat(100_000);
    assert_eq!(hqdl_spec::mask_secrets(&many), many);
    // A text that is not TOML is shown with the problem.
    let wrong = "[model\napi_key = \"abcdefgh\"\nurl = \"postgres://u:word@h/db\"\n";
    let problems = UncheckedSpec::parse(Path::new("x.toml"), wrong.to_owned()).unwrap_err();
    assert!(
        !problems.text.contains("abcdefgh") && !problems.text.contains("word"),
        "{}",
        problems.text
    );
}
