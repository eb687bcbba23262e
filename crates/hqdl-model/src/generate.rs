//! Generation: asks the model about row batches and stores the facts, one batch at a time.
//!
//! Batches arrive through a bounded channel from the task that enumerates the keys, so memory does
//! not grow with their number. Up to `concurrency` requests are in flight. Each is sent, parsed and
//! stored by itself. Only failed rows are asked again, in smaller batches. A request that fails as
//! a whole is split until the failing rows are alone (`circuit_breaker.rs`). The failure of a row
//! is data. A run stops if the endpoint rejects all requests or is gone, if the disk fails, or if
//! the user interrupts it.

mod claim;
mod elsewhere;
mod event;
mod failed;
mod frames;
mod liveness;
mod model_run;
mod output_cap;
mod packing;
mod read;
mod shares;
mod slots;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{Instrument, debug, debug_span, info};

pub use self::claim::{Claimed, claim};
pub use self::elsewhere::Elsewhere;
use self::elsewhere::{Backlog, come_back};
pub use self::event::{Event, Listener, Stopped};
use self::failed::Aside;
pub use self::frames::Frames;
pub use self::liveness::Liveness;
pub use self::model_run::{Events, ModelRun};
pub use self::output_cap::OutputCap;
pub use self::packing::Packing;
pub(crate) use self::packing::halves;
use self::packing::smaller;
pub use self::slots::{HeldSlot, Slots};
use crate::budget::Budget;
use crate::plan::RowBatch;
use crate::{
    ImplausibleUsage, Ledger, Model, ModelChoice, ModelError, PlausibleTokens, Reply, RequestError,
    RetryingRequest, Tokens,
};
use hqdl_facts::{CommitUnit, Completion, ReservationId, Wanted};
pub use hqdl_prompt::ExpansionKeys;
use hqdl_prompt::completion::Finish;
use hqdl_prompt::{Prompt, PromptFrame};
use hqdl_spec::{Expansion, Format, parameters_text};
use hqdl_values::cell::{State, Tally};
use hqdl_values::tokens::{Tokenizer, image_at_most};
use hqdl_values::usage::{ColumnUsage, Spent};

/// Maximum number of attempts at a row, the last one alone, before it is stored as invalid.
const ATTEMPTS: u32 = 3;
/// Maximum number of attempts if a row has its own prompt format when asked alone: once with other
/// rows, once alone.
const SIMPLEST_ATTEMPTS: u32 = 2;

/// How long generation is idle before it checks the rows that other runs have claimed.
const COME_BACK: Duration = Duration::from_millis(50);

/// State shared by all requests of a run about one expansion.
pub struct Context {
    /// The run.
    pub run: Arc<ModelRun>,
    /// The expansion.
    pub expansion: Arc<Expansion>,
    /// The requirements of its columns.
    pub wanted: Arc<Wanted>,
    /// The model choice for its cells.
    pub choice: ModelChoice,
    /// Usage of the expansion's columns so far.
    pub columns: Mutex<Vec<ColumnUsage>>,
    /// Cached prompt frames.
    pub frames: Frames,
    /// Rows per request: decreases when answers are misaligned or unreadable, and increases when
    /// they are not.
    pub packing: Packing,
    /// Limit of the answer length.
    pub output_cap: OutputCap,
    /// Whether the user was warned that the endpoint reports more tokens than possible.
    pub told: AtomicBool,
    /// Whether the user was warned that the endpoint sends no finish reason.
    pub told_unfinished: AtomicBool,
    /// Whether to skip cells that open batch jobs ask for.
    pub beside_batches: bool,
    /// All keys of the expansion, if known. A request for one row then accepts a misspelled key
    /// that is none of them.
    pub known_keys: Option<Arc<ExpansionKeys>>,
    /// Loaded on first use.
    pub tokenizer: OnceLock<Tokenizer>,
}

