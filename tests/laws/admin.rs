//! Laws of admin stores: tokens and limits of one scope stay there, and counters lose nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use dormouse::admin::Direction::{Read, Write};

use crate::support::admin::{AdminStage, limit, scope, token};
use crate::support::stage::ok;

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);

/// Guards against tokens lost, or stored without their description.
pub async fn a_token_is_there_once_it_was_added(s: &AdminStage) {
    let key = token("default", "ns", "01TOKEN");
    assert!(!ok("has_token", s.store().has_token(&key).await), "nothing was added");
    assert!(ok("add_token", s.store().add_token(&key, "für \"tests\"").await), "it is new");
    assert!(ok("has_token", s.store().has_token(&key).await), "it was added");
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
        assert!(!ok("has_token", s.store().has_token(&key).await), "it was removed");
    }
    assert!(ok("has_token", s.store().has_token(&other).await), "the other token stays");
    assert_eq!(ok("limits", s.store().limits().await), [(other, limit(1, 2, 3))], "the other's limit stays");
}

/// Guards against a token that opens more than its scope.
pub async fn tokens_of_other_scopes_do_not_mix(s: &AdminStage) {
    ok("add_token", s.store().add_token(&token("p", "ns", "t"), "d").await);
    for other in
        [token("p", "other", "t"), token("q", "ns", "t"), token("p", "ns", "T"), token("p", "ns", "tt")]
    {
        assert!(!ok("has_token", s.store().has_token(&other).await), "{:?} was not added", other.scope);
        ok("remove_token", s.store().remove_token(&other).await);
    }
    for (pool, namespace, count) in [("p", "ns", 1), ("p", "other", 0), ("q", "ns", 0)] {
        let list = ok("tokens", s.store().tokens(&scope(pool, namespace)).await);
        assert_eq!(list.len(), count, "tokens of {pool}/{namespace}");
    }
}

/// Guards against joined keys: a token may hold any character, also the one that a key is joined with.
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
            assert_eq!(ok("count", s.store().count(key, Read, HOUR).await), n, "counter {i} is its own");
        }
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

/// Guards against one counter for both directions, or for all tokens.
pub async fn counters_count_apart(s: &AdminStage) {
    let (a, b) = (token("p", "ns", "a"), token("p", "ns", "b"));
    for n in 1..=3 {
        assert_eq!(ok("count", s.store().count(&a, Read, HOUR).await), n, "reads of a");
    }
    assert_eq!(ok("count", s.store().count(&a, Write, HOUR).await), 1, "writes of a");
    assert_eq!(ok("count", s.store().count(&b, Read, HOUR).await), 1, "reads of b");
}

/// Guards against counters that never end, or whose end moves with each count.
pub async fn a_counter_ends_after_its_interval(s: &AdminStage) {
    let (key, steady) = (token("p", "ns", "a"), token("p", "ns", "b"));
    ok("count", s.store().count(&steady, Read, HOUR).await);
    ok("count", s.store().count(&key, Read, SHORT).await);
    s.advance(SHORT / 2).await;
    ok("count", s.store().count(&key, Read, SHORT).await);
    s.advance(SHORT / 2 + Duration::from_millis(1)).await;
    let count = ok("count", s.store().count(&key, Read, SHORT).await);
    assert_eq!(count, 1, "the interval has ended, counted from the first count");
    assert_eq!(ok("count", s.store().count(&steady, Read, HOUR).await), 2, "an hour has not");
}

/// Guards against requests that are given back and still counted.
pub async fn uncount_takes_one_back(s: &AdminStage) {
    let key = token("p", "ns", "a");
    for n in 1..=3 {
        assert_eq!(ok("count", s.store().count(&key, Write, HOUR).await), n, "counted");
    }
    ok("uncount", s.store().uncount(&key, Write).await);
    ok("uncount", s.store().uncount(&key, Read).await);
    assert_eq!(ok("count", s.store().count(&key, Write, HOUR).await), 3, "two were left");
    assert_eq!(ok("count", s.store().count(&key, Read, HOUR).await), 1, "there was nothing to take back");
}

/// Guards against credit: what comes back after the counter ended must not make room in the next one, and
/// must not leave a counter that never ends.
pub async fn uncount_never_goes_below_zero(s: &AdminStage) {
    let key = token("p", "ns", "a");
    ok("uncount", s.store().uncount(&key, Read).await);
    ok("count", s.store().count(&key, Read, SHORT).await);
    for _ in 0..3 {
        ok("uncount", s.store().uncount(&key, Read).await);
    }
    assert_eq!(ok("count", s.store().count(&key, Read, SHORT).await), 1, "never below zero");
    s.advance(SHORT + Duration::from_millis(1)).await;
    ok("uncount", s.store().uncount(&key, Read).await);
    assert_eq!(ok("count", s.store().count(&key, Read, SHORT).await), 1, "the counter had ended");
    s.advance(SHORT + Duration::from_millis(1)).await;
    assert_eq!(ok("count", s.store().count(&key, Read, SHORT).await), 1, "and this one ends too");
}

/// Guards against counts lost between servers that count at the same time.
pub async fn concurrent_counts_are_all_counted(s: &AdminStage) {
    let key = token("p", "ns", "a");
    let one = || async { ok("count", s.store().count(&key, Read, HOUR).await) };
    let mut counts = Vec::new();
    for _ in 0..10 {
        let (a, b, c, d) = tokio::join!(one(), one(), one(), one());
        counts.extend([a, b, c, d]);
    }
    counts.sort_unstable();
    assert_eq!(counts, (1..=40).collect::<Vec<_>>(), "each count is a number of its own");
}

/// Guards against a health check that fails while all is well.
pub async fn check_is_fine(s: &AdminStage) {
    ok("check", s.store().check().await);
}
