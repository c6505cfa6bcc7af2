//! Contracts of rate limits, on an admin store in memory and in virtual time.

use std::sync::Arc;
use std::time::Duration;

use crate::admin_stage::{MemoryAdmin, limit, token};
use crate::stage::manual_clock;
use dormouse::admin::Direction::{Read, Write};
use dormouse::admin::cache::{FRESH, STALE, TokenCache};
use dormouse::admin::limits::{Admission, COUNT_TIMEOUT, LimitError, MAX_INTERVAL, Pass, Throttle};
use dormouse::admin::{AdminStore, Direction, TokenKey};
use dormouse::clock::ManualClock;
use dormouse::error::Error;
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};

struct Server {
    store: Arc<MemoryAdmin>,
    clock: Arc<ManualClock>,
    throttle: Arc<Throttle>,
}

async fn server() -> Server {
    let clock = manual_clock();
    let store = MemoryAdmin::new(clock.clone()).await;
    server_on(store, clock)
}

/// Returns another server on the same store.
fn server_on(store: Arc<MemoryAdmin>, clock: Arc<ManualClock>) -> Server {
    let (outage, tasks) = (Outage::new("the limits of a test"), Tasks::new(Failure::default()));
    let cache = TokenCache::new(store.clone(), clock.clone(), outage.clone(), tasks);
    let throttle = Throttle::new(store.clone(), cache, outage);
    Server { store, clock, throttle }
}

/// Adds a token, since unknown ones are not cached.
async fn known(s: &Server, text: &str) -> TokenKey {
    let key = token("p", "ns", text);
    s.store.add_token(&key, "d").await.expect("the store in memory answers");
    key
}

async fn admit(s: &Server, key: &TokenKey, direction: Direction) -> Option<Pass> {
    match s.throttle.admit(key, direction).await.expect("the store in memory answers") {
        Admission::Admitted(pass) => Some(pass),
        Admission::OverLimit(left) => {
            assert!(!left.is_zero(), "an ended counter does not limit");
            None
        }
    }
}

#[tokio::test]
async fn a_token_without_a_limit_costs_no_call() {
    let s = server().await;
    let key = known(&s, "t").await;
    assert!(admit(&s, &key, Read).await.is_some(), "there is no limit");
    let before = s.store.calls();
    for direction in [Read, Write] {
        let pass = admit(&s, &key, direction).await.expect("there is no limit");
        pass.give_back().await.expect("there is nothing to give back");
    }
    assert_eq!(s.store.calls(), before, "no call to the store");
}

#[tokio::test]
async fn each_direction_has_its_limit_and_each_token_its_own() {
    let s = server().await;
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
    let s = server().await;
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
    let s = server().await;
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
    let s = server().await;
    let key = token("p", "ns", "t");
    s.throttle.add(&key, limit(3, 3, 10)).await.expect("the store in memory answers");
    let other = server_on(s.store.clone(), s.clock.clone());
    for server in [&s, &other, &s] {
        assert!(admit(server, &key, Write).await.is_some(), "three in all");
    }
    for server in [&s, &other] {
        assert!(admit(server, &key, Write).await.is_none(), "over the limit on either server");
    }
}

#[tokio::test]
async fn a_limit_of_another_server_is_seen_within_a_second() {
    let s = server().await;
    let key = known(&s, "t").await;
    assert!(admit(&s, &key, Read).await.is_some(), "there is no limit");
    s.store.set_limit(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "not seen yet");
    s.clock.advance(STALE);
    assert!(admit(&s, &key, Read).await.is_some(), "the first that is counted");
    assert!(admit(&s, &key, Read).await.is_none(), "seen");
    s.store.remove_limit(&key).await.expect("the store in memory answers");
    s.clock.advance(FRESH - Duration::from_millis(1));
    assert!(admit(&s, &key, Read).await.is_none(), "not yet");
    s.clock.advance(STALE);
    assert!(admit(&s, &key, Read).await.is_some(), "seen to be gone");
}

/// Guards against a server that reads the whole store each second.
#[tokio::test]
async fn only_the_tokens_in_use_are_asked_about() {
    let s = server().await;
    let key = known(&s, "t").await;
    for n in 0..1000 {
        s.store.set_limit(&token("p", "ns", &format!("idle-{n}")), limit(1, 1, 10)).await.expect("stored");
    }
    assert!(admit(&s, &key, Read).await.is_some(), "there is no limit");
    let before = s.store.calls();
    for _ in 0..10 {
        s.clock.advance(STALE);
        assert!(admit(&s, &key, Read).await.is_some(), "there is no limit");
    }
    assert_eq!(s.store.calls() - before, 10, "one small question a second");
}

