//! Targets into which hqdl publishes tables: files, servers and folders.
//!
//! A publication has one implementation ([`publish`](super::publish)): it writes the tables and the
//! provenance of their cells to a `SQLite` connection. A [`PublishTarget`] makes the tables
//! visible: for a `SQLite` file, the connection itself is the target; a server receives the rows
//! that differ; a folder receives files. A new target is one file that implements the two traits. A
//! target that hqdl also reads is opened in [`Database::open`], any other through an entry in
//! `WRITE_ONLY_OUTPUTS`.
//!
//! Every target promises:
//!
//! - **Complete tables**: a reader sees the old or the new version of a table, never an incomplete
//!   table. `SQLite` and `PostgreSQL` replace all tables of a publication at once; a folder
//!   replaces file after file.
//! - **Repair**: after an interrupted publication, [`PublishTarget::is_unmodified`] is true only
//!   for tables that match the bookkeeping. The next run publishes all other tables again.
//! - **Provenance**: the cells' states and origins are published with the values
//!   (`hqdl_cell`).
//! - **Ownership**: only objects that hqdl created are replaced or removed.
//! - **Early failure**: if the tables cannot be written, [`PublishTarget::check_writable`] fails
//!   before any request is paid for.

use std::fmt;
use std::path::Path;

use rusqlite::Connection;

use super::{Database, StoreError};
use hqdl_spec::{Expansion, Spec};

/// Opens an output, which need not exist.
pub type OpenOutput = fn(&Path) -> Result<Database, StoreError>;

/// Kind of outputs that hqdl writes but does not read.
#[derive(Debug)]
pub struct WriteOnlyOutput {
    /// Description for messages, with its article.
    pub noun: &'static str,
    /// Returns true if the path of an output, which need not exist, is of this kind.
    pub matches: fn(&Path) -> bool,
    /// Returns true if hqdl wrote the existing file or folder.
    pub is_written: fn(&Path) -> bool,
    /// `None` if this build does not support the kind.
    pub open: Option<OpenOutput>,
    /// If the output is a folder: returns true if hqdl writes files with this name into it.
    pub is_file_of_folder: Option<fn(&str) -> bool>,
    /// Where to find a build that supports the kind.
    pub build_hint: &'static str,
    /// How to read the tables.
    pub read_hint: &'static str,
}

impl WriteOnlyOutput {
    /// Opens an output, which need not exist.
    pub(crate) fn open(&'static self, path: &Path) -> Result<Database, StoreError> {
        self.open.ok_or_else(|| StoreError::UnsupportedOutput(path.to_owned(), self))?(path)
    }
}

/// How the rows of a publication reach a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowTransfer {
    /// The connection is the target. Rows that differ are updated in place.
    InPlace,
    /// The rows that differ are sent, so the connection contains only these rows, with the values
    /// as the source has them.
    Differences,
    /// All rows are written again.
    Everything,
}

/// Relation of a copy (`output`) to its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputState {
    /// The copy is up to date.
    Current,
    /// The copy is older than its database, and can be updated.
    Outdated,
    /// The copy must be recreated.
    Stale,
}

/// Object of a publication: its name and its type (`table` or `view`).
pub(crate) type PublishedObject = (String, String);

/// Target that contains the published tables of a [`Database`].
pub(crate) trait PublishTarget: fmt::Debug + Send + Sync {
    /// Returns how rows reach this target.
    fn row_transfer(&self) -> RowTransfer;

    /// Returns true if hqdl created the existing table or view.
    fn is_created_by_hqdl(&self, db: &Database, table: &str) -> bool;

    /// Returns true if all objects of an expansion exist, belong to hqdl, have `rows` rows, and
    /// were not written by another program.
    fn is_unmodified(
        &self,
        db: &Database,
        expansion: &Expansion,
        rows: i64,
    ) -> Result<bool, StoreError>;

