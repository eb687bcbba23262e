//! From a spec as written to a spec one can work with: every name looked up,
//! every SELECT prepared, every value list loaded, all problems at once.
//!
//! `expansion` checks expansions and their sources, `column` columns, their
//! value lists and questions, `shots` the example rows.

mod column;
mod embeddings;
mod expansion;
mod ingredients;
mod kinds;
mod shots;

pub(super) use embeddings::embeddings;

use std::collections::HashMap;
use std::path::Path;

use super::literal::Literal;
use super::shape::{self, Step, Tree};
use hqdl_values::problem::{Problem, Severity, nearest};
use hqdl_values::value::Value;

/// What a spec is checked against: the schema and the rows of a database.
pub trait Catalog {
    /// Whether there is no database at all to look in.
    fn is_absent(&self) -> bool {
        false
    }

    /// Names of all tables and views.
    fn tables(&self) -> Vec<String>;
    /// Columns of a table or view with their declared types; `None` when there is none.
    fn columns(&self, table: &str) -> Option<Vec<(String, Option<String>)>>;
    /// Whether hqdl made the table or view of that name.
    fn made_by_hqdl(&self, table: &str) -> bool;
    /// Column names of a read-only SELECT.
    ///
    /// # Errors
    /// `SQLite`'s message when it does not prepare, or writes.
    fn prepare(&self, sql: &str) -> Result<Vec<String>, String>;
    /// Rows of a read-only SELECT, at most `limit`.
    ///
    /// # Errors
    /// `SQLite`'s message.
    fn select(&self, sql: &str, limit: usize) -> Result<Vec<Vec<Value>>, String>;
}

pub(super) struct Check<'c> {
    pub(super) catalog: &'c dyn Catalog,
    /// The folder of the spec.
    pub(super) folder: &'c Path,
    pub(super) tree: Tree<'c>,
    pub(super) shape: &'c [(shape::Path, Problem)],
    pub(super) problems: Vec<Problem>,
    /// Tables the spec makes so far, lower case.
    pub(super) names: HashMap<String, String>,
    /// Questions the spec binds so far, normalised.
    pub(super) asked: HashMap<String, String>,
}

impl Check<'_> {
    pub(super) fn error(&mut self, place: &[Step], message: &str, label: &str, help: &str) {
        // What follows from a wrong shape has been said there.
        if self.shape.iter().any(|(wrong, _)| place.starts_with(wrong)) {
            return;
        }
        self.problems.push(Problem {
            severity: Severity::Error,
            message: message.to_owned(),
            span: self.tree.span(place),
            label: label.to_owned(),
            help: Some(help.to_owned()).filter(|h| !h.is_empty()),
        });
    }

    pub(super) fn warn(&mut self, place: &[Step], message: &str, help: &str) {
        self.problems.push(Problem {
            severity: Severity::Warning,
            message: message.to_owned(),
            span: self.tree.span(place),
            label: String::new(),
            help: Some(help.to_owned()).filter(|h| !h.is_empty()),
        });
    }

    /// A name for a table hqdl is to make: free, or made by hqdl before.
    pub(super) fn table_name(&mut self, place: &[Step], name: &str) {
        let lower = name.to_lowercase();
        if name.trim().is_empty() {
            self.error(place, "an expansion needs a name", "", "");
        } else if lower.starts_with("hqdl_") || lower.starts_with("sqlite_") {
            self.error(
                place,
                &format!("the name `{name}` is reserved"),
                "names that begin with hqdl_ or sqlite_ are reserved",
                "",
            );
        } else if self.names.insert(lower, name.to_owned()).is_some() {
            self.error(
                place,
                &format!("the spec defines the table `{name}` twice"),
                "",
                "rename one of the two",
            );
        } else if self.catalog.columns(name).is_some() && !self.catalog.made_by_hqdl(name) {
            self.error(
                place,
                &format!("the database has a table `{name}` that hqdl did not make"),
                "this name is already used",
                "choose another name; hqdl never changes your own tables",
            );
        }
    }
}

pub(super) fn join(place: &[Step], more: &[Step]) -> Vec<Step> {
    [place, more].concat()
}

fn literal(literal: &Literal) -> Value {
    match literal {
        Literal::Boolean(b) => Value::Integer(i64::from(*b)),
        Literal::Integer(i) => Value::Integer(*i),
        Literal::Real(r) => Value::Real(*r),
        Literal::Text(text) => Value::Text(text.clone()),
    }
}

fn did_you_mean<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> String {
    nearest(wrong, known).map(|n| format!("did you mean `{n}`?")).unwrap_or_default()
}
