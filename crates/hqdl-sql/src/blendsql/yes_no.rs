//! Questions that are answered by yes or no, and the words these are said in.

/// How yes and no are spelled where a query does not say.
pub const SPELLED: [&str; 2] = ["Yes", "No"];

/// Words that a question for yes or no begins with.
const OPENING: [&str; 29] = [
    "am", "are", "aren't", "can", "can't", "could", "did", "didn't", "do", "does", "doesn't",
    "don't", "had", "has", "hasn't", "have", "haven't", "is", "isn't", "may", "might", "must",
    "shall", "should", "was", "were", "will", "won't", "would",
];

/// Whether a question asks for yes or no, by its first word.
#[must_use]
pub fn asks(question: &str) -> bool {
    let first = question.split_whitespace().next().unwrap_or_default().to_lowercase();
    OPENING.contains(&first.replace('\u{2019}', "'").trim_end_matches([',', ':']))
}

/// Whether it may ask which of two things holds: "is it loud or quiet?"
#[must_use]
pub fn offers_a_choice(question: &str) -> bool {
    question.split_whitespace().any(|word| word.eq_ignore_ascii_case("or"))
}

/// What a word for yes or no means.
#[must_use]
pub fn meaning(text: &str) -> Option<bool> {
    match text.trim().trim_end_matches(['.', '!']).to_lowercase().as_str() {
        "yes" | "y" | "true" | "t" => Some(true),
        "no" | "n" | "false" | "f" => Some(false),
        _ => None,
    }
}
