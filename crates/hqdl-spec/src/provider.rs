//! The API of an endpoint (`provider` in a spec).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kind of endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// Any OpenAI-compatible endpoint (chat completions).
    #[default]
    Openai,
    /// `OpenAI`'s Responses API. A `base_url` that ends in `/responses` selects it, too.
    OpenaiResponses,
    /// Anthropic's Messages API. Anthropic's host, or a `base_url` that ends in `/messages`,
    /// selects it, too.
    Anthropic,
    /// Recorded completions, offline.
    Replay,
}

/// Host and paths of a provider's API.
struct Api {
    name: &'static str,
    /// Default base URL.
    base_url: &'static str,
    /// Path of a request after the base URL.
    path: &'static str,
    /// Host that has this API unless the path selects another API. The price book contains its
    /// prices under the API's name.
    host: Option<&'static str>,
    /// Whether replies can contain the probabilities of tokens.
    has_logprobs: bool,
    /// Whether the same endpoint serves embeddings.
    has_embeddings: bool,
}

impl Provider {
    /// All providers.
    pub const ALL: [Self; 4] = [Self::Openai, Self::OpenaiResponses, Self::Anthropic, Self::Replay];

    const fn api(self) -> Api {
        match self {
            Self::Openai => Api {
                name: "openai",
                base_url: "https://api.openai.com/v1",
                path: "/chat/completions",
                host: None,
                has_logprobs: true,
                has_embeddings: true,
            },
            Self::OpenaiResponses => Api {
                name: "openai-responses",
                base_url: "https://api.openai.com/v1",
                path: "/responses",
                host: None,
                has_logprobs: true,
                has_embeddings: true,
            },
            Self::Anthropic => Api {
                name: "anthropic",
                base_url: "https://api.anthropic.com/v1",
                path: "/messages",
                host: Some("api.anthropic.com"),
                has_logprobs: false,
                has_embeddings: false,
            },
            Self::Replay => Api {
                name: "replay",
                base_url: "",
                path: "",
                host: None,
                has_logprobs: true,
                has_embeddings: true,
            },
        }
    }

    /// Returns the name used in specs and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.api().name
    }

    /// Returns the base URL of the provider's own endpoint.
    #[must_use]
    pub const fn default_base_url(self) -> &'static str {
        self.api().base_url
    }

    /// Returns the path of a request after the base URL.
    #[must_use]
    pub const fn request_path(self) -> &'static str {
        self.api().path
    }

    /// Returns the host of the provider's own endpoint, if only this API belongs to it.
    #[must_use]
    pub const fn host(self) -> Option<&'static str> {
        self.api().host
    }

    /// Returns true if replies can contain the probabilities of tokens.
    #[must_use]
    pub const fn has_logprobs(self) -> bool {
        self.api().has_logprobs
    }

    /// Returns true if the provider's endpoint also serves embeddings.
    #[must_use]
    pub const fn has_embeddings(self) -> bool {
        self.api().has_embeddings
    }

    /// Returns the provider with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|provider| provider.name() == name)
    }

    /// Returns the API that a base URL selects, and the URL without that API's path: users often
    /// copy the URL of a request. `self` is the provider that the spec names.
    #[must_use]
    pub fn resolve_url(self, base_url: Option<&str>) -> (Self, String) {
        let url = base_url.unwrap_or(self.default_base_url()).trim_end_matches('/');
        if self == Self::Replay {
            return (self, url.to_owned());
        }
        let apis = || Self::ALL.into_iter().filter(|provider| *provider != Self::Replay);
        let (path, query) = match url.split_once('?') {
            Some((path, query)) => (path.trim_end_matches('/'), format!("?{query}")),
            None => (url, String::new()),
        };
        let by_path = |api: Self| Some((api, path.strip_suffix(api.request_path())?));
        if let Some((api, base)) = apis().find_map(by_path) {
            return (api, format!("{}{query}", base.trim_end_matches('/')));
        }
        let host = path.split_once("://").map_or(path, |(_, rest)| rest);
        let host = host.split(['/', ':']).next().unwrap_or_default();
        let by_host = apis().find(|api| api.api().host == Some(host));
        let api = if self == Self::default() { by_host.unwrap_or(self) } else { self };
        (api, url.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::Provider::{self, Anthropic, Openai, OpenaiResponses, Replay};

    #[test]
    fn the_list_contains_every_provider() {
        let schema = schemars::schema_for!(Provider);
        let variants = schema.as_value()["oneOf"].as_array().expect("one schema per variant");
        assert_eq!(variants.len(), Provider::ALL.len());
    }

    #[test]
    fn a_base_url_selects_the_api() {
        let default = Provider::default();
        for (provider, url, api, base) in [
            (default, None, Openai, "https://api.openai.com/v1"),
            (Anthropic, None, Anthropic, "https://api.anthropic.com/v1"),
            (OpenaiResponses, None, OpenaiResponses, "https://api.openai.com/v1"),
            (
                default,
                Some("https://api.anthropic.com/v1/"),
                Anthropic,
                "https://api.anthropic.com/v1",
            ),
            (
                default,
                Some("https://api.openai.com/v1/responses"),
                OpenaiResponses,
                "https://api.openai.com/v1",
            ),
            (default, Some("http://proxy:4000/v1/messages"), Anthropic, "http://proxy:4000/v1"),
            // Anthropic's OpenAI-compatible endpoint.
            (
                default,
                Some("https://api.anthropic.com/v1/chat/completions"),
                Openai,
                "https://api.anthropic.com/v1",
            ),
            (
                default,
                Some("https://api.anthropic.com.example/v1"),
                Openai,
                "https://api.anthropic.com.example/v1",
            ),
            (Anthropic, Some("http://127.0.0.1:8000/v1"), Anthropic, "http://127.0.0.1:8000/v1"),
            (
                default,
                Some("http://x/openai/deployments/g/chat/completions?api-version=1"),
                Openai,
                "http://x/openai/deployments/g?api-version=1",
            ),
            (Replay, Some("https://api.anthropic.com/v1"), Replay, "https://api.anthropic.com/v1"),
        ] {
            assert_eq!(provider.resolve_url(url), (api, base.to_owned()), "{url:?}");
        }
    }
}
