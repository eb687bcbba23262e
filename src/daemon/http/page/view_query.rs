//! Writes a view of a table as a query that people can read and change.

use super::row_source::{ColumnPlace, RowSource, ViewColumn, build_like_pattern};
use super::view::{TableView, ViewFilter};
use crate::spec::Type;
use crate::sql::{quote_name, quote_text};
use crate::value::Value;

/// Maximum number of rows of the query.
const MAX_ROWS: usize = 1000;

/// SQL dialect of a view's query.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ViewDialect {
    Sqlite,
    /// For tables that hqdl publishes on a server.
    Postgres,
}

/// Returns a query with the search, the filters and the order of a view.
pub(super) fn write_view_query(
    view: &TableView,
    table: &str,
    (source, columns): (&RowSource, &[ViewColumn]),
    dialect: ViewDialect,
) -> String {
    let writer = QueryWriter { table, source, columns, dialect };
    let filters = view.list_filters(columns).map(|(f, c)| writer.write_filter(f, c));
    let mut conditions: Vec<String> = filters.collect();
    if !view.search.is_empty() {
        let found = columns.iter().map(|c| writer.write_contains(c, &view.search));
        conditions.push(format!("({})", found.collect::<Vec<_>>().join(" OR ")));
    }
    match source.expansion() {
        Some(_) if !view.state.is_empty() => {
            conditions.push(writer.write_state(None, &view.state));
        }
        None if !view.selects_unfilled_rows() => conditions.push("FALSE".to_owned()),
        _ => {}
    }
    let mut sql = format!("SELECT * FROM {}", quote_name(table));
    if !conditions.is_empty() {
        sql.push_str(&format!("\nWHERE {}", conditions.join("\n  AND ")));
    }
    // The items of a list have no order.
    let sort = view.find_sort(columns).filter(|(column, _)| writer.find_list(column).is_none());
    if let Some((column, is_descending)) = sort {
        let direction = if is_descending { " DESC" } else { "" };
        sql.push_str(&format!("\nORDER BY {}{direction} NULLS LAST", write_name(column)));
    }
    format!("{sql}\nLIMIT {MAX_ROWS}")
}

struct QueryWriter<'q> {
    table: &'q str,
    source: &'q RowSource,
    columns: &'q [ViewColumn],
    dialect: ViewDialect,
}

