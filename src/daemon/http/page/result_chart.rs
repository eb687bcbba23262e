//! Draws a chart of a query's rows. The types of the columns determine the kind of chart: bars, a
//! line, a histogram or points. Columns `x_low` and `x_high` beside a column `x` become error bars, and
//! a further column can give the marks their colors.

use maud::{Markup, html};

use super::plot::{
    BOTTOM, ChartFrame, LEGEND_ROW, RIGHT, TOP, ValueScale, WIDTH, count_legend_rows,
    draw_framed_chart, draw_legend, format_coordinate, list_tick_labels,
};
use super::truncate_text;

/// Maximum number of bars.
const MAX_BARS: usize = 25;
/// Maximum number of series; further ones are drawn as one.
pub(super) const MAX_SERIES: usize = 8;
/// Height of a bar and the space below it; `BAR_LEFT` leaves room for the labels.
const BAR_ROW: f64 = 30.0;
/// Height of a bar in a group of several series.
const GROUPED_BAR: f64 = 16.0;
const BAR_LEFT: f64 = 220.0;
/// Maximum length of a bar's label, in characters.
const LABEL_CHARS: usize = 12;
/// Approximate number of bars in a histogram.
const HISTOGRAM_BARS: f64 = 20.0;

/// A value of a result.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ShownValue {
    /// Text; `None` is NULL.
    pub(super) text: Option<String>,
    pub(super) number: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChartKind {
    Bar,
    Line,
    Histogram,
    Scatter,
}

impl ChartKind {
    pub(super) const ALL: [Self; 4] = [Self::Bar, Self::Line, Self::Histogram, Self::Scatter];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bar => "bar",
            Self::Line => "line",
            Self::Histogram => "histogram",
            Self::Scatter => "scatter",
        }
    }
}

/// The user's choice of a chart: its kind and the names of its columns. If a field is empty, the
/// column types determine it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChartChoice<'a> {
    pub(super) kind: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    pub(super) series: &'a str,
}

/// A chart of some rows.
#[derive(Debug, PartialEq)]
pub(super) struct ResultChart {
    pub(super) kind: ChartKind,
    /// Index of the column of the x axis or of the bars' labels.
    pub(super) x: usize,
    /// Column of the values; if `None`, bars count rows.
    pub(super) y: Option<usize>,
    /// Column that determines the color of each mark.
    pub(super) series: Option<usize>,
}

/// Columns and rows of a result.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResultRows<'r> {
    pub(super) columns: &'r [String],
    pub(super) rows: &'r [Vec<ShownValue>],
    /// Number of rows of the whole result.
    pub(super) count: usize,
}

/// A mark of a chart: its label or x coordinate, its value, and the value's interval.
struct Mark {
    label: String,
    x: f64,
    y: f64,
    interval: Option<(f64, f64)>,
    /// Position in the names of the series.
    series: usize,
}

/// Series of a chart.
struct SeriesNames {
    /// Names in the order of the rows; empty if the marks have one color.
    names: Vec<String>,
    /// Position of each row's name.
    of_rows: Vec<usize>,
}