/// A request whose reply has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrivedReply<'a> {
    /// The requested rows and columns.
    pub cut: &'a RowBatch,
    /// The frame of its prompt.
    pub frame: &'a PromptFrame,
    /// The prompt.
    pub prompt: &'a Prompt,
    /// Number of attempts at its rows, including this one.
    pub attempt: u32,
    /// The id of its reservation in the journal.
    pub note: Option<ReservationId>,
    /// The worst-case cost that was reserved.
    pub worst: Spent,
    /// The id in the journal of the batch request that it answers.
    pub answers: Option<i64>,
}

/// Asks about all batches from the channel. Returns when the channel is closed and everything is
/// stored, or at the first error that stops the run. It still waits for the requests in flight,
/// because they are paid for.
///
/// # Errors
/// [`Stopped`].
pub async fn generate(
    context: Arc<Context>,
    mut cuts: mpsc::Receiver<RowBatch>,
) -> Result<(), Stopped> {
    let mut interrupt = context.run.interrupt.clone();
    let mut tasks: JoinSet<Result<Settled, Stopped>> = JoinSet::new();
    // Requests that failed while no other request was answered.
    let mut asides: Vec<Aside> = Vec::new();
    let mut backlog = Backlog::default();
    let mut stopped = None;
    let mut open = true;
    let mut watching = true;
    // Becomes true when the run must end, for any reason: waits end, and no more requests are sent.
    let (stop, stopping) = watch::channel(false);
    let slots = Arc::new(Slots::new(context.run.concurrency, context.run.facts.is_far()));
    let gate = RequestGate { stopping, slots: Arc::clone(&slots) };
    loop {
        let free = stopped.is_none() && tasks.len() < slots.requests();
        if free
            && (!open || backlog.is_full())
            && let Some(next) = backlog.next()
        {
            tasks.spawn(come_back(Arc::clone(&context), next, gate.clone()));
            continue;
        }
        if free && let Some(todo) = context.next_aside(&mut asides, !open && tasks.is_empty()) {
            tasks.spawn(settle(Arc::clone(&context), todo, gate.clone()));
            continue;
        }
        if tasks.is_empty() && (!open || stopped.is_some()) {
            break;
        }
        tokio::select! {
            biased;
            changed = interrupt.wait_for(|i| *i), if stopped.is_none() && watching => {
                if changed.is_ok() {
                    stopped = Some(Stopped::Interrupted);
                }
                // The sender is gone, so no interrupt can arrive.
                watching = changed.is_ok();
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                match ended {
                    Ok(Ok(settled)) => {
                        asides.extend(settled.asides);
                        backlog.extend(settled.elsewhere);
                        backlog.extend_missing(settled.missing);
                    }
                    Ok(Err(why)) => { stopped.get_or_insert(why); }
                    Err(bug) => { stopped.get_or_insert(Stopped::Bug(bug.to_string())); }
                }
            }
            cut = cuts.recv(), if open && free => {
                match cut {
                    Some(cut) => {
                        let todo = vec![Todo::first(cut)];
                        tasks.spawn(settle(Arc::clone(&context), todo, gate.clone()));
                    }
                    None => open = false,
                }
            }
            // The task that enumerates the keys may wait for these rows.
            () = tokio::time::sleep(COME_BACK), if free && open && !backlog.is_empty() => {
                if let Some(next) = backlog.next() {
                    tasks.spawn(come_back(Arc::clone(&context), next, gate.clone()));
                }
            }
        }
        if stopped.is_some() {
            cuts.close();
            stop.send_replace(true);
            slots.close();
        }
    }
    for aside in asides {
        context.give_up(aside).await?;
    }
    // Even a few failures mean that the endpoint is gone if nothing was ever answered.
    let stopped = stopped.or_else(|| context.run.liveness.never_answered().map(Stopped::Gone));
    if let Some(why) = &stopped {
        info!(%why, "stops before its end");
    }
    stopped.map_or(Ok(()), Err)
}

