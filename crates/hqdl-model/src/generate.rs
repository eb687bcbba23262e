//! Generation: asks the model about row batches and stores the facts of each batch.
//!
//! Batches arrive through a bounded channel from the task that enumerates the keys, so memory does
//! not grow with their number. Up to `concurrency` requests are in flight. Each request is sent,
//! parsed and stored separately. Only failed rows are requested again, in smaller batches. A
//! request that fails as a whole is split until the failing rows are alone (`circuit_breaker.rs`).
//! The failure of a row is stored as its state and does not stop the run. A run stops if the
//! endpoint rejects all requests or is gone, if the disk fails, or if the user interrupts it.

mod answer_format;
mod claim;
mod claimed_by_others;
mod event;
mod failure;
mod frames;
mod circuit_breaker;
mod model_run;
mod output_cap;
mod packing;
mod read;
mod cost_allocation;
mod slots;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{Instrument, debug, debug_span, info};

pub use self::answer_format::CsvReplies;
pub use self::circuit_breaker::CircuitBreaker;
use self::claim::HeldBatch;
pub use self::claim::{ClaimedBatches, claim_row_batch};
pub use self::claimed_by_others::ClaimedByOthers;
use self::claimed_by_others::{Backlog, execute_step};
pub use self::event::{Event, Listener, StopReason};
use self::failure::{DeferredRequest, take_next_deferred_request};
pub use self::frames::Frames;
pub use self::model_run::{Events, ModelRun};
pub use self::output_cap::OutputCap;
pub use self::packing::Packing;
pub(crate) use self::packing::split_in_half;
use self::packing::{Adaptation, split_into_halves_or_rows};
use self::read::ParsedReply;
pub use self::slots::{HeldSlot, Slots};
use crate::budget::Budget;
use crate::plan::RowBatch;
use crate::{
    ImplausibleUsage, Ledger, Model, ModelChoice, ModelError, PlausibleTokens, Reply, RequestError,
    RetryingRequest, Tokens,
};
use hqdl_facts::{CellRequirements, CommitUnit, Completion, ReservationId};
use hqdl_prompt::completion::FinishReason;
pub use hqdl_prompt::{ExpansionKeys, KeyHashes};
use hqdl_prompt::{Prompt, PromptFrame};
use hqdl_spec::media::MediaTokens;
use hqdl_spec::{Expansion, Format, format_parameters};
use hqdl_values::cell::{State, Tally};
use hqdl_values::evidence::ShownEvidence;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::{ColumnUsage, SpentAmount};

/// Maximum number of attempts for a row before it is stored as invalid. In the last attempt, the
/// row is requested alone.
const MAX_ATTEMPTS: u32 = 3;
/// Maximum number of attempts if single rows have their own prompt format: once with other rows,
/// once alone.
const MAX_SINGLE_ROW_ATTEMPTS: u32 = 2;

/// Number of tokens that a list's length limit adds to a schema.
const LIMIT_TOKENS: u64 = 8;

/// Idle time after which generation checks the rows that other runs have claimed.
const RECHECK_DELAY: Duration = Duration::from_millis(50);

/// State shared by all requests of a run about one expansion.
pub struct Context {
    /// Run that sends the requests.
    pub run: Arc<ModelRun>,
    /// Expansion that the requests are about.
    pub expansion: Arc<Expansion>,
    /// Requirements that the facts of the expansion's columns must meet.
    pub requirements: Arc<CellRequirements>,
    /// Model choice for the expansion's cells.
    pub choice: ModelChoice,
    /// Usage of the expansion's columns so far.
    pub columns: Mutex<Vec<ColumnUsage>>,
    /// Cached prompt frames.
    pub frames: Frames,
    /// Number of rows per request: decreases when answers are misaligned or unreadable, and
    /// increases when they are not.
    pub packing: Packing,
    /// Counts the model's readable and unreadable CSV replies.
    pub csv_replies: CsvReplies,
    /// Cap on the length of an answer.
    pub output_cap: OutputCap,
    /// Whether the user was warned that the endpoint reports more tokens than possible.
    pub usage_warned: AtomicBool,
    /// Whether the user was warned that the endpoint sends no finish reason.
    pub finish_reason_warned: AtomicBool,
    /// Whether the user has been warned that the endpoint cuts off the answers.
    pub truncation_warned: AtomicBool,
    /// Whether to skip cells that open batch jobs request.
    pub skip_batched: bool,
    /// All keys of the expansion, if known. In a reply about a single row, a misspelled key is then
    /// accepted if it is not one of these keys.
    pub known_keys: Option<Arc<ExpansionKeys>>,
    /// Tokenizer of the model, loaded on first use.
    pub tokenizer: OnceLock<Tokenizer>,
}

