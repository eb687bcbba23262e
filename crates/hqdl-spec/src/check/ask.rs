//! Checks `[ask]` and `[[example]]`.

use super::SpecCheck;
use crate::AskSettings;
use crate::file::{AskTable, ExampleTable};
use crate::schema_check::Step;

/// Default maximum number of tokens in a request for SQL.
const DEFAULT_CONTEXT_TOKENS: u64 = 4000;
/// Smallest allowed maximum: enough for the instructions, a question, and one table.
pub const MIN_CONTEXT_TOKENS: u64 = 1500;

impl SpecCheck<'_> {
    pub(crate) fn check_ask(&mut self, table: &AskTable, examples: &[ExampleTable]) -> AskSettings {
        if table.budget_usd.is_some_and(|usd| !(usd >= 0.0 && usd.is_finite())) {
            let path = [Step::from("ask"), "budget_usd".into()];
            let message = "`budget_usd` is not a valid amount";
            self.add_error(&path, message, "expected USD, 0 or more", "");
        }
        if table.context_tokens.is_some_and(|tokens| tokens < MIN_CONTEXT_TOKENS) {
            let path = [Step::from("ask"), "context_tokens".into()];
            let label = format!("expected at least {MIN_CONTEXT_TOKENS}");
            self.add_error(&path, "`context_tokens` is too small for a question", &label, "");
        }
        for (n, example) in examples.iter().enumerate() {
            for (field, text) in [("question", &example.question), ("sql", &example.sql)] {
                if text.trim().is_empty() {
                    let path = [Step::from("example"), n.into(), field.into()];
                    self.add_error(
                        &path,
                        &format!("the example has no {field}"),
                        "",
                        "write it, or remove the example",
                    );
                }
            }
        }
        AskSettings {
            budget_usd: table.budget_usd,
            context_tokens: table.context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS),
            shows_values: table.values.unwrap_or(true),
            examples: examples.to_vec(),
        }
    }
}
