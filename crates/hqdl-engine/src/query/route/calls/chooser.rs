//! Chooses the targets of a query's calls, one after another.

use std::collections::HashMap;

use crate::query::cells::call_target::CallTarget;
use crate::query::request::error::QueryError;
use crate::query::route::call_options::{ValueListProvider, read_options};
use crate::query::route::calls::binding::{BoundColumn, find_bound_column, route_by_model};
use crate::query::route::calls::{Calls, JoinCall, check_group, explain_media_mismatch};
use crate::query::route::model_router::ModelRouter;
use hqdl_spec::Spec;
use hqdl_sql::blendsql::ingredients::SimilarityFunction;
use hqdl_sql::blendsql::parse::ParsedQuery;
use hqdl_sql::blendsql::usage::CallUsage;
use hqdl_sql::blendsql::{Call, Choices, Ingredient, Subject};

/// The query, and the targets chosen so far.
pub(super) struct TargetChooser<'c, 'm, 'a> {
    pub(super) calls: Calls,
    pub(super) sql: &'c str,
    pub(super) parsed: &'c ParsedQuery,
    pub(super) spec: &'c Spec,
    /// Usage of each call as written in the query.
    pub(super) own_usages: &'c HashMap<usize, CallUsage>,
    /// Usage of each call, combined with the usages of equal calls.
    pub(super) usages: &'c HashMap<usize, CallUsage>,
    /// Like `usages`, but over the tables behind the views; `None` if the query reads no view.
    pub(super) through: Option<&'c HashMap<usize, CallUsage>>,
    /// Usage of calls that have no entry in `usages`.
    pub(super) unknown: &'c CallUsage,
    pub(super) value_provider: &'c mut dyn ValueListProvider,
    pub(super) router: &'c mut ModelRouter<'m, 'a>,
}

impl<'c> TargetChooser<'c, '_, '_> {
    /// Chooses the target of a call according to its subject.
    pub(super) fn choose_target(&mut self, n: usize) -> Result<(), QueryError> {
        let (sql, parsed) = (self.sql, self.parsed);
        let call = &parsed.calls[n];
        let text = sql[call.span.clone()].to_owned();
        check_group(call, self.own_usage(n))?;
        let why = match call.ingredient.subject() {
            Subject::Value | Subject::Document => match self.find_column(n, call)? {
                Ok(bound) => {
                    let usage = self.usage(n);
                    return self.calls.bind_call(n, call, &bound, usage, self.spec, text);
                }
                Err(why) => {
                    self.set_ad_hoc_target(n, call)?;
                    why
                }
            },
            Subject::Rows => {
                let usage = self.usage(n);
                // A call of a function always has the function's type.
                let infers = call.return_type.is_none() || self.takes_options(n);
                let value_provider = &mut *self.value_provider;
                self.calls.set_rows_target(n, sql, parsed, usage, value_provider, infers)?;
                "the question is about rows, not about an entity".to_owned()
            }
            Subject::Embedding => self.set_embedding_target(n, call)?,
            Subject::Pair => {
                self.add_join(n, call);
                "a join asks about pairs of values".to_owned()
            }
        };
        self.calls.add_ad_hoc_route(n, call, text, why);
        Ok(())
    }

