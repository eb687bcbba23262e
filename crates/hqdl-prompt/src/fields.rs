//! Assigns fields to columns if a row has more fields than columns, or one field too few.
//!
//! The field count is never adjusted by a guess. All possible assignments are examined, and a cell
//! is accepted only if they all agree.
//!
//! Extra fields come from commas inside values (a text, a list, a number with thousands separators)
//! or from fields that were not requested. An assignment gives each column a run of fields that its
//! type or list allows. At least one assignment must use every field. One block of foreign fields
//! is also considered; it can only make a cell ambiguous.

use hqdl_spec::checker::Checker;
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::format::format_count;

/// Maximum number of extra fields for which hqdl searches for assignments.
const MAX_EXTRA_FIELDS: usize = 40;
/// Maximum number of fields over which a single value of a type or a closed list may be split.
const MAX_SPLIT_FIELDS: usize = 4;

/// A field of a row, as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowField {
    /// Text without quotes.
    pub text: String,
    /// Whether the field was quoted. A quoted field is complete; if empty, it is the empty text.
    pub is_quoted: bool,
    /// Whether the quotes may either enclose the field or be part of it.
    pub has_ambiguous_quotes: bool,
}

impl RowField {
    /// Returns an unquoted field.
    pub fn unquoted(text: &str) -> Self {
        Self { text: text.to_owned(), is_quoted: false, has_ambiguous_quotes: false }
    }

    fn is_blank(&self) -> bool {
        !self.is_quoted && self.text.trim().is_empty()
    }

    /// Returns true if the field is not quoted and begins with a space.
    fn starts_with_space(&self) -> bool {
        !self.is_quoted && self.text.starts_with(' ')
    }
}

/// Assigns the fields after the key to the columns and checks them. If the assignment is ambiguous,
/// returns the reason.
pub fn assign_cells(fields: &[RowField], checkers: &[&Checker]) -> Result<Vec<Answer>, String> {
    let column_count = checkers.len();
    let joined;
    let mut fields = fields;
    if fields.len() > column_count && checkers.iter().any(|c| c.is_many()) {
        joined = join_bracketed_lists(fields);
        fields = &joined;
    }
    let assigned = match fields.len() {
        n if n == column_count => return Ok(check_fields(fields, checkers)),
        n if n > column_count && n <= column_count + MAX_EXTRA_FIELDS => {
            if let Some(kept) = strip_trailing_blanks(fields, checkers) {
                return Ok(check_fields(kept, checkers));
            }
            parse_trailing_list(fields, checkers)
                .or_else(|| FieldRuns::new(fields, checkers).find_unambiguous_cells())
        }
        n if n + 1 == column_count && n > 0 => parse_with_missing_field(fields, checkers),
        _ => None,
    };
    assigned.ok_or_else(|| {
        format!("{} instead of {column_count}", format_count(fields.len() as u64, "field"))
    })
}

/// Joins the fields of bracketed lists, because brackets enclose a single value, like quotes.
fn join_bracketed_lists(fields: &[RowField]) -> Vec<RowField> {
    let mut joined: Vec<RowField> = Vec::new();
    let mut is_open = false;
    for (n, field) in fields.iter().enumerate() {
        match joined.last_mut().filter(|_| is_open) {
            Some(list) => {
                list.text.push(',');
                list.text.push_str(&field.text);
            }
            None => joined.push(field.clone()),
        }
        let closes_list = |f: &RowField| f.text.trim_end().ends_with(']');
        let opens_list = !field.is_quoted && field.text.trim_start().starts_with('[');
        is_open = if is_open { !closes_list(field) } else { opens_list && !closes_list(field) };
        // Only closed brackets enclose a list.
        if is_open && !fields[n + 1..].iter().any(closes_list) {
            return fields.to_vec();
        }
    }
    joined
}

fn check_fields(fields: &[RowField], checkers: &[&Checker]) -> Vec<Answer> {
    fields.iter().zip(checkers).map(|(f, c)| check_field(f, c)).collect()
}

/// Returns true if the fields, one per column, are plausible cells of these columns.
pub fn matches_columns(fields: &[RowField], checkers: &[&Checker]) -> bool {
    let answers = check_fields(fields, checkers);
    answers.iter().zip(checkers).all(|(a, c)| !c.is_constrained() || is_valid(a))
}

