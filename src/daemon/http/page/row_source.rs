//! Where the rows of a view come from: the records of a published expansion, or a table or view of
//! the database. Both yield rows with a key and one cell per column, so that one page shows both.

use std::borrow::Cow;

use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, Row};
use serde_json::{Value as Json, json};

use super::record_cell::{RecordCell, RecordValue, find_cells, find_key_part};
use crate::database::publish::find_column_affinity;
use crate::query::result::json::format_text;
use crate::spec::{Expansion, Many, Spec, Type};
use crate::sql::quote_name;

/// Number of characters of a value to show.
pub(super) const MAX_VALUE_CHARS: usize = 120;

/// Maximum size of a blob that is shown in hexadecimal, in bytes.
pub(super) const MAX_BLOB_BYTES: usize = 32;

/// Where the values of a column are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnPlace {
    /// Part of the stored key of a published row, by position.
    KeyPart(usize),
    /// Cell of a published row.
    Cell,
    /// Column of a table or view of the database.
    Table { is_key: bool },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ViewColumn {
    pub(super) name: String,
    pub(super) place: ColumnPlace,
    /// Whether the column has a value list.
    pub(super) has_list: bool,
    /// Declared type; `None` for key columns of an expansion, for columns that the spec no longer
    /// contains, and for columns of a table without a type.
    pub(super) kind: Option<Type>,
    /// Table and column that contain the items of a list, one per row.
    pub(super) list: Option<Many>,
    /// Column that the values refer to.
    pub(super) reference: Option<Reference>,
    /// Cells that a column of a view contains.
    pub(super) filled_by: Option<CellColumn>,
}

/// Column of an expansion whose cells a view contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CellColumn {
    pub(super) expansion: String,
    pub(super) column: String,
    /// Position of the view's source in the expansion.
    pub(super) source: usize,
}

/// Column of a table that a foreign key refers to, or that has the foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) table: String,
    pub(super) column: String,
}

impl ViewColumn {
    /// Returns the position in the key, for key columns of a published row.
    pub(super) fn key_part(&self) -> Option<usize> {
        match self.place {
            ColumnPlace::KeyPart(part) => Some(part),
            ColumnPlace::Cell | ColumnPlace::Table { .. } => None,
        }
    }

    /// Returns true if the column contains the cells of an expansion, each with its state.
    pub(super) fn is_filled(&self) -> bool {
        self.place == ColumnPlace::Cell
    }

    /// Returns true if a model fills the column, in its own table or in a view of it.
    pub(super) fn is_model_filled(&self) -> bool {
        self.is_filled() || self.filled_by.is_some()
    }

    /// Returns true if the column is declared as a number.
    pub(super) fn is_number(&self) -> bool {
        matches!(self.kind, Some(Type::Integer | Type::Real))
    }

    /// Returns the name as an SQL literal.
    fn literal(&self) -> String {
        format!("'{}'", self.name.replace('\'', "''"))
    }

    /// Returns SQL for the value; NULL if the cell has none.
    pub(super) fn value_sql(&self) -> String {
        match self.place {
            ColumnPlace::KeyPart(n) => format!("key_value(key, {n})"),
            ColumnPlace::Cell => format!("cell_value(cells, {})", self.literal()),
            ColumnPlace::Table { .. } => quote_name(&self.name),
        }
    }

    /// Returns SQL for the state.
    pub(super) fn state_sql(&self) -> String {
        match self.place {
            ColumnPlace::KeyPart(_) | ColumnPlace::Table { .. } => "'ok'".to_owned(),
            ColumnPlace::Cell => format!("cell_state(cells, {})", self.literal()),
        }
    }

    /// Returns SQL for whether the value, or an item of the list, has the text of a parameter.
    pub(super) fn equals_sql(&self) -> String {
        match self.place {
            ColumnPlace::Cell => format!("cell_is(cells, {}, ?)", self.literal()),
            _ => format!("coalesce({} = ?, FALSE)", self.text_sql()),
        }
    }

