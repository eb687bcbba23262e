//! Tests of parsing completions in both formats: what models write, how each row is read, and that
//! no row affects another.

use std::sync::Arc;

use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::completion::FinishReason;
use hqdl_prompt::{ExpansionKeys, KeyHashes, PromptFrame, Question, RowOutcome, completion};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Expansion, Format};
use hqdl_values::Row;
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::value::Value;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use hqdl_testkit::fixture::{Fixture, malformed_answers, random_runner};

pub const HEROES: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "superhero"
key = ["superhero_name", "full_name"]
[[expansion.column]]
name = "publisher_name"
values = { sql = "SELECT publisher_name FROM publisher" }
[[expansion.column]]
name = "first_year"
type = "integer"
[[expansion.column]]
name = "powers"
many = { table = "llm_power", column = "power_name" }
values = { sql = "SELECT power_name FROM superpower" }
"#;

pub const NOTES: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "SELECT superhero_name AS title FROM superhero"
key = ["title"]
[[expansion.column]]
name = "note"
"#;

/// A request: an expansion and the rows asked about.
pub struct Asked {
    expansion: Expansion,
    rows: Vec<Vec<Value>>,
    /// Keys of the expansion, if a misspelt key may be accepted.
    known: Option<Arc<ExpansionKeys>>,
}

impl Asked {
    pub fn new(toml: &str, rows: &[&[Option<&str>]]) -> Self {
        Self::of(
            Fixture::new().only_expansion(toml),
            rows.iter()
                .map(|r| r.iter().map(|p| p.map_or(Value::Null, Value::from)).collect())
                .collect(),
        )
    }

    fn of(expansion: Expansion, rows: Vec<Vec<Value>>) -> Self {
        Self { expansion, rows, known: None }
    }

    /// Returns a request about three heroes.
    pub fn three() -> Self {
        Self::new(
            HEROES,
            &[
                &[Some("3-D Man"), Some("Charles Chandler")],
                &[Some("Batman"), Some("Bruce Wayne")],
                &[Some("Abe Sapien"), None],
            ],
        )
    }

    pub fn one(name: &str, full: Option<&str>) -> Self {
        Self::new(HEROES, &[&[Some(name), full]])
    }

    /// Returns the same request, in an expansion that also has these keys.
    fn among(self, others: &[&[&str]]) -> Self {
        let mut known = KeyHashes::default();
        self.rows.iter().for_each(|key| known.insert(key));
        for key in others {
            known.insert(&key.iter().map(|part| Value::from(*part)).collect::<Vec<_>>());
        }
        Self { known: Some(Arc::new(known.into())), ..self }
    }

    fn outcomes(&self, content: &str, truncated: bool) -> Vec<RowOutcome> {
        self.finished(content, if truncated { FinishReason::Truncated } else { FinishReason::Stop })
    }

    pub fn finished(&self, content: &str, finish: FinishReason) -> Vec<RowOutcome> {
        let columns: Vec<String> = self.expansion.columns.iter().map(|c| c.name.clone()).collect();
        let checkers: Vec<Checker> = self.expansion.columns.iter().map(Checker::new).collect();
        let checkers: Vec<&Checker> = checkers.iter().collect();
        let keys = RequestKeys::new(self.rows.iter().map(Vec::as_slice));
        let keys = keys.with_known_keys(self.known.clone());
        completion::parse_completion(
            content,
            finish,
            &keys,
            self.expansion.key.names(),
            &columns,
            &checkers,
        )
    }

    /// Returns each row in short form: its cells as JSON, or `failed: reason`.
    pub fn read(&self, content: &str) -> Vec<Json> {
        self.outcomes(content, false).iter().map(short).collect()
    }

    pub fn notes(&self, content: &str) -> String {
        match &self.outcomes(content, false)[0] {
            RowOutcome::Answered(cells) => {
                cells.iter().filter_map(|c| c.repair.clone()).collect::<Vec<_>>().join(" / ")
            }
            RowOutcome::Failed { reason: why, .. } => panic!("{why}"),
        }
    }

    /// Returns the label that a prompt gives a row.
    pub fn label(&self, row: usize) -> String {
        let question = self.question(Format::Json);
        let answer = question.format_answer(|_, _| Json::Null);
        let answer: Json = serde_json::from_str(&answer).unwrap();
        answer["rows"][row]["row"].as_str().unwrap().to_owned()
    }

    fn question(&self, format: Format) -> Question {
        let all: Vec<usize> = (0..self.expansion.columns.len()).collect();
        let rows: Vec<Row> =
            self.rows.iter().map(|key| Row { key: key.clone(), context: Vec::new() }).collect();
        let prompt = PromptFrame::for_table(&self.expansion, &all, format).build_prompt(&rows);
        Question::parse(&prompt.system, &prompt.user).expect("a prompt of ours")
    }
}

/// Formats an outcome as `[value, {"invalid": raw}, …]`, or as `"failed: reason"`.
pub fn short(outcome: &RowOutcome) -> Json {
    match outcome {
        RowOutcome::Answered(cells) => cells.iter().map(short_cell).collect(),
        RowOutcome::Failed { state, reason: why, .. } => format!("{}: {why}", state.name()).into(),
    }
}

fn short_cell(answer: &Answer) -> Json {
    match answer.state {
        State::Ok => answer.value.to_json(),
        state => {
            assert_eq!(answer.value, CellValue::Nothing, "a failure shows a value");
            json!({ state.name(): answer.raw })
        }
    }
}

pub fn man() -> Json {
    json!(["Marvel Comics", 1977, ["Agility", "Stamina"]])
}

pub fn bat() -> Json {
    json!(["DC Comics", 1939, ["Stamina"]])
}

pub fn abe() -> Json {
    json!(["Dark Horse Comics", 1993, []])
}

pub fn no_answer() -> Json {
    json!("invalid: no answer for this row")
}

pub const CSV: &str = "1,3-D Man,Charles Chandler,Marvel Comics,1977,Agility|Stamina\n\
                   2,Batman,Bruce Wayne,DC Comics,1939,Stamina\n\
                   3,Abe Sapien,,Dark Horse Comics,1993,none\n";

pub fn json_rows() -> Json {
    json!({"rows": [
        {"row": 1, "key": ["3-D Man", "Charles Chandler"], "cells": {"publisher_name": "Marvel Comics", "first_year": 1977, "powers": ["Agility", "Stamina"]}},
        {"row": 2, "key": ["Batman", "Bruce Wayne"], "cells": {"publisher_name": "DC Comics", "first_year": 1939, "powers": ["Stamina"]}},
        {"row": 3, "key": ["Abe Sapien", null], "cells": {"publisher_name": "Dark Horse Comics", "first_year": 1993, "powers": []}},
    ]})
}

/// Asserts how each of the three rows is read from a completion.
fn three(content: &str, rows: [Json; 3]) {
    assert_eq!(Asked::three().read(content), rows, "{content}");
}

