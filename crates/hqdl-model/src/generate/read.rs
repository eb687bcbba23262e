//! Converts replies to facts, and failures to cell states.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::PoisonError;

use super::packing::RowsToRetry;
use super::{Context, Event, StopReason};
use crate::Reply;
use crate::plan::RowBatch;
use hqdl_facts::{CommitUnit, Completion, Fact};
use hqdl_prompt::{CellPositions, Prompt, PromptFrame, RowOutcome};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::{Answer, CellValue, State, Tally};
use hqdl_values::evidence::ShownEvidence;
use hqdl_values::key::Entity;

/// Content of a reply.
pub(super) struct ParsedReply {
    pub(super) facts: Vec<(Entity, Vec<Fact>)>,
    /// Rows to request again, by columns.
    pub(super) to_retry: RowsToRetry,
    /// Evidence that was shown and quoted, as JSON.
    pub(super) evidence: Option<String>,
}

impl Context {
    pub(super) fn parse_reply(
        &self,
        row_batch: &RowBatch,
        frame: &PromptFrame,
        prompt: &Prompt,
        reply: &Reply,
        is_last_attempt: bool,
    ) -> ParsedReply {
        let (keys, key_names) = self.build_request_keys(row_batch);
        let prompt_columns = self.choose_prompt_columns(row_batch);
        let checkers: Vec<&Checker> =
            prompt_columns.iter().filter_map(|c| self.requirements.checker(*c)).collect();
        let no_evidence = ShownEvidence::default();
        let shown = prompt.shown_evidence();
        let (mut outcomes, quotes) = frame.parse_answer_with_quotes(
            &reply.content,
            reply.finish_reason(),
            &keys,
            &key_names,
            &checkers,
            shown.unwrap_or(&no_evidence),
        );
        if reply.refused {
            // Keep the answers before the refusal; the remaining rows are refused.
            for outcome in &mut outcomes {
                if let RowOutcome::Failed { state, reason: why, .. } = outcome {
                    *state = State::Refused;
                    "the model refused".clone_into(why);
                }
            }
        }
        let logprobs = Self::find_logprobs(reply, prompt_columns, || {
            frame.locate_cells(&reply.content, &outcomes, &keys, &key_names, &checkers)
        });
        // A row refused together with others may be answered alone.
        let is_shared = row_batch.missing_rows.len() > 1 && !self.endpoint().is_deterministic();
        let mut facts = Vec::new();
        let mut to_retry: RowsToRetry = BTreeMap::new();
        for (n, (missing_row, outcome)) in row_batch.missing_rows.iter().zip(outcomes).enumerate() {
            let answers: Vec<Answer> = match outcome {
                RowOutcome::Answered(answers) => answers,
                RowOutcome::Failed { state: State::Refused, .. } if is_shared => {
                    to_retry
                        .entry(row_batch.columns.clone())
                        .or_default()
                        .push(missing_row.clone());
                    continue;
                }
                // A row missing from a shared answer is requested alone before hqdl gives it up.
                RowOutcome::Failed { state: State::Invalid, .. }
                    if !is_last_attempt || is_shared =>
                {
                    to_retry
                        .entry(row_batch.columns.clone())
                        .or_default()
                        .push(missing_row.clone());
                    continue;
                }
                // The recording has no answer for this row.
                RowOutcome::Failed { .. } if reply.partial => {
                    vec![Answer::without_value(State::Error, None); prompt_columns.len()]
                }
                RowOutcome::Failed { state, reason: why, raw } => {
                    let answer = Answer {
                        state,
                        value: CellValue::Nothing,
                        raw: Some(raw),
                        repair: Some(why),
                    };
                    vec![answer; prompt_columns.len()]
                }
            };
            let checked_answers = answers.into_iter().enumerate().map(|(column, answer)| {
                if let Some(message) = reply.failure_message(n, column) {
                    let repair = Some(message.to_owned());
                    return Answer { repair, ..Answer::without_value(State::Error, None) };
                }
                match (answer.state, &answer.raw) {
                    (State::Invalid, None) if reply.partial => {
                        Answer::without_value(State::Error, None)
                    }
                    _ => answer,
                }
            });
            let (unreadable, read): (Vec<_>, Vec<_>) = prompt_columns
                .iter()
                .zip(checked_answers)
                .filter(|(c, _)| row_batch.columns.contains(c))
                .partition(|(_, a)| a.state == State::Invalid && !is_last_attempt);
            if !unreadable.is_empty() {
                let columns = unreadable.into_iter().map(|(c, _)| *c).collect();
                to_retry.entry(columns).or_default().push(missing_row.clone());
            }
            let build_fact = |(column, answer): (&usize, Answer)| {
                let logprob = logprobs.get(&(n, *column)).copied();
                Some(Fact { logprob, ..self.requirements.build_fact(*column, answer)? })
            };
            let read: Vec<Fact> = read.into_iter().filter_map(build_fact).collect();
            if !read.is_empty() {
                facts.push((missing_row.entity.clone(), read));
            }
        }
        let evidence = shown.map(|shown| ShownEvidence { quotes, ..shown.clone() }.to_json());
        ParsedReply { facts, to_retry, evidence }
    }

    /// Returns the log-probability of each cell found in a reply, by row and column.
    fn find_logprobs(
        reply: &Reply,
        columns: &[usize],
        locate_cells: impl FnOnce() -> Vec<CellPositions>,
    ) -> HashMap<(usize, usize), f64> {
        if reply.logprobs.is_empty() {
            return HashMap::new();
        }
        let rows = locate_cells().into_iter().enumerate();
        let cells = rows.flat_map(|(n, row)| {
            row.into_iter().zip(columns).map(move |(position, column)| ((n, *column), position))
        });
        let logprob = |position: Option<Range<usize>>| reply.logprobs.lowest_logprob(&position?);
        cells.filter_map(|(cell, position)| Some((cell, logprob(position)?))).collect()
    }

    /// Stores the failure of a request as the state of its cells: `refused`, `error`, or, if the
    /// request was not sent because no passage could support an answer, `unknown`. An `error` does
    /// not count as an answer: the next run asks again, but the table can show why the cell is
    /// empty.
    pub(crate) async fn store_failed_cells(
        &self,
        row_batch: &RowBatch,
        mut completion: Completion,
        state: State,
        reason: &str,
        answers: Option<i64>,
    ) -> Result<(), StopReason> {
        let given_reason = |given: bool| given.then(|| reason.to_owned());
        completion.error = given_reason(state != State::Unknown);
        let repair = given_reason(state == State::Unknown);
        let raw = given_reason(state == State::Refused);
        let answer = Answer { repair, ..Answer::without_value(state, raw) };
        let fact = |c: &usize| self.requirements.build_fact(*c, answer.clone());
        let facts: Vec<_> = row_batch
            .missing_rows
            .iter()
            .map(|g| (g.entity.clone(), row_batch.columns.iter().filter_map(fact).collect()))
            .collect();
        let mut tally = Tally::default();
        tally.add(state, completion.cells);
        let tallies = self.tally_columns(row_batch, &facts);
        self.run
            .facts
            .commit_unit(CommitUnit { completion, facts, reservation: None, answers })
            .await?;
        self.count_cells(row_batch, &tallies);
        let usage = *self.run.events.usage.lock().unwrap_or_else(PoisonError::into_inner);
        (self.run.events.listener)(&Event::Stored { cells: tally, usage });
        Ok(())
    }
}
