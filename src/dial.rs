//! Connects to a host that may have several addresses, as RFC 8305 (Happy Eyeballs) says: the next address is tried
//! 250 ms after the one before it, or as soon as an attempt fails, and the first connection wins. So an address that
//! drops packets delays a connection by a quarter of a second, not until a timeout. Knows no names and no protocol.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// Time between the beginnings of two attempts (RFC 8305, section 8: "Connection Attempt Delay").
const DELAY: Duration = Duration::from_millis(250);
/// Maximum number of concurrent attempts: each has a file open. Before a further attempt begins, the oldest is
/// dropped.
const MAX_ATTEMPTS: usize = 2;

/// Why there is no connection: the error of the last failed attempt.
#[derive(Debug, thiserror::Error)]
pub struct DialError {
    /// `None` if there was no address to connect to.
    pub address: Option<SocketAddr>,
    #[source]
    pub error: io::Error,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{address}: {}", self.error),
            None => self.error.fmt(f),
        }
    }
}

/// Connects to one of these addresses within `time`. The stream sends small writes at once.
pub async fn connect(addresses: &[SocketAddr], time: Duration) -> Result<TcpStream, DialError> {
    race(addresses, time, |address| async move {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    })
    .await
}

/// Like [`connect`], with another function to connect. Addresses keep their order, but the families alternate.
pub async fn race<T, F>(
    addresses: &[SocketAddr],
    time: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, DialError>
where
    F: Future<Output = io::Result<T>>,
{
    let deadline = Instant::now() + time;
    // Each address gets its turn within the time, however many there are.
    let delay = DELAY.min(time / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX));
    let mut waiting = take_turns(addresses).into_iter().peekable();
    let mut attempts = VecDeque::new();
    let none = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut last = DialError { address: None, error: none };
    loop {
        match waiting.next() {
            Some(address) => {
                if attempts.len() == MAX_ATTEMPTS {
                    attempts.pop_front();
                }
                attempts.push_back((address, Box::pin(connect(address))));
            }
            None if attempts.is_empty() => return Err(last),
            None => {}
        }
        let until = if waiting.peek().is_some() { deadline.min(Instant::now() + delay) } else { deadline };
        match timeout_at(until, first_to_end(&mut attempts)).await {
            Ok((_, Ok(connected))) => return Ok(connected),
            Ok((address, Err(error))) => last = DialError { address: Some(address), error },
            Err(_) if Instant::now() >= deadline => {
                let late = io::Error::new(io::ErrorKind::TimedOut, "timeout while connecting");
                return Err(match attempts.back() {
                    // An error from an address is more informative.
                    Some((address, _)) if last.address.is_none() => {
                        DialError { address: Some(*address), error: late }
                    }
                    _ => last,
                });
            }
            Err(_) => {}
        }
    }
}

/// Returns the outcome of the first attempt that ends, and removes it.
async fn first_to_end<T, F: Future<Output = T>>(
    attempts: &mut VecDeque<(SocketAddr, Pin<Box<F>>)>,
) -> (SocketAddr, T) {
    poll_fn(|context| {
        for nth in 0..attempts.len() {
            let (address, attempt) = &mut attempts[nth];
            if let Poll::Ready(outcome) = attempt.as_mut().poll(context) {
                let address = *address;
                attempts.remove(nth);
                return Poll::Ready((address, outcome));
            }
        }
        Poll::Pending
    })
    .await
}

