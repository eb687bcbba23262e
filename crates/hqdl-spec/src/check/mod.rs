//! Checks a parsed spec: looks up every name, prepares every SELECT, loads every value list, and
//! reports all problems at once.
//!
//! The submodule `expansion` checks expansions and their sources. `column` checks columns with
//! their value lists and questions, `shots` checks the example rows, and `ask` checks the settings
//! of `hqdl ask`.

pub(super) mod ask;
mod column;
mod embeddings;
mod escalate;
mod evidence;
mod expansion;
mod ingredients;
mod kinds;
mod media;
mod shots;

pub(super) use embeddings::check_embeddings;

use std::collections::HashMap;
use std::path::Path;

use super::literal::Literal;
use super::schema_check::{self, Step, Tree};
use hqdl_values::problem::{Problem, Severity, find_nearest};
use hqdl_values::value::Value;

/// Schema and rows of a database, against which a spec is checked.
pub trait Catalog {
    /// Returns true if there is no database.
    fn is_absent(&self) -> bool {
        false
    }

    /// Returns the names of all tables and views.
    fn table_names(&self) -> Vec<String>;
    /// Returns the columns of a table or view with their declared types; `None` if it does not
    /// exist.
    fn table_columns(&self, table: &str) -> Option<Vec<(String, Option<String>)>>;
    /// Returns true if hqdl created the table or view with this name.
    fn is_created_by_hqdl(&self, table: &str) -> bool;
    /// Returns the column names of a read-only SELECT.
    ///
    /// # Errors
    /// Fails with the database's message if the SELECT cannot be prepared, or if it writes.
    fn list_select_columns(&self, sql: &str) -> Result<Vec<String>, String>;
    /// Returns the rows of a read-only SELECT, at most `limit`.
    ///
    /// # Errors
    /// Fails with the database's message if the SELECT cannot be executed.
    fn select_rows(&self, sql: &str, limit: usize) -> Result<Vec<Vec<Value>>, String>;
}

pub(super) struct SpecCheck<'c> {
    pub(super) catalog: &'c dyn Catalog,
    /// Directory of the spec.
    pub(super) folder: &'c Path,
    pub(super) tree: Tree<'c>,
    pub(super) schema_problems: &'c [(schema_check::Path, Problem)],
    pub(super) problems: Vec<Problem>,
    /// Tables found so far that the spec creates, by lower-case name.
    pub(super) table_names: HashMap<String, String>,
    /// Questions found so far that the spec binds, by their normalized text.
    pub(super) questions: HashMap<String, String>,
}

impl SpecCheck<'_> {
    pub(super) fn add_error(&mut self, path: &[Step], message: &str, label: &str, help: &str) {
        // Do not report errors that follow from a schema violation in the same item or in one of
        // its fields.
        let follows = |(problem_path, _): &(schema_check::Path, Problem)| {
            path.starts_with(problem_path)
                || !path.is_empty()
                    && problem_path.len() == path.len() + 1
                    && problem_path.starts_with(path)
        };
        if self.schema_problems.iter().any(follows) {
            return;
        }
        debug_assert!(!label.is_empty() || !help.is_empty(), "no next step: {message}");
        self.problems.push(Problem {
            severity: Severity::Error,
            message: message.to_owned(),
            span: self.tree.span(path),
            label: label.to_owned(),
            help: Some(help.to_owned()).filter(|h| !h.is_empty()),
        });
    }

    pub(super) fn add_warning(&mut self, path: &[Step], message: &str, help: &str) {
        self.problems.push(Problem {
            severity: Severity::Warning,
            message: message.to_owned(),
            span: self.tree.span(path),
            label: String::new(),
            help: Some(help.to_owned()).filter(|h| !h.is_empty()),
        });
    }

    /// Checks the name of a table that hqdl will create: the name must be unused, or belong to a
    /// table that hqdl created earlier.
    pub(super) fn check_table_name(&mut self, path: &[Step], name: &str) {
        let lower = name.to_lowercase();
        if name.trim().is_empty() {
            self.add_error(
                path,
                "an expansion needs a name",
                "",
                "write the name of the table that hqdl makes",
            );
        } else if lower.starts_with("hqdl_") || lower.starts_with("sqlite_") {
            self.add_error(
                path,
                &format!("the name `{name}` is reserved"),
                "names that begin with hqdl_ or sqlite_ are reserved",
                "choose another name",
            );
        } else if self.table_names.insert(lower, name.to_owned()).is_some() {
            self.add_error(
                path,
                &format!("the spec defines the table `{name}` twice"),
                "",
                "rename one of the two",
            );
        } else if self.catalog.table_columns(name).is_some()
            && !self.catalog.is_created_by_hqdl(name)
        {
            self.add_error(
                path,
                &format!("the database has a table `{name}` that hqdl did not make"),
                "this name is already used",
                "choose another name; hqdl never changes your own tables",
            );
        }
    }
}

pub(super) fn join_path(path: &[Step], steps: &[Step]) -> Vec<Step> {
    [path, steps].concat()
}

fn to_value(literal: &Literal) -> Value {
    match literal {
        Literal::Boolean(b) => Value::Integer(i64::from(*b)),
        Literal::Integer(i) => Value::Integer(*i),
        Literal::Real(r) => Value::Real(*r),
        Literal::Text(text) => Value::Text(text.clone()),
    }
}

/// Returns a hint for an unknown name: the nearest known name, or a list of the first known names.
fn format_suggestion<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    const LISTED: usize = 8;
    let known: Vec<&str> = known.collect();
    match find_nearest(wrong, known.iter().copied()) {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => String::new(),
        None => {
            let more = if known.len() > LISTED { ", …" } else { "" };
            let first = &known[..known.len().min(LISTED)];
            format!("use one of {}{more}", first.join(", "))
        }
    }
}

/// Explains why a database rejects SQL from the spec. hqdl may have added parentheses around that
/// SQL.
fn explain_rejection(message: &str, sql: &str) -> String {
    match message {
        "incomplete input" => "it ends too early".to_owned(),
        "near \")\": syntax error" if !sql.contains(')') => "it ends too early".to_owned(),
        "near \";\": syntax error" => "it is more than one statement".to_owned(),
        _ if message.contains("unrecognized token: \"{") => {
            "a spec has no calls such as {{…}}; only queries have".to_owned()
        }
        _ => message.to_owned(),
    }
}
