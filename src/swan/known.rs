//! Faults of the `BlendSQL` queries that SWAN published in 2024 for its superhero
//! database: questions that no model can answer right, because the query asks
//! for something else than the gold.

/// Question, a piece of its published query, and what is wrong with it.
const FAULTS: [(&str, &str, &str); 3] = [
    (
        "superhero-00",
        "), WITH Splitter AS",
        "it is no SQL, since WITH stands a second time before the second of two common table \
         expressions",
    ),
    (
        "superhero-04",
        "more than 15 different powers?",
        "it asks about each hero, while the gold counts the powers of all heroes with one full \
         name together, as of Flash IV, Impulse and Kid Flash II",
    ),
    (
        "superhero-14",
        "SELECT superhero_name, COUNT(*) AS count FROM superhero AS T1 WHERE",
        "COUNT(*) in its first common table expression leaves one row, so that the second asks \
         about one hero; and the gold's percentage is of pairs of hero and power, not of heroes",
    ),
];

/// What is wrong with the query of a question, when it is the published one.
pub(super) fn fault(qid: &str, query: Option<&str>) -> Option<&'static str> {
    let query = query?.split_whitespace().collect::<Vec<_>>().join(" ");
    FAULTS.iter().find(|f| f.0 == qid && query.contains(f.1)).map(|f| f.2)
}