/// Returns the addresses with alternating families, beginning with that of the first (RFC 8305, section 4).
fn take_turns(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let preferred = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut preferred, mut others): (VecDeque<_>, VecDeque<_>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == preferred);
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(preferred.pop_front());
        all.extend(others.pop_front());
    }
    all
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;

    use super::*;

    fn addresses(all: &str) -> Vec<SocketAddr> {
        all.split(' ').map(|one| one.parse().expect("an address")).collect()
    }

    /// Returns the outcome, and after how many milliseconds each address was tried. Port 1 drops packets, port 2
    /// refuses, port 3 accepts after 400 ms, all others at once.
    async fn tried(all: &str, seconds: u64) -> (Result<u16, DialError>, Vec<(u16, u128)>) {
        let (began, tried) = (Instant::now(), Mutex::default());
        let connect = |address: SocketAddr| {
            let tried: &Mutex<Vec<_>> = &tried;
            async move {
                tried.lock().push((address.port(), began.elapsed().as_millis()));
                match address.port() {
                    1 => std::future::pending().await,
                    2 => return Err(io::ErrorKind::ConnectionRefused.into()),
                    3 => tokio::time::sleep(Duration::from_millis(400)).await,
                    _ => {}
                }
                Ok(address.port())
            }
        };
        let outcome = race(&addresses(all), Duration::from_secs(seconds), connect).await;
        (outcome, tried.into_inner())
    }

    /// Guards against an address that drops packets and delays the connection until its timeout.
    #[tokio::test(start_paused = true)]
    async fn the_next_address_is_tried_after_a_quarter_of_a_second() {
        let (outcome, times) = tried("10.0.0.1:1 10.0.0.2:4", 10).await;
        assert_eq!((outcome.ok(), times), (Some(4), vec![(1, 0), (4, 250)]));
        let (outcome, times) = tried("10.0.0.1:1 10.0.0.2:1 10.0.0.3:1 10.0.0.4:4", 10).await;
        assert_eq!((outcome.ok(), times), (Some(4), vec![(1, 0), (1, 250), (1, 500), (4, 750)]));
        let (outcome, times) = tried("10.0.0.1:2 10.0.0.2:2 10.0.0.3:4", 10).await;
        assert_eq!(
            (outcome.ok(), times),
            (Some(4), vec![(2, 0), (2, 0), (4, 0)]),
            "a refusal is not waited for"
        );
        let (outcome, times) = tried("10.0.0.1:3 10.0.0.2:1", 10).await;
        assert_eq!((outcome.ok(), times), (Some(3), vec![(3, 0), (1, 250)]), "the first attempt continues");
        let (outcome, times) = tried("10.0.0.1:4 10.0.0.2:5", 10).await;
        assert_eq!((outcome.ok(), times), (Some(4), vec![(4, 0)]), "no other is tried");
    }

    #[tokio::test(start_paused = true)]
    async fn families_take_turns_and_every_address_has_one_in_time() {
        let (outcome, times) = tried("[2001:db8::1]:1 [2001:db8::2]:1 10.0.0.1:4", 10).await;
        assert_eq!((outcome.ok(), times), (Some(4), vec![(1, 0), (4, 250)]));
        let many = format!("{} 10.0.0.9:4", ["10.0.0.1:1"; 9].join(" "));
        let (outcome, times) = tried(&many, 1).await;
        assert_eq!(outcome.ok(), Some(4), "ten addresses within a second: {times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_says_what_an_address_has_said() {
        for (all, says) in [
            ("10.0.0.1:2", "10.0.0.1:2: connection refused"),
            ("10.0.0.1:1", "10.0.0.1:1: timeout while connecting"),
            ("10.0.0.1:2 10.0.0.2:1", "10.0.0.1:2: connection refused"),
        ] {
            let (outcome, began) = (tried(all, 10).await.0, Instant::now());
            assert_eq!(outcome.expect_err("no connection").to_string(), says, "{all}");
            assert!(began.elapsed() <= Duration::from_secs(10));
        }
        let connect = |_| async { Ok(()) };
        let error = race(&[], DELAY, connect).await.expect_err("no address");
        assert_eq!(error.to_string(), "the name has no address");
    }

    /// Guards against a file for each address of a name that has hundreds.
    #[tokio::test(start_paused = true)]
    async fn few_attempts_are_under_way_at_a_time() {
        struct Open<'a>(&'a AtomicUsize);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let (open, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let connect = |_| {
            let (open, most) = (&open, &most);
            async move {
                most.fetch_max(1 + open.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                let _open = Open(open);
                std::future::pending::<io::Result<()>>().await
            }
        };
        let all = addresses(&vec!["10.0.0.1:1"; 100].join(" "));
        race(&all, Duration::from_secs(10), connect).await.expect_err("none answers");
        assert_eq!((most.into_inner(), open.into_inner()), (MAX_ATTEMPTS, 0), "at most, and in the end");
    }
}
