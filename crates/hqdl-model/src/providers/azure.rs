//! Azure `OpenAI`: the classic URL, a deployment with the API version in the query, or the newer
//! URL, which ends in `/openai/v1`.

use reqwest::Url;

use super::{DEFAULT_PROFILE, NEW_LIMIT_NAME, ProviderProfile};

/// API version for a classic URL that has none: the latest one that is generally available.
const VERSION: &str = "2024-10-21";

/// See <https://learn.microsoft.com/azure/ai-services/openai/reference>.
pub(super) const PROFILE: ProviderProfile = ProviderProfile {
    name: "Azure OpenAI",
    matches_url: |url| {
        let host = url.host_str().unwrap_or_default();
        host.ends_with(".azure.com") || is_classic_url(url)
    },
    key_variable: Some("AZURE_OPENAI_API_KEY"),
    key_header: Some("api-key"),
    limit_name: NEW_LIMIT_NAME,
    prepare_url: |url| {
        if is_classic_url(url) && !url.query_pairs().any(|(name, _)| name == "api-version") {
            url.query_pairs_mut().append_pair("api-version", VERSION);
        }
    },
    // Files and batches belong to the resource, not to a deployment.
    batch_path: |url| url.path().split_once("/deployments/").map(|(root, _)| root.to_owned()),
    ..DEFAULT_PROFILE
};

/// Returns whether the URL names a deployment. This is also true for a gateway in front of Azure.
fn is_classic_url(url: &Url) -> bool {
    url.path().contains("/openai/deployments/")
}