/// Checks a field as the cell of a column.
pub fn check_field(field: &RowField, checker: &Checker) -> Answer {
    if field.is_quoted && field.text.is_empty() {
        return checker.check_empty_text();
    }
    let answer = checker.check_text(&field.text);
    if field.has_ambiguous_quotes && !checker.is_constrained() {
        return Answer::without_value(State::Invalid, field.text.clone());
    }
    answer
}

/// Returns true if an answer is plausible for its column: it passed the checks or is unknown.
fn is_valid(answer: &Answer) -> bool {
    match answer.state {
        State::Ok => !answer.has_omitted_values(),
        State::Unknown => true,
        _ => false,
    }
}

/// Returns the fields without trailing blank fields that have no meaning. If a text may have been
/// split at its commas, the blanks may be cells and are kept.
fn strip_trailing_blanks<'f>(
    fields: &'f [RowField],
    checkers: &[&Checker],
) -> Option<&'f [RowField]> {
    let (kept, blank) = fields.split_at_checked(checkers.len())?;
    let answers = check_fields(kept, checkers);
    let is_plausible = blank.iter().all(RowField::is_blank)
        && !kept.iter().skip(1).any(RowField::starts_with_space)
        && answers.iter().zip(checkers).all(|(a, c)| !c.is_constrained() || is_valid(a));
    let unconstrained_count = checkers.iter().filter(|c| !c.is_constrained()).count();
    let is_last_valid = checkers.last().is_some_and(|c| c.is_constrained())
        && answers.last().is_some_and(|a| a.state == State::Ok);
    (is_plausible && (unconstrained_count <= 1 || is_last_valid)).then_some(kept)
}

/// Returns the cells of a row whose last column is a list column with a value list, if each earlier
/// column has a type or a value list and a valid cell.
///
/// The remaining fields are the items of the list; items outside the value list are left out.
fn parse_trailing_list(fields: &[RowField], checkers: &[&Checker]) -> Option<Vec<Answer>> {
    let (list, other_checkers) = checkers.split_last()?;
    let (before, rest) = fields.split_at_checked(other_checkers.len())?;
    let mut cells = check_fields(before, other_checkers);
    let are_others_valid =
        cells.iter().zip(other_checkers).all(|(a, c)| c.is_constrained() && is_valid(a));
    let has_separators =
        rest.iter().any(|f| f.text.contains('|')) || other_checkers.iter().any(|c| c.is_many());
    if !(list.is_many() && list.is_constrained() && are_others_valid) || has_separators {
        return None;
    }
    let joined = rest.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(",");
    let list_answer = list.check_text(&joined);
    cells.push(match list_answer.state {
        State::Ok => list_answer.with_repair_note("joined the fields of a split list", &joined),
        _ => Answer::without_value(State::Invalid, joined),
    });
    Some(cells)
}

/// Returns the cells of a row with one field too few, if it is certain which field is missing.
fn parse_with_missing_field(fields: &[RowField], checkers: &[&Checker]) -> Option<Vec<Answer>> {
    let cells_without = |missing: usize| -> Vec<Answer> {
        let mut rest = fields.iter();
        let to_answer = |(n, checker): (usize, &&Checker)| match rest.take_field_if(n != missing) {
            Some(field) => check_field(field, checker),
            None => Answer::without_value(State::Invalid, None),
        };
        checkers.iter().enumerate().map(to_answer).collect()
    };
    let last = checkers.len() - 1;
    let without_list = cells_without(last);
    // The last column is a list column without a field, and all other cells are valid.
    let is_full = |(a, c): (&Answer, &&Checker)| {
        a.state == State::Ok && !matches!(a.value, CellValue::Nothing) && c.is_constrained()
    };
    let is_only_list = checkers.iter().filter(|c| c.is_many()).count() == 1;
    let are_others_valid = |(missing, cells): &(usize, Vec<Answer>)| {
        cells.iter().enumerate().all(|(n, a)| n == *missing || is_valid(a))
    };
    // The cells are ambiguous if another field may be the missing one and all other columns are
    // constrained, too.
    let may_be_missing = |missing: usize| {
        are_others_valid(&(missing, cells_without(missing)))
            && checkers.iter().enumerate().all(|(n, c)| n == missing || c.is_constrained())
    };
    if checkers[last].is_many()
        && is_only_list
        && without_list.iter().zip(checkers).take(last).all(is_full)
        && !(0..last).any(may_be_missing)
    {
        return Some(without_list);
    }
    let assignments: Vec<(usize, Vec<Answer>)> =
        (0..checkers.len()).map(|m| (m, cells_without(m))).filter(are_others_valid).collect();
    let mut cells =
        find_common_cells(assignments.iter().map(|(_, cells)| cells.as_slice()), checkers.len())?;
    // A row that ends before its last column may have ended in the middle of a text.
    let ends_early = assignments.iter().any(|(missing, _)| *missing == last);
    if ends_early
        && let (Some(field), Some(cell), Some(checker)) =
            (fields.last(), cells.get_mut(last - 1), checkers.get(last - 1))
        && !field.is_quoted
        && !checker.is_constrained()
    {
        *cell = Answer::without_value(State::Invalid, field.text.clone());
    }
    Some(cells)
}

