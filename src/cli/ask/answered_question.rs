//! The answer to a question: its rows, and how hqdl found them.

use std::io::Write;

use serde_json::{Value as Json, json};

use crate::ask::{AskPlan, FailedQuery, Prose, Turn};
use crate::cli::OutputOptions;
use crate::cli::failure::{Failure, INCOMPLETE};
use crate::cli::rows::{self, RowsFormat, RowsOut};
use crate::format::{format_count, to_single_line};
use crate::query::result::json::write_json;
use crate::query::{Dialect, Meta, QueryError, QueryResult};
use crate::usage::Usage;

/// The rows that answer a question, and how hqdl found them.
pub struct AnsweredQuestion {
    pub(super) question: String,
    pub(super) plan: AskPlan,
    pub(super) result: QueryResult,
    searched: String,
    /// Descriptions of the relaxations.
    pub(super) relaxed: Vec<String>,
    /// Queries that failed and were repaired, with their errors.
    pub(super) repairs: Vec<FailedQuery>,
    /// Columns that the model proposed, with their costs.
    pub(super) new_columns: Vec<Json>,
    /// Answer in prose; `None` if the command did not ask for one.
    pub(super) prose: Option<Prose>,
    /// Usage of the requests for SQL and prose.
    pub(super) writing: Usage,
}

impl AnsweredQuestion {
    /// Creates the answer of a query that has run. The caller fills in the other fields.
    pub(super) fn new(
        plan: AskPlan,
        result: QueryResult,
        searched: String,
        relaxed: Vec<String>,
    ) -> Self {
        Self {
            question: String::new(),
            plan,
            result,
            searched,
            relaxed,
            repairs: Vec::new(),
            new_columns: Vec::new(),
            prose: None,
            writing: Usage::default(),
        }
    }

    pub fn exit_code(&self) -> u8 {
        let meta = &self.result.meta;
        if meta.values_missing == meta.values_unknown { 0 } else { INCOMPLETE }
    }

    /// Returns the question with its query.
    pub fn to_turn(&self) -> Turn {
        Turn {
            question: self.question.clone(),
            sql: self.plan.sql.trim().to_owned(),
            rows: self.result.rows.len() as u64,
            can_be_example: self.plan.dialect == Dialect::Sqlite && self.relaxed.is_empty(),
        }
    }

    /// Prints the rows on stdout and the searched tables on stderr. Returns false if
    /// stdout is closed.
    pub fn print(
        &self,
        format: RowsFormat,
        output_options: OutputOptions,
    ) -> Result<bool, Failure> {
        if output_options.json {
            anstream::println!("{}", self.to_json());
            return Ok(true);
        }
        self.print_prose(format, output_options);
        let mut rows = rows::new_stdout_writer(format);
        match self.write_rows(rows.as_mut()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
            Err(e) => return Err(QueryError::Output(e).into()),
            Ok(()) => {}
        }
        if !output_options.quiet {
            if self.result.rows.is_empty() {
                anstream::eprintln!("no results: {}", self.searched);
            } else {
                let count = format_count(self.result.rows.len() as u64, "row");
                anstream::eprintln!("{count}: {}", self.searched);
            }
        }
        Ok(true)
    }

    /// Prints the answer in prose: above the rows if they are a table, otherwise on stderr, so that
    /// stdout contains only rows.
    fn print_prose(&self, format: RowsFormat, output_options: OutputOptions) {
        match &self.prose {
            // A reader may close the pipe early; in that case, writing the rows fails.
            Some(Prose::Written(text)) if format == RowsFormat::Table => {
                let _ = writeln!(std::io::stdout(), "{text}\n");
            }
            Some(Prose::Written(text)) => anstream::eprintln!("{text}"),
            Some(Prose::Missing(why)) if !output_options.quiet => {
                anstream::eprintln!("note: no prose: {}", to_single_line(why));
            }
            _ => {}
        }
    }

    pub fn write_rows(&self, out: &mut dyn RowsOut) -> std::io::Result<()> {
        out.write_columns(&self.result.columns)?;
        for row in &self.result.rows {
            let values: Vec<rusqlite::types::ValueRef<'_>> = row.iter().map(Into::into).collect();
            out.write_row(&values)?;
        }
        out.finish()?;
        out.close_output(Ok(&self.result.meta.to_json())).map(drop)
    }

    fn to_json(&self) -> Json {
        let repair = |failed: &FailedQuery| json!({ "sql": failed.sql, "error": failed.error });
        let repairs: Vec<Json> = self.repairs.iter().map(repair).collect();
        let usage = &self.writing;
        let cell = |value: &rusqlite::types::Value| {
            let mut bytes = Vec::new();
            let _ = write_json(&mut bytes, value.into());
            serde_json::from_slice::<Json>(&bytes).unwrap_or_default()
        };
        let rows: Vec<Vec<Json>> =
            self.result.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        let meta: &Meta = &self.result.meta;
        let (prose, prose_problem) = match &self.prose {
            Some(Prose::Written(text)) => (Some(text), None),
            Some(Prose::Missing(why)) => (None, Some(why)),
            None => (None, None),
        };
        json!({
            "event": "answered", "question": self.question, "plan": self.plan.id, "sql": self.plan.sql,
            "dialect": self.plan.dialect.name(), "assumptions": self.plan.assumptions,
            "repairs": repairs, "relaxed": self.relaxed, "searched": self.searched,
            "writing": { "requests": usage.requests, "cost_usd": usage.cost_usd },
            "prose": prose, "prose_problem": prose_problem, "new_columns": self.new_columns,
            "columns": self.result.columns, "rows": rows, "meta": meta.to_json(),
        })
    }
}
