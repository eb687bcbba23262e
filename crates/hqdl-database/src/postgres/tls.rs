//! TLS settings of connections to servers, and the trusted certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_platform_verifier::Verifier;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Returns the TLS settings of a connection: it trusts the certificates in a file, or the system's.
///
/// # Errors
/// Fails with the problem of the file, or of the system's certificates.
pub(super) fn create_connector(
    root_file: Option<&Path>,
    mode: SslMode,
) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusted = match root_file {
        Some(path) => load_certificates(path, &provider)
            .map_err(|problem| format!("the certificates of {}: {problem}", path.display()))?,
        // If unencrypted connections are allowed, verifying a certificate gives no protection.
        None if mode != SslMode::Require => {
            TrustedCertificates { verifier: None, certificates: Vec::new() }
        }
        None => {
            let system = Verifier::new(Arc::clone(&provider)).map_err(|e| e.to_string())?;
            TrustedCertificates { verifier: Some(Arc::new(system)), certificates: Vec::new() }
        }
    };
    let schemes = Arc::clone(&provider);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(CertificateCheck { trusted, provider: schemes }))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn load_certificates(
    path: &Path,
    provider: &Arc<CryptoProvider>,
) -> Result<TrustedCertificates, String> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|e| e.to_string())?.collect();
    let certificates = certificates.map_err(|e| e.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|e| e.to_string())?;
    }
    if roots.is_empty() {
        return Err("it contains no certificate".to_owned());
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .build()
            .map_err(|e| e.to_string())?;
    Ok(TrustedCertificates { verifier: Some(verifier), certificates })
}

/// Trusted certificates.
#[derive(Debug)]
struct TrustedCertificates {
    /// Verifier of certificates; `None` if encryption is optional.
    verifier: Option<Arc<dyn ServerCertVerifier>>,
    /// Certificates in a file.
    certificates: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
struct CertificateCheck {
    trusted: TrustedCertificates,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for CertificateCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(verifier) = &self.trusted.verifier else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The file contains a self-signed certificate of the server. The standard rejects an
            // authority's certificate as a server's, and it often has only a common name. An
            // identical certificate is stronger evidence than a name.
            Err(Error::InvalidCertificate(reason))
                if is_name_or_authority_error(&reason)
                    && self.trusted.certificates.contains(end_entity) =>
            {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns true if the only problem of a certificate is the server's name, or that it is an
/// authority's.
fn is_name_or_authority_error(reason: &CertificateError) -> bool {
    match reason {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => true,
        CertificateError::Other(other) => other.to_string().contains("CaUsedAsEndEntity"),
        _ => false,
    }
}