trait TakeFieldIf<'f> {
    fn take_field_if(&mut self, take: bool) -> Option<&'f RowField>;
}

impl<'f, I: Iterator<Item = &'f RowField>> TakeFieldIf<'f> for I {
    fn take_field_if(&mut self, take: bool) -> Option<&'f RowField> {
        if take { self.next() } else { None }
    }
}

/// Returns the cells that are the same in all assignments; `None` if there are none.
fn find_common_cells<'w>(
    assignments: impl Iterator<Item = &'w [Answer]>,
    column_count: usize,
) -> Option<Vec<Answer>> {
    let unclear = Answer::without_value(State::Invalid, None);
    let assignments: Vec<&[Answer]> = assignments.collect();
    let first = assignments.first()?;
    let cells: Vec<Answer> = (0..column_count)
        .map(|n| {
            let is_same = assignments.iter().all(|w| w.get(n) == first.get(n));
            first.get(n).filter(|_| is_same).unwrap_or(&unclear).clone()
        })
        .collect();
    cells.iter().any(|c| c.state == State::Ok).then_some(cells)
}

/// All ways to assign a run of fields to each column.
struct FieldRuns<'f> {
    fields: &'f [RowField],
    checkers: &'f [&'f Checker],
    /// Cell by column, first field and run length; `None` if the run is not a valid cell.
    cells: Vec<Vec<Vec<Option<Answer>>>>,
}

