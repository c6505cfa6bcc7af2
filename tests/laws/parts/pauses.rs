//! Pauses: records of the settings, and dispatchers that do not fetch from paused queues. On every settings store, with
//! two servers.

use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::{Clock, ManualClock};
use dormouse::dispatch::{Dispatcher, ParkedPolls, Pause, Request, Weights};
use dormouse::engine::Engine;
use dormouse::error::Error;
use dormouse::name::{PoolName, Queue};
use dormouse::outage::Outage;
use dormouse::pauses::{MAX_PAUSED, Pauses};
use dormouse::process::tasks::Failure;
use dormouse::settings::SettingsStore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gated::{Gated, State};
use crate::gated_settings::GatedSettings;
use crate::settings_stage::MemorySettings;
use crate::stage::{VirtualStage, bodies, job, manual_clock, ok, queue, queue_in, queue_list};
use crate::stages::{settings_disk, settings_redis};
use crate::support::model::ModelEngine;
use crate::support::wait::until;

const TTR: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// The stores that servers share.
struct Stores {
    clock: Arc<ManualClock>,
    engine: Arc<Gated<ModelEngine>>,
    settings: Arc<dyn SettingsStore>,
    stage: VirtualStage,
}

/// A server: its dispatcher, and the task that follows the settings.
struct Server {
    engine: Arc<dyn Engine>,
    dispatcher: Arc<Dispatcher>,
    pauses: Arc<Pauses>,
    stop: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Stores {
    fn new() -> Stores {
        Stores::on(Arc::new(MemorySettings::default()))
    }

    fn on(settings: Arc<dyn SettingsStore>) -> Stores {
        let clock = manual_clock();
        let engine = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let stage = VirtualStage::new(engine.clone(), clock.clone(), ());
        Stores { clock, engine, settings, stage }
    }

    async fn put(&self, queue: &Queue, body: &str) {
        let new = job(queue, body).make(&self.stage);
        ok("publish", self.engine.publish(vec![new].into()).await);
    }

    async fn server(&self) -> Server {
        self.server_on(self.settings.clone()).await
    }

    async fn server_on(&self, settings: Arc<dyn SettingsStore>) -> Server {
        let engine: Arc<dyn Engine> = self.engine.clone();
        let parked = Arc::new(ParkedPolls::new(1000, 1000));
        let dispatcher = Dispatcher::start(engine.clone(), parked, Failure::default());
        let of_settings = (settings, Outage::new("the settings"));
        let pauses =
            Pauses::new(&PoolName::default_pool(), of_settings, (engine.clone(), dispatcher.clone()));
        let (pauses, stop) = (Arc::new(pauses), CancellationToken::new());
        assert!(pauses.read().await, "the settings can be read");
        tokio::spawn(pauses.clone().run(stop.clone()));
        Server { engine, dispatcher, pauses, stop }
    }
}

impl Server {
    async fn consume(&self, queues: &[&str], weights: Option<Weights>) -> Vec<String> {
        let request = Request {
            queues: queue_list(queues),
            weights,
            count: 9,
            ttr: TTR,
            timeout: Duration::ZERO,
            head: 0,
        };
        bodies(&self.dispatcher.consume(request).await.expect("the store is well").take())
    }

    async fn take(&self, queue: &str) -> Vec<String> {
        self.consume(&[queue], None).await
    }

    /// Starts a poll for one job, as its own task.
    fn poll(&self, queues: &[&str]) -> JoinHandle<Vec<String>> {
        let (dispatcher, queues) = (self.dispatcher.clone(), queue_list(queues));
        tokio::spawn(async move {
            let timeout = Duration::from_secs(60);
            let request = Request { queues, weights: None, count: 1, ttr: TTR, timeout, head: 0 };
            bodies(&dispatcher.consume(request).await.expect("the store is well").take())
        })
    }

