//! Translates queries and their clauses.

use std::ops::Range;

use super::function::is_set_function;
use super::translator::{
    PendingKind, SqlType, SuqlSelect, SuqlTable, TableSource, Translator, TypedColumns,
    fill_template,
};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;
use crate::blendsql::tree::{
    Body, Cte, Expr, ExprKind, FromSource, OrderTerm, Query, ResultColumn, SelectCore,
};
use crate::translated::EditText;
use hqdl_values::format::format_count;

impl Translator<'_> {
    /// Translates the query of a statement.
    pub fn translate_statement(&mut self, query: &Query) -> Result<(), SqlError> {
        self.translate_query(query, false)?;
        let counted = self.names.iter().find_map(|name| match &name.kind {
            PendingKind::CountedRows(table, _) => Some((table, &name.span)),
            _ => None,
        });
        let Some((table, span)) = counted else { return Ok(()) };
        let message = format!("FROM has no table `{table}`");
        Err(SqlError::new(span.clone(), message, "this counts its rows"))
    }

    /// Translates a query with its WITH, ORDER BY and LIMIT, and returns its columns. If
    /// `allows_no_columns` is true, it may have no result columns, as in EXISTS.
    pub fn translate_query(
        &mut self,
        query: &Query,
        allows_no_columns: bool,
    ) -> Result<TypedColumns, SqlError> {
        let may_unnest = std::mem::replace(&mut self.may_unnest, false);
        self.selects.push(SuqlSelect::default());
        let cte_count = self.ctes.len();
        for cte in &query.with {
            self.translate_cte(cte)?;
        }
        let first_name = self.names.len();
        self.translate_body(query, allows_no_columns)?;
        let mut end = self.find_body_end(&query.body);
        if !is_distinct_on(&query.body) {
            self.translate_with_unnest(|t| t.translate_order_by(&query.order))?;
        }
        end = query.order.last().map_or(end, |term| end.max(self.find_term_end(term)));
        self.translate_limits(query, end)?;
        self.resolve_names(first_name)?;
        self.ctes.truncate(cte_count);
        self.may_unnest = may_unnest;
        Ok(self.selects.pop().and_then(|select| select.results))
    }

    /// Runs `translate` where set-returning functions are allowed.
    pub fn translate_with_unnest<T>(
        &mut self,
        translate: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        self.may_unnest = true;
        let translated = translate(self);
        self.may_unnest = false;
        translated
    }

    fn translate_cte(&mut self, cte: &Cte) -> Result<(), SqlError> {
        let known = self.ctes.len();
        if cte.recursive {
            self.ctes.push((cte.name.clone(), None));
        }
        let columns = self.translate_query(&cte.query, false)?;
        self.ctes.truncate(known);
        // The names are followed by `) AS (`, with an optional MATERIALIZED.
        let before = self.tokens.partition_point(|token| token.start < cte.query.span.start);
        let close = self.tokens[..before].iter().rposition(|token| token.is_symbol(b')'));
        let name_at = |n: usize| {
            let token = close? + 1 - 2 * (cte.columns.len() - n);
            self.tokens.get(token).map(|token| token.span())
        };
        let names = cte.columns.iter().enumerate();
        let names: Vec<(String, Range<usize>)> =
            names.map(|(n, name)| (name.clone(), name_at(n).unwrap_or_default())).collect();
        let columns = rename_columns(columns, &names)?;
        self.ctes.push((cte.name.clone(), columns));
        Ok(())
    }

    /// Translates the SELECTs of a query in order.
    fn translate_body(&mut self, query: &Query, allows_no_columns: bool) -> Result<(), SqlError> {
        match &query.body {
            Body::Core(core) => self.translate_core(core, &query.order, allows_no_columns),
            Body::Compound(_, left, right) => {
                self.translate_body(left, allows_no_columns)?;
                let operator = left.span.end..right.span.start;
                let distinct = self.tokens_in(&operator);
                let distinct = distinct.iter().find(|token| token.is_word(self.sql, "DISTINCT"));
                if let Some(distinct) = distinct.map(|token| token.span()) {
                    self.replace(distinct, "");
                }
                let before = self.selects.last_mut().and_then(|select| select.results.take());
                self.translate_body(right, allows_no_columns)?;
                if let Some(select) = self.selects.last_mut() {
                    select.results = merge_columns(before, select.results.take());
                }
                Ok(())
            }
            Body::Values(values, width) => self.translate_values(values, *width),
        }
    }

    /// Translates a single SELECT. Its ORDER BY is translated only if there is a DISTINCT ON.
    fn translate_core(
        &mut self,
        core: &SelectCore,
        order: &[OrderTerm],
        allows_no_columns: bool,
    ) -> Result<(), SqlError> {
        let first_name = self.names.len();
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        let word = self.tokens_in(&core.span).first().copied();
        let is_whole_table = word.is_some_and(|word| !word.is_word(self.sql, "SELECT"));
        if is_whole_table && !core.from.is_empty() {
            return self.translate_whole_table(core, allows_no_columns);
        }
        self.translate_from(&core.from)?;
        let on = self.translate_exprs(&core.distinct_on)?;
        self.translate_with_unnest(|t| t.translate_result_columns(core, allows_no_columns))?;
        let columns_end = core.columns.last().map_or(core.span.start, |column| column.span.end);
        let from_end = core.from_end.max(columns_end);
        if let Some(filter) = &core.filter {
            self.translate_condition(filter)?;
        }
        self.translate_with_unnest(|t| t.translate_exprs(&core.group))?;
        if let Some(having) = &core.having {
            self.translate_condition(having)?;
        }
        for expr in &core.windows {
            self.translate_sort_key(expr)?;
        }
        let unnested = self.join_unnested_results(core);
        if !core.distinct_on.is_empty() {
            self.translate_distinct_on(core, &on, order, from_end, unnested)?;
        } else if let Some(unnested) = unnested {
            self.replace(from_end..from_end, unnested);
        }
        self.resolve_names(first_name)
    }

    /// Translates `TABLE t`, or a query in parentheses.
    fn translate_whole_table(
        &mut self,
        core: &SelectCore,
        allows_no_columns: bool,
    ) -> Result<(), SqlError> {
        let columns = match core.from.first().map(|item| (&item.source, item.span.clone())) {
            Some((FromSource::Query(query), span)) => {
                let columns = self.translate_query(query, allows_no_columns)?;
                let inner = query.span.clone().into();
                self.replace(span, fill_template("SELECT * FROM ({})", [inner]));
                columns
            }
            _ => {
                self.translate_from(&core.from)?;
                self.selects.last().and_then(|select| select.all_columns(None))
            }
        };
        self.set_output_columns(columns);
        Ok(())
    }

    /// Translates the rows of VALUES, and converts the values of a column to a common type.
    fn translate_values(&mut self, values: &[Expr], width: usize) -> Result<(), SqlError> {
        if let Some(select) = self.selects.last_mut() {
            *select = SuqlSelect::default();
        }
        let mut values = self.translate_exprs(values)?;
        // A call can produce a whole row.
        let has_calls = width == 0
            || values.len() % width != 0
            || values.iter().any(|value| {
                let before = self.tokens.partition_point(|token| token.start < value.span.start);
                value.sql_type == SqlType::Call
                    && before
                        .checked_sub(1)
                        .is_none_or(|n| self.tokens[n].is_word(self.sql, "VALUES"))
            });
        if has_calls {
            self.set_output_columns(None);
            return Ok(());
        }
        let mut columns = Vec::new();
        for n in 0..width {
            let column = values.iter_mut().skip(n).step_by(width).collect();
            let sql_type = self.coerce_to_common_type(column)?.as_column_type();
            columns.push((format!("column{}", n + 1), sql_type));
        }
        self.set_output_columns(Some(columns));
        Ok(())
    }

    /// Translates the result columns of a SELECT.
    fn translate_result_columns(
        &mut self,
        core: &SelectCore,
        allows_no_columns: bool,
    ) -> Result<(), SqlError> {
        if core.columns.is_empty() {
            let tokens = self.tokens_in(&core.span);
            let from = tokens.iter().find(|token| token.is_word(self.sql, "FROM"));
            let from = from.map_or(core.span.clone(), |token| token.span());
            if !allows_no_columns {
                let help = "name a column, or write SELECT 1 FROM";
                return Err(SqlError::untranslatable(from, "a SELECT without columns", help));
            }
            self.replace(from.start..from.start, "1 ");
        }
        let mut columns = Some(Vec::new());
        for column in &core.columns {
            let found = self.translate_result_column(column, core)?;
            columns = columns.zip(found).map(|(mut all, mut more)| {
                all.append(&mut more);
                all
            });
        }
        self.set_output_columns(columns);
        Ok(())
    }

    fn translate_result_column(
        &mut self,
        column: &ResultColumn,
        core: &SelectCore,
    ) -> Result<TypedColumns, SqlError> {
        let Some(expr) = &column.expr else {
            let table = column.star_table.clone();
            let select = self.selects.last();
            let columns = select.and_then(|select| select.all_columns(table.as_deref()));
            if let [schema, _, table, _, _] = *self.tokens_in(&column.span)
                && self.is_public_schema(schema)
            {
                self.replace(schema.start..table.start, "");
            }
            self.add_pending_name(column.span.clone(), PendingKind::Star(table));
            return Ok(columns);
        };
        let name_count = self.names.len();
        let typed = self.translate_expr(expr)?;
        Self::ensure_value(&typed)?;
        let own_name = match &expr.kind {
            ExprKind::Column { column, .. } => column.clone(),
            _ => String::new(),
        };
        // Without an alias, an array element is named after its array.
        if column.alias.is_none() && core.distinct_on.is_empty() {
            match &expr.kind {
                ExprKind::Column { .. } => {
                    if let Some(PendingKind::Column { is_result, .. }) =
                        self.names.get_mut(name_count).map(|name| &mut name.kind)
                    {
                        *is_result = true;
                    }
                }
                ExprKind::Function { name, .. } if is_set_function(name) => {
                    // The last edit replaces the call.
                    if let Some(Some((_, element))) = self.edits.last_mut() {
                        *element = EditText::concat([element.clone(), " AS \"unnest\"".into()]);
                    }
                }
                _ => {}
            }
        }
        let name = column.alias.clone().unwrap_or(own_name);
        Ok(Some(vec![(name, typed.sql_type.as_column_type())]))
    }

    /// Returns the entries of the FROM clause for the arrays that are unnested in the result columns.
    fn join_unnested_results(&self, core: &SelectCore) -> Option<EditText> {
        let select = self.selects.last()?;
        let mut separator = if core.from.is_empty() { " FROM " } else { ", " };
        let mut parts = Vec::new();
        for unnested in &select.unnested {
            let Some((_, array)) = &unnested.array else { continue };
            let template = format!("{separator}json_each(suql_array({{}})) AS {}", unnested.alias);
            parts.push(fill_template(&template, [array.clone()]));
            separator = ", ";
        }
        (!parts.is_empty()).then(|| EditText::join(parts, ""))
    }

    /// Sets the result columns of the current SELECT.
    fn set_output_columns(&mut self, columns: TypedColumns) {
        if let Some(select) = self.selects.last_mut() {
            select.results = columns;
        }
    }

    /// Translates LIMIT, OFFSET and FETCH, which follow the offset `end`.
    fn translate_limits(&mut self, query: &Query, end: usize) -> Result<(), SqlError> {
        let mut limits = Vec::new();
        for expr in query.limit.iter().chain(&query.offset) {
            limits.push(self.translate_expr(expr)?);
        }
        let clauses = ["LIMIT", "OFFSET", "FETCH"];
        let is_any =
            |token: &Token, words: &[&str]| words.iter().any(|w| token.is_word(self.sql, w));
        let after = self.tokens.partition_point(|token| token.start < end);
        let rest = self.tokens_in(&(end..query.span.end));
        let first = rest.iter().position(|token| is_any(token, &clauses));
        let Some(first) = first.map(|n| n + after) else {
            return Ok(());
        };
        let end = first.checked_sub(1).map_or(0, |before| self.tokens[before].end);
        let words = self.tokens_in(&(end..query.span.end)).iter().filter(|token| {
            let is_inside = limits.iter().any(|limit| limit.span.contains(&token.start));
            !is_inside && (is_any(token, &clauses) || is_any(token, &["ALL", "ROW", "ROWS"]))
        });
        let words: Vec<String> = words.map(|t| t.text(self.sql).to_ascii_uppercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if matches!(words.as_slice(), [] | ["LIMIT"] | ["LIMIT", "OFFSET"]) {
            return Ok(());
        }
        let copy = |expr: &Expr| EditText::from(expr.span.clone());
        let has_word = |word: &str| words.contains(&word);
        let is_single_row = has_word("FETCH") && !has_word("ALL");
        let limit = match &query.limit {
            Some(limit) => copy(limit),
            None if is_single_row => "1".into(),
            None => "-1".into(),
        };
        let mut parts = vec![" LIMIT ".into(), limit];
        if let Some(offset) = &query.offset {
            parts.extend([" OFFSET ".into(), copy(offset)]);
        }
        self.replace(end..query.span.end, EditText::join(parts, ""));
        Ok(())
    }

    /// Returns the end of a term of ORDER BY.
    pub fn find_term_end(&self, term: &OrderTerm) -> usize {
        let after = self.tokens.partition_point(|token| token.start < term.expr.span.end);
        let words = ["ASC", "DESC", "NULLS", "FIRST", "LAST"];
        let is_direction = |t: &&Token| words.iter().any(|word| t.is_word(self.sql, word));
        let last = self.tokens[after..].iter().take_while(is_direction).last();
        last.map_or(term.expr.span.end, |token| token.end)
    }

    /// Returns the end of a query's SELECTs, before its ORDER BY and LIMIT.
    fn find_body_end(&self, body: &Body) -> usize {
        match body {
            Body::Core(core) => core.rows_end,
            Body::Compound(_, _, right) => self.find_body_end(&right.body),
            Body::Values(values, _) => self.find_end_with_parens(values.last(), 0),
        }
    }

    /// Returns the end of the `)` after an expression, or `end` if there is no expression.
    fn find_end_with_parens(&self, expr: Option<&Expr>, end: usize) -> usize {
        let Some(expr) = expr else { return end };
        let after = self.tokens.partition_point(|token| token.start < expr.span.end);
        let close = self.tokens[after..].iter().find(|token| token.is_symbol(b')'));
        close.map_or(end, |token| token.end)
    }

    /// Adds a table to the current SELECT.
    pub fn add_table(&mut self, name: Option<String>, source: TableSource, columns: TypedColumns) {
        if let Some(select) = self.selects.last_mut() {
            select.tables.push(SuqlTable { name, source, columns });
        }
    }
}

fn is_distinct_on(body: &Body) -> bool {
    matches!(body, Body::Core(core) if !core.distinct_on.is_empty())
}

/// Returns the columns with the first columns renamed to `names`.
///
/// # Errors
/// Returns [`SqlError`] if there are more names than columns.
pub(super) fn rename_columns(
    columns: TypedColumns,
    names: &[(String, Range<usize>)],
) -> Result<TypedColumns, SqlError> {
    let Some(mut columns) = columns else { return Ok(None) };
    if let Some((_, span)) = names.get(columns.len()) {
        let count = format_count(columns.len() as u64, "column");
        let message = format!("the query has {count}, but there are {} names", names.len());
        return Err(SqlError::new(span.clone(), message, "one too many"));
    }
    for ((name, _), column) in names.iter().zip(&mut columns) {
        column.0.clone_from(name);
    }
    Ok(Some(columns))
}

/// Returns the columns of a compound of two queries.
fn merge_columns(first: TypedColumns, second: TypedColumns) -> TypedColumns {
    let (first, second) = first.zip(second).filter(|(a, b)| a.len() == b.len())?;
    let both = first.into_iter().zip(second);
    Some(both.map(|((name, a), (_, b))| (name, a.unify(&b))).collect())
}
