//! Translates `SELECT DISTINCT ON (a) x, y … ORDER BY a, b`, which returns the first row of each
//! group of rows with the same `a`. `SQLite` does not support it, so the query selects the first
//! row of each partition:
//!
//! ```text
//! SELECT hq_c1 AS "x", hq_c2 AS "y" FROM (SELECT x AS hq_c1, y AS hq_c2, a AS hq_o1, b AS hq_o2,
//! row_number() OVER (PARTITION BY a ORDER BY a, b) AS hq_n …) AS hq_d WHERE hq_n = 1 ORDER BY
//! hq_o1, hq_o2
//! ```
//!
//! If a result column is a question about a column, the outer query asks it, and only about the
//! rows that are kept: `answer(x, '…')` becomes `x AS hq_c1` in the inner query, and `answer(hq_c1,
//! '…')` in the outer one.

use std::ops::Range;

use super::parser::{DistinctOn, Parser, TableSource, TypedSql, join_exprs, translation_error};
use super::query::rename_elements;
use super::text::{SourceFragment, SqlText};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use hqdl_values::sql::quote_name;

/// A result column, or a column of a `*`.
struct ResultItem {
    text: SqlText,
    name: String,
    /// Byte range of the alias; `None` without an alias.
    alias: Option<Range<usize>>,
    /// Tokens of the expression.
    words: Vec<String>,
    /// Index of the column in `text` that the question is about, if the outer query asks it.
    asked: Option<usize>,
}

/// A term of ON or ORDER BY.
struct Term<'i> {
    text: &'i SqlText,
    words: &'i [String],
    direction: &'i str,
}

