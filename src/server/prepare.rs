//! Reads and checks the files named in the configuration, before anything is opened.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;

use super::error::ServerError;
use crate::config::{Config, PushHttps, Secret};
use crate::http::TrustedProxies;
use crate::push::address::AddressGuard;
use crate::push::client::{self, Client, Proxy};
use crate::push::encrypted::SecretKeys;
use crate::push::names::SystemResolver;
use crate::schedule::Zones;
use crate::tls::{ClientTls, Identity, add_roots, certificates_of, system_roots};

/// Files read and checked before anything is opened.
pub struct Prepared<C> {
    pub keys: Option<SecretKeys>,
    pub push: (Arc<AddressGuard>, C),
    pub tls: Tls,
    pub trusted: Arc<TrustedProxies>,
    pub zones: Arc<Zones>,
}

/// Certificates of both ports, and TLS settings of Redis servers.
#[derive(Debug, Default)]
pub struct Tls {
    pub api: Option<Arc<Identity>>,
    pub admin: Option<Arc<Identity>>,
    /// By section of the configuration, as in `[Pool.default]`.
    pub of_redis: BTreeMap<String, ClientTls>,
    /// All certificates that can be reloaded, each with a description.
    pub identities: Vec<(String, Arc<Identity>)>,
}

impl Tls {
    /// Reads the files. The error names the key, as written, and the file.
    pub fn read(config: &Config) -> Result<Tls, String> {
        let mut tls = Tls::default();
        let names = ["TLSCert", "TLSKey"].map(|key| config.written(key));
        tls.api = tls.identity(names, (&config.tls_cert, &config.tls_key))?;
        let names = ["AdminTLSCert", "AdminTLSKey"].map(|key| config.written(key));
        tls.admin = tls.identity(names, (&config.admin_tls_cert, &config.admin_tls_key))?;
        let pools = config.pool.iter().map(|(name, pool)| (format!("[Pool.{name}]"), pool));
        let admin = config.admin_redis.iter().map(|admin| ("[AdminRedis]".to_owned(), admin));
        for (section, pool) in pools.chain(admin).filter(|(_, pool)| pool.tls) {
            let [cert, key, ca] = ["Cert", "Key", "CA"].map(|key| format!("{section} {key}"));
            let names = [&cert, &key].map(|key| config.written(key));
            let identity = tls.identity(names, (&pool.cert, &pool.key))?;
            let mut roots = RootCertStore::empty();
            match &pool.ca {
                Some(file) => add_roots(&mut roots, file)
                    .map_err(|error| format!("{}: {error}", config.written(&ca)))?,
                None => {
                    roots = system_roots(&format!(
                        "no Redis of {section} is trusted; set CA to its certificate authority"
                    ))
                }
            }
            tls.of_redis.insert(section, ClientTls::new(roots, identity));
        }
        Ok(tls)
    }

    fn identity(
        &mut self,
        [of_certificates, of_key]: [&str; 2],
        files: (&Option<PathBuf>, &Option<PathBuf>),
    ) -> Result<Option<Arc<Identity>>, String> {
        let (Some(certificates), Some(key)) = files else { return Ok(None) };
        // Any further error is one of the key.
        certificates_of(certificates).map_err(|error| format!("{of_certificates}: {error}"))?;
        let identity = Identity::read(certificates, key).map_err(|error| format!("{of_key}: {error}"))?;
        self.identities.push((of_certificates.to_owned(), identity.clone()));
        Ok(Some(identity))
    }

    /// Reloads the files.
    pub fn reload(&self) {
        for (what, identity) in &self.identities {
            match identity.reload() {
                Ok(()) => tracing::info!(what, "certificates were reloaded"),
                Err(error) => {
                    tracing::error!(what, error, "certificates cannot be reloaded; the old ones stay in use")
                }
            }
        }
    }
}

/// Reads the files named in the configuration.
pub fn prepare(config: &Config) -> Result<Prepared<impl FnOnce(usize) -> Client + use<>>, ServerError> {
    let wrong =
        |key: &str, error: String| ServerError::Configuration(format!("{}: {error}", config.written(key)));
    let keys = config.secret_key_file.as_deref().map(SecretKeys::read).transpose();
    let keys = keys.map_err(|error| wrong("SecretKeyFile", error))?;
    let push = push_client(config).map_err(ServerError::Configuration)?;
    let tls = Tls::read(config).map_err(ServerError::Configuration)?;
    let trusted = TrustedProxies::new(&config.trusted_proxies);
    let trusted = trusted.map_err(|error| wrong("TrustedProxies", error))?;
    let zones = config.zone_info.as_deref().map_or_else(|| Ok(Zones::bundled()), Zones::directory);
    let zones = Arc::new(zones.map_err(|error| wrong("ZoneInfo", error))?);
    if zones.get(&config.dashboard_zone).is_err() {
        let zone = &config.dashboard_zone;
        let text = format!("{zone:?} is not a known time zone: expected a name such as \"Europe/Berlin\"");
        return Err(wrong("DashboardZone", text));
    }
    Ok(Prepared { keys, push, tls, trusted: Arc::new(trusted), zones })
}

/// Returns push's address guard, and a function that creates its client for a number of connections. Reads the
/// certificates before anything is opened.
fn push_client(config: &Config) -> Result<(Arc<AddressGuard>, impl FnOnce(usize) -> Client + use<>), String> {
    let https_only = config.push_https == PushHttps::Only;
    let wrong = |key: &str, error: String| format!("{}: {error}", config.written(key));
    let guard =
        AddressGuard::new(&config.push_allow, https_only).map_err(|error| wrong("PushAllow", error))?;
    let guard = Arc::new(guard);
    let proxy = config.push_proxy.as_ref().map(Secret::reveal).map(Proxy::parse).transpose();
    let of_proxy = if config.push_proxy_file.is_some() { "PushProxyFile" } else { "PushProxy" };
    let proxy = proxy.map_err(|error| wrong(of_proxy, error))?;
    let roots = client::roots(config.push_ca.as_deref()).map_err(|error| wrong("PushCA", error))?;
    let resolver = SystemResolver::new().map_err(|e| format!("no threads to look up names: {e}"))?;
    let of = guard.clone();
    Ok((guard, move |connections| Client::new(of, Arc::new(resolver), proxy, roots, connections)))
}
