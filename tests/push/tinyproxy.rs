//! A real HTTP proxy, tinyproxy. Debian's package tinyproxy-bin contains it.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::support::redis_server::free_port;
use crate::support::wait::TIMEOUT;

/// A running proxy on this machine. Stops on drop.
pub struct Tinyproxy {
    child: Child,
    addr: SocketAddr,
    dir: TempDir,
}

impl Tinyproxy {
    /// Starts on a free port.
    pub fn start() -> Tinyproxy {
        let (dir, addr) =
            (TempDir::new().expect("a temporary directory"), SocketAddr::from(([127, 0, 0, 1], free_port())));
        let log = dir.path().join("log");
        let conf = format!(
            "Listen 127.0.0.1\nPort {}\nAllow 127.0.0.1\nTimeout 60\nMaxClients 50\nLogFile \"{}\"\nLogLevel Connect\n\
             ViaProxyName \"the-proxy\"\n",
            addr.port(),
            log.display()
        );
        let file = dir.path().join("tinyproxy.conf");
        std::fs::write(&file, conf).expect("it can be written");
        let mut command = Command::new("tinyproxy");
        command
            .arg("-d")
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child =
            command.spawn().unwrap_or_else(|e| panic!("tinyproxy ({e}): run tests/run, which installs it"));
        let proxy = Tinyproxy { child, addr, dir };
        let began = Instant::now();
        while TcpStream::connect(addr).is_err() {
            assert!(began.elapsed() < TIMEOUT, "tinyproxy should listen on {addr}; it says: {}", proxy.log());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        proxy
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns its log of requests so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Tinyproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
