//! Inputs of a published expansion. If the inputs are unchanged, all values in the expansion's
//! table agree with the facts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::versions::Checksums;
use super::{Database, StoreError};
use hqdl_spec::overrides::Overrides;
use hqdl_spec::{Catalog, Column, Expansion, Reuse, Spec};

/// Inputs, apart from the answers, that determine the values of a published table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedState {
    /// Id of the journal that the values came from.
    pub journal: String,
    /// Last journal position that the table includes.
    pub head: i64,
    /// Name of the model that answered.
    model: String,
    any_model: bool,
    /// Hash of the overrides.
    overrides: String,
    key: Vec<String>,
    /// Identity of each column, including its value list.
    columns: BTreeMap<String, String>,
}

impl PublishedState {
    /// Returns the state that an expansion would have if it were published now.
    #[must_use]
    pub fn current(
        spec: &Spec,
        expansion: usize,
        model: &str,
        overrides: &Overrides,
        (journal, head): (String, i64),
    ) -> Self {
        let expansion_spec = &spec.expansions[expansion];
        Self {
            journal,
            head,
            model: model.to_owned(),
            any_model: spec.model.reuse == Reuse::AnyModel,
            overrides: overrides.compute_expansion_digest(expansion),
            key: expansion_spec.key.names().to_vec(),
            columns: expansion_spec
                .columns
                .iter()
                .map(|c| (c.name.clone(), format_column_identity(c)))
                .collect(),
        }
    }

    /// Returns true if tables published as `self` and as `now` have the same values, apart from
    /// changed columns and newer answers.
    #[must_use]
    pub fn has_same_inputs(&self, now: &Self) -> bool {
        self.journal == now.journal
            && self.model == now.model
            && self.any_model == now.any_model
            && self.overrides == now.overrides
            && self.key == now.key
    }

    /// Returns true if the identity of a column is unchanged.
    #[must_use]
    pub fn has_unchanged_column(&self, column: &Column) -> bool {
        self.columns
            .get(&column.name)
            .is_some_and(|recorded| *recorded == format_column_identity(column))
    }
}

fn format_column_identity(column: &Column) -> String {
    let list = column.values.as_ref().map_or("", |v| v.hash.as_str());
    let unknown = column.unknown.as_ref().map_or(String::new(), |words| format!(" {words:?}"));
    let unify = if column.unify { " unify" } else { "" };
    let aliases = Some(&column.aliases).filter(|a| !a.is_empty());
    let aliases = aliases.map_or(String::new(), |a| format!(" {a:?}"));
    let many = column.many.is_some();
    format!("{} {:?} {list} {many}{unknown}{unify}{aliases}", column.fingerprint, column.kind)
}

impl Database {
    /// Returns the inputs of an expansion's published table, if the table exists and its inputs are
    /// known.
    #[must_use]
    pub fn load_published_state(&self, spec: &Spec, expansion: &str) -> Option<PublishedState> {
        if !self.is_created_by_hqdl(expansion) {
            return None;
        }
        let text: String = self
            .connection()
            .query_row(
                "SELECT inputs FROM hqdl_object WHERE name = ?1 AND spec = ?2",
                [expansion, &spec.full_path()],
                |row| row.get(0),
            )
            .ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns the id of the journal that the values of an expansion's published table came from,
    /// whichever spec published it; `None` if there is no such table, or its journal is not known.
    #[must_use]
    pub fn load_published_journal(&self, expansion: &str) -> Option<String> {
        if !self.is_created_by_hqdl(expansion) {
            return None;
        }
        let sql = "SELECT inputs ->> 'journal' FROM hqdl_object WHERE name = ?1 AND type = 'table'";
        self.connection().query_row(sql, [expansion], |row| row.get(0)).ok()?
    }

    /// Returns the published expansions that are no longer in the spec.
    ///
    /// # Errors
    /// Fails with `SQLite`'s error if the bookkeeping cannot be read.
    pub fn list_removed_expansions(&self, spec: &Spec) -> rusqlite::Result<Vec<String>> {
        if !self.has_bookkeeping() {
            return Ok(Vec::new());
        }
        let published: Vec<String> = self
            .connection()
            .prepare("SELECT name FROM hqdl_object WHERE spec = ?1")?
            .query_map([spec.full_path()], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let is_removed =
            |name: &String| !spec.expansions.iter().any(|e| e.name.eq_ignore_ascii_case(name));
        Ok(published.into_iter().filter(is_removed).collect())
    }

    /// Returns the checksums of an expansion's tables. Returns `None` if the tables must be
    /// recreated because their columns changed or another program wrote to them.
    #[must_use]
    pub fn load_checksums(&self, expansion: &Expansion) -> Option<Checksums> {
        let name = &expansion.name;
        let read_checksums = || -> rusqlite::Result<Option<Checksums>> {
            let c = self.connection();
            let (recorded_layout, rows, sums): (String, i64, String) = c.query_row(
                "SELECT layout, rows, checksums FROM hqdl_object WHERE name = ?1",
                [name],
                |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)),
            )?;
            let is_unmodified = || self.target.is_unmodified(self, expansion, rows);
            if recorded_layout != compute_layout_hash(expansion)
                || !is_unmodified().unwrap_or(false)
            {
                return Ok(None);
            }
            Ok(Checksums::from_json(&sums, rows))
        };
        read_checksums().ok().flatten()
    }

    /// Returns a warning about published rows that another program has written; `None` if there are
    /// no such rows.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the record of edits cannot be read.
    pub fn build_edit_warning(&self, expansion: &Expansion) -> Result<Option<String>, StoreError> {
        let name = &expansion.name;
        let read_edits = || -> rusqlite::Result<(u64, Option<String>)> {
            let c = self.connection();
            if !c.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'hqdl_edit'")?.exists([])? {
                return Ok((0, None));
            }
            let sql = "SELECT count(DISTINCT key), max(key) FROM hqdl_edit WHERE expansion = ?1";
            c.query_row(sql, [name], |r| Ok((r.get(0)?, r.get(1)?)))
        };
        let (rows, key) = read_edits().map_err(|e| self.to_store_error(&e))?;
        let key = key.unwrap_or_default();
        let verb = if rows == 1 { " was" } else { "s were" };
        Ok((rows > 0)
            .then(|| format!("{name}: {rows} published row{verb} edited by hand, such as ({key})")))
    }

    /// Returns the number of published rows of an expansion whose key is no longer in any source.
    #[must_use]
    pub fn count_orphans(
        &self,
        expansion: &Expansion,
        is_known: &mut dyn FnMut(&str) -> bool,
    ) -> u64 {
        let mut orphans = 0;
        let counted = self.target.for_each_key(self, &expansion.name, &mut |key| {
            orphans += u64::from(!is_known(key));
        });
        counted.map_or(0, |()| orphans)
    }
}

/// Returns a hash of the layout of an expansion's tables. If the hash changes, the tables are
/// recreated.
pub(crate) fn compute_layout_hash(expansion: &Expansion) -> String {
    let mut description =
        format!("v4 {} {:?} {:?};", expansion.name, expansion.key.names(), expansion.key_types);
    if !expansion.key_parts.is_empty() {
        description.push_str(&format!("{:?};", expansion.key_parts));
    }
    for column in &expansion.columns {
        description.push_str(&format!("{} {:?} {:?};", column.name, column.kind, column.many));
    }
    blake3::hash(description.as_bytes()).to_hex().as_str()[..32].to_owned()
}
