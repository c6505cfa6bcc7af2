//! The dispatcher over the model engine: who is parked, who is served, and that no job and no wake-up is lost.
//! tokio's clock is paused: time-outs pass in an instant, and never early.

mod support;

use std::sync::Arc;
use std::time::Duration;

use dormouse::dispatch::{ConsumeError, Delivery, Dispatcher, Parking};
use dormouse::engine::Engine;
use dormouse::name::QueueList;
use support::gated::Gated;
use support::model::ModelEngine;
use support::stage::{Draft, Stage, VirtualStage, bodies, job, manual_clock, ok, queue, queue_list, want};
use tokio::task::JoinHandle;

const TTR: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(30);

/// A dispatcher, its engine, and the stage to publish from.
struct House {
    engine: Arc<Gated<ModelEngine>>,
    dispatcher: Arc<Dispatcher>,
    parking: Arc<Parking>,
    stage: VirtualStage,
}

impl House {
    fn with_room(room: usize) -> House {
        House::build(room, false)
    }

    fn build(room: usize, deaf: bool) -> House {
        let clock = manual_clock();
        let engine = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        if deaf {
            engine.cut_bells();
        }
        let parking = Arc::new(Parking::new(room));
        let dispatcher = Dispatcher::start(engine.clone(), parking.clone());
        let stage = VirtualStage::new(engine.clone(), clock, ());
        House { engine, dispatcher, parking, stage }
    }

    fn new() -> House {
        House::with_room(100_000)
    }

    async fn publish(&self, drafts: impl IntoIterator<Item = Draft>) {
        let jobs = drafts.into_iter().map(|draft| draft.make(&self.stage)).collect();
        ok("publish", self.engine.publish(jobs).await);
    }

    /// A consumer, as its own task.
    fn consumer(&self, queues: &[&str], count: u16) -> JoinHandle<Vec<String>> {
        self.consumer_for(queues, count, POLL)
    }

    fn consumer_for(&self, queues: &[&str], count: u16, timeout: Duration) -> JoinHandle<Vec<String>> {
        let (dispatcher, queues) = (self.dispatcher.clone(), queue_list(queues));
        tokio::spawn(async move {
            let delivery = dispatcher.consume(queues, want(count, TTR), timeout).await;
            bodies(&delivery.expect("the store is well").take())
        })
    }

    async fn poll(&self, queues: QueueList, timeout: Duration) -> Result<Delivery, ConsumeError> {
        self.dispatcher.consume(queues, want(1, TTR), timeout).await
    }

