//! Limits failed logins per address, and how often the log reports them. Password guesses are slowed to one per
//! second and address, in bounded memory. Knows no password.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Failed attempts in a row that are allowed. A script with an old password should not be locked out at once.
pub const BURST: u32 = 100;
/// Beyond that, one failed attempt is allowed per this time.
pub const PACE: Duration = Duration::from_secs(1);
/// Maximum number of addresses tracked individually. Further addresses share one allowance, and one log line.
const MOST_ADDRESSES: usize = 10_000;
/// The log has at most one line per address and this time.
const TELL: Duration = Duration::from_secs(60);

/// Addresses with recent failed logins.
#[derive(Debug, Default)]
pub struct FailedLogins {
    /// When each address regains its whole allowance if no attempt fails.
    allowances: Mutex<Table<()>>,
    /// When the next failure of each address is logged, and the number of failures not logged yet. A separate table,
    /// because its rows are kept longer, and must not take places for allowances.
    told: Mutex<Table<u64>>,
}

/// A row per address, each valid until an instant.
#[derive(Debug, Default)]
struct Table<T> {
    /// `None` is the shared row of addresses beyond the maximum.
    rows: HashMap<Option<IpAddr>, (Instant, T)>,
    /// Expired rows are removed once per [`PACE`], not for each attempt.
    sweep_at: Option<Instant>,
}

impl<T: Default> Table<T> {
    fn key(&self, address: IpAddr) -> Option<IpAddr> {
        Some(network(address)).filter(|_| self.rows.contains_key(&Some(network(address))))
    }

    /// Returns the row of an address, or a new one that expires `now`.
    fn row(&mut self, address: IpAddr, now: Instant) -> &mut (Instant, T) {
        let mut key = self.key(address);
        if key.is_none() && self.rows.len() >= MOST_ADDRESSES && self.sweep_at.is_none_or(|at| at <= now) {
            self.rows.retain(|_, (until, _)| *until > now);
            self.sweep_at = Some(now + PACE);
        }
        if self.rows.len() < MOST_ADDRESSES {
            key = Some(network(address));
        }
        self.rows.entry(key).or_insert_with(|| (now, T::default()))
    }
}

impl FailedLogins {
    /// Takes one attempt from the address's allowance. If it is used up, returns how long to wait.
    pub fn begin(&self, address: IpAddr) -> Result<(), Duration> {
        let now = Instant::now();
        let mut allowances = self.allowances.lock();
        let (allowance, ()) = allowances.row(address, now);
        let whole_at = (*allowance).max(now) + PACE;
        let wait = (whole_at - now).saturating_sub(BURST * PACE);
        if !wait.is_zero() {
            return Err(wait);
        }
        *allowance = whole_at;
        Ok(())
    }

    /// Returns a successful attempt to the allowance.
    pub fn succeeded(&self, address: IpAddr) {
        let mut allowances = self.allowances.lock();
        let key = allowances.key(address);
        if let Some((whole_at, ())) = allowances.rows.get_mut(&key) {
            // The row may have been removed meanwhile, and a new row begun: never before now.
            *whole_at = whole_at.checked_sub(PACE).unwrap_or(*whole_at);
        }
    }

    /// Records a failed or rejected attempt. Returns the number of failures since the last log line, if another line
    /// is due.
    pub fn failed(&self, address: IpAddr) -> Option<u64> {
        let now = Instant::now();
        let mut told = self.told.lock();
        let (tell_at, untold) = told.row(address, now);
        *untold += 1;
        (*tell_at <= now).then(|| {
            *tell_at = now + TELL;
            std::mem::take(untold)
        })
    }
}

/// Returns the network of an address, which one client can choose freely within: of IPv6, the first 64 bits.
pub fn network(address: IpAddr) -> IpAddr {
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
    async fn the_log_is_told_once_a_minute_of_each_address() {
        let logins = FailedLogins::default();
        let fail = |n| {
            let _ = logins.begin(address(n));
            logins.failed(address(n))
        };
        assert_eq!(fail(1), Some(1), "the first failure is logged at once");
        assert_eq!((0..500).find_map(|_| fail(1)), None, "the other failures of a minute are not logged");
        assert_eq!(fail(2), Some(1), "another address has a line of its own");
        tokio::time::advance(TELL).await;
        assert_eq!(fail(1), Some(501), "the next line has the number of failures since");
        let all = 3..MOST_ADDRESSES as u32 + 100;
        let told = all.clone().filter(|n| fail(*n).is_some()).count();
        // The first still has its row, and all addresses beyond the maximum share one line.
        assert_eq!(told, MOST_ADDRESSES - 1 + 1, "a line for each address that found room, and one more");
        assert_eq!(all.filter(|n| fail(*n).is_some()).count(), 0, "nor do many addresses fill the log");
    }

    /// Guards against a client with many addresses that keeps all others from logging in.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_failed_once_has_its_room_for_a_second() {
        let logins = FailedLogins::default();
        let (mut told, mut next) = (0, 0);
        for second in 0..180 {
            // Two hundred addresses fail per second, each once.
            for _ in 0..200 {
                next += 1;
                assert!(logins.begin(address(next)).is_ok(), "in second {second}");
                told += u64::from(logins.failed(address(next)).is_some());
            }
            let good = address(u32::MAX - second);
            assert!(logins.begin(good).is_ok(), "another client's login in second {second}");
            assert!(logins.allowances.lock().key(good).is_some(), "it has its own allowance");
            logins.succeeded(good);
            tokio::time::advance(PACE).await;
        }
        let most = 3 * (MOST_ADDRESSES as u64 + 1);
        assert!(told <= most, "{told} lines of the log in three minutes, and {most} are the most");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_many_addresses_fills_no_memory() {
        let logins = FailedLogins::default();
        for n in 0..3 * MOST_ADDRESSES as u32 {
            let _ = logins.begin(address(n));
        }
        let kept = logins.allowances.lock().rows.len();
        assert!(kept <= MOST_ADDRESSES + 1, "{kept} addresses are kept");
        assert!(logins.begin(address(u32::MAX)).is_err(), "those without room share one allowance");
        tokio::time::advance(BURST * PACE).await;
        assert!(logins.begin(address(u32::MAX)).is_ok(), "the others are forgotten");
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|ip| ip.parse::<IpAddr>().expect("an address"));
        assert_eq!(network(a), network(b), "one network, one allowance");
    }
}
