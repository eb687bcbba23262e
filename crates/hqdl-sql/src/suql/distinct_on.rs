//! Rewrites `SELECT DISTINCT ON (a) x, y … ORDER BY a, b`, which returns the first row of each
//! group of rows with the same `a`. `SQLite` does not support it, so the query becomes a selection
//! of the first row of each partition:
//!
//! ```text
//! SELECT hq_c1 AS "x", hq_c2 AS "y"
//! FROM (SELECT x AS hq_c1, y AS hq_c2, a AS hq_o1, b AS hq_o2,
//!         row_number() OVER (PARTITION BY a ORDER BY a, b) AS hq_n …) AS hq_d
//! WHERE hq_n = 1 ORDER BY hq_o1, hq_o2
//! ```
//!
//! If a result column is a question about a column, the outer query asks it, only about the rows
//! that are kept: `answer(x, '…')` becomes `x AS hq_c1` in the inner query, and
//! `answer(hq_c1, '…')` in the outer one.
//!
//! The rewrite works on tokens, before anything is parsed, so that its parts are translated to
//! `SQLite`'s dialect like any other SQL.

use std::ops::Range;

use super::parser::Parser;
use super::star_columns::{self, ColumnLookup};
use super::text::TranslatedQuery;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Lexeme, Token};
use hqdl_values::sql::quote_name;

/// Words that, after an operand, belong to an operator, so that another operand follows.
const OPERATORS: [&str; 15] = [
    "AND", "COLLATE", "ESCAPE", "FROM", "GLOB", "ILIKE", "IN", "IS", "LIKE", "MATCH", "OR", "OVER",
    "REGEXP", "TO", "ZONE",
];
/// Words that end an operand and are not aliases.
const ENDS: [&str; 3] = ["END", "ISNULL", "NOTNULL"];
/// Words that end the result columns of a SELECT.
const AFTER_ITEMS: [&str; 1] = ["FROM"];
/// Words that end the clauses from FROM to WINDOW.
const AFTER_ROWS: [&str; 7] = ["ORDER", "LIMIT", "OFFSET", "FETCH", "UNION", "INTERSECT", "EXCEPT"];
/// Words that end ORDER BY.
const AFTER_ORDER: [&str; 3] = ["LIMIT", "OFFSET", "FETCH"];

/// Returns the query with each `DISTINCT ON` rewritten; `None` if it has none. A `DISTINCT ON`
/// whose `*` cannot be expanded is left unchanged; the parser reports it.
///
/// # Errors
/// [`SqlError`] if a token is invalid, or if ORDER BY does not begin with the expressions of
/// `DISTINCT ON`.
pub(super) fn rewrite_distinct_on(
    sql: &str,
    columns: ColumnLookup<'_>,
) -> Result<Option<TranslatedQuery>, SqlError> {
    let mut text: Option<TranslatedQuery> = None;
    // Rewrite the innermost one first, because an outer one copies its text.
    loop {
        let now = text.as_ref().map_or(sql, |t| t.sql.as_str());
        let tokens = Parser::new(now)?.tokens;
        let begins = |n: &usize| {
            let is =
                |at: usize, word: &str| tokens.get(n + at).is_some_and(|t| t.is_word(now, word));
            is(0, "SELECT") && is(1, "DISTINCT") && is(2, "ON")
        };
        let last = (0..tokens.len()).rev().filter(begins);
        let mut selects = last.filter_map(|n| OnSelect::read(now, &tokens, n, columns));
        let Some(select) = selects.next() else { return Ok(text) };
        if let Some(term) = select.find_misordered_term(now) {
            let span = text.as_ref().map_or(term.clone(), |text| text.original_span(&term));
            let message = "ORDER BY must begin with the expressions of DISTINCT ON";
            let error =
                SqlError::new(span, message, "expected the expressions of DISTINCT ON first");
            return Err(
                error.with_help("DISTINCT ON keeps the first row of each group in this order")
            );
        }
        let edits = select.build_edits(now);
        let next = TranslatedQuery::with_edits(now, edits);
        text = Some(match &text {
            None => next,
            Some(before) => next.compose_after(before),
        });
    }
}

