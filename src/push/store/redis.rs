//! The push store in the Redis of tokens and limits. lmstfy has none of these keys:
//!
//! `dormouse/push/{pool}/{ns}/{queue}/counts` hash of `delivered`, `failed`, `dead`, and `delivered_at` (when the
//! last attempt succeeded, in ms by the Redis's clock); `…/attempts` list of JSON, latest on the left; `…/servers`
//! hash server → JSON of its lease, which expires a while after the last server. In a cluster, all keys of a
//! namespace are in one slot.

use std::time::Duration;

use async_trait::async_trait;
use redis::Cmd;
use serde::Deserialize;

use super::{ATTEMPTS_KEPT, Grant, Lease, PushKey, PushReport, PushStore, Seen};
use crate::admin::redis::RedisAdmin;
use crate::clock::Millis;
use crate::engine::redis::layout::scripts::{Script, Scripts};
use crate::engine::redis::tables::Tables;
use crate::error::{Error, Result};

/// Prefix of all keys.
const PUSH: &str = "dormouse/push";

/// The push store of a fleet.
#[derive(Debug)]
pub struct RedisPush {
    tables: Tables,
    scripts: Scripts,
}

impl RedisPush {
    /// Uses the connection of the Redis of tokens and limits.
    pub fn new(admin: &RedisAdmin) -> RedisPush {
        RedisPush { tables: admin.tables(), scripts: Scripts::default() }
    }

    fn part_of(&self, key: &PushKey) -> u16 {
        self.tables.part_of(&key.pool, &key.queue.namespace)
    }

    /// Returns the beginning of a call of `script` with these keys.
    fn call<const N: usize>(&self, script: &Script, key: &PushKey, keys: [String; N]) -> (u16, Cmd) {
        let part = self.part_of(key);
        (part, self.tables.call(script, part, keys.map(|of| self.tables.key(part, of))))
    }
}

/// Returns a queue's key of this kind.
fn key_of(key: &PushKey, kind: &str) -> String {
    format!("{PUSH}/{key}/{kind}")
}

/// A server's last lease; the script writes more fields.
#[derive(Deserialize)]
struct ServerLease {
    expires: f64,
    in_flight: f64,
    open: f64,
}

#[async_trait]
impl PushStore for RedisPush {
    async fn lease(&self, key: &PushKey, lease: Lease) -> Result<Grant> {
        let script = &self.scripts.push_lease;
        let millis = |time: Duration| time.as_millis() as u64;
        let (part, mut call) = self.call(script, key, [key_of(key, "servers"), key_of(key, "counts")]);
        call.arg(&*lease.server).arg(millis(lease.time)).arg(lease.slots).arg(lease.wants).arg(lease.holds);
        call.arg(lease.rate).arg(millis(lease.per)).arg(lease.rate_held).arg(lease.in_flight);
        call.arg(lease.open.unwrap_or(0));
        let (slots, rate, failed, ago, alone): (_, _, _, i64, _) =
            self.tables.run(part, script, &call).await?;
        let delivered_ago = u64::try_from(ago).ok().map(Duration::from_millis);
        Ok(Grant { slots, rate, failed, delivered_ago, alone })
    }

    async fn report(&self, key: &PushKey, report: PushReport) -> Result<()> {
        let script = &self.scripts.push_report;
        let (part, mut call) = self.call(script, key, [key_of(key, "counts"), key_of(key, "attempts")]);
        call.arg(report.delivered).arg(report.failed).arg(report.dead);
        call.arg(report.delivered_ago.map_or(-1, |ago| ago.as_millis() as i64)).arg(ATTEMPTS_KEPT);
        for attempt in &report.attempts {
            call.arg(serde_json::to_vec(attempt).map_err(Error::refused)?);
        }
        Ok(self.tables.run(part, script, &call).await?)
    }

    async fn forget(&self, key: &PushKey) -> Result<()> {
        let part = self.part_of(key);
        let mut delete = redis::cmd("DEL");
        ["counts", "attempts"].iter().for_each(|kind| _ = delete.arg(self.tables.key(part, key_of(key, kind))));
        let _: u64 = self.tables.query(part, &delete).await?;
        Ok(())
    }

    async fn seen(&self, key: &PushKey) -> Result<Seen> {
        let mut counts = redis::cmd("HMGET");
        let part = self.part_of(key);
        let at = |kind| self.tables.key(part, key_of(key, kind));
        counts.arg(at("counts")).arg(&["delivered", "failed", "dead"]);
        let mut attempts = redis::cmd("LRANGE");
        attempts.arg(at("attempts")).arg(0).arg(ATTEMPTS_KEPT - 1);
        let mut servers = redis::cmd("HVALS");
        servers.arg(at("servers"));
        let time = redis::cmd("TIME");
        let (counts, attempts, servers, (seconds, _)): (
            [Option<u64>; 3],
            Vec<Vec<u8>>,
            Vec<Vec<u8>>,
            (Millis, u64),
        ) = tokio::try_join!(
            self.tables.query(part, &counts),
            self.tables.query(part, &attempts),
            self.tables.query(part, &servers),
            self.tables.query(part, &time),
        )?;
        let [delivered, failed, dead] = counts.map(Option::unwrap_or_default);
        let attempts = attempts.iter().rev().filter_map(|text| serde_json::from_slice(text).ok()).collect();
        let report = PushReport { delivered, failed, dead, attempts, delivered_ago: None };
        let mut seen = Seen { report, ..Seen::default() };
        let servers = servers.iter().filter_map(|text| serde_json::from_slice::<ServerLease>(text).ok());
        for server in servers.filter(|server| server.expires > (seconds * 1000) as f64) {
            seen.in_flight += server.in_flight as u64;
            if server.open > 0.0 {
                let since = server.open as Millis;
                seen.open = Some(seen.open.map_or(since, |open| open.min(since)));
            }
        }
        Ok(seen)
    }
}
