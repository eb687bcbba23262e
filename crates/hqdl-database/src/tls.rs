//! TLS configuration of all connections to endpoints and database servers: which certificates are
//! trusted.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_platform_verifier::Verifier;

/// Configuration that trusts the system's certificates, shared by all clients. The certificates are
/// read only once, because they use a quarter of a megabyte and a daemon has a client per spec.
static SYSTEM: Mutex<Option<ClientConfig>> = Mutex::new(None);

/// Certificates that a connection trusts.
#[derive(Debug)]
pub enum Trust {
    /// The system's certificates. The verifier is loaded when the first certificate is checked,
    /// because many commands open no connection.
    System(OnceLock<Verifier>),
    /// The certificates in a file.
    File(FileTrust),
    /// Any certificate. The connection is then no safer than an unencrypted one.
    Anything,
}

/// Certificates read from a file.
#[derive(Debug)]
pub struct FileTrust {
    verifier: Arc<dyn ServerCertVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Trust {
    /// Reads the certificates of a PEM file.
    ///
    /// # Errors
    /// Fails with a message if the file contains no certificate or cannot be read.
    pub fn read_file(path: &Path) -> Result<Self, String> {
        let file =
            std::fs::File::open(path).map_err(|e| hqdl_values::format::describe_io_error(&e))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(file).collect();
        let certificates = certificates.map_err(|e| e.to_string())?;
        let mut roots = RootCertStore::empty();
        for certificate in &certificates {
            roots.add(certificate.clone()).map_err(|e| e.to_string())?;
        }
        if roots.is_empty() {
            return Err("it contains no certificate".to_owned());
        }
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), create_provider())
                .build()
                .map_err(|e| e.to_string())?;
        Ok(Self::File(FileTrust { verifier, certificates }))
    }

    /// Returns the verifier; `None` if every certificate is trusted.
    ///
    /// # Errors
    /// Fails if the system has no readable certificates. The next call tries again.
    fn load_verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<&dyn ServerCertVerifier>, Error> {
        Ok(match self {
            Self::Anything => None,
            Self::File(file) => Some(&*file.verifier),
            Self::System(system) => Some(match system.get() {
                Some(verifier) => verifier,
                None => {
                    let verifier = Verifier::new(Arc::clone(provider))?;
                    system.get_or_init(|| verifier)
                }
            }),
        })
    }

    /// Returns true if a rejected certificate is itself trusted, such as a self-signed one. The
    /// standard check does not accept a certificate authority's certificate for a server.
    ///
    /// # Errors
    /// Fails if the system trusts the certificate but it does not match the server's name. For a
    /// certificate in a file the name does not matter, because an identical certificate is stronger
    /// evidence.
    fn contains_rejected_certificate(
        &self,
        certificate: &CertificateDer<'_>,
        server_name: &ServerName<'_>,
        reason: &CertificateError,
    ) -> Result<bool, Error> {
        match self {
            Self::System(_) if is_authority_error(reason) && is_system_certificate(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, server_name)?;
                Ok(true)
            }
            Self::File(file) => Ok((is_authority_error(reason) || is_name_error(reason))
                && file.certificates.contains(certificate)),
            Self::System(_) | Self::Anything => Ok(false),
        }
    }
}

fn create_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns a client configuration that trusts these certificates.
///
/// # Errors
/// Fails if the provider supports none of the protocol versions.
pub fn build_client_config(trust: Trust) -> Result<ClientConfig, Error> {
    let provider = create_provider();
    let check = CertificateCheck { trust, provider: Arc::clone(&provider) };
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check))
        .with_no_client_auth())
}

/// Returns the shared configuration for clients that trust the system's certificates. Connections
/// are not shared: each ends with the run that opened it.
///
/// # Errors
/// Fails if the provider supports none of the protocol versions.
pub fn system_config() -> Result<ClientConfig, Error> {
    let mut shared = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = &*shared {
        return Ok(config.clone());
    }
    let config = build_client_config(Trust::System(OnceLock::new()))?;
    Ok(shared.insert(config).clone())
}

#[derive(Debug)]
struct CertificateCheck {
    trust: Trust,
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
        let Some(verifier) = self.trust.load_verifier(&self.provider)? else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match &verified {
            // The verifier has already checked the certificate's validity period.
            Err(Error::InvalidCertificate(reason))
                if self.trust.contains_rejected_certificate(end_entity, server_name, reason)? =>
            {
                Ok(ServerCertVerified::assertion())
            }
            _ => verified,
        }
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

/// Returns true if the only problem with a certificate is that it belongs to a certificate
/// authority.
fn is_authority_error(reason: &CertificateError) -> bool {
    matches!(reason, CertificateError::Other(other)
        if other.to_string().contains("CaUsedAsEndEntity"))
}

/// Returns true if the only problem with a certificate is that it does not contain the server's
/// name. A self-signed certificate often has only a common name.
fn is_name_error(reason: &CertificateError) -> bool {
    matches!(
        reason,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    )
}

/// Returns true if the certificate itself is installed on this system. If the system has its own
/// verifier, that verifier has already checked this.
fn is_system_certificate(certificate: &CertificateDer<'_>) -> bool {
    cfg!(target_os = "linux")
        && rustls_native_certs::load_native_certs().certs.iter().any(|c| c == certificate)
}
