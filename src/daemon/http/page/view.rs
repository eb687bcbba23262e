//! A view of a table: its search, filters, order and position, parsed from the URL, and their SQL.
//! The rows of a published expansion come from `hqdl_record`, which contains the state of every cell.

use std::fmt::Write as _;

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};

use super::row_source::{ColumnPlace, Cursor, Reference, RowSource, ViewColumn};
use super::{percent_encode, spec_path};
use crate::spec::Type;
use crate::sql::quote_name;

/// Conditions of filters, with their labels.
pub(super) const CONDITIONS: [(&str, &str); 8] = [
    ("is", "is"),
    ("not", "is not"),
    ("has", "contains"),
    ("min", "at least"),
    ("max", "at most"),
    ("null", "has no value"),
    ("any", "has a value"),
    ("state", "has the state"),
];

/// Returns true if a condition needs a value.
pub(super) fn has_operand(condition: &str) -> bool {
    !["null", "any"].contains(&condition)
}

/// A filter on a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ViewFilter {
    pub(super) column: String,
    pub(super) condition: &'static str,
    pub(super) value: String,
}

/// A view of a table, without its rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct TableView {
    /// Text that a key or value must contain.
    pub(super) search: String,
    /// State that one of the row's cells must have.
    pub(super) state: String,
    pub(super) filters: Vec<ViewFilter>,
    /// Column to sort by, and whether the order is descending; `None` means key order.
    pub(super) sort: Option<(String, bool)>,
    /// Columns whose facets are shown.
    pub(super) facets: Vec<String>,
    pub(super) cursor: Option<Cursor>,
}

