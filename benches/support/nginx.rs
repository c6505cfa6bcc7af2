//! An nginx that returns a constant for every request: the minimum cost of a request, as a yardstick, and a cheap
//! endpoint. It is in Debian's package nginx-light.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::Outcome;
use super::client::Target;

#[path = "../../tests/support/nginx.rs"]
mod real;

/// A running nginx.
pub struct Nginx(real::Nginx);

impl Nginx {
    /// Starts it on a free port, with a worker for each processor.
    pub fn start() -> Outcome<Nginx> {
        let constant = |addr: SocketAddr| {
            format!(
                "keepalive_requests 1000000000; server {{ listen {addr} reuseport; default_type application/json;\n\
                 location / {{ return 201 '{{\"job_id\":\"01AAAAAAAAAAAAAAAAAAAAAAAA\",\"msg\":\"published\"}}'; }} }}"
            )
        };
        Ok(Nginx(real::Nginx::start(TempDir::new()?, constant)?))
    }

    /// Returns its address.
    pub fn target(&self) -> Target {
        Target::new(self.0.addr(), None)
    }

    /// Returns its workers and this client, for a meter.
    pub fn processes(&self) -> Outcome<Vec<(&'static str, u32)>> {
        let master = self.0.master.id();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        let mut all = vec![("client", std::process::id())];
        for pid in children.split_whitespace() {
            all.push(("nginx", pid.parse()?));
        }
        Ok(all)
    }
}
