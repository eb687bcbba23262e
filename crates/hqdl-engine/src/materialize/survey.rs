//! Coverage of a spec: which cells are known and which are missing.

use std::collections::BTreeMap;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::counts::CellCounts;
use super::{Halt, MaterializeError, Work};
use hqdl_database::keys::{KeyRow, Keys, Places};
use hqdl_database::versions::{PublishedCell, Shown, Sums, Version};
use hqdl_database::{Database, StoreError};
use hqdl_facts::unify::LONGEST_WORD;
use hqdl_facts::{FactsError, Found, Reason, Record};
use hqdl_model::generate::ExpansionKeys;
use hqdl_model::plan::{Batcher, ColumnPlan, ExpansionPlan, Meter, MissingRow, Pace};
use hqdl_spec::Expansion;
use hqdl_spec::overrides::Override;
use hqdl_values::cell::{State, Tally};
use hqdl_values::key::Entity;
use hqdl_values::tokens::{Tokenizer, image_at_most};

/// Number of keys whose facts are fetched together from another process.
const AHEAD: usize = 1000;

/// The stored facts of an entity; `None` if there are none.
pub(super) type KnownFacts = Option<Record>;

/// Answers that are not in a column's value list, by column and lowercase form (letter case is
/// ignored).
pub(super) type Strangers = BTreeMap<usize, BTreeMap<String, String>>;

/// Coverage of one expansion: its known and missing cells.
pub(super) struct Survey<'db> {
    pub(super) keys: Keys<'db>,
    pub(super) plan: ExpansionPlan,
    /// Known cells by state, per column.
    pub(super) cells: Vec<Tally>,
    pub(super) known: u64,
    /// Missing cells that this run does not request, per column.
    pub(super) unasked: Vec<u64>,
    /// Cells to refresh or retry that `--limit` leaves to a later run, per column.
    pub(super) unasked_again: Vec<u64>,
    /// Missing cells that an open batch job requests, per column. The run does not request them.
    pub(super) under_way: Vec<u64>,
    /// The cells to refresh or retry among these, per column.
    pub(super) under_way_again: Vec<u64>,
    /// Checksums of the tables as published if no further answer arrives.
    pub(super) sums: Sums,
    /// Order-independent hash of the keys.
    pub(super) names: i64,
    /// Last row of the journal that this report is certain to include.
    pub(super) seen: i64,
    /// Counts of the cells of keys without requests.
    pub(super) closed: CellCounts,
    /// Positions of the keys with missing cells: first the first spellings of entities, then the
    /// others.
    pub(super) open: [Places; 2],
    /// Differences from the published tables.
    pub(super) differs: Option<Differs>,
    /// Entities with overrides.
    pub(super) overridden: HashSet<Entity>,
    /// The error if `--where` is invalid for this expansion.
    pub(super) unfit: Option<String>,
    /// The expansion's keys, used to find the closest key for a misspelled one.
    pub(super) expansion_keys: Arc<ExpansionKeys>,
    /// Answers that are in no value list and that the model was not asked to unify yet.
    pub(super) strangers: Strangers,
}

/// Differences between the published tables and a coverage report.
pub(super) struct Differs {
    /// Checksums of the published tables.
    pub(super) stands: Sums,
    /// Buckets whose checksums differ.
    pub(super) buckets: BTreeSet<usize>,
    /// Hashes of the source keys in these buckets.
    pub(super) keys: HashSet<i64>,
}

impl Survey<'_> {
    /// Returns the number of cells to request.
    pub(super) fn missing(&self) -> u64 {
        self.plan.columns.iter().map(ColumnPlan::cells).sum()
    }

    /// Returns the number of cells that open batch jobs request.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.iter().sum()
    }
}

