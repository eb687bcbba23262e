//! Names result columns after the original query. `SQLite` names a column without an alias after
//! the text of its expression, but hqdl rewrites the text that `SQLite` runs. The column of a call
//! is named after its question.

use rusqlite::types::ValueRef;

use crate::query::request::dialect::Dialect;
use crate::query::result::query_result::RowSink;
use hqdl_sql::blendsql::Call;
use hqdl_sql::blendsql::normalize::SourceQuery;
use hqdl_sql::blendsql::parse::Syntax;
use hqdl_sql::blendsql::tree::{Body, ExprKind, ResultColumn};
use hqdl_sql::suql;

/// Header of a result column.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SourceHeader {
    /// Source text of the column, or the question of a call.
    Text(String),
    /// The name that `SQLite` returns: an alias or the name of a column.
    FromSqlite,
    /// `*`, which expands to any number of columns.
    Star,
}

/// Sink that renames result columns according to the original query.
pub(in crate::query) struct SourceHeaders<'s> {
    sink: &'s mut dyn RowSink,
    headers: Vec<SourceHeader>,
}

impl<'s> SourceHeaders<'s> {
    /// Reads the headers of a query before the query is rewritten.
    pub(in crate::query) fn new(
        sql: &str,
        dialect: Dialect,
        syntax: Syntax<'_>,
        sink: &'s mut dyn RowSink,
    ) -> Self {
        Self { sink, headers: list_headers(sql, dialect, syntax).unwrap_or_default() }
    }
}

impl RowSink for SourceHeaders<'_> {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let mut renamed = names.to_vec();
        let stars = self.headers.iter().filter(|h| **h == SourceHeader::Star).count();
        let is_matching = if stars == 0 {
            self.headers.len() == renamed.len()
        } else {
            self.headers.len() - stars <= renamed.len()
        };
        if is_matching {
            // Match the columns before the first star from the left, and the columns after the last
            // star from the right. Columns between two stars keep their names.
            let source_text = |header: &SourceHeader| match header {
                SourceHeader::Text(name) => Some(name.clone()),
                SourceHeader::FromSqlite | SourceHeader::Star => None,
            };
            let left = self.headers.iter().take_while(|h| **h != SourceHeader::Star);
            for (name, header) in renamed.iter_mut().zip(left) {
                source_text(header).into_iter().for_each(|written| *name = written);
            }
            if stars > 0 {
                let right = self.headers.iter().rev().take_while(|h| **h != SourceHeader::Star);
                for (name, header) in renamed.iter_mut().rev().zip(right) {
                    source_text(header).into_iter().for_each(|written| *name = written);
                }
            }
        }
        self.sink.write_columns(&renamed)
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.sink.write_row(row)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.sink.finish()
    }
}

/// Returns the headers of the first SELECT of a query; `None` if the query is a single call, has no
/// SELECT, or cannot be parsed.
fn list_headers(sql: &str, dialect: Dialect, syntax: Syntax<'_>) -> Option<Vec<SourceHeader>> {
    let parsed = if dialect.has_postgres_syntax() {
        suql::parse_query(sql, dialect.vendor())
    } else {
        let syntax = Syntax { vendor: dialect.vendor(), ..syntax };
        SourceQuery::parse(sql, syntax).map(|source| source.parsed)
    };
    let parsed = parsed.ok().filter(|parsed| !parsed.is_single_call)?;
    let mut body = &parsed.query.body;
    while let Body::Compound(_, left, _) = body {
        body = &left.body;
    }
    let Body::Core(core) = body else { return None };
    // `DISTINCT ON` adds columns to the translated query.
    let columns = core.columns.iter().filter(|_| core.distinct_on.is_empty());
    columns.map(|column| find_header(sql, column, &parsed.calls)).collect()
}

fn find_header(sql: &str, column: &ResultColumn, calls: &[Call]) -> Option<SourceHeader> {
    let Some(expr) = &column.expr else { return Some(SourceHeader::Star) };
    let text = sql.get(expr.span.clone())?;
    if column.alias.is_some() {
        return Some(SourceHeader::FromSqlite);
    }
    let call = match &expr.kind {
        ExprKind::Call(n, _) => calls.get(*n),
        _ => None,
    };
    Some(match (&expr.kind, call) {
        (ExprKind::Column { .. }, _) => SourceHeader::FromSqlite,
        (_, Some(call)) if call.is_in_braces() => {
            // A field that is selected from a call, as in `{{…}}.name`, names the column.
            let field = call.macro_call.as_ref().and_then(|written| written.field.as_ref());
            let title = call.title.clone().unwrap_or_else(|| text.to_owned());
            match field.map(|field| field.unquoted_text(sql)) {
                Some(field) if field == "*" => SourceHeader::Star,
                field => SourceHeader::Text(field.unwrap_or(title)),
            }
        }
        // The translations of `answer` and `unnest` have names of their own.
        (_, Some(call)) if call.macro_call.is_none() && call.ingredient.name() == "answer" => {
            SourceHeader::FromSqlite
        }
        (ExprKind::Function { name, .. }, _) if matches!(name.as_str(), "answer" | "unnest") => {
            SourceHeader::FromSqlite
        }
        _ => SourceHeader::Text(text.to_owned()),
    })
}
