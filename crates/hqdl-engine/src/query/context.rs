//! Contexts of questions about rows. Their tokens are counted with the model's tokenizer. A context
//! over the limit is an error, or is truncated if the user allows it.

use super::documents::Document;
use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde_json::Value as Json;

use super::{QueryError, Request};
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::spelling::Spelled;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Identity of a context: the number of its call, and the digest of its bytes.
type GivenContext = (usize, [u8; 32]);

/// Contexts of a query's questions about rows.
pub struct Contexts {
    /// Maximum number of tokens of all contexts of one question.
    most: u64,
    /// Maximum number of tokens of a document.
    most_of_document: u64,
    truncate: bool,
    model: String,
    /// Loaded on first use, which takes a while and is only necessary if a context may be too long.
    tokenizer: OnceLock<Tokenizer>,
    /// Entities of contexts that were seen before: a call in a condition is evaluated for every row
    /// with the same context.
    entities: HashMap<GivenContext, usize>,
    cuts: BTreeMap<usize, Shortened>,
}

/// Amount truncated from the contexts of a call.
#[derive(Debug, Clone, Copy, Default)]
struct Shortened {
    contexts: u64,
    used: u64,
    rows: u64,
}

/// Error for contexts over the limit.
#[derive(Debug, Clone, Copy)]
pub struct TooLong {
    call: usize,
    tokens: u64,
    exact: bool,
    rows: Option<u64>,
    most: u64,
    /// Truncation was allowed, but not even one row fits.
    not_one: bool,
    /// It is a document that must be summarized as a whole.
    document: bool,
}

impl Contexts {
    /// Returns the settings without any contexts.
    #[must_use]
    pub fn new(request: &Request<'_>) -> Self {
        Self {
            most: request.spec.limits.context_tokens,
            most_of_document: request.spec.limits.passage_tokens,
            truncate: request.truncate,
            model: request.model.as_ref().map_or(&*request.spec.model.name, |m| m.name()).into(),
            tokenizer: OnceLock::new(),
            entities: HashMap::new(),
            cuts: BTreeMap::new(),
        }
    }

    /// Returns the entity of contexts that were seen before.
    #[must_use]
    pub fn entity(&self, given: &GivenContext) -> Option<usize> {
        self.entities.get(given).copied()
    }

    /// Stores the entity of contexts.
    pub fn is(&mut self, given: GivenContext, entity: usize) {
        self.entities.insert(given, entity);
    }

    /// Truncates a call's contexts to the limit if necessary.
    ///
    /// # Errors
    /// [`TooLong`] if they exceed the limit and must not or cannot be truncated.
    pub fn fit(&mut self, call: usize, contexts: &mut [Value]) -> Result<(), TooLong> {
        let texts: Vec<String> = contexts.iter().map(Value::to_string).collect();
        // Every token has at least one byte.
        if texts.iter().map(String::len).sum::<usize>() as u64 <= self.most {
            return Ok(());
        }
        let tokenizer = *self.tokenizer.get_or_init(|| Tokenizer::of(&self.model));
        let counts: Vec<u64> = texts.iter().map(|t| tokenizer.count(t)).collect();
        let tokens: u64 = counts.iter().sum();
        if tokens <= self.most {
            return Ok(());
        }
        let tables: Vec<Option<ContextRows>> = contexts.iter().map(ContextRows::read).collect();
        let rows = tables.iter().flatten().map(|t| t.rows.len() as u64).sum();
        let rows = tables.iter().any(Option::is_some).then_some(rows);
        let exact = tokenizer.is_exact();
        let too_long =
            TooLong { call, tokens, exact, rows, most: self.most, not_one: false, document: false };
        if !self.truncate {
            return Err(too_long);
        }
        // Contexts that are not tables of rows are kept whole. Among the tables, short ones are
        // kept, and long ones share the remaining tokens.
        let whole: u64 =
            counts.iter().zip(&tables).filter(|(_, t)| t.is_none()).map(|(n, _)| n).sum();
        let mut order: Vec<usize> = (0..tables.len()).filter(|n| tables[*n].is_some()).collect();
        order.sort_by_key(|n| counts[*n]);
        let not_one = TooLong { not_one: true, ..too_long };
        let mut left = self.most.checked_sub(whole).ok_or(not_one)?;
        let cut = self.cuts.entry(call).or_default();
        cut.contexts += 1;
        cut.rows += rows.unwrap_or_default();
        for (at, n) in order.iter().enumerate() {
            let Some(table) = &tables[*n] else { continue };
            let share = left / (order.len() - at) as u64;
            if counts[*n] <= share {
                left -= counts[*n];
                cut.used += table.rows.len() as u64;
                continue;
            }
            let (text, used) = table.cut(tokenizer, share).ok_or(not_one)?;
            left = left.saturating_sub(tokenizer.count(&text));
            cut.used += used;
            contexts[*n] = Value::Text(text);
        }
        Ok(())
    }

