//! Accepts connections within limits, in total and per address. Independent of routes.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use rustix::net::sockopt;
#[cfg(target_os = "linux")]
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;

use super::connection::{Counted, Routes, connection, secured};
use crate::http::state::failed_logins::network;
use crate::http::state::proxies::TrustedProxies;
use crate::metrics::PortMetrics;
use crate::process::tasks::Tasks;

/// Length of the listen queue.
const BACKLOG: u32 = 4096;
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failures to accept form one outage until none has occurred for this long. Its start and end are logged.
const ACCEPT_SETTLED: Duration = Duration::from_secs(3);
/// A peer silent for `KEEPALIVE_IDLE` is probed `KEEPALIVE_COUNT` times, `KEEPALIVE_INTERVAL` apart, so one that lost
/// its power or network is detected after two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_COUNT: u32 = 4;

/// Binds `host:port` and listens.
pub async fn listen(name: &str) -> io::Result<TcpListener> {
    let addr = lookup_host(name).await?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Connections inherit these options from their listener.
    socket.set_keepalive(true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_COUNT)?;
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Limits on a port's connections.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub most: usize,
    pub most_of_address: usize,
    /// Addresses without the limit per address.
    pub trusted: Arc<TrustedProxies>,
}

/// Serves `routes` on `listener` until `tasks` are stopped. Each connection is one of `tasks`; when stopped, it answers
/// received requests and ends. Connections beyond the total limit wait in the listen queue; those beyond the limit per
/// address are closed. With `tls` they use TLS. `port` is the name in the log.
pub async fn serve(
    port: &'static str,
    listener: TcpListener,
    routes: impl Routes,
    Bounds { most, most_of_address, trusted }: Bounds,
    tls: Option<TlsAcceptor>,
    metrics: PortMetrics,
    tasks: Tasks,
) {
    let mut addresses =
        Addresses { most: most_of_address, trusted, connected: HashMap::default(), sweep_at: 0 };
    let permits = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let stop = tasks.stopping();
    let [mut trouble, mut refused] = [(); 2].map(|()| AcceptTrouble { port, failing: None });
    let begin = |stream, addr, (permit, place)| {
        let counted = Counted { _permit: permit, _place: place, _connected: metrics.connected() };
        let counted = (counted, metrics.clone());
        match &tls {
            None => drop(tasks.spawn(connection(stream, addr, routes.clone(), tasks.stop_signal(), counted))),
            Some(tls) => {
                let secured =
                    secured(tls.clone(), stream, addr, routes.clone(), tasks.stop_signal(), counted);
                drop(tasks.spawn(secured));
            }
        }
    };
    let accept = async || {
        // The semaphore is never closed.
        let permit = permits.clone().acquire_owned().await.ok()?;
        Some((permit, listener.accept().await))
    };
    while let Some(Some((permit, accepted))) = stop.run_until_cancelled(accept()).await {
        match accepted {
            Ok((stream, addr)) => {
                trouble.works();
                match addresses.enter(addr.ip()) {
                    Ok(place) => {
                        refused.works();
                        begin(stream, addr, (permit, place));
                    }
                    Err(error) => refused.failed(&error),
                }
            }
            Err(error) => {
                metrics.accept_failures.inc();
                trouble.failed(&error);
                drop(permit);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // To their peers, connections in the listen queue are established, and many have sent a request. Closing the
    // listener resets connections that it has not accepted.
    let Ok(listener) = listener.into_std() else { return };
    #[cfg(target_os = "linux")]
    if let Err(error) = drop_new(&listener) {
        tracing::debug!(port, %error, "a connection that arrives now may be reset");
    }
    while let Ok((stream, addr)) = listener.accept() {
        let accepted = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        if let (Ok(stream), Ok(place)) = (accepted, addresses.enter(addr.ip())) {
            begin(stream, addr, (permit, place));
        }
    }
}

/// Drops the packets that ask for a new connection. Their peers ask again after a second, and are refused: a balancer
/// sends nothing to a connection that was refused, but may have sent a request before a reset.
#[cfg(target_os = "linux")]
fn drop_new(listener: &std::net::TcpListener) -> io::Result<()> {
    // Classic BPF over the TCP header, whose byte 13 has the flags; 2 is SYN. See the kernel's filter.txt.
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_ANY: u16 = 0x45;
    const RETURN: u16 = 0x06;
    SockRef::from(listener).attach_filter(&[
        SockFilter::new(LOAD_BYTE, 0, 0, 13),
        SockFilter::new(JUMP_IF_ANY, 1, 0, 2),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ])
}

/// Connections by address. Addresses of one network count as one, see [`network`].
#[derive(Debug)]
struct Addresses {
    most: usize,
    /// Proxies have many clients behind them.
    trusted: Arc<TrustedProxies>,
    /// Each connection holds a reference.
    connected: HashMap<IpAddr, Arc<()>>,
    /// Unused addresses are removed beyond this number.
    sweep_at: usize,
}

impl Addresses {
    /// Counts one more connection of this address until the result is dropped. Loopback, where a balancer may have all
    /// clients behind it, and trusted proxies are not counted.
    fn enter(&mut self, address: IpAddr) -> io::Result<Option<Arc<()>>> {
        if address.to_canonical().is_loopback() || self.trusted.contains(address) {
            return Ok(None);
        }
        let address = network(address);
        if self.connected.len() >= self.sweep_at {
            self.connected.retain(|_, place| Arc::strong_count(place) > 1);
            self.sweep_at = 64.max(2 * self.connected.len());
        }
        let place = self.connected.entry(address).or_default();
        if Arc::strong_count(place) > self.most {
            return Err(io::Error::other(format!("{address} has {} connections already", self.most)));
        }
        Ok(Some(place.clone()))
    }
}

/// Logs failures to accept, or to admit, connections once per outage.
struct AcceptTrouble {
    port: &'static str,
    /// Start of the outage, time of the last failure, and number of failures.
    failing: Option<(Instant, Instant, u64)>,
}

impl AcceptTrouble {
    fn failed(&mut self, error: &io::Error) {
        let now = Instant::now();
        match &mut self.failing {
            Some((_, last, failures)) => (*last, *failures) = (now, *failures + 1),
            None => {
                self.failing = Some((now, now, 1));
                tracing::warn!(port = self.port, %error, "connections cannot be accepted");
            }
        }
    }

    fn works(&mut self) {
        if let Some((since, last, failures)) = self.failing
            && last.elapsed() >= ACCEPT_SETTLED
        {
            let seconds = last.duration_since(since).as_secs();
            tracing::info!(port = self.port, failures, seconds, "connections can be accepted again");
            self.failing = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_silent_peer_is_asked_whether_it_is_there() {
        let listener = listen("127.0.0.1:0").await.expect("a free port");
        let _peer =
            TcpStream::connect(listener.local_addr().expect("it is bound")).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let of = |value: rustix::io::Result<Duration>| value.expect("a TCP socket");
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true), "keepalive of an accepted connection");
        assert_eq!(of(sockopt::tcp_keepidle(&stream)), KEEPALIVE_IDLE, "idle time before the first probe");
        assert_eq!(of(sockopt::tcp_keepintvl(&stream)), KEEPALIVE_INTERVAL, "between two questions");
        assert_eq!(sockopt::tcp_keepcnt(&stream), Ok(KEEPALIVE_COUNT), "how many questions");
    }

    /// Guards against a reset of connections that arrive while a server stops.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn new_connections_are_dropped_and_those_in_the_queue_stay() {
        let listener = listen("127.0.0.1:0").await.expect("a free port").into_std().expect("a socket");
        let addr = listener.local_addr().expect("it is bound");
        let mut queued = TcpStream::connect(addr).await.expect("it listens");
        drop_new(&listener).expect("filters are allowed");
        let new = tokio::spawn(TcpStream::connect(addr));
        let (accepted, _) = listener.accept().expect("one is in the queue");
        accepted.set_nonblocking(true).expect("a socket");
        let mut accepted = TcpStream::from_std(accepted).expect("a socket");
        accepted.write_all(b"answer").await.expect("it is connected");
        let mut answer = [0; 6];
        queued.read_exact(&mut answer).await.expect("packets of this one are not dropped");
        let none = listener.accept().expect_err("the new one is not in the queue");
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        drop(listener);
        let refused = new.await.expect("it does not panic").expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "not reset");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_to_accept_are_one_outage_until_they_have_ended_for_a_while() {
        let mut trouble = AcceptTrouble { port: "public", failing: None };
        let error = io::Error::other("the test says so");
        for _ in 0..100 {
            trouble.failed(&error);
            sleep(ACCEPT_SETTLED / 2).await;
            trouble.works();
            assert!(trouble.failing.is_some(), "one that works between two that fail does not end it");
        }
        assert!(trouble.failing.is_some_and(|(_, _, failures)| failures == 100), "{:?}", trouble.failing);
        sleep(ACCEPT_SETTLED).await;
        trouble.works();
        assert!(trouble.failing.is_none(), "nothing has failed for {ACCEPT_SETTLED:?}");
    }

    /// Guards against idle connections of one address that fill the port, and against treating a local balancer as one
    /// client.
    #[test]
    fn one_address_has_its_connections_and_no_more() {
        let mut addresses = Addresses {
            most: 2,
            trusted: Arc::new(TrustedProxies::new(&["198.51.100.0/24".into()]).expect("a network")),
            connected: HashMap::default(),
            sweep_at: 0,
        };
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut places = Vec::new();
        for (address, fits) in [
            ("192.0.2.1", true),
            ("::ffff:192.0.2.1", true),
            ("192.0.2.1", false),
            ("192.0.2.2", true),
            ("2001:db8::1", true),
            ("2001:db8::2", true),
            ("2001:db8::3", false),
            ("2001:db8:0:1::3", true),
        ] {
            let place = addresses.enter(ip(address));
            assert_eq!(place.is_ok(), fits, "{address} beside {} others: {place:?}", places.len());
            places.extend(place);
        }
        for _ in 0..5 {
            for own in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "198.51.100.7"] {
                assert!(addresses.enter(ip(own)).is_ok(), "{own} is this machine, or a proxy");
            }
        }
        let error = addresses.enter(ip("192.0.2.1")).expect_err("two are the most").to_string();
        assert!(error.contains("192.0.2.1 has 2 connections already"), "the log says whose: {error}");
        drop(places.remove(0));
        assert!(addresses.enter(ip("192.0.2.1")).is_ok(), "one has closed");
        drop(places);
        for n in 0..100_000 {
            let _ = addresses.enter(std::net::Ipv4Addr::from_bits(n).into());
        }
        assert!(addresses.connected.len() <= 64, "{} that have left are known", addresses.connected.len());
    }
}
