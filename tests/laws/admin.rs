//! Laws of admin stores: tokens and limits of one scope stay there, and counters lose nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dormouse::admin::Direction::{self, Read, Write};
use dormouse::admin::{Count, TokenKey, TokenRecord};
use dormouse::clock::Millis;

use crate::admin_stage::{AdminStage, limit, scope, token};
use crate::stage::{TIMEOUT, ms, ok};

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);
/// What lua/uncount.lua takes for one end: a Redis that is stalled between two commands of a script adds to it.
const ONE_END: Millis = 100;
/// A limit that no test reaches.
const MANY: u64 = i64::MAX as u64;

async fn there(s: &AdminStage, key: &TokenKey) -> bool {
    ok("look_up", s.store().look_up(key).await).exists
}

/// Counts below `most`, and returns when the counter ends; `None` if it is full. Checks that a full counter ends within
/// its interval.
async fn count(
    s: &AdminStage,
    key: &TokenKey,
    direction: Direction,
    most: u64,
    interval: Duration,
) -> Option<Millis> {
    match ok("count", s.store().count(key, direction, most, interval).await) {
        Count::Counted(ends) => Some(ends),
        Count::Full(left) => {
            assert!(!left.is_zero() && left <= interval, "a counter of {interval:?} ends in {left:?}");
            None
        }
        Count::NotCounted => panic!("no store of these laws is full"),
    }
}

/// Returns the value of a counter, found by counting up to `most`, which must be higher.
async fn counted(s: &AdminStage, key: &TokenKey, direction: Direction, most: u64) -> u64 {
    let mut free = 0;
    while count(s, key, direction, most, HOUR).await.is_some() {
        free += 1;
        assert!(free <= most, "a limit of {most} has let {free} in");
    }
    most - free
}

/// Guards against tokens lost, or stored without their description.
pub async fn a_token_is_there_once_it_was_added(s: &AdminStage) {
    let key = token("default", "ns", "01TOKEN");
    assert!(!there(s, &key).await, "nothing was added");
    assert!(ok("add_token", s.store().add_token(&key, "für \"tests\"").await), "it is new");
    assert!(there(s, &key).await, "it was added");
    let list = ok("tokens", s.store().tokens(&key.scope).await);
    assert_eq!(list, BTreeMap::from([("01TOKEN".into(), "für \"tests\"".into())]), "with its description");
}

/// Guards against a token that changes its owner.
pub async fn a_taken_token_is_not_added_again(s: &AdminStage) {
    let key = token("default", "ns", "01TOKEN");
    ok("add_token", s.store().add_token(&key, "first").await);
    assert!(!ok("add_token", s.store().add_token(&key, "second").await), "it is taken");
    let list = ok("tokens", s.store().tokens(&key.scope).await);
    assert_eq!(list, BTreeMap::from([("01TOKEN".into(), "first".into())]), "nothing changed");
}

/// Guards against a token that outlives its removal, and against a limit left for the next of its name.
pub async fn a_removed_token_is_gone_with_its_limit(s: &AdminStage) {
    let (key, other) = (token("default", "ns", "a"), token("default", "ns", "b"));
    for key in [&key, &other] {
        ok("add_token", s.store().add_token(key, "d").await);
        ok("set_limit", s.store().set_limit(key, limit(1, 2, 3)).await);
    }
    for _ in 0..2 {
        ok("remove_token", s.store().remove_token(&key).await);
        assert!(!there(s, &key).await, "it was removed");
    }
    assert!(there(s, &other).await, "the other token stays");
    assert_eq!(ok("limits", s.store().limits().await), [(other, limit(1, 2, 3))], "the other's limit stays");
}

/// Guards against a token that opens more than its scope.
pub async fn tokens_of_other_scopes_do_not_mix(s: &AdminStage) {
    ok("add_token", s.store().add_token(&token("p", "ns", "t"), "d").await);
    for other in
        [token("p", "other", "t"), token("q", "ns", "t"), token("p", "ns", "T"), token("p", "ns", "tt")]
    {
        assert!(!there(s, &other).await, "{:?} was not added", other.scope);
        ok("remove_token", s.store().remove_token(&other).await);
    }
    for (pool, namespace, count) in [("p", "ns", 1), ("p", "other", 0), ("q", "ns", 0)] {
        let list = ok("tokens", s.store().tokens(&scope(pool, namespace)).await);
        assert_eq!(list.len(), count, "tokens of {pool}/{namespace}");
    }
}

