//! Packed jobs, as calls by id, lists and counts need them. A call that would change a packed job unpacks it first, which
//! is invisible to clients, and then treats it like any job. The pump unpacks buckets (lua/pump.lua).

use std::collections::HashMap;

use bytes::Bytes;
use redis::Value;
use tokio::time::{Instant, sleep};

use crate::engine::Detail;
use crate::engine::delays::Rests;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::layout::packed::{self, PackedJob};
use crate::engine::redis::layout::script_call::ScriptCall;
use crate::engine::redis::layout::value;
use crate::engine::redis::link::Lane;
use crate::engine::redis::reply::read;
use crate::error::Result;
use crate::job::{JobId, JobRef, JobState, JobView};
use crate::name::Queue;

/// Buckets whose names one script call reads.
const NAMES: usize = 500;
/// Buckets whose jobs one script call counts by due time: these take Redis about a millisecond.
const COUNTED: usize = 16;

/// Where a scan of buckets continues: a score, empty for the first; and how many buckets to skip from there.
pub type BucketPlace = (String, u64);

/// The name of a bucket, and the due time of its first job as a score.
pub type BucketName = (String, String);

impl PartitionCore {
    /// Returns the call that unpacks those of up to a hundred jobs that are packed; `None` if none of them can be, as a
    /// job that this process has delivered.
    pub fn unpack_call<'a>(&self, jobs: impl Iterator<Item = (&'a Queue, &'a JobId)>) -> Option<ScriptCall> {
        let may_be = |id: &JobId| packed::may_be_packed(id) && self.common.handed_out.tries(id).is_none();
        let mut jobs = jobs.filter(|(_, id)| may_be(id)).peekable();
        jobs.peek()?;
        let mut call = self.call(&self.scripts.unpack);
        call.key(&self.keys.timer_set).key(&self.keys.buckets);
        for (queue, id) in jobs {
            call.arg(packed::bucket(queue, id)).arg(&packed::field(id)[..]);
        }
        Some(call)
    }

    pub async fn unpack(&self, call: Option<ScriptCall>) -> Outcome<()> {
        match call {
            Some(call) => self.run::<u64>(Lane::Other, &call).await.map(drop),
            None => Ok(()),
        }
    }

    /// Unpacks a job if it is packed.
    pub async fn unpack_one(&self, queue: &Queue, id: &JobId) -> Outcome<()> {
        self.unpack(self.unpack_call(std::iter::once((queue, id)))).await
    }

    pub async fn is_packed(&self, JobRef { queue, id }: &JobRef) -> Outcome<bool> {
        if !packed::may_be_packed(id) {
            return Ok(false);
        }
        let bucket = self.keys.bucket(&packed::bucket(queue, id));
        self.query(redis::cmd("HEXISTS").arg(bucket).arg(&packed::field(id)[..])).await
    }

    /// Returns a job by its id, if it is packed.
    pub async fn inspect_packed(&self, job: &JobRef, detail: Detail) -> Result<Option<JobView>> {
        let JobRef { queue, id } = job;
        if !packed::may_be_packed(id) || self.common.handed_out.tries(id).is_some() {
            return Ok(None);
        }
        let bucket = self.keys.bucket(&packed::bucket(queue, id));
        let stored: Option<Bytes> =
            self.query(redis::cmd("HGET").arg(bucket).arg(&packed::field(id)[..])).await?;
        let Some(job) = stored.and_then(|stored| PackedJob::of(*id, &stored)) else { return Ok(None) };
        let now = self.now_micros();
        let Some(ttl) = job.pttl(now) else { return Ok(None) };
        let (state, due_at, tries_left) = (Some(JobState::Delayed), Some(job.due / 1000), Some(job.tries));
        let view: JobView = value::job(queue, *id, job.value, ttl, now)?.into();
        Ok(Some(match detail {
            Detail::Stored => view,
            _ => JobView { state, due_at, tries_left, ..view },
        }))
    }

    /// Returns the next buckets whose names have this prefix, and where to continue.
    pub async fn scan_packed(
        &self,
        prefix: &str,
        (from, skip): &BucketPlace,
    ) -> Outcome<(Option<BucketPlace>, Vec<BucketName>)> {
        let mut call = self.call(&self.scripts.scan_packed);
        call.key(&self.keys.buckets).arg(prefix).arg(from).arg(skip).arg(NAMES);
        let (next, skip, cells): (String, u64, Vec<Value>) = self.run(Lane::Other, &call).await?;
        let names = cells.as_chunks().0.iter().map(|[name, score]| Ok((read(name)?, read(score)?)));
        Ok(((!next.is_empty()).then_some((next, skip)), names.collect::<Outcome<_>>()?))
    }

    /// Returns the jobs of these buckets.
    pub async fn read_buckets(&self, names: &[BucketName]) -> Outcome<Vec<PackedJob>> {
        let mut all = redis::pipe();
        for (name, _) in names {
            all.cmd("HGETALL").arg(self.keys.bucket(name));
        }
        let buckets: Vec<HashMap<Vec<u8>, Bytes>> = self.query_all(&all).await?;
        let jobs = names.iter().zip(&buckets).flat_map(|((name, _), jobs)| {
            jobs.iter().filter_map(move |(field, value)| PackedJob::read(name, field, value))
        });
        Ok(jobs.collect())
    }

    /// Whether this partition has a packed job of a queue.
    pub async fn has_packed(&self, queue: &Queue) -> Outcome<bool> {
        let (prefix, mut place) = (packed::bucket_prefix(queue), Some(BucketPlace::default()));
        while let Some(from) = place {
            let (next, names) = self.scan_packed(&prefix, &from).await?;
            if !names.is_empty() {
                return Ok(true);
            }
            place = next;
        }
        Ok(false)
    }

    /// Passes each bucket's queue and number of jobs to `found`.
    pub async fn each_bucket(&self, mut found: impl FnMut(Queue, u64)) -> Outcome<()> {
        let (mut place, mut rests) = (Some(BucketPlace::default()), Rests::default());
        while let Some(from) = place {
            let began = Instant::now();
            let (next, names) = self.scan_packed("", &from).await?;
            let mut lens = redis::pipe();
            names.iter().for_each(|(name, _)| _ = lens.cmd("HLEN").arg(self.keys.bucket(name)));
            let lens: Vec<u64> = if names.is_empty() { Vec::new() } else { self.sizes(&lens).await? };
            for ((name, _), jobs) in names.iter().zip(lens) {
                let group =
                    name.rsplit_once('/').and_then(|(group, _)| keys::queue_of_group(group.as_bytes()));
                group.into_iter().for_each(|queue| found(queue, jobs));
            }
            place = next;
            sleep(rests.after(began.elapsed())).await;
        }
        Ok(())
    }

    /// Counts packed jobs in buckets whose names have this prefix, by due time: `told` gets pairs of an interval's start
    /// and its jobs, the start -1 for overdue jobs.
    pub async fn count_packed(&self, prefix: &str, step: u64, mut told: impl FnMut(Vec<i64>)) -> Outcome<()> {
        let (mut place, mut rests) = (BucketPlace::default(), Rests::default());
        loop {
            let began = Instant::now();
            let mut call = self.call(&self.scripts.count_packed);
            call.key(&self.keys.buckets).arg(prefix).arg(step).arg(&place.0).arg(place.1);
            call.arg(COUNTED);
            let (_, next, skip, counts): (u64, String, u64, Vec<i64>) = self.run(Lane::Other, &call).await?;
            told(counts);
            if next.is_empty() {
                return Ok(());
            }
            place = (next, skip);
            sleep(rests.after(began.elapsed())).await;
        }
    }
}
