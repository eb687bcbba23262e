//! How connections to endpoints are secured: by the system's certificates.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use rustls_platform_verifier::Verifier;

/// What all clients share of it. The certificates are read once: they take a
/// quarter of a megabyte, and a daemon has a client for each spec. Connections are
/// not shared, since one ends with the run that opened it.
static SHARED: Mutex<Option<ClientConfig>> = Mutex::new(None);

/// The settings of a client.
///
/// # Errors
/// When the versions of the protocol are none that the provider knows.
pub(super) fn config() -> Result<ClientConfig, rustls::Error> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = &*shared {
        return Ok(config.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusted = Trusted { provider: Arc::clone(&provider), system: OnceLock::new() };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trusted))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(shared.insert(config).clone())
}

/// The system's word on certificates, and a server's own certificate that stands
/// among the system's, which is what a self-signed one is: the standard takes the
/// certificate of an authority for no server's.
#[derive(Debug)]
struct Trusted {
    provider: Arc<CryptoProvider>,
    /// Read when a server shows the first certificate: many commands ask nobody.
    system: OnceLock<Verifier>,
}

impl Trusted {
    /// The system's word.
    ///
    /// # Errors
    /// When the system has no certificates that can be read; the next one tries again.
    fn system(&self) -> Result<&Verifier, Error> {
        if let Some(system) = self.system.get() {
            return Ok(system);
        }
        let system = Verifier::new(Arc::clone(&self.provider))?;
        Ok(self.system.get_or_init(|| system))
    }
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let system = self.system()?;
        let verified =
            system.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let Err(error) = verified else { return verified };
        // Whether it is valid now was looked at before this.
        let of_authority = matches!(&error, Error::InvalidCertificate(CertificateError::Other(why))
            if why.to_string().contains("CaUsedAsEndEntity"));
        if !of_authority || !is_among_the_systems(end_entity) {
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

/// Whether a certificate itself is trusted by this system; where the system has a
/// verifier of its own, that has said so.
fn is_among_the_systems(certificate: &CertificateDer<'_>) -> bool {
    cfg!(target_os = "linux")
        && rustls_native_certs::load_native_certs().certs.iter().any(|c| c == certificate)
}
