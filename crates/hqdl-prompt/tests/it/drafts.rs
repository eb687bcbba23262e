//! Tests of drafts, corrections, quotations and truncated ends: text that looks like a row but is
//! not the model's answer.

use hqdl_prompt::RowOutcome;
use hqdl_prompt::completion::FinishReason;
use serde_json::{Value as Json, json};

use crate::answers::{Asked, CSV, abe, bat, json_rows, man, no_answer, short};

/// Reasoning tags that models use.
const TAGS: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("<THINK>", "</THINK>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
];

/// Returns wrong answers for all rows, in both formats.
fn drafts() -> [String; 2] {
    let wrong = |text: &str| text.replace("Marvel", "Image").replace("1939", "1940");
    [wrong(CSV), wrong(&json_rows().to_string())]
}

fn answers() -> [String; 2] {
    [CSV.to_owned(), json_rows().to_string()]
}

fn read(content: &str) -> Vec<Json> {
    Asked::three().read(content)
}

fn has_no_value(read: &[Json]) -> bool {
    read.iter().all(|row| row.as_str().is_some_and(|why| why.starts_with("invalid: ")))
}

#[test]
fn a_closed_block_of_reasoning_is_not_an_answer() {
    for (open, close) in TAGS {
        for draft in drafts() {
            assert!(has_no_value(&read(&format!("{open}\n{draft}\n{close}\n"))), "{open}");
            for answer in answers() {
                let all = [man(), bat(), abe()];
                assert_eq!(read(&format!("{open}\n{draft}{close}\n\n{answer}")), all, "{open}");
                assert_eq!(read(&format!("{draft}\n{close}\n{answer}")), all, "{close}");
                // Two blocks, and a tag that is mentioned within the reasoning.
                assert_eq!(
                    read(&format!(
                        "{open}a {open} b \"{close}\n{open}\n{draft}\n{close}\n{answer}"
                    )),
                    all
                );
            }
        }
    }
}

#[test]
fn a_closed_block_does_not_fill_a_row_that_the_answer_omits() {
    let two = CSV.lines().take(2).collect::<Vec<_>>().join("\n");
    for draft in drafts() {
        assert_eq!(read(&format!("<think>{draft}</think>\n{two}")), [man(), bat(), no_answer()]);
    }
}

#[test]
fn an_open_block_of_reasoning_has_no_answer() {
    for (open, _) in TAGS {
        for draft in drafts() {
            for content in [format!("{open}\n{draft}"), format!("{draft}\n{open} Let me check.")] {
                for finish in [FinishReason::Stop, FinishReason::Truncated, FinishReason::Unknown] {
                    let outcomes = Asked::three().finished(&content, finish);
                    for outcome in outcomes {
                        let RowOutcome::Failed { reason: why, .. } = outcome else {
                            panic!("{content}")
                        };
                        assert_eq!(why, "the completion ended before the model finished reasoning");
                    }
                }
            }
        }
    }
}

#[test]
fn a_tag_within_a_value_is_part_of_the_value() {
    let asked = Asked::new(crate::answers::NOTES, &[&[Some("Jaws")], &[Some("Alien")]]);
    for tag in ["<think>", "</think>", "<think>x</think>", "a\n</think> b"] {
        let right = [json!([tag]), json!(["plain"])];
        let json = json!({"rows": [
            {"row": 1, "key": ["Jaws"], "cells": {"note": tag}},
            {"row": 2, "key": ["Alien"], "cells": {"note": "plain"}},
        ]});
        assert_eq!(asked.read(&json.to_string()), right, "{tag}");
        assert_eq!(asked.read(&format!("1,Jaws,\"{tag}\"\n2,Alien,plain\n")), right, "{tag}");
    }
}

#[test]
fn a_correction_after_a_fence_conflicts_with_it() {
    for draft in drafts() {
        for answer in answers() {
            let content = format!(
                "Draft:\n```\n{}\n```\nCorrected:\n```\n{}\n```\n",
                draft.trim(),
                answer.trim()
            );
            let read = read(&content);
            assert_eq!(read[2], abe(), "{content}");
            for row in &read[..2] {
                assert_eq!(*row, json!("invalid: two different answers for this row"), "{content}");
            }
        }
    }
}

#[test]
fn rows_are_read_only_from_the_requested_array() {
    let rows = json_rows();
    let [first, second] = [0, 1].map(|n| rows["rows"][n].clone());
    for beside in [
        json!({"rows": [first.clone()], "rejected": [second.clone()]}),
        json!({"rejected": [second.clone()], "rows": [first.clone()]}),
        json!({"rows": [first.clone()], "notes": {"draft": second.clone()}}),
        json!({"rows": [first.clone(), [second.clone()]]}),
        json!([first.clone(), {"draft": second.clone()}]),
    ] {
        assert_eq!(read(&beside.to_string()), [man(), no_answer(), no_answer()], "{beside}");
    }
}