#[test]
fn well_formed_answers_are_read_without_repair() {
    for content in [CSV.to_owned(), json_rows().to_string()] {
        three(&content, [man(), bat(), abe()]);
        for outcome in Asked::three().outcomes(&content, false) {
            let RowOutcome::Answered(cells) = outcome else { panic!("{content}") };
            assert!(cells.iter().all(|c| c.repair.is_none() && c.raw.is_none()), "{cells:?}");
        }
    }
    three(&serde_json::to_string_pretty(&json_rows()).unwrap(), [man(), bat(), abe()]);
    three(&CSV.replace('\n', "\r\n"), [man(), bat(), abe()]);
}

#[test]
fn truncated_csv_loses_its_last_line_only() {
    let cut_off = json!(
        "invalid: the reply was cut off before this row (`max_output_tokens`, or a broken connection)"
    );
    let cut = CSV.split("Dark Horse").next().unwrap();
    for cut in [cut.to_owned(), format!("{cut}Dark Horse Comics"), CSV.to_owned()] {
        let read: Vec<Json> = Asked::three().outcomes(&cut, true).iter().map(short).collect();
        assert_eq!(read, [man(), bat(), cut_off.clone()], "{cut}");
    }
    // Truncated inside a number: 19 must not be read as a year.
    let cut = "1,3-D Man,Charles Chandler,Marvel Comics,19";
    let read = Asked::three().outcomes(cut, true);
    assert!(
        read.iter()
            .all(|o| matches!(o, RowOutcome::Failed { state, .. } if *state == State::Invalid))
    );
}

#[test]
fn json_cut_anywhere_keeps_the_complete_rows() {
    let whole = json_rows().to_string();
    let starts: Vec<usize> = whole.match_indices("{\"row\"").map(|(at, _)| at).collect();
    for end in (0..whole.len()).filter(|e| whole.is_char_boundary(*e)) {
        let read = Asked::three().read(&whole[..end]);
        for (n, right) in [man(), bat(), abe()].into_iter().enumerate() {
            let next = starts.get(n + 1).map_or(whole.len() - 2, |s| s - 1);
            if end >= next {
                assert_eq!(read[n], right, "{}", &whole[..end]);
            } else {
                assert!(read[n].is_string(), "{} from {}", read[n], &whole[..end]);
            }
        }
    }
}

#[test]
fn garbage_is_not_a_row() {
    for garbage in [
        "asdf",
        "1",
        "1,2,3",
        ",,,,,,",
        "\"",
        "'",
        "{",
        "}",
        "[[[[",
        "{}",
        "[]",
        "null",
        "true",
        "42",
        "\u{0}\u{1}",
        "```",
        "``````",
        "{\"rows\":[]}",
        "{\"rows\":[1,2,3]}",
        "[{\"row\":1}]",
        "{\"error\":{\"message\":\"overloaded\"}}",
    ] {
        let read = Asked::three().read(garbage);
        assert!(
            read.iter().all(|r| r.as_str().is_some_and(|w| w.starts_with("invalid: "))),
            "{garbage:?} gave {read:?}"
        );
    }
}

#[test]
fn an_empty_completion_is_reported_as_empty() {
    for empty in ["", " ", "\n\n \t\n"] {
        three(empty, [(); 3].map(|()| json!("invalid: the completion is empty")));
    }
}

#[test]
fn prose_around_the_answer_is_ignored() {
    let json = json_rows().to_string();
    let pretty = serde_json::to_string_pretty(&json_rows()).unwrap();
    for body in [CSV, &json, &pretty] {
        three(
            &format!(
                "Sure! Here are the rows, as asked:\n\n{body}\n\nLet me know, if you need more."
            ),
            [man(), bat(), abe()],
        );
    }
}

#[test]
fn prose_around_pretty_json_with_a_single_key_column_is_ignored() {
    let asked = Asked::new(FILMS, &[&[Some("Jaws")], &[Some("Alien")]]);
    let answer = json!({"rows": [
        {"row": 1, "key": ["Jaws"], "cells": {"director": "Steven Spielberg", "year": 1975}},
        {"row": 2, "key": ["Alien"], "cells": {"director": "Ridley Scott", "year": 1979}},
    ]});
    let content = format!("Here you are:\n{}", serde_json::to_string_pretty(&answer).unwrap());
    assert_eq!(
        asked.read(&content),
        [json!(["Steven Spielberg", 1975]), json!(["Ridley Scott", 1979])]
    );
}

#[test]
fn code_fences_are_removed() {
    let json = json_rows().to_string();
    for (language, body) in [("csv", CSV), ("", CSV), ("json", &json), ("", &json)] {
        three(&format!("```{language}\n{body}\n```"), [man(), bat(), abe()]);
        three(&format!("Here:\n\n```{language}\n{body}\n```\nDone."), [man(), bat(), abe()]);
        // A fence that is never closed.
        three(&format!("```{language}\n{body}"), [man(), bat(), abe()]);
    }
}

#[test]
fn rows_in_several_code_fences_are_all_read() {
    let lines: Vec<&str> = CSV.lines().collect();
    three(
        &format!(
            "First I look at the keys:\n```\n3-D Man\n```\nThe first:\n```csv\n{}\n{}\n```\nThe rest:\n```csv\n{}\n```",
            lines[0], lines[1], lines[2]
        ),
        [man(), bat(), abe()],
    );
    let rows = json_rows();
    let rows: Vec<String> =
        (0..3).map(|n| json!({"rows": [rows["rows"][n]]}).to_string()).collect();
    three(
        &format!("```json\n{}\n```\n```json\n{}\n{}\n```", rows[0], rows[1], rows[2]),
        [man(), bat(), abe()],
    );
}

#[test]
fn too_few_fields_fail_their_row_only() {
    let short = CSV.replace(",DC Comics,1939,Stamina", ",DC Comics");
    three(&short, [man(), json!("invalid: 1 field instead of 3"), abe()]);
    // The list at the end is missing; the other fields are unambiguous.
    let listless = CSV.replace(",DC Comics,1939,Stamina", ",DC Comics,1939");
    three(&listless, [man(), json!(["DC Comics", 1939, {"invalid": null}]), abe()]);
    // A type also shows which field is missing.
    let yearless = CSV.replace(",DC Comics,1939,Stamina", ",DC Comics,Stamina");
    three(&yearless, [man(), json!(["DC Comics", {"invalid": null}, ["Stamina"]]), abe()]);
}

#[test]
fn a_field_missing_before_a_list_does_not_shift_the_list_into_free_text() {
    let toml = HEROES.replace("type = \"integer\"", "about = \"the first occupation\"");
    let asked = Asked::new(&toml, &[&[Some("Batman"), Some("Bruce Wayne")]]);
    // Either the occupation or the powers may be missing, so the row is ambiguous.
    assert_eq!(
        asked.read("1,Batman,Bruce Wayne,DC Comics,Stamina"),
        [json!("invalid: 2 fields instead of 3")]
    );
}

#[test]
fn too_many_fields_fail_their_row_unless_a_list_explains_them() {
    let asked = Asked::new(FILMS, &[&[Some("Jaws")], &[Some("Alien")]]);
    assert_eq!(
        asked.read("1,Jaws,Steven Spielberg,1975,thriller\n2,Alien,Ridley Scott,1979"),
        [json!("invalid: 3 fields instead of 2"), json!(["Ridley Scott", 1979])]
    );
    // Empty fields at the end are ignored.
    assert_eq!(
        asked.read("1,Jaws,Steven Spielberg,1975,,\n2,Alien,Ridley Scott,1979,"),
        [json!(["Steven Spielberg", 1975]), json!(["Ridley Scott", 1979])]
    );
}

