//! Contexts of questions about rows. Their tokens are counted with the model's tokenizer. A context
//! over the limit is an error, unless the user allows truncation.

use crate::query::cells::documents::Document;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde_json::Value as Json;

use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::Call;
use hqdl_sql::suql::TranslatedQuery;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Identity of a call's contexts: the number of the call and the digest of their bytes.
type ContextId = (usize, [u8; 32]);

/// Contexts of a query's questions about rows.
pub struct Contexts {
    /// Maximum number of tokens of all contexts of one question.
    max_tokens: u64,
    /// Maximum number of tokens of a document.
    max_document_tokens: u64,
    is_truncation_allowed: bool,
    model: String,
    /// Tokenizer. Loading it takes a while and is only necessary if a context may be too long.
    tokenizer: OnceLock<Tokenizer>,
    /// Entities of the contexts seen so far, cached because a call in a condition is evaluated with
    /// the same context for every row.
    entities: HashMap<ContextId, usize>,
    truncations: BTreeMap<usize, TruncationCounts>,
}

/// Counts for a call's truncated contexts: the contexts, the rows that fit, and all rows.
#[derive(Debug, Clone, Copy, Default)]
struct TruncationCounts {
    contexts: u64,
    used: u64,
    rows: u64,
}

/// Error for contexts that exceed the limit.
#[derive(Debug, Clone, Copy)]
pub struct ContextTooLong {
    call: usize,
    tokens: u64,
    is_exact: bool,
    rows: Option<u64>,
    max_tokens: u64,
    /// Whether truncation was allowed but not even one row fits.
    no_row_fits: bool,
}

impl Contexts {
    /// Creates a store of contexts with the limits of a request.
    #[must_use]
    pub fn new(request: &Request<'_>) -> Self {
        Self {
            max_tokens: request.spec.limits.context_tokens,
            max_document_tokens: request.spec.limits.passage_tokens,
            is_truncation_allowed: request.truncate,
            model: request.model.as_ref().map_or(&*request.spec.model.name, |m| m.name()).into(),
            tokenizer: OnceLock::new(),
            entities: HashMap::new(),
            truncations: BTreeMap::new(),
        }
    }

    /// Returns the index of the entity for these contexts, or `None` if the query has not seen them
    /// yet.
    #[must_use]
    pub fn find_known_entity(&self, id: &ContextId) -> Option<usize> {
        self.entities.get(id).copied()
    }

    /// Stores the entity for these contexts.
    pub fn store_entity(&mut self, id: ContextId, entity: usize) {
        self.entities.insert(id, entity);
    }

    /// Truncates a call's contexts to the limit if necessary.
    ///
    /// # Errors
    /// Returns [`ContextTooLong`] if the contexts exceed the limit and must not or cannot be
    /// truncated.
    pub fn truncate_to_limit(
        &mut self,
        call: usize,
        contexts: &mut [Value],
    ) -> Result<(), ContextTooLong> {
        let texts: Vec<String> = contexts.iter().map(Value::to_string).collect();
        // A token has at least one byte, so the size in bytes bounds the number of tokens.
        if texts.iter().map(String::len).sum::<usize>() as u64 <= self.max_tokens {
            return Ok(());
        }
        let tokenizer = self.tokenizer();
        let counts: Vec<u64> = texts.iter().map(|t| tokenizer.count_tokens(t)).collect();
        let tokens: u64 = counts.iter().sum();
        if tokens <= self.max_tokens {
            return Ok(());
        }
        let tables: Vec<Option<ContextRows>> =
            contexts.iter().map(ContextRows::parse_rows).collect();
        let rows = tables.iter().flatten().map(|t| t.rows.len() as u64).sum();
        let rows = tables.iter().any(Option::is_some).then_some(rows);
        let is_exact = tokenizer.is_exact();
        let too_long = ContextTooLong {
            call,
            tokens,
            is_exact,
            rows,
            max_tokens: self.max_tokens,
            no_row_fits: false,
        };
        if !self.is_truncation_allowed {
            return Err(too_long);
        }
        // Keep contexts that are not tables of rows, and short tables. Long tables share the
        // remaining tokens.
        let fixed_tokens: u64 =
            counts.iter().zip(&tables).filter(|(_, t)| t.is_none()).map(|(n, _)| n).sum();
        let mut order: Vec<usize> = (0..tables.len()).filter(|n| tables[*n].is_some()).collect();
        order.sort_by_key(|n| counts[*n]);
        let no_fit_error = ContextTooLong { no_row_fits: true, ..too_long };
        let mut remaining = self.max_tokens.checked_sub(fixed_tokens).ok_or(no_fit_error)?;
        let truncated = self.truncations.entry(call).or_default();
        truncated.contexts += 1;
        truncated.rows += rows.unwrap_or_default();
        for (at, n) in order.iter().enumerate() {
            let Some(table) = &tables[*n] else { continue };
            let share = remaining / (order.len() - at) as u64;
            if counts[*n] <= share {
                remaining -= counts[*n];
                truncated.used += table.rows.len() as u64;
                continue;
            }
            let (text, used) = table.truncate_rows(tokenizer, share).ok_or(no_fit_error)?;
            remaining = remaining.saturating_sub(tokenizer.count_tokens(&text));
            truncated.used += used;
            contexts[*n] = Value::Text(text);
        }
        Ok(())
    }

