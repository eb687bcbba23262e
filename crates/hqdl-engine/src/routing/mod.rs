//! Routes a question to the column of the spec that answers it, word by word or with a model's
//! help, as SQL over that column.

pub mod operator;
pub mod question;
