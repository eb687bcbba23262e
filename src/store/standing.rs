//! What a published expansion was made from. While that has not changed, its
//! table says what the facts say, wherever it has a value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Database;
use crate::overrides::Overrides;
use crate::spec::{Catalog, Column, Reuse, Spec};

/// What decides the values of a published table, beside the answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
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

impl Standing {
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
    format!("{} {:?} {list} {}{unknown}", column.fingerprint, column.kind, column.many.is_some())
}

impl Database {
    /// What an expansion of a spec was published from, when its table stands here
    /// and hqdl knows.
    #[must_use]
    pub fn standing(&self, spec: &Spec, expansion: &str) -> Option<Standing> {
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
}
