//! Reads single cells from the records of a published expansion, in Rust and as SQL functions.
//! `SQLite`'s JSON functions parse the whole record for each value. These functions skip the other
//! cells, so that a view can read all records of a large table.

use std::borrow::Cow;
use std::fmt;

use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as SqlValue, ValueRef};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::Value as Json;

use crate::value::Value;

/// Value of a cell or of a part of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RecordValue<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Text(Cow<'a, str>),
    List(Vec<RecordValue<'a>>),
}

/// State and value of a cell.
#[derive(Debug, PartialEq)]
pub(super) struct RecordCell<'a> {
    pub(super) state: Cow<'a, str>,
    pub(super) value: RecordValue<'a>,
}

impl<'a> RecordCell<'a> {
    /// Returns a cell that has a value.
    pub(super) fn of_value(value: RecordValue<'a>) -> Self {
        Self { state: "ok".into(), value }
    }
}

impl<'a> RecordValue<'a> {
    /// Returns the value as text, as `CAST(… AS TEXT)` does; `None` for NULL. The text of a list is
    /// JSON.
    pub(super) fn to_text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Null => None,
            Self::Integer(n) => Some(n.to_string().into()),
            Self::Real(r) => Value::Real(*r).to_text().map(|text| text.into_owned().into()),
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::List(_) => Some(self.to_json().to_string().into()),
        }
    }

    /// Returns the items of a list; of any other value, the value itself unless it is NULL.
    pub(super) fn items(&self) -> &[RecordValue<'a>] {
        match self {
            Self::Null => &[],
            Self::List(items) => items,
            value => std::slice::from_ref(value),
        }
    }

    pub(super) fn to_json(&self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Integer(n) => (*n).into(),
            Self::Real(r) => (*r).into(),
            Self::Text(text) => text.as_ref().into(),
            Self::List(items) => items.iter().map(RecordValue::to_json).collect(),
        }
    }

    fn to_sql(&self) -> SqlValue {
        match self {
            Self::Null => SqlValue::Null,
            Self::Integer(n) => SqlValue::Integer(*n),
            Self::Real(r) => SqlValue::Real(*r),
            Self::Text(_) | Self::List(_) => {
                SqlValue::Text(self.to_text().unwrap_or_default().into_owned())
            }
        }
    }
}

impl<'de> Deserialize<'de> for RecordValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;
        impl<'de> Visitor<'de> for ValueVisitor {
            type Value = RecordValue<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value of a cell")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(RecordValue::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(RecordValue::Integer(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(RecordValue::Integer(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(i64::try_from(value)
                    .map_or(RecordValue::Real(value as f64), RecordValue::Integer))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(RecordValue::Real(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
                Ok(RecordValue::Text(value.to_owned().into()))
            }
            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
                Ok(RecordValue::Text(value.into()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(RecordValue::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(RecordValue::Null)
            }
        }
        deserializer.deserialize_any(ValueVisitor)
    }
}

impl<'de> Deserialize<'de> for RecordCell<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CellVisitor;
        impl<'de> Visitor<'de> for CellVisitor {
            type Value = RecordCell<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a cell")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
                let state = match parts.next_element()? {
                    Some(RecordValue::Text(state)) => state,
                    _ => "missing".into(),
                };
                let value = parts.next_element()?.unwrap_or(RecordValue::Null);
                while parts.next_element::<IgnoredAny>()?.is_some() {}
                Ok(RecordCell { state, value })
            }
        }
        deserializer.deserialize_seq(CellVisitor)
    }
}

/// Search for the cells of some columns in a record.
struct CellSearch<'s, 'a> {
    names: &'s [&'s str],
    /// The cells in the order of the names; `None` for a column that the record does not contain.
    found: &'s mut [Option<RecordCell<'a>>],
}

impl<'de> DeserializeSeed<'de> for CellSearch<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for CellSearch<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the cells of a record")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut cells: A) -> Result<(), A::Error> {
        let mut left = self.names.len();
        while let Some(position) = cells.next_key_seed(NameSearch(self.names))? {
            match position {
                Some(n) => {
                    self.found[n] = Some(cells.next_value()?);
                    left -= 1;
                    if left == 0 {
                        // The rest of the record need not be read.
                        return Err(A::Error::custom("all cells were found"));
                    }
                }
                None => drop(cells.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Finds the position of a name among others, without copying it.
struct NameSearch<'n>(&'n [&'n str]);

impl<'de> DeserializeSeed<'de> for NameSearch<'_> {
    type Value = Option<usize>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSearch<'_> {
    type Value = Option<usize>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a column")
    }
    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|wanted| *wanted == name))
    }
}

