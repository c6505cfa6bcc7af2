//! Operators' requests about one pushed queue: set, read, delete, pause, resume, new secret, test. A change is a
//! compare-and-swap of the queue's record, and is answered when the workers of this server have it.

use std::sync::atomic::Ordering;

use tokio::time::{Instant, timeout};

use super::delivery::{self, Plan, Verdict};
use super::key::PushKey;
use super::leases::View;
use super::record::{self, BOTH_SIGN, PushRecord, Switch};
use super::records::Stored;
use super::setting::Setting;
use super::shared::LOOK;
use super::shown::{NewSecret, SeenPush, ShownPush, Tested};
use super::sign::SigningSecret;
use super::{Push, PushError, Result, encrypted, rates, results};
use crate::error::Error;
use crate::name::QueueName;
use crate::random;

/// Longest chain of queues through `on_dead`.
const MAX_ON_DEAD: usize = 16;

/// A record of the store, or why it cannot be read.
type Read = crate::error::Result<Option<PushRecord>>;

impl Push {
    /// Sets how a queue is pushed. Keeps the secret, and the state of a paused queue. Returns the stored
    /// setting, with the secret if it is new.
    pub async fn put(&self, key: &PushKey, setting: Setting) -> Result<ShownPush> {
        if let Some(why) = setting.refused(&self.guard) {
            return Err(PushError::Bad(why));
        }
        if let Some(queue) = &setting.on_dead
            && let Some(why) = self.circle(key, queue).await?
        {
            return Err(PushError::Bad(why));
        }
        let now = self.server.now();
        let first = PushRecord {
            setting: setting.clone(),
            secret: SigningSecret::random(),
            old_secret: None,
            switch: Switch::On,
            since: now,
            why: "it was set".into(),
            // Differs from the revisions of an earlier record, whose requests may still be in flight.
            revision: self.server.clock.wall_micros(),
        };
        Plan::check(&key.queue, &first).map_err(PushError::Bad)?;
        let settings = &*self.server.settings;
        if self.server.records.get(key).await?.is_none() {
            results::begin(settings, key).await?;
        }
        if setting.rate > 0 {
            rates::create(settings, key).await?;
        }
        let mut new = true;
        let change = |old: Read| -> Result<Option<PushRecord>> {
            // A record that cannot be read is replaced, together with its secret.
            let replaced = "push: an unreadable setting was replaced, with a new secret";
            let old = old.inspect_err(|error| tracing::warn!(%error, "{replaced}")).unwrap_or_default();
            new = old.is_none();
            let setting = setting.clone();
            let record = match old {
                None => first.clone(),
                Some(old) if old.switch == Switch::Off => {
                    PushRecord { setting, ..old.switched(Switch::On, now, "it was set") }
                }
                Some(old) => PushRecord { setting, revision: old.revision + 1, ..old },
            };
            Plan::check(&key.queue, &record).map_err(PushError::Bad)?;
            Ok(Some(record))
        };
        let record = self.change(key, change).await?.ok_or(PushError::NotFound)?;
        let shown = ShownPush::new(key, &record);
        Ok(if new { shown.with_secret(record.secret.reveal()) } else { shown })
    }

    /// Returns the setting and the results of a queue.
    pub async fn get(&self, key: &PushKey) -> Result<SeenPush> {
        let Stored { plain: bytes, .. } = self.server.records.get(key).await?.ok_or(PushError::NotFound)?;
        let settings = &*self.server.settings;
        let report = results::get(settings, key).await?;
        let seen = View::read(settings, None).await?.summary(key);
        let push = match encrypted::locked(&bytes) {
            Some(record) => ShownPush::locked(key, record.setting),
            None => ShownPush::new(key, &record::read(key, &bytes)?),
        };
        Ok(SeenPush::new(push, report, seen))
    }

    /// Deletes the setting and the secret. Jobs stay. Deleting a missing setting succeeds.
    pub async fn delete(&self, key: &PushKey) -> Result<()> {
        while let Some(old) = self.server.records.get(key).await? {
            if self.server.records.put(key, None, Some(old.version)).await? {
                self.apply().await;
                break;
            }
        }
        Ok(results::delete(&*self.server.settings, key).await?)
    }

    /// Stops sending until the queue is resumed.
    pub async fn pause(&self, key: &PushKey) -> Result<ShownPush> {
        self.switch(key, Switch::Paused, "an operator paused it").await
    }

    /// Resumes a queue that an operator paused or a 410 turned off.
    pub async fn resume(&self, key: &PushKey) -> Result<ShownPush> {
        self.switch(key, Switch::On, "an operator resumed it").await
    }