impl QueryWriter<'_> {
    fn write_filter(&self, filter: &ViewFilter, column: &ViewColumn) -> String {
        let name = write_name(column);
        let literal = self.write_literal(&filter.value, column);
        let equals = self.write_equals(&filter.value, column);
        match filter.condition {
            "null" if self.find_list(column).is_some() => {
                format!("NOT {}", self.write_condition(column, "TRUE"))
            }
            "any" if self.find_list(column).is_some() => self.write_condition(column, "TRUE"),
            "null" => format!("{name} IS NULL"),
            "any" => format!("{name} IS NOT NULL"),
            "is" => self.write_condition(column, &equals),
            "not" if self.find_list(column).is_some() => {
                format!("NOT {}", self.write_condition(column, &equals))
            }
            "not" => format!("({equals}) IS NOT TRUE"),
            "has" => self.write_contains(column, &filter.value),
            // A server rejects a text that is compared with a number.
            "min" | "max" if literal.is_none() => "FALSE".to_owned(),
            "min" => {
                self.write_condition(column, &format!("{name} >= {}", literal.unwrap_or_default()))
            }
            "max" => {
                self.write_condition(column, &format!("{name} <= {}", literal.unwrap_or_default()))
            }
            _ if column.is_filled() => self.write_state(Some(column), &filter.value),
            _ => if filter.value == "ok" { "TRUE" } else { "FALSE" }.to_owned(),
        }
    }

    fn write_contains(&self, column: &ViewColumn, text: &str) -> String {
        let pattern = build_like_pattern(text);
        let escape = if pattern.contains('\\') { " ESCAPE '\\'" } else { "" };
        let name = write_name(column);
        let contains = match self.dialect {
            ViewDialect::Sqlite => format!("{name} LIKE"),
            ViewDialect::Postgres => format!("CAST({name} AS TEXT) ILIKE"),
        };
        self.write_condition(column, &format!("{contains} {}{escape}", quote_text(&pattern)))
    }

    /// Returns the table with the items of a list, unless it is the shown table.
    fn find_list<'c>(&self, column: &'c ViewColumn) -> Option<&'c str> {
        let list = column.list.as_ref().map(|list| list.table.as_str());
        list.filter(|list| !list.eq_ignore_ascii_case(self.table))
    }

    /// Returns a condition on a column. The items of a list are rows of its own table.
    fn write_condition(&self, column: &ViewColumn, condition: &str) -> String {
        let Some(list) = self.find_list(column) else { return condition.to_owned() };
        let (list, table) = (quote_name(list), quote_name(self.table));
        let is = match self.dialect {
            ViewDialect::Sqlite => "IS",
            ViewDialect::Postgres => "IS NOT DISTINCT FROM",
        };
        let keys = self.key_columns().map(|key| {
            let key = quote_name(&key.name);
            format!("{list}.{key} {is} {table}.{key} AND ")
        });
        format!("EXISTS (SELECT 1 FROM {list} WHERE {}{condition})", keys.collect::<String>())
    }

    /// Returns a condition on the state of a cell; without a column, of any cell of the row.
    fn write_state(&self, column: Option<&ViewColumn>, state: &str) -> String {
        let expansion = quote_text(self.source.expansion().unwrap_or_default());
        let table = quote_name(self.table);
        let keys = self.key_columns().map(|key| format!("{table}.{}", quote_name(&key.name)));
        let column = column
            .map_or_else(String::new, |c| format!(" AND c.\"column\" = {}", quote_text(&c.name)));
        let keys = keys.collect::<Vec<_>>().join(", ");
        let is_key = match self.dialect {
            ViewDialect::Sqlite => format!("c.key = json_array({keys})"),
            ViewDialect::Postgres => format!("CAST(c.key AS jsonb) = jsonb_build_array({keys})"),
        };
        format!(
            "EXISTS (SELECT 1 FROM hqdl_cell AS c WHERE c.expansion = {expansion} AND {is_key}{column} AND c.state = {})",
            quote_text(state)
        )
    }

    fn key_columns(&self) -> impl Iterator<Item = &ViewColumn> {
        self.columns.iter().filter(|c| c.key_part().is_some())
    }

    /// Returns the condition that a column shows a value. Texts and whole numbers are compared as
    /// such, and any other value by the text that the page shows.
    fn write_equals(&self, value: &str, column: &ViewColumn) -> String {
        let name = write_name(column);
        let is_whole = value.parse::<i64>().is_ok_and(|n| n.to_string() == value);
        match (column.place, column.kind) {
            (ColumnPlace::Cell, Some(Type::Real)) if self.dialect == ViewDialect::Sqlite => {
                match value.parse::<f64>() {
                    Ok(number) => {
                        let text = Value::Real(number).to_text().unwrap_or_default().into_owned();
                        format!("CAST({name} AS TEXT) = {}", quote_text(&text))
                    }
                    Err(_) => "FALSE".to_owned(),
                }
            }
            (ColumnPlace::Table { .. }, Some(Type::Integer)) if is_whole => {
                format!("{name} = {value}")
            }
            (ColumnPlace::Table { .. }, Some(Type::Text)) if !value.starts_with("X'") => {
                format!("{name} = {}", quote_text(value))
            }
            (ColumnPlace::Table { .. }, _) => {
                format!("{} = {}", column.text_sql(), quote_text(value))
            }
            // The published key can be a number.
            (ColumnPlace::KeyPart(_), _) => format!("CAST({name} AS TEXT) = {}", quote_text(value)),
            _ => match self.write_literal(value, column) {
                Some(literal) => format!("{name} = {literal}"),
                None => "FALSE".to_owned(),
            },
        }
    }

    /// Returns a value as SQL writes it: a number, unless the column is declared as text. On a server,
    /// every value is a text, which the server converts to the column's type; returns `None` if it
    /// cannot.
    fn write_literal(&self, value: &str, column: &ViewColumn) -> Option<String> {
        let is_number = value.parse::<f64>().is_ok_and(f64::is_finite)
            && value.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        if self.dialect == ViewDialect::Postgres {
            let is_valid = match column.kind {
                Some(Type::Integer) => value.parse::<i64>().is_ok(),
                Some(Type::Real) => is_number,
                Some(Type::Boolean) => ["0", "1"].contains(&value),
                _ => true,
            };
            return is_valid.then(|| quote_text(value));
        }
        let is_untyped = column.kind.is_none() && !matches!(column.place, ColumnPlace::KeyPart(_));
        if is_number && (column.is_number() || is_untyped) {
            Some(value.to_owned())
        } else {
            Some(quote_text(value))
        }
    }
}