impl ResultRows<'_> {
    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let mut values = self.rows.iter().map(|row| &row[column]).filter(|v| v.text.is_some());
        values.clone().next().is_some() && values.all(|value| value.number.is_some())
    }

    fn find_column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    /// Returns true if a column is part of another column's interval.
    fn is_interval_column(&self, column: usize) -> bool {
        ["_low", "_high", "_estimate"].iter().any(|suffix| {
            let of = self.columns[column].strip_suffix(suffix);
            of.is_some_and(|of| self.find_column(of).is_some())
        })
    }

    /// Returns true if the numbers of a column ascend, within each series.
    fn is_ascending(&self, column: usize, series: Option<usize>) -> bool {
        let series = self.name_series(series);
        let is_ascending = |n: usize| {
            let rows = self.rows.iter().zip(&series.of_rows).filter(|(_, of)| **of == n);
            let numbers: Vec<f64> = rows.filter_map(|(row, _)| row[column].number).collect();
            numbers.len() > 2 && numbers.windows(2).all(|pair| pair[0] < pair[1])
        };
        (0..series.names.len().max(1)).all(is_ascending)
    }

    /// Returns the names of the series with the position of each row's series.
    fn name_series(&self, column: Option<usize>) -> SeriesNames {
        let Some(column) = column else {
            return SeriesNames { names: Vec::new(), of_rows: vec![0; self.rows.len()] };
        };
        let mut names: Vec<String> = Vec::new();
        let mut position = |row: &Vec<ShownValue>| {
            let name = row[column].text.as_deref().unwrap_or("NULL");
            if let Some(n) = names.iter().position(|known| known == name) {
                return n.min(MAX_SERIES - 1);
            }
            names.push(name.to_owned());
            (names.len() - 1).min(MAX_SERIES - 1)
        };
        let of_rows = self.rows.iter().map(&mut position).collect();
        if names.len() > MAX_SERIES {
            names.truncate(MAX_SERIES - 1);
            names.push("other".to_owned());
        }
        SeriesNames { names, of_rows }
    }

    /// Returns the first text column that separates rows with the same x into a few series.
    fn find_series(&self, x: usize, y: Option<usize>, candidates: &[usize]) -> Option<usize> {
        let count = |columns: &[usize]| {
            let values = |row: &Vec<ShownValue>| -> Vec<String> {
                columns.iter().map(|c| row[*c].text.clone().unwrap_or_default()).collect()
            };
            self.rows.iter().map(values).collect::<std::collections::BTreeSet<_>>().len()
        };
        let is_series = |column: &usize| {
            *column != x
                && Some(*column) != y
                && !self.is_numeric(*column)
                && (2..=MAX_SERIES).contains(&count(&[*column]))
                && count(&[x]) < count(&[x, *column])
        };
        candidates.iter().copied().find(is_series)
    }

    /// Chooses a chart, or returns `None` if there is nothing to draw.
    pub(super) fn choose_chart(&self, choice: ChartChoice<'_>) -> Option<ResultChart> {
        let plain: Vec<usize> =
            (0..self.columns.len()).filter(|column| !self.is_interval_column(*column)).collect();
        if self.rows.len() < 2 || choice.kind == "none" {
            return None;
        }
        let kind = ChartKind::ALL.into_iter().find(|kind| kind.name() == choice.kind);
        let numeric: Vec<usize> =
            plain.iter().copied().filter(|column| self.is_numeric(*column)).collect();
        let text = plain.iter().copied().find(|column| !self.is_numeric(*column));
        let wanted_x = self.find_column(choice.x);
        let wanted_y = self.find_column(choice.y).filter(|column| self.is_numeric(*column));
        let x = match (wanted_x, kind) {
            (Some(x), _) => x,
            (None, Some(ChartKind::Line | ChartKind::Scatter | ChartKind::Histogram)) => {
                *numeric.first()?
            }
            (None, _) => text.or_else(|| numeric.first().copied())?,
        };
        let y = wanted_y.or_else(|| numeric.iter().copied().find(|column| *column != x));
        let series = match choice.series {
            "" => self.find_series(x, y, &plain),
            name => self.find_column(name).filter(|column| *column != x),
        };
        let kind = kind.unwrap_or(match (self.is_numeric(x), y) {
            (false, _) => ChartKind::Bar,
            (true, None) => ChartKind::Histogram,
            (true, Some(_)) if self.is_ascending(x, series) => ChartKind::Line,
            (true, Some(_)) => ChartKind::Scatter,
        });
        // A histogram has one series. Bars that count rows have colors only if the user asks for them.
        let has_series = kind != ChartKind::Histogram && (y.is_some() || !choice.series.is_empty());
        let series = series.filter(|_| has_series);
        let is_drawable = match kind {
            ChartKind::Bar => true,
            ChartKind::Histogram => self.is_numeric(x),
            ChartKind::Line | ChartKind::Scatter => self.is_numeric(x) && y.is_some(),
        };
        is_drawable.then_some(ResultChart { kind, x, y, series })
    }

    pub(super) fn draw_rows(&self, chart: &ResultChart) -> Markup {
        match chart.kind {
            ChartKind::Bar => {
                let series = self.name_series(chart.series);
                draw_bars(
                    &self.title(chart),
                    &self.collect_bar_marks(chart, &series),
                    &series.names,
                )
            }
            ChartKind::Histogram => self.draw_histogram(chart),
            ChartKind::Line | ChartKind::Scatter => self.draw_points(chart),
        }
    }

    /// Returns the title of a chart, such as `born by name`. If the chart shows only the first rows of
    /// the result, the title includes their number.
    pub(super) fn title(&self, chart: &ResultChart) -> String {
        let x = &self.columns[chart.x];
        let title = match (chart.kind, chart.y) {
            (ChartKind::Histogram, _) => format!("Distribution of {x}"),
            (_, Some(y)) => format!("{} by {x}", self.columns[y]),
            (_, None) => format!("Rows by {x}"),
        };
        let title = match chart.series {
            Some(series) => format!("{title} and {}", self.columns[series]),
            None => title,
        };
        if self.rows.len() < self.count {
            format!("{title}, first {} of {} rows", self.rows.len(), self.count)
        } else {
            title
        }
    }

    fn collect_marks(&self, chart: &ResultChart, y: usize, series: &SeriesNames) -> Vec<Mark> {
        let bound = |suffix: &str| self.find_column(&format!("{}{suffix}", self.columns[y]));
        let bounds = bound("_low").zip(bound("_high"));
        let mark = |(row, series): (&Vec<ShownValue>, &usize)| {
            let interval = bounds.and_then(|(l, h)| row[l].number.zip(row[h].number));
            let label = row[chart.x].text.clone().unwrap_or_else(|| "NULL".to_owned());
            let x = row[chart.x].number.unwrap_or(f64::NAN);
            Some(Mark { label, x, y: row[y].number?, interval, series: *series })
        };
        self.rows.iter().zip(&series.of_rows).filter_map(mark).collect()
    }

    fn collect_bar_marks(&self, chart: &ResultChart, series: &SeriesNames) -> Vec<Mark> {
        if let Some(y) = chart.y {
            return self.collect_marks(chart, y, series);
        }
        let mut counts: Vec<Mark> = Vec::new();
        for (row, series) in self.rows.iter().zip(&series.of_rows) {
            let label = row[chart.x].text.as_deref().unwrap_or("NULL");
            let is_same = |mark: &&mut Mark| mark.label == label && mark.series == *series;
            match counts.iter_mut().find(is_same) {
                Some(mark) => mark.y += 1.0,
                None => {
                    let (label, series) = (label.to_owned(), *series);
                    counts.push(Mark { label, x: 0.0, y: 1.0, interval: None, series });
                }
            }
        }
        counts.sort_by(|a, b| b.y.total_cmp(&a.y));
        counts
    }

    fn draw_points(&self, chart: &ResultChart) -> Markup {
        let is_line = chart.kind == ChartKind::Line;
        let series = self.name_series(chart.series);
        let mut marks = chart.y.map_or_else(Vec::new, |y| self.collect_marks(chart, y, &series));
        marks.retain(|mark| mark.x.is_finite());
        if is_line {
            marks.sort_by(|a, b| a.x.total_cmp(&b.x));
        }
        let (x, y) =
            (build_scale(marks.iter().map(|m| m.x), 6.0), choose_value_scale(&marks, false));
        let line = |n: usize| {
            let own = marks.iter().filter(|mark| mark.series == n);
            let points = own.map(|m| format!("{:.1},{:.1}", x.x(m.x), y.y(m.y)));
            points.collect::<Vec<_>>().join(" ")
        };
        let content = html! {
            @if is_line { @for n in 0..series.names.len().max(1) { polyline class=(format!("line s{n}")) points=(line(n)) {} } }
            @for mark in &marks {
                @let (left, top) = (x.x(mark.x), y.y(mark.y));
                @if let Some((low, high)) = mark.interval {
                    @let at = format_coordinate(left);
                    line.interval x1=(at) x2=(at) y1=(format_coordinate(y.y(low))) y2=(format_coordinate(y.y(high))) {}
                }
                path class=(format!("point s{}", mark.series)) d=(draw_point(left, top, if is_line { 2.5 } else { 4.0 }, mark.series)) {
                    title { @if let Some(name) = series.names.get(mark.series) { (name) ", " } (mark.label) ": " (mark.y) }
                }
            }
        };
        let frame = ChartFrame { title: &self.title(chart), unit: "", series: &series.names };
        draw_framed_chart(frame, &y, &list_tick_labels(&x), &content)
    }

    fn draw_histogram(&self, chart: &ResultChart) -> Markup {
        let numbers: Vec<f64> = self.rows.iter().filter_map(|row| row[chart.x].number).collect();
        let x = build_scale(numbers.iter().copied(), HISTOGRAM_BARS);
        let mut counts = vec![0u32; x.steps()];
        for number in &numbers {
            let step = ((number - x.low) / x.step).floor().max(0.0) as usize;
            if let Some(count) = counts.get_mut(step.min(x.steps().saturating_sub(1))) {
                *count += 1;
            }
        }
        let most = counts.iter().copied().max().unwrap_or(1);
        // With a smaller maximum, the scale would have ticks between whole numbers.
        let y = ValueScale::covering(0.0, f64::from(most.max(4)), 4.0);
        let content = html! {
            @for (n, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                @let (low, top) = (x.low + n as f64 * x.step, y.y(f64::from(*count)));
                rect.spent x=(format_coordinate(x.x(low) + 1.0)) width=(format_coordinate(x.x(low + x.step) - x.x(low) - 2.0))
                    y=(format_coordinate(top)) height=(format_coordinate(BOTTOM - top)) { title { (count) " from " (low) } }
            }
        };
        let frame = ChartFrame { title: &self.title(chart), unit: "", series: &[] };
        draw_framed_chart(frame, &y, &list_tick_labels(&x), &content)
    }
}

