//! Provenance of a published cell, read from the database itself without a cache or a spec.

use std::path::PathBuf;

use serde_json::{Value as Json, json};

use hqdl_values::ASSUMED_CACHE_WRITE;

use super::{Database, StoreError};
use hqdl_values::evidence::ShownEvidence;

/// A cell with its provenance.
#[derive(Debug, Clone, PartialEq)]
pub struct CellProvenance {
    /// Name of the expansion.
    pub expansion: String,
    /// Table that contains the cell.
    pub table: String,
    /// Name of the column.
    pub column: String,
    /// Key of the row, as a JSON array.
    pub key: String,
    /// State of the cell, as in the view `hqdl_cell`.
    pub state: String,
    /// Value; a JSON array for one-to-many columns.
    pub value: Json,
    /// The model's original text, if it differs from the value.
    pub raw: Option<String>,
    /// Note about repairs of the answer, or the reason why it is invalid.
    pub repair: Option<String>,
    /// Note of the person who overrode the cell.
    pub note: Option<String>,
    /// Name of the model that answered.
    pub model: Option<String>,
    /// Parameters of the spec that were sent with the request, as JSON.
    pub parameters: Option<String>,
    /// Passages shown in the request, with the quotations for this cell.
    pub evidence: Option<ShownEvidence>,
    /// Id of the run that sent the request.
    pub run: Option<i64>,
    /// Time of the request.
    pub asked_at: Option<String>,
    /// Hash of the prompt.
    pub prompt_hash: Option<String>,
    /// This cell's share of the request's input tokens.
    pub input_tokens: Option<f64>,
    /// This cell's share of the request's output tokens.
    pub output_tokens: Option<f64>,
    /// This cell's share of the request's cost, in USD.
    pub cost_usd: Option<f64>,
    /// This cell's share of the input tokens that were written to the endpoint's prompt cache and
    /// billed at an assumed rate.
    pub assumed_cache_writes: Option<f64>,
    /// Reason why the request failed.
    pub error: Option<String>,
}

impl CellProvenance {
    /// Returns the value as JSON. The list of a one-to-many column becomes an array.
    fn parse_value(&self) -> Json {
        match &self.value {
            Json::String(text) if self.table != self.expansion => {
                serde_json::from_str(text).unwrap_or_else(|_| self.value.clone())
            }
            other => other.clone(),
        }
    }

    /// Returns a note if part of the cost is based on an assumed rate.
    #[must_use]
    pub fn price_note(&self) -> Option<&'static str> {
        self.assumed_cache_writes.is_some_and(|tokens| tokens > 0.0).then_some(ASSUMED_CACHE_WRITE)
    }

    /// Converts the cell to the JSON that `why --json` prints.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "expansion": self.expansion, "table": self.table, "column": self.column,
            "key": serde_json::from_str::<Json>(&self.key).unwrap_or(Json::Null),
            "state": self.state, "value": self.parse_value(), "raw": self.raw, "repair": self.repair, "note": self.note,
            "model": self.model,
            "parameters": self.parameters.as_deref().and_then(|p| serde_json::from_str::<Json>(p).ok()),
            "evidence": self.evidence,
            "run": self.run, "asked_at": self.asked_at, "prompt_hash": self.prompt_hash,
            "input_tokens": self.input_tokens, "output_tokens": self.output_tokens, "cost_usd": self.cost_usd,
            "price_notes": self.price_note().as_slice(), "error": self.error,
        })
    }
}

/// Columns of a published expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedExpansion {
    /// Name of the expansion.
    pub expansion: String,
    /// Key columns.
    pub key: Vec<String>,
    /// Columns, each with the table that contains it.
    pub columns: Vec<(String, String)>,
}

