//! A model in this process that computes its answers.

use std::sync::Mutex;

use serde_json::Value as Json;

use crate::other_truths::LetterCase;
use hqdl::model::{Model, Reply, ReplyFuture};
use hqdl::prompt::{Prompt, Question};
use hqdl::value::Value;
use hqdl_testkit::oracle;

/// A question and the value that it was asked about. A value of two columns counts as two values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The question.
    pub question: String,
    /// Type of the answer.
    pub kind: String,
    /// The value.
    pub value: String,
    /// The column that it comes from.
    pub origin: Option<String>,
}

/// Answers each question with its function.
pub struct Stub {
    name: String,
    asked: Mutex<Vec<Pair>>,
    case: LetterCase,
}

impl Stub {
    pub fn new(name: String, case: LetterCase) -> Self {
        Self { name, asked: Mutex::default(), case }
    }

    /// Returns and clears the pairs requested since the last call.
    pub fn take(&self) -> Vec<Pair> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn reply(&self, prompt: &Prompt) -> Reply {
        let question = Question::parse(&prompt.system, &prompt.user).unwrap();
        let of = &question.origin;
        let content = question.format_answer(|row, column| {
            let value = Value::from_json(&row.key[0]).canonical_text().unwrap().into_owned();
            // Examples do not change what the functions answer.
            let question = column.about.split(" Examples: ").next().unwrap_or_default().to_owned();
            let kind = column.data_type.clone();
            let origin = of.clone();
            self.asked.lock().unwrap().push(Pair { question, kind, value, origin });
            let mut row = row.clone();
            if let Json::String(text) = &mut row.key[0] {
                *text = self.case.fold(text);
            }
            self.case.fold_answer(oracle::answer_cell(column, &row))
        });
        Reply { content, ..Reply::default() }
    }
}

impl Model for Stub {
    fn name(&self) -> &str {
        &self.name
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(std::future::ready(Ok(self.reply(prompt))))
    }
}
