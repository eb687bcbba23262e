//! Maps words in a query to the values of a column. If a column has a short list of values, then
//! `=`, `IN` and `ANY` with a word that is not on the list match the values that mean the same as
//! the word. The model decides which values match, once for each word and list. This mapping is off
//! unless the spec (`classify`) or the user enables it.

use std::ops::Range;

use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::schema::KnownSchema;
use crate::query::request::Request;
use hqdl_spec::Catalog;
use hqdl_sql::Edits;
use hqdl_sql::blendsql::lexer::{self, Brackets, Token, TokenKind};
use hqdl_sql::blendsql::normalize::SourceQuery;
use hqdl_sql::blendsql::scope::{ColumnOrigin, Resolver, Scope, strip_expr_parens};
use hqdl_sql::blendsql::tree::{Expr, ExprKind};
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Maximum number of distinct values of a column without a declared list.
const SMALL: usize = 100;
/// Question that the model answers about each word.
const QUESTION: &str = "which of the values mean the same as this, or are a kind of it?";

/// Returns the edits that replace unlisted words of a query with listed values or questions.
pub(in crate::query) fn classify_literals(
    request: &Request<'_>,
    guard: &GuardedConnection,
    schema: &KnownSchema,
    source: &SourceQuery,
) -> Edits {
    let mut edits = Edits::default();
    let by_spec = request.spec.expansions.iter().flat_map(|e| &e.columns).any(|c| c.classify);
    if !request.classify && !by_spec {
        return edits;
    }
    let lists = ValueListFinder { request, guard };
    let resolver = Resolver { schema, cte_calls: &[] };
    let queries = source.parsed.options.iter().chain([&source.parsed.query]);
    for query in queries {
        resolver.visit_exprs(query, &Scope::new(None), &mut |expr, scope, _| {
            let compared = ComparedColumn::parse_comparison(expr, scope, &source.text);
            let Some(compared) = compared else { return };
            let Some(list) = lists.find_values(&compared.origin, compared.array) else { return };
            if let Some(new) = compared.rewrite_comparison(&list, &source.text) {
                edits.replace(compared.span, new);
            }
        });
    }
    edits
}

/// A column that the query compares with text literals.
struct ComparedColumn {
    span: Range<usize>,
    origin: ColumnOrigin,
    /// Byte range of the column in the query.
    column: Range<usize>,
    /// Text literals that the column is compared with.
    words: Vec<String>,
    negated: bool,
    /// Whether the comparison is with the elements of an array column.
    array: bool,
}

impl ComparedColumn {
    fn parse_comparison(expr: &Expr, scope: &Scope<'_>, text: &str) -> Option<Self> {
        let origin = |e: &Expr| match &strip_expr_parens(e).kind {
            ExprKind::Column { table, column } => {
                let hit = scope.find_column(table.as_deref(), column)?;
                Some((hit.field.origin.clone()?, strip_expr_parens(e).span.clone()))
            }
            _ => None,
        };
        let word = |e: &Expr| match strip_expr_parens(e) {
            Expr { kind: ExprKind::Literal, span } => parse_text_literal(&text[span.clone()]),
            _ => None,
        };
        let (of, words, negated, array) = match &expr.kind {
            ExprKind::Compare(sign @ ("=" | "<>"), left, right) => {
                let (of, word) = match (origin(left), word(right)) {
                    (Some(of), Some(word)) => (of, word),
                    _ => (origin(right)?, word(left)?),
                };
                (of, vec![word], *sign == "<>", false)
            }
            ExprKind::In { negated, operand, list, query: None, .. } => {
                let words: Option<Vec<String>> = list.iter().map(word).collect();
                list.first()?;
                (origin(operand)?, words?, *negated, false)
            }
            ExprKind::Function { name, args, filter: None, window: None, .. }
                if name == "suql_any" =>
            {
                let [of_word, sign, array] = args.as_slice() else { return None };
                (word(sign)? == "=").then_some(())?;
                (origin(array)?, vec![word(of_word)?], false, true)
            }
            _ => return None,
        };
        let ((origin, column), span) = (of, expr.span.clone());
        Some(Self { span, origin, column, words, negated, array })
    }

    /// Returns SQL that compares the column with the listed values that the words stand for; `None`
    /// if all words are on the list.
    fn rewrite_comparison(&self, list: &[String], text: &str) -> Option<String> {
        let alike = |word: &str| {
            let mut same = list.iter().filter(|v| v.trim().eq_ignore_ascii_case(word.trim()));
            same.next().filter(|_| same.next().is_none()).cloned()
        };
        if self.words.iter().all(|w| list.contains(w)) {
            return None;
        }
        let column = &text[self.column.clone()];
        let values: Vec<String> = list.iter().map(|v| sql::quote_text(v)).collect();
        let call = |word: &String| {
            format!(
                "{{{{LLMMap('{QUESTION}', {}, options=({},), return_type='list[str]')}}}}",
                sql::quote_text(word),
                values.join(", ")
            )
        };
        if self.array {
            let word = self.words.first()?;
            return Some(match alike(word) {
                Some(value) => format!("suql_any({}, '=', {column})", sql::quote_text(&value)),
                None => format!("suql_overlaps({column}, {})", call(word)),
            });
        }
        let (mut known, mut parts) = (Vec::new(), Vec::new());
        let within = if self.negated { "NOT IN" } else { "IN" };
        for word in &self.words {
            match list.contains(word).then(|| word.clone()).or_else(|| alike(word)) {
                Some(value) => known.push(sql::quote_text(&value)),
                None => parts.push(format!("{column} {within} {}", call(word))),
            }
        }
        if !known.is_empty() {
            parts.insert(0, format!("{column} {within} ({})", known.join(", ")));
        }
        let parts = parts.join(if self.negated { " AND " } else { " OR " });
        // If a word matches no value, `NOT IN` is true even for NULL, unlike the original
        // comparison.
        let known = if self.negated { format!("{column} IS NOT NULL AND ") } else { String::new() };
        Some(format!("({known}{parts})"))
    }
}