/// A request whose reply has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrivedReply<'a> {
    /// The requested rows and columns.
    pub row_batch: &'a RowBatch,
    /// Frame of the request's prompt.
    pub frame: &'a PromptFrame,
    pub prompt: &'a Prompt,
    /// Number of attempts for the request's rows, including this one.
    pub attempt: u32,
    /// Id of the request's reservation in the journal.
    pub reservation_id: Option<ReservationId>,
    /// The worst-case cost that was reserved.
    pub worst_case: SpentAmount,
    /// Id in the journal of the batch request that the reply answers; `None` for a live request.
    pub answers: Option<i64>,
}

/// Asks about all batches from the channel, each with the context of its expansion. Returns when the
/// channel is closed and everything is stored, or after the first error that stops the run. Before
/// it returns, it waits for the requests in flight, because they are paid for.
///
/// # Errors
/// [`StopReason`] of the first error that stops the run.
pub async fn generate_facts(
    run: Arc<ModelRun>,
    mut row_batches: mpsc::Receiver<(Arc<Context>, RowBatch)>,
) -> Result<(), StopReason> {
    let mut interrupt = run.interrupt.clone();
    let mut tasks: JoinSet<Result<TaskOutcome, StopReason>> = JoinSet::new();
    // Requests that failed while no other request was answered.
    let mut deferred: Vec<DeferredRequest> = Vec::new();
    let mut backlog = Backlog::default();
    let mut stop_reason = None;
    let mut is_open = true;
    let mut is_watching = true;
    // Becomes true when the run must end, for any reason. Waits then end, and no more requests are
    // sent.
    let (stop, stopping) = watch::channel(false);
    let slots = Arc::new(Slots::new(run.concurrency, run.facts.is_high_latency()));
    let control = RunControl { stopping, slots: Arc::clone(&slots) };
    loop {
        let has_capacity = stop_reason.is_none() && tasks.len() < slots.max_requests();
        if has_capacity
            && (!is_open || backlog.is_full())
            && let Some(step) = backlog.next_step()
        {
            tasks.spawn(execute_step(Arc::clone(&run), step, control.clone()));
            continue;
        }
        if has_capacity
            && let Some((context, pending)) =
                take_next_deferred_request(&run, &mut deferred, !is_open && tasks.is_empty())
        {
            tasks.spawn(process_batch(context, pending, control.clone()));
            continue;
        }
        if tasks.is_empty() && (!is_open || stop_reason.is_some()) {
            break;
        }
        tokio::select! {
            biased;
            changed = interrupt.wait_for(|i| *i), if stop_reason.is_none() && is_watching => {
                if changed.is_ok() {
                    stop_reason = Some(StopReason::Interrupted);
                }
                // The sender was dropped, so no interrupt can arrive.
                is_watching = changed.is_ok();
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                match ended {
                    Ok(Ok(outcome)) => {
                        deferred.extend(outcome.deferred);
                        backlog.extend(outcome.claimed_by_others);
                        backlog.extend_missing_rows(outcome.missing);
                    }
                    Ok(Err(why)) => { stop_reason.get_or_insert(why); }
                    Err(bug) => { stop_reason.get_or_insert(StopReason::Bug(bug.to_string())); }
                }
            }
            row_batch = row_batches.recv(), if is_open && has_capacity => {
                match row_batch {
                    Some((context, row_batch)) => {
                        let todo = vec![PendingRequest::new(row_batch)];
                        tasks.spawn(process_batch(context, todo, control.clone()));
                    }
                    None => is_open = false,
                }
            }
            // The task that enumerates the keys may be waiting for these rows, so look at them even
            // though the channel is open.
            () = tokio::time::sleep(RECHECK_DELAY), if has_capacity && is_open && !backlog.is_empty() => {
                if let Some(next) = backlog.next_step() {
                    tasks.spawn(execute_step(Arc::clone(&run), next, control.clone()));
                }
            }
        }
        if stop_reason.is_some() {
            row_batches.close();
            stop.send_replace(true);
            slots.close();
        }
    }
    for deferred_request in deferred {
        deferred_request.store_failure().await?;
    }
    // If no request was ever answered, even a few failures mean that the endpoint is gone.
    let stop_reason =
        stop_reason.or_else(|| run.circuit_breaker.failure_without_answers().map(StopReason::Gone));
    if let Some(reason) = &stop_reason {
        info!(%reason, "stops before its end");
    }
    stop_reason.map_or(Ok(()), Err)
}

