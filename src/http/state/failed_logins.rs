//! How often an address may fail to log in, and how often the log says that it did. Guesses at a password are slowed to
//! one a second for each address, in bounded memory. Knows no password.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ahash::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How many attempts may fail in a row. An operator's scripts with an old password should not lock out at once.
pub const BURST: u32 = 100;
/// After that an attempt may fail once in this time.
pub const PACE: Duration = Duration::from_secs(1);
/// How many addresses are told apart. Further ones share one allowance, and one line of the log.
const MOST_ADDRESSES: usize = 10_000;
/// The log has one line of an address in this time.
const TELL: Duration = Duration::from_secs(60);

/// Who has failed to log in lately.
#[derive(Debug, Default)]
pub struct FailedLogins {
    /// When each has its whole allowance again, if it fails no more.
    allowances: Mutex<Table<()>>,
    /// From when on the next failure of each is told, and how many were not. Apart, because it is kept for longer: it
    /// should not keep an address from having its own allowance.
    told: Mutex<Table<u64>>,
}

/// What is known of each address until an instant.
#[derive(Debug, Default)]
struct Table<T> {
    /// `None` is all that found no room.
    rows: HashMap<Option<IpAddr>, (Instant, T)>,
    /// Rows are looked through once in [`PACE`], not for each attempt.
    sweep_at: Option<Instant>,
}

impl<T: Default> Table<T> {
    fn key(&self, address: IpAddr) -> Option<IpAddr> {
        Some(network(address)).filter(|_| self.rows.contains_key(&Some(network(address))))
    }

    /// The address's row, or a new one that is over `now`.
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
    /// Takes one attempt from the address's allowance. If there is none: how long until there is.
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

    /// The attempt did not fail: it takes nothing from the allowance.
    pub fn succeeded(&self, address: IpAddr) {
        let mut allowances = self.allowances.lock();
        let key = allowances.key(address);
        if let Some((whole_at, ())) = allowances.rows.get_mut(&key) {
            // An address may have been forgotten meanwhile, and another begun in its place: never before now.
            *whole_at = whole_at.checked_sub(PACE).unwrap_or(*whole_at);
        }
    }

    /// The attempt failed, or there was no allowance for it. Answers how many did since the log was told, if it is to be
    /// told again.
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

/// What one client can choose freely counts as one: of an IPv6 address the last half.
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
        assert_eq!(fail(1), Some(1), "the first is told at once");
        assert_eq!((0..500).find_map(|_| fail(1)), None, "the others of a minute are not");
        assert_eq!(fail(2), Some(1), "another address has a line of its own");
        tokio::time::advance(TELL).await;
        assert_eq!(fail(1), Some(501), "how many there were since is told with the next");
        let all = 3..MOST_ADDRESSES as u32 + 100;
        let told = all.clone().filter(|n| fail(*n).is_some()).count();
        // The first has its room yet, and those that found none share one line.
        assert_eq!(told, MOST_ADDRESSES - 1 + 1, "a line for each address that found room, and one more");
        assert_eq!(all.filter(|n| fail(*n).is_some()).count(), 0, "nor do many addresses fill the log");
    }

    /// Guards against a client with many addresses that keeps everybody else from logging in.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_failed_once_has_its_room_for_a_second() {
        let logins = FailedLogins::default();
        let (mut told, mut next) = (0, 0);
        for second in 0..180 {
            // Two hundred addresses a second fail, each once.
            for _ in 0..200 {
                next += 1;
                assert!(logins.begin(address(next)).is_ok(), "in second {second}");
                told += u64::from(logins.failed(address(next)).is_some());
            }
            let good = address(u32::MAX - second);
            assert!(logins.begin(good).is_ok(), "somebody else's login in second {second}");
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
