//! What providers of OpenAI-compatible endpoints do each in their own way: a file
//! a provider, and a line in `ALL`.

mod anthropic;
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

/// All providers whose habits are known; the first that serves a URL counts.
const ALL: [&Habits; 10] = [
    &openai::HABITS,
    &azure::HABITS,
    &anthropic::HABITS,
    &gemini::HABITS,
    &openrouter::HABITS,
    &ollama::HABITS,
    &llama_cpp::HABITS,
    &vllm::HABITS,
    &litellm::HABITS,
    &lm_studio::HABITS,
];

/// The newer name of the cap on an answer's tokens.
pub(super) const NEW_CAP: &str = "max_completion_tokens";
/// The name that most servers know.
pub(super) const OLD_CAP: &str = "max_tokens";

/// The habits of a provider.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Its name, for messages.
    pub name: &'static str,
    /// Whether it serves a base URL.
    pub serves: fn(&Url) -> bool,
    /// The variable that holds its key, when no other is named.
    pub key_variable: Option<&'static str>,
    /// The header that the key stands in, when it is not that of a bearer.
    pub key_header: Option<&'static str>,
    /// Headers that variables hold the values of.
    pub headers: &'static [(&'static str, &'static str)],
    /// What it calls the cap on an answer's tokens.
    pub cap: &'static str,
    /// Whether it holds answers to a schema (`response_format`).
    pub schema: bool,
    /// What it accepts about the prompt cache of a model.
    pub caching: fn(&str) -> PromptCaching,
    /// Makes a base URL ready for requests.
    pub base: fn(&mut Url),
    /// What follows a base URL for files and batches, in place of its path.
    pub batches: fn(&Url) -> Option<String>,
    /// How it is started, where that is up to the user.
    pub start: Option<&'static str>,
}

/// The habits of an endpoint of which nothing else is known.
pub const OTHER: Habits = Habits {
    name: "the endpoint",
    serves: |_| true,
    key_variable: None,
    key_header: None,
    headers: &[],
    cap: OLD_CAP,
    schema: true,
    caching: |_| PromptCaching { breakpoint: None, key: false },
    base: |_| {},
    batches: |_| None,
    start: None,
};

/// Who serves a base URL.
#[must_use]
pub fn of(base: &Url) -> &'static Habits {
    ALL.into_iter().find(|h| (h.serves)(base)).unwrap_or(&OTHER)
}

/// Whether a host is this machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|a| a.is_loopback())
}

fn is_host(url: &Url, host: &str) -> bool {
    url.host_str() == Some(host)
}

/// Whether a URL has the port of a server that people run themselves.
fn is_port(url: &Url, port: u16) -> bool {
    url.port() == Some(port)
}
