//! Sizes, lists of queues, and figures for the metrics. A queue's record has its figures, so all of them are exact: what
//! was acked does not count, in whatever state it was. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::super::core::{CompactCore, Lane, Place};
use super::super::keys;
use super::super::partitions::Partition;
use crate::clock::{Micros, Millis};
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::layout::keys::queue_of_group;
use crate::engine::together;
use crate::engine::{Pause, QueuePage, QueueSize, QueueView, Size, SizeOf, Stats};
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

/// Figures of a queue as they are stored, if they are: lua/compact/queue.lua has its form.
pub type StoredFigures = Option<Vec<u8>>;

fn figures(record: &StoredFigures) -> Figures {
    let (fields, _) = record.as_deref().unwrap_or_default().as_chunks::<4>();
    let field = |n: usize| fields.get(n).map_or(0, |field| u32::from_be_bytes(*field).into());
    Figures { jobs: field(1), delayed: field(2), running: field(3), dead: field(4) }
}

/// Since when a queue is spread, as the record at its home says.
pub fn spread_since(record: &StoredFigures) -> Option<Millis> {
    let since = record.as_deref()?.get(38..44)?;
    let since = since.iter().fold(0, |since, byte| since << 8 | Millis::from(*byte));
    (since > 0).then_some(since)
}

/// What another partition has of a queue.
fn add_part(queue: &mut QueueSize, other: &QueueSize) {
    queue.ready += other.ready;
    queue.dead += other.dead;
    let sum = |a: Option<u64>, b: Option<u64>| Some(a? + b?);
    queue.delayed = sum(queue.delayed, other.delayed);
    queue.running = sum(queue.running, other.running);
    if other.oldest_ready > queue.oldest_ready {
        (queue.oldest_ready, queue.head) = (other.oldest_ready, other.head);
    }
}

/// Since when an entry of a ready list is there: it begins with that, in seven bytes.
pub fn since(entry: &[u8]) -> Option<Micros> {
    let time = entry.first_chunk::<7>()?;
    Some(time.iter().fold(0, |time, byte| time << 8 | Micros::from(*byte)))
}

/// Since when the first entry of a queue is ready, and what tells it from others.
type Head = Option<(Micros, u64)>;

pub fn ask_figures(base: &str, queue: &Queue) -> redis::Cmd {
    let mut cmd = redis::cmd("GET");
    cmd.arg(keys::record(base, queue));
    cmd
}

impl CompactCore {
    /// What each of these partitions has of a queue.
    pub async fn figures_of(&self, queue: &Queue, parts: &[Partition]) -> Outcome<Vec<(Partition, Figures)>> {
        let ask = |partition| ask_figures(self.partitions.base(partition), queue);
        let records = self.query_each::<StoredFigures>(parts, ask).await;
        records.into_iter().map(|(partition, record)| Ok((partition, figures(&record?)))).collect()
    }