impl Parser<'_> {
    /// Parses `ON (…)` after the DISTINCT of a SELECT; `start` is the offset of SELECT.
    pub fn parse_distinct_on(&mut self, start: usize) -> Result<DistinctOn, SqlError> {
        let distinct = self.position - 1;
        self.expect_word("ON")?;
        let words = self.tokens[distinct].start..self.previous_token_end();
        self.expect_symbol(b'(')?;
        let on = self.parse_exprs()?;
        let head = start..self.expect_symbol(b')')?;
        Ok(DistinctOn { head, words, on, columns: Vec::new(), from: None, rows: Vec::new() })
    }

    /// Parses the ORDER BY after a SELECT with `DISTINCT ON`, and returns the translated query. In
    /// a compound, ORDER BY belongs to the whole query.
    ///
    /// # Errors
    /// Returns [`SqlError`] for an invalid term, if the columns of a `*` are not known, or if ORDER
    /// BY does not begin with the expressions of `DISTINCT ON`.
    pub fn finish_distinct_on(
        &mut self,
        distinct: DistinctOn,
        in_compound: bool,
    ) -> Result<TypedSql, SqlError> {
        let DistinctOn { head, words, on, columns, from, rows } = distinct;
        let rows_end = self.previous_token_end();
        let refusal = || {
            let help = "list its columns, followed by ORDER BY";
            translation_error(words.clone(), "DISTINCT ON", help)
        };
        let rows_span = from.ok_or_else(refusal)?..rows_end;
        let items = self.read_result_items(columns, &rows_span).ok_or_else(refusal)?;
        let mut order = Vec::new();
        if !in_compound && self.eat_words(&["ORDER", "BY"]) {
            self.may_unnest = true;
            order = self.parse_order_terms()?;
            self.may_unnest = false;
        }
        let words = |expr: &TypedSql| self.read_comparable_tokens(&expr.span);
        let words: Vec<Vec<String>> =
            on.iter().chain(order.iter().map(|(expr, _)| expr)).map(words).collect();
        let (on_words, order_words) = words.split_at(on.len());
        let on: Vec<Term<'_>> = on
            .iter()
            .zip(on_words)
            .map(|(expr, words)| resolve_term(&items, &expr.text, words, ""))
            .collect();
        let terms: Vec<Term<'_>> = order
            .iter()
            .zip(order_words)
            .map(|((expr, direction), words)| {
                let direction = self.sql.get(direction.clone()).unwrap_or_default();
                resolve_term(&items, &expr.text, words, direction)
            })
            .collect();
        if let Some(n) = find_misordered_term(&on, &terms) {
            let message = "ORDER BY must begin with the expressions of DISTINCT ON";
            let label = "expected the expressions of DISTINCT ON first";
            let error = SqlError::new(order[n].0.span.clone(), message, label);
            return Err(
                error.with_help("DISTINCT ON keeps the first row of each group in this order")
            );
        }
        let rows = join_exprs(rows_span.start, rows, rows_end);
        let span = head.start..self.previous_token_end();
        let mut text = write_first_rows(&items, &on, &terms, rows, &span);
        if let Some(select) = self.selects.last() {
            self.rewrite_row_counts(&mut text, select)?;
            rename_elements(&mut text, select);
        }
        Ok(TypedSql::new(text, span))
    }

    /// Returns the result columns; `None` if the columns of a `*` are not known.
    fn read_result_items(
        &self,
        columns: Vec<(TypedSql, Option<Token>)>,
        rows: &Range<usize>,
    ) -> Option<Vec<ResultItem>> {
        let known = self.table_columns(None).unwrap_or_default();
        let mut items = Vec::new();
        for (expr, alias) in columns {
            if let [SourceFragment::Star(span, table)] = expr.text.as_slice() {
                let columns = self.table_columns(table.as_deref())?;
                items.extend(columns.into_iter().map(|(sql, name)| ResultItem {
                    text: vec![SourceFragment::Generated(sql, span.clone())],
                    words: vec![name.to_lowercase()],
                    name,
                    alias: None,
                    asked: None,
                }));
                continue;
            }
            // Drop the marks of possible array elements, because the outer query names each column.
            let is_mark = |fragment: &SourceFragment| matches!(fragment, SourceFragment::Generated(text, _) if text.starts_with('\0'));
            let text: SqlText = expr.text.iter().filter(|f| !is_mark(f)).cloned().collect();
            let name = match (alias, text.as_slice()) {
                (Some(alias), _) => alias.unquoted_text(self.sql),
                (None, [SourceFragment::Column(_, _, column)]) => column.clone(),
                _ => self.sql.get(expr.span.clone()).unwrap_or_default().to_owned(),
            };
            let asked = self.find_asked_column(&expr.span, &text, &known).filter(|_| {
                let uses_answer = |t: &Token| {
                    t.is_word(self.sql, "GROUP")
                        || alias.is_some() && t.unquoted_text(self.sql).eq_ignore_ascii_case(&name)
                };
                !self.list_tokens_in(rows).any(uses_answer)
            });
            let alias = alias.map(|token| expr.span.end..token.end);
            let words = self.read_comparable_tokens(&expr.span);
            items.push(ResultItem { text, name, alias, words, asked });
        }
        Some(items)
    }

    /// Returns the columns of `*` or `t.*`, each as SQL and as a name; `None` if a table might not
    /// be a database table, or if a join merges columns.
    fn table_columns(&self, of: Option<&str>) -> Option<Vec<(String, String)>> {
        let select = self.selects.last().filter(|select| !select.has_merged_columns)?;
        let mut found = Vec::new();
        for table in &select.tables {
            let TableSource::Named(source) = &table.source else { return None };
            let (name, columns) = (table.name.as_ref()?, table.columns.as_ref()?);
            if self.is_cte(source) {
                return None;
            }
            if of.is_none_or(|of| name.eq_ignore_ascii_case(of)) {
                let sql = |column: &str| format!("{}.{}", quote_name(name), quote_name(column));
                found.extend(columns.iter().map(|(column, _)| (sql(column), column.clone())));
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// Returns the index of the fragment with the column that a question is about. Returns `None`
    /// if the expression is not a question about a column, or if the column is not in `known`.
    fn find_asked_column(
        &self,
        span: &Range<usize>,
        text: &SqlText,
        known: &[(String, String)],
    ) -> Option<usize> {
        let tokens: Vec<Token> = self.list_tokens_in(span).copied().collect();
        let [asks, open, inner @ .., close] = tokens.as_slice() else { return None };
        let is_question = ["answer", "summary"].iter().any(|word| asks.is_word(self.sql, word));
        let rest = match inner {
            [_, dot, _, rest @ ..] if dot.is_symbol(b'.') => rest,
            [_, rest @ ..] => rest,
            [] => return None,
        };
        let is_whole = open.is_symbol(b'(') && close.is_symbol(b')');
        let is_one_text = match rest {
            [] => true,
            [comma, text] => comma.is_symbol(b',') && text.lexeme == TokenKind::Text,
            _ => false,
        };
        let column = text.iter().position(|f| matches!(f, SourceFragment::Column(..)))?;
        let SourceFragment::Column(_, _, name) = text.get(column)? else { return None };
        let is_known = known.iter().any(|(_, known)| known == name);
        (is_question && is_whole && is_one_text && is_known).then_some(column)
    }

    /// Returns the tokens of a range in a form that can be compared: a column is equal with and
    /// without its table qualifier.
    fn read_comparable_tokens(&self, span: &Range<usize>) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for token in self.list_tokens_in(span) {
            let is_name =
                matches!(token.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name);
            if is_name && words.last().is_some_and(|last| last == ".") {
                words.truncate(words.len().saturating_sub(2));
            }
            words.push(if is_name {
                token.unquoted_text(self.sql).to_lowercase()
            } else {
                token.text(self.sql).to_owned()
            });
        }
        words
    }

    fn list_tokens_in(&self, span: &Range<usize>) -> impl Iterator<Item = &Token> {
        let first = self.tokens.partition_point(|token| token.start < span.start);
        let end = self.tokens.partition_point(|token| token.start < span.end);
        self.tokens[first..end.max(first)].iter()
    }
}

/// Resolves a term, which can be the name or position of a result column.
fn resolve_term<'i>(
    items: &'i [ResultItem],
    text: &'i SqlText,
    words: &'i [String],
    direction: &'i str,
) -> Term<'i> {
    let item = match words {
        [word] => {
            let counted = || items.get(word.parse::<usize>().ok()?.checked_sub(1)?);
            let is_named =
                |item: &&ResultItem| item.alias.is_some() && item.name.to_lowercase() == *word;
            items.iter().find(is_named).or_else(counted)
        }
        _ => None,
    };
    match item {
        Some(item) => Term { text: &item.text, words: &item.words, direction },
        None => Term { text, words, direction },
    }
}

