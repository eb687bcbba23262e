//! Writes the report: scores as Markdown, JSON and charts, beside the published figures.

pub mod charts;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use crate::published::{self, PublishedFigures};
use crate::score::RunCost;
use crate::{Mode, RunScore, SwanError};
use hqdl_values::format::format_count;

/// Returns all scores as JSON. The format is stable.
#[must_use]
pub fn to_json(scored: &[RunScore]) -> Json {
    let databases: BTreeSet<&str> = scored.iter().map(|s| s.header.database.as_str()).collect();
    let figure = |p: &PublishedFigures| {
        let ex: serde_json::Map<String, Json> =
            p.ex.iter().map(|(shots, ex)| (shots.to_string(), (*ex).into())).collect();
        json!({ "system": p.system, "ex_percent_by_shots": ex })
    };
    let published: serde_json::Map<String, Json> = databases
        .into_iter()
        .map(|name| {
            let all: Vec<Json> =
                published::list_published_figures(name).iter().map(figure).collect();
            (name.to_owned(), all.into())
        })
        .collect();
    json!({ "runs": scored, "published": published })
}

/// Writes the report into a folder and returns the files' paths.
///
/// # Errors
/// [`SwanError`] if the files cannot be written.
pub fn write_report(scored: &[RunScore], dir: &Path) -> Result<Vec<PathBuf>, SwanError> {
    std::fs::create_dir_all(dir).map_err(|e| SwanError::file(dir, e))?;
    let mut json = serde_json::to_string_pretty(&to_json(scored)).unwrap_or_default();
    json.push('\n');
    let files = [
        ("report.md", Some(to_markdown(scored))),
        ("report.json", Some(json)),
        ("shots.svg", Some(charts::build_shots_chart(scored).to_svg())),
        ("cost.svg", charts::build_cost_chart(scored).map(|chart| chart.to_svg())),
        ("requests.svg", Some(charts::build_question_chart(scored).to_svg())),
    ];
    let mut written = Vec::new();
    for (name, text) in files {
        let path = dir.join(name);
        let Some(text) = text else {
            // Remove the file of an earlier report.
            let _ = std::fs::remove_file(&path);
            continue;
        };
        std::fs::write(&path, text).map_err(|e| SwanError::file(&path, e))?;
        written.push(path);
    }
    Ok(written)
}

impl RunScore {
    /// Returns the name of the run's folder.
    pub(crate) fn name(&self) -> String {
        self.dir.file_name().unwrap_or(self.dir.as_os_str()).to_string_lossy().into_owned()
    }

    /// Returns the name of the model. For a recorded run it returns the recordings instead, because
    /// the spec's model did not answer.
    fn model_name(&self) -> String {
        if self.header.recordings.is_empty() {
            return self.header.model.clone();
        }
        format!("recorded: {}", self.recordings().join(", "))
    }

    /// Returns the names of the recordings, without the number of shots.
    fn recordings(&self) -> Vec<String> {
        let shots = self.header.shots;
        let plain = |file: &String| {
            let stem = file.split('.').next().unwrap_or_default();
            let without =
                [format!("{shots}shots"), format!("{shots}shot"), format!("{shots}-shot")]
                    .iter()
                    .fold(stem.to_owned(), |stem, part| stem.replace(part, ""));
            without.trim_matches(['_', '-']).to_owned()
        };
        self.header.recordings.iter().map(plain).collect()
    }
}

/// Returns the report as Markdown.
fn to_markdown(scored: &[RunScore]) -> String {
    let mut text = "# SWAN evaluation\n\n".to_owned();
    push_runs(scored, &mut text);
    text.push_str("\n![Execution accuracy by number of shots](shots.svg)\n\n");
    if let Some(chart) = charts::build_cost_chart(scored) {
        let _ = write!(text, "![{}](cost.svg)\n\n", chart.title);
    }
    text.push_str("![Requests, question by question](requests.svg)\n");
    push_published_figures(scored, &mut text);
    push_factuality(scored, &mut text);
    push_costs(scored, &mut text);
    push_questions(scored, &mut text);
    scored.iter().for_each(|run| push_differences(run, &mut text));
    text.push_str(&format_reading_notes(scored));
    text
}

