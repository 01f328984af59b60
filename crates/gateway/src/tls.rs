//! TLS for the listeners: rustls, with a certificate that can be changed while the hub runs.
//!
//! A reload that fails leaves the old certificate in place: a half-written file never takes the hub down.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate and its key. Cheap to clone; all clones see a reload.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    cert: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<ServerConfig>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("cert", &self.0.cert).finish_non_exhaustive()
    }
}

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TlsError {
    path: PathBuf,
    reason: String,
}

impl Tls {
    /// Reads a PEM certificate chain and its private key.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn open(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let current = RwLock::new(Arc::new(load(cert, key)?));
        Ok(Self(Arc::new(Inner { cert: cert.into(), key: key.into(), current })))
    }

    /// Reads the files again; new connections get the new certificate.
    ///
    /// # Errors
    /// The files cannot be used; the old certificate goes on.
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = load(&self.0.cert, &self.0.key)?;
        *self.0.current.write() = Arc::new(fresh);
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.0.current.read()))
    }
}

fn load(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let at = |path: &Path, reason: String| TlsError { path: path.into(), reason };
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| at(cert, format!("cannot read the certificate: {error}")))?;
    if chain.is_empty() {
        return Err(at(cert, "holds no certificate; expected PEM".into()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| at(key, format!("cannot read the key: {error}")))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| at(cert, format!("TLS cannot be set up: {error}")))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| at(key, format!("does not go with the certificate: {error}")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
