//! Finds the stored results of web searches.

use std::sync::Arc;

use super::html::html_to_text;
use super::passages::{MAX_PASSAGE_TOKENS, select_passages, split_document};
use hqdl_facts::{CellLookup, CellRequirements, Facts, FactsError};
use hqdl_model::search::{SearchResult, build_search_choice};
use hqdl_spec::Expansion;
use hqdl_spec::evidence::{FindPassages, SearchSettings};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::evidence::Passage;
use hqdl_values::key::Entity;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Stored results of a search.
pub struct StoredSearches {
    /// The expansion that stores the searches.
    pub expansion: Arc<Expansion>,
    /// Requirements that stored results must meet.
    pub requirements: Arc<CellRequirements>,
    facts: Facts,
    tokenizer: Tokenizer,
}

impl StoredSearches {
    /// Prepares the lookup of stored searches.
    ///
    /// # Errors
    /// [`FactsError`] if the facts cannot be read.
    pub fn new(
        settings: &SearchSettings,
        facts: &Facts,
        tokenizer: Tokenizer,
    ) -> Result<Self, FactsError> {
        let expansion = Arc::new(settings.to_expansion());
        let choice = build_search_choice(settings, None);
        let requirements = Arc::new(choice.build_requirements(facts.history(), &expansion)?);
        Ok(Self { expansion, requirements, facts: facts.clone(), tokenizer })
    }

    /// Returns the row that stores a query's results, and the row's entity.
    #[must_use]
    pub fn build_row(&self, query: &str) -> (Row, Entity) {
        let key = vec![Value::from(query)];
        let entity = self.expansion.key.build_entity(&key);
        (Row { key, context: Vec::new() }, entity)
    }

    /// Returns the results of a query; `None` if they are not stored.
    ///
    /// # Errors
    /// [`FactsError`] if the facts cannot be read.
    pub fn find_results(&self, query: &str) -> Result<Option<Vec<SearchResult>>, FactsError> {
        let (_, entity) = self.build_row(query);
        let records = self.facts.sync().get_records(&[&entity])?;
        let record = records.into_iter().next().flatten();
        let CellLookup::Known(fact) = self.requirements.look_up_cell(record.as_ref(), 0) else {
            return Ok(None);
        };
        let results = match &fact.answer.value {
            CellValue::One(value) => {
                value.to_text().and_then(|text| serde_json::from_str(&text).ok())
            }
            _ => None,
        };
        Ok(Some(results.unwrap_or_default()))
    }

    /// Returns the reason why the last search for a query failed; `None` if it did not fail.
    fn find_failure(&self, query: &str) -> Result<Option<String>, FactsError> {
        let (_, entity) = self.build_row(query);
        let records = self.facts.sync().get_records(&[&entity])?;
        let record = records.into_iter().next().flatten();
        let lookup = self.requirements.look_up_cell(record.as_ref(), 0);
        let Some(fact) = lookup.fact() else { return Ok(None) };
        let completions = self.facts.history().load_completions(&[fact.completion])?;
        let completion = completions.into_iter().next().flatten();
        Ok(completion.and_then(|(completion, _)| completion.error))
    }
}

impl FindPassages for StoredSearches {
    fn find_passages(
        &self,
        key: &str,
        _columns: &str,
        max_tokens: u64,
    ) -> Result<Vec<Passage>, String> {
        let results = self.find_results(key).map_err(|e| e.to_string())?;
        let Some(results) = results else {
            return Err(match self.find_failure(key).map_err(|e| e.to_string())? {
                Some(reason) => format!("no search results: {reason}"),
                None => "the row has no search results yet: run `hqdl materialize`".to_owned(),
            });
        };
        let passage_tokens = MAX_PASSAGE_TOKENS.min(max_tokens / 2);
        let passages = results.into_iter().flat_map(|result| {
            let name = match result.title.trim() {
                "" => result.url,
                title => format!("{} ({})", html_to_text(title), result.url),
            };
            split_document(&name, &html_to_text(&result.text), self.tokenizer, passage_tokens)
        });
        Ok(select_passages(passages, self.tokenizer, max_tokens))
    }
}
