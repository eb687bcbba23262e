//! Assigns fields to columns if a row has more fields than columns or one too few.
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
use hqdl_values::format::count_noun;

/// Maximum number of extra fields for which assignments are searched.
const TOO_MANY: usize = 40;
/// Maximum number of fields that one value of a type or a closed list may be split into.
const PIECES: usize = 4;

/// Field of a row, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowField {
    /// Text without quotes.
    pub text: String,
    /// Whether the field was quoted. A quoted field is complete; if empty, it is the empty text.
    pub quoted: bool,
    /// Whether the quotes may either enclose the field or be part of it.
    pub unclear: bool,
}

impl RowField {
    /// Returns an unquoted field.
    pub fn bare(text: &str) -> Self {
        Self { text: text.to_owned(), quoted: false, unclear: false }
    }

    fn is_blank(&self) -> bool {
        !self.quoted && self.text.trim().is_empty()
    }

    /// Returns true if the field begins with a space.
    fn is_spaced(&self) -> bool {
        !self.quoted && self.text.starts_with(' ')
    }
}

/// Assigns the fields after the key to the columns and checks them, or returns why the assignment
/// is ambiguous.
pub fn cells(fields: &[RowField], checkers: &[&Checker]) -> Result<Vec<Answer>, String> {
    let wanted = checkers.len();
    let whole;
    let mut fields = fields;
    if fields.len() > wanted && checkers.iter().any(|c| c.is_many()) {
        whole = bracketed(fields);
        fields = &whole;
    }
    let explained = match fields.len() {
        n if n == wanted => return Ok(each(fields, checkers)),
        n if n > wanted && n <= wanted + TOO_MANY => {
            if let Some(kept) = without_blanks(fields, checkers) {
                return Ok(each(kept, checkers));
            }
            list_at_end(fields, checkers).or_else(|| FieldRuns::new(fields, checkers).certain())
        }
        n if n + 1 == wanted && n > 0 => one_missing(fields, checkers),
        _ => None,
    };
    explained
        .ok_or_else(|| format!("{} instead of {wanted}", count_noun(fields.len() as u64, "field")))
}

/// Joins the fields of bracketed lists: brackets enclose one value, as quotes do.
fn bracketed(fields: &[RowField]) -> Vec<RowField> {
    let mut whole: Vec<RowField> = Vec::new();
    let mut open = false;
    for (n, field) in fields.iter().enumerate() {
        match whole.last_mut().filter(|_| open) {
            Some(list) => {
                list.text.push(',');
                list.text.push_str(&field.text);
            }
            None => whole.push(field.clone()),
        }
        let closes = |f: &RowField| f.text.trim_end().ends_with(']');
        let opens = !field.quoted && field.text.trim_start().starts_with('[');
        open = if open { !closes(field) } else { opens && !closes(field) };
        // Only closed brackets enclose a list.
        if open && !fields[n + 1..].iter().any(closes) {
            return fields.to_vec();
        }
    }
    whole
}

fn each(fields: &[RowField], checkers: &[&Checker]) -> Vec<Answer> {
    fields.iter().zip(checkers).map(|(f, c)| cell(f, c)).collect()
}

/// Returns true if fields, one per column, may be the cells of these columns.
pub fn may_be(fields: &[RowField], checkers: &[&Checker]) -> bool {
    let answers = each(fields, checkers);
    answers.iter().zip(checkers).all(|(a, c)| !c.vouches() || passes(a))
}

/// Checks a field as the cell of a column.
pub fn cell(field: &RowField, checker: &Checker) -> Answer {
    if field.quoted && field.text.is_empty() {
        return checker.empty();
    }
    let answer = checker.text(&field.text);
    if field.unclear && !checker.vouches() {
        return Answer::without_value(State::Invalid, field.text.clone());
    }
    answer
}

/// Returns true if an answer is plausible for its column: it passed the checks or is unknown.
fn passes(answer: &Answer) -> bool {
    match answer.state {
        State::Ok => !answer.leaves_out(),
        State::Unknown => true,
        _ => false,
    }
}

/// Returns the fields without trailing blank ones, if the blanks mean nothing. If a text may have
/// been split at its commas, the blanks may be cells.
fn without_blanks<'f>(fields: &'f [RowField], checkers: &[&Checker]) -> Option<&'f [RowField]> {
    let (kept, blank) = fields.split_at_checked(checkers.len())?;
    let answers = each(kept, checkers);
    let sound = blank.iter().all(RowField::is_blank)
        && !kept.iter().skip(1).any(RowField::is_spaced)
        && answers.iter().zip(checkers).all(|(a, c)| !c.vouches() || passes(a));
    let free = checkers.iter().filter(|c| !c.vouches()).count();
    let closed = checkers.last().is_some_and(|c| c.vouches())
        && answers.last().is_some_and(|a| a.state == State::Ok);
    (sound && (free <= 1 || closed)).then_some(kept)
}

