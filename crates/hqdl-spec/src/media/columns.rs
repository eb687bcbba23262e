//! Columns of an expansion that contain media.

use super::{ANY, KINDS, MediaInfo, MediaKind, MediaWords, Medium, format_placeholder};
use crate::Expansion;
use hqdl_values::Row;
use hqdl_values::key::{Entity, KeyColumns};
use hqdl_values::value::Value;

/// A key or context column whose values are media.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaColumn {
    /// Name of the column.
    pub name: String,
    /// The only kind that the column can contain; `None` if it can contain every kind.
    pub kind: Option<&'static MediaKind>,
}

/// Maximum number of tokens of media.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaTokens {
    /// Tokens of all media.
    pub all: u64,
    /// Tokens that are billed at the price of recordings.
    pub audio: u64,
}

impl MediaTokens {
    /// Returns the maximum number of tokens of media for a model.
    #[must_use]
    pub fn for_model(media: impl IntoIterator<Item = MediaInfo>, model: &str) -> Self {
        media.into_iter().fold(Self::default(), |sum, info| {
            let tokens = info.max_tokens(model);
            let audio = if info.kind.is_billed_as_audio { tokens } else { 0 };
            Self { all: sum.all + tokens, audio: sum.audio + audio }
        })
    }
}

impl Expansion {
    /// Returns true if rows are shown with media.
    #[must_use]
    pub fn has_media(&self) -> bool {
        !self.media.is_empty()
    }

    /// Returns the key or context column with this name if it contains media.
    #[must_use]
    pub fn find_media_column(&self, name: &str) -> Option<&MediaColumn> {
        self.media.iter().find(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// Returns true if a key or context column contains media.
    #[must_use]
    pub fn is_media(&self, column: &str) -> bool {
        self.find_media_column(column).is_some()
    }

    /// Returns the only kind of media that the expansion's columns can contain, if there is one.
    #[must_use]
    pub fn only_media_kind(&self) -> Option<&'static MediaKind> {
        let first = self.media.first()?.kind?;
        self.media.iter().all(|column| column.kind == Some(first)).then_some(first)
    }

    /// Returns the sentences that describe the expansion's media in a prompt; `None` if it has
    /// none.
    #[must_use]
    pub fn media_words(&self) -> Option<&'static MediaWords> {
        self.has_media().then(|| self.only_media_kind().map_or(&ANY, |kind| &kind.words))
    }

    /// Returns the entity of a key, in which media are identified by their bytes.
    #[must_use]
    pub fn build_entity(&self, key: &[Value]) -> Entity {
        if !self.has_media() {
            return self.key.build_entity(key);
        }
        self.key.build_entity(&self.identify_media(self.key.names(), key))
    }

    /// Returns true if the facts about a row depend on its context: the expansion belongs to a spec
    /// and has context columns.
    #[must_use]
    pub fn has_row_context(&self) -> bool {
        !self.sources.is_empty() && !self.context.is_empty()
    }

    /// Returns the entity under which the facts about a row are stored. It is the row's entity, with
    /// the digest of its context if the expansion has one and the context is known.
    #[must_use]
    pub fn build_fact_entity(&self, entity: &Entity, context: &[Value]) -> Entity {
        if !self.has_row_context() || context.len() < self.context.len() {
            return entity.clone();
        }
        entity.with_context(self.compute_context_digest(context))
    }

    /// Returns the digest of a row's context, in which media are identified by their bytes.
    #[must_use]
    pub fn compute_context_digest(&self, context: &[Value]) -> u128 {
        let columns = KeyColumns::new(self.context.clone());
        if !self.has_media() {
            return columns.compute_context_digest(context);
        }
        columns.compute_context_digest(&self.identify_media(&self.context, context))
    }

    /// Returns the values of columns with media replaced by the text that identifies their bytes.
    fn identify_media(&self, columns: &[String], values: &[Value]) -> Vec<Value> {
        let identify = |(column, value): (&String, &Value)| {
            if self.is_media(column) {
                self.media_files.compute_identity(value)
            } else {
                value.clone()
            }
        };
        columns.iter().zip(values).map(identify).collect()
    }

    /// Returns the media of a row with their columns, in the order of its key and context.
    pub fn collect_media<'r>(
        &'r self,
        row: &'r Row,
    ) -> impl Iterator<Item = (&'r MediaColumn, &'r Value)> {
        let key = self.key.names().iter().zip(&row.key);
        let columns = key.chain(self.context.iter().zip(&row.context));
        columns
            .filter(move |(_, value)| self.has_media() && **value != Value::Null)
            .filter_map(move |(name, value)| Some((self.find_media_column(name)?, value)))
    }

    /// Returns a reference to a medium of a row, without its content.
    #[must_use]
    pub fn refer_to_medium(&self, column: &MediaColumn, value: &Value) -> Medium {
        let name = self.media_files.compute_identity(value).to_string();
        // hqdl never sends a file that it does not recognize, but reserves the maximum for it.
        let unknown = MediaInfo { kind: column.kind.unwrap_or(KINDS[0]), seconds: None };
        let info = self.media_files.find_info(&name).unwrap_or(unknown);
        Medium { name, info, url: String::new() }
    }

    /// Returns the maximum number of tokens of a row's media for a model. Media that cannot be sent
    /// have none.
    #[must_use]
    pub fn max_media_tokens(&self, row: &Row, model: &str) -> MediaTokens {
        // A file that cannot be read, or that the column does not accept, is never sent.
        let sendable = self.collect_media(row).filter_map(|(column, value)| {
            let info = self
                .media_files
                .find_info(&self.media_files.compute_identity(value).to_string())?;
            column.kind.is_none_or(|kind| kind == info.kind).then_some(info)
        });
        MediaTokens::for_model(sendable, model)
    }

    /// Returns the row with its media replaced by `[image 1]`, `[audio 2]` and so on.
    pub(crate) fn replace_media(&self, row: &Row) -> Row {
        let mut count = 0;
        let mut replace = |(name, value): (&String, &Value)| {
            let Some(column) = self.find_media_column(name).filter(|_| *value != Value::Null)
            else {
                return value.clone();
            };
            count += 1;
            let kind = self.refer_to_medium(column, value).info.kind;
            Value::Text(format_placeholder(kind, count))
        };
        let key = self.key.names().iter().zip(&row.key).map(&mut replace).collect();
        Row { key, context: self.context.iter().zip(&row.context).map(&mut replace).collect() }
    }

    /// Returns true if a row lacks a medium that the prompt needs. This can happen in a query,
    /// which knows a row's key but not its context.
    #[must_use]
    pub fn lacks_media(&self, row: &Row) -> bool {
        row.context.len() < self.context.len() && self.context.iter().any(|c| self.is_media(c))
    }
}
