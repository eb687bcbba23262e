//! Why there is no model to ask.

use hqdl_facts::FactsError;

/// Why there is no model to ask.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The key's variable is not set.
    #[error("the environment variable {0} is not set")]
    NoKey(String),
    /// The key's variable holds what no header can.
    #[error(
        "the environment variable {0} does not contain a valid key: it has spaces, line breaks or other characters that keys cannot have"
    )]
    UnfitKey(String),
    /// The base URL is none.
    #[error("`{0}` is not the URL of an endpoint")]
    NoUrl(String),
    /// A recording cannot be read.
    #[error("recording {path}, line {line}: {message}")]
    Recording {
        /// The file.
        path: String,
        /// The line, from 1; 0 for the whole file.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The owner of the facts does not tell its limits.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The HTTP client cannot be made.
    #[error("no HTTP client: {0}")]
    Client(String),
}

impl SetupError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoKey(name) => {
                format!(
                    "export {name}=…, or name another variable with --api-key-env (`api_key_env` \
                     in [model])"
                )
            }
            Self::UnfitKey(name) => format!("export {name}=… again, without line breaks"),
            Self::NoUrl(_) => "expected http://… or https://…, up to /v1".to_owned(),
            Self::Facts(error) => error.hint().to_owned(),
            Self::Recording { .. } => {
                "expected a recording: JSON lines, plain or compressed (.gz)".to_owned()
            }
            Self::Client(_) => "check the system's TLS certificates".to_owned(),
        }
    }
}