impl TableView {
    /// Parses a view from a URL's query pairs. A filter is `f=COLUMN|CONDITION|VALUE`, or the form
    /// fields `column`, `condition` and `value`. Invalid filters are ignored. In the name of the
    /// column, `\` escapes `|` and `\`.
    pub(super) fn parse(pairs: &[(String, String)]) -> Self {
        let mut view = Self::default();
        let mut added = ["", "is", ""];
        for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            match name.as_str() {
                "q" => view.search.clone_from(value),
                "state" => view.state.clone_from(value),
                "f" => {
                    let (column, rest) = split_column(value);
                    if let Some((condition, value)) = rest.split_once('|') {
                        view.add_filter(&column, condition, value);
                    }
                }
                "column" => added[0] = value,
                "condition" => added[1] = value,
                "value" => added[2] = value,
                "sort" => {
                    let (name, descending) =
                        value.strip_prefix('-').map_or((&**value, false), |name| (name, true));
                    let name = name.strip_prefix('\\').unwrap_or(name);
                    view.sort = Some((name.to_owned(), descending));
                }
                "facet" => view.facets.push(value.clone()),
                "after" | "before" => {
                    let backwards = name == "before";
                    view.cursor = Some(Cursor { key: value.clone(), backwards });
                }
                _ => {}
            }
        }
        if !added[0].is_empty() && (!added[2].is_empty() || !has_operand(added[1])) {
            view.add_filter(added[0], added[1], added[2]);
        }
        view
    }

    fn add_filter(&mut self, column: &str, condition: &str, value: &str) {
        let known = CONDITIONS.iter().find(|(name, _)| *name == condition);
        let Some((condition, _)) = known else { return };
        let filter = ViewFilter { column: column.to_owned(), condition, value: value.to_owned() };
        if !self.filters.contains(&filter) {
            self.filters.push(filter);
        }
    }

    /// Returns a changed copy of the view, which starts at the first row.
    pub(super) fn with_change(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut view = Self { cursor: None, ..self.clone() };
        change(&mut view);
        view
    }

    /// Returns the view as name-value pairs of a URL.
    pub(super) fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        let mut push = |name, value: &str| {
            if !value.is_empty() {
                pairs.push((name, value.to_owned()));
            }
        };
        push("q", &self.search);
        push("state", &self.state);
        for ViewFilter { column, condition, value } in &self.filters {
            let column = column.replace('\\', "\\\\").replace('|', "\\|");
            push("f", &format!("{column}|{condition}|{value}"));
        }
        if let Some((column, descending)) = &self.sort {
            let sign = if *descending { "-" } else { "" };
            let escape = if column.starts_with(['-', '\\']) { "\\" } else { "" };
            push("sort", &format!("{sign}{escape}{column}"));
        }
        self.facets.iter().for_each(|column| push("facet", column));
        if let Some(Cursor { key, backwards }) = &self.cursor {
            push(if *backwards { "before" } else { "after" }, key);
        }
        pairs
    }

    /// Returns the view as the query part of a URL, with a question mark if it is not empty.
    pub(super) fn to_query(&self) -> String {
        let mut query = String::new();
        for (name, value) in self.to_pairs() {
            let start = if query.is_empty() { '?' } else { '&' };
            let _ = write!(query, "{start}{name}={}", percent_encode(&value));
        }
        query
    }

    /// Returns true if the view has a search or filter.
    pub(super) fn is_filtered(&self) -> bool {
        !self.search.is_empty() || !self.state.is_empty() || !self.filters.is_empty()
    }

    /// Returns the column of the order and whether it is descending, if the table has the column.
    pub(super) fn find_sort<'c>(
        &self,
        columns: &'c [ViewColumn],
    ) -> Option<(&'c ViewColumn, bool)> {
        let (name, is_descending) = self.sort.as_ref()?;
        let column = columns.iter().find(|c| c.name.eq_ignore_ascii_case(name))?;
        Some((column, *is_descending))
    }

    /// Returns the filters on columns that the table contains.
    pub(super) fn list_filters<'c>(
        &'c self,
        columns: &'c [ViewColumn],
    ) -> impl Iterator<Item = (&'c ViewFilter, &'c ViewColumn)> {
        self.filters.iter().filter_map(|filter| {
            let is_named = |c: &&ViewColumn| c.name.eq_ignore_ascii_case(&filter.column);
            Some((filter, columns.iter().find(is_named)?))
        })
    }

    /// Returns the FROM and WHERE clauses that select the view's rows.
    pub(super) fn rows_sql(&self, source: &RowSource, columns: &[ViewColumn]) -> BoundSql {
        let mut sql = match source {
            RowSource::Records { expansion } => self.records_sql(expansion),
            RowSource::Table { name, .. } => {
                let mut sql = BoundSql::new(&format!("FROM {} WHERE TRUE", quote_name(name)), []);
                if !self.search.is_empty() {
                    sql.push(" AND (FALSE", []);
                    for column in columns {
                        let parameter = column.contains_parameter(&self.search);
                        sql.push(&format!(" OR {}", column.contains_sql()), [parameter]);
                    }
                    sql.push(")", []);
                }
                if !self.selects_unfilled_rows() {
                    sql.push(" AND FALSE", []);
                }
                sql
            }
        };
        for (filter, column) in self.list_filters(columns) {
            if let Some(value) = filter.indexed_value(source, column) {
                sql.push(&format!(" AND {} = ?", column.value_sql()), [value]);
            }
            let parameter = has_operand(filter.condition).then(|| filter.parameter(column));
            sql.push_all(&filter.condition_sql(column), parameter);
        }
        sql
    }

    /// Returns true if the state selects the rows of a table that hqdl does not fill. Their cells count
    /// as `ok`.
    pub(super) fn selects_unfilled_rows(&self) -> bool {
        ["", "ok"].contains(&self.state.as_str())
    }

    /// Returns the FROM and WHERE clauses for the search and the state in an expansion's records.
    fn records_sql(&self, expansion: &str) -> BoundSql {
        let mut sql = BoundSql::new("FROM hqdl_record WHERE expansion = ?", [text(expansion)]);
        if !self.search.is_empty() {
            sql.push(" AND record_has(key, cells, ?)", [text(&self.search)]);
        }
        if !self.state.is_empty() {
            // A state is the first part of its cell. `instr` skips most records without parsing them.
            sql.push(
                " AND instr(cells, ?) AND
                   EXISTS (SELECT 1 FROM json_each(cells) AS c WHERE c.value ->> 0 = ?)",
                [text(&format!("[\"{}\"", self.state)), text(&self.state)],
            );
        }
        sql
    }

    /// Returns the query for one page, whose rows [`RowSource::read_record`] reads. It returns one row
    /// more than the page shows, if there is one. If the cursor points backwards and the rows have a
    /// key, they are in reverse order.
    pub(super) fn page_sql(
        &self,
        source: &RowSource,
        columns: &[ViewColumn],
        page_rows: usize,
    ) -> BoundSql {
        let limit = page_rows.saturating_add(1).min(usize::MAX >> 1);
        match source {
            RowSource::Records { expansion } => {
                self.records_page_sql(source, expansion, columns, limit)
            }
            RowSource::Table { name, key } => {
                let all: Vec<&ViewColumn> = columns.iter().collect();
                let list = source.short_select_list(&all);
                self.table_page_sql(source, (name, key, &list), columns, page_rows)
            }
        }
    }

    /// Returns the query for all rows of the view, with their whole values.
    pub(super) fn export_sql(&self, source: &RowSource, columns: &[ViewColumn]) -> BoundSql {
        let RowSource::Table { name, key } = source else {
            return self.page_sql(source, columns, usize::MAX >> 1);
        };
        let all: Vec<&ViewColumn> = columns.iter().collect();
        let list = source.select_list(&all);
        self.table_page_sql(source, (name, key, &list), columns, usize::MAX >> 1)
    }

    /// Returns the query for one row with a SELECT list: the row with a stored key, or the first row
    /// of the view. If rows are identified by their position, the key is the position in the view.
    /// Returns `None` if the source has no such rows.
    pub(super) fn row_sql(
        &self,
        source: &RowSource,
        columns: &[ViewColumn],
        key: Option<&str>,
        select_list: &str,
    ) -> Option<BoundSql> {
        let RowSource::Table { name, key: names } = source else { return None };
        let mut view = self.with_change(|_| ());
        if let Some(key) = key {
            let cursor = Cursor { key: key.to_owned(), backwards: false };
            let at = source.parse_cursor(&cursor)?;
            if !names.is_empty() {
                let keys: Vec<String> = names.iter().map(|k| quote_name(k)).collect();
                let (keys, marks) = (keys.join(", "), vec!["?"; names.len()].join(", "));
                let mut sql =
                    BoundSql::new(&format!("SELECT {select_list} FROM {}", quote_name(name)), []);
                sql.push_all(&format!(" WHERE ({keys}) = ({marks}) LIMIT 1"), at);
                return Some(sql);
            }
            let [SqlValue::Integer(position @ 1..)] = at[..] else { return None };
            view.cursor = Some(Cursor { key: format!("[{}]", position - 1), ..cursor });
        }
        Some(view.table_page_sql(source, (name, names, select_list), columns, 0))
    }

    /// Returns false if the order depends on the row at the cursor, and the row no longer exists.
    pub(super) fn finds_cursor(
        &self,
        connection: &Connection,
        source: &RowSource,
        columns: &[ViewColumn],
    ) -> rusqlite::Result<bool> {
        let (Some(cursor), Some(_)) = (&self.cursor, self.find_sort(columns)) else {
            return Ok(true);
        };
        let (sql, params) = match source {
            RowSource::Records { expansion } => (
                "SELECT 1 FROM hqdl_record WHERE expansion = ? AND key = ?".to_owned(),
                vec![text(expansion), text(&cursor.key)],
            ),
            RowSource::Table { name, key } => match source.parse_cursor(cursor) {
                Some(at) if !key.is_empty() => {
                    let keys: Vec<String> = key.iter().map(|k| quote_name(k)).collect();
                    let (marks, keys) = (vec!["?"; key.len()].join(", "), keys.join(", "));
                    let table = quote_name(name);
                    (format!("SELECT 1 FROM {table} WHERE ({keys}) = ({marks})"), at)
                }
                _ => return Ok(true),
            },
        };
        connection.prepare(&sql)?.exists(params_from_iter(params))
    }

    fn table_page_sql(
        &self,
        source: &RowSource,
        (name, key, select_list): (&str, &[String], &str),
        columns: &[ViewColumn],
        page_rows: usize,
    ) -> BoundSql {
        let mut sql = BoundSql::new(&format!("SELECT {select_list} "), [])
            .append(self.rows_sql(source, columns));
        let backwards = self.cursor.as_ref().is_some_and(|cursor| cursor.backwards);
        let order = |down: bool| if down == backwards { "" } else { " DESC" };
        let compare = |down: bool| if down == backwards { ">" } else { "<" };
        let key: Vec<String> = key.iter().map(|name| quote_name(name)).collect();
        let marks = vec!["?"; key.len()].join(", ");
        let keys = key.join(", ");
        let sort = self.find_sort(columns).map(|(column, down)| (column.value_sql(), down));
        let at = self.cursor.as_ref().and_then(|cursor| source.parse_cursor(cursor));
        if let Some(at) = at.filter(|_| !key.is_empty()) {
            let after = format!("({keys}) {} ({marks})", compare(false));
            match &sort {
                None => sql.push_all(&format!(" AND {after}"), at),
                Some((x, down)) => {
                    let found = format!(
                        "(SELECT {x} FROM {} WHERE ({keys}) = ({marks}))",
                        quote_name(name)
                    );
                    // NULL comes last in both sort directions.
                    let (n, c) = (compare(false), compare(*down));
                    let parts = [
                        format!(" AND (({x} IS NULL) {n} ({found} IS NULL) OR"),
                        format!(" ({x} IS NULL) = ({found} IS NULL) AND"),
                        format!(" ({x} {c} {found} OR"),
                        format!(" {x} IS {found} AND"),
                        format!(" {after}))"),
                    ];
                    parts.iter().for_each(|part| sql.push_all(part, at.clone()));
                }
            }
        }
        // Rows without a key are not read backwards: they are found by their position.
        let backwards = backwards && !key.is_empty();
        let mut orders: Vec<String> = key.iter().map(|k| format!("{k}{}", order(false))).collect();
        if let Some((x, down)) = &sort {
            let direction = if *down == backwards { "" } else { " DESC" };
            let nulls = if backwards { "FIRST" } else { "LAST" };
            orders.insert(0, format!("{x}{direction} NULLS {nulls}"));
        }
        if !orders.is_empty() {
            sql.push(&format!(" ORDER BY {}", orders.join(", ")), []);
        }
        let offset = source.page_offset(self.cursor.as_ref(), page_rows);
        let limit = page_rows.saturating_add(1).min(usize::MAX >> 1);
        sql.push(&format!(" LIMIT {limit}"), []);
        if offset > 0 {
            sql.push(&format!(" OFFSET {offset}"), []);
        }
        sql
    }

    fn records_page_sql(
        &self,
        source: &RowSource,
        expansion: &str,
        columns: &[ViewColumn],
        limit: usize,
    ) -> BoundSql {
        let sort = self.find_sort(columns);
        let backwards = self.cursor.as_ref().is_some_and(|cursor| cursor.backwards);
        let order = |down: bool| if down == backwards { "" } else { " DESC" };
        let compare = |down: bool| if down == backwards { ">" } else { "<" };
        let rows = self.rows_sql(source, columns);
        let Some((column, down)) = sort else {
            let mut sql = BoundSql::new("SELECT key, cells ", []).append(rows);
            if let Some(cursor) = &self.cursor {
                sql.push(&format!(" AND key {} ?", compare(false)), [text(&cursor.key)]);
            }
            sql.push(&format!(" ORDER BY key{} LIMIT {limit}", order(false)), []);
            return sql;
        };
        let value = column.value_sql();
        let (k, x) = (order(false), order(down));
        let nulls = if backwards { "FIRST" } else { "LAST" };
        // Only keys and values are sorted, because copying the cells of all rows takes longer. The
        // inner LIMIT keeps SQLite from merging the subqueries, which would read a value several
        // times.
        let start = format!(
            "SELECT r.key, r.cells FROM (SELECT s.key, s.x FROM (SELECT key, {value} AS x "
        );
        let mut sql = BoundSql::new(&start, []).append(rows);
        sql.push(" LIMIT -1) AS s", []);
        if let Some(cursor) = &self.cursor {
            // NULL comes last in both sort directions.
            let (n, x, k) = (compare(false), compare(down), compare(false));
            sql.push(
                &format!(
                    ", (SELECT {value} AS x, key FROM hqdl_record
                        WHERE expansion = ? AND key = ?) AS at
                     WHERE (s.x IS NULL) {n} (at.x IS NULL) OR (s.x IS NULL) = (at.x IS NULL) AND
                       (s.x {x} at.x OR s.x IS at.x AND s.key {k} at.key)"
                ),
                [text(expansion), text(&cursor.key)],
            );
        }
        sql.push(
            &format!(
                " ORDER BY s.x{x} NULLS {nulls}, s.key{k} LIMIT {limit}) AS p
                 CROSS JOIN hqdl_record AS r ON r.expansion = ? AND r.key = p.key
                 ORDER BY p.x{x} NULLS {nulls}, p.key{k}"
            ),
            [text(expansion)],
        );
        sql
    }
}

