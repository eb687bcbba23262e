//! The aggregate `hq_search(value, text, k, by, similarity)`: the `k` values of a group that best
//! match a text, as a JSON array.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error};
use serde_json::Value as Json;

use crate::query::connection::best::read_aggregate_value;
use crate::retrieval::text_index::TextIndex;
use hqdl_sql::blendsql::SEARCH;
use hqdl_sql::blendsql::runtime::SEARCH_AGGREGATE;

/// Constant `k` of reciprocal rank fusion: with a larger constant, the first ranks count less.
const RANK_CONSTANT: f64 = 60.0;

/// Registers the aggregate with a connection.
///
/// # Errors
/// Fails if `SQLite` rejects a registration.
pub fn register_search_aggregate(connection: &Connection) -> rusqlite::Result<()> {
    let aggregate = SearchAggregate { latest: Mutex::default() };
    connection.create_aggregate_function(SEARCH_AGGREGATE, 5, FunctionFlags::SQLITE_UTF8, aggregate)
}

/// Implements [`SEARCH_AGGREGATE`].
struct SearchAggregate {
    /// Digest and index of the most recently searched values, cached because all rows of a query
    /// search the same values.
    latest: Mutex<Option<(blake3::Hash, TextIndex)>>,
}

/// Values collected so far in a group.
#[derive(Default)]
struct SearchedValues {
    /// Values by their text, each with its similarity to the search text, if known.
    values: BTreeMap<String, (Json, Option<f64>)>,
    text: Option<String>,
    k: usize,
    by_words: bool,
}

impl Aggregate<SearchedValues, String> for SearchAggregate {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<SearchedValues> {
        Ok(SearchedValues::default())
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut SearchedValues) -> rusqlite::Result<()> {
        let ValueRef::Integer(k @ 0..) = ctx.get_raw(2) else {
            let message = "k of `search` is not a whole number of 0 or more";
            return Err(Error::UserFunctionError(message.into()));
        };
        let text = |n| -> rusqlite::Result<_> {
            let value = read_aggregate_value(ctx, n, SEARCH)?;
            let text = value.canonical_text().map(Cow::into_owned);
            Ok(text.filter(|text| !text.is_empty()).map(|text| (text, value)))
        };
        state.k = usize::try_from(k).unwrap_or(usize::MAX);
        state.by_words = ctx.get_raw(3) != ValueRef::Text(b"embeddings");
        state.text = text(1)?.map(|(text, _)| text);
        let similarity: Option<f64> = ctx.get(4)?;
        if let Some((text, value)) = text(0)? {
            state.values.insert(text, (value.to_json(), similarity));
        }
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<SearchedValues>,
    ) -> rusqlite::Result<String> {
        let state = state.unwrap_or_default();
        let mut scores = vec![0.0; state.values.len()];
        if state.by_words
            && let Some(text) = &state.text
        {
            let by_words = self.compute_word_similarities(&state.values, text)?;
            add_reciprocal_ranks(
                &mut scores,
                by_words.into_iter().map(|s| Some(s).filter(|s| *s > 0.0)),
            );
        }
        add_reciprocal_ranks(&mut scores, state.values.values().map(|(_, similarity)| *similarity));
        let mut found: Vec<(f64, Json)> =
            scores.into_iter().zip(state.values.into_values().map(|(value, _)| value)).collect();
        found.retain(|(score, _)| *score > 0.0);
        // The sort is stable, so values with equal scores stay sorted by their text.
        found.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let found = found.into_iter().take(state.k).map(|(_, value)| value);
        Ok(found.collect::<Json>().to_string())
    }
}

impl SearchAggregate {
    /// Returns the similarity of each value to a text, based on their words.
    fn compute_word_similarities(
        &self,
        values: &BTreeMap<String, (Json, Option<f64>)>,
        text: &str,
    ) -> rusqlite::Result<Vec<f64>> {
        let mut hasher = blake3::Hasher::new();
        for value in values.keys() {
            hasher.update(&(value.len() as u64).to_le_bytes()).update(value.as_bytes());
        }
        let digest = hasher.finalize();
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let known = latest.take().filter(|(known, _)| *known == digest);
        let (_, index) = latest.insert(match known {
            Some(known) => known,
            None => (digest, TextIndex::from_texts(values.keys().map(String::as_str))?),
        });
        index.compute_similarities(text)
    }
}

/// Adds the reciprocal rank of each similarity to the scores.
fn add_reciprocal_ranks(scores: &mut [f64], similarities: impl Iterator<Item = Option<f64>>) {
    let mut ranked: Vec<(f64, usize)> =
        similarities.enumerate().filter_map(|(n, similarity)| Some((similarity?, n))).collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let (mut rank, mut last) = (0, None);
    for (position, (similarity, n)) in ranked.into_iter().enumerate() {
        // Equal similarities share a rank.
        if last != Some(similarity) {
            (rank, last) = (position, Some(similarity));
        }
        scores[n] += 1.0 / (RANK_CONSTANT + rank as f64 + 1.0);
    }
}
