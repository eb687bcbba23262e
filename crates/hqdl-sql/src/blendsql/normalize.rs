//! Parses a query and normalizes its text: removes comments, numbers the parameters, adds spaces
//! around calls, and replaces the syntax of earlier versions that the parser found. Spans in the
//! result can be mapped back to the original text.

use std::borrow::Cow;

use super::lexer::{Token, TokenKind};
use super::parse::{ParsedQuery, Syntax, parse_query_with_syntax, parse_scanned_query};
use super::scan::{ScannedQuery, scan_query};
use super::vendors::Vendor;
use super::{Call, SqlError};
use crate::translated::{Edits, TranslatedQuery};
use hqdl_values::sql::quote_text;

/// The tree of a query as the user wrote it, and the edits that normalize it. Other passes over the
/// tree add their edits, so that the text is written once.
pub struct SourceQuery {
    /// Text of the tree: the query without comments, with the same positions.
    pub text: String,
    /// Tree of the text.
    pub parsed: ParsedQuery,
    /// Edits of the text.
    pub edits: Edits,
    /// Strings in double quotes.
    strings: Vec<Token>,
}

impl SourceQuery {
    /// Parses a query.
    ///
    /// # Errors
    /// Returns [`SqlError`] with the location of the syntax error in `sql`.
    pub fn parse(sql: &str, syntax: Syntax<'_>) -> Result<Self, SqlError> {
        let (sql, scanned) = scan_with_lenient_quotes(sql, syntax)?;
        Self::parse_scanned(&sql, scanned, syntax)
    }

    /// Parses the tokens of a query.
    fn parse_scanned(
        sql: &str,
        mut scanned: ScannedQuery,
        syntax: Syntax<'_>,
    ) -> Result<Self, SqlError> {
        let text = trim_statement(sql, &mut scanned.tokens);
        let mut edits = Edits::default();
        insert_spaces_around_calls(&text, &scanned.calls, &mut edits);
        number_parameters(&text, &scanned.tokens, &mut edits);
        let strings = find_double_quoted_strings(&text, &scanned.tokens);
        let (parsed, replaced) = parse_scanned_query(&text, scanned, syntax)?;
        edits.extend(replaced);
        Ok(Self { text, parsed, edits, strings })
    }

    /// Returns the text with all edits, and its tree.
    ///
    /// # Errors
    /// Returns [`SqlError`] if the edited text is too long or cannot be parsed, with the location
    /// in the query as the user wrote it.
    pub fn apply_edits(
        mut self,
        syntax: Syntax<'_>,
    ) -> Result<(TranslatedQuery, ParsedQuery), SqlError> {
        requote_tokens(&self.text, &self.strings, &mut self.edits);
        let is_changed = !self.edits.is_empty();
        let normalized = self.edits.apply_to(&self.text)?;
        if !is_changed {
            return Ok((normalized, self.parsed));
        }
        match parse_query_with_syntax(
            &normalized.sql,
            Syntax { find_macro: None, vendor: None, ..syntax },
        ) {
            Ok(parsed) => Ok((normalized, parsed)),
            Err(error) => Err(error.map_span(|span| normalized.map_span_to_original(&span))),
        }
    }
}

/// Parses a query without macros. Returns its normalized text, and the tree of that text.
///
/// # Errors
/// Returns [`SqlError`] with the location of the syntax error in `sql`.
pub fn normalize_query(
    sql: &str,
    syntax: Syntax<'_>,
) -> Result<(TranslatedQuery, ParsedQuery), SqlError> {
    SourceQuery::parse(sql, syntax)?.apply_edits(syntax)
}

/// Normalizes a query without calls if it contains syntax that `SQLite` lacks: `TRY_CAST`, or another
/// engine's strings in double quotes. Returns `None` otherwise.
///
/// # Errors
/// Returns [`SqlError`] with the location of the syntax error in `sql`.
pub fn normalize_plain_query(
    sql: &str,
    vendor: Option<Vendor>,
) -> Result<Option<TranslatedQuery>, SqlError> {
    let syntax = Syntax { vendor, ..Syntax::default() };
    // `SQLite` reports the error of a text that cannot be read.
    let Ok((sql, scanned)) = scan_with_lenient_quotes(sql, syntax) else { return Ok(None) };
    let is_name = |t: Token| {
        t.is_word(&sql, "TRY_CAST") || syntax.has_safe_cast() && t.is_word(&sql, "SAFE_CAST")
    };
    let is_cast = |pair: &[Token]| is_name(pair[0]) && pair[1].is_symbol(b'(');
    let is_plain = find_double_quoted_strings(&sql, &scanned.tokens).is_empty()
        && !scanned.tokens.windows(2).any(is_cast);
    if is_plain {
        return Ok(None);
    }
    let prefix = find_explain_prefix(&sql, &scanned.tokens);
    // The grammar reads spaces instead of EXPLAIN, so that all positions stay the same.
    let select = " ".repeat(prefix.len()) + &sql[prefix.len()..];
    let (mut translated, _) = normalize_query(&select, syntax)?;
    translated.sql.replace_range(..prefix.len(), prefix);
    Ok(Some(translated))
}

/// Returns the beginning of a query up to the statement that `EXPLAIN` or `EXPLAIN QUERY PLAN`
/// explains; empty for another query.
fn find_explain_prefix<'s>(sql: &'s str, tokens: &[Token]) -> &'s str {
    let count = match tokens {
        [explain, query, plan, ..] if explain.is_word(sql, "EXPLAIN") => {
            if query.is_word(sql, "QUERY") && plan.is_word(sql, "PLAN") { 3 } else { 1 }
        }
        _ => return "",
    };
    tokens.get(count).and_then(|token| sql.get(..token.start)).unwrap_or_default()
}

