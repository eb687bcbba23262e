//! Formats suggestions as JSON.

use serde_json::{Value as Json, json};

use super::edit::{self, Additions};
use super::{ColumnLocation, Suggestion, Suggestions};

impl Suggestions {
    /// Returns the output of `suggest --json`; `additions` lists the changes to the spec.
    #[must_use]
    pub fn to_json(&self, additions: Option<&Additions>) -> Json {
        let questions: Vec<Json> = self.questions.iter().map(question_to_json).collect();
        let bound_questions: Vec<Json> = self
            .bound_questions
            .iter()
            .map(|b| {
                json!({
                    "question": b.binding.ask, "expansion": b.expansion, "column": b.question_binding.column,
                    "sql": b.binding.sql, "model": b.question_binding.model, "bound_at": b.question_binding.bound_at,
                    "in_spec": b.in_spec,
                })
            })
            .collect();
        let column_names = |a: &Additions| -> Vec<String> {
            a.columns.iter().map(|(expansion, column)| format!("{expansion}.{column}")).collect()
        };
        let question_texts =
            |a: &Additions| -> Vec<String> { a.questions.iter().map(|q| q.2.clone()).collect() };
        json!({
            "questions": questions,
            "bound": bound_questions,
            "written": additions.map(|a| json!({ "columns": column_names(a), "questions": question_texts(a) })),
        })
    }
}

fn question_to_json(question: &Suggestion) -> Json {
    let live_question = &question.live_question;
    let location = match &question.location {
        ColumnLocation::NoSpec | ColumnLocation::NoMatch => Json::Null,
        ColumnLocation::Existing(expansion, column) => {
            json!({ "expansion": expansion, "column": column })
        }
        ColumnLocation::Expansion(joins) => json!({
            "expansion": joins.expansion, "key": joins.key, "found": joins.match_count,
            "share": joins.matching_share(), "asks": joins.requested_keys,
        }),
    };
    let origins: Vec<Json> = live_question
        .origins
        .iter()
        .map(|o| json!({ "table": o.table, "column": o.column }))
        .collect();
    json!({
        "question": question.question,
        "type": live_question.identity.kind,
        "many": live_question.identity.many,
        "list": live_question.list,
        "values": live_question.values,
        "origins": origins,
        "models": live_question.models,
        "requests": live_question.requests,
        "input_tokens": live_question.input_tokens,
        "output_tokens": live_question.output_tokens,
        "cost_usd": live_question.cost_usd,
        "last_asked": live_question.last_asked,
        "joins": location,
        "left_out": question.check_writable().err(),
        "toml": edit::format_column_toml(&question.column),
    })
}