/// Stop signal and concurrency slots that the requests of a run share.
#[derive(Clone)]
struct RequestGate {
    /// Becomes true when the run must end.
    stopping: watch::Receiver<bool>,
    slots: Arc<Slots>,
}

/// Rows that must be asked for.
struct Todo {
    cut: RowBatch,
    /// Number of attempts at the rows, including this one.
    attempt: u32,
    /// For a part of a split request: the number of answers when it was split.
    piece_since: Option<u64>,
}

impl Todo {
    fn first(cut: RowBatch) -> Self {
        Self { cut, attempt: 1, piece_since: None }
    }
}

/// The outcome of a task.
#[derive(Default)]
struct Settled {
    /// Requests that are deferred until the endpoint answers.
    asides: Vec<Aside>,
    /// Rows that other runs have claimed.
    elsewhere: Vec<Elsewhere>,
    /// Rows that other runs have claimed and that are still missing.
    missing: Vec<Elsewhere>,
}

/// Processes a batch: claims, asks, parses and stores it, and asks again about its failed rows.
async fn settle(
    context: Arc<Context>,
    mut left: Vec<Todo>,
    gate: RequestGate,
) -> Result<Settled, Stopped> {
    let mut settled = Settled::default();
    while let Some(Todo { mut cut, attempt, piece_since }) = left.pop() {
        if *gate.stopping.borrow() {
            // The rows stay missing; the next run asks for them.
            break;
        }
        let rows = context.packing.rows();
        if cut.gaps.len() > rows {
            let gaps = cut.gaps.split_off(rows);
            left.push(Todo { cut: RowBatch { gaps, ..cut.clone() }, attempt, piece_since });
        }
        let claimed = context.claim(cut).await?;
        settled.elsewhere.extend(claimed.elsewhere.into_iter().map(|e| Elsewhere { attempt, ..e }));
        for cut in claimed.ours {
            let span = debug_span!(
                "request",
                prompt = tracing::field::Empty,
                rows = cut.gaps.len(),
                columns = cut.columns.len(),
                asked = attempt
            );
            let todo = Todo { cut, attempt, piece_since };
            let (again, aside) = ask(&context, todo, &gate).instrument(span).await?;
            // Reverse them, because `stack` is a stack.
            left.extend(again.into_iter().rev());
            settled.asides.extend(aside);
        }
    }
    Ok(settled)
}

/// Sends one request and stores the answers. Returns the rows to ask again, and the request if it
/// is deferred.
async fn ask(
    context: &Context,
    todo: Todo,
    gate: &RequestGate,
) -> Result<(Vec<Todo>, Option<Aside>), Stopped> {
    let Todo { cut, attempt, .. } = &todo;
    let (frame, mut prompt) = context.prompt(cut);
    let began = Instant::now();
    let mut record = context.record(cut, prompt.hash());
    tracing::Span::current().record("prompt", record.prompt_hash.as_str());
    let since = context.run.liveness.answers();
    if let Err(why) = context.show_images(cut, &mut prompt) {
        return context.failed(todo, record, ModelError::NoAnswer(why), since).await;
    }
    let unlimited = Budget::default();
    let errand = RetryingRequest {
        model: context.endpoint(),
        prompt: &prompt,
        budget: if context.choice.is_free { &unlimited } else { &context.run.budget },
        price: context.choice.price.as_ref(),
        count: &|reply: &Reply| context.count(&frame, &prompt, reply),
        plausible: &|reply: &Reply| context.plausible_tokens(&prompt, reply),
        holds: &|reply: &Reply| !context.read(cut, &frame, reply, false).0.is_empty(),
        on_wire: false.into(),
        most_tries: context.run.liveness.tries(todo.piece_since.is_some()),
        tries: 0.into(),
        slots: Some(&gate.slots),
        ledger: context
            .endpoint()
            .bills()
            .then_some(Ledger { facts: &context.run.facts, run: context.run.id }),
        tell_pause: &|pause: Duration| context.run.tell_pause(context.endpoint().name(), pause),
    };
    let asked = tokio::select! {
        biased;
        asked = errand.run() => asked,
        // It was waiting for a limit or a retry, so nothing is paid for.
        () = stopped_off_wire(&gate.stopping, &errand) => return Ok((Vec::new(), None)),
    };
    record.seconds = began.elapsed().as_secs_f64();
    let remarks = context.endpoint().remarks();
    remarks.into_iter().for_each(|r| (context.run.events.listener)(&Event::Warning(r)));
    let (reply, note) = match asked {
        Ok(answered) => answered,
        Err(RequestError::Unsent) => return Ok((Vec::new(), None)),
        Err(RequestError::Facts(error)) => return Err(error.into()),
        Err(RequestError::Model(error)) => return context.failed(todo, record, error, since).await,
    };
    context.run.liveness.answered();
    let price = context.choice.price.as_ref();
    let worst = Spent::worst(prompt.input_tokens, prompt.max_output, price);
    let asked = ArrivedReply {
        cut,
        frame: &frame,
        prompt: &prompt,
        attempt: *attempt,
        note,
        worst,
        answers: None,
    };
    let again = context.take_in(asked, record, reply).await?;
    let again = again.into_iter().map(|(cut, attempt)| Todo { cut, attempt, piece_since: None });
    Ok((again.collect(), None))
}