/// Finds the expansion that a table belongs to, and one of its columns by name.
#[must_use]
pub fn find_column<'p>(
    published: &'p [PublishedExpansion],
    table: &str,
    column: &str,
) -> Option<(&'p PublishedExpansion, String)> {
    published.iter().find_map(|p| {
        let is_main_table = p.expansion.eq_ignore_ascii_case(table);
        let exact = p.columns.iter().find(|(c, t)| {
            (is_main_table || t.eq_ignore_ascii_case(table)) && c.eq_ignore_ascii_case(column)
        });
        // A one-to-many table has only one value column, so any column name is accepted.
        let find_many =
            || p.columns.iter().find(|(_, t)| !is_main_table && t.eq_ignore_ascii_case(table));
        exact.or_else(find_many).map(|(c, _)| (p, c.clone()))
    })
}

/// SQL expression for the typed value of a row in `hqdl_cell`, which stores values as text.
pub const TYPED_VALUE_SQL: &str = "(SELECT c.value ->> 1 FROM hqdl_record AS r, json_each(r.cells) AS c
   WHERE r.expansion = hqdl_cell.expansion AND r.key = hqdl_cell.key AND c.key = hqdl_cell.\"column\")";

/// SQL column with the evidence from the request that produced a row of `hqdl_cell`.
const EVIDENCE_SQL: &str = ", (SELECT q.evidence FROM hqdl_completion AS q
   WHERE q.expansion = hqdl_cell.expansion AND q.id = hqdl_cell.completion) AS shown_evidence";

/// Parses a request's evidence, keeping the quotations for one column.
fn parse_cell_evidence(json: &str, column: &str) -> Option<ShownEvidence> {
    let mut evidence = ShownEvidence::parse(json)?;
    evidence.quotes.retain(|quote| quote.column.eq_ignore_ascii_case(column));
    Some(evidence)
}

impl Database {
    /// Returns all expansions that are published in this database; empty if there are none.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database cannot be read.
    pub fn list_published_expansions(&self) -> Result<Vec<PublishedExpansion>, StoreError> {
        if !self.has_bookkeeping() {
            return Ok(Vec::new());
        }
        let read_expansions = || -> rusqlite::Result<Vec<PublishedExpansion>> {
            self.connection()
                .prepare("SELECT name, key, columns FROM hqdl_object WHERE spec IS NOT NULL ORDER BY name")?
                .query_map([], |r| {
                    let (key, columns): (String, String) = (r.get(1)?, r.get(2)?);
                    let columns: serde_json::Map<String, Json> =
                        serde_json::from_str(&columns).unwrap_or_default();
                    Ok(PublishedExpansion {
                        expansion: r.get(0)?,
                        key: serde_json::from_str(&key).unwrap_or_default(),
                        columns: columns
                            .into_iter()
                            .map(|(c, t)| (c, t.as_str().unwrap_or_default().to_owned()))
                            .collect(),
                    })
                })?
                .collect()
        };
        read_expansions().map_err(|e| self.to_store_error(&e))
    }

