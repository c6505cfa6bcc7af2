//! The dispatcher over the model engine: which consumers are parked and served, and that no job and no wake-up is lost.
//! tokio's clock is paused: timeouts pass instantly, and never early.

use std::sync::Arc;
use std::time::Duration;

use crate::gated::Gated;
use crate::stage::{Draft, Stage, VirtualStage, bodies, job, manual_clock, ok, queue, queue_in, queue_list};
use crate::support::model::ModelEngine;
use dormouse::dispatch::{ConsumeError, Delivery, Dispatcher, ParkedPolls, Request, Weights};
use dormouse::engine::Engine;
use dormouse::engine::notifier::Notifier;
use dormouse::error::Error;
use dormouse::name::{Queue, QueueList};
use dormouse::process::tasks::Failure;
use tokio::task::JoinHandle;

const TTR: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(30);

/// A dispatcher, its engine, and the stage to publish from.
struct Setup {
    engine: Arc<Gated<ModelEngine>>,
    dispatcher: Arc<Dispatcher>,
    parked: Arc<ParkedPolls>,
    stage: VirtualStage,
}

impl Setup {
    fn with_room(room: usize) -> Setup {
        Setup::build(room, false)
    }

    fn build(room: usize, silent: bool) -> Setup {
        let clock = manual_clock();
        let engine = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        if silent {
            engine.silence();
        }
        let parked = Arc::new(ParkedPolls::new(room, room));
        let dispatcher = Dispatcher::start(engine.clone(), parked.clone(), Failure::default());
        let stage = VirtualStage::new(engine.clone(), clock, ());
        Setup { engine, dispatcher, parked, stage }
    }

    fn new() -> Setup {
        Setup::with_room(100_000)
    }

    /// Returns a setup whose engine has skipped once: from now on consumes of lists with a queue that [is
    /// endless](Gated::set_endless) hang.
    async fn that_has_skipped() -> Setup {
        let setup = Setup::new();
        setup.engine.set_endless(Some("b"));
        let skips = setup.consumer(&["b"], 1);
        setup.settle().await;
        setup.engine.set_endless(None);
        setup.settle().await;
        skips.abort();
        setup
    }

    async fn publish(&self, drafts: impl IntoIterator<Item = Draft>) {
        let jobs = drafts.into_iter().map(|draft| draft.make(&self.stage)).collect::<Vec<_>>();
        ok("publish", self.engine.publish(jobs.into()).await);
    }

    /// Starts a consumer in its own task.
    fn consumer(&self, queues: &[&str], count: u16) -> JoinHandle<Vec<String>> {
        self.consumer_for(queues, count, POLL)
    }

    fn consumer_for(&self, queues: &[&str], count: u16, timeout: Duration) -> JoinHandle<Vec<String>> {
        let (dispatcher, queues) = (self.dispatcher.clone(), queue_list(queues));
        tokio::spawn(async move {
            let delivery = dispatcher
                .consume(Request { queues, weights: None, count, ttr: TTR, timeout, head: 0 })
                .await;
            bodies(&delivery.expect("the store is well").take())
        })
    }

    async fn poll(&self, queues: QueueList, timeout: Duration) -> Result<Delivery, ConsumeError> {
        self.dispatcher.consume(Request { queues, weights: None, count: 1, ttr: TTR, timeout, head: 0 }).await
    }

    /// Lets every task run until all are waiting.
    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    async fn parked(&self, count: usize) {
        self.settle().await;
        assert_eq!(self.parked.count(), count, "how many consumers are parked");
    }
}

/// Returns a poll of queue `a`.
fn request(count: u16, ttr: Duration) -> Request {
    Request { queues: queue_list(&["a"]), weights: None, count, ttr, timeout: POLL, head: 0 }
}

