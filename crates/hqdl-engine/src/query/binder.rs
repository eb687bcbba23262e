//! Asks the model once which column answers a question that no binding of the spec covers. The
//! reply is checked against the schema and stored as a binding. A reply that fails the check is
//! stored as `none`, so that nothing is asked twice.

use std::sync::Arc;

use rusqlite::types::Value as Sql;
use serde_json::json;

use super::ask::Asking;
use super::targets::{Cell, Counts, Demand, Target};
use super::{QueryError, Request};
use crate::routing::{operator, question};
use hqdl_database::now;
use hqdl_facts::Learned;
use hqdl_spec::{Binding, Column, Expansion, Type};
use hqdl_values::Row;
use hqdl_values::key::Meaning;
use hqdl_values::value::Value;

/// Maximum number of values of a list that the model is shown. It may answer with others.
const SHOWN: usize = 100;

const ABOUT: &str = "Each row is a question about one thing and, in `columns`, what is known of \
each such thing. Say which one column answers the question exactly, for every thing, and how. When \
none does, or you are not sure, the column and the operator are \"none\".";
const COLUMN: &str = "the name of the one column that answers the question, or \"none\"";
const OPERATOR: &str = "how it does: \"is\" when the answer is the column's value itself; =, <>, <, \
<=, > or >= when the answer is whether the value compares so with the literal; \"in\" when it is \
whether the value is one of several; \"has\" when it is whether a column with `many` holds the \
literal; else \"none\"";
const LITERAL: &str = "what the column is compared with: one of its `values` where it has any, else \
a value of its type; for \"in\" a JSON array of them, as text; nothing for \"is\"";

/// Asks the model which column answers a question.
pub struct Binder<'b, 'a> {
    request: &'b Request<'b>,
    model: &'b str,
    /// The run that sends requests; `None` if the query is only explained.
    asking: Option<&'b Asking<'a>>,
}

/// Outcome of a routing question.
#[derive(Debug)]
pub enum Word {
    /// A column answers the question.
    Bound {
        /// Position of the column.
        column: usize,
        /// Binding of the question to the column.
        binding: Binding,
        /// Whether the answer is true or false.
        truth: bool,
        /// Date of the model's reply.
        date: String,
    },
    /// No column answers it, or no model was asked; holds the reason.
    No(String),
}

/// Prefix of the reason if the model would have to be asked first.
pub(super) const WOULD_ASK: &str = "would ask the model";

impl<'b, 'a> Binder<'b, 'a> {
    /// Returns a router for the model with this name.
    pub fn new(request: &'b Request<'b>, model: &'b str, asking: Option<&'b Asking<'a>>) -> Self {
        Self { request, model, asking }
    }

    /// Returns how a column of an expansion answers a question, if one does.
    ///
    /// # Errors
    /// [`QueryError`] for errors that stop the run.
    pub fn bind(&mut self, expansion: &Expansion, ask: &str) -> Result<Word, QueryError> {
        let offered = operator::offered(expansion);
        let question = question::normal(ask).join(" ");
        let known = self.request.facts.history().learned(&offered, &question, self.model)?;
        if let Some(learned) = known {
            return Ok(word(expansion, &learned));
        }
        let name = &expansion.name;
        let answers = match self.ask(expansion, &offered, ask)? {
            BindingReply::Answers(answers) => answers,
            BindingReply::Nobody if self.asking.is_none() => {
                let why = format!("{WOULD_ASK} whether a column of `{name}` answers it");
                return Ok(Word::No(why));
            }
            BindingReply::Nobody => {
                return Ok(Word::No("there is no model to ask for a column".into()));
            }
            BindingReply::Failed => {
                let why =
                    format!("the model failed to say whether a column of `{name}` answers it");
                return Ok(Word::No(why));
            }
        };
        let LiteralAnswers { values: [column, operator, literal], completion } = answers;
        let mut learned = Learned {
            ask: ask.trim().to_owned(),
            model: self.model.to_owned(),
            expansion: String::new(),
            column: String::new(),
            operator: "none".to_owned(),
            literal: String::new(),
            completion,
            bound_at: now(),
        };
        if let Some(at) = expansion.column(&column) {
            let column = &expansion.columns[at];
            let operator = operator.to_lowercase();
            if operator::binding(column, ask, &operator, &literal).is_ok() {
                learned.expansion.clone_from(&expansion.name);
                learned.column.clone_from(&column.name);
                learned.operator = operator;
                learned.literal = literal;
            }
        }
        self.request.facts.history().learn(&offered, &question, &learned)?;
        Ok(word(expansion, &learned))
    }

