//! Laws of settings stores: reads return the last write, by any server; no server misses a change.

use std::time::Duration;

use bytes::Bytes;
use dormouse::admin::Scope;
use dormouse::engine::Quota;
use dormouse::name::{Namespace, PoolName};
use dormouse::outage::Outage;
use dormouse::quotas::QuotaManager;
use dormouse::settings::{
    MAX_CHANGES, MAX_SCAN, Put, Record, SettingChanges, SettingVersion, SettingsStore, move_records,
};

use crate::settings_stage::{MemorySettings, SettingsStage};
use crate::stage::ok;
use crate::support::wait::until;

const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3600);

async fn get(s: &SettingsStage, key: &str) -> Option<Record> {
    ok("get", s.store().get(key).await)
}

async fn try_put(s: &SettingsStage, key: &str, value: Option<&str>, expected: Option<SettingVersion>) -> Put {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    ok("put", s.store().put(key, value, expected).await)
}

/// Puts a record, which must succeed.
async fn put(s: &SettingsStage, key: &str, value: &str, expected: Option<SettingVersion>) -> SettingVersion {
    match try_put(s, key, Some(value), expected).await {
        Put::Done(version) => version,
        Put::Differs(there) => {
            panic!("{key} from version {expected:?} should be put, but there is {there:?}")
        }
    }
}

async fn delete(s: &SettingsStage, key: &str, expected: SettingVersion) -> SettingVersion {
    match try_put(s, key, None, Some(expected)).await {
        Put::Done(version) => version,
        Put::Differs(there) => {
            panic!("{key} of version {expected} should be deleted, but there is {there:?}")
        }
    }
}

async fn changes(s: &SettingsStage, prefix: &str, since: SettingVersion) -> SettingChanges {
    ok("changes", s.store().changes(prefix, since).await)
}

