//! What a start reads and checks before it opens anything: the files that the configuration names.

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
use crate::tls::{ClientTls, Identity, add_roots, system_roots};

/// What is read and checked before anything is opened.
pub struct Prepared<C> {
    pub keys: Option<SecretKeys>,
    pub push: (Arc<AddressGuard>, C),
    pub tls: Tls,
    pub trusted: Arc<TrustedProxies>,
    pub zones: Arc<Zones>,
}

/// The certificates of both ports, and how Redis servers are spoken with.
#[derive(Debug, Default)]
pub struct Tls {
    pub api: Option<Arc<Identity>>,
    pub admin: Option<Arc<Identity>>,
    /// By the section of the configuration, as `[Pool.default]`.
    pub of_redis: BTreeMap<String, ClientTls>,
    /// All that can be read anew, each with what it is.
    pub identities: Vec<(String, Arc<Identity>)>,
}

impl Tls {
    /// Reads the files. The error names the key and the file.
    pub fn read(config: &Config) -> Result<Tls, String> {
        let mut tls = Tls::default();
        tls.api = tls.identity("TLSCert", (&config.tls_cert, &config.tls_key))?;
        tls.admin = tls.identity("AdminTLSCert", (&config.admin_tls_cert, &config.admin_tls_key))?;
        let pools = config.pool.iter().map(|(name, pool)| (format!("[Pool.{name}]"), pool));
        let admin = config.admin_redis.iter().map(|admin| ("[AdminRedis]".to_owned(), admin));
        for (section, pool) in pools.chain(admin).filter(|(_, pool)| pool.tls) {
            let identity = tls.identity(&format!("{section} Cert"), (&pool.cert, &pool.key))?;
            let mut roots = RootCertStore::empty();
            match &pool.ca {
                Some(ca) => add_roots(&mut roots, ca).map_err(|error| format!("{section} CA: {error}"))?,
                None => {
                    roots = system_roots(&format!("{section} trusts no Redis; name its authority with CA"))
                }
            }
            tls.of_redis.insert(section, ClientTls::new(roots, identity));
        }
        Ok(tls)
    }

    fn identity(
        &mut self,
        what: &str,
        files: (&Option<PathBuf>, &Option<PathBuf>),
    ) -> Result<Option<Arc<Identity>>, String> {
        let (Some(certificates), Some(key)) = files else { return Ok(None) };
        let identity = Identity::read(certificates, key).map_err(|error| format!("{what}: {error}"))?;
        self.identities.push((what.to_owned(), identity.clone()));
        Ok(Some(identity))
    }

    /// Reads the files anew.
    pub fn reload(&self) {
        for (what, identity) in &self.identities {
            match identity.reload() {
                Ok(()) => tracing::info!(what, "certificates were read anew"),
                Err(error) => {
                    tracing::error!(what, error, "certificates cannot be read anew; the old ones stay")
                }
            }
        }
    }
}

/// Reads the files that the configuration names.
pub fn prepare(config: &Config) -> Result<Prepared<impl FnOnce(usize) -> Client + use<>>, ServerError> {
    let keys = config.secret_key_file.as_deref().map(SecretKeys::read).transpose();
    let keys = keys.map_err(|e| ServerError::Configuration(format!("SecretKeyFile: {e}")))?;
    let push = push_client(config).map_err(ServerError::Configuration)?;
    let tls = Tls::read(config).map_err(ServerError::Configuration)?;
    let trusted = TrustedProxies::new(&config.trusted_proxies);
    let trusted = trusted.map_err(|e| ServerError::Configuration(format!("TrustedProxies: {e}")))?;
    let zones = config.zone_info.as_deref().map_or_else(|| Ok(Zones::bundled()), Zones::directory);
    let zones = Arc::new(zones.map_err(ServerError::Configuration)?);
    if zones.get(&config.dashboard_zone).is_err() {
        let text = format!("DashboardZone = {:?}: there is no such time zone", config.dashboard_zone);
        return Err(ServerError::Configuration(text));
    }
    Ok(Prepared { keys, push, tls, trusted: Arc::new(trusted), zones })
}

/// What push sends with, over so many connections, and where it may call. Reads the certificates before anything is
/// opened.
fn push_client(config: &Config) -> Result<(Arc<AddressGuard>, impl FnOnce(usize) -> Client + use<>), String> {
    let https_only = config.push_https == PushHttps::Only;
    let guard = AddressGuard::new(&config.push_allow, https_only).map_err(|e| format!("PushAllow: {e}"))?;
    let guard = Arc::new(guard);
    let proxy = config.push_proxy.as_ref().map(Secret::reveal).map(Proxy::parse).transpose()?;
    let roots = client::roots(config.push_ca.as_deref())?;
    let resolver = SystemResolver::new().map_err(|e| format!("no threads to look up names: {e}"))?;
    let of = guard.clone();
    Ok((guard, move |connections| Client::new(of, Arc::new(resolver), proxy, roots, connections)))
}
