//! Computes and shows the facets of a view: a column's values and states with their counts, and the
//! range and distribution of its numbers.

use std::collections::{BTreeMap, HashMap};

use maud::{Markup, html};

use super::plot::{ValueScale, format_coordinate};
use super::record_cell::{RecordCell, RecordValue};
use super::row_source::{ViewColumn, find_record_cells};
use super::view::{TableView, ViewFilter};
use crate::format::format_thousands;

/// Maximum number of values to list.
const MAX_VALUES: usize = 12;
/// Maximum number of distinct values to count, and of bytes in their texts.
const MAX_DISTINCT: usize = 200_000;
const MAX_BYTES: usize = 16 << 20;
/// Maximum number of characters of a value that links to its rows.
const MAX_LINKED_CHARS: usize = 1000;
/// Approximate number of bars in a distribution.
const BARS: f64 = 12.0;

/// Content of a facet.
#[derive(Debug, Default)]
pub(super) struct Facet {
    column: String,
    /// The most frequent values with their counts; `None` is NULL.
    values: Vec<(Option<String>, u64)>,
    states: Vec<(String, u64)>,
    /// Number of distinct values; `None` if they are too many or too long to be counted.
    distinct: Option<usize>,
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

/// Collects the facets of some columns from the rows of a view, in one pass.
pub(super) struct FacetCollector<'c> {
    columns: Vec<&'c ViewColumn>,
    collected: Vec<CollectedColumn<'c>>,
}

/// Values of a column, as far as the rows have been read.
struct CollectedColumn<'c> {
    column: &'c ViewColumn,
    values: HashMap<String, u64>,
    nulls: u64,
    /// Number of bytes in the texts of the values.
    bytes: usize,
    states: BTreeMap<String, u64>,
    numbers: Vec<f64>,
    has_text: bool,
}