    /// Visits the published keys of an expansion.
    fn for_each_key(
        &self,
        db: &Database,
        expansion: &str,
        visit: &mut dyn FnMut(&str),
    ) -> Result<(), StoreError>;

    /// Copies the records of one bucket, or of all buckets that are not in `known`, to the
    /// connection, unless they are already there.
    fn fetch_records(
        &self,
        _db: &Database,
        _expansion: &str,
        _bucket: Option<usize>,
        _known: &[usize],
    ) -> Result<(), StoreError> {
        Ok(())
    }

    /// Copies all published cells of an expansion to the connection, unless they are already there.
    fn fetch_all_cells(&self, _db: &Database, _expansion: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Copies the cells of at most 20 rows whose key begins with `key` to the connection, unless
    /// they are already there.
    fn fetch_cells(
        &self,
        _db: &Database,
        _expansion: &str,
        _key: &[String],
    ) -> Result<(), StoreError> {
        Ok(())
    }

    /// Checks that SQL over the connection can read the published tables.
    fn check_readable(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Compares a copy with its database. Fails if updating or recreating the copy would destroy
    /// other data.
    fn compare_with_source(
        &self,
        copy: &Database,
        _source: &Database,
    ) -> Result<OutputState, StoreError> {
        Err(StoreError::ForeignOutput(copy.path.clone()))
    }

    /// Gives a publication into this copy access to the copy's database, if the publication needs
    /// the database's own rows. Returns the fingerprint of the database that the publication must
    /// record; `None` if the copy keeps the recorded fingerprint.
    fn attach_source(
        &self,
        _copy: &Database,
        _source: &Database,
        _is_outdated: bool,
    ) -> Result<Option<String>, StoreError> {
        Ok(None)
    }

    /// Updates the source's own rows in a copy, in the current transaction, if the copy contains
    /// such rows.
    fn refresh_rows(&self, _copy: &Database) -> Result<(), StoreError> {
        Ok(())
    }

    /// Checks that tables can be written. Changes no table.
    fn check_writable(&self, db: &Database) -> Result<(), StoreError>;

    /// Checks that no object of the user has the same name as an object of this spec. Targets whose
    /// names are part of the source's catalog need no such check, because the spec's own check
    /// covers them.
    fn check_names(&self, _db: &Database, _spec: &Spec) -> Result<(), StoreError> {
        Ok(())
    }

    /// Begins a publication of a spec, and excludes other publishers until it ends. Fails if the
    /// target belongs to another spec.
    fn begin<'t>(
        &'t self,
        db: &'t Database,
        spec: &Spec,
    ) -> Result<Box<dyn TargetTransaction + 't>, StoreError>;

    /// Removes the given objects of a spec and their bookkeeping. If `is_last` is true, removes all
    /// of hqdl's objects. Returns true if nothing of the target is left.
    fn clean(
        &self,
        db: &Database,
        source: &Database,
        spec: &Spec,
        objects: &[PublishedObject],
        is_last: bool,
    ) -> Result<bool, StoreError>;
}

/// A publication into a target, which leaves the target unchanged unless it is committed. `local`
/// is the connection to which the publication wrote its tables.
pub(crate) trait TargetTransaction {
    /// Removes the tables of an expansion that is no longer in the spec.
    fn drop_expansion(&self, _expansion: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Publishes the tables of an expansion, whose bookkeeping is complete. `is_new` is true if the
    /// connection has all of the expansion's rows.
    fn publish_expansion(
        &self,
        expansion: &Expansion,
        is_new: bool,
        local: &Connection,
    ) -> Result<(), StoreError>;

    /// Publishes the rows of a source joined with its expansions. Returns a warning if the view's
    /// name is already in use.
    fn publish_view(
        &self,
        view: &str,
        joined: &[(&Expansion, usize)],
        local: &Connection,
    ) -> Result<Option<String>, StoreError>;

    /// Makes the publication visible. The caller then commits the local transaction.
    fn commit(self: Box<Self>, local: &Connection) -> Result<(), StoreError>;
}
