//! Translated text as a sequence of fragments that record their source positions.

use std::ops::Range;

pub use crate::translated::TranslatedQuery;

/// Fragments in order.
pub(super) type SqlText = Vec<SourceFragment>;

/// A fragment of the translated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourceFragment {
    /// Unchanged bytes of the source.
    Source(Range<usize>),
    /// Generated text, and the source bytes that it replaces.
    Generated(String, Range<usize>),
    /// A column, with its position, table and column name.
    Column(Range<usize>, Option<String>, String),
    /// A column in a nested query.
    InnerColumn(Range<usize>, Option<String>, String),
    /// `*` for all tables, or `t.*` for a single one.
    Star(Range<usize>, Option<String>),
    /// `count(t.*)`; the flag is true for DISTINCT.
    CountedRows(Range<usize>, String, bool),
}

/// Returns the query that consists of these fragments.
pub(super) fn join_fragments(old: &str, text: &SqlText) -> TranslatedQuery {
    let mut translated = TranslatedQuery::with_capacity(old.len());
    for fragment in text {
        match fragment {
            SourceFragment::Source(span)
            | SourceFragment::Column(span, ..)
            | SourceFragment::InnerColumn(span, ..)
            | SourceFragment::Star(span, _)
            | SourceFragment::CountedRows(span, ..) => {
                let same = old.get(span.clone()).unwrap_or_default();
                translated.push_fragment(same, span.clone(), true);
            }
            SourceFragment::Generated(new, span) => {
                translated.push_fragment(new, span.clone(), false);
            }
        }
    }
    translated
}