impl<'w> Work<'w> {
    /// Computes the coverage of an expansion.
    pub(super) fn survey(&self, n: usize, priced: bool) -> Result<Survey<'w>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let filter = self.selection.filter.as_deref();
        let gathered = Keys::gather(self.database, expansion, filter);
        let (keys, unfit) = match (filter, gathered) {
            // The condition may name columns of another expansion; then it selects no key of this
            // one.
            (
                Some(_),
                Err(StoreError::Sqlite { message, .. } | StoreError::Statement { message, .. }),
            ) => (Keys::gather(self.database, expansion, Some("1 = 0"))?, Some(message)),
            (_, keys) => (keys?, None),
        };
        Ok(Survey { unfit, ..self.survey_keys(n, keys, priced)? })
    }

    /// Returns a warning for each expansion to which `--where` does not apply.
    ///
    /// # Errors
    /// Returns [`MaterializeError::Where`] if it applies to no expansion.
    pub(super) fn passed_over(
        &self,
        surveys: &[Survey<'_>],
    ) -> Result<Vec<String>, MaterializeError> {
        let unfit: Vec<(&str, &str)> = self
            .spec
            .expansions
            .iter()
            .zip(surveys)
            .filter_map(|(e, s)| Some((e.name.as_str(), s.unfit.as_deref()?)))
            .collect();
        match unfit.first() {
            Some((_, why)) if unfit.len() == surveys.len() => {
                Err(MaterializeError::Where((*why).to_owned()))
            }
            _ => Ok(unfit
                .into_iter()
                .map(|(name, why)| {
                    format!("{name}: skipped, because --where does not apply to it ({why})")
                })
                .collect()),
        }
    }

    /// Computes the coverage of the given keys; with `priced`, also the cost of requesting the
    /// missing cells.
    #[expect(clippy::too_many_lines, reason = "one walk over the keys, with all that it sums up")]
    pub(super) fn survey_keys(
        &self,
        n: usize,
        keys: Keys<'w>,
        priced: bool,
    ) -> Result<Survey<'w>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let choice = self.choice(expansion);
        let (name, model) = (expansion.name.clone(), choice.tokenizer.clone());
        let mut plan =
            ExpansionPlan { name, model, price: choice.price, ..ExpansionPlan::default() };
        plan.columns = expansion
            .columns
            .iter()
            .map(|c| ColumnPlan { name: c.name.clone(), ..ColumnPlan::default() })
            .collect();
        let mut meter = priced.then(|| {
            let tokenizer = Tokenizer::of(&choice.tokenizer);
            Meter::new(expansion, choice.format, tokenizer)
                .capped(choice.max_output)
                .seeing(image_at_most(&choice.tokenizer))
        });
        let whole_rows = choice.endpoint.as_ref().unwrap_or(&self.model).answers_whole_rows();
        let mut batcher = Batcher::new(expansion, choice.rows);
        let (mut sums, mut names, mut respelled) = (Sums::default(), 0i64, HashSet::new());
        let mut closed = CellCounts::of(expansion.columns.len());
        let mut places = [Places::default(), Places::default()];
        // Read the position before any fact, so that later facts are never missed.
        let (_, seen) = self.facts.history().place()?;
        let columns = expansion.columns.len();
        let (mut cells, mut unasked) = (vec![Tally::default(); columns], vec![0; columns]);
        let mut unasked_again = vec![0; columns];
        let (mut under_way, mut under_way_again) = (vec![0; columns], vec![0; columns]);
        let (mut known, mut asked_keys) = (0, 0);
        let mut overridden = HashSet::new();
        let mut strangers = Strangers::new();
        let mut expansion_keys = ExpansionKeys::default();
        self.look_for_parcels()?;
        self.each_known(&keys, &mut |key: &KeyRow, found: KnownFacts| {
            let record = found;
            let mut sum_up = |looked: &[(usize, Looked<'_>)]| {
                let version = Version::of(&key.row, &key_shows(key, looked));
                names = names.wrapping_add(version.hash);
                sums.add(&version);
            };
            if !key.first {
                sum_up(&self.looked(n, key, &key.columns, record.as_ref()));
                if respelled.contains(&key.entity) {
                    places[1].add(key.at);
                }
                return Ok(());
            }
            plan.keys += 1;
            expansion_keys.insert(&key.row.key);
            if self.overrides.any_of(n, &key.entity) {
                overridden.insert(key.entity.clone());
            }
            let open = self.open_cells(n, key, &key.entity_columns, record.as_ref(), asked_keys)?;
            sum_up(&open.looked);
            if open.counts() {
                asked_keys += 1;
                places[0].add(key.at);
                if key.respelled {
                    respelled.insert(key.entity.clone());
                }
            } else {
                open.looked.iter().for_each(|(column, looked)| closed.add(*column, looked.state()));
            }
            for (column, looked) in open.looked {
                let Some(column_plan) = plan.columns.get_mut(column) else { continue };
                match looked {
                    Looked::Overridden(_) => {
                        column_plan.overridden += 1;
                        known += 1;
                        cells[column].add(State::Overridden, 1);
                    }
                    Looked::Fact(Found::Known(fact)) => {
                        column_plan.known += 1;
                        known += 1;
                        cells[column].add(fact.answer.state, 1);
                        let checker = self.wanted[n].checker(column);
                        let words = checker.map(|c| c.strangers(&fact.answer)).unwrap_or_default();
                        let words = words.into_iter().filter(|w| w.len() <= LONGEST_WORD);
                        for word in words.filter(|_| self.columns[n][column]) {
                            let words = strangers.entry(column).or_default();
                            words.entry(word.to_lowercase()).or_insert(word);
                        }
                        if let Some(meter) = &mut meter {
                            meter.learn(column, &fact.answer.value);
                        }
                    }
                    Looked::Fact(Found::Missing(reason, _)) if open.ask.contains(&column) => {
                        *column_plan.missing.entry(reason).or_insert(0) += 1;
                    }
                    Looked::Fact(Found::Missing(reason, _)) => {
                        unasked[column] += 1;
                        let again = matches!(reason, Reason::Refreshed | Reason::Retried);
                        if open.under_way.contains(&column) {
                            under_way[column] += 1;
                            under_way_again[column] += u64::from(again);
                        } else {
                            unasked_again[column] += u64::from(again && key.wanted);
                        }
                    }
                }
            }
            if let Some(meter) = meter.as_mut().filter(|_| !open.ask.is_empty()) {
                let gap = MissingRow { row: key.row.clone(), entity: key.entity.clone() };
                // Count the columns that the prompt will contain.
                let ask = if whole_rows { open.whole.clone() } else { open.ask };
                if let Some(cut) = batcher.push(ask, open.whole, gap) {
                    meter.count(&cut);
                }
            }
            Ok::<(), Halt>(())
        })
        .map_err(|h| h.into_error(self.database))?;
        if let Some(mut meter) = meter {
            batcher.finish().iter().for_each(|cut| meter.count(cut));
            meter.finish(&mut plan);
            let settings = self.spec.settings(expansion.model.as_deref());
            plan.reason(Pace::of(self.facts.history(), settings)?.reasoning);
        }
        Ok(Survey {
            keys,
            plan,
            cells,
            known,
            unasked,
            unasked_again,
            under_way,
            under_way_again,
            sums,
            names,
            seen,
            closed,
            open: places,
            differs: None,
            overridden,
            expansion_keys: Arc::new(expansion_keys),
            strangers,
            unfit: None,
        })
    }

    /// Calls `visit` for every key, with its entity's facts.
    pub(super) fn each_known(
        &self,
        keys: &Keys<'_>,
        visit: &mut dyn FnMut(&KeyRow, KnownFacts) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        self.known_of(&mut |give| keys.each(give), visit)
    }

    /// Calls `visit` for every key of a walk, with its entity's facts. If another process owns the
    /// facts, they are fetched for [`AHEAD`] keys at a time.
    pub(super) fn known_of(
        &self,
        walk: &mut KeyWalk<'_>,
        visit: &mut dyn FnMut(&KeyRow, KnownFacts) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        let facts = self.facts.latest();
        if !facts.is_remote() {
            return walk(&mut |key: &KeyRow| visit(key, facts.get(&key.entity)?));
        }
        let mut ahead: Vec<KeyRow> = Vec::with_capacity(AHEAD);
        let mut give = |ahead: &mut Vec<KeyRow>| {
            let entities: Vec<_> = ahead.iter().map(|k| &k.entity).collect();
            let found = facts.get_many(&entities)?;
            ahead.drain(..).zip(found).try_for_each(|(key, found)| visit(&key, found))
        };
        walk(&mut |key: &KeyRow| {
            ahead.push(key.clone());
            if ahead.len() < AHEAD { Ok(()) } else { give(&mut ahead) }
        })?;
        give(&mut ahead)
    }

    /// Returns the override or the stored fact of each requested column of a key.
    pub(super) fn looked<'r>(
        &'r self,
        n: usize,
        key: &KeyRow,
        columns: &[bool],
        record: Option<&'r Record>,
    ) -> Vec<(usize, Looked<'r>)> {
        let look = |c: usize| match self.overrides.get(n, &key.entity, c) {
            Some(word) => Looked::Overridden(word),
            None => Looked::Fact(self.wanted[n].find(record, c)),
        };
        let asked = columns.iter().enumerate().filter(|(_, asked)| **asked);
        asked.map(|(c, _)| (c, look(c))).collect()
    }

    /// Determines which cells of a key the run requests, and the current content of each cell.
    pub(super) fn open_cells<'r>(
        &'r self,
        n: usize,
        key: &KeyRow,
        columns: &[bool],
        record: Option<&'r Record>,
        asked_keys: u64,
    ) -> Result<OpenCells<'r>, FactsError> {
        let wanted = &self.wanted[n];
        let looked = self.looked(n, key, columns, record);
        let within = key.wanted && self.selection.limit.is_none_or(|limit| asked_keys < limit);
        let mut ask: Vec<usize> = looked
            .iter()
            .filter(|(c, f)| {
                within && self.columns[n][*c] && matches!(f, Looked::Fact(Found::Missing(..)))
            })
            .map(|(c, _)| *c)
            .collect();
        let mut under_way = Vec::new();
        if self.parcels.get() && !ask.is_empty() {
            let asked = self.facts.history().under_way(&key.entity, wanted.model)?;
            let of_batch = |c: &usize| wanted.meaning(*c).is_some_and(|m| asked.contains(&m));
            (under_way, ask) = ask.into_iter().partition(of_batch);
        }
        if let Some(in_files) = self.in_files.borrow_mut().as_mut().filter(|_| !ask.is_empty()) {
            let written = self.facts.history().in_files(&key.entity, wanted.model)?;
            ask.retain(|c| {
                let meaning = wanted.meaning(*c);
                let file =
                    written.iter().find(|(_, all)| meaning.is_some_and(|m| all.contains(&m)));
                file.into_iter().for_each(|(parcel, _)| *in_files.entry(*parcel).or_default() += 1);
                file.is_none()
            });
        }
        let whole = looked.iter().map(|(c, _)| *c).collect();
        Ok(OpenCells { looked, ask, whole, under_way })
    }

    /// Returns warnings for overrides whose key is in no source.
    pub(super) fn strangers(&self, surveys: &[Survey<'_>]) -> Vec<String> {
        let met: Vec<_> = surveys.iter().map(|s| s.overridden.clone()).collect();
        self.overrides.strangers(&self.spec, &met)
    }

    /// Records whether any batch job is open.
    pub(super) fn look_for_parcels(&self) -> Result<(), FactsError> {
        self.parcels.set(self.facts.history().any_under_way()?);
        Ok(())
    }
}

