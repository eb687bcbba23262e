//! Asks the model for SQL, and for prose about the rows of a query. Each answer is a cell of an
//! ad-hoc expansion, so that it is claimed, reserved, stored and found again like any other answer.

use std::sync::Arc;

use crate::query::ask::LazyRun;
use crate::query::cells::targets::{Cell, Counts, Demand, TargetExpansion};
use crate::query::request::error::QueryError;
use crate::query::request::{RefreshScope, Request};
use hqdl_spec::{Column, Expansion, Format, Task, Type};
use hqdl_values::Row;
use hqdl_values::key::ColumnIdentity;
use hqdl_values::usage::Usage;
use hqdl_values::value::Value;
use rusqlite::types::Value as Sql;

/// A question that the model answers with SQL.
#[derive(Debug, Clone)]
pub struct StatementQuestion {
    /// Names and texts that identify the question: the question itself, and, for a repair, the
    /// earlier query and its error.
    pub key: Vec<(&'static str, String)>,
    /// Identity of the database's schema. An answer for a different schema is not reused.
    pub schema: String,
    /// Instructions that are the same for every question.
    pub instructions: String,
    /// Description of the database.
    pub context: String,
}

/// A question that the model answers with a few sentences about rows.
#[derive(Debug, Clone)]
pub struct ProseQuestion {
    /// Text of the question. The text and the digest together identify the question.
    pub question: String,
    /// Digest of the rows.
    pub digest: String,
    /// Instructions for the model, on one line.
    pub instructions: String,
    /// The rows as a JSON object with `columns` and `rows`.
    pub table: String,
}

/// An expansion with one column and one row, whose only cell is the answer to a question.
struct AnswerCell {
    expansion: Expansion,
    row: Row,
}

/// Asks the model for SQL and prose within the budget of one run.
pub struct StatementWriter<'a> {
    request: Request<'a>,
    run: LazyRun<'a>,
    /// Earlier answers that the writer asks for again.
    retried: RefreshScope,
}

impl<'a> StatementWriter<'a> {
    /// Returns a writer that spends at most the budget of the request's spec. The request's `sql`
    /// only names the run in the journal. If `rewrites` is true, asks again for every answer of
    /// earlier runs. Otherwise asks again only for answers that could not be read.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the journal cannot be read.
    pub fn new(request: &Request<'a>, rewrites: bool) -> Result<Self, QueryError> {
        let up_to = request.facts.history().load_last_completion_id()?;
        let retried = RefreshScope { up_to, failed_only: !rewrites };
        Ok(Self { request: request.clone(), run: LazyRun::new(request), retried })
    }

    /// Returns the stored answer to a question, if there is one.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the facts cannot be read.
    pub fn find_stored_answer(
        &self,
        question: &StatementQuestion,
    ) -> Result<Option<String>, QueryError> {
        let (mut targets, entity) = self.build_target(AnswerCell::for_statement(question))?;
        self.look_up_answer(&mut targets, entity)
    }

    /// Returns the answer to a question as JSON text, from the facts or from the model. Returns
    /// `None` if the model's reply could not be read.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the request fails, for example because it would exceed the budget,
    /// or if the provider refuses it.
    pub fn write_statement(
        &self,
        question: &StatementQuestion,
    ) -> Result<Option<String>, QueryError> {
        self.find_or_ask(AnswerCell::for_statement(question), &|| {})
    }

    /// Returns prose about rows, from the facts or from the model. Returns `None` if the model's
    /// reply contains no prose. Calls `before_request` before a request.
    ///
    /// # Errors
    /// Same as [`Self::write_statement`].
    pub fn write_prose(
        &self,
        question: &ProseQuestion,
        before_request: &dyn Fn(),
    ) -> Result<Option<String>, QueryError> {
        self.find_or_ask(AnswerCell::for_prose(question), before_request)
    }

    fn find_or_ask(
        &self,
        cell: AnswerCell,
        before_request: &dyn Fn(),
    ) -> Result<Option<String>, QueryError> {
        let (mut targets, entity) = self.build_target(cell)?;
        if let Some(stored) = self.look_up_answer(&mut targets, entity)? {
            return Ok(Some(stored));
        }
        before_request();
        let demands = vec![Demand::new(0, entity, 0)];
        let mut counts = Counts::default();
        self.run.get_or_start_run()?.send_demands(&mut targets, demands, &mut counts)?;
        match self.look_up_answer(&mut targets, entity)? {
            None if counts.refused > 0 => Err(QueryError::Refused),
            answer => Ok(answer),
        }
    }

    /// Ends the run and returns its usage.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the journal fails.
    pub fn finish(self, complete: bool) -> Result<Usage, QueryError> {
        self.run.finish_run(complete)
    }

    fn build_target(&self, cell: AnswerCell) -> Result<([TargetExpansion; 1], usize), QueryError> {
        let expansion = Arc::new(cell.expansion);
        let models = self.request.choose_models(&expansion);
        let mut requirements =
            models.build_requirements(self.request.facts.history(), &expansion)?;
        self.retried.mark_values_missing(&mut requirements, 1);
        let mut targets = [TargetExpansion::new(expansion, Arc::new(requirements), None)];
        let entity = targets[0].intern_entity(b"question", || cell.row);
        Ok((targets, entity))
    }

    fn look_up_answer(
        &self,
        targets: &mut [TargetExpansion; 1],
        entity: usize,
    ) -> Result<Option<String>, QueryError> {
        let facts = self.request.facts.sync();
        let mut counts = Counts::default();
        match targets[0].look_up_cell(entity, 0, facts, None, &mut counts)? {
            Cell::Known(Sql::Text(answer)) => Ok(Some(answer.clone())),
            _ => Ok(None),
        }
    }
}

impl AnswerCell {
    fn for_statement(question: &StatementQuestion) -> Self {
        let key = question.key.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
        let about = format!("SQL over the schema {}", question.schema);
        let column = build_column(&key, "statement", about, &question.instructions);
        let expansion = build_expansion("statement", key, column);
        let key = question.key.iter().map(|(_, text)| Value::Text(text.clone())).collect();
        Self {
            expansion: Expansion {
                context: vec!["database".to_owned()],
                task: Task::Statement,
                ..expansion
            },
            row: Row { key, context: vec![Value::Text(question.context.clone())] },
        }
    }

    fn for_prose(question: &ProseQuestion) -> Self {
        let key = vec!["question".to_owned()];
        let about = format!("prose about the rows {}", question.digest);
        let column = build_column(&key, "prose", about, &question.instructions);
        let expansion = build_expansion("prose", key, column);
        Self {
            expansion: Expansion {
                context: vec!["rows".to_owned()],
                task: Task::Rows,
                ..expansion
            },
            row: Row {
                key: vec![Value::Text(question.question.clone())],
                context: vec![Value::Text(question.table.clone())],
            },
        }
    }
}

/// Returns a column that is identified by `about` and described by `instructions` in the prompt.
fn build_column(key: &[String], name: &str, about: String, instructions: &str) -> Column {
    let identity = ColumnIdentity {
        key: key.to_vec(),
        column: name.to_owned(),
        kind: Type::Text.name().to_owned(),
        about,
        many: false,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    Column::new_ad_hoc(Type::Text, instructions.to_owned(), None, identity)
}

fn build_expansion(name: &str, key: Vec<String>, column: Column) -> Expansion {
    Expansion {
        rows_per_request: 1,
        format: Some(Format::Json),
        columns: vec![column],
        ..Expansion::new_ad_hoc(name, key)
    }
}
