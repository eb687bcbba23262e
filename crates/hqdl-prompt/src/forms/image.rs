//! Form of a question about an image, which follows the messages.

use super::Intro;

/// Beginning of the system message.
pub(super) const INTRO: Intro = Intro {
    task: "Answer the question about the image.",
    unknown: "if the image does not show it",
};

/// Sentence about the images of a row, for a system message.
pub(super) const NUMBERED: &str =
    " [image 1], [image 2] and so on are the images that follow, in this order.";
