//! Routes a question to the column of the spec that answers it, and converts it to SQL over that
//! column. A question matches word by word, or a model chooses its column.

pub mod operator;
pub mod question;