/// A walk that passes keys to a callback, one at a time.
pub(super) type KeyWalk<'w> =
    dyn FnMut(&mut dyn FnMut(&KeyRow) -> Result<(), Halt>) -> Result<(), Halt> + 'w;

/// Returns the published form of a key's row, one entry per column of the expansion.
pub(super) fn key_shows<'r>(
    key: &KeyRow,
    looked: &'r [(usize, Looked<'_>)],
) -> Vec<PublishedCell<'r>> {
    let mut shown = vec![PublishedCell::NotAsked; key.columns.len()];
    for (column, looked) in looked.iter().filter(|(column, _)| key.columns[*column]) {
        shown[*column] = looked.shown().map_or(PublishedCell::Missing, PublishedCell::Shown);
    }
    shown
}

/// Result of [`Work::open_cells`].
pub(super) struct OpenCells<'r> {
    pub(super) looked: Vec<(usize, Looked<'r>)>,
    pub(super) ask: Vec<usize>,
    pub(super) whole: Vec<usize>,
    /// Missing columns that an open batch job requests.
    pub(super) under_way: Vec<usize>,
}

impl OpenCells<'_> {
    /// Returns true if the key counts toward `--limit`. Cells in open batch jobs count too;
    /// otherwise repeating the command would request more keys instead of waiting.
    pub(super) fn counts(&self) -> bool {
        !self.ask.is_empty() || !self.under_way.is_empty()
    }
}

