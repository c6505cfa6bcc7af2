//! Secrets and header values are encrypted in the settings, with a key that only the servers have. Push sees each
//! record as it wrote it. In the settings, the header values are null, `secret` and `old_secret` are missing, and
//! `encrypted` holds all three:
//! ```text
//! base64(nonce:12 ChaCha20-Poly1305(JSON of headers, secret, old_secret) tag:16)
//! ```
//!
//! They are bound to pool, queue and URL: an attacker who can write to the store, but has no key, cannot have
//! them sent elsewhere. A record that no key opens is passed on unchanged, and push treats it as locked.

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::key::PushKey;
use crate::error::{Error, Result};
use crate::name::QueueName;
use crate::random;

/// Field of a record that holds the encrypted values.
const ENCRYPTED: &str = "encrypted";
/// Secret fields of a record. The header values are secret too.
const SECRET: [&str; 2] = ["secret", "old_secret"];
const HEADERS: &str = "headers";
/// Maximum number of keys in a file: each is tried.
const MAX_KEYS: usize = 16;
/// Larger than any file of that many keys with comments.
const MAX_FILE: u64 = 64 << 10;

/// The keys of a file. The first encrypts, all decrypt. `Debug` shows none.
#[derive(Default)]
pub struct SecretKeys(Vec<LessSafeKey>);

impl fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKeys({})", self.0.len())
    }
}

impl SecretKeys {
    /// Reads a file with one key per line: 32 bytes in base64. Skips empty lines and lines that begin with
    /// `#`. The error names the file, and shows none of its contents.
    pub fn read(path: &Path) -> Result<SecretKeys, String> {
        let wrong = |why: &dyn fmt::Display| format!("{}: {why}", path.display());
        let about = std::fs::metadata(path).map_err(|e| wrong(&e))?;
        if !about.is_file() || about.len() > MAX_FILE {
            return Err(wrong(&"this is not a key file"));
        }
        if about.permissions().mode() & 0o007 != 0 {
            return Err(wrong(&"the file is accessible to other users: chmod o= it"));
        }
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let key = |(n, line): (usize, &str)| {
            let bytes = STANDARD.decode(line).ok();
            let key = bytes.and_then(|bytes| UnboundKey::new(&CHACHA20_POLY1305, &bytes).ok());
            key.map(LessSafeKey::new).ok_or_else(|| {
                wrong(&format!(
                    "line {n} is not a key: expected 32 bytes in base64, as from `openssl rand -base64 32`"
                ))
            })
        };
        let keys: Vec<_> = lines.map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(wrong(&format!("expected 1 to {MAX_KEYS} keys, one per line")));
        }
        Ok(SecretKeys(keys))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Encrypts with the first key, if there is one.
    fn seal(&self, bound_to: &str, mut text: Vec<u8>) -> Result<Option<String>> {
        let Some(key) = self.0.first() else { return Ok(None) };
        let nonce = random::bytes::<NONCE_LEN>();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(bound_to), &mut text)
            .map_err(|_| Error::refused("a secret could not be encrypted"))?;
        Ok(Some(STANDARD.encode([&nonce[..], &text].concat())))
    }

    /// Decrypts, and returns the index of the key that fits. `None` if no key does.
    fn open(&self, bound_to: &str, sealed: &str) -> Option<(usize, Map<String, Value>)> {
        let sealed = STANDARD.decode(sealed).ok()?;
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        self.0.iter().enumerate().find_map(|(nth, key)| {
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let mut text = text.to_vec();
            let text = key.open_in_place(nonce, Aad::from(bound_to), &mut text).ok()?;
            Some((nth, serde_json::from_slice(text).ok()?))
        })
    }

    /// Returns a record in its stored form.
    pub(super) fn hide(&self, key: &PushKey, plain: Bytes) -> Result<Bytes> {
        let Ok(Value::Object(mut record)) = serde_json::from_slice(&plain) else { return Ok(plain) };
        let mut secrets: Map<String, Value> =
            SECRET.iter().filter_map(|field| record.remove_entry(*field)).collect();
        let mut record = Value::Object(record);
        if let Some(Value::Object(headers)) = record.pointer_mut("/setting/headers") {
            secrets.insert(HEADERS.into(), headers.clone().into());
            headers.values_mut().for_each(|value| *value = Value::Null);
        }
        let text = serde_json::to_vec(&secrets).map_err(Error::refused)?;
        let Some(sealed) = self.seal(&bound_to(key, &record), text)? else { return Ok(plain) };
        record[ENCRYPTED] = sealed.into();
        Ok(serde_json::to_vec(&record).map_err(Error::refused)?.into())
    }

    /// Returns a stored record as push wrote it, and whether its stored form is up to date. A locked or
    /// invalid record is returned unchanged.
    pub(super) fn show(&self, key: &PushKey, stored: Bytes) -> (Bytes, bool) {
        let Ok(mut record) = serde_json::from_slice::<Value>(&stored) else { return (stored, true) };
        let Some(sealed) = record.get(ENCRYPTED) else {
            let plain = record.get(SECRET[0]).is_some();
            return (stored, !plain);
        };
        let opened = sealed.as_str().and_then(|sealed| self.open(&bound_to(key, &record), sealed));
        let Some((nth, mut secrets)) = opened else { return (stored, true) };
        let headers = secrets.remove(HEADERS);
        if let (Some(headers), Some(place)) = (headers, record.pointer_mut("/setting/headers")) {
            *place = headers;
        }
        if let Value::Object(record) = &mut record {
            record.remove(ENCRYPTED);
            record.extend(secrets);
        }
        (record.to_string().into(), nth == 0)
    }
}