/// Completes when the run must end.
async fn stopped(stopping: &watch::Receiver<bool>) {
    if stopping.clone().wait_for(|s| *s).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Completes when the run must end and the endpoint is not processing the request.
async fn stopped_off_wire(stopping: &watch::Receiver<bool>, errand: &RetryingRequest<'_>) {
    stopped(stopping).await;
    while errand.on_wire.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Context {
    /// Creates the context of an expansion.
    #[must_use]
    pub fn new(
        run: &Arc<ModelRun>,
        expansion: Arc<Expansion>,
        wanted: Arc<Wanted>,
        choice: ModelChoice,
    ) -> Self {
        Self {
            run: Arc::clone(run),
            columns: Mutex::new(vec![ColumnUsage::default(); expansion.columns.len()]),
            expansion,
            wanted,
            frames: Mutex::default(),
            packing: Packing::new(choice.rows),
            output_cap: OutputCap::of_model(run.reasons.contains(&choice.tokenizer)),
            choice,
            told: false.into(),
            told_unfinished: false.into(),
            beside_batches: false,
            known_keys: None,
            tokenizer: OnceLock::new(),
        }
    }

    /// The model to ask.
    pub(crate) fn endpoint(&self) -> &dyn Model {
        self.choice.endpoint.as_deref().unwrap_or(&*self.run.endpoint)
    }

    /// Creates the completion record of a request that is being sent.
    pub(crate) fn record(&self, cut: &RowBatch, prompt_hash: String) -> Completion {
        Completion {
            run: self.run.id,
            model: self.wanted.model,
            prompt_hash,
            parameters: parameters_text(&self.choice.parameters),
            asked_at: hqdl_database::now(),
            cells: (cut.columns.len() * cut.gaps.len()) as u64,
            ..Completion::default()
        }
    }

    /// Counts the tokens of a request whose endpoint reports no usage. The output is what was
    /// received, or the maximum if the reply was truncated at it, because part of it may be hidden.
    pub(crate) fn count(&self, frame: &PromptFrame, prompt: &Prompt, reply: &Reply) -> Tokens {
        let tokenizer = self.tokenizer();
        let counted = tokenizer.count(&reply.content) + tokenizer.count(&reply.beside);
        let mut output = if tokenizer.is_exact() {
            counted
        } else {
            // Only the certain part may exceed the maximum: an estimate must not stop a run.
            let allowed = prompt.max_output.max(tokenizer.at_least(counted));
            tokenizer.at_most(counted).min(allowed)
        };
        if reply.truncated && !reply.cut_off {
            output = output.max(prompt.max_output);
        }
        let input = self.input_tokens(frame, prompt, true);
        // The endpoint may have written the whole prompt to its cache.
        let rates = self.choice.price.map(|price| price.rates(input));
        let is_dearer = rates.is_some_and(|rates| rates.cache_write > rates.input);
        let cache_write = if is_dearer { input } else { 0 };
        Tokens { input, output, cache_write, ..Tokens::default() }
    }

    /// Returns the plausible token range of a reply. The minimum is half of hqdl's own count, or a
    /// quarter of it if the tokenizer is an estimate.
    pub(crate) fn plausible_tokens(&self, prompt: &Prompt, reply: &Reply) -> PlausibleTokens {
        let most =
            Tokens { input: prompt.input_tokens, output: prompt.max_output, ..Tokens::default() };
        let bills = self.endpoint().bills() && self.choice.price.is_some_and(|p| p.bills());
        if !bills || reply.cut_off {
            return PlausibleTokens { most, ..PlausibleTokens::default() };
        }
        let tokenizer = if self.run.counts { self.tokenizer() } else { Tokenizer::Estimate };
        // Only the maximum of an image's tokens is known.
        let images = prompt.images.len() as u64 * image_at_most(&self.choice.tokenizer);
        let text = prompt.input_tokens.saturating_sub(tokenizer.of_prompt_at_most(images));
        let least = Tokens {
            input: tokenizer.least_report(text),
            output: tokenizer.least_report(tokenizer.count(&reply.content)),
            ..Tokens::default()
        };
        PlausibleTokens { least, most, is_counted: self.run.counts }
    }

    /// Parses a reply, stores its answers, and returns the rows to ask again.
    ///
    /// # Errors
    /// [`Stopped`]. With [`ModelError::Usage`], the reported usage is implausible, and all answers
    /// are stored.
    pub(crate) async fn take_in(
        &self,
        asked: ArrivedReply<'_>,
        mut record: Completion,
        reply: Reply,
    ) -> Result<Vec<(RowBatch, u32)>, Stopped> {
        let ArrivedReply { cut, frame, prompt, attempt, note, worst, answers } = asked;
        let tokens = reply.tokens.unwrap_or_default();
        let implausible = reply.implausible;
        record.input_tokens = tokens.input;
        record.cached_input_tokens = tokens.cached_input;
        record.output_tokens = tokens.output;
        let price = reply.price(self.choice.price.as_ref());
        record.cost_usd = price.map_or(0.0, |price| tokens.cost(&price));
        let cost = record.cost_usd;
        // If the endpoint or hqdl cut the reply short, its rows are not at fault.
        let held_back = reply.broken.is_some() || self.was_cut_short(prompt, &reply, tokens);
        // A row that was already asked in the simplest format would get the same prompt again.
        let is_answered = frame.has_simplest_form()
            && cut.gaps.len() == 1
            && reply.finish() == Finish::Stop
            && !reply.content.trim().is_empty();
        let attempts = if frame.has_simplest_form() { SIMPLEST_ATTEMPTS } else { ATTEMPTS };
        let last = ((attempt >= attempts || is_answered) && !held_back)
            || self.endpoint().repeats_itself();
        if reply.is_unfinished && reply.broken.is_none() {
            self.warn_of_no_finish_reason(frame);
        }
        let (facts, again) = self.read(cut, frame, &reply, last);
        let ask_again: usize = again.values().map(Vec::len).sum();
        debug!(entities = facts.len(), ask_again, "read");
        record.content = Some(reply.content);
        let tallies = self.tallies(cut, &facts);
        let mut tally = Tally::default();
        tallies.iter().for_each(|t| tally.merge(t));
        self.run
            .facts
            .keep(CommitUnit { completion: record, facts, settles: note, answers })
            .await?;
        let usage = {
            let mut usage = self.run.events.usage.lock().unwrap_or_else(PoisonError::into_inner);
            usage.add(tokens, price.as_ref());
            *usage
        };
        self.share(cut, &tallies, tokens, cost);
        (self.run.events.listener)(&Event::Kept { cells: tally, usage });
        self.check_usage(implausible.unwrap_or(tokens), tokens, worst, frame, prompt)?;
        if held_back {
            return Ok(smaller(again, cut, attempt, frame));
        }
        let given_up = tally.get(State::Invalid) as usize / cut.columns.len().max(1);
        let failed = given_up + ask_again;
        if attempt == 1 {
            self.packing.learn(cut.gaps.len(), failed);
        }
        Ok(smaller(again, cut, attempt + 1, frame))
    }

    /// Returns whether a sound answer was truncated at its cap, so that a longer one may succeed.
    fn was_cut_short(&self, prompt: &Prompt, reply: &Reply, tokens: Tokens) -> bool {
        if !reply.truncated {
            self.output_cap.learn(prompt, tokens);
        }
        reply.truncated
            && !reply.cut_off
            && reply.broken.is_none()
            && prompt.max_output < self.choice.max_output
            && (self.output_cap.was_reasoned_away(prompt, &reply.content, tokens)
                || prompt.is_begun(&reply.content)
                    && prompt.astray(&reply.content).is_none()
                    && self.output_cap.was_too_small(prompt, tokens))
    }

    /// Warns once that the endpoint does not report whether its answers are complete.
    fn warn_of_no_finish_reason(&self, frame: &PromptFrame) {
        if frame.format == Format::Csv && !self.told_unfinished.swap(true, Ordering::Relaxed) {
            let note = "the endpoint sends no finish_reason, so the last line of an answer may be incomplete; hqdl asks again for a line without a line break (`format = \"json\"` avoids that)";
            (self.run.events.listener)(&Event::Warning(note.to_owned()));
        }
    }

    /// Stops the run if the reported usage is implausible. If nothing is billed or capped, it only
    /// warns, once.
    fn check_usage(
        &self,
        said: Tokens,
        settled: Tokens,
        mut worst: Spent,
        frame: &PromptFrame,
        prompt: &Prompt,
    ) -> Result<(), Stopped> {
        let price = self.choice.price.as_ref();
        if !self.endpoint().bills() {
            return Ok(());
        }
        if ImplausibleUsage::of(said, settled, worst, price).is_none() {
            return Ok(());
        }
        if !self.run.counts {
            // The worst case was computed from an estimate, so count its input now.
            let input = self.input_tokens(frame, prompt, true);
            worst = Spent::worst(input, prompt.max_output, price);
        }
        let Some(error) = ImplausibleUsage::of(said, settled, worst, price) else { return Ok(()) };
        if self.choice.price.is_some() || self.run.budget.is_capped() {
            return Err(error.into());
        }
        if !self.told.swap(true, Ordering::Relaxed) {
            (self.run.events.listener)(&Event::Warning(error.to_string()));
        }
        Ok(())
    }

    /// Returns the input tokens of a prompt. They are counted if a limit or a budget depends on
    /// them, with a margin for what the endpoint adds; otherwise they are estimated.
    fn input_tokens(&self, frame: &PromptFrame, prompt: &Prompt, counts: bool) -> u64 {
        let images = prompt.images.len() as u64 * image_at_most(&self.choice.tokenizer);
        if !counts {
            let estimate = Tokenizer::Estimate;
            return estimate.count(&prompt.system) + estimate.count(&prompt.user) + images;
        }
        let tokenizer = self.tokenizer();
        let texts = frame.tokens_around(prompt, tokenizer) + tokenizer.count(&prompt.user);
        tokenizer.of_prompt_at_most(texts + images)
    }

    fn tokenizer(&self) -> Tokenizer {
        *self.tokenizer.get_or_init(|| Tokenizer::of(&self.choice.tokenizer))
    }
}
