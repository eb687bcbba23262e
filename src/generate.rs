//! Generation: batches × model → facts, each batch kept before the next step.
//!
//! Batches come through a bounded channel from whoever walks the keys, so
//! memory does not grow with their number. Up to `concurrency` of them are
//! under way; each is asked, read, and kept by itself, and only rows that
//! failed are asked again, in smaller batches. One row's failure is data; what
//! stops a run is an endpoint that refuses, a disk that fails, or the user.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::cell::{Answer, CellValue, State, Tally};
use crate::facts::{Batch, Completion, Fact, FactsError, Wanted, Writer};
use crate::key::Entity;
use crate::model::{Model, ModelError, Reply, Tokens, ask_patiently};
use crate::plan::{Cut, Gap};
use crate::prompt::{Frame, RowOutcome, align::Keys, completion};
use crate::spec::checker::Checker;
use crate::spec::{Expansion, Format, PriceTable};
use crate::tokens::Tokenizer;

/// How often a row is asked about before it is given up as invalid.
const ATTEMPTS: u32 = 3;
/// Requests that may fail one after another, with no success between, before
/// the endpoint is taken to be gone.
const FAILURES: u32 = 8;

/// What a run has used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Requests that got a reply.
    pub requests: u64,
    /// Input tokens.
    pub input_tokens: u64,
    /// Those of them that the endpoint had cached.
    pub cached_input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
}

impl Usage {
    fn add(&mut self, tokens: Tokens, cost: f64) {
        self.requests += 1;
        self.input_tokens += tokens.input;
        self.cached_input_tokens += tokens.cached_input;
        self.output_tokens += tokens.output;
        self.cost_usd += cost;
    }
}

/// What happens while a run goes on.
#[derive(Debug, Clone)]
pub enum Event {
    /// An expansion begins; so many cells are to be asked.
    Begin {
        /// Its name.
        expansion: String,
        /// Cells to be asked.
        cells: u64,
    },
    /// A request was answered and its facts are safe.
    Kept {
        /// Cells that ended, by state.
        cells: Tally,
        /// Everything used so far.
        usage: Usage,
    },
    /// Something the user should know.
    Warning(String),
}

/// Who is told.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Why a run stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    /// The endpoint refuses.
    #[error(transparent)]
    Endpoint(#[from] ModelError),
    /// Nothing gets through to the endpoint.
    #[error("the endpoint does not answer: {0}")]
    Gone(String),
    /// What was answered cannot be kept.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The user interrupted.
    #[error("interrupted")]
    Interrupted,
}

/// What all batches of an expansion share.
pub struct Context {
    /// The expansion.
    pub expansion: Arc<Expansion>,
    /// How the facts know it.
    pub wanted: Arc<Wanted>,
    /// Who is asked.
    pub model: Arc<dyn Model>,
    /// Who keeps the answers.
    pub writer: Arc<Writer>,
    /// The form of the answers.
    pub format: Format,
    /// The run.
    pub run: i64,
    /// Price per million tokens.
    pub price: Option<PriceTable>,
    /// Requests in flight at once.
    pub concurrency: usize,
    /// Who is told.
    pub listener: Listener,
    /// Used so far in this run, over all expansions.
    pub usage: Arc<Mutex<Usage>>,
    /// Becomes true when the user wants the run to end.
    pub interrupt: watch::Receiver<bool>,
    /// Frames by the columns they ask for.
    pub frames: Mutex<HashMap<Vec<usize>, Arc<Frame>>>,
    /// Failures since the last success.
    pub failures: AtomicU32,
    /// The model whose tokenizer counts where the endpoint does not.
    pub tokenizer_of: String,
    /// Loaded when first needed.
    pub tokenizer: std::sync::OnceLock<Tokenizer>,
}

