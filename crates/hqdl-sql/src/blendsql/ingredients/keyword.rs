//! The arguments that are given by a keyword, as `BlendSQL` names them and as it once did.

use super::Ingredient;

/// What a keyword argument says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keyword {
    /// The question; of a join its criteria.
    Question,
    /// The value asked about.
    Value,
    /// Columns or rows for context.
    Context,
    /// The left column of a join.
    Left,
    /// The right column of a join.
    Right,
    /// What the answer is chosen from.
    Options,
    /// What the answer is read as.
    ReturnType,
    /// How many answers there may be.
    Quantifier,
    /// What the answer must match.
    Regex,
    /// How many values of the list are put before the model.
    Narrow,
    /// Which model is asked.
    Model,
    /// Whether the value is an image.
    Image,
    /// Answers to show the model as examples of their form.
    Examples,
    /// Whether the answer is to be a long one.
    Long,
    /// Rows to show the model as examples: a spec has them.
    Shots,
    /// Tunes `BlendSQL`'s own machinery; changes no result here, and is told.
    Tuning,
}

/// The keywords as they are and as they once were, and what each says.
pub(in crate::blendsql) const KEYWORDS: [(&str, Keyword); 36] = [
    ("question", Keyword::Question),
    ("join_criteria", Keyword::Question),
    ("value", Keyword::Value),
    ("values", Keyword::Value),
    ("context", Keyword::Context),
    ("left_on", Keyword::Left),
    ("right_on", Keyword::Right),
    ("options", Keyword::Options),
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
    ("max_tokens", Keyword::Tuning),
    ("model", Keyword::Model),
    ("image", Keyword::Image),
    ("context_formatter", Keyword::Tuning),
    ("list_options_in_prompt", Keyword::Tuning),
    ("options_searcher", Keyword::Tuning),
    ("context_searcher", Keyword::Tuning),
    ("enable_constrained_decoding", Keyword::Tuning),
    ("cascade_filter", Keyword::Tuning),
    ("enable_cascade_filter", Keyword::Tuning),
    ("searcher", Keyword::Tuning),
    ("long_answer", Keyword::Long),
    ("value_limit", Keyword::Tuning),
    ("table", Keyword::Tuning),
    ("sep", Keyword::Tuning),
];

/// Whether `[` after `keyword=` begins a list; where SQL is expected it begins
/// a quoted name.
pub(in crate::blendsql) fn takes_a_list(keyword: &str) -> bool {
    !matches!(
        find(keyword),
        Some(Keyword::Value | Keyword::Context | Keyword::Left | Keyword::Right)
    )
}

pub(in crate::blendsql) fn find(keyword: &str) -> Option<Keyword> {
    KEYWORDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(keyword)).map(|(_, what)| *what)
}

/// The arguments of an ingredient that change its answer, each by its first name.
pub(in crate::blendsql) fn listed(ingredient: &dyn Ingredient) -> String {
    let mut seen: Vec<Keyword> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (name, keyword) in KEYWORDS {
        // Examples are refused, whoever takes the argument.
        let told = !matches!(keyword, Keyword::Tuning | Keyword::Shots);
        if told && ingredient.takes(keyword) && !seen.contains(&keyword) {
            seen.push(keyword);
            names.push(name);
        }
    }
    names.join(", ")
}