/// Returns the outline of a point: the series differ in shape, too, so that they can be
/// distinguished without color.
fn draw_point(x: f64, y: f64, r: f64, series: usize) -> String {
    match series % 4 {
        0 => format!(
            "M{:.1} {y:.1}a{r} {r} 0 1 0 {d:.1} 0a{r} {r} 0 1 0 -{d:.1} 0Z",
            x - r,
            d = 2.0 * r
        ),
        1 => format!("M{:.1} {:.1}h{d:.1}v{d:.1}h-{d:.1}Z", x - r, y - r, d = 2.0 * r),
        2 => format!(
            "M{x:.1} {:.1}L{:.1} {:.1}H{:.1}Z",
            y - 1.3 * r,
            x + 1.2 * r,
            y + r,
            x - 1.2 * r
        ),
        _ => format!(
            "M{x:.1} {:.1}l{d:.1} {d:.1}l-{d:.1} {d:.1}l-{d:.1} -{d:.1}Z",
            y - 1.3 * r,
            d = 1.3 * r
        ),
    }
}

/// Groups the bars by label if they have several series. Otherwise each bar is a group.
fn group_bars<'m>(marks: &'m [Mark], series: &[String]) -> Vec<(&'m str, Vec<&'m Mark>)> {
    let mut groups: Vec<(&str, Vec<&Mark>)> = Vec::new();
    for mark in marks {
        let is_own = |(label, _): &&mut (&str, Vec<&Mark>)| *label == mark.label;
        match groups.iter_mut().find(is_own).filter(|_| !series.is_empty()) {
            Some((_, group)) => group.push(mark),
            None => groups.push((&mark.label, vec![mark])),
        }
    }
    for (_, group) in &mut groups {
        group.sort_by_key(|mark| mark.series);
    }
    groups
}