/// Guards against joined keys: a token may contain any character, including the separator of keys.
pub async fn names_and_tokens_with_separators_do_not_mix(s: &AdminStage) {
    let keys = [
        token("p", "n", "a/b"),
        token("p", "n", "a"),
        token("p", "n", "a:b"),
        token("p", "n", "a\0b"),
        token("p", "n-a", "b"),
        token("p-n", "a", "b"),
        token("p", "n", "日本 %2F /r"),
        token("p", "n", &"x".repeat(1000)),
    ];
    for (i, key) in keys.iter().enumerate() {
        let i = i as i64 + 1;
        assert!(ok("add_token", s.store().add_token(key, "d").await), "token {i} is new");
        assert!(ok("add_limit", s.store().add_limit(key, limit(i, i, i)).await), "limit {i} is new");
        for n in 1..=i as u64 {
            let below = count(s, key, Read, i as u64, HOUR).await;
            assert!(below.is_some(), "counter {i} is its own, and has counted less than {n}");
        }
        assert_eq!(count(s, key, Read, i as u64, HOUR).await, None, "counter {i} is full");
    }
    for (i, key) in (1..).zip(&keys) {
        let record = ok("look_up", s.store().look_up(key).await);
        assert_eq!(record, TokenRecord { exists: true, limit: Some(limit(i, i, i)) }, "token {i}");
    }
    let mut limits = ok("limits", s.store().limits().await);
    limits.sort_by_key(|(_, limit)| limit.read);
    let expected: Vec<_> = keys.iter().cloned().zip((1..).map(|i| limit(i, i, i))).collect();
    assert_eq!(limits, expected, "each token is read back as it was stored, with its own limit");
}

/// Guards against limits lost or mixed up.
pub async fn limits_are_added_set_and_removed(s: &AdminStage) {
    let (a, b) = (token("p", "ns", "a"), token("p", "ns", "b"));
    assert_eq!(ok("limits", s.store().limits().await), [], "nothing was added");
    assert!(ok("add_limit", s.store().add_limit(&a, limit(1, -2, 3)).await), "it is new");
    assert!(!ok("add_limit", s.store().add_limit(&a, limit(9, 9, 9)).await), "there is one already");
    assert_eq!(ok("limits", s.store().limits().await), [(a.clone(), limit(1, -2, 3))], "the first stays");
    ok("set_limit", s.store().set_limit(&a, limit(i64::MAX, 5, 6)).await);
    ok("set_limit", s.store().set_limit(&b, limit(7, 8, 9)).await);
    let mut limits = ok("limits", s.store().limits().await);
    limits.sort_by_key(|(_, limit)| limit.write);
    let both = [(a.clone(), limit(i64::MAX, 5, 6)), (b.clone(), limit(7, 8, 9))];
    assert_eq!(limits, both, "set replaces and adds");
    for _ in 0..2 {
        ok("remove_limit", s.store().remove_limit(&a).await);
        assert_eq!(ok("limits", s.store().limits().await), both[1..], "one was removed");
    }
}

/// Guards against a limit that is not shown with its token, or without it.
pub async fn a_look_up_shows_token_and_limit(s: &AdminStage) {
    let key = token("p", "ns", "a");
    let look = async || ok("look_up", s.store().look_up(&key).await);
    assert_eq!(look().await, TokenRecord::default(), "nothing was added");
    ok("set_limit", s.store().set_limit(&key, limit(1, 2, 3)).await);
    assert_eq!(look().await, TokenRecord { exists: false, limit: Some(limit(1, 2, 3)) }, "the limit alone");
    ok("add_token", s.store().add_token(&key, "d").await);
    assert_eq!(look().await, TokenRecord { exists: true, limit: Some(limit(1, 2, 3)) }, "both");
    ok("remove_limit", s.store().remove_limit(&key).await);
    assert_eq!(look().await, TokenRecord { exists: true, limit: None }, "the token alone");
}

/// Guards against lists that lose entries beyond one step of a read.
pub async fn many_tokens_and_limits_are_all_listed(s: &AdminStage) {
    const COUNT: i64 = 3000;
    for n in 1..=COUNT {
        let key = token("p", "ns", &format!("token-{n}"));
        ok("add_token", s.store().add_token(&key, "d").await);
        ok("add_limit", s.store().add_limit(&key, limit(n, n, n)).await);
    }
    let tokens = ok("tokens", s.store().tokens(&scope("p", "ns")).await);
    assert_eq!(tokens.len() as i64, COUNT, "each token once");
    let mut limits = ok("limits", s.store().limits().await);
    limits.sort_by_key(|(_, limit)| limit.read);
    let all = limits.iter().map(|(_, limit)| limit.read).eq(1..=COUNT);
    assert!(all, "each limit once: {} of {COUNT} came", limits.len());
}

/// Guards against one counter for both directions, or for all tokens.
pub async fn counters_count_apart(s: &AdminStage) {
    let (a, b) = (token("p", "ns", "a"), token("p", "ns", "b"));
    for n in 1..=3 {
        assert!(count(s, &a, Read, 3, HOUR).await.is_some(), "read {n} of a");
    }
    assert_eq!(count(s, &a, Read, 3, HOUR).await, None, "a fourth read of a");
    assert!(count(s, &a, Write, 1, HOUR).await.is_some(), "writes of a");
    assert!(count(s, &b, Read, 1, HOUR).await.is_some(), "reads of b");
}

