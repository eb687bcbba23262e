//! Kinds of the values of columns. An entity is a value together with its kind: 'Washington' in
//! `president.name` and in `state.name` are two entities.
//!
//! Each column has its own kind, with these exceptions: a foreign key has the kind of the column
//! that it references, the key columns of one expansion's sources share a kind, and the spec can
//! assign the same kind to several columns.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use hqdl_spec::{Column, SourceRows, Spec};
use hqdl_sql::blendsql::scope::ColumnOrigin;
use hqdl_sql::blendsql::usage::{CallUsage, Key};
use hqdl_values::key::ColumnIdentity;

/// Maximum length of an expression, in characters. Descriptions of origins omit longer expressions.
const LONGEST_EXPRESSION: usize = 200;

/// Columns of a database that share a kind, and the spec's descriptions of columns.
#[derive(Debug, Clone, Default)]
pub(in crate::query) struct Kinds {
    /// For each column, the lowercase names (such as `city.name`) of all columns of its kind. The
    /// first column names the kind.
    shared: BTreeMap<String, Vec<String>>,
    /// Descriptions of columns in the spec.
    about: BTreeMap<String, String>,
}

impl Kinds {
    /// Reads the foreign keys of a database and merges the kinds of columns as the spec specifies.
    pub fn read_kinds(connection: &Connection, spec: &Spec) -> Self {
        let mut pairs = read_foreign_keys(connection).unwrap_or_default();
        let mut about = BTreeMap::new();
        for expansion in &spec.expansions {
            let tables: Vec<&String> = (expansion.sources.iter())
                .filter_map(|source| match &source.rows {
                    SourceRows::Table(table) => Some(table),
                    SourceRows::Select(_) => None,
                })
                .collect();
            for key in expansion.key.names() {
                let columns: Vec<String> =
                    tables.iter().map(|table| qualify_name(table, key)).collect();
                pairs.extend(columns.windows(2).map(|two| (two[1].clone(), two[0].clone())));
                let described = columns.into_iter().map(|name| (name, expansion.about.clone()));
                about.extend(described.filter(|(_, about)| !about.trim().is_empty()));
            }
            let columns = expansion.columns.iter().filter(|column| !column.about.trim().is_empty());
            about
                .extend(columns.map(|c| (qualify_name(&expansion.name, &c.name), c.about.clone())));
        }
        for kind in &spec.kinds {
            let names: Vec<String> = kind.iter().map(|(table, c)| qualify_name(table, c)).collect();
            let others = names.iter().skip(1).map(|name| (name.clone(), names[0].clone()));
            pairs.extend(others);
        }
        Self { shared: group_by_kind(&pairs), about }
    }

    /// Sets a column's origin (shown to the model), the value kinds in its identity, and the other
    /// identities under which its answers may be stored.
    pub fn set_column_identity(&self, column: &mut Column, usage: &CallUsage) {
        column.origin = self.describe_origins(&usage.keys);
        let kinds: Vec<Vec<String>> =
            usage.keys.iter().map(|key| self.find_kind_columns(key)).collect();
        if kinds.iter().all(Vec::is_empty) {
            return;
        }
        let first = |kinds: &Vec<String>| kinds.first().cloned().unwrap_or_default();
        let own: Vec<String> = kinds.iter().map(first).collect();
        let mut other_kinds: Vec<Vec<String>> = vec![Vec::new()];
        if let [kinds] = kinds.as_slice() {
            other_kinds.extend(kinds.iter().skip(1).map(|kind| vec![kind.clone()]));
        }
        let plain = &column.identity;
        column.other_identities = other_kinds
            .into_iter()
            .map(|kinds| ColumnIdentity { kinds, ..plain.clone() })
            .collect();
        column.identity.kinds = own;
        column.fingerprint = column.identity.fingerprint();
    }

    /// Returns the names of the columns that share the kind of a call's value. The first column
    /// names the kind.
    fn find_kind_columns(&self, key: &Key) -> Vec<String> {
        let Some(origin) = find_base_column(key) else { return Vec::new() };
        let name = qualify_name(&origin.table, &origin.column);
        self.shared.get(&name).cloned().unwrap_or_else(|| vec![name])
    }

