//! Writes rows as a Parquet file: the tables of a folder, and downloads.

use std::io::Write;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type as SchemaType;
use rusqlite::types::ValueRef;

use super::publish::find_column_affinity;
use hqdl_values::Type;
use hqdl_values::value::Value;

/// Maximum number of rows of a row group, which are collected in memory.
const GROUP_ROWS: usize = 122_880;
/// Approximate maximum number of bytes of a row group in memory.
const GROUP_BYTES: usize = 32 << 20;

/// Type of a column in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnType {
    /// UTF-8 text.
    Text,
    /// 64-bit integers.
    Integer,
    /// Double-precision numbers.
    Real,
    /// Truth values.
    Boolean,
    /// Bytes.
    Binary,
    /// Lists of texts.
    TextList,
}

impl ColumnType {
    /// Returns the type for values of a spec's column.
    #[must_use]
    pub fn from_kind(kind: Type) -> Self {
        match kind {
            Type::Integer => Self::Integer,
            Type::Real => Self::Real,
            Type::Boolean => Self::Boolean,
            Type::Text | Type::Date | Type::Url => Self::Text,
        }
    }

    /// Returns the type for values of a `SQLite` column with this declared type.
    pub(super) fn from_declared(declared: Option<&str>) -> Self {
        match find_column_affinity(declared) {
            "INTEGER" => Self::Integer,
            "REAL" | "NUMERIC" => Self::Real,
            _ => Self::Text,
        }
    }
}

/// Storage classes of the values in a column.
#[derive(Debug, Clone, Copy, Default)]
pub struct StorageClasses {
    has_integers: bool,
    /// Whether any integer is neither 0 nor 1.
    has_numbers: bool,
    /// Whether any integer cannot be represented exactly by a double.
    has_large: bool,
    has_reals: bool,
    has_text: bool,
    has_blobs: bool,
    has_lists: bool,
}

impl StorageClasses {
    /// Adds a value of the column.
    pub fn add(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => {}
            ValueRef::Integer(n) => {
                self.has_integers = true;
                self.has_numbers |= !(0..=1).contains(&n);
                self.has_large |= n.unsigned_abs() > 1 << 53;
            }
            ValueRef::Real(_) => self.has_reals = true,
            ValueRef::Text(_) => self.has_text = true,
            ValueRef::Blob(_) => self.has_blobs = true,
        }
    }

    /// Adds a list of values.
    pub fn add_list(&mut self) {
        self.has_lists = true;
    }

    /// Returns the type that can store all values. A `SQLite` column can mix types; a column of a
    /// Parquet file cannot.
    #[must_use]
    pub fn column_type(self, declared: ColumnType) -> ColumnType {
        match declared {
            _ if self.has_lists => ColumnType::TextList,
            _ if self.has_blobs => ColumnType::Binary,
            _ if self.has_text => ColumnType::Text,
            _ if self.has_reals && self.has_large => ColumnType::Text,
            _ if self.has_reals => ColumnType::Real,
            ColumnType::Boolean if !self.has_numbers => ColumnType::Boolean,
            ColumnType::Real if !self.has_large => ColumnType::Real,
            _ if self.has_integers => ColumnType::Integer,
            declared => declared,
        }
    }
}

/// Writer of a file. Rows are collected in memory and written in groups.
pub struct ParquetWriter<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    group: Vec<ColumnBuffer>,
    group_rows: usize,
    group_bytes: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Starts a file with these columns and metadata.
    ///
    /// # Errors
    /// Returns [`ParquetError`] if the output fails.
    pub fn new(
        output: W,
        columns: &[(String, ColumnType)],
        metadata: Vec<KeyValue>,
    ) -> Result<Self, ParquetError> {
        let properties = WriterProperties::builder()
            .set_created_by(program_name())
            .set_compression(Compression::SNAPPY)
            .set_key_value_metadata(Some(metadata))
            .build();
        let schema = Arc::new(build_schema(columns)?);
        let writer = SerializedFileWriter::new(output, schema, Arc::new(properties))?;
        let group = columns.iter().map(|(_, column_type)| ColumnBuffer::new(*column_type));
        Ok(Self { writer, group: group.collect(), group_rows: 0, group_bytes: 0 })
    }

    /// Adds a value of the current row to a column.
    pub fn push_value(&mut self, column: usize, value: ValueRef<'_>) {
        self.group_bytes += self.group[column].push(value);
    }

    /// Adds a list of the current row to a column whose type is [`ColumnType::TextList`].
    pub fn push_list(&mut self, column: usize, items: impl Iterator<Item = String>) {
        self.group_bytes += self.group[column].push_list(items);
    }

    /// Ends a row, in which each column must have received one value.
    ///
    /// # Errors
    /// Returns [`ParquetError`] if the output fails.
    pub fn end_row(&mut self) -> Result<(), ParquetError> {
        self.group_rows += 1;
        if self.group_rows >= GROUP_ROWS || self.group_bytes >= GROUP_BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    /// Ends the file and returns its output.
    ///
    /// # Errors
    /// Returns [`ParquetError`] if the output fails.
    pub fn finish(mut self) -> Result<W, ParquetError> {
        if self.group_rows > 0 {
            self.write_group()?;
        }
        self.writer.into_inner()
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        (self.group_rows, self.group_bytes) = (0, 0);
        write_group(&mut self.writer, &mut self.group)
    }
}