    /// Returns SQL for the text of the value, as the page shows it, for a column that is not filled.
    pub(super) fn text_sql(&self) -> String {
        let value = self.value_sql();
        match (self.place, self.kind) {
            (ColumnPlace::Table { .. }, _) => format!(
                "CASE typeof({value}) WHEN 'blob' THEN 'X''' || hex({value}) || '''' ELSE CAST({value} AS TEXT) END"
            ),
            _ => format!("CAST({value} AS TEXT)"),
        }
    }

    /// Returns SQL for whether there is no value; for a list, whether it has no item.
    pub(super) fn null_sql(&self) -> String {
        match self.list {
            Some(_) => format!("coalesce({}, '[]') = '[]'", self.value_sql()),
            None => format!("{} IS NULL", self.value_sql()),
        }
    }

    /// Returns SQL for whether the value contains the text of a parameter, ignoring ASCII case.
    pub(super) fn contains_sql(&self) -> String {
        match self.place {
            ColumnPlace::Cell => format!("cell_has(cells, {}, ?)", self.literal()),
            ColumnPlace::KeyPart(_) => {
                format!("instr(lower(CAST({} AS TEXT)), lower(?))", self.value_sql())
            }
            // Faster than `instr`, because LIKE does not copy the value.
            ColumnPlace::Table { .. } => format!("{} LIKE ? ESCAPE '\\'", self.value_sql()),
        }
    }

    /// Returns the parameter of [`Self::contains_sql`].
    pub(super) fn contains_parameter(&self, wanted: &str) -> SqlValue {
        match self.place {
            ColumnPlace::Table { .. } => SqlValue::Text(build_like_pattern(wanted)),
            ColumnPlace::KeyPart(_) | ColumnPlace::Cell => SqlValue::Text(wanted.to_owned()),
        }
    }
}

/// Returns the pattern of LIKE, with `\` as escape character, for texts that contain `text`.
pub(super) fn build_like_pattern(text: &str) -> String {
    let mut pattern = "%".to_owned();
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern + "%"
}

/// Position in the sort order at which a page begins or ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cursor {
    /// Key of the neighboring row, as stored.
    pub(super) key: String,
    /// Whether the page ends before this row instead of starting after it.
    pub(super) backwards: bool,
}

/// Source of a view's rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowSource {
    /// Records of a published expansion, which contain the state of every cell.
    Records { expansion: String },
    /// Table or view of the database. The columns of `key` identify a row and are its order: the
    /// rowid or the primary key. A view, or a table without a usable key, has
    /// no `key`: its rows are identified by their position.
    Table { name: String, key: Vec<String> },
}

impl Default for RowSource {
    fn default() -> Self {
        Self::Records { expansion: String::new() }
    }
}

impl RowSource {
    /// Returns the published expansion; `None` for a table of the database.
    pub(super) fn expansion(&self) -> Option<&str> {
        match self {
            Self::Records { expansion } => Some(expansion),
            Self::Table { .. } => None,
        }
    }

    /// Returns true if the rows have no key, so that their position identifies them.
    pub(super) fn has_positions(&self) -> bool {
        matches!(self, Self::Table { key, .. } if key.is_empty())
    }

    /// Returns the SELECT list with everything that a page shows. Long values are shortened to one
    /// character more than the page shows, so that a page of long values needs little memory. A long
    /// blob is replaced by its size.
    pub(super) fn short_select_list(&self, columns: &[&ViewColumn]) -> String {
        let Self::Table { key, .. } = self else { return self.select_list(columns) };
        let shorten = |column: &&ViewColumn| {
            let (name, chars) = (quote_name(&column.name), MAX_VALUE_CHARS + 1);
            format!(
                "CASE typeof({name}) WHEN 'text' THEN substr({name}, 1, {chars})
                 WHEN 'blob' THEN CASE WHEN length({name}) > {MAX_BLOB_BYTES} THEN printf('BLOB (%,d B)', length({name})) ELSE {name} END
                 ELSE {name} END"
            )
        };
        let names = columns.iter().map(shorten);
        key.iter().map(|k| quote_name(k)).chain(names).collect::<Vec<_>>().join(", ")
    }

