//! Asks the model once which column answers a question that no binding of the spec covers. The
//! reply is checked against the schema and stored as a binding. A reply that fails the check is
//! stored as `none`, so that the question is not asked again.

use std::sync::Arc;

use rusqlite::types::Value as Sql;
use serde_json::json;

use crate::query::ask::LazyRun;
use crate::query::cells::targets::{Cell, Counts, Demand, TargetExpansion};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::routing::{operator, question};
use hqdl_database::current_timestamp;
use hqdl_facts::QuestionBinding;
use hqdl_spec::{Binding, Column, Expansion, Type};
use hqdl_values::Row;
use hqdl_values::key::ColumnIdentity;
use hqdl_values::value::Value;

/// Maximum number of values that the model sees from a value list. The model may answer with values
/// that it did not see.
const MAX_LISTED_VALUES: usize = 100;

const PROMPT_ABOUT: &str = "Each row is a question about one thing and, in `columns`, what is known of \
each such thing. Say which one column answers the question exactly, for every thing, and how. When \
none does, or you are not sure, the column and the operator are \"none\".";
const PROMPT_COLUMN: &str = "the name of the one column that answers the question, or \"none\"";
const PROMPT_OPERATOR: &str = "how it does: \"is\" when the answer is the column's value itself; =, <>, <, \
<=, > or >= when the answer is whether the value compares so with the literal; \"in\" when it is \
whether the value is one of several; \"has\" when it is whether a column with `many` holds the \
literal; else \"none\"";
const PROMPT_LITERAL: &str = "what the column is compared with: one of its `values` where it has any, else \
a value of its type; for \"in\" a JSON array of them, as text; nothing for \"is\"";

/// Asks the model which column answers a question.
pub struct ModelRouter<'b, 'a> {
    request: &'b Request<'b>,
    model: &'b str,
    /// Run that sends requests; `None` if the query is only explained.
    lazy_run: Option<&'b LazyRun<'a>>,
}

/// Outcome of a routing question.
#[derive(Debug)]
pub enum BindingAnswer {
    /// A column answers the question.
    Bound {
        /// Index of the column in the expansion.
        column: usize,
        /// Binding of the question to the column.
        binding: Binding,
        /// Whether the answer is true or false.
        is_truth: bool,
        /// Date of the model's reply.
        date: String,
    },
    /// No column answers the question, or no model was asked. Contains the reason.
    NoColumn(String),
}

/// Prefix of the reason if the model has not been asked yet.
pub(in crate::query) const WOULD_ASK: &str = "would ask the model";

impl<'b, 'a> ModelRouter<'b, 'a> {
    /// Returns a router for the model with this name.
    pub fn new(
        request: &'b Request<'b>,
        model: &'b str,
        lazy_run: Option<&'b LazyRun<'a>>,
    ) -> Self {
        Self { request, model, lazy_run }
    }

    /// Returns how a column of an expansion answers a question, or why no column does.
    ///
    /// # Errors
    /// Returns [`QueryError`] if an error stops the run.
    pub fn route_question(
        &mut self,
        expansion: &Expansion,
        ask: &str,
    ) -> Result<BindingAnswer, QueryError> {
        let columns_hash = operator::hash_columns(expansion);
        let question = question::normalize_question(ask).join(" ");
        let known =
            self.request.facts.history().find_binding(&columns_hash, &question, self.model)?;
        if let Some(learned) = known {
            return Ok(check_stored_binding(expansion, &learned));
        }
        let name = &expansion.name;
        let answers = match self.ask_model(expansion, &columns_hash, ask)? {
            BindingReply::Answers(answers) => answers,
            BindingReply::NoModel if self.lazy_run.is_none() => {
                let why = format!("{WOULD_ASK} whether a column of `{name}` answers it");
                return Ok(BindingAnswer::NoColumn(why));
            }
            BindingReply::NoModel => {
                return Ok(BindingAnswer::NoColumn("there is no model to ask for a column".into()));
            }
            BindingReply::Failed => {
                let why =
                    format!("the model failed to say whether a column of `{name}` answers it");
                return Ok(BindingAnswer::NoColumn(why));
            }
        };
        let LiteralAnswers { values: [column, operator, literal], completion } = answers;
        let mut learned = QuestionBinding {
            ask: ask.trim().to_owned(),
            model: self.model.to_owned(),
            expansion: String::new(),
            column: String::new(),
            operator: "none".to_owned(),
            literal: String::new(),
            completion,
            bound_at: current_timestamp(),
        };
        if let Some(at) = expansion.find_column(&column) {
            let column = &expansion.columns[at];
            let operator = operator.to_lowercase();
            if operator::build_binding(column, ask, &operator, &literal).is_ok() {
                learned.expansion.clone_from(&expansion.name);
                learned.column.clone_from(&column.name);
                learned.operator = operator;
                learned.literal = literal;
            }
        }
        self.request.facts.history().store_binding(&columns_hash, &question, &learned)?;
        Ok(check_stored_binding(expansion, &learned))
    }