    /// Returns at most 20 cells of a column, from rows whose key begins with `key` (each part as
    /// text, `NULL` for NULL).
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database cannot be read.
    pub fn find_cells(
        &self,
        expansion: &str,
        key: &[String],
        column: &str,
    ) -> Result<Vec<CellProvenance>, StoreError> {
        self.target.fetch_cells(self, expansion, key)?;
        let has_evidence =
            self.connection().prepare("SELECT evidence FROM hqdl_completion").is_ok();
        let evidence = if has_evidence { EVIDENCE_SQL } else { "" };
        let mut sql = format!(
            "SELECT *, {TYPED_VALUE_SQL} AS typed{evidence} FROM hqdl_cell
             WHERE expansion = ?1 AND \"column\" = ?2 COLLATE NOCASE"
        );
        for n in 0..key.len() {
            // The comparison ignores case, so that any spelling of an exact key matches.
            let key_part = format!("key ->> {n}");
            sql.push_str(&format!(
                " AND coalesce(CAST({key_part} AS TEXT), 'NULL') = ?{} COLLATE NOCASE",
                n + 3
            ));
        }
        sql.push_str(" LIMIT 20");
        let read_cells = || -> rusqlite::Result<Vec<CellProvenance>> {
            let params =
                [expansion.to_owned(), column.to_owned()].into_iter().chain(key.iter().cloned());
            self.connection()
                .prepare(&sql)?
                .query_map(rusqlite::params_from_iter(params), |r| {
                    let state: String = r.get("state")?;
                    let mut repair: Option<String> = r.get("repair")?;
                    let mut note: Option<String> = r.get("note").unwrap_or_default();
                    // Earlier versions of hqdl published the note of an override as its repair.
                    if state == "overridden" && note.is_none() {
                        note = repair.take();
                    }
                    Ok(CellProvenance {
                        expansion: r.get("expansion")?,
                        table: r.get::<_, Option<String>>("table")?.unwrap_or_default(),
                        column: r.get("column")?,
                        key: r.get("key")?,
                        state,
                        value: hqdl_values::value::Value::from_sqlite(r.get_ref("typed")?)
                            .map_or(Json::Null, |v| v.to_json()),
                        raw: r.get("raw")?,
                        repair,
                        note,
                        model: r.get("model")?,
                        // Earlier versions of hqdl published without these two columns.
                        parameters: r.get("parameters").unwrap_or_default(),
                        evidence: r
                            .get::<_, Option<String>>("shown_evidence")
                            .unwrap_or_default()
                            .and_then(|json| parse_cell_evidence(&json, column)),
                        run: r.get("run")?,
                        asked_at: r.get("asked_at")?,
                        prompt_hash: r.get("prompt_hash")?,
                        input_tokens: r.get("input_tokens")?,
                        output_tokens: r.get("output_tokens")?,
                        cost_usd: r.get("cost_usd")?,
                        assumed_cache_writes: r.get("assumed_cache_writes").unwrap_or_default(),
                        error: r.get("error")?,
                    })
                })?
                .collect()
        };
        read_cells().map_err(|e| self.to_store_error(&e))
    }
}

/// Reason why a cell's provenance is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum ProvenanceError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database has no published tables.
    #[error("{} has no published tables", .0.display())]
    NotExpanded(PathBuf),
    /// No expansion has this name.
    #[error("no expansion `{name}`")]
    NoExpansion {
        /// Requested name.
        name: String,
        /// Existing names.
        existing: Vec<String>,
    },
    /// The expansion has no such column.
    #[error("`{expansion}` has no column `{name}`")]
    NoColumn {
        /// Name of the expansion.
        expansion: String,
        /// Requested name.
        name: String,
        /// Existing names.
        existing: Vec<String>,
    },
    /// The key has too many parts.
    #[error("the key of `{expansion}` has {}, not {given}", hqdl_values::format::format_count(key.len() as u64, "part"))]
    Key {
        /// Name of the expansion.
        expansion: String,
        /// Key columns.
        key: Vec<String>,
        /// Number of values that the user passed.
        given: usize,
        /// Column of the cell.
        column: String,
    },
    /// No row has the key.
    #[error("`{expansion}` has no row with the key {}", key.join(", "))]
    NoRow {
        /// Name of the expansion.
        expansion: String,
        /// Key that the user passed.
        key: Vec<String>,
        /// Names of the key columns.
        names: Vec<String>,
    },
}

impl ProvenanceError {
    /// Returns a hint for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Store(error) => error.hint().to_owned(),
            Self::NotExpanded(_) => "run `hqdl materialize SPEC` first".to_owned(),
            Self::NoExpansion { existing, .. } => {
                format!("the expansions are: {}", existing.join(", "))
            }
            Self::NoColumn { existing: all, .. } => format!("its columns are: {}", all.join(", ")),
            Self::Key { expansion, key, column, .. } => {
                format!("hqdl why {expansion} {} {column}", key.join(" ").to_uppercase())
            }
            Self::NoRow { names, .. } => {
                format!(
                    "its key is {}; if the row is new, run `hqdl materialize` first",
                    names.join(", ")
                )
            }
        }
    }
}