/// Returns the schema of a file. All columns are optional.
fn build_schema(columns: &[(String, ColumnType)]) -> Result<SchemaType, ParquetError> {
    let mut used: Vec<String> = Vec::new();
    let mut fields = Vec::new();
    for (name, column_type) in columns {
        // Some readers ignore case, so make names distinct that differ only in case.
        let mut unique = name.clone();
        for n in 2.. {
            if !used.contains(&unique.to_lowercase()) {
                break;
            }
            unique = format!("{name}_{n}");
        }
        used.push(unique.to_lowercase());
        let (physical, logical) = match column_type {
            ColumnType::TextList => {
                fields.push(Arc::new(build_list_field(&unique)?));
                continue;
            }
            ColumnType::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            ColumnType::Binary => (PhysicalType::BYTE_ARRAY, None),
            ColumnType::Integer => (PhysicalType::INT64, None),
            ColumnType::Real => (PhysicalType::DOUBLE, None),
            ColumnType::Boolean => (PhysicalType::BOOLEAN, None),
        };
        let field = SchemaType::primitive_type_builder(&unique, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical);
        fields.push(Arc::new(field.build()?));
    }
    SchemaType::group_type_builder("schema").with_fields(fields).build()
}

/// Returns the field of a column with lists, in the three levels that readers expect.
fn build_list_field(name: &str) -> Result<SchemaType, ParquetError> {
    let element = SchemaType::primitive_type_builder("element", PhysicalType::BYTE_ARRAY)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::String));
    let list = SchemaType::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element.build()?)]);
    SchemaType::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list.build()?)])
        .build()
}

/// Values of a column in the current row group.
struct ColumnBuffer {
    column_type: ColumnType,
    /// For each row, 1 if it has a value and 0 if it is NULL. In a column with lists, 2 for each
    /// item, and 1 for an empty list.
    levels: Vec<i16>,
    /// In a column with lists, 1 for each item after the first one; empty in any other column.
    repetitions: Vec<i16>,
    bytes: Vec<ByteArray>,
    integers: Vec<i64>,
    reals: Vec<f64>,
    booleans: Vec<bool>,
}

impl ColumnBuffer {
    fn new(column_type: ColumnType) -> Self {
        Self {
            column_type,
            levels: Vec::new(),
            repetitions: Vec::new(),
            bytes: Vec::new(),
            integers: Vec::new(),
            reals: Vec::new(),
            booleans: Vec::new(),
        }
    }

    /// Adds a value, and returns its approximate size in bytes.
    fn push(&mut self, value: ValueRef<'_>) -> usize {
        if self.column_type == ColumnType::TextList {
            if value == ValueRef::Null {
                self.levels.push(0);
                self.repetitions.push(0);
                return 4;
            }
            let text = Value::from_sqlite(value).map_or_else(|e| e.to_string(), |v| v.to_string());
            return self.push_list(std::iter::once(text));
        }
        self.levels.push(i16::from(value != ValueRef::Null));
        match (self.column_type, value) {
            (_, ValueRef::Null) => return 2,
            (ColumnType::Integer, ValueRef::Integer(n)) => self.integers.push(n),
            (ColumnType::Boolean, ValueRef::Integer(n)) => self.booleans.push(n != 0),
            (ColumnType::Real, ValueRef::Integer(n)) => self.reals.push(n as f64),
            (ColumnType::Real, ValueRef::Real(r)) => self.reals.push(r),
            (ColumnType::Binary, ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => {
                self.bytes.push(bytes.to_vec().into());
                return bytes.len() + 32;
            }
            (_, value) => {
                let text = match value {
                    ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    other => {
                        Value::from_sqlite(other).map_or_else(|e| e.to_string(), |v| v.to_string())
                    }
                };
                let size = text.len() + 32;
                self.bytes.push(text.into_bytes().into());
                return size;
            }
        }
        10
    }

    /// Adds a list, and returns its approximate size in bytes.
    fn push_list(&mut self, items: impl Iterator<Item = String>) -> usize {
        let mut size = 4;
        for (n, item) in items.enumerate() {
            size += item.len() + 36;
            self.levels.push(2);
            self.repetitions.push(i16::from(n > 0));
            self.bytes.push(item.into_bytes().into());
        }
        if size == 4 {
            self.levels.push(1);
            self.repetitions.push(0);
        }
        size
    }
}

/// Writes the collected values as a row group, and clears them.
fn write_group<W: Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    columns: &mut [ColumnBuffer],
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut output) = group.next_column()? else { break };
        let levels = Some(column.levels.as_slice());
        match output.untyped() {
            ColumnWriter::ByteArrayColumnWriter(w) => {
                let repetitions = (!column.repetitions.is_empty()).then_some(&*column.repetitions);
                w.write_batch(&column.bytes, levels, repetitions)?
            }
            ColumnWriter::Int64ColumnWriter(w) => w.write_batch(&column.integers, levels, None)?,
            ColumnWriter::DoubleColumnWriter(w) => w.write_batch(&column.reals, levels, None)?,
            ColumnWriter::BoolColumnWriter(w) => w.write_batch(&column.booleans, levels, None)?,
            _ => 0,
        };
        output.close()?;
        *column = ColumnBuffer::new(column.column_type);
    }
    group.close().map(drop)
}

/// Returns the name and version of the program, as in a file's metadata.
pub(super) fn program_name() -> String {
    format!("hqdl {}", env!("CARGO_PKG_VERSION"))
}