/// Stop signal and concurrency slots shared by the requests of a run.
#[derive(Clone)]
struct RunControl {
    /// Becomes true when the run must end.
    stopping: watch::Receiver<bool>,
    slots: Arc<Slots>,
}

/// Rows that the run must request.
struct PendingRequest {
    row_batch: RowBatch,
    /// Number of attempts for the rows, including this one.
    attempt: u32,
    /// Number of answers received when the request was split; `None` if this is not a part of a
    /// split request.
    piece_since: Option<u64>,
}

impl PendingRequest {
    fn new(row_batch: RowBatch) -> Self {
        Self { row_batch, attempt: 1, piece_since: None }
    }
}

#[derive(Default)]
struct TaskOutcome {
    /// Requests deferred until the endpoint answers another request.
    deferred: Vec<DeferredRequest>,
    /// Rows that other runs have claimed.
    claimed_by_others: Vec<ClaimedByOthers>,
    /// Rows that other runs have claimed and that are still missing.
    missing: Vec<ClaimedByOthers>,
}

/// Processes a row batch: claims its cells, sends the request, stores the answers, and retries
/// failed rows.
async fn process_batch(
    context: Arc<Context>,
    mut stack: Vec<PendingRequest>,
    control: RunControl,
) -> Result<TaskOutcome, StopReason> {
    let mut outcome = TaskOutcome::default();
    while let Some(PendingRequest { mut row_batch, attempt, piece_since }) = stack.pop() {
        if *control.stopping.borrow() {
            // The rows stay missing, and the next run asks for them.
            break;
        }
        let rows = context.packing.current_rows();
        if row_batch.missing_rows.len() > rows {
            let missing_rows = row_batch.missing_rows.split_off(rows);
            stack.push(PendingRequest {
                row_batch: RowBatch { missing_rows, ..row_batch.clone() },
                attempt,
                piece_since,
            });
        }
        let claimed = context.claim_batch(row_batch).await?;
        outcome.claimed_by_others.extend(claimed.claimed_by_others.into_iter().map(
            |HeldBatch { row_batch, first_key }| {
                let context = Arc::clone(&context);
                ClaimedByOthers { context, row_batch, first_key, attempt }
            },
        ));
        for row_batch in claimed.batches {
            let span = debug_span!(
                "request",
                prompt = tracing::field::Empty,
                rows = row_batch.missing_rows.len(),
                columns = row_batch.columns.len(),
                asked = attempt
            );
            let pending = PendingRequest { row_batch, attempt, piece_since };
            let (to_retry, deferred_request) =
                send_request(&context, pending, &control).instrument(span).await?;
            // Push the rows in reverse order, so that the first one is popped first.
            stack.extend(to_retry.into_iter().rev());
            outcome.deferred.extend(deferred_request);
        }
    }
    Ok(outcome)
}