/// Returns the index of the first ORDER BY term that is not in ON, unless all expressions of ON
/// precede it.
fn find_misordered_term(on: &[Term<'_>], order: &[Term<'_>]) -> Option<usize> {
    let mut left: Vec<&[String]> = on.iter().map(|term| term.words).collect();
    for (n, term) in order.iter().enumerate() {
        if left.is_empty() {
            return None;
        }
        if !left.contains(&term.words) {
            return Some(n);
        }
        left.retain(|words| *words != term.words);
    }
    None
}

/// Writes the query that selects the first row of each partition.
fn write_first_rows(
    items: &[ResultItem],
    on: &[Term<'_>],
    order: &[Term<'_>],
    rows: SqlText,
    span: &Range<usize>,
) -> SqlText {
    let generated = |text: String| SourceFragment::Generated(text, span.clone());
    let separator = |n: usize| if n == 0 { "" } else { ", " };
    let mut text = vec![generated("SELECT ".to_owned())];
    for (n, item) in items.iter().enumerate() {
        text.push(generated(separator(n).to_owned()));
        let (column, name) = (format!("hq_c{}", n + 1), quote_name(&item.name));
        match item.asked {
            Some(asked) => {
                text.extend(item.text[..asked].iter().cloned());
                text.push(generated(column));
                text.extend(item.text[asked + 1..].iter().cloned());
                text.push(generated(format!(" AS {name}")));
            }
            None if item.alias.is_some() => text.push(generated(name)),
            None => text.push(generated(format!("{column} AS {name}"))),
        }
    }
    text.push(generated(" FROM (SELECT ".to_owned()));
    for (n, item) in items.iter().enumerate() {
        text.push(generated(separator(n).to_owned()));
        match (item.asked, &item.alias) {
            (Some(asked), _) => text.push(item.text[asked].clone()),
            (None, _) => text.extend(item.text.iter().cloned()),
        }
        text.push(match (item.asked, &item.alias) {
            // GROUP BY may refer to an alias.
            (None, Some(alias)) => SourceFragment::Source(alias.clone()),
            _ => generated(format!(" AS hq_c{}", n + 1)),
        });
    }
    for (n, term) in order.iter().enumerate() {
        text.push(generated(", ".to_owned()));
        text.extend(term.text.iter().cloned());
        text.push(generated(format!(" AS hq_o{}", n + 1)));
    }
    text.push(generated(", row_number() OVER (PARTITION BY ".to_owned()));
    for (n, term) in on.iter().enumerate() {
        text.push(generated(separator(n).to_owned()));
        text.extend(term.text.iter().cloned());
    }
    for (n, term) in order.iter().enumerate() {
        text.push(generated(if n == 0 { " ORDER BY ".to_owned() } else { ", ".to_owned() }));
        text.extend(term.text.iter().cloned());
        text.push(generated(term.direction.to_owned()));
    }
    text.push(generated(") AS hq_n ".to_owned()));
    text.extend(rows);
    let outer_order: Vec<String> =
        order.iter().enumerate().map(|(n, t)| format!("hq_o{}{}", n + 1, t.direction)).collect();
    let by = if order.is_empty() { "" } else { " ORDER BY " };
    text.push(generated(format!(") AS hq_d WHERE hq_n = 1{by}{}", outer_order.join(", "))));
    text
}