#[tokio::test(start_paused = true)]
async fn a_parked_consumer_is_woken_by_a_publish() {
    let setup = Setup::new();
    let consumer = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    setup.publish([job(&queue("a"), "x")]).await;
    assert_eq!(consumer.await.unwrap(), ["x"], "the consumer's job"); // shows the task's assertion
    setup.parked(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_consumer_is_woken_by_the_pump() {
    let setup = Setup::new();
    let consumer = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    setup.publish([job(&queue("a"), "x").delay(Duration::from_secs(1))]).await;
    setup.stage.advance(Duration::from_secs(1)).await;
    ok("pump", setup.engine.pump().await);
    assert_eq!(consumer.await.unwrap(), ["x"], "the consumer's job");
}

#[tokio::test(start_paused = true)]
async fn an_empty_poll_lasts_its_timeout_and_not_less() {
    let setup = Setup::new();
    let began = tokio::time::Instant::now();
    let delivery = setup.poll(queue_list(&["a"]), Duration::from_secs(7)).await.expect("the store is well");
    assert!(delivery.jobs().is_empty(), "nothing was published");
    assert!(began.elapsed() >= Duration::from_secs(7), "answered after {:?}", began.elapsed());
    setup.parked(0).await;
}

#[tokio::test(start_paused = true)]
async fn parked_consumers_are_served_in_order_of_arrival() {
    let setup = Setup::new();
    let mut consumers = Vec::new();
    for _ in 0..5 {
        consumers.push(setup.consumer(&["a"], 1));
        setup.settle().await;
    }
    for body in ["0", "1", "2"] {
        setup.publish([job(&queue("a"), body)]).await;
    }
    setup.settle().await;
    let served: Vec<bool> = consumers.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(served, [true, true, true, false, false], "the first three came first");
    for (i, consumer) in consumers.into_iter().take(3).enumerate() {
        assert_eq!(consumer.await.unwrap(), [i.to_string()], "consumer {i} gets job {i}");
    }
}

/// Guards against a fetch that serves a later waiter of its own list before an earlier one of another list.
#[tokio::test(start_paused = true)]
async fn waiters_of_different_lists_are_served_in_order_of_arrival() {
    let lists: [&[&str]; 4] = [&["a"], &["a", "b"], &["c", "a"], &["d", "b", "a"]];
    // With more jobs several lists fetch at the same time, and neighbours may change places.
    for jobs in [1, 2, 3, 5] {
        let setup = Setup::new();
        let mut consumers = Vec::new();
        for n in [0, 1, 0, 0, 2, 1, 3, 0, 1, 1, 2, 3].into_iter().cycle().take(50) {
            consumers.push(setup.consumer(lists[n], 1));
            setup.settle().await;
        }
        setup.publish((0..jobs).map(|n| job(&queue("a"), n.to_string()))).await;
        setup.settle().await;
        let served: Vec<usize> = (0..50).filter(|n| consumers[*n].is_finished()).collect();
        assert_eq!(served, (0..jobs).collect::<Vec<_>>(), "whom {jobs} jobs served, by arrival");
        for (n, consumer) in consumers.into_iter().take(jobs).enumerate() {
            assert_eq!(consumer.await.expect("no panic"), [n.to_string()], "what consumer {n} got");
        }
    }
}

/// Guards against a job delivered to a later waiter of another list because it arrived during the first waiter's fetch,
/// after that fetch had read the queue.
#[tokio::test(start_paused = true)]
async fn a_job_that_comes_during_a_fetch_in_vain_is_for_the_one_who_waits_longest() {
    let setup = Setup::new();
    let mut consumers = Vec::new();
    for list in [&["a"][..], &["b", "a"], &["a"], &["b", "a"]] {
        consumers.push(setup.consumer(list, 1));
        setup.settle().await;
    }
    for job_number in 0..4 {
        let gate = setup.engine.hold().await;
        setup.dispatcher.notify(&queue("a"));
        setup.settle().await;
        setup.publish([job(&queue("a"), job_number.to_string())]).await;
        setup.settle().await;
        drop(gate);
        setup.settle().await;
        let served: Vec<bool> = consumers.iter().map(JoinHandle::is_finished).collect();
        let want: Vec<bool> = (0..4).map(|consumer| consumer <= job_number).collect();
        assert_eq!(served, want, "whom jobs 0 to {job_number} served, by arrival");
    }
}

/// Guards against a hanging fetch that keeps jobs from waiters of the same queue in other lists.
#[tokio::test(start_paused = true)]
async fn a_fetch_that_hangs_keeps_a_job_from_others_for_a_moment() {
    let setup = Setup::that_has_skipped().await;
    let mut consumers = Vec::new();
    for list in [&["b", "a"][..], &["a"], &["b", "a"]] {
        consumers.push(setup.consumer(list, 1));
        setup.settle().await;
    }
    let before = setup.engine.fetches();
    setup.engine.set_endless(Some("b"));
    setup.dispatcher.notify(&queue("b"));
    setup.settle().await;
    assert!(setup.engine.fetches() > before, "a fetch hangs");
    tokio::time::sleep(Duration::from_secs(1)).await;
    setup.publish([job(&queue("a"), "x")]).await;
    setup.settle().await;
    assert!(consumers[1].is_finished(), "the waiter for a alone has its job");
    setup.engine.set_endless(None);
}

/// Guards against a list whose fetch hangs with all of its waiters, and that still counts as the one serving their
/// queue.
#[tokio::test(start_paused = true)]
async fn a_list_that_hangs_and_has_nobody_else_keeps_no_job_from_others() {
    for more in [0, 1] {
        let setup = Setup::that_has_skipped().await;
        let _first = setup.consumer(&["b", "a"], 1);
        setup.settle().await;
        setup.engine.set_endless(Some("b"));
        let before = setup.engine.fetches();
        setup.dispatcher.notify(&queue("b"));
        setup.settle().await;
        assert!(setup.engine.fetches() > before, "a fetch hangs");
        // Consumers that join the list now wait for its next fetch.
        let _others: Vec<_> = (0..more).map(|_| setup.consumer(&["b", "a"], 1)).collect();
        setup.settle().await;
        let of_a = setup.consumer(&["a"], 1);
        setup.settle().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        setup.publish([job(&queue("a"), "x")]).await;
        setup.settle().await;
        assert!(of_a.is_finished(), "the waiter for a alone has its job, beside {more} others of the list");
        setup.engine.set_endless(None);
    }
}

/// Guards against a lost wake-up: a single notification that only a hanging list receives.
#[tokio::test(start_paused = true)]
async fn what_is_said_to_a_list_that_hangs_is_passed_on() {
    for hangs_before in [false, true] {
        let setup = Setup::that_has_skipped().await;
        let mut consumers = Vec::new();
        for list in [&["b", "a"][..], &["b", "c", "a"], &["b", "a", "d"], &["a"], &["a", "e"]] {
            consumers.push(setup.consumer(list, 1));
            setup.settle().await;
        }
        setup.engine.set_endless(Some("b"));
        let before = setup.engine.fetches();
        if hangs_before {
            setup.dispatcher.notify(&queue("b"));
            setup.settle().await;
        }
        setup.publish([job(&queue("a"), "x")]).await;
        setup.settle().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        setup.settle().await;
        assert!(consumers[3].is_finished(), "the waiter for a alone has its job");
        // Nothing is passed on to lists that may hang too, or if a later fetch has read the queue.
        tokio::time::sleep(Duration::from_secs(1)).await;
        setup.settle().await;
        let served: Vec<bool> = consumers.iter().map(JoinHandle::is_finished).collect();
        assert_eq!(served, [false, false, false, true, false], "who is served by one job");
        let others = "for the first list, for a alone, and after that job for the next and for a and e";
        assert_eq!(setup.engine.fetches() - before, 4, "fetches: {others}");
        setup.engine.set_endless(None);
    }
}

/// Guards against a list that read its first queue before the job arrived, hangs on its second queue, and keeps the job
/// from others.
#[tokio::test(start_paused = true)]
async fn what_is_said_of_the_first_queue_of_a_list_that_hangs_is_passed_on() {
    let setup = Setup::that_has_skipped().await;
    let first = setup.consumer(&["a", "b"], 1);
    setup.settle().await;
    let of_a = setup.consumer(&["a"], 1);
    setup.settle().await;
    setup.engine.set_endless(Some("b"));
    let before = setup.engine.fetches();
    setup.dispatcher.notify(&queue("b"));
    setup.settle().await;
    assert_eq!(setup.engine.fetches() - before, 1, "the first list's fetch hangs");
    // Within 50 ms of the start of the fetch.
    tokio::time::sleep(Duration::from_millis(10)).await;
    setup.publish([job(&queue("a"), "x")]).await;
    setup.settle().await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    setup.settle().await;
    assert!(of_a.is_finished(), "the waiter for a alone has its job");
    assert!(!first.is_finished(), "one job serves one consumer");
    setup.engine.set_endless(None);
}

/// Guards against extra fetches to keep the order of arrival: a single list needs none; several lists need at most one
/// per job, and one unsuccessful fetch per list.
#[tokio::test(start_paused = true)]
async fn the_order_of_arrival_costs_one_list_nothing_and_mixed_lists_a_fetch_for_each_job() {
    for (lists, most) in [(1, 2), (2, 66), (100, 164)] {
        let setup = Setup::new();
        let names: Vec<String> = (0..lists).map(|n| format!("other{n}")).collect();
        for n in 0..2000 {
            drop(setup.consumer(&["a", &names[n % lists]], 1));
        }
        setup.parked(2000).await;
        let before = setup.engine.fetches();
        setup.publish((0..64).map(|_| job(&queue("a"), "x"))).await;
        setup.parked(2000 - 64).await;
        let fetches = setup.engine.fetches() - before;
        assert!(
            fetches <= most,
            "64 jobs for {lists} lists cost {fetches} fetches, at most {most} are expected"
        );
    }
}

/// Guards against a poll with timeout zero that gets no reply because its list leaves the fetch to another.
#[tokio::test(start_paused = true)]
async fn a_poll_that_does_not_wait_is_answered_though_other_lists_wait_longer() {
    let setup = Setup::new();
    let _first = setup.consumer(&["a", "b"], 1);
    setup.settle().await;
    let _second = setup.consumer(&["a"], 1);
    setup.parked(2).await;
    for jobs in 0..6 {
        let gate = setup.engine.hold().await;
        let polls: Vec<_> = (0..4).map(|_| setup.consumer_for(&["a"], 1, Duration::ZERO)).collect();
        setup.settle().await;
        if jobs > 0 {
            setup.publish((0..jobs).map(|_| job(&queue("a"), "x"))).await;
        }
        drop(gate);
        setup.settle().await;
        let answered = polls.iter().filter(|poll| poll.is_finished()).count();
        assert_eq!(answered, 4, "polls that were answered, with {jobs} jobs");
    }
}

#[tokio::test(start_paused = true)]
async fn a_publish_to_ten_thousand_parked_consumers_costs_one_fetch() {
    let setup = Setup::new();
    let consumers: Vec<_> = (0..10_000).map(|_| setup.consumer(&["a"], 1)).collect();
    setup.settle().await;
    let before = setup.engine.fetches();
    assert!(before <= 4, "parking ten thousand in one wait list cost {before} fetches");
    setup.publish([job(&queue("a"), "x")]).await;
    setup.settle().await;
    assert_eq!(setup.engine.fetches() - before, 1, "fetches for one publish");
    assert_eq!(consumers.iter().filter(|c| c.is_finished()).count(), 1, "consumers served");
    setup.parked(9_999).await;
}

/// Guards against a read of all partitions of a spread queue after each job, and against an empty reply, or a park, that
/// relies on what was left open.
#[tokio::test(start_paused = true)]
async fn what_a_consume_leaves_open_is_asked_for_those_that_do_not_wait_and_before_a_park() {
    let setup = Setup::new();
    setup.engine.leave_open();
    let polls = [setup.consumer(&["a"], 1), setup.consumer(&["a"], 1)];
    setup.parked(2).await;
    let before = setup.engine.fetches();
    assert_eq!(before, 3, "one left open, one without a job, and one after the list waits");

    setup.engine.leave_open();
    setup.publish([job(&queue("a"), "x")]).await;
    setup.parked(1).await;
    assert_eq!(setup.engine.fetches() - before, 1, "fetches of a job for two that wait");

    setup.engine.leave_open();
    let none = setup.consumer_for(&["a"], 1, Duration::ZERO);
    setup.settle().await;
    assert_eq!(none.await.expect("no panic"), [""; 0], "jobs of one that does not wait");
    assert_eq!(setup.engine.fetches() - before, 3, "two fetches for it");

    setup.publish([job(&queue("a"), "y")]).await;
    setup.parked(0).await;
    let mut got = Vec::new();
    for poll in polls {
        got.extend(poll.await.expect("no panic"));
    }
    assert_eq!(got, ["x", "y"], "in order of arrival");
}

#[tokio::test(start_paused = true)]
async fn a_publish_to_a_queue_that_nobody_waits_for_costs_nothing() {
    let setup = Setup::new();
    let consumer = setup.consumer(&["a", "b"], 1);
    setup.parked(1).await;
    let before = setup.engine.fetches();
    setup.publish([job(&queue("c"), "x")]).await;
    setup.settle().await;
    assert_eq!(setup.engine.fetches(), before, "c has no waiters");
    consumer.abort();
    setup.parked(0).await;
    setup.publish([job(&queue("a"), "x")]).await;
    setup.settle().await;
    assert_eq!(setup.engine.fetches(), before, "a has no more waiters");
}

#[tokio::test(start_paused = true)]
async fn as_many_jobs_as_consumers_reach_them_all() {
    let setup = Setup::new();
    let consumers: Vec<_> = (0..1000).map(|_| setup.consumer(&["a"], 1)).collect();
    setup.parked(1000).await;
    for chunk in 0..20 {
        setup.publish((0..50).map(|i| job(&queue("a"), (chunk * 50 + i).to_string()))).await;
    }
    let mut got = Vec::new();
    for consumer in consumers {
        got.extend(consumer.await.unwrap());
    }
    let want: Vec<String> = (0..1000).map(|i| i.to_string()).collect();
    assert_eq!(got, want, "every consumer one job, in the order of both");
}

#[tokio::test(start_paused = true)]
async fn several_queues_go_by_priority() {
    let setup = Setup::new();
    setup.publish([job(&queue("low"), "low"), job(&queue("high"), "high")]).await;
    assert_eq!(setup.consumer(&["high", "low"], 1).await.unwrap(), ["high"]);
    assert_eq!(setup.consumer(&["high", "low"], 1).await.unwrap(), ["low"]);
    let consumer = setup.consumer(&["high", "low"], 2);
    setup.parked(1).await;
    setup.publish([job(&queue("low"), "2"), job(&queue("high"), "1")]).await;
    assert_eq!(consumer.await.unwrap(), ["1", "2"], "both jobs came in one publish");
}

#[tokio::test(start_paused = true)]
async fn a_batch_consumer_takes_what_is_there() {
    let setup = Setup::new();
    let consumer = setup.consumer(&["a"], 5);
    setup.parked(1).await;
    setup.publish((0..3).map(|i| job(&queue("a"), i.to_string()))).await;
    assert_eq!(consumer.await.unwrap(), ["0", "1", "2"], "it does not wait for five");
}

#[tokio::test(start_paused = true)]
async fn each_consumer_has_its_own_ttr() {
    let setup = Setup::new();
    let short = tokio::spawn({
        let dispatcher = setup.dispatcher.clone();
        async move { dispatcher.consume(request(1, Duration::from_secs(1))).await }
    });
    setup.parked(1).await;
    let long = setup.consumer(&["a"], 1);
    setup.parked(2).await;
    setup.publish([job(&queue("a"), "short").tries(2), job(&queue("a"), "long").tries(2)]).await;
    short.await.unwrap().expect("the store is well").take();
    assert_eq!(long.await.unwrap(), ["long"]);
    setup.stage.advance(Duration::from_secs(2)).await;
    ok("pump", setup.engine.pump().await);
    assert_eq!(setup.consumer(&["a"], 5).await.unwrap(), ["short"], "only the short ttr has ended");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_left_costs_nothing() {
    let setup = Setup::new();
    let leaving: Vec<_> = (0..100).map(|_| setup.consumer(&["a"], 1)).collect();
    setup.parked(100).await;
    leaving.iter().for_each(JoinHandle::abort);
    setup.parked(0).await;
    let staying = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    setup.publish([job(&queue("a"), "x")]).await;
    assert_eq!(staying.await.unwrap(), ["x"], "the job skipped the disconnected consumers");
}

#[tokio::test(start_paused = true)]
async fn a_job_popped_for_who_left_goes_to_the_next_one_waiting_with_its_try_restored() {
    let setup = Setup::new();
    let leaving = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    let gate = setup.engine.hold().await;
    setup.publish([job(&queue("a"), "x"), job(&queue("a"), "y")]).await;
    setup.settle().await;
    leaving.abort();
    setup.settle().await;
    let next = tokio::spawn({
        let dispatcher = setup.dispatcher.clone();
        async move { dispatcher.consume(request(2, TTR)).await }
    });
    drop(gate);
    let jobs = next.await.unwrap().expect("the store is well").take();
    // The next consumer may have received y before x was returned; then x is still at the head.
    let mut got = bodies(&jobs);
    if got == ["y"] {
        got.extend(setup.consumer(&["a"], 1).await.unwrap());
        got.sort();
    }
    assert_eq!(got, ["x", "y"], "nothing was burned");
    assert!(jobs.iter().all(|job| job.tries_left == 0), "a job of one try has none left after one hand-over");
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_nobody_takes_goes_back_to_the_head() {
    let setup = Setup::new();
    setup.publish([job(&queue("a"), "1"), job(&queue("a"), "2")]).await;
    let delivery = setup.poll(queue_list(&["a"]), Duration::ZERO).await.expect("the store is well");
    assert_eq!(bodies(delivery.jobs()), ["1"]);
    drop(delivery);
    setup.settle().await;
    assert_eq!(setup.consumer(&["a"], 5).await.unwrap(), ["1", "2"], "back in its place");
}

#[tokio::test(start_paused = true)]
async fn a_notification_during_a_fetch_is_not_lost() {
    let setup = Setup::new();
    let gate = setup.engine.hold().await;
    // The fetch of this consumer finds nothing, and is held before it can report that.
    let consumer = setup.consumer(&["a", "b"], 1);
    setup.settle().await;
    setup.publish([job(&queue("b"), "x")]).await;
    drop(gate);
    assert_eq!(consumer.await.unwrap(), ["x"], "published during the fetch");
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_does_not_wait_does_not_rely_on_notifications() {
    let setup = Setup::build(100, true);
    let parked = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    setup.publish([job(&queue("a"), "1"), job(&queue("a"), "2")]).await;
    // There was no notification; but a call with timeout zero reads the store, and the first waiter is served first.
    let delivery = setup.poll(queue_list(&["a"]), Duration::ZERO).await.expect("the store is well");
    assert_eq!(bodies(delivery.jobs()), ["2"], "the parked consumer came first");
    assert_eq!(parked.await.unwrap(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn closing_answers_parked_consumers_at_once_and_parks_no_more() {
    let setup = Setup::new();
    let consumers: Vec<_> = (0..100).map(|_| setup.consumer(&["a"], 1)).collect();
    setup.parked(100).await;
    let began = tokio::time::Instant::now();
    setup.dispatcher.close();
    for consumer in consumers {
        assert!(consumer.await.unwrap().is_empty(), "nothing was published");
    }
    let late = setup.poll(queue_list(&["a"]), POLL).await.expect("the store is well");
    assert!(late.jobs().is_empty() && began.elapsed() < Duration::from_secs(1), "there are no more waiters");
    setup.parked(0).await;
}

#[tokio::test(start_paused = true)]
async fn beyond_the_cap_a_poll_is_refused_and_one_that_does_not_wait_is_not() {
    let setup = Setup::with_room(2);
    let parked = [setup.consumer(&["a"], 1), setup.consumer(&["b"], 1)];
    setup.parked(2).await;
    let refused = setup.poll(queue_list(&["c"]), POLL).await;
    assert!(matches!(refused, Err(ConsumeError::TooMany(2))), "a third: {refused:?}");
    assert!(setup.poll(queue_list(&["c"]), Duration::ZERO).await.is_ok(), "it does not park");
    parked[0].abort();
    setup.parked(1).await;
    assert_eq!(
        setup.consumer_for(&["c"], 1, Duration::from_secs(1)).await.unwrap().len(),
        0,
        "there is room"
    );
}

/// Guards against polls of a hundred queues each, which take ten times the memory of others but count the same.
#[tokio::test(start_paused = true)]
async fn a_poll_of_many_queues_counts_once_for_each_ten_of_them() {
    let named = |of: &str, count: usize| -> Vec<String> { (0..count).map(|i| format!("{of}-{i}")).collect() };
    for (queues, places) in [(1, 1), (2, 1), (10, 1), (11, 2), (20, 2), (21, 3), (99, 10), (100, 10)] {
        let setup = Setup::with_room(12);
        let names = named("many", queues);
        let many = setup.consumer(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1);
        setup.parked(1).await;
        assert_eq!(setup.parked.places(), places, "places of a poll of {queues} queues");
        let others: Vec<_> = (places..12).map(|i| setup.consumer(&[&format!("q-{i}")], 1)).collect();
        setup.parked(1 + others.len()).await;
        let refused = setup.poll(queue_list(&["a"]), POLL).await;
        assert!(
            matches!(refused, Err(ConsumeError::TooMany(12))),
            "{queues} queues beside others: {refused:?}"
        );
        many.abort();
        setup.parked(others.len()).await;
        assert_eq!(setup.parked.places(), others.len(), "a poll of {queues} queues has left");
    }
    // A repeated name is one queue, and a poll of any size is admitted while no other is parked.
    let setup = Setup::with_room(1);
    let twice = setup.consumer(&["a"; 100], 1);
    setup.parked(1).await;
    assert_eq!(setup.parked.places(), 1, "a hundred times the same name");
    twice.abort();
    setup.parked(0).await;
    let names = named("many", 100);
    let _alone = setup.consumer(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    setup.parked(1).await;
    let refused = setup.poll(queue_list(&["a"]), POLL).await;
    assert!(
        matches!(refused, Err(ConsumeError::TooMany(1))),
        "beside a poll of a hundred queues: {refused:?}"
    );
}

/// Guards against request heads of 64 KiB, which each connection keeps while its poll waits.
#[tokio::test(start_paused = true)]
async fn a_poll_with_a_long_head_counts_once_more_for_each_8_kib() {
    for (queues, head, places) in
        [(1, 0, 1), (1, 300, 1), (1, 8192, 1), (1, 8193, 2), (1, 65_536, 8), (10, 16_384, 2), (11, 16_385, 4)]
    {
        let setup = Setup::with_room(9);
        let names: Vec<String> = (0..queues).map(|i| format!("q-{i}")).collect();
        let names = queue_list(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let dispatcher = setup.dispatcher.clone();
        let request = Request { queues: names, head, ..request(1, TTR) };
        let poll = tokio::spawn(async move { dispatcher.consume(request).await });
        setup.parked(1).await;
        assert_eq!(setup.parked.places(), places, "places of a poll of {queues} queues with {head} bytes");
        poll.abort();
        setup.parked(0).await;
        assert_eq!(setup.parked.places(), 0, "a poll of {queues} queues with {head} bytes has left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_fetch_is_told_and_the_wait_list_goes_on() {
    let setup = Setup::new();
    setup.engine.set_away(true);
    let failed = setup.poll(queue_list(&["a"]), POLL).await;
    assert!(matches!(failed, Err(ConsumeError::Store(_))), "the store is unavailable: {failed:?}");
    setup.engine.set_away(false);
    let consumer = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    setup.publish([job(&queue("a"), "x")]).await;
    assert_eq!(consumer.await.unwrap(), ["x"], "the store is back");
}

#[tokio::test(start_paused = true)]
async fn a_publish_to_ten_thousand_wait_lists_over_one_queue_costs_two_fetches() {
    let setup = Setup::new();
    let mut consumers = Vec::new();
    for i in 0..10_000 {
        consumers.push(setup.consumer(&["shared", &format!("own-{i}")], 1));
    }
    setup.parked(10_000).await;
    // Each wait list fetches twice before its consumer is parked.
    for _ in 0..1000 {
        if setup.engine.fetches() == 20_000 {
            break;
        }
        setup.settle().await;
    }
    for served in 1..=3 {
        let before = setup.engine.fetches();
        setup.publish([job(&queue("shared"), "x")]).await;
        setup.settle().await;
        let fetches = setup.engine.fetches() - before;
        // One fetch finds the job; the fetch it triggers finds no other.
        assert!(fetches <= 2, "a publish to one of 10,000 wait lists cost {fetches} fetches");
        let done: Vec<usize> = (0..10_000).filter(|i| consumers[*i].is_finished()).collect();
        assert_eq!(done, (0..served).collect::<Vec<_>>(), "the wait list that waits longest is served first");
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_jobs_as_wait_lists_reach_them_all() {
    let setup = Setup::new();
    let consumers: Vec<_> =
        (0..300).map(|i| setup.consumer(&["shared", &format!("own-{i}")], 1 + i % 3)).collect();
    setup.parked(300).await;
    for chunk in 0..12 {
        setup.publish((0..50).map(|i| job(&queue("shared"), (chunk * 50 + i).to_string()))).await;
    }
    let began = tokio::time::Instant::now();
    let mut got = 0;
    for consumer in consumers {
        let bodies = consumer.await.unwrap().len();
        assert!(bodies > 0, "a consumer was left with nothing although there was a job for each");
        got += bodies;
    }
    assert_eq!(got, 600, "jobs handed out");
    assert!(began.elapsed() < Duration::from_secs(1), "one of them waited: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_wait_list_that_empties_before_it_fetches_wakes_the_others() {
    let setup = Setup::new();
    let first = setup.consumer(&["a", "b"], 1);
    setup.parked(1).await;
    let second = setup.consumer(&["a", "c"], 1);
    setup.parked(2).await;
    setup.publish([job(&queue("a"), "x")]).await;
    first.abort();
    assert_eq!(second.await.unwrap(), ["x"], "the first wait list's only consumer had left");
}

#[tokio::test(start_paused = true)]
async fn a_wait_list_that_is_held_up_among_dead_entries_is_not_the_only_one_woken() {
    let setup = Setup::new();
    // It waits longest, so it is woken first for both of its queues.
    let held_up = setup.consumer(&["dead", "a"], 1);
    setup.parked(1).await;
    let other = setup.consumer(&["a"], 1);
    setup.parked(2).await;
    setup.engine.set_endless(Some("dead"));
    setup.dispatcher.notify(&queue("dead"));
    setup.settle().await;
    setup.publish([job(&queue("a"), "x")]).await;
    let got = other.await.unwrap(); // shows the task's assertion
    assert_eq!(got, ["x"], "the list that waits longest skips dead entries of another queue");
    setup.engine.set_endless(None);
    setup.publish([job(&queue("a"), "y")]).await;
    assert_eq!(held_up.await.unwrap(), ["y"], "it continues afterwards");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_is_not_asked_for_all_wait_lists_at_once_and_nobody_is_turned_away() {
    const LISTS: usize = 20_000;
    let setup = Setup::new();
    let consumers: Vec<_> = (0..LISTS).map(|i| setup.consumer(&[&format!("q-{i}")], 1)).collect();
    // Each wait list fetches twice before its consumer is parked.
    while setup.engine.fetches() < 2 * LISTS {
        tokio::task::yield_now().await;
    }
    setup.parked(LISTS).await;
    let gate = setup.engine.hold().await;
    let before = setup.engine.fetches();
    // A store does this when its connection is back and notifications may have been lost.
    setup.dispatcher.notify_all();
    setup.settle().await;
    drop(gate);
    while setup.engine.fetches() - before < LISTS {
        tokio::task::yield_now().await;
    }
    setup.settle().await;
    let most = setup.engine.most_under_way();
    assert!(most <= 256, "{most} concurrent calls of the store");
    assert_eq!(consumers.iter().filter(|c| c.is_finished()).count(), 0, "no consumer is refused");
    setup.publish((0..LISTS / 1000).map(|i| job(&queue(&format!("q-{}", i * 1000)), "x"))).await;
    setup.settle().await;
    assert_eq!(
        consumers.iter().filter(|c| c.is_finished()).count(),
        LISTS / 1000,
        "and all are woken as before"
    );
}

/// Guards against returns to an unavailable partition that delay the returns of other jobs.
#[tokio::test(start_paused = true)]
async fn jobs_that_cannot_go_back_keep_no_others_from_it() {
    let setup = Setup::new();
    let [hangs, goes_on] = [queue("a"), queue_in("other", "a")];
    setup.publish([job(&hangs, "x"), job(&goes_on, "y")]).await;
    let deliver = async |queue: &Queue| {
        let delivery = setup.poll(queue.clone().into(), Duration::ZERO).await.expect("the store is well");
        assert_eq!(delivery.jobs().len(), 1, "a job of {queue}");
        delivery
    };
    let [first, second] = [deliver(&hangs).await, deliver(&goes_on).await];
    setup.engine.hang_namespace(Some("ns"));
    drop(first);
    setup.settle().await;
    drop(second);
    setup.settle().await;
    deliver(&goes_on).await.take();
    setup.engine.hang_namespace(None);
    setup.settle().await;
    deliver(&hangs).await.take();
}

/// Guards against a tenant with many queues on a hanging node, whose fetches use up the slots of all namespaces.
#[tokio::test(start_paused = true)]
async fn fetches_of_one_namespace_that_hang_keep_no_other_one_waiting() {
    const LISTS: usize = 2_000;
    let setup = Setup::new();
    setup.engine.hang_namespace(Some("ns"));
    let hung: Vec<_> = (0..LISTS).map(|i| setup.consumer(&[&format!("q-{i}")], 1)).collect();
    setup.parked(LISTS).await;
    for n in 0..10 {
        let other = queue_in("other", &format!("q-{n}"));
        setup.publish([job(&other, "x")]).await;
        let began = tokio::time::Instant::now();
        let got = setup.poll(other.into(), POLL).await.expect("the store is well");
        assert_eq!(bodies(&got.take()), ["x"], "what another namespace has is handed out");
        let took = began.elapsed();
        assert!(took < Duration::from_millis(200), "it waited {took:?} for the turns of others");
    }
    let hanging = setup.engine.fetches() - setup.engine.handed_out();
    assert!(hanging <= 256, "{hanging} calls of one namespace hang at a time");
    setup.engine.hang_namespace(None);
    setup.publish((0..LISTS).map(|i| job(&queue(&format!("q-{i}")), "y"))).await;
    for (n, consumer) in hung.into_iter().enumerate() {
        assert_eq!(consumer.await.expect("no panic"), ["y"], "what list {n} got when it hung no more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_fetch_leaves_nobody_behind_it_waiting_for_the_next_notification() {
    let setup = Setup::new();
    // More than one fetch can serve.
    let consumers: Vec<_> = (0..100)
        .map(|_| {
            let dispatcher = setup.dispatcher.clone();
            tokio::spawn(async move { dispatcher.consume(request(1, TTR)).await })
        })
        .collect();
    setup.parked(100).await;
    setup.engine.set_away(true);
    setup.publish([job(&queue("a"), "x")]).await;
    setup.settle().await;
    setup.engine.set_away(false);
    let (mut failed, mut got) = (0, Vec::new());
    for consumer in consumers {
        match consumer.await.unwrap() {
            Ok(delivery) => got.extend(bodies(&delivery.take())),
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0, "the fetch that the publish caused should have failed");
    assert_eq!(got, ["x"], "the job was ready all along; {failed} consumers got the failure");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_engine_is_an_error_and_the_wait_list_goes_on() {
    let setup = Setup::new();
    setup.engine.set_panics(true);
    for timeout in [Duration::ZERO, POLL] {
        let failed = setup.poll(queue_list(&["a"]), timeout).await;
        assert!(matches!(failed, Err(ConsumeError::Store(_))), "the engine panicked: {failed:?}");
    }
    setup.engine.set_panics(false);
    let consumer = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    setup.publish([job(&queue("a"), "x")]).await;
    assert_eq!(consumer.await.unwrap(), ["x"], "the engine is well again");
}

#[tokio::test(start_paused = true)]
async fn closing_lets_a_fetch_finish_and_gives_back_what_nobody_took() {
    let setup = Setup::new();
    let (staying, leaving) = (setup.consumer(&["a"], 1), setup.consumer(&["b"], 1));
    let idle = setup.consumer(&["c"], 1);
    setup.parked(3).await;
    let gate = setup.engine.hold().await;
    setup.publish([job(&queue("a"), "x"), job(&queue("b"), "y")]).await;
    setup.settle().await;
    setup.dispatcher.close();
    assert!(idle.await.unwrap().is_empty(), "it has no fetch in flight, so it is answered at once");
    leaving.abort();
    drop(gate);
    setup.dispatcher.settled().await;
    assert_eq!(staying.await.unwrap(), ["x"], "popped before the close, for a connected consumer");
    let back = ok("peek", setup.engine.peek(&queue("b")).await).expect("y is back when it is settled");
    assert_eq!(back.tries_left, 1, "tries of a job that reached no consumer");
}

#[tokio::test]
async fn many_consumers_and_publishers_lose_nothing() {
    const JOBS: usize = 2000;
    let setup = Arc::new(Setup::new());
    let names = ["a", "b", "c"];
    let consumers: Vec<_> = (0..50)
        .map(|i| {
            let (setup, list) = (setup.clone(), [names[i % 3], names[(i + 1) % 3]]);
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    let take = setup.consumer_for(&list, 1 + (i % 4) as u16, Duration::from_millis(200));
                    // Every seventh consumer disconnects while it waits.
                    if i % 7 == 0 && got.len() % 3 == 0 {
                        tokio::task::yield_now().await;
                        take.abort();
                        match take.await {
                            Ok(bodies) if !bodies.is_empty() => got.extend(bodies),
                            _ => {
                                let more =
                                    setup.consumer_for(&list, 1, Duration::from_millis(200)).await.unwrap();
                                if more.is_empty() {
                                    return got;
                                }
                                got.extend(more);
                            }
                        }
                        continue;
                    }
                    let bodies = take.await.unwrap();
                    if bodies.is_empty() {
                        return got;
                    }
                    got.extend(bodies);
                }
            })
        })
        .collect();
    for i in 0..JOBS {
        setup.publish([job(&queue(names[i % 3]), i.to_string())]).await;
        if i % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut got = Vec::new();
    for consumer in consumers {
        got.extend(consumer.await.unwrap());
    }
    loop {
        let left = setup.consumer_for(&names, 100, Duration::ZERO).await.unwrap();
        if left.is_empty() {
            break;
        }
        got.extend(left);
    }
    let mut numbers: Vec<usize> = got.iter().map(|body| body.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..JOBS).collect::<Vec<_>>(), "every job once");
}

/// Guards against memory that every parked poll would use, whether or not it has weights.
#[tokio::test]
async fn a_parked_consumer_keeps_little() {
    let setup = Setup::new();
    let size = size_of_val(&setup.dispatcher.consume(request(1, TTR)));
    assert!(size <= 384, "a waiting consumer takes {size} bytes");
}

/// Counts the jobs from the queues a, b and c.
fn shares(bodies: &[String]) -> [usize; 3] {
    ["a", "b", "c"].map(|queue| bodies.iter().filter(|body| *body == queue).count())
}

impl Setup {
    /// Publishes jobs whose body is the name of their queue.
    async fn fill(&self, queues: &[&str], jobs: usize) {
        for name in queues {
            for _ in 0..jobs / 50 {
                self.publish((0..50).map(|_| job(&queue(name), name))).await;
            }
        }
    }

    /// Consumes once from a, b and c.
    async fn weighted(&self, weights: &[u16], count: u16, timeout: Duration) -> Vec<String> {
        let queues = queue_list(&["a", "b", "c"]);
        let request = Request {
            queues,
            weights: Some(Weights::new(weights.to_vec())),
            count,
            ttr: TTR,
            timeout,
            head: 0,
        };
        bodies(&self.dispatcher.consume(request).await.expect("the store is well").take())
    }
}

/// Guards against a batch taken from one queue, and against turns that restart with each consume.
#[tokio::test(start_paused = true)]
async fn weights_are_kept_whatever_the_count() {
    for count in [1, 3, 16, 17, 100] {
        let setup = Setup::new();
        setup.fill(&["a", "b", "c"], 1000).await;
        let mut got = Vec::new();
        while got.len() < 1000 {
            let most = count.min((1000 - got.len()) as u16);
            let more = setup.weighted(&[5, 3, 2], most, Duration::ZERO).await;
            assert_eq!(more.len(), usize::from(most), "there are more jobs than that");
            got.extend(more);
        }
        for (got, wanted) in shares(&got).into_iter().zip([500, 300, 200_usize]) {
            assert!(
                got.abs_diff(wanted) <= 50,
                "count={count}: {wanted} of a thousand were expected, not {got}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_weights_the_only_queue_that_has_jobs_gets_all_and_the_least_is_not_starved() {
    let setup = Setup::new();
    setup.fill(&["c"], 200).await;
    assert_eq!(setup.weighted(&[20, 20, 1], 100, Duration::ZERO).await, vec!["c"; 100], "only c has jobs");
    setup.fill(&["a", "b"], 100).await;
    let mut got = Vec::new();
    for _ in 0..130 {
        got.extend(setup.weighted(&[20, 20, 1], 1, Duration::ZERO).await);
    }
    // Jobs from c while the others were empty do not count against it.
    let [a, b, c] = shares(&got);
    assert!(a.abs_diff(b) <= 2 && (2..=4).contains(&c), "a and b share, and c is served too: {a}, {b}, {c}");
}

/// Guards against weights that apply to fetches but not to parked consumers.
#[tokio::test(start_paused = true)]
async fn consumers_that_wait_are_served_by_weight_too() {
    let setup = Arc::new(Setup::new());
    let consumers: Vec<_> = (0..1000)
        .map(|_| {
            let setup = setup.clone();
            tokio::spawn(async move { setup.weighted(&[5, 3, 2], 1, POLL).await })
        })
        .collect();
    setup.parked(1000).await;
    // One publish, so that all queues have jobs when the consumers are served.
    let gate = setup.engine.hold().await;
    setup.fill(&["a", "b", "c"], 1000).await;
    drop(gate);
    let mut got = Vec::new();
    for consumer in consumers {
        got.extend(consumer.await.unwrap());
    }
    for (got, wanted) in shares(&got).into_iter().zip([500, 300, 200_usize]) {
        assert!(got.abs_diff(wanted) <= 50, "{wanted} of a thousand were expected, not {got}");
    }
}

/// Guards against losing jobs taken by earlier calls of a weighted fetch when a later call fails.
#[tokio::test(start_paused = true)]
async fn a_weighted_fetch_that_fails_halfway_hands_out_what_it_has() {
    let setup = Setup::new();
    setup.fill(&["a", "b", "c"], 50).await;
    let gate = setup.engine.hold().await;
    let fetch = setup.weighted(&[1, 1, 1], 40, Duration::ZERO);
    let fails = async {
        setup.settle().await;
        // The first call has popped, and is held up. The next one fails.
        setup.engine.set_away(true);
        drop(gate);
    };
    let (got, ()) = tokio::join!(fetch, fails);
    assert_eq!(got.len(), 16, "the jobs of the first call");
    setup.engine.set_away(false);
    let mut rest = Vec::new();
    for _ in 0..4 {
        rest.extend(setup.weighted(&[1, 1, 1], 40, Duration::ZERO).await);
    }
    assert_eq!(got.len() + rest.len(), 150, "every job was handed out once");
}

/// Guards against a weighted fetch that reads a full reply's bytes in each of its calls and then returns most of the
/// jobs.
#[tokio::test(start_paused = true)]
async fn a_weighted_fetch_has_one_budget_of_bytes() {
    for (size, fit) in [(500_000, 16), (100_000, 83), (1_000, 100)] {
        let setup = Setup::new();
        for name in ["a", "b", "c"] {
            setup.publish((0..40).map(|_| job(&queue(name), "x".repeat(size)))).await;
        }
        let before = setup.engine.handed_out();
        let got = setup.weighted(&[5, 3, 2], 100, Duration::ZERO).await;
        let handed_out = setup.engine.handed_out() - before;
        assert_eq!(
            (handed_out, got.len()),
            (fit, fit),
            "jobs of {size} bytes: handed out by the store, and got"
        );
    }
}

/// Guards against refusing a waiting consumer while part of its queue is unavailable, and against an empty reply when
/// that part could not be read.
#[tokio::test(start_paused = true)]
async fn who_waits_goes_on_waiting_while_not_everywhere_can_be_looked() {
    let setup = Setup::new();
    setup.engine.set_unseen(true);
    let unseen = |answer: Result<Delivery, ConsumeError>| match answer {
        Err(ConsumeError::Store(Error::Unseen(..))) => true,
        Ok(_) | Err(_) => false,
    };
    assert!(unseen(setup.poll(queue_list(&["a"]), Duration::ZERO).await), "who does not wait is told");
    let waits = setup.consumer(&["a"], 1);
    setup.parked(1).await;
    let before = setup.engine.fetches();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let looks = setup.engine.fetches() - before;
    assert!((9..=11).contains(&looks), "it is looked again once a second, not {looks} times in ten");
    setup.publish([job(&queue("a"), "x")]).await;
    assert_eq!(waits.await.unwrap(), ["x"], "what another part has"); // shows the task's assertion
    assert!(unseen(setup.poll(queue_list(&["a"]), Duration::from_secs(3)).await), "nobody could look");
    setup.engine.set_unseen(false);
    let seen = setup.poll(queue_list(&["a"]), Duration::from_secs(3)).await.expect("it was seen empty");
    assert!(seen.jobs().is_empty(), "the queue is empty");
}