/// Appends a row of a table.
fn push_row<S: AsRef<str>>(cells: impl IntoIterator<Item = S>, text: &mut String) {
    text.push('|');
    for cell in cells {
        let cell = cell.as_ref().replace('|', "\\|").replace(['\n', '\r'], " ");
        let _ = write!(text, " {cell} |");
    }
    text.push('\n');
}

/// Appends the header of a table: left-aligned text columns, then right-aligned number columns.
fn push_header(texts: &[&str], numbers: &[&str], text: &mut String) {
    push_row(texts.iter().chain(numbers), text);
    let left = texts.iter().map(|_| "---");
    push_row(left.chain(numbers.iter().map(|_| "---:")), text);
}

fn format_percent(p: f64) -> String {
    format!("{p:.1} %")
}

fn missing_value_text() -> String {
    "–".to_owned()
}

fn format_usd(run: &RunScore, cost: f64) -> String {
    if run.header.priced { format!("${cost:.4}") } else { "?".to_owned() }
}

/// Appends the scores of each run.
fn push_runs(scored: &[RunScore], text: &mut String) {
    let numbers = [
        "shots",
        "EX",
        "EX %",
        "strict",
        "graded",
        "median error",
        "cells true",
        "SWAN's count",
        "requests",
        "tokens in",
        "tokens out",
        "cost",
    ];
    push_header(&["run", "database", "mode", "model"], &numbers, text);
    for run in scored {
        let total = run.spent;
        let facts = run.factuality.as_ref();
        push_row(
            [
                run.name(),
                run.header.database.clone(),
                run.header.mode.name().to_owned(),
                run.model_name(),
                run.header.shots.to_string(),
                format!("{:.0}/{}", run.ex.correct, run.ex.total),
                format_percent(run.ex.percent()),
                format!("{:.0}/{}", run.ex_strict.correct, run.ex_strict.total),
                format_percent(run.graded),
                run.relative_error.map_or_else(missing_value_text, |e| format_percent(100.0 * e)),
                facts.map_or_else(missing_value_text, |f| format_percent(f.cells.percent())),
                facts.map_or_else(missing_value_text, |f| format_percent(f.swan.percent())),
                total.requests.to_string(),
                total.input_tokens.to_string(),
                total.output_tokens.to_string(),
                format_usd(run, total.cost_usd),
            ],
            text,
        );
    }
    text.push_str(
        "\nEX: execution accuracy by SWAN's rule. Strict: the same rows as often, columns in \
         their order, rows in order where the gold's outermost query orders. Graded: one less the \
         relative error of single numbers, F1 of lists, on average. Median error: of single \
         numbers. Cells true: generated cells only, of columns with one value a key. Requests, \
         tokens and price are of all runs in the folder up to the first that came to its end.\n",
    );
    for run in scored {
        run.notes.iter().for_each(|n| {
            let _ = write!(text, "\nNote on {}: {n}.\n", run.name());
        });
    }
}

