//! Translated text as a sequence of fragments that record their source positions.

use std::ops::Range;

/// Fragments in order.
pub(super) type SqlText = Vec<SourceFragment>;

/// A fragment of the translated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SourceFragment {
    /// Unchanged bytes of the source.
    Source(Range<usize>),
    /// Generated text, and the source bytes that it replaces.
    Generated(String, Range<usize>),
    /// A column: position, table and column name.
    Column(Range<usize>, Option<String>, String),
    /// A column in a nested query.
    InnerColumn(Range<usize>, Option<String>, String),
    /// `*` for all tables, or `t.*` for a single one.
    Star(Range<usize>, Option<String>),
    /// `count(t.*)`; the flag is true for DISTINCT.
    CountedRows(Range<usize>, String, bool),
}

/// A query translated to `SQLite`'s dialect, with a mapping to source positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranslatedQuery {
    /// SQL of the translated query.
    pub sql: String,
    /// Start of each fragment, its source range, and whether it is unchanged; in order.
    fragments: Vec<(usize, Range<usize>, bool)>,
}

impl TranslatedQuery {
    pub(super) fn from_fragments(old: &str, text: &SqlText) -> Self {
        let (mut sql, mut fragments) = (String::with_capacity(old.len() + 64), Vec::new());
        for fragment in text {
            match fragment {
                SourceFragment::Source(span)
                | SourceFragment::Column(span, ..)
                | SourceFragment::InnerColumn(span, ..)
                | SourceFragment::Star(span, _)
                | SourceFragment::CountedRows(span, ..) => {
                    fragments.push((sql.len(), span.clone(), true));
                    sql.push_str(old.get(span.clone()).unwrap_or_default());
                }
                SourceFragment::Generated(new, span) => {
                    fragments.push((sql.len(), span.clone(), false));
                    sql.push_str(new);
                }
            }
        }
        Self { sql, fragments }
    }

    /// Creates a translation from edits, which must be sorted and not overlap.
    #[must_use]
    pub fn with_edits(old: &str, edits: Vec<(Range<usize>, String)>) -> Self {
        let (mut text, mut at) = (Vec::new(), 0);
        for (span, new) in edits {
            text.push(SourceFragment::Source(at..span.start.max(at)));
            at = span.end;
            text.push(SourceFragment::Generated(new, span));
        }
        text.push(SourceFragment::Source(at..old.len().max(at)));
        Self::from_fragments(old, &text)
    }

    /// Composes this translation with the one that produced its source.
    pub(super) fn compose_after(self, first: &Self) -> Self {
        let fragments = self.fragments.into_iter().map(|(at, old, same)| {
            let original = first.original_span(&old);
            let same = same && original.len() == old.len();
            (at, original, same)
        });
        Self { fragments: fragments.collect(), sql: self.sql }
    }

    /// Maps a byte range to the original query.
    #[must_use]
    pub fn original_span(&self, span: &Range<usize>) -> Range<usize> {
        let start = self.fragment_at(span.start).map_or(0, |(at, old, same)| {
            if same { (old.start + (span.start - at)).min(old.end) } else { old.start }
        });
        let last = span.end.saturating_sub(1).max(span.start);
        let end = self.fragment_at(last).map_or(start, |(at, old, same)| {
            if same { (old.start + (span.end - at)).min(old.end) } else { old.end }
        });
        start..end.max(start)
    }

    fn fragment_at(&self, at: usize) -> Option<(usize, &Range<usize>, bool)> {
        let n = self.fragments.partition_point(|(start, ..)| *start <= at).checked_sub(1)?;
        self.fragments.get(n).map(|(start, old, same)| (*start, old, *same))
    }
}
