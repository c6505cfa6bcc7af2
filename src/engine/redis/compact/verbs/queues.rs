//! Sizes, lists of queues, and figures for the metrics. A queue's record has its figures, so all of them are exact: what
//! was acked does not count, in whatever state it was. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::super::core::{CompactCore, Lane, Place};
use super::super::keys;
use super::super::partitions::Partition;
use crate::clock::Micros;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::layout::keys::queue_of_group;
use crate::engine::together;
use crate::engine::{QueuePage, QueueSize, QueueView, Size, SizeOf, Stats};
use crate::error::Result;
use crate::name::{Namespace, Queue, QueueName};

/// How many queues one round trip reads.
const CHUNK: usize = 256;
/// How many names one key has.
const SHARD: u64 = 64;

/// Figures of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub jobs: u64,
    pub delayed: u64,
    pub running: u64,
    pub dead: u64,
}

impl Figures {
    pub fn ready(&self) -> u64 {
        self.jobs.saturating_sub(self.delayed + self.running + self.dead)
    }
}

/// A record, if there is one: lua/compact/queue.lua has its form.
type Record = Option<Vec<u8>>;

fn figures(record: &Record) -> Figures {
    let (fields, _) = record.as_deref().unwrap_or_default().as_chunks::<4>();
    let field = |n: usize| fields.get(n).map_or(0, |field| u32::from_be_bytes(*field).into());
    Figures { jobs: field(1), delayed: field(2), running: field(3), dead: field(4) }
}

/// Since when an entry of a ready list is there: it begins with that, in seven bytes.
fn since(entry: &[u8]) -> Option<Micros> {
    let time = entry.first_chunk::<7>()?;
    Some(time.iter().fold(0, |time, byte| time << 8 | Micros::from(*byte)))
}

/// Since when the first entry of a queue is ready, and what tells it from others.
type Head = Option<(Micros, u64)>;

fn ask_figures(base: &str, queue: &Queue) -> redis::Cmd {
    let mut cmd = redis::cmd("GET");
    cmd.arg(keys::record(base, queue));
    cmd
}

impl CompactCore {
    /// What a partition has of a queue.
    pub async fn figures(&self, partition: Partition, queue: &Queue) -> Outcome<Figures> {
        let record: Record =
            self.query(partition, &ask_figures(self.partitions.base(partition), queue)).await?;
        Ok(figures(&record))
    }