impl Database {
    /// Returns the provenance of at most 20 cells of a column. `table` is the name of a table or
    /// view, and `key` contains the first key values as text (`NULL` for NULL).
    ///
    /// # Errors
    /// Returns [`ProvenanceError`] if there is no such cell, or if the database cannot be read.
    pub fn find_provenance(
        &self,
        table: &str,
        key: &[String],
        column: &str,
    ) -> Result<Vec<CellProvenance>, ProvenanceError> {
        let published = self.list_published_expansions()?;
        let in_view = || self.find_view_column(&published, table, column);
        let Some((expansion, column)) = find_column(&published, table, column).or_else(in_view)
        else {
            return Err(self.not_found_error(&published, table, column));
        };
        let (name, names) = (expansion.expansion.clone(), expansion.key.clone());
        if key.len() > names.len() {
            let given_count = key.len();
            return Err(ProvenanceError::Key {
                expansion: name,
                key: names,
                given: given_count,
                column,
            });
        }
        let cells = self.find_cells(&name, key, &column)?;
        if cells.is_empty() {
            return Err(ProvenanceError::NoRow { expansion: name, key: key.to_vec(), names });
        }
        Ok(cells)
    }

    /// Returns the expansion and the column that a column of a joined view shows. If two expansions
    /// have a column with the same name, the second column is called `EXPANSION_COLUMN` in the
    /// view.
    fn find_view_column<'p>(
        &self,
        published: &'p [PublishedExpansion],
        view: &str,
        column: &str,
    ) -> Option<(&'p PublishedExpansion, String)> {
        let sql = "SELECT sql FROM sqlite_schema WHERE type = 'view' AND name = ?1 COLLATE NOCASE";
        let text = self.connection().query_row(sql, [view], |r| r.get::<_, String>(0)).ok();
        let on_server = self.server().is_some() && view.to_lowercase().ends_with("_expanded");
        let is_joined = |p: &&PublishedExpansion| {
            let join = format!(" LEFT JOIN {} AS ", hqdl_values::sql::quote_name(&p.expansion));
            text.as_ref().map_or(on_server, |text| text.contains(&join))
        };
        let joined = || published.iter().filter(is_joined);
        let named = |long: bool| {
            joined().find_map(|p| {
                let long_name = |c: &str| format!("{}_{c}", p.expansion);
                let shows = |c: &str| {
                    let name = if long { long_name(c) } else { c.to_owned() };
                    name.eq_ignore_ascii_case(column)
                };
                p.columns.iter().find(|(c, _)| shows(c)).map(|(c, _)| (p, c.clone()))
            })
        };
        named(false).or_else(|| named(true))
    }

    /// Returns the error for a missing table or column.
    fn not_found_error(
        &self,
        published: &[PublishedExpansion],
        table: &str,
        column: &str,
    ) -> ProvenanceError {
        let is_view = table.to_lowercase().ends_with("_expanded");
        let has_view = || is_view && hqdl_spec::Catalog::table_columns(self, table).is_some();
        let named = published.iter().find(|p| p.expansion.eq_ignore_ascii_case(table));
        match named.or_else(|| published.first().filter(|_| has_view())) {
            Some(p) => ProvenanceError::NoColumn {
                expansion: p.expansion.clone(),
                name: column.to_owned(),
                existing: p.columns.iter().map(|(c, _)| c.clone()).collect(),
            },
            None if published.is_empty() => ProvenanceError::NotExpanded(self.path().to_owned()),
            None => ProvenanceError::NoExpansion {
                name: table.to_owned(),
                existing: published.iter().map(|p| p.expansion.clone()).collect(),
            },
        }
    }
}
