//! Settings in a Redis that is full, hangs, or has lost its latest writes; and changes between two servers.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dormouse::settings::redis::RedisSettings;
use dormouse::settings::{Put, SettingVersion, SettingsStore};
use tokio::time::timeout;

use crate::stage::ok;
use crate::support::redis_admin::open_admin_redis;
use crate::support::redis_server::RedisServer;
use crate::support::wait::until;

/// All keys of settings.
const KEYS: [&str; 3] = ["dormouse/settings", "dormouse/settings/names", "dormouse/settings/changes"];

async fn open(redis: &RedisServer) -> Arc<RedisSettings> {
    Arc::new(RedisSettings::new(&*open_admin_redis(redis).await))
}

async fn put(
    store: &RedisSettings,
    key: &str,
    value: Option<&str>,
    expected: Option<SettingVersion>,
) -> SettingVersion {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    match ok("put", store.put(key, value, expected).await) {
        Put::Done(version) => version,
        Put::Differs(there) => {
            panic!("{key} from version {expected:?} should be put, but there is {there:?}")
        }
    }
}

/// Guards against a server that misses a change by another, and against two servers that both believe their change was
/// stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_see_each_other() {
    let redis = RedisServer::start();
    let (one, two) = (open(&redis).await, open(&redis).await);
    let first = put(&one, "a", Some("1"), None).await;
    assert_eq!(ok("get", two.get("a").await).map(|of| of.version), Some(first), "what the other has put");
    let second = put(&two, "a", Some("2"), Some(first)).await;
    let told = ok("changes", one.changes("", first).await);
    assert_eq!(
        (told.version, told.keys),
        (second, Some(vec![("a".to_owned(), second)])),
        "what the other has changed"
    );
    let lost = ok("put", one.put("a", Some("3".into()), Some(first)).await);
    assert!(
        matches!(lost, Put::Differs(Some(there)) if there.value == "2"),
        "who has read an older one loses"
    );
}

/// Guards against a full Redis that refuses changes and deletions, and against a record that is half stored there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_takes_changes_of_what_it_has() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let there = put(&store, "there", Some("x"), None).await;
    let gone = put(&store, "gone", Some("x"), None).await;
    let conn = &mut redis.connection();
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec(conn).expect("CONFIG SET");
    let told = store.put("new", Some("y".into()), None).await;
    assert!(told.is_err(), "a full Redis has taken a new record: {told:?}");
    let there = put(&store, "there", Some("y"), Some(there)).await;
    ok("keep", store.keep("kept", "y".into(), Duration::from_secs(9)).await); // a heartbeat goes on
    let deleted = put(&store, "gone", None, Some(gone)).await;
    let page = ok("scan", store.scan("", None, 10).await);
    let keys: Vec<_> = page.records.iter().map(|(key, record)| (key.as_str(), record.version)).collect();
    let (kept, keys) = keys.split_first().expect("two are there");
    assert_eq!((kept.0, keys), ("kept", &[("there", there)][..]), "what is there while it is full");
    let told = ok("changes", store.changes("", gone).await);
    assert_eq!(
        told.keys,
        Some(vec![("there".to_owned(), there), ("gone".to_owned(), deleted)]),
        "what was changed"
    );
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec(conn).expect("CONFIG SET");
    put(&store, "new", Some("y"), None).await;
}

/// Guards against servers that keep state lost in a failover: the new master has an older state, and does not report
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_writes_were_lost_everybody_reads_all() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let first = put(&store, "a", Some("1"), None).await;
    let conn = &mut redis.connection();
    let older: Vec<Vec<u8>> =
        KEYS.iter().map(|key| redis::cmd("DUMP").arg(key).query(conn).expect("DUMP")).collect();
    let lost = put(&store, "a", Some("2"), Some(first)).await;
    for (key, of) in KEYS.iter().zip(&older) {
        redis::cmd("RESTORE").arg(key).arg(0).arg(of).arg("REPLACE").exec(conn).expect("RESTORE");
    }
    assert_eq!(ok("changes", store.changes("", lost).await).keys, None, "before another change");
    let next = put(&store, "b", Some("1"), None).await;
    assert!(next > lost, "version {next} was used before: {lost} was lost");
    assert_eq!(ok("changes", store.changes("", lost).await).keys, None, "and after it");
    let told = ok("changes", store.changes("", first).await);
    assert_eq!(told.keys, Some(vec![("b".to_owned(), next)]), "a server that has not seen what was lost");
}

/// Guards against a call that waits for a hanging Redis, and against one that still fails after Redis has resumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_is_an_error_until_it_goes_on() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    let version = put(&store, "a", Some("1"), None).await;
    let signal = |name: &str| {
        let id = redis.child.as_ref().expect("it runs").id().to_string();
        let status = Command::new("kill").args([format!("-{name}"), id]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    };
    signal("STOP");
    let told = timeout(Duration::from_secs(20), store.get("a")).await;
    signal("CONT");
    assert!(matches!(told, Ok(Err(_))), "a Redis that hangs: {told:?}");
    until(
        "it answers again",
        async || matches!(store.get("a").await, Ok(Some(there)) if there.version == version),
    )
    .await;
}

/// Guards against a server that pushes nothing, since an earlier version has stored its push settings elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_settings_of_an_earlier_version_are_refused() {
    let redis = RedisServer::start();
    let store = open(&redis).await;
    ok("refuse_earlier", store.refuse_earlier().await);
    let conn = &mut redis.connection();
    let mut set = |field: &str| {
        redis::cmd("HSET").arg("dormouse/push").arg(field).arg("1").exec(conn).expect("HSET");
    };
    set("");
    ok("refuse_earlier", store.refuse_earlier().await); // all were deleted
    set("default/ns/q");
    let refused = store.refuse_earlier().await.expect_err("a setting is there").to_string();
    assert!(refused.contains("delete the key dormouse/push"), "it says {refused:?}");
}
