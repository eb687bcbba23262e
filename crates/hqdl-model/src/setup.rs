//! Errors while connecting to a model.

use hqdl_facts::FactsError;

/// Reason why hqdl could not connect to a model.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The environment variable of the API key is not set.
    #[error("the environment variable {0} is not set")]
    NoKey(String),
    /// The environment variable contains characters that are not allowed in a header.
    #[error(
        "the environment variable {0} does not contain a valid key: it has spaces, line breaks or other characters that keys cannot have"
    )]
    UnfitKey(String),
    /// The environment variable with the search API key is not set.
    #[error("the environment variable {0}, the key of the search, is not set")]
    NoSearchKey(String),
    /// The base URL is invalid.
    #[error("`{}` is not the URL of an endpoint", hqdl_values::format::hide_secrets(.0))]
    NoUrl(String),
    /// A recording cannot be read.
    #[error(
        "{}",
        hqdl_values::format::format_file_error(
            &format!("recording {path}"),
            u64::try_from(*line).ok().filter(|line| *line > 0),
            message,
        )
    )]
    Recording {
        /// Path of the recording.
        path: String,
        /// Line number, from 1; 0 if the whole file cannot be read.
        line: usize,
        /// Reason why the recording cannot be read.
        message: String,
    },
    /// The facts could not be read.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The HTTP client could not be created.
    #[error("no HTTP client: {0}")]
    Client(String),
}

impl SetupError {
    /// Returns advice for the user.
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
            Self::NoSearchKey(name) => format!(
                "export {name}=…, or name another variable in `api_key_env` of [expansion.evidence]"
            ),
            Self::NoUrl(_) => {
                "correct --base-url (`base_url` in [model]): expected http://… or https://…, up to /v1"
                    .to_owned()
            }
            Self::Facts(error) => error.hint().to_owned(),
            Self::Recording { .. } => {
                "expected a recording: JSON lines, plain or compressed (.gz)".to_owned()
            }
            Self::Client(_) => "check the system's TLS certificates".to_owned(),
        }
    }
}
