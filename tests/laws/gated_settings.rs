//! A wrapper of a settings store that can refuse puts and keeps, hang, panic, and fail as if its server had died.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dormouse::error::{Error, Result};
use dormouse::settings::{Page, Put, Record, SettingChanges, SettingVersion, SettingsStore};
use tokio::sync::watch;

use crate::gated::Gated;
use crate::support::model::ModelEngine;

/// Stands before `inner`.
#[derive(Debug)]
pub struct GatedSettings {
    inner: Arc<dyn SettingsStore>,
    /// A store whose state and limit of calls also apply to this one.
    beside: Option<Arc<Gated<ModelEngine>>>,
    /// Number of puts to refuse.
    refused_puts: AtomicUsize,
    refuses_keeps: AtomicBool,
    panics: AtomicBool,
    scans_hang: watch::Sender<bool>,
    changes_hang: watch::Sender<bool>,
    hangs: watch::Sender<bool>,
    gets: AtomicUsize,
}

impl GatedSettings {
    pub fn new(inner: Arc<dyn SettingsStore>, beside: Option<Arc<Gated<ModelEngine>>>) -> Arc<GatedSettings> {
        Arc::new(GatedSettings {
            inner,
            beside,
            refused_puts: AtomicUsize::new(0),
            refuses_keeps: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            scans_hang: watch::Sender::default(),
            changes_hang: watch::Sender::default(),
            hangs: watch::Sender::default(),
            gets: AtomicUsize::new(0),
        })
    }

    /// Returns the number of gets since the last call.
    pub fn gets(&self) -> usize {
        self.gets.swap(0, Ordering::SeqCst)
    }

    /// Makes keeps fail, or succeed again.
    pub fn refuse_keeps(&self, refuse: bool) {
        self.refuses_keeps.store(refuse, Ordering::SeqCst);
    }

    /// Makes the next keep panic.
    pub fn a_keep_panics(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// Makes every call hang until it is called with `false`.
    pub fn hang(&self, hang: bool) {
        self.hangs.send_replace(hang);
    }

    /// Makes the next `puts` puts fail, as on a Redis without memory.
    pub fn refuse_puts(&self, puts: usize) {
        self.refused_puts.store(puts, Ordering::SeqCst);
    }

    /// Makes scans hang until it is called with `false`.
    pub fn hang_scans(&self, hang: bool) {
        self.scans_hang.send_replace(hang);
    }

    /// Makes reads of changes hang until it is called with `false`.
    pub fn hang_changes(&self, hang: bool) {
        self.changes_hang.send_replace(hang);
    }

    async fn up(&self) -> Result<()> {
        goes_on(&self.hangs).await;
        match &self.beside {
            Some(beside) => beside.up().await,
            None => Ok(()),
        }
    }
}

async fn goes_on(hangs: &watch::Sender<bool>) {
    if !*hangs.borrow() {
        return; // tests of a week in virtual time call it a million times
    }
    let _ = hangs.subscribe().wait_for(|hangs| !hangs).await.expect("its owner has it");
}

#[async_trait]
impl SettingsStore for GatedSettings {
    async fn get(&self, key: &str) -> Result<Option<Record>> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.up().await?;
        self.inner.get(key).await
    }

    async fn put(&self, key: &str, value: Option<Bytes>, expected: Option<SettingVersion>) -> Result<Put> {
        self.up().await?;
        let refused =
            self.refused_puts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if refused.is_ok() {
            return Err(Error::refused("OOM, the test says so"));
        }
        self.inner.put(key, value, expected).await
    }

    async fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page> {
        self.up().await?;
        goes_on(&self.scans_hang).await;
        self.inner.scan(prefix, after, limit).await
    }

    async fn changes(&self, prefix: &str, since: SettingVersion) -> Result<SettingChanges> {
        self.up().await?;
        goes_on(&self.changes_hang).await;
        self.inner.changes(prefix, since).await
    }

    async fn keep(&self, key: &str, value: Bytes, ttl: Duration) -> Result<()> {
        goes_on(&self.hangs).await;
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the test says so");
        if self.refuses_keeps.load(Ordering::SeqCst) {
            return Err(Error::Overloaded);
        }
        self.inner.keep(key, value, ttl).await
    }
}
