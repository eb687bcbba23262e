//! A view of a published expansion: its search, filters, order and position, parsed from the URL,
//! and their SQL. All rows come from `hqdl_record`, which contains the state of every cell.

use std::fmt::Write as _;

use rusqlite::types::Value as SqlValue;

use super::percent_encode;
use crate::spec::Type;

/// Conditions of filters, with their labels.
pub(super) const CONDITIONS: [(&str, &str); 6] = [
    ("is", "is"),
    ("not", "is not"),
    ("has", "contains"),
    ("min", "at least"),
    ("max", "at most"),
    ("state", "has the state"),
];

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ViewColumn {
    pub(super) name: String,
    /// Position in the key, for key columns.
    pub(super) key_part: Option<usize>,
    /// Whether the column has a value list.
    pub(super) has_list: bool,
    /// Type of the spec's column; `None` for key columns and for columns that the spec no longer
    /// contains.
    pub(super) kind: Option<Type>,
}

impl ViewColumn {
    /// Returns true if the spec declares the column as a number.
    pub(super) fn is_number(&self) -> bool {
        matches!(self.kind, Some(Type::Integer | Type::Real))
    }

    /// Returns the name as an SQL literal.
    fn literal(&self) -> String {
        format!("'{}'", self.name.replace('\'', "''"))
    }

    /// Returns SQL for the value; NULL if the cell has none.
    fn value_sql(&self) -> String {
        match self.key_part {
            Some(n) => format!("key_value(key, {n})"),
            None => format!("cell_value(cells, {})", self.literal()),
        }
    }

    /// Returns SQL for the state.
    fn state_sql(&self) -> String {
        match self.key_part {
            Some(_) => "'ok'".to_owned(),
            None => format!("cell_state(cells, {})", self.literal()),
        }
    }

    /// Returns SQL for whether the value, or an item of the list, has the text of a parameter.
    fn equals_sql(&self) -> String {
        match self.key_part {
            Some(n) => format!("coalesce(CAST(key_value(key, {n}) AS TEXT), 'NULL') = ?"),
            None => format!("cell_is(cells, {}, ?)", self.literal()),
        }
    }

    /// Returns SQL for whether the value contains the text of a parameter, ignoring ASCII case.
    fn contains_sql(&self) -> String {
        match self.key_part {
            Some(n) => format!("instr(lower(CAST(key_value(key, {n}) AS TEXT)), lower(?))"),
            None => format!("cell_has(cells, {}, ?)", self.literal()),
        }
    }
}

/// A filter on a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ViewFilter {
    pub(super) column: String,
    pub(super) condition: &'static str,
    pub(super) value: String,
}