impl ViewFilter {
    fn condition_sql(&self, column: &ViewColumn) -> String {
        let value = column.value_sql();
        match self.condition {
            "is" => format!(" AND {}", column.equals_sql()),
            "not" => format!(" AND NOT {}", column.equals_sql()),
            "has" => format!(" AND {}", column.contains_sql()),
            "min" => format!(" AND {value} >= ?"),
            "max" => format!(" AND {value} <= ?"),
            "null" => format!(" AND {}", column.null_sql()),
            "any" => format!(" AND NOT ({})", column.null_sql()),
            _ => format!(" AND {} = ?", column.state_sql()),
        }
    }

    /// Returns a value that the column must equal, if the filter implies one. `SQLite` can then use
    /// an index, which the filter's own comparison of texts prevents.
    fn indexed_value(&self, source: &RowSource, column: &ViewColumn) -> Option<SqlValue> {
        let is_table = matches!(source, RowSource::Table { key, .. } if !key.is_empty());
        match column.kind.filter(|_| is_table && self.condition == "is")? {
            Type::Integer => self.value.parse().ok().map(SqlValue::Integer),
            // A blob is shown in hexadecimal.
            Type::Text if !self.value.starts_with("X'") => Some(text(&self.value)),
            _ => None,
        }
    }

    /// Returns the parameter of the condition. A bound that looks like a number becomes a number,
    /// unless the database stores the column as text.
    fn parameter(&self, column: &ViewColumn) -> SqlValue {
        let is_text = column.place != ColumnPlace::Cell && column.kind == Some(Type::Text);
        if self.condition == "has" {
            return column.contains_parameter(&self.value);
        }
        if is_text || !matches!(self.condition, "min" | "max") {
            return text(&self.value);
        }
        match (self.value.parse::<i64>(), self.value.parse::<f64>()) {
            (Ok(integer), _) => SqlValue::Integer(integer),
            (_, Ok(number)) if number.is_finite() => SqlValue::Real(number),
            _ => text(&self.value),
        }
    }

