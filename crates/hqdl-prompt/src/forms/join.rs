//! Form of a question about one value of a join: which values of a list match it.

use super::Intro;

/// Beginning of the system message.
pub(super) const INTRO: Intro = Intro {
    task: "List the options that go with the value under the condition.",
    unknown: "if you do not know",
};

/// Start of the question, which the condition of the join follows.
pub(super) const QUESTION: &str = "Which of the options go with the value? Condition: ";
