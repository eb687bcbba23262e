//! Tests that the calls of published queries can be parsed.

use std::collections::BTreeMap;
use std::path::Path;

use hqdl::blendsql::{Argument, Call, Choices, ingredients, mask_calls, scan_calls};
use hqdl_testkit::engine::shared_folder;

/// Returns the field `field` of every line that has it, by id or line number.
fn column_of_lines(path: &Path, field: &str) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().enumerate().filter_map(|(n, line)| {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let id = case["id"].as_str().map_or_else(|| n.to_string(), str::to_owned);
        Some((id, case[field].as_str()?.to_owned()))
    });
    lines.collect()
}

/// Parses every query. Returns the calls of those that can be parsed, and the errors of the others.
fn read_all(queries: &[(String, String)]) -> (Vec<(String, Call)>, BTreeMap<&str, String>) {
    let (mut calls, mut refused) = (Vec::new(), BTreeMap::new());
    for (id, sql) in queries {
        match scan_calls(sql) {
            Ok(found) => {
                assert_eq!(mask_calls(sql, &found).len(), sql.len());
                assert!(!mask_calls(sql, &found).contains("{{"), "{id}");
                calls.extend(found.into_iter().map(|call| (sql.clone(), call)));
            }
            Err(error) => {
                refused.insert(id.as_str(), error.message);
            }
        }
    }
    (calls, refused)
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared")]
fn blendsqls_own_test_queries_are_read() {
    let path = shared_folder("blendsql").unwrap().join("cases.jsonl");
    let queries = column_of_lines(&path, "blendsql_llm");
    assert_eq!(queries.len(), 125);
    let (calls, refused) = read_all(&queries);
    // Ingredients that the tests define in Python, and a parameter that affects the question.
    let expected = [
        ("l005", "there is no ingredient `ingredient`"),
        ("l006", "there is no ingredient `select_first_option`"),
        ("l007", "there is no ingredient `NewIngredient`"),
        ("l027", "there is no ingredient `test_starts_with`"),
        ("l055", "the return type cannot be a parameter"),
    ];
    assert_eq!(refused, expected.map(|(id, message)| (id, message.to_owned())).into());
    let count = |i| calls.iter().filter(|(_, call)| call.ingredient == i).count();
    let counts = ingredients::list_ingredients().map(|i| (i.name(), count(i)));
    assert_eq!(
        counts,
        [("LLMMap", 101), ("LLMQA", 38), ("LLMValidate", 0), ("LLMJoin", 6), ("LLMReduce", 0)]
    );
    assert_eq!(calls.iter().map(|(_, call)| call.inner.len()).sum::<usize>(), 5);
    assert_eq!(calls.iter().filter(|(_, call)| call.is_values_row).count(), 6);
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared")]
fn swans_published_blendsql_queries_are_read() {
    let path = shared_folder("swan").unwrap().join("questions-superhero.csv");
    let mut reader = csv::Reader::from_path(&path).unwrap();
    let queries: Vec<(String, String)> = reader
        .deserialize::<BTreeMap<String, String>>()
        .map(|row| row.unwrap())
        .map(|mut row| (row.remove("qid").unwrap(), row.remove("blendsql_2024").unwrap()))
        .collect();
    assert_eq!(queries.len(), 30);
    let (calls, refused) = read_all(&queries);
    assert_eq!(refused, BTreeMap::new());
    assert_eq!(calls.len(), 37);
    for (sql, call) in &calls {
        // Every value is a column in legacy syntax, with and without a comma before it, or a query.
        assert!(
            matches!(call.values.as_slice(), [Argument::Column { .. } | Argument::Query(_)]),
            "{}",
            sql
        );
        assert!(call.question.ends_with(['?', '.']), "{}", call.question);
        assert!(matches!(&call.options, None | Some(Choices::Column { table: Some(_), .. })));
    }
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared")]
fn swans_second_blendsql_queries_are_read() {
    let path = shared_folder("swan2").unwrap().join("superhero.cases.jsonl");
    let queries = column_of_lines(&path, "blendsql");
    assert_eq!(queries.len(), 30);
    let (calls, refused) = read_all(&queries);
    assert_eq!(refused, BTreeMap::new());
    for (sql, call) in &calls {
        let [Argument::Sql(value)] = call.values.as_slice() else { panic!("{call:?}") };
        assert!(sql[value.clone()].contains('.'), "{}", sql);
    }
}
