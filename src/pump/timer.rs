//! A timer of the kernel's (timerfd), which counts in nanoseconds. The runtime's own timers count in whole milliseconds
//! and round up. Knows nothing of what is waited for.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// Waits for one time at once. The runtime takes it for the end of a pipe: both become readable, and are read without
/// blocking. (Its type for other descriptors can be made by unsafe code only.)
#[derive(Debug)]
pub struct Timer(Receiver);

impl Timer {
    /// Must be called within the runtime. Fails when the process may open no more files.
    pub fn new() -> io::Result<Timer> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Timer(Receiver::from_owned_fd_unchecked(fd)?))
    }

    /// Returns after `time`, by the monotonic clock. May be dropped before.
    pub async fn sleep(&mut self, time: Duration) -> io::Result<()> {
        if time.is_zero() {
            return Ok(());
        }
        let it_value = Timespec::try_from(time).map_err(|_| Errno::INVAL)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                // It was readable for an earlier time that nobody waited for.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(drop),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_time_that_was_given_up_does_not_end_the_next() {
        let mut timer = Timer::new().unwrap(); // the process may open files
        for time in [Duration::ZERO, Duration::from_micros(300), Duration::from_millis(3)] {
            tokio::select! {
                biased;
                done = timer.sleep(Duration::from_nanos(1)) => done.unwrap(), // as above
                () = std::future::ready(()) => {}
            }
            let began = Instant::now();
            timer.sleep(time).await.unwrap(); // as above
            assert!(began.elapsed() >= time, "a sleep of {time:?} took {:?}", began.elapsed());
        }
    }
}
