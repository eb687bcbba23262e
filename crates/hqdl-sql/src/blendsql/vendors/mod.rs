//! AI functions of other engines. A pass over each call reads its question.
//!
//! The scanner reads the calls by their names (`read_question`). Each becomes a node of the tree
//! with its [`VendorQuestion`], whose values are parts of the query. Like a macro, it is replaced
//! with an ingredient. Each engine has a file with its functions and their arguments. A function
//! without an equivalent ingredient is an error.

mod alloydb;
mod bigquery;
mod brackets;
mod call;
mod databricks;
mod flock;
mod list;
mod prompt;
mod snowflake;

use super::SqlError;
use super::lexer::{Brackets, Token, TokenKind};
use super::macros::{VendorIngredient, VendorQuestion};
use call::FunctionCall;
use hqdl_values::problem::find_nearest;

/// Maximum nesting depth of a prompt's lists; each level is a recursion level of its parser.
const MAX_DEPTH: usize = 32;

/// An engine whose AI functions a query can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// Snowflake Cortex: `AI_FILTER`, `AI_CLASSIFY` …
    Snowflake,
    /// `BigQuery`: `AI.IF`, `AI.CLASSIFY` …
    BigQuery,
    /// Databricks: `ai_query`, `ai_classify` …
    Databricks,
    /// flock for `DuckDB`: `llm_complete`, `llm_filter` …
    Flock,
    /// `AlloyDB`: `ai.if`, `ai.rank` …
    AlloyDb,
}

/// Reads the question of a call.
type ReadCall = fn(&FunctionCall<'_>) -> Result<VendorQuestion, SqlError>;

/// Question for a prompt that contains no text.
const ANSWER: &str = "Answer this prompt.";
/// Question for a condition that contains no text.
const IS_TRUE: &str = "Is this true?";
/// Question about the sentiment of a text.
const SENTIMENT: &str = "What is the sentiment of the text?";
/// Instruction to summarize a group.
const SUMMARIZE_GROUP: &str = "Summarize the texts.";
const BOOL: VendorIngredient = ask("bool");
const INT: VendorIngredient = ask("int");
const FLOAT: VendorIngredient = ask("float");
const STR: VendorIngredient = ask("str");

/// Asks for an answer of this type.
const fn ask(return_type: &'static str) -> VendorIngredient {
    VendorIngredient::Ask { return_type, options: &[] }
}

/// Asks for one of these texts.
const fn choose(options: &'static [&'static str]) -> VendorIngredient {
    VendorIngredient::Ask { return_type: "str", options }
}

/// Functions of an engine.
struct Functions {
    /// Name in lower case, example of a call, and function that reads a call.
    known: &'static [(&'static str, &'static str, ReadCall)],
    /// Prefixes of names that only AI functions have.
    prefixes: &'static [&'static str],
    /// Whether `"…"` is a string.
    has_double_quoted_strings: bool,
}

impl Vendor {
    /// Returns the engine's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Snowflake => "Snowflake",
            Self::BigQuery => "BigQuery",
            Self::Databricks => "Databricks",
            Self::Flock => "flock",
            Self::AlloyDb => "AlloyDB",
        }
    }

    /// All engines.
    pub const ALL: [Self; 5] =
        [Self::Snowflake, Self::BigQuery, Self::Databricks, Self::Flock, Self::AlloyDb];

    /// Returns whether the engine has an AI function of this name.
    #[must_use]
    pub fn has_function(self, name: &str) -> bool {
        self.find_function(&name.to_lowercase()).is_some()
    }

    /// Returns whether `"…"` is a string.
    pub(super) fn has_double_quoted_strings(self) -> bool {
        self.functions().has_double_quoted_strings
    }

    /// Returns true if the engine has an AI function of this name, or if only an AI function can
    /// have this name. `name` is in lower case.
    pub(super) fn reserves_name(self, name: &str) -> bool {
        let prefixes = self.functions().prefixes;
        self.find_function(name).is_some() || prefixes.iter().any(|p| name.starts_with(p))
    }

    /// Returns the meaning of `[` in the engine's SQL.
    pub(super) fn brackets(self) -> Brackets {
        match self {
            Self::AlloyDb => Brackets::List,
            _ => Brackets::Name,
        }
    }

    /// Returns the example of a function and the function that reads its calls.
    fn find_function(self, name: &str) -> Option<(&'static str, ReadCall)> {
        let found = self.functions().known.iter().find(|(known, ..)| *known == name);
        found.map(|(_, example, read)| (*example, *read))
    }

    fn functions(self) -> &'static Functions {
        match self {
            Self::Snowflake => &snowflake::FUNCTIONS,
            Self::BigQuery => &bigquery::FUNCTIONS,
            Self::Databricks => &databricks::FUNCTIONS,
            Self::Flock => &flock::FUNCTIONS,
            Self::AlloyDb => &alloydb::FUNCTIONS,
        }
    }
}

/// Returns the question of a call to an engine's function. The function has the name `name`, whose
/// words are separated by dots. `arguments` are the tokens between the parentheses, in which a call
/// is a single token.
///
/// # Errors
/// Returns [`SqlError`] for a function without an equivalent, and for arguments that the ingredient
/// does not support.
pub(super) fn read_question(
    sql: &str,
    vendor: Vendor,
    name: Token,
    arguments: &[Token],
) -> Result<VendorQuestion, SqlError> {
    let call = FunctionCall::new(VendorText { sql, vendor }, name, arguments);
    let Some((example, read)) = vendor.find_function(&call.name) else {
        return Err(unknown_function_error(vendor, &call));
    };
    read(&call).map_err(|error| match error.help {
        Some(_) => error,
        None => error.with_help(format!("write for example {example}")),
    })
}

/// Returns the error for a function of the engine that no ingredient replaces.
fn unknown_function_error(vendor: Vendor, call: &FunctionCall<'_>) -> SqlError {
    let names = vendor.functions().known.iter().map(|(name, ..)| *name);
    let (engine, name) = (vendor.name(), &call.name);
    let error = call.error_at_name(&format!("hqdl has no equivalent of {engine}'s `{name}`"));
    match find_nearest(name, names.clone()) {
        Some(near) => error.with_suggestion(near),
        None => {
            let names: Vec<&str> = names.collect();
            error.with_help(format!("hqdl knows {}", names.join(", ")))
        }
    }
}

/// The text of a query, in the SQL of an engine.
#[derive(Clone, Copy)]
struct VendorText<'q> {
    sql: &'q str,
    vendor: Vendor,
}

impl VendorText<'_> {
    /// Fails if a value contains `value::type`. `AlloyDB` has this syntax, but an ingredient reads
    /// `SQLite`'s.
    fn reject_casts(self, tokens: &[Token]) -> Result<(), SqlError> {
        let cast = tokens.iter().find(|token| token.lexeme == TokenKind::Colons);
        match cast.filter(|_| self.vendor == Vendor::AlloyDb) {
            None => Ok(()),
            Some(cast) => {
                let message = format!("an AI function of {} accepts no `::`", self.vendor.name());
                Err(SqlError::new(cast.span(), message, "a cast")
                    .with_help("write CAST(value AS type)"))
            }
        }
    }

    /// Returns the content of the string if the tokens are a single string.
    fn read_string(self, tokens: &[Token]) -> Option<String> {
        let [one] = tokens else { return None };
        (one.lexeme == TokenKind::Text).then(|| one.unquoted_text(self.sql))
    }
}