/// Appends the runs' execution accuracy beside the published figures.
fn push_published_figures(scored: &[RunScore], text: &mut String) {
    let databases: BTreeSet<&str> = scored.iter().map(|s| s.header.database.as_str()).collect();
    for database in databases {
        let figures = published::list_published_figures(database);
        if figures.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## Beside the published figures: {database}, EX in percent\n\n");
        let mut shots: BTreeSet<usize> = figures.iter().flat_map(|f| f.ex).map(|e| e.0).collect();
        let here = || scored.iter().filter(|s| s.header.database == database);
        shots.extend(here().map(|s| s.header.shots));
        let names: Vec<String> = shots.iter().map(|s| format_count(*s as u64, "shot")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        push_header(&["system"], &names, text);
        for (name, runs) in group_runs(here()) {
            let ex = |shots: &usize| {
                let found: Vec<String> = runs
                    .iter()
                    .filter(|run| run.header.shots == *shots)
                    .map(|run| format!("{:.1}", run.ex.percent()))
                    .collect();
                if found.is_empty() { missing_value_text() } else { found.join(", ") }
            };
            let ours = format!("hqdl, {name}");
            push_row(std::iter::once(ours).chain(shots.iter().map(ex)), text);
        }
        for figure in figures {
            let ex = |shots: &usize| {
                let found = figure.ex.iter().find(|e| e.0 == *shots);
                found.map_or_else(missing_value_text, |e| format!("{:.1}", e.1))
            };
            push_row(std::iter::once(figure.system.to_owned()).chain(shots.iter().map(ex)), text);
        }
    }
}

/// Returns the name of a series: the model and the mode. Recordings of one model that differ only
/// in the number of shots belong to the same series.
fn format_series_name(run: &RunScore) -> String {
    format!("{} (mode {})", run.model_name(), run.header.mode.name())
}

/// Returns the runs, grouped by database.
fn group_by_database(scored: &[RunScore]) -> BTreeMap<&str, Vec<&RunScore>> {
    let mut all: BTreeMap<&str, Vec<&RunScore>> = BTreeMap::new();
    for run in scored {
        all.entry(&run.header.database).or_default().push(run);
    }
    all
}

/// Returns a heading; it includes the database if there are several.
fn format_heading(title: &str, database: &str, several: bool) -> String {
    if several { format!("\n## {title}: {database}\n\n") } else { format!("\n## {title}\n\n") }
}

/// Groups runs by database, model and mode, sorted by the number of shots. If there are several
/// databases, the group's name contains the database.
pub(crate) fn group_runs<'s>(
    scored: impl IntoIterator<Item = &'s RunScore>,
) -> Vec<(String, Vec<&'s RunScore>)> {
    let scored: Vec<&RunScore> = scored.into_iter().collect();
    let databases: BTreeSet<&str> = scored.iter().map(|s| s.header.database.as_str()).collect();
    let mut all: Vec<(String, Vec<&RunScore>)> = Vec::new();
    for run in scored {
        let mut name = format_series_name(run);
        if databases.len() > 1 {
            name = format!("{}: {name}", run.header.database);
        }
        match all.iter_mut().find(|(n, _)| *n == name) {
            Some((_, runs)) => runs.push(run),
            None => all.push((name, vec![run])),
        }
    }
    all.iter_mut().for_each(|(_, runs)| runs.sort_by_key(|run| run.header.shots));
    all
}

/// Appends the factuality of the cells by column, with a table for each database.
fn push_factuality(scored: &[RunScore], text: &mut String) {
    let all = group_by_database(scored);
    for (database, runs) in &all {
        push_database_factuality(database, runs, all.len() > 1, text);
    }
    if scored.iter().all(|run| run.factuality.is_none()) {
        return;
    }
    let of = |p: &PublishedFigures| {
        let by: Vec<String> = p.ex.iter().map(|(s, f)| format!("{f:.1} ({s})")).collect();
        format!("{}: {}", p.system, by.join(", "))
    };
    let published: Vec<String> = published::FACTUALITY.iter().map(of).collect();
    let _ = write!(
        text,
        "\nPublished over all four databases by SWAN's count, by shots: {}.\n",
        published.join("; ")
    );
}