/// Writes a query in which each `?` has a number, so that its parameters can be moved and copied.
///
/// # Errors
/// Returns [`SqlError`] for an invalid token, and for an invalid call.
pub fn number_query_parameters(sql: &str, syntax: Syntax<'_>) -> Result<TranslatedQuery, SqlError> {
    let (sql, scanned) = scan_with_lenient_quotes(sql, syntax)?;
    let mut edits = Edits::default();
    number_parameters(&sql, &scanned.tokens, &mut edits);
    Ok(edits.apply_to(&sql)?)
}

/// Returns the calls in a query or in a part of one, in text order. Each call is followed by the
/// calls within its arguments.
///
/// # Errors
/// Returns [`SqlError`] for an invalid token, and for an invalid call.
pub fn scan_calls(sql: &str, syntax: Syntax<'_>) -> Result<Vec<Call>, SqlError> {
    fn flatten_calls(calls: Vec<Call>, all: &mut Vec<Call>) {
        for mut call in calls {
            let inner = std::mem::take(&mut call.inner);
            all.push(call);
            flatten_calls(inner, all);
        }
    }
    let (_, scanned) = scan_with_lenient_quotes(sql, syntax)?;
    let mut all = Vec::new();
    flatten_calls(scanned.calls, &mut all);
    Ok(all)
}

fn find_double_quoted_strings(sql: &str, tokens: &[Token]) -> Vec<Token> {
    let is_found = |t: &&Token| t.lexeme == TokenKind::Text && t.text(sql).starts_with('"');
    tokens.iter().filter(is_found).copied().collect()
}

/// Adds edits that write strings in single quotes, except strings that are already replaced.
fn requote_tokens(sql: &str, strings: &[Token], edits: &mut Edits) {
    for string in strings {
        if !edits.covers(&string.span()) {
            edits.replace(string.span(), quote_text(&string.unquoted_text(sql)));
        }
    }
}

/// Scans a query. If it is not valid as standard SQL, also accepts Python's escaped quotes.
/// Positions in the text do not change.
fn scan_with_lenient_quotes<'s>(
    sql: &'s str,
    syntax: Syntax<'_>,
) -> Result<(Cow<'s, str>, ScannedQuery), SqlError> {
    let settings = syntax.scan_settings();
    match scan_query(sql, settings) {
        Ok(scanned) => Ok((Cow::Borrowed(sql), scanned)),
        Err(error) if sql.contains("\\'") => {
            let doubled = replace_escaped_quotes(sql);
            let scanned = scan_query(&doubled, settings);
            let scanned = scanned.map_err(|_| error)?;
            Ok((Cow::Owned(doubled), scanned))
        }
        Err(error) => Err(error),
    }
}

/// Replaces `\'` with `''` between the start of the first call and the end of the last call.
/// Outside of calls, SQL treats a backslash as an ordinary character.
fn replace_escaped_quotes(sql: &str) -> String {
    let first = sql.find("{{").unwrap_or(sql.len());
    let last = sql.rfind("}}").map_or(first, |at| at.max(first));
    let (before, rest) = sql.split_at(first);
    let (calls, after) = rest.split_at(last - first);
    [before, &calls.replace("\\'", "''"), after].concat()
}

/// Returns a statement without comments and trailing semicolons, because a `--` comment would hide
/// SQL that is appended to the statement. Spaces replace a comment, so that positions stay the
/// same.
fn trim_statement(sql: &str, tokens: &mut Vec<Token>) -> String {
    let semicolons = tokens.iter().rev().take_while(|t| t.is_symbol(b';')).count();
    if semicolons < tokens.len() {
        tokens.truncate(tokens.len() - semicolons);
    }
    let mut text = String::with_capacity(sql.len());
    for token in &*tokens {
        let gap = sql.get(text.len()..token.start).unwrap_or_default();
        text.extend(gap.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
        text.push_str(sql.get(text.len()..token.end).unwrap_or_default());
    }
    // If there is no token, keep the length, so that an error span can cover the whole text.
    if text.is_empty() { " ".repeat(sql.len()) } else { text }
}

/// Adds edits that insert missing spaces between a call and a word.
fn insert_spaces_around_calls(sql: &str, calls: &[Call], edits: &mut Edits) {
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let before = |at: usize| sql[..at].ends_with(word).then_some(at);
    let after = |at: usize| sql[at..].starts_with(word).then_some(at);
    for call in calls {
        let spaces = [before(call.span.start), after(call.span.end)];
        spaces.into_iter().flatten().for_each(|at| edits.replace(at..at, " "));
        insert_spaces_around_calls(sql, &call.inner, edits);
    }
}

/// Adds edits that number each `?`. hqdl may move a condition within the query, which would change
/// the order of unnumbered parameters.
fn number_parameters(sql: &str, tokens: &[Token], edits: &mut Edits) {
    let (mut named, mut last): (Vec<&str>, u32) = (Vec::new(), 0);
    for token in tokens.iter().filter(|token| token.lexeme == TokenKind::Parameter) {
        let text = token.text(sql);
        if named.contains(&text) {
            continue;
        }
        match text.strip_prefix('?') {
            Some("") => {
                last += 1;
                edits.replace(token.end..token.end, last.to_string());
            }
            Some(number) => last = last.max(number.parse().unwrap_or(last)),
            // A named parameter also gets a number, at its first occurrence.
            None => {
                named.push(text);
                last += 1;
            }
        }
    }
}
