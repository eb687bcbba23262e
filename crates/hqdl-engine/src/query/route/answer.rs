//! Targets of `answer` and `summary`: cells of documents.

use crate::query::cells::call_target::{CallTarget, ValueConversion};
use crate::query::cells::documents::{DOCUMENT_CONTEXT, DOCUMENTS_EXPANSION};
use crate::query::cells::reduction::{ReductionColumns, build_combining_question};
use crate::query::route::answer_parsing::{
    build_ad_hoc_column, infer_answer_type, returns_list, yes_no_words,
};
use crate::query::route::calls::{Calls, NewQuestion};
use hqdl_facts::QuestionOrigin;
use hqdl_spec::Type;
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith};

impl Calls {
    /// Sets the target of a call about documents to an ad-hoc column. `usage` combines all calls
    /// with the same question; `own_usage` is the usage of this call alone.
    pub(in crate::query) fn set_document_target(
        &mut self,
        n: usize,
        call: &Call,
        usage: &CallUsage,
        own_usage: &CallUsage,
    ) {
        let data_type = infer_answer_type(call, usage, None);
        let names = ["document".to_owned()];
        let question = call.question.trim();
        let column_of = |question: &str, data_type, is_list| {
            build_ad_hoc_column(question, data_type, None, is_list, &names)
        };
        let is_list = returns_list(call);
        let mut column = column_of(question, data_type, is_list);
        // Use a text that the answer is compared with as an example of the answer's format.
        column.example = usage.compared_with.iter().find_map(|c| match c {
            ComparedWith::Text(text) if data_type == Type::Text => Some(text.clone()),
            _ => None,
        });
        column.origin = self.kinds.describe_origins(&usage.keys);
        let target = self.find_or_add_target(
            self.models[n].clone(),
            DOCUMENTS_EXPANSION,
            names.to_vec(),
            vec![DOCUMENT_CONTEXT.to_owned()],
        );
        let at = self.find_or_add_column(target, column);
        self.record_question(target, at, usage);
        let prefers_integer = usage.stated_type.is_none() && data_type == Type::Real;
        // A computed text may combine all rows of a group.
        let computed = own_usage.keys.first().is_none_or(|key| key.origin.is_none());
        let reduction = (computed && call.ingredient.needs_all_rows()).then(|| {
            let combining = build_combining_question(question);
            let mut add = |column| self.find_or_add_column(target, column);
            ReductionColumns {
                part: add(column_of(question, Type::Text, false)),
                combined: add(column_of(&combining, Type::Text, false)),
                result: add(column_of(&combining, data_type, is_list)),
            }
        });
        let yes_no_words = yes_no_words(call, own_usage).filter(|_| data_type == Type::Boolean);
        self.call_targets[n] = CallTarget::Document {
            target,
            column: at,
            reduction,
            conversion: ValueConversion {
                prefers_integer,
                yes_no_words,
                ..ValueConversion::default()
            },
        };
        self.wrap_lists(n, call, usage);
    }

    /// Records the origins of the values that a question asks about.
    pub(in crate::query) fn record_question(
        &mut self,
        target: usize,
        column: usize,
        usage: &CallUsage,
    ) {
        let origin = usage.keys.first().and_then(|k| k.origin.as_ref());
        let origin = origin.map_or_else(
            || QuestionOrigin { table: String::new(), column: String::new() },
            |o| QuestionOrigin { table: o.table.clone(), column: o.column.clone() },
        );
        self.new_questions.push(NewQuestion { target, column, origin });
    }
}
