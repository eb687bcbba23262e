//! TLS for connections to endpoints, with the system's certificates.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// Configuration shared by all clients. The certificates are read once, because they need a quarter
/// of a megabyte and a daemon has a client per spec. Connections are not shared: each ends with the
/// run that opened it.
static SHARED: Mutex<Option<ClientConfig>> = Mutex::new(None);

/// Returns the TLS configuration of a client.
///
/// # Errors
/// If the provider supports none of the protocol versions.
pub(super) fn client_config() -> Result<ClientConfig, rustls::Error> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = &*shared {
        return Ok(config.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = SystemCertVerifier { provider: Arc::clone(&provider), system: OnceLock::new() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(shared.insert(config).clone())
}

/// Certificate verifier of the system. It also accepts a server's own certificate if that is
/// installed on the system, as a self-signed one is. The standard does not accept an authority's
/// certificate for a server.
#[derive(Debug)]
struct SystemCertVerifier {
    provider: Arc<CryptoProvider>,
    /// Loaded for the first certificate, because many commands make no request.
    system: OnceLock<Verifier>,
}

impl SystemCertVerifier {
    /// Returns the system's verifier.
    ///
    /// # Errors
    /// If the system has no readable certificates. The next call tries again.
    fn system_verifier(&self) -> Result<&Verifier, Error> {
        if let Some(system) = self.system.get() {
            return Ok(system);
        }
        let system = Verifier::new(Arc::clone(&self.provider))?;
        Ok(self.system.get_or_init(|| system))
    }
}

impl ServerCertVerifier for SystemCertVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let system = self.system_verifier()?;
        let verified =
            system.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let Err(error) = verified else { return verified };
        // The system has already checked its validity period.
        let is_authority = matches!(&error, Error::InvalidCertificate(CertificateError::Other(why))
            if why.to_string().contains("CaUsedAsEndEntity"));
        if !is_authority || !is_system_certificate(end_entity) {
            return Err(error);
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns whether the certificate itself is installed on this system. If the system has a verifier
/// of its own, that has already checked this.
fn is_system_certificate(certificate: &CertificateDer<'_>) -> bool {
    cfg!(target_os = "linux")
        && rustls_native_certs::load_native_certs().certs.iter().any(|c| c == certificate)
}
