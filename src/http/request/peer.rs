//! The client's end of a connection: its address, and whether it is still connected.
//!
//! A peer is *gone* when it has closed its connection, or only its writing side: the kernel reports both by the same
//! packet, and nearly all clients that send it have disconnected. Unread bytes do not hide that.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::net::TcpStream;

#[derive(Debug)]
pub struct Socket {
    pub stream: TcpStream,
    /// The runtime may be unaware of bytes in the kernel, so the next read bypasses it.
    pub ask_kernel: AtomicBool,
    pub was_read: AtomicBool,
}

impl Socket {
    pub fn new(stream: TcpStream) -> Socket {
        Socket { stream, ask_kernel: AtomicBool::new(false), was_read: AtomicBool::new(false) }
    }

    /// Makes the next read bypass the runtime. The reader and the caller are one task, so relaxed ordering suffices.
    pub fn ask_kernel(&self) {
        self.ask_kernel.store(true, Ordering::Relaxed);
    }
}

/// The client's end of the connection of a request.
#[derive(Clone, Debug)]
pub struct Peer {
    pub socket: Arc<Socket>,
    /// Its address.
    pub addr: SocketAddr,
}

/// Address of the client: the peer's, or the one reported by a trusted proxy.
#[derive(Clone, Copy, Debug)]
pub struct ClientIp(pub IpAddr);

impl Peer {
    /// Whether the client is gone. One system call.
    pub fn is_gone(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut sockets = [PollFd::new(&self.socket.stream, gone)];
        // An error concerns the call, not the peer.
        poll(&mut sockets, Some(&NOW)).is_ok() && sockets[0].revents().intersects(gone)
    }

    /// Waits until the client is gone. hyper could detect this too, but would keep an 8 KiB read buffer for every
    /// parked poll and read the next requests. Makes no system calls.
    pub async fn gone(&self) {
        let stream = &self.socket.stream;
        while let Ok(ready) = stream.ready(Interest::READABLE).await
            && !ready.is_read_closed()
        {
            // It is sending its next request already, or the runtime has not cleared the previous readiness. The bytes
            // stay in the kernel; clearing readiness makes the runtime report the next event.
            self.socket.ask_kernel();
            let _: io::Result<()> =
                stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
        }
    }
}