/// Position in the sort order at which a page begins or ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cursor {
    /// Key of the neighboring row, as stored.
    pub(super) key: String,
    /// Whether the page ends before this row instead of starting after it.
    pub(super) backwards: bool,
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
    /// fields `column`, `condition` and `value`. Invalid filters are ignored.
    pub(super) fn parse(pairs: &[(String, String)]) -> Self {
        let mut view = Self::default();
        let mut added = ["", "is", ""];
        for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
            match name.as_str() {
                "q" => view.search.clone_from(value),
                "state" => view.state.clone_from(value),
                "f" => {
                    let mut parts = value.splitn(3, '|');
                    if let (Some(c), Some(o), Some(v)) = (parts.next(), parts.next(), parts.next())
                    {
                        view.add_filter(c, o, v);
                    }
                }
                "column" => added[0] = value,
                "condition" => added[1] = value,
                "value" => added[2] = value,
                "sort" => {
                    let (name, descending) =
                        value.strip_prefix('-').map_or((&**value, false), |name| (name, true));
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
        if !added[0].is_empty() && !added[2].is_empty() {
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
            push("f", &format!("{column}|{condition}|{value}"));
        }
        if let Some((column, descending)) = &self.sort {
            push("sort", &format!("{}{column}", if *descending { "-" } else { "" }));
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

    /// Returns the FROM and WHERE clauses that select the view's rows.
    pub(super) fn rows_sql(&self, expansion: &str, columns: &[ViewColumn]) -> BoundSql {
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
        for filter in &self.filters {
            // Ignore filters on columns that the table no longer contains.
            let is_named = |c: &&ViewColumn| c.name.eq_ignore_ascii_case(&filter.column);
            if let Some(column) = columns.iter().find(is_named) {
                sql.push(&filter.condition_sql(column), [filter.parameter()]);
            }
        }
        sql
    }

    /// Returns the query for one page, with the stored key and cells of `limit` rows. If the cursor
    /// points backwards, the rows are in reverse order.
    pub(super) fn page_sql(
        &self,
        expansion: &str,
        columns: &[ViewColumn],
        limit: usize,
    ) -> BoundSql {
        let is_sorted = |name: &str| columns.iter().find(|c| c.name.eq_ignore_ascii_case(name));
        let sort = self.sort.as_ref().and_then(|(name, down)| Some((is_sorted(name)?, *down)));
        let backwards = self.cursor.as_ref().is_some_and(|cursor| cursor.backwards);
        let order = |down: bool| if down == backwards { "" } else { " DESC" };
        let compare = |down: bool| if down == backwards { ">" } else { "<" };
        let rows = self.rows_sql(expansion, columns);
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
            _ => format!(" AND {} = ?", column.state_sql()),
        }
    }

    /// Returns the parameter of the condition. A bound that looks like a number becomes a number.
    fn parameter(&self) -> SqlValue {
        match (self.condition, self.value.parse::<f64>()) {
            ("min" | "max", Ok(number)) => SqlValue::Real(number),
            _ => text(&self.value),
        }
    }

    /// Returns the filter as readable text, such as `price at least 5`.
    pub(super) fn describe(&self) -> String {
        let label = CONDITIONS.iter().find(|(name, _)| *name == self.condition);
        format!("{} {} {}", self.column, label.map_or("", |(_, label)| label), self.value)
    }
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
    use rusqlite::{Connection, params_from_iter};

    use super::super::record_cell::register_cell_functions;
    use super::{TableView, ViewColumn};

    fn create_columns() -> Vec<ViewColumn> {
        let column = |name: &str, key_part| ViewColumn {
            name: name.to_owned(),
            key_part,
            has_list: false,
            kind: None,
        };
        vec![column("n", Some(0)), column("it's", None), column("tags", None)]
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

    /// Returns the key numbers of a page.
    fn read_page_keys(
        connection: &Connection,
        pairs: &[(&str, &str)],
        limit: usize,
    ) -> Vec<String> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let sql = TableView::parse(&pairs).page_sql("e", &create_columns(), limit);
        let mut statement = connection.prepare(&sql.sql).unwrap();
        let rows = statement.query_map(params_from_iter(sql.params), |row| row.get(0)).unwrap();
        rows.map(|key: rusqlite::Result<String>| key.unwrap()).collect()
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
            assert_eq!(read_page_keys(&connection, pairs, 9).join(" "), keys, "{pairs:?}");
        }
    }

    /// Walks every order in pages of two rows, forwards and backwards, and expects each row once.
    #[test]
    fn pages_follow_each_other() {
        let connection = create_database();
        for (sort, all) in [
            ("", "[1] [2] [3] [4] [5]"),
            ("it's", "[2] [4] [1] [3] [5]"),
            ("-it's", "[1] [2] [4] [3] [5]"),
            ("-n", "[5] [4] [3] [2] [1]"),
        ] {
            let mut walked: Vec<String> = Vec::new();
            loop {
                let at = walked.last().cloned().unwrap_or_default();
                let next = read_page_keys(&connection, &[("sort", sort), ("after", &at)], 2);
                if next.is_empty() {
                    break;
                }
                walked.extend(next);
            }
            assert_eq!(walked.join(" "), all, "{sort}");
            let mut before =
                read_page_keys(&connection, &[("sort", sort), ("before", &walked[4])], 9);
            before.reverse();
            assert_eq!(before, walked[..4], "{sort}");
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
    }
}