    /// Returns the SELECT list with everything that [`Self::read_cells`] needs.
    pub(super) fn select_list(&self, columns: &[&ViewColumn]) -> String {
        match self {
            Self::Records { .. } => "key, cells".to_owned(),
            Self::Table { key, .. } => {
                let names = columns.iter().map(|column| quote_name(&column.name));
                let list: Vec<String> = key.iter().map(|k| quote_name(k)).chain(names).collect();
                list.join(", ")
            }
        }
    }

    /// Returns the cells of some columns from a row of [`Self::select_list`]; `None` for a cell that
    /// the record does not contain.
    pub(super) fn read_cells<'r>(
        &self,
        row: &'r Row<'_>,
        columns: &[&ViewColumn],
    ) -> rusqlite::Result<Vec<Option<RecordCell<'r>>>> {
        match self {
            Self::Records { .. } => {
                Ok(find_record_cells(row.get_ref(0)?.as_str()?, row.get_ref(1)?.as_str()?, columns))
            }
            Self::Table { key, .. } => {
                let read = |n: usize| Ok(Some(RecordCell::of_value(to_value(row.get_ref(n)?))));
                (key.len()..key.len() + columns.len()).map(read).collect()
            }
        }
    }

    /// Returns the key of a row of [`Self::select_list`] and its cells as JSON, as a record stores
    /// them. `position` is the number of the row in the view, counted from 1.
    pub(super) fn read_record(
        &self,
        row: &Row<'_>,
        columns: &[&ViewColumn],
        position: usize,
    ) -> rusqlite::Result<(String, String)> {
        let Self::Table { key, .. } = self else { return Ok((row.get(0)?, row.get(1)?)) };
        let key: Vec<Json> = if key.is_empty() {
            vec![position.into()]
        } else {
            let read = |n| Ok(to_cursor_part(row.get_ref(n)?));
            (0..key.len()).map(read).collect::<rusqlite::Result<_>>()?
        };
        let cells = self.read_cells(row, columns)?.into_iter().flatten();
        let cells = columns.iter().zip(cells);
        let cells = cells.map(|(column, cell)| (&column.name, json!(["ok", cell.value.to_json()])));
        let cells: serde_json::Map<String, Json> = cells.map(|(n, c)| (n.clone(), c)).collect();
        Ok((Json::Array(key).to_string(), Json::Object(cells).to_string()))
    }

    /// Returns the values of the key at which a cursor points; `None` if it is not a key of this
    /// table.
    pub(super) fn parse_cursor(&self, cursor: &Cursor) -> Option<Vec<SqlValue>> {
        let Self::Table { key, .. } = self else { return None };
        let parts: Vec<Json> = serde_json::from_str(&cursor.key).ok()?;
        let values: Vec<SqlValue> = parts.iter().map(parse_cursor_part).collect::<Option<_>>()?;
        (values.len() == key.len().max(1)).then_some(values)
    }

    /// Returns the number of rows before the page; 0 if the rows have a key.
    pub(super) fn page_offset(&self, cursor: Option<&Cursor>, page_rows: usize) -> usize {
        let Some(cursor) = cursor.filter(|_| self.has_positions()) else { return 0 };
        let position = match self.parse_cursor(cursor).as_deref() {
            Some([SqlValue::Integer(position)]) => usize::try_from(*position).unwrap_or(0),
            _ => 0,
        };
        if cursor.backwards { position.saturating_sub(page_rows + 1) } else { position }
    }
}

/// Returns the cells of some columns from a stored key and record.
pub(super) fn find_record_cells<'a>(
    key: &'a str,
    cells: &'a str,
    columns: &[&ViewColumn],
) -> Vec<Option<RecordCell<'a>>> {
    let stored = columns.iter().filter(|c| c.key_part().is_none());
    let names: Vec<&str> = stored.map(|c| c.name.as_str()).collect();
    let mut found = find_cells(cells, &names).into_iter();
    let cell = |column: &&ViewColumn| match column.key_part() {
        Some(part) => Some(RecordCell::of_value(find_key_part(key, part))),
        None => found.next().flatten(),
    };
    columns.iter().map(cell).collect()
}

