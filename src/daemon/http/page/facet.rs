//! Computes and shows the facets of a view: a column's values and states with their counts, and the
//! range and distribution of its numbers.

use maud::{Markup, html};
use rusqlite::{Connection, params_from_iter};

use super::plot::{ValueScale, format_coordinate};
use super::view::{BoundSql, TableView, ViewColumn, ViewFilter};
use crate::format::format_thousands;

/// Maximum number of values to list.
const MAX_VALUES: usize = 12;
/// Approximate number of bars in a distribution.
const BARS: f64 = 12.0;

/// Content of a facet.
#[derive(Debug, Default)]
pub(super) struct Facet {
    column: String,
    /// Values with their counts, most frequent first.
    values: Vec<(String, u64)>,
    more: bool,
    states: Vec<(String, u64)>,
    distinct: u64,
    numbers: Option<Numbers>,
}

/// Range and distribution of numbers.
#[derive(Debug)]
struct Numbers {
    least: f64,
    mean: f64,
    greatest: f64,
    scale: ValueScale,
    /// Number of values in each bar. Each bar covers one step of the scale.
    counts: Vec<u64>,
}

/// Computes the facet of a column over the view's rows.
pub(super) fn compute_facet(
    connection: &Connection,
    view: &TableView,
    expansion: &str,
    columns: &[ViewColumn],
    column: &ViewColumn,
) -> rusqlite::Result<Facet> {
    let rows = || view.rows_sql(expansion, columns);
    let counts = |sql: BoundSql| -> rusqlite::Result<Vec<(String, u64)>> {
        let mut statement = connection.prepare(&sql.sql)?;
        statement.query_map(params_from_iter(sql.params), |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
    };
    let (value, state) = (column.value_sql(), column.state_sql());
    let mut values =
        BoundSql::new("SELECT CAST(e.value AS TEXT), count(*) FROM (SELECT key AS k, cells ", []);
    if column.key_part.is_some() {
        values = BoundSql::new(
            &format!(
                "SELECT v, count(*) FROM (SELECT coalesce(CAST({value} AS TEXT), 'NULL') AS v "
            ),
            [],
        );
    }
    let mut values = values.append(rows());
    match column.key_part {
        Some(_) => values.push(") AS r", []),
        None => {
            let cells = column.values_sql();
            values.push(&format!(") AS r, {cells} AS e WHERE e.value IS NOT NULL"), []);
        }
    }
    values.push(&format!(" GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT {}", MAX_VALUES + 1), []);
    let mut values = counts(values)?;
    let more = values.len() > MAX_VALUES;
    values.truncate(MAX_VALUES);
    let mut states = BoundSql::new(&format!("SELECT {state}, count(*) "), []).append(rows());
    states.push(" GROUP BY 1 ORDER BY 2 DESC, 1", []);
    let sql = BoundSql::new(
        &format!(
            "SELECT count(DISTINCT x), min(x), avg(x), max(x), total(typeof(x) IN ('text', 'blob'))
             FROM (SELECT {value} AS x "
        ),
        [],
    );
    let mut sql = sql.append(rows());
    sql.push(")", []);
    let (distinct, range) = connection.query_row(&sql.sql, params_from_iter(sql.params), |r| {
        let texts: f64 = r.get(4)?;
        let range =
            if texts > 0.0 { None } else { r.get(1).ok().zip(r.get(2).ok()).zip(r.get(3).ok()) };
        Ok((r.get(0)?, range))
    })?;
    let numbers = match range {
        Some(((least, mean), greatest)) if distinct > 1 => {
            let scale = ValueScale::covering(least, greatest, BARS);
            let counts = count_distribution(connection, &value, rows(), &scale)?;
            Some(Numbers { least, mean, greatest, scale, counts })
        }
        _ => None,
    };
    let column = column.name.clone();
    Ok(Facet { column, values, more, states: counts(states)?, distinct, numbers })
}

/// Counts the numbers in each step of a scale.
fn count_distribution(
    connection: &Connection,
    value: &str,
    rows: BoundSql,
    scale: &ValueScale,
) -> rusqlite::Result<Vec<u64>> {
    let (low, step, steps) = (scale.low, scale.step, scale.steps());
    let sql = BoundSql::new(
        &format!(
            "SELECT min(CAST(({value} - {low:?}) / {step:?} AS INTEGER), {steps} - 1), count(*) "
        ),
        [],
    );
    let mut sql = sql.append(rows);
    sql.push(&format!(" AND {value} IS NOT NULL GROUP BY 1"), []);
    let mut counts = vec![0; steps];
    let mut statement = connection.prepare(&sql.sql)?;
    let mut found = statement.query(params_from_iter(sql.params))?;
    while let Some(row) = found.next()? {
        if let Some(count) = counts.get_mut(row.get::<_, i64>(0)?.max(0) as usize) {
            *count = row.get(1)?;
        }
    }
    Ok(counts)
}

impl Facet {
    /// Returns true if the facet belongs to a column.
    pub(super) fn is_for_column(&self, column: &ViewColumn) -> bool {
        self.column == column.name
    }

    /// Renders the facet; `link` returns the address of a view.
    pub(super) fn to_section(
        &self,
        view: &TableView,
        link: &dyn Fn(&TableView) -> String,
    ) -> Markup {
        let filter = |value: &str, condition| ViewFilter {
            column: self.column.clone(),
            condition,
            value: value.to_owned(),
        };
        let toggle = |wanted: ViewFilter| {
            let chosen = view.filters.contains(&wanted);
            let changed = view.with_change(|view| {
                if chosen {
                    view.filters.retain(|f| *f != wanted);
                } else {
                    view.filters.push(wanted);
                }
            });
            (link(&changed), chosen)
        };
        let most = self.values.first().map_or(1, |(_, count)| *count).max(1);
        html! {
            section.card.facet {
                h2 { (self.column) " " span.small.quiet { (format_thousands(if self.more { self.distinct } else { self.values.len() as u64 })) " distinct" } }
                @if let Some(numbers) = &self.numbers { (numbers.render_numbers(&self.column)) }
                ul { @for (value, count) in &self.values {
                    @let (to, chosen) = toggle(filter(value, "is"));
                    li { a href=(to) aria-current=[chosen.then_some("true")] {
                        span.name { @if value.trim().is_empty() { "(empty)" } @else { (super::truncate_text(value, 40)) } }
                        span.quiet { (format_thousands(*count)) }
                        svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" {
                            rect.spent x="0" y="0" height="4" width=(format_coordinate(*count as f64 / most as f64 * 100.0)) {}
                        }
                    } }
                } }
                @if self.more { p.small.quiet { "and more" } }
                @if self.states.iter().any(|(state, _)| state != "ok") {
                    p.small { @for (state, count) in &self.states {
                        @let (to, chosen) = toggle(filter(state, "state"));
                        a class={ "badge " (state) } href=(to) aria-current=[chosen.then_some("true")] { (state) " " (format_thousands(*count)) } " "
                    } }
                }
            }
        }
    }
}

impl Numbers {
    fn render_numbers(&self, column: &str) -> Markup {
        let most = self.counts.iter().copied().max().unwrap_or(1).max(1) as f64;
        let width = 100.0 / self.counts.len().max(1) as f64;
        html! {
            svg.distribution viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label=(format!("Distribution of {column}")) {
                @for (n, count) in self.counts.iter().enumerate() {
                    @let height = *count as f64 / most * 29.0;
                    rect.spent x=(format_coordinate(n as f64 * width + 0.4)) y=(format_coordinate(30.0 - height)) width=(format_coordinate(width - 0.8)) height=(format_coordinate(height)) {
                        title { (format_thousands(*count)) " from " (self.scale.low + n as f64 * self.scale.step) }
                    }
                }
            }
            p.small.quiet { (self.least) " to " (self.greatest) ", mean " (format!("{:.4}", self.mean).trim_end_matches('0').trim_end_matches('.')) }
        }
    }
}
