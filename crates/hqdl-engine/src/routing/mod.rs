//! Routes a question to the column of the spec that answers it, and converts it to SQL over that
//! column. Questions match word by word, or a model chooses the column.

pub mod operator;
pub mod question;
