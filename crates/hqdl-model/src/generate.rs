//! Generation: batches × model → facts, each batch kept before the next step.
//!
//! Batches come through a bounded channel from whoever walks the keys, so
//! memory does not grow with their number. Up to `concurrency` of them are
//! under way; each is asked, read, and kept by itself, and only rows that
//! failed are asked again, in smaller batches. A request that fails as a whole is
//! split until the rows at fault stand alone (`liveness.rs`). One row's failure is
//! data; what stops a run is an endpoint that refuses or is gone, a disk that
//! fails, or the user.

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

/// How often a row is asked about, at the last alone, before it is given up as
/// invalid.
const ATTEMPTS: u32 = 3;
/// The same where a row has a form of its own when it is asked alone: after the others, that one.
const SIMPLEST_ATTEMPTS: u32 = 2;

/// How long there is nothing to ask until rows that others ask about are looked at.
const COME_BACK: Duration = Duration::from_millis(50);

/// What a run asks of an expansion: what all its requests share.
pub struct Context {
    /// The run.
    pub run: Arc<ModelRun>,
    /// The expansion.
    pub expansion: Arc<Expansion>,
    /// How the facts know it.
    pub wanted: Arc<Wanted>,
    /// Whom its cells are asked of.
    pub choice: ModelChoice,
    /// Used so far by the columns of this expansion.
    pub columns: Mutex<Vec<ColumnUsage>>,
    /// What prompts were made from.
    pub frames: Frames,
    /// Rows that a request may hold now: fewer when answers come back
    /// misaligned or unreadable, more again when they do not.
    pub packing: Packing,
    /// How long an answer may be.
    pub output_cap: OutputCap,
    /// Whether it was told that the endpoint counts more than there can be.
    pub told: AtomicBool,
    /// Whether the user was told that the endpoint sends no finish reason.
    pub told_unfinished: AtomicBool,
    /// Whether cells that batches under way ask for are left to these.
    pub beside_batches: bool,
    /// All keys of the expansion, where they are known: a request for one row accepts a misspelt
    /// key that is none of them.
    pub known_keys: Option<Arc<ExpansionKeys>>,
    /// Loaded when first needed.
    pub tokenizer: OnceLock<Tokenizer>,
}

/// A request whose reply is at hand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrivedReply<'a> {
    /// The rows and columns it asked for.
    pub cut: &'a RowBatch,
    /// What its prompt was made from.
    pub frame: &'a PromptFrame,
    /// Its prompt.
    pub prompt: &'a Prompt,
    /// How often its rows were asked about, this time included.
    pub attempt: u32,
    /// The note of what was reserved for it, by id in the journal.
    pub note: Option<ReservationId>,
    /// What was reserved for it.
    pub worst: Spent,
    /// The request of a parcel that this was, by id in the journal.
    pub answers: Option<i64>,
}

/// Asks about all batches that come; returns when there are no more and all is
/// kept, or at the first thing that stops the run. What is in flight then is
/// waited for: it is paid for.
///
/// # Errors
/// [`Stopped`].
pub async fn generate(
    context: Arc<Context>,
    mut cuts: mpsc::Receiver<RowBatch>,
) -> Result<(), Stopped> {
    let mut interrupt = context.run.interrupt.clone();
    let mut tasks: JoinSet<Result<Settled, Stopped>> = JoinSet::new();
    // Requests that failed while nothing else was answered.
    let mut asides: Vec<Aside> = Vec::new();
    let mut backlog = Backlog::default();
    let mut stopped = None;
    let mut open = true;
    let mut watching = true;
    // True when the run is to end, for whichever reason: waits end, and
    // nothing more is asked.
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
                // Nobody is left who could interrupt.
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
            // Whoever walks the keys may wait for these.
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
    // However few they were: it is not there.
    let stopped = stopped.or_else(|| context.run.liveness.never_answered().map(Stopped::Gone));
    if let Some(why) = &stopped {
        info!(%why, "stops before its end");
    }
    stopped.map_or(Ok(()), Err)
}

/// What requests of a run go through together.
#[derive(Clone)]
struct RequestGate {
    /// Becomes true when the run is to end.
    stopping: watch::Receiver<bool>,
    slots: Arc<Slots>,
}

/// Rows that are to be asked about.
struct Todo {
    cut: RowBatch,
    /// How often they were asked about, this time included.
    attempt: u32,
    /// Answers there were when the request that they are a piece of was split.
    piece_since: Option<u64>,
}

impl Todo {
    fn first(cut: RowBatch) -> Self {
        Self { cut, attempt: 1, piece_since: None }
    }
}

/// What a task leaves.
#[derive(Default)]
struct Settled {
    /// Set aside until the endpoint answers.
    asides: Vec<Aside>,
    /// What others are asking about.
    elsewhere: Vec<Elsewhere>,
    /// The same, looked at: nobody has brought it yet.
    missing: Vec<Elsewhere>,
}