impl<'c> FacetCollector<'c> {
    pub(super) fn new(columns: &[&'c ViewColumn]) -> Self {
        let collected = columns.iter().map(|c| CollectedColumn::new(c)).collect();
        Self { columns: columns.to_vec(), collected }
    }

    /// Adds a row with its stored key and cells.
    pub(super) fn add_record(&mut self, key: &str, cells: &str) {
        if !self.columns.is_empty() {
            let cells = find_record_cells(key, cells, &self.columns);
            self.add_cells(&cells);
        }
    }

    /// Adds the cells of a row, one per column.
    pub(super) fn add_cells(&mut self, cells: &[Option<RecordCell<'_>>]) {
        for (column, cell) in self.collected.iter_mut().zip(cells) {
            let Some(cell) = cell else {
                column.count_state("missing");
                continue;
            };
            column.add_value(&cell.value);
            if cell.value == RecordValue::Null && !column.column.is_filled() {
                column.nulls += 1;
            }
            column.count_state(&cell.state);
        }
    }

    /// Returns true if no column can count further values.
    pub(super) fn is_full(&self) -> bool {
        self.collected.iter().all(CollectedColumn::is_full)
    }

    pub(super) fn into_facets(self) -> Vec<Facet> {
        self.collected.into_iter().map(CollectedColumn::into_facet).collect()
    }
}

impl<'c> CollectedColumn<'c> {
    fn new(column: &'c ViewColumn) -> Self {
        let (values, states) = (HashMap::new(), BTreeMap::new());
        Self { column, values, nulls: 0, bytes: 0, states, numbers: Vec::new(), has_text: false }
    }

    fn is_full(&self) -> bool {
        self.values.len() > MAX_DISTINCT || self.bytes > MAX_BYTES
    }

    fn add_value(&mut self, value: &RecordValue<'_>) {
        match value {
            RecordValue::Null => {}
            RecordValue::Integer(n) => self.numbers.push(*n as f64),
            RecordValue::Real(r) => self.numbers.push(*r),
            RecordValue::Text(_) | RecordValue::List(_) => self.has_text = true,
        }
        for item in value.items() {
            if let Some(text) = item.to_text() {
                self.count_value(&text);
            }
        }
    }

    fn count_value(&mut self, text: &str) {
        // Most values are repeated, so that their text need not be copied.
        let is_full = self.is_full();
        match self.values.get_mut(text) {
            Some(count) => *count += 1,
            None if is_full => {}
            None => {
                self.bytes += text.len();
                self.values.insert(text.to_owned(), 1);
            }
        }
    }

    fn count_state(&mut self, state: &str) {
        match self.states.get_mut(state) {
            Some(count) => *count += 1,
            None => drop(self.states.insert(state.to_owned(), 1)),
        }
    }

    fn into_facet(self) -> Facet {
        let is_full = self.is_full();
        let distinct = self.values.len() + usize::from(self.nulls > 0);
        let numbers = (!is_full && distinct > 1 && !self.numbers.is_empty() && !self.has_text)
            .then(|| Numbers::of(&self.numbers));
        let nulls = Some((None, self.nulls)).filter(|_| self.nulls > 0);
        let found = self.values.into_iter().map(|(text, count)| (Some(text), count));
        let found = found.filter(|_| !is_full).chain(nulls);
        let mut values: Vec<(Option<String>, u64)> = found.collect();
        let order = |a: &(Option<String>, u64), b: &(Option<String>, u64)| {
            b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0))
        };
        if values.len() > MAX_VALUES {
            values.select_nth_unstable_by(MAX_VALUES, order);
            values.truncate(MAX_VALUES);
        }
        values.sort_unstable_by(order);
        let mut states: Vec<(String, u64)> = self.states.into_iter().collect();
        states.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let distinct = (!is_full).then_some(distinct);
        Facet { column: self.column.name.clone(), values, states, distinct, numbers }
    }
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
                h2 { (self.column) " " @if let Some(distinct) = self.distinct { span.small.quiet { (format_thousands(distinct as u64)) " distinct" } } }
                @if self.distinct.is_none() { p.small.quiet { "Not counted: the column has too many distinct values, or its values are too long." } }
                @if let Some(numbers) = &self.numbers { (numbers.render_numbers(&self.column)) }
                ul { @for (value, count) in &self.values {
                    @let text = value.as_deref().unwrap_or("NULL");
                    @let link = value.as_ref().map_or_else(|| Some(filter("", "null")), |value| is_linked(value).then(|| filter(value, "is")));
                    @let (to, chosen) = link.map_or((None, false), |link| { let (to, chosen) = toggle(link); (Some(to), chosen) });
                    li { a href=[to] aria-current=[chosen.then_some("true")] {
                        span.name.null[value.is_none()] { @if text.trim().is_empty() { "(empty)" } @else { (super::truncate_text(text, 40)) } }
                        span.quiet { (format_thousands(*count)) }
                        svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true" {
                            rect.spent x="0" y="0" height="4" width=(format_coordinate(*count as f64 / most as f64 * 100.0)) {}
                        }
                    } }
                } }
                @if self.distinct.is_some_and(|distinct| distinct > self.values.len()) { p.small.quiet { "and more" } }
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

/// Returns true if the address of a value's rows is short enough.
fn is_linked(value: &str) -> bool {
    value.chars().nth(MAX_LINKED_CHARS).is_none()
}

impl Numbers {
    /// Returns the range and distribution of at least one number.
    fn of(numbers: &[f64]) -> Self {
        let least = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let are_integers = numbers.iter().all(|number| number.fract() == 0.0);
        let scale = if are_integers {
            ValueScale::covering_integers(least, greatest, BARS)
        } else {
            ValueScale::covering(least, greatest, BARS)
        };
        let mut counts = vec![0; scale.steps()];
        for number in numbers {
            let step = ((number - scale.low) / scale.step) as usize;
            let last = counts.len().saturating_sub(1);
            if let Some(count) = counts.get_mut(step.min(last)) {
                *count += 1;
            }
        }
        Self { least, mean, greatest, scale, counts }
    }

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
