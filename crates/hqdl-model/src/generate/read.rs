//! Converts replies to facts, and failures to cell states.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::packing::AskedAgain;
use super::{Context, Event, Stopped};
use crate::plan::RowBatch;
use crate::{Reply, Tokens};
use hqdl_facts::{CommitUnit, Completion, Fact};
use hqdl_prompt::{PromptFrame, RowOutcome};
use hqdl_spec::checker::Checker;
use hqdl_values::cell::{Answer, CellValue, State, Tally};
use hqdl_values::key::Entity;

impl Context {
    /// Parses a reply. Returns the facts, and the rows to ask again by columns.
    pub(super) fn read(
        &self,
        cut: &RowBatch,
        frame: &PromptFrame,
        reply: &Reply,
        last: bool,
    ) -> (Vec<(Entity, Vec<Fact>)>, AskedAgain) {
        let (keys, names) = self.keys(cut);
        let on_paper = self.on_paper(cut);
        let checkers: Vec<&Checker> =
            on_paper.iter().filter_map(|c| self.wanted.checker(*c)).collect();
        let mut outcomes = frame.read(&reply.content, reply.finish(), &keys, &names, &checkers);
        if reply.refused {
            // Answers before the refusal count; the remaining rows are refused.
            for outcome in &mut outcomes {
                if let RowOutcome::Failed { state, why, .. } = outcome {
                    *state = State::Refused;
                    "the model refused".clone_into(why);
                }
            }
        }
        // A row that is refused together with others may be answered alone.
        let company = cut.gaps.len() > 1 && !self.endpoint().repeats_itself();
        let mut facts = Vec::new();
        let mut again: AskedAgain = BTreeMap::new();
        for (gap, outcome) in cut.gaps.iter().zip(outcomes) {
            let answers: Vec<Answer> = match outcome {
                RowOutcome::Read(answers) => answers,
                RowOutcome::Failed { state: State::Refused, .. } if company => {
                    again.entry(cut.columns.clone()).or_default().push(gap.clone());
                    continue;
                }
                // A row that is missing from a shared answer is asked alone before it is given up.
                RowOutcome::Failed { state: State::Invalid, .. } if !last || company => {
                    again.entry(cut.columns.clone()).or_default().push(gap.clone());
                    continue;
                }
                // The recording has no answer for it.
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

    /// Stores the failure of a request as the state of its cells: `refused` or `error`. An `error`
    /// does not count as an answer: the next run asks again, but the table can show why the cell is
    /// empty.
    pub(crate) async fn keep_failure(
        &self,
        cut: &RowBatch,
        mut record: Completion,
        state: State,
        why: &str,
        answers: Option<i64>,
    ) -> Result<(), Stopped> {
        record.error = Some(why.to_owned());
        let raw = (state == State::Refused).then(|| why.to_owned());
        let answer = Answer::without_value(state, raw);
        let fact = |c: &usize| self.wanted.fact(*c, answer.clone());
        let facts: Vec<_> = cut
            .gaps
            .iter()
            .map(|g| (g.entity.clone(), cut.columns.iter().filter_map(fact).collect()))
            .collect();
        let mut tally = Tally::default();
        tally.add(state, record.cells);
        let tallies = self.tallies(cut, &facts);
        self.run
            .facts
            .keep(CommitUnit { completion: record, facts, settles: None, answers })
            .await?;
        self.share(cut, &tallies, Tokens::default(), 0.0);
        let usage = *self.run.events.usage.lock().unwrap_or_else(PoisonError::into_inner);
        (self.run.events.listener)(&Event::Kept { cells: tally, usage });
        Ok(())
    }
}
