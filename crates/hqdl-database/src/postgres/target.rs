//! A schema on a server as target: a publication sends the rows that differ, in one transaction.

use rusqlite::Connection;

use super::DatabaseServer;
use super::publication::ServerPublication;
use crate::target::{PublishTarget, PublishedObject, RowTransfer, TargetTransaction};
use crate::{Database, StoreError};
use hqdl_spec::{Expansion, Spec};

impl PublishTarget for DatabaseServer {
    fn row_transfer(&self) -> RowTransfer {
        RowTransfer::Differences
    }

    fn is_created_by_hqdl(&self, _db: &Database, table: &str) -> bool {
        self.is_created_by_hqdl(table).unwrap_or(false)
    }

    fn is_unmodified(
        &self,
        _db: &Database,
        expansion: &Expansion,
        rows: i64,
    ) -> Result<bool, StoreError> {
        self.is_unmodified(expansion, rows)
    }

    fn for_each_key(
        &self,
        _db: &Database,
        expansion: &str,
        visit: &mut dyn FnMut(&str),
    ) -> Result<(), StoreError> {
        self.for_each_key(expansion, visit)
    }

    fn fetch_records(
        &self,
        db: &Database,
        expansion: &str,
        bucket: Option<usize>,
        known: &[usize],
    ) -> Result<(), StoreError> {
        let to_i32 = |bucket: &usize| i32::try_from(*bucket).unwrap_or(i32::MAX);
        let known: Vec<i32> = known.iter().map(to_i32).collect();
        self.fetch_records(expansion, bucket.as_ref().map(to_i32), &known, db.connection())
    }

    fn fetch_all_cells(&self, db: &Database, expansion: &str) -> Result<(), StoreError> {
        self.fetch_all_records(expansion, db.connection())
    }

    fn fetch_cells(
        &self,
        db: &Database,
        expansion: &str,
        key: &[String],
    ) -> Result<(), StoreError> {
        self.fetch_cells(expansion, key, db.connection())
    }

    fn check_writable(&self, _db: &Database) -> Result<(), StoreError> {
        self.check_publish_rights()
    }

    fn begin<'t>(
        &'t self,
        db: &'t Database,
        _spec: &Spec,
    ) -> Result<Box<dyn TargetTransaction + 't>, StoreError> {
        let publication = self.begin_publishing()?;
        // Another process may have published since the database was opened.
        self.read_bookkeeping(db.connection())?;
        Ok(Box::new(publication))
    }

    fn clean(
        &self,
        _db: &Database,
        _source: &Database,
        spec: &Spec,
        objects: &[PublishedObject],
        is_last: bool,
    ) -> Result<bool, StoreError> {
        self.clean_schema(&spec.full_path(), objects, is_last)?;
        Ok(false)
    }
}

impl TargetTransaction for ServerPublication<'_> {
    fn drop_expansion(&self, expansion: &str) -> Result<(), StoreError> {
        self.drop_expansion(expansion)
    }

    fn publish_expansion(
        &self,
        expansion: &Expansion,
        is_new: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        self.send_tables(expansion, is_new, local)
    }

    fn publish_view(
        &self,
        view: &str,
        joined: &[(&Expansion, usize)],
        _local: &Connection,
    ) -> Result<Option<String>, StoreError> {
        self.create_view(view, joined)
    }

    fn commit(self: Box<Self>, _local: &Connection) -> Result<(), StoreError> {
        (*self).commit()
    }
}