/// Returns the associated data of the encryption: it binds secrets to their queue and URL.
fn bound_to(key: &PushKey, record: &Value) -> String {
    let url = record.pointer("/setting/url").and_then(Value::as_str).unwrap_or_default();
    format!("dormouse push\0{key}\0{url}")
}

/// The readable part of a record that no key of this server opened.
#[derive(Debug, Deserialize)]
pub struct LockedRecord {
    #[serde(rename = "encrypted")]
    _encrypted: IgnoredAny,
    pub setting: LockedSetting,
}

/// A setting without the values of its headers. Another version may have written it, so its fields may be invalid here.
#[derive(Debug, Deserialize)]
pub struct LockedSetting(pub Map<String, Value>);

impl LockedSetting {
    pub fn on_dead(&self) -> Option<QueueName> {
        QueueName::parse(self.0.get("on_dead")?.as_str()?).ok()
    }
}

/// Returns the readable part of a record that no key of this server opened; `None` for any other record.
pub fn locked(record: &[u8]) -> Option<LockedRecord> {
    serde_json::from_slice(record).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;
    use crate::name::{Namespace, PoolName, Queue};

    fn key(queue: &str) -> PushKey {
        let namespace = Namespace::parse("shop").expect("a literal");
        let name = QueueName::parse(queue).expect("a literal");
        PushKey { pool: PoolName::default_pool(), queue: Queue { namespace, name } }
    }

    fn read(text: &str) -> Result<SecretKeys, String> {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes()).expect("it can be written");
        SecretKeys::read(file.path())
    }

    fn keys(text: &str) -> SecretKeys {
        read(text).expect("keys")
    }

    fn of_bytes(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| STANDARD.encode([*byte; 32]) + "\n").collect()
    }

    fn record() -> Value {
        json!({
            "setting": {"url": "https://shop.example/", "headers": {"Authorization": "Bearer x", "B": "y"}, "rate": 5},
            "secret": "whsec_one", "old_secret": ["whsec_two", 9], "state": "on", "why": "", "since": 7, "revision": 3,
        })
    }

    fn bytes(record: &Value) -> Bytes {
        record.to_string().into()
    }

    fn parsed(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn a_record_is_opened_by_its_key_in_its_place_only() {
        let plain = bytes(&record());
        let one = keys(&of_bytes(&[1]));
        let stored = one.hide(&key("mail"), plain.clone()).expect("it is encrypted");
        for secret in ["Bearer", "whsec_", "\"y\""] {
            assert!(!String::from_utf8_lossy(&stored).contains(secret), "{secret} is stored: {stored:?}");
        }
        let shown = one.show(&key("mail"), stored.clone());
        assert_eq!((parsed(&shown.0), shown.1), (record(), true), "opened with the key");
        assert_eq!(one.show(&key("mail"), stored.clone()), shown, "the same bytes each time");
        assert_ne!(
            one.hide(&key("mail"), plain.clone()).expect("it is encrypted"),
            stored,
            "never the same nonce"
        );
        // Other keys, another queue, another URL, other bytes.
        for (what, of, name, url) in [
            ("another key", &[2, 3][..], "mail", "https://shop.example/"),
            ("another queue", &[1], "mails", "https://shop.example/"),
            ("another URL", &[1], "mail", "https://evil.example/"),
        ] {
            let mut record = parsed(&stored);
            record["setting"]["url"] = url.into();
            let record = bytes(&record);
            assert_eq!(
                keys(&of_bytes(of)).show(&key(name), record.clone()),
                (record.clone(), true),
                "{what}"
            );
            assert!(locked(&record).is_some(), "{what}: it is locked");
        }
        for sealed in [json!(null), json!(""), json!("AAAA"), json!("?"), json!(STANDARD.encode([0; 99]))] {
            let mut record = parsed(&stored);
            record[ENCRYPTED] = sealed.clone();
            assert_eq!(one.show(&key("mail"), bytes(&record)), (bytes(&record), true), "{sealed}");
        }
        assert!(locked(&shown.0).is_none() && locked(&plain).is_none() && locked(b"{").is_none());
    }

    #[test]
    fn the_first_key_encrypts_and_all_decrypt() {
        let stored = keys(&of_bytes(&[1])).hide(&key("q"), bytes(&record())).expect("it is encrypted");
        for (of, as_now) in [(&[1, 2][..], true), (&[2, 1], false)] {
            let (shown, now) = keys(&of_bytes(of)).show(&key("q"), stored.clone());
            assert_eq!((parsed(&shown), now), (record(), as_now), "with the keys {of:?}");
        }
        let both = keys(&of_bytes(&[2, 1]));
        assert_eq!(
            both.show(&key("q"), bytes(&record())),
            (bytes(&record()), false),
            "plain, and to be encrypted"
        );
        let anew = both.hide(&key("q"), bytes(&record())).expect("it is encrypted");
        assert!(keys(&of_bytes(&[2])).show(&key("q"), anew).1, "by the first key");
    }

    #[test]
    fn a_file_of_keys_is_read_or_refused() {
        let good = STANDARD.encode([7; 32]);
        for (text, keys) in [
            (good.clone(), 1),
            (format!("# since May\r\n{good}\r\n\r\n  {good}  \n"), 2),
            (of_bytes(&[1; MAX_KEYS]), MAX_KEYS),
        ] {
            assert_eq!(read(&text).map(|keys| keys.0.len()), Ok(keys), "{text:?}");
        }
        let hex = "07".repeat(32);
        let (short, long) = (STANDARD.encode([7; 31]), STANDARD.encode([7; 33]));
        let many = of_bytes(&[1; MAX_KEYS + 1]);
        for text in
            ["", "\n# none\n", "secret-words", &hex, &short, &long, &good[1..], &many, &"#".repeat(99 << 10)]
        {
            let error = read(text).expect_err(text);
            assert!(error.starts_with('/'), "it names the file: {error}");
            assert!(!error.contains("secret-words") && !error.contains(&short), "it shows the file: {error}");
        }
        assert!(SecretKeys::read(Path::new("/nowhere/keys")).is_err_and(|e| e.contains("/nowhere/keys")));
        assert!(SecretKeys::read(&std::env::temp_dir()).is_err(), "a directory");
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), &good).expect("it can be written");
        for (mode, read) in [(0o600, true), (0o440, true), (0o644, false), (0o602, false)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).expect("it is ours");
            assert_eq!(SecretKeys::read(file.path()).is_ok(), read, "with the mode {mode:o}");
        }
    }
}
