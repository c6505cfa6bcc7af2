//! An nginx that answers every request with a constant 201: what a request costs at all, as a yardstick. Debian's
//! package nginx-light has it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Outcome;
use super::client::Target;

/// A running nginx.
pub struct Nginx {
    master: Child,
    addr: SocketAddr,
    _dir: TempDir,
}

impl Nginx {
    /// Starts it on a free port, with a worker for each processor.
    pub fn start() -> Outcome<Nginx> {
        let dir = TempDir::new()?;
        let addr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let at = dir.path().display();
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};"))
            .join(" ");
        let text = format!(
            "daemon off; worker_processes auto; pid {at}/pid; error_log stderr crit;\n\
             events {{ worker_connections 20000; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; {paths}\n\
             server {{ listen {addr} reuseport; default_type application/json;\n\
             location / {{ return 201 '{{\"job_id\":\"01AAAAAAAAAAAAAAAAAAAAAAAA\",\"msg\":\"published\"}}'; }} }} }}\n"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, text)?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let master = command.spawn().map_err(|error| format!("nginx (Debian's nginx-light): {error}"))?;
        let nginx = Nginx { master, addr, _dir: dir };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(addr).is_err() {
            if Instant::now() > end {
                return Err("nginx does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(nginx)
    }

    /// Where it answers.
    pub fn target(&self) -> Target {
        Target::new(self.addr, None)
    }

    /// Its workers and this client, for a meter.
    pub fn processes(&self) -> Outcome<Vec<(&'static str, u32)>> {
        let master = self.master.id();
        let children = std::fs::read_to_string(format!("/proc/{master}/task/{master}/children"))?;
        let mut all = vec![("client", std::process::id())];
        for pid in children.split_whitespace() {
            all.push(("nginx", pid.parse()?));
        }
        Ok(all)
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