const FILMS: &str = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "film"
key = ["title"]
[[expansion.column]]
name = "director"
[[expansion.column]]
name = "year"
type = "integer"
"#;

#[test]
fn quotes_inside_names_do_not_break_a_row() {
    let rows: &[&[Option<&str>]] = &[
        &[Some("Ra's Al Ghul"), Some("Ra's")],
        &[Some("Black Panther"), Some("T'Challa")],
        &[Some("Maui"), Some("Dwayne \"The Rock\" Johnson")],
        &[Some("Batman"), Some("Bruce Wayne")],
    ];
    let asked = Asked::new(HEROES, rows);
    let right = [
        json!(["DC Comics", 1971, ["Stamina"]]),
        json!(["Marvel Comics", 1966, ["Agility"]]),
        json!(["Dark Horse Comics", 2016, ["Super Strength"]]),
        bat(),
    ];
    let after = [
        "DC Comics,1971,Stamina",
        "Marvel Comics,1966,Agility",
        "Dark Horse Comics,2016,Super Strength",
        "DC Comics,1939,Stamina",
    ];
    let quoted =
        |values: &str| values.split(',').map(|v| format!("'{v}'")).collect::<Vec<_>>().join(",");
    let ways: [[String; 4]; 5] = [
        // Unquoted.
        [
            "Ra's Al Ghul,Ra's",
            "Black Panther,T'Challa",
            "Maui,Dwayne \"The Rock\" Johnson",
            "Batman,Bruce Wayne",
        ]
        .map(str::to_owned),
        // Quoted as in RFC 4180.
        [
            "\"Ra's Al Ghul\",Ra's",
            "Black Panther,\"T'Challa\"",
            "Maui,\"Dwayne \"\"The Rock\"\" Johnson\"",
            "\"Batman\",\"Bruce Wayne\"",
        ]
        .map(str::to_owned),
        // Quotes inside quotes that are not doubled.
        [
            "\"Ra's Al Ghul\",\"Ra's\"",
            "\"Black Panther\",\"T'Challa\"",
            "\"Maui\",\"Dwayne \"The Rock\" Johnson\"",
            "\"Batman\",\"Bruce Wayne\"",
        ]
        .map(str::to_owned),
        // Escaped with backslashes.
        [
            "'Ra\\'s Al Ghul','Ra\\'s'",
            "'Black Panther','T\\'Challa'",
            "\"Maui\",\"Dwayne \\\"The Rock\\\" Johnson\"",
            "'Batman','Bruce Wayne'",
        ]
        .map(str::to_owned),
        // Quoted as in SQL and in Python.
        [
            "'Ra''s Al Ghul','Ra''s'",
            "'Black Panther','T''Challa'",
            "'Maui','Dwayne \"The Rock\" Johnson'",
            "'Batman','Bruce Wayne'",
        ]
        .map(str::to_owned),
    ];
    for (n, way) in ways.iter().enumerate() {
        for values_quoted in [false, true] {
            let lines: Vec<String> = way
                .iter()
                .zip(after)
                .enumerate()
                .map(|(row, (key, values))| {
                    let values = if values_quoted { quoted(values) } else { values.to_owned() };
                    format!("{},{key},{values}", row + 1)
                })
                .collect();
            let content = lines.join("\n");
            assert_eq!(asked.read(&content), right, "way {n}:\n{content}");
        }
    }
    let json = json!({"rows": [
        {"row": 3, "key": ["Maui", "Dwayne \"The Rock\" Johnson"], "cells": {"publisher_name": "Dark Horse Comics", "first_year": 2016, "powers": ["Super Strength"]}},
    ]});
    assert_eq!(asked.read(&json.to_string())[2], right[2]);
}

#[test]
fn a_list_split_into_fields_is_joined() {
    let split = CSV.replace("Agility|Stamina", "Agility,Stamina,Flight");
    three(&split, [json!(["Marvel Comics", 1977, ["Agility", "Stamina", "Flight"]]), bat(), abe()]);
    let spaced = CSV.replace("Agility|Stamina", " Agility, Stamina");
    three(&spaced, [man(), bat(), abe()]);
    // A list in the middle of the row.
    let toml = HEROES
        .replace("[[expansion.column]]\nname = \"first_year\"\ntype = \"integer\"\n", "")
        + "[[expansion.column]]\nname = \"first_year\"\ntype = \"integer\"\n";
    let asked = Asked::new(&toml, &[&[Some("Batman"), Some("Bruce Wayne")]]);
    assert_eq!(
        asked.read("1,Batman,Bruce Wayne,DC Comics,Stamina,Agility,1939"),
        [json!(["DC Comics", ["Stamina", "Agility"], 1939])]
    );
    assert!(
        asked
            .notes("1,Batman,Bruce Wayne,DC Comics,Stamina,Agility,1939")
            .contains("fields of a split list")
    );
}

#[test]
fn repeated_rows_count_only_if_they_agree() {
    let twice = format!("{CSV}{}", CSV.lines().nth(1).unwrap());
    three(&twice, [man(), bat(), abe()]);
    let other = format!("{CSV}2,Batman,Bruce Wayne,Marvel Comics,1939,Stamina");
    three(&other, [man(), json!("invalid: two different answers for this row"), abe()]);
    let third = format!("{other}\n2,Batman,Bruce Wayne,DC Comics,1939,Stamina");
    three(&third, [man(), json!("invalid: two different answers for this row"), abe()]);
    let mut json = json_rows();
    let mut again = json["rows"][1].clone();
    json["rows"].as_array_mut().unwrap().push(again.clone());
    three(&json.to_string(), [man(), bat(), abe()]);
    again["cells"]["first_year"] = 1940.into();
    json["rows"].as_array_mut().unwrap().push(again);
    three(&json.to_string(), [man(), json!("invalid: two different answers for this row"), abe()]);
}

#[test]
fn a_broken_repetition_does_not_harm_the_good_row() {
    let content = format!("2,Batman,Bruce Wayne,DC\n{CSV}2,Batman,Bruce Wayne,DC");
    three(&content, [man(), bat(), abe()]);
}

