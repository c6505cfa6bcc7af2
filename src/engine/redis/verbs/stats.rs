//! Sizes, names of queues, and gauges. Changes nothing.

use std::time::Duration;

use redis::{FromRedisValue, Pipeline, RedisResult, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::redis::cluster::ask;
use crate::engine::redis::connection::fault::Outcome;
use crate::engine::redis::core::PartitionCore;
use crate::engine::redis::layout::keys;
use crate::engine::redis::link::{Lane, Link};
use crate::engine::{Estimated, QueueSize, Size, SizeOf, Stats};
use crate::error::Result;
use crate::name::{Namespace, Queue, QueueName};

/// Number of queues whose lists are measured in one round trip.
const CHUNK: usize = 256;

/// Converts the reply to a command on a list. A key of another type, left by another program, counts as an empty list:
/// it must not hide the other queues.
fn of_a_list<T: Default>(answer: RedisResult<T>) -> Outcome<T> {
    match answer {
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(T::default()),
        answer => Ok(answer?),
    }
}

/// Returns when the first timer is due, in microseconds. lmstfy truncates the fraction of its scores, so its timers are
/// due a second later.
fn first_due(first: &[Value]) -> Option<u64> {
    // RESP3 returns pairs, RESP2 a flat list.
    let score = match first {
        [Value::Array(pair)] => pair.get(1)?,
        [_, score] => score,
        _ => return None,
    };
    let score = f64::from_redis_value(score.clone()).ok()?;
    let late = if score.fract() == 0.0 { 1.0 } else { 0.0 };
    Some(((score + late) * 1e6) as u64)
}

impl PartitionCore {
    /// Returns the length of the ready list; or that of the dead letter and the id of its oldest job.
    pub async fn size(&self, queue: &Queue, of: SizeOf) -> Result<Size> {
        if of == SizeOf::Ready {
            let jobs = self.query(redis::cmd("LLEN").arg(self.keys.ready(queue))).await?;
            return Ok(Size { jobs, head: None });
        }
        self.trim_dead(std::slice::from_ref(queue)).await?;
        let key = self.keys.dead(queue);
        let mut both = redis::pipe();
        both.cmd("LLEN").arg(&key).cmd("LINDEX").arg(&key).arg(-1);
        let (jobs, head): (u64, Option<Vec<u8>>) = self.query_all(&both).await?;
        Ok(Size { jobs, head: head.and_then(|element| keys::id_of_element(&element)) })
    }

    /// Returns every known queue. Invalid names, left by another program, are skipped.
    pub async fn queues(&self) -> Result<Vec<Queue>> {
        let mut queues = Vec::new();
        for namespace in self.fields(&self.keys.namespaces).await? {
            let Ok(namespace) = Namespace::parse(&namespace) else { continue };
            for name in self.fields(&self.keys.queues_of(&namespace)).await? {
                if let Ok(name) = QueueName::parse_for_consume(&name) {
                    queues.push(Queue { namespace: namespace.clone(), name });
                }
            }
        }
        queues.sort_unstable();
        // A scan may return a name twice.
        queues.dedup();
        Ok(queues)
    }

    /// Returns the field names of a hash.
    async fn fields(&self, key: &str) -> Result<Vec<String>> {
        let mut fields = Vec::new();
        self.scan(Lane::Other, key, |field, _| fields.extend(String::from_utf8(field))).await?;
        Ok(fields)
    }

    /// Returns the sizes of all queues and of the timer set.
    pub async fn stats(&self) -> Result<Stats> {
        let queues = self.queues().await?;
        let mut of_timers = redis::pipe();
        of_timers.cmd("ZCARD").arg(&self.keys.timer_set);
        of_timers.cmd("ZRANGE").arg(&self.keys.timer_set).arg(0).arg(0).arg("WITHSCORES");
        of_timers.cmd("ZRANGE").arg(&self.keys.buckets).arg(0).arg(0).arg("WITHSCORES");
        let (timers, first, first_packed): (u64, Vec<Value>, Vec<Value>) = self.query_all(&of_timers).await?;
        let mut packed = 0;
        self.each_bucket(|_, jobs| packed += jobs).await?;
        let mut sizes = Vec::with_capacity(queues.len());
        for chunk in queues.chunks(CHUNK) {
            self.trim_dead(chunk).await?;
            let (mut lens, mut heads) = (redis::pipe(), redis::pipe());
            for queue in chunk {
                lens.cmd("LLEN").arg(self.keys.ready(queue)).cmd("LLEN").arg(self.keys.dead(queue));
                heads.cmd("LINDEX").arg(self.keys.ready(queue)).arg(-1);
            }
            let (lens, heads) = (self.sizes(&lens).await?, self.sizes::<Option<Vec<u8>>>(&heads).await?);
            let (timers, estimated) = self.timers_of(chunk).await?;
            let estimated = Estimated { timers: estimated, age: true };
            let now = self.now();
            let age = |element: &Option<Vec<u8>>| {
                let id = keys::id_of_element(element.as_ref()?)?;
                Some(Duration::from_millis(now.saturating_sub(id.first_due())))
            };
            let of = chunk.iter().zip(lens.chunks_exact(2)).zip(heads).zip(timers);
            sizes.extend(of.map(|(((queue, len), head), [delayed, running])| QueueSize {
                queue: queue.clone(),
                ready: len[0],
                dead: len[1],
                delayed: Some(delayed),
                running: Some(running),
                oldest_ready: age(&head),
                estimated,
                head: head.as_deref().map(xxh3_64),
            }));
        }
        let due = first_due(&first).into_iter().chain(first_due(&first_packed)).min();
        let overdue = due.and_then(|due| self.now_micros().checked_sub(due));
        let overdue = overdue.filter(|late| *late > 0).map(Duration::from_micros);
        Ok(Stats { timers: timers + packed, overdue, queues: sizes, gauges: Vec::new() })
    }

    /// Runs commands on lists. A key of another type counts as an empty list.
    pub async fn sizes<T: FromRedisValue + Default>(&self, asked: &Pipeline) -> Outcome<Vec<T>> {
        let mut asked = asked.clone();
        asked.ignore_errors();
        ask!(self.attempts(Lane::Other), |link| link.shared.with(async |conn| {
            let answers: Vec<RedisResult<T>> = asked.query_async(conn).await?;
            answers.into_iter().map(of_a_list).collect()
        }))
    }
}

impl Link {
    /// Returns the server's gauges; none if INFO is forbidden, which must not hide the other statistics.
    pub async fn gauges(&self) -> Vec<(&'static str, f64)> {
        let info = self.shared.query::<String>(&redis::cmd("INFO")).await;
        info.map(|info| gauges_of(&info)).unwrap_or_default()
    }
}

/// Returns the gauges in a reply of INFO.
pub fn gauges_of(info: &str) -> Vec<(&'static str, f64)> {
    let mut gauges = Vec::new();
    let (mut keys, mut with_ttl) = (0.0, 0.0);
    for (field, value) in info.lines().filter_map(|line| line.split_once(':')) {
        let gauge = match field {
            "maxmemory" => "max_mem_bytes",
            "used_memory" => "used_mem_bytes",
            "connected_clients" => "connections",
            "blocked_clients" => "blocking_connections",
            _ => {
                // db0:keys=1,expires=0,avg_ttl=0
                if field.strip_prefix("db").is_some_and(|n| n.parse::<u32>().is_ok()) {
                    for (name, n) in value.split(',').filter_map(|part| part.split_once('=')) {
                        let n: f64 = n.trim().parse().unwrap_or(0.0);
                        match name {
                            "keys" => keys += n,
                            "expires" => with_ttl += n,
                            _ => (),
                        }
                    }
                }
                continue;
            }
        };
        if let Ok(value) = value.trim().parse() {
            gauges.push((gauge, value));
        }
    }
    gauges.extend([("total_keys", keys), ("total_ttl_keys", with_ttl)]);
    gauges
}
