//! Basic types used by all other crates: SQL values, semantic keys, cells and their states, types,
//! tokens, prices and usage, and problems with their locations. This crate performs no I/O.

pub mod cell;
mod column_type;
pub mod evidence;
pub mod csv;
pub mod format;
pub mod key;
mod price;
pub mod problem;
mod row;
pub mod sql;
pub mod tokens;
pub mod usage;
pub mod value;

pub use column_type::Type;
pub use price::{ASSUMED_CACHE_WRITE, LongPromptPrice, PriceTable, TokenRates};
pub use row::Row;