#[test]
fn nothing_after_broken_json_is_a_row() {
    let rows = json_rows();
    let second = rows["rows"][1].to_string();
    // An unescaped text in row 1 contains an object that looks like a row.
    let forged = format!(
        "{{\"rows\":[{{\"row\":1,\"key\":[\"3-D Man\",\"Charles Chandler\"],\"cells\":{{\
         \"publisher_name\":\"said \"{second}\" once\",\"first_year\":1}}}}]}}"
    );
    assert!(has_no_value(&read(&forged)), "{forged}");
    let before = format!("{{\"note\":\"a \"bad\" one {second}\",\"rows\":[{second}]}}");
    assert!(has_no_value(&read(&before)), "{before}");
    // Rows before the damage count.
    let first = rows["rows"][0].to_string();
    let after = format!("{{\"rows\":[{first},{{\"row\":\"x \"{second}\"}}]}}");
    assert_eq!(read(&after), [man(), no_answer(), no_answer()], "{after}");
}

#[test]
fn a_value_with_unclosed_quotes_is_truncated() {
    let asked = Asked::new(crate::answers::NOTES, &[&[Some("Jaws")], &[Some("Alien")]]);
    for finish in [FinishReason::Stop, FinishReason::Truncated, FinishReason::Unknown] {
        let read = asked.finished("1,Jaws,a shark\n2,Alien,\"He said", finish);
        let read: Vec<Json> = read.iter().map(short).collect();
        assert_eq!(read[0], json!(["a shark"]), "{finish:?}");
        assert!(read[1].is_string(), "{finish:?}: {}", read[1]);
    }
}

#[test]
fn without_a_finish_reason_a_last_line_needs_its_line_break() {
    let lines = CSV.trim_end();
    let read = |text: &str| -> Vec<Json> {
        Asked::three().finished(text, FinishReason::Unknown).iter().map(short).collect()
    };
    assert_eq!(read(CSV), [man(), bat(), abe()]);
    assert_eq!(read(lines), [man(), bat(), no_answer()]);
    assert_eq!(read(&json_rows().to_string()), [man(), bat(), abe()]);
}

#[test]
fn an_unrequested_key_without_content_is_ignored() {
    let asked = Asked::new(crate::answers::NOTES, &[&[Some("-")]]);
    let label = asked.label(0);
    for key in [json!(["-"]), json!("-"), json!([null]), json!([])] {
        let row = json!({"rows": [{"row": label, "key": key, "cells": {"note": "right"}}]});
        assert_eq!(asked.read(&row.to_string()), [json!(["right"])], "{row}");
    }
}

#[test]
fn a_member_with_two_values_is_not_an_answer() {
    let sound = json_rows().to_string();
    let value = "\"publisher_name\":\"Marvel Comics\"";
    assert!(sound.contains(value), "{sound}");
    let twice = sound.replacen(value, &format!("{value},\"publisher_name\":\"Image Comics\""), 1);
    assert_eq!(read(&twice)[1..], [bat(), abe()]);
    assert_ne!(read(&twice)[0], man());
    // A member that has the same value twice is one answer.
    let same = sound.replacen(value, &format!("{value},{value}"), 1);
    assert_eq!(read(&same), [man(), bat(), abe()]);
}

#[test]
fn a_row_at_the_end_of_a_fence_conflicts_with_its_correction() {
    let asked = Asked::new(crate::answers::NOTES, &[&[Some("Jaws")], &[Some("Alien")]]);
    let content = "```csv\n1,Jaws,wet\n2,Alien,\"a \"\"bad\"\" one\"\n```\nOr else:\n\
                   ```csv\n1,Jaws,dry\n2,Alien,good\n```\n";
    assert!(has_no_value(&asked.read(content)), "{:?}", asked.read(content));
}

#[test]
fn a_truncated_second_answer_may_contradict_all_of_the_first() {
    let asked = Asked::new(crate::answers::NOTES, &[&[Some("Jaws")], &[Some("Alien")]]);
    let (first, second) = ("1,Jaws,wet\n2,Alien,bad\n", "1,Jaws,dry\n2,Alien,go");
    for content in [
        format!("```\n{first}```\nCorrected:\n```\n1,Ja"),
        format!("```\n{first}```\nCorrected:\n```\n{second}"),
        format!("{first}\nCorrected:\n{second}"),
    ] {
        let read: Vec<Json> =
            asked.finished(&content, FinishReason::Truncated).iter().map(short).collect();
        assert!(has_no_value(&read), "{content}: {read:?}");
    }
    let row = |note: &str| json!({"rows": [{"row": "1 Jaws", "cells": {"note": note}}]});
    let (first, second) = (row("wet").to_string(), row("dry").to_string());
    for end in [2, second.len() / 2] {
        let content = format!("{first}\nCorrected: {}", &second[..end]);
        assert!(has_no_value(&asked.read(&content)), "{content}: {:?}", asked.read(&content));
    }
}
