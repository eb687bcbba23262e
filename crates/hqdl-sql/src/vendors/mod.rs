//! Dialects of other engines: rewrites their AI functions as calls of hqdl's ingredients.
//!
//! [`translate`] finds the calls by their names and replaces each with an ingredient, innermost
//! first. All other bytes are copied, so that every position can be mapped back to the original
//! query. Each engine has a file with its functions and their arguments. A function without an
//! equivalent ingredient is an error.

mod alloydb;
mod bigquery;
mod brackets;
mod call;
mod databricks;
mod flock;
mod list;
mod prompt;
mod snowflake;

use std::ops::Range;

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Lexeme, Token};
use crate::translated::{Edits, TranslatedQuery};
use call::{FunctionCall, parse_call};
use hqdl_values::problem::find_nearest;
use hqdl_values::sql::quote_text;

/// Maximum nesting depth of calls; each level is a recursion level of the translation.
const MAX_DEPTH: usize = 32;

/// An engine whose functions are rewritten.
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

/// Writes the ingredient that replaces a call.
type Rewrite = fn(&FunctionCall<'_>) -> Result<String, SqlError>;

/// Question for a prompt that contains no text.
const ANSWER: &str = "Answer this prompt.";
/// Question for a condition that contains no text.
const IS_TRUE: &str = "Is this true?";
/// Instruction to summarize a group.
const SUMMARIZE_GROUP: &str = "Summarize the texts.";
/// Question about the sentiment of a text.
const SENTIMENT: &str = "What is the sentiment of the text?";
const BOOL: &str = ", return_type='bool'";
const INT: &str = ", return_type='int'";
const FLOAT: &str = ", return_type='float'";
const STR: &str = ", return_type='str'";

/// Functions of an engine.
struct Functions {
    /// Name in lower case, example of a call, and function that rewrites a call.
    rewritten: &'static [(&'static str, &'static str, Rewrite)],
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
        find_rewrite(self.functions(), &name.to_lowercase()).is_some()
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

/// Rewrites an engine's AI functions as ingredients.
///
/// # Errors
/// Returns [`SqlError`] for a function without an equivalent, and for arguments that the ingredient
/// does not support.
pub fn translate(sql: &str, vendor: Vendor) -> Result<TranslatedQuery, SqlError> {
    let tokens = read_tokens(sql)?;
    let translator = Translator { sql, vendor, depth: 0 };
    let mut edits = Edits::default();
    for (span, new) in translator.find_edits(&tokens)? {
        edits.replace(span, new);
    }
    Ok(edits.write(sql)?)
}

/// Reads all tokens. Outside of ingredients, `{{` and `}}` are brackets of nested objects.
fn read_tokens(sql: &str) -> Result<Vec<Token>, SqlError> {
    let (mut tokens, mut at, mut ingredients) = (Vec::new(), 0, 0_usize);
    while let Some(token) = lexer::next_token(sql, at, Brackets::List)? {
        at = token.end;
        let is_ingredient = match token.lexeme {
            Lexeme::Open => {
                let next = lexer::next_token(sql, at, Brackets::List)?;
                next.is_some_and(|next| next.lexeme == Lexeme::Word)
            }
            Lexeme::Close => ingredients > 0,
            _ => true,
        };
        match token.lexeme {
            Lexeme::Open if is_ingredient => ingredients += 1,
            Lexeme::Close if is_ingredient => ingredients -= 1,
            _ => {}
        }
        if is_ingredient {
            tokens.push(token);
        } else {
            let lexeme = Lexeme::Symbol(if token.lexeme == Lexeme::Open { b'{' } else { b'}' });
            let middle = token.start + 1;
            tokens.push(Token { lexeme, start: token.start, end: middle });
            tokens.push(Token { lexeme, start: middle, end: token.end });
        }
    }
    Ok(tokens)
}

/// Translates the tokens of a query.
#[derive(Clone, Copy)]
struct Translator<'q> {
    sql: &'q str,
    vendor: Vendor,
    depth: usize,
}

impl Translator<'_> {
    /// Returns the replacements of the outermost calls.
    fn find_edits(self, tokens: &[Token]) -> Result<Vec<(Range<usize>, String)>, SqlError> {
        let functions = self.vendor.functions();
        let (mut edits, mut n) = (Vec::new(), 0);
        while let Some(token) = tokens.get(n).copied() {
            let call = parse_call(self, tokens, n);
            if let Some((call, end)) = call.filter(|(_, end)| !self.is_cte_body(&tokens[*end..])) {
                if let Some((example, rewrite)) = find_rewrite(functions, &call.name) {
                    let span = call.name_span.start..call.end;
                    let written = rewrite(&call).map_err(|error| match error.help {
                        Some(_) => error,
                        None => error.with_help(format!("write for example {example}")),
                    })?;
                    self.check_parameters(&tokens[n..end], &written)?;
                    edits.push((span, written));
                    n = end;
                    continue;
                }
                self.reject_unknown_function(functions, &call)?;
            }
            if token.lexeme == Lexeme::Quoted && functions.has_double_quoted_strings {
                edits.push((token.span(), quote_text(&token.unquoted_text(self.sql))));
            }
            n += 1;
        }
        Ok(edits)
    }

    /// Returns true if `AS (` or `AS [NOT] MATERIALIZED (` follows. In that case, the word before
    /// it is not a function: `WITH ai_scores(id, x) AS (…)` declares a table and its columns.
    fn is_cte_body(self, rest: &[Token]) -> bool {
        let Some((first, rest)) = rest.split_first() else { return false };
        let is_hint =
            |t: &&Token| t.is_word(self.sql, "NOT") || t.is_word(self.sql, "MATERIALIZED");
        let body = rest.iter().find(|token| !is_hint(token));
        first.is_word(self.sql, "AS") && body.is_some_and(|body| body.is_symbol(b'('))
    }

    /// Fails if the translation of a call changes its parameters: a rewrite can reorder, copy and
    /// drop arguments, which renumbers every `?` and leaves a dropped parameter without effect.
    fn check_parameters(self, call: &[Token], written: &str) -> Result<(), SqlError> {
        let is_parameter = |n: &usize| is_parameter(self.sql, call, *n);
        let mut parameters = (0..call.len()).filter(is_parameter).map(|n| call[n]).peekable();
        if parameters.peek().is_none() {
            return Ok(());
        }
        let kept = read_tokens(written)?;
        for parameter in parameters {
            let name = parameter.text(self.sql);
            let error =
                |message: String, label: &str| SqlError::new(parameter.span(), message, label);
            if name == "?" {
                let message = "a parameter of a translated call has no number".to_owned();
                return Err(error(message, "its position can change")
                    .with_help("number the parameters: ?1"));
            }
            if !kept.iter().any(|t| t.lexeme == Lexeme::Parameter && t.text(written) == name) {
                let message = format!("hqdl does not use the argument that contains `{name}`");
                return Err(error(message, "has no effect").with_help("remove the parameter"));
            }
        }
        Ok(())
    }

    /// Fails for a function of the engine that no ingredient replaces.
    fn reject_unknown_function(
        self,
        functions: &Functions,
        call: &FunctionCall<'_>,
    ) -> Result<(), SqlError> {
        if !functions.prefixes.iter().any(|prefix| call.name.starts_with(prefix)) {
            return Ok(());
        }
        let names = functions.rewritten.iter().map(|(name, ..)| *name);
        let error = call.error_at_name(&format!(
            "hqdl has no equivalent of {}'s `{}`",
            self.vendor.name(),
            call.name
        ));
        Err(match find_nearest(&call.name, names.clone()) {
            Some(near) => error.with_suggestion(near),
            None => {
                let names: Vec<&str> = names.collect();
                error.with_help(format!("hqdl knows {}", names.join(", ")))
            }
        })
    }

    /// Fails if an argument contains `value::type`. `AlloyDB` has this syntax, but an ingredient
    /// reads `SQLite`'s.
    fn reject_casts(self, tokens: &[Token]) -> Result<(), SqlError> {
        let cast = tokens.iter().find(|token| token.lexeme == Lexeme::Colons);
        match cast.filter(|_| self.vendor == Vendor::AlloyDb) {
            None => Ok(()),
            Some(cast) => {
                let message = format!("an AI function of {} accepts no `::`", self.vendor.name());
                Err(SqlError::new(cast.span(), message, "a cast")
                    .with_help("write CAST(value AS type)"))
            }
        }
    }

    /// Returns whether a token is a string.
    fn is_string(self, token: Token) -> bool {
        let has_double_quoted = self.vendor.functions().has_double_quoted_strings;
        token.lexeme == Lexeme::Text || token.lexeme == Lexeme::Quoted && has_double_quoted
    }

    /// Returns the content of the string if the tokens are a single string.
    fn read_string(self, tokens: &[Token]) -> Option<String> {
        let [one] = tokens else { return None };
        self.is_string(*one).then(|| one.unquoted_text(self.sql))
    }

    /// Returns a translator for the next nesting level. Fails beyond the maximum depth.
    fn enter(self, tokens: &[Token]) -> Result<Self, SqlError> {
        if self.depth < MAX_DEPTH {
            return Ok(Self { depth: self.depth + 1, ..self });
        }
        let span = tokens.first().map_or(0..0, |first| first.span());
        Err(SqlError::new(span, format!("more than {MAX_DEPTH} nested calls"), "one too many"))
    }

    /// Translates the calls in an expression.
    fn translate_expression(self, tokens: &[Token]) -> Result<String, SqlError> {
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else {
            return Ok(String::new());
        };
        self.reject_casts(tokens)?;
        let (mut text, mut at) = (String::new(), first.start);
        for (span, new) in self.enter(tokens)?.find_edits(tokens)? {
            text.push_str(self.sql.get(at..span.start).unwrap_or_default());
            text.push_str(&new);
            at = span.end;
        }
        text.push_str(self.sql.get(at..last.end).unwrap_or_default());
        // An ingredient would read `a = b` as a named argument.
        let is_comparison = first.lexeme == Lexeme::Word
            && tokens.get(1).is_some_and(|second| second.is_symbol(b'='));
        Ok(if is_comparison { format!("({text})") } else { text })
    }
}

/// Returns whether the `n`th token is a parameter. The lexer also reads the `:b` in `{'a':b}` and
/// `a:b` as a parameter.
fn is_parameter(sql: &str, tokens: &[Token], n: usize) -> bool {
    let token = tokens[n];
    let is_after_value = n.checked_sub(1).is_some_and(|before| match tokens[before].lexeme {
        Lexeme::Text | Lexeme::Quoted | Lexeme::Name | Lexeme::Symbol(b')' | b']') => true,
        Lexeme::Word => tokens[before].end == token.start,
        _ => false,
    });
    token.lexeme == Lexeme::Parameter && !(is_after_value && token.text(sql).starts_with(':'))
}

/// Returns the example and the rewrite of a function, if the engine has the function.
fn find_rewrite(functions: &Functions, name: &str) -> Option<(&'static str, Rewrite)> {
    let found = functions.rewritten.iter().find(|(known, ..)| *known == name);
    found.map(|(_, example, rewrite)| (*example, *rewrite))
}
