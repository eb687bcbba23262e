//! Folders of Parquet files as targets: `output = "expanded/"`.
//!
//! The folder has a file for each table of an expansion, a file for each source joined with its
//! expansions (`SOURCE_expanded.parquet`), and the provenance of all cells (`hqdl_cell.parquet`,
//! and `hqdl_evidence.parquet` if cells have evidence). A publication writes all rows to a
//! temporary database. It then writes each changed table to a new file, which replaces the old
//! file. The manifest (`hqdl.json`) is replaced last. It contains hqdl's bookkeeping, and the size
//! and a hash of each file's footer, so that a file is recognized as current without reading its
//! rows. If a publication is interrupted, or another program writes a file, the footers differ from
//! the manifest, and the next run publishes again.
//!
//! Files that hqdl wrote are recognized by their metadata, not by their names. Other files are
//! never replaced or removed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::reader::{FileReader, SerializedFileReader};
use rusqlite::types::Value as Sqlite;
use rusqlite::{Connection, params_from_iter};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::output::{
    COPY_SOURCE_KEY, FOLDER_MANIFEST, compute_file_fingerprint, create_locked_file,
    find_other_source, read_copy_source, temporary_path,
};
use super::parquet_file::{ColumnType, ParquetWriter, StorageClasses, program_name};
use super::target::{OutputState, PublishTarget, PublishedObject, RowTransfer, TargetTransaction};
use super::{BUSY_TIMEOUT, Database, PARQUET_FOLDER, StoreError, migrate, refresh};
use hqdl_spec::{Catalog, Expansion, SourceRows, Spec};
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Version of the manifest and of the files' layout.
const FORMAT: u32 = 1;
/// Key of the metadata that marks a file as hqdl's. Its value is the format's version.
const MARK: &str = "hqdl.format";

/// Opens a folder, which need not exist. The connection has the bookkeeping, but no rows.
pub(super) fn open_folder(path: &Path) -> Result<Database, StoreError> {
    let error = |e: rusqlite::Error| StoreError::from_sqlite(path, &e);
    let manifest = Manifest::read(path)?;
    // An empty path opens a private temporary database.
    let connection = Connection::open("").map_err(error)?;
    if let Some(manifest) = &manifest {
        migrate::migrate_database(&connection)
            .and_then(|()| manifest.insert_objects(&connection))
            .map_err(error)?;
    }
    let target = ParquetFolder { path: path.to_owned(), manifest: manifest.unwrap_or_default() };
    Ok(Database {
        path: path.to_owned(),
        connection,
        file_identity: None,
        server: None,
        target: Arc::new(target),
    })
}

/// Content of `hqdl.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Manifest {
    /// Version of the format.
    format: u32,
    /// Program that wrote the folder.
    written_by: String,
    /// Files by their names.
    files: BTreeMap<String, ManifestFile>,
    /// Rows of `hqdl_object`: the published tables, with their inputs and checksums.
    objects: Vec<BTreeMap<String, Json>>,
}

/// A file of the folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct ManifestFile {
    /// Name of the table.
    table: String,
    rows: u64,
    bytes: u64,
    /// Hash of the file's footer.
    footer: String,
    /// Digest of everything that determines the rows.
    content: String,
}

impl Manifest {
    /// Reads the manifest of a folder; `None` if there is none.
    fn read(folder: &Path) -> Result<Option<Self>, StoreError> {
        let path = folder.join(FOLDER_MANIFEST);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => {
                return Ok(None);
            }
            Err(error) => return Err(StoreError::File { path, error }),
        };
        match serde_json::from_slice::<Self>(&text) {
            Ok(manifest) if manifest.format <= FORMAT => Ok(Some(manifest)),
            Ok(manifest) => Err(StoreError::NewerFolder { path, format: manifest.format }),
            Err(_) => Err(StoreError::ForeignOutput(path)),
        }
    }

    fn insert_objects(&self, connection: &Connection) -> rusqlite::Result<()> {
        for object in &self.objects {
            let names = sql::quote_names("", object.keys());
            let marks = vec!["?"; object.len()].join(", ");
            let insert = format!("INSERT OR REPLACE INTO hqdl_object ({names}) VALUES ({marks})");
            let values = object.values().map(|value| match value {
                Json::String(text) => Sqlite::Text(text.clone()),
                Json::Number(number) => number.as_i64().map_or(Sqlite::Null, Sqlite::Integer),
                _ => Sqlite::Null,
            });
            connection.execute(&insert, params_from_iter(values))?;
        }
        Ok(())
    }

    /// Returns the name and entry of a table's file.
    fn find_file(&self, table: &str) -> Option<(&String, &ManifestFile)> {
        self.files.iter().find(|(_, file)| file.table.eq_ignore_ascii_case(table))
    }

    /// Returns the specs whose tables the folder has.
    fn specs(&self) -> impl Iterator<Item = &str> {
        self.objects.iter().filter_map(|object| object.get("spec")?.as_str())
    }
}