/// Draws horizontal bars, because they leave room for the labels.
fn draw_bars(title: &str, marks: &[Mark], series: &[String]) -> Markup {
    let shown = &marks[..marks.len().min(MAX_BARS)];
    let groups = group_bars(shown, series);
    let is_grouped = groups.iter().any(|(_, group)| group.len() > 1);
    let bar = if is_grouped { GROUPED_BAR } else { BAR_ROW - 8.0 };
    // A label needs the height of one row.
    let group_height = |group: &[&Mark]| (group.len() as f64 * bar + 8.0).max(BAR_ROW);
    let scale = choose_value_scale(shown, true);
    let bottom = TOP + groups.iter().map(|(_, group)| group_height(group)).sum::<f64>();
    let height = bottom + 28.0 + count_legend_rows(series) as f64 * LEGEND_ROW;
    let x = |value: f64| BAR_LEFT + scale.position(value) * (RIGHT - BAR_LEFT);
    let ticks = scale.ticks();
    let every = if ticks.len() > 5 { 2 } else { 1 };
    let mut next = TOP;
    let mut begin_group = |group: &[&Mark]| {
        next += group_height(group);
        next - group_height(group) + 4.0
    };
    html! {
        svg.chart viewBox=(format!("0 0 {WIDTH} {height}")) role="img" aria-label=(title) {
            @for (value, label) in ticks.into_iter().step_by(every) {
                @let at = format_coordinate(x(value));
                line.grid x1=(at) x2=(at) y1=(TOP) y2=(bottom) {}
                text x=(at) y=(bottom + 22.0) text-anchor="middle" { (label) }
            }
            @for (label, group) in &groups {
                @let top = begin_group(group);
                text x=(BAR_LEFT - 8.0) y=(format_coordinate(top + 16.0)) text-anchor="end" { (truncate_text(label, LABEL_CHARS)) }
                @for (n, mark) in group.iter().enumerate() {
                    @let top = top + n as f64 * bar;
                    (draw_bar(mark, (top, bar), &x, series.get(mark.series)))
                }
            }
            line.axis x1=(format_coordinate(x(0.0))) x2=(format_coordinate(x(0.0))) y1=(TOP) y2=(bottom) {}
            (draw_legend(series, bottom + 28.0))
        }
        @if marks.len() > shown.len() { p.small.quiet { "The first " (shown.len()) " of " (marks.len()) " bars." } }
    }
}

