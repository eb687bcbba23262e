//! Suggestions as JSON.

use serde_json::{Value as Json, json};

use super::edit::{self, Added};
use super::{ColumnPlace, Suggestion, Suggestions};

impl Suggestions {
    /// Returns the output of `suggest --json`; `added` lists the changes to the spec.
    #[must_use]
    pub fn to_json(&self, added: Option<&Added>) -> Json {
        let questions: Vec<Json> = self.questions.iter().map(question_json).collect();
        let bound: Vec<Json> = self
            .bound
            .iter()
            .map(|b| {
                json!({
                    "question": b.binding.ask, "expansion": b.expansion, "column": b.learned.column,
                    "sql": b.binding.sql, "model": b.learned.model, "bound_at": b.learned.bound_at,
                    "in_spec": b.in_spec,
                })
            })
            .collect();
        let columns = |a: &Added| -> Vec<String> {
            a.columns.iter().map(|(expansion, column)| format!("{expansion}.{column}")).collect()
        };
        let asks = |a: &Added| -> Vec<String> { a.questions.iter().map(|q| q.2.clone()).collect() };
        json!({
            "questions": questions,
            "bound": bound,
            "written": added.map(|a| json!({ "columns": columns(a), "questions": asks(a) })),
        })
    }
}

fn question_json(question: &Suggestion) -> Json {
    let asked = &question.asked;
    let place = match &question.place {
        ColumnPlace::NoSpec | ColumnPlace::Nowhere => Json::Null,
        ColumnPlace::Asked(expansion, column) => {
            json!({ "expansion": expansion, "column": column })
        }
        ColumnPlace::Joins(joins) => json!({
            "expansion": joins.expansion, "key": joins.key, "found": joins.found,
            "share": joins.share(), "asks": joins.asks,
        }),
    };
    let origins: Vec<Json> =
        asked.origins.iter().map(|o| json!({ "table": o.table, "column": o.column })).collect();
    json!({
        "question": question.question,
        "type": asked.meaning.kind,
        "many": asked.meaning.many,
        "list": asked.list,
        "values": asked.values,
        "origins": origins,
        "models": asked.models,
        "requests": asked.requests,
        "input_tokens": asked.input_tokens,
        "output_tokens": asked.output_tokens,
        "cost_usd": asked.cost_usd,
        "last_asked": asked.last_asked,
        "joins": place,
        "left_out": question.writable().err(),
        "toml": edit::toml(&question.column),
    })
}
