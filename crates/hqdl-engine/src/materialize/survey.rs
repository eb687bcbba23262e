//! What is known and what is missing, key by key.

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

/// Keys whose facts are read at once from another process.
const AHEAD: usize = 1000;

/// The facts about an entity.
pub(super) type KnownFacts = Option<Record>;

/// Words outside the lists of an expansion's columns, by column and in lower case: case
/// tells none apart.
pub(super) type Strangers = BTreeMap<usize, BTreeMap<String, String>>;

/// What a survey found in one expansion.
pub(super) struct Survey<'db> {
    pub(super) keys: Keys<'db>,
    pub(super) plan: ExpansionPlan,
    /// Cells that are known, for each column.
    pub(super) cells: Vec<Tally>,
    pub(super) known: u64,
    /// Cells that are missing and will not be asked, for each column.
    pub(super) unasked: Vec<u64>,
    /// Those of them that `--limit` leaves to a later run to ask again, for each
    /// column.
    pub(super) unasked_again: Vec<u64>,
    /// Those of them that a batch under way asks for, and nobody else therefore,
    /// for each column.
    pub(super) under_way: Vec<u64>,
    /// And those of these that are asked again.
    pub(super) under_way_again: Vec<u64>,
    /// What the tables would show if nothing more were answered, summed up.
    pub(super) sums: Sums,
    /// The keys, summed up in any order.
    pub(super) names: i64,
    /// The last line of the journal that it has surely seen.
    pub(super) seen: i64,
    /// How the cells are shown of keys that are asked nothing.
    pub(super) closed: CellCounts,
    /// Keys of which something is to be asked: the first spellings of entities, and
    /// the others.
    pub(super) open: [Places; 2],
    /// Where what stands is something else.
    pub(super) differs: Option<Differs>,
    /// Entities of which a person has said something.
    pub(super) overridden: HashSet<Entity>,
    /// Why `--where` does not apply to it, when it does not.
    pub(super) unfit: Option<String>,
    /// The keys, by what tells a misspelt one from another.
    pub(super) expansion_keys: Arc<ExpansionKeys>,
    /// Answers outside of lists that no model was asked about.
    pub(super) strangers: Strangers,
}

/// Where published tables are something else than a survey found.
pub(super) struct Differs {
    /// What stands.
    pub(super) stands: Sums,
    /// The buckets that differ.
    pub(super) buckets: BTreeSet<usize>,
    /// The hashes of the source's keys in them.
    pub(super) keys: HashSet<i64>,
}

impl Survey<'_> {
    /// Cells that are to be asked for.
    pub(super) fn missing(&self) -> u64 {
        self.plan.columns.iter().map(ColumnPlan::cells).sum()
    }

    /// Cells that a batch under way asks for.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way.iter().sum()
    }
}

impl<'w> Work<'w> {
    /// Looks every key of an expansion up.
    pub(super) fn survey(&self, n: usize, priced: bool) -> Result<Survey<'w>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let filter = self.selection.filter.as_deref();
        let gathered = Keys::gather(self.database, expansion, filter);
        let (keys, unfit) = match (filter, gathered) {
            // It speaks of columns of other expansions; none of these keys are meant.
            (
                Some(_),
                Err(StoreError::Sqlite { message, .. } | StoreError::Statement { message, .. }),
            ) => (Keys::gather(self.database, expansion, Some("1 = 0"))?, Some(message)),
            (_, keys) => (keys?, None),
        };
        Ok(Survey { unfit, ..self.survey_keys(n, keys, priced)? })
    }

    /// The expansions that `--where` does not apply to, told.
    ///
    /// # Errors
    /// [`MaterializeError::Where`] when it applies to none.
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

    /// Looks every one of these keys up; where asked for, what is missing is
    /// priced, too.
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
        // Before any fact is read.
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
                // The columns that a prompt will name.
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

    /// Visits every key with the facts about its entity.
    pub(super) fn each_known(
        &self,
        keys: &Keys<'_>,
        visit: &mut dyn FnMut(&KeyRow, KnownFacts) -> Result<(), Halt>,
    ) -> Result<(), Halt> {
        self.known_of(&mut |give| keys.each(give), visit)
    }

    /// Visits the keys of a walk with the facts about their entities. Facts that
    /// another process owns are read for many keys at once.
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

    /// What is known of some columns of a key.
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

    /// Which cells of a key are to be asked, and what is known of each.
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

    /// Overrides of what is in no source.
    pub(super) fn strangers(&self, surveys: &[Survey<'_>]) -> Vec<String> {
        let met: Vec<_> = surveys.iter().map(|s| s.overridden.clone()).collect();
        self.overrides.strangers(&self.spec, &met)
    }

    /// Notes whether any cell may be asked for by a batch that is under way.
    pub(super) fn look_for_parcels(&self) -> Result<(), FactsError> {
        self.parcels.set(self.facts.history().any_under_way()?);
        Ok(())
    }
}

/// Gives keys, one after the other.
pub(super) type KeyWalk<'w> =
    dyn FnMut(&mut dyn FnMut(&KeyRow) -> Result<(), Halt>) -> Result<(), Halt> + 'w;

/// What the row of a key shows, one entry a column of its expansion.
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

/// What [`Work::open_cells`] finds.
pub(super) struct OpenCells<'r> {
    pub(super) looked: Vec<(usize, Looked<'r>)>,
    pub(super) ask: Vec<usize>,
    pub(super) whole: Vec<usize>,
    /// What would be asked for, were it not asked for by a batch.
    pub(super) under_way: Vec<usize>,
}

impl OpenCells<'_> {
    /// Whether its key counts towards `--limit`: what a batch asks for counts,
    /// so that the same command again waits and asks for nothing more.
    pub(super) fn counts(&self) -> bool {
        !self.ask.is_empty() || !self.under_way.is_empty()
    }
}

/// What is known of a cell: a person's word, or what the facts say.
pub(super) enum Looked<'r> {
    Overridden(&'r Override),
    Fact(Found<'r>),
}

impl Looked<'_> {
    /// The state it is shown with; `None` where nothing was ever asked.
    pub(super) fn state(&self) -> Option<State> {
        match self {
            Self::Overridden(_) => Some(State::Overridden),
            Self::Fact(found) => found.fact().map(|fact| fact.answer.state),
        }
    }

    /// As it is published; `None` where nothing was ever asked.
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

/// Rows published whose key is in no source any more.
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
