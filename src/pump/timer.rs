//! A kernel timer (timerfd) with nanosecond resolution. The runtime's own timers have milliseconds and round up.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// A timer for one wait at a time. The runtime treats it as the reading end of a pipe, since both become readable and
/// are read without blocking. (Its type for arbitrary descriptors requires unsafe code.)
#[derive(Debug)]
pub struct Timer(Receiver);

impl Timer {
    /// Creates a timer. Must be called within the runtime. Fails if the process may open no more files.
    pub fn new() -> io::Result<Timer> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(Timer(Receiver::from_owned_fd_unchecked(fd)?))
    }

    /// Returns after `time`, by the monotonic clock. Cancel safe.
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
                // It was readable because of an earlier, abandoned wait.
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
