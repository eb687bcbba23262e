//! Queries with questions in them: `BlendSQL`'s dialect read into calls, a tree
//! and SQL over functions ([`blendsql`]), and `SUQL`'s spellings brought into
//! `SQLite`'s ([`suql`]). Knows no model and no store.

pub mod blendsql;
pub mod suql;