/// Returns a value of the database. A blob is shown in hexadecimal.
fn to_value(value: ValueRef<'_>) -> RecordValue<'_> {
    match value {
        ValueRef::Null => RecordValue::Null,
        ValueRef::Integer(n) => RecordValue::Integer(n),
        ValueRef::Real(r) => RecordValue::Real(r),
        ValueRef::Text(text) => RecordValue::Text(String::from_utf8_lossy(text)),
        blob @ ValueRef::Blob(_) => RecordValue::Text(Cow::Owned(format_text(blob))),
    }
}

/// Returns a part of a key as JSON that [`parse_cursor_part`] reads; a blob is a list of bytes.
fn to_cursor_part(value: ValueRef<'_>) -> Json {
    match value {
        ValueRef::Blob(bytes) => bytes.into(),
        value => to_value(value).to_json(),
    }
}

fn parse_cursor_part(part: &Json) -> Option<SqlValue> {
    Some(match part {
        Json::Null => SqlValue::Null,
        Json::String(text) => SqlValue::Text(text.clone()),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => SqlValue::Integer(integer),
            None => SqlValue::Real(number.as_f64()?),
        },
        Json::Array(bytes) => {
            let byte = |b: &Json| b.as_u64().and_then(|b| u8::try_from(b).ok());
            SqlValue::Blob(bytes.iter().map(byte).collect::<Option<_>>()?)
        }
        Json::Bool(_) | Json::Object(_) => return None,
    })
}

/// Table or view of a database file.
#[derive(Debug)]
pub(super) struct OtherTable {
    pub(super) name: String,
    pub(super) is_view: bool,
    has_rowid: bool,
}

/// Returns the tables and views of a database file, without those that `SQLite` and hqdl keep for
/// themselves.
pub(super) fn list_database_tables(connection: &Connection) -> rusqlite::Result<Vec<OtherTable>> {
    let sql = "SELECT s.name, t.type, t.wr FROM sqlite_schema AS s
               JOIN pragma_table_list AS t ON t.schema = 'main' AND t.name = s.name
               WHERE s.type IN ('table', 'view') AND t.type <> 'shadow'
                 AND s.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND s.name NOT LIKE 'hqdl\\_%' ESCAPE '\\'
               ORDER BY s.name";
    let read = |row: &Row<'_>| {
        let is_view = row.get_ref(1)?.as_str()? == "view";
        Ok(OtherTable { name: row.get(0)?, is_view, has_rowid: !row.get::<_, bool>(2)? })
    };
    connection.prepare(sql)?.query_map([], read)?.collect()
}

/// Returns the source and the columns of a table or view of a database file; `None` if there is no
/// such table.
pub(super) fn find_database_table(
    connection: &Connection,
    name: &str,
) -> rusqlite::Result<Option<(RowSource, Vec<ViewColumn>)>> {
    let tables = list_database_tables(connection)?;
    let Some(table) = tables.into_iter().find(|t| t.name.eq_ignore_ascii_case(name)) else {
        return Ok(None);
    };
    // The hidden columns of virtual tables are not data.
    let mut statement = connection.prepare(
        "SELECT name, type, pk, \"notnull\" FROM pragma_table_xinfo(?1) WHERE hidden <> 1",
    )?;
    let mut rows = statement.query([&table.name])?;
    let (mut columns, mut primary, mut has_nullable_key) = (Vec::new(), Vec::new(), false);
    while let Some(row) = rows.next()? {
        let (name, declared, position): (String, String, usize) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        if position > 0 {
            primary.push((position, name.clone()));
            has_nullable_key |= !row.get::<_, bool>(3)?;
        }
        columns.push(ViewColumn {
            name,
            place: ColumnPlace::Table { is_key: position > 0 },
            has_list: false,
            kind: find_affinity_type(&declared),
            list: None,
            reference: None,
            filled_by: None,
        });
    }
    // A foreign key to a broken view cannot be read.
    for (from, to) in find_references(connection, &table.name).unwrap_or_default() {
        let column = columns.iter_mut().find(|c| c.name.eq_ignore_ascii_case(&from));
        column.into_iter().for_each(|column| column.reference = Some(to.clone()));
    }
    primary.sort_unstable();
    let is_free = |alias: &&str| columns.iter().all(|c| !c.name.eq_ignore_ascii_case(alias));
    let rowid = ["rowid", "_rowid_", "oid"].into_iter().find(is_free);
    let key = match (table.is_view, table.has_rowid, rowid) {
        (true, ..) => Vec::new(),
        (false, true, Some(rowid)) => vec![rowid.to_owned()],
        // A key with NULL identifies no row and has no order.
        (false, ..) if has_nullable_key => Vec::new(),
        // Without a primary key, the rows are identified by their position.
        (false, ..) => primary.into_iter().map(|(_, name)| name).collect(),
    };
    Ok(Some((RowSource::Table { name: table.name, key }, columns)))
}

