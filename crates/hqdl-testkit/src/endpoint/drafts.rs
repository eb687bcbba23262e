//! Completions that contain wrong answers besides the right ones: in reasoning, in a first draft,
//! next to the rows, or inside a broken text. Some completions are also truncated.

use hqdl_spec::Format;
use serde_json::{Value as Json, json};

/// Tags around reasoning.
const TAGS: [(&str, &str); 4] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
];

/// Returns a completion and its finish reason. The completion mixes `answer` and `lies`, which are
/// both complete answers. A careful parser never reads a lie as an answer.
pub fn mislead_parser(seed: u64, answer: &str, lies: &str, format: Format) -> (String, Json) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (open, close) = TAGS[random.usize(..TAGS.len())];
    let any_finish = [json!("stop"), json!("length"), Json::Null][random.usize(..3)].clone();
    let stop = json!("stop");
    let name = format.name();
    match random.u8(0..12) {
        0 => (format!("{open}\nLet me see.\n{lies}\n{close}\n\n{answer}"), stop),
        1 => (format!("{lies}\n{close}\n{answer}"), stop),
        2 => (format!("{open}\n{lies}\n"), any_finish),
        3 => (format!("{open}{lies}{close}\n{open}\n{lies}\n{close}\n{answer}"), stop),
        4 => (format!("Draft:\n```\n{lies}\n```\nCorrected:\n```\n{answer}\n```\n"), stop),
        5 => (format!("```{name}\n{answer}\n```\nOr else:\n```{name}\n{lies}\n```\n"), stop),
        6 => (
            random_prefix(answer, &mut random),
            [json!("length"), Json::Null][random.usize(..2)].clone(),
        ),
        7 => {
            let full_text = format!("{open}\n{lies}\n{close}\n{answer}");
            (
                random_prefix(&full_text, &mut random),
                [json!("length"), Json::Null][random.usize(..2)].clone(),
            )
        }
        8 => (lies_beside_rows(answer, lies, &mut random), stop),
        9 => {
            let text = format!(
                "```\n{lies}\n```\nCorrected:\n```\n{}",
                random_prefix(answer, &mut random)
            );
            (text, [json!("length"), Json::Null][random.usize(..2)].clone())
        }
        10 if format == Format::Json => {
            // At least two characters are needed to recognize the document.
            let prefix = random_prefix(answer, &mut random);
            let second = if prefix.len() < 2 { answer } else { &prefix };
            (format!("{lies}\nCorrected: {second}"), json!("length"))
        }
        _ => (lies_within_text(answer, lies, &mut random), stop),
    }
}

/// Returns a random prefix of a text.
fn random_prefix(text: &str, random: &mut fastrand::Rng) -> String {
    let count = text.chars().count();
    text.chars().take(random.usize(..count.max(1))).collect()
}

/// Returns the rows of a JSON answer, if it has any.
fn answer_rows(answer: &str) -> Option<Vec<Json>> {
    let json: Json = serde_json::from_str(answer).ok()?;
    json["rows"].as_array().cloned()
}

/// Returns some of the correct rows, with false ones in another member of the same object.
fn lies_beside_rows(answer: &str, lies: &str, random: &mut fastrand::Rng) -> String {
    let (Some(mut right), Some(lies)) = (answer_rows(answer), answer_rows(lies)) else {
        return answer.to_owned();
    };
    right.truncate(random.usize(..=right.len()));
    let (right, lies) = (Json::from(right), Json::from(lies));
    match random.u8(0..3) {
        0 => format!("{{\"rows\":{right},\"rejected\":{lies}}}"),
        1 => format!("{{\"drafts\":{{\"rows\":{lies}}},\"rows\":{right}}}"),
        _ => json!({ "rows": right, "notes": lies.to_string() }).to_string(),
    }
}

/// Returns the correct rows, one of which contains a text with unescaped rows.
fn lies_within_text(answer: &str, lies: &str, random: &mut fastrand::Rng) -> String {
    let (Some(right), Some(lies)) = (answer_rows(answer), answer_rows(lies)) else {
        return answer.to_owned();
    };
    let at = random.usize(..=right.len());
    let broken = format!("{{\"row\":\"said \"{}\" once\"}}", format_rows(&lies));
    let parts = [format_rows(&right[..at]), broken, format_rows(&right[at..])];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{{\"rows\":[{}]}}", parts.join(","))
}

/// Formats rows as the elements of an array.
fn format_rows(rows: &[Json]) -> String {
    rows.iter().map(Json::to_string).collect::<Vec<_>>().join(",")
}
