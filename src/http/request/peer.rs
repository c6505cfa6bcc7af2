//! The other end of the connection that a request came on: where it is, and whether it is still there.
//!
//! A peer is *gone* when it has closed its connection, or only its writing side: the kernel tells both by the same
//! packet, and nearly everybody who sends it has left. Bytes that it sent before do not hide that.

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
    /// The runtime may not know of bytes that the kernel has: the next read asks the kernel itself.
    pub ask_kernel: AtomicBool,
    pub was_read: AtomicBool,
}

impl Socket {
    pub fn new(stream: TcpStream) -> Socket {
        Socket { stream, ask_kernel: AtomicBool::new(false), was_read: AtomicBool::new(false) }
    }

    /// Has the next read ask the kernel, whatever the runtime knows. The reader and the caller are one task, so
    /// the flag needs no order.
    pub fn ask_kernel(&self) {
        self.ask_kernel.store(true, Ordering::Relaxed);
    }
}

/// The other end of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Peer {
    pub socket: Arc<Socket>,
    /// Where it came from.
    pub addr: SocketAddr,
}

/// Who sent a request: the peer, or whom a proxy that is trusted says.
#[derive(Clone, Copy, Debug)]
pub struct ClientIp(pub IpAddr);

impl Peer {
    /// Whether it is gone, as far as the kernel knows now. One system call.
    pub fn is_gone(&self) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut sockets = [PollFd::new(&self.socket.stream, gone)];
        // An error is about the call, not about the peer.
        poll(&mut sockets, Some(&NOW)).is_ok() && sockets[0].revents().intersects(gone)
    }

    /// Returns when it is gone. hyper could notice as well, but for that it keeps a buffer of 8 KiB ready to read
    /// into, for every poll that is parked; and it would read the next requests for it. Makes no system call.
    pub async fn gone(&self) {
        let stream = &self.socket.stream;
        while let Ok(ready) = stream.ready(Interest::READABLE).await
            && !ready.is_read_closed()
        {
            // It sends its next request already, or the runtime has not forgotten the last one. The bytes stay
            // where they are. The runtime is told to forget them, so that it tells of the next event.
            self.socket.ask_kernel();
            let _: io::Result<()> =
                stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
        }
    }
}
