//! Keyword arguments, with `BlendSQL`'s current and former names.

use super::Ingredient;

impl Keyword {
    /// Returns true if only joins accept the keyword.
    #[must_use]
    pub fn is_join_only(self) -> bool {
        matches!(
            self,
            Self::Left | Self::Right | Self::Narrow | Self::Block | Self::Threshold | Self::Exact
        )
    }
}

/// Meaning of a keyword argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyword {
    /// The question, or the criteria of a join.
    Question,
    /// The value asked about.
    Value,
    /// Context columns or rows.
    Context,
    /// Left column of a join.
    Left,
    /// Right column of a join.
    Right,
    /// Options that the answer is chosen from.
    Options,
    /// Type of the answer.
    ReturnType,
    /// Allowed number of answers.
    Quantifier,
    /// Regular expression that the answer must match.
    Regex,
    /// Number of candidate values that the model sees.
    Narrow,
    /// Model to use.
    Model,
    /// Whether the value is a medium, such as an image or a recording.
    Media,
    /// Example answers for the prompt.
    Examples,
    /// Example values with their answers for the prompt.
    AnsweredExamples,
    /// Similarity by which a join selects the pairs that it asks about.
    Block,
    /// Minimum similarity of the pairs that a join asks about.
    Threshold,
    /// Whether a join asks about all pairs.
    Exact,
    /// Whether to ask for a long answer.
    LongAnswer,
    /// Example rows for the prompt; only a spec can have them.
    Shots,
    /// Tuning argument of `BlendSQL` that has no effect here; hqdl prints a note.
    Tuning,
}

/// Keyword with the list that an answer is chosen from.
pub const OPTIONS: &str = "options";

/// Keywords that declare a medium: one per kind, and `media` for every kind.
pub const MEDIA_KEYWORDS: [&str; 3] = ["image", "audio", "media"];

/// Names of the kinds of media.
pub const MEDIA_KINDS: &[&str] = MEDIA_KEYWORDS.split_last().expect("`media`").1;

/// Current and former keywords with their meaning.
pub(in crate::blendsql) const KEYWORDS: [(&str, Keyword); 39 + MEDIA_KEYWORDS.len()] = [
    ("question", Keyword::Question),
    ("join_criteria", Keyword::Question),
    ("value", Keyword::Value),
    ("values", Keyword::Value),
    ("context", Keyword::Context),
    ("left_on", Keyword::Left),
    ("right_on", Keyword::Right),
    (OPTIONS, Keyword::Options),
    ("return_type", Keyword::ReturnType),
    ("output_type", Keyword::ReturnType),
    ("quantifier", Keyword::Quantifier),
    ("modifier", Keyword::Quantifier),
    ("regex", Keyword::Regex),
    ("pattern", Keyword::Regex),
    ("limit", Keyword::Tuning),
    ("narrow", Keyword::Narrow),
    ("batch_size", Keyword::Tuning),
    ("few_shot_examples", Keyword::Shots),
    ("few_shot", Keyword::Shots),
    ("num_few_shot_examples", Keyword::Shots),
    ("example_outputs", Keyword::Examples),
    ("examples", Keyword::AnsweredExamples),
    ("block", Keyword::Block),
    ("threshold", Keyword::Threshold),
    ("exact", Keyword::Exact),
    ("max_tokens", Keyword::Tuning),
    ("model", Keyword::Model),
    (MEDIA_KEYWORDS[0], Keyword::Media),
    (MEDIA_KEYWORDS[1], Keyword::Media),
    (MEDIA_KEYWORDS[2], Keyword::Media),
    ("context_formatter", Keyword::Tuning),
    ("list_options_in_prompt", Keyword::Tuning),
    ("options_searcher", Keyword::Options),
    ("context_searcher", Keyword::Context),
    ("enable_constrained_decoding", Keyword::Tuning),
    ("cascade_filter", Keyword::Tuning),
    ("enable_cascade_filter", Keyword::Tuning),
    ("searcher", Keyword::Tuning),
    ("long_answer", Keyword::LongAnswer),
    ("value_limit", Keyword::Tuning),
    ("table", Keyword::Tuning),
    ("sep", Keyword::Tuning),
];

/// Returns true if `[` after `keyword=` begins a list. In an SQL argument, `[` begins a quoted
/// identifier instead. Keywords that exist only for macros may take SQL arguments.
pub(in crate::blendsql) fn accepts_list(keyword: &str, is_macro: bool) -> bool {
    match find_keyword(keyword) {
        Some(Keyword::Value | Keyword::Context | Keyword::Left | Keyword::Right) => false,
        Some(_) => true,
        None => !is_macro,
    }
}

pub(in crate::blendsql) fn find_keyword(keyword: &str) -> Option<Keyword> {
    KEYWORDS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(keyword))
        .map(|(_, meaning)| *meaning)
}

/// Returns the keywords that have an effect on the ingredient. Only the first of several synonyms
/// is listed, except for media, where each keyword names a kind.
pub(in crate::blendsql) fn list_accepted_names(ingredient: &dyn Ingredient) -> String {
    let mut seen: Vec<Keyword> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (name, keyword) in KEYWORDS {
        // `shots` is always rejected, even if the ingredient accepts the keyword.
        let is_effective = !matches!(keyword, Keyword::Tuning | Keyword::Shots);
        if is_effective
            && ingredient.accepts_keyword(keyword)
            && (keyword == Keyword::Media || !seen.contains(&keyword))
        {
            seen.push(keyword);
            names.push(name);
        }
    }
    names.join(", ")
}
