//! The proxy that push may have to go through, as the configuration names it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use url::Url;

/// Where a proxy is, and what it wants to hear.
#[derive(Clone)]
pub struct Proxy {
    pub(super) uri: Uri,
    /// The value of `Proxy-Authorization`.
    pub(super) auth: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.uri)
    }
}

impl Proxy {
    /// From `http://user:password@host:port`. The error does not show the URL: it may hold a password.
    pub fn parse(text: &str) -> Result<Proxy, String> {
        let wrong = || "PushProxy should be like \"http://proxy.example:3128\"".to_owned();
        let url = Url::parse(text).map_err(|_| wrong())?;
        let host =
            url.host_str().filter(|_| url.scheme() == "http" && url.path() == "/").ok_or_else(wrong)?;
        let port = url.port_or_known_default().ok_or_else(wrong)?;
        let uri = format!("http://{host}:{port}/").parse().map_err(|_| wrong())?;
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let auth = (!url.username().is_empty()).then(|| {
            let (user, password) = (decode(url.username()), decode(url.password().unwrap_or_default()));
            format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
        });
        let auth = auth.map(|auth| HeaderValue::from_str(&auth).map_err(|_| wrong())).transpose()?;
        let auth = auth.map(|mut auth| {
            auth.set_sensitive(true);
            auth
        });
        Ok(Proxy { uri, auth })
    }
}
