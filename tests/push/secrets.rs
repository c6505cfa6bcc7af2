//! Secrets and header values of push in the store, with and without `SecretKeyFile`, and servers with another key, or
//! none.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::pushed::{LOCAL, Pushed, verifies};
use crate::receiver::Receiver;
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;
use crate::support::servers::{Store, on_each_store};
use crate::support::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Keys in the format of `openssl rand -base64 32`, with all bytes alike.
const ONE: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n";
const TWO: &str = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=\n";
const VALUE: &str = "Bearer a-header-value";

/// A store on which servers run, one after the other or in parallel.
struct Stage {
    dir: TempDir,
    store: Store,
    receiver: Receiver,
}

impl Stage {
    async fn on(store: Store) -> Stage {
        let stage = Stage {
            dir: TempDir::new().expect("a temporary directory"),
            store,
            receiver: Receiver::start().await,
        };
        std::fs::write(stage.dir.path().join("c.toml"), format!("{LOCAL}{}", stage.store.toml()))
            .expect("a file");
        stage
    }

    fn key_file(&self, keys: &str) -> PathBuf {
        let path = self.dir.path().join(format!("keys-{}", keys.len() + usize::from(keys.as_bytes()[1])));
        std::fs::write(&path, keys).expect("it can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        path
    }

    /// Starts a server with these keys; without a key file if empty.
    async fn server(&self, keys: &str) -> (Process, Pushed) {
        let file = if keys.is_empty() { String::new() } else { self.key_file(keys).display().to_string() };
        let env = [("DORMOUSE_SECRET_KEY_FILE", file.as_str())];
        let mut process = Process::start(self.dir.path(), &["-c", "c.toml"], &env);
        let pushed = Pushed::process(&mut process).await;
        (process, pushed)
    }

    /// Pushes a queue to the receiver with a header, and returns its secret.
    async fn set(&self, pushed: &Pushed, queue: &str) -> String {
        let set = pushed.push_to(&self.receiver, queue, json!({"headers": {"Authorization": VALUE}})).await;
        set["secret"].as_str().unwrap_or_else(|| panic!("a secret the first time: {set}")).to_owned()
    }

    /// Checks that a job of this queue arrives with its header, signed with this secret.
    async fn is_pushed(&self, pushed: &Pushed, queue: &str, secret: &str) {
        let id = pushed.publish(queue, "", "x").await;
        pushed.until_gone(queue, &id).await;
        let arrived = self.receiver.arrived();
        let request = arrived.iter().find(|request| request.job_id() == id).expect("it has arrived");
        assert_eq!(request.header("authorization"), VALUE, "the header of {queue}");
        verifies(secret, request).unwrap_or_else(|e| panic!("the secret of {queue}: {e}"));
    }

    /// Whether this text can be found in the store.
    fn shows(&self, text: &str) -> bool {
        match &self.store {
            Store::Disk(dir) => {
                let grep = Command::new("grep").args(["-rqaF", text]).arg(dir.path()).status();
                grep.expect("grep runs").success()
            }
            Store::Other { .. } => unreachable!("these tests make none"),
            Store::Redis(redis) => {
                let hash: Vec<Vec<u8>> = redis::cmd("HGETALL")
                    .arg("dormouse/settings")
                    .query(&mut redis.connection())
                    .expect("a hash");
                hash.iter().any(|part| String::from_utf8_lossy(part).contains(text))
            }
        }
    }
}

async fn stop(process: Process) -> String {
    process.signal("TERM");
    let ended = tokio::task::spawn_blocking(|| process.ended()).await.expect("it ends");
    assert!(ended.status.success(), "it stops in order: {}", ended.said);
    ended.said
}

fn without_prefix(secret: &str) -> &str {
    secret.strip_prefix("whsec_").expect("a secret")
}

/// Guards against secrets that can be read from the store, its backup or its replica.
async fn with_a_key_the_store_shows_no_secret(store: Store) {
    let stage = Stage::on(store).await;
    let (process, pushed) = stage.server(ONE).await;
    let first = stage.set(&pushed, "q").await;
    stage.is_pushed(&pushed, "q", &first).await;
    let second = pushed.admin("POST", "/push/ns/q/secret", "").await.expect(200).json["secret"].clone();
    let second = second.as_str().expect("a secret");
    pushed.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    pushed.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    stop(process).await;
    assert!(stage.shows(stage.receiver.url("/q").as_str()), "the record is there");
    for secret in [VALUE, without_prefix(&first), without_prefix(second)] {
        assert!(!stage.shows(secret), "{secret} is in the store");
    }
    // A restart reads the same keys. Without a key, new settings are plain.
    let (process, pushed) = stage.server(ONE).await;
    stage.is_pushed(&pushed, "q", second).await;
    stop(process).await;
    let (process, pushed) = stage.server("").await;
    let plain = stage.set(&pushed, "plain").await;
    stop(process).await;
    assert!(stage.shows(VALUE) && stage.shows(without_prefix(&plain)), "the test looks at the right bytes");
}

/// Guards against requests that are signed with nothing or garbage, and against secrets that are overwritten by a
/// server that cannot read them.
async fn a_server_without_the_key_sends_nothing_and_overwrites_nothing(store: Store) {
    let stage = Stage::on(store).await;
    let (process, pushed) = stage.server(ONE).await;
    let secret = stage.set(&pushed, "q").await;
    stop(process).await;
    for keys in ["", TWO] {
        let (process, pushed) = stage.server(keys).await;
        let shown = pushed.shown("q").await;
        assert_eq!((&shown["state"], &shown["since"]), (&json!("locked"), &Value::Null), "{shown}");
        assert!(
            shown["why"].as_str().is_some_and(|why| why.contains("SecretKeyFile")),
            "it says why: {shown}"
        );
        assert_eq!(shown["headers"], json!({"Authorization": null}), "the rest is shown: {shown}");
        assert_eq!(shown["url"], json!(stage.receiver.url("/q")), "{shown}");
        let put = json!({"url": stage.receiver.url("/elsewhere")}).to_string();
        for (method, path, body) in [
            ("PUT", "/push/ns/q", put.as_str()),
            ("POST", "/push/ns/q/pause", ""),
            ("POST", "/push/ns/q/resume", ""),
            ("POST", "/push/ns/q/secret", ""),
            ("POST", "/push/ns/q/test", ""),
        ] {
            let refused = pushed.admin(method, path, body).await;
            assert_eq!(refused.status, 409, "{method} {path}: {refused:?}");
            assert!(refused.says().contains("SecretKeyFile"), "{method} {path}: {refused:?}");
        }
        let before = stage.receiver.count();
        pushed.publish("q", "", "x").await;
        // Its own queue was pushed meanwhile, so the other queue could have been, too.
        let own = stage.set(&pushed, &format!("own{}", keys.len())).await;
        stage.is_pushed(&pushed, &format!("own{}", keys.len()), &own).await;
        assert_eq!(stage.receiver.count(), before + 1, "nothing of the locked queue is sent");
        let said = stop(process).await;
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("nothing is sent")).collect();
        assert_eq!(lines.len(), 1, "one line says so: {lines:#?}");
        assert!(
            ["ERROR", "SecretKeyFile", "queue=default/ns/q"].iter().all(|part| lines[0].contains(part)),
            "{lines:?}"
        );
    }
    let (process, pushed) = stage.server(ONE).await;
    until("the jobs that waited are sent", async || pushed.size("q").await == 0).await;
    stage.is_pushed(&pushed, "q", &secret).await;
    stop(process).await;
    // If the key is lost, an operator can set push again.
    let (process, pushed) = stage.server(TWO).await;
    pushed.admin("DELETE", "/push/ns/q", "").await.expect(204);
    let anew = stage.set(&pushed, "q").await;
    assert_ne!(anew, secret, "another secret");
    stage.is_pushed(&pushed, "q", &anew).await;
    stop(process).await;
}