    /// Checks that a whole document fits into one question.
    ///
    /// # Errors
    /// [`TooLong`] if it does not.
    pub fn check_document(&self, call: usize, document: &Document) -> Result<(), TooLong> {
        // Every token has at least one byte.
        if document.bytes() as u64 <= self.most_of_document {
            return Ok(());
        }
        let tokenizer = self.tokenizer.get_or_init(|| Tokenizer::of(&self.model));
        let tokens = tokenizer.count(&document.text());
        if tokens <= self.most_of_document {
            return Ok(());
        }
        let (exact, most) = (tokenizer.is_exact(), self.most_of_document);
        Err(TooLong { call, tokens, exact, rows: None, most, not_one: false, document: true })
    }

    /// Returns a note per call on how much of its contexts was truncated.
    #[must_use]
    pub fn cuts(&self) -> Vec<(usize, String)> {
        let told = |(call, cut): (&usize, &Shortened)| {
            let Shortened { contexts, used, rows } = cut;
            let of = match contexts {
                1 => "its context".to_owned(),
                more => format!("{more} contexts"),
            };
            (*call, format!("the model saw {used} of the {rows} rows of {of} (--truncate)"))
        };
        self.cuts.iter().map(told).collect()
    }
}

/// Rows of a query in a context.
struct ContextRows {
    columns: Json,
    rows: Vec<Json>,
}

impl ContextRows {
    fn read(context: &Value) -> Option<Self> {
        let Value::Text(text) = context else { return None };
        let Json::Object(mut table) = serde_json::from_str(text).ok()? else { return None };
        let (Some(columns), Some(Json::Array(rows)), true) =
            (table.remove("columns"), table.remove("rows"), table.is_empty())
        else {
            return None;
        };
        Some(Self { columns, rows })
    }

    fn text(&self, used: usize) -> String {
        let rows = self.rows.get(..used).unwrap_or_default();
        serde_json::json!({ "columns": self.columns, "rows": rows }).to_string()
    }

    /// Returns as many of the first rows as fit, with their number; `None` if not even one fits.
    fn cut(&self, tokenizer: Tokenizer, most: u64) -> Option<(String, u64)> {
        let mut tokens = tokenizer.count(&self.text(0));
        let mut used = 0;
        // Row by row, because there may be far more rows than fit.
        for row in &self.rows {
            tokens += tokenizer.count(&format!("{row},"));
            if tokens > most {
                break;
            }
            used += 1;
        }
        loop {
            if used == 0 {
                return None;
            }
            let text = self.text(used);
            if tokenizer.count(&text) <= most {
                return Some((text, used as u64));
            }
            used -= 1;
        }
    }
}

impl TooLong {
    /// Returns the error for the user; `text` is the normalized query.
    #[must_use]
    pub fn error(&self, calls: &[Call], text: &str, spelled: &Spelled) -> QueryError {
        let call = calls.get(self.call);
        let name = call.map_or("a call", |c| c.ingredient.name());
        let question = call.map(|c| c.question.trim().to_owned()).unwrap_or_default();
        let shown = call.and_then(|c| text.get(c.span.clone())).is_some();
        let about = if self.exact { "" } else { "about " };
        let rows = match self.rows {
            None => String::new(),
            Some(1) => " in 1 row".to_owned(),
            Some(rows) => format!(" in {rows} rows"),
        };
        let what = if self.document { "document" } else { "context" };
        let message = format!(
            "the {what} of {name}('{question}') has {about}{} tokens{rows}; the limit is {}",
            self.tokens, self.most
        );
        let help = if self.document {
            "hqdl has no aggregate operators yet: summarize each row and then the summaries, or \
             raise `passage_tokens` in [limits]"
        } else if self.not_one {
            "not even one row fits; select fewer columns, or raise `context_tokens` in [limits]"
        } else {
            "select fewer rows, raise `context_tokens` in [limits], or pass --truncate to use only the rows that fit"
        };
        let span = call.filter(|_| shown).map(|c| spelled.place(&c.span));
        QueryError::sql(message, span, "this call", help)
    }
}
