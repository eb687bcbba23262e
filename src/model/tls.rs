//! How connections to endpoints are secured: by the system's certificates.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt;

/// What all clients share of it. The certificates are read once: they take a
/// quarter of a megabyte, and a daemon has a client for each spec. Connections are
/// not shared, since one ends with the run that opened it.
static SHARED: Mutex<Option<ClientConfig>> = Mutex::new(None);

/// The settings of a client.
///
/// # Errors
/// When the system has no certificates that can be read; the next one tries again.
pub(super) fn config() -> Result<ClientConfig, rustls::Error> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = &*shared {
        return Ok(config.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(shared.insert(config).clone())
}
