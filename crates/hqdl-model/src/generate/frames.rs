//! Prompts of row batches, and their frames. A frame is the part shared by all prompts that request
//! the same columns and show the same key columns.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Context;
use crate::plan::{MissingRow, RowBatch};
use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::{Prompt, PromptFrame};
use hqdl_spec::{Format, MediaColumn};
use hqdl_values::Row;
use hqdl_values::value::Value;

/// Prompt frames, by the shown key columns (`None` for all of them), the requested columns, and
/// whether the answers are JSON.
pub type Frames = Mutex<HashMap<(Option<Vec<usize>>, Vec<usize>, bool), Arc<PromptFrame>>>;

impl Context {
    pub(crate) fn build_prompt(&self, row_batch: &RowBatch) -> (Arc<PromptFrame>, Prompt) {
        let frame = self.get_or_build_frame(row_batch);
        let rows: Vec<Cow<'_, Row>> = self.build_shown_rows(row_batch);
        let mut prompt = frame.build_prompt(rows.iter().map(AsRef::as_ref));
        let media = self.list_row_media(row_batch);
        prompt.media =
            media.map(|(column, value)| self.expansion.refer_to_medium(column, value)).collect();
        prompt.audio_tokens = match self.compute_media_tokens(&prompt).audio {
            0 => 0,
            audio => self.tokenizer().max_tokens(audio),
        };
        prompt.input_tokens = self.compute_input_tokens(&frame, &prompt, self.run.counts_tokens);
        prompt.max_output =
            self.output_cap.max_tokens(prompt.planned_output).min(self.choice.max_output);
        let uses_logprobs = |column: &usize| self.choice.logprob_columns.contains(column);
        prompt.wants_logprobs = row_batch.columns.iter().any(uses_logprobs);
        prompt.full_key_hash = self
            .endpoint()
            .looks_up_by_prompt()
            .then(|| self.compute_legacy_prompt_hash(row_batch));
        (frame, prompt)
    }

    /// Returns the media of a row batch with their columns, in order.
    pub(super) fn list_row_media<'c>(
        &'c self,
        row_batch: &'c RowBatch,
    ) -> impl Iterator<Item = (&'c MediaColumn, &'c Value)> {
        row_batch
            .missing_rows
            .iter()
            .flat_map(|missing_row| self.expansion.collect_media(&missing_row.row))
    }

    /// Reads the media of a prompt.
    ///
    /// # Errors
    /// Fails with a message if a medium cannot be read.
    pub(super) fn load_media(
        &self,
        row_batch: &RowBatch,
        prompt: &mut Prompt,
    ) -> Result<(), String> {
        if row_batch
            .missing_rows
            .iter()
            .any(|missing_row| self.expansion.lacks_media(&missing_row.row))
        {
            return Err("its image or recording is in `context`, not in its key: only `hqdl materialize` can read it, not a query"
                .to_owned());
        }
        if prompt.audio_tokens > 0 && self.choice.lacks_audio_price {
            return Err(format!(
                "the price of `{}` has no rate for recordings: set `audio_input` in `price`",
                self.choice.tokenizer
            ));
        }
        for (shown, (column, value)) in prompt.media.iter_mut().zip(self.list_row_media(row_batch))
        {
            let url = self.expansion.media_files.build_media_url(value, &shown.name, column.kind);
            shown.url = url.map_err(|reason| add_row_to_reason(&reason, row_batch))?;
        }
        // Answers are stored under the media that the run looked up, so check that these have not
        // changed.
        let is_unchanged = |missing_row: &MissingRow| {
            let row = &missing_row.row;
            let entity = self.expansion.build_entity(&row.key);
            self.expansion.build_fact_entity(&entity, &row.context) == missing_row.entity
        };
        if prompt.media.is_empty() || row_batch.missing_rows.iter().all(is_unchanged) {
            Ok(())
        } else {
            Err("an image or recording changed during the run".to_owned())
        }
    }

    /// Returns the hash that the request had before row labels were introduced.
    fn compute_legacy_prompt_hash(&self, row_batch: &RowBatch) -> String {
        let expansion = self.expansion.reduce_to_key_part(first_key(row_batch));
        let frame = PromptFrame::with_full_keys(
            &expansion,
            self.choose_prompt_columns(row_batch),
            self.choice.format,
        );
        let rows = self.build_shown_rows(row_batch);
        frame.build_prompt(rows.iter().map(AsRef::as_ref)).provenance_hash()
    }

    pub(crate) fn get_or_build_frame(&self, row_batch: &RowBatch) -> Arc<PromptFrame> {
        let (key, columns) = (first_key(row_batch), self.choose_prompt_columns(row_batch));
        let format = self.answer_format();
        let key_part = self.expansion.key_part(key).map(<[usize]>::to_vec);
        let frame_key = (key_part, columns.to_vec(), format == Format::Json);
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let build_frame = || {
            let expansion = self.expansion.reduce_to_key_part(key);
            // Recordings are looked up by the hash of a prompt in table form.
            let is_recorded = self.endpoint().looks_up_by_prompt() && expansion.evidence.is_none();
            let constructor = if is_recorded { PromptFrame::for_table } else { PromptFrame::new };
            Arc::new(constructor(&expansion, columns, format))
        };
        Arc::clone(frames.entry(frame_key).or_insert_with(build_frame))
    }

    /// Returns the keys that the answer must repeat, and the names of their columns.
    pub(super) fn build_request_keys(
        &self,
        row_batch: &RowBatch,
    ) -> (RequestKeys, Cow<'_, [String]>) {
        let rows = self.build_shown_rows(row_batch);
        let keys = RequestKeys::new(rows.iter().map(|row| row.key.as_slice()));
        let keys = keys.with_known_keys(self.known_keys.clone());
        (keys, self.expansion.choose_prompt_key_names(first_key(row_batch)))
    }

    /// Returns the columns in the prompt: the requested ones, or all columns of the rows if the
    /// model answers whole rows.
    pub(super) fn choose_prompt_columns<'c>(&self, row_batch: &'c RowBatch) -> &'c [usize] {
        if self.endpoint().answers_whole_rows() {
            &row_batch.source_columns
        } else {
            &row_batch.columns
        }
    }

    fn build_shown_rows<'c>(&self, row_batch: &'c RowBatch) -> Vec<Cow<'c, Row>> {
        row_batch
            .missing_rows
            .iter()
            .map(|missing_row| self.expansion.build_shown_row(&missing_row.row))
            .collect()
    }
}

/// Returns the key of the first row. All rows of a batch show the same key columns, so any row's
/// key would do.
fn first_key(row_batch: &RowBatch) -> &[Value] {
    row_batch.missing_rows.first().map_or(&[], |missing_row| &missing_row.row.key)
}

/// Returns the reason why a medium cannot be sent, with the key of its row unless the key is the
/// medium itself. Rows with media are sent alone.
fn add_row_to_reason(reason: &str, row_batch: &RowBatch) -> String {
    let Some(missing_row) = row_batch.missing_rows.first() else { return reason.to_owned() };
    let texts = missing_row.row.key.iter().map(ToString::to_string);
    // A digest, a URL or the medium's own path does not help to find the row.
    let is_name =
        |text: &String| !text.contains(':') && text.len() <= 100 && !reason.contains(text.as_str());
    let key: Vec<String> = texts.filter(is_name).collect();
    if key.is_empty() { reason.to_owned() } else { format!("{}: {reason}", key.join(", ")) }
}
