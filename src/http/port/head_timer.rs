//! The timer by which hyper ends connections that send no request's head. hyper sets one for each request, and most
//! are dropped at once: the head is there. So each connection has one timer of the runtime's, which is set again only
//! when it has fired too early. hyper-util's timer takes 390 instructions more, 0.9 % of a request.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use parking_lot::Mutex;

/// One connection's.
#[derive(Clone, Debug, Default)]
pub struct HeadTimer(Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>);

/// What hyper waits for.
struct Until {
    deadline: tokio::time::Instant,
    timer: HeadTimer,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until { deadline: deadline.into(), timer: self.clone() })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.0.lock();
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(self.deadline)));
        // One that was set for an earlier request fires first, and then is set for this one.
        if timer.deadline() > self.deadline {
            timer.as_mut().reset(self.deadline);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if timer.deadline() >= self.deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(self.deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_deadline() {
        let timer = HeadTimer::default();
        let began = timer.now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        // Dropped, as hyper does when a head has come: the runtime's timer stays.
        for dropped in [10, 12, 50] {
            let mut wait = timer.sleep_until(at(dropped));
            let polled = std::future::poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await;
            assert!(polled.is_pending(), "a wait until {dropped} s is over at once");
        }
        for (until, ends, why) in [
            (11, 11, "earlier than one that was dropped"),
            (60, 60, "later than all of those"),
            (5, 60, "over already"),
        ] {
            timer.sleep_until(at(until)).await;
            assert_eq!(timer.now(), at(ends), "the end of a wait until {until} s: {why}");
        }
    }
}