/// Current content of a cell: an override or the stored fact.
pub(super) enum Looked<'r> {
    Overridden(&'r Override),
    Fact(Found<'r>),
}

impl Looked<'_> {
    /// Returns the published state; `None` if the cell was never requested.
    pub(super) fn state(&self) -> Option<State> {
        match self {
            Self::Overridden(_) => Some(State::Overridden),
            Self::Fact(found) => found.fact().map(|fact| fact.answer.state),
        }
    }

    /// Returns the published form; `None` if the cell was never requested.
    pub(super) fn shown(&self) -> Option<Shown<'_>> {
        match self {
            Self::Overridden(word) => Some(Shown {
                state: State::Overridden.name(),
                value: &word.value,
                completion: None,
                raw: None,
                repair: word.note.as_deref(),
            }),
            Self::Fact(found) => found.fact().map(|fact| Shown {
                state: fact.answer.state.name(),
                value: &fact.answer.value,
                completion: Some(fact.completion),
                raw: fact.answer.raw.as_deref(),
                repair: fact.answer.repair.as_deref(),
            }),
        }
    }
}

/// Counts the published rows whose key is no longer in any source.
pub(super) fn orphans(
    target: &Database,
    expansion: &Expansion,
    keys: &Keys<'_>,
) -> Result<u64, MaterializeError> {
    if !target.has_bookkeeping() {
        return Ok(0);
    }
    let hash = |text: &str| blake3::hash(text.as_bytes());
    let mut known: HashSet<blake3::Hash> = HashSet::new();
    keys.each(&mut |key: &KeyRow| {
        let json: Vec<serde_json::Value> =
            key.row.key.iter().map(hqdl_values::value::Value::to_json).collect();
        known.insert(hash(&serde_json::Value::Array(json).to_string()));
        Ok::<(), rusqlite::Error>(())
    })
    .map_err(|e| target.error(&e))?;
    Ok(target.orphans(expansion, &mut |key| known.contains(&hash(key))))
}
