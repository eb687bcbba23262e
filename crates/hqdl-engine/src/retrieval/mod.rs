//! Finds texts that are similar to a question. Similarity determines the order of requests and
//! which parts of a long document are shown, but never which rows qualify.
//!
//! [`passages`] splits texts, [`text_index`] compares them by their words (BM25 of `SQLite`'s
//! FTS5), and [`vectors`] stores embeddings to compare them by meaning. [`evidence`] finds passages
//! in an expansion's documents, and [`search`] finds passages in web search results.

pub mod evidence;
mod html;
mod pdf;
mod pdf_budget;
mod pdf_fonts;
pub mod passages;
pub mod search;
pub mod vectors;
pub mod text_index;
