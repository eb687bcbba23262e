//! Writing names and texts into SQL. Values of a model or a user never pass
//! through here: they are bound as parameters.

/// A quoted identifier.
#[must_use]
pub fn name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Quoted identifiers, joined by commas, each after `prefix`.
#[must_use]
pub fn names<'a>(prefix: &str, all: impl IntoIterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = all.into_iter().map(|n| format!("{prefix}{}", name(n))).collect();
    quoted.join(", ")
}

/// A quoted text literal, for names of things inside a view's text.
#[must_use]
pub fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
