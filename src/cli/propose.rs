//! Columns that a model proposes for a question: their TOML and costs, and their addition to a
//! spec.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::{ModelFlags, OutputOptions, session};
use crate::ask::{ColumnCosts, ProposedColumn};
use crate::database::Database;
use crate::failure::Failure;
use crate::format::{format_count, format_usd, to_single_line};
use crate::materialize::{Materializer, Selection};
use crate::model;
use crate::session::Session;
use crate::spec::{Catalog, UncheckedSpec, is_server};
use crate::spec_file;

/// A proposed column with its costs.
pub struct ColumnProposal {
    column: ProposedColumn,
    /// TOML to add to the spec.
    toml: String,
    costs: ColumnCosts,
    /// Number of cells to fill; 0 if the column cannot be added.
    cells: u64,
    /// Reason why the column cannot be added; `None` if it can.
    problem: Option<String>,
}

impl ColumnProposal {
    /// Computes the cost of filling the column. If there is a spec, the column is planned as a part
    /// of it. `live` is the likely cost of a live query in USD. Sends no request.
    pub fn new(
        column: ProposedColumn,
        live: Option<f64>,
        spec: Option<&Path>,
        flags: &ModelFlags,
        session: &Session,
    ) -> Self {
        let taken = session.database.table_names();
        let base = match spec {
            Some(spec) => std::fs::read_to_string(spec).unwrap_or_default(),
            None => String::new(),
        };
        let toml = column.format_toml(&base, &taken).unwrap_or_default();
        let (filled, problem) = match plan_column_fill(&column, &base, &taken, spec, flags, session)
        {
            Ok(filled) => (Some(filled), None),
            Err(failure) => (None, Some(to_single_line(&failure.message()))),
        };
        let (materialized, cells) = filled.unwrap_or_default();
        Self { column, toml, costs: ColumnCosts { live, materialized }, cells, problem }
    }

    /// Prints the TOML and the costs on stderr.
    pub fn print(&self) {
        let toml: Vec<String> = self.toml.trim_end().lines().map(to_single_line).collect();
        anstream::eprintln!("{:<10} {}", "proposes", toml.join("\n           "));
        if let Some(problem) = &self.problem {
            anstream::eprintln!("{:<10} the column cannot be added: {problem}", "note");
            return;
        }
        let usd = |usd: Option<f64>| {
            usd.map_or("not known, because the price is not".to_owned(), format_usd)
        };
        let ColumnCosts { live, materialized } = self.costs;
        let cells = format_count(self.cells, "cell");
        anstream::eprintln!(
            "{:<10} live, for this query: {}; materialized, for {cells}: {}",
            "cost",
            usd(live),
            usd(materialized)
        );
        if let Some(queries) = self.costs.compute_break_even() {
            let queries =
                if queries == 1 { "1 query".to_owned() } else { format!("{queries} queries") };
            anstream::eprintln!("{:<10} filling is cheaper from {queries} about other rows on", "");
        }
    }

    pub fn to_json(&self) -> Json {
        let mut json = json!(self.column);
        json["toml"] = self.toml.as_str().into();
        json["live_usd"] = self.costs.live.into();
        json["materialized_usd"] = self.costs.materialized.into();
        json["cells"] = self.cells.into();
        json["break_even_queries"] = self.costs.compute_break_even().into();
        json["problem"] = self.problem.clone().into();
        json
    }
}

/// Returns the likely cost of filling a column in USD (`None` if not known), and the number of
/// cells to fill.
fn plan_column_fill(
    column: &ProposedColumn,
    base: &str,
    taken: &[String],
    spec: Option<&Path>,
    flags: &ModelFlags,
    session: &Session,
) -> Result<(Option<f64>, u64), Failure> {
    let own;
    let base = if spec.is_some() {
        base
    } else {
        let database = session.database.path().to_string_lossy();
        let place = if is_server(session.database.path()) { "url" } else { "path" };
        let name = flags.model.as_deref().unwrap_or_default();
        // A JSON string is also a TOML string.
        own =
            format!("[database]\n{place} = {}\n[model]\nname = {}\n", json!(database), json!(name));
        &own
    };
    let wrong = |e: crate::suggest::edit::EditError| Failure::wrong_input(e.to_string(), "");
    let (text, expansion) = column.add_to_spec(base, taken).map_err(wrong)?;
    let path = spec.map_or_else(|| session.spec.path.clone(), Path::to_owned);
    let draft = UncheckedSpec::parse(&path, text)?.allow_no_expansions();
    let edited = session::open_unchecked_spec(draft, flags, None, "ask")?;
    let selection = Selection {
        columns: Some(vec![format!("{expansion}.{}", column.name)]),
        ..Selection::default()
    };
    let planning_model = model::connect_for_planning(&edited.spec)?;
    let (spec, database) = (&edited.spec, &edited.database);
    let materializer =
        Materializer::new(spec, database, session.facts()?, planning_model, &selection)?;
    let (plan, _) = materializer.plan_requests()?;
    let cells = plan.to_json()["totals"]["cells"].as_u64().unwrap_or_default();
    Ok((plan.has_price.then_some(plan.cost_usd.likely), cells))
}

/// Adds the proposed columns to a spec. Writes nothing if the spec would fail `hqdl check`.
///
/// # Errors
/// Fails if `proposed` is empty or a column cannot be added.
pub fn write_columns(
    spec: &Path,
    database: &Database,
    proposed: &[ColumnProposal],
    output_options: OutputOptions,
) -> Result<(), Failure> {
    if proposed.is_empty() {
        return Err(Failure::wrong_input(
            "nothing was added, because the model proposed no column",
            "leave --write out, or ask again with --rewrite",
        ));
    }
    let taken = database.table_names();
    spec_file::edit_spec(spec, database, |text| {
        let mut text = text.to_owned();
        for ColumnProposal { column, .. } in proposed {
            (text, _) = column.add_to_spec(&text, &taken)?;
        }
        Ok(text)
    })?;
    if !output_options.quiet {
        for ColumnProposal { column, .. } in proposed {
            anstream::eprintln!(
                "added the column {} to {}; `hqdl materialize` fills it",
                to_single_line(&column.name),
                spec.display()
            );
        }
    }
    Ok(())
}
