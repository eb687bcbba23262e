//! What a published expansion was made from. While that has not changed, its
//! table says what the facts say, wherever it has a value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::versions::Sums;
use super::{Database, StoreError};
use hqdl_spec::overrides::Overrides;
use hqdl_spec::{Catalog, Column, Expansion, Reuse, Spec};
use hqdl_values::sql;

/// What decides the values of a published table, beside the answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedVersion {
    /// The journal that its values are from.
    pub journal: String,
    /// The last line of the journal that it shows.
    pub head: i64,
    /// Whose answers.
    model: String,
    any_model: bool,
    /// What people said.
    overrides: String,
    key: Vec<String>,
    /// What each column means, with its list.
    columns: BTreeMap<String, String>,
}

impl PublishedVersion {
    /// What would decide the values of an expansion that is published now.
    #[must_use]
    pub fn now(
        spec: &Spec,
        expansion: usize,
        model: &str,
        overrides: &Overrides,
        (journal, head): (String, i64),
    ) -> Self {
        let of = &spec.expansions[expansion];
        Self {
            journal,
            head,
            model: model.to_owned(),
            any_model: spec.model.reuse == Reuse::AnyModel,
            overrides: overrides.digest(expansion),
            key: of.key.names().to_vec(),
            columns: of.columns.iter().map(|c| (c.name.clone(), meaning(c))).collect(),
        }
    }

    /// Whether a table that stands as `self` shows what one published `now`
    /// would, as far as its columns go; answers that came since are not looked
    /// at.
    #[must_use]
    pub fn holds(&self, now: &Self) -> bool {
        self.journal == now.journal
            && self.model == now.model
            && self.any_model == now.any_model
            && self.overrides == now.overrides
            && self.key == now.key
    }

    /// Whether a column of the table still means the same.
    #[must_use]
    pub fn means(&self, column: &Column) -> bool {
        self.columns.get(&column.name).is_some_and(|kept| *kept == meaning(column))
    }
}

fn meaning(column: &Column) -> String {
    let list = column.values.as_ref().map_or("", |v| v.hash.as_str());
    let unknown = column.unknown.as_ref().map_or(String::new(), |words| format!(" {words:?}"));
    let unify = if column.unify { " unify" } else { "" };
    let aliases = Some(&column.aliases).filter(|a| !a.is_empty());
    let aliases = aliases.map_or(String::new(), |a| format!(" {a:?}"));
    let many = column.many.is_some();
    format!("{} {:?} {list} {many}{unknown}{unify}{aliases}", column.fingerprint, column.kind)
}

impl Database {
    /// What an expansion of a spec was published from, when its table stands here
    /// and hqdl knows.
    #[must_use]
    pub fn standing(&self, spec: &Spec, expansion: &str) -> Option<PublishedVersion> {
        if !self.made_by_hqdl(expansion) {
            return None;
        }
        let text: String = self
            .connection()
            .query_row(
                "SELECT standing FROM hqdl_expansion WHERE name = ?1 AND spec = ?2",
                [expansion, &spec.full_path()],
                |row| row.get(0),
            )
            .ok()?;
        serde_json::from_str(&text).ok()
    }

    /// What stands here of an expansion, summed up; `None` when that cannot be
    /// told, and it has to be made again: other tables, or written by others.
    #[must_use]
    pub fn sums(&self, expansion: &Expansion) -> Option<Sums> {
        let name = &expansion.name;
        let sums = || -> rusqlite::Result<Option<Sums>> {
            let c = self.connection();
            let (kept, rows): (String, i64) = c.query_row(
                "SELECT digest, rows FROM hqdl_expansion WHERE name = ?1",
                [name],
                |r| Ok((r.get(0)?, r.get(1)?)),
            )?;
            let whole = match self.server() {
                Some(server) => server.is_whole(expansion, rows).unwrap_or(false),
                None => self.is_whole(expansion, rows)?,
            };
            if kept != layout(expansion) || !whole {
                return Ok(None);
            }
            let mut sums = Sums::of(rows);
            let mut all = c.prepare("SELECT bucket, sum FROM hqdl_bucket WHERE expansion = ?1")?;
            let mut rows = all.query([name])?;
            while let Some(row) = rows.next()? {
                sums.count(row.get(0)?, row.get(1)?, 0);
            }
            Ok(Some(sums))
        };
        sums().ok().flatten()
    }