/// Draws a bar with its interval. `x` returns the coordinate of a value.
fn draw_bar(
    mark: &Mark,
    (top, height): (f64, f64),
    x: &dyn Fn(f64) -> f64,
    series: Option<&String>,
) -> Markup {
    let (from, to) = (x(mark.y.min(0.0)), x(mark.y.max(0.0)));
    let middle = format_coordinate(top + height / 2.0);
    html! {
        rect class=(format!("spent s{}", mark.series)) x=(format_coordinate(from)) y=(format_coordinate(top)) width=(format_coordinate((to - from).max(1.0))) height=(height) {
            title { @if let Some(name) = series { (name) ", " } (mark.label) ": " (mark.y) }
        }
        @if let Some((low, high)) = mark.interval {
            line.interval x1=(format_coordinate(x(low))) x2=(format_coordinate(x(high))) y1=(middle) y2=(middle) {}
        }
    }
}

/// Returns a scale that covers the values and their intervals.
fn choose_value_scale(marks: &[Mark], with_zero: bool) -> ValueScale {
    let ends = marks.iter().flat_map(|mark| {
        let (low, high) = mark.interval.unwrap_or((mark.y, mark.y));
        [mark.y, low, high]
    });
    build_scale(ends.chain(with_zero.then_some(0.0)), 4.0)
}

/// Returns a scale that covers all finite numbers.
fn build_scale(numbers: impl Iterator<Item = f64>, ticks: f64) -> ValueScale {
    let range = numbers.filter(|n| n.is_finite()).fold(None, |range: Option<(f64, f64)>, n| {
        Some(range.map_or((n, n), |(low, high)| (low.min(n), high.max(n))))
    });
    let (low, high) = range.unwrap_or((0.0, 1.0));
    ValueScale::covering(low, high, ticks)
}

#[cfg(test)]
mod tests {
    use super::{ChartChoice, ChartKind, ResultChart, ResultRows, ShownValue};

    fn choose_chart_of_kind(columns: &[&str], rows: &[&[&str]], kind: &str) -> Option<ResultChart> {
        let columns: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
        let value =
            |text: &&str| ShownValue { text: Some((*text).to_owned()), number: text.parse().ok() };
        let rows: Vec<Vec<ShownValue>> =
            rows.iter().map(|r| r.iter().map(value).collect()).collect();
        let rows = ResultRows { columns: &columns, rows: &rows, count: rows.len() };
        let chart = rows.choose_chart(ChartChoice { kind, ..ChartChoice::default() })?;
        assert!(rows.draw_rows(&chart).into_string().contains("<svg"));
        Some(chart)
    }

