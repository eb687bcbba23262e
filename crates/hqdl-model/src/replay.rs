//! Recordings: completions stored before, replayed offline. They take the very
//! same way as live ones: what a recording says is read, checked and kept as
//! an endpoint's words would be.
//!
//! A recording is JSON lines, plain or .gz, of any of these shapes:
//!
//! * a row completion `{"keys": […], "content": "…", "prompt_tokens": n, "completion_tokens": n}`:
//!   what a model wrote when it was asked about one row;
//! * a fact `{"question": "…", "value": "…", "answer": …}`: the question is a
//!   column's name, description or question, the value the key as text;
//! * an output line of the `OpenAI` Batch API, whose `custom_id` is the prompt's hash.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::reply::SaidTokens;
use super::{Model, ModelError, Reply, ReplyFuture, SetupError, reply};
use hqdl_prompt::{AskedRow, Prompt, Question};
use hqdl_spec::Format;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::value::Value;

/// Recorded completions.
pub struct Recordings {
    name: String,
    /// By the key of the row, canonical.
    rows: HashMap<String, Reply>,
    /// By question and value, both normalised.
    facts: HashMap<(String, String), Json>,
    /// By the hash of the prompt.
    prompts: HashMap<String, Reply>,
}

impl Recordings {
    /// Reads recordings. Their content is part of the model's name, so that
    /// the facts of one recording are never taken for another's.
    ///
    /// # Errors
    /// [`SetupError::Recording`] with file and line.
    pub fn open(name: &str, paths: &[PathBuf]) -> Result<Self, SetupError> {
        let mut recordings = Self {
            name: String::new(),
            rows: HashMap::new(),
            facts: HashMap::new(),
            prompts: HashMap::new(),
        };
        let mut hasher = blake3::Hasher::new();
        for path in paths {
            recordings.read(path, &mut hasher)?;
        }
        recordings.name =
            format!("{name} (recording {})", &hasher.finalize().to_hex().as_str()[..8]);
        Ok(recordings)
    }

    /// Says that a question asks for a column, so that facts recorded under the
    /// question are found by the column's name.
    pub fn means(&mut self, question: &str, column: &str) {
        let (question, column) = (normal(question), normal(column));
        let found: Vec<_> = self
            .facts
            .iter()
            .filter(|((q, _), _)| *q == question)
            .map(|((_, value), answer)| (value.clone(), answer.clone()))
            .collect();
        for (value, answer) in found {
            self.facts.entry((column.clone(), value)).or_insert(answer);
        }
    }