/// Asks about all batches that come; returns when there are no more and all is
/// kept, or at the first thing that stops the run. What is in flight then is
/// waited for: it is paid for.
///
/// # Errors
/// [`Stopped`].
pub async fn generate(context: Arc<Context>, mut cuts: mpsc::Receiver<Cut>) -> Result<(), Stopped> {
    let mut interrupt = context.interrupt.clone();
    let mut tasks: JoinSet<Result<(), Stopped>> = JoinSet::new();
    let mut stopped = None;
    let mut open = true;
    // True when the run is to end, for whichever reason: pauses end, and
    // nothing more is asked.
    let (stop, stopping) = watch::channel(false);
    while (open && stopped.is_none()) || !tasks.is_empty() {
        tokio::select! {
            biased;
            changed = interrupt.wait_for(|i| *i), if stopped.is_none() => {
                if changed.is_ok() {
                    stopped = Some(Stopped::Interrupted);
                }
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                if let Ok(Err(why)) = ended {
                    stopped.get_or_insert(why);
                }
            }
            cut = cuts.recv(), if open && stopped.is_none() && tasks.len() < context.concurrency.max(1) => {
                match cut {
                    Some(cut) => { tasks.spawn(settle(Arc::clone(&context), cut, stopping.clone())); }
                    None => open = false,
                }
            }
        }
        if stopped.is_some() {
            cuts.close();
            stop.send_replace(true);
        }
    }
    stopped.map_or(Ok(()), Err)
}

/// A batch, to its end: asked, read, kept; its failed rows asked again.
async fn settle(
    context: Arc<Context>,
    cut: Cut,
    stopping: watch::Receiver<bool>,
) -> Result<(), Stopped> {
    let mut left = vec![(cut, 1)];
    while let Some((cut, attempt)) = left.pop() {
        if *stopping.borrow() {
            // The rows stay missing; the next run asks for them.
            return Ok(());
        }
        let again = ask(&context, cut, attempt, &stopping).await?;
        left.extend(again);
    }
    Ok(())
}

/// Asks one request and keeps what it brings. Returns what to ask again.
async fn ask(
    context: &Context,
    cut: Cut,
    attempt: u32,
    stopping: &watch::Receiver<bool>,
) -> Result<Vec<(Cut, u32)>, Stopped> {
    let frame = context.frame(&cut.columns);
    let prompt = frame.prompt(cut.gaps.iter().map(|g| &g.row));
    let began = Instant::now();
    let mut record = Completion {
        run: context.run,
        model: context.wanted.model,
        prompt_hash: prompt.hash(),
        asked_at: crate::store::now(),
        cells: (cut.columns.len() * cut.gaps.len()) as u64,
        ..Completion::default()
    };
    let asked = ask_patiently(&*context.model, &prompt, stopping.clone()).await;
    record.seconds = began.elapsed().as_secs_f64();
    let reply = match asked {
        Ok(reply) => {
            context.failures.store(0, Ordering::Relaxed);
            reply
        }
        Err(error @ ModelError::Refused { .. }) => return Err(error.into()),
        // The rows stay missing; the next run asks for them.
        Err(ModelError::Passing { .. }) if *stopping.borrow() => return Ok(Vec::new()),
        Err(ModelError::TooLong(_)) if cut.gaps.len() > 1 => return Ok(halves(cut, attempt)),
        Err(error) => {
            if matches!(error, ModelError::Passing { .. })
                && context.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES
            {
                return Err(Stopped::Gone(error.to_string()));
            }
            context.keep_failure(&cut, record, &error.to_string()).await?;
            return Ok(Vec::new());
        }
    };
    let tokens = reply.tokens.unwrap_or_else(|| {
        let tokenizer = context.tokenizer.get_or_init(|| Tokenizer::of(&context.tokenizer_of));
        Tokens {
            input: tokenizer.count(&prompt.system) + tokenizer.count(&prompt.user),
            cached_input: 0,
            output: tokenizer.count(&reply.content),
        }
    });
    record.input_tokens = tokens.input;
    record.cached_input_tokens = tokens.cached_input;
    record.output_tokens = tokens.output;
    record.cost_usd = context.price.as_ref().map_or(0.0, |p| tokens.cost(p));
    let cost = record.cost_usd;
    let last = attempt >= ATTEMPTS || context.model.repeats_itself();
    let (facts, again) = context.read(&cut, &frame, &reply, last);
    record.content = Some(reply.content);
    let mut tally = Tally::default();
    facts.iter().flat_map(|(_, f)| f).for_each(|f| tally.add(f.answer.state, 1));
    context.writer.keep(Batch { completion: record, facts }).await?;
    let usage = {
        let mut usage = context.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.add(tokens, cost);
        *usage
    };
    (context.listener)(&Event::Kept { cells: tally, usage });
    Ok(smaller(again, cut.gaps.len(), attempt + 1))
}

