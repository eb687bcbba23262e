//! Sources with a key of their own: a part of the expansion's. Of their rows the
//! other key columns are NULL, and a prompt shows just the part.

use std::borrow::Cow;

use crate::{Expansion, Shot};
use hqdl_values::Row;
use hqdl_values::key::KeyColumns;
use hqdl_values::value::Value;

impl Expansion {
    /// The positions of the key columns that identify a row of this key: the
    /// smallest source's key that holds all of it that is not NULL. `None` when it
    /// is the whole key.
    ///
    /// It follows from the key alone, so it is the same in a query, which has no
    /// source, and for an answer that is read a day later.
    #[must_use]
    pub fn part_of(&self, key: &[Value]) -> Option<&[usize]> {
        let holds = |part: &&Vec<usize>| {
            key.iter().enumerate().all(|(n, v)| *v == Value::Null || part.contains(&n))
        };
        let part = self.key_parts.iter().filter(holds).min_by_key(|part| part.len())?;
        (part.len() < self.key.names().len()).then_some(part.as_slice())
    }

    /// The expansion as rows of this key are asked about it: its key is their
    /// part, and so is that of its examples.
    #[must_use]
    pub fn asked_by(&self, key: &[Value]) -> Cow<'_, Self> {
        let Some(part) = self.part_of(key) else { return Cow::Borrowed(self) };
        let of_part = |shot: &&Shot| self.part_of(&shot.key) == Some(part);
        let shots = self.shots.iter().filter(of_part).map(|shot| Shot {
            key: pick(&shot.key, part),
            context: shot.context.clone(),
            cells: shot.cells.clone(),
        });
        Cow::Owned(Self {
            key: KeyColumns::new(pick(self.key.names(), part)),
            key_types: Vec::new(),
            key_parts: Vec::new(),
            sources: Vec::new(),
            shots: shots.collect(),
            ..self.clone()
        })
    }

    /// The expansion as one of its sources alone would have it: with its part of the
    /// key, by position.
    #[must_use]
    pub fn of_source(&self, n: usize) -> Option<(Self, &[usize])> {
        let (source, part) = (self.sources.get(n)?, self.key_parts.get(n)?);
        let own = Self {
            key: KeyColumns::new(pick(self.key.names(), part)),
            key_types: Vec::new(),
            key_parts: Vec::new(),
            sources: vec![source.clone()],
            ..self.clone()
        };
        Some((own, part))
    }

    /// The columns that a whole row of this key has: those of the sources with its
    /// part of the key; all of them where that is the whole key.
    #[must_use]
    pub fn whole_row(&self, key: &[Value]) -> Vec<usize> {
        let all = 0..self.columns.len();
        let Some(part) = self.part_of(key) else { return all.collect() };
        let fills = |column: &usize| {
            let mut sources = self.sources.iter().zip(&self.key_parts);
            sources.any(|(source, own)| own == part && source.columns.contains(column))
        };
        all.filter(fills).collect()
    }

    /// The names of the key columns that a row of this key is shown with.
    #[must_use]
    pub fn key_shown(&self, key: &[Value]) -> Cow<'_, [String]> {
        match self.part_of(key) {
            None => Cow::Borrowed(self.key.names()),
            Some(part) => Cow::Owned(pick(self.key.names(), part)),
        }
    }

    /// A row as it is shown to a model: with its part of the key alone, and without the
    /// bytes of its images.
    #[must_use]
    pub fn shown<'r>(&self, row: &'r Row) -> Cow<'r, Row> {
        let row = if self.has_images() {
            Cow::Owned(self.without_images(row))
        } else {
            Cow::Borrowed(row)
        };
        match self.part_of(&row.key) {
            None => row,
            Some(part) => {
                Cow::Owned(Row { key: pick(&row.key, part), context: row.context.clone() })
            }
        }
    }
}

fn pick<T: Clone>(of: &[T], part: &[usize]) -> Vec<T> {
    part.iter().filter_map(|n| of.get(*n)).cloned().collect()
}
