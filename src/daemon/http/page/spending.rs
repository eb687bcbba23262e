//! Shows the spending by day against the daily budget, and by model and column.

use std::collections::BTreeMap;
use std::sync::Arc;

use maud::{Markup, html};

use super::super::HttpState;
use super::super::query::run_blocking;
use super::plot::{BOTTOM, LEFT, RIGHT, ValueScale, draw_chart, format_coordinate};
use super::{ErrorPage, format_usd, truncate_text};
use crate::daemon::spending::ColumnCost;
use crate::daemon::status::{DaemonStatus, SpecStatus};
use crate::facts::HourlySpending;
use crate::failure::Failure;
use crate::spec::{Column, Expansion};

/// Maximum number of columns to show.
const COLUMNS: usize = 20;

/// Spending of the last days.
pub(super) struct SpendingReport {
    hours: Vec<HourlySpending>,
    columns: Vec<ColumnCost>,
    /// Dates in UTC; the last one is today.
    days: Vec<String>,
    /// Lowest daily budget of all specs.
    pub(super) daily_budget: Option<f64>,
}

/// Reads the spending of the last thirty days.
pub(super) async fn read_spending(
    state: &HttpState,
    status: &DaemonStatus,
) -> Result<SpendingReport, ErrorPage> {
    let per_day = |s: &Arc<SpecStatus>| s.active_spec.as_ref()?.spec.limits.budget_usd_per_day;
    let daily_budget = status.specs.values().filter_map(per_day).reduce(f64::min);
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let facts = Arc::clone(&state.context.facts);
    let days = list_last_days();
    let since = format!("{}T00:00:00Z", days.first().map_or("", String::as_str));
    let (spending, of_days) = (Arc::clone(&state.context.spending), days.clone());
    let read = move || {
        let hours = facts.history().load_hourly_spending(&since).map_err(Failure::from)?;
        Ok((hours, spending.compute_column_costs(&facts, &of_days).map_err(Failure::from)?))
    };
    let (hours, columns) = run_blocking(permit, client_guard, read).await?;
    Ok(SpendingReport { hours, columns, days, daily_budget })
}

/// Returns the dates of the last thirty days in UTC; the last one is today.
fn list_last_days() -> Vec<String> {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let ago = |days: i64| today.saturating_sub(jiff::Span::new().days(days)).to_string();
    (0..30).rev().map(ago).collect()
}

impl SpendingReport {
    /// Returns the USD spent on a day.
    fn sum_day_usd(&self, day: &str) -> f64 {
        sum_usd(self.hours.iter().filter(|h| h.hour.starts_with(day)))
    }

    pub(super) fn today_usd(&self) -> f64 {
        self.sum_day_usd(self.today_date())
    }

    fn today_date(&self) -> &str {
        self.days.last().map_or("", String::as_str)
    }

    pub(super) fn total_usd(&self) -> f64 {
        sum_usd(&self.hours)
    }

    pub(super) fn request_count(&self) -> u64 {
        self.hours.iter().map(|h| h.requests).sum()
    }

    /// Returns the cost of a spec's column in USD, and the number of answered cells.
    pub(super) fn sum_column_cost(&self, expansion: &Expansion, column: &Column) -> (f64, u64) {
        let mut key = expansion.key.names().to_vec();
        key.sort();
        let name = (column.name.clone(), key.join(", "));
        let cost = self.columns.iter().find(|cost| cost.column == name);
        cost.map_or((0.0, 0), |cost| (cost.usd, cost.cells))
    }

    /// Renders a sentence about what queries and other commands spent. It is for a page without a
    /// run of this daemon.
    pub(super) fn render_other_spending(&self) -> Markup {
        let usd = self.total_usd();
        html! { @if usd > 0.0 { p.quiet {
            "Queries and other commands spent the " (format_usd(usd)) " below"
            @if let Some(most) = self.columns.first().map(SpendingShare::from_cost) {
                ", most of it on " q { (truncate_text(&most.name, 200)) }
            }
            "."
        } } }
    }

    /// Renders the chart and the tables.
    pub(super) fn to_section(&self) -> Markup {
        let count = self.days.len();
        html! {
            h2 { "Spent in " (count) " days" }
            @if self.hours.is_empty() { p.quiet { "No requests were sent." } } @else {
                div.halves {
                    @if self.total_usd() > 0.0 { figure.card {
                        figcaption { "USD per day" }
                        (self.render_daily_chart())
                        p.small.quiet { (format_usd(self.today_usd())) " today"
                            @if let Some(budget) = self.daily_budget { ", of a daily budget of " (format_usd(budget)) " (dashed line)" }
                            ". Days are in UTC." }
                    } }
                    div.stack { (self.render_models_table()) (self.render_columns_table()) }
                }
            }
        }
    }