/// Guards against secrets that stay unencrypted until the next change, and keys that cannot be removed.
async fn a_start_encrypts_what_is_plain_or_has_an_older_key(store: Store) {
    let stage = Stage::on(store).await;
    let (process, pushed) = stage.server("").await;
    let secret = stage.set(&pushed, "q").await;
    stop(process).await;
    // Plain, then with the first key, then with the second, which becomes the first.
    for (keys, then) in [(ONE.to_owned(), ONE), (format!("{TWO}{ONE}"), TWO)] {
        let (mut process, pushed) = stage.server(&keys).await;
        process.line_with("are encrypted with the first key");
        stage.is_pushed(&pushed, "q", &secret).await;
        stop(process).await;
        if let Store::Redis(_) = stage.store {
            assert!(!stage.shows(VALUE) && !stage.shows(without_prefix(&secret)), "nothing plain is left");
        }
        let (process, pushed) = stage.server(then).await;
        stage.is_pushed(&pushed, "q", &secret).await;
        let said = stop(process).await;
        assert!(
            !said.contains("are encrypted with the first key"),
            "there is nothing left to encrypt: {said}"
        );
    }
    let (process, pushed) = stage.server(ONE).await;
    assert_eq!(pushed.state("q").await, "locked", "the older key opens nothing any more");
    stop(process).await;
}