    /// Lets every task run until all of them wait.
    async fn settle(&self) {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    async fn parked(&self, count: usize) {
        self.settle().await;
        assert_eq!(self.parking.parked(), count, "how many consumers are parked");
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_consumer_is_woken_by_a_publish() {
    let house = House::new();
    let consumer = house.consumer(&["a"], 1);
    house.parked(1).await;
    house.publish([job(&queue("a"), "x")]).await;
    assert_eq!(consumer.await.unwrap(), ["x"], "what the consumer got"); // the task's own asserts speak
    house.parked(0).await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_consumer_is_woken_by_the_pump() {
    let house = House::new();
    let consumer = house.consumer(&["a"], 1);
    house.parked(1).await;
    house.publish([job(&queue("a"), "x").delay(Duration::from_secs(1))]).await;
    house.stage.advance(Duration::from_secs(1)).await;
    ok("pump", house.engine.pump(10).await);
    assert_eq!(consumer.await.unwrap(), ["x"], "what the consumer got");
}

#[tokio::test(start_paused = true)]
async fn an_empty_poll_lasts_its_timeout_and_not_less() {
    let house = House::new();
    let began = tokio::time::Instant::now();
    let delivery = house.poll(queue_list(&["a"]), Duration::from_secs(7)).await.expect("the store is well");
    assert!(delivery.jobs().is_empty(), "nothing was published");
    assert!(began.elapsed() >= Duration::from_secs(7), "answered after {:?}", began.elapsed());
    house.parked(0).await;
}

#[tokio::test(start_paused = true)]
async fn parked_consumers_are_served_in_order_of_arrival() {
    let house = House::new();
    let mut consumers = Vec::new();
    for _ in 0..5 {
        consumers.push(house.consumer(&["a"], 1));
        house.settle().await;
    }
    for body in ["0", "1", "2"] {
        house.publish([job(&queue("a"), body)]).await;
    }
    house.settle().await;
    let served: Vec<bool> = consumers.iter().map(JoinHandle::is_finished).collect();
    assert_eq!(served, [true, true, true, false, false], "the first three came first");
    for (i, consumer) in consumers.into_iter().take(3).enumerate() {
        assert_eq!(consumer.await.unwrap(), [i.to_string()], "consumer {i} gets job {i}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_publish_to_ten_thousand_parked_consumers_costs_one_look() {
    let house = House::new();
    let consumers: Vec<_> = (0..10_000).map(|_| house.consumer(&["a"], 1)).collect();
    house.settle().await;
    let before = house.engine.looks();
    assert!(before <= 4, "parking ten thousand in one line cost {before} looks");
    house.publish([job(&queue("a"), "x")]).await;
    house.settle().await;
    assert_eq!(house.engine.looks() - before, 1, "looks for one publish");
    assert_eq!(consumers.iter().filter(|c| c.is_finished()).count(), 1, "consumers served");
    house.parked(9_999).await;
}

#[tokio::test(start_paused = true)]
async fn as_many_jobs_as_consumers_reach_them_all() {
    let house = House::new();
    let consumers: Vec<_> = (0..1000).map(|_| house.consumer(&["a"], 1)).collect();
    house.parked(1000).await;
    for chunk in 0..20 {
        house.publish((0..50).map(|i| job(&queue("a"), (chunk * 50 + i).to_string()))).await;
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
    let house = House::new();
    house.publish([job(&queue("low"), "low"), job(&queue("high"), "high")]).await;
    assert_eq!(house.consumer(&["high", "low"], 1).await.unwrap(), ["high"]);
    assert_eq!(house.consumer(&["high", "low"], 1).await.unwrap(), ["low"]);
    let consumer = house.consumer(&["high", "low"], 2);
    house.parked(1).await;
    house.publish([job(&queue("low"), "2"), job(&queue("high"), "1")]).await;
    assert_eq!(consumer.await.unwrap(), ["1", "2"], "both jobs came in one publish");
}

#[tokio::test(start_paused = true)]
async fn a_batch_consumer_takes_what_is_there() {
    let house = House::new();
    let consumer = house.consumer(&["a"], 5);
    house.parked(1).await;
    house.publish((0..3).map(|i| job(&queue("a"), i.to_string()))).await;
    assert_eq!(consumer.await.unwrap(), ["0", "1", "2"], "it does not wait for five");
}

#[tokio::test(start_paused = true)]
async fn each_consumer_has_its_own_ttr() {
    let house = House::new();
    let short = tokio::spawn({
        let dispatcher = house.dispatcher.clone();
        async move { dispatcher.consume(queue_list(&["a"]), want(1, Duration::from_secs(1)), POLL).await }
    });
    house.parked(1).await;
    let long = house.consumer(&["a"], 1);
    house.parked(2).await;
    house.publish([job(&queue("a"), "short").tries(2), job(&queue("a"), "long").tries(2)]).await;
    short.await.unwrap().expect("the store is well").take();
    assert_eq!(long.await.unwrap(), ["long"]);
    house.stage.advance(Duration::from_secs(2)).await;
    ok("pump", house.engine.pump(10).await);
    assert_eq!(house.consumer(&["a"], 5).await.unwrap(), ["short"], "only the short ttr has ended");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_left_costs_nothing() {
    let house = House::new();
    let leaving: Vec<_> = (0..100).map(|_| house.consumer(&["a"], 1)).collect();
    house.parked(100).await;
    leaving.iter().for_each(JoinHandle::abort);
    house.parked(0).await;
    let staying = house.consumer(&["a"], 1);
    house.parked(1).await;
    house.publish([job(&queue("a"), "x")]).await;
    assert_eq!(staying.await.unwrap(), ["x"], "the job went past those that left");
}

#[tokio::test(start_paused = true)]
async fn a_job_popped_for_who_left_goes_to_the_next_one_waiting_with_its_try_restored() {
    let house = House::new();
    let leaving = house.consumer(&["a"], 1);
    house.parked(1).await;
    let gate = house.engine.hold().await;
    house.publish([job(&queue("a"), "x"), job(&queue("a"), "y")]).await;
    house.settle().await;
    leaving.abort();
    house.settle().await;
    let next = tokio::spawn({
        let dispatcher = house.dispatcher.clone();
        async move { dispatcher.consume(queue_list(&["a"]), want(2, TTR), POLL).await }
    });
    drop(gate);
    let jobs = next.await.unwrap().expect("the store is well").take();
    // The next one may have been quick enough to get y before x was back; then x is at the head still.
    let mut got = bodies(&jobs);
    if got == ["y"] {
        got.extend(house.consumer(&["a"], 1).await.unwrap());
        got.sort();
    }
    assert_eq!(got, ["x", "y"], "nothing was burned");
    assert!(jobs.iter().all(|job| job.tries_left == 0), "a job of one try has none left after one hand-over");
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_nobody_takes_goes_back_to_the_head() {
    let house = House::new();
    house.publish([job(&queue("a"), "1"), job(&queue("a"), "2")]).await;
    let delivery = house.poll(queue_list(&["a"]), Duration::ZERO).await.expect("the store is well");
    assert_eq!(bodies(delivery.jobs()), ["1"]);
    drop(delivery);
    house.settle().await;
    assert_eq!(house.consumer(&["a"], 5).await.unwrap(), ["1", "2"], "back in its place");
}

#[tokio::test(start_paused = true)]
async fn a_ring_while_a_look_is_under_way_is_not_lost() {
    let house = House::new();
    let gate = house.engine.hold().await;
    // The look of this consumer finds nothing, and is held up before it can say so.
    let consumer = house.consumer(&["a", "b"], 1);
    house.settle().await;
    house.publish([job(&queue("b"), "x")]).await;
    drop(gate);
    assert_eq!(consumer.await.unwrap(), ["x"], "published during the look");
}

#[tokio::test(start_paused = true)]
async fn an_impatient_poll_does_not_rely_on_the_bell() {
    let house = House::build(100, true);
    let parked = house.consumer(&["a"], 1);
    house.parked(1).await;
    house.publish([job(&queue("a"), "1"), job(&queue("a"), "2")]).await;
    // Nobody was told; but who asks gets an answer from the store, and who came first is served first.
    let delivery = house.poll(queue_list(&["a"]), Duration::ZERO).await.expect("the store is well");
    assert_eq!(bodies(delivery.jobs()), ["2"], "the parked consumer came first");
    assert_eq!(parked.await.unwrap(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn closing_answers_parked_consumers_at_once_and_parks_no_more() {
    let house = House::new();
    let consumers: Vec<_> = (0..100).map(|_| house.consumer(&["a"], 1)).collect();
    house.parked(100).await;
    let began = tokio::time::Instant::now();
    house.dispatcher.close();
    for consumer in consumers {
        assert!(consumer.await.unwrap().is_empty(), "nothing was published");
    }
    let late = house.poll(queue_list(&["a"]), POLL).await.expect("the store is well");
    assert!(late.jobs().is_empty() && began.elapsed() < Duration::from_secs(1), "nobody waits any more");
    house.parked(0).await;
}

#[tokio::test(start_paused = true)]
async fn beyond_the_cap_a_poll_is_refused_and_an_impatient_one_is_not() {
    let house = House::with_room(2);
    let parked = [house.consumer(&["a"], 1), house.consumer(&["b"], 1)];
    house.parked(2).await;
    let refused = house.poll(queue_list(&["c"]), POLL).await;
    assert!(matches!(refused, Err(ConsumeError::Crowded(2))), "a third: {refused:?}");
    assert!(house.poll(queue_list(&["c"]), Duration::ZERO).await.is_ok(), "it does not park");
    parked[0].abort();
    house.parked(1).await;
    assert_eq!(
        house.consumer_for(&["c"], 1, Duration::from_secs(1)).await.unwrap().len(),
        0,
        "there is room"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_look_is_told_and_the_line_goes_on() {
    let house = House::new();
    house.engine.set_away(true);
    let failed = house.poll(queue_list(&["a"]), POLL).await;
    assert!(matches!(failed, Err(ConsumeError::Store(_))), "the store is away: {failed:?}");
    house.engine.set_away(false);
    let consumer = house.consumer(&["a"], 1);
    house.parked(1).await;
    house.publish([job(&queue("a"), "x")]).await;
    assert_eq!(consumer.await.unwrap(), ["x"], "the store is back");
}

#[tokio::test(start_paused = true)]
async fn a_publish_to_ten_thousand_lines_over_one_queue_costs_two_looks() {
    let house = House::new();
    let mut consumers = Vec::new();
    for i in 0..10_000 {
        consumers.push(house.consumer(&["shared", &format!("own-{i}")], 1));
    }
    house.parked(10_000).await;
    // Each line looks twice before its consumer is parked.
    for _ in 0..1000 {
        if house.engine.looks() == 20_000 {
            break;
        }
        house.settle().await;
    }
    for served in 1..=3 {
        let before = house.engine.looks();
        house.publish([job(&queue("shared"), "x")]).await;
        house.settle().await;
        let looks = house.engine.looks() - before;
        // One finds the job; one that it wakes finds that there is no other.
        assert!(looks <= 2, "a publish to one of 10,000 lines cost {looks} looks");
        let done: Vec<usize> = (0..10_000).filter(|i| consumers[*i].is_finished()).collect();
        assert_eq!(done, (0..served).collect::<Vec<_>>(), "the line that waits longest is served first");
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_jobs_as_lines_reach_them_all() {
    let house = House::new();
    let consumers: Vec<_> =
        (0..300).map(|i| house.consumer(&["shared", &format!("own-{i}")], 1 + i % 3)).collect();
    house.parked(300).await;
    for chunk in 0..12 {
        house.publish((0..50).map(|i| job(&queue("shared"), (chunk * 50 + i).to_string()))).await;
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
async fn a_line_that_empties_before_it_looks_passes_the_ring_on() {
    let house = House::new();
    let first = house.consumer(&["a", "b"], 1);
    house.parked(1).await;
    let second = house.consumer(&["a", "c"], 1);
    house.parked(2).await;
    house.publish([job(&queue("a"), "x")]).await;
    first.abort();
    assert_eq!(second.await.unwrap(), ["x"], "the first line's only consumer had left");
}

#[tokio::test(start_paused = true)]
async fn a_failed_look_leaves_nobody_behind_it_waiting_for_the_next_ring() {
    let house = House::new();
    let consumers: Vec<_> = (0..10)
        .map(|_| {
            let (dispatcher, queues) = (house.dispatcher.clone(), queue_list(&["a"]));
            tokio::spawn(async move { dispatcher.consume(queues, want(1, TTR), POLL).await })
        })
        .collect();
    house.parked(10).await;
    house.engine.set_away(true);
    house.publish([job(&queue("a"), "x")]).await;
    house.settle().await;
    house.engine.set_away(false);
    let (mut failed, mut got) = (0, Vec::new());
    for consumer in consumers {
        match consumer.await.unwrap() {
            Ok(delivery) => got.extend(bodies(&delivery.take())),
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0, "the look that the publish caused should have failed");
    assert_eq!(got, ["x"], "the job was there all along; {failed} consumers were told of the failure");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_engine_is_an_error_and_the_line_goes_on() {
    let house = House::new();
    house.engine.set_panics(true);
    for timeout in [Duration::ZERO, POLL] {
        let failed = house.poll(queue_list(&["a"]), timeout).await;
        assert!(matches!(failed, Err(ConsumeError::Store(_))), "the engine panicked: {failed:?}");
    }
    house.engine.set_panics(false);
    let consumer = house.consumer(&["a"], 1);
    house.parked(1).await;
    house.publish([job(&queue("a"), "x")]).await;
    assert_eq!(consumer.await.unwrap(), ["x"], "the engine is well again");
}

#[tokio::test(start_paused = true)]
async fn closing_lets_a_look_finish_and_gives_back_what_nobody_took() {
    let house = House::new();
    let (staying, leaving) = (house.consumer(&["a"], 1), house.consumer(&["b"], 1));
    let idle = house.consumer(&["c"], 1);
    house.parked(3).await;
    let gate = house.engine.hold().await;
    house.publish([job(&queue("a"), "x"), job(&queue("b"), "y")]).await;
    house.settle().await;
    house.dispatcher.close();
    assert!(idle.await.unwrap().is_empty(), "nobody looks for it, so it is answered at once");
    leaving.abort();
    drop(gate);
    house.dispatcher.settled().await;
    assert_eq!(staying.await.unwrap(), ["x"], "popped before the close, for a consumer that was there");
    let back = ok("peek", house.engine.peek(&queue("b")).await).expect("y is back when it is settled");
    assert_eq!(back.tries_left, 1, "tries of a job that nobody got");
}

#[tokio::test]
async fn many_consumers_and_publishers_lose_nothing() {
    const JOBS: usize = 2000;
    let house = Arc::new(House::new());
    let names = ["a", "b", "c"];
    let consumers: Vec<_> = (0..50)
        .map(|i| {
            let (house, list) = (house.clone(), [names[i % 3], names[(i + 1) % 3]]);
            tokio::spawn(async move {
                let mut got = Vec::new();
                loop {
                    let take = house.consumer_for(&list, 1 + (i % 4) as u16, Duration::from_millis(200));
                    // Every seventh consumer is impatient and leaves in the middle.
                    if i % 7 == 0 && got.len() % 3 == 0 {
                        tokio::task::yield_now().await;
                        take.abort();
                        match take.await {
                            Ok(bodies) if !bodies.is_empty() => got.extend(bodies),
                            _ => {
                                let more =
                                    house.consumer_for(&list, 1, Duration::from_millis(200)).await.unwrap();
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
        house.publish([job(&queue(names[i % 3]), i.to_string())]).await;
        if i % 50 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut got = Vec::new();
    for consumer in consumers {
        got.extend(consumer.await.unwrap());
    }
    got.extend(house.consumer_for(&names, 100, Duration::ZERO).await.unwrap());
    let mut numbers: Vec<usize> = got.iter().map(|body| body.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..JOBS).collect::<Vec<_>>(), "every job once");
}
