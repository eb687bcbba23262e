//! Media that hqdl shows to a model: images and recordings.
//!
//! Each kind of medium has a file here and an entry in [`KINDS`]. Its field is in
//! `file::ExpansionTable::media_fields`, and its keyword in
//! `hqdl_sql::blendsql::ingredients::MEDIA_KEYWORDS`. Everything that differs between
//! kinds is a field of [`MediaKind`]: the formats, recognized by their first bytes, the limits, the
//! tokens, the part of a request in each API, and the words of prompts. Code elsewhere does not
//! distinguish kinds.

mod audio;
mod columns;
mod files;
mod image;

use serde_json::Value as Json;

pub use self::columns::{MediaColumn, MediaTokens};
pub use self::files::MediaFiles;
use crate::Provider;

/// All kinds of media.
pub static KINDS: [&MediaKind; 2] = [&image::IMAGE, &audio::AUDIO];

/// Maximum number of tokens of a medium for a model.
pub type TokenLimit = fn(model: &str, seconds: Option<f64>) -> u64;

/// A kind of medium.
pub struct MediaKind {
    /// Name in placeholders (`[image 1]`) and calls (`image=true`).
    pub name: &'static str,
    /// Plural in messages, which is also the field of an expansion: `images = ["photo"]`.
    pub plural: &'static str,
    /// Name with its article, for messages.
    pub noun: &'static str,
    /// Names of the formats that are sent, for messages.
    pub format_names: &'static str,
    /// Formats, by their first bytes.
    pub formats: &'static [MediaFormat],
    /// Maximum size of a medium that is sent, in bytes.
    pub max_bytes: u64,
    /// How to make a medium smaller, for messages.
    pub shrink_hint: &'static str,
    /// Checks a medium, and returns its duration in seconds if the kind has one. Fails with the
    /// reason why the medium cannot be sent.
    pub measure: fn(&MediaFormat, &[u8]) -> Result<Option<f64>, String>,
    /// Maximum number of tokens of a medium.
    pub max_tokens: TokenLimit,
    /// Whether providers bill the tokens at the price of recordings.
    pub is_billed_as_audio: bool,
    /// HTML element that shows the medium on the daemon's page.
    pub html_element: HtmlElement,
    /// Whether endpoints fetch media of this kind from a URL.
    pub is_fetched: bool,
    /// Providers whose API accepts media of this kind.
    pub providers: &'static [Provider],
    /// Returns the part of a message that contains the medium; `None` if the API has no such part.
    pub build_message_part: fn(Provider, &Medium) -> Option<Json>,
    /// Phrases in endpoints' error messages that mean that a model accepts no media of this kind.
    pub rejection_phrases: &'static [&'static str],
    /// Words in endpoints' error messages about a single medium.
    pub error_words: &'static [&'static str],
    /// Sentences of prompts.
    pub words: MediaWords,
}

/// HTML element that shows a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HtmlElement {
    /// Picture.
    Picture,
    /// Player with controls for sound.
    SoundPlayer,
}

/// A file format of a kind of medium.
pub struct MediaFormat {
    /// Name for messages.
    pub name: &'static str,
    /// MIME type.
    pub mime_type: &'static str,
    /// Whether APIs accept the format.
    pub is_sent: bool,
    /// Returns true if a file of this format can begin with these bytes.
    pub matches: fn(&[u8]) -> bool,
}

/// Sentences of prompts that show media.
#[derive(Debug, Clone, Copy)]
pub struct MediaWords {
    /// Task of a question about one medium.
    pub task: &'static str,
    /// Condition under which the answer is unknown.
    pub unknown: &'static str,
    /// Explains the placeholders of one row.
    pub numbered: &'static str,
    /// Explains the placeholders of a table.
    pub table: &'static str,
}

/// Sentences of prompts whose columns can contain media of every kind.
static ANY: MediaWords = MediaWords {
    task: "Answer the question about the attached file.",
    unknown: "if the file does not contain it",
    numbered: " [image 1], [audio 2] and so on are the files that follow, in this order.",
    table: "Where a row has [image 1], [audio 2] and so on, a file is attached to it: they follow the rows in this \
            order. Say what they show or contain.\n",
};

/// Returns all sentences that prompts can contain, one set for each kind and one for all kinds.
pub fn all_words() -> impl Iterator<Item = &'static MediaWords> {
    KINDS.iter().map(|kind| &kind.words).chain([&ANY])
}

impl PartialEq for MediaKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for MediaKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl std::fmt::Debug for MediaFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A medium that hqdl can send.
#[derive(Debug, Clone, Copy)]
pub struct MediaInfo {
    /// Kind.
    pub kind: &'static MediaKind,
    /// Duration in seconds, if the kind has one.
    pub seconds: Option<f64>,
}

/// Reason why hqdl cannot send the content of a value.
#[derive(Debug, Clone)]
pub enum Unusable {
    /// There are no bytes.
    Empty,
    /// The bytes are not in a known format.
    Unrecognized,
    /// The medium was recognized, but cannot be sent, for this reason.
    Refused(&'static MediaKind, String),
}

impl MediaInfo {
    /// Recognizes a medium by its bytes.
    ///
    /// # Errors
    /// [`Unusable`] if the medium cannot be sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unusable> {
        if bytes.is_empty() {
            return Err(Unusable::Empty);
        }
        let (kind, format) = find_format(bytes).ok_or(Unusable::Unrecognized)?;
        let refuse = |reason| Unusable::Refused(kind, reason);
        if bytes.len() as u64 > kind.max_bytes {
            return Err(refuse(kind.describe_size_limit("is larger than")));
        }
        if !format.is_sent {
            let MediaKind { format_names, .. } = kind;
            return Err(refuse(format!("is {}: convert it to {format_names}", format.name)));
        }
        let seconds = (kind.measure)(format, bytes).map_err(refuse)?;
        Ok(Self { kind, seconds })
    }