    /// Returns the maximum number of tokens of a document that is sent as a whole.
    #[must_use]
    pub fn max_document_tokens(&self) -> u64 {
        self.max_document_tokens
    }

    /// Returns true if a whole document fits into one question.
    pub fn fits_document(&self, document: &Document) -> bool {
        // A token has at least one byte, so the size in bytes bounds the number of tokens.
        document.approximate_size() as u64 <= self.max_document_tokens
            || self.tokenizer().count_tokens(&document.full_text()) <= self.max_document_tokens
    }

    /// Returns the model's tokenizer.
    pub fn tokenizer(&self) -> Tokenizer {
        *self.tokenizer.get_or_init(|| Tokenizer::for_model(&self.model))
    }

    /// Returns the number of each call whose contexts were truncated, with a note about the rows
    /// that the model saw.
    #[must_use]
    pub fn list_truncation_notes(&self) -> Vec<(usize, String)> {
        let note = |(call, truncated): (&usize, &TruncationCounts)| {
            let TruncationCounts { contexts, used, rows } = truncated;
            let of = match contexts {
                1 => "its context".to_owned(),
                more => format!("{more} contexts"),
            };
            (*call, format!("the model saw {used} of the {rows} rows of {of} (--truncate)"))
        };
        self.truncations.iter().map(note).collect()
    }
}

/// Result of a query that serves as a context.
struct ContextRows {
    columns: Json,
    rows: Vec<Json>,
}

impl ContextRows {
    fn parse_rows(context: &Value) -> Option<Self> {
        let Value::Text(text) = context else { return None };
        let Json::Object(mut table) = serde_json::from_str(text).ok()? else { return None };
        let (Some(columns), Some(Json::Array(rows)), true) =
            (table.remove("columns"), table.remove("rows"), table.is_empty())
        else {
            return None;
        };
        Some(Self { columns, rows })
    }

    fn to_json_text(&self, used: usize) -> String {
        let rows = self.rows.get(..used).unwrap_or_default();
        serde_json::json!({ "columns": self.columns, "rows": rows }).to_string()
    }

    /// Returns the JSON text of the longest prefix of rows that fits, and its number of rows.
    /// Returns `None` if not even one row fits.
    fn truncate_rows(&self, tokenizer: Tokenizer, max_tokens: u64) -> Option<(String, u64)> {
        let mut tokens = tokenizer.count_tokens(&self.to_json_text(0));
        let mut used = 0;
        // Count row by row, because there may be far more rows than fit.
        for row in &self.rows {
            tokens += tokenizer.count_tokens(&format!("{row},"));
            if tokens > max_tokens {
                break;
            }
            used += 1;
        }
        loop {
            if used == 0 {
                return None;
            }
            let text = self.to_json_text(used);
            if tokenizer.count_tokens(&text) <= max_tokens {
                return Some((text, used as u64));
            }
            used -= 1;
        }
    }
}

impl ContextTooLong {
    /// Returns the error for the user; `text` is the normalized query.
    #[must_use]
    pub fn query_error(
        &self,
        calls: &[Call],
        text: &str,
        normalized: &TranslatedQuery,
    ) -> QueryError {
        let call = calls.get(self.call);
        let name = call.map_or("a call", |c| c.ingredient.name());
        let question = call.map(|c| c.question.trim().to_owned()).unwrap_or_default();
        let shown = call.and_then(|c| text.get(c.span.clone())).is_some();
        let about = if self.is_exact { "" } else { "about " };
        let rows = match self.rows {
            None => String::new(),
            Some(1) => " in 1 row".to_owned(),
            Some(rows) => format!(" in {rows} rows"),
        };
        let message = format!(
            "the context of {name}('{question}') has {about}{} tokens{rows}; the limit is {}",
            self.tokens, self.max_tokens
        );
        let help = if self.no_row_fits {
            "not even one row fits; select fewer columns, or raise `context_tokens` in [limits]"
        } else {
            "select fewer rows, raise `context_tokens` in [limits], or pass --truncate to use only the rows that fit"
        };
        let span = call.filter(|_| shown).map(|c| normalized.map_span_to_original(&c.span));
        QueryError::in_sql(message, span, "this call", help)
    }
}
