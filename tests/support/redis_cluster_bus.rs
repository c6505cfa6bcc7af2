//! A cluster whose nodes connect to each other through proxies, so that some of them can be partitioned from the others
//! while clients still reach all. The proxies recognise a node by its source address.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::redis_cluster::RedisCluster;
use super::redis_server::BUS;

/// Nodes connect from 127.0.0.10, .11, ..
const FIRST_ADDRESS: usize = 10;

/// Three masters with a replica each.
pub struct PartedCluster {
    pub cluster: RedisCluster,
    ways: Arc<Ways>,
    /// Addresses of the proxies.
    proxies: Vec<SocketAddr>,
}

/// Connections between nodes.
#[derive(Default)]
struct Ways {
    /// The nodes on one side, a bit for each; the others are on the other side.
    side: AtomicU64,
    open: Mutex<Vec<(usize, usize, [TcpStream; 2])>>,
    closed: AtomicBool,
}

impl PartedCluster {
    pub fn start() -> PartedCluster {
        let ways: Arc<Ways> = Arc::default();
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for node in 0..6 {
            let proxy = TcpListener::bind("127.0.0.1:0").expect("a port can be bound");
            let addr = proxy.local_addr().expect("it is bound");
            let (port, from) = (addr.port().to_string(), format!("127.0.0.{}", FIRST_ADDRESS + node));
            // Replicas authenticate, so that a master can refuse them.
            let server = RedisCluster::server_with(&[
                &["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-bus-port", &port][..],
                &["--bind-source-addr", &from, "--masteruser", "copies", "--masterauth", "copies"],
                &["--user", "copies", "on", ">copies", "+ping", "+psync", "+replconf"],
                // Protected mode accepts only 127.0.0.1 from this machine.
                &["--protected-mode", "no"],
            ]);
            let (ways, to) = (ways.clone(), SocketAddr::from(([127, 0, 0, 1], server.port + BUS)));
            thread::spawn(move || ways.serve(&proxy, node, to));
            proxies.push(addr);
            servers.push(server);
        }
        let parted = PartedCluster { cluster: RedisCluster::of(servers, 1).quick(), ways, proxies };
        parted.know_proxies();
        parted
    }

    /// Waits until each node reaches the others through the proxies.
    fn know_proxies(&self) {
        let began = Instant::now();
        let knows = |server: usize| {
            let nodes: String = self.cluster.tell(server, &["CLUSTER", "NODES"]);
            self.proxies.iter().all(|addr| nodes.contains(&format!("@{}", addr.port())))
        };
        while !(0..self.cluster.servers.len()).all(knows) {
            assert!(began.elapsed() < Duration::from_secs(20), "nodes do not know of the proxies");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Partitions these nodes from the others.
    pub fn cut_off(&self, nodes: &[usize]) {
        let side = nodes.iter().fold(0, |side, node| side | 1_u64 << node);
        self.part(side);
        for node in nodes {
            self.tell_copies(*node, "off");
        }
    }

    /// Ends the partition.
    pub fn join(&self) {
        self.part(0);
        for (node, server) in self.cluster.servers.iter().enumerate() {
            if server.child.is_some() {
                self.tell_copies(node, "on");
            }
        }
    }

    /// Allows or forbids replication from this node. Replicas connect to their master's client port, without a proxy.
    fn tell_copies(&self, node: usize, whether: &str) {
        self.cluster.tell::<()>(node, &["ACL", "SETUSER", "copies", whether]);
        if whether == "off" {
            self.cluster.tell::<u64>(node, &["CLIENT", "KILL", "TYPE", "replica"]);
        }
    }

    fn part(&self, side: u64) {
        self.ways.side.store(side, Ordering::SeqCst);
        let open = self.ways.open.lock();
        for (_, _, both) in open.iter().filter(|(from, to, _)| self.ways.is_cut(*from, *to)) {
            both.iter().for_each(close);
        }
    }
}

impl Drop for PartedCluster {
    fn drop(&mut self) {
        self.ways.closed.store(true, Ordering::SeqCst);
        for proxy in &self.proxies {
            // Makes the accept return.
            let _ = TcpStream::connect(proxy);
        }
        self.ways.open.lock().iter().for_each(|(_, _, both)| both.iter().for_each(close));
    }
}

impl Ways {
    fn is_cut(&self, from: usize, to: usize) -> bool {
        let side = self.side.load(Ordering::SeqCst);
        (side >> from ^ side >> to) & 1 == 1
    }

    /// Serves connections to a node.
    fn serve(self: &Arc<Self>, proxy: &TcpListener, node: usize, to: SocketAddr) {
        while let Ok((stream, peer)) = proxy.accept() {
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let IpAddr::V4(peer) = peer.ip() else { continue };
            let from = usize::from(peer.octets()[3]).wrapping_sub(FIRST_ADDRESS);
            // A killed node is restarted later.
            if from < 64
                && let Ok(onwards) = TcpStream::connect(to)
            {
                let _ = self.carry(from, node, [stream, onwards]);
            }
        }
    }

    fn carry(self: &Arc<Self>, from: usize, to: usize, [a, b]: [TcpStream; 2]) -> io::Result<()> {
        let mut open = self.open.lock();
        if self.is_cut(from, to) {
            return Ok(());
        }
        open.retain(|(_, _, both)| both.iter().all(|stream| stream.take_error().is_ok_and(|e| e.is_none())));
        open.push((from, to, [a.try_clone()?, b.try_clone()?]));
        for (from, to) in [(a.try_clone()?, b.try_clone()?), (b, a)] {
            thread::spawn(move || copy(from, to));
        }
        Ok(())
    }
}

/// Copies bytes until either side closes.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 16_384];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    close(&from);
    close(&to);
}

fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both); // it may be closed already
}
