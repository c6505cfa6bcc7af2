//! What holds for limits, on an admin store in memory and in virtual time.

mod support;

use std::sync::Arc;
use std::time::Duration;

use dormouse::admin::Direction::{Read, Write};
use dormouse::admin::limits::{Admission, LimitError, MAX_INTERVAL, Pass, REFRESH, Throttle};
use dormouse::admin::{AdminStore, Direction, TokenKey};
use dormouse::clock::ManualClock;
use dormouse::error::Error;
use dormouse::outage::Outage;
use support::admin::{MemoryAdmin, limit, token};
use support::stage::manual_clock;

struct Server {
    store: Arc<MemoryAdmin>,
    clock: Arc<ManualClock>,
    throttle: Arc<Throttle>,
}

fn server() -> Server {
    let clock = manual_clock();
    let store = MemoryAdmin::new(clock.clone());
    let throttle = Throttle::new(store.clone(), clock.clone(), Outage::new("the limits of a test"));
    Server { store, clock, throttle }
}

async fn admit(s: &Server, key: &TokenKey, direction: Direction) -> Option<Pass> {
    match s.throttle.admit(key, direction).await.expect("the store in memory answers") {
        Admission::Admitted(pass) => Some(pass),
        Admission::OverLimit => None,
    }
}

#[tokio::test]
async fn a_token_without_a_limit_costs_no_call() {
    let s = server();
    s.throttle.refresh().await.expect("the store in memory answers");
    let before = s.store.calls();
    for direction in [Read, Write] {
        let pass = admit(&s, &token("p", "ns", "t"), direction).await.expect("there is no limit");
        pass.give_back().await.expect("there is nothing to give back");
    }
    assert_eq!(s.store.calls(), before, "no call to the store");
}

#[tokio::test]
async fn each_direction_has_its_limit_and_each_token_its_own() {
    let s = server();
    let (a, b) = (token("p", "ns", "a"), token("p", "ns", "b"));
    s.throttle.add(&a, limit(2, 0, 10)).await.expect("the store in memory answers");
    s.throttle.add(&b, limit(1, 3, 10)).await.expect("the store in memory answers");
    for (key, direction, most) in [(&a, Read, 2), (&b, Read, 1), (&b, Write, 3)] {
        for n in 1..=most {
            assert!(admit(&s, key, direction).await.is_some(), "{n} of {most} {direction:?}");
        }
        assert!(admit(&s, key, direction).await.is_none(), "{direction:?} over {most}");
    }
    for _ in 0..20 {
        assert!(admit(&s, &a, Write).await.is_some(), "0 is no limit");
    }
    s.clock.advance(Duration::from_secs(10));
    assert!(admit(&s, &a, Read).await.is_some(), "a new interval");
}

#[tokio::test]
async fn what_is_given_back_can_be_had_again() {
    let s = server();
    let key = token("p", "ns", "t");
    s.throttle.add(&key, limit(2, 2, 10)).await.expect("the store in memory answers");
    let first = admit(&s, &key, Read).await.expect("the first of two");
    let _second = admit(&s, &key, Read).await.expect("the second of two");
    for _ in 0..50 {
        assert!(admit(&s, &key, Read).await.is_none(), "over the limit");
    }
    first.give_back().await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "the refused ones are not counted");
    assert!(admit(&s, &key, Read).await.is_none(), "one was given back, not more");
}

#[tokio::test]
async fn a_pass_older_than_its_counter_makes_no_room_in_the_next() {
    let s = server();
    let key = token("p", "ns", "t");
    s.throttle.add(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    let old = admit(&s, &key, Read).await.expect("the first");
    s.clock.advance(Duration::from_secs(10));
    assert!(admit(&s, &key, Read).await.is_some(), "a new interval");
    old.give_back().await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_none(), "the old pass was of the old interval");
}