#[test]
fn permuted_rows_are_assigned_correctly() {
    let lines: Vec<&str> = CSV.lines().collect();
    for order in [[2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        three(&order.map(|n| lines[n]).join("\n"), [man(), bat(), abe()]);
        let json = json_rows();
        let rows = order.map(|n| json["rows"][n].clone());
        three(&json!({ "rows": rows }).to_string(), [man(), bat(), abe()]);
    }
}

#[test]
fn a_number_that_contradicts_its_key_is_discarded() {
    // Rows 1 and 2 are swapped: each answer has the number of one and the key of the other.
    let renumbered = CSV
        .replace("1,3-D Man", "9,3-D Man")
        .replace("2,Batman", "1,Batman")
        .replace("9,3-D Man", "2,3-D Man");
    three(&renumbered, [no_answer(), no_answer(), abe()]);
    let mut json = json_rows();
    json["rows"][0]["row"] = 2.into();
    json["rows"][1]["row"] = 1.into();
    three(&json.to_string(), [no_answer(), no_answer(), abe()]);
    // A number that no row has.
    for number in ["0", "4", "99999999999999999999999"] {
        let content = CSV.replace("2,Batman", &format!("{number},Batman"));
        three(&content, [man(), no_answer(), abe()]);
    }
    json["rows"][0]["row"] = 1.into();
    json["rows"][1]["row"] = 7.into();
    three(&json.to_string(), [man(), no_answer(), abe()]);
}

#[test]
fn a_row_number_is_not_mistaken_for_a_numeric_key() {
    let toml = r#"
[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "llm"
source = "film"
key = ["title"]
[[expansion.column]]
name = "director"
[[expansion.column]]
name = "genres"
many = { table = "llm_genre", column = "genre" }
"#;
    let asked = Asked::new(toml, &[&[Some("1984")], &[Some("1")]]);
    // Row 1 with a key the model respelled: not an answer about the film "1".
    assert_eq!(
        asked.read("1,Nineteen Eighty-Four,Michael Radford,drama\n2,1,Paul Crowder,documentary"),
        [no_answer(), json!(["Paul Crowder", ["documentary"]])]
    );
    assert_eq!(
        asked.read("1,1984,Michael Radford,drama"),
        [json!(["Michael Radford", ["drama"]]), no_answer()]
    );
}

#[test]
fn missing_rows_fail_and_foreign_rows_are_discarded() {
    let lines: Vec<&str> = CSV.lines().collect();
    three(lines[1], [no_answer(), bat(), no_answer()]);
    let foreign = format!(
        "{CSV}4,Superman,Clark Kent,DC Comics,1938,Flight\n2,Superman,Clark Kent,DC Comics,1938,Flight"
    );
    three(&foreign, [man(), bat(), abe()]);
    let mut json = json_rows();
    json["rows"][0]["key"] = json!(["Superman", "Clark Kent"]);
    three(&json.to_string(), [no_answer(), bat(), abe()]);
    json["rows"].as_array_mut().unwrap().remove(0);
    three(&json.to_string(), [no_answer(), bat(), abe()]);
}

#[test]
fn a_header_is_not_a_row() {
    let content = format!("row,superhero_name,full_name,publisher_name,first_year,powers\n{CSV}");
    three(&content, [man(), bat(), abe()]);
}

#[test]
fn a_value_outside_its_list_is_not_in_list() {
    let content = CSV.replace("DC Comics,1939", "Image Comics,1939");
    three(&content, [man(), json!([{"not_in_list": "Image Comics"}, 1939, ["Stamina"]]), abe()]);
    // A list keeps the known items, and its note lists the omitted ones.
    let asked = Asked::one("Batman", Some("Bruce Wayne"));
    let content = "1,Batman,Bruce Wayne,DC Comics,1939,Stamina|Money";
    assert_eq!(asked.read(content), [bat()]);
    assert_eq!(asked.notes(content), "left out: Money");
    assert_eq!(
        asked.read("1,Batman,Bruce Wayne,DC Comics,1939,Money|Butler"),
        [json!(["DC Comics", 1939, {"not_in_list": "Money | Butler"}])]
    );
}

#[test]
fn a_value_of_another_type_is_invalid() {
    let content = CSV.replace("DC Comics,1939", "DC Comics,late thirties");
    three(
        &content,
        [man(), json!(["DC Comics", {"invalid": "late thirties"}, ["Stamina"]]), abe()],
    );
    let mut json = json_rows();
    json["rows"][1]["cells"]["first_year"] = json!({"year": 1939});
    three(
        &json.to_string(),
        [man(), json!(["DC Comics", {"invalid": "{\"year\":1939}"}, ["Stamina"]]), abe()],
    );
}

#[test]
fn unknown_is_not_a_value() {
    let content = CSV.replace("DC Comics,1939,Stamina", "?,unknown,");
    three(
        &content,
        [man(), json!([{"unknown": "?"}, {"unknown": "unknown"}, {"unknown": null}]), abe()],
    );
    let mut json = json_rows();
    json["rows"][1]["cells"] = json!({"publisher_name": null, "first_year": "N/A", "powers": null});
    three(
        &json.to_string(),
        [man(), json!([{"unknown": null}, {"unknown": "N/A"}, {"unknown": null}]), abe()],
    );
}

#[test]
fn a_missing_cell_of_a_json_row_does_not_affect_the_others() {
    let mut json = json_rows();
    json["rows"][1]["cells"].as_object_mut().unwrap().remove("first_year");
    three(&json.to_string(), [man(), json!(["DC Comics", {"invalid": null}, ["Stamina"]]), abe()]);
}

#[test]
fn cells_are_bound_by_name_not_by_position() {
    let mut json = json_rows();
    json["rows"][1]["cells"] = json!({"powers": ["Stamina"], "First_Year": 1939, "publisher_name": "DC Comics", "mood": "dark"});
    three(&json.to_string(), [man(), bat(), abe()]);
}

#[test]
fn a_refusal_is_refused_for_every_row() {
    for refusal in [
        "I'm sorry, but I can't help with that.",
        "I\u{2019}m sorry, I cannot provide information about these people.",
        "As an AI language model, I am unable to identify individuals.",
        "I cannot assist with this request.",
    ] {
        three(refusal, [(); 3].map(|()| json!("refused: the model refused")));
    }
    // An apology before an answer is not a refusal.
    three(&format!("I'm sorry, I can't be sure of all of these:\n{CSV}"), [man(), bat(), abe()]);
    // A single cell may be refused, too.
    let asked = Asked::new(FILMS, &[&[Some("Jaws")]]);
    assert_eq!(
        asked.read("1,Jaws,I'm unable to say who,1975"),
        [json!([{"refused": "I'm unable to say who"}, 1975])]
    );
}

#[test]
fn an_html_page_is_not_an_answer() {
    let page = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>\n\
                <body bgcolor=\"white\">\n<center><h1>502 Bad Gateway</h1></center>\n\
                <hr><center>nginx/1.18.0 (Ubuntu)</center>\n</body>\n</html>\n";
    three(page, [no_answer(), no_answer(), no_answer()]);
    assert_eq!(Asked::one("Batman", None).read(page), [no_answer()]);
    assert_eq!(Asked::one("Batman", None).read(&page.replace('\n', "")), [no_answer()]);
}

#[test]
fn megabytes_of_nonsense_are_parsed_quickly() {
    let three = Asked::three();
    let one = Asked::one("Abe Sapien", None);
    for (n, (name, content)) in malformed_answers(3 << 20).into_iter().enumerate() {
        let asked = if n % 5 == 0 { &one } else { &three };
        // If parsing took quadratic time, this test would not finish.
        let read = asked.outcomes(&content, false);
        assert_eq!(read.len(), asked.rows.len());
        for outcome in read {
            let RowOutcome::Failed { state, raw, .. } = outcome else {
                panic!("{name} became {outcome:?}")
            };
            assert_eq!(state, State::Invalid);
            assert!(raw.len() <= 4096, "{name} keeps {} bytes", raw.len());
        }
    }
}

#[test]
fn an_answer_after_a_megabyte_of_lines_is_found() {
    let content = format!("{}{CSV}", "thinking, \"still\n".repeat(60_000));
    three(&content, [man(), bat(), abe()]);
}

#[test]
fn a_key_is_the_same_in_another_unicode_form() {
    let asked = Asked::new(FILMS, &[&[Some("Amélie")], &[Some("!!!")]]);
    let right = [json!(["Jean-Pierre Jeunet", 2001]), json!(["Karel Zeman", 1958])];
    for name in ["Am\u{e9}lie", "Ame\u{301}lie"] {
        assert_eq!(
            asked.read(&format!("1,{name},Jean-Pierre Jeunet,2001\n2,!!!,Karel Zeman,1958")),
            right
        );
    }
}

#[test]
fn line_breaks_in_a_quoted_field_stay_in_it() {
    let asked = Asked::new(FILMS, &[&[Some("Jaws")], &[Some("Alien")]]);
    assert_eq!(
        asked.read("1,Jaws,\"Steven\nSpielberg\n\nhimself\",1975\n2,Alien,Ridley Scott,1979"),
        [json!(["Steven\nSpielberg\n\nhimself", 1975]), json!(["Ridley Scott", 1979])]
    );
}

#[test]
fn an_unbalanced_quote_does_not_harm_the_next_row() {
    let asked = Asked::new(FILMS, &[&[Some("Jaws")], &[Some("Alien")]]);
    let second = json!(["Ridley Scott", 1979]);
    for first in [
        "1,Jaws,\"Steven Spielberg,1975",
        "1,Jaws,Steven \"Spielberg,1975",
        "1,\"Jaws,Steven Spielberg,1975",
        "1,Jaws,Steven Spielberg\",1975",
        "1,Jaws,Steven Spielberg,\"1975",
    ] {
        for next in [
            "2,Alien,Ridley Scott,1979",
            "2,alien,Ridley Scott,1979",
            "2,\"Alien,Ridley Scott,1979",
            "2,ALIEN\",Ridley Scott,1979",
            "\n2,'Alien','Ridley Scott',1979",
        ] {
            let content = format!("{first}\n{next}");
            assert_eq!(asked.read(&content)[1], second, "{content}");
            let last = asked.read(&format!("{content}\n\"\n"));
            assert_eq!(last[1], second, "{content}");
        }
    }
    assert_eq!(
        asked.read("1,Jaws,\"Steven Spielberg\",\"1975\n2,Alien,Ridley Scott,1979"),
        [json!(["Steven Spielberg", 1975]), second]
    );
}

#[test]
fn a_markdown_table_is_read_row_by_row() {
    let toml = HEROES.replace("many = { table = \"llm_power\", column = \"power_name\" }\n", "");
    let asked =
        Asked::new(&toml, &[&[Some("Batman"), Some("Bruce Wayne")], &[Some("Abe Sapien"), None]]);
    let content = "| row | superhero_name | full_name | publisher_name | first_year | powers |\n\
                   |---|---|:---:|---|---|---|\n\
                   | 1 | Batman | Bruce Wayne | DC Comics | 1939 | Stamina |\n\
                   | 2 | Abe Sapien |  | Dark Horse Comics | 1993 | Agility |\n";
    assert_eq!(
        asked.read(content),
        [json!(["DC Comics", 1939, "Stamina"]), json!(["Dark Horse Comics", 1993, "Agility"])]
    );
}

#[test]
fn an_answer_in_the_other_format_is_accepted() {
    // The parser does not know the format: it tries the one that the text looks like.
    let asked = Asked::three();
    for format in [Format::Csv, Format::Json] {
        let question = asked.question(format);
        assert_eq!(question.format, format);
        assert_eq!(asked.read(CSV), [man(), bat(), abe()]);
        assert_eq!(asked.read(&json_rows().to_string()), [man(), bat(), abe()]);
    }
    // Flat objects, JSON lines, an array, a key by name.
    let flat = [
        json!({"superhero_name": "3-D Man", "full_name": "Charles Chandler", "publisher_name": "Marvel Comics", "first_year": 1977, "powers": ["Agility", "Stamina"]}),
        json!({"row": 2, "key": {"full_name": "Bruce Wayne", "superhero_name": "Batman"}, "publisher_name": "DC Comics", "first_year": "1939", "powers": "Stamina"}),
        json!({"row": "3", "superhero_name": "Abe Sapien", "full_name": null, "cells": {"publisher_name": "Dark Horse Comics", "first_year": 1993, "powers": []}}),
    ];
    assert_eq!(asked.read(&Json::from(flat.to_vec()).to_string()), [man(), bat(), abe()]);
    let lines: Vec<String> = flat.iter().map(Json::to_string).collect();
    assert_eq!(asked.read(&lines.join("\n")), [man(), bat(), abe()]);
}

#[test]
fn json_mistakes_of_local_models_are_repaired() {
    let json = json_rows().to_string();
    three(&json.replace("\"Stamina\"]}}", "\"Stamina\",],},}"), [man(), bat(), abe()]);
    let asked = Asked::new(FILMS, &[&[Some("Jaws")]]);
    assert_eq!(
        asked.read("{\"rows\":[{\"row\":1,\"key\":[\"Jaws\"],\"cells\":{\"director\":\"Steven\nSpielberg\",\"year\":1975}}]}"),
        [json!(["Steven\nSpielberg", 1975])]
    );
}

#[test]
fn a_null_key_part_may_be_echoed_in_many_ways() {
    for null in ["", "null", "NULL", "None", "\"\"", " "] {
        let content = CSV.replace("Abe Sapien,,", &format!("Abe Sapien,{null},"));
        three(&content, [man(), bat(), abe()]);
    }
    let mut json = json_rows();
    for key in [json!(["Abe Sapien", ""]), json!(["Abe Sapien", "null"])] {
        json["rows"][2]["key"] = key;
        three(&json.to_string(), [man(), bat(), abe()]);
    }
}

#[test]
fn a_null_key_part_distinguishes_two_rows() {
    let asked = Asked::new(
        HEROES,
        &[
            &[Some("Batman"), None],
            &[Some("Batman"), Some("Bruce Wayne")],
            &[Some("Batman"), Some("")],
        ],
    );
    assert_eq!(
        asked.read(
            "3,Batman,,?,?,none\n1,Batman,,Marvel Comics,?,none\n2,Batman,Bruce Wayne,DC Comics,1939,Stamina"
        ),
        [no_answer(), bat(), no_answer()],
        "an empty field could be either, and so could their numbers be mistaken"
    );
    // Labels distinguish the rows, so the prompt asks for labels, whatever the spec sets.
    for format in [Format::Csv, Format::Json] {
        let question = asked.question(format);
        let said = |row: usize| ["Marvel Comics", "DC Comics", "Image"][row - 1];
        let answer = question.format_answer(|row, column| match column.name.as_str() {
            "publisher_name" => json!(said(row.number)),
            "first_year" => json!(1900 + row.number),
            _ => json!([]),
        });
        assert_eq!(
            asked.read(&answer),
            [
                json!(["Marvel Comics", 1901, []]),
                json!(["DC Comics", 1902, []]),
                json!([{"not_in_list": "Image"}, 1903, []]),
            ]
        );
    }
    // Without numbers, the answer could belong to either row, too.
    assert_eq!(
        asked.read("Batman,,DC Comics,1939,Stamina\nBatman,Bruce Wayne,DC Comics,1939,Stamina"),
        [no_answer(), bat(), no_answer()]
    );
}

#[test]
fn keys_that_differ_only_in_case_are_distinguished_by_number() {
    let asked = Asked::new(FILMS, &[&[Some("Alien")], &[Some("ALIEN")]]);
    assert_eq!(asked.read("2,ALIEN,B,2\n1,Alien,A,1"), [json!(["A", 1]), json!(["B", 2])]);
    // Neither spelling matches, so the answer belongs to no row.
    assert_eq!(asked.read("1,alien,A,1"), [no_answer(), no_answer()]);
}

#[test]
fn keys_with_commas_need_no_quotes() {
    let asked = Asked::new(
        FILMS,
        &[
            &[Some("The Good, the Bad and the Ugly")],
            &[Some("Crouching Tiger, Hidden Dragon")],
            &[Some("Alien")],
        ],
    );
    let right =
        [json!(["Sergio Leone", 1966]), json!(["Ang Lee", 2000]), json!(["Ridley Scott", 1979])];
    assert_eq!(
        asked.read(
            "1,The Good, the Bad and the Ugly,Sergio Leone,1966\n\
             2,\"Crouching Tiger, Hidden Dragon\",Ang Lee,2000\n\
             3,Alien,Ridley Scott,1979"
        ),
        right
    );
    assert_eq!(
        asked.read(
            "1,'The Good, the Bad and the Ugly','Sergio Leone','1966'\n\
             Crouching Tiger, Hidden Dragon,Ang Lee,2000\n\
             3,Alien,Ridley Scott,1979"
        ),
        right
    );
}

#[test]
fn hqdl_lines_without_a_number_are_read_for_one_row() {
    let asked = Asked::one("3-D Man", Some("Charles Chandler"));
    for content in [
        "'3-D Man','Charles Chandler','Marvel Comics','1977','Agility,Stamina'",
        "'3-D Man', 'Charles Chandler', 'Marvel Comics', 1977, ['Agility', 'Stamina']",
        "'3-D Man','Charles Chandler','Marvel Comics','1977','[\"Agility\", \"Stamina\"]'",
        "'3-D Man','Charles Chandler','Marvel Comics','1977',\"['Agility', 'Stamina']\"",
        "3-D Man,Charles Chandler,Marvel Comics,1977,Agility, Stamina",
        "\"3-D Man\",\"Charles Chandler\",\"Marvel Comics\",1977,\"Agility; Stamina\"",
    ] {
        assert_eq!(asked.read(content), [man()], "{content}");
    }
}

#[test]
fn rows_of_another_request_are_rejected_even_without_a_distinguishing_word() {
    let keys = |last: &'static str| -> Asked {
        Asked::new(
            HEROES,
            &[&[Some("!"), None], &[Some("?"), None], &[Some("-"), Some("-")], &[Some(last), None]],
        )
    };
    let (one, other) = (keys("Batman"), keys("Robin"));
    let row = |asked: &Asked, n: usize| format!("{},DC Comics,1939,Stamina", asked.label(n));
    let answer: Vec<String> = (0..3).map(|n| row(&other, n)).collect();
    assert_eq!(&one.read(&answer.join("\n"))[..3], &[no_answer(), no_answer(), no_answer()]);
    let own: Vec<String> = (0..4).map(|n| row(&one, n)).collect();
    assert!(!one.read(&own.join("\n")).contains(&no_answer()));
}

#[test]
fn a_misspelt_key_is_accepted_for_a_single_row_if_no_other_row_has_it() {
    let one = |others: &[&[&str]]| Asked::one("Charcoal", Some("Charles Burlingame")).among(others);
    let csv = "1,Charcoal,Charels Burlinghame,Marvel Comics,1965,Stamina";
    let json = json!({"rows": [{"row": 1, "key": ["Charcoal", "Charels Burlinghame"], "cells": {"publisher_name": "Marvel Comics", "first_year": 1965, "powers": ["Stamina"]}}]}).to_string();
    let quoted = "'Charcoal','Charels Burlinghame','Marvel Comics','1965','Stamina'";
    let right = json!(["Marvel Comics", 1965, ["Stamina"]]);
    for content in [csv, quoted, &json] {
        let alone = one(&[]);
        assert_eq!(alone.read(content), std::slice::from_ref(&right), "{content}");
        assert!(alone.notes(content).contains("\"Charcoal, Charels Burlinghame\""), "{content}");
        let other = one(&[&["charcoal", "Charels Burlinghame"]]);
        assert_eq!(other.read(content), [no_answer()], "{content}");
        let unknown = Asked::one("Charcoal", Some("Charles Burlingame"));
        assert_eq!(unknown.read(content), [no_answer()], "{content}");
    }
    for echoed in ["Charcoal,Charles Burlingame II", "Charcoal,", "Batman,Charels Burlingame"] {
        let content = format!("1,{echoed},Marvel Comics,1965,Stamina");
        let notes = one(&[]).read(&content);
        assert!(notes == [no_answer()] || echoed.ends_with(','), "{content}: {notes:?}");
    }
    let several = Asked::new(
        HEROES,
        &[&[Some("Charcoal"), Some("Charles Burlingame")], &[Some("Batman"), Some("Bruce Wayne")]],
    );
    assert_eq!(several.among(&[]).read(csv)[0], no_answer());
}

#[test]
fn a_completed_key_is_accepted_for_a_single_row_only() {
    let one = Asked::one("Absorbing Man", None);
    let content = "1,Absorbing Man,Carl Creel,Marvel Comics,1965,Super Strength";
    let right = json!(["Marvel Comics", 1965, ["Super Strength"]]);
    assert_eq!(one.read(content), std::slice::from_ref(&right));
    assert!(
        one.notes(content).contains("the key was echoed as \"Absorbing Man, Carl Creel\""),
        "{}",
        one.notes(content)
    );
    let quoted = "'Absorbing Man','Carl Creel','Marvel Comics','1965','Super Strength'";
    assert_eq!(one.read(quoted), std::slice::from_ref(&right));
    let json = json!({"rows": [{"row": 1, "key": ["Absorbing Man", "Carl Creel"], "cells": {"publisher_name": "Marvel Comics", "first_year": 1965, "powers": ["Super Strength"]}}]}).to_string();
    assert_eq!(one.read(&json), [right]);
    assert!(one.notes(&json).contains("Carl Creel"));

    let several = Asked::new(
        HEROES,
        &[&[Some("Absorbing Man"), None], &[Some("Batman"), Some("Bruce Wayne")]],
    );
    for content in [content, quoted, &json] {
        let content = format!("{content}\n2,Batman,Bruce Wayne,DC Comics,1939,Stamina");
        assert_eq!(several.read(&content)[0], no_answer(), "{content}");
    }
    assert_eq!(
        several.read(&format!("{content}\n2,Batman,Bruce Wayne,DC Comics,1939,Stamina"))[1],
        bat()
    );
}

#[test]
fn a_better_answer_replaces_one_with_a_doubtful_key() {
    // In the first line, one key part matches; in the second, both do.
    let asked = Asked::one("Batman", Some("Bruce Wayne"));
    assert_eq!(
        asked.read(
            "Batman,Terry McGinnis,DC Comics,1999,Flight\n1,Batman,Bruce Wayne,DC Comics,1939,Stamina"
        ),
        [bat()]
    );
}

#[test]
fn another_rows_answer_is_not_assigned_to_the_only_row() {
    let asked = Asked::one("Batman", Some("Bruce Wayne"));
    let cells = json!({"publisher_name": "DC Comics", "first_year": 1938, "powers": ["Flight"]});
    for content in [
        "1,Superman,Clark Kent,DC Comics,1938,Flight".to_owned(),
        "Superman,Clark Kent,DC Comics,1938,Flight".to_owned(),
        "1,Superman,,DC Comics,1938,Flight".to_owned(),
        json!({"rows": [{"row": 1, "key": ["Superman", "Clark Kent"], "cells": cells}]}).to_string(),
        // The key is present, but not in the requested form.
        json!({"rows": [{"row": 1, "key": ["Superman"], "cells": cells}]}).to_string(),
        json!({"rows": [{"row": 1, "key": "Superman", "cells": cells}]}).to_string(),
        json!({"rows": [{"row": 1, "key": {"superhero_name": "Superman"}, "cells": cells}]})
            .to_string(),
        json!({"rows": [{"superhero_name": "Superman", "publisher_name": "DC Comics", "first_year": 1938, "powers": []}]}).to_string(),
        // The row is malformed, but its cells are not.
        format!("{{\"rows\":[{{\"row\":1,\"key\":[\"Superman\",\"Clark Kent\"],\"cells\":{cells}]}}"),
        format!("{{\"rows\":[{{\"row\":1,\"key\":[\"Superman\",\"Clark Kent\"],\"cells\":{cells}"),
        // Two rows were returned, and neither identifies its row.
        json!([cells, cells]).to_string(),
    ] {
        let read = asked.read(&content);
        assert!(read[0].is_string(), "{content} gave {}", read[0]);
    }
}

#[test]
fn a_foreign_line_without_a_key_is_not_an_answer() {
    let toml = HEROES
        .replace("name = \"publisher_name\"\nvalues = { sql = \"SELECT publisher_name FROM publisher\" }\n", "name = \"occupation\"\n")
        .replace("[[expansion.column]]\nname = \"first_year\"\ntype = \"integer\"\n", "");
    let asked = Asked::new(&toml, &[&[Some("Batman"), Some("Bruce Wayne")]]);
    // The list would absorb any text before the powers.
    let read = asked.read("1,Superman,Clark Kent,reporter,Flight");
    assert!(read[0].is_string(), "{}", read[0]);
}

#[test]
fn values_alone_answer_a_single_row_if_a_type_confirms_them() {
    let asked = Asked::one("Batman", Some("Bruce Wayne"));
    for content in [
        "DC Comics,1939,Stamina",
        "{\"publisher_name\": \"DC Comics\", \"first_year\": 1939, \"powers\": [\"Stamina\"]}",
        "Sure: {\"publisher_name\": \"DC Comics\", \"first_year\": 1939, \"powers\": [\"Stamina\"]}",
    ] {
        assert_eq!(asked.read(content), [bat()], "{content}");
        assert!(asked.notes(content).contains("the key was not echoed"));
    }
    assert!(Asked::three().read("DC Comics,1939,Stamina")[1].is_string());
    let free = FILMS.replace("type = \"integer\"\n", "");
    let free = Asked::new(&free, &[&[Some("Jaws")]]);
    // Prose with as many commas as there are columns.
    assert!(free.read("Well, I am not sure.")[0].is_string());
}

// ── properties ──────────────────────────────────────────────────────────────

/// Returns texts with characters that are difficult for quoting, JSON and case folding.
fn text(more: &'static str) -> impl Strategy<Value = String> {
    let special: Vec<char> = more.chars().collect();
    let one = prop_oneof![
        4 => proptest::char::range('a', 'z'),
        2 => proptest::char::range('0', '9'),
        1 => proptest::char::range('A', 'Z'),
        4 => proptest::sample::select(special),
        1 => proptest::sample::select(vec!['é', 'e', '\u{301}', 'ß', 'İ', '漢', '𝒳', '\u{a0}', '—', 'Ω', '\u{2019}']),
    ];
    proptest::collection::vec(one, 1..14)
        .prop_map(|chars| chars.into_iter().collect::<String>().trim().to_owned())
        .prop_filter("empty, or a word for nothing", |t| {
            !["", "?", "-", "unknown", "null", "none", "n/a", "na", "\u{2014}", "[]"]
                .contains(&t.to_lowercase().as_str())
        })
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => text(" ,\"'.-#(){}[]:;/\\").prop_map(Value::Text),
        1 => any::<i64>().prop_map(Value::Integer),
        1 => (-1e6..1e6f64).prop_map(Value::Real),
        1 => (1..9i64).prop_map(Value::Integer),
    ]
}