/// Returns all keys with a prefix, read in pages of `limit`.
async fn keys(s: &SettingsStage, prefix: &str, limit: usize) -> Vec<String> {
    let (mut all, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
    for _ in 0..1000 {
        let page = ok("scan", s.store().scan(prefix, after.as_deref(), limit).await);
        assert!(page.records.len() <= limit, "asked for {limit}, got {}", page.records.len());
        all.extend(page.records.into_iter().map(|(key, _)| key));
        after = all.last().cloned();
        if !page.more {
            return all;
        }
    }
    panic!("settings are scanned without end: {all:?}");
}

/// Guards against a record that changes when it is stored.
pub async fn a_record_is_read_as_it_was_put(s: &SettingsStage) {
    let values = [&b""[..], b"1 0 value", b"line\nline\r\n", b"\0\xff\x80", "für".as_bytes(), &[7; 70_000]];
    for (n, value) in values.into_iter().enumerate() {
        let key = format!("a/b.c {n}/ü");
        assert_eq!(get(s, &key).await, None, "nothing was put at {key:?}");
        let value = Bytes::copy_from_slice(value);
        let Put::Done(version) = ok("put", s.store().put(&key, Some(value.clone()), None).await) else {
            panic!("there is nothing at {key:?}, and a put that expects that is refused");
        };
        assert_eq!(get(s, &key).await, Some(Record { value, version }), "what was put at {key:?}");
    }
}

/// Guards against overwriting another caller's change.
pub async fn a_put_from_another_version_changes_nothing(s: &SettingsStage) {
    let version = put(s, "key", "one", None).await;
    let there = Some(Record { value: Bytes::from_static(b"one"), version });
    for expected in [None, Some(version + 1), Some(version - 1)] {
        for value in [Some("two"), None] {
            let told = try_put(s, "key", value, expected).await;
            assert_eq!(told, Put::Differs(there.clone()), "{value:?} from version {expected:?}");
        }
    }
    assert_eq!(get(s, "key").await, there, "it is as it was");
    assert_eq!(try_put(s, "other", Some("x"), Some(version)).await, Put::Differs(None), "nothing is there");
    let second = put(s, "key", "two", Some(version)).await;
    delete(s, "key", second).await;
    assert_eq!(get(s, "key").await, None, "it was deleted");
    assert_eq!(try_put(s, "key", Some("x"), Some(second)).await, Put::Differs(None), "a deleted record");
}

/// Guards against a caller that mistakes a new record for the one it has read, because its version was reused.
pub async fn versions_grow_and_are_never_used_twice(s: &SettingsStage) {
    let (mut last, mut expected) = (0, None);
    for n in 0..20 {
        let version = match expected {
            Some(version) if n % 3 == 2 => {
                expected = None;
                delete(s, "key", version).await
            }
            of => {
                expected = Some(put(s, "key", "x", of).await);
                expected.unwrap_or_default()
            }
        };
        assert!(version > last, "change {n} has version {version} after {last}");
        last = version;
    }
}

/// Guards against lost increments.
pub async fn of_many_that_change_one_record_none_is_lost(s: &SettingsStage) {
    put(s, "sum", "0", None).await;
    let add = |store: std::sync::Arc<dyn SettingsStore>| async move {
        for _ in 0..10 {
            let mut there = ok("get", store.get("sum").await).expect("it is there");
            loop {
                let sum: u64 = std::str::from_utf8(&there.value).expect("digits").parse().expect("a number");
                let value = Some((sum + 1).to_string().into());
                match ok("put", store.put("sum", value, Some(there.version)).await) {
                    Put::Done(_) => break,
                    Put::Differs(newer) => there = newer.expect("nobody deletes it"),
                }
            }
        }
    };
    let all: Vec<_> = (0..8).map(|_| tokio::spawn(add(s.store().clone()))).collect();
    for one in all {
        one.await.expect("it does not panic");
    }
    let sum = get(s, "sum").await.expect("it is there").value;
    assert_eq!(sum, "80", "eight times ten");
}

/// Guards against records that are omitted, repeated or shown under another prefix.
pub async fn records_are_scanned_by_key(s: &SettingsStage) {
    let mut names: Vec<String> = (0..25).map(|n| format!("s/p/n{n:02}")).collect();
    names.extend(["s/p/", "s/p/é", "s/p/n03/x"].map(str::to_owned));
    for name in
        names.iter().rev().chain(&["s/p".to_owned(), "s/q".to_owned(), "s".to_owned(), "t".to_owned()])
    {
        put(s, name, name, None).await;
    }
    names.sort();
    for limit in [1, 3, 28, MAX_SCAN] {
        assert_eq!(keys(s, "s/p/", limit).await, names, "in pages of {limit}");
    }
    let page = ok("scan", s.store().scan("s/p/", Some("s/p/n03"), 1).await);
    let (key, record) = &page.records[0];
    assert_eq!(
        (key.as_str(), &record.value[..]),
        ("s/p/n03/x", &b"s/p/n03/x"[..]),
        "behind one that may be gone"
    );
    assert_eq!(get(s, key).await.as_ref(), Some(record), "a scan shows what a read does");
    let before = ok("scan", s.store().scan("s/p/", Some("a"), 1).await);
    assert_eq!(before.records[0].0, "s/p/", "a place before the prefix is its begin");
    assert_eq!(keys(s, "s/p/n0", 100).await.len(), 11, "a prefix that is no whole name");
    assert_eq!(keys(s, "none", 100).await.len(), 0, "a prefix of nothing");
    assert_eq!(keys(s, "", 100).await.len(), 32, "all");
}

/// Guards against a page that holds too much memory.
pub async fn a_page_of_large_records_is_bounded(s: &SettingsStage) {
    let value = "x".repeat(300_000);
    for n in 0..8 {
        put(s, &format!("large/{n}"), &value, None).await;
    }
    let page = ok("scan", s.store().scan("large/", None, 100).await);
    let bytes: usize = page.records.iter().map(|(_, record)| record.value.len()).sum();
    // The model has no bound.
    assert!(page.records.len() == 8 || page.more && bytes <= 1_500_000, "{bytes} bytes in one page");
    assert_eq!(keys(s, "large/", 100).await.len(), 8, "all of them");
}

/// Guards against a server that misses a change, or receives it again and again.
pub async fn changes_are_told_in_order(s: &SettingsStage) {
    let empty = changes(s, "a/", 0).await;
    put(s, "a/1", "x", None).await;
    let first = put(s, "a/2", "x", None).await;
    let other = put(s, "b/1", "x", None).await;
    let two = put(s, "a/1", "y", get(s, "a/1").await.map(|of| of.version)).await;
    delete(s, "a/2", first).await;
    assert_eq!(changes(s, "a/", 0).await.keys, None, "a caller that knows nothing reads all");
    let told = changes(s, "a/", first).await;
    assert_eq!(
        told.keys,
        Some(vec![("a/1".to_owned(), two), ("a/2".to_owned(), told.version)]),
        "since the second"
    );
    assert_eq!(
        changes(s, "b/", first).await.keys,
        Some(vec![("b/1".to_owned(), other)]),
        "of another prefix"
    );
    let none = SettingChanges { version: told.version, keys: Some(Vec::new()) };
    assert_eq!(changes(s, "a/", told.version).await, none, "nothing since");
    assert!(none.is_empty() && told.version > two, "{none:?} after {two}");
    assert!(empty.keys.is_none_or(|keys| keys.is_empty()), "an empty store names nothing");
    let ahead = changes(s, "a/", told.version + 1).await;
    assert_eq!((ahead.version, ahead.keys), (told.version, None), "a version that the store has lost");
}

/// Guards against an unbounded reply, and against changes lost between two replies.
pub async fn many_changes_are_told_in_parts(s: &SettingsStage) {
    let mut since = put(s, "a", "x", None).await;
    let mut last = since;
    let many = MAX_CHANGES + 200;
    for n in 0..many {
        last = put(s, &format!("m/{n}"), "x", None).await;
    }
    let mut named = Vec::new();
    while since != last {
        let told = changes(s, "m/", since).await;
        let keys = told.keys.expect("all of them are remembered");
        assert!(
            keys.len() <= MAX_CHANGES && told.version > since,
            "{} from {since} to {}",
            keys.len(),
            told.version
        );
        named.extend(keys.into_iter().map(|(key, _)| key));
        since = told.version;
    }
    assert_eq!(named, (0..many).map(|n| format!("m/{n}")).collect::<Vec<_>>());
}

/// Guards against a lease or a heartbeat that does not expire, or whose renewal counts as a change.
pub async fn a_kept_record_ends(s: &SettingsStage) {
    let since = put(s, "servers/", "x", None).await;
    let keep = |key: &'static str, value: &'static str, ttl| {
        let store = s.store().clone();
        async move { ok("keep", store.keep(key, Bytes::from_static(value.as_bytes()), ttl).await) }
    };
    keep("servers/a", "one", LONG).await;
    keep("servers/a", "two", LONG).await;
    keep("servers/b", "short", SHORT).await;
    let value = async |key: &str| get(s, key).await.map(|of| of.value);
    assert_eq!(value("servers/a").await.as_deref(), Some(&b"two"[..]), "kept again");
    for limit in [1, 100] {
        assert_eq!(keys(s, "servers/", limit).await[..2], ["servers/", "servers/a"], "in pages of {limit}");
    }
    until("the short one has ended", async || value("servers/b").await.is_none()).await;
    assert_eq!(keys(s, "servers/", 100).await, ["servers/", "servers/a"], "what has ended is not scanned");
    let told = changes(s, "servers/", since).await;
    assert!(told.keys.is_none_or(|keys| keys.is_empty()), "it is no change");
    assert!(matches!(try_put(s, "servers/b", Some("put"), None).await, Put::Done(_)), "its key is free");
}

/// Guards against half a step when a caller disconnects.
pub async fn a_dropped_put_happened_or_did_not(s: &SettingsStage) {
    for n in 0..50u64 {
        let key = format!("k{}", n % 5);
        let before = get(s, &key).await;
        let store = s.store().clone();
        let (of, expected) = (key.clone(), before.as_ref().map(|of| of.version));
        let putting = tokio::spawn(async move {
            let _ = store.put(&of, Some(n.to_string().into()), expected).await;
        });
        for _ in 0..n % 4 {
            tokio::task::yield_now().await;
        }
        putting.abort();
        let _ = putting.await;
        // A call that was sent has been executed by then, since calls keep their order.
        let after = get(s, &key).await;
        let is_put = after.as_ref().is_some_and(|of| of.value == n.to_string());
        assert!(is_put || after == before, "{before:?} became {after:?}, and {n} was to be put");
        let page = ok("scan", s.store().scan(&key, None, 1).await);
        assert_eq!(page.records.into_iter().next().map(|(_, record)| record), get(s, &key).await, "{key}");
    }
}

/// Guards against overwriting a quota, and against showing that of another namespace or pool, also on another server.
pub async fn quotas_are_added_set_and_removed(s: &SettingsStage) {
    let server = || QuotaManager::new(s.store().clone(), Outage::new("the quotas"), std::iter::empty());
    let (here, elsewhere) = (server(), server());
    let scope = |pool, namespace| Scope {
        pool: PoolName::parse(pool).expect("a name"),
        namespace: Namespace::parse(namespace).expect("a name"),
    };
    let quota = |jobs| Quota { jobs, bytes: u64::MAX, queues: 0 };
    let put = async |scope: &Scope, quota, if_none| ok("put", here.put(scope, quota, if_none).await);
    let get = async |scope: &Scope| ok("get", elsewhere.get(scope).await);
    let (one, other, of_pool) = (scope("default", "ns"), scope("default", "ns2"), scope("other", "ns"));
    assert_eq!(get(&one).await, None, "there is none");
    assert!(put(&one, Some(quota(1)), true).await, "it is new");
    assert!(!put(&one, Some(quota(2)), true).await, "there is one");
    assert!(put(&other, Some(quota(3)), false).await, "it is stored, whether there is one or not");
    assert!(put(&of_pool, Some(quota(4)), true).await, "that of another pool");
    assert_eq!(get(&one).await, Some(quota(1)), "what was added first");
    assert!(put(&one, Some(quota(5)), false).await, "it is replaced");
    let all = [get(&one).await, get(&other).await, get(&of_pool).await];
    assert_eq!(all, [5, 3, 4].map(|jobs| Some(quota(jobs))));
    assert!(put(&other, None, false).await, "there was one");
    assert!(!put(&other, None, false).await, "there is none");
    assert_eq!([get(&other).await, get(&one).await], [None, Some(quota(5))], "one was deleted");
}

/// Guards against schedules that are left in the directory of a pool that has moved, against replacing newer ones, and
/// against tokens that move.
pub async fn records_move_from_another_store(s: &SettingsStage) {
    let from = MemorySettings::default();
    let count = MAX_SCAN + 3;
    for n in 0..count {
        let value = Bytes::from(format!("moved {n}"));
        ok("put", from.put(&format!("s/{n:04}"), Some(value), None).await);
    }
    for key in ["a/stays", "z/moves"] {
        ok("put", from.put(key, Some("here".into()), None).await);
    }
    put(s, "s/0001", "is there", None).await;
    assert_eq!(ok("move_records", move_records(&from, &**s.store(), "a/").await), count + 1);
    assert_eq!(keys(s, "s/", MAX_SCAN).await.len(), count, "all are there");
    let value = async |key| get(s, key).await.map(|record| record.value);
    assert_eq!(value("s/0000").await.as_deref(), Some(&b"moved 0"[..]));
    assert_eq!(value("s/0001").await.as_deref(), Some(&b"is there"[..]), "the store keeps its own record");
    let left = ok("scan", from.scan("", None, MAX_SCAN).await);
    let left: Vec<_> = left.records.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(left, ["a/stays"], "nothing else is left");
    assert_eq!(get(s, "a/stays").await, None, "it has not moved");
    assert_eq!(ok("move_records", move_records(&from, &**s.store(), "a/").await), 0, "a second time");
}