    async fn parked(&self, queue: &Queue) {
        while !self.dispatcher.waiting().contains_key(queue) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn pause(&self, queue: &Queue, time: Option<Duration>) -> Pause {
        ok("pause", self.pauses.pause(queue, time).await)
    }

    async fn resume(&self, queue: &Queue) {
        ok("resume", self.pauses.resume(queue).await);
    }
}

/// Guards against a pause unknown to other servers, and against one that ends with its server.
async fn a_pause_holds_on_every_server(stores: Stores) {
    let (one, two, q) = (stores.server().await, stores.server().await, queue("q"));
    stores.put(&q, "job").await;
    assert_eq!(one.pause(&q, None).await, Pause { until: None });
    assert_eq!(one.take("q").await, [""; 0], "here at once");
    let began = Instant::now();
    until("the other server knows", async || two.dispatcher.pause_of(&q).is_some()).await;
    // The contract is a second, without stalls of the machine.
    assert!(began.elapsed() <= 3 * SECOND, "it knows after {:?}", began.elapsed());
    assert_eq!(two.take("q").await, [""; 0], "there too");
    assert_eq!(stores.server().await.take("q").await, [""; 0], "and on a server that begins later");
    assert!(stores.engine.peek(&q).await.expect("a peek").is_some(), "the job is there");
    // Waiters of both servers get jobs when either of them ends it.
    let (here, there) = (one.poll(&["q"]), two.poll(&["q"]));
    one.parked(&q).await;
    two.parked(&q).await;
    stores.put(&q, "second").await;
    two.resume(&q).await;
    let resumed = Instant::now();
    let mut got = [here.await.expect("no panic"), there.await.expect("no panic")].concat();
    got.sort();
    assert_eq!(got, ["job", "second"]);
    assert!(resumed.elapsed() <= 3 * SECOND, "after {:?}", resumed.elapsed());
    one.resume(&q).await;
    one.resume(&queue("unknown")).await;
}

#[tokio::test]
async fn a_pause_holds_on_every_server_in_memory() {
    a_pause_holds_on_every_server(Stores::new()).await;
}

#[tokio::test]
async fn a_pause_holds_on_every_server_on_disk() {
    let stage = settings_disk().await;
    a_pause_holds_on_every_server(Stores::on(stage.store().clone())).await;
}

#[tokio::test]
async fn a_pause_holds_on_every_server_on_redis() {
    let stage = settings_redis().await;
    a_pause_holds_on_every_server(Stores::on(stage.store().clone())).await;
}

/// Guards against a paused queue that stops the other queues of a consumer, with and without weights.
#[tokio::test(start_paused = true)]
async fn other_queues_go_on() {
    let stores = Stores::new();
    let server = stores.server().await;
    for name in ["a", "b", "c"] {
        stores.put(&queue(name), name).await;
    }
    stores.put(&queue_in("other", "b"), "other").await;
    server.pause(&queue("b"), None).await;
    assert_eq!(server.consume(&["a", "b", "c"], None).await, ["a", "c"]);
    let weights = Some(Weights::new(vec![5, 3]));
    assert_eq!(server.consume(&["b", "c"], weights.clone()).await, [""; 0]);
    stores.put(&queue("c"), "more").await;
    assert_eq!(server.consume(&["b", "c"], weights).await, ["more"]);
    let request = Request {
        queues: queue_in("other", "b").into(),
        weights: None,
        count: 1,
        ttr: TTR,
        timeout: Duration::ZERO,
        head: 0,
    };
    let other = server.dispatcher.consume(request).await.expect("the store is well").take();
    assert_eq!(bodies(&other), ["other"], "of another namespace");
    // A waiter of both gets a job of the queue that is not paused, and then one of the resumed queue.
    let waits = server.poll(&["b", "c"]);
    server.parked(&queue("c")).await;
    stores.put(&queue("c"), "at once").await;
    assert_eq!(waits.await.expect("no panic"), ["at once"]);
    let waits = server.poll(&["b", "c"]);
    server.parked(&queue("b")).await;
    server.resume(&queue("b")).await;
    assert_eq!(waits.await.expect("no panic"), ["b"]);
}

/// Guards against a pause that outlasts its end, and against one that ends when a pause that it replaced would have.
#[tokio::test(start_paused = true)]
async fn a_pause_ends_by_itself_unless_it_was_replaced() {
    let stores = Stores::new();
    let (server, other) = (stores.server().await, stores.server().await);
    let (a, b) = (queue("a"), queue("b"));
    let until = server.pause(&a, Some(SECOND)).await.until.expect("it ends");
    assert_eq!(until, stores.clock.now() + 1000);
    server.pause(&b, Some(SECOND)).await;
    server.pause(&b, None).await;
    stores.put(&a, "a").await;
    stores.put(&b, "b").await;
    let waits = other.poll(&["a"]);
    tokio::time::sleep(SECOND).await;
    assert!(!waits.is_finished(), "by the store's time it lasts");
    stores.clock.advance(SECOND);
    assert_eq!(waits.await.expect("no panic"), ["a"]);
    assert_eq!(server.take("b").await, [""; 0], "the second one has no end");
    assert_eq!((server.dispatcher.pause_of(&a), server.dispatcher.pauses().len()), (None, 1));
    // Its record is deleted a second later, when no server's clock should be before its end.
    stores.clock.advance(SECOND * 2);
    tokio::time::sleep(SECOND).await;
    let left = ok("scan", stores.settings.scan("pauses/", None, 100).await).records;
    let left: Vec<&str> = left.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(left, ["pauses/default/ns/b"]);
}

/// Guards against a fetch in flight that delivers a job after the reply to a pause.
#[tokio::test(start_paused = true)]
async fn a_pause_waits_for_the_fetches_that_have_begun() {
    let stores = Stores::new();
    let (server, q) = (stores.server().await, queue("q"));
    stores.put(&q, "job").await;
    stores.engine.set(State::Slow(SECOND));
    let takes = server.poll(&["q"]);
    tokio::time::sleep(SECOND / 10).await;
    let began = Instant::now();
    server.pause(&q, None).await;
    assert!(began.elapsed() >= SECOND / 2, "the fetch goes on, and the pause was answered");
    stores.engine.set(State::Up);
    assert_eq!(takes.await.expect("no panic"), ["job"], "its fetch had begun before");
    stores.put(&q, "later").await;
    assert_eq!(server.take("q").await, [""; 0]);
}

/// Guards against a fetch for each job published to a paused queue.
#[tokio::test(start_paused = true)]
async fn a_paused_queue_costs_the_store_nothing() {
    let stores = Stores::new();
    let (server, q) = (stores.server().await, queue("q"));
    server.pause(&q, None).await;
    let waits = server.poll(&["q"]);
    server.parked(&q).await;
    let before = stores.engine.fetches();
    for n in 0..100 {
        stores.put(&q, &n.to_string()).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(stores.engine.fetches() - before, 0, "fetches of a paused queue");
    server.resume(&q).await;
    assert_eq!(waits.await.expect("no panic"), ["0"]);
}

/// Guards against a namespace whose paused queues fill every server's memory.
#[tokio::test(start_paused = true)]
async fn a_namespace_has_so_many_paused_queues_at_most() {
    let stores = Stores::new();
    let server = stores.server().await;
    let numbered = |n: usize| queue(&format!("q{n}"));
    for n in 0..MAX_PAUSED {
        server.pause(&numbered(n), None).await;
    }
    let refused = server.pauses.pause(&queue("more"), None).await;
    assert!(matches!(refused, Err(Error::TooManyPaused(MAX_PAUSED))), "one more: {refused:?}");
    let elsewhere = stores.server().await.pauses.pause(&queue("more"), None).await;
    assert!(matches!(elsewhere, Err(Error::TooManyPaused(_))), "on another server: {elsewhere:?}");
    stores.put(&queue("more"), "job").await;
    assert_eq!(server.take("more").await, ["job"], "a refused pause has no effect");
    server.pause(&queue_in("other", "more"), None).await;
    server.resume(&numbered(1)).await;
    server.pause(&queue("more"), None).await;
    assert!(server.pauses.pause(&numbered(1), None).await.is_err(), "only one place was free");
    server.pause(&numbered(0), Some(SECOND)).await;
    stores.clock.advance(SECOND);
    server.pause(&numbered(1), None).await;
}

/// Guards against a paused queue that no list shows, and against names that a page omits or repeats.
#[tokio::test(start_paused = true)]
async fn paused_queues_are_listed_with_the_others() {
    let stores = Stores::new();
    let server = stores.server().await;
    for name in ["b", "d", "f"] {
        stores.put(&queue(name), name).await;
    }
    for name in ["a", "d", "e", "g"] {
        server.pause(&queue(name), None).await;
    }
    server.pause(&queue_in("other", "c"), None).await;
    for limit in [1, 2, 3, 100] {
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let page =
                ok("list", server.pauses.list_queues(&queue("q").namespace, after.as_ref(), limit).await);
            assert!(page.queues.len() <= limit, "{} of {limit}", page.queues.len());
            let view = |view: dormouse::engine::QueueView| {
                (view.queue.name.to_string(), view.ready, server.dispatcher.pause_of(&view.queue).is_some())
            };
            shown.extend(page.queues.into_iter().map(view));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let expected = [
            ("a", 0, true),
            ("b", 1, false),
            ("d", 1, true),
            ("e", 0, true),
            ("f", 1, false),
            ("g", 0, true),
        ];
        let expected = expected.map(|(name, ready, paused)| (name.to_owned(), Some(ready), paused));
        assert_eq!(shown, expected, "by {limit}");
    }
}

/// Guards against an outage of the settings that stops other queues, or prolongs pauses with an end.
#[tokio::test(start_paused = true)]
async fn while_the_settings_cannot_be_used_everything_stays_as_it_is() {
    let stores = Stores::new();
    let gated = GatedSettings::new(stores.settings.clone(), None);
    let server = stores.server_on(gated.clone()).await;
    let (q, timed) = (queue("q"), queue("timed"));
    server.pause(&q, None).await;
    server.pause(&timed, Some(SECOND)).await;
    gated.refuse_puts(usize::MAX);
    assert!(server.pauses.resume(&q).await.is_err(), "it cannot be written");
    assert!(server.pauses.pause(&queue("more"), None).await.is_err(), "it cannot be written");
    for name in ["q", "timed", "more"] {
        stores.put(&queue(name), name).await;
    }
    assert_eq!(server.take("more").await, ["more"], "it is not paused");
    assert_eq!(server.take("q").await, [""; 0], "it is paused still");
    let waits = server.poll(&["timed"]);
    stores.clock.advance(SECOND);
    assert_eq!(waits.await.expect("no panic"), ["timed"], "a pause ends all the same");
    gated.refuse_puts(0);
    server.resume(&q).await;
    assert_eq!(server.take("q").await, ["q"]);
    assert!(server.engine.check().await.is_ok());
}
