//! How the answers of a group get from the writer to those who asked. Knows nothing of what a call does.
//!
//! A runtime of one thread makes a system call whenever another thread wakes one of its tasks. So the writer hands such
//! a runtime the group as a whole, and the tasks are woken from there. A runtime of several threads makes that call
//! only when none of them is awake: there the writer answers by itself.

use std::sync::Arc;

use tokio::runtime::{Handle, RuntimeFlavor};

use super::op::Op;
use super::poison::Poison;
use crate::engine::notifier::Notifiers;
use crate::name::Queue;

/// A group that was served and committed. It is answered when this is dropped, wherever that is. Where the store has been
/// poisoned by then, its calls are told so, as those under way are.
pub struct Served {
    pub ops: Vec<Op>,
    /// Their consumers are told that there may be jobs.
    pub queues: Vec<Queue>,
    pub poison: Arc<Poison>,
    pub notifiers: Arc<Notifiers>,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _guard = PoisonOnPanic(&self.poison);
        for op in &mut self.ops {
            op.answer(&self.poison);
        }
        for queue in &self.queues {
            self.notifiers.notify(queue);
        }
    }
}

/// Lives while a group is answered. A panic meanwhile poisons the store, as one of the writer's thread does: consumers
/// may not have been told of jobs.
struct PoisonOnPanic<'a>(&'a Poison);

impl Drop for PoisonOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set("a panic while a group was answered");
        }
    }
}

/// Where groups are answered.
pub struct Answers {
    /// The runtime of those who ask, if it has one thread.
    runtime: Option<Handle>,
}

impl Answers {
    /// For an engine that is opened from a task of its callers' runtime.
    pub fn of_this_runtime() -> Answers {
        let runtime = Handle::try_current().ok();
        let has_one_thread = |runtime: &Handle| runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        Answers { runtime: runtime.filter(has_one_thread) }
    }

    /// Answers a group.
    pub fn send(&self, mut served: Served) {
        // The thread that sweeps asks some of the other verbs, and the runtime's thread may wait for it when an engine ends.
        for mut op in served.ops.extract_if(.., |op| matches!(op, Op::Other(_))) {
            op.answer(&served.poison);
        }
        match &self.runtime {
            Some(runtime) if served.ops.len() + served.queues.len() > 1 => {
                runtime.spawn(async move { drop(served) });
            }
            _ => drop(served),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::super::ack::Ack;
    use super::super::op::Call;
    use super::*;
    use crate::engine::notifier::Notifier;
    use crate::job::{JobId, JobRef};
    use crate::name::{Namespace, QueueName};

    type Answer = tokio::sync::oneshot::Receiver<crate::error::Result<()>>;

    fn queue() -> Queue {
        let (namespace, name) = (Namespace::parse("ns"), QueueName::parse("q"));
        Queue { namespace: namespace.unwrap(), name: name.unwrap() } // literals
    }

    fn ack() -> (Call<Ack>, Answer) {
        Call::new(Ack(JobRef { queue: queue(), id: JobId::from_parts(1, 1, 0, false) }))
    }

    /// Two calls of a hot verb, and one of another.
    fn served() -> (Served, [Answer; 3]) {
        let [(one, a), (two, b), (other, c)] = [ack(), ack(), ack()];
        let ops = vec![Op::Ack(one), Op::Other(Box::new(other)), Op::Ack(two)];
        let served = Served { ops, queues: Vec::new(), poison: Arc::default(), notifiers: Arc::default() };
        (served, [a, b, c])
    }

    /// Which of them have their answer.
    fn answered(answers: &mut [Answer; 3]) -> [bool; 3] {
        answers.each_mut().map(|answer| !matches!(answer.try_recv(), Err(TryRecvError::Empty)))
    }

    /// As the writer does, whose thread is none of the runtime's.
    fn send(answers: &Answers, served: Served) {
        std::thread::scope(|scope| {
            scope.spawn(|| answers.send(served));
        });
    }

    #[test]
    fn a_runtime_of_one_thread_answers_a_group_itself_but_for_calls_that_block() {
        let runtime = Builder::new_current_thread().build().unwrap(); // there are descriptors for one
        runtime.block_on(async {
            let answers = Answers::of_this_runtime();
            let (served, mut waiting) = served();
            send(&answers, served);
            assert_eq!(answered(&mut waiting), [false, false, true], "before the runtime has had its turn");
            tokio::task::yield_now().await;
            for answer in waiting.iter_mut().take(2) {
                // It was never run, which is an answer too.
                assert!(matches!(answer.await, Ok(Err(crate::error::Error::Closed))), "after its turn");
            }
        });
    }

    #[test]
    fn elsewhere_the_writer_answers() {
        let (served, mut waiting) = served();
        send(&Answers::of_this_runtime(), served);
        assert_eq!(answered(&mut waiting), [true; 3], "without a runtime");
        let runtime = Builder::new_multi_thread().worker_threads(2).build().unwrap(); // as above
        let (served, mut waiting) = self::served();
        send(&runtime.block_on(async { Answers::of_this_runtime() }), served);
        assert_eq!(answered(&mut waiting), [true; 3], "with a runtime of two threads");
    }

    #[test]
    fn a_panic_while_a_group_is_answered_poisons_the_store() {
        #[derive(Debug)]
        struct Panics;
        impl Notifier for Panics {
            fn notify(&self, _: &Queue) {
                panic!("on purpose");
            }
            fn notify_all(&self) {}
            fn waits_for(&self, _: &Queue) -> bool {
                false
            }
            fn waited_for(&self) -> Vec<Queue> {
                Vec::new()
            }
        }
        let (mut served, _waiting) = served();
        let (notifier, poison): (Arc<dyn Notifier>, _) = (Arc::new(Panics), served.poison.clone());
        served.notifiers.attach(Arc::downgrade(&notifier));
        served.queues.push(queue());
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(served)));
        assert!(dropped.is_err() && poison.error().is_some(), "{dropped:?}, and then {:?}", poison.error());
    }

    #[test]
    fn a_runtime_that_has_ended_keeps_no_answer() {
        let runtime = Builder::new_current_thread().build().unwrap(); // as above
        let answers = runtime.block_on(async { Answers::of_this_runtime() });
        drop(runtime);
        let (served, mut waiting) = served();
        send(&answers, served);
        assert_eq!(answered(&mut waiting), [true; 3], "after the runtime's end");
    }
}
