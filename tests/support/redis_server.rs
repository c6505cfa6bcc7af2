//! A real redis-server for one test: on a free port, in a temporary directory, killed on drop. The environment variable
//! REDIS_SERVER selects another binary, to test other versions.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Timeout for a server's first reply to PING.
const START: Duration = Duration::from_secs(20);

/// A running redis-server, or a killed one that can be started again on its port.
#[derive(Debug)]
pub struct RedisServer {
    dir: tempfile::TempDir,
    pub port: u16,
    pub args: Vec<String>,
    pub password: Option<String>,
    /// The configuration of a Sentinel, which is another kind of server in the same binary.
    sentinel: Option<String>,
    /// Its environment, added to the test's.
    env: Vec<(&'static str, String)>,
    pub child: Option<Child>,
}

impl RedisServer {
    /// Starts a server that syncs its append-only file every second, as production servers do.
    pub fn start() -> RedisServer {
        RedisServer::start_with(None, &[])
    }

    /// Starts a server with a password and further arguments, which override the defaults.
    pub fn start_with(password: Option<&str>, args: &[&str]) -> RedisServer {
        RedisServer::start_kind(password, args, None, Vec::new())
    }

    /// Starts a server, or a Sentinel with its own configuration file, to which it writes; with additional environment
    /// variables.
    pub fn start_kind(
        password: Option<&str>,
        args: &[&str],
        sentinel: Option<&str>,
        env: Vec<(&'static str, String)>,
    ) -> RedisServer {
        for _ in 0..10 {
            let mut server = RedisServer {
                dir: tempfile::tempdir().expect("a temporary directory can be made"),
                port: free_port(),
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                password: password.map(str::to_owned),
                sentinel: sentinel.map(str::to_owned),
                env: env.clone(),
                child: None,
            };
            if server.launch() {
                return server;
            }
        }
        panic!("redis-server did not start on ten ports, one after the other")
    }

    /// Returns `host:port`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the server (`kill -9`).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
        }
    }

    /// Starts the process and waits until it replies. `false` if it ended instead, because the port was taken.
    pub fn launch(&mut self) -> bool {
        let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
        let mut command = Command::new(program);
        if let Some(conf) = &self.sentinel {
            // A file name on the command line precedes options.
            command.arg(conf).arg("--sentinel");
        }
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"]).arg(self.dir.path());
        if self.sentinel.is_none() {
            command.args(["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]);
        }
        if let Some(password) = &self.password {
            command.args(["--requirepass", password]);
        }
        command.envs(self.env.iter().cloned());
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = match command.spawn() {
            Ok(child) => child,
            Err(e) => panic!("redis-server cannot be run ({e}): run tests/run, which installs it"),
        };
        self.child = Some(child);
        let begun = Instant::now();
        while begun.elapsed() < START {
            let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended {
                self.kill();
                return false;
            }
            if self.answers() {
                return true;
            }
            // There is no event for a process that has started to listen.
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server on port {} did not answer within {START:?}", self.port)
    }

    /// Whether it replies to PING, and is no longer loading. A demand for a password counts as a reply.
    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.addr()) else { return false };
        let mut answer = [0; 7];
        stream.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
            && stream.write_all(b"PING\r\n").is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && (&answer == b"+PONG\r\n" || &answer == b"-NOAUTH")
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Difference between a node's cluster bus port and its port.
pub const BUS: u16 = 10_000;

/// Returns a port that was free a moment ago, as was its bus port; starting on it may still fail. Connections cannot
/// take either while the server is down: both are below the range of ephemeral ports. Nor do other tests, which choose
/// from another part of the ports, or the same process soon.
pub fn free_port() -> u16 {
    const LEAST: u16 = 10_000;
    // nextest numbers the tests that run at the same time, from 0. They are fewer.
    const PARTS: u16 = 16;
    // Starts at random, as a new state is: another run of the tests may use the same part.
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(RandomState::new().build_hasher().finish() >> 1));
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let given = range.split_whitespace().next().and_then(|port| port.parse::<u16>().ok()).unwrap_or(32_768);
    // The ports end before the bus ports begin.
    let end = given.saturating_sub(BUS).clamp(LEAST + 1000, LEAST + BUS);
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok().and_then(|slot| slot.parse::<u16>().ok());
    let ports = (end - LEAST) / PARTS;
    let first = LEAST + slot.unwrap_or(0) % PARTS * ports;
    loop {
        let port = first + (NEXT.fetch_add(1, Ordering::Relaxed) % u64::from(ports)) as u16;
        if [port, port + BUS].iter().all(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return port;
        }
    }
}
