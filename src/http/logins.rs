//! How often an address may fail to log in. Guesses at a password are slowed to one a second for each address, in
//! bounded memory. Knows no password.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How many attempts may fail in a row. An operator's scripts with an old password should not lock out at once.
pub const BURST: u32 = 100;
/// After that an attempt may fail once in this time.
pub const PACE: Duration = Duration::from_secs(1);
/// How many addresses are told apart. Further ones share one allowance.
const MOST_ADDRESSES: usize = 10_000;

/// Who has failed to log in lately.
#[derive(Debug, Default)]
pub struct FailedLogins {
    /// When an address that fails no more has its whole allowance again. `None` is all that found no room.
    whole_at: Mutex<HashMap<Option<IpAddr>, Instant>>,
}

impl FailedLogins {
    /// Takes one attempt from the address's allowance. If there is none: how long until there is.
    pub fn begin(&self, address: IpAddr) -> Result<(), Duration> {
        let now = Instant::now();
        let mut all = self.whole_at.lock();
        let mut key = Some(network(address));
        if !all.contains_key(&key) && all.len() >= MOST_ADDRESSES {
            all.retain(|_, whole_at| *whole_at > now);
            if all.len() >= MOST_ADDRESSES {
                key = None;
            }
        }
        let whole_at = all.get(&key).map_or(now, |whole_at| *whole_at).max(now) + PACE;
        let wait = (whole_at - now).saturating_sub(BURST * PACE);
        if !wait.is_zero() {
            return Err(wait);
        }
        all.insert(key, whole_at);
        Ok(())
    }

    /// The attempt did not fail: it takes nothing from the allowance.
    pub fn succeeded(&self, address: IpAddr) {
        let mut all = self.whole_at.lock();
        let key = Some(network(address));
        let key = if all.contains_key(&key) { key } else { None };
        if let Some(whole_at) = all.get_mut(&key) {
            // An address may have been forgotten meanwhile, and another begun in its place: never before now.
            *whole_at = whole_at.checked_sub(PACE).unwrap_or(*whole_at);
        }
    }
}

/// What one client can choose freely counts as one: of an IPv6 address the last half.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(n).into()
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_are_slowed_and_good_logins_are_not() {
        let logins = FailedLogins::default();
        for n in 0..10 * BURST {
            assert!(logins.begin(address(1)).is_ok(), "good login {n}");
            logins.succeeded(address(1));
        }
        for n in 0..BURST {
            assert!(logins.begin(address(1)).is_ok(), "failed login {n}");
        }
        let wait = logins.begin(address(1)).expect_err("the allowance is used up");
        assert!(wait <= PACE, "the next attempt is free in {wait:?}");
        assert!(logins.begin(address(2)).is_ok(), "another address has its own");
        tokio::time::advance(wait).await;
        assert!(logins.begin(address(1)).is_ok(), "one more");
        assert!(logins.begin(address(1)).is_err(), "and no more than one");
        tokio::time::advance(BURST * PACE).await;
        assert!(logins.begin(address(1)).is_ok(), "the allowance is whole again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_many_addresses_fills_no_memory() {
        let logins = FailedLogins::default();
        for n in 0..3 * MOST_ADDRESSES as u32 {
            let _ = logins.begin(address(n));
        }
        let kept = logins.whole_at.lock().len();
        assert!(kept <= MOST_ADDRESSES + 1, "{kept} addresses are kept");
        assert!(logins.begin(address(u32::MAX)).is_err(), "those without room share one allowance");
        tokio::time::advance(BURST * PACE).await;
        assert!(logins.begin(address(u32::MAX)).is_ok(), "the others are forgotten");
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        assert_eq!(network(a), network(b), "one network, one allowance");
    }
}