/// A folder of Parquet files.
#[derive(Debug)]
struct ParquetFolder {
    path: PathBuf,
    /// The manifest as it was when the folder was opened.
    manifest: Manifest,
}

impl ParquetFolder {
    /// Returns true if a file matches its entry in the manifest.
    fn is_intact(&self, name: &str, file: &ManifestFile) -> bool {
        read_footer(&self.path.join(name))
            .is_ok_and(|(bytes, footer)| bytes == file.bytes && footer == file.footer)
    }

    /// Returns the error for SQL and look-ups, which need a database.
    fn unreadable_error(&self) -> StoreError {
        StoreError::UnreadableOutput(self.path.clone(), &PARQUET_FOLDER)
    }

    /// Locks the folder until the result is dropped; `None` if the system cannot lock folders.
    fn lock(&self) -> Result<Option<File>, StoreError> {
        let Ok(folder) = File::open(&self.path) else { return Ok(None) };
        let started = Instant::now();
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(Some(folder)),
                Err(std::fs::TryLockError::Error(_)) => return Ok(None),
                Err(_) if started.elapsed() > BUSY_TIMEOUT => {
                    return Err(StoreError::Locked(self.path.clone()));
                }
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
            }
        }
    }
}

impl PublishTarget for ParquetFolder {
    fn row_transfer(&self) -> RowTransfer {
        RowTransfer::Everything
    }

    fn is_created_by_hqdl(&self, _db: &Database, table: &str) -> bool {
        self.manifest
            .find_file(table)
            .is_some_and(|(name, _)| is_written_by_hqdl(&self.path.join(name)))
    }

    fn is_unmodified(
        &self,
        _db: &Database,
        expansion: &Expansion,
        _rows: i64,
    ) -> Result<bool, StoreError> {
        let mut files = self.manifest.files.iter();
        Ok(self.manifest.find_file(&expansion.name).is_some()
            && files.all(|(name, file)| self.is_intact(name, file)))
    }

    /// Visits no key: every publication writes all rows, so every published key is in a source.
    fn for_each_key(
        &self,
        _db: &Database,
        _expansion: &str,
        _visit: &mut dyn FnMut(&str),
    ) -> Result<(), StoreError> {
        Ok(())
    }

    fn fetch_all_cells(&self, _db: &Database, _expansion: &str) -> Result<(), StoreError> {
        Err(self.unreadable_error())
    }

    fn fetch_cells(
        &self,
        _db: &Database,
        _expansion: &str,
        _key: &[String],
    ) -> Result<(), StoreError> {
        Err(self.unreadable_error())
    }

    fn check_readable(&self) -> Result<(), StoreError> {
        Err(self.unreadable_error())
    }

    fn compare_with_source(
        &self,
        copy: &Database,
        source: &Database,
    ) -> Result<OutputState, StoreError> {
        let Some(recorded) = read_copy_source(copy)? else { return Ok(OutputState::Outdated) };
        let current = compute_file_fingerprint(&source.path, &self.path)?;
        if recorded == current {
            return Ok(OutputState::Current);
        }
        match find_other_source(&self.path, &recorded, &current) {
            Some(of) => Err(StoreError::OtherCopy { path: self.path.clone(), of }),
            None => Ok(OutputState::Outdated),
        }
    }

    fn attach_source(
        &self,
        copy: &Database,
        source: &Database,
        _is_outdated: bool,
    ) -> Result<Option<String>, StoreError> {
        let stamp = compute_file_fingerprint(&source.path, &self.path)?;
        // Migrations drop views by name, and the source can have views with the same names.
        migrate::migrate_database(copy.connection()).map_err(|e| copy.to_store_error(&e))?;
        refresh::attach_source(copy, source)?;
        Ok(Some(stamp))
    }

    fn check_writable(&self, _db: &Database) -> Result<(), StoreError> {
        let file = |error| StoreError::File { path: self.path.clone(), error };
        std::fs::create_dir_all(&self.path).map_err(file)?;
        let temporary = temporary_path(&self.path.join(FOLDER_MANIFEST));
        File::create(&temporary).map_err(file)?;
        std::fs::remove_file(&temporary).map_err(file)
    }