/// Sends one request and stores the answers. Returns the rows to request again, and the request
/// itself if it must be deferred.
async fn send_request(
    context: &Arc<Context>,
    pending: PendingRequest,
    control: &RunControl,
) -> Result<(Vec<PendingRequest>, Option<DeferredRequest>), StopReason> {
    let PendingRequest { row_batch, attempt, .. } = &pending;
    let (frame, mut prompt) = context.build_prompt(row_batch);
    if *attempt > 1 {
        prompt.input_tokens += LIMIT_TOKENS * prompt.limit_lists();
    }
    let began = Instant::now();
    let mut completion = context.new_completion(row_batch, prompt.provenance_hash());
    tracing::Span::current().record("prompt", completion.prompt_hash.as_str());
    let since = context.run.circuit_breaker.answer_count();
    completion.evidence = prompt.shown_evidence().map(ShownEvidence::to_json);
    if prompt.lacks_required_evidence(&context.expansion) {
        let reason = "no passage of the documents was found";
        context.store_failed_cells(row_batch, completion, State::Unknown, reason, None).await?;
        return Ok((Vec::new(), None));
    }
    let evidence_error = prompt.evidence.as_ref().and_then(|evidence| evidence.clone().err());
    let shown = evidence_error.map_or_else(|| context.load_media(row_batch, &mut prompt), Err);
    if let Err(reason) = shown {
        return context
            .retry_or_store_failure(pending, completion, ModelError::NoAnswer(reason), since)
            .await;
    }
    context.run.warn_about_token_limit(&prompt);
    let unlimited = Budget::default();
    let request = RetryingRequest {
        model: context.endpoint(),
        prompt: &prompt,
        budget: if context.choice.is_free { &unlimited } else { &context.run.budget },
        price: context.choice.price.as_ref(),
        count_tokens: &|reply: &Reply| context.count_tokens(&frame, &prompt, reply),
        plausible_tokens: &|reply: &Reply| context.compute_plausible_tokens(&prompt, reply),
        has_answers: &|reply: &Reply| {
            !context.parse_reply(row_batch, &frame, &prompt, reply, false).facts.is_empty()
        },
        on_wire: false.into(),
        max_attempts: context.run.circuit_breaker.max_attempts(pending.piece_since.is_some()),
        attempts: 0.into(),
        slots: Some(&control.slots),
        ledger: context
            .endpoint()
            .is_billed()
            .then_some(Ledger { facts: &context.run.facts, run: context.run.id }),
        report_wait: &|wait| context.run.report_wait(context.endpoint().name(), wait),
    };
    let outcome = tokio::select! {
        biased;
        asked = request.run_with_retries() => asked,
        // The request was waiting for a limit or for a retry, so it cannot be billed.
        () = wait_for_safe_stop(&control.stopping, &request) => return Ok((Vec::new(), None)),
    };
    completion.seconds = began.elapsed().as_secs_f64();
    let warnings = context.endpoint().take_warnings();
    warnings.into_iter().for_each(|r| (context.run.events.listener)(&Event::Warning(r)));
    let (reply, reservation_id) = match outcome {
        Ok(answered) => answered,
        Err(RequestError::Unsent) => return Ok((Vec::new(), None)),
        Err(RequestError::Facts(error)) => return Err(error.into()),
        Err(RequestError::Model(error)) => {
            return context.retry_or_store_failure(pending, completion, error, since).await;
        }
    };
    context.run.circuit_breaker.record_answer();
    let price = context.choice.price.as_ref();
    let worst_case = prompt.worst_case(price);
    let arrived = ArrivedReply {
        row_batch,
        frame: &frame,
        prompt: &prompt,
        attempt: *attempt,
        reservation_id,
        worst_case,
        answers: None,
    };
    let to_retry = context.store_reply(arrived, completion, reply).await?;
    let has_no_value = |part: &&(RowBatch, u32)| part.0.columns == row_batch.columns;
    let unread: usize =
        to_retry.iter().filter(has_no_value).map(|(part, _)| part.missing_rows.len()).sum();
    context.record_csv_reply(frame.format, unread < row_batch.missing_rows.len());
    let to_retry = to_retry.into_iter().map(|(row_batch, attempt)| PendingRequest {
        row_batch,
        attempt,
        piece_since: None,
    });
    Ok((to_retry.collect(), None))
}

