//! A connection's socket as used by hyper. Disconnects a peer that does not read its replies.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::http::request::peer::Socket;

/// A peer must read [`WRITE_LEAST`] bytes of a reply, or all of it, within this time: one that reads nothing, or a byte
/// now and then, would keep the reply in memory forever.
const WRITE_STALL: Duration = Duration::from_secs(10);
const WRITE_LEAST: usize = 64 * 1024;
/// Size of reads that bypass the runtime: see [`Socket::ask_kernel`].
const PIECE: usize = 4096;

/// A stream with two owners: hyper reads and writes it, and [`Peer`](crate::http::request::peer::Peer) watches it.
pub struct SharedStream {
    socket: Arc<Socket>,
    /// Set while a reply cannot be written.
    stalled: Option<Stall>,
}

/// A peer that reads slowly or not at all.
struct Stall {
    end: Pin<Box<Sleep>>,
    /// Bytes written since the stall began.
    taken: usize,
}

impl Stall {
    /// Ends the stall once enough was written.
    fn took(stalled: &mut Option<Stall>, done: &io::Result<usize>) {
        if let (Some(stall), Ok(n)) = (&mut *stalled, done) {
            stall.taken += n;
            if stall.taken >= WRITE_LEAST {
                *stalled = None;
            }
        }
    }
}

impl SharedStream {
    pub fn new(socket: Arc<Socket>) -> SharedStream {
        SharedStream { socket, stalled: None }
    }

    /// Writes until the kernel accepts no more. Fails if it accepts less than [`WRITE_LEAST`] in [`WRITE_STALL`].
    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let SharedStream { socket, stalled } = self;
        let stream = &socket.stream;
        while stream.poll_write_ready(cx)?.is_ready() {
            match stream.try_io(Interest::WRITABLE, || Ok(write(stream)?)) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    Stall::took(stalled, &done);
                    return Poll::Ready(done);
                }
            }
        }
        let stall = stalled.get_or_insert_with(|| Stall { end: Box::pin(sleep(WRITE_STALL)), taken: 0 });
        ready!(stall.end.as_mut().poll(cx));
        // The runtime is notified only when a third of the kernel's buffer is free, which is megabytes. The peer may
        // have read less.
        let done = write(stream).map_err(io::Error::from);
        if done.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Stall::took(stalled, &done);
        Poll::Ready(done)
    }

    /// Reads from the kernel regardless of the runtime's readiness state. `None` if there is nothing.
    fn read_from_kernel(&self, buf: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        let mut piece = [0; PIECE];
        let most = buf.remaining().min(PIECE);
        match recv(&self.socket.stream, &mut piece[..most], RecvFlags::DONTWAIT) {
            Ok((_, read)) => {
                if read > 0 {
                    // There may be more that the runtime is not aware of.
                    self.socket.ask_kernel();
                }
                buf.put_slice(&piece[..read]);
                Some(Ok(()))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => None,
            Err(error) => Some(Err(error.into())),
        }
    }
}

impl AsyncRead for SharedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = &self.socket;
        if socket.ask_kernel.swap(false, Ordering::Relaxed)
            && let Some(read) = self.read_from_kernel(buf)
        {
            socket.was_read.store(true, Ordering::Relaxed);
            return Poll::Ready(read);
        }
        loop {
            ready!(socket.stream.poll_read_ready(cx))?;
            let room = buf.remaining();
            let mut read = None;
            // Fewer bytes than the capacity: the kernel has no more. Reported to the runtime, which keeps events that
            // arrive meanwhile.
            let _: io::Result<()> = socket.stream.try_io(Interest::READABLE, || {
                // Reads into uninitialized memory, since most of a buffer is never used.
                let bytes = read.insert(socket.stream.try_read_buf(buf)).as_ref().copied().unwrap_or(room);
                if bytes < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match read {
                Some(Ok(_)) => {
                    socket.was_read.store(true, Ordering::Relaxed);
                    return Poll::Ready(Ok(()));
                }
                Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(e)),
                _ => {}
            }
        }
    }
}

impl AsyncWrite for SharedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| rustix::io::write(stream, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| rustix::io::writev(stream, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Everything is written.
        self.stalled = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&self.socket.stream, Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;

    /// Returns both ends of a connection: the server's, and its peer's.
    async fn connected() -> (SharedStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let peer = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        (SharedStream::new(Arc::new(Socket::new(stream))), peer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_a_byte_now_and_then_is_given_up() {
        let (mut stream, mut peer) = connected().await;
        let reader = async {
            // Enough at a time that the kernel notifies the server.
            let mut some = vec![0; WRITE_LEAST / 8];
            while let Ok(n) = tokio::io::AsyncReadExt::read(&mut peer, &mut some).await
                && n > 0
            {
                sleep(WRITE_STALL / 2).await;
            }
        };
        let all = vec![0; 64 << 20];
        let error = tokio::select! {
            written = stream.write_all(&all) => written.expect_err("the peer reads far too little"),
            () = reader => panic!("the connection ended before the server gave it up"),
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    /// Guards against disconnecting a slow reader: the runtime reports only megabytes of progress.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_slowly_is_served() {
        let (mut stream, mut peer) = connected().await;
        let reader = async {
            let mut some = vec![0; WRITE_LEAST];
            for _ in 0..60 {
                // Twelve times the minimum: the kernel reports free space when a sixteenth of its buffer is free.
                sleep(WRITE_STALL / 12).await;
                tokio::io::AsyncReadExt::read_exact(&mut peer, &mut some).await.expect("it is served");
                // The kernel moves bytes in real time, for which the clock waits.
                let moment = || std::thread::sleep(Duration::from_millis(2));
                tokio::task::spawn_blocking(moment).await.expect("no panic");
            }
        };
        let all = vec![0; 64 << 20];
        tokio::select! {
            written = stream.write_all(&all) => panic!("the peer has not read all: {written:?}"),
            () = reader => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let _peer = TcpStream::connect(address).await.expect("it listens");
        let (stream, _) = listener.accept().await.expect("it is connected");
        let mut stream = SharedStream::new(Arc::new(Socket::new(stream)));
        let began = Instant::now();
        // Far more than the kernel buffers for both ends.
        let written = stream.write_all(&vec![0; 64 << 20]).await;
        let error = written.expect_err("the peer does not read, so not all can be written");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(began.elapsed() >= WRITE_STALL, "given up after {:?}", began.elapsed());
    }
}
