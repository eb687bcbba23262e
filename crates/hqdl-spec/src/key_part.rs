//! Sources with only a part of the expansion's key. In their rows the other key columns are NULL,
//! and a prompt shows only the part.

use std::borrow::Cow;

use crate::{Expansion, Shot};
use hqdl_values::Row;
use hqdl_values::key::KeyColumns;
use hqdl_values::value::Value;

impl Expansion {
    /// Returns the positions of the key columns that identify a row of this key: the smallest of
    /// the sources' keys that contains all columns that are not NULL. Returns `None` if that is the
    /// whole key.
    ///
    /// The result depends only on the key, so it is the same in a query, which has no source, and
    /// for an answer that is processed a day later.
    #[must_use]
    pub fn key_part(&self, key: &[Value]) -> Option<&[usize]> {
        let is_sufficient = |part: &&Vec<usize>| {
            key.iter().enumerate().all(|(n, v)| *v == Value::Null || part.contains(&n))
        };
        let part = self.key_parts.iter().filter(is_sufficient).min_by_key(|part| part.len())?;
        (part.len() < self.key.names().len()).then_some(part.as_slice())
    }

    /// Returns the expansion for prompts about rows of this key. If a part of the key is
    /// sufficient, the expansion's key and the keys of its examples are reduced to that part.
    #[must_use]
    pub fn reduce_to_key_part(&self, key: &[Value]) -> Cow<'_, Self> {
        let Some(part) = self.key_part(key) else { return Cow::Borrowed(self) };
        let has_same_part = |shot: &&Shot| self.key_part(&shot.key) == Some(part);
        let shots = self.shots.iter().filter(has_same_part).map(|shot| Shot {
            key: select_positions(&shot.key, part),
            context: shot.context.clone(),
            cells: shot.cells.clone(),
        });
        Cow::Owned(Self {
            key: KeyColumns::new(select_positions(self.key.names(), part)),
            key_types: Vec::new(),
            key_parts: Vec::new(),
            sources: Vec::new(),
            shots: shots.collect(),
            ..self.clone()
        })
    }

    /// Returns the expansion with only one of its sources, and the positions of that source's key
    /// columns.
    #[must_use]
    pub fn with_only_source(&self, n: usize) -> Option<(Self, &[usize])> {
        let (source, part) = (self.sources.get(n)?, self.key_parts.get(n)?);
        let reduced = Self {
            key: KeyColumns::new(select_positions(self.key.names(), part)),
            key_types: Vec::new(),
            key_parts: Vec::new(),
            sources: vec![source.clone()],
            ..self.clone()
        };
        Some((reduced, part))
    }

    /// Returns the columns that a complete row with this key has: all columns for the whole key,
    /// otherwise the columns of the sources that have this part of the key.
    #[must_use]
    pub fn list_columns_for_key(&self, key: &[Value]) -> Vec<usize> {
        let all_columns = 0..self.columns.len();
        let Some(part) = self.key_part(key) else { return all_columns.collect() };
        let is_filled = |column: &usize| {
            let mut sources = self.sources.iter().zip(&self.key_parts);
            sources
                .any(|(source, source_part)| source_part == part && source.columns.contains(column))
        };
        all_columns.filter(is_filled).collect()
    }

    /// Returns the names of the key columns that a prompt shows for a row of this key.
    #[must_use]
    pub fn choose_prompt_key_names(&self, key: &[Value]) -> Cow<'_, [String]> {
        match self.key_part(key) {
            None => Cow::Borrowed(self.key.names()),
            Some(part) => Cow::Owned(select_positions(self.key.names(), part)),
        }
    }

    /// Returns a row in the form shown in a prompt: with only its part of the key, and without
    /// the bytes of media.
    #[must_use]
    pub fn build_shown_row<'r>(&self, row: &'r Row) -> Cow<'r, Row> {
        let row =
            if self.has_media() { Cow::Owned(self.replace_media(row)) } else { Cow::Borrowed(row) };
        match self.key_part(&row.key) {
            None => row,
            Some(part) => Cow::Owned(Row {
                key: select_positions(&row.key, part),
                context: row.context.clone(),
            }),
        }
    }
}

fn select_positions<T: Clone>(items: &[T], part: &[usize]) -> Vec<T> {
    part.iter().filter_map(|n| items.get(*n)).cloned().collect()
}
