//! `unify = true`: after the cells are filled, the model is asked once about each distinct answer
//! that is not in the value list.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::run::Run;
use super::survey::Survey;
use super::{MaterializeError, Report, Way, Work};
use hqdl_database::output::OutputTarget;
use hqdl_facts::{Found, unify};
use hqdl_model as model;
use hqdl_model::generate::{self, Context, Event, Events, ModelRun, Stopped};
use hqdl_model::plan::{ColumnPlan, ExpansionPlan, MOST_ITEMS, Meter, MissingRow, Pace, RowBatch};
use hqdl_spec::Expansion;
use hqdl_values::Row;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Number of values that are unified together. Requests and answers take many times the memory of
/// the values, which are at most 200 bytes each and all in memory.
const AT_ONCE: usize = 10_000;

impl<'w> Work<'w> {
    /// Unifies the unlisted values of all expansions. Returns the expansions for which the model
    /// was asked.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if keys or facts cannot be read. If the run stops early, the
    /// report contains the reason.
    pub(super) fn unify(
        &self,
        run: &Run,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<Vec<usize>, MaterializeError> {
        let mut learned = Vec::new();
        let unifies = |e: &Expansion| e.columns.iter().any(|c| c.unify);
        for (n, expansion) in self.spec.expansions.iter().enumerate().filter(|(_, e)| unifies(e)) {
            // Includes the answers of this run.
            let survey = self.survey(n, false)?;
            for (column, words) in &survey.strangers {
                if !learned.contains(&n) {
                    learned.push(n);
                }
                let words: Vec<&str> = words.values().map(String::as_str).collect();
                for words in words.chunks(AT_ONCE) {
                    self.unify_column(run, expansion, (n, *column), words, interrupt, report)?;
                    if report.stopped.is_some() {
                        return Ok(learned);
                    }
                }
            }
        }
        Ok(learned)
    }

    /// Recomputes the coverage of expansions whose values were unified.
    pub(super) fn look_again(
        &self,
        learned: &[usize],
        surveys: &mut [Survey<'w>],
        target: &OutputTarget,
    ) -> Result<(), MaterializeError> {
        for n in learned {
            if let Some(survey) = surveys.get_mut(*n) {
                *survey = self.survey(*n, false)?;
            }
        }
        match target.before(self.database) {
            Some(db) => self.look_for_differences(db, surveys),
            None => Ok(()),
        }
    }

    /// Updates the report for cells whose value was not in the list when it was answered and is
    /// mapped to the list now.
    pub(super) fn tell_unified(
        &self,
        learned: &[usize],
        surveys: &[Survey<'_>],
        report: &mut Report,
    ) {
        for n in learned {
            let (Some(expansion), Some(survey)) = (self.spec.expansions.get(*n), surveys.get(*n))
            else {
                continue;
            };
            let columns = expansion.columns.iter().zip(&survey.cells).filter(|(c, _)| c.unify);
            for (column, cells) in columns {
                let left = cells.get(State::NotInList);
                report.unified(&expansion.name, &column.name, left);
            }
        }
    }

    /// Unifies some values of one column.
    fn unify_column(
        &self,
        run: &Run,
        expansion: &Expansion,
        (n, at): (usize, usize),
        words: &[&str],
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let column = &expansion.columns[at];
        let Some(list) = &column.values else { return Ok(()) };
        let asks = Arc::new(unify::question(expansion, column, list));
        let choice = model::choose(&self.spec, Some(&*self.model), &asks);
        let history = self.facts.history();
        let wanted = Arc::new(choice.wanted(history, &asks)?);
        let gaps: Vec<MissingRow> = words.iter().map(|word| gap(&asks, word)).collect();
        let entities: Vec<_> = gaps.iter().map(|gap| &gap.entity).collect();
        let known = self.facts.get_many(&entities)?;
        let missing: Vec<MissingRow> = gaps
            .iter()
            .zip(&known)
            .filter(|(_, record)| matches!(wanted.find(record.as_ref(), 0), Found::Missing(..)))
            .map(|(gap, _)| gap.clone())
            .collect();
        if !missing.is_empty() {
            let outer = Arc::clone(&run.events.listener);
            // These answers are not cells of the tables, so hide their events.
            let listener = Arc::new(move |event: &Event| {
                if matches!(event, Event::Warning(_) | Event::Failed(_)) {
                    outer(event);
                }
            });
            let events = Events { listener, usage: Arc::clone(&run.events.usage) };
            let endpoint = Arc::clone(&self.model);
            let asking =
                ModelRun::of(&self.spec, endpoint, self.facts, run.id, events, interrupt.clone())?;
            let asking = Arc::new(asking);
            let rows = choice.rows.max(1) as usize;
            let context = Arc::new(Context::new(
                &asking,
                Arc::clone(&asks),
                Arc::clone(&wanted),
                choice.clone(),
            ));
            let cuts: Vec<RowBatch> = missing
                .chunks(rows)
                .map(|gaps| RowBatch { columns: vec![0], whole: vec![0], gaps: gaps.to_vec() })
                .collect();
            let (send, receive) = mpsc::channel(cuts.len().max(1));
            for cut in cuts {
                // The channel has capacity for all batches.
                let _ = send.try_send(cut);
            }
            drop(send);
            let ended = run
                .runtime
                .block_on(async { tokio::spawn(generate::generate(context, receive)).await });
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(stopped)) => report.stopped = Some(Arc::new(stopped)),
                Err(bug) => report.stopped = Some(Arc::new(Stopped::Bug(bug.to_string()))),
            }
        }
        let Some(unified) = self.wanted[n].checker(at).and_then(|c| c.unified()) else {
            return Ok(());
        };
        let known = self.facts.get_many(&entities)?;
        for (word, record) in words.iter().zip(&known) {
            let Found::Known(fact) = wanted.find(record.as_ref(), 0) else { continue };
            let value = match (fact.answer.state, &fact.answer.value) {
                (State::Ok, CellValue::One(Value::Text(value))) => Some(value.as_str()),
                _ => None,
            };
            let of = (expansion, column);
            unify::remember(history, of, (word, value), &choice.name, fact.completion)?;
            unified.learn(word, value.map(str::to_owned));
        }
        Ok(())
    }

    /// Returns the plan of the unify requests: for the unlisted values known now, and at most one
    /// more for each missing cell or list item. Batch runs do not unify.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if the history cannot be read.
    pub(super) fn unify_plan(
        &self,
        n: usize,
        survey: &Survey<'_>,
    ) -> Result<Vec<ExpansionPlan>, MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let mut plans = Vec::new();
        if self.way == Way::Batch || !expansion.columns.iter().any(|c| c.unify) {
            return Ok(plans);
        }
        let settings = self.spec.settings(expansion.model.as_deref());
        let reasoning = Pace::of(self.facts.history(), settings)?.reasoning;
        for (at, column) in expansion.columns.iter().enumerate().filter(|(_, c)| c.unify) {
            let Some(list) = &column.values else { continue };
            let asks = unify::question(expansion, column, list);
            let choice = model::choose(&self.spec, Some(&*self.model), &asks);
            let metered = |words: &[&str]| {
                let tokenizer = Tokenizer::of(&choice.tokenizer);
                let mut meter =
                    Meter::new(&asks, choice.format, tokenizer).capped(choice.max_output);
                for words in words.chunks(choice.rows.max(1) as usize) {
                    let gaps = words.iter().map(|word| gap(&asks, word)).collect();
                    meter.count(&RowBatch { columns: vec![0], whole: vec![0], gaps });
                }
                let words = ColumnPlan { name: "value".to_owned(), ..ColumnPlan::default() };
                let mut plan = ExpansionPlan {
                    name: format!("unify {}.{}", expansion.name, column.name),
                    model: choice.tokenizer.clone(),
                    price: choice.price,
                    columns: vec![words],
                    ..ExpansionPlan::default()
                };
                meter.finish(&mut plan);
                plan.reason(reasoning);
                plan
            };
            let words: Vec<&str> = survey
                .strangers
                .get(&at)
                .into_iter()
                .flat_map(BTreeMap::values)
                .map(String::as_str)
                .collect();
            let mut plan = metered(&words);
            plan.keys = words.len() as u64;
            if let Some(of) = plan.columns.first_mut().filter(|_| !words.is_empty()) {
                of.missing.insert(hqdl_facts::Reason::NewRow, words.len() as u64);
            }
            let missing = survey.plan.columns.get(at).map_or(0, ColumnPlan::cells);
            if missing > 0 {
                // Upper bound: each missing cell gets a different unlisted value and its own
                // request. A token has at least one byte.
                let more = missing * if column.many.is_some() { MOST_ITEMS } else { 1 };
                let one = metered(&[""]);
                plan.maybe_input = (one.input_tokens + unify::LONGEST_WORD as u64) * more;
                plan.output_tokens.most += one.output_tokens.most * more as f64;
            }
            plans.push(plan);
        }
        Ok(plans)
    }
}

/// Returns the row that asks about one value.
fn gap(asks: &Expansion, word: &str) -> MissingRow {
    let key = vec![Value::from(word)];
    let entity = asks.key.entity(&key);
    MissingRow { row: Row { key, context: Vec::new() }, entity }
}