on_each_store!(
    with_a_key_the_store_shows_no_secret,
    a_server_without_the_key_sends_nothing_and_overwrites_nothing,
    a_start_encrypts_what_is_plain_or_has_an_older_key,
);

/// A rolling restart that gives a fleet its key: servers that have it push queues that others cannot read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_fleet_gets_its_key_those_that_have_it_push() {
    let stage = Stage::on(Store::Redis(RedisServer::start())).await;
    let (mut old, before) = stage.server("").await;
    let secret = stage.set(&before, "q").await;
    stage.is_pushed(&before, "q", &secret).await;
    let (new, after) = stage.server(ONE).await;
    before.until_state("q", "locked").await;
    // A change by a server with the key applies everywhere.
    after.admin("POST", "/push/ns/q/pause", "").await.expect(200);
    before.admin("POST", "/push/ns/q/resume", "").await.expect(409);
    assert_eq!(after.state("q").await, "paused");
    // The server without the key has seen that it cannot read the setting.
    old.line_with("nothing is sent from some queues");
    let count = stage.receiver.count();
    let waits = before.publish("q", "", "x").await;
    let other = stage.set(&before, "other").await;
    stage.is_pushed(&before, "other", &other).await;
    assert_eq!(stage.receiver.count(), count + 1, "paused on both");
    after.admin("POST", "/push/ns/q/resume", "").await.expect(200);
    after.until_gone("q", &waits).await;
    for n in 0..20 {
        let by = if n % 2 == 0 { &before } else { &after };
        stage.is_pushed(by, "q", &secret).await;
    }
    stop(old).await;
    let (mut old, before) = stage.server(ONE).await;
    assert_eq!(before.state("q").await, "on", "with the key it reads all");
    stage.is_pushed(&before, "other", &other).await;
    old.line_with("are encrypted with the first key");
    assert!(!stage.shows(VALUE), "what was set without the key is encrypted now");
    stop(new).await;
    stop(old).await;
}

/// An invalid key file stops the server before it touches anything, and none of its contents is shown.
#[test]
fn a_bad_file_of_keys_is_named_at_the_start() {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("push.keys");
    for (file, mode, says) in [
        (None, 0o600, "No such file"),
        (Some("a-secret-word"), 0o600, "line 1"),
        (Some(""), 0o600, "1 to 16 keys"),
        (Some(ONE), 0o644, "chmod"),
    ] {
        if let Some(text) = file {
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("it is ours");
        }
        let config = format!("SecretKeyFile = {path:?}\n[Pool.default]\nPath = \"jobs\"\n");
        std::fs::write(dir.path().join("c.toml"), config).expect("a file");
        let ended = Process::start(dir.path(), &["-c", "c.toml"], &[]).ended();
        assert_eq!(ended.status.code(), Some(2), "{says}: {}", ended.said);
        for part in ["SecretKeyFile", path.to_str().expect("a path"), says] {
            assert!(ended.said.contains(part) && ended.said.lines().count() == 1, "{part} in {}", ended.said);
        }
        assert!(!ended.said.contains("a-secret-word"), "{}", ended.said);
        assert!(!dir.path().join("jobs").exists(), "nothing was touched");
    }
}