    fn check_names(&self, _db: &Database, spec: &Spec) -> Result<(), StoreError> {
        self.check_owner(spec)?;
        let list_tables = |e: &Expansion| {
            e.columns
                .iter()
                .filter_map(|c| Some(c.many.as_ref()?.table.clone()))
                .collect::<Vec<_>>()
        };
        let tables =
            spec.expansions.iter().flat_map(|e| [vec![e.name.clone()], list_tables(e)].concat());
        let own = ["hqdl_cell", "hqdl_evidence"].map(str::to_owned);
        tables.chain(own).try_for_each(|table| self.check_replaceable(&format_file_name(&table)))
    }

    fn begin<'t>(
        &'t self,
        db: &'t Database,
        spec: &Spec,
    ) -> Result<Box<dyn TargetTransaction + 't>, StoreError> {
        let lock = self.lock()?;
        // Another process may have published since the folder was opened.
        let manifest = Manifest::read(&self.path)?.unwrap_or_default();
        let folder = Self { path: self.path.clone(), manifest };
        // Files that are not part of this publication are removed.
        folder.check_owner(spec)?;
        Ok(Box::new(FolderPublication { folder, db, _lock: lock, files: RefCell::default() }))
    }

    fn clean(
        &self,
        _db: &Database,
        _source: &Database,
        _spec: &Spec,
        _objects: &[PublishedObject],
        is_last: bool,
    ) -> Result<bool, StoreError> {
        if !is_last {
            return Ok(false);
        }
        let _lock = self.lock()?;
        for name in self.manifest.files.keys().map(|name| self.path.join(name)) {
            if is_written_by_hqdl(&name) {
                remove_file(&name)?;
            }
        }
        remove_file(&self.path.join(FOLDER_MANIFEST))?;
        // This fails if the folder contains other files, which are kept.
        Ok(std::fs::remove_dir(&self.path).is_ok())
    }
}

impl ParquetFolder {
    /// Fails if another spec, which still exists, publishes into the folder.
    fn check_owner(&self, spec: &Spec) -> Result<(), StoreError> {
        let spec_path = spec.full_path();
        match self.manifest.specs().find(|s| *s != spec_path && Path::new(s).exists()) {
            Some(of) => Err(StoreError::OtherSpec { path: self.path.clone(), of: of.to_owned() }),
            None => Ok(()),
        }
    }

    /// Fails if a file of this name exists that hqdl did not write.
    fn check_replaceable(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path.join(name);
        let is_foreign = path.symlink_metadata().is_ok() && !is_written_by_hqdl(&path);
        if is_foreign { Err(StoreError::ForeignOutput(path)) } else { Ok(()) }
    }
}

/// A publication into a folder. Files are written beside the old ones, and replace them on commit.
struct FolderPublication<'t> {
    /// The folder, with its manifest as it was when the publication began.
    folder: ParquetFolder,
    db: &'t Database,
    /// Lock that excludes other publishers.
    _lock: Option<File>,
    files: RefCell<BTreeMap<String, PublishedFile>>,
}

/// A file of a publication.
struct PublishedFile {
    entry: ManifestFile,
    /// Temporary path of a new file, which is locked until it is renamed; `None` if the existing
    /// file is current.
    temporary: Option<(PathBuf, File)>,
}