    /// What to tell of published rows that somebody else has written; `None` when
    /// there are none.
    ///
    /// # Errors
    /// [`StoreError`] from `SQLite`.
    pub fn edited(&self, expansion: &Expansion) -> Result<Option<String>, StoreError> {
        let name = &expansion.name;
        let read = || -> rusqlite::Result<(u64, Option<String>)> {
            let c = self.connection();
            if !c.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'hqdl_edit'")?.exists([])? {
                return Ok((0, None));
            }
            let sql = "SELECT count(DISTINCT key), max(key) FROM hqdl_edit WHERE expansion = ?1";
            c.query_row(sql, [name], |r| Ok((r.get(0)?, r.get(1)?)))
        };
        let (rows, key) = read().map_err(|e| self.error(&e))?;
        let key = key.unwrap_or_default();
        let s = if rows == 1 { " was" } else { "s were" };
        Ok((rows > 0)
            .then(|| format!("{name}: {rows} published row{s} edited by hand, such as ({key})")))
    }

    /// Whether all objects of an expansion are here, are ours, and were written by
    /// nobody else.
    fn is_whole(&self, expansion: &Expansion, rows: i64) -> rusqlite::Result<bool> {
        let c = self.connection();
        let name = &expansion.name;
        let gone: bool = c.prepare(
            "SELECT 1 FROM hqdl_object AS o WHERE (expansion = ?1 COLLATE NOCASE OR type = 'view')
             AND type IN ('table', 'view', 'index', 'trigger') AND NOT EXISTS (
               SELECT 1 FROM sqlite_schema AS s WHERE s.name = o.name COLLATE NOCASE AND s.type = o.type)",
        )?
        .exists([name])?;
        let edited = c.prepare("SELECT 1 FROM hqdl_edit WHERE expansion = ?1")?.exists([name])?;
        let tables = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
        let ours = std::iter::once(name).chain(tables).all(|t| self.made_by_hqdl(t));
        let count = format!("SELECT count(*) FROM {}", sql::name(name));
        Ok(!gone && !edited && ours && c.query_row(&count, [], |r| r.get::<_, i64>(0))? == rows)
    }

    /// Published rows of an expansion whose key is in no source any more.
    #[must_use]
    pub fn orphans(&self, expansion: &Expansion, known: &mut dyn FnMut(&str) -> bool) -> u64 {
        if let Some(server) = self.server() {
            let mut orphans = 0;
            let counted = server.each_key(&expansion.name, &mut |key| {
                orphans += u64::from(!known(key));
            });
            return counted.map_or(0, |()| orphans);
        }
        let mut count = || -> rusqlite::Result<u64> {
            let mut statement =
                self.connection().prepare("SELECT key FROM hqdl_record WHERE expansion = ?1")?;
            let mut rows = statement.query([&expansion.name])?;
            let mut orphans = 0;
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                orphans += u64::from(!known(&key));
            }
            Ok(orphans)
        };
        count().unwrap_or(0)
    }
}

/// What the tables of an expansion look like: where that has changed, they are
/// made anew.
pub(crate) fn layout(expansion: &Expansion) -> String {
    let mut layout =
        format!("v4 {} {:?} {:?};", expansion.name, expansion.key.names(), expansion.key_types);
    if !expansion.key_parts.is_empty() {
        layout.push_str(&format!("{:?};", expansion.key_parts));
    }
    for column in &expansion.columns {
        layout.push_str(&format!("{} {:?} {:?};", column.name, column.kind, column.many));
    }
    blake3::hash(layout.as_bytes()).to_hex().as_str()[..32].to_owned()
}
