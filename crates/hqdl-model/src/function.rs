//! Functions of the program that uses hqdl, such as functions in Python. A function answers the
//! calls of one ingredient in place of a model, so its answers are stored and reused like others.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::Semaphore;

use super::models::{ModelSet, UnconnectedModel};
use super::{FailedCell, Model, ModelError, Reply, ReplyFuture, Tokens};
use hqdl_prompt::{AskedColumn, AskedRow, Prompt, Question};

/// A call of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct HostCall {
    /// The question of the ingredient's column, which names the arguments.
    pub question: String,
    /// Values of the row: the arguments that are not part of the question. For a question about
    /// rows, each is the JSON text of a table.
    pub values: Vec<Json>,
    /// Values that the call may choose from: its options, or the right values of a join.
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

    /// Computes the answers of several calls, in the same order: the value of each call, or the
    /// message of its failure. Runs on a thread that may block.
    fn compute(&self, calls: &[HostCall]) -> Vec<Result<Json, String>>;
}

/// Returns a model that sends each request for a named function to that function, and all other
/// requests to `first`. If `first` is an error (message and hint), those other requests fail with
/// it.
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
        let answers = self.compute_on_thread(calls).await;
        let number = |row: &AskedRow, column: &AskedColumn| {
            cells.iter().position(|(r, c)| r.number == row.number && c.name == column.name)
        };
        let cell = |row: &AskedRow, column: &AskedColumn| {
            let answer = number(row, column).and_then(|n| answers[n].as_ref().ok());
            answer.cloned().unwrap_or_default()
        };
        let content = question.format_answer(cell);
        let columns = question.columns.len().max(1);
        let failed_cells = answers.into_iter().enumerate().filter_map(|(n, answer)| {
            Some(FailedCell { row: n / columns, column: n % columns, message: answer.err()? })
        });
        let failed_cells = failed_cells.collect();
        Ok(Reply { content, failed_cells, tokens: Some(Tokens::default()), ..Reply::default() })
    }

    /// Runs the function on a thread that may block. Returns one result per call.
    async fn compute_on_thread(&self, calls: Vec<HostCall>) -> Vec<Result<Json, String>> {
        let permit = Arc::clone(&self.threads).acquire_owned().await;
        let function = Arc::clone(&self.function);
        let count = calls.len();
        let computed = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let answers = function.compute(&calls);
            if answers.len() != calls.len() {
                return Err(format!("returned {} values for {} calls", answers.len(), calls.len()));
            }
            let checked = calls.iter().zip(answers);
            Ok(checked.map(|(call, answer)| check_options(call, answer?)).collect())
        });
        let computed = computed.await.unwrap_or_else(|error| Err(error.to_string()));
        computed.unwrap_or_else(|message| vec![Err(message); count])
    }
}

/// Returns the answer if its texts are among the options of the call. A model's answer may be a
/// misspelled option, but a function's answer is not.
fn check_options(call: &HostCall, answer: Json) -> Result<Json, String> {
    let texts = answer.as_array().map_or(std::slice::from_ref(&answer), Vec::as_slice);
    let is_other = |text: &&str| !call.options.iter().any(|option| option == text);
    match texts.iter().filter_map(Json::as_str).find(is_other) {
        Some(other) if !call.options.is_empty() => {
            Err(format!("returned '{other}', which is not one of the values"))
        }
        _ => Ok(answer),
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
