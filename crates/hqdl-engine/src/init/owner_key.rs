//! Finds the owner of a table's rows if the owner is part of their identity, such as the artist of
//! an album. A model can rarely identify an album by its title alone.

use super::EntityTable;
use super::sampling::{self, DistinctRows, SAMPLE_ROWS};
use hqdl_database::Database;
use hqdl_values::sql;

/// A table's key extended by the name of the owner.
#[derive(Debug)]
pub struct OwnerKey {
    /// SELECT statement that returns the table's columns and the owner's name.
    pub select: String,
    /// Columns of the extended key.
    pub key: Vec<String>,
    /// Numbers of rows and of distinct keys in a sample.
    pub sample: DistinctRows,
}

impl OwnerKey {
    /// Finds the owner of an entity table's rows: the first foreign key to another entity table
    /// with a single name column as its key.
    pub fn find_owner(db: &Database, entity: &EntityTable, all: &[EntityTable]) -> Option<Self> {
        let table = &entity.table;
        if !entity.key.has_name_column(table) {
            return None;
        }
        let (foreign, owner) = table.foreign_keys.iter().find_map(|f| {
            let owner = all.iter().find(|o| o.table.name.eq_ignore_ascii_case(&f.table))?;
            // If the names in this table are unique and the referenced table has far fewer rows,
            // the referenced rows are categories, not owners.
            let is_category = entity.key.is_unique()
                && entity.key.columns.len() == 1
                && owner.table.rows * 3 < table.rows;
            let is_owner = owner.table.name != table.name && !is_category;
            (is_owner && owner.key.columns.len() == 1 && owner.key.has_name_column(&owner.table))
                .then_some((f, owner))
        })?;
        let target_column = foreign.to_column.clone().or_else(|| {
            let mut primary = owner.table.columns.iter().filter(|c| c.is_primary_key);
            primary.next().filter(|_| primary.next().is_none()).map(|c| c.name.clone())
        })?;
        let name = owner.key.column_names(&owner.table).first().copied()?;
        let is_taken =
            |alias: &str| table.columns.iter().any(|c| c.name.eq_ignore_ascii_case(alias));
        let base_alias = owner.table.words.join("_");
        let alias = [base_alias.clone(), format!("{base_alias}_name"), format!("of_{base_alias}")]
            .into_iter()
            .find(|alias| !alias.is_empty() && !is_taken(alias))?;
        let select = format!(
            "SELECT t.*, o.{} AS {} FROM {} AS t LEFT JOIN {} AS o ON o.{} = t.{}",
            sql::quote_name(name),
            sql::quote_name(&alias),
            sql::quote_name(&table.name),
            sql::quote_name(&owner.table.name),
            sql::quote_name(&target_column),
            sql::quote_name(&foreign.from_column),
        );
        let mut owner_key = Self { select, key: Vec::new(), sample: DistinctRows::default() };
        let names = entity.key.column_names(table);
        // Drop the other key columns if the owner's name replaces them.
        for kept_names in [&names[..1], &names[..]] {
            owner_key.key =
                kept_names.iter().map(|n| (*n).to_owned()).chain([alias.clone()]).collect();
            let key: Vec<&str> = owner_key.key.iter().map(String::as_str).collect();
            let subquery = format!("({})", owner_key.select);
            owner_key.sample =
                sampling::count_distinct_rows_in(db, &subquery, &key, SAMPLE_ROWS).ok()?;
            if owner_key.sample.count_repeats() <= entity.key.sample.count_repeats() {
                break;
            }
        }
        Some(owner_key)
    }
}
