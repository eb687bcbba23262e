//! Tests of parsing answers to a request for SQL, as models write them.

use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::completion::FinishReason;
use hqdl_prompt::{PromptFrame, RowOutcome};
use hqdl_spec::{Column, Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::ColumnIdentity;
use hqdl_values::value::Value;
use serde_json::{Value as Json, json};

/// Returns the answer that is parsed from a completion.
fn read(content: &str, finish: FinishReason) -> Option<Json> {
    let identity = ColumnIdentity {
        key: vec!["question".to_owned()],
        column: "statement".to_owned(),
        kind: "text".to_owned(),
        about: String::new(),
        many: false,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    let expansion = Expansion {
        context: vec!["database".to_owned()],
        task: Task::Statement,
        columns: vec![Column::new_ad_hoc(Type::Text, "Rules".to_owned(), None, identity)],
        ..Expansion::new_ad_hoc("statement", vec!["question".to_owned()])
    };
    let frame = PromptFrame::new(&expansion, &[0], Format::Json);
    let row = Row { key: vec![Value::Text("q".to_owned())], context: vec![Value::Null] };
    let keys = RequestKeys::new([row.key.as_slice()]);
    let outcome =
        frame.parse_answer(content, finish, &keys, &["question".to_owned()], &[]).remove(0);
    match outcome {
        RowOutcome::Answered(answers) => match &answers[0].value {
            CellValue::One(Value::Text(text)) => serde_json::from_str(text).ok(),
            _ => None,
        },
        RowOutcome::Failed { .. } => None,
    }
}

#[test]
fn a_query_is_found_in_prose_fences_and_objects() {
    let object = r#"{"sql": "SELECT 1 ", "dialect": "sqlite", "assumptions": null, "cannot_answer": null, "other_sql": null, "other_reading": null, "new_columns": []}"#;
    for content in [
        object.to_owned(),
        format!(
            "Here is the query {{as asked}}:\n```json\n{object}\n```\nI hope that it helps {{you}}."
        ),
        format!("<think>{{\"sql\": \"SELECT 2\"}}</think>{object}"),
        format!("{object}\n{object}"),
        "```sql\nSELECT 1\n```".to_owned(),
        "Sure!\n```\nSELECT 1\n```\nIt returns one row.".to_owned(),
        "SELECT 1".to_owned(),
        r#"{"sql": "SELECT 1", "answer": 42}"#.to_owned(),
    ] {
        let answer = read(&content, FinishReason::Stop).unwrap_or_else(|| panic!("{content}"));
        assert_eq!(answer["sql"], "SELECT 1", "{content}");
        assert_eq!(answer["dialect"], "sqlite");
    }
    let declined = read(r#"{"sql": null, "cannot_answer": "no weights"}"#, FinishReason::Stop);
    assert_eq!(declined.unwrap()["cannot_answer"], "no weights");
    let listed = read(
        r#"{"sql": "SELECT 1", "dialect": "SUQL", "assumptions": ["a", "b"]}"#,
        FinishReason::Stop,
    );
    assert_eq!(listed.as_ref().unwrap()["assumptions"], "a; b");
    assert_eq!(listed.unwrap()["dialect"], "suql");
}

#[test]
fn an_answer_without_one_certain_query_is_not_read() {
    for content in [
        "",
        "I cannot help with that.",
        "{}",
        r#"{"sql": "", "cannot_answer": null}"#,
        r#"{"sql": "SELECT 1"} or {"sql": "SELECT 2"}"#,
        "```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```",
        "SELECTION is hard",
        "{{{{{{{{",
    ] {
        assert_eq!(read(content, FinishReason::Stop), None, "{content}");
    }
    for cut in [r#"{"sql": "SELECT 1 FROM"#, "SELECT 1 FROM", "```sql\nSELECT 1 FROM"] {
        assert_eq!(read(cut, FinishReason::Truncated), None, "{cut}");
    }
    assert_eq!(read("{", FinishReason::Stop).unwrap_or(json!(null)), json!(null));
}

#[test]
fn complete_proposals_of_columns_are_kept() {
    let column = json!({
        "table": "hero", "key": ["name"], "name": "can_fly", "type": "boolean", "many": false,
        "values": null, "about": "whether\nit flies", "question": "Can it fly?",
    });
    let read_columns = |columns: Json| {
        let answer = json!({ "sql": null, "cannot_answer": null, "new_columns": columns });
        read(&answer.to_string(), FinishReason::Stop).map(|answer| answer["new_columns"].clone())
    };
    let mut kept = column.clone();
    kept["about"] = "whether it flies".into();
    assert_eq!(read_columns(json!([column, "yes", {}])), Some(json!([kept])));
    for (name, value) in
        [("table", json!("")), ("key", json!([])), ("key", json!([1])), ("about", Json::Null)]
    {
        let mut wrong = column.clone();
        wrong[name] = value;
        assert_eq!(read_columns(json!([wrong])), None, "{name}");
    }
    assert_eq!(
        read_columns(json!([column, column, column, column])).unwrap().as_array().unwrap().len(),
        3
    );
}
