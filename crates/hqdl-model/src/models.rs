//! The models of a spec: that of `[model]`, which is the default, and the other named ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::usage_check::UsageGate;
use super::{Admitting, Model, ModelError, RemainingPause, ReplyFuture, SetupError, openai};
use hqdl_prompt::Prompt;
use hqdl_spec::{Format, Spec};

/// A model, or the error of connecting to it.
type Connected = Result<Arc<dyn Model>, SetupError>;

/// Connects to the models of a spec.
///
/// # Errors
/// The error of `connect` for `[model]`. If another model cannot be connected, its error is
/// returned when it is asked, so that an unused model needs no API key.
pub(super) fn all(spec: &Spec, connect: &dyn Fn(&Spec) -> Connected) -> Connected {
    let first = connect(spec)?;
    // Flags that change the model apply to all models.
    let others = spec.models.iter().filter(|(_, settings)| **settings != spec.model);
    let others: BTreeMap<String, Arc<dyn Model>> = others
        .map(|(name, settings)| {
            let of = Spec { model: settings.clone(), models: BTreeMap::new(), ..spec.clone() };
            let model = connect(&of).unwrap_or_else(|error| {
                let message = format!("[model.{name}]: {error}");
                let hint = error.hint();
                Arc::new(Unconnected { name: settings.name.clone(), message, hint })
            });
            (name.clone(), model)
        })
        .collect();
    Ok(if others.is_empty() { first } else { Arc::new(Models { first, others }) })
}

/// The default model and the other named models.
struct Models {
    first: Arc<dyn Model>,
    others: BTreeMap<String, Arc<dyn Model>>,
}

impl Model for Models {
    fn name(&self) -> &str {
        self.first.name()
    }

    fn admit<'a>(&'a self, prompt: &'a Prompt) -> Admitting<'a> {
        self.first.admit(prompt)
    }

    fn remaining_pause(&self) -> RemainingPause<'_> {
        self.first.remaining_pause()
    }

    fn ask<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        self.first.ask(prompt)
    }

    fn rows_at_most(&self) -> Option<u32> {
        self.first.rows_at_most()
    }

    fn repeats_itself(&self) -> bool {
        self.first.repeats_itself()
    }

    fn answers_whole_rows(&self) -> bool {
        self.first.answers_whole_rows()
    }

    fn finds_by_prompt(&self) -> bool {
        self.first.finds_by_prompt()
    }

    fn batches(&self) -> Option<&openai::Endpoint> {
        self.first.batches()
    }

    fn bills(&self) -> bool {
        self.first.bills()
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        self.first.usage_gate()
    }

    fn note_usage(&self, is_plausible: bool) {
        self.first.note_usage(is_plausible);
    }

    fn remarks(&self) -> Vec<String> {
        self.first.remarks()
    }

    fn format(&self) -> Format {
        self.first.format()
    }

    fn other(&self, name: &str) -> Option<Arc<dyn Model>> {
        self.others.get(name).cloned()
    }
}

/// A model that could not be connected.
struct Unconnected {
    name: String,
    message: String,
    hint: String,
}

impl Model for Unconnected {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, _: &'a Prompt) -> ReplyFuture<'a> {
        let error = ModelError::NoConnection {
            message: self.message.clone(),
            hint: self.hint.clone(),
            lasting: true,
        };
        Box::pin(std::future::ready(Err(error)))
    }
}
