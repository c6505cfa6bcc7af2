//! Decides which addresses push may call. Anyone who may set a URL could otherwise use this server to reach
//! hosts that only it can reach: the machine itself, its network, the metadata service of its cloud. Knows no
//! resolver and no connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses and names that an administrator allows in addition to public addresses, and whether http may be
/// used.
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    networks: Vec<IpNet>,
    /// In lower case, without a trailing dot.
    names: Vec<String>,
    pub https_only: bool,
}

impl AddressGuard {
    /// Parses the entries of `PushAllow`: networks, addresses and host names. The error names the invalid
    /// entry.
    pub fn new(entries: &[String], https_only: bool) -> Result<AddressGuard, String> {
        let mut guard = AddressGuard { https_only, ..AddressGuard::default() };
        for entry in entries.iter().map(|entry| entry.trim()).filter(|entry| !entry.is_empty()) {
            let bare = entry.trim_start_matches('[').trim_end_matches(']');
            if let Ok(network) = entry.parse::<IpNet>() {
                guard.networks.push(network.trunc());
            } else if let Ok(address) = bare.parse::<IpAddr>() {
                guard.networks.push(address.to_canonical().into());
            } else {
                guard.names.push(name(entry).ok_or_else(|| {
                    format!("{entry:?} is not a network such as \"10.0.0.0/8\", an address or a host name")
                })?);
            }
        }
        Ok(guard)
    }

    /// Whether a host may be called at any address.
    pub fn allows_name(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.names.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Returns why an address may not be called; `None` if it may.
    pub fn refuses(&self, address: IpAddr) -> Option<&'static str> {
        let address = address.to_canonical();
        let refused = |address: IpAddr| {
            let kind = match address {
                IpAddr::V4(address) => kind_v4(address),
                IpAddr::V6(address) => kind_v6(address),
            };
            kind.filter(|_| !self.networks.iter().any(|network| network.contains(&address)))
        };
        // The embedded IPv4 address is checked too: a gateway may unpack it.
        refused(address).or_else(|| inside(address).and_then(|inner| refused(inner.into())))
    }
}

/// Returns the normalized form of a host name; `None` if `text` is not one.
fn name(text: &str) -> Option<String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    // A last label of digits only is a mistyped address.
    let last = text.rsplit('.').next()?;
    (text.split('.').all(label) && !last.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.to_ascii_lowercase())
}

/// Returns the kind of a special-purpose address, as in IANA's registry; `None` for a public one.
fn kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        [169, 254, 169, 254] | [100, 100, 100, 200] => "the metadata address of a cloud",
        [0, ..] => "an address of this network",
        [127, ..] => "a loopback address",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private address",
        [100, 64..=127, ..] => "a shared address",
        [169, 254, ..] => "a link-local address",
        [224..=239, ..] => "a multicast address",
        [192, 0, 0, _] | [192, 88, 99, _] | [198, 18..=19, ..] | [240..=255, ..] => "a reserved address",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "a documentation address",
        _ => return None,
    })
}

/// Like `kind_v4`, for IPv6: only global unicast (2000::/3) without its special ranges is public, and NAT64,
/// whose embedded address is checked.
fn kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    Some(match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => "the unspecified address",
        [0, 0, 0, 0, 0, 0, 0, 1] => "a loopback address",
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => return None,
        [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254] => "the metadata address of a cloud",
        [0xfc00..=0xfdff, ..] => "a unique-local address",
        [0xfe80..=0xfebf, ..] => "a link-local address",
        [0xfec0..=0xfeff, ..] => "a site-local address",
        [0xff00..=0xffff, ..] => "a multicast address",
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => "a documentation address",
        [0x2001, 0, ..] => "a Teredo address",
        [0x2001, 0..=0x01ff, ..] => "a reserved address",
        [0x2000..=0x3fff, ..] => return None,
        _ => "a reserved address",
    })
}

/// Returns the IPv4 address embedded in an IPv6 address by NAT64, 6to4 or ISATAP.
fn inside(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let v4 = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        [.., 0 | 0x200, 0x5efe, high, low] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(guard: &AddressGuard, address: &str) -> bool {
        guard.refuses(address.parse().expect("a literal")).is_some()
    }

    fn guard(entries: &[&str]) -> Result<AddressGuard, String> {
        AddressGuard::new(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>(), false)
    }

    #[test]
    fn only_public_addresses_may_be_called() {
        let guard = AddressGuard::default();
        let all = "0.0.0.0 0.1.2.3 10.0.0.1 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254 \
            169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1 192.168.0.1 \
            198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 \
            255.255.255.255 :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1 \
            64:ff9b::127.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 100::1 2001::1 2001:0:53aa:64c::1 2001:10::1 \
            2001:db8::1 2002:7f00:1:: 2002:a00:1::1 2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:192.168.0.1 \
            3fff::1 5f00::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1 febf::1 fec0::1 ff02::1 ff0e::1 4000::1";
        for address in all.split(' ') {
            assert!(refused(&guard, address), "{address} must not be called");
        }
        let all = "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.0.0.1 128.0.0.1 172.15.0.1 \
            172.32.0.1 192.0.1.1 192.167.0.1 198.17.0.1 223.255.255.1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 \
            2002:808:808::1 2606:4700::1111 2a00:1450::1";
        for address in all.split(' ') {
            assert!(!refused(&guard, address), "{address} is public");
        }
    }

    #[test]
    fn what_is_allowed_may_be_called_in_each_of_its_forms() {
        let guard =
            guard(&["10.0.0.0/8", "fd00:1::/32", "[::1]", "127.0.0.1", "Hooks.Internal."]).expect("entries");
        for address in
            ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "fd00:1::5", "::1", "127.0.0.1", "1.1.1.1"]
        {
            assert!(!refused(&guard, address), "{address} is allowed");
        }
        for address in ["127.0.0.2", "192.168.0.1", "fd00:2::1", "64:ff9b::127.0.0.2", "::2"] {
            assert!(refused(&guard, address), "{address} is not allowed");
        }
        for (name, allowed) in [
            ("hooks.internal", true),
            ("HOOKS.INTERNAL.", true),
            ("x.hooks.internal", false),
            ("internal", false),
        ] {
            assert_eq!(guard.allows_name(name), allowed, "{name}");
        }
    }

    #[test]
    fn an_entry_that_is_nothing_is_named() {
        for bad in ["10.0.0.0/33", "10.0.0", "a b", "http://x", "*.internal", "1.2.3.400", "a..b", "/8"] {
            let error = guard(&["10.0.0.0/8", bad]).expect_err(bad);
            assert!(error.contains(bad), "the error names {bad}: {error}");
        }
    }
}
