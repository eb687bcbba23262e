//! Syntax of earlier versions, and syntax that users commonly write. The parser accepts it and
//! collects the edits that replace it:
//!
//! | written | read as |
//! |---|---|
//! | `FROM a JOIN {{LLMJoin('a::x', 'b::y')}}` | `FROM a JOIN b ON {{…}}` |
//! | the same, if FROM already contains both tables | another condition of the preceding join |
//! | `'a::x'`, if FROM has `a AS t` | `t.x` |
//! | `{{LLMQA('q', 'a::x')}}`, if no FROM has `a` | `(SELECT x FROM a)` |
//! | `FROM VALUES {{…}}` | `FROM (VALUES {{…}})` |
//! | `FROM {{LLMQA(…)}}` | `FROM (SELECT {{…}} AS value)`; a list becomes one row per value |
//! | `FROM (…) AS t(a, b)`, `FROM VALUES {{…}} AS t(a, b)` | `FROM (WITH t_(a, b) AS (…) SELECT * FROM t_) AS t` |
//! | `{{…}}::INT`, `t.x::INT` | `CAST({{…}} AS INT)`, `CAST(t.x AS INT)` |
//! | `TRY_CAST(x AS INT)`, `BigQuery`'s `SAFE_CAST` | `CAST(hq_try_cast(x, 'integer') AS INTEGER)` |

use crate::blendsql::argument::is_cast_type;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::parse::cursor::{LegacySyntax, QueryParser};
use crate::blendsql::runtime::TRY_CAST_FUNCTION;
use crate::blendsql::tree::{
    Body, Cte, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore, Span,
};
use crate::blendsql::try_cast::TryCastType;
use crate::blendsql::{Argument, SqlError, Subject};
use crate::translated::Edits;
use hqdl_values::sql::quote_name;

impl LegacySyntax {
    /// Writes text before and after a node. Outer nodes are completed after inner nodes, so the
    /// outer text encloses the inner text.
    fn surround_span(&mut self, span: &Span, before: String, after: &str) {
        self.edits.insert_first(span.start, before);
        self.edits.replace(span.end..span.end, after);
    }
}

