//! Looking without changing anything: peeks, sizes, names, figures, health.

use std::time::Duration;

use bytes::Bytes;
use redis::{FromRedisValue, InfoDict, Value};

use super::Shared;
use super::connection::fault::Fault;
use super::layout::{keys, value};
use crate::engine::{DeadLetter, QueueSize, Stats};
use crate::error::{Error, Result};
use crate::job::{Job, JobRef};
use crate::name::{Namespace, Queue, QueueName};

/// How many queues' lists are measured in one round trip.
const CHUNK: usize = 256;
/// How many names one step of a scan is asked for.
const SCAN: usize = 500;
/// How long a check of a server that answers waits for connections that are down: longer than the pause before
/// their next attempt, which the check shortens, and shorter than those who ask for health have patience.
const RALLY: Duration = Duration::from_millis(500);
/// RPOP and LPOP take a count since this version.
const OLDEST: (u32, u32) = (6, 2);

impl Shared {
    /// The first words with the server: is it one that we can use, and what time is it.
    pub async fn greet(&self) -> Result<()> {
        let sent = self.clock.mark();
        let (seconds, micros): (u64, u64) = self.links.ask(&redis::cmd("TIME")).await?;
        self.clock.learn(sent, seconds * 1_000_000 + micros);
        // Where INFO is forbidden the version cannot be told, and is not worth a refusal.
        let Ok(info) = self.links.ask::<InfoDict>(redis::cmd("INFO").arg("server")).await else {
            return Ok(());
        };
        let Some(version) = info.get::<String>("redis_version") else { return Ok(()) };
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < OLDEST {
            let (major, minor) = OLDEST;
            return Err(Error::refused(format!(
                "Redis {major}.{minor} or later is needed, this is {version}"
            )));
        }
        Ok(())
    }

    /// The head that consume would hand out.
    pub async fn peek(&self, queue: &Queue) -> Result<Option<Job>> {
        let script = &self.scripts.peek;
        let mut skip = 0_i64;
        loop {
            let mut cmd = script.call(1);
            cmd.arg(keys::ready(queue)).arg(keys::job_prefix(queue)).arg(skip);
            let mut reply: Vec<Value> = self.links.run(script, &cmd).await?;
            if reply.len() == 6 {
                let (now, _, id, tries, ttl, stored): (u64, i64, Vec<u8>, u16, i64, Bytes) =
                    FromRedisValue::from_redis_value(Value::Array(reply)).map_err(Fault::from)?;
                let id = keys::job_id(&id)
                    .ok_or_else(|| Error::Corrupt(format!("an id in {queue} that no server has made")))?;
                let job = value::job(queue, id, stored, ttl, now)?;
                return Ok(Some(Job { tries_left: tries, ..job }));
            }
            skip = match reply.pop().map(i64::from_redis_value) {
                Some(Ok(skip)) => skip,
                _ => return Err(Fault::unreadable("peek").into()),
            };
            if skip < 0 {
                return Ok(None);
            }
        }
    }

    /// A job by its id.
    pub async fn peek_job(&self, job: &JobRef) -> Result<Option<Job>> {
        let key = keys::job(&job.queue, &job.id);
        let mut both = redis::pipe();
        both.cmd("GET").arg(&key).cmd("PTTL").arg(&key);
        let (stored, ttl): (Option<Bytes>, i64) = self.links.ask_all(&both).await?;
        // Its ttl may end between the two.
        let (Some(stored), -1..) = (stored, ttl) else { return Ok(None) };
        value::job(&job.queue, job.id, stored, ttl, self.clock.now_micros()).map(Some)
    }

    /// How many elements the ready list has.
    pub async fn size(&self, queue: &Queue) -> Result<u64> {
        Ok(self.links.ask(redis::cmd("LLEN").arg(keys::ready(queue))).await?)
    }

    /// The dead letter's size and oldest id.
    pub async fn dead_letter(&self, queue: &Queue) -> Result<DeadLetter> {
        let key = keys::dead(queue);
        let mut both = redis::pipe();
        both.cmd("LLEN").arg(&key).cmd("LINDEX").arg(&key).arg(-1);
        let (size, head): (u64, Option<Vec<u8>>) = self.links.ask_all(&both).await?;
        Ok(DeadLetter { size, head: head.and_then(|element| keys::id_of_element(&element)) })
    }

    /// Every known queue. Names that are none, which another program left, are passed over.
    pub async fn queues(&self) -> Result<Vec<Queue>> {
        let mut queues = Vec::new();
        for namespace in self.fields(keys::NAMESPACES).await? {
            let Ok(namespace) = Namespace::parse(&namespace) else { continue };
            for name in self.fields(&keys::queues_of(&namespace)).await? {
                if let Ok(name) = QueueName::parse_for_consume(&name) {
                    queues.push(Queue { namespace: namespace.clone(), name });
                }
            }
        }
        queues.sort_unstable();
        // A scan may tell a name twice.
        queues.dedup();
        Ok(queues)
    }

    /// The fields of a hash, read in steps.
    async fn fields(&self, key: &str) -> Result<Vec<String>> {
        let (mut cursor, mut fields) = ("0".to_owned(), Vec::new());
        loop {
            let mut cmd = redis::cmd("HSCAN");
            cmd.arg(key).arg(&cursor).arg("COUNT").arg(SCAN);
            let (next, step): (String, Vec<Vec<u8>>) = self.links.ask(&cmd).await?;
            fields.extend(step.chunks(2).filter_map(|pair| String::from_utf8(pair.first()?.clone()).ok()));
            cursor = next;
            if cursor == "0" {
                return Ok(fields);
            }
        }
    }

    /// Sizes of everything, and the server's own figures.
    pub async fn stats(&self) -> Result<Stats> {
        let queues = self.queues().await?;
        let timers = self.links.ask(redis::cmd("ZCARD").arg(keys::TIMER_SET)).await?;
        let mut sizes = Vec::with_capacity(queues.len());
        for chunk in queues.chunks(CHUNK) {
            let mut lens = redis::pipe();
            for queue in chunk {
                lens.cmd("LLEN").arg(keys::ready(queue)).cmd("LLEN").arg(keys::dead(queue));
            }
            let lens: Vec<u64> = self.links.ask_all(&lens).await?;
            sizes.extend(chunk.iter().zip(lens.chunks_exact(2)).map(|(queue, len)| QueueSize {
                queue: queue.clone(),
                ready: len[0],
                dead: len[1],
            }));
        }
        Ok(Stats { timers, queues: sizes, gauges: self.gauges().await })
    }

    /// The server's figures; none where INFO is forbidden, which is no reason to hide the rest.
    async fn gauges(&self) -> Vec<(&'static str, f64)> {
        let Ok(info) = self.links.ask::<String>(&redis::cmd("INFO")).await else { return Vec::new() };
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

    /// Whether the server would take a job: a write of nothing, which it refuses as it would refuse a job
    /// (out of memory, read-only, cannot save) and which leaves nothing behind. And whether requests would
    /// reach it: they go other ways than this write, and those may be down still when the Redis is back.
    pub async fn check(&self) -> Result<()> {
        let _: u64 = self.links.ask(redis::cmd("SETRANGE").arg(keys::CHECK).arg(0).arg("")).await?;
        self.outage.hope();
        self.outage.over(RALLY).await
    }
}
