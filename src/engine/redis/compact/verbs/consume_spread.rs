//! Consume of a queue that is spread: the partition with the oldest job is asked first, for jobs that are newer by no more
//! than the bound than those that the others may have. "Nothing" is said only when every partition was seen empty within the
//! call; to who was notified, when those are empty that this process was told of. What cannot be asked now is left out, as
//! long as others have jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::core::CompactCore;
use super::super::heads::Choice;
use super::super::keys;
use super::super::partitions::Partition;
use super::super::spread::SpreadQueue;
use super::consume::Fetched;
use crate::engine::redis::connection::fault::Fault;
use crate::engine::redis::layout::times::micros;
use crate::engine::{Consumed, together};
use crate::error::{Error, Result};
use crate::name::Queue;

/// How many partitions are asked at the same time that have few jobs each.
const AT_A_TIME: usize = 16;

/// What one consume has found out.
#[derive(Default)]
struct Seen {
    /// Empty, or paused.
    empty: BTreeSet<Partition>,
    /// These cannot be asked now.
    failed: BTreeMap<Partition, Fault>,
}

impl Seen {
    /// Whether a partition is to be asked for jobs.
    fn may_have(&self, partition: Partition) -> bool {
        !self.failed.contains_key(&partition) && !self.empty.contains(&partition)
    }
}

impl CompactCore {
    /// Hands out a job for each ttr. `notified`: those partitions need not be looked at of which nothing was told.
    pub async fn consume_spread(
        self: &Arc<Self>,
        queue: &Queue,
        spread: &Arc<SpreadQueue>,
        ttrs: &[Duration],
        notified: bool,
    ) -> Result<Consumed> {
        let count = self.partitions.count();
        let ahead = micros(self.spreading.rules.ahead);
        let (mut seen, mut consumed) = (Seen::default(), Consumed::default());
        // Partitions have few jobs each: so many of them are asked at the same time, as the last ones had.
        let mut few: Option<usize> = None;
        if ahead == 0 {
            spread.heads.lock().forget();
        }
        // A bound, since others publish meanwhile.
        for _ in 0..8 * usize::from(count) {
            let rest = &ttrs[consumed.jobs.len()..];
            if rest.is_empty() {
                return Ok(consumed);
            }
            // Those that were seen empty have nothing that is older than what was ready then.
            let choice = spread.heads.lock().choose(ahead, |partition| !seen.failed.contains_key(&partition));
            let (partition, until) = match choice {
                Choice::Ask(partition, until) => (partition, until),
                Choice::Look(unsure) => {
                    self.look(queue, spread, &unsure, &mut seen).await;
                    continue;
                }
                Choice::Nothing => {
                    let left: Vec<Partition> = if notified {
                        let told = spread.heads.lock().all_told();
                        told.into_iter().filter(|partition| !seen.failed.contains_key(partition)).collect()
                    } else {
                        self.partitions.all().filter(|partition| seen.may_have(*partition)).collect()
                    };
                    if !left.is_empty() {
                        self.look(queue, spread, &left, &mut seen).await;
                        continue;
                    }
                    if !consumed.jobs.is_empty() || seen.failed.is_empty() {
                        // There may be more where nobody could look.
                        consumed.more |= !seen.failed.is_empty();
                        return Ok(consumed);
                    }
                    self.wait_for(queue, &mut seen).await?;
                    continue;
                }
            };
            // Each job is for its own ttr: who asks several at the same time does not know which gets which.
            let mut asked = vec![(partition, until)];
            if let Some(few) = few
                && rest.iter().all(|ttr| *ttr == rest[0])
            {
                let can = |partition| !seen.failed.contains_key(&partition);
                let most = rest.len().div_ceil(few.max(1)).min(AT_A_TIME);
                let some = spread.heads.lock().choose_some(ahead, can, most);
                if some.len() > 1 {
                    asked = some;
                }
            }
            let share = &rest[..rest.len() / asked.len()];
            let question = spread.heads.lock().asks();
            let answers = asked.iter().map(|(partition, until)| {
                self.consume_part(*partition, std::slice::from_ref(queue), share, Some(*until))
            });
            let (mut is_over, mut refused, had) = (false, None, consumed.jobs.len());
            for ((partition, _), answer) in asked.iter().zip(together::all(answers).await) {
                match answer {
                    Ok(Fetched { consumed: some, now, is_paused, head, .. }) => {
                        let head = head.filter(|_| !is_paused);
                        spread.heads.lock().seen(*partition, head, now, question);
                        if head.is_none() && !some.more {
                            seen.empty.insert(*partition);
                        }
                        is_over |= some.more;
                        consumed.jobs.extend(some.jobs);
                    }
                    Err(fault) => {
                        spread.heads.lock().unsure(*partition);
                        match Error::from(fault.clone()) {
                            Error::Unreachable(_) => _ = seen.failed.insert(*partition, fault),
                            error => refused = Some(error),
                        }
                    }
                }
            }
            let came = consumed.jobs.len() - had;
            if came < share.len() * asked.len() {
                few = Some(came / asked.len());
            }
            if is_over || refused.is_some() {
                consumed.more = true;
                return refused.filter(|_| consumed.jobs.is_empty()).map_or(Ok(consumed), Err);
            }
        }
        consumed.more = true;
        Ok(consumed)
    }

    /// Looks since when these partitions have jobs.
    async fn look(&self, queue: &Queue, spread: &SpreadQueue, parts: &[Partition], seen: &mut Seen) {
        // By their clocks before they were asked: what they get later is newer.
        let before: Vec<u64> = parts.iter().map(|partition| self.now_in(*partition) * 1000).collect();
        let question = spread.heads.lock().asks();
        let heads = self.ready_heads_now(queue, parts).await;
        let newest = heads.iter().filter_map(|(_, head)| head.as_ref().ok().copied().flatten()).max();
        let mut known = spread.heads.lock();
        for ((partition, head), before) in heads.into_iter().zip(before) {
            match head {
                Ok(head) => {
                    known.seen(partition, head, before.max(newest.unwrap_or(0)), question);
                    if head.is_none() {
                        seen.empty.insert(partition);
                    }
                }
                Err(fault) => {
                    known.unsure(partition);
                    seen.failed.insert(partition, fault);
                }
            }
        }
    }

    /// Nothing was found, and some could not be asked: waits for these, as any call does. They are asked by the key that
    /// nobody ever writes: while a slot moves a list that is still there can be read, and no script begins. A consumer that
    /// waits goes on waiting when they cannot be asked then either.
    async fn wait_for(&self, queue: &Queue, seen: &mut Seen) -> Result<()> {
        let failed: Vec<Partition> = std::mem::take(&mut seen.failed).into_keys().collect();
        let guard = |partition| redis::Cmd::exists(keys::guard(self.partitions.base(partition)));
        for (_, told) in self.query_each::<u8>(&failed, guard).await {
            told.map_err(|fault| match Error::from(fault) {
                Error::Unreachable(why) => Error::Unseen(why, vec![queue.clone()]),
                error => error,
            })?;
        }
        Ok(())
    }
}
