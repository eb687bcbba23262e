//! Detection of yes-or-no questions, and parsing of their answers.

/// Default texts for yes and no.
pub const DEFAULT_ANSWERS: [&str; 2] = ["Yes", "No"];

/// Words that a yes-or-no question can begin with.
const OPENING_WORDS: [&str; 29] = [
    "am", "are", "aren't", "can", "can't", "could", "did", "didn't", "do", "does", "doesn't",
    "don't", "had", "has", "hasn't", "have", "haven't", "is", "isn't", "may", "might", "must",
    "shall", "should", "was", "were", "will", "won't", "would",
];

/// Returns true if the first word makes the question a yes-or-no question.
#[must_use]
pub fn is_yes_no_question(question: &str) -> bool {
    let first = question.split_whitespace().next().unwrap_or_default().to_lowercase();
    OPENING_WORDS.contains(&first.replace('\u{2019}', "'").trim_end_matches([',', ':']))
}

/// Returns true if the question may offer alternatives: "is it loud or quiet?"
#[must_use]
pub fn may_offer_alternatives(question: &str) -> bool {
    question.split_whitespace().any(|word| word.eq_ignore_ascii_case("or"))
}

/// Parses an answer to a yes-or-no question, or returns `None` for any other text.
#[must_use]
pub fn parse_answer(text: &str) -> Option<bool> {
    match text.trim().trim_end_matches(['.', '!']).to_lowercase().as_str() {
        "yes" | "y" | "true" | "t" => Some(true),
        "no" | "n" | "false" | "f" => Some(false),
        _ => None,
    }
}
