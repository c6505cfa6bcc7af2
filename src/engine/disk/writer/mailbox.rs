//! The queue of calls for the writer thread. Sending from a tokio task does not wake the writer at once: tokio does so
//! after the worker thread has run the tasks that are ready now, so that their calls form one group and share a sync.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::{Condvar, Mutex};

use crate::engine::batch::{BatchLimit, BatchSize};
use crate::error::{Error, Result};

/// Capacity kept for calls.
const KEPT: usize = 1024;

/// The sending side.
#[derive(Debug)]
pub struct Sender<T> {
    mailbox: Arc<Mailbox<T>>,
    /// Wakes the receiver.
    waker: Waker,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { mailbox: self.mailbox.clone(), waker: self.waker.clone() }
    }
}

/// The receiving side; there is one.
#[derive(Debug)]
pub struct Receiver<T> {
    mailbox: Arc<Mailbox<T>>,
    limit: BatchLimit,
}

#[derive(Debug)]
struct Mailbox<T> {
    inner: Mutex<Inner<T>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Inner<T> {
    calls: Vec<T>,
    capacity: usize,
    closed: bool,
    /// Whether the receiver sleeps.
    asleep: bool,
}

impl<T: Send + 'static> Wake for Mailbox<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let asleep = std::mem::take(&mut self.inner.lock().asleep);
        if asleep {
            self.arrived.notify_one();
        }
    }
}

/// Creates a mailbox. `capacity` calls may wait; further ones fail with [`Error::Overloaded`]. A group is at most
/// `limit`, except that a single larger call forms a group alone.
pub fn mailbox<T: BatchSize + Send + 'static>(
    capacity: usize,
    limit: BatchLimit,
) -> (Sender<T>, Receiver<T>) {
    let inner = Inner { calls: Vec::new(), capacity, closed: false, asleep: false };
    let mailbox = Arc::new(Mailbox { inner: Mutex::new(inner), arrived: Condvar::new() });
    let waker = Waker::from(mailbox.clone());
    (Sender { mailbox: mailbox.clone(), waker }, Receiver { mailbox, limit })
}

impl<T: BatchSize> Sender<T> {
    /// Queues a call, which carries its own reply channel. Fails with [`Error::Overloaded`] if the queue is full and
    /// with [`Error::Closed`] without a receiver. A caller that then blocks its thread must [`wake`](Sender::wake) the
    /// receiver.
    pub fn send(&self, call: T) -> Result<()> {
        let mut inner = self.mailbox.inner.lock();
        if inner.closed {
            return Err(Error::Closed);
        }
        if inner.calls.len() >= inner.capacity {
            return Err(Error::Overloaded);
        }
        inner.calls.push(call);
        if inner.asleep {
            drop(inner);
            // Registers the waker with tokio, which calls it once this thread has run the tasks that are ready and
            // polled for more; without tokio it is called at once. The current task does not yield.
            let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&self.waker));
        }
        Ok(())
    }
}

impl<T> Sender<T> {
    /// Wakes the receiver now: for a thread that blocks instead of returning to its runtime.
    pub fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

impl<T: BatchSize> Receiver<T> {
    /// Waits for calls and moves all that wait, up to the limit, into `group`, which must be empty. Returns false once
    /// the mailbox is closed and empty.
    pub fn next(&mut self, group: &mut Vec<T>) -> bool {
        let mut inner = self.mailbox.inner.lock();
        while inner.calls.is_empty() {
            if inner.closed {
                return false;
            }
            inner.asleep = true;
            self.mailbox.arrived.wait(&mut inner);
            inner.asleep = false;
        }
        let (mut count, mut items, mut bytes) = (0, 0, 0);
        for call in &inner.calls {
            items += call.items();
            bytes += call.bytes();
            if count > 0 && !self.limit.holds(items, bytes) {
                break;
            }
            count += 1;
        }
        if count == inner.calls.len() {
            std::mem::swap(&mut inner.calls, group);
            inner.calls.shrink_to(KEPT);
        } else {
            group.extend(inner.calls.drain(..count));
        }
        true
    }

