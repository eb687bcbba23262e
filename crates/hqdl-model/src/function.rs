//! Functions of the program that uses hqdl, such as functions in Python. A function answers the
//! calls of one ingredient in place of a model, so its answers are stored and reused like others.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::Semaphore;

use super::models::{ModelSet, UnconnectedModel};
use super::{Model, ModelError, Reply, ReplyFuture, Tokens};
use hqdl_prompt::{AskedColumn, AskedRow, Prompt, Question};

/// A call of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct HostCall {
    /// The question of the ingredient's column, which names the arguments.
    pub question: String,
    /// Values of the row: the arguments that are not part of the question. For a question about
    /// rows, each is the JSON text of a table.
    pub values: Vec<Json>,
    /// Values that a join may choose from.
    pub options: Vec<String>,
}

/// A function that answers in place of a model.
pub trait HostFunction: Send + Sync {
    /// Returns the name under which the answers are stored. It contains the function's version.
    fn stored_name(&self) -> &str;

    /// Returns the maximum number of calls that the function receives at once.
    fn batch_size(&self) -> u32;

    /// Returns the maximum number of threads that may run the function.
    fn max_threads(&self) -> usize;

    /// Computes the answers of several calls, in the same order. Runs on a thread that may block.
    ///
    /// # Errors
    /// Returns a message if the function fails.
    fn compute(&self, calls: &[HostCall]) -> Result<Vec<Json>, String>;
}

/// Returns a model that answers with functions, by the names in the spec, and asks `first` about
/// everything else. If `first` is a message with a hint, other requests fail with it.
#[must_use]
pub fn add_functions(
    first: Result<Arc<dyn Model>, (String, String)>,
    functions: BTreeMap<String, Arc<dyn HostFunction>>,
) -> Arc<dyn Model> {
    let first = first.unwrap_or_else(|(message, hint)| {
        Arc::new(UnconnectedModel { name: "no model".to_owned(), message, hint })
    });
    let connect = |function: Arc<dyn HostFunction>| {
        let threads = Arc::new(Semaphore::new(function.max_threads().max(1)));
        Arc::new(FunctionModel { function, threads }) as Arc<dyn Model>
    };
    let others = functions.into_iter().map(|(name, function)| (name, connect(function)));
    Arc::new(ModelSet { first, others: others.collect() })
}

/// A function as a model.
struct FunctionModel {
    function: Arc<dyn HostFunction>,
    threads: Arc<Semaphore>,
}

impl FunctionModel {
    async fn answer(&self, prompt: &Prompt) -> Result<Reply, ModelError> {
        let question = Question::parse(&prompt.system, &prompt.user)
            .ok_or_else(|| ModelError::NoAnswer("cannot parse the prompt".to_owned()))?;
        let cells: Vec<(&AskedRow, &AskedColumn)> = (question.rows.iter())
            .flat_map(|row| question.columns.iter().map(move |column| (row, column)))
            .collect();
        let to_call = |(row, column): &(&AskedRow, &AskedColumn)| HostCall {
            question: column.about.clone(),
            values: if row.context.is_empty() { row.key.clone() } else { row.context.clone() },
            options: column.values.clone().unwrap_or_default(),
        };
        let calls: Vec<HostCall> = cells.iter().map(to_call).collect();
        let number = |row: &AskedRow, column: &AskedColumn| {
            cells.iter().position(|(r, c)| r.number == row.number && c.name == column.name)
        };
        let permit = Arc::clone(&self.threads).acquire_owned().await;
        let function = Arc::clone(&self.function);
        let computed = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let count = calls.len();
            let answers = function.compute(&calls)?;
            if answers.len() == count {
                return Ok(answers);
            }
            Err(format!("returned {} values for {count} calls", answers.len()))
        });
        let answers = computed
            .await
            .unwrap_or_else(|error| Err(error.to_string()))
            .map_err(ModelError::FunctionFailed)?;
        let cell = |row: &AskedRow, column: &AskedColumn| {
            number(row, column).map_or(Json::Null, |n| answers[n].clone())
        };
        let content = question.format_answer(cell);
        Ok(Reply { content, tokens: Some(Tokens::default()), ..Reply::default() })
    }
}

impl Model for FunctionModel {
    fn name(&self) -> &str {
        self.function.stored_name()
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(self.answer(prompt))
    }

    fn max_rows(&self) -> Option<u32> {
        Some(self.function.batch_size().max(1))
    }

    fn fixes_row_count(&self) -> bool {
        true
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}