impl<'f> FieldRuns<'f> {
    fn new(fields: &'f [RowField], checkers: &'f [&'f Checker]) -> Self {
        let longest = fields.len() - checkers.len() + 1;
        let cells = checkers
            .iter()
            .map(|checker| {
                (0..fields.len())
                    .map(|from| {
                        let max_length = longest.min(fields.len() - from);
                        (1..=max_length)
                            .map(|n| check_field_run(&fields[from..from + n], checker))
                            .collect()
                    })
                    .collect()
            })
            .collect();
        Self { fields, checkers, cells }
    }

    /// Returns the runs that may begin at field `from`, each with the position of its end.
    fn list_runs_from(&self, column: usize, from: usize) -> impl Iterator<Item = (usize, &Answer)> {
        let runs = self.cells.get(column).and_then(|c| c.get(from)).into_iter().flatten();
        runs.enumerate().filter_map(move |(n, cell)| Some((from + n + 1, cell.as_ref()?)))
    }

    /// Returns true if the comma before a field may separate values. If the row has no spaces after
    /// its commas, a comma followed by a space is inside a value.
    fn separates_values(&self, position: usize) -> bool {
        let has_evidence = self.fields.first().is_some_and(|f| !f.starts_with_space());
        !(has_evidence && self.fields.get(position).is_some_and(RowField::starts_with_space))
    }

    /// Returns true if a block of fields may be foreign: it contains no value of a list.
    fn may_be_foreign(&self, from: usize, to: usize) -> bool {
        let is_list_value = |field: &RowField| {
            let lists = self.checkers.iter().filter(|c| c.is_many() && c.is_constrained());
            lists
                .map(|c| c.check_text(&field.text))
                .any(|a| a.state == State::Ok && !a.has_omitted_values())
        };
        self.separates_values(from)
            && self.separates_values(to)
            && !self.fields[from..to].iter().any(is_list_value)
    }

    /// Returns the cells that are the same in all assignments of the fields to columns.
    fn find_unambiguous_cells(&self) -> Option<Vec<Answer>> {
        let (n, column_count) = (self.fields.len(), self.checkers.len());
        let empty_table = || vec![vec![false; n + 1]; column_count + 1];
        // For each number of columns and of fields, whether the first columns can be assigned the
        // first fields, without and with a foreign block.
        let (mut before, mut before_block) = (empty_table(), empty_table());
        before[0][0] = true;
        for column in 0..=column_count {
            for from in 0..=n {
                if before[column][from] {
                    let later_positions =
                        before_block[column].iter_mut().enumerate().skip(from + 1);
                    for (to, is_reachable) in later_positions {
                        *is_reachable |= self.may_be_foreign(from, to);
                    }
                }
                for (to, _) in self.list_runs_from(column, from) {
                    before[column + 1][to] |= before[column][from];
                    before_block[column + 1][to] |= before_block[column][from];
                }
            }
        }
        // Likewise for the remaining columns and fields.
        let (mut after, mut after_block) = (empty_table(), empty_table());
        after[column_count][n] = true;
        for column in (0..=column_count).rev() {
            for from in (0..=n).rev() {
                for (to, _) in self.list_runs_from(column, from) {
                    after[column][from] |= after[column + 1][to];
                    after_block[column][from] |= after_block[column + 1][to];
                }
            }
            for (from, is_reachable) in after_block[column].iter_mut().enumerate().take(n) {
                *is_reachable |=
                    (from + 1..=n).any(|to| after[column][to] && self.may_be_foreign(from, to));
            }
        }
        if !after[0][0] {
            return None;
        }
        let unique_cell = |column: usize| {
            let mut found: Option<&Answer> = None;
            for from in 0..n {
                for (to, answer) in self.list_runs_from(column, from) {
                    let is_possible = before[column][from]
                        && (after[column + 1][to] || after_block[column + 1][to])
                        || before_block[column][from] && after[column + 1][to];
                    if is_possible && found.replace(answer).is_some_and(|before| before != answer) {
                        return None;
                    }
                }
            }
            found.cloned()
        };
        let joined_text =
            || self.fields.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(",");
        let ambiguous = || Answer::without_value(State::Invalid, joined_text());
        let cells: Vec<Answer> =
            (0..column_count).map(|c| unique_cell(c).unwrap_or_else(ambiguous)).collect();
        cells.iter().any(|c| c.state == State::Ok).then_some(cells)
    }
}

/// Checks a run of fields as the cell of a column; `None` if the run cannot be a cell.
fn check_field_run(fields: &[RowField], checker: &Checker) -> Option<Answer> {
    if let [field] = fields {
        return Some(check_field(field, checker))
            .filter(|a| is_valid(a) || !checker.is_constrained());
    }
    if fields.iter().all(RowField::is_blank) {
        return Some(checker.check_text(""));
    }
    let joined = fields.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(",");
    if checker.is_many() {
        // A model that puts `|` between values does not also separate them with commas.
        let has_separators =
            !checker.is_constrained() && fields.iter().any(|f| f.text.contains('|'));
        let answer = checker.check_text(&joined);
        return (!has_separators && is_valid(&answer))
            .then(|| answer.with_repair_note("joined the fields of a split list", &joined));
    }
    // The quotes may be part of a text that continues after them.
    if !checker.is_constrained()
        && fields.windows(2).any(|f| f[0].is_quoted && f[1].starts_with_space())
    {
        return Some(Answer::without_value(State::Invalid, joined));
    }
    let is_unquoted = fields.iter().all(|f| !f.is_quoted && !f.has_ambiguous_quotes)
        && ![fields.first(), fields.last()].into_iter().flatten().any(RowField::is_blank);
    if !is_unquoted || (checker.is_constrained() && fields.len() > MAX_SPLIT_FIELDS) {
        return None;
    }
    let answer = checker.check_text(&joined);
    let note = "joined a value that was split at its commas";
    is_valid(&answer).then(|| answer.with_repair_note(note, &joined))
}