    fn read(&mut self, path: &Path, hasher: &mut blake3::Hasher) -> Result<(), SetupError> {
        let bad = |line: usize, message: String| SetupError::Recording {
            path: path.display().to_string(),
            line,
            message,
        };
        let file = std::fs::File::open(path).map_err(|e| bad(0, e.to_string()))?;
        let reader: Box<dyn Read> = if path.extension().is_some_and(|e| e == "gz") {
            Box::new(flate2::read::MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        for (n, line) in BufReader::new(reader).lines().enumerate() {
            let line = line.map_err(|e| bad(n + 1, e.to_string()))?;
            hasher.update(line.as_bytes());
            if line.trim().is_empty() {
                continue;
            }
            let json: Json =
                serde_json::from_str(&line).map_err(|e| bad(n + 1, format!("not JSON: {e}")))?;
            self.take(&json).map_err(|message| bad(n + 1, message))?;
        }
        Ok(())
    }

    fn take(&mut self, json: &Json) -> Result<(), String> {
        if let Some(keys) = json.get("keys").and_then(Json::as_array) {
            let content = json
                .get("content")
                .and_then(Json::as_str)
                .ok_or("`content` is missing or not text")?;
            let said = SaidTokens::read(json);
            let reply = Reply { content: content.to_owned(), said, ..Reply::default() };
            self.rows.insert(canonical(keys), reply);
        } else if let Some(question) = json.get("question").and_then(Json::as_str) {
            let value = json.get("value").ok_or("`value` is missing")?;
            let answer = json.get("answer").ok_or("`answer` is missing")?;
            let value = Value::from_json(value).to_string();
            self.facts.insert((normal(question), normal(&value)), answer.clone());
        } else if let Some(id) = json.get("custom_id").and_then(Json::as_str) {
            match json.pointer("/response/body") {
                Some(body)
                    if json.pointer("/response/status_code").and_then(Json::as_u64)
                        == Some(200) =>
                {
                    let reply = reply::read(body).map_err(|e| e.to_string())?;
                    self.prompts.insert(id.to_owned(), reply);
                }
                // A request that failed then has no completion to replay.
                _ => {}
            }
        } else {
            return Err("neither a row completion, a fact nor a batch output line".to_owned());
        }
        Ok(())
    }

    fn reply(&self, prompt: &Prompt) -> Result<Reply, ModelError> {
        if !self.prompts.is_empty() {
            let hashes = [Some(prompt.hash()), prompt.with_keys.clone()];
            if let Some(reply) = hashes.iter().flatten().find_map(|h| self.prompts.get(h)) {
                return Ok(reply.clone());
            }
        }
        let question = Question::read(&prompt.system, &prompt.user)
            .ok_or_else(|| ModelError::NoAnswer("the prompt cannot be read back".to_owned()))?;
        if let [row] = question.rows.as_slice()
            && let Some(reply) = self.rows.get(&canonical(&with_images(row, prompt).key))
        {
            return Ok(reply.clone());
        }
        let mut rows = Vec::new();
        for row in &question.rows {
            let value = normal(&with_images(row, prompt).key_text());
            let mut cells = serde_json::Map::new();
            for column in &question.columns {
                let names = [normal(&column.name), normal(&column.about)];
                let fact = names.into_iter().find_map(|q| self.facts.get(&(q, value.clone())));
                if let Some(fact) = fact {
                    cells.insert(column.name.clone(), fact.clone());
                }
            }
            if !cells.is_empty() {
                rows.push(json!({ "row": row.number, "key": row.key, "cells": cells }));
            }
        }
        if rows.is_empty() {
            return Err(ModelError::NoAnswer("the recordings hold no answer to this".to_owned()));
        }
        let content = json!({ "rows": rows }).to_string();
        // A fact says nothing of tokens, and nothing is paid for them: an estimate will do.
        let estimate = |text: &str| Tokenizer::Estimate.count(text);
        let said = SaidTokens {
            input: Some(estimate(&prompt.system) + estimate(&prompt.user)),
            output: Some(estimate(&content)),
            ..SaidTokens::default()
        };
        Ok(Reply { content, partial: true, said, ..Reply::default() })
    }
}

impl Model for Recordings {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(std::future::ready(self.reply(prompt)))
    }

    /// A row completion answers a request for one row.
    fn rows_at_most(&self) -> Option<u32> {
        (!self.rows.is_empty()).then_some(1)
    }

    /// A row completion was made when all columns were asked for.
    fn answers_whole_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    fn repeats_itself(&self) -> bool {
        true
    }

    fn finds_by_prompt(&self) -> bool {
        !self.prompts.is_empty()
    }

    fn format(&self) -> Format {
        Format::Csv
    }
}

/// A row with what its images are known by in their places.
fn with_images(row: &AskedRow, prompt: &Prompt) -> AskedRow {
    let mut row = row.clone();
    for (n, image) in prompt.images.iter().enumerate() {
        let place = Json::from(format!("[image {}]", n + 1));
        row.key.iter_mut().filter(|part| **part == place).for_each(|p| *p = (*image.name).into());
    }
    row
}

/// A key as rows are found by.
fn canonical(key: &[Json]) -> String {
    let parts: Vec<Json> = key
        .iter()
        .map(|k| Value::from_json(k).canonical().map_or(Json::Null, |c| c.as_ref().into()))
        .collect();
    Json::Array(parts).to_string()
}

/// A question or value as facts are found by: lower case, words only.
fn normal(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
    let joined = words.collect::<Vec<_>>().join(" ").to_lowercase();
    // "-" and "" have no words and are still different values.
    if joined.is_empty() { text.trim().to_owned() } else { joined }
}
