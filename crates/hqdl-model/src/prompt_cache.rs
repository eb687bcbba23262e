//! The endpoint's prompt cache: marks the end of a prompt's stable part, and lets one request write
//! it before others read it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hqdl_values::key::hash_tagged_parts;
use serde_json::{Value as Json, json};
use tokio::sync::OwnedMutexGuard;

/// Size of a system message in bytes below which no endpoint caches it (512 tokens, generously).
const MIN_CACHED_BYTES: usize = 1536;
/// Minimum time that an endpoint keeps an unread prefix.
const MIN_CACHE_LIFETIME: Duration = Duration::from_secs(240);
/// Maximum time that a request waits for another one to write its prefix.
const MAX_WRITE_WAIT: Duration = Duration::from_secs(10);

/// Prompt-caching features of a model's endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PromptCaching {
    /// How a request marks the end of the stable part; `None` if the endpoint needs no mark or has
    /// no cache.
    pub breakpoint: Option<CacheBreakpoint>,
    /// Whether a `prompt_cache_key` routes requests with the same prefix to the same cache.
    pub key: bool,
}

/// Documented way to mark the end of a prompt's stable part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheBreakpoint {
    /// `cache_control` of a message part. Anthropic's models cache nothing without it.
    CacheControl,
    /// `prompt_cache_breakpoint` of a message part, and `prompt_cache_options` that disable the
    /// implicit breakpoint, which would write the rows of every request at the write price.
    Explicit,
}

/// Returns whether an `OpenAI` model is GPT-5.6 or later. These models accept explicit breakpoints
/// and bill cache writes.
pub(super) fn supports_explicit_breakpoints(model: &str) -> bool {
    let Some(version) = model.strip_prefix("gpt-").and_then(|rest| rest.split('-').next()) else {
        return false;
    };
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    let version = (major.parse::<u32>(), minor.parse::<u32>());
    // Azure writes gpt-3.5 as gpt-35.
    matches!(version, (Ok(major), Ok(minor)) if (major, minor) >= (5, 6) && major < 30)
}

/// Writes the breakpoint at the end of the system message, whose text is at `path` and becomes a
/// part of type `part_type`. Fields that the spec sets are not changed.
pub(super) fn write_breakpoint(
    body: &mut Json,
    path: &str,
    part_type: &str,
    breakpoint: CacheBreakpoint,
) {
    let Some(content) = body.pointer_mut(path).filter(|c| c.is_string()) else {
        return;
    };
    let mut part = json!({ "type": part_type, "text": content.take() });
    match breakpoint {
        CacheBreakpoint::CacheControl => part["cache_control"] = json!({ "type": "ephemeral" }),
        CacheBreakpoint::Explicit => {
            part["prompt_cache_breakpoint"] = json!({ "mode": "explicit" });
        }
    }
    *content = json!([part]);
    if breakpoint == CacheBreakpoint::Explicit && body.get("prompt_cache_options").is_none() {
        body["prompt_cache_options"] = json!({ "mode": "explicit" });
    }
}

/// Writes the `prompt_cache_key`, which is the same for all requests with the same system message.
pub(super) fn write_cache_key(body: &mut Json, system: &str) {
    if body.get("prompt_cache_key").is_none() {
        body["prompt_cache_key"] = format!("hqdl-{}", hash_prefix(system)).into();
    }
}

fn hash_prefix(system: &str) -> String {
    hash_tagged_parts("hqdl prompt cache key v1", &[system.to_owned()])
}

/// Sends the first request with a prefix alone. Concurrent requests would each write the prefix to
/// the cache, because an entry can be read only after the reply to the request that writes it has
/// begun.
#[derive(Debug)]
pub(super) struct PrefixGate {
    max_wait: Duration,
    /// Start time of the last request that wrote or read a prefix, by the prefix's hash.
    last_begun: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Instant>>>>>,
}

/// The turn of a request that writes its prefix to the cache. Others wait until it is dropped.
#[derive(Debug)]
pub(super) struct PrefixTurn(OwnedMutexGuard<Option<Instant>>);

impl PrefixTurn {
    /// Records that the reply has begun, so that other requests can read the prefix.
    pub(super) fn mark_reply_begun(mut self) {
        *self.0 = Some(Instant::now());
    }
}

impl Default for PrefixGate {
    fn default() -> Self {
        Self { max_wait: MAX_WRITE_WAIT, last_begun: Mutex::default() }
    }
}

impl PrefixGate {
    /// Waits while another request writes the prefix. Returns the turn to write it, or `None` if
    /// the prefix has already been written or is too short.
    pub(super) async fn wait_for_turn(&self, system: &str) -> Option<PrefixTurn> {
        if system.len() < MIN_CACHED_BYTES {
            return None;
        }
        let entry = {
            let mut last_begun = self.last_begun.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(last_begun.entry(hash_prefix(system)).or_default())
        };
        let mut last_begun = tokio::time::timeout(self.max_wait, entry.lock_owned()).await.ok()?;
        if last_begun.is_some_and(|at| at.elapsed() < MIN_CACHE_LIFETIME) {
            *last_begun = Some(Instant::now());
            return None;
        }
        Some(PrefixTurn(last_begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_from_gpt_5_6_on_take_breakpoints() {
        for (model, is_supported) in [
            ("gpt-5.6", true),
            ("gpt-5.6-luna", true),
            ("gpt-6-sol-2026-09-30", true),
            ("gpt-6.1-terra", true),
            ("gpt-10", true),
            ("gpt-5.5", false),
            ("gpt-5-mini", false),
            ("gpt-4o", false),
            ("gpt-4.1", false),
            ("gpt-35-turbo", false),
            ("gpt-oss-120b", false),
            ("o4-mini", false),
            ("my-gpt-6", false),
            ("gpt-", false),
        ] {
            assert_eq!(supports_explicit_breakpoints(model), is_supported, "{model}");
        }
    }

    #[tokio::test]
    async fn a_prefix_is_written_by_one_request_and_read_by_the_others() {
        let max_wait = Duration::from_millis(50);
        let gate = PrefixGate { max_wait, ..PrefixGate::default() };
        let long = "x".repeat(MIN_CACHED_BYTES);
        assert!(gate.wait_for_turn("short").await.is_none());
        let first = gate.wait_for_turn(&long).await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(10), gate.wait_for_turn(&long));
        assert!(second.await.is_err());
        // A failed request passes its turn to the next one.
        drop(first);
        let first = gate.wait_for_turn(&long).await.unwrap();
        // Others do not wait forever.
        assert!(gate.wait_for_turn(&long).await.is_none());
        first.mark_reply_begun();
        assert!(gate.wait_for_turn(&long).await.is_none());
    }
}