/// Returns the content of a literal that is a string. Some dialects have strings in double quotes.
fn parse_text_literal(text: &str) -> Option<String> {
    let token = lexer::read_tokens(text, Brackets::Name).next()?;
    let is_string = matches!(token.lexeme, TokenKind::Text | TokenKind::Quoted);
    (is_string && token.end == text.trim_end().len()).then(|| token.unquoted_text(text))
}

/// Finds the value lists of columns.
struct ValueListFinder<'l> {
    request: &'l Request<'l>,
    guard: &'l GuardedConnection,
}

impl ValueListFinder<'_> {
    /// Returns the values of a column if there are only a few and `classify` applies to the column.
    fn find_values(&self, origin: &ColumnOrigin, array: bool) -> Option<Vec<String>> {
        let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        for expansion in &self.request.spec.expansions {
            for column in &expansion.columns {
                let here = match &column.many {
                    Some(many) => {
                        same(&many.table, &origin.table) && same(&many.column, &origin.column)
                    }
                    None => {
                        same(&expansion.name, &origin.table) && same(&column.name, &origin.column)
                    }
                };
                if here && (column.classify || self.request.classify) {
                    return column.values.as_ref().map(|v| v.values.clone());
                }
            }
        }
        if !self.request.classify {
            return None;
        }
        self.read_check_list(origin).or_else(|| self.read_distinct_texts(origin, array))
    }

    /// Returns the list in a column's CHECK constraint.
    fn read_check_list(&self, origin: &ColumnOrigin) -> Option<Vec<String>> {
        let statement: String = self
            .guard
            .connection()
            .query_row(
                "SELECT sql FROM sqlite_schema WHERE type = 'table' AND lower(name) = lower(?1)",
                [&origin.table],
                |row| row.get(0),
            )
            .ok()?;
        let tokens: Vec<Token> = lexer::read_tokens(&statement, Brackets::Name).collect();
        let is = |n: usize, word: &str| tokens.get(n).is_some_and(|t| t.is_word(&statement, word));
        let open = |n: usize| tokens.get(n).is_some_and(|t| t.is_symbol(b'('));
        let named = |n: usize| {
            tokens
                .get(n)
                .is_some_and(|t| t.unquoted_text(&statement).eq_ignore_ascii_case(&origin.column))
        };
        let from = (0..tokens.len()).find(|n| {
            is(*n, "CHECK") && open(n + 1) && named(n + 2) && is(n + 3, "IN") && open(n + 4)
        })?;
        let list = tokens[from + 5..].iter().take_while(|t| !t.is_symbol(b')'));
        let texts: Vec<String> = list
            .filter(|t| t.lexeme == TokenKind::Text)
            .map(|t| t.unquoted_text(&statement))
            .collect();
        (!texts.is_empty()).then_some(texts)
    }

    /// Returns the distinct texts of a column if there are at most [`SMALL`] and each occurs at
    /// least twice on average.
    fn read_distinct_texts(&self, origin: &ColumnOrigin, array: bool) -> Option<Vec<String>> {
        let (table, column) = (sql::quote_name(&origin.table), sql::quote_name(&origin.column));
        let from = if array {
            format!("{table} AS hq_of, json_each(suql_array(hq_of.{column})) AS hq_e")
        } else {
            format!("(SELECT hq_of.{column} AS value FROM {table} AS hq_of) AS hq_e")
        };
        let text = "typeof(hq_e.value) = 'text'";
        let sql = format!("SELECT DISTINCT hq_e.value FROM {from} WHERE {text}");
        let database = self.guard.database();
        let found = database.select_rows(&sql, SMALL + 1).ok()?;
        let all = format!("SELECT count(*) FROM {from} WHERE {text}");
        let all = database.select_rows(&all, 1).ok()?;
        let Some(Value::Integer(all)) = all.first().and_then(|r| r.first()).cloned() else {
            return None;
        };
        let few = found.len() <= SMALL
            && !found.is_empty()
            && i64::try_from(2 * found.len()).is_ok_and(|twice| twice <= all);
        let mut values: Vec<String> = found
            .iter()
            .filter_map(|r| r.first()?.to_text().map(std::borrow::Cow::into_owned))
            .collect();
        values.sort_unstable();
        few.then_some(values)
    }
}
