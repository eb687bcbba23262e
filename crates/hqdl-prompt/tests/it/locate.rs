//! The text of each cell in a completion: its position in every form of an answer.

use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::completion::FinishReason;
use hqdl_prompt::{CellPositions, PromptFrame, Question};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Expansion, Format};
use hqdl_values::Row;
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

use hqdl_testkit::fixture::Fixture;

const TOWNS: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "SELECT superhero_name AS town FROM superhero"
key = ["town"]
[[expansion.column]]
name = "country"
[[expansion.column]]
name = "founded"
type = "integer"
[[expansion.column]]
name = "rivers"
many = { table = "llm_river", column = "river" }
"#;

/// Returns the positions of the cells in a completion about these towns.
fn locate(
    expansion: &Expansion,
    towns: &[&str],
    format: Format,
    content: &str,
) -> Vec<CellPositions> {
    let keys: Vec<Vec<Value>> = towns.iter().map(|town| vec![Value::from(*town)]).collect();
    let request_keys = RequestKeys::new(keys.iter().map(Vec::as_slice));
    let checkers: Vec<Checker> = expansion.columns.iter().map(Checker::new).collect();
    let checkers: Vec<&Checker> = checkers.iter().collect();
    let all: Vec<usize> = (0..expansion.columns.len()).collect();
    let frame = PromptFrame::new(expansion, &all, format);
    let names = ["town".to_owned()];
    let finish = FinishReason::Stop;
    let outcomes = frame.parse_answer(content, finish, &request_keys, &names, &checkers);
    frame.locate_cells(content, &outcomes, &request_keys, &names, &checkers)
}

/// Returns the text of each cell that is located in a completion about these towns.
fn located(expansion: &Expansion, towns: &[&str], format: Format, content: &str) -> Vec<Json> {
    let rows = locate(expansion, towns, format, content);
    let text = |cell: Option<std::ops::Range<usize>>| cell.map(|range| &content[range]);
    rows.into_iter().map(|row| row.into_iter().map(text).collect()).collect()
}

fn towns() -> Expansion {
    Fixture::new().only_expansion(TOWNS)
}

#[test]
fn cells_are_located_in_lines() {
    let expansion = towns();
    let read = |content: &str| located(&expansion, &["Bonn", "Genève"], Format::Csv, content);
    let rows = [json!(["Germany", "11", "Rhine"]), json!(["Switzerland", "?", "Rhône|Arve"])];
    for content in [
        "1 Bonn,Germany,11,Rhine\n2 Genève,Switzerland,?,Rhône|Arve\n",
        "2 Genève, Switzerland , ?, Rhône|Arve\r\n1 Bonn, Germany,11,Rhine",
        "```csv\nrow,country,founded,rivers\n1 Bonn,Germany,11,Rhine\n2 Genève,Switzerland,?,Rhône|Arve\n```",
        "<think>1 Bonn,France,12,Rhine</think>1 Bonn,\"Germany\",11,\"Rhine\"\n2 Genève,Switzerland,?,\"Rhône|Arve\"",
    ] {
        assert_eq!(read(content), rows, "{content}");
    }
    // Quoted values with separators, quotes and line breaks.
    assert_eq!(
        read("1 Bonn,\"A \"\"B\"\", C\",11,Rhine\n2 Genève,\"over\ntwo lines\",12,Arve\n"),
        [json!(["A \"\"B\"\", C", "11", "Rhine"]), json!(["over\ntwo lines", "12", "Arve"])]
    );
    // A row without an answer has no position.
    assert_eq!(read("1 Bonn,Germany,11,Rhine\n"), [rows[0].clone(), json!([null, null, null])]);
}

#[test]
fn cells_are_located_in_json() {
    let expansion = towns();
    let read = |content: &str| located(&expansion, &["Bonn", "Genève"], Format::Json, content);
    let rows = [
        json!(["Germany", "11", "\"Rhine\""]),
        json!([r#"Suisse \u00e0 \"l'est\""#, "null", "[]"]),
    ];
    let answer = r#"{"rows":[{"row":"1 Bonn","cells":{"country":"Germany","founded":11,"rivers":["Rhine"]}},
        {"row":"2 Genève","cells":{"rivers":[],"country":"Suisse \u00e0 \"l'est\"","founded":null}}]}"#;
    for content in [
        answer.to_owned(),
        format!("Here it is: {answer}."),
        format!("```json\n{answer}\n```"),
        // The second row is whole, although the document is not.
        answer.trim_end_matches("]}").to_owned(),
    ] {
        assert_eq!(read(&content), rows, "{content}");
    }
    // The same cells in two rows are not confused.
    let same = r#"{"rows":[{"row":"2 Genève","cells":{"country":"X","founded":1,"rivers":["a"]}},{"row":"1 Bonn","cells":{"country":"X","founded":1,"rivers":["a"]}}]}"#;
    let found = locate(&expansion, &["Bonn", "Genève"], Format::Json, same);
    assert!(found[1][0].clone().unwrap().start < found[0][0].clone().unwrap().start);
}

#[test]
fn cells_of_one_row_and_of_questions_are_located() {
    let expansion = towns();
    let content = r#"{"country": "Germany", "founded": 11, "rivers": ["Rhine", "Sieg"]}"#;
    assert_eq!(
        located(&expansion, &["Bonn"], Format::Json, content),
        [json!(["Germany", "11", "\"Rhine\", \"Sieg\""])]
    );
    // A live question: one value, several values in lines, and several texts.
    let question = |kind: &str| {
        let toml = format!(
            "{}[[expansion.column]]\nname = \"it\"\ntype = \"{kind}\"\n",
            TOWNS.split("[[expansion.column]]").next().unwrap()
        );
        let mut expansion = Fixture::new().only_expansion(&toml);
        expansion.task = hqdl_spec::Task::Value;
        expansion
    };
    let one = located(&question("text"), &["Bonn"], Format::Json, r#"{"answer": "a \u00fc"}"#);
    assert_eq!(one, [json!([r"a \u00fc"])]);
    let lines = r#"{"rows": ["1 Bonn,true", "2 Gen\u00e8ve,false"]}"#;
    let found = located(&question("boolean"), &["Bonn", "Genève"], Format::Json, lines);
    assert_eq!(found, [json!(["true"]), json!(["false"])]);
    let arrays = r#"{"rows": [["1 Bonn", "a city"], ["2 Genève", null]]}"#;
    let found = located(&question("text"), &["Bonn", "Genève"], Format::Json, arrays);
    assert_eq!(found, [json!(["a city"]), json!(["null"])]);
}

/// Every answer that a cooperative model writes is located whole.
#[test]
fn written_answers_are_located() {
    let expansion = towns();
    for format in [Format::Csv, Format::Json] {
        let frame = PromptFrame::new(&expansion, &[0, 1, 2], format);
        let names = ["Bonn", "Genève", "St. John's, \"the\" town", "Ōsaka"];
        let rows = names.map(|town| Row { key: vec![Value::from(town)], context: Vec::new() });
        let prompt = frame.build_prompt(rows.iter());
        let question = Question::parse(&prompt.system, &prompt.user).unwrap();
        let content = question.format_answer(|row, column| match column.name.as_str() {
            "country" => json!(format!("land of {}, \"x\"", row.key[0].as_str().unwrap())),
            "founded" => json!(1200),
            _ => json!(["a|b", "ü"]),
        });
        let found = located(&expansion, &names, format, &content);
        assert!(
            found.iter().all(|row| !row[0].is_null() && row[1] == "1200" && !row[2].is_null()),
            "{content}: {found:?}"
        );
    }
}