/// A SELECT with `DISTINCT ON`.
struct OnSelect {
    /// Byte range from SELECT to the `)` of ON.
    head: Range<usize>,
    on: Vec<Term>,
    items: Vec<ResultItem>,
    /// Byte range of the clauses from FROM to HAVING or WINDOW.
    rows: Range<usize>,
    order: Vec<Term>,
    /// End of ORDER BY; without one, end of `rows`.
    end: usize,
}

/// A result column, or a column of a `*`.
struct ResultItem {
    of: Range<usize>,
    name: String,
    /// Alias, if it has one.
    alias: Option<String>,
    /// SQL of the column, if it comes from a `*`.
    column: Option<String>,
    /// Column that the question is about, if the outer query asks it.
    asks_about: Option<Range<usize>>,
    /// End of the item with its alias.
    end: usize,
}

/// A term of ON or ORDER BY, and its sort direction.
struct Term {
    of: Range<usize>,
    /// The term, if it is a plain name.
    name: Option<String>,
    how: String,
}

impl OnSelect {
    /// Reads the SELECT that begins at token `n`. Returns `None` if it cannot be rewritten.
    fn read(sql: &str, tokens: &[Token], n: usize, columns: ColumnLookup<'_>) -> Option<Self> {
        let open = n + 3;
        tokens.get(open).filter(|t| t.is_symbol(b'('))?;
        let close = find_keyword(sql, tokens, open + 1, &[])?;
        tokens.get(close).filter(|t| t.is_symbol(b')'))?;
        let on = split_at_commas(tokens, open + 1..close);
        let from = find_keyword(sql, tokens, close + 1, &AFTER_ITEMS)?;
        tokens.get(from).filter(|t| t.is_word(sql, "FROM"))?;
        let rows_end = find_keyword(sql, tokens, from, &AFTER_ROWS).unwrap_or(tokens.len());
        let mut items = Vec::new();
        for part in split_at_commas(tokens, close + 1..from) {
            match tokens.get(part.clone())? {
                [.., star] if star.is_symbol(b'*') => {
                    let of = match tokens.get(part.clone())? {
                        [_] => None,
                        [table, dot, _] if dot.is_symbol(b'.') => Some(table.unquoted_text(sql)),
                        _ => return None,
                    };
                    let tables = star_columns::from_tables(sql, tokens, from..rows_end, columns)?;
                    let of = star_columns::star_columns(&tables, of.as_deref())?;
                    items.extend(ResultItem::expand_star(find_byte_range(tokens, part)?, of));
                }
                _ => items.push(ResultItem::read(sql, tokens, part)?),
            }
        }
        let known = star_columns::from_tables(sql, tokens, from..rows_end, columns)
            .and_then(|tables| star_columns::star_columns(&tables, None))
            .unwrap_or_default();
        for item in &mut items {
            item.detect_question_column(sql, tokens, from..rows_end, &known);
        }
        let rows = find_byte_range(tokens, from..rows_end)?;
        let (mut order, mut end) = (Vec::new(), rows.end);
        // After a compound query, ORDER BY applies to the whole query.
        let ordered = tokens.get(rows_end).is_some_and(|t| t.is_word(sql, "ORDER"));
        if ordered && !ends_compound(sql, tokens, n) {
            let order_end =
                find_keyword(sql, tokens, rows_end, &AFTER_ORDER).unwrap_or(tokens.len());
            let terms = split_at_commas(tokens, rows_end + 2..order_end);
            order = terms
                .into_iter()
                .map(|part| Term::read(sql, tokens, part))
                .collect::<Option<_>>()?;
            end = find_byte_range(tokens, rows_end..order_end)?.end;
        }
        let on = on.into_iter().map(|part| Term::read(sql, tokens, part)).collect::<Option<_>>()?;
        let head = tokens.get(n)?.start..tokens.get(close)?.end;
        Some(Self { head, on, items, rows, order, end })
    }

    /// Returns the expression of a term, which may be the name or position of a result column.
    fn resolve_term<'s>(&'s self, sql: &'s str, term: &Term) -> &'s str {
        let text = sql.get(term.of.clone()).unwrap_or_default().trim();
        let counted = text.parse::<usize>().ok().and_then(|n| self.items.get(n.checked_sub(1)?));
        let named = || {
            let name = term.name.as_ref()?;
            let is =
                |i: &&ResultItem| i.alias.as_ref().is_some_and(|a| a.eq_ignore_ascii_case(name));
            self.items.iter().find(is)
        };
        let item = counted.or_else(named);
        item.map_or(text, |item| item.expr_text(sql))
    }

