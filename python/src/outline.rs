//! What a spec says, for those who bring its rows from elsewhere.

use std::path::PathBuf;

use hqdl::spec::file::SourceField;
use hqdl::spec::{Draft, Spec};
use pyo3::prelude::*;
use serde_json::{Value as Json, json};

use crate::errors::Failed;

/// The expansions of a spec, each with the table that it expands, where that is one. Needs
/// no database.
#[pyfunction]
pub fn sources(py: Python<'_>, spec: PathBuf) -> PyResult<Vec<(String, Option<String>)>> {
    let draft = py.detach(|| Ok::<_, Failed>(Draft::read(&spec)?))?;
    let table = |source: &SourceField| match source {
        // Whether it is a SELECT is seen when it is checked.
        SourceField::One(table) => Some(table.clone()),
        SourceField::Several(all) => match &all[..] {
            [one] => one.table.clone(),
            _ => None,
        },
    };
    Ok(draft.file.expansion.iter().map(|e| (e.name.clone(), table(&e.source))).collect())
}

/// What a checked spec expands, and what it may spend.
pub fn outline(spec: &Spec) -> Json {
    let expansions = spec.expansions.iter().map(|e| {
        let columns = e.columns.iter().map(|c| {
            json!({
                "name": c.name, "type": c.kind.name(), "about": c.about,
                "many": c.many.as_ref().map(|m| json!({"table": m.table, "column": m.column})),
            })
        });
        json!({
            "name": e.name, "key": e.key.names(), "context": e.context,
            "columns": columns.collect::<Vec<_>>(),
        })
    });
    json!({
        "overrides": spec.overrides_path(),
        "expansions": expansions.collect::<Vec<_>>(),
        "budget_usd": spec.limits.budget_usd, "budget_tokens": spec.limits.budget_tokens,
    })
}