/// Returns keys of two parts; the second may be NULL.
fn key() -> impl Strategy<Value = Vec<Value>> {
    (value(), prop_oneof![1 => Just(Value::Null), 1 => Just(Value::from("")), 6 => value()])
        .prop_map(|(a, b)| vec![a, b])
}

/// Value of the list, text, number and items of a row.
type Cells = (Option<usize>, Option<String>, Option<i64>, Option<Vec<usize>>);

#[derive(Debug, Clone)]
struct Case {
    list: Vec<String>,
    items: Vec<String>,
    keys: Vec<Vec<Value>>,
    /// Answers of each row: a value of the list, a text, a number, and items.
    cells: Vec<Cells>,
    order: Vec<usize>,
    dropped: usize,
}

fn case() -> impl Strategy<Value = Case> {
    let list = |special| {
        proptest::collection::hash_set(text(special), 1..6)
            .prop_map(|set| set.into_iter().collect::<Vec<_>>())
    };
    let maybe = proptest::option::weighted(0.8, any::<usize>());
    let cell = (
        maybe,
        proptest::option::weighted(0.8, text(" ,\"'.-#(){}[]:;/\\|")),
        proptest::option::weighted(0.8, any::<i64>()),
        proptest::option::weighted(0.8, proptest::collection::vec(any::<usize>(), 0..4)),
    );
    (
        list(" ,\"'.-#(){}[]:;/\\|"),
        list(" ,\"'.-#(){}:;/\\"),
        proptest::collection::vec((key(), cell), 1..8),
    )
        .prop_flat_map(|(list, items, rows)| {
            let count = rows.len();
            let (keys, cells): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            (
                Just((list, items, keys, cells)),
                Just((0..count).collect::<Vec<_>>()).prop_shuffle(),
                0..=count,
            )
        })
        .prop_map(|((list, items, keys, cells), order, dropped)| Case {
            list,
            items,
            keys,
            cells,
            order,
            dropped,
        })
        .prop_filter("one entity twice", |c| {
            let names = hqdl_values::key::KeyColumns::new(vec!["k1".into(), "k2".into()]);
            let set: std::collections::HashSet<_> =
                c.keys.iter().map(|k| names.build_entity(k)).collect();
            set.len() == c.keys.len()
        })
}

