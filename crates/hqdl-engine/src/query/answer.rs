//! Targets of `answer` and `summary`: cells of documents.

use super::asks::{Asks, ValueForm};
use super::calls::{Birth, Calls};
use super::documents::{NAME, TEXT};
use super::reading::{column, kind, spelled};
use hqdl_facts::QuestionOrigin;
use hqdl_spec::Type;
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith};

impl Calls {
    /// Sets the target of a question about each document to an ad-hoc column. `usage` combines all
    /// calls with the same question; `own_usage` is the usage of this call only.
    pub(super) fn answer(&mut self, n: usize, call: &Call, usage: &CallUsage, alone: &CallUsage) {
        let kind = kind(call, usage, None);
        let names = ["document".to_owned()];
        let mut column = column(call.question.trim(), kind, None, false, &names);
        // A text that the answer is compared with serves as an example of its format.
        column.example = usage.compared.iter().find_map(|c| match c {
            ComparedWith::Text(text) if kind == Type::Text => Some(text.clone()),
            _ => None,
        });
        column.origin = self.kinds.describe(&usage.keys);
        let target =
            self.target(self.models[n].clone(), NAME, names.to_vec(), vec![TEXT.to_owned()]);
        let at = self.column(target, column);
        self.birth(target, at, usage);
        let whole = usage.said.is_none() && kind == Type::Real;
        // A computed text may contain the rows of a group.
        let computed = alone.keys.first().is_none_or(|key| key.origin.is_none());
        let whole_document = computed && call.ingredient.needs_all_rows();
        let words = spelled(call, alone).filter(|_| kind == Type::Boolean);
        self.asks[n] = Asks::Document {
            target,
            column: at,
            whole: whole_document,
            form: ValueForm { whole, words, ..ValueForm::default() },
        };
        self.place(n, call, usage);
    }

    /// Records the origin of the values of a question.
    pub(super) fn birth(&mut self, target: usize, column: usize, usage: &CallUsage) {
        let origin = usage.keys.first().and_then(|k| k.origin.as_ref());
        let origin = origin.map_or_else(
            || QuestionOrigin { table: String::new(), column: String::new() },
            |o| QuestionOrigin { table: o.table.clone(), column: o.column.clone() },
        );
        self.births.push(Birth { target, column, origin });
    }
}
