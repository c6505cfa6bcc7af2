//! Servers that push the same queue share its slots and its rate, on every settings store.

use std::sync::Arc;
use std::time::Duration;

use dormouse::clock::SystemClock;
use dormouse::push::results::{self, Attempt, PushReport};
use dormouse::settings::SettingsStore;
use dormouse::settings::disk::DiskSettings;
use dormouse::settings::redis::RedisSettings;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::push_stage::{InFlight, PushStage, answer, pushed};
use crate::settings_stage::MemorySettings;
use crate::support::disk_store::open_disk;
use crate::support::redis_admin::{open_admin, open_admin_redis};
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::RedisServer;

const SECOND: Duration = Duration::from_secs(1);
const CONCURRENCY: usize = 6;

/// Servers with the same settings.
struct Fleet {
    settings: Arc<dyn SettingsStore>,
    in_flight: InFlight,
    began: Instant,
}

impl Fleet {
    fn new(settings: Arc<dyn SettingsStore>) -> Fleet {
        Fleet { settings, in_flight: Arc::default(), began: Instant::now() }
    }

    /// Starts a server with jobs, each of which takes a quarter of a second.
    async fn start(&self, name: &str, jobs: usize) -> PushStage {
        let server = PushStage::of_fleet(name, self.settings.clone(), &self.in_flight, self.began).await;
        server.endpoint.does(|_| (SECOND / 4, answer(200, &[], "")));
        for n in 0..jobs {
            server.publish(&n.to_string(), 3).await;
        }
        server
    }
}

