//! An nginx that terminates TLS for a receiver.

use std::net::SocketAddr;

use tempfile::TempDir;

use crate::support::certificates::Authority;
use crate::support::nginx::Nginx;

/// Starts an nginx on 127.0.0.1 with a certificate for `names` (`DNS:localhost,IP:127.0.0.1`), which passes requests
/// on to `receiver`.
pub fn nginx_before(authority: &Authority, receiver: SocketAddr, names: &str) -> Nginx {
    let dir = TempDir::new().expect("a temporary directory");
    let (key, certificate) = (dir.path().join("key.pem"), dir.path().join("certificate.pem"));
    authority.issue(names, &certificate, &key);
    let http = |addr: SocketAddr| {
        format!(
            "server {{ listen {addr} ssl; ssl_certificate {}; ssl_certificate_key {};\n\
             location / {{ proxy_pass http://{receiver}; proxy_http_version 1.1; proxy_set_header Host $http_host; }} }}",
            certificate.display(),
            key.display()
        )
    };
    Nginx::start(dir, http).unwrap_or_else(|e| panic!("{e}: run tests/run, which installs it"))
}