/// Returns the name of the column that contains the values, or the items of the list.
fn write_name(column: &ViewColumn) -> String {
    quote_name(column.list.as_ref().map_or(&column.name, |list| &list.column))
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, params_from_iter};

    use super::super::row_source::find_database_table;
    use super::{TableView, ViewDialect, write_view_query};

    /// The query of a view has the rows of the view.
    #[test]
    fn the_query_of_a_view_selects_its_rows() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, n REAL, x);
                 INSERT INTO t VALUES (1, 'O''Hara', 2.5, 'a'), (2, '50 %', NULL, 7), (3, NULL, 1, 'b%c'),
                   (4, 'NULL', 0.1 + 0.2, '7'), (5, '-', 1000, x'4142');",
            )
            .unwrap();
        let (source, columns) = find_database_table(&connection, "t").unwrap().unwrap();
        for (pairs, ids) in [
            (&[][..], "1 2 3 4 5"),
            (&[("sort", "-n")], "5 1 3 4 2"),
            (&[("f", "name|is|O'Hara")], "1"),
            (&[("f", "name|is|NULL")], "4"),
            (&[("f", "name|null|")], "3"),
            (&[("f", "name|any|")], "1 2 4 5"),
            (&[("f", "name|not|O'Hara")], "2 3 4 5"),
            (&[("f", "x|is|7")], "2 4"),
            (&[("f", "x|is|X'4142'")], "5"),
            (&[("f", "x|not|X'4142'")], "1 2 3 4"),
            (&[("f", "n|is|0.30000000000000004")], "4"),
            (&[("f", "n|is|1e3")], ""),
            (&[("f", "id|is|1e0")], ""),
            (&[("f", "n|min|1"), ("f", "n|max|2")], "3"),
            (&[("q", "%")], "2 3"),
            (&[("f", "name|has|o'h")], "1"),
            (&[("f", "x|state|error")], ""),
            (&[("state", "error")], ""),
            (&[("state", "ok"), ("f", "name|any|")], "1 2 4 5"),
        ] {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            let sql = write_view_query(
                &TableView::parse(&pairs),
                "t",
                (&source, &columns),
                ViewDialect::Sqlite,
            );
            let mut statement = connection.prepare(&sql).unwrap();
            let found = statement.query_map([], |row| row.get::<_, i64>(0)).unwrap();
            let found: Vec<String> = found.map(|id| id.unwrap().to_string()).collect();
            assert_eq!(found.join(" "), ids, "{sql}");
            let view = TableView { sort: None, ..TableView::parse(&pairs) };
            let shown = view.page_sql(&source, &columns, 9);
            let mut statement = connection.prepare(&shown.sql).unwrap();
            let rows =
                statement.query_map(params_from_iter(shown.params), |row| row.get::<_, i64>(0));
            let mut ids: Vec<&str> = ids.split_whitespace().collect();
            ids.sort_unstable();
            let shown: Vec<String> = rows.unwrap().map(|id| id.unwrap().to_string()).collect();
            assert_eq!(shown, ids, "{pairs:?}");
        }
    }
}