/// Returns the cells of some columns from a stored record, in the order of `names`. The names must be
/// distinct. The cells behind a damaged one can be missing.
pub(super) fn find_cells<'a>(cells: &'a str, names: &[&str]) -> Vec<Option<RecordCell<'a>>> {
    let mut found: Vec<_> = names.iter().map(|name| jump_to_cell(cells, name)).collect();
    if found.iter().all(Option::is_some) {
        return found;
    }
    found.fill_with(|| None);
    let mut deserializer = serde_json::Deserializer::from_str(cells);
    let search = CellSearch { names, found: &mut found };
    // An error also ends the search early.
    let _ = search.deserialize(&mut deserializer);
    found
}

fn find_cell<'a>(cells: &'a str, name: &str) -> Option<RecordCell<'a>> {
    find_cells(cells, &[name]).pop().flatten()
}

/// Returns a cell without reading the cells before it, if the name occurs as a key. A quotation mark
/// within a text is escaped, so `,"name":[` is not part of a text.
fn jump_to_cell<'a>(cells: &'a str, name: &str) -> Option<RecordCell<'a>> {
    let is_key = |at: &usize| {
        let (before, after) = (&cells[..*at], &cells[at + name.len()..]);
        (before == "{\"" || before.ends_with("],\"")) && after.starts_with("\":[")
    };
    let (at, _) = cells.match_indices(name).find(|(at, _)| is_key(at))?;
    let mut cell = serde_json::Deserializer::from_str(&cells[at + name.len() + 2..]);
    RecordCell::deserialize(&mut cell).ok()
}

/// Returns a part of a stored key.
pub(super) fn find_key_part(key: &str, part: usize) -> RecordValue<'_> {
    let parts: Vec<RecordValue<'_>> = serde_json::from_str(key).unwrap_or_default();
    parts.into_iter().nth(part).unwrap_or(RecordValue::Null)
}

/// Returns false if no value in the JSON can contain the text. A real number can be written in several
/// ways, `true` and `false` are 1 and 0, a text in JSON can contain escaped characters, and the text of
/// a list is JSON itself.
fn may_contain(json: &str, text: &str) -> bool {
    let is_number = || text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
    json.contains(text)
        || json.contains('\\')
        || is_number() && (text.len() == 1 || may_contain_reals(json))
}

/// Returns false if the JSON contains no real number: no digit is followed by a point or an `e`.
fn may_contain_reals(json: &str) -> bool {
    let follows_digit = |pair: &[u8]| pair[0].is_ascii_digit() && b".eE".contains(&pair[1]);
    json.as_bytes().windows(2).any(follows_digit)
}

/// Returns false if no value in the JSON, and no item of a list, can have exactly this text.
fn may_equal(json: &str, text: &str) -> bool {
    // An integer of two digits or more is written in one way; `true` and `false` are 1 and 0.
    let is_integer = text.len() > 1 && text.bytes().all(|c| c.is_ascii_digit());
    if is_integer { json.contains(text) } else { may_contain(json, text) }
}

