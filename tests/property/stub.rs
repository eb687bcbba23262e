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
    /// The question without its examples, which do not change what the functions answer.
    pub question: String,
    /// The question's examples. hqdl asks a question again with other examples.
    pub examples: String,
    /// Type of the answer.
    pub kind: String,
    /// Candidates of a join. hqdl asks about a value again if further candidates appear.
    pub candidates: Vec<String>,
    /// Allowed answers. hqdl asks a question again with other allowed answers.
    pub options: Vec<String>,
    /// The value.
    pub value: String,
    /// The column that it comes from: its origin, or the left column of a join.
    pub origin: Option<String>,
    /// Further values that the model sees, such as search results. hqdl asks about a value again if
    /// they differ.
    pub context: String,
}

impl Pair {
    /// Returns the function that answers the question: without the scale of a rank. The field of an
    /// extraction names its function.
    pub fn function(&self) -> String {
        let question = self.question.split(" (a number from 0 to 10").next().unwrap_or_default();
        question.replacen("fn: ", "fn:", 1)
    }

    /// Returns one pair for each candidate of a join, and otherwise the pair itself.
    pub fn split_candidates(&self) -> Vec<Self> {
        if self.candidates.is_empty() {
            return vec![self.clone()];
        }
        let split = |text: &String| Self { candidates: vec![text.clone()], ..self.clone() };
        self.candidates.iter().map(split).collect()
    }
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
        let (of, join_column) = (&question.origin, question.key.join(", "));
        let content = question.format_answer(|row, column| {
            let value = Value::from_json(&row.key[0]).canonical_text().unwrap().into_owned();
            let about = column.about.as_str();
            let (question, examples) = about.split_once(" Examples: ").unwrap_or((about, ""));
            let (question, examples) = (question.to_owned(), examples.to_owned());
            let kind = column.data_type.clone();
            let values = column.values.clone().unwrap_or_default();
            let (candidates, options) =
                if column.many { (values, Vec::new()) } else { (Vec::new(), values) };
            let is_join = !candidates.is_empty();
            let origin = of.clone().or_else(|| is_join.then(|| join_column.clone()));
            let context = Json::from_iter(
                [&row.key[1..], row.context.as_slice(), row.passages.as_slice()].concat(),
            );
            self.asked.lock().unwrap().push(Pair {
                question,
                examples,
                kind,
                candidates,
                options,
                value,
                origin,
                context: context.to_string(),
            });
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
