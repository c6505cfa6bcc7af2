//! A real nginx with a test's configuration. Debian's package nginx-light contains it.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::redis_server::free_port;

/// Timeout until it listens.
const START: Duration = Duration::from_secs(20);

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    pub master: Child,
    addr: SocketAddr,
    _dir: TempDir,
}

impl Nginx {
    /// Starts nginx on a free port. `http` returns the contents of the `http` block, given the address to listen on.
    pub fn start(dir: TempDir, http: impl Fn(SocketAddr) -> String) -> Result<Nginx, String> {
        let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let at = dir.path().display();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};"))
            .join(" ");
        let text = format!(
            "daemon off; worker_processes auto; pid {at}/pid; error_log stderr crit;\n\
             events {{ worker_connections 20000; }}\n\
             http {{ access_log off; {paths}\n{} }}\n",
            http(addr)
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let master = command.spawn().map_err(|e| format!("nginx (Debian's nginx-light): {e}"))?;
        // It writes this file once it has bound its port, which another process may have taken.
        let pid = dir.path().join("pid");
        let mut nginx = Nginx { master, addr, _dir: dir };
        let end = Instant::now() + START;
        while !pid.exists() || TcpStream::connect(addr).is_err() {
            if let Ok(Some(status)) = nginx.master.try_wait() {
                return Err(format!("nginx has ended: {status}"));
            }
            if Instant::now() > end {
                return Err("nginx does not listen".to_owned());
            }
            // There is no event for a process that has started to listen.
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(nginx)
    }

    /// Returns the address on which it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM ends the workers too; SIGKILL would leave them behind.
        if let Some(pid) = rustix::process::Pid::from_raw(self.master.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.master.wait();
    }
}
