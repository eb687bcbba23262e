//! PATH 1: a spec's missing cells, asked, kept and published.
//!
//! `survey` walks the keys and says what is missing; `fill` asks for it;
//! `publish` writes the tables. Each walks the same gathered keys, and each
//! stands alone: a plan is a survey, and a run with nothing missing asks nothing
//! and writes nothing.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::cell::{State, Tally};
use crate::facts::{Facts, FactsError, Found, Record, Wanted, Writer, journal::Outcome};
use crate::generate::{self, Context, Event, Listener, Packing, Stopped};
use crate::model::budget::{Budget, Caps};
use crate::model::{Model, SetupError};
use crate::overrides::{Override, Overrides, OverridesError};
use crate::plan::{Batcher, ColumnPlan, ExpansionPlan, Gap, Meter, Plan};
use crate::spec::{Expansion, Format, Provider, Spec};
use crate::store::keys::{KeyRow, Keys};
use crate::store::publish::{Origin, Publication, Shown};
use crate::store::{Database, StoreError};
use crate::tokens::Tokenizer;
use crate::usage::Usage;

/// Why a spec could not be materialized.
#[derive(Debug, thiserror::Error)]
pub enum MaterializeError {
    /// A database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The facts failed.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// There is no model to ask.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The run stopped on the way; everything answered is kept and published.
    #[error(transparent)]
    Stopped(Stopped),
    /// The overrides cannot be used.
    #[error(transparent)]
    Overrides(#[from] OverridesError),
    /// `--columns` or `--refresh` names a column that no expansion has.
    #[error("no expansion has a column `{0}`")]
    NoColumn(String),
    /// `--where` does not work over the sources.
    #[error("--where: {0}")]
    Where(String),
    /// The runtime could not be started.
    #[error("cannot start: {0}")]
    Runtime(std::io::Error),
}

/// What a run is to ask, of all that is missing.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// At most so many keys an expansion.
    pub limit: Option<u64>,
    /// Only these columns.
    pub columns: Option<Vec<String>>,
    /// Only keys of source rows for which this SQL holds.
    pub filter: Option<String>,
    /// Ask again for these columns.
    pub refresh: Vec<String>,
    /// Ask again for cells without a value.
    pub retry_failed: bool,
}

/// What a run did.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// All cells of the expansions, by state.
    pub cells: Tally,
    /// Cells that were known before.
    pub reused: u64,
    /// Cells that were left unasked (`--limit`, `--columns`, an end before time).
    pub unasked: u64,
    /// What was used.
    pub usage: Usage,
    /// Whether there is a price.
    pub priced: bool,
    /// The published tables and views.
    pub target: PathBuf,
    /// Whether anything had to be published.
    pub published: bool,
    /// Things the user should know.
    pub warnings: Vec<String>,
    /// Why the run ended before its end.
    pub stopped: Option<Arc<Stopped>>,
}

/// A spec with everything a run needs: its database, its facts, its model.
pub struct Work<'w> {
    spec: &'w Spec,
    database: &'w Database,
    facts: &'w Facts,
    model: Arc<dyn Model>,
    selection: &'w Selection,
    /// Columns selected, for each expansion.
    columns: Vec<Vec<bool>>,
    wanted: Vec<Arc<Wanted>>,
    overrides: Overrides,
}

/// What a survey found in one expansion.
struct Survey<'db> {
    keys: Keys<'db>,
    plan: ExpansionPlan,
    cells: Tally,
    known: u64,
    unasked: u64,
    digest: Digest,
}