    /// Returns the first ORDER BY term that is not in ON, unless all expressions of ON precede it.
    fn find_misordered_term(&self, sql: &str) -> Option<Range<usize>> {
        let words = |term: &Term| {
            let meant = self.resolve_term(sql, term);
            let (mut words, mut at): (Vec<String>, usize) = (Vec::new(), 0);
            while let Ok(Some(token)) = lexer::next_token(meant, at, Brackets::List) {
                at = token.end;
                // A column is the same with and without its table.
                if words.last().is_some_and(|last| last == ".") && is_name(&token) {
                    words.truncate(words.len().saturating_sub(2));
                }
                words.push(if is_name(&token) {
                    token.unquoted_text(meant).to_lowercase()
                } else {
                    token.text(meant).to_owned()
                });
            }
            words
        };
        let mut on: Vec<Vec<String>> = self.on.iter().map(words).collect();
        for term in &self.order {
            let meant = words(term);
            if on.is_empty() {
                return None;
            }
            if !on.contains(&meant) {
                return Some(term.of.clone());
            }
            on.retain(|o| *o != meant);
        }
        None
    }

    fn build_edits(&self, sql: &str) -> Vec<(Range<usize>, String)> {
        let shown: Vec<String> =
            self.items.iter().enumerate().map(|(n, i)| i.format_outer_column(sql, n)).collect();
        let head = format!("SELECT {} FROM (SELECT ", shown.join(", "));
        let mut edits = vec![(self.head.clone(), head)];
        // Keep aliases, because GROUP BY may refer to them.
        let mut stars: Vec<(Range<usize>, Vec<String>)> = Vec::new();
        for (n, item) in self.items.iter().enumerate() {
            let named = format!(" AS hq_c{}", n + 1);
            if let Some(about) = &item.asks_about {
                edits.push((item.of.start..about.start, String::new()));
                edits.push((about.end..item.end, named));
                continue;
            }
            if item.alias.is_some() {
                continue;
            }
            let Some(column) = &item.column else {
                edits.push((item.of.end..item.of.end, named));
                continue;
            };
            let named = format!("{column}{named}");
            match stars.last_mut() {
                Some((star, columns)) if *star == item.of => columns.push(named),
                _ => stars.push((item.of.clone(), vec![named])),
            }
        }
        edits.extend(stars.into_iter().map(|(star, columns)| (star, columns.join(", "))));
        edits.sort_by_key(|(span, _)| span.start);
        let on: Vec<&str> = self.on.iter().map(|term| self.resolve_term(sql, term)).collect();
        let mut more = String::new();
        let mut order = Vec::new();
        for (n, term) in self.order.iter().enumerate() {
            let of = self.resolve_term(sql, term);
            more.push_str(&format!(", {of} AS hq_o{}", n + 1));
            order.push((format!("{of}{}", term.how), format!("hq_o{}{}", n + 1, term.how)));
        }
        let (inner, outer): (Vec<String>, Vec<String>) = order.into_iter().unzip();
        let by = |terms: Vec<String>| match terms.as_slice() {
            [] => String::new(),
            some => format!(" ORDER BY {}", some.join(", ")),
        };
        let number =
            format!(", row_number() OVER (PARTITION BY {}{}) AS hq_n ", on.join(", "), by(inner));
        edits.push((self.rows.start..self.rows.start, format!("{more}{number}")));
        let end = format!(") AS hq_d WHERE hq_n = 1{} ", by(outer));
        edits.push((self.rows.end..self.end, end));
        edits
    }
}

impl ResultItem {
    /// Returns the SQL of the expression.
    fn expr_text<'s>(&'s self, sql: &'s str) -> &'s str {
        self.column.as_deref().unwrap_or_else(|| sql.get(self.of.clone()).unwrap_or_default())
    }

