//! The models of a spec: `[model]`, which is the default, and the named ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::BatchApi;
use super::usage_check::UsageGate;
use super::{Model, ModelError, PermitFuture, ReplyFuture, SetupError, WaitFuture};
use hqdl_prompt::Prompt;
use hqdl_spec::{Format, Spec};

/// A model, or the error of connecting to it.
type ConnectResult = Result<Arc<dyn Model>, SetupError>;

/// Connects to the models of a spec.
///
/// # Errors
/// Fails with the error of `connect` for `[model]`. If a named model cannot be connected, requests
/// to it fail with the error, so that an unused model needs no API key.
pub(super) fn connect_all_models(
    spec: &Spec,
    connect: &dyn Fn(&Spec) -> ConnectResult,
) -> ConnectResult {
    let first = connect(spec)?;
    // Flags that change the model apply to all models.
    let others = spec.models.iter().filter(|(_, settings)| **settings != spec.model);
    let others: BTreeMap<String, Arc<dyn Model>> = others
        .map(|(name, settings)| {
            let of = Spec { model: settings.clone(), models: BTreeMap::new(), ..spec.clone() };
            let model = connect(&of).unwrap_or_else(|error| {
                let message = format!("[model.{name}]: {error}");
                let hint = error.hint();
                Arc::new(UnconnectedModel { name: settings.name.clone(), message, hint })
            });
            (name.clone(), model)
        })
        .collect();
    Ok(if others.is_empty() { first } else { Arc::new(ModelSet { first, others }) })
}

/// The default model and the named models.
pub(super) struct ModelSet {
    pub first: Arc<dyn Model>,
    pub others: BTreeMap<String, Arc<dyn Model>>,
}

// Forward every method: a default would replace the wrapped model's own implementation.
#[deny(clippy::missing_trait_methods)]
impl Model for ModelSet {
    fn name(&self) -> &str {
        self.first.name()
    }

    fn acquire_permit<'a>(&'a self, prompt: &'a Prompt) -> PermitFuture<'a> {
        self.first.acquire_permit(prompt)
    }

    fn remaining_wait(&self) -> WaitFuture<'_> {
        self.first.remaining_wait()
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        self.first.send_prompt(prompt)
    }

    fn max_rows(&self) -> Option<u32> {
        self.first.max_rows()
    }

    fn fixes_row_count(&self) -> bool {
        self.first.fixes_row_count()
    }

    fn is_deterministic(&self) -> bool {
        self.first.is_deterministic()
    }

    fn answers_whole_rows(&self) -> bool {
        self.first.answers_whole_rows()
    }

    fn looks_up_by_prompt(&self) -> bool {
        self.first.looks_up_by_prompt()
    }

    fn batch_api(&self) -> Option<Box<dyn BatchApi + '_>> {
        self.first.batch_api()
    }

    fn is_billed(&self) -> bool {
        self.first.is_billed()
    }

    fn usage_gate(&self) -> Option<&UsageGate> {
        self.first.usage_gate()
    }

    fn record_usage(&self, is_plausible: bool) {
        self.first.record_usage(is_plausible);
    }

    fn take_warnings(&self) -> Vec<String> {
        self.first.take_warnings()
    }

    fn answer_format(&self) -> Format {
        self.first.answer_format()
    }

    fn find_named_model(&self, name: &str) -> Option<Arc<dyn Model>> {
        self.others.get(name).cloned().or_else(|| self.first.find_named_model(name))
    }
}

/// A model that could not be connected.
pub(super) struct UnconnectedModel {
    pub name: String,
    pub message: String,
    pub hint: String,
}

impl Model for UnconnectedModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn send_prompt<'a>(&'a self, _: &'a Prompt) -> ReplyFuture<'a> {
        let error = ModelError::NoConnection {
            message: self.message.clone(),
            hint: self.hint.clone(),
            is_permanent: true,
        };
        Box::pin(std::future::ready(Err(error)))
    }
}
