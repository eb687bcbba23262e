//! How connections to servers are secured, and whom they trust.

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

/// The settings of a connection: by the certificates in a file, or by the system's.
///
/// # Errors
/// What is wrong with the file, or with the system's certificates.
pub(super) fn connector(root: Option<&Path>, mode: SslMode) -> Result<MakeRustlsConnect, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusted = match root {
        Some(path) => of_file(path, &provider)
            .map_err(|what| format!("the certificates of {}: {what}", path.display()))?,
        // Who would go on without encryption is not protected by a name, either.
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

/// Whose certificates are trusted.
#[derive(Debug)]
struct TrustedCertificates {
    /// Who says so; nobody where the connection is encrypted if it can be.
    by: Option<Arc<dyn ServerCertVerifier>>,
    /// Certificates that a file names.
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
            // A server that signs its own certificate, which the file holds: the standard
            // takes an authority's for no server's, and often it has no name but a common
            // one. That it is this very one says more than a name.
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

/// Whether all that a certificate lacks is the server's name, or that it is an
/// authority's.
fn is_of_name_or_authority(why: &CertificateError) -> bool {
    match why {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => true,
        CertificateError::Other(why) => why.to_string().contains("CaUsedAsEndEntity"),
        _ => false,
    }
}
