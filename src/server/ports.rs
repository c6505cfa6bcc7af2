//! The two ports: opens them, serves them before their routes exist, and knows their names.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::error::ServerError;
use super::prepare::Tls;
use super::state::half_unless;
use crate::config::Config;
use crate::http::{self, AppState, Bounds, Opening, OwnNames, OwnUrl, Routes, TrustedProxies};
use crate::metrics::Metrics;
use crate::process::open_files::OpenFiles;
use crate::process::tasks::Tasks;
use crate::tls::{Identity, acceptor};

/// Both ports, bound.
pub struct Listeners {
    api: TcpListener,
    admin: TcpListener,
}

/// Addresses of both ports.
#[derive(Clone, Copy, Debug)]
pub struct PortAddresses {
    pub api: SocketAddr,
    pub admin: SocketAddr,
}

impl Listeners {
    /// Opens both ports, and returns their addresses.
    pub async fn open(config: &Config) -> Result<(Listeners, PortAddresses), ServerError> {
        let (api, api_address) = listen(&config.host, config.port, "DORMOUSE_PORT").await?;
        let (admin, admin_address) =
            listen(&config.admin_host, config.admin_port, "DORMOUSE_ADMIN_PORT").await?;
        Ok((Listeners { api, admin }, PortAddresses { api: api_address, admin: admin_address }))
    }

    /// Serves both ports, each with its own tasks. They reply that the server is starting until the returned function
    /// is called with their routes.
    pub fn serve(
        self,
        config: &Config,
        files: &OpenFiles,
        (tls, trusted): (&Tls, &Arc<TrustedProxies>),
        metrics: &Metrics,
        [api_tasks, admin_tasks]: [&Tasks; 2],
    ) -> impl FnOnce(&Config, PortAddresses, &Arc<AppState>) + use<> {
        let bounds = |most, most_of_address| Bounds { most, most_of_address, trusted: trusted.clone() };
        let of_address = half_unless(config.max_connections_per_address, files.connections);
        let of_api = bounds(files.connections, of_address);
        let of_admin = bounds(files.admin_connections, half_unless(0, files.admin_connections));
        let api = serve("public", self.api, of_api, &tls.api, metrics, api_tasks);
        let admin = serve("admin", self.admin, of_admin, &tls.admin, metrics, admin_tasks);
        move |config, addresses, state| {
            api.open(http::api(state.clone(), own_names(addresses.api, &config.host)));
            let names = OwnNames {
                accounts: !config.accounts.is_empty(),
                url: config.admin_url.as_deref().and_then(OwnUrl::parse),
                ..own_names(addresses.admin, &config.admin_host)
            };
            admin.open(http::admin(state.clone(), names));
        }
    }
}

fn own_names(port: SocketAddr, configured: &str) -> OwnNames {
    let loopback = port.ip().to_canonical().is_loopback();
    OwnNames { loopback, accounts: false, configured: configured.to_owned(), url: None }
}

/// Serves a port. The server ends if this ends.
fn serve<R: Routes>(
    name: &'static str,
    listener: TcpListener,
    bounds: Bounds,
    identity: &Option<Arc<Identity>>,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Opening<R> {
    let (opening, of_port) = (Opening::default(), metrics.port(name, bounds.most));
    let tls = identity.clone().map(acceptor);
    let port = http::serve(name, listener, opening.clone(), bounds, tls, of_port, tasks.clone());
    tasks.spawn_essential(format!("the {name} port"), port);
    opening
}

/// Binds a port, and returns its address. `variable` is the environment variable to change the port with, for errors.
async fn listen(
    host: &str,
    port: u16,
    variable: &'static str,
) -> Result<(TcpListener, SocketAddr), ServerError> {
    let name = format!("{host}:{port}");
    let listener = http::listen(&name).await;
    let listener = listener.map_err(|e| ServerError::Bind(name, e, variable))?;
    let address = listener.local_addr().map_err(|e| ServerError::Failed(e.to_string()))?;
    Ok((listener, address))
}
