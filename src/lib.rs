pub mod cell;
pub mod facts;
pub mod key;
pub mod prompt;
pub mod spec;
pub mod sql;
pub mod store;
pub mod value;

pub mod init;
