//! Notifies a service manager of the process state, as with systemd's `Type=notify`: by datagrams to the socket in
//! `NOTIFY_SOCKET`. Does nothing without that variable.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Notifies that the server is ready.
pub fn ready() {
    tell("READY=1");
}

/// Notifies that the server is stopping, which takes at most `within`.
pub fn stopping(within: Duration) {
    // Without the second line the manager would kill it after its own timeout.
    tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", within.as_micros()));
}

fn tell(text: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, text) {
        tracing::warn!(%error, "the service manager could not be notified");
    }
}

/// Sends a datagram to `socket`; a name that begins with @ is an abstract socket.
fn send(socket: &OsStr, text: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // Must not block if the manager hangs.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(text.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_file_or_a_name() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("notify");
        let name = format!("dormouse-test-{}", std::process::id());
        let of_name = SocketAddr::from_abstract_name(&name).expect("a short name");
        for (socket, at) in [
            (UnixDatagram::bind(&path).expect("a new file"), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&of_name).expect("a new name"), format!("@{name}").into()),
        ] {
            send(&at, "READY=1").expect("the socket is bound");
            let mut text = [0; 64];
            let n = socket.recv(&mut text).expect("it was sent");
            assert_eq!(&text[..n], b"READY=1", "at {at:?}");
        }
        assert!(send(OsStr::new("/nonexistent/socket"), "x").is_err(), "nobody listens");
    }
}