    /// Returns the column in the outer query; `n` is its index.
    fn format_outer_column(&self, sql: &str, n: usize) -> String {
        match (&self.alias, &self.asks_about) {
            (_, Some(about)) => {
                let part = |of| sql.get(of).unwrap_or_default();
                let (before, after) = (self.of.start..about.start, about.end..self.of.end);
                let name = quote_name(&self.name);
                format!("{}hq_c{}{} AS {name}", part(before), n + 1, part(after))
            }
            (Some(alias), None) => quote_name(alias),
            (None, None) => format!("hq_c{} AS {}", n + 1, quote_name(&self.name)),
        }
    }

    /// Sets `asks_about` if the item is only a question about a column of the tables, and `rows`
    /// has no GROUP BY and does not refer to the answer.
    fn detect_question_column(
        &mut self,
        sql: &str,
        tokens: &[Token],
        rows: Range<usize>,
        known: &[(String, String)],
    ) {
        let Some([asks, open, inner @ .., close]) =
            find_tokens(tokens, &self.of).filter(|_| self.column.is_none())
        else {
            return;
        };
        let is_question = ["answer", "summary"].iter().any(|word| asks.is_word(sql, word));
        let about = match inner {
            [about, rest @ ..] if is_one_text(rest) => about.start..about.end,
            [table, dot, about, rest @ ..] if dot.is_symbol(b'.') && is_one_text(rest) => {
                table.start..about.end
            }
            _ => return,
        };
        let column = inner.iter().rev().find(|t| t.end == about.end).map(|t| t.unquoted_text(sql));
        let is_known = known.iter().any(|(_, name)| Some(name) == column.as_ref());
        let rows = tokens.get(rows).unwrap_or_default();
        let is_spoken_of = rows.iter().any(|t| {
            t.is_word(sql, "GROUP")
                || self.alias.as_ref().is_some_and(|a| t.unquoted_text(sql).eq_ignore_ascii_case(a))
        });
        if is_question && open.is_symbol(b'(') && close.is_symbol(b')') && is_known && !is_spoken_of
        {
            self.asks_about = Some(about);
        }
    }

    /// Returns an item for each column of a `*`.
    fn expand_star(
        star: Range<usize>,
        columns: Vec<(String, String)>,
    ) -> impl Iterator<Item = Self> {
        columns.into_iter().map(move |(column, name)| Self {
            of: star.clone(),
            name,
            alias: None,
            column: Some(column),
            asks_about: None,
            end: star.end,
        })
    }

    /// Reads a result column that is not a `*`.
    fn read(sql: &str, tokens: &[Token], part: Range<usize>) -> Option<Self> {
        let all = tokens.get(part.clone())?;
        let (of, alias) = match all {
            [.., before, alias] if before.is_word(sql, "AS") => {
                (part.start..part.end - 2, Some(alias))
            }
            // An operand, followed by a name without AS.
            [rest @ .., before, alias]
                if is_name(alias)
                    && ends_operand(before)
                    && !ends_operator(sql, rest, before)
                    && !ENDS.iter().any(|word| alias.is_word(sql, word)) =>
            {
                (part.start..part.end - 1, Some(alias))
            }
            _ => (part, None),
        };
        let (of_span, end) = (find_byte_range(tokens, of.clone())?, all.last()?.end);
        let alias = alias.map(|t| t.unquoted_text(sql));
        let column = match tokens.get(of)? {
            [column] if is_name(column) => Some(column.unquoted_text(sql)),
            [_, dot, column] if dot.is_symbol(b'.') && is_name(column) => {
                Some(column.unquoted_text(sql))
            }
            _ => None,
        };
        let written = || sql.get(of_span.clone()).unwrap_or_default().to_owned();
        let name = alias.clone().or(column).unwrap_or_else(written);
        Some(Self { of: of_span, name, alias, column: None, asks_about: None, end })
    }
}

impl Term {
    fn read(sql: &str, tokens: &[Token], part: Range<usize>) -> Option<Self> {
        let all = tokens.get(part.clone())?;
        let how = ["ASC", "DESC", "NULLS"];
        let at =
            all.iter().position(|t| how.iter().any(|w| t.is_word(sql, w))).unwrap_or(all.len());
        let of = find_byte_range(tokens, part.start..part.start + at)?;
        let whole = find_byte_range(tokens, part)?;
        let how = sql.get(of.end..whole.end).unwrap_or_default().to_owned();
        let name = match all.get(..at)? {
            [name] if is_name(name) => Some(name.unquoted_text(sql)),
            _ => None,
        };
        Some(Self { of, name, how })
    }
}