/// Returns the cells of a row whose last column is a list with its own values, if all columns
/// before it have a type or a list and valid cells.
///
/// The remaining fields are the list; values that it does not allow are left out.
fn list_at_end(fields: &[RowField], checkers: &[&Checker]) -> Option<Vec<Answer>> {
    let (list, others) = checkers.split_last()?;
    let (before, rest) = fields.split_at_checked(others.len())?;
    let mut cells = each(before, others);
    let fixed = cells.iter().zip(others).all(|(a, c)| c.vouches() && passes(a));
    let told = rest.iter().any(|f| f.text.contains('|')) || others.iter().any(|c| c.is_many());
    if !(list.is_many() && list.vouches() && fixed) || told {
        return None;
    }
    let joined = rest.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(",");
    let whole = list.text(&joined);
    cells.push(match whole.state {
        State::Ok => whole.repaired("joined the fields of a split list", &joined),
        _ => Answer::without_value(State::Invalid, joined),
    });
    Some(cells)
}

/// Returns the cells of a row with one field too few, if it is certain which field is missing.
fn one_missing(fields: &[RowField], checkers: &[&Checker]) -> Option<Vec<Answer>> {
    let without = |missing: usize| -> Vec<Answer> {
        let mut rest = fields.iter();
        let answer = |(n, checker): (usize, &&Checker)| match rest.next_if(n != missing) {
            Some(field) => cell(field, checker),
            None => Answer::without_value(State::Invalid, None),
        };
        checkers.iter().enumerate().map(answer).collect()
    };
    let last = checkers.len() - 1;
    let listless = without(last);
    // The last column is a list without a field, and all other cells are valid.
    let full = |(a, c): (&Answer, &&Checker)| {
        a.state == State::Ok && !matches!(a.value, CellValue::Nothing) && c.vouches()
    };
    let only = checkers.iter().filter(|c| c.is_many()).count() == 1;
    let sound = |(missing, cells): &(usize, Vec<Answer>)| {
        cells.iter().enumerate().all(|(n, a)| n == *missing || passes(a))
    };
    // Not if another field may be missing and all other columns are constrained as well.
    let vouched = |missing: usize| {
        sound(&(missing, without(missing)))
            && checkers.iter().enumerate().all(|(n, c)| n == missing || c.vouches())
    };
    if checkers[last].is_many()
        && only
        && listless.iter().zip(checkers).take(last).all(full)
        && !(0..last).any(vouched)
    {
        return Some(listless);
    }
    let ways: Vec<(usize, Vec<Answer>)> =
        (0..checkers.len()).map(|m| (m, without(m))).filter(sound).collect();
    let mut cells = agreed(ways.iter().map(|(_, cells)| cells.as_slice()), checkers.len())?;
    // A row that ends before its last column may have ended in the middle of a text.
    let ends_early = ways.iter().any(|(missing, _)| *missing == last);
    if ends_early
        && let (Some(field), Some(cell), Some(checker)) =
            (fields.last(), cells.get_mut(last - 1), checkers.get(last - 1))
        && !field.quoted
        && !checker.vouches()
    {
        *cell = Answer::without_value(State::Invalid, field.text.clone());
    }
    Some(cells)
}

trait NextIf<'f> {
    fn next_if(&mut self, wanted: bool) -> Option<&'f RowField>;
}

impl<'f, I: Iterator<Item = &'f RowField>> NextIf<'f> for I {
    fn next_if(&mut self, wanted: bool) -> Option<&'f RowField> {
        if wanted { self.next() } else { None }
    }
}

/// Returns the cells that all assignments share; `None` if there are none.
fn agreed<'w>(ways: impl Iterator<Item = &'w [Answer]>, wanted: usize) -> Option<Vec<Answer>> {
    let unclear = Answer::without_value(State::Invalid, None);
    let ways: Vec<&[Answer]> = ways.collect();
    let first = ways.first()?;
    let cells: Vec<Answer> = (0..wanted)
        .map(|n| {
            let same = ways.iter().all(|w| w.get(n) == first.get(n));
            first.get(n).filter(|_| same).unwrap_or(&unclear).clone()
        })
        .collect();
    cells.iter().any(|c| c.state == State::Ok).then_some(cells)
}