impl Case {
    fn asked(&self, fixture: &Fixture) -> Asked {
        let list = |values: &[String]| {
            toml::Value::Array(values.iter().map(|v| toml::Value::String(v.clone())).collect())
                .to_string()
        };
        let toml = format!(
            "[database]\npath = \"x\"\n[model]\nname = \"test\"\n[[expansion]]\nname = \"llm\"\nsource = \"film\"\nkey = [\"k1\", \"k2\"]\n\
             [[expansion.column]]\nname = \"choice\"\nvalues = {}\n\
             [[expansion.column]]\nname = \"words\"\n\
             [[expansion.column]]\nname = \"number\"\ntype = \"integer\"\n\
             [[expansion.column]]\nname = \"items\"\nmany = {{ table = \"llm_item\", column = \"item\" }}\nvalues = {}\n",
            list(&self.list),
            list(&self.items),
        );
        Asked::of(fixture.only_expansion(&toml), self.keys.clone())
    }

    /// Returns the JSON of a row's cell.
    fn cell(&self, row: usize, column: &str) -> Json {
        let (choice, words, number, items) = &self.cells[row];
        match column {
            "choice" => json!(choice.map(|c| &self.list[c % self.list.len()])),
            "words" => json!(words),
            "number" => json!(number),
            _ => {
                let mut kept: Vec<&String> = Vec::new();
                for item in items.iter().flatten() {
                    let item = &self.items[item % self.items.len()];
                    if !kept.contains(&item) {
                        kept.push(item);
                    }
                }
                items.as_ref().map_or(Json::Null, |_| json!(kept))
            }
        }
    }

