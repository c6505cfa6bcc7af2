//! Proxies trusted to set `X-Forwarded-For`. Other clients could write any address there.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Networks of trusted proxies.
#[derive(Debug, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Parses networks and addresses. The error names the invalid entry.
    pub fn new(entries: &[String]) -> Result<TrustedProxies, String> {
        let network = |entry: &String| {
            let address = || entry.parse::<IpAddr>().map(|address| address.to_canonical().into());
            let network = entry.parse::<IpNet>().or_else(|_| address());
            network.map_err(|_| format!("{entry:?} is not a network such as \"10.0.0.0/8\" or an address"))
        };
        entries.iter().map(network).collect::<Result<_, _>>().map(TrustedProxies)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        !self.0.is_empty() && self.0.iter().any(|network| network.contains(&address.to_canonical()))
    }

    /// Returns the client of a request from `peer`: behind a trusted proxy, the last address in `X-Forwarded-For`
    /// that is not a trusted proxy. Entries before an invalid one are not trusted.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        if !self.contains(peer) {
            return client;
        }
        let values: Vec<&[u8]> = headers.get_all(X_FORWARDED_FOR).iter().map(HeaderValue::as_bytes).collect();
        for entry in values.iter().rev().flat_map(|value| value.rsplit(|byte| *byte == b',')) {
            let entry = std::str::from_utf8(entry).unwrap_or_default();
            let Some(address) = address(entry.trim()) else { break };
            client = address;
            if !self.contains(client) {
                break;
            }
        }
        client
    }
}

/// Parses an address, which some proxies write with a port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address: Option<IpAddr> = bare.parse().ok();
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    address.or_else(with_port).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a client that chooses the address under which it is logged and limited.
    #[test]
    fn the_last_address_that_is_no_proxy_counts() {
        let trusted = ["10.0.0.0/8".to_owned(), "::1".to_owned()];
        let trusted = TrustedProxies::new(&trusted).expect("a network and an address");
        for (peer, headers, expected) in [
            ("192.0.2.9", &["203.0.113.5"][..], "192.0.2.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.5"], "203.0.113.5"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.5"], "203.0.113.5"),
            ("10.0.0.1", &["6.6.6.6, 203.0.113.5, 10.0.0.7"], "203.0.113.5"),
            ("10.0.0.1", &["6.6.6.6", "203.0.113.5 , 10.0.0.7"], "203.0.113.5"),
            ("::ffff:10.0.0.1", &["203.0.113.5:4711"], "203.0.113.5"),
            ("::1", &["[2001:db8::7]:80"], "2001:db8::7"),
            ("::1", &["[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &["6.6.6.6, nobody, 10.0.0.7"], "10.0.0.7"),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            // Bytes that are not text do not hide addresses after them, and make entries before them untrusted.
            ("10.0.0.1", &["6.6.6.6", "\u{fc}, 203.0.113.5"], "203.0.113.5"),
            ("10.0.0.1", &["6.6.6.6", "\u{fc}"], "10.0.0.1"),
        ] {
            let mut map = HeaderMap::new();
            for value in headers {
                map.append(X_FORWARDED_FOR, HeaderValue::from_bytes(value.as_bytes()).expect("a value"));
            }
            let client = trusted.client(peer.parse().expect("an address"), &map);
            assert_eq!(client.to_string(), expected, "from {peer} with {headers:?}");
        }
        assert!(!TrustedProxies::default().contains("10.0.0.1".parse().expect("an address")));
        let error = TrustedProxies::new(&["10.0.0.0/40".into()]).expect_err("no network");
        assert!(error.contains("10.0.0.0/40"), "{error}");
    }
}
