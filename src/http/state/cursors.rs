//! Cursors for clients: encrypted, and valid for one list. A store's cursor is a position, which may be among the
//! timers of all namespaces. A client that could read or forge cursors would learn when others' jobs are due.
//!
//! The key is the secret that the servers share, so a list can be continued on another server and after a restart.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use tokio::time::Instant;

use crate::engine::Cursor;
use crate::error::{Error, Result};
use crate::http::answer::error::ApiError;
use crate::random;
use crate::settings::{self, SettingsStore};

/// Plaintext is padded to a multiple of this many bytes, so that its length reveals nothing.
const BLOCK: usize = 128;
const KEY: usize = 32;
/// If a cursor cannot be decrypted and the key is older than this, the key is read again.
const KEY_TRUSTED: Duration = Duration::from_secs(1);

/// Encrypts and decrypts cursors.
#[derive(Debug)]
pub struct Cursors {
    store: Arc<dyn SettingsStore>,
    key: Mutex<Option<(Arc<LessSafeKey>, Instant)>>,
}

impl Cursors {
    /// Uses the secret in this store.
    pub fn new(store: Arc<dyn SettingsStore>) -> Cursors {
        Cursors { store, key: Mutex::default() }
    }

    /// Returns the key, read at most `within` ago.
    async fn key(&self, within: Duration) -> Result<Arc<LessSafeKey>> {
        if let Some((key, asked)) = &*self.key.lock()
            && asked.elapsed() <= within
        {
            return Ok(key.clone());
        }
        let secret = settings::shared_secret(&*self.store, &random::bytes::<KEY>()).await?;
        let key = UnboundKey::new(&AES_256_GCM, &secret)
            .map_err(|_| Error::corrupt("the secret for cursors is unreadable"))?;
        let key = Arc::new(LessSafeKey::new(key));
        *self.key.lock() = Some((key.clone(), Instant::now()));
        Ok(key)
    }

    /// Encrypts a cursor of this list, as text.
    pub async fn seal(&self, list: &str, cursor: Option<Cursor>) -> Result<Option<String>> {
        let Some(Cursor(cursor)) = cursor else { return Ok(None) };
        let key = self.key(Duration::MAX).await?;
        let mut bytes = cursor.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(BLOCK), b' ');
        let nonce = random::bytes::<NONCE_LEN>();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(list), &mut bytes)
            .map_err(|_| Error::refused("a cursor cannot be sealed"))?;
        bytes.splice(..0, nonce);
        Ok(Some(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Decrypts a cursor of this list.
    pub async fn open(&self, list: &str, text: Option<Cursor>) -> Result<Option<Cursor>, ApiError> {
        let Some(Cursor(text)) = text else { return Ok(None) };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ApiError::BAD_CURSOR)?;
        for within in [Duration::MAX, KEY_TRUSTED] {
            if let Some(cursor) = open(&*self.key(within).await?, list, &bytes) {
                return Ok(Some(cursor));
            }
        }
        Err(ApiError::BAD_CURSOR)
    }
}

fn open(key: &LessSafeKey, list: &str, bytes: &[u8]) -> Option<Cursor> {
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE_LEN>()?;
    let mut sealed = sealed.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = key.open_in_place(nonce, Aad::from(list), &mut sealed).ok()?;
    Some(Cursor(std::str::from_utf8(opened).ok()?.trim_end().to_owned()))
}
