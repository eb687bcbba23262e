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
pub fn mislead(seed: u64, answer: &str, lies: &str, format: Format) -> (String, Json) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let (open, close) = TAGS[chance.usize(..TAGS.len())];
    let any_finish = [json!("stop"), json!("length"), Json::Null][chance.usize(..3)].clone();
    let stop = json!("stop");
    let name = format.name();
    match chance.u8(0..12) {
        0 => (format!("{open}\nLet me see.\n{lies}\n{close}\n\n{answer}"), stop),
        1 => (format!("{lies}\n{close}\n{answer}"), stop),
        2 => (format!("{open}\n{lies}\n"), any_finish),
        3 => (format!("{open}{lies}{close}\n{open}\n{lies}\n{close}\n{answer}"), stop),
        4 => (format!("Draft:\n```\n{lies}\n```\nCorrected:\n```\n{answer}\n```\n"), stop),
        5 => (format!("```{name}\n{answer}\n```\nOr else:\n```{name}\n{lies}\n```\n"), stop),
        6 => (cut(answer, &mut chance), [json!("length"), Json::Null][chance.usize(..2)].clone()),
        7 => {
            let whole = format!("{open}\n{lies}\n{close}\n{answer}");
            (cut(&whole, &mut chance), [json!("length"), Json::Null][chance.usize(..2)].clone())
        }
        8 => (beside(answer, lies, &mut chance), stop),
        9 => {
            let text = format!("```\n{lies}\n```\nCorrected:\n```\n{}", cut(answer, &mut chance));
            (text, [json!("length"), Json::Null][chance.usize(..2)].clone())
        }
        10 if format == Format::Json => {
            // At least two characters are needed to recognize the document.
            let begun = cut(answer, &mut chance);
            let second = if begun.len() < 2 { answer } else { &begun };
            (format!("{lies}\nCorrected: {second}"), json!("length"))
        }
        _ => (within(answer, lies, &mut chance), stop),
    }
}

/// Returns a random prefix of a text.
fn cut(text: &str, chance: &mut fastrand::Rng) -> String {
    let count = text.chars().count();
    text.chars().take(chance.usize(..count.max(1))).collect()
}

/// Returns the rows of a JSON answer, if it has any.
fn rows(answer: &str) -> Option<Vec<Json>> {
    let json: Json = serde_json::from_str(answer).ok()?;
    json["rows"].as_array().cloned()
}

/// Returns some of the right rows, with the lies in another member of the same object.
fn beside(answer: &str, lies: &str, chance: &mut fastrand::Rng) -> String {
    let (Some(mut right), Some(lies)) = (rows(answer), rows(lies)) else {
        return answer.to_owned();
    };
    right.truncate(chance.usize(..=right.len()));
    let (right, lies) = (Json::from(right), Json::from(lies));
    match chance.u8(0..3) {
        0 => format!("{{\"rows\":{right},\"rejected\":{lies}}}"),
        1 => format!("{{\"drafts\":{{\"rows\":{lies}}},\"rows\":{right}}}"),
        _ => json!({ "rows": right, "notes": lies.to_string() }).to_string(),
    }
}

/// Returns the right rows, one of which contains a text with unescaped rows.
fn within(answer: &str, lies: &str, chance: &mut fastrand::Rng) -> String {
    let (Some(right), Some(lies)) = (rows(answer), rows(lies)) else {
        return answer.to_owned();
    };
    let at = chance.usize(..=right.len());
    let broken = format!("{{\"row\":\"said \"{}\" once\"}}", text(&lies));
    let parts = [text(&right[..at]), broken, text(&right[at..])];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    format!("{{\"rows\":[{}]}}", parts.join(","))
}

/// Formats rows as the elements of an array.
fn text(rows: &[Json]) -> String {
    rows.iter().map(Json::to_string).collect::<Vec<_>>().join(",")
}
