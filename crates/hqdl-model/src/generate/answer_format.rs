//! Chooses the answer format of a run's requests: the spec's format, or JSON if the model's CSV
//! replies cannot be parsed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::{Context, Event};
use hqdl_spec::Format;

/// Number of unreadable CSV replies after which hqdl asks a model for JSON, provided that none of
/// its replies had a readable value.
const MAX_UNREAD_REPLIES: u32 = 3;

/// Counts of a model's CSV replies.
#[derive(Debug, Default)]
pub struct CsvReplies {
    unread_replies: AtomicU32,
    /// Whether any reply had a readable value.
    was_read: AtomicBool,
}

impl CsvReplies {
    fn is_unreadable(&self) -> bool {
        self.unread_replies.load(Ordering::Relaxed) >= MAX_UNREAD_REPLIES
            && !self.was_read.load(Ordering::Relaxed)
    }
}

impl Context {
    /// Returns the format of the next request.
    pub(super) fn answer_format(&self) -> Format {
        if self.csv_replies.is_unreadable() { Format::Json } else { self.choice.format }
    }

    /// Returns true if unreadable rows may soon be requested in another format. Until then, no
    /// attempt for a row is the last one.
    pub(super) fn may_change_format(&self, format: Format) -> bool {
        format == Format::Csv
            && !self.csv_replies.is_unreadable()
            && !self.csv_replies.was_read.load(Ordering::Relaxed)
    }

    /// Records whether a CSV reply had a readable value, and warns once if the model is asked for
    /// JSON from now on. A batch job keeps the format in which it was sent.
    pub(super) fn record_csv_reply(&self, format: Format, was_read: bool) {
        if format != Format::Csv || self.csv_replies.is_unreadable() {
            return;
        }
        if was_read {
            self.csv_replies.was_read.store(true, Ordering::Relaxed);
            return;
        }
        let unread = self.csv_replies.unread_replies.fetch_add(1, Ordering::Relaxed) + 1;
        if unread == MAX_UNREAD_REPLIES && self.csv_replies.is_unreadable() {
            (self.run.events.listener)(&Event::Warning(format!(
                "{unread} CSV answers from {} had no readable value, so hqdl asks it in JSON \
                 (`format = \"json\"` in the expansion does so from the start)",
                self.choice.name
            )));
        }
    }
}
