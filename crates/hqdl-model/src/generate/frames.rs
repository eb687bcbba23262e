//! The prompt of a row batch, and its frame: the part that is shared by prompts with the same
//! columns and the same part of the key.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Context;
use crate::plan::{MissingRow, RowBatch};
use hqdl_prompt::align::RequestKeys;
use hqdl_prompt::{Prompt, PromptFrame, ShownImage};
use hqdl_values::Row;
use hqdl_values::value::Value;

/// Prompt frames by the part of the key that they show and the columns that they ask for.
pub type Frames = Mutex<HashMap<(Option<Vec<usize>>, Vec<usize>), Arc<PromptFrame>>>;

impl Context {
    /// Returns the prompt of a row batch and its frame.
    pub(crate) fn prompt(&self, cut: &RowBatch) -> (Arc<PromptFrame>, Prompt) {
        let frame = self.frame_of(cut);
        let rows: Vec<Cow<'_, Row>> = self.rows(cut);
        let mut prompt = frame.prompt(rows.iter().map(AsRef::as_ref));
        prompt.images = self.images(cut).map(|image| self.named(image)).collect();
        prompt.input_tokens = self.input_tokens(&frame, &prompt, self.run.counts);
        prompt.max_output = self.output_cap.of(prompt.planned_output).min(self.choice.max_output);
        prompt.with_keys = self.endpoint().finds_by_prompt().then(|| self.hash_with_keys(cut));
        (frame, prompt)
    }

    /// Returns the images of a row batch, in order.
    fn images<'c>(&'c self, cut: &'c RowBatch) -> impl Iterator<Item = &'c Value> {
        cut.gaps.iter().flat_map(|gap| self.expansion.images_of(&gap.row))
    }

    /// Returns an image by name, without its content.
    fn named(&self, image: &Value) -> ShownImage {
        let name = self.expansion.image_files.name(image).to_string();
        ShownImage { name, url: String::new() }
    }

    /// Reads the images of a prompt.
    ///
    /// # Errors
    /// A message, if an image cannot be read.
    pub(super) fn show_images(&self, cut: &RowBatch, prompt: &mut Prompt) -> Result<(), String> {
        if cut.gaps.iter().any(|gap| self.expansion.lacks_images(&gap.row)) {
            return Err("its image is in `context`, not in its key: only `hqdl materialize` can read it, not a query"
                .to_owned());
        }
        for (shown, image) in prompt.images.iter_mut().zip(self.images(cut)) {
            shown.url = self.expansion.image_files.url(image, &shown.name)?;
        }
        // The answers are stored for the images that were looked up.
        let same = |gap: &MissingRow| self.expansion.entity(&gap.row.key) == gap.entity;
        if prompt.images.is_empty() || cut.gaps.iter().all(same) {
            Ok(())
        } else {
            Err("an image changed during the run".to_owned())
        }
    }

    /// Returns the hash that the request had before row labels were introduced.
    fn hash_with_keys(&self, cut: &RowBatch) -> String {
        let expansion = self.expansion.asked_by(first_key(cut));
        let whole = PromptFrame::with_keys(&expansion, self.on_paper(cut), self.choice.format);
        let rows = self.rows(cut);
        whole.prompt(rows.iter().map(AsRef::as_ref)).hash()
    }

    /// Returns the frame of the batch's prompt.
    pub(crate) fn frame_of(&self, cut: &RowBatch) -> Arc<PromptFrame> {
        let (key, columns) = (first_key(cut), self.on_paper(cut));
        let of = (self.expansion.part_of(key).map(<[usize]>::to_vec), columns.to_vec());
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let expansion = self.expansion.asked_by(key);
            // Recordings are found by the rows of a table.
            let is_recorded = self.endpoint().finds_by_prompt();
            let make = if is_recorded { PromptFrame::of_tables } else { PromptFrame::new };
            Arc::new(make(&expansion, columns, self.choice.format))
        };
        Arc::clone(frames.entry(of).or_insert_with(make))
    }

    /// Returns the keys that the answer must repeat, and the names of their columns.
    pub(super) fn keys(&self, cut: &RowBatch) -> (RequestKeys, Cow<'_, [String]>) {
        let rows = self.rows(cut);
        let keys = RequestKeys::new(rows.iter().map(|row| row.key.as_slice()));
        let keys = keys.among(self.known_keys.clone());
        (keys, self.expansion.key_shown(first_key(cut)))
    }

    /// Returns the columns in the prompt: the requested ones, or all columns of the row if the
    /// model answers whole rows.
    pub(super) fn on_paper<'c>(&self, cut: &'c RowBatch) -> &'c [usize] {
        if self.endpoint().answers_whole_rows() { &cut.whole } else { &cut.columns }
    }

    fn rows<'c>(&self, cut: &'c RowBatch) -> Vec<Cow<'c, Row>> {
        cut.gaps.iter().map(|gap| self.expansion.shown(&gap.row)).collect()
    }
}

/// Returns the key of the first row; all rows of a batch have the same part of the key.
fn first_key(cut: &RowBatch) -> &[Value] {
    cut.gaps.first().map_or(&[], |gap| &gap.row.key)
}