/// Registers the SQL functions of views:
///
/// | function | result |
/// |---|---|
/// | `cell_value(cells, column)` | the value of a cell, a list as JSON |
/// | `cell_state(cells, column)` | the state of a cell |
/// | `cell_is(cells, column, text)` | whether the value, or an item of the list, has this text |
/// | `cell_has(cells, column, text)` | whether the value contains a text, ignoring ASCII case |
/// | `record_has(key, cells, text)` | the same for the key and all values |
/// | `key_value(key, part)` | a part of a key |
pub(super) fn register_cell_functions(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("cell_value", 2, flags, |call| {
        let cell = find_cell(read_text(call, 0), read_text(call, 1));
        Ok(cell.map_or(SqlValue::Null, |cell| cell.value.to_sql()))
    })?;
    connection.create_scalar_function("cell_state", 2, flags, |call| {
        let cell = find_cell(read_text(call, 0), read_text(call, 1));
        let state = cell.map_or("missing".into(), |cell| cell.state);
        Ok(SqlValue::Text(state.into_owned()))
    })?;
    connection.create_scalar_function("cell_is", 3, flags, |call| {
        let (cells, text) = (read_text(call, 0), read_text(call, 2));
        let is_equal = |value: &RecordValue<'_>| value.to_text().is_some_and(|t| t == text);
        Ok(may_equal(cells, text)
            && find_cell(cells, read_text(call, 1))
                .is_some_and(|cell| cell.value.items().iter().any(is_equal)))
    })?;
    connection.create_scalar_function("cell_has", 3, flags, |call| {
        let cells = read_text(call, 0);
        let text = read_text(call, 2).to_ascii_lowercase();
        Ok(may_contain(&lower_for(&text, cells), &text)
            && find_cell(cells, read_text(call, 1))
                .is_some_and(|cell| contains(&cell.value, &text)))
    })?;
    connection.create_scalar_function("record_has", 3, flags, |call| {
        let (key, cells) = (read_text(call, 0), read_text(call, 1));
        let text = read_text(call, 2).to_ascii_lowercase();
        if lower_for(&text, key).contains(&text) {
            return Ok(true);
        }
        Ok(may_contain(&lower_for(&text, cells), &text)
            && list_values(cells).iter().any(|value| contains(value, &text)))
    })?;
    connection.create_scalar_function("key_value", 2, flags, |call| {
        let part = call.get_raw(1).as_i64().unwrap_or_default();
        Ok(ToSqlOutput::Owned(find_key_part(read_text(call, 0), part as usize).to_sql()))
    })
}

/// Returns the text of an argument; the empty text if it has none.
fn read_text<'c>(call: &'c Context<'_>, argument: usize) -> &'c str {
    match call.get_raw(argument) {
        ValueRef::Text(text) => std::str::from_utf8(text).unwrap_or_default(),
        _ => "",
    }
}

/// Returns `whole` in ASCII lower case, or as it is if `text` has no letters.
fn lower_for<'w>(text: &str, whole: &'w str) -> Cow<'w, str> {
    if text.bytes().any(|c| c.is_ascii_alphabetic()) {
        whole.to_ascii_lowercase().into()
    } else {
        whole.into()
    }
}

/// Returns true if the value contains a text that is in ASCII lower case.
fn contains(value: &RecordValue<'_>, text: &str) -> bool {
    value.to_text().is_some_and(|whole| whole.to_ascii_lowercase().contains(text))
}

/// Returns the values of all cells of a record.
fn list_values(cells: &str) -> Vec<RecordValue<'_>> {
    let mut values = Vec::new();
    let parsed: Result<std::collections::BTreeMap<Cow<'_, str>, RecordCell<'_>>, _> =
        serde_json::from_str(cells);
    values.extend(parsed.into_iter().flatten().map(|(_, cell)| cell.value));
    values
}

#[cfg(test)]
mod tests {
    use super::{RecordValue, contains, find_cell, list_values, may_contain};

    #[test]
    fn a_cell_is_found_by_its_name_only() {
        let record = r#"{"ab":["ok",1],"a":["ok","],\"b\":[2]"],"b":["ok",3],"c d":["ok",[4]], "e":["ok",5]}"#;
        let integer = |name: &str| find_cell(record, name).map(|cell| cell.value);
        for (name, value) in
            [("ab", Some(1)), ("b", Some(3)), ("e", Some(5)), ("d", None), ("ok", None)]
        {
            assert_eq!(integer(name), value.map(RecordValue::Integer), "{name}");
        }
        assert_eq!(integer("a"), Some(RecordValue::Text("],\"b\":[2]".into())));
        assert_eq!(integer("c d"), Some(RecordValue::List(vec![RecordValue::Integer(4)])));
    }

    /// Reads all values of some records, and expects every text that one of them contains.
    #[test]
    fn no_record_with_a_match_is_skipped() {
        let values = ["12", "-7", "true", "1e21", "0.1", "2.0", "1e-7", "100000000000000000000"]
            .into_iter()
            .chain([r#""a1.5b""#, r#""caf\u00e9 12""#, r#"["12",3.25]"#, "null", r#""""#]);
        let texts = ["1", "12", "-7", "1.0", "e+", "0.1", "2.0", "1.5", "é", "25", "+21", "99"];
        for value in values {
            let json = format!(r#"{{"x":["ok",{value}]}}"#);
            for text in texts {
                let has_match = list_values(&json).iter().any(|value| contains(value, text));
                assert!(may_contain(&json, text) || !has_match, "{text} in {json}");
            }
        }
        assert!(!may_contain(r#"{"x":["ok",12]}"#, "99"));
        assert!(!may_contain(r#"{"x":["ok","a word"]}"#, "99"));
    }
}
