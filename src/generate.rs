//! Generation: batches × model → facts, each batch kept before the next step.
//!
//! Batches come through a bounded channel from whoever walks the keys, so
//! memory does not grow with their number. Up to `concurrency` of them are
//! under way; each is asked, read, and kept by itself, and only rows that
//! failed are asked again, in smaller batches. One row's failure is data; what
//! stops a run is an endpoint that refuses, a disk that fails, or the user.

mod claim;
mod event;
mod frames;
mod packing;
mod shares;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{Instrument, debug, debug_span, info};

use self::claim::Elsewhere;
pub(crate) use self::claim::{Claimed, claim};
pub use self::event::{Event, Listener, Stopped};
pub use self::frames::Frames;
pub use self::packing::Packing;
pub(crate) use self::packing::halves;
use self::packing::{Again, smaller};
use crate::cell::{Answer, CellValue, State, Tally};
use crate::facts::{Batch, Completion, Fact, Wanted, Writer};
use crate::key::Entity;
use crate::model::budget::Budget;
use crate::model::{Errand, Ledger, Model, ModelError, Reply, Tokens, Undone};
use crate::plan::Cut;
use crate::prompt::{Frame, Prompt, RowOutcome, completion};
use crate::spec::checker::Checker;
use crate::spec::{Expansion, Format, PriceTable};
use crate::tokens::Tokenizer;
use crate::usage::{ColumnUsage, Usage};

/// How often a row is asked about, at the last alone, before it is given up as
/// invalid.
const ATTEMPTS: u32 = 3;
/// Requests that may fail one after another, with no success between, before
/// the endpoint is taken to be gone.
const FAILURES: u32 = 8;

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
    /// The most tokens an answer may have.
    pub max_output: u64,
    /// What may be spent.
    pub budget: Arc<Budget>,
    /// Whether tokens must be counted before they are sent, for a limit or a budget.
    pub counts: bool,
    /// Requests in flight at once.
    pub concurrency: usize,
    /// Who is told.
    pub listener: Listener,
    /// Used so far in this run, over all expansions.
    pub usage: Arc<Mutex<Usage>>,
    /// Used so far by the columns of this expansion.
    pub columns: Mutex<Vec<ColumnUsage>>,
    /// Becomes true when the user wants the run to end.
    pub interrupt: watch::Receiver<bool>,
    /// What prompts were made from.
    pub frames: Frames,
    /// Rows that a request may hold now: fewer when answers come back
    /// misaligned or unreadable, more again when they do not.
    pub packing: Packing,
    /// Failures since the last success.
    pub failures: AtomicU32,
    /// Whether cells that batches under way ask for are left to these.
    pub beside_batches: bool,
    /// Cells that others have brought since they were found missing.
    pub found: Arc<AtomicU64>,
    /// Whether any request was answered.
    pub reached: Arc<AtomicBool>,
    /// The model whose tokenizer counts where the endpoint does not.
    pub tokenizer_of: String,
    /// Loaded when first needed.
    pub tokenizer: std::sync::OnceLock<Tokenizer>,
}