    /// Returns the filter as readable text, such as `price at least 5`.
    pub(super) fn describe(&self) -> String {
        let label = CONDITIONS.iter().find(|(name, _)| *name == self.condition);
        let text =
            format!("{} {} {}", self.column, label.map_or("", |(_, label)| label), self.value);
        text.trim_end().to_owned()
    }
}

/// Returns the path of the page of a row. `view` is the view that contains it, which matters only if
/// the row is found by its position.
pub(super) fn row_path(
    table_path: &str,
    view: &TableView,
    source: &RowSource,
    key: &str,
) -> String {
    let of_view = if source.has_positions() {
        view.with_change(|view| view.facets.clear())
    } else {
        TableView::default()
    };
    let query = of_view.to_query();
    let start = if query.is_empty() { '?' } else { '&' };
    format!("{table_path}/row{query}{start}row={}", percent_encode(key))
}

/// Returns the path of the page of the row that a value refers to.
pub(super) fn reference_path(spec: &str, to: &Reference, value: &str) -> String {
    let filter = ViewFilter { column: to.column.clone(), condition: "is", value: value.to_owned() };
    let view = TableView { filters: vec![filter], ..TableView::default() };
    format!("{}/row{}", table_path(spec, &to.table), view.to_query())
}

pub(super) fn table_path(spec: &str, table: &str) -> String {
    format!("{}/tables/{}", spec_path(spec), percent_encode(table))
}