    /// How many jobs are ready; or dead, and the oldest of them.
    pub async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        let figures = self.figures(self.partition_of(queue), queue).await?;
        match of {
            SizeOf::Ready => Ok(Size { jobs: figures.ready(), head: None }),
            SizeOf::Dead if figures.dead == 0 => Ok(Size::default()),
            SizeOf::Dead => Ok(Size { jobs: figures.dead, head: self.first_dead(queue).await? }),
        }
    }

    /// A part of the queues of a namespace, in the order of their names.
    pub async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let paused = self.pauses_of(namespace).await?;
        let names = together::try_all(self.partitions.all().map(async |partition| {
            let mut cmd = self.call(&self.scripts.names, partition);
            cmd.arg(namespace.as_str()).arg(after.map_or("", QueueName::as_str)).arg(limit + 1);
            self.ask::<Vec<String>>(partition, Lane::Other, &self.scripts.names, cmd).await
        }));
        let mut queues: BTreeSet<Queue> = names
            .await?
            .into_iter()
            .flatten()
            .filter_map(|name| QueueName::parse_for_consume(&name).ok())
            .map(|name| Queue { namespace: namespace.clone(), name })
            .collect();
        queues.extend(paused.keys().filter(|queue| after.is_none_or(|after| queue.name > *after)).cloned());
        let more = queues.len() > limit;
        let queues: Vec<Queue> = queues.into_iter().take(limit).collect();
        let next = queues.last().filter(|_| more).map(|queue| queue.name.clone());
        let mut by_home: BTreeMap<Partition, Vec<Queue>> = BTreeMap::new();
        for queue in queues {
            by_home.entry(self.partition_of(&queue)).or_default().push(queue);
        }
        let views = together::try_all(by_home.into_iter().map(async |(home, queues)| {
            let base = self.partitions.base(home);
            let now = self.now_in(home);
            let mut asked = redis::pipe();
            for queue in &queues {
                asked.add_command(ask_figures(base, queue));
            }
            let records: Vec<Record> = self.query_all(home, &asked).await?;
            let figures: Vec<Figures> = records.iter().map(figures).collect();
            let since = together::try_all(queues.iter().zip(&figures).map(async |(queue, figures)| {
                if figures.ready() > 0 { self.ready_since(queue).await } else { Ok(None) }
            }));
            let since = since.await?;
            let mut views = Vec::new();
            for ((queue, figures), since) in queues.into_iter().zip(figures).zip(since) {
                let age = since.map(|since| Duration::from_millis(now.saturating_sub(since / 1000)));
                views.push(QueueView {
                    ready: Some(figures.ready()),
                    delayed: Some(figures.delayed),
                    running: Some(figures.running),
                    dead: Some(figures.dead),
                    oldest_ready_age: age,
                    paused: paused.get(&queue).copied(),
                    queue,
                });
            }
            Outcome::Ok(views)
        }));
        let mut queues: Vec<QueueView> = views.await?.into_iter().flatten().collect();
        queues.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        Ok(QueuePage { queues, next })
    }

    /// Sizes of everything, and the server's own figures.
    pub async fn stats(&self) -> Result<Stats> {
        let each = together::try_all(self.partitions.all().map(|partition| self.sizes(partition))).await?;
        let (mut timers, mut queues, mut first) = (0, Vec::new(), None);
        let now = self.now_micros();
        let age = |since: Micros| Duration::from_micros(now.saturating_sub(since));
        for (of_partition, due) in each {
            first = [first, due].into_iter().flatten().min();
            for (figures, head, queue) in of_partition {
                timers += figures.delayed + figures.running;
                let head = head.filter(|_| figures.ready() > 0);
                queues.push(QueueSize {
                    queue,
                    ready: figures.ready(),
                    dead: figures.dead,
                    delayed: Some(figures.delayed),
                    running: Some(figures.running),
                    oldest_ready: head.map(|(since, _)| age(since)),
                    head: head.map(|(_, head)| head),
                });
            }
        }
        queues.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        let overdue = first.map(age).filter(|late| !late.is_zero());
        Ok(Stats { timers, overdue, queues, gauges: self.gauges().await })
    }

    /// Figures of the Redis. Those of a cluster are told by node.
    async fn gauges(&self) -> Vec<(&'static str, f64)> {
        match &self.place {
            Place::One(link) => link.gauges().await,
            Place::Cluster(_) => Vec::new(),
        }
    }

    /// Every queue of a partition, with its head; and when the partition's first timer is due.
    async fn sizes(&self, partition: Partition) -> Outcome<(Vec<(Figures, Head, Queue)>, Option<Micros>)> {
        let base = self.partitions.base(partition);
        let mut first = redis::cmd("ZRANGE");
        first.arg(keys::timers(base)).arg(0).arg(0).arg("WITHSCORES");
        let first: Vec<(Vec<u8>, f64)> = self.query(partition, &first).await?;
        let due = first.first().map(|(_, due)| *due as Micros);
        let last: Option<u64> =
            self.query(partition, redis::cmd("HGET").arg(keys::meta(base)).arg("q")).await?;
        let shards: Vec<u64> = last.map_or(Vec::new(), |last| (0..=last / SHARD).collect());
        let mut all = Vec::new();
        for shards in shards.chunks(CHUNK / SHARD as usize) {
            let mut asked = redis::pipe();
            shards.iter().for_each(|shard| _ = asked.cmd("HVALS").arg(keys::names(base, *shard)));
            let names: Vec<Vec<Vec<u8>>> = self.query_all(partition, &asked).await?;
            let queues: Vec<Queue> = names.iter().flatten().filter_map(|name| queue_of_group(name)).collect();
            if queues.is_empty() {
                continue;
            }
            let mut asked = redis::pipe();
            queues.iter().for_each(|queue| _ = asked.add_command(ask_figures(base, queue)));
            let of: Vec<Record> = self.query_all(partition, &asked).await?;
            let mut asked = redis::pipe();
            queues.iter().for_each(|queue| _ = asked.cmd("LINDEX").arg(keys::ready(base, queue)).arg(0));
            let heads: Vec<Option<Vec<u8>>> = self.query_all(partition, &asked).await?;
            let heads = heads.iter().map(|head| Some((since(head.as_deref()?)?, xxh3_64(head.as_deref()?))));
            let all_of = of.iter().map(figures).zip(heads).zip(queues);
            all.extend(all_of.map(|((figures, head), queue)| (figures, head, queue)));
        }
        Ok((all, due))
    }
}
