//! What a start reads and checks before it opens anything: the files that the configuration names.

use std::sync::Arc;

use super::error::ServerError;
use crate::config::{Config, PushHttps, Secret};
use crate::push::address::AddressGuard;
use crate::push::client::{self, Client, Proxy};
use crate::push::encrypted::SecretKeys;
use crate::push::names::SystemResolver;

/// What is read and checked before anything is opened.
pub struct Prepared<C> {
    pub keys: Option<SecretKeys>,
    pub push: (Arc<AddressGuard>, C),
}

/// Reads the files that the configuration names.
pub fn prepare(config: &Config) -> Result<Prepared<impl FnOnce(usize) -> Client + use<>>, ServerError> {
    let keys = config.secret_key_file.as_deref().map(SecretKeys::read).transpose();
    let keys = keys.map_err(|e| ServerError::Configuration(format!("SecretKeyFile: {e}")))?;
    let push = push_client(config).map_err(ServerError::Configuration)?;
    Ok(Prepared { keys, push })
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
