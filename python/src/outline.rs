//! Describes a spec for integrations that supply its rows themselves, such as Spark.

use std::path::PathBuf;

use hqdl::spec::file::SourceField;
use hqdl::spec::{Spec, UncheckedSpec};
use pyo3::prelude::*;
use serde_json::{Value as Json, json};

use crate::errors::Failed;

/// Returns the expansions of a spec, each with its source table, or None if the source is not a
/// single table. Needs no database.
#[pyfunction]
pub fn sources(py: Python<'_>, spec: PathBuf) -> PyResult<Vec<(String, Option<String>)>> {
    let unchecked_spec = py.detach(|| Ok::<_, Failed>(UncheckedSpec::read(&spec)?))?;
    let table = |source: &SourceField| match source {
        // The text may also be a SELECT, which only a check of the spec can tell.
        SourceField::One(table) => Some(table.clone()),
        SourceField::Several(all) => match &all[..] {
            [one] => one.table.clone(),
            _ => None,
        },
    };
    let expansions = unchecked_spec.file.expansion.iter();
    Ok(expansions.map(|e| (e.name.clone(), table(&e.source))).collect())
}

/// Returns the expansions and the budgets of a checked spec as JSON.
pub fn describe_spec(spec: &Spec) -> Json {
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
