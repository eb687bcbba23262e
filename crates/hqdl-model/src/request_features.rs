//! Optional features of requests, apart from the messages. If the endpoint rejects a feature, hqdl
//! omits it and remembers this for a day.

use serde_json::{Value as Json, json};

use super::ModelError;
use super::providers::{NEW_LIMIT_NAME, OLD_LIMIT_NAME, PromptCaching};
use hqdl_spec::media::{KINDS, MediaKind};

/// Phrases in an error that rejects a parameter regardless of its value.
const REJECTION_PHRASES: [&str; 12] = [
    "support",
    "unknown",
    "unrecognized",
    "unexpected",
    "not permitted",
    "not allowed",
    "not accepted",
    "may only be",
    "deprecated",
    "extra inputs",
    "extra fields",
    "invalid parameter",
];
/// Phrases in an error about the value of a parameter.
const VALUE_PHRASES: [&str; 7] =
    ["too large", "too high", "at most", "exceed", "greater than", "less than", "must be"];

/// How a request passes the schema of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaForm {
    /// As structured output.
    Native,
    /// As the arguments of a tool that the model must call.
    Tool,
    /// Not at all.
    None,
}

/// How to recognize that an endpoint rejects a form of the schema, and how to continue.
pub(super) struct SchemaRejection {
    /// Words that refer to the schema; the first one is the name of its field.
    pub(super) words: &'static [&'static str],
    /// The form to try next.
    pub(super) next: SchemaForm,
}

impl SchemaForm {
    fn to_json(self) -> Json {
        match self {
            Self::Native => true.into(),
            Self::Tool => "tool".into(),
            Self::None => false.into(),
        }
    }

    fn from_json(json: &Json) -> Option<Self> {
        let all = [Self::Native, Self::Tool, Self::None];
        all.into_iter().find(|form| form.to_json() == *json)
    }
}

/// Features of the requests to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestFeatures {
    /// Name of the parameter for the output limit, and whether it is the last name to try. `None`
    /// if the protocol has only one name, or if the endpoint accepts neither.
    pub(super) limit_name: Option<(&'static str, bool)>,
    /// Whether the endpoint accepts a temperature.
    pub(super) temperature: bool,
    pub(super) schema: SchemaForm,
    /// Whether answers are streamed.
    pub(super) stream: bool,
    /// Whether the model accepts media, by their kinds in [`KINDS`]. If not, questions about media
    /// of this kind fail.
    pub(super) media: [bool; KINDS.len()],
    /// Whether the endpoint accepts requests for log-probabilities.
    pub(super) logprobs: bool,
    pub(super) caching: PromptCaching,
}

impl RequestFeatures {
    /// Returns the features for an endpoint that has rejected none.
    pub(super) fn new(caching: PromptCaching) -> Self {
        Self {
            limit_name: None,
            temperature: true,
            schema: SchemaForm::Native,
            stream: true,
            media: [true; KINDS.len()],
            logprobs: true,
            caching,
        }
    }

    /// Returns the features for a model that accepts no media of a kind.
    pub(super) fn without_media(self, kind: &MediaKind) -> Self {
        let accepts = |n: usize| self.media[n] && KINDS[n] != kind;
        Self { media: std::array::from_fn(accepts), ..self }
    }

    /// Returns true if the model accepts media of a kind, as far as known.
    pub(super) fn accepts_media(self, kind: &MediaKind) -> bool {
        KINDS.iter().zip(self.media).any(|(known, accepts)| *known == kind && accepts)
    }

    /// Returns the features without the temperature.
    pub(super) fn without_temperature(self) -> Self {
        Self { temperature: false, ..self }
    }

    /// Converts the features to the JSON that the history stores.
    pub(super) fn to_json(self) -> Json {
        let mut json = json!({
            "cap": self.limit_name.map(|(name, _)| name), "last": self.limit_name.is_some_and(|(_, last)| last),
            "temperature": self.temperature, "schema": self.schema.to_json(), "stream": self.stream,
            "logprobs": self.logprobs, "cache_breakpoint": self.caching.breakpoint.is_some(), "cache_key": self.caching.key,
        });
        for (kind, accepts) in KINDS.iter().zip(self.media) {
            json[kind.plural] = accepts.into();
        }
        json
    }