/// All ways to assign each column a run of the fields.
struct FieldRuns<'f> {
    fields: &'f [RowField],
    checkers: &'f [&'f Checker],
    /// Cell for each column, first field and run length; `None` if the run is not a valid cell.
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
                        let most = longest.min(fields.len() - from);
                        (1..=most).map(|n| run(&fields[from..from + n], checker)).collect()
                    })
                    .collect()
            })
            .collect();
        Self { fields, checkers, cells }
    }

    /// Returns the runs that may begin at a field, with their ends.
    fn runs(&self, column: usize, from: usize) -> impl Iterator<Item = (usize, &Answer)> {
        let runs = self.cells.get(column).and_then(|c| c.get(from)).into_iter().flatten();
        runs.enumerate().filter_map(move |(n, cell)| Some((from + n + 1, cell.as_ref()?)))
    }

    /// Returns true if the comma before a field may separate values. If the row has no spaces after
    /// its commas, a comma followed by a space is inside a value.
    fn parts(&self, at: usize) -> bool {
        let tells = self.fields.first().is_some_and(|f| !f.is_spaced());
        !(tells && self.fields.get(at).is_some_and(RowField::is_spaced))
    }

    /// Returns true if a block of fields may be foreign: it contains no value of a list.
    fn foreign(&self, from: usize, to: usize) -> bool {
        let listed = |field: &RowField| {
            let lists = self.checkers.iter().filter(|c| c.is_many() && c.vouches());
            lists.map(|c| c.text(&field.text)).any(|a| a.state == State::Ok && !a.leaves_out())
        };
        self.parts(from) && self.parts(to) && !self.fields[from..to].iter().any(listed)
    }

    /// Returns the cells that are the same in all assignments.
    fn certain(&self) -> Option<Vec<Answer>> {
        let (n, wanted) = (self.fields.len(), self.checkers.len());
        let none = || vec![vec![false; n + 1]; wanted + 1];
        // Whether the columns and fields before this point can be assigned, without and with a
        // foreign block.
        let (mut before, mut before_block) = (none(), none());
        before[0][0] = true;
        for column in 0..=wanted {
            for from in 0..=n {
                if before[column][from] {
                    let behind = before_block[column].iter_mut().enumerate().skip(from + 1);
                    for (to, reached) in behind {
                        *reached |= self.foreign(from, to);
                    }
                }
                for (to, _) in self.runs(column, from) {
                    before[column + 1][to] |= before[column][from];
                    before_block[column + 1][to] |= before_block[column][from];
                }
            }
        }
        // Whether the columns and fields from this point on can be assigned.
        let (mut after, mut after_block) = (none(), none());
        after[wanted][n] = true;
        for column in (0..=wanted).rev() {
            for from in (0..=n).rev() {
                for (to, _) in self.runs(column, from) {
                    after[column][from] |= after[column + 1][to];
                    after_block[column][from] |= after_block[column + 1][to];
                }
            }
            for (from, reached) in after_block[column].iter_mut().enumerate().take(n) {
                *reached |= (from + 1..=n).any(|to| after[column][to] && self.foreign(from, to));
            }
        }
        if !after[0][0] {
            return None;
        }
        let cell = |column: usize| {
            let mut found: Option<&Answer> = None;
            for from in 0..n {
                for (to, answer) in self.runs(column, from) {
                    let explains = before[column][from]
                        && (after[column + 1][to] || after_block[column + 1][to])
                        || before_block[column][from] && after[column + 1][to];
                    if explains && found.replace(answer).is_some_and(|before| before != answer) {
                        return None;
                    }
                }
            }
            found.cloned()
        };
        let written = || self.fields.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(",");
        let unclear = || Answer::without_value(State::Invalid, written());
        let cells: Vec<Answer> = (0..wanted).map(|c| cell(c).unwrap_or_else(unclear)).collect();
        cells.iter().any(|c| c.state == State::Ok).then_some(cells)
    }
}

/// Checks a run of fields as the cell of a column; `None` if it cannot be one.
fn run(fields: &[RowField], checker: &Checker) -> Option<Answer> {
    if let [field] = fields {
        return Some(cell(field, checker)).filter(|a| passes(a) || !checker.vouches());
    }
    if fields.iter().all(RowField::is_blank) {
        return Some(checker.text(""));
    }
    let joined = fields.iter().map(|f| f.text.as_str()).collect::<Vec<_>>().join(",");
    if checker.is_many() {
        // A model that puts `|` between values does not also separate them with commas.
        let told = !checker.vouches() && fields.iter().any(|f| f.text.contains('|'));
        let answer = checker.text(&joined);
        return (!told && passes(&answer))
            .then(|| answer.repaired("joined the fields of a split list", &joined));
    }
    // The quotes may be part of a text that continues after them.
    if !checker.vouches() && fields.windows(2).any(|f| f[0].quoted && f[1].is_spaced()) {
        return Some(Answer::without_value(State::Invalid, joined));
    }
    let whole = fields.iter().all(|f| !f.quoted && !f.unclear)
        && ![fields.first(), fields.last()].into_iter().flatten().any(RowField::is_blank);
    if !whole || (checker.vouches() && fields.len() > PIECES) {
        return None;
    }
    let answer = checker.text(&joined);
    let note = "joined a value that was split at its commas";
    passes(&answer).then(|| answer.repaired(note, &joined))
}