fn push_database_factuality(database: &str, runs: &[&RunScore], several: bool, text: &mut String) {
    let with: Vec<(&RunScore, _)> =
        runs.iter().filter_map(|s| Some((*s, s.factuality.as_ref()?))).collect();
    if with.is_empty() {
        return;
    }
    let title = "Data factuality: generated cells that are true, in percent (Wilson 95 %)";
    text.push_str(&format_heading(title, database, several));
    let names: Vec<String> = with.iter().map(|(s, _)| s.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    push_header(&["column"], &names, text);
    let mut columns: Vec<(&str, &str, &str)> = Vec::new();
    for c in with.iter().flat_map(|(_, f)| &f.columns) {
        let column = (c.table.as_str(), c.column.as_str(), c.measure);
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    for (table, column, measure) in columns {
        let score = |(_, f): &(&RunScore, &crate::factuality::Factuality)| {
            let found = f.columns.iter().find(|c| c.table == table && c.column == column);
            found.map_or_else(missing_value_text, |c| {
                let (low, high) = c.score.interval();
                format!("{:.1} ({low:.1}–{high:.1})", c.score.percent())
            })
        };
        let f1 = if measure == "f1" { " (F1)" } else { "" };
        let name = format!("{table}.{column}{f1}");
        push_row(std::iter::once(name).chain(with.iter().map(score)), text);
    }
    let all = with.iter().map(|(_, f)| format!("{:.1}", f.cells.percent()));
    push_row(std::iter::once("all with one value a key".to_owned()).chain(all), text);
    let swan = with.iter().map(|(_, f)| {
        format!("{:.1} ({:.2} / {})", f.swan.percent(), f.swan.correct, f.swan.total)
    });
    push_row(std::iter::once("SWAN's count".to_owned()).chain(swan), text);
}

/// Appends the cost of all questions, run by run.
fn push_costs(scored: &[RunScore], text: &mut String) {
    text.push_str("\n## Cost of all questions together\n\n");
    let numbers = [
        "requests",
        "for the tables",
        "for the questions",
        "values asked",
        "tokens in",
        "tokens out",
        "cost",
        "seconds",
    ];
    push_header(&["run", "time"], &numbers, text);
    for run in scored {
        for (n, cost) in run.runs.iter().enumerate() {
            let before = cost.materialized.unwrap_or_default().requests;
            let time = format!("{}{}", n + 1, if cost.finished { "" } else { ", not finished" });
            push_row(
                [
                    run.name(),
                    time,
                    cost.total.requests.to_string(),
                    before.to_string(),
                    cost.total.requests.saturating_sub(before).to_string(),
                    cost.total.values_asked.to_string(),
                    cost.total.input_tokens.to_string(),
                    cost.total.output_tokens.to_string(),
                    format_usd(run, cost.total.cost_usd),
                    format!("{:.1}", cost.total.seconds),
                ],
                text,
            );
        }
    }
    if scored.iter().any(|s| s.header.database == "superhero") {
        let by: Vec<String> = published::SUPERHERO_INPUT_TOKENS
            .iter()
            .map(|(shots, tokens)| format!("{tokens} ({shots})"))
            .collect();
        let _ = write!(
            text,
            "\nInput tokens of HQDL's released code for the tables of superhero, by shots: {}; one \
             request a hero.\n",
            by.join(", ")
        );
    }
    for run in scored {
        for (n, cost) in run.runs.iter().enumerate() {
            push_questions_with_requests(&format!("{}, run {}", run.name(), n + 1), cost, text);
        }
    }
}

/// Appends a table of the questions of a run for which the model was asked, if there are any.
fn push_questions_with_requests(name: &str, run: &RunCost, text: &mut String) {
    let mut so_far = run.materialized.unwrap_or_default().requests;
    let mut any = false;
    for (qid, cost) in run.questions.iter().filter(|(_, c)| c.requests > 0) {
        if !std::mem::replace(&mut any, true) {
            let _ = write!(text, "\n### Questions that asked the model: {name}\n\n");
            push_header(&["question"], &["requests", "so far", "values", "tokens in", "out"], text);
        }
        so_far += cost.requests;
        let counts =
            [cost.requests, so_far, cost.values_asked, cost.input_tokens, cost.output_tokens];
        push_row(std::iter::once(qid.clone()).chain(counts.map(|n| n.to_string())), text);
    }
}

/// Appends all questions and all runs, with a table for each database.
fn push_questions(scored: &[RunScore], text: &mut String) {
    let all = group_by_database(scored);
    for (n, (database, runs)) in all.iter().enumerate() {
        text.push_str(&format_heading("Questions", database, all.len() > 1));
        if n == 0 {
            text.push_str("Right by SWAN's rule, or the graded score.\n\n");
        }
        push_question_matrix(runs, text);
    }
}

fn push_question_matrix(runs: &[&RunScore], text: &mut String) {
    let names: Vec<String> = runs.iter().map(|run| run.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    push_header(&["question", "asked"], &names, text);
    let mut seen = BTreeSet::new();
    for q in runs.iter().flat_map(|s| &s.questions).filter(|q| seen.insert(&q.qid)) {
        let result_of = |run: &RunScore| {
            let found = run.questions.iter().find(|o| o.qid == q.qid)?;
            Some(match &found.grade {
                None => "?".to_owned(),
                Some(g) if g.swan => "right".to_owned(),
                Some(_) if found.error.is_some() => "failed".to_owned(),
                Some(g) => format!("{:.2}", g.graded),
            })
        };
        let all = runs.iter().map(|run| result_of(run).unwrap_or_else(missing_value_text));
        push_row([q.qid.clone(), q.question.clone()].into_iter().chain(all), text);
    }
}

/// Appends the differences between a run's answers and the gold answers.
fn push_differences(run: &RunScore, text: &mut String) {
    let _ = write!(text, "\n### What differed in {}\n\n", run.name());
    let wrong: Vec<_> = run.questions.iter().filter(|q| !q.difference().is_empty()).collect();
    if wrong.is_empty() {
        text.push_str("Nothing: every answer has the gold's rows.\n");
        return;
    }
    push_header(&["question", "EX", "what differed"], &["graded", "relative error"], text);
    for q in wrong {
        let grade = q.grade.clone().unwrap_or_default();
        let mut differs = q.difference().to_owned();
        if let Some(known) = &q.known {
            let _ = write!(differs, " (the query itself: {known})");
        }
        push_row(
            [
                q.qid.clone(),
                match &q.grade {
                    None => missing_value_text(),
                    Some(grade) => if grade.swan { "right" } else { "wrong" }.to_owned(),
                },
                differs,
                format!("{:.2}", grade.graded),
                grade.relative_error.map_or_else(missing_value_text, |e| format_percent(100.0 * e)),
            ],
            text,
        );
    }
}

/// Returns the notes on how to read the figures.
fn format_reading_notes(scored: &[RunScore]) -> String {
    let mut text = "\n## How to read this\n\n\
        - Execution accuracy compares whole results: a result with one wrong hero among hundreds \
        counts as wrong, and a count can be right by chance. The graded scores show how far an \
        answer is from the truth, and factuality how much the model knew.\n\
        - SWAN's rule compares rows as sorted tuples and, without ORDER BY, as sets. So it ignores \
        the order of columns, and repeated rows if both results have the same number of rows.\n\
        - SWAN's count of factuality counts superhero's key, which is given, as right. A true value \
        that is NULL counts, but is never right. A column with many values adds one F1 per key, but \
        each true value to the total. Therefore even true data does not reach 100 %.\n\
        - If a query is wrong even on the true values, the report shows what it returns there: no \
        model can answer the question with this query. Queries that also ask the model about other \
        things than the columns are not judged.\n\
        - hqdl also asks about the rows that are shown as examples. With shots, their cells are \
        true, and questions about them are given away. (SWAN's five shots contain 3-D Man, whom \
        superhero-00 asks about.)\n"
        .to_owned();
    if scored.iter().any(|s| s.header.database == "superhero") {
        text.push_str(
            "- On superhero, exact accuracy hardly measures knowledge: if the true values are \
             assigned to the wrong heroes, about nine of thirty answers are still right.\n\
             - superhero-10 depends on the order of rows: two heroes share the greatest height.\n\
             - Completions recorded in 2024 get other scores here than they did then. HQDL's \
             released code kept the blank after a comma, so that powers matched nothing. It read \
             apostrophes in names as quotes, which shifted the following fields by one. It counted \
             every text between commas as a power, in the list or not, once or twice. It replaced \
             the key in the answer with that of the request. hqdl repairs rows that a quote or a \
             list has shifted, accepts only values of the list, and counts no power twice. By \
             SWAN's rule five questions get another result. superhero-19 (the most powers) is now \
             right for GPT-3.5 Turbo with three and five shots, and superhero-15 for GPT-4 Turbo \
             without shots, where two publishers had shifted. superhero-02 is now wrong for \
             GPT-3.5 Turbo with one shot, and superhero-22 for GPT-4 Turbo without shots, where \
             two mistakes had cancelled each other out.\n",
        );
    }
    if scored.iter().any(|s| s.header.mode == Mode::Blendsql) {
        text.push_str("- BlendSQL's queries are those published in 2024, unchanged.\n");
    }
    text
}