/// Guards against a refusal that first counts and then takes back: two calls, and other requests are refused meanwhile.
#[tokio::test]
async fn a_refusal_costs_one_call() {
    let s = server().await;
    let key = known(&s, "t").await;
    s.throttle.add(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "the first of one");
    let before = s.store.calls();
    assert!(admit(&s, &key, Read).await.is_none(), "over the limit");
    assert_eq!(s.store.calls() - before, 1, "one call to the store");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_fails_a_limited_request_soon() {
    let s = server().await;
    let key = known(&s, "t").await;
    s.throttle.add(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "the first");
    let held = s.store.hold().await;
    let began = tokio::time::Instant::now();
    let counted = s.throttle.admit(&key, Read).await;
    assert!(matches!(counted, Err(Error::Away(_))), "it cannot be counted: {counted:?}");
    assert!(began.elapsed() <= COUNT_TIMEOUT, "after {:?}", began.elapsed());
    drop(held);
}

#[tokio::test]
async fn changes_here_count_at_once() {
    let s = server().await;
    let (key, other) = (token("p", "ns", "t"), token("o", "ns", "t"));
    assert_eq!(s.throttle.list().await.expect("the store in memory answers"), [], "none yet");
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
    assert_eq!(s.throttle.list().await.expect("the store in memory answers"), both, "sorted by token");
    assert!(admit(&s, &key, Read).await.is_some() && admit(&s, &key, Read).await.is_some(), "two");
    assert!(admit(&s, &key, Read).await.is_none(), "not three");
    s.throttle.remove(&key).await.expect("the store in memory answers");
    assert!(admit(&s, &key, Read).await.is_some(), "no limit any more");
    s.store.set_limit(&key, limit(7, 7, 7)).await.expect("the store in memory answers");
    let listed = s.throttle.list().await.expect("the store in memory answers");
    assert_eq!(listed.len(), 2, "as the store has it now: {listed:?}");
}

#[tokio::test]
async fn a_limit_that_limits_nothing_is_refused() {
    let s = server().await;
    let key = token("p", "ns", "t");
    for bad in [limit(1, 1, 0), limit(1, 1, -1), limit(1, 1, MAX_INTERVAL + 1)] {
        let answers = [s.throttle.add(&key, bad).await, s.throttle.set(&key, bad).await];
        assert!(answers.iter().all(|a| matches!(a, Err(LimitError::Interval))), "{bad:?}: {answers:?}");
    }
    let empty = s.throttle.set(&key, limit(0, 0, 1)).await;
    assert!(matches!(empty, Err(LimitError::Empty)), "both are 0: {empty:?}");
    for bad in [limit(-1, -1, 1), limit(0, -1, 1), limit(-1, 0, MAX_INTERVAL), limit(i64::MIN, i64::MIN, 1)] {
        let answers = [s.throttle.add(&key, bad).await, s.throttle.set(&key, bad).await];
        assert!(answers.iter().all(|a| matches!(a, Err(LimitError::Unlimited))), "{bad:?}: {answers:?}");
    }
    assert_eq!(s.throttle.list().await.expect("the store in memory answers"), [], "nothing was stored");
    for good in [limit(0, 1, 1), limit(-1, 1, MAX_INTERVAL), limit(i64::MAX, 1, 1)] {
        s.throttle.set(&key, good).await.unwrap_or_else(|e| panic!("{good:?} is a limit: {e}"));
    }
}

#[tokio::test]
async fn a_stored_limit_that_makes_no_sense_lets_all_in() {
    let s = server().await;
    let key = token("p", "ns", "t");
    for odd in [limit(-5, -5, 10), limit(1, 1, 0), limit(1, 1, i64::MIN)] {
        s.store.set_limit(&key, odd).await.expect("the store in memory answers");
        s.clock.advance(STALE);
        for _ in 0..3 {
            assert!(admit(&s, &key, Read).await.is_some(), "{odd:?} is no limit");
        }
    }
    s.store.set_limit(&key, limit(1, 1, i64::MAX)).await.expect("the store in memory answers");
    s.clock.advance(STALE);
    assert!(admit(&s, &key, Write).await.is_some(), "one");
    assert!(admit(&s, &key, Write).await.is_none(), "and no more for a very long time");
}

#[tokio::test]
async fn without_the_store_a_limited_request_fails() {
    let s = server().await;
    let key = token("p", "ns", "t");
    s.store.fail(true);
    let unknown = s.throttle.admit(&key, Read).await;
    assert!(matches!(unknown, Err(Error::Away(_))), "it is unknown whether it has a limit: {unknown:?}");
    s.store.fail(false);
    s.throttle.add(&key, limit(1, 1, 10)).await.expect("the store in memory answers");
    let free = known(&s, "free").await;
    for key in [&key, &free] {
        assert!(admit(&s, key, Write).await.is_some(), "the first");
    }
    s.store.fail(true);
    s.clock.advance(STALE);
    let counted = s.throttle.admit(&key, Read).await;
    assert!(matches!(counted, Err(Error::Away(_))), "it cannot be counted: {counted:?}");
    assert!(admit(&s, &free, Read).await.is_some(), "it had no limit, so there is no need of the store");
}

#[tokio::test]
async fn many_requests_of_a_new_token_ask_once() {
    let s = server().await;
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
    assert_eq!(s.store.calls(), 1, "one question for all");
}