    /// Looks up the cells of a routing question, and asks the model for the missing cells as for
    /// any other cell.
    fn ask_model(
        &mut self,
        expansion: &Expansion,
        columns_hash: &str,
        ask: &str,
    ) -> Result<BindingReply, QueryError> {
        let request = self.request;
        let facts = request.facts.sync();
        let routing_expansion = Arc::new(build_routing_expansion(expansion, columns_hash));
        let requirements = request
            .choose_models(&routing_expansion)
            .build_requirements(request.facts.history(), &routing_expansion)?;
        let identity = requirements.identity_id(0);
        let mut targets = [TargetExpansion::new(routing_expansion, Arc::new(requirements), None)];
        let text = Value::Text(ask.trim().to_owned());
        let context = Value::Text(format_columns_json(expansion));
        let row = || Row { key: vec![text], context: vec![context] };
        let entity = targets[0].intern_entity(ask.as_bytes(), row);
        let mut counts = Counts::default();
        let mut demands = Vec::new();
        for column in 0..3 {
            if *targets[0].look_up_cell(entity, column, facts, None, &mut counts)? == Cell::Missing
            {
                demands.push(Demand::new(0, entity, column));
            }
        }
        if !demands.is_empty() {
            let Some(lazy_run) = self.lazy_run else { return Ok(BindingReply::NoModel) };
            if request.model.is_none() {
                return Ok(BindingReply::NoModel);
            }
            lazy_run.get_or_start_run()?.send_demands(&mut targets, demands, &mut counts)?;
        }
        let mut values: [String; 3] = Default::default();
        for (column, value) in values.iter_mut().enumerate() {
            match targets[0].look_up_cell(entity, column, facts, None, &mut counts)? {
                Cell::Known(Sql::Text(text)) => text.trim().clone_into(value),
                Cell::Known(_) => {}
                // A failed request does not answer the question.
                Cell::Failed | Cell::Missing | Cell::NotLookedUp => {
                    return Ok(BindingReply::Failed);
                }
            }
        }
        let record = facts.get(&targets[0].entity_at(entity))?.unwrap_or_default();
        let fact = record.facts.iter().find(|f| Some(f.identity_id) == identity);
        let completion = fact.map(|f| f.completion).unwrap_or_default();
        Ok(BindingReply::Answers(LiteralAnswers { values, completion }))
    }
}

/// Outcome of asking the model.
enum BindingReply {
    Answers(LiteralAnswers),
    NoModel,
    Failed,
}

/// The column, operator and literal in the reply (each empty if missing), and the id of the reply's
/// completion.
struct LiteralAnswers {
    values: [String; 3],
    completion: i64,
}

/// Checks a stored reply against the current columns.
fn check_stored_binding(expansion: &Expansion, learned: &QuestionBinding) -> BindingAnswer {
    let date = learned.bound_at.get(..10).unwrap_or_default().to_owned();
    let no_column = || {
        BindingAnswer::NoColumn(format!(
            "by the model, {date}: no column of `{}` answers it",
            expansion.name
        ))
    };
    if learned.operator == "none" {
        return no_column();
    }
    let Some(column) = expansion.find_column(&learned.column) else { return no_column() };
    let bound_column = &expansion.columns[column];
    match operator::build_binding(bound_column, &learned.ask, &learned.operator, &learned.literal) {
        Ok(binding) => BindingAnswer::Bound {
            column,
            binding,
            is_truth: operator::has_boolean_answer(bound_column, &learned.operator),
            date,
        },
        Err(why) => {
            BindingAnswer::NoColumn(format!("what the model said on {date} no longer holds: {why}"))
        }
    }
}

/// Returns the expansion that asks which column answers a question. Its identity includes the
/// offered columns.
fn build_routing_expansion(expansion: &Expansion, columns_hash: &str) -> Expansion {
    let column = |(name, description): (&str, &str)| {
        let identity = ColumnIdentity {
            key: vec!["question".to_owned()],
            column: name.to_owned(),
            kind: Type::Text.name().to_owned(),
            about: format!("{description} {columns_hash}"),
            many: false,
            list: "none".to_owned(),
            kinds: Vec::new(),
            requires_evidence: false,
            candidates: Vec::new(),
        };
        Column::new_ad_hoc(Type::Text, description.to_owned(), None, identity)
    };
    let subject = expansion.about.trim();
    let description = if subject.is_empty() {
        PROMPT_ABOUT.to_owned()
    } else {
        format!("{PROMPT_ABOUT} The things: {subject}")
    };
    let questions =
        [("column", PROMPT_COLUMN), ("operator", PROMPT_OPERATOR), ("literal", PROMPT_LITERAL)];
    Expansion {
        about: description,
        context: vec!["columns".to_owned()],
        rows_per_request: 1,
        columns: questions.map(column).into(),
        ..Expansion::new_ad_hoc("routing", vec!["question".to_owned()])
    }
}

/// Returns the columns of an expansion as JSON for the prompt.
fn format_columns_json(expansion: &Expansion) -> String {
    let all: Vec<_> = expansion
        .columns
        .iter()
        .map(|c| {
            let mut column = json!({ "column": c.name, "type": c.kind.name(), "about": c.about });
            if c.many.is_some() {
                column["many"] = true.into();
            }
            if let Some(list) = &c.values {
                column["values"] = list.values.iter().take(MAX_LISTED_VALUES).cloned().collect();
                if list.values.len() > MAX_LISTED_VALUES {
                    column["more_values"] = (list.values.len() - MAX_LISTED_VALUES).into();
                }
            }
            column
        })
        .collect();
    serde_json::Value::from(all).to_string()
}