/// Waits until each server has exactly this number of requests in flight, for at most `time`.
async fn shares(servers: &[(&PushStage, usize)], time: Duration, when: &str) {
    let began = Instant::now();
    loop {
        let found: Vec<usize> = servers.iter().map(|(server, _)| server.endpoint.in_flight()).collect();
        let expected: Vec<usize> = servers.iter().map(|(_, slots)| *slots).collect();
        let most = servers[0].0.endpoint.most_of_all();
        assert!(most <= CONCURRENCY, "{when}: {most} requests were in flight, {CONCURRENCY} may be");
        if found == expected {
            return;
        }
        assert!(began.elapsed() < time, "{when}: {found:?} in flight after {time:?}, not {expected:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Guards against slots that two servers own, while servers start, stop and hang, and against slots that nobody uses
/// after a server has died.
async fn no_slot_has_two_owners(settings: Arc<dyn SettingsStore>) {
    let fleet = Fleet::new(settings);
    let a = fleet.start("a", 2000).await;
    a.set(json!({"concurrency": CONCURRENCY})).await;
    shares(&[(&a, 6)], 3 * SECOND, "a is alone").await;
    let b = fleet.start("b", 2000).await;
    shares(&[(&a, 3), (&b, 3)], 6 * SECOND, "b has begun").await;
    let c = fleet.start("c", 2000).await;
    shares(&[(&a, 2), (&b, 2), (&c, 2)], 6 * SECOND, "c has begun").await;
    // As if it had died, although it goes on as long as it may.
    b.settings.hang(true);
    shares(&[(&a, 3), (&b, 0), (&c, 3)], 15 * SECOND, "b has died").await;
    c.push.stop();
    shares(&[(&a, 6), (&c, 0)], 6 * SECOND, "c has stopped").await;
    b.settings.hang(false);
    shares(&[(&a, 3), (&b, 3)], 8 * SECOND, "b is back").await;
    a.settings.refuse_keeps(true);
    shares(&[(&a, 0), (&b, 6)], 15 * SECOND, "a cannot renew its leases").await;
    // Requests of a deleted setting keep their slots.
    b.push.delete(&b.key).await.expect("it is deleted");
    b.set(json!({"concurrency": CONCURRENCY})).await;
    shares(&[(&b, 6)], 6 * SECOND, "push was set again").await;
}

/// Guards against servers that claim the same slots at the same moment, and either both own them or never agree.
async fn servers_that_begin_at_once_agree(settings: Arc<dyn SettingsStore>) {
    let fleet = Fleet::new(settings);
    let first = fleet.start("first", 0).await;
    first.set(json!({"concurrency": CONCURRENCY})).await;
    first.push.stop();
    for round in 0..4 {
        let names = ["a", "b", "c"].map(|name| format!("{name}{round}"));
        let (a, b, c) = tokio::join!(
            fleet.start(&names[0], 200),
            fleet.start(&names[1], 200),
            fleet.start(&names[2], 200)
        );
        shares(&[(&a, 2), (&b, 2), (&c, 2)], 8 * SECOND, &format!("round {round}")).await;
        for server in [&a, &b, &c] {
            server.push.stop();
        }
        tokio::join!(a.push.ended(), b.push.ended(), c.push.ended());
    }
}

/// Guards against lost reports of servers that report at once, and against results of an earlier setting.
async fn results_are_added_over_all_servers(settings: Arc<dyn SettingsStore>) {
    let (settings, key) = (&*settings, &pushed("q"));
    let report = |n: u64| {
        let attempt =
            Attempt { job_id: n.to_string(), time: n, status: None, milliseconds: 1, answer: "é".into() };
        PushReport { delivered: 1, failed: 2, dead: 3, attempts: vec![attempt] }
    };
    results::add(settings, key, &report(0)).await.expect("it answers");
    assert_eq!(
        results::get(settings, key).await.expect("it answers"),
        PushReport::default(),
        "it is not pushed"
    );
    results::begin(settings, key).await.expect("it answers");
    for n in 0..30 {
        results::add(settings, key, &report(n)).await.expect("it answers");
    }
    let (one, two, three) = (report(30), report(31), report(32));
    let at_once = tokio::join!(
        results::add(settings, key, &one),
        results::add(settings, key, &two),
        results::add(settings, key, &three)
    );
    assert!(at_once.0.is_ok() && at_once.1.is_ok() && at_once.2.is_ok(), "{at_once:?}");
    let all = results::get(settings, key).await.expect("it answers");
    assert_eq!((all.delivered, all.failed, all.dead), (33, 66, 99));
    let mut times: Vec<u64> = all.attempts.iter().map(|attempt| attempt.time).collect();
    times.sort_unstable();
    assert_eq!(times, (13..33).collect::<Vec<_>>(), "the last 20");
    results::delete(settings, key).await.expect("it answers");
    results::add(settings, key, &one).await.expect("it answers");
    assert_eq!(
        results::get(settings, key).await.expect("it answers"),
        PushReport::default(),
        "it was deleted"
    );
}

/// Makes a test of each law on every store.
macro_rules! fleet_laws {
    ($($law:ident: $virtual:ident $disk:ident $redis:ident,)+) => {$(
        #[tokio::test(start_paused = true)]
        async fn $virtual() {
            $law(Arc::new(MemorySettings::default())).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $disk() {
            let (engine, _dir) = open_disk(Arc::new(SystemClock::default()));
            $law(Arc::new(DiskSettings::new(&engine))).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $redis() {
            let redis = RedisServer::start();
            $law(Arc::new(RedisSettings::new(&*open_admin_redis(&redis).await))).await;
        }
    )+};
}

fleet_laws! {
    no_slot_has_two_owners: no_slot_has_two_owners_in_memory no_slot_has_two_owners_on_disk no_slot_has_two_owners_on_redis,
    servers_that_begin_at_once_agree: servers_that_begin_at_once_agree_in_memory servers_that_begin_at_once_agree_on_disk servers_that_begin_at_once_agree_on_redis,
    results_are_added_over_all_servers: results_are_added_in_memory results_are_added_on_disk results_are_added_on_redis,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_are_added_in_a_cluster() {
    let cluster = RedisCluster::start_of(3, 0);
    let admin = open_admin(&cluster.address(), "a").await;
    results_are_added_over_all_servers(Arc::new(RedisSettings::new(&admin))).await;
}

/// Returns the most requests that began within any `per`, over all servers.
fn most_within(servers: &[&PushStage], per: Duration) -> usize {
    let mut at: Vec<Instant> = servers.iter().flat_map(|server| server.endpoint.arrived_at()).collect();
    at.sort_unstable();
    let within = |first: &Instant| at.iter().filter(|one| *one >= first && **one < *first + per).count();
    at.iter().map(within).max().unwrap_or(0)
}

/// Guards against a rate that is exceeded when servers begin, stop or die, and against one that is never used again.
#[tokio::test(start_paused = true)]
async fn a_rate_holds_while_servers_come_and_go() {
    const RATE: usize = 10;
    const PER: Duration = Duration::from_secs(5);
    let fleet = Fleet::new(Arc::new(MemorySettings::default()));
    let a = fleet.start("a", 500).await;
    a.set(json!({"rate": RATE, "per": 5, "concurrency": CONCURRENCY})).await;
    sleep(12 * SECOND).await;
    let b = fleet.start("b", 500).await;
    sleep(30 * SECOND).await;
    assert!(b.endpoint.arrived().len() >= 20, "b has a half: {} in 30 s", b.endpoint.arrived().len());
    b.settings.hang(true);
    let before = a.endpoint.arrived().len();
    sleep(50 * SECOND).await;
    let after = a.endpoint.arrived().len() - before;
    assert!(after >= 70, "a has all after the death of b: {after} in 50 s");
    let c = fleet.start("c", 500).await;
    sleep(10 * SECOND).await;
    a.push.stop();
    a.push.ended().await;
    sleep(12 * SECOND).await; // c has all
    // As after a kill of every server, with the settings on disk: no lease is left, only the record of the rate.
    c.settings.hang(true);
    sleep(15 * SECOND).await;
    let began = Instant::now();
    let d = fleet.start("d", 500).await;
    sleep(30 * SECOND).await;
    let first = d.endpoint.arrived_at().first().map(|at| at.duration_since(began));
    assert!(first.is_some_and(|first| first >= PER), "nothing begins for one `per`: {first:?}");
    assert!(d.endpoint.arrived().len() >= 40, "d has all: {}", d.endpoint.arrived().len());
    let most = most_within(&[&a, &b, &c, &d], PER);
    assert!((RATE - 1..=RATE).contains(&most), "{most} began within {PER:?}");
}

/// Guards against a record for each queue that was ever pushed with a rate.
#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_rate_is_deleted_an_hour_after_its_end() {
    let fleet = Fleet::new(Arc::new(MemorySettings::default()));
    let a = fleet.start("a", 1).await;
    a.set(json!({"rate": 3, "per": 3600})).await;
    sleep(5 * SECOND).await;
    a.push.delete(&a.key).await.expect("it is deleted");
    sleep(5 * SECOND).await;
    let left = async |name: &str| {
        let server = fleet.start(name, 0).await;
        sleep(2 * SECOND).await;
        server.keys("push/rates/").await.len()
    };
    assert_eq!(left("b").await, 1, "what was begun counts");
    sleep(Duration::from_secs(3700)).await;
    assert_eq!(left("c").await, 0, "it is over");
}