/// A batch, to its end: claimed, asked, read, kept; its failed rows asked again.
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
            // The first of them is the next.
            left.extend(again.into_iter().rev());
            settled.asides.extend(aside);
        }
    }
    Ok(settled)
}

/// Asks one request and keeps what it brings. Returns what to ask again, and what
/// to ask when the endpoint answers.
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
        // Waiting for a limit or for better times: nothing is paid for yet.
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

/// Ends when the run is to end.
async fn stopped(stopping: &watch::Receiver<bool>) {
    if stopping.clone().wait_for(|s| *s).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends when the run is to end and the errand is not with the endpoint.
async fn stopped_off_wire(stopping: &watch::Receiver<bool>, errand: &RetryingRequest<'_>) {
    stopped(stopping).await;
    while errand.on_wire.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Context {
    /// What a run asks of an expansion.
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

    /// Who is asked.
    pub(crate) fn endpoint(&self) -> &dyn Model {
        self.choice.endpoint.as_deref().unwrap_or(&*self.run.endpoint)
    }

    /// The record of a request that is being asked now.
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

    /// Tokens of a request whose endpoint does not say: of what came back, and all
    /// that was allowed when that much was written and not shown.
    pub(crate) fn count(&self, frame: &PromptFrame, prompt: &Prompt, reply: &Reply) -> Tokens {
        let tokenizer = self.tokenizer();
        let counted = tokenizer.count(&reply.content) + tokenizer.count(&reply.beside);
        let mut output = if tokenizer.is_exact() {
            counted
        } else {
            // Only what is certain goes beyond what was allowed: a guess stops no run.
            let allowed = prompt.max_output.max(tokenizer.at_least(counted));
            tokenizer.at_most(counted).min(allowed)
        };
        if reply.truncated && !reply.cut_off {
            output = output.max(prompt.max_output);
        }
        let input = self.input_tokens(frame, prompt, true);
        // The endpoint may have written all of it to its prompt cache.
        let rates = self.choice.price.map(|price| price.rates(input));
        let is_dearer = rates.is_some_and(|rates| rates.cache_write > rates.input);
        let cache_write = if is_dearer { input } else { 0 };
        Tokens { input, output, cache_write, ..Tokens::default() }
    }

    /// Returns the tokens that a reply can plausibly have taken. The least is half of what is counted
    /// here, or a quarter where the tokenizer is estimated.
    pub(crate) fn plausible_tokens(&self, prompt: &Prompt, reply: &Reply) -> PlausibleTokens {
        let most =
            Tokens { input: prompt.input_tokens, output: prompt.max_output, ..Tokens::default() };
        let bills = self.endpoint().bills() && self.choice.price.is_some_and(|p| p.bills());
        if !bills || reply.cut_off {
            return PlausibleTokens { most, ..PlausibleTokens::default() };
        }
        let tokenizer = if self.run.counts { self.tokenizer() } else { Tokenizer::Estimate };
        // What an image takes is known as a maximum only.
        let images = prompt.images.len() as u64 * image_at_most(&self.choice.tokenizer);
        let text = prompt.input_tokens.saturating_sub(tokenizer.of_prompt_at_most(images));
        let least = Tokens {
            input: tokenizer.least_report(text),
            output: tokenizer.least_report(tokenizer.count(&reply.content)),
            ..Tokens::default()
        };
        PlausibleTokens { least, most, is_counted: self.run.counts }
    }

    /// Reads a reply that comes with its tokens, keeps what it brings, and
    /// returns what to ask again.
    ///
    /// # Errors
    /// [`Stopped`]; [`ModelError::Usage`] when the reported usage cannot be true, and
    /// all is kept.
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
        // What the endpoint, or we, kept it from saying is no fault of its rows.
        let held_back = reply.broken.is_some() || self.was_cut_short(prompt, &reply, tokens);
        // What is asked in the simplest form already would be asked the same again.
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

    /// Whether a sound answer ended at its cap, and may have more.
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

    /// Prints once that the endpoint does not say whether its answers are complete.
    fn warn_of_no_finish_reason(&self, frame: &PromptFrame) {
        if frame.format == Format::Csv && !self.told_unfinished.swap(true, Ordering::Relaxed) {
            let note = "the endpoint sends no finish_reason, so the last line of an answer may be incomplete; hqdl asks again for a line without a line break (`format = \"json\"` avoids that)";
            (self.run.events.listener)(&Event::Warning(note.to_owned()));
        }
    }

    /// Stops the run if the usage that the endpoint reports cannot be true; where nothing costs
    /// anything, that is noted, once.
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
            // Its input was an estimate.
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

    /// Input tokens of a prompt: counted where a limit or a budget depends on
    /// it, with room for what an endpoint wraps around; else estimated.
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