    /// Parses stored features of an endpoint whose initial features are `initial`; `None` if they
    /// are invalid.
    pub(super) fn from_json(json: &Json, initial: Self) -> Option<Self> {
        let PromptCaching { breakpoint, key } = initial.caching;
        let flag = |name: &str| json.get(name)?.as_bool();
        let is_last_name = flag("last")?;
        let limit_name = match json.get("cap")? {
            Json::Null => None,
            name => Some((
                *[NEW_LIMIT_NAME, OLD_LIMIT_NAME]
                    .iter()
                    .find(|limit_name| *name == **limit_name)?,
                is_last_name,
            )),
        };
        Some(Self {
            limit_name,
            temperature: flag("temperature")?,
            schema: SchemaForm::from_json(json.get("schema")?)?,
            stream: flag("stream")?,
            // Features stored before hqdl supported a kind lack its field.
            media: KINDS.map(|kind| flag(kind.plural).unwrap_or(true)),
            // Features stored before hqdl supported log-probabilities lack this field.
            logprobs: flag("logprobs").unwrap_or(true),
            // Features stored before hqdl supported prompt caching lack this field.
            caching: PromptCaching {
                breakpoint: breakpoint.filter(|_| flag("cache_breakpoint").unwrap_or(true)),
                key: key && flag("cache_key").unwrap_or(true),
            },
        })
    }

    /// Returns the features without the one that the error names, and a warning for the user.
    /// Returns `None` if the error names no optional feature.
    pub(super) fn without_rejected_feature(
        self,
        error: &ModelError,
        schema_rejection: impl Fn(SchemaForm) -> SchemaRejection,
    ) -> Option<(Self, String)> {
        let ModelError::Refused { status, message, .. } = error else { return None };
        let lower = message.to_lowercase();
        let names = |word: &str| {
            let is_word_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
            lower.split(|c| !is_word_char(c)).any(|w| w == word)
        };
        let any = |words: &[&str]| words.iter().any(|w| lower.contains(w));
        let is_rejection = any(&REJECTION_PHRASES) && !any(&VALUE_PHRASES);
        let without = |what: &str, form| Some((form, format!("{what}; hqdl retries without it")));
        // Some models reject log-probabilities with 403, although they answer without them.
        let is_logprobs = names("logprobs")
            || names("top_logprobs")
            || is_rejection && any(&["'include", "(include", "`include"]);
        if let (400 | 403 | 422, true) = (status, self.logprobs && is_logprobs) {
            let what = "the endpoint rejects token log-probabilities";
            return without(what, Self { logprobs: false, ..self });
        }
        if let 400 | 422 = status {
            if self.schema != SchemaForm::None && any(schema_rejection(self.schema).words) {
                return Some(self.without_schema_form(&schema_rejection(self.schema)));
            }
            if let Some((limit_name, is_last_name)) =
                self.limit_name.filter(|(cap, _)| is_rejection && names(cap))
            {
                let other =
                    if limit_name == NEW_LIMIT_NAME { OLD_LIMIT_NAME } else { NEW_LIMIT_NAME };
                let next = (!is_last_name).then_some((other, true));
                let instead = if is_last_name {
                    "without".to_owned()
                } else {
                    format!("with `{other}` instead")
                };
                let warning =
                    format!("the endpoint rejects `{limit_name}`; hqdl retries {instead}");
                return Some((Self { limit_name: next, ..self }, warning));
            }
            if self.temperature && is_rejection && names("temperature") {
                let warning = "the endpoint rejects this `temperature`";
                return without(warning, self.without_temperature());
            }
            if let Some(rejected) = self.without_rejected_caching(names) {
                return Some(rejected);
            }
        }
        if let (400..=499 | 501, true) = (status, self.stream) {
            // A stream must report its usage at the end, so disable streaming entirely.
            if ["stream", "streaming", "stream_options"].into_iter().any(names) {
                return without("the endpoint cannot stream", Self { stream: false, ..self });
            }
        }
        None
    }

    /// Returns the features with the next form of the schema, and a warning for the user.
    fn without_schema_form(self, rejection: &SchemaRejection) -> (Self, String) {
        let schema = rejection.next;
        let instead = if schema == SchemaForm::Tool { "with a tool instead" } else { "without it" };
        let name = rejection.words.first().copied().unwrap_or_default();
        let warning = format!("the endpoint rejects `{name}`; hqdl retries {instead}");
        (Self { schema, ..self }, warning)
    }

    /// Returns the features without the prompt-caching field that the error names, and a warning
    /// for the user.
    fn without_rejected_caching(self, names: impl Fn(&str) -> bool) -> Option<(Self, String)> {
        const BREAKPOINT: [&str; 3] =
            ["cache_control", "prompt_cache_breakpoint", "prompt_cache_options"];
        // A message with a breakpoint consists of a list of parts, which some endpoints reject.
        let rejects_parts = names("content") && (names("string") || names("array"));
        let PromptCaching { breakpoint, key } = self.caching;
        let (caching, what) = if key && names("prompt_cache_key") {
            (PromptCaching { breakpoint, key: false }, "`prompt_cache_key`")
        } else if breakpoint.is_some() && (rejects_parts || BREAKPOINT.into_iter().any(&names)) {
            (PromptCaching { breakpoint: None, key }, "a cache breakpoint")
        } else {
            return None;
        };
        let warning = format!("the endpoint rejects {what}; hqdl retries without it");
        Some((Self { caching, ..self }, warning))
    }
}
