//! Which texts are like a question: it orders what is asked about, and chooses
//! what is shown of a long document. It never decides which rows qualify.
//!
//! [`passages`] cuts texts, [`words`] compares them by their words (BM25 of
//! `SQLite`'s FTS5), [`vectors`] keeps embeddings, which compare them by what
//! they mean.

pub mod passages;
pub mod vectors;
pub mod words;