fn is_name(token: &Token) -> bool {
    matches!(token.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name)
}

/// Returns true if an operand can end with the token.
fn ends_operand(token: &Token) -> bool {
    !matches!(token.lexeme, Lexeme::Open | Lexeme::Colons | Lexeme::Symbol(_))
        || matches!(token.lexeme, Lexeme::Symbol(b')' | b']' | b'}'))
}

/// Returns true if the token ends an operator, so that an operand follows. Most of these words can
/// also be names, so they count only after an operand.
fn ends_operator(sql: &str, before: &[Token], token: &Token) -> bool {
    token.is_word(sql, "NOT")
        || (before.last().is_some_and(ends_operand)
            && OPERATORS.iter().any(|word| token.is_word(sql, word)))
}

/// Returns true if the SELECT that begins at token `n` follows a compound operator.
fn ends_compound(sql: &str, tokens: &[Token], n: usize) -> bool {
    let is = |t: &Token, words: &[&str]| words.iter().any(|word| t.is_word(sql, word));
    let mut before = tokens.iter().take(n).rev().skip_while(|t| is(t, &["ALL", "DISTINCT"]));
    before.next().is_some_and(|t| is(t, &["UNION", "INTERSECT", "EXCEPT"]))
}

/// Returns the tokens in a byte range.
fn find_tokens<'t>(tokens: &'t [Token], of: &Range<usize>) -> Option<&'t [Token]> {
    let from = tokens.iter().position(|t| t.start == of.start)?;
    let to = tokens.iter().position(|t| t.end == of.end)?;
    tokens.get(from..=to)
}

/// Returns true if the tokens can follow the first argument of a question: none, or a text.
fn is_one_text(rest: &[Token]) -> bool {
    match rest {
        [] => true,
        [comma, text] => comma.is_symbol(b',') && matches!(text.lexeme, Lexeme::Text),
        _ => false,
    }
}

/// Returns the byte range of some tokens.
fn find_byte_range(tokens: &[Token], of: Range<usize>) -> Option<Range<usize>> {
    let some = tokens.get(of)?;
    Some(some.first()?.start..some.last()?.end)
}

/// Returns the index of the first token, starting at `at`, that is one of these words or closes the
/// enclosing brackets. Skips nested brackets.
pub(super) fn find_keyword(
    sql: &str,
    tokens: &[Token],
    at: usize,
    words: &[&str],
) -> Option<usize> {
    let mut depth = 0_usize;
    for (n, token) in tokens.iter().enumerate().skip(at) {
        match token.lexeme {
            Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
            Lexeme::Symbol(b')' | b']' | b'}' | b';') | Lexeme::Close if depth == 0 => {
                return Some(n);
            }
            Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => depth -= 1,
            // IS DISTINCT FROM is an operator; t.from and AS from are names.
            _ if token.is_word(sql, "FROM")
                && n.checked_sub(1).and_then(|n| tokens.get(n)).is_some_and(|t| {
                    t.is_symbol(b'.') || t.is_word(sql, "DISTINCT") || t.is_word(sql, "AS")
                }) => {}
            _ if depth == 0 && words.iter().any(|w| token.is_word(sql, w)) => return Some(n),
            _ => {}
        }
    }
    None
}

/// Splits tokens at the commas outside of all brackets.
fn split_at_commas(tokens: &[Token], of: Range<usize>) -> Vec<Range<usize>> {
    let (mut begin, mut depth, mut all) = (of.start, 0_usize, Vec::new());
    for n in of.clone() {
        match tokens.get(n).map(|t| t.lexeme) {
            Some(Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open) => depth += 1,
            Some(Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close) => {
                depth = depth.saturating_sub(1);
            }
            Some(Lexeme::Symbol(b',')) if depth == 0 => {
                all.push(begin..n);
                begin = n + 1;
            }
            _ => {}
        }
    }
    all.push(begin..of.end);
    all
}
