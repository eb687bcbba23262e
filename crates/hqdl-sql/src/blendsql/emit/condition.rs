//! Writes conditions with calls as CASE expressions: first the parts without calls, then the calls,
//! each only if the parts before it do not decide the row.
//!
//! The SQL returns 1 if a condition is true, 0 if it is false or NULL, and 2 while it depends on a
//! pending call. NOT is pushed down to the predicates, so two values and *pending* are enough.
//! Where NULL and false must be distinguished, the SQL tests separately whether the condition is
//! true and whether it is false.

use super::{Emitter, sql};
use crate::blendsql::plan::ValueCondition;
use crate::blendsql::plan::condition::{Condition, Parts, Predicate};
use crate::blendsql::tree::Expr;

/// Maximum size in bytes of a condition that is written twice: once for the cache lookup and once
/// for the requests.
const MAX_DUPLICATED_BYTES: usize = 20_000;

impl Emitter<'_> {
    /// Returns SQL for the combined truth value of a row's conditions.
    pub(super) fn write_truth(&mut self, condition: &Condition) -> String {
        let text = self.write_truth_with_demands(condition);
        if condition.call_count() < 2 {
            return text;
        }
        // Cached answers may decide a row before any request is made for it.
        let from_cache = self.write_cached_truth(condition);
        sql::lookup_before_asking_sql(&from_cache, &text, true)
    }

    /// Returns SQL for the truth value of a condition that is part of a value.
    pub(super) fn write_nested_condition(&mut self, expr: &Expr) -> String {
        match self.find_planned_condition(expr) {
            Some(planned) => self.write_truth(&planned.holds),
            None => sql::plain_truth_sql(self.source_text(expr), true),
        }
    }

    /// Returns SQL for the value of an AND or OR with calls: 1, 0 or NULL.
    pub(super) fn write_condition_value(&mut self, expr: &Expr) -> String {
        let Some(ValueCondition { holds, fails: Some(fails), .. }) =
            self.find_planned_condition(expr)
        else {
            return self.source_text(expr).to_owned();
        };
        let (is_true, is_false) =
            (self.write_truth_with_demands(holds), self.write_truth_with_demands(fails));
        let text = sql::truth_value_sql(&is_true, &is_false);
        // Each level of nesting would multiply the length of the text.
        if holds.call_count() < 2 || text.len() > MAX_DUPLICATED_BYTES {
            return text;
        }
        let (is_true, is_false) = (self.write_cached_truth(holds), self.write_cached_truth(fails));
        sql::lookup_value_before_asking_sql(&is_true, &is_false, &text)
    }

    /// Returns SQL for the truth value of a condition, in which calls without an answer record
    /// demands.
    fn write_truth_with_demands(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::Predicate(predicate) => self.write_predicate(predicate),
            Condition::All(parts) => sql::all_of_sql(self.write_parts(parts)),
            Condition::Any(parts) => sql::any_of_sql(self.write_parts(parts)),
        }
    }

    /// Returns the SQL of conditions in the order of evaluation.
    fn write_parts(&mut self, parts: &Parts) -> Vec<String> {
        let mut texts = Vec::new();
        for part in parts.ordered_parts() {
            let text = self.write_truth_with_demands(part);
            // Cached answers may decide a part regardless of the evaluation order.
            texts.push(if part.call_count() > 1 && text.len() <= MAX_DUPLICATED_BYTES {
                sql::lookup_before_asking_sql(&self.write_cached_truth(part), &text, false)
            } else {
                text
            });
        }
        texts
    }

    /// Returns SQL for the truth value of a condition from cached answers only: 1, 0, or 2 if it is
    /// undecided.
    fn write_cached_truth(&mut self, condition: &Condition) -> String {
        match condition {
            // `SQLite` runs some subqueries only once for many rows. Such a subquery must not run
            // first during a lookup, which makes no requests.
            Condition::Predicate(predicate) if predicate.has_hidden_calls => "2".to_owned(),
            Condition::Predicate(predicate) => self.write_predicate(predicate),
            Condition::All(Parts { parts, .. }) | Condition::Any(Parts { parts, .. }) => {
                let (with_calls, plain): (Vec<&Condition>, Vec<&Condition>) =
                    parts.iter().partition(|p| p.call_count() > 0);
                let with_calls: Vec<String> =
                    with_calls.into_iter().map(|p| self.write_cached_truth(p)).collect();
                let plain: Vec<String> =
                    plain.into_iter().map(|p| self.write_cached_truth(p)).collect();
                sql::evaluate_all_sql(matches!(condition, Condition::All(_)), &plain, &with_calls)
            }
        }
    }

    fn write_predicate(&mut self, predicate: &Predicate) -> String {
        let text = self.write_value(&predicate.expr);
        if !predicate.depends_on_call {
            return sql::plain_truth_sql(&text, predicate.wanted);
        }
        let at = self.add_predicate(predicate);
        sql::predicate_truth_sql(at, &text, predicate.wanted)
    }

    /// Returns SQL for the truth value of `… IS NOT NULL`, applied to a value with calls.
    pub(super) fn write_not_null(&mut self, predicate: &Predicate) -> String {
        let text = sql::is_not_null_sql(&self.write_value(&predicate.expr));
        sql::predicate_truth_sql(self.add_predicate(predicate), &text, true)
    }

    /// Adds a predicate to the result, and returns the offset that identifies it.
    fn add_predicate(&mut self, predicate: &Predicate) -> usize {
        let at = predicate.expr.span.start;
        self.out.predicates.insert(at, predicate.shared_calls.clone());
        at
    }
}
