//! A request that failed as a whole: it is split, deferred or given up.

use super::liveness::Says;
use super::packing::halves;
use super::{ATTEMPTS, Context, Event, Stopped, Todo};
use crate::ModelError;
use crate::plan::RowBatch;
use hqdl_facts::Completion;
use hqdl_values::cell::State;

/// A deferred request, which failed while no other request was answered.
pub(super) struct Aside {
    cut: RowBatch,
    attempt: u32,
    /// Number of answers when it was sent.
    since: u64,
    record: Completion,
    why: String,
}

impl Context {
    /// Handles a failed request. Returns the rows to ask now, and the request if it is deferred.
    pub(super) async fn failed(
        &self,
        todo: Todo,
        record: Completion,
        error: ModelError,
        since: u64,
    ) -> Result<(Vec<Todo>, Option<Aside>), Stopped> {
        let Todo { cut, attempt, piece_since } = todo;
        let alone = cut.gaps.len() == 1;
        let again = |cuts: Vec<(RowBatch, u32)>| {
            let todo = |(cut, attempt)| Todo { cut, attempt, piece_since: None };
            Ok((cuts.into_iter().map(todo).collect(), None))
        };
        match &error {
            // A part of the request may fit into the budget.
            ModelError::TooLong(_) | ModelError::Budget(_) if !alone => {
                return again(halves(&cut, attempt));
            }
            ModelError::Refused { .. }
            | ModelError::NoImages { .. }
            | ModelError::Budget(_)
            | ModelError::Usage(_) => {
                return Err(error.into());
            }
            ModelError::Filtered(_) => {
                let hopeless = self.run.liveness.refused();
                if !alone {
                    return again(if hopeless {
                        singles(&cut, attempt)
                    } else {
                        halves(&cut, attempt)
                    });
                }
                self.keep_failure(&cut, record, State::Refused, &error.to_string(), None).await?;
                return Ok((Vec::new(), None));
            }
            // The endpoint does not exist, so no row can be at fault.
            ModelError::NoConnection { .. } if self.run.liveness.answers() == 0 => {
                return Err(error.into());
            }
            ModelError::Passing { .. }
            | ModelError::Unfinished(_)
            | ModelError::NoConnection { .. } => {
                let (since, piece) = (piece_since.unwrap_or(since), piece_since.is_some());
                let says = self.run.liveness.failed(&error, since, piece, self.packing.most());
                if says == Says::Gone {
                    (self.run.events.listener)(&Event::Failed(error.to_string()));
                    return Err(Stopped::Gone(error.to_string()));
                }
                if alone && matches!(error, ModelError::Unfinished(_)) && attempt < ATTEMPTS {
                    return again(vec![(cut, attempt + 1)]);
                }
                if !alone {
                    let aside = Aside { cut, attempt, since, record, why: error.to_string() };
                    return Ok(match says {
                        Says::Alive => (self.pieces(&aside), None),
                        _ => (Vec::new(), Some(aside)),
                    });
                }
            }
            ModelError::TooLong(_) | ModelError::NoAnswer(_) => {}
        }
        (self.run.events.listener)(&Event::Failed(error.to_string()));
        self.keep_failure(&cut, record, State::Error, &error.to_string(), None).await?;
        Ok((Vec::new(), None))
    }

    /// Returns the parts of a deferred request that can be sent now: the endpoint has answered
    /// since, or nothing else is left to ask (`is_last`).
    pub(super) fn next_aside(&self, asides: &mut Vec<Aside>, last: bool) -> Option<Vec<Todo>> {
        let answers = self.run.liveness.answers();
        let at = asides.iter().position(|a| last || answers > a.since)?;
        Some(self.pieces(&asides.swap_remove(at)))
    }

    /// Stores the rows of a deferred request as failed.
    pub(super) async fn give_up(&self, aside: Aside) -> Result<(), Stopped> {
        let Aside { cut, record, why, .. } = aside;
        (self.run.events.listener)(&Event::Failed(why.clone()));
        self.keep_failure(&cut, record, State::Error, &why, None).await
    }

    fn pieces(&self, aside: &Aside) -> Vec<Todo> {
        let piece_since = Some(self.run.liveness.answers());
        let pieces = halves(&aside.cut, aside.attempt).into_iter();
        pieces.map(|(cut, attempt)| Todo { cut, attempt, piece_since }).collect()
    }
}

/// Splits a batch into single rows.
fn singles(cut: &RowBatch, attempt: u32) -> Vec<(RowBatch, u32)> {
    let rows = cut.gaps.iter().map(|gap| RowBatch { gaps: vec![gap.clone()], ..cut.clone() });
    rows.map(|cut| (cut, attempt)).collect()
}
