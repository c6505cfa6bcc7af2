//! TLS for servers and clients: certificates and keys from PEM files, which can be reloaded while connections use
//! them; trusted root certificates. Knows neither HTTP nor Redis.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, SignatureScheme, WantsVerifier};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A certificate chain, our own certificate first, and its key. From two files.
#[derive(Debug)]
pub struct Identity {
    certificates: PathBuf,
    key: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// Reads the files. The error names the invalid one.
    pub fn read(certificates: &Path, key: &Path) -> Result<Arc<Identity>, String> {
        let current = RwLock::new(Arc::new(read(certificates, key)?));
        Ok(Arc::new(Identity { certificates: certificates.to_owned(), key: key.to_owned(), current }))
    }

    /// Reads the files again. After an error the previous identity stays.
    pub fn reload(&self) -> Result<(), String> {
        let fresh = read(&self.certificates, &self.key)?;
        *self.current.write() = Arc::new(fresh);
        Ok(())
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn read(certificates: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let wrong = |path: &Path, error: &dyn Display| format!("{}: {error}", path.display());
    let chain = certificates_of(certificates)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, &error))?;
    CertifiedKey::from_der(chain, secret, &default_provider())
        .map_err(|error| wrong(key, &format!("not the key of {}: {error}", certificates.display())))
}

/// Returns the certificates of a PEM file, at least one.
pub fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: &dyn Display| format!("{}: {error}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    if certificates.is_empty() { Err(wrong(&"it contains no certificate")) } else { Ok(certificates) }
}

/// Returns the system's root certificates. `what` is the warning's text if there are none; empty for no warning.
pub fn system_roots(what: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let (added, _unfit) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 && !what.is_empty() {
        tracing::warn!("this system has no root certificates: {what}");
    }
    roots
}

/// Adds the certificates of a PEM file. The error names the file and the problem.
pub fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), String> {
    for certificate in certificates_of(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Returns an acceptor that uses `identity`.
pub fn acceptor(identity: Arc<Identity>) -> TlsAcceptor {
    let config = ServerConfig::builder_with_provider(default_provider().into());
    let versions = config.with_safe_default_protocol_versions().expect("ring has what both versions need");
    let mut config = versions.with_no_client_auth().with_cert_resolver(identity);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

fn client() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    let config = ClientConfig::builder_with_provider(default_provider().into());
    config.with_safe_default_protocol_versions().expect("ring has what both versions need")
}

/// Returns the configuration of a client that trusts these roots and has no certificate.
pub fn plain_client(roots: RootCertStore) -> ClientConfig {
    client().with_root_certificates(roots).with_no_client_auth()
}

/// Opens TLS connections.
#[derive(Clone)]
pub struct ClientTls(TlsConnector);

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}

impl ClientTls {
    /// Trusts these roots, and presents `identity` to servers that request a certificate.
    pub fn new(roots: RootCertStore, identity: Option<Arc<Identity>>) -> ClientTls {
        let config = match identity {
            Some(identity) => client().with_root_certificates(roots).with_client_cert_resolver(identity),
            None => plain_client(roots),
        };
        ClientTls(TlsConnector::from(Arc::new(config)))
    }

    /// Starts TLS on a connection to this host, a name or an address, which the certificate must match.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

/// Whether the peer was reached, but its handshake or certificate was rejected: retries do not help.
pub fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}