impl QueryParser<'_> {
    /// Returns the edits of the whole query. A question about the rows of a table that no FROM
    /// clause contains gets a subquery.
    pub(super) fn take_legacy_edits(&mut self) -> Edits {
        let Some(mut legacy) = self.legacy.take() else { return Edits::default() };
        for (n, value) in legacy.columns {
            let call = &self.calls[n];
            if let (Subject::Rows, Argument::Column { table: Some(table), column, span }) =
                (call.ingredient.subject(), &call.values[value])
            {
                // SQLite reads an unknown name in double quotes as a text unless its table is
                // named.
                let (table, column) = (quote_name(table), quote_name(column));
                let query = format!("(SELECT {table}.{column} FROM {table})");
                legacy.edits.replace(span.clone(), query);
            }
        }
        legacy.edits
    }

    /// Adds the columns `'t::c'` of a call.
    pub(super) fn add_legacy_columns(&mut self, n: usize) {
        let call = &self.calls[n];
        if let Some(legacy) = self.legacy.as_mut()
            && call.ingredient.subject() != Subject::Document
        {
            let is_column = |v: &Argument| matches!(v, Argument::Column { table: Some(_), .. });
            let values = call.values.iter().enumerate().filter(|(_, v)| is_column(v));
            legacy.columns.extend(values.map(|(value, _)| (n, value)));
        }
    }

    pub(super) fn legacy_column_count(&self) -> usize {
        self.legacy.as_ref().map_or(0, |legacy| legacy.columns.len())
    }

    /// Resolves the legacy columns at index `first` and later with the FROM clause of their SELECT.
    /// If the clause contains a column's table under an alias, the column is qualified with the
    /// alias. A column whose table is not found stays unresolved, because the table may belong to
    /// an enclosing SELECT.
    pub(super) fn resolve_legacy_columns(&mut self, first: usize, from: &[FromItem]) {
        let Some(legacy) = self.legacy.as_mut() else { return };
        for (n, value) in legacy.columns.split_off(first) {
            let Argument::Column { table: Some(table), column, span } =
                &self.calls[n].values[value]
            else {
                continue;
            };
            if from.iter().any(|item| is_named(item, table)) {
                continue;
            }
            let mut aliased = from.iter().filter(|item| reads_table(item, table));
            match (aliased.next().and_then(|item| item.name.as_deref()), aliased.next()) {
                (Some(name), None) => {
                    let new = format!("{}.{}", quote_name(name), quote_name(column));
                    legacy.edits.replace(span.clone(), new);
                }
                _ => legacy.columns.push((n, value)),
            }
        }
    }

    /// Parses `JOIN {{LLMJoin(…)}}` after the join's keywords, and adds the joined table. If FROM
    /// already contains both tables, adds the call to the condition of the preceding join.
    pub(super) fn parse_legacy_join(
        &mut self,
        items: &mut Vec<FromItem>,
        words: Span,
        (join, natural): (JoinKind, bool),
    ) -> Result<bool, SqlError> {
        let call = self.peek().and_then(|token| self.call_at(token)).map(|n| &self.calls[n]);
        let Some(call) = call.filter(|call| call.ingredient.subject() == Subject::Pair) else {
            return Ok(false);
        };
        if self.legacy.is_none() || self.tokens[self.at - 1].is_symbol(b',') {
            return Ok(false);
        }
        let tables = call.values.iter().rev().filter_map(|value| self.find_join_table(value));
        let is_unread = |t: &String| !items.iter().any(|i| is_named(i, t) || reads_table(i, t));
        if let Some(name) = tables.into_iter().find(is_unread) {
            let start = call.span.start;
            let on = Some(self.parse_expr()?);
            self.add_legacy_edit(start..start, format!("{} ON ", quote_name(&name)));
            let source = FromSource::Table { schema: None, name: name.clone(), span: start..start };
            let item = FromItem::new(source, Some(name), join, start..start);
            items.push(FromItem { on, natural, ..item });
            return Ok(true);
        }
        let is_joined = items.len() > 1 && join == JoinKind::Inner && !natural;
        let Some(previous) = items.last_mut().filter(|i| is_joined && i.using.is_empty()) else {
            return Ok(false);
        };
        let condition = self.parse_expr()?;
        let keyword = if previous.on.is_some() { "AND" } else { "ON" };
        self.add_legacy_edit(words, keyword.to_owned());
        previous.on = Some(match previous.on.take() {
            None => condition,
            Some(first) => {
                let (span, parts) = (first.span.start..condition.span.end, vec![first, condition]);
                for part in parts.iter().filter(|part| matches!(part.kind, ExprKind::Or(_))) {
                    if let Some(legacy) = &mut self.legacy {
                        legacy.surround_span(&part.span, "(".to_owned(), ")");
                    }
                }
                Expr { span, kind: ExprKind::And(parts) }
            }
        });
        Ok(true)
    }

    /// Parses `VALUES {{…}}` or `{{LLMQA(…)}}` as an entry of a FROM clause. Returns `None` if
    /// neither is next.
    pub(super) fn parse_legacy_source(&mut self) -> Result<Option<FromSource>, SqlError> {
        let values = usize::from(self.is_word("VALUES"));
        let call = self.peek_after(values).and_then(|token| self.call_at(token));
        let Some(call) = call.map(|n| &self.calls[n]).filter(|_| self.legacy.is_some()) else {
            return Ok(None);
        };
        let is_source = match values {
            0 => call.ingredient.subject() == Subject::Rows && !call.is_values_row,
            _ => call.is_values_row,
        };
        if !is_source {
            return Ok(None);
        }
        let start = self.next_start();
        self.at += values;
        let expr = self.parse_call()?;
        let span = self.span_from(start);
        let is_list = call.quantifier.is_some() || call.return_type.is_some_and(|t| t.is_list);
        let (before, after) = match (values, is_list) {
            (0, false) => ("(SELECT ", " AS value)"),
            (0, true) => ("(SELECT value FROM json_each(", "))"),
            _ => ("(", ")"),
        };
        if let Some(legacy) = self.legacy.as_mut() {
            legacy.surround_span(&span, before.to_owned(), after);
        }
        let core = SelectCore::with_columns(Vec::new(), span);
        let query = Query { body: Body::Values(vec![expr], 1), ..Query::from_core(core) };
        Ok(Some(FromSource::Query(Box::new(query))))
    }

    /// Reads the names after the alias of a subquery, as in `(SELECT …) AS t(a, b)`. Returns the
    /// subquery with these names.
    pub(super) fn read_legacy_column_names(
        &mut self,
        query: Box<Query>,
        source: Span,
        alias: &str,
    ) -> Result<Box<Query>, SqlError> {
        if self.legacy.is_none() || !self.is_symbol(b'(') {
            return Ok(query);
        }
        let start = self.next_start();
        self.at += 1;
        let names = self.read_list(Self::read_name)?;
        self.expect_symbol(b')')?;
        let columns = self.span_from(start);
        let mut name = alias.to_owned();
        let is_used = |name: &str| {
            let tokens = self.tokens.iter().skip_while(|token| token.start < source.start);
            let mut inner = tokens.take_while(|token| token.start < source.end);
            inner.any(|token| token.unquoted_text(self.sql).eq_ignore_ascii_case(name))
        };
        while is_used(&name) {
            name.push('_');
        }
        let cte = Cte { name: name.clone(), columns: names, query: *query, recursive: false };
        let name = quote_name(&name);
        let before = format!("(WITH {name}{} AS ", &self.sql[columns.clone()]);
        self.add_legacy_edit(columns, String::new());
        if let Some(legacy) = self.legacy.as_mut() {
            legacy.surround_span(&source, before, &format!(" SELECT * FROM {name})"));
        }
        let table =
            FromSource::Table { schema: None, name: cte.name.clone(), span: source.clone() };
        let rows = Query::select_all(table, Some(cte.name.clone()), source);
        Ok(Box::new(Query { with: vec![cte], ..rows }))
    }

    /// Returns true if a `::` after the expression is a cast that earlier versions accepted: the
    /// expression is a call, or the type is in `CAST_TYPES`.
    pub(super) fn is_legacy_cast(&self, left: &Expr) -> bool {
        let has_known_type = || self.peek_after(1).is_some_and(|word| is_cast_type(self.sql, word));
        let is_call = matches!(left.kind, ExprKind::Call(..));
        self.legacy.is_some() && (is_call || !self.is_postgres && has_known_type())
    }

    /// Replaces a cast; `colons` is the offset of the `::`. Fails if a subscript follows directly,
    /// which `SQLite` would read as an alias.
    pub(super) fn replace_legacy_cast(
        &mut self,
        left: &Expr,
        colons: usize,
        type_name: &str,
    ) -> Result<(), SqlError> {
        let end = self.previous_token_end();
        let subscript = self.peek().filter(|next| {
            next.start == end && next.lexeme == TokenKind::Name && self.text(*next).starts_with('[')
        });
        if let Some(subscript) = subscript.filter(|_| self.legacy.is_some() && !self.is_postgres) {
            let message = "a cast cannot have a subscript";
            return Err(SqlError::new(subscript.span(), message, "SQLite has no arrays")
                .with_help("for a name of the result column, write AS before it"));
        }
        let is_call = matches!(left.kind, ExprKind::Call(..));
        if self.legacy.is_some() && (is_call || !self.is_postgres) {
            let span = self.span_from(colons);
            self.add_legacy_edit(span, format!(" AS {type_name})"));
            if let Some(legacy) = self.legacy.as_mut() {
                legacy.edits.insert_first(left.span.start, "CAST(".to_owned());
            }
        }
        Ok(())
    }

    /// Returns true if `TRY_CAST(` is next, or `SAFE_CAST(` in `BigQuery`'s dialect.
    pub(super) fn begins_try_cast(&self) -> bool {
        let Some(legacy) = self.legacy.as_ref().filter(|_| !self.is_postgres) else { return false };
        let is_name = self.is_word("TRY_CAST") || legacy.has_safe_cast && self.is_word("SAFE_CAST");
        is_name && self.is_symbol_after(1, b'(')
    }

    /// Parses a cast that returns NULL if the value is not one of the type. The cast that replaces
    /// it gives comparisons the affinity of the type.
    pub(super) fn parse_try_cast(&mut self) -> Result<ExprKind, SqlError> {
        let start = self.next_start();
        self.at += 2;
        self.add_legacy_edit(self.span_from(start), format!("CAST({TRY_CAST_FUNCTION}("));
        let value = self.parse_expr()?;
        let start = self.next_start();
        let mut name = String::new();
        if self.eat_word("AS") {
            name = self.read_try_cast_type()?;
        } else if !self.is_symbol(b')') {
            return Err(self.unexpected_error());
        }
        let Some((type_name, sqlite_type)) = TryCastType::find_names(&name) else {
            return Err(self.unknown_try_cast_type_error(start, &name));
        };
        let text = format!(", '{type_name}') AS {sqlite_type}");
        self.add_legacy_edit(self.span_from(start), text);
        self.expect_symbol(b')')?;
        Ok(ExprKind::Cast(Box::new(value), sqlite_type.to_owned()))
    }

    /// Reads the tokens up to the parenthesis that closes a `TRY_CAST`. Returns them in lower case,
    /// separated by spaces.
    fn read_try_cast_type(&mut self) -> Result<String, SqlError> {
        let tokens = &self.tokens[self.at..self.end];
        let mut depth = 0_usize;
        let is_close = |token: &Token| {
            let is_close = token.is_symbol(b')');
            if is_close && depth == 0 {
                return true;
            }
            depth += usize::from(token.is_symbol(b'('));
            depth -= usize::from(is_close);
            false
        };
        let Some(length) = tokens.iter().position(is_close) else {
            self.read_sqlite_type()?;
            return Err(self.unexpected_error());
        };
        self.at += length;
        let words = tokens[..length].iter().map(|token| token.unquoted_text(self.sql));
        Ok(words.collect::<Vec<_>>().join(" ").to_ascii_lowercase())
    }

    /// Returns the error for the type that ends before the next token. `start` is the offset of AS.
    fn unknown_try_cast_type_error(&self, start: usize, name: &str) -> SqlError {
        let span = self.span_from(start);
        let written = self.sql.get(span.clone()).and_then(|text| text.get(2..)).unwrap_or_default();
        let (message, label) = match written.trim() {
            "" => ("TRY_CAST has no type".to_owned(), "a type is missing here"),
            written => (format!("TRY_CAST has no type `{written}`"), "not a type of TRY_CAST"),
        };
        let end = span.end.max(start + 1);
        let types = "the types are INTEGER, REAL, BOOLEAN, DATE, TIMESTAMP and TEXT";
        SqlError::new(start..end, message, label).with_help(if name.contains('(') {
            format!("{types}, without a length or a precision: ROUND(TRY_CAST(x AS REAL), 2)")
        } else {
            types.to_owned()
        })
    }

    fn add_legacy_edit(&mut self, span: Span, text: String) {
        if let Some(legacy) = &mut self.legacy {
            legacy.edits.replace(span, text);
        }
    }

    /// Returns the table that one side of a join names, or `None` if it is not a qualified column.
    fn find_join_table(&self, value: &Argument) -> Option<String> {
        match value {
            Argument::Column { table, .. } => table.clone(),
            Argument::Sql(span) => {
                let (table, column) = self.sql.get(span.clone())?.split_once('.')?;
                let simple = |s: &str| s.chars().all(|c| c.is_alphanumeric() || c == '_');
                (simple(table) && simple(column)).then(|| table.to_owned())
            }
            Argument::Query(_) => None,
        }
    }
}

/// Returns true if the columns of an entry have this qualifier.
fn is_named(item: &FromItem, name: &str) -> bool {
    item.name.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(name))
}

/// Returns true if an entry reads this table.
fn reads_table(item: &FromItem, table: &str) -> bool {
    matches!(&item.source, FromSource::Table { name, .. } if name.eq_ignore_ascii_case(table))
}