impl<'w> Work<'w> {
    /// Prepares to survey or materialize a spec.
    ///
    /// # Errors
    /// [`MaterializeError`] when the selection names what does not exist.
    pub fn new(
        spec: &'w Spec,
        database: &'w Database,
        facts: &'w Facts,
        model: Arc<dyn Model>,
        selection: &'w Selection,
    ) -> Result<Self, MaterializeError> {
        let named = selection.columns.iter().flatten().chain(&selection.refresh);
        for name in named {
            if spec.expansions.iter().all(|e| e.column(name).is_none()) {
                return Err(MaterializeError::NoColumn(name.clone()));
            }
        }
        let columns = spec
            .expansions
            .iter()
            .map(|e| match &selection.columns {
                None => vec![true; e.columns.len()],
                Some(names) => {
                    let mut chosen = vec![false; e.columns.len()];
                    names.iter().filter_map(|n| e.column(n)).for_each(|c| chosen[c] = true);
                    chosen
                }
            })
            .collect();
        let journal = facts.journal();
        let last = journal.last_completion()?;
        let mut wanted = Vec::new();
        for expansion in &spec.expansions {
            let mut w = Wanted::new(&journal, expansion, model.name(), spec.model.reuse)?;
            selection
                .refresh
                .iter()
                .filter_map(|n| expansion.column(n))
                .for_each(|c| w.refresh(c, last));
            if selection.retry_failed {
                w.retry(last);
            }
            wanted.push(Arc::new(w));
        }
        drop(journal);
        let overrides = Overrides::read(spec)?;
        Ok(Self { spec, database, facts, model, selection, columns, wanted, overrides })
    }

