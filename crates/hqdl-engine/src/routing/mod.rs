//! Which column of the spec answers a question, word by word or by what a
//! model said of it: as SQL over that column.

pub mod operator;
pub mod question;
