//! Profiles of providers that speak a protocol of `OpenAI`. There is one file per provider, and one
//! entry in `PROFILES`. The profile of a provider with another protocol is in the protocol's file.

mod azure;
mod gemini;
mod litellm;
mod llama_cpp;
mod lm_studio;
mod ollama;
mod openai;
mod openrouter;
mod vllm;

use reqwest::Url;

pub use super::prompt_cache::{CacheBreakpoint, PromptCaching};

/// The profiles of this folder; the first one that matches a URL is used.
pub(super) const PROFILES: [&ProviderProfile; 9] = [
    &openai::PROFILE,
    &azure::PROFILE,
    &gemini::PROFILE,
    &openrouter::PROFILE,
    &ollama::PROFILE,
    &llama_cpp::PROFILE,
    &vllm::PROFILE,
    &litellm::PROFILE,
    &lm_studio::PROFILE,
];

/// The newer name of the parameter for the output limit.
pub(super) const NEW_LIMIT_NAME: &str = "max_completion_tokens";
/// The older name, which most servers accept.
pub(super) const OLD_LIMIT_NAME: &str = "max_tokens";

/// Profile of a provider.
#[derive(Debug, Clone, Copy)]
pub struct ProviderProfile {
    /// Display name, for messages.
    pub name: &'static str,
    /// Returns whether a base URL belongs to the provider.
    pub matches_url: fn(&Url) -> bool,
    /// Environment variable of the API key, if the spec names no other.
    pub key_variable: Option<&'static str>,
    /// Header of the API key, if it is not a bearer token.
    pub key_header: Option<&'static str>,
    /// Additional headers, with the environment variables of their values.
    pub headers: &'static [(&'static str, &'static str)],
    /// Name of the parameter for the output limit.
    pub limit_name: &'static str,
    /// Whether the provider supports structured output (`response_format`).
    pub supports_schema: bool,
    /// Prompt-caching features by model.
    pub caching: fn(&str) -> PromptCaching,
    /// Prepares a base URL for requests.
    pub prepare_url: fn(&mut Url),
    /// Path for files and batches, which replaces the path of the base URL.
    pub batch_path: fn(&Url) -> Option<String>,
    /// How to start the server, if the user runs it.
    pub start_hint: Option<&'static str>,
}

/// Profile of an unknown endpoint.
pub const DEFAULT_PROFILE: ProviderProfile = ProviderProfile {
    name: "the endpoint",
    matches_url: |_| true,
    key_variable: None,
    key_header: None,
    headers: &[],
    limit_name: OLD_LIMIT_NAME,
    supports_schema: true,
    caching: |_| PromptCaching { breakpoint: None, key: false },
    prepare_url: |_| {},
    batch_path: |_| None,
    start_hint: None,
};

/// Returns whether a URL points to this machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|a| a.is_loopback())
}

fn has_host(url: &Url, host: &str) -> bool {
    url.host_str() == Some(host)
}

/// Returns whether a URL has the default port of a self-hosted server.
fn has_port(url: &Url, port: u16) -> bool {
    url.port() == Some(port)
}