    /// Returns the maximum number of tokens for a model.
    #[must_use]
    pub fn max_tokens(&self, model: &str) -> u64 {
        (self.kind.max_tokens)(model, self.seconds)
    }
}

impl MediaKind {
    /// Returns the reason why a medium is too large; `comparison` is its beginning.
    fn describe_size_limit(&self, comparison: &str) -> String {
        let mebibytes = self.max_bytes >> 20;
        format!(
            "{comparison} {mebibytes} MiB, hqdl's limit for {}: {}",
            self.noun, self.shrink_hint
        )
    }
}

/// Returns the reason why a medium cannot be sent from a column. `declared` is the only kind that
/// the column may contain, if it is limited to one.
fn explain_refusal(
    found: &Result<MediaInfo, Unusable>,
    declared: Option<&MediaKind>,
) -> Option<String> {
    let is_declared = |kind: &MediaKind| declared.is_none_or(|declared| declared == kind);
    match (found, declared) {
        (Ok(info), _) if is_declared(info.kind) => None,
        (Err(Unusable::Empty), _) => Some("is empty: copy the file again".to_owned()),
        (Err(Unusable::Refused(kind, reason)), _) if is_declared(kind) => Some(reason.clone()),
        (Ok(MediaInfo { kind, .. }) | Err(Unusable::Refused(kind, _)), Some(declared)) => {
            Some(format!(
                "is {}, not {}: write `media` instead of `{}`, to accept every kind",
                kind.noun, declared.noun, declared.plural
            ))
        }
        (_, Some(declared)) => {
            Some(format!("is not {} ({}): convert it", declared.noun, declared.format_names))
        }
        (_, None) => {
            let formats = KINDS.map(|kind| format!("{} ({})", kind.noun, kind.format_names));
            Some(format!("is not {}: convert it", formats.join(" or ")))
        }
    }
}

/// Returns the kind and the format of a medium by its first bytes.
fn find_format(bytes: &[u8]) -> Option<(&'static MediaKind, &'static MediaFormat)> {
    let formats = |kind: &'static MediaKind| kind.formats.iter().map(move |format| (kind, format));
    KINDS.into_iter().flat_map(formats).find(|(_, format)| (format.matches)(bytes))
}

/// Returns the kind of a BLOB by its first bytes; `None` if it is no medium.
#[must_use]
pub fn find_blob_kind(bytes: &[u8]) -> Option<&'static MediaKind> {
    find_format(bytes).map(|(kind, _)| kind)
}

/// Returns the kind of a data URL by its MIME type; `None` for any other text.
#[must_use]
pub fn find_data_url_kind(text: &[u8]) -> Option<&'static MediaKind> {
    let header = text.get(..MAX_HEADER_BYTES).unwrap_or(text);
    let (header, _) = std::str::from_utf8(header).ok()?.split_once(";base64,")?;
    let mime_type = header.get("data:".len()..).filter(|_| has_scheme(header, "data:"))?;
    KINDS.into_iter().find(|kind| {
        mime_type.split('/').next().is_some_and(|top| top.eq_ignore_ascii_case(kind.name))
    })
}

/// Returns the reason why hqdl does not send a value as text.
#[must_use]
pub fn explain_undeclared(kind: &MediaKind) -> String {
    format!("a value is {}; add {}=true to send it as one", kind.noun, kind.name)
}

/// Maximum length of the header of a data URL, in bytes.
const MAX_HEADER_BYTES: usize = 80;

fn has_scheme(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// A medium of a prompt.
#[derive(Clone)]
pub struct Medium {
    /// Identity of the medium in the prompt's hash.
    pub name: String,
    /// Kind and duration.
    pub info: MediaInfo,
    /// URL of the medium in the request; a data URL contains all of its bytes.
    pub url: String,
}

impl std::fmt::Debug for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Medium").field(&self.name).finish()
    }
}

impl Medium {
    /// Returns the text that marks the position of the `n`th medium of a prompt, counted from 1.
    #[must_use]
    pub fn placeholder(&self, n: usize) -> String {
        format_placeholder(self.info.kind, n)
    }

    /// Returns the MIME type and the base64 text of a data URL; `None` for another URL.
    #[must_use]
    pub fn data(&self) -> Option<(&str, &str)> {
        self.url.strip_prefix("data:")?.split_once(";base64,")
    }

    /// Returns the part of a message that contains the medium; `None` if the API has none.
    #[must_use]
    pub fn build_message_part(&self, provider: Provider) -> Option<Json> {
        (self.info.kind.build_message_part)(provider, self)
    }
}

fn format_placeholder(kind: &MediaKind, n: usize) -> String {
    format!("[{} {n}]", kind.name)
}

/// Returns the entry of a table whose name is the model's name or its prefix before a hyphen. The
/// first match applies.
fn find_by_model<T: Copy>(table: &[(&str, T)], model: &str) -> Option<T> {
    let name = model.rsplit('/').next().unwrap_or(model);
    let matches_name = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    table.iter().find(|(prefix, _)| matches_name(prefix)).map(|(_, entry)| *entry)
}