    /// What would be asked, and why; asks nothing.
    ///
    /// # Errors
    /// [`MaterializeError`] when keys or facts cannot be read.
    pub fn plan(&self) -> Result<(Plan, Vec<String>), MaterializeError> {
        let tokenizer = Tokenizer::of(&self.spec.model.name);
        let mut plan = Plan { counted: tokenizer.is_exact(), ..Plan::default() };
        let mut warnings = Vec::new();
        let target = Database::open(self.spec.target()).ok();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            let mut survey = self.survey(n, Some(tokenizer))?;
            warnings.extend(
                survey
                    .keys
                    .report
                    .remarks()
                    .into_iter()
                    .map(|r| format!("{}: {r}", expansion.name)),
            );
            if let Some(target) = &target {
                survey.plan.orphaned = orphans(target, expansion, &survey.keys)?;
            }
            plan.expansions.push(survey.plan);
        }
        let instant = self.spec.model.provider == Provider::Replay;
        plan.price(self.spec.model.price.as_ref(), &self.spec.limits, instant);
        Ok((plan, warnings))
    }

    /// Materializes the spec: asks for what is missing, keeps it, publishes.
    /// `interrupt` becoming true ends it early with everything kept.
    ///
    /// # Errors
    /// [`MaterializeError`]; an end before time is in the report instead, since
    /// what was answered is kept and published all the same.
    pub fn materialize(
        &self,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Report, MaterializeError> {
        let mut report = Report {
            priced: self.spec.model.price.is_some(),
            target: self.spec.target().clone(),
            ..Report::default()
        };
        let mut surveys = Vec::new();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            let survey = self.survey(n, None)?;
            for remark in survey.keys.report.remarks() {
                listener(&Event::Warning(format!("{}: {remark}", expansion.name)));
            }
            report.reused += survey.known;
            surveys.push(survey);
        }
        // The target is opened before anything is paid for.
        let output = match &self.spec.output {
            None => None,
            Some(output) => Some(self.database.copy_to(output)?),
        };
        let missing: u64 =
            surveys.iter().map(|s| s.plan.columns.iter().map(ColumnPlan::cells).sum::<u64>()).sum();
        if missing == 0 && self.stands(output.as_ref(), &surveys) {
            surveys.iter().for_each(|s| {
                report.cells.merge(&s.cells);
                report.unasked += s.unasked;
            });
            return Ok(report);
        }
        let target = match output {
            Some(copy) => copy,
            None => Database::open_writable(&self.spec.database)?,
        };
        if missing > 0 {
            self.fill(&surveys, command, listener, interrupt, &mut report)?;
        }
        self.publish(&surveys, &target, listener, &mut report)?;
        Ok(report)
    }

    /// Whether everything stands in the target as the surveys found it.
    fn stands(&self, output: Option<&Database>, surveys: &[Survey<'_>]) -> bool {
        let target = output.unwrap_or(self.database);
        self.spec
            .expansions
            .iter()
            .zip(surveys)
            .all(|(e, s)| target.is_published(e, &s.digest.text(self.spec, self.model.name(), e)))
    }

    /// Looks every key of an expansion up.
    fn survey(
        &self,
        n: usize,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Survey<'w>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let keys = Keys::gather(self.database, expansion, self.selection.filter.as_deref())
            .map_err(|e| match (&self.selection.filter, e) {
                (Some(_), StoreError::Sqlite { message, .. }) => MaterializeError::Where(message),
                (_, e) => e.into(),
            })?;
        let mut plan = ExpansionPlan { name: expansion.name.clone(), ..ExpansionPlan::default() };
        plan.columns = expansion
            .columns
            .iter()
            .map(|c| ColumnPlan { name: c.name.clone(), ..ColumnPlan::default() })
            .collect();
        let mut meter = tokenizer.map(|t| Meter::new(expansion, self.format(expansion), t));
        let mut batcher = Batcher::new(self.rows_per_request(expansion));
        let mut digest = Digest::default();
        let (mut cells, mut known, mut unasked, mut asked_keys) = (Tally::default(), 0, 0, 0);
        keys.each(&mut |key: &KeyRow| {
            let found = self.facts.index().get_raw(&key.entity)?;
            let mark = self.overrides.mark(n, &key.entity);
            digest.add(
                &key.row.key,
                found.as_ref().map(|(_, bytes)| bytes.as_ref()),
                mark.as_deref(),
            );
            if !key.first {
                return Ok(());
            }
            plan.keys += 1;
            let record = found.map(|(record, _)| record);
            let open = self.open_cells(n, key, record.as_ref(), asked_keys);
            asked_keys += u64::from(!open.ask.is_empty());
            for (column, looked) in open.looked {
                let Some(column_plan) = plan.columns.get_mut(column) else { continue };
                match looked {
                    Looked::Overridden(_) => {
                        column_plan.overridden += 1;
                        known += 1;
                        cells.add(State::Overridden, 1);
                    }
                    Looked::Fact(Found::Known(fact)) => {
                        column_plan.known += 1;
                        known += 1;
                        cells.add(fact.answer.state, 1);
                        if let Some(meter) = &mut meter {
                            meter.learn(column, &fact.answer.value);
                        }
                    }
                    Looked::Fact(Found::Missing(reason, _)) if open.ask.contains(&column) => {
                        *column_plan.missing.entry(reason).or_insert(0) += 1;
                    }
                    Looked::Fact(Found::Missing(..)) => unasked += 1,
                }
            }
            if let Some(meter) = meter.as_mut().filter(|_| !open.ask.is_empty()) {
                let gap = Gap { row: key.row.clone(), entity: key.entity.clone() };
                if let Some(cut) =
                    batcher.push(self.on_paper(open.ask, &open.whole), open.whole, gap)
                {
                    meter.count(&cut);
                }
            }
            Ok::<(), Halt>(())
        })
        .map_err(|h| h.into_error(self.database))?;
        if let Some(mut meter) = meter {
            batcher.finish().iter().for_each(|cut| meter.count(cut));
            meter.finish(&mut plan);
        }
        Ok(Survey { keys, plan, cells, known, unasked, digest })
    }

    /// Which cells of a key are to be asked, and what is known of each.
    fn open_cells<'r>(
        &'r self,
        n: usize,
        key: &KeyRow,
        record: Option<&'r Record>,
        asked_keys: u64,
    ) -> Open<'r> {
        let wanted = &self.wanted[n];
        let look = |c: usize| match self.overrides.get(n, &key.entity, c) {
            Some(word) => Looked::Overridden(word),
            None => Looked::Fact(wanted.find(record, c)),
        };
        let looked: Vec<(usize, Looked<'r>)> = key
            .columns
            .iter()
            .enumerate()
            .filter(|(_, asked)| **asked)
            .map(|(c, _)| (c, look(c)))
            .collect();
        let within = key.wanted && self.selection.limit.is_none_or(|limit| asked_keys < limit);
        let ask = looked
            .iter()
            .filter(|(c, f)| {
                within && self.columns[n][*c] && matches!(f, Looked::Fact(Found::Missing(..)))
            })
            .map(|(c, _)| *c)
            .collect();
        let whole = looked.iter().map(|(c, _)| *c).collect();
        Open { looked, ask, whole }
    }

    /// Asks for all that is missing.
    fn fill(
        &self,
        surveys: &[Survey<'_>],
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(MaterializeError::Runtime)?;
        let (run, budget) = self.begin(command)?;
        let writer = Arc::new(self.facts.writer());
        let usage = Arc::new(Mutex::new(Usage::default()));
        for (n, survey) in surveys.iter().enumerate() {
            let cells = survey.plan.columns.iter().map(ColumnPlan::cells).sum();
            if cells == 0 {
                continue;
            }
            let expansion = &self.spec.expansions[n];
            listener(&Event::Begin { expansion: expansion.name.clone(), cells });
            let context = Arc::new(Context {
                expansion: Arc::new(expansion.clone()),
                wanted: Arc::clone(&self.wanted[n]),
                model: Arc::clone(&self.model),
                writer: Arc::clone(&writer),
                format: self.format(expansion),
                run,
                price: self.spec.model.price,
                max_output: u64::from(self.spec.model.max_output_tokens),
                counts: budget.is_capped() || self.spec.limits.tokens_per_minute.is_some(),
                budget: Arc::clone(&budget),
                concurrency: self.spec.limits.concurrency as usize,
                listener: Arc::clone(listener),
                usage: Arc::clone(&usage),
                interrupt: interrupt.clone(),
                frames: Mutex::default(),
                packing: Packing::new(self.rows_per_request(expansion)),
                failures: 0.into(),
                tokenizer_of: self.spec.model.name.clone(),
                tokenizer: OnceLock::new(),
            });
            let (send, cuts) = mpsc::channel(2 * self.spec.limits.concurrency as usize);
            let generating = runtime.spawn(generate::generate(context, cuts));
            // The keys are walked here, beside the runtime: SQLite stays on this thread.
            let walked = self.walk(n, &survey.keys, &send);
            drop(send);
            match runtime.block_on(generating) {
                Ok(Ok(())) => {}
                Ok(Err(stopped)) => report.stopped = Some(Arc::new(stopped)),
                Err(panic) => {
                    let message = format!("a request ended in a bug: {panic}");
                    report.stopped = Some(Arc::new(Stopped::Gone(message)));
                }
            }
            walked?;
            if report.stopped.is_some() {
                break;
            }
        }
        report.usage = *usage.lock().unwrap_or_else(PoisonError::into_inner);
        close(writer);
        let outcome = match report.stopped.as_deref() {
            None => Outcome::Complete,
            Some(Stopped::Interrupted) => Outcome::Interrupted,
            Some(_) => Outcome::Stopped,
        };
        self.facts.journal().end(run, outcome)?;
        self.facts.index().flush()?;
        Ok(())
    }

    /// Begins a run, or goes on with one of this spec that was killed: its
    /// budget is what that one left. Spending of the day counts in the budget
    /// of the day.
    fn begin(&self, command: &str) -> Result<(i64, Arc<Budget>), FactsError> {
        let spec = self.spec.path.canonicalize().unwrap_or_else(|_| self.spec.path.clone());
        let journal = self.facts.journal();
        let (run, spent) = journal.begin_or_go_on(command, &spec.display().to_string())?;
        let limits = &self.spec.limits;
        let mut usd = limits.budget_usd;
        if let Some(of_day) = limits.budget_usd_per_day {
            // What this run may still spend today, on top of what it has spent.
            let left = (of_day - journal.spent_today()?).max(0.0) + spent.usd;
            usd = Some(usd.map_or(left, |usd| usd.min(left)));
        }
        Ok((run, Arc::new(Budget::new(Caps { usd, tokens: limits.budget_tokens }, spent))))
    }

    /// Sends the gaps of an expansion, batch by batch.
    fn walk(
        &self,
        n: usize,
        keys: &Keys<'_>,
        send: &mpsc::Sender<crate::plan::Cut>,
    ) -> Result<(), MaterializeError> {
        let mut batcher = Batcher::new(self.rows_per_request(&self.spec.expansions[n]));
        let mut asked_keys = 0;
        let walked = keys.each(&mut |key: &KeyRow| {
            if !key.first {
                return Ok(());
            }
            let record = self.facts.index().get(&key.entity)?;
            let open = self.open_cells(n, key, record.as_ref(), asked_keys);
            if open.ask.is_empty() {
                return Ok(());
            }
            asked_keys += 1;
            let gap = Gap { row: key.row.clone(), entity: key.entity.clone() };
            match batcher.push(open.ask, open.whole, gap) {
                Some(cut) => send.blocking_send(cut).map_err(|_| Halt::Closed),
                None => Ok(()),
            }
        });
        match walked {
            Ok(()) => {}
            // The receiver knows why it closed.
            Err(Halt::Closed) => return Ok(()),
            Err(halt) => return Err(halt.into_error(self.database)),
        }
        for cut in batcher.finish() {
            if send.blocking_send(cut).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Writes the tables from the facts, in one transaction.
    fn publish(
        &self,
        surveys: &[Survey<'_>],
        target: &Database,
        listener: &Listener,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let publication = Publication::begin(target)?;
        for (n, survey) in surveys.iter().enumerate() {
            let expansion = &self.spec.expansions[n];
            let mut tables = publication.expansion(expansion)?;
            let mut digest = Digest::default();
            survey
                .keys
                .each(&mut |key: &KeyRow| {
                    let found = self.facts.index().get_raw(&key.entity)?;
                    let mark = self.overrides.mark(n, &key.entity);
                    digest.add(
                        &key.row.key,
                        found.as_ref().map(|(_, bytes)| bytes.as_ref()),
                        mark.as_deref(),
                    );
                    let record = found.map(|(record, _)| record);
                    let looked = self.open_cells(n, key, record.as_ref(), 0).looked;
                    let mut shown: Vec<Option<Shown<'_>>> = vec![None; expansion.columns.len()];
                    for (column, looked) in &looked {
                        let cell = looked.shown();
                        if key.first {
                            match cell.as_ref().and_then(|c| State::from_name(c.state)) {
                                Some(state) => report.cells.add(state, 1),
                                None => report.unasked += 1,
                            }
                        }
                        shown[*column] = cell;
                    }
                    tables.row(&key.row, &shown)?;
                    Ok::<(), Halt>(())
                })
                .map_err(|h| h.into_error(self.database))?;
            let journal = self.facts.journal();
            let mut origins = |id: i64| {
                let (c, model) = journal.completion(id).ok()??;
                Some(Origin {
                    run: c.run,
                    model,
                    prompt_hash: c.prompt_hash,
                    asked_at: c.asked_at,
                    input_tokens: c.input_tokens,
                    output_tokens: c.output_tokens,
                    cost_usd: c.cost_usd,
                    cells: c.cells,
                    error: c.error,
                })
            };
            publication.close(
                self.spec,
                &tables.finish(),
                &digest.text(self.spec, self.model.name(), expansion),
                &mut origins,
            )?;
        }
        for warning in publication.views(self.spec)? {
            listener(&Event::Warning(warning));
        }
        publication.commit()?;
        report.published = true;
        Ok(())
    }

    /// The columns that a prompt will name.
    fn on_paper(&self, ask: Vec<usize>, whole: &[usize]) -> Vec<usize> {
        if self.model.answers_whole_rows() { whole.to_vec() } else { ask }
    }

    fn rows_per_request(&self, expansion: &Expansion) -> u32 {
        self.model
            .rows_at_most()
            .map_or(expansion.rows_per_request, |m| m.min(expansion.rows_per_request))
    }

    fn format(&self, expansion: &Expansion) -> Format {
        expansion.format.unwrap_or_else(|| self.model.format())
    }
}

/// What [`Work::open_cells`] finds.
struct Open<'r> {
    looked: Vec<(usize, Looked<'r>)>,
    ask: Vec<usize>,
    whole: Vec<usize>,
}

/// What is known of a cell: a person's word, or what the facts say.
enum Looked<'r> {
    Overridden(&'r Override),
    Fact(Found<'r>),
}

impl<'r> Looked<'r> {
    /// As it is published; `None` where nothing was ever asked.
    fn shown(&self) -> Option<Shown<'r>> {
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

/// Ends the writing thread; everything it was given is kept before.
fn close(writer: Arc<Writer>) {
    drop(writer);
}

/// What ends a walk over the keys.
enum Halt {
    Sqlite(rusqlite::Error),
    Store(StoreError),
    Facts(FactsError),
    /// Nobody takes batches any more.
    Closed,
}

impl Halt {
    fn into_error(self, db: &Database) -> MaterializeError {
        match self {
            Self::Sqlite(e) => db.error(&e).into(),
            Self::Store(e) => e.into(),
            Self::Facts(e) => e.into(),
            Self::Closed => MaterializeError::Stopped(Stopped::Interrupted),
        }
    }
}

impl From<rusqlite::Error> for Halt {
    fn from(e: rusqlite::Error) -> Self {
        Self::Sqlite(e)
    }
}

impl From<StoreError> for Halt {
    fn from(e: StoreError) -> Self {
        Self::Store(e)
    }
}

impl From<FactsError> for Halt {
    fn from(e: FactsError) -> Self {
        Self::Facts(e)
    }
}

/// Sums up everything that is published, in any order: when it is the same as
/// before, there is nothing to publish.
#[derive(Debug, Clone, Copy, Default)]
struct Digest {
    sum: u128,
    rows: u64,
}

impl Digest {
    fn add(&mut self, key: &[crate::value::Value], record: Option<&[u8]>, mark: Option<&str>) {
        let mut hasher = blake3::Hasher::new();
        for value in key {
            // The spelling counts: it is what joins.
            let text = value.text();
            hasher.update(&[u8::from(text.is_some())]);
            let text = text.unwrap_or_default();
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&[u8::from(record.is_some())]);
        hasher.update(record.unwrap_or_default());
        hasher.update(mark.unwrap_or_default().as_bytes());
        let hash = hasher.finalize();
        let (head, _) = hash.as_bytes().split_at(16);
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(head.try_into().unwrap_or([0; 16])));
        self.rows += 1;
    }

    /// With everything else that decides what the tables look like.
    fn text(&self, spec: &Spec, model: &str, expansion: &Expansion) -> String {
        let mut layout = format!("v1 {} {} {:?}", self.rows, self.sum, expansion.key_types);
        layout.push_str(&format!("{:?} {model:?}", spec.model.reuse));
        layout.push_str(&format!("{:?} {:?}", expansion.key.names(), expansion.sources));
        for column in &expansion.columns {
            let list = column.values.as_ref().map(|v| v.hash.as_str().to_owned());
            layout.push_str(&format!(
                "{} {} {:?} {list:?} {:?};",
                column.name, column.fingerprint, column.kind, column.many
            ));
        }
        blake3::hash(layout.as_bytes()).to_hex().as_str()[..32].to_owned()
    }
}

/// Rows published whose key is in no source any more.
fn orphans(
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
            key.row.key.iter().map(crate::value::Value::to_json).collect();
        known.insert(hash(&serde_json::Value::Array(json).to_string()));
        Ok::<(), rusqlite::Error>(())
    })
    .map_err(|e| target.error(&e))?;
    Ok(target.orphans(expansion, &mut |key| known.contains(&hash(key))))
}