    /// Accepts no more calls; those queued are still returned by `next`.
    pub fn close(&mut self) {
        self.mailbox.inner.lock().closed = true;
    }
}

/// Drops queued calls, and with them their replies.
impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut inner = self.mailbox.inner.lock();
        inner.closed = true;
        let calls = std::mem::take(&mut inner.calls);
        drop(inner);
        drop(calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Jobs(usize);

    impl BatchSize for Jobs {
        fn items(&self) -> usize {
            self.0
        }
    }

    const LIMIT: BatchLimit = BatchLimit { items: 4, bytes: 1 };

    fn next(calls: &mut Receiver<Jobs>) -> Option<Vec<usize>> {
        let mut group = Vec::new();
        calls.next(&mut group).then(|| group.iter().map(|jobs| jobs.0).collect())
    }

    #[test]
    fn calls_that_wait_go_together_up_to_the_bound() {
        let (sender, mut calls) = mailbox(16, LIMIT);
        for jobs in [1, 2, 3, 9, 4] {
            sender.send(Jobs(jobs)).unwrap(); // there is room
        }
        let sizes: Vec<_> = (0..4).map(|_| next(&mut calls)).collect();
        let expected = [vec![1, 2], vec![3], vec![9], vec![4]].map(Some);
        assert_eq!(sizes, expected, "at most 4 jobs per group, and a larger call alone");
    }

    #[test]
    fn a_full_mailbox_refuses_and_a_closed_one_says_so() {
        let (sender, mut calls) = mailbox(1, LIMIT);
        sender.send(Jobs(1)).unwrap(); // there is room for one
        assert!(matches!(sender.send(Jobs(1)), Err(Error::Overloaded)), "one waits already");
        calls.close();
        assert!(matches!(sender.send(Jobs(1)), Err(Error::Closed)), "no more are taken");
        assert_eq!(next(&mut calls), Some(vec![1]), "queued calls are still served");
        assert_eq!(next(&mut calls), None, "there will be no more");
    }

    #[test]
    fn calls_that_nobody_will_serve_are_dropped() {
        struct Dropped(#[expect(dead_code, reason = "it is counted")] Arc<()>);
        impl BatchSize for Dropped {
            fn items(&self) -> usize {
                1
            }
        }
        let (sender, calls) = mailbox(16, LIMIT);
        let call = Arc::new(());
        sender.send(Dropped(call.clone())).unwrap(); // there is room
        drop(calls);
        assert_eq!(Arc::strong_count(&call), 1, "references to the call");
        assert!(matches!(sender.send(Dropped(call)), Err(Error::Closed)), "the receiver has been dropped");
    }

    #[test]
    fn a_receiver_that_sleeps_is_woken_from_a_thread_without_a_runtime() {
        let (sender, mut calls) = mailbox(16, LIMIT);
        let served = std::thread::spawn(move || next(&mut calls));
        asleep(&sender);
        sender.send(Jobs(2)).unwrap(); // there is room
        assert_eq!(served.join().unwrap(), Some(vec![2])); // it does not panic
    }

    #[tokio::test]
    async fn a_thread_that_blocks_its_runtime_can_wake_it() {
        let (sender, mut calls) = mailbox(16, LIMIT);
        let served = std::thread::spawn(move || next(&mut calls));
        asleep(&sender);
        sender.send(Jobs(2)).unwrap(); // there is room
        sender.wake();
        assert_eq!(served.join().unwrap(), Some(vec![2])); // it does not panic
    }

    #[test]
    fn tasks_that_are_ready_together_wake_it_once_and_share_a_group() {
        for runtime in [tokio::runtime::Builder::new_current_thread(), {
            let mut one = tokio::runtime::Builder::new_multi_thread();
            one.worker_threads(1);
            one
        }] {
            let mut runtime = runtime;
            let (sender, mut calls) = mailbox(16, LIMIT);
            let served = std::thread::spawn(move || next(&mut calls));
            asleep(&sender);
            // From one task, since separately spawned tasks may start one by one.
            runtime.build().unwrap().block_on(async {
                let send = async move {
                    for _ in 0..4 {
                        sender.send(Jobs(1)).unwrap(); // there is room
                        assert!(sender.mailbox.inner.lock().asleep, "it is woken before the tasks have run");
                    }
                };
                tokio::spawn(send).await.unwrap(); // it does not panic
            });
            assert_eq!(served.join().unwrap(), Some(vec![1; 4]), "the calls of one group"); // nor does this
        }
    }

    /// Waits until the receiver sleeps.
    fn asleep(sender: &Sender<Jobs>) {
        while !sender.mailbox.inner.lock().asleep {
            std::thread::yield_now();
        }
    }
}