/// Splits a filter of a URL after the escaped name of its column.
fn split_column(filter: &str) -> (String, &str) {
    let (mut column, mut chars) = (String::new(), filter.chars());
    while let Some(c) = chars.next() {
        match c {
            '|' => break,
            '\\' => column.extend(chars.next()),
            c => column.push(c),
        }
    }
    (column, chars.as_str())
}

/// SQL text with its parameters' values.
#[derive(Debug, Clone)]
pub(super) struct BoundSql {
    pub(super) sql: String,
    pub(super) params: Vec<SqlValue>,
}

impl BoundSql {
    pub(super) fn new<const N: usize>(sql: &str, params: [SqlValue; N]) -> Self {
        Self { sql: sql.to_owned(), params: Vec::from(params) }
    }

    /// Appends SQL with its parameters.
    pub(super) fn push<const N: usize>(&mut self, sql: &str, params: [SqlValue; N]) {
        self.push_all(sql, params);
    }

    fn push_all(&mut self, sql: &str, params: impl IntoIterator<Item = SqlValue>) {
        self.sql.push_str(sql);
        self.params.extend(params);
    }

    /// Appends another SQL text with its parameters.
    pub(super) fn append(mut self, rest: Self) -> Self {
        self.sql.push_str(&rest.sql);
        self.params.extend(rest.params);
        self
    }
}