    async fn switch(&self, key: &PushKey, switch: Switch, why: &str) -> Result<ShownPush> {
        let now = self.server.now();
        let mut as_it_is = None;
        let change = |old: Read| -> Result<Option<PushRecord>> {
            let old = old?.ok_or(PushError::NotFound)?;
            if old.switch == switch {
                as_it_is = Some(old);
                return Ok(None);
            }
            Ok(Some(old.switched(switch, now, why)))
        };
        let record = self.change(key, change).await?;
        let record = record.or(as_it_is).ok_or(PushError::NotFound)?;
        Ok(ShownPush::new(key, &record))
    }

    /// Makes a new secret. The previous one still signs for a day.
    pub async fn new_secret(&self, key: &PushKey) -> Result<NewSecret> {
        let (now, secret) = (self.server.now(), SigningSecret::random());
        let until = now + BOTH_SIGN.as_millis() as u64;
        let change = |old: Read| -> Result<Option<PushRecord>> {
            let old = old?.ok_or(PushError::NotFound)?;
            let old_secret = Some((old.secret.clone(), until));
            Ok(Some(PushRecord { secret: secret.clone(), old_secret, revision: old.revision + 1, ..old }))
        };
        let record = self.change(key, change).await?.ok_or(PushError::NotFound)?;
        Ok(NewSecret { secret: record.secret.reveal().to_owned(), both_sign_until: delivery::time(until) })
    }

    /// Sends one signed test request, and returns the result.
    pub async fn test(&self, key: &PushKey) -> Result<Tested> {
        let stored = self.server.records.get(key).await?.ok_or(PushError::NotFound)?;
        let record = record::read(key, &stored.plain)?;
        let corrupt = |why: String| Error::corrupt(format!("{key}: {why}"));
        let plan = Plan::new(&key.queue, &record).map_err(corrupt)?;
        let now = self.server.now();
        let request = plan.test_request(&format!("test_{}", random::ulid()), now);
        let body_counts = plan.setting.ok_when.is_some();
        let began = Instant::now();
        let answer = self.server.client.send(request, plan.setting.timeout, body_counts).await;
        let reason = match plan.judge(&answer, now) {
            Verdict::Delivered => None,
            Verdict::Failed(failed) => Some(failed.reason),
            Verdict::Gone => Some("status 410".to_owned()),
        };
        Ok(Tested {
            ok: reason.is_none(),
            status: answer.as_ref().ok().map(|answer| answer.status),
            reason,
            milliseconds: began.elapsed().as_millis() as u64,
            answer: answer.is_ok().then(|| delivery::shown(&answer)),
        })
    }

    /// Returns why the queue of `key` may not have this `on_dead`: the settings of others lead back to it.
    /// Two simultaneous changes may still create a circle; it does no harm, since a death message that dies
    /// has no death message.
    async fn circle(&self, key: &PushKey, on_dead: &QueueName) -> Result<Option<String>> {
        let mut next = PushKey { pool: key.pool.clone(), queue: key.queue.clone() };
        next.queue.name = on_dead.clone();
        for _ in 0..MAX_ON_DEAD {
            // A record that cannot be read leads nowhere.
            let record = self.server.records.get(&next).await?;
            let leads_to = |record: Stored| match encrypted::locked(&record.plain) {
                Some(locked) => locked.setting.on_dead(),
                None => PushRecord::parse(&record.plain, &next.queue.name).ok()?.setting.on_dead,
            };
            match record.and_then(leads_to) {
                None => return Ok(None),
                Some(name) if name == key.queue.name => {
                    let last = &next.queue.name;
                    return Ok(Some(format!(
                        "on_dead: the on_dead of queue {last} leads back to this queue"
                    )));
                }
                Some(name) => next.queue.name = name,
            }
        }
        Ok(Some(format!("on_dead leads through more than {MAX_ON_DEAD} queues")))
    }

    async fn change(
        &self,
        key: &PushKey,
        change: impl FnMut(Read) -> Result<Option<PushRecord>>,
    ) -> Result<Option<PushRecord>> {
        let changed = self.server.change(key, change).await;
        if let Ok(Some(_)) = &changed {
            self.apply().await;
        }
        changed
    }

    /// Waits until the workers of this server have the change just made, so that a job published after the response
    /// is sent by the new setting. If the store fails meanwhile, waits no longer than other servers may take.
    async fn apply(&self) {
        let (before, mut applied) = (self.begun.load(Ordering::Acquire), self.applied.subscribe());
        self.changed.notify_one();
        let wait = timeout(2 * LOOK, applied.wait_for(|round| *round > before));
        let _ = self.server.tasks.stopping().run_until_cancelled(wait).await;
    }
}