/// A request whose reply is at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// The rows and columns it asked for.
    pub cut: &'a Cut,
    /// What its prompt was made from.
    pub frame: &'a Frame,
    /// How often its rows were asked about, this time included.
    pub attempt: u32,
    /// The note of what was reserved for it, by id in the journal.
    pub note: Option<i64>,
    /// The request of a parcel that this was, by id in the journal.
    pub answers: Option<i64>,
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
    let mut watching = true;
    // True when the run is to end, for whichever reason: waits end, and
    // nothing more is asked.
    let (stop, stopping) = watch::channel(false);
    while (open && stopped.is_none()) || !tasks.is_empty() {
        tokio::select! {
            biased;
            changed = interrupt.wait_for(|i| *i), if stopped.is_none() && watching => {
                if changed.is_ok() {
                    stopped = Some(Stopped::Interrupted);
                }
                // Nobody is left who could interrupt.
                watching = changed.is_ok();
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                match ended {
                    Ok(Ok(())) => {}
                    Ok(Err(why)) => { stopped.get_or_insert(why); }
                    Err(bug) => { stopped.get_or_insert(Stopped::Bug(bug.to_string())); }
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
    if let Some(why) = &stopped {
        info!(%why, "stops before its end");
    }
    stopped.map_or(Ok(()), Err)
}

/// A batch, to its end: claimed, asked, read, kept; its failed rows asked again,
/// and what others were asking looked at when they have done.
async fn settle(
    context: Arc<Context>,
    cut: Cut,
    stopping: watch::Receiver<bool>,
) -> Result<(), Stopped> {
    let mut left = vec![(cut, 1)];
    let mut elsewhere: Vec<(Elsewhere, u32)> = Vec::new();
    loop {
        if *stopping.borrow() {
            // The rows stay missing; the next run asks for them.
            return Ok(());
        }
        let Some((mut cut, attempt)) = left.pop() else {
            let Some((Elsewhere { cut, first }, attempt)) = elsewhere.pop() else { return Ok(()) };
            // Nothing is claimed while this waits.
            tokio::select! {
                biased;
                released = context.writer.released(&first) => released?,
                () = stopped(&stopping) => return Ok(()),
            }
            left.push((cut, attempt));
            continue;
        };
        let rows = context.packing.rows();
        if cut.gaps.len() > rows {
            let rest = cut.gaps.split_off(rows);
            left.push((Cut { gaps: rest, ..cut.clone() }, attempt));
        }
        let claimed = context.claim(cut).await?;
        elsewhere.extend(claimed.elsewhere.into_iter().map(|e| (e, attempt)));
        for cut in claimed.ours {
            let span = debug_span!(
                "request",
                prompt = tracing::field::Empty,
                rows = cut.gaps.len(),
                columns = cut.columns.len(),
                asked = attempt
            );
            let again = ask(&context, cut, attempt, &stopping).instrument(span).await?;
            left.extend(again);
        }
    }
}

/// Asks one request and keeps what it brings. Returns what to ask again.
async fn ask(
    context: &Context,
    cut: Cut,
    attempt: u32,
    stopping: &watch::Receiver<bool>,
) -> Result<Vec<(Cut, u32)>, Stopped> {
    let (frame, prompt) = context.prompt(&cut);
    let began = Instant::now();
    let mut record = context.record(&cut, prompt.hash());
    tracing::Span::current().record("prompt", record.prompt_hash.as_str());
    let count = |reply: &Reply| context.count(&frame, &prompt, reply);
    let errand = Errand {
        model: &*context.model,
        prompt: &prompt,
        budget: &context.budget,
        price: context.price.as_ref(),
        count: &count,
        on_wire: false.into(),
        tries: 0.into(),
        ledger: context
            .model
            .bills()
            .then_some(Ledger { writer: &context.writer, run: context.run }),
    };
    let asked = tokio::select! {
        biased;
        asked = errand.run() => asked,
        // Waiting for a limit or for better times: nothing is paid for yet.
        () = stopped_off_wire(stopping, &errand) => return Ok(Vec::new()),
    };
    record.seconds = began.elapsed().as_secs_f64();
    let (reply, note) = match asked {
        Ok(answered) => {
            context.failures.store(0, Ordering::Relaxed);
            context.reached.store(true, Ordering::Relaxed);
            answered
        }
        Err(Undone::Facts(error)) => return Err(error.into()),
        Err(Undone::Model(error @ (ModelError::Refused { .. } | ModelError::Budget(_)))) => {
            return Err(error.into());
        }
        Err(Undone::Model(ModelError::TooLong(_))) if cut.gaps.len() > 1 => {
            return Ok(halves(&cut, attempt));
        }
        Err(Undone::Model(error)) => {
            (context.listener)(&Event::Failed(error.to_string()));
            if matches!(error, ModelError::Passing { .. }) {
                let failures = context.failures.fetch_add(1, Ordering::Relaxed) + 1;
                // Nothing ever got through: it is not there.
                if failures >= FAILURES || !context.reached.load(Ordering::Relaxed) {
                    return Err(Stopped::Gone(error.to_string()));
                }
            }
            context.keep_failure(&cut, record, &error.to_string(), None).await?;
            return Ok(Vec::new());
        }
    };
    let asked = Asked { cut: &cut, frame: &frame, attempt, note, answers: None };
    context.take_in(asked, record, reply).await
}

/// Ends when the run is to end.
async fn stopped(stopping: &watch::Receiver<bool>) {
    if stopping.clone().wait_for(|s| *s).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends when the run is to end and the errand is not with the endpoint.
async fn stopped_off_wire(stopping: &watch::Receiver<bool>, errand: &Errand<'_>) {
    stopped(stopping).await;
    while errand.on_wire.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Context {
    /// The record of a request that is being asked now.
    pub(crate) fn record(&self, cut: &Cut, prompt_hash: String) -> Completion {
        Completion {
            run: self.run,
            model: self.wanted.model,
            prompt_hash,
            asked_at: crate::store::now(),
            cells: (cut.columns.len() * cut.gaps.len()) as u64,
            ..Completion::default()
        }
    }

    /// Tokens of a request whose endpoint does not say.
    pub(crate) fn count(&self, frame: &Frame, prompt: &Prompt, reply: &Reply) -> Tokens {
        let tokenizer = self.tokenizer();
        let input = frame.tokens(tokenizer) + tokenizer.count(&prompt.user);
        Tokens { input, cached_input: 0, output: tokenizer.count(&reply.content) }
    }

    /// Reads a reply that comes with its tokens, keeps what it brings, and
    /// returns what to ask again.
    pub(crate) async fn take_in(
        &self,
        asked: Asked<'_>,
        mut record: Completion,
        reply: Reply,
    ) -> Result<Vec<(Cut, u32)>, Stopped> {
        let Asked { cut, frame, attempt, note, answers } = asked;
        let tokens = reply.tokens.unwrap_or_default();
        record.input_tokens = tokens.input;
        record.cached_input_tokens = tokens.cached_input;
        record.output_tokens = tokens.output;
        record.cost_usd = self.price.as_ref().map_or(0.0, |p| tokens.cost(p));
        let cost = record.cost_usd;
        let last = attempt >= ATTEMPTS || self.model.repeats_itself();
        let (facts, again) = self.read(cut, frame, &reply, last);
        let ask_again: usize = again.values().map(Vec::len).sum();
        debug!(entities = facts.len(), ask_again, "read");
        record.content = Some(reply.content);
        let tallies = self.tallies(cut, &facts);
        let mut tally = Tally::default();
        tallies.iter().for_each(|t| tally.merge(t));
        self.writer.keep(Batch { completion: record, facts, settles: note, answers }).await?;
        let usage = {
            let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
            usage.add(tokens, cost);
            *usage
        };
        self.share(cut, &tallies, tokens, cost);
        (self.listener)(&Event::Kept { cells: tally, usage });
        let given_up = tally.get(State::Invalid) as usize / cut.columns.len().max(1);
        let failed = given_up + ask_again;
        if attempt == 1 {
            self.packing.learn(cut.gaps.len(), failed);
        }
        Ok(smaller(again, cut, attempt + 1))
    }

    /// Input tokens of a prompt: counted where a limit or a budget depends on
    /// it, with room for what an endpoint wraps around; else estimated.
    fn input_tokens(&self, frame: &Frame, prompt: &Prompt) -> u64 {
        if !self.counts {
            let estimate = Tokenizer::Estimate;
            return estimate.count(&prompt.system) + estimate.count(&prompt.user);
        }
        let tokenizer = self.tokenizer();
        let counted = frame.tokens(tokenizer) + tokenizer.count(&prompt.user) + 16;
        // A tokenizer that is only guessed may be wrong by much.
        if tokenizer.is_exact() { counted + counted / 50 } else { counted + counted / 2 }
    }

    fn tokenizer(&self) -> Tokenizer {
        *self.tokenizer.get_or_init(|| Tokenizer::of(&self.tokenizer_of))
    }

    /// Reads a reply: facts, and gaps by the columns to ask again.
    fn read(
        &self,
        cut: &Cut,
        frame: &Frame,
        reply: &Reply,
        last: bool,
    ) -> (Vec<(Entity, Vec<Fact>)>, Again) {
        let (keys, names) = self.keys(cut);
        let on_paper = self.on_paper(cut);
        let checkers: Vec<&Checker> =
            on_paper.iter().filter_map(|c| self.wanted.checker(*c)).collect();
        let mut outcomes = completion::read(
            &reply.content,
            reply.truncated,
            &keys,
            &names,
            &frame.columns,
            &checkers,
        );
        if reply.refused {
            // What was written before the refusal counts; the rest was refused.
            for outcome in &mut outcomes {
                if let RowOutcome::Failed { state, why, .. } = outcome {
                    *state = State::Refused;
                    "the model refused".clone_into(why);
                }
            }
        }
        // Who is refused in company may be answered alone.
        let company = cut.gaps.len() > 1 && !self.model.repeats_itself();
        let mut facts = Vec::new();
        let mut again: Again = BTreeMap::new();
        for (gap, outcome) in cut.gaps.iter().zip(outcomes) {
            let answers: Vec<Answer> = match outcome {
                RowOutcome::Read(answers) => answers,
                RowOutcome::Failed { state: State::Refused, .. } if company => {
                    again.entry(cut.columns.clone()).or_default().push(gap.clone());
                    continue;
                }
                // What got lost in company is not given up before it was asked alone.
                RowOutcome::Failed { state: State::Invalid, .. } if !last || company => {
                    again.entry(cut.columns.clone()).or_default().push(gap.clone());
                    continue;
                }
                // What a recording lacks was never said.
                RowOutcome::Failed { .. } if reply.partial => {
                    vec![Answer::without_value(State::Error, None); on_paper.len()]
                }
                RowOutcome::Failed { state, why, raw } => {
                    let answer = Answer {
                        state,
                        value: CellValue::Nothing,
                        raw: Some(raw),
                        repair: Some(why),
                    };
                    vec![answer; on_paper.len()]
                }
            };
            let said = answers.into_iter().map(|a| match (a.state, &a.raw) {
                (State::Invalid, None) if reply.partial => {
                    Answer::without_value(State::Error, None)
                }
                _ => a,
            });
            let (unread, read): (Vec<_>, Vec<_>) = on_paper
                .iter()
                .zip(said)
                .filter(|(c, _)| cut.columns.contains(c))
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
    pub(crate) async fn keep_failure(
        &self,
        cut: &Cut,
        mut record: Completion,
        why: &str,
        answers: Option<i64>,
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
        let tallies = self.tallies(cut, &facts);
        self.writer.keep(Batch { completion: record, facts, settles: None, answers }).await?;
        self.share(cut, &tallies, Tokens::default(), 0.0);
        let usage = *self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        (self.listener)(&Event::Kept { cells: tally, usage });
        Ok(())
    }
}