impl TargetTransaction for FolderPublication<'_> {
    fn publish_expansion(
        &self,
        expansion: &Expansion,
        _is_new: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let content = self.compute_content_digest(&expansion.name, local)?;
        let keys: Vec<(&String, ColumnType)> = expansion
            .key
            .names()
            .iter()
            .zip(&expansion.key_types)
            .map(|(name, declared)| (name, ColumnType::from_declared(declared.as_deref())))
            .collect();
        let single = expansion.columns.iter().filter(|c| c.many.is_none());
        let columns = single.map(|c| (&c.name, ColumnType::from_kind(c.kind)));
        let mut tables = vec![(&expansion.name, columns.collect::<Vec<_>>())];
        for column in &expansion.columns {
            let Some(many) = &column.many else { continue };
            tables.push((&many.table, vec![(&many.column, ColumnType::from_kind(column.kind))]));
        }
        for (table, columns) in tables {
            let columns = [keys.clone(), columns].concat();
            let names = sql::quote_names("", columns.iter().map(|(name, _)| *name));
            let select = format!("SELECT {names} FROM {}", sql::quote_name(table));
            let types: Vec<ColumnType> = columns.iter().map(|(_, declared)| *declared).collect();
            self.write_table(table, &content, &select, Some(&types), local)?;
        }
        Ok(())
    }

    fn publish_view(
        &self,
        view: &str,
        joined: &[(&Expansion, usize)],
        local: &Connection,
    ) -> Result<Option<String>, StoreError> {
        if self.folder.check_replaceable(&format_file_name(view)).is_err() {
            return Ok(Some(format!(
                "the folder has a file `{}` that hqdl did not make, so hqdl does not write it",
                format_file_name(view)
            )));
        }
        let select = self.db.build_expanded_select(joined, None);
        let mut content = format!("{} {:?}", select.sql, read_copy_source(self.db)?);
        for (expansion, _) in joined {
            content.push_str(&self.compute_content_digest(&expansion.name, local)?);
        }
        let kinds = select.columns.iter().filter_map(|(_, e, c)| joined.get(*e)?.0.columns.get(*c));
        let kinds: Vec<ColumnType> = kinds.map(|c| ColumnType::from_kind(c.kind)).collect();
        let count = local.prepare(&select.sql).map(|statement| statement.column_count());
        let count = count.map_err(|e| self.db.to_store_error(&e))?;
        let source_columns = joined.first().and_then(|(e, n)| match &e.sources.get(*n)?.rows {
            SourceRows::Table(table) => self.db.table_columns(table),
            SourceRows::Select(_) => None,
        });
        let mut types: Vec<ColumnType> = source_columns
            .unwrap_or_default()
            .iter()
            .map(|(_, declared)| ColumnType::from_declared(declared.as_deref()))
            .collect();
        types.resize(count.saturating_sub(kinds.len()), ColumnType::Text);
        types.extend(kinds);
        self.write_table(
            view,
            &hash_content(content.as_bytes()),
            &select.sql,
            Some(&types),
            local,
        )?;
        let insert = "INSERT OR REPLACE INTO hqdl_object (name, type) VALUES (?1, 'view')";
        local.execute(insert, [view]).map_err(|e| self.db.to_store_error(&e))?;
        Ok(None)
    }

    fn commit(mut self: Box<Self>, local: &Connection) -> Result<(), StoreError> {
        self.write_provenance(local)?;
        let objects = self.read_objects(local).map_err(|e| self.db.to_store_error(&e))?;
        let mut files = BTreeMap::new();
        for (name, file) in self.files.get_mut() {
            if let Some((temporary, _)) = &file.temporary {
                let path = self.folder.path.join(name);
                std::fs::rename(temporary, &path)
                    .map_err(|error| StoreError::File { path, error })?;
                file.temporary = None;
            }
            files.insert(name.clone(), file.entry.clone());
        }
        for name in self.folder.manifest.files.keys().filter(|name| !files.contains_key(*name)) {
            let path = self.folder.path.join(name);
            if is_written_by_hqdl(&path) {
                remove_file(&path)?;
            }
        }
        let manifest = Manifest { format: FORMAT, written_by: program_name(), files, objects };
        self.write_manifest(&manifest)
    }
}

