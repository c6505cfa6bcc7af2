//! Variables that Kubernetes sets in every container for every Service of its namespace ("service links"). A Service
//! called `dormouse` or `dormouse-...` yields variables with our prefix: `DORMOUSE_PORT` is then `tcp://10.0.0.1:7777`.
//! They are not configuration. A variable counts as a service link only if both its name and its value look like one.

use std::net::IpAddr;

/// Returns whether a variable is a service link.
pub fn is_service_link(name: &str, value: &str) -> bool {
    let number = |text: &str| text.parse::<u16>().is_ok();
    let address = |text: &str| text.parse::<IpAddr>().is_ok();
    let Some(service) = name.strip_prefix("DORMOUSE_") else { return false };
    // Prefixed with an underscore, so that the Service's name may be empty (just `dormouse`).
    let name = format!("_{service}");
    if name.ends_with("_SERVICE_HOST") {
        return address(value);
    }
    // `_SERVICE_PORT`, and `_SERVICE_PORT_HTTP` for a port called http.
    if name.ends_with("_SERVICE_PORT") || name.contains("_SERVICE_PORT_") {
        return number(value);
    }
    if name.ends_with("_PORT") && is_url(value) {
        return true;
    }
    // `_PORT_7777_TCP`, and `_PROTO`, `_PORT`, `_ADDR` after it.
    let words: Vec<&str> = name.split('_').collect();
    let port_of = |port: &str, protocol: &str| number(port) && is_protocol(&protocol.to_ascii_lowercase());
    match words.as_slice() {
        [.., "PORT", port, protocol] if port_of(port, protocol) => is_url(value),
        [.., "PORT", port, protocol, "PROTO"] if port_of(port, protocol) => is_protocol(value),
        [.., "PORT", port, protocol, "PORT"] if port_of(port, protocol) => number(value),
        [.., "PORT", port, protocol, "ADDR"] if port_of(port, protocol) => address(value),
        _ => false,
    }
}

fn is_protocol(text: &str) -> bool {
    ["tcp", "udp", "sctp"].contains(&text)
}

fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(protocol, _)| is_protocol(protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubernetes_injects_is_told_from_keys_and_mistakes() {
        let links = [
            ("DORMOUSE_SERVICE_HOST", "10.96.0.7"),
            ("DORMOUSE_SERVICE_HOST", "fd00::7"),
            ("DORMOUSE_SERVICE_PORT", "7777"),
            ("DORMOUSE_SERVICE_PORT_HTTP", "7777"),
            ("DORMOUSE_SERVICE_PORT_HTTP_ADMIN", "7778"),
            ("DORMOUSE_PORT", "tcp://10.96.0.7:7777"),
            ("DORMOUSE_PORT", "udp://10.96.0.7:7777"),
            ("DORMOUSE_PORT_7777_TCP", "tcp://10.96.0.7:7777"),
            ("DORMOUSE_PORT_7777_TCP_PROTO", "tcp"),
            ("DORMOUSE_PORT_7777_TCP_PORT", "7777"),
            ("DORMOUSE_PORT_7777_TCP_ADDR", "10.96.0.7"),
            ("DORMOUSE_PORT_53_UDP", "udp://[fd00::7]:53"),
            // Services called dormouse-admin, dormouse-redis, dormouse-accounts and dormouse-pool-port.
            ("DORMOUSE_ADMIN_PORT", "tcp://10.96.0.8:7778"),
            ("DORMOUSE_ADMIN_SERVICE_HOST", "10.96.0.8"),
            ("DORMOUSE_REDIS_PORT_6379_TCP_ADDR", "10.96.0.9"),
            ("DORMOUSE_REDIS_SERVICE_PORT", "6379"),
            ("DORMOUSE_ACCOUNTS_SERVICE_HOST", "10.96.0.9"),
            ("DORMOUSE_ACCOUNTS_PORT", "tcp://10.96.0.9:80"),
            ("DORMOUSE_POOL_PORT_PORT_80_TCP", "tcp://10.96.0.9:80"),
        ];
        for (name, value) in links {
            assert!(is_service_link(name, value), "{name}={value} is a service link");
        }
        let others = [
            ("DORMOUSE_PORT", "7777"),
            ("DORMOUSE_PORT", "tcp"),
            ("DORMOUSE_ADMIN_PORT", "7778"),
            ("DORMOUSE_PROT", "tcp://10.96.0.7:7777"),
            ("DORMOUSE_SERVICE_HOST", "queue.example"),
            ("DORMOUSE_SERVICE_PORT", "http"),
            ("DORMOUSE_PORT_7777", "tcp://10.96.0.7:7777"),
            ("DORMOUSE_PORT_7777_TCP_NAME", "x"),
            ("DORMOUSE_PORT_7777_TCP_ADDR", "x"),
            ("DORMOUSE_PORT_X_TCP", "tcp://10.96.0.7:7777"),
            ("DORMOUSE_ACCOUNTS_ANN", "10.96.0.7"),
            ("DORMOUSE_POOL_DEFAULT_ADDR", "10.96.0.7:6379"),
            ("REDIS_PORT", "tcp://10.96.0.7:6379"),
        ];
        for (name, value) in others {
            assert!(!is_service_link(name, value), "{name}={value} is no service link");
        }
    }
}