    #[test]
    fn the_types_of_the_columns_choose_the_chart() {
        let chart = |kind, x, y| Some(ResultChart { kind, x, y, series: None });
        let groups: &[&[&str]] = &[&["a", "3", "2", "5"], &["b", "1", "0", "2"]];
        assert_eq!(
            choose_chart_of_kind(&["g", "n", "n_low", "n_high"], groups, ""),
            chart(ChartKind::Bar, 0, Some(1))
        );
        let names: &[&[&str]] = &[&["a"], &["b"], &["a"]];
        assert_eq!(choose_chart_of_kind(&["g"], names, ""), chart(ChartKind::Bar, 0, None));
        let years: &[&[&str]] = &[&["1990", "2"], &["1991", "7"], &["1992", "-1"]];
        assert_eq!(
            choose_chart_of_kind(&["year", "n"], years, ""),
            chart(ChartKind::Line, 0, Some(1))
        );
        assert_eq!(
            choose_chart_of_kind(&["year", "n"], years, "histogram"),
            chart(ChartKind::Histogram, 0, Some(1))
        );
        let points: &[&[&str]] = &[&["3", "2"], &["1", "7"], &["2", "5"]];
        assert_eq!(
            choose_chart_of_kind(&["a", "b"], points, ""),
            chart(ChartKind::Scatter, 0, Some(1))
        );
        assert_eq!(
            choose_chart_of_kind(&["a"], &[&["3"], &["1"]], ""),
            chart(ChartKind::Histogram, 0, None)
        );
        assert_eq!(choose_chart_of_kind(&["a"], names, "scatter"), None);
        assert_eq!(choose_chart_of_kind(&["a"], &[&["3"]], ""), None);
        assert_eq!(choose_chart_of_kind(&["a"], names, "none"), None);
    }

    #[test]
    fn a_further_column_colors_the_marks() {
        let chart = |kind, x, y| Some(ResultChart { kind, x, y: Some(y), series: Some(1) });
        let years: &[&[&str]] = &[
            &["1990", "Berlin", "2"],
            &["1991", "Berlin", "3"],
            &["1992", "Berlin", "1"],
            &["1990", "Rome", "7"],
            &["1991", "Rome", "8"],
            &["1992", "Rome", "9"],
        ];
        let columns = ["year", "city", "n"];
        assert_eq!(choose_chart_of_kind(&columns, years, "line"), chart(ChartKind::Line, 0, 2));
        assert_eq!(
            choose_chart_of_kind(&columns, years, "scatter"),
            chart(ChartKind::Scatter, 0, 2)
        );
        let groups: Vec<Vec<&str>> =
            years.iter().map(|row| vec![&row[1][..1], row[0], row[2]]).collect();
        let groups: Vec<&[&str]> = groups.iter().map(Vec::as_slice).collect();
        // A number is a series only if the user chooses it.
        let bars = choose_chart_of_kind(&["city", "year", "n"], &groups, "bar");
        assert_eq!(bars.unwrap().series, None);
        let drawn = |series: &str| {
            let value = |text: &&str| ShownValue {
                text: Some((*text).to_owned()),
                number: text.parse().ok(),
            };
            let rows: Vec<Vec<ShownValue>> =
                groups.iter().map(|r| r.iter().map(value).collect()).collect();
            let columns = ["city", "year", "n"].map(str::to_owned);
            let rows = ResultRows { columns: &columns, rows: &rows, count: rows.len() };
            let choice = ChartChoice { kind: "bar", x: "", y: "n", series };
            rows.draw_rows(&rows.choose_chart(choice).unwrap()).into_string()
        };
        let bars = drawn("year");
        assert_eq!(bars.matches("class=\"spent s2\"").count(), 2 + 1, "{bars}");
        assert!(bars.contains(">1992<") && bars.contains("n by city and year"), "{bars}");
        // Many values share the last color.
        let many = drawn("n");
        assert!(!many.contains("s8"), "{many}");
    }
}