    /// How many jobs are ready; or dead, and the oldest of them.
    pub async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        let parts = self.parts_of(queue).await?;
        let each = self.figures_of(queue, &parts).await?;
        if of == SizeOf::Ready {
            return Ok(Size { jobs: each.iter().map(|(_, figures)| figures.ready()).sum(), head: None });
        }
        let jobs: u64 = each.iter().map(|(_, figures)| figures.dead).sum();
        let with_some = each.iter().filter(|(_, figures)| figures.dead > 0).map(|(partition, _)| *partition);
        let first = together::try_all(with_some.map(|partition| self.first_dead(partition, queue))).await?;
        let first = first.into_iter().flatten().min_by_key(|(died, _)| *died);
        Ok(Size { jobs, head: first.map(|(_, id)| id) })
    }

    /// A part of the queues of a namespace, in the order of their names.
    pub async fn list_queues(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<QueuePage> {
        let paused = self.pauses_of(namespace).await?;
        let mut queues = self.names_behind(namespace, after, limit + 1).await?;
        queues.extend(paused.keys().filter(|queue| after.is_none_or(|after| queue.name > *after)).cloned());
        let more = queues.len() > limit;
        let queues: Vec<Queue> = queues.into_iter().take(limit).collect();
        let next = queues.last().filter(|_| more).map(|queue| queue.name.clone());
        let (mut by_home, mut spread): (BTreeMap<Partition, Vec<Queue>>, Vec<Queue>) = Default::default();
        for queue in queues {
            match self.spreading.get(&queue) {
                Some(_) => spread.push(queue),
                None => by_home.entry(self.partition_of(&queue)).or_default().push(queue),
            }
        }
        let gathered = by_home.into_iter().map(|(home, queues)| self.views_at(home, queues, &paused));
        let (views, more): (Vec<Vec<QueueView>>, Vec<Vec<Queue>>) =
            together::try_all(gathered).await?.into_iter().unzip();
        let mut all: Vec<QueueView> = views.into_iter().flatten().collect();
        for queue in spread.into_iter().chain(more.into_iter().flatten()) {
            all.push(self.view_of_spread(queue, &paused).await?);
        }
        all.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        Ok(QueuePage { queues: all, next })
    }

    /// The first queues of a namespace behind that name, so many of each partition.
    async fn names_behind(
        &self,
        namespace: &Namespace,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<BTreeSet<Queue>> {
        let names = together::try_all(self.partitions.all().map(async |partition| {
            let mut cmd = self.call(&self.scripts.names, partition);
            cmd.arg(namespace.as_str()).arg(after.map_or("", QueueName::as_str)).arg(limit);
            self.ask::<Vec<String>>(partition, Lane::Other, &self.scripts.names, cmd).await
        }));
        let names = names.await?.into_iter().flatten();
        let names = names.filter_map(|name| QueueName::parse_for_consume(&name).ok());
        Ok(names.map(|name| Queue { namespace: namespace.clone(), name }).collect())
    }

    /// What is shown of queues that have this home; and those of them that are spread, as their home tells.
    async fn views_at(
        &self,
        home: Partition,
        queues: Vec<Queue>,
        paused: &BTreeMap<Queue, Pause>,
    ) -> Outcome<(Vec<QueueView>, Vec<Queue>)> {
        let base = self.partitions.base(home);
        let now = self.now_in(home);
        let mut asked = redis::pipe();
        for queue in &queues {
            asked.add_command(ask_figures(base, queue));
        }
        let records: Vec<StoredFigures> = self.query_all(home, &asked).await?;
        let (mut gathered, mut spread) = (Vec::new(), Vec::new());
        for (queue, record) in queues.into_iter().zip(records) {
            match spread_since(&record) {
                Some(since) => {
                    self.learn_spread(&queue, since);
                    spread.push(queue);
                }
                None => gathered.push((queue, figures(&record))),
            }
        }
        let since = together::try_all(gathered.iter().map(async |(queue, figures)| {
            if figures.ready() > 0 { self.ready_since(home, queue).await } else { Ok(None) }
        }));
        let view = |((queue, figures), since): ((Queue, Figures), Option<Micros>)| QueueView {
            ready: Some(figures.ready()),
            delayed: Some(figures.delayed),
            running: Some(figures.running),
            dead: Some(figures.dead),
            oldest_ready_age: since.map(|since| Duration::from_millis(now.saturating_sub(since / 1000))),
            paused: paused.get(&queue).copied(),
            queue,
        };
        let since = since.await?;
        Ok((gathered.into_iter().zip(since).map(view).collect(), spread))
    }

    /// What is shown of a queue that is spread.
    async fn view_of_spread(&self, queue: Queue, paused: &BTreeMap<Queue, Pause>) -> Result<QueueView> {
        let parts: Vec<Partition> = self.partitions.all().collect();
        let each = self.figures_of(&queue, &parts).await?;
        let sum = |of: fn(&Figures) -> u64| Some(each.iter().map(|(_, figures)| of(figures)).sum());
        let ready = each.iter().filter(|(_, figures)| figures.ready() > 0);
        let ages = together::try_all(ready.map(async |(partition, _)| {
            let since = self.ready_since(*partition, &queue).await?;
            Outcome::Ok(since.map(|since| self.now_in(*partition).saturating_sub(since / 1000)))
        }));
        let oldest = ages.await?.into_iter().flatten().max();
        Ok(QueueView {
            ready: sum(Figures::ready),
            delayed: sum(|figures| figures.delayed),
            running: sum(|figures| figures.running),
            dead: sum(|figures| figures.dead),
            oldest_ready_age: oldest.map(Duration::from_millis),
            paused: paused.get(&queue).copied(),
            queue,
        })
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
        queues.sort_by(|a, b| a.queue.cmp(&b.queue));
        queues.dedup_by(|other, queue| {
            let is_same = other.queue == queue.queue;
            if is_same {
                add_part(queue, other);
            }
            is_same
        });
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
            let of: Vec<StoredFigures> = self.query_all(partition, &asked).await?;
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