impl Context {
    fn frame(&self, columns: &[usize]) -> Arc<Frame> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || Arc::new(Frame::new(&self.expansion, columns, self.format));
        Arc::clone(frames.entry(columns.to_vec()).or_insert_with(make))
    }

    /// Reads a reply: facts, and gaps by the columns to ask again.
    fn read(
        &self,
        cut: &Cut,
        frame: &Frame,
        reply: &Reply,
        last: bool,
    ) -> (Vec<(Entity, Vec<Fact>)>, Again) {
        let keys = Keys::new(cut.gaps.iter().map(|g| g.row.key.as_slice()));
        let checkers: Vec<&Checker> =
            cut.columns.iter().filter_map(|c| self.wanted.checker(*c)).collect();
        let outcomes = if reply.refused {
            let why = || RowOutcome::Failed {
                state: State::Refused,
                why: "the model refused".to_owned(),
                raw: reply.content.clone(),
            };
            cut.gaps.iter().map(|_| why()).collect()
        } else {
            let names = self.expansion.key.names();
            completion::read(
                &reply.content,
                reply.truncated,
                &keys,
                names,
                &frame.columns,
                &checkers,
            )
        };
        let mut facts = Vec::new();
        let mut again: Again = BTreeMap::new();
        for (gap, outcome) in cut.gaps.iter().zip(outcomes) {
            let answers: Vec<Answer> = match outcome {
                RowOutcome::Read(answers) => answers,
                RowOutcome::Failed { state: State::Invalid, .. } if !last => {
                    again.entry(cut.columns.clone()).or_default().push(gap.clone());
                    continue;
                }
                RowOutcome::Failed { state, why, raw } => {
                    let answer = Answer {
                        state,
                        value: CellValue::Nothing,
                        raw: Some(raw),
                        repair: Some(why),
                    };
                    vec![answer; cut.columns.len()]
                }
            };
            let (unread, read): (Vec<_>, Vec<_>) = cut
                .columns
                .iter()
                .zip(answers)
                .partition(|(_, a)| a.state == State::Invalid && !last);
            if !unread.is_empty() {
                let columns = unread.into_iter().map(|(c, _)| *c).collect();
                again.entry(columns).or_default().push(gap.clone());
            }
            let read: Vec<Fact> =
                read.into_iter().filter_map(|(c, a)| self.wanted.fact(*c, a)).collect();
            if !read.is_empty() {
                facts.push((gap.entity.clone(), read));
            }
        }
        (facts, again)
    }

    /// Keeps the failure of a request: `error` is no answer, and the next run
    /// asks again, but the table can say why a cell is empty.
    async fn keep_failure(
        &self,
        cut: &Cut,
        mut record: Completion,
        why: &str,
    ) -> Result<(), Stopped> {
        record.error = Some(why.to_owned());
        let fact = |c: &usize| self.wanted.fact(*c, Answer::without_value(State::Error, None));
        let facts: Vec<_> = cut
            .gaps
            .iter()
            .map(|g| (g.entity.clone(), cut.columns.iter().filter_map(fact).collect()))
            .collect();
        let mut tally = Tally::default();
        tally.add(State::Error, record.cells);
        self.writer.keep(Batch { completion: record, facts }).await?;
        let usage = *self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        (self.listener)(&Event::Kept { cells: tally, usage });
        Ok(())
    }
}

/// Rows to be asked again, by the columns they still lack.
type Again = BTreeMap<Vec<usize>, Vec<Gap>>;

/// Batches of at most half the size.
fn smaller(again: Again, size: usize, attempt: u32) -> Vec<(Cut, u32)> {
    let most = (size / 2).max(1);
    let cut = |(columns, gaps): (Vec<usize>, Vec<Gap>)| {
        let parts: Vec<_> = gaps
            .chunks(most)
            .map(|part| (Cut { columns: columns.clone(), gaps: part.to_vec() }, attempt))
            .collect();
        parts
    };
    again.into_iter().flat_map(cut).collect()
}

/// A batch that was too long, in two; that is no attempt at its rows.
fn halves(cut: Cut, attempt: u32) -> Vec<(Cut, u32)> {
    let size = cut.gaps.len();
    let again = BTreeMap::from([(cut.columns, cut.gaps)]);
    smaller(again, size, attempt)
}
