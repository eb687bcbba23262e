//! A rewritten text, with a mapping to the positions in its source.

use std::ops::Range;

/// A query after a rewrite, with a mapping to source positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranslatedQuery {
    /// SQL of the translated query.
    pub sql: String,
    /// Start of each fragment, its source range, and whether it is unchanged; in order.
    fragments: Vec<(usize, Range<usize>, bool)>,
}

impl TranslatedQuery {
    /// Creates an empty translation with capacity for a text of `length` bytes.
    pub(crate) fn with_capacity(length: usize) -> Self {
        Self { sql: String::with_capacity(length + 64), fragments: Vec::new() }
    }

    /// Appends text: an unchanged range of the source, or the text that replaces the range.
    pub(crate) fn push_fragment(&mut self, text: &str, span: Range<usize>, is_unchanged: bool) {
        self.fragments.push((self.sql.len(), span, is_unchanged));
        self.sql.push_str(text);
    }

    /// Creates a translation from edits, which must be sorted and must not overlap.
    #[must_use]
    pub fn with_edits(old: &str, edits: Vec<(Range<usize>, String)>) -> Self {
        let (mut translated, mut at) = (Self::with_capacity(old.len()), 0);
        for (span, new) in edits {
            let before = at..span.start.max(at);
            translated.push_fragment(old.get(before.clone()).unwrap_or_default(), before, true);
            at = span.end;
            translated.push_fragment(&new, span, false);
        }
        let rest = at..old.len().max(at);
        translated.push_fragment(old.get(rest.clone()).unwrap_or_default(), rest, true);
        translated
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
