//! Rule: if a query needs only a few of its rows, no matter which, hqdl first asks about the rows
//! whose documents are most similar to the question.
//!
//! Precondition: the LIMIT rule applies to the outermost SELECT, without ORDER BY, DISTINCT or
//! groups, and a condition asks about a document that does not depend on another call. Any rows are
//! a valid result then, so the order of the requests does not affect correctness.

use crate::blendsql::aggregates::visit_own_exprs;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::plan::select_scope::SelectScope;
use crate::blendsql::plan::{DemandPlan, RuleResult};
use crate::blendsql::tree::{Expr, ExprKind, Span};

/// Adds the documents that determine the order of candidate rows.
pub(crate) fn order_by_similarity(plan: &mut DemandPlan, select: &SelectScope<'_>) -> RuleResult {
    let planned = plan.find_or_add_select(select.offset());
    let conditions = planned.conditions_with_calls();
    let Some(limit) = planned.limit.as_mut().filter(|_| select.analysis.standalone.is_none())
    else {
        return RuleResult::Irrelevant;
    };
    if !select.analysis.similarity_ordering {
        return RuleResult::Refused("there are too many rows to sort");
    }
    if limit.is_ordered || limit.is_distinct || limit.is_grouped {
        return RuleResult::Refused(
            "an ORDER BY, DISTINCT or GROUP BY determines which rows are needed",
        );
    }
    let documents =
        conditions.iter().flat_map(|c| find_document_calls(c, select)).collect::<Vec<_>>();
    if documents.is_empty() {
        return RuleResult::Refused("no condition asks about a document");
    }
    limit.is_ranked = true;
    limit.documents = documents;
    RuleResult::Applied(String::new())
}

/// Returns a condition's calls about documents, with the byte range of each document.
fn find_document_calls(condition: &Expr, select: &SelectScope<'_>) -> Vec<(usize, Span)> {
    let mut documents = Vec::new();
    visit_own_exprs(condition, &mut |e| {
        if let ExprKind::Call(n, args) = &e.kind
            && select.analysis.sites[*n].subject == Subject::Document
            && let [document] = args.as_slice()
            && !document.has_call()
        {
            documents.push((*n, document.span.clone()));
        }
    });
    documents
}