impl Drop for FolderPublication<'_> {
    fn drop(&mut self) {
        for (temporary, _) in self.files.get_mut().values().filter_map(|f| f.temporary.as_ref()) {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

impl FolderPublication<'_> {
    /// Returns a digest of what determines the rows of an expansion's tables: their layout, the
    /// versions of their rows, and the journal that numbers their completions.
    fn compute_content_digest(
        &self,
        expansion: &str,
        local: &Connection,
    ) -> Result<String, StoreError> {
        let sql = "SELECT json_array(layout, checksums, inputs ->> 'journal') FROM hqdl_object
                   WHERE name = ?1";
        let content: rusqlite::Result<String> = local.query_row(sql, [expansion], |r| r.get(0));
        Ok(hash_content(content.map_err(|e| self.db.to_store_error(&e))?.as_bytes()))
    }

    /// Writes the provenance of all cells.
    fn write_provenance(&self, local: &Connection) -> Result<(), StoreError> {
        let error = |e: rusqlite::Error| self.db.to_store_error(&e);
        let names = "SELECT name FROM hqdl_object WHERE spec IS NOT NULL ORDER BY name";
        let read_names = || local.prepare(names)?.query_map([], |r| r.get(0))?.collect();
        let names: rusqlite::Result<Vec<String>> = read_names();
        let mut content = format!("{:?}", hqdl_migrations::DATABASE.last().map(|(n, _)| n));
        for name in names.map_err(error)? {
            content.push_str(&self.compute_content_digest(&name, local)?);
        }
        let content = hash_content(content.as_bytes());
        self.write_table("hqdl_cell", &content, "SELECT * FROM hqdl_cell", None, local)?;
        let has_evidence = local
            .prepare("SELECT 1 FROM hqdl_completion WHERE evidence IS NOT NULL")
            .and_then(|mut statement| statement.exists([]))
            .map_err(error)?;
        if has_evidence {
            let select = "SELECT * FROM hqdl_evidence";
            self.write_table("hqdl_evidence", &content, select, None, local)?;
        }
        Ok(())
    }

    /// Writes the rows of a SELECT to a new file, unless the existing file has the same `content`.
    /// `declared` has the columns' types; `None` for hqdl's own views, whose types are fixed.
    fn write_table(
        &self,
        table: &str,
        content: &str,
        select: &str,
        declared: Option<&[ColumnType]>,
        local: &Connection,
    ) -> Result<(), StoreError> {
        let name = format_file_name(table);
        let current = self.folder.manifest.files.get(&name);
        let current = current.filter(|f| f.content == content && self.folder.is_intact(&name, f));
        let file = match current {
            Some(entry) => PublishedFile { entry: entry.clone(), temporary: None },
            None => {
                self.folder.check_replaceable(&name)?;
                let path = self.folder.path.join(&name);
                let temporary = temporary_path(&path);
                let _ = std::fs::remove_file(&temporary);
                let file = create_locked_file(&temporary)?;
                let written = Self::write_file(&file, content, select, declared, local);
                let written =
                    written.and_then(|rows| Ok((rows, read_footer(&temporary)?))).map_err(|e| {
                        let _ = std::fs::remove_file(&temporary);
                        e.into_store_error(self.db, &path)
                    });
                let (rows, (bytes, footer)) = written?;
                let (table, content) = (table.to_owned(), content.to_owned());
                let entry = ManifestFile { table, rows, bytes, footer, content };
                PublishedFile { entry, temporary: Some((temporary, file)) }
            }
        };
        self.files.borrow_mut().insert(name, file);
        Ok(())
    }

    fn write_file(
        file: &File,
        content: &str,
        select: &str,
        declared: Option<&[ColumnType]>,
        local: &Connection,
    ) -> Result<u64, WriteError> {
        let mut statement = local.prepare(select)?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let types = match declared {
            Some(declared) => find_stored_types(&mut statement, declared)?,
            None => names.iter().map(|name| find_provenance_type(name)).collect(),
        };
        let metadata = [
            (MARK, FORMAT.to_string()),
            ("hqdl.content", content.to_owned()),
            ("hqdl.spec", read_spec_name(local)?),
        ];
        let metadata = metadata.map(|(key, value)| KeyValue::new(key.to_owned(), value));
        let columns: Vec<(String, ColumnType)> = names.into_iter().zip(types).collect();
        let mut writer = ParquetWriter::new(file.try_clone()?, &columns, metadata.to_vec())?;
        let (mut rows, mut total) = (statement.query([])?, 0);
        while let Some(row) = rows.next()? {
            for n in 0..columns.len() {
                writer.push_value(n, row.get_ref(n)?);
            }
            writer.end_row()?;
            total += 1;
        }
        writer.finish()?.sync_all()?;
        Ok(total)
    }

    /// Returns the bookkeeping of this publication's tables.
    fn read_objects(&self, local: &Connection) -> rusqlite::Result<Vec<BTreeMap<String, Json>>> {
        let mut statement = local.prepare(
            "SELECT name, type, expansion, spec, key, columns, rows, published_at, inputs, layout,
               checksums FROM hqdl_object WHERE type IN ('table', 'view') OR name = ?1",
        )?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let mut rows = statement.query([COPY_SOURCE_KEY])?;
        let mut objects = Vec::new();
        while let Some(row) = rows.next()? {
            let mut object = BTreeMap::new();
            for (n, name) in names.iter().enumerate() {
                let value = Value::from_sqlite(row.get_ref(n)?).unwrap_or(Value::Null);
                object.insert(name.clone(), value.to_json());
            }
            let name = object.get("name").and_then(Json::as_str).unwrap_or_default();
            if name == COPY_SOURCE_KEY || self.files.borrow().contains_key(&format_file_name(name))
            {
                objects.push(object);
            }
        }
        Ok(objects)
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let path = self.folder.path.join(FOLDER_MANIFEST);
        let temporary = temporary_path(&path);
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            // The renames are durable once the folder is flushed. Not every system can flush a
            // folder.
            let _ = File::open(&self.folder.path).and_then(|folder| folder.sync_all());
            Ok(())
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&temporary);
            StoreError::File { path: path.clone(), error }
        })
    }
}

