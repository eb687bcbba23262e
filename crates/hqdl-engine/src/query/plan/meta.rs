//! Builds the report that accompanies a query's rows.

use std::time::Instant;

use crate::query::ask::LazyRun;
use crate::query::functions::call_runtime::lock_runtime;
use crate::query::plan::engine::Engine;
use crate::query::result::query_result::{Meta, Route};
use hqdl_sql::blendsql::plan::DemandPlan;
use hqdl_values::format::format_count;
use hqdl_values::usage::Usage;

/// Routes and notes of a query.
struct QueryReport {
    routes: Vec<Route>,
    notes: Vec<String>,
}

impl QueryReport {
    /// Adds a note about a call to its route and to the notes of the query.
    fn add_note(&mut self, call: usize, note: &str) {
        if let Some(route) = self.routes.get_mut(call) {
            route.why = format!("{}; {note}", route.why);
            self.notes.push(format!("{}: {note}", route.call));
        }
    }
}

impl Engine<'_, '_> {
    /// Returns the report on the query.
    pub(in crate::query) fn build_meta(&self, usage: Usage, began: Instant) -> Meta {
        let mut report =
            QueryReport { routes: self.calls.routes.clone(), notes: self.notes.clone() };
        self.report_truncated_contexts(&mut report);
        self.report_document_order(&mut report);
        let QueryReport { mut routes, mut notes } = report;
        notes.extend(self.lazy_run.map(LazyRun::list_missing_embedding_notes).unwrap_or_default());
        let mut unbounded = Vec::new();
        for meta in &self.nested_meta {
            for route in &meta.routes {
                match routes.iter_mut().find(|known| known.call == route.call) {
                    Some(known) => {
                        if let Some(bound) = route.bound {
                            known.bound.get_or_insert_default().merge(&bound);
                        }
                    }
                    None => routes.push(route.clone()),
                }
            }
            notes.extend(meta.notes.iter().cloned());
            unbounded.extend(meta.unbounded.iter().cloned());
        }
        let runtime = lock_runtime(&self.runtime);
        let cluster_notes = runtime.data.cluster_notes.iter();
        notes.extend(cluster_notes.map(|(call, note)| format!("{call}: {note}")));
        let counts = &runtime.data.counts;
        if counts.refused > 0 {
            notes.push(format!(
                "the model, or the endpoint's content filter, refused to answer about {}: try another question or model",
                format_count(counts.refused, "value")
            ));
        }
        if counts.invalid > 0 {
            let example = counts.invalid_example.as_ref();
            let example = example.map(|e| format!(", such as {e}")).unwrap_or_default();
            notes.push(format!(
                "the reply about {} had no readable or allowed answer{example}: try fewer rows per request, a simpler question or another model",
                format_count(counts.invalid, "value")
            ));
        }
        let sum_nested = |count: fn(&Meta) -> u64| self.nested_meta.iter().map(count).sum::<u64>();
        Meta {
            requests: usage.requests + sum_nested(|m| m.requests),
            values_asked: counts.asked + sum_nested(|m| m.values_asked),
            values_reused: counts.reused + sum_nested(|m| m.values_reused),
            values_missing: counts.without_value
                + runtime.data.unreadable.len() as u64
                + runtime.data.mismatched.len() as u64
                + sum_nested(|m| m.values_missing),
            values_unknown: counts.unknown + sum_nested(|m| m.values_unknown),
            values_unanswered: 0,
            passes: self.passes.clone(),
            input_tokens: usage.input_tokens + sum_nested(|m| m.input_tokens),
            output_tokens: usage.output_tokens + sum_nested(|m| m.output_tokens),
            cost_usd: usage.cost_usd + self.nested_meta.iter().map(|m| m.cost_usd).sum::<f64>(),
            price_notes: self.request.spec.price_notes(),
            seconds: began.elapsed().as_secs_f64(),
            routes,
            notes,
            unbounded,
            plan: DemandPlan::default(),
            sql: self.sql.clone(),
            interval: None,
        }
    }

    /// Adds notes about truncated contexts, reductions without an answer and the pairs of joins.
    fn report_truncated_contexts(&self, report: &mut QueryReport) {
        let runtime = lock_runtime(&self.runtime);
        let reduction_notes = runtime.data.reductions.notes();
        for (call, note) in
            runtime.data.contexts.list_truncation_notes().into_iter().chain(reduction_notes)
        {
            // Routes are in the order of the calls.
            report.add_note(call, &note);
        }
        for (join_pairs, join) in runtime.data.joins.iter().zip(&self.calls.joins) {
            if let Some(narrow) = join.narrow.filter(|_| join_pairs.narrowed_from > 0) {
                let note = format!(
                    "each value was compared with the {narrow} most similar values of {} (narrow={narrow})",
                    join_pairs.narrowed_from
                );
                report.add_note(join.call_number, &note);
            }
            if let Some(min_similarity) = join.min_similarity {
                let note = format!(
                    "{} with a trigram similarity below {min_similarity} did not match without a question (leave out `block` to ask about them)",
                    format_count(join_pairs.dissimilar_count, "pair")
                );
                report.add_note(join.call_number, &note);
            }
        }
    }

    /// Reports the order in which hqdl asks about documents, and settings without effect.
    fn report_document_order(&self, report: &mut QueryReport) {
        let similarity_ordered = self.rewrite_query(true).similarity_calls;
        let ordering = match &self.request.spec.embeddings {
            Some(embeddings) => format!("by embeddings of `{}`", embeddings.model.name),
            None => "by their words".to_owned(),
        };
        for (n, route) in report.routes.iter_mut().enumerate() {
            if similarity_ordered.contains(&n) {
                route.why = format!("{}; most similar documents first, {ordering}", route.why);
            }
        }
        for (n, call) in self.parsed.calls.iter().enumerate().filter(|(_, c)| !c.tuning.is_empty())
        {
            report.add_note(n, &format!("`{}` has no effect here", call.tuning.join("`, `")));
        }
    }
}
