//! Finds the owner of a table's rows if it is part of their identity, such as an album's artist. A
//! title alone is rarely enough for a model.

use super::EntityTable;
use super::survey::{self, DistinctRows, SAMPLE_ROWS};
use hqdl_database::Database;
use hqdl_values::sql;

/// A table's key extended by the name of the owner.
#[derive(Debug)]
pub struct Owned {
    /// SELECT of the table with the owner's name as a column.
    pub select: String,
    /// Columns of the extended key.
    pub key: Vec<String>,
    /// Number of distinct keys in a sample of the rows.
    pub found: DistinctRows,
}

impl Owned {
    /// Finds the owner of an entity table's rows: the first foreign key to another entity table
    /// with a single name column as its key.
    pub fn find(db: &Database, entity: &EntityTable, all: &[EntityTable]) -> Option<Self> {
        let table = &entity.table;
        if !entity.key.is_named(table) {
            return None;
        }
        let (foreign, owner) = table.foreign.iter().find_map(|f| {
            let owner = all.iter().find(|o| o.table.name.eq_ignore_ascii_case(&f.table))?;
            // If a few rows classify many uniquely named rows, they are categories, not owners.
            let class = entity.key.is_unique()
                && entity.key.columns.len() == 1
                && owner.table.rows * 3 < table.rows;
            let other = owner.table.name != table.name && !class;
            (other && owner.key.columns.len() == 1 && owner.key.is_named(&owner.table))
                .then_some((f, owner))
        })?;
        let to = foreign.to.clone().or_else(|| {
            let mut primary = owner.table.columns.iter().filter(|c| c.primary);
            primary.next().filter(|_| primary.next().is_none()).map(|c| c.name.clone())
        })?;
        let name = owner.key.names(&owner.table).first().copied()?;
        let is_taken = |wish: &str| table.columns.iter().any(|c| c.name.eq_ignore_ascii_case(wish));
        let wish = owner.table.words.join("_");
        let alias = [wish.clone(), format!("{wish}_name"), format!("of_{wish}")]
            .into_iter()
            .find(|wish| !wish.is_empty() && !is_taken(wish))?;
        let select = format!(
            "SELECT t.*, o.{} AS {} FROM {} AS t LEFT JOIN {} AS o ON o.{} = t.{}",
            sql::name(name),
            sql::name(&alias),
            sql::name(&table.name),
            sql::name(&owner.table.name),
            sql::name(&to),
            sql::name(&foreign.from),
        );
        let mut owned = Self { select, key: Vec::new(), found: DistinctRows::default() };
        let names = entity.key.names(table);
        // Drop the other key columns if the owner's name replaces them.
        for own in [&names[..1], &names[..]] {
            owned.key = own.iter().map(|n| (*n).to_owned()).chain([alias.clone()]).collect();
            let key: Vec<&str> = owned.key.iter().map(String::as_str).collect();
            let from = format!("({})", owned.select);
            owned.found = survey::distinct_of(db, &from, &key, SAMPLE_ROWS).ok()?;
            if owned.found.repeats() <= entity.key.found.repeats() {
                break;
            }
        }
        Some(owned)
    }
}