/// Returns the file name of the spec.
fn read_spec_name(local: &Connection) -> rusqlite::Result<String> {
    let sql = "SELECT max(spec) FROM hqdl_object";
    let spec: Option<String> = local.query_row(sql, [], |row| row.get(0))?;
    let name = spec.as_deref().map(Path::new).and_then(Path::file_name);
    Ok(name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()))
}

/// Reason why a file could not be written.
enum WriteError {
    Sqlite(rusqlite::Error),
    Parquet(ParquetError),
    File(std::io::Error),
}

impl WriteError {
    fn into_store_error(self, db: &Database, path: &Path) -> StoreError {
        let error = match self {
            Self::Sqlite(error) => return db.to_store_error(&error),
            Self::File(error) => error,
            Self::Parquet(ParquetError::External(error)) => match error.downcast() {
                Ok(error) => *error,
                Err(other) => std::io::Error::other(other),
            },
            Self::Parquet(error) => std::io::Error::other(error),
        };
        match error.kind() {
            ErrorKind::StorageFull => StoreError::DiskFull(path.to_owned()),
            _ => StoreError::File { path: path.to_owned(), error },
        }
    }
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<ParquetError> for WriteError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

impl From<std::io::Error> for WriteError {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// Returns the type of a column of `hqdl_cell` or `hqdl_evidence`.
fn find_provenance_type(name: &str) -> ColumnType {
    match name {
        "run" | "completion" => ColumnType::Integer,
        "input_tokens" | "output_tokens" | "cost_usd" | "assumed_cache_writes" => ColumnType::Real,
        _ => ColumnType::Text,
    }
}

/// Reads all rows of a SELECT and returns the type of each column.
fn find_stored_types(
    statement: &mut rusqlite::Statement<'_>,
    declared: &[ColumnType],
) -> rusqlite::Result<Vec<ColumnType>> {
    let mut stored = vec![StorageClasses::default(); declared.len()];
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for (n, values) in stored.iter_mut().enumerate() {
            values.add(row.get_ref(n)?);
        }
    }
    Ok(stored
        .iter()
        .zip(declared)
        .map(|(values, declared)| values.column_type(*declared))
        .collect())
}

/// Returns the name of a table's file. Characters that a file name cannot have are escaped as in a
/// URL.
fn format_file_name(table: &str) -> String {
    let mut name = String::with_capacity(table.len() + 8);
    for (n, c) in table.char_indices() {
        if c.is_control() || "/\\:*?\"<>|%".contains(c) || n == 0 && c == '.' {
            let mut buffer = [0; 4];
            for byte in c.encode_utf8(&mut buffer).bytes() {
                name.push_str(&format!("%{byte:02X}"));
            }
        } else {
            name.push(c);
        }
    }
    name + ".parquet"
}

/// Returns the size of a file and a hash of its footer, which contains the statistics and the
/// positions of all values.
fn read_footer(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut end = [0; 8];
    file.seek(SeekFrom::End(-8))?;
    file.read_exact(&mut end)?;
    let [a, b, c, d, magic @ ..] = end;
    let length = u64::from(u32::from_le_bytes([a, b, c, d])) + 8;
    if magic != *b"PAR1" || length > size {
        return Err(ErrorKind::InvalidData.into());
    }
    file.seek(SeekFrom::Start(size - length))?;
    let mut footer = Vec::new();
    file.read_to_end(&mut footer)?;
    Ok((size, hash_content(&footer)))
}

/// Returns true if hqdl wrote this file.
fn is_written_by_hqdl(path: &Path) -> bool {
    let Some(reader) = File::open(path).ok().and_then(|f| SerializedFileReader::new(f).ok()) else {
        return false;
    };
    let metadata = reader.metadata().file_metadata().key_value_metadata();
    metadata.is_some_and(|all| all.iter().any(|pair| pair.key == MARK))
}

fn remove_file(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(StoreError::File { path: path.to_owned(), error })
        }
        _ => Ok(()),
    }
}

fn hash_content(content: &[u8]) -> String {
    blake3::hash(content).to_hex().as_str()[..32].to_owned()
}
