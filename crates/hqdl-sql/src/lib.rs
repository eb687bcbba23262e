//! Parsers and rewriters for SQL queries that contain questions: [`blendsql`] parses `BlendSQL`'s
//! dialect and rewrites its calls into SQL functions, and [`suql`] translates `SUQL`'s syntax into
//! `SQLite`'s. This crate has no dependency on models or on the fact store.

pub mod blendsql;
pub mod suql;
mod translated;

pub use translated::{EditText, Edits, TextTooLong, TranslatedQuery};