    /// Returns a description of the origins of values: columns with the spec's descriptions, or
    /// expressions over columns. Returns `None` if an origin is unknown.
    pub fn describe_origins(&self, keys: &[Key]) -> Option<String> {
        let describe = |key: &Key| {
            let Some(origin) = find_base_column(key) else {
                let is_short = key.text.chars().nth(LONGEST_EXPRESSION).is_none();
                return (key.lineage.is_some() && is_short).then(|| key.text.clone());
            };
            let name = format!("{}.{}", origin.table, origin.column);
            Some(match self.about.get(&name.to_lowercase()) {
                Some(about) => format!("{name} ({})", about.trim().trim_end_matches('.')),
                None => name,
            })
        };
        let origins = keys.iter().map(describe).collect::<Option<Vec<String>>>()?;
        (!origins.is_empty()).then(|| origins.join(", "))
    }
}

/// Sets the kind of the values that a column asks about.
pub(in crate::query) fn set_kind(column: &mut Column, kind: &str) {
    column.origin = Some(kind.to_owned());
    column.other_identities = vec![column.identity.clone()];
    column.identity.kinds = vec![kind.to_lowercase()];
    column.fingerprint = column.identity.fingerprint();
}

/// Returns the database column that a value comes from.
fn find_base_column(key: &Key) -> Option<&ColumnOrigin> {
    key.base.as_ref().or(key.origin.as_ref())
}

fn qualify_name(table: &str, column: &str) -> String {
    format!("{table}.{column}").to_lowercase()
}

/// Returns the columns of foreign keys, each with the column that it references.
fn read_foreign_keys(connection: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    // A foreign key without columns references the primary key.
    let sql = "SELECT t.name || '.' || f.\"from\", f.\"table\" || '.' || coalesce(f.\"to\", \
                 (SELECT name FROM pragma_table_xinfo(f.\"table\") WHERE pk = f.seq + 1)) \
               FROM pragma_table_list AS t, pragma_foreign_key_list(t.name) AS f \
               WHERE t.type = 'table' ORDER BY 1, 2";
    let mut statement = connection.prepare(sql)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let pairs: Vec<(String, Option<String>)> =
        statement.query_map([], read)?.collect::<Result<_, _>>()?;
    let named = pairs.into_iter().filter_map(|(from, to)| Some((from, to?)));
    Ok(named.map(|(from, to)| (from.to_lowercase(), to.to_lowercase())).collect())
}

/// Groups columns by kind, given pairs of columns of the same kind. Returns all columns of each
/// column's kind. Each kind is named after the column that is not the first element of any pair.
fn group_by_kind(pairs: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<&String, BTreeSet<&String>> = BTreeMap::new();
    for (one, other) in pairs {
        let mut group = groups.remove(one).unwrap_or_else(|| BTreeSet::from([one]));
        group.extend(groups.get(other).cloned().unwrap_or_else(|| BTreeSet::from([other])));
        for member in group.clone() {
            groups.insert(member, group.clone());
        }
    }
    let of_group = |group: &BTreeSet<&String>| {
        let is_like = |name: &String| pairs.iter().any(|(one, other)| one == name && other != name);
        let own = group.iter().find(|name| !is_like(name)).or(group.first());
        let others = group.iter().filter(|name| Some(*name) != own);
        own.into_iter().chain(others).map(|name| (*name).clone()).collect()
    };
    groups.iter().map(|(name, group)| ((*name).clone(), of_group(group))).collect()
}

#[cfg(test)]
mod tests {
    use super::group_by_kind;

    #[test]
    fn columns_of_a_kind_share_the_name_of_the_referenced_column() {
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let shared = group_by_kind(&[
            pair("orders.city", "city.name"),
            pair("trip.city", "orders.city"),
            pair("a.x", "b.x"),
            pair("b.x", "a.x"),
        ]);
        for name in ["orders.city", "city.name", "trip.city"] {
            assert_eq!(shared[name], ["city.name", "orders.city", "trip.city"]);
        }
        assert_eq!(shared["b.x"], ["a.x", "b.x"]);
    }
}