fn text(value: &str) -> SqlValue {
    SqlValue::Text(value.to_owned())
}

#[cfg(test)]
mod tests {
    use rusqlite::types::ValueRef;
    use rusqlite::{Connection, params_from_iter};

    use super::super::record_cell::register_cell_functions;
    use super::super::row_source::find_database_table;
    use super::{ColumnPlace, RowSource, TableView, ViewColumn};

    fn create_columns() -> Vec<ViewColumn> {
        let column = |name: &str, place| ViewColumn {
            name: name.to_owned(),
            place,
            has_list: false,
            kind: None,
            list: None,
            reference: None,
            filled_by: None,
        };
        let cell = ColumnPlace::Cell;
        vec![column("n", ColumnPlace::KeyPart(0)), column("it's", cell), column("tags", cell)]
    }

    fn create_database() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                r#"CREATE TABLE hqdl_record (expansion, key, cells);
                   INSERT INTO hqdl_record VALUES
                   ('e', '[1]', '{"it''s":["ok",10],"tags":["ok",["a","b"]]}'),
                   ('e', '[2]', '{"it''s":["ok",9],"tags":["ok",["b"]]}'),
                   ('e', '[3]', '{"it''s":["unknown"],"tags":["ok",[]]}'),
                   ('e', '[4]', '{"it''s":["ok",9],"tags":["error"]}'),
                   ('e', '[5]', '{"tags":["ok",["C"]]}'),
                   ('other', '[6]', '{}');"#,
            )
            .unwrap();
        register_cell_functions(&connection).unwrap();
        connection
    }

    /// Returns the keys of a page in the order of the view, at most `page_rows`.
    fn read_page_keys(
        connection: &Connection,
        (source, columns): (&RowSource, &[ViewColumn]),
        pairs: &[(&str, &str)],
        page_rows: usize,
    ) -> Vec<String> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let view = TableView::parse(&pairs);
        let sql = view.page_sql(source, columns, page_rows);
        let mut statement = connection.prepare(&sql.sql).unwrap();
        let mut rows = statement.query(params_from_iter(sql.params)).unwrap();
        let all: Vec<&ViewColumn> = columns.iter().collect();
        let mut keys = Vec::new();
        let offset = source.page_offset(view.cursor.as_ref(), page_rows);
        while let Some(row) = rows.next().unwrap() {
            keys.push(source.read_record(row, &all, offset + keys.len() + 1).unwrap().0);
        }
        keys.truncate(page_rows);
        keys
    }

    fn create_records() -> (RowSource, Vec<ViewColumn>) {
        (RowSource::Records { expansion: "e".to_owned() }, create_columns())
    }

    #[test]
    fn filters_select_rows() {
        let connection = create_database();
        for (pairs, keys) in [
            (&[("f", "it's|is|9")][..], "[2] [4]"),
            (&[("f", "tags|is|b")], "[1] [2]"),
            (&[("f", "tags|not|b")], "[3] [4] [5]"),
            (&[("f", "it's|min|9.5")], "[1]"),
            (&[("f", "it's|max|9"), ("f", "n|not|4")], "[2]"),
            (&[("f", "it's|state|missing")], "[5]"),
            (&[("column", "tags"), ("condition", "has"), ("value", "c")], "[5]"),
            (&[("q", "c")], "[5]"),
            (&[("q", "10")], "[1]"),
            (&[("q", "[\"b")], "[2]"),
            (&[("f", "n|has|5")], "[5]"),
            (&[("state", "error")], "[4]"),
            (&[("f", "gone|is|x"), ("f", "it's|bogus|x"), ("f", "bad")], "[1] [2] [3] [4] [5]"),
        ] {
            let (source, columns) = create_records();
            let found = read_page_keys(&connection, (&source, &columns), pairs, 9);
            assert_eq!(found.join(" "), keys, "{pairs:?}");
        }
    }

    /// Walks an order in pages of two rows, forwards and backwards, and expects each row once.
    fn walk_pages(
        connection: &Connection,
        table: (&RowSource, &[ViewColumn]),
        sort: &str,
        all: &[&str],
    ) {
        let mut walked: Vec<String> = Vec::new();
        loop {
            let at = walked.last().cloned().unwrap_or_default();
            let next = read_page_keys(connection, table, &[("sort", sort), ("after", &at)], 2);
            if next.is_empty() {
                break;
            }
            walked.extend(next);
        }
        assert_eq!(walked, all, "{sort}");
        let last = all.len() - 1;
        let pairs = [("sort", sort), ("before", all[last])];
        let mut before = read_page_keys(connection, table, &pairs, 9);
        if !matches!(table.0, RowSource::Table { key, .. } if key.is_empty()) {
            before.reverse();
        }
        assert_eq!(before[..last], all[..last], "before, {sort}");
    }

    #[test]
    fn pages_follow_each_other() {
        let connection = create_database();
        for (sort, all) in [
            ("", "[1] [2] [3] [4] [5]"),
            ("it's", "[2] [4] [1] [3] [5]"),
            ("-it's", "[1] [2] [4] [3] [5]"),
            ("-n", "[5] [4] [3] [2] [1]"),
        ] {
            let (source, columns) = create_records();
            let all: Vec<&str> = all.split(' ').collect();
            walk_pages(&connection, (&source, &columns), sort, &all);
        }
    }

    fn create_tables() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                r#"CREATE TABLE plain (rowid TEXT, "it's" REAL, note TEXT);
                   INSERT INTO plain VALUES ('a', 2, '10 %'), ('b', NULL, '9'), ('c', 1.5, 'A_b'),
                     ('d', 2, NULL), ('e', NULL, x'00ff');
                   CREATE TABLE pair (a INTEGER, b TEXT, n, PRIMARY KEY (a, b)) WITHOUT ROWID;
                   INSERT INTO pair VALUES (1, 'y', 3), (1, 'x', 'three'), (2, 'x', NULL), (0, 'z', 3);
                   CREATE TABLE odd ("a|b", "-x" TEXT, "\");
                   INSERT INTO odd VALUES (1, 'b', 1), (2, 'NULL', 0);
                   CREATE VIEW seen AS SELECT a, b FROM pair UNION ALL SELECT 7, 'q';
                   CREATE TABLE hqdl_hidden (x);"#,
            )
            .unwrap();
        connection
    }

    #[test]
    fn pages_of_tables_follow_each_other() {
        let connection = create_tables();
        for (table, sort, all) in [
            ("plain", "", &["[1]", "[2]", "[3]", "[4]", "[5]"][..]),
            ("plain", "it's", &["[3]", "[1]", "[4]", "[2]", "[5]"]),
            ("plain", "-it's", &["[1]", "[4]", "[3]", "[2]", "[5]"]),
            ("plain", "-rowid", &["[5]", "[4]", "[3]", "[2]", "[1]"]),
            ("pair", "", &["[0,\"z\"]", "[1,\"x\"]", "[1,\"y\"]", "[2,\"x\"]"]),
            ("pair", "-n", &["[1,\"x\"]", "[0,\"z\"]", "[1,\"y\"]", "[2,\"x\"]"]),
            ("SEEN", "", &["[1]", "[2]", "[3]", "[4]", "[5]"]),
            ("seen", "-a", &["[1]", "[2]", "[3]", "[4]", "[5]"]),
        ] {
            let (source, columns) = find_database_table(&connection, table).unwrap().unwrap();
            walk_pages(&connection, (&source, &columns), sort, all);
        }
        // The row at the cursor was deleted.
        let (source, columns) = find_database_table(&connection, "plain").unwrap().unwrap();
        for (cursor, is_found) in [("[3]", true), ("[9]", false)] {
            let pairs = [("sort", "note"), ("after", cursor)];
            let view = TableView::parse(&pairs.map(|(n, v)| (n.to_owned(), v.to_owned())));
            assert_eq!(view.finds_cursor(&connection, &source, &columns).unwrap(), is_found);
        }
        // All names of the rowid are taken, and the key can be NULL.
        connection
            .execute_batch("CREATE TABLE taken (rowid TEXT PRIMARY KEY, oid, _rowid_)")
            .unwrap();
        let (source, _) = find_database_table(&connection, "taken").unwrap().unwrap();
        assert!(source.has_positions());
        for hidden in ["hqdl_hidden", "sqlite_schema", "nothing"] {
            assert!(find_database_table(&connection, hidden).unwrap().is_none(), "{hidden}");
        }
    }

    #[test]
    fn filters_select_rows_of_tables() {
        let connection = create_tables();
        for (table, pairs, keys) in [
            ("plain", &[("f", "it's|is|2.0")][..], "[1] [4]"),
            ("plain", &[("f", "it's|is|NULL")], ""),
            ("plain", &[("f", "it's|null|")], "[2] [5]"),
            ("plain", &[("column", "it's"), ("condition", "any"), ("value", "")], "[1] [3] [4]"),
            ("plain", &[("f", "note|is|X'00FF'")], "[5]"),
            ("odd", &[("f", "a\\|b|is|1"), ("f", "\\\\|not|0")], "[1]"),
            ("odd", &[("f", "-x|is|NULL")], "[2]"),
            ("odd", &[("sort", "\\-x")], "[2] [1]"),
            ("odd", &[("sort", "-\\-x")], "[1] [2]"),
            ("plain", &[("f", "it's|not|2.0")], "[2] [3] [5]"),
            ("plain", &[("f", "it's|min|1.6")], "[1] [4]"),
            ("plain", &[("f", "note|min|9")], "[2] [3] [5]"),
            ("plain", &[("f", "note|has|%")], "[1]"),
            ("plain", &[("f", "note|has|a_")], "[3]"),
            ("plain", &[("q", "B")], "[2] [3]"),
            ("plain", &[("q", "' OR 1 --"), ("state", "ok")], ""),
            ("plain", &[("q", "B"), ("state", "ok")], "[2] [3]"),
            ("plain", &[("q", "B"), ("state", "error")], ""),
            ("pair", &[("f", "n|is|three")], "[1,\"x\"]"),
            ("pair", &[("f", "n|max|3"), ("f", "gone|is|x")], "[0,\"z\"] [1,\"y\"]"),
        ] {
            let (source, columns) = find_database_table(&connection, table).unwrap().unwrap();
            let found = read_page_keys(&connection, (&source, &columns), pairs, 9);
            assert_eq!(found.join(" "), keys, "{table} {pairs:?}");
        }
    }

    /// The rows of a page contain the beginnings of long values only.
    #[test]
    fn a_page_reads_the_beginnings_of_long_values() {
        let connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch(
                "CREATE TABLE big (id INTEGER PRIMARY KEY, words TEXT, bytes BLOB);
                 WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < 60)
                   INSERT INTO big SELECT n, n || hex(zeroblob(50000)), zeroblob(100000) FROM i",
            )
            .unwrap();
        let (source, columns) = find_database_table(&connection, "big").unwrap().unwrap();
        for pair in [("facet", "words"), ("sort", "-words"), ("f", "bytes|any|")] {
            let view = TableView::parse(&[(pair.0.to_owned(), pair.1.to_owned())]);
            let sql = view.page_sql(&source, &columns, 50);
            let mut statement = connection.prepare(&sql.sql).unwrap();
            let width = statement.column_count();
            let mut rows = statement.query(params_from_iter(sql.params)).unwrap();
            let (mut count, mut bytes) = (0, 0);
            while let Some(row) = rows.next().unwrap() {
                count += 1;
                for at in 0..width {
                    bytes += match row.get_ref(at).unwrap() {
                        ValueRef::Text(value) | ValueRef::Blob(value) => value.len(),
                        _ => 8,
                    };
                }
            }
            assert_eq!(count, 51, "{pair:?}");
            assert!(bytes < 51 * 1000, "{pair:?}: {bytes} bytes");
        }
    }

    #[test]
    fn a_view_is_its_url() {
        let pairs =
            [("q", "a&b"), ("f", "x|is|y|z"), ("sort", "-x"), ("facet", "x"), ("before", "[1]")];
        let pairs = pairs.map(|(n, v)| (n.to_owned(), v.to_owned()));
        let view = TableView::parse(&pairs);
        assert_eq!(view.to_query(), "?q=a%26b&f=x%7Cis%7Cy%7Cz&sort=-x&facet=x&before=%5B1%5D");
        let again: Vec<(String, String)> =
            view.to_pairs().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        assert_eq!(TableView::parse(&again), view);
        assert_eq!(view.with_change(|_| ()).cursor, None);
        for name in ["a|b", "-x", "\\", "\\|-"] {
            let mut odd = TableView { sort: Some((name.to_owned(), true)), ..TableView::default() };
            odd.add_filter(name, "is", "v|w");
            let pairs: Vec<(String, String)> =
                odd.to_pairs().into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
            assert_eq!(TableView::parse(&pairs), odd);
        }
    }
}