    fn usage(&self, n: usize) -> &'c CallUsage {
        self.usages.get(&n).unwrap_or(self.unknown)
    }

    /// Returns true if a function with an argument for the options answers a call.
    fn takes_options(&self, n: usize) -> bool {
        let model = self.calls.models[n].as_deref();
        let mut functions =
            self.spec.ingredients.iter().filter(|own| own.model.as_deref() == model);
        functions.any(|own| own.function.as_ref().is_some_and(|f| f.takes_options))
    }

    fn own_usage(&self, n: usize) -> &'c CallUsage {
        self.own_usages.get(&n).unwrap_or(self.unknown)
    }

    fn usage_through_views(&self, n: usize) -> Option<&'c CallUsage> {
        self.through.and_then(|through| through.get(&n))
    }

    /// Returns the spec column that answers a call, or the reason why no column answers it.
    fn find_column(
        &mut self,
        n: usize,
        call: &Call,
    ) -> Result<Result<BoundColumn, String>, QueryError> {
        let (sql, parsed, spec, usage) = (self.sql, self.parsed, self.spec, self.usage(n));
        if matches!(call.options, Some(Choices::RowList(_))) {
            return Ok(Err("its options are a list for each row".to_owned()));
        }
        if call.is_question_computed {
            return Ok(Err("its question is different for each row".to_owned()));
        }
        let options = |value_provider: &mut dyn ValueListProvider| {
            read_options(sql, parsed, call, usage, value_provider, false)
        };
        let mut found = find_bound_column(spec, call, usage, self.value_provider, &options)?;
        // Columns of the view itself have priority, because a view may be the source of an
        // expansion.
        if let (Some(through), false) = (self.usage_through_views(n), matches!(found, Ok(Some(_))))
            && let Ok(Some(bound)) =
                find_bound_column(spec, call, through, self.value_provider, &options)?
        {
            found = Ok(Some(bound));
        }
        let why = match found {
            Ok(Some(bound)) => {
                let expansion = &spec.expansions[bound.expansion];
                let model_mismatch = self.calls.explain_model_mismatch(n, call, spec, &bound);
                match model_mismatch.or(explain_media_mismatch(call, expansion)) {
                    None => return Ok(Ok(bound)),
                    Some(why) => why,
                }
            }
            Ok(None) if spec.expansions.is_empty() => "no expansion is defined".to_owned(),
            Ok(None) => "no column of the spec answers this question".to_owned(),
            Err(why) => why,
        };
        if !spec.routing_by_model || call.model.is_some() || call.media.is_some() {
            return Ok(Err(why));
        }
        let found = route_by_model(spec, call, usage, self.value_provider, &options, self.router)?;
        Ok(found.map_err(|reason| reason.unwrap_or(why)))
    }

    /// Sets the target of a question about a value or a document to an ad-hoc column.
    fn set_ad_hoc_target(&mut self, n: usize, call: &Call) -> Result<(), QueryError> {
        let usage = self.usage(n);
        let based = self.usage_through_views(n).map(|through| usage.with_base_columns(through));
        let usage = based.as_ref().unwrap_or(usage);
        if call.ingredient.subject() == Subject::Document {
            self.calls.set_document_target(n, call, usage, self.own_usage(n));
            return Ok(());
        }
        let media = &self.spec.media;
        self.calls.set_value_target(n, self.sql, self.parsed, usage, self.value_provider, media)
    }

    /// Sets the target of a call that reads embeddings. Returns the reason for the route.
    fn set_embedding_target(&mut self, n: usize, call: &Call) -> Result<String, QueryError> {
        let name = call.ingredient.name();
        let Some(settings) = &self.spec.embeddings else {
            return Err(QueryError::in_sql(
                "a call needs embeddings, and the spec names no embedding model",
                Some(call.span.clone()),
                "needs [embeddings]",
                "add to the spec: [embeddings] model = \"text-embedding-3-small\"",
            ));
        };
        let target = self.calls.find_or_add_embedding_target(&settings.model.name);
        self.calls.call_targets[n] =
            CallTarget::Embedding { target, is_similarity: name == SimilarityFunction.name() };
        let usage = self.usage(n);
        self.calls.wrap_lists(n, call, usage);
        Ok(format!("embeddings of `{}`", settings.model.name))
    }

    fn add_join(&mut self, n: usize, call: &Call) {
        let criterion = match call.question.trim() {
            "" => call.ingredient.default_question(),
            question => question,
        };
        let left = self.usage(n).keys.first().and_then(|key| key.name.clone());
        let calls = &mut self.calls;
        calls.call_targets[n] = CallTarget::Pair { join: calls.joins.len() };
        calls.joins.push(JoinCall {
            criterion: criterion.to_owned(),
            left_name: left.unwrap_or_else(|| "value".to_owned()),
            call_number: n,
            narrow: call.narrow.map(|n| n as usize),
            min_similarity: call.min_similarity,
            model: calls.models[n].clone(),
        });
    }
}
