//! A question about one value of a join: which values of a list are its partners.

use super::Intro;

/// What the model is asked to do.
pub(super) const INTRO: Intro = Intro {
    task: "List the options that go with the value under the condition.",
    unknown: "if you do not know",
};

/// How the question begins; the condition of the join follows.
pub(super) const QUESTION: &str = "Which of the options go with the value? Condition: ";
