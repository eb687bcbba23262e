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
pub(super) fn connector(root: Option<&Path>, mode: SslMode) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusted = match root {
        Some(path) => of_file(path, &provider)
            .map_err(|what| format!("the certificates of {}: {what}", path.display()))?,
        // If unencrypted connections are allowed, verifying a certificate gives no protection.
        None if mode != SslMode::Require => TrustedCertificates { by: None, named: Vec::new() },
        None => {
            let system = Verifier::new(Arc::clone(&provider)).map_err(|e| e.to_string())?;
            TrustedCertificates { by: Some(Arc::new(system)), named: Vec::new() }
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

fn of_file(path: &Path, provider: &Arc<CryptoProvider>) -> Result<TrustedCertificates, String> {
    let named: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|e| e.to_string())?.collect();
    let named = named.map_err(|e| e.to_string())?;
    let mut roots = RootCertStore::empty();
    for one in &named {
        roots.add(one.clone()).map_err(|e| e.to_string())?;
    }
    if roots.is_empty() {
        return Err("it contains no certificate".to_owned());
    }
    let by = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|e| e.to_string())?;
    Ok(TrustedCertificates { by: Some(by), named })
}

/// Trusted certificates.
#[derive(Debug)]
struct TrustedCertificates {
    /// Verifier of certificates; `None` if encryption is optional.
    by: Option<Arc<dyn ServerCertVerifier>>,
    /// Certificates in a file.
    named: Vec<CertificateDer<'static>>,
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
        let Some(by) = &self.trusted.by else { return Ok(ServerCertVerified::assertion()) };
        let verified =
            by.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The file contains a self-signed certificate of the server. The standard rejects an
            // authority's certificate as a server's, and it often has only a common name. An
            // identical certificate is stronger evidence than a name.
            Err(Error::InvalidCertificate(why))
                if is_of_name_or_authority(&why) && self.trusted.named.contains(end_entity) =>
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
fn is_of_name_or_authority(why: &CertificateError) -> bool {
    match why {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => true,
        CertificateError::Other(why) => why.to_string().contains("CaUsedAsEndEntity"),
        _ => false,
    }
}