/// Guards against counting refused requests: giving one back would not admit another.
pub async fn what_is_not_below_the_limit_is_not_counted(s: &AdminStage) {
    let key = token("p", "ns", "a");
    let ends = count(s, &key, Write, 2, HOUR).await.expect("the first of two");
    let again = count(s, &key, Write, 2, HOUR).await.expect("the second of two");
    assert!(again.abs_diff(ends) <= ONE_END, "one end, not {ends} and {again}");
    for _ in 0..5 {
        assert_eq!(count(s, &key, Write, 2, HOUR).await, None, "full");
    }
    assert_eq!(counted(s, &key, Write, 10).await, 2, "the five were not counted");
    assert_eq!(count(s, &key, Write, 3, HOUR).await, None, "a lower limit is over");
}

/// Guards against counters that never end, or whose end moves with each count, or with each refusal.
pub async fn a_counter_ends_after_its_interval(s: &AdminStage) {
    let (steady, began) = (token("p", "ns", "steady"), Instant::now());
    assert!(count(s, &steady, Read, 1, HOUR).await.is_some(), "the first");
    for n in 0.. {
        let key = token("p", "ns", &format!("token-{n}"));
        let ends = count(s, &key, Read, 2, SHORT).await.expect("the first");
        s.advance(SHORT / 2).await;
        let again = count(s, &key, Read, 2, SHORT).await;
        let refused = count(s, &key, Read, 1, SHORT).await;
        s.advance(SHORT / 2 + Duration::from_millis(1)).await;
        let last = count(s, &key, Read, 1, SHORT).await;
        // On a machine that stalls, either may be counted in another interval, which ends a whole interval later.
        let next = |counted: Option<Millis>| counted.is_some_and(|at| at + ONE_END >= ends + ms(SHORT));
        if !next(again) && !next(refused) {
            let again = again.expect("the second of two");
            assert!(
                again.abs_diff(ends) <= ONE_END,
                "half an interval later: one end, not {ends} and {again}"
            );
            assert_eq!(refused, None, "half an interval later, the counter is full");
            assert!(last.is_some(), "the interval, from the first count, has ended");
            assert!(next(last), "in the next interval: {last:?}, {ends}");
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "two counts of an interval took longer, every time");
    }
    assert_eq!(count(s, &steady, Read, 1, HOUR).await, None, "an hour has not ended");
}

/// Guards against requests that are given back but still counted.
pub async fn uncount_takes_one_back(s: &AdminStage) {
    let key = token("p", "ns", "a");
    let mut ends = 0;
    for n in 1..=3 {
        ends = count(s, &key, Write, 3, HOUR).await.unwrap_or_else(|| panic!("{n} of 3"));
    }
    ok("uncount", s.store().uncount(&key, Write, ends).await);
    ok("uncount", s.store().uncount(&key, Read, ends).await);
    assert_eq!(counted(s, &key, Write, 3).await, 2, "two were left");
    assert_eq!(counted(s, &key, Read, 5).await, 0, "there was nothing to take back");
}

/// Guards against credit: giving back a request more than once must not admit more, nor leave a counter that never
/// ends.
pub async fn uncount_never_goes_below_zero(s: &AdminStage) {
    let (key, short) = (token("p", "ns", "a"), token("p", "ns", "b"));
    for (key, interval) in [(&key, HOUR), (&short, SHORT)] {
        let ends = count(s, key, Read, MANY, interval).await.expect("it is the first");
        for _ in 0..3 {
            ok("uncount", s.store().uncount(key, Read, ends).await);
        }
        assert!(count(s, key, Read, 1, interval).await.is_some(), "none is left");
    }
    assert_eq!(count(s, &key, Read, 1, HOUR).await, None, "never below zero");
    s.advance(SHORT + Duration::from_millis(1)).await;
    assert!(count(s, &short, Read, 1, SHORT).await.is_some(), "this counter ended too");
}

/// Guards against a request given back after its interval that admits one in the next interval, which never counted it.
pub async fn uncount_leaves_the_next_interval_alone(s: &AdminStage) {
    let key = token("p", "ns", "a");
    let old = count(s, &key, Read, 1, SHORT).await.expect("it is the first");
    s.advance(SHORT + Duration::from_millis(1)).await;
    ok("uncount", s.store().uncount(&key, Read, old).await);
    // It does not end during the law.
    let new = count(s, &key, Read, 1, HOUR).await.expect("a new interval");
    assert!(new > old + ms(HOUR) / 2, "it ends later: {new} after {old}");
    ok("uncount", s.store().uncount(&key, Read, old).await);
    assert_eq!(count(s, &key, Read, 1, HOUR).await, None, "the old request was not of this interval");
    ok("uncount", s.store().uncount(&key, Read, new).await);
    assert!(count(s, &key, Read, 1, HOUR).await.is_some(), "the new one was");
}

/// Guards against counts lost between servers that count at the same time.
pub async fn concurrent_counts_are_all_counted(s: &AdminStage) {
    let key = token("p", "ns", "a");
    let one = || async { count(s, &key, Read, 37, HOUR).await.is_some() };
    let mut admitted = 0;
    for _ in 0..10 {
        let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
        admitted += [a, b, c, d].into_iter().filter(|below| *below).count();
    }
    assert_eq!(admitted, 37, "of forty requests at a time, as many as the limit");
}

/// Guards against a health check that fails while all is well.
pub async fn check_is_fine(s: &AdminStage) {
    ok("check", s.store().check().await);
}