#[tokio::test]
async fn servers_share_the_counters() {
    let s = server();
    let key = token("p", "ns", "t");
    s.throttle.add(&key, limit(3, 3, 10)).await.expect("the store in memory answers");
    let other = Server {
        store: s.store.clone(),
        clock: s.clock.clone(),
        throttle: Throttle::new(s.store.clone(), s.clock.clone(), Outage::new("the limits of a test")),
    };
    for server in [&s, &other, &s] {
        assert!(admit(server, &key, Write).await.is_some(), "three in all");
    }
    for server in [&s, &other] {
        assert!(admit(server, &key, Write).await.is_none(), "over the limit on either server");
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_another_server_is_seen_within_its_refresh() {
    let s = server();
    let key = token("p", "ns", "t");
    s.throttle.refresh().await.expect("the store in memory answers");
    let fresh = tokio::spawn({
        let throttle = s.throttle.clone();
        async move { throttle.keep_fresh().await }
    });
    s.store.set_limit(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "not seen yet");
    tokio::time::sleep(REFRESH + Duration::from_millis(1)).await;
    assert!(admit(&s, &key, Read).await.is_some(), "the first that is counted");
    assert!(admit(&s, &key, Read).await.is_none(), "seen");
    s.store.fail(true);
    tokio::time::sleep(REFRESH).await;
    s.store.fail(false);
    assert!(admit(&s, &key, Read).await.is_none(), "a failed refresh keeps the limits");
    s.store.remove_limit(&key).await.expect("the store in memory answers");
    tokio::time::sleep(REFRESH).await;
    assert!(admit(&s, &key, Read).await.is_some(), "seen to be gone");
    fresh.abort();
}

#[tokio::test]
async fn changes_here_count_at_once() {
    let s = server();
    let (key, other) = (token("p", "ns", "t"), token("o", "ns", "t"));
    assert_eq!(s.throttle.list(false).await.expect("the store in memory answers"), [], "none yet");
    s.throttle.add(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    let again = s.throttle.add(&key, limit(9, 9, 9)).await;
    assert!(matches!(again, Err(LimitError::Exists)), "there is one: {again:?}");
    assert_eq!(
        s.throttle.get(&key).await.expect("the store in memory answers"),
        Some(limit(1, 1, 10)),
        "the first stays"
    );
    s.throttle.set(&key, limit(2, 2, 10)).await.expect("the store in memory answers");
    s.throttle.set(&other, limit(3, 3, 3)).await.expect("the store in memory answers");
    let both = [(other, limit(3, 3, 3)), (key.clone(), limit(2, 2, 10))];
    assert_eq!(s.throttle.list(false).await.expect("the store in memory answers"), both, "sorted by token");
    assert!(admit(&s, &key, Read).await.is_some() && admit(&s, &key, Read).await.is_some(), "two");
    assert!(admit(&s, &key, Read).await.is_none(), "not three");
    s.throttle.remove(&key).await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "no limit any more");
    s.store.set_limit(&key, limit(7, 7, 7)).await.expect("the store in memory answers");
    assert_eq!(s.throttle.list(false).await.expect("the store in memory answers"), both[..1], "as last read");
    assert_eq!(
        s.throttle.list(true).await.expect("the store in memory answers").len(),
        2,
        "as the store has it"
    );
}

#[tokio::test]
async fn a_limit_that_limits_nothing_is_refused() {
    let s = server();
    let key = token("p", "ns", "t");
    for bad in [limit(1, 1, 0), limit(1, 1, -1), limit(1, 1, MAX_INTERVAL + 1)] {
        let answers = [s.throttle.add(&key, bad).await, s.throttle.set(&key, bad).await];
        assert!(answers.iter().all(|a| matches!(a, Err(LimitError::Interval))), "{bad:?}: {answers:?}");
    }
    let empty = s.throttle.set(&key, limit(0, 0, 1)).await;
    assert!(matches!(empty, Err(LimitError::Empty)), "both are 0: {empty:?}");
    assert_eq!(s.throttle.list(true).await.expect("the store in memory answers"), [], "nothing was stored");
    for good in [limit(0, 1, 1), limit(-1, 0, MAX_INTERVAL), limit(i64::MAX, 1, 1)] {
        s.throttle.set(&key, good).await.unwrap_or_else(|e| panic!("{good:?} is a limit: {e}"));
    }
}

#[tokio::test]
async fn a_stored_limit_that_makes_no_sense_lets_all_in() {
    let s = server();
    let key = token("p", "ns", "t");
    for odd in [limit(-5, -5, 10), limit(1, 1, 0), limit(1, 1, i64::MIN)] {
        s.store.set_limit(&key, odd).await.expect("the store in memory answers");
        s.throttle.refresh().await.expect("the store in memory answers");
        for _ in 0..3 {
            assert!(admit(&s, &key, Read).await.is_some(), "{odd:?} is no limit");
        }
    }
    s.store.set_limit(&key, limit(1, 1, i64::MAX)).await.expect("the store in memory answers");
    s.throttle.refresh().await.expect("the store in memory answers");
    assert!(admit(&s, &key, Write).await.is_some(), "one");
    assert!(admit(&s, &key, Write).await.is_none(), "and no more for a very long time");
}

#[tokio::test]
async fn without_the_store_a_limited_request_fails() {
    let s = server();
    let key = token("p", "ns", "t");
    s.store.fail(true);
    let unknown = s.throttle.admit(&key, Read).await;
    assert!(matches!(unknown, Err(Error::Away(_))), "the limits were never read: {unknown:?}");
    s.store.fail(false);
    s.throttle.add(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    s.throttle.refresh().await.expect("the store in memory answers");
    s.store.fail(true);
    let counted = s.throttle.admit(&key, Read).await;
    assert!(matches!(counted, Err(Error::Away(_))), "it cannot be counted: {counted:?}");
    assert!(admit(&s, &token("p", "ns", "free"), Read).await.is_some(), "no limit, no need of the store");
}

#[tokio::test]
async fn at_the_start_many_requests_read_the_limits_once() {
    let s = server();
    let held = s.store.hold().await;
    let admits: Vec<_> = (0..20)
        .map(|_| {
            let throttle = s.throttle.clone();
            tokio::spawn(async move { throttle.admit(&token("p", "ns", "t"), Read).await.is_ok() })
        })
        .collect();
    tokio::task::yield_now().await;
    drop(held);
    for admit in admits {
        assert!(admit.await.expect("no panic"), "let in");
    }
    assert_eq!(s.store.calls(), 1, "one reading for all");
}