/// Returns the foreign keys of a table that have one column: each column with the column that it
/// refers to.
fn find_references(
    connection: &Connection,
    table: &str,
) -> rusqlite::Result<Vec<(String, Reference)>> {
    // Without a column, a foreign key refers to the primary key.
    let sql = "SELECT min(f.\"from\"), f.\"table\", coalesce(min(f.\"to\"), (SELECT min(name) FROM pragma_table_xinfo(f.\"table\") WHERE pk > 0 HAVING count(*) = 1))
               FROM pragma_foreign_key_list(?1) AS f GROUP BY f.id HAVING count(*) = 1";
    let read = |row: &Row<'_>| {
        let to: Option<String> = row.get(2)?;
        Ok((row.get(0)?, row.get(1)?, to))
    };
    let mut statement = connection.prepare(sql)?;
    let rows: Vec<(String, String, Option<String>)> =
        statement.query_map([table], read)?.collect::<rusqlite::Result<_>>()?;
    Ok(rows
        .into_iter()
        .filter_map(|(from, table, to)| Some((from, Reference { table, column: to? })))
        .collect())
}

/// Returns the foreign keys that refer to a table: the column of the other table, and the column of
/// this table that it refers to.
pub(super) fn find_incoming_references(
    connection: &Connection,
    table: &str,
) -> rusqlite::Result<Vec<(Reference, String)>> {
    let mut found = Vec::new();
    for other in list_database_tables(connection)?.into_iter().filter(|t| !t.is_view) {
        for (from, to) in find_references(connection, &other.name).unwrap_or_default() {
            if to.table.eq_ignore_ascii_case(table) {
                found.push((Reference { table: other.name.clone(), column: from }, to.column));
            }
        }
    }
    Ok(found)
}

/// Returns the names of the columns of a table or view; none if they cannot be read, for example
/// because a view reads a table that no longer exists.
pub(super) fn list_column_names(connection: &Connection, table: &str) -> Vec<String> {
    let sql = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden <> 1";
    let read = || -> rusqlite::Result<Vec<String>> {
        connection.prepare(sql)?.query_map([table], |row| row.get(0))?.collect()
    };
    read().unwrap_or_default()
}

/// Returns the key of an expansion's row; `value` returns the value of a column of the source. `None`
/// if a part of the key is not known.
pub(super) fn find_cell_key(
    spec: &Spec,
    filled_by: &CellColumn,
    value: impl Fn(&str) -> Option<Json>,
) -> Option<Vec<Json>> {
    let is_filling = |e: &&Expansion| e.name.eq_ignore_ascii_case(&filled_by.expansion);
    let expansion = spec.expansions.iter().find(is_filling)?;
    let parts = expansion.key_parts.get(filled_by.source);
    let part = |(position, name): (usize, &String)| match parts {
        // The source does not return this part of the key, which is NULL.
        Some(parts) if !parts.contains(&position) => Some(Json::Null),
        _ => value(name),
    };
    expansion.key.names().iter().enumerate().map(part).collect()
}

/// Returns the type of a column's affinity; `None` if no type matches.
fn find_affinity_type(declared: &str) -> Option<Type> {
    match find_column_affinity(Some(declared)) {
        "INTEGER" => Some(Type::Integer),
        "TEXT" => Some(Type::Text),
        "REAL" => Some(Type::Real),
        _ => None,
    }
}
