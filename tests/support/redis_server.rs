//! A real redis-server of a test's own: a free port, a directory that goes with it, killed on drop.

// Each test crate that includes this file uses another part of it.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dormouse::engine::redis::RedisAddress;

/// How long a server may take to answer its first PING.
const START: Duration = Duration::from_secs(20);

/// A running redis-server, or a killed one that can be started again on its port.
#[derive(Debug)]
pub struct RedisServer {
    dir: tempfile::TempDir,
    port: u16,
    args: Vec<String>,
    password: Option<String>,
    /// The configuration of a Sentinel, which is another kind of server in the same binary.
    sentinel: Option<String>,
    /// Its environment, beside the test's.
    env: Vec<(&'static str, String)>,
    child: Option<Child>,
}

impl RedisServer {
    /// A server that syncs its append-only file every second, as production ones do.
    pub fn start() -> RedisServer {
        RedisServer::start_with(None, &[])
    }

    /// The same with a password and further arguments, which win over the usual ones.
    pub fn start_with(password: Option<&str>, args: &[&str]) -> RedisServer {
        RedisServer::start_kind(password, args, None, Vec::new())
    }

    /// A server with this environment beside the test's.
    pub fn start_in(env: Vec<(&'static str, String)>) -> RedisServer {
        RedisServer::start_kind(None, &[], None, env)
    }

    /// A Sentinel with this configuration; the file must be its own, since it writes there.
    pub fn start_sentinel(conf: &str) -> RedisServer {
        RedisServer::start_kind(None, &[], Some(conf), Vec::new())
    }

    fn start_kind(
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

    /// `host:port`.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The keys of a pool on it, for a configuration.
    pub fn keys(&self) -> String {
        let password = self.password.as_ref().map_or(String::new(), |p| format!("Password = {p:?}\n"));
        format!("Addr = {:?}\n{password}", self.addr())
    }

    /// Its address for an engine or an admin store, which may make all the connections that it wants.
    pub fn address(&self) -> RedisAddress {
        let addrs = vec![self.addr()];
        RedisAddress { addrs, password: self.password.clone(), pool_size: 16, ..RedisAddress::default() }
    }

    /// The process, for figures from /proc.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Stops it from running, until the answer is dropped. Its connections stay.
    pub fn stall(&self) -> Stalled {
        let stalled = Stalled(self.pid());
        stalled.signal("STOP");
        stalled
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
        }
    }

    /// Starts it again after a kill, on the same port with the same data.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..10 {
            if self.launch() {
                return;
            }
        }
        panic!("redis-server did not start again on port {}", self.port)
    }

    /// A plain connection, for what a server of another kind or an operator would do.
    pub fn connection(&self) -> redis::Connection {
        let secret = self.password.as_ref().map_or(String::new(), |p| format!(":{p}@"));
        let client = redis::Client::open(format!("redis://{secret}{}", self.addr())).expect("a good URL");
        client.get_connection_with_timeout(Duration::from_secs(5)).expect("the server takes connections")
    }

    /// Starts the process and waits until it answers. `false` when it ended instead: somebody took the port.
    fn launch(&mut self) -> bool {
        let mut command = Command::new("redis-server");
        if let Some(conf) = &self.sentinel {
            // A name on the command line goes before options.
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
            // Nothing tells when a process has begun to listen.
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server on port {} did not answer within {START:?}", self.port)
    }

    /// Whether it answers PING, and is no longer loading. Needing a password is an answer.
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

/// A process that does not run.
pub struct Stalled(u32);

impl Stalled {
    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.0.to_string()]).status();
        assert!(status.is_ok_and(|s| s.success()), "kill -{name} works");
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        self.signal("CONT");
    }
}

/// A port that was free a moment ago. Somebody may take it meanwhile, so starting on it may fail.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port can be bound");
    listener.local_addr().expect("a bound socket has an address").port()
}
