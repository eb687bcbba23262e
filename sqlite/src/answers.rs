//! Answers of one database connection: known answers, and values still to be asked about.

use std::collections::HashMap;

use rusqlite::Result;
use rusqlite::types::{Value, ValueRef};
use serde_json::{Value as Json, json};

use crate::function_error;
use crate::process::HqdlProcess;

/// Maximum number of answers kept in memory. When it is reached, they are looked up again.
const MAX_CACHED: usize = 1_000_000;
/// Values per request to the process.
const VALUES_PER_REQUEST: usize = 10_000;
/// Environment variable. If it is `never`, SQL cannot send requests to a model.
const ASK_VARIABLE: &str = "HQDL_ASK";

/// Return type, text and options (as a JSON array) of a question.
type Question = (&'static str, String, Option<String>);

/// State of one question. Values are identified by their JSON.
#[derive(Default)]
struct QuestionState {
    known: HashMap<String, Value>,
    /// Values without a known answer, in the order in which they occurred.
    pending: Vec<Json>,
    pending_keys: std::collections::HashSet<String>,
}

/// Answers and pending values of a connection.
#[derive(Default)]
pub struct Answers {
    process: Option<HqdlProcess>,
    questions: HashMap<Question, QuestionState>,
    cached: usize,
}

impl Answers {
    /// Returns the answer about a value; NULL if the value has none. If the answer is not known,
    /// returns NULL and adds the value to the pending ones.
    pub fn look_up(
        &mut self,
        return_type: &'static str,
        question: &str,
        options: Option<&str>,
        value: ValueRef<'_>,
    ) -> Result<Value> {
        let value = match value {
            ValueRef::Null => return Ok(Value::Null),
            ValueRef::Integer(integer) => json!(integer),
            ValueRef::Real(real) if real.is_finite() => json!(real),
            ValueRef::Real(_) => {
                return Err(function_error("infinity is not a value to ask about".to_owned()));
            }
            ValueRef::Text(text) => match std::str::from_utf8(text) {
                Ok(text) => json!(text),
                Err(_) => {
                    return Err(function_error("the value is text that is not UTF-8".to_owned()));
                }
            },
            ValueRef::Blob(_) => {
                return Err(function_error(
                    "a BLOB is not a value to ask about: convert it to text".to_owned(),
                ));
            }
        };
        let question: Question = (return_type, question.to_owned(), options.map(str::to_owned));
        let key = value.to_string();
        if let Some(state) = self.questions.get(&question) {
            if let Some(known) = state.known.get(&key) {
                return Ok(known.clone());
            }
            if state.pending_keys.contains(&key) {
                return Ok(Value::Null);
            }
        }
        let response = self.send_request(&question, std::slice::from_ref(&value), false, None)?;
        let found = read_answer(&response, 0)?;
        if self.cached >= MAX_CACHED {
            self.questions.values_mut().for_each(|state| state.known.clear());
            self.cached = 0;
        }
        let state = self.questions.entry(question).or_default();
        if let Some(found) = found {
            self.cached += 1;
            state.known.insert(key, found.clone());
            return Ok(found);
        }
        state.pending_keys.insert(key);
        state.pending.push(value);
        Ok(Value::Null)
    }

    /// Asks about the pending values and returns their number.
    pub fn ask_pending(&mut self, budget: Option<f64>) -> Result<i64> {
        if std::env::var(ASK_VARIABLE).is_ok_and(|value| value == "never") {
            return Err(function_error(format!(
                "hqdl must not ask here, because {ASK_VARIABLE} is `never`"
            )));
        }
        let mut count = 0;
        let mut remaining = budget;
        for question in self.questions.keys().cloned().collect::<Vec<_>>() {
            loop {
                let batch: Vec<Json> = (self.questions.get(&question).into_iter())
                    .flat_map(|state| state.pending.iter().take(VALUES_PER_REQUEST).cloned())
                    .collect();
                if batch.is_empty() {
                    break;
                }
                let response = self.send_request(&question, &batch, true, remaining)?;
                remaining = remaining.map(|usd| {
                    (usd - response["meta"]["cost_usd"].as_f64().unwrap_or_default()).max(0.0)
                });
                count += batch.len();
                let state = self.questions.entry(question.clone()).or_default();
                for (index, value) in batch.iter().enumerate() {
                    // A value whose request failed is looked up again when it occurs again.
                    state.pending_keys.remove(&value.to_string());
                    if let Some(found) = read_answer(&response, index)? {
                        self.cached += 1;
                        state.known.insert(value.to_string(), found);
                    }
                }
                state.pending.drain(..batch.len());
            }
        }
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Discards the pending values and the known answers. Returns the number of pending values.
    pub fn discard(&mut self) -> i64 {
        let count: usize = self.questions.values().map(|state| state.pending.len()).sum();
        self.questions.clear();
        self.cached = 0;
        i64::try_from(count).unwrap_or(i64::MAX)
    }

    /// Sends a request about some values to the process, which it starts if necessary.
    fn send_request(
        &mut self,
        (return_type, question, options): &Question,
        values: &[Json],
        ask: bool,
        budget: Option<f64>,
    ) -> Result<Json> {
        let mut request =
            json!({ "question": question, "type": return_type, "values": values, "ask": ask });
        if let Some(options) = options {
            let list: Vec<Json> = serde_json::from_str(options).map_err(|e| {
                function_error(format!(
                    "the options are not a list: {e}; write json_array('a', 'b')"
                ))
            })?;
            request["options"] = list.into();
        }
        if let Some(budget) = budget {
            request["budget"] = budget.into();
        }
        if !self.process.as_mut().is_some_and(HqdlProcess::is_running) {
            self.process = Some(HqdlProcess::start()?);
        }
        match &mut self.process {
            Some(process) => process.send_request(&request),
            None => Err(function_error("the connection to hqdl is closed".to_owned())),
        }
    }
}

/// Returns the answer about one value of a request; `None` if it is not known. Lists are JSON.
fn read_answer(response: &Json, index: usize) -> Result<Option<Value>> {
    let state = &response["states"][index];
    // The request failed, so there is no answer.
    if state.is_null() || state == "error" {
        return Ok(None);
    }
    Ok(Some(match &response["answers"][index] {
        Json::Null => Value::Null,
        Json::Bool(boolean) => Value::Integer(i64::from(*boolean)),
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Value::Integer(integer),
            (None, Some(real)) => Value::Real(real),
            (None, None) => return Err(function_error(format!("{number} is not a number"))),
        },
        list => Value::Text(list.to_string()),
    }))
}
