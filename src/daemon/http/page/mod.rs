//! The page.

use axum::Router;

use super::Shop;

/// Adds the page to the API.
pub(super) fn routes(api: Router<Shop>) -> Router<Shop> {
    api
}
