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

use super::translator::{TableSource, Translator, TypedExpr};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::tree::{Expr, ExprKind, OrderTerm, SelectCore};
use crate::translated::EditText;
use hqdl_values::sql::quote_name;

/// A result column, or a column of a `*`.
struct ResultItem {
    text: EditText,
    name: String,
    /// Byte range of the alias; `None` without an alias.
    alias: Option<Range<usize>>,
    /// Tokens of the expression.
    words: Vec<String>,
    /// Byte ranges of the question and of its column, if the outer query asks it.
    asked: Option<(Range<usize>, Range<usize>)>,
}

/// A term of ON or ORDER BY.
struct Term<'i> {
    text: EditText,
    words: &'i [String],
    direction: &'i str,
}

impl Translator<'_> {
    /// Translates a SELECT with `DISTINCT ON`, whose clauses have been translated, and its ORDER BY,
    /// which has not. `unnested` are the FROM entries to add at `from_end`.
    ///
    /// # Errors
    /// Returns [`SqlError`] for an invalid term, if the columns of a `*` are not known, or if ORDER
    /// BY does not begin with the expressions of `DISTINCT ON`.
    pub fn translate_distinct_on(
        &mut self,
        core: &SelectCore,
        on: &[TypedExpr],
        order: &[OrderTerm],
        from_end: usize,
        unnested: Option<EditText>,
    ) -> Result<(), SqlError> {
        let rows_end = core.rows_end;
        let head = self.tokens_in(&core.span);
        let words = match head {
            [_, distinct, on, ..] => distinct.start..on.end,
            _ => core.span.clone(),
        };
        let refusal = || {
            let help = "list its columns, followed by ORDER BY";
            SqlError::untranslatable(words.clone(), "DISTINCT ON", help)
        };
        let columns_end = core.columns.last().map_or(core.span.start, |column| column.span.end);
        let from = self.tokens_in(&(columns_end..rows_end)).first();
        let from = from.filter(|_| !core.from.is_empty()).ok_or_else(refusal)?;
        let rows = from.start..rows_end;
        let items = self.read_result_items(core, &rows).ok_or_else(refusal)?;
        let keys = self.translate_with_unnest(|t| t.translate_order_by(order))?;
        let read = |expr: &TypedExpr| self.read_comparable_tokens(&expr.span);
        let words: Vec<Vec<String>> = on.iter().chain(&keys).map(read).collect();
        let (on_words, key_words) = words.split_at(on.len());
        let on: Vec<Term<'_>> = on
            .iter()
            .zip(on_words)
            .map(|(expr, words)| resolve_term(&items, &expr.span, words, ""))
            .collect();
        let ends: Vec<usize> = order.iter().map(|term| self.find_term_end(term)).collect();
        let terms: Vec<Term<'_>> = keys
            .iter()
            .zip(key_words)
            .zip(&ends)
            .map(|((key, words), end)| {
                let direction = self.text(&(key.span.end..*end));
                resolve_term(&items, &key.span, words, direction)
            })
            .collect();
        if let Some(n) = find_misordered_term(&on, &terms) {
            let message = "ORDER BY must begin with the expressions of DISTINCT ON";
            let label = "expected the expressions of DISTINCT ON first";
            let error = SqlError::new(keys[n].span.clone(), message, label);
            return Err(
                error.with_help("DISTINCT ON keeps the first row of each group in this order")
            );
        }
        let rows = EditText::concat([
            (rows.start..from_end).into(),
            unnested.unwrap_or_default(),
            (from_end..rows.end).into(),
        ]);
        let text = write_first_rows(&items, &on, &terms, rows);
        let end = ends.last().copied().unwrap_or(rows_end);
        self.replace(core.span.start..end, text);
        Ok(())
    }

    /// Returns the result columns; `None` if the columns of a `*` are not known.
    fn read_result_items(&self, core: &SelectCore, rows: &Range<usize>) -> Option<Vec<ResultItem>> {
        let known = self.table_columns(None).unwrap_or_default();
        let mut items = Vec::new();
        for column in &core.columns {
            let Some(expr) = &column.expr else {
                let columns = self.table_columns(column.star_table.as_deref())?;
                items.extend(columns.into_iter().map(|(sql, name)| ResultItem {
                    text: sql.into(),
                    words: vec![name.to_lowercase()],
                    name,
                    alias: None,
                    asked: None,
                }));
                continue;
            };
            let name = match (&column.alias, &expr.kind) {
                (Some(alias), _) => alias.clone(),
                (None, ExprKind::Column { column, .. }) => column.clone(),
                _ => self.text(&expr.span).to_owned(),
            };
            let asked = self.find_asked_column(expr, &known).filter(|_| {
                let uses_answer = |t: &Token| {
                    t.is_word(self.sql, "GROUP")
                        || column.alias.is_some()
                            && t.unquoted_text(self.sql).eq_ignore_ascii_case(&name)
                };
                !self.tokens_in(rows).iter().any(uses_answer)
            });
            items.push(ResultItem {
                text: expr.span.clone().into(),
                name,
                alias: column.alias.is_some().then_some(expr.span.end..column.span.end),
                words: self.read_comparable_tokens(&expr.span),
                asked: asked.map(|column| (expr.span.clone(), column)),
            });
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

    /// Returns the byte range of the column that a question is about. Returns `None` if the
    /// expression is not a question about a column, or if the column is not in `known`.
    fn find_asked_column(&self, expr: &Expr, known: &[(String, String)]) -> Option<Range<usize>> {
        let ExprKind::Function { name, window: None, has_modifier: false, filter: None, args } =
            &expr.kind
        else {
            return None;
        };
        let [of, question @ ..] = args.as_slice() else { return None };
        let ExprKind::Column { column, .. } = &of.kind else { return None };
        let is_text = |question: &Expr| {
            let tokens = self.tokens_in(&question.span);
            matches!(tokens, [text] if text.lexeme == TokenKind::Text)
        };
        let is_known = known.iter().any(|(_, known)| known == column);
        let is_question = matches!(name.as_str(), "answer" | "summary")
            && question.len() < 2
            && question.iter().all(is_text);
        (is_question && is_known).then(|| of.span.clone())
    }

    /// Returns the tokens of a range in a form that can be compared: a column is equal with and
    /// without its table qualifier.
    fn read_comparable_tokens(&self, span: &Range<usize>) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for token in self.tokens_in(span) {
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
}

/// Resolves a term, which can be the name or position of a result column.
fn resolve_term<'i>(
    items: &'i [ResultItem],
    span: &Range<usize>,
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
        Some(item) => Term { text: item.text.clone(), words: &item.words, direction },
        None => Term { text: span.clone().into(), words, direction },
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

/// Returns the query that selects the first row of each partition.
fn write_first_rows(
    items: &[ResultItem],
    on: &[Term<'_>],
    order: &[Term<'_>],
    rows: EditText,
) -> EditText {
    let mut columns = Vec::new();
    let mut inner_columns = Vec::new();
    for (n, item) in items.iter().enumerate() {
        let (column, name) = (format!("hq_c{}", n + 1), quote_name(&item.name));
        columns.push(match &item.asked {
            Some((question, asked)) => EditText::concat([
                (question.start..asked.start).into(),
                column.into(),
                (asked.end..question.end).into(),
                format!(" AS {name}").into(),
            ]),
            None if item.alias.is_some() => name.into(),
            None => format!("{column} AS {name}").into(),
        });
        let inner_name = format!(" AS hq_c{}", n + 1).into();
        inner_columns.push(match (&item.asked, &item.alias) {
            (Some((_, asked)), _) => EditText::concat([asked.clone().into(), inner_name]),
            // GROUP BY may refer to an alias.
            (None, Some(alias)) => EditText::concat([item.text.clone(), alias.clone().into()]),
            (None, None) => EditText::concat([item.text.clone(), inner_name]),
        });
    }
    for (n, term) in order.iter().enumerate() {
        let name = format!(" AS hq_o{}", n + 1);
        inner_columns.push(EditText::concat([term.text.clone(), name.into()]));
    }
    let on = on.iter().map(|term| term.text.clone()).collect();
    let keys = order.iter();
    let keys = keys.map(|term| EditText::concat([term.text.clone(), term.direction.into()]));
    let by = if order.is_empty() { "" } else { " ORDER BY " };
    let outer_keys = order.iter().enumerate();
    let outer_keys: Vec<String> =
        outer_keys.map(|(n, term)| format!("hq_o{}{}", n + 1, term.direction)).collect();
    EditText::concat([
        "SELECT ".into(),
        EditText::join(columns, ", "),
        " FROM (SELECT ".into(),
        EditText::join(inner_columns, ", "),
        ", row_number() OVER (PARTITION BY ".into(),
        EditText::join(on, ", "),
        by.into(),
        EditText::join(keys.collect(), ", "),
        ") AS hq_n ".into(),
        rows,
        format!(") AS hq_d WHERE hq_n = 1{by}{}", outer_keys.join(", ")).into(),
    ])
}
