//! Touch and release: calls by the consumer that holds a delivery. They prove it by the timer, whose member contains
//! the tries and whose score is the due time of this delivery.

use std::time::{Duration, Instant};

use crate::clock::Micros;
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::times::micros;
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::wrong_type;
use crate::engine::redis::timer_counts::Timers;
use crate::engine::{Held, Release, Released, Touched, Tries};
use crate::error::Result;
use crate::job::{JobRef, Reason, Receipt};

/// Values of a reply in place of a due time.
const OVER: i64 = 0;
const NOT_FOUND: i64 = -1;
const WRONG_TYPE: i64 = -2;

impl PartitionCore {
    /// Extends the delivery: its ttr ends `ttr` from now.
    pub async fn touch(&self, job: &JobRef, receipt: Receipt, ttr: Duration) -> Result<Held<Touched>> {
        self.unpack_one(&job.queue, &job.id).await?;
        let mut cmd = self.call(&self.scripts.touch);
        cmd.key(&self.keys.timer_set).key(self.keys.job(&job.queue, &job.id));
        cmd.arg(keys::member(&job.queue, receipt.tries_left, &job.id)).arg(receipt.delivery).arg(micros(ttr));
        let sent = Instant::now();
        let (now, due): (u64, i64) = self.run(Lane::Delivered, &cmd).await?;
        self.learn(sent, now);
        let held = held(due)?;
        if let Held::Done(due) = held {
            self.common.handed_out.touch(job.id, receipt.tries_left, due);
            self.stored(due);
        }
        Ok(map(held, |due| Touched {
            receipt: Receipt { delivery: due, tries_left: receipt.tries_left },
            until: due / 1000,
        }))
    }

    /// Returns the job to its queue; the job dies if it has no tries left.
    pub async fn release(&self, job: &JobRef, receipt: Receipt, release: Release) -> Result<Held<Released>> {
        self.unpack_one(&job.queue, &job.id).await?;
        let (JobRef { queue, id }, Release { delay, tries, reason }) = (job, release);
        let tries_left = match tries {
            Tries::Spend => receipt.tries_left,
            Tries::Restore => receipt.tries_left.saturating_add(1),
            Tries::Forfeit => 0,
        };
        let mut cmd = self.call(&self.scripts.release);
        cmd.key(&self.keys.timer_set).key(self.keys.job(queue, id));
        cmd.key(self.keys.ready(queue)).key(self.keys.dead(queue)).key(&self.keys.with_details);
        cmd.arg(keys::member(queue, receipt.tries_left, id)).arg(receipt.delivery);
        cmd.arg(keys::member_prefix(queue)).arg(keys::group(queue)).arg(id.to_string());
        cmd.arg(tries_left).arg(micros(delay)).arg(reason.as_ref().map_or("", Reason::as_str));
        cmd.arg(self.dead_ttl.as_millis() as u64);
        let sent = Instant::now();
        let (now, due, dead): (u64, i64, bool) = self.run(Lane::Delivered, &cmd).await?;
        self.learn(sent, now);
        let held = held(due)?;
        if let Held::Done(due) = held {
            self.common.handed_out.release(*id, due);
            let delayed = i64::from(!dead && !delay.is_zero());
            self.timer_counts.add(queue, Timers { delayed, running: -1 });
            match (dead, delay.is_zero()) {
                (true, _) => {}
                (false, true) => self.tell_ready(queue),
                (false, false) => self.stored(due),
            }
        }
        Ok(map(held, |due| match dead {
            true => Released::Dead,
            false => Released::Back { tries_left, due_at: due / 1000 },
        }))
    }
}

fn held(due: i64) -> Result<Held<Micros>> {
    match due {
        OVER => Ok(Held::NotYours),
        NOT_FOUND => Ok(Held::NotFound),
        WRONG_TYPE => Err(wrong_type()),
        due => Ok(Held::Done(u64::try_from(due).map_err(|_| Fault::unreadable("release"))?)),
    }
}

fn map<T, U>(held: Held<T>, f: impl FnOnce(T) -> U) -> Held<U> {
    match held {
        Held::Done(done) => Held::Done(f(done)),
        Held::NotYours => Held::NotYours,
        Held::NotFound => Held::NotFound,
    }
}