    /// Asks the model about a question, as about any other cell.
    fn ask(
        &mut self,
        expansion: &Expansion,
        offered: &str,
        ask: &str,
    ) -> Result<BindingReply, QueryError> {
        let request = self.request;
        let facts = request.facts.latest();
        let asked = Arc::new(question(expansion, offered));
        let wanted = request.choice(&asked).wanted(request.facts.history(), &asked)?;
        let meaning = wanted.meaning(0);
        let mut targets = [Target::new(asked, Arc::new(wanted), None)];
        let text = Value::Text(ask.trim().to_owned());
        let context = Value::Text(columns(expansion));
        let row = || Row { key: vec![text], context: vec![context] };
        let entity = targets[0].entity(ask.as_bytes(), row);
        let mut counts = Counts::default();
        let mut demands = Vec::new();
        for column in 0..3 {
            if *targets[0].cell(entity, column, facts, None, &mut counts)? == Cell::Missing {
                demands.push(Demand { target: 0, entity, column });
            }
        }
        if !demands.is_empty() {
            let Some(asking) = self.asking else { return Ok(BindingReply::Nobody) };
            if request.model.is_none() {
                return Ok(BindingReply::Nobody);
            }
            asking.asker()?.ask(&mut targets, &demands, &mut counts)?;
        }
        let mut values: [String; 3] = Default::default();
        for (column, value) in values.iter_mut().enumerate() {
            match targets[0].cell(entity, column, facts, None, &mut counts)? {
                Cell::Known(Sql::Text(text)) => text.trim().clone_into(value),
                Cell::Known(_) => {}
                // A failed request is no answer to the question.
                Cell::Failed | Cell::Missing | Cell::Unseen => return Ok(BindingReply::Failed),
            }
        }
        let record = facts.get(&targets[0].gap(entity).entity)?.unwrap_or_default();
        let fact = record.facts.iter().find(|f| Some(f.meaning) == meaning);
        let completion = fact.map(|f| f.completion).unwrap_or_default();
        Ok(BindingReply::Answers(LiteralAnswers { values, completion }))
    }
}

/// Outcome of asking the model.
enum BindingReply {
    Answers(LiteralAnswers),
    Nobody,
    Failed,
}

/// Column, operator and literal of the reply (empty if missing), and its completion.
struct LiteralAnswers {
    values: [String; 3],
    completion: i64,
}

/// Checks a stored reply against the current columns.
fn word(expansion: &Expansion, learned: &Learned) -> Word {
    let date = learned.bound_at.get(..10).unwrap_or_default().to_owned();
    let none =
        || Word::No(format!("by the model, {date}: no column of `{}` answers it", expansion.name));
    if learned.operator == "none" {
        return none();
    }
    let Some(column) = expansion.column(&learned.column) else { return none() };
    let of = &expansion.columns[column];
    match operator::binding(of, &learned.ask, &learned.operator, &learned.literal) {
        Ok(binding) => {
            Word::Bound { column, binding, truth: operator::is_truth(of, &learned.operator), date }
        }
        Err(why) => Word::No(format!("what the model said on {date} no longer holds: {why}")),
    }
}

/// Returns the expansion that asks which column answers. The offered columns are part of its
/// identity.
fn question(expansion: &Expansion, offered: &str) -> Expansion {
    let column = |(name, about): (&str, &str)| {
        let meaning = Meaning {
            key: vec!["question".to_owned()],
            column: name.to_owned(),
            kind: Type::Text.name().to_owned(),
            about: format!("{about} {offered}"),
            many: false,
            list: "none".to_owned(),
            kinds: Vec::new(),
        };
        Column::ad_hoc(Type::Text, about.to_owned(), None, meaning)
    };
    let thing = expansion.about.trim();
    let about =
        if thing.is_empty() { ABOUT.to_owned() } else { format!("{ABOUT} The things: {thing}") };
    let asked = [("column", COLUMN), ("operator", OPERATOR), ("literal", LITERAL)];
    Expansion {
        about,
        context: vec!["columns".to_owned()],
        rows_per_request: 1,
        columns: asked.map(column).into(),
        ..Expansion::ad_hoc("routing", vec!["question".to_owned()])
    }
}

/// Returns the columns of an expansion as JSON for the prompt.
fn columns(expansion: &Expansion) -> String {
    let all: Vec<_> = expansion
        .columns
        .iter()
        .map(|c| {
            let mut column = json!({ "column": c.name, "type": c.kind.name(), "about": c.about });
            if c.many.is_some() {
                column["many"] = true.into();
            }
            if let Some(list) = &c.values {
                column["values"] = list.values.iter().take(SHOWN).cloned().collect();
                if list.values.len() > SHOWN {
                    column["more_values"] = (list.values.len() - SHOWN).into();
                }
            }
            column
        })
        .collect();
    serde_json::Value::from(all).to_string()
}