    fn render_daily_chart(&self) -> Markup {
        let spent: Vec<f64> = self.days.iter().map(|day| self.sum_day_usd(day)).collect();
        let most = spent.iter().copied().fold(self.daily_budget.unwrap_or(0.0), f64::max);
        let scale = ValueScale::covering(0.0, most, 4.0);
        let width = (RIGHT - LEFT) / self.days.len().max(1) as f64;
        let left = |n: usize| LEFT + n as f64 * width;
        let weekly = self.days.iter().enumerate().filter(|(n, _)| n % 7 == 5);
        let labels: Vec<(f64, String)> = weekly
            .map(|(n, day)| (left(n) + width / 2.0, day.get(5..).unwrap_or_default().to_owned()))
            .collect();
        let bars = html! {
            @for (n, (day, usd)) in self.days.iter().zip(&spent).enumerate().filter(|(_, (_, usd))| **usd > 0.0) {
                @let top = scale.y(*usd).min(BOTTOM - 1.0);
                rect.spent rx="1.5" x=(format_coordinate(left(n) + 2.0)) y=(format_coordinate(top))
                    width=(format_coordinate(width - 4.0)) height=(format_coordinate(BOTTOM - top)) {
                    title { (day) ": " (format_usd(*usd)) }
                }
            }
            @if let Some(budget) = self.daily_budget {
                @let y = format_coordinate(scale.y(budget));
                line.budget x1=(LEFT) x2=(RIGHT) y1=(y) y2=(y) {}
            }
        };
        let title = format!("Cost per day, last {} days (UTC)", self.days.len());
        draw_chart(&title, "$", &scale, &labels, &bars)
    }

    fn render_models_table(&self) -> Markup {
        let mut models: BTreeMap<&str, SpendingShare> = BTreeMap::new();
        for hour in &self.hours {
            let share = models.entry(&hour.model).or_insert_with(|| SpendingShare {
                name: hour.model.clone(),
                ..SpendingShare::default()
            });
            share.usd += hour.usd;
            share.count += hour.requests;
            share.today += if hour.hour.starts_with(self.today_date()) { hour.usd } else { 0.0 };
        }
        render_shares_table(
            "model",
            "requests",
            self.days.len(),
            &models.into_values().collect::<Vec<_>>(),
        )
    }

    fn render_columns_table(&self) -> Markup {
        let shown = &self.columns[..self.columns.len().min(COLUMNS)];
        let rest = self.total_usd() - shown.iter().fold(0.0, |sum, cost| sum + cost.usd);
        let more = self.columns.len() - shown.len();
        let shares: Vec<SpendingShare> = shown.iter().map(SpendingShare::from_cost).collect();
        html! {
            (render_shares_table("column", "cells", self.days.len(), &shares))
            @if !shown.is_empty() && rest >= 0.00005 {
                p.quiet {
                    (format_usd(rest)) " more went "
                    @if more > 0 { "to " (more) " other columns, and " }
                    "to requests, or parts of them, that filled no cell."
                }
            }
        }
    }
}

fn sum_usd<'h>(hours: impl IntoIterator<Item = &'h HourlySpending>) -> f64 {
    // `sum` would return -0 if there are no hours.
    hours.into_iter().fold(0.0, |sum, hour| sum + hour.usd)
}

/// A part of the spending.
#[derive(Default)]
struct SpendingShare {
    name: String,
    key_columns: String,
    today: f64,
    usd: f64,
    count: u64,
}

impl SpendingShare {
    fn from_cost(cost: &ColumnCost) -> Self {
        let (name, key_columns) = cost.column.clone();
        Self { name, key_columns, today: cost.today, usd: cost.usd, count: cost.cells }
    }
}

/// Renders shares of the spending, each with a bar.
fn render_shares_table(what: &str, counted: &str, days: usize, parts: &[SpendingShare]) -> Markup {
    let max_usd = parts.iter().fold(1e-12, |most: f64, part| most.max(part.usd));
    html! {
        @if !parts.is_empty() {
            div.wide tabindex="0" role="region" aria-label=(format!("Spending by {what}")) { table.shares {
                thead { tr { th { (what) } th.n { "today" } th.n { (days) " days" } td.bar {} th.n { (counted) } } }
                tbody { @for part in parts { tr {
                    td { (part.name) @if !part.key_columns.is_empty() { " " span.quiet { "of " (part.key_columns) } } }
                    td.n { (format_usd(part.today)) }
                    td.n { (format_usd(part.usd)) }
                    td.bar { svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" {
                        rect.spent x="0" y="0" height="10" width=(format_coordinate(part.usd / max_usd * 100.0)) {}
                    } }
                    td.n { (part.count) }
                } } }
            } }
        }
    }
}