    /// Returns true if an outcome has the answers of this row.
    fn is_right(&self, row: usize, outcome: &RowOutcome) -> bool {
        let RowOutcome::Answered(cells) = outcome else {
            return false;
        };
        cells.iter().zip(["choice", "words", "number", "items"]).all(|(answer, column)| {
            let right = self.cell(row, column);
            let state = if right.is_null() { State::Unknown } else { State::Ok };
            answer.state == state && answer.value.to_json() == right
        })
    }
}

#[test]
fn prompts_can_be_parsed() {
    let fixture = Fixture::new();
    random_runner(64)
        .run(&case(), |case| {
            let asked = case.asked(&fixture);
            for format in [Format::Csv, Format::Json] {
                let question = asked.question(format);
                prop_assert_eq!(&question.table, "llm");
                prop_assert_eq!(&question.key, &["k1", "k2"]);
                prop_assert_eq!(question.format, format);
                prop_assert_eq!(question.rows.len(), case.keys.len());
                for (n, (row, key)) in question.rows.iter().zip(&case.keys).enumerate() {
                    prop_assert_eq!(row.number, n + 1);
                    let json: Vec<Json> = key.iter().map(Value::to_json).collect();
                    prop_assert_eq!(&row.key, &json);
                    prop_assert!(row.context.is_empty());
                }
                let names: Vec<&str> = question.columns.iter().map(|c| c.name.as_str()).collect();
                prop_assert_eq!(names, ["choice", "words", "number", "items"]);
                prop_assert_eq!(&question.columns[0].values, &Some(case.list.clone()));
                prop_assert_eq!(&question.columns[1].values, &None);
                prop_assert_eq!(&question.columns[2].data_type, "integer");
                prop_assert!(question.columns[3].many);
                prop_assert_eq!(&question.columns[3].values, &Some(case.items.clone()));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_well_formed_answer_is_read_exactly() {
    let fixture = Fixture::new();
    random_runner(192)
        .run(&case(), |case| {
            let asked = case.asked(&fixture);
            for format in [Format::Csv, Format::Json] {
                let answer = asked
                    .question(format)
                    .format_answer(|row, column| case.cell(row.number - 1, &column.name));
                let read = asked.outcomes(&answer, false);
                prop_assert_eq!(read.len(), case.keys.len());
                for (row, outcome) in read.iter().enumerate() {
                    prop_assert!(
                        case.is_right(row, outcome),
                        "row {} of\n{}\nis {:?}",
                        row + 1,
                        answer,
                        outcome
                    );
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn permuted_and_missing_lines_never_put_a_value_in_another_row() {
    let fixture = Fixture::new();
    random_runner(128)
        .run(&case(), |case| {
            let asked = case.asked(&fixture);
            let kept = &case.order[case.dropped..];
            for format in [Format::Csv, Format::Json] {
                let mut question = asked.question(format);
                question.rows = kept.iter().map(|n| question.rows[*n].clone()).collect();
                let answer =
                    question.format_answer(|row, column| case.cell(row.number - 1, &column.name));
                for (row, outcome) in asked.outcomes(&answer, false).iter().enumerate() {
                    if kept.contains(&row) {
                        prop_assert!(
                            case.is_right(row, outcome),
                            "row {} of\n{}\nis {:?}",
                            row + 1,
                            answer,
                            outcome
                        );
                    } else {
                        prop_assert!(
                            matches!(outcome, RowOutcome::Failed { .. }),
                            "row {} of\n{}\nis {:?}",
                            row + 1,
                            answer,
                            outcome
                        );
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn any_text_gives_one_outcome_per_row() {
    let three = Asked::three();
    let one = Asked::one("Batman", None);
    let fragments = vec![
        "1",
        "2",
        ",",
        "\"",
        "'",
        "\n",
        "\r\n",
        "{",
        "}",
        "[",
        "]",
        ":",
        "|",
        "\\",
        "```",
        "```csv\n",
        "Batman",
        "Bruce Wayne",
        "DC Comics",
        "1939",
        "Stamina",
        "\"row\"",
        "\"key\"",
        "\"cells\"",
        "\"rows\":",
        "null",
        "é",
        "漢",
        "\u{301}",
        "\u{2028}",
        " ",
        "row 1",
        "#1.",
        "|---|",
        "1,Batman,Bruce Wayne,DC Comics,1939,Stamina",
        "{\"row\":1,\"key\":[\"Batman\",null],\"cells\":{",
    ];
    let pieces = proptest::collection::vec(proptest::sample::select(fragments), 0..40)
        .prop_map(|p| p.concat());
    let anything = prop_oneof![3 => pieces, 1 => any::<String>(), 1 => "\\PC{0,200}"];
    random_runner(768)
        .run(&(anything, any::<bool>()), |(content, truncated)| {
            for asked in [&three, &one] {
                let read = asked.outcomes(&content, truncated);
                prop_assert_eq!(read.len(), asked.rows.len());
                for outcome in read {
                    match outcome {
                        RowOutcome::Answered(cells) => {
                            prop_assert_eq!(cells.len(), 3);
                            for cell in cells {
                                prop_assert_eq!(
                                    cell.state.has_value(),
                                    cell.value != CellValue::Nothing
                                );
                            }
                        }
                        RowOutcome::Failed { state, .. } => {
                            prop_assert!(matches!(state, State::Invalid | State::Refused));
                        }
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}