/// Completes when the run must end; never completes if the sender was dropped.
pub async fn wait_for_stop(stopping: &watch::Receiver<bool>) {
    if stopping.clone().wait_for(|s| *s).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Completes when the run must end and the endpoint is not processing the request.
async fn wait_for_safe_stop(stopping: &watch::Receiver<bool>, request: &RetryingRequest<'_>) {
    wait_for_stop(stopping).await;
    while request.on_wire.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Context {
    /// Creates the context of an expansion.
    #[must_use]
    pub fn new(
        run: &Arc<ModelRun>,
        expansion: Arc<Expansion>,
        requirements: Arc<CellRequirements>,
        choice: ModelChoice,
    ) -> Self {
        Self {
            run: Arc::clone(run),
            columns: Mutex::new(vec![ColumnUsage::default(); expansion.columns.len()]),
            expansion,
            requirements,
            frames: Mutex::default(),
            packing: Packing::new(choice.rows),
            csv_replies: CsvReplies::default(),
            output_cap: OutputCap::new(run.reasoning_models.contains(&choice.tokenizer)),
            choice,
            usage_warned: false.into(),
            finish_reason_warned: false.into(),
            truncation_warned: false.into(),
            skip_batched: false,
            known_keys: None,
            tokenizer: OnceLock::new(),
        }
    }

    /// Returns the model that the requests are sent to.
    pub(crate) fn endpoint(&self) -> &dyn Model {
        self.choice.endpoint.as_deref().unwrap_or(&*self.run.endpoint)
    }

    /// Creates the completion record of a request that is about to be sent.
    pub(crate) fn new_completion(&self, row_batch: &RowBatch, prompt_hash: String) -> Completion {
        Completion {
            run: self.run.id,
            model: self.requirements.model,
            prompt_hash,
            parameters: format_parameters(&self.choice.parameters),
            asked_at: hqdl_database::current_timestamp(),
            cells: (row_batch.columns.len() * row_batch.missing_rows.len()) as u64,
            ..Completion::default()
        }
    }

    /// Counts the tokens of a request whose endpoint reports no usage. Output tokens are counted
    /// from the received text. If the reply was truncated at the maximum, they are set to the
    /// maximum, because part of the output may be hidden.
    pub(crate) fn count_tokens(
        &self,
        frame: &PromptFrame,
        prompt: &Prompt,
        reply: &Reply,
    ) -> Tokens {
        let tokenizer = self.tokenizer();
        let counted_output =
            tokenizer.count_tokens(&reply.content) + tokenizer.count_tokens(&reply.other_output);
        let mut output = if tokenizer.is_exact() {
            counted_output
        } else {
            // Compare only the guaranteed minimum with the maximum, so that an estimate never stops
            // a run.
            let allowed = prompt.max_output.max(tokenizer.min_tokens(counted_output));
            tokenizer.max_tokens(counted_output).min(allowed)
        };
        if reply.truncated && !reply.cut_off {
            output = output.max(prompt.max_output);
        }
        let input = self.compute_input_tokens(frame, prompt, true);
        // The endpoint may have written the whole prompt to its cache.
        let rates = self.choice.price.map(|price| price.find_rates(input));
        let is_dearer = rates.is_some_and(|rates| rates.cache_write > rates.input);
        let cache_write = if is_dearer { input } else { 0 };
        let audio_input = prompt.audio_tokens;
        Tokens { input, output, cache_write, audio_input, ..Tokens::default() }
    }

    /// Returns the plausible token range of a reply. The minimum is half of hqdl's own count, or a
    /// quarter if that count is an estimate.
    pub(crate) fn compute_plausible_tokens(
        &self,
        prompt: &Prompt,
        reply: &Reply,
    ) -> PlausibleTokens {
        let max = Tokens {
            input: prompt.input_tokens,
            output: prompt.max_output,
            audio_input: prompt.audio_tokens,
            ..Tokens::default()
        };
        let bills = self.endpoint().is_billed() && self.choice.price.is_some_and(|p| p.is_billed());
        if !bills || reply.cut_off {
            return PlausibleTokens { max, ..PlausibleTokens::default() };
        }
        let tokenizer = if self.run.counts_tokens { self.tokenizer() } else { Tokenizer::Estimate };
        // For media, only the maximum number of tokens is known.
        let media = self.compute_media_tokens(prompt).all;
        let extra = tokenizer.max_prompt_tokens(media) + self.choice.extra_input;
        let text = prompt.input_tokens.saturating_sub(extra);
        let min = Tokens {
            input: tokenizer.min_reported_tokens(text),
            output: tokenizer.min_reported_tokens(tokenizer.count_tokens(&reply.content)),
            ..Tokens::default()
        };
        PlausibleTokens { min, max, is_counted: self.run.counts_tokens }
    }

    /// Parses a reply, stores its answers, and returns the rows to request again.
    ///
    /// # Errors
    /// [`StopReason`] if the answers cannot be stored. [`ModelError::Usage`] if the reported usage
    /// is implausible; all answers are stored nevertheless.
    pub(crate) async fn store_reply(
        &self,
        arrived: ArrivedReply<'_>,
        mut completion: Completion,
        reply: Reply,
    ) -> Result<Vec<(RowBatch, u32)>, StopReason> {
        let ArrivedReply { row_batch, frame, prompt, attempt, reservation_id, worst_case, answers } =
            arrived;
        let tokens = reply.tokens.unwrap_or_default();
        let implausible = reply.implausible;
        completion.input_tokens = tokens.input;
        completion.cached_input_tokens = tokens.cached_input;
        completion.output_tokens = tokens.output;
        let price = reply.compute_billed_price(self.choice.price.as_ref());
        completion.cost_usd = price.map_or(0.0, |price| tokens.compute_cost(&price));
        completion.assumed_cache_writes = tokens.count_assumed_cache_writes(price.as_ref());
        let cost = completion.cost_usd;
        // If the reply was cut short by the endpoint or by hqdl, its rows are not to blame.
        let was_cut_short =
            reply.broken.is_some() || self.is_truncated_at_cap(prompt, &reply, tokens);
        // Another request for a row in the simplest format would have the same prompt.
        let is_answered = frame.has_simplest_form()
            && row_batch.missing_rows.len() == 1
            && reply.finish_reason() == FinishReason::Stop
            && !reply.content.trim().is_empty();
        let attempts =
            if frame.has_simplest_form() { MAX_SINGLE_ROW_ATTEMPTS } else { MAX_ATTEMPTS };
        let may_change_format = answers.is_none() && self.may_change_format(frame.format);
        let is_last_attempt = ((attempt >= attempts || is_answered) && !was_cut_short)
            && !may_change_format
            || self.endpoint().is_deterministic();
        if reply.is_unfinished && reply.broken.is_none() {
            self.warn_about_finish_reason(frame);
        }
        let ParsedReply { facts, to_retry, evidence } =
            self.parse_reply(row_batch, frame, prompt, &reply, is_last_attempt);
        let has_value =
            facts.iter().any(|(_, facts)| facts.iter().any(|fact| fact.answer.state.has_value()));
        if reply.truncated && !was_cut_short && !reply.cut_off && !has_value {
            self.warn_about_truncation();
        }
        let ask_again: usize = to_retry.values().map(Vec::len).sum();
        debug!(entities = facts.len(), ask_again, "read");
        let messages: BTreeSet<String> =
            reply.failed_cells.into_iter().map(|cell| cell.message).collect();
        completion.error = messages.first().cloned();
        messages.into_iter().for_each(|m| (self.run.events.listener)(&Event::Failed(m)));
        completion.content = Some(reply.content);
        completion.evidence = evidence;
        let tallies = self.tally_columns(row_batch, &facts);
        let mut tally = Tally::default();
        tallies.iter().for_each(|t| tally.merge(t));
        self.run
            .facts
            .commit_unit(CommitUnit { completion, facts, reservation: reservation_id, answers })
            .await?;
        let usage = {
            let mut usage = self.run.events.usage.lock().unwrap_or_else(PoisonError::into_inner);
            usage.add_request(tokens, price.as_ref());
            *usage
        };
        self.allocate_cost(row_batch, &tallies, tokens, cost);
        (self.run.events.listener)(&Event::Stored { cells: tally, usage });
        self.check_usage(implausible.unwrap_or(tokens), tokens, worst_case, frame, prompt)?;
        if was_cut_short {
            return Ok(split_into_halves_or_rows(to_retry, row_batch, attempt, frame));
        }
        let given_up = tally.get(State::Invalid) as usize / row_batch.columns.len().max(1);
        let failed = given_up + ask_again;
        if attempt == 1 {
            let asked = row_batch.missing_rows.len();
            if self.packing.adapt_to_failures(asked, failed) == Adaptation::FirstSingleRows {
                (self.run.events.listener)(&Event::Warning(format!(
                    "{} left out {failed} of {asked} rows of a request, so hqdl asks it about one \
                     row at a time until that succeeds",
                    self.choice.name
                )));
            }
        }
        Ok(split_into_halves_or_rows(to_retry, row_batch, attempt + 1, frame))
    }

    /// Returns true if a well-formed answer was truncated at its cap, so that a longer answer may
    /// succeed.
    fn is_truncated_at_cap(&self, prompt: &Prompt, reply: &Reply, tokens: Tokens) -> bool {
        if !reply.truncated {
            self.output_cap.adapt_to_answer(prompt, tokens);
        }
        reply.truncated
            && !reply.cut_off
            && reply.broken.is_none()
            && prompt.max_output < self.choice.max_output
            && (self.output_cap.lift_cap_if_used_by_reasoning(prompt, &reply.content, tokens)
                || prompt.has_started_row(&reply.content)
                    && prompt.find_runaway_reason(&reply.content).is_none()
                    && self.output_cap.raise_cap_if_too_small(prompt, tokens))
    }

    /// Warns once that the endpoint does not report whether its answers are complete.
    fn warn_about_finish_reason(&self, frame: &PromptFrame) {
        if frame.format == Format::Csv && !self.finish_reason_warned.swap(true, Ordering::Relaxed) {
            let warning = "the endpoint sends no finish_reason, so the last line of an answer may be incomplete; hqdl asks again for a line without a line break (`format = \"json\"` avoids that)";
            (self.run.events.listener)(&Event::Warning(warning.to_owned()));
        }
    }

    /// Warns once that the endpoint cuts off the answers.
    fn warn_about_truncation(&self) {
        if !self.truncation_warned.swap(true, Ordering::Relaxed) {
            (self.run.events.listener)(&Event::Warning(format!(
                "the endpoint cut off a reply before its first answer: raise `max_output_tokens` \
                 ({}) in [model], or use a model with a larger context",
                self.choice.max_output
            )));
        }
    }

    /// Stops the run if the reported usage is implausible. If the model has no price and the run
    /// has no budget, only warns once. Replayed recordings are not checked.
    fn check_usage(
        &self,
        reported: Tokens,
        settled_tokens: Tokens,
        mut worst_case: SpentAmount,
        frame: &PromptFrame,
        prompt: &Prompt,
    ) -> Result<(), StopReason> {
        let price = self.choice.price.as_ref();
        if !self.endpoint().is_billed() {
            return Ok(());
        }
        if ImplausibleUsage::check_usage_report(reported, settled_tokens, worst_case, price)
            .is_none()
        {
            return Ok(());
        }
        if !self.run.counts_tokens {
            // The worst case was computed from an estimate, so count the input tokens exactly now.
            let input = self.compute_input_tokens(frame, prompt, true);
            let (audio, output) = (prompt.audio_tokens, prompt.max_output);
            worst_case = SpentAmount::worst_case_with_audio(input, audio, output, price);
        }
        let Some(error) =
            ImplausibleUsage::check_usage_report(reported, settled_tokens, worst_case, price)
        else {
            return Ok(());
        };
        if self.choice.price.is_some() || self.run.budget.is_capped() {
            return Err(error.into());
        }
        if !self.usage_warned.swap(true, Ordering::Relaxed) {
            (self.run.events.listener)(&Event::Warning(error.to_string()));
        }
        Ok(())
    }

    /// Returns the number of input tokens of a prompt. If `counts` is true, counts them and adds a
    /// margin for what the endpoint adds; otherwise estimates them.
    fn compute_input_tokens(&self, frame: &PromptFrame, prompt: &Prompt, counts: bool) -> u64 {
        let media = self.compute_media_tokens(prompt).all;
        if !counts {
            let estimate = Tokenizer::Estimate;
            return estimate.count_tokens(&prompt.system)
                + estimate.count_tokens(&prompt.user)
                + media
                + self.choice.extra_input;
        }
        let tokenizer = self.tokenizer();
        let texts = frame.count_tokens_without_rows(prompt, tokenizer)
            + tokenizer.count_tokens(&prompt.user);
        tokenizer.max_prompt_tokens(texts + media) + self.choice.extra_input
    }

    /// Returns the maximum number of tokens of a prompt's media.
    fn compute_media_tokens(&self, prompt: &Prompt) -> MediaTokens {
        let media = prompt.media.iter().map(|medium| medium.info);
        MediaTokens::for_model(media, &self.choice.tokenizer)
    }

    fn tokenizer(&self) -> Tokenizer {
        *self.tokenizer.get_or_init(|| Tokenizer::for_model(&self.choice.tokenizer))
    }
}
