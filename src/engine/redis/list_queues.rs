//! Lists of a namespace's queues, with their figures. lmstfy's hash of queues has no order, in which a list could go on:
//! an index beside it has one. The first list makes it. From then on our servers write a new queue's name into both; what
//! only others have written into the hash is copied when a list begins.

use redis::Value;

use super::RedisCore;
use super::layout::keys;
use super::reply::read;
use crate::engine::{Cursor, QueuePage, QueueView};
use crate::error::Result;
use crate::name::{Namespace, Queue, QueueName};

/// How many names one step of the copying is asked for.
const SCAN: usize = 500;
/// How many steps one call makes at most.
const MAX_STEPS: usize = 20;
/// What cursors of this store begin with: those among names, and those of the copying.
const NAME: &str = "r.";
const COPY: &str = "r-";

impl RedisCore {
    /// A part of the queues of a namespace, in the order of their names.
    pub async fn list_queues(
        &self,
        namespace: &Namespace,
        limit: usize,
        cursor: Option<Cursor>,
    ) -> Result<Option<QueuePage>> {
        self.know_pauses().await?;
        let mut after = None;
        match cursor.as_ref().map(|cursor| &*cursor.0) {
            None => {
                if let Some(rest) = self.copy_names(namespace, None).await? {
                    return Ok(Some(QueuePage { queues: Vec::new(), cursor: Some(rest) }));
                }
            }
            Some(cursor) => {
                if let Some(name) = cursor.strip_prefix(NAME) {
                    let Ok(name) = QueueName::parse_for_consume(name) else { return Ok(None) };
                    after = Some(name);
                } else if let Some(scan) = cursor.strip_prefix(COPY) {
                    let Ok(scan) = scan.parse::<u64>() else { return Ok(None) };
                    if let Some(rest) = self.copy_names(namespace, Some(scan)).await? {
                        return Ok(Some(QueuePage { queues: Vec::new(), cursor: Some(rest) }));
                    }
                } else {
                    return Ok(None);
                }
            }
        }
        self.page_of_queues(namespace, limit, after).await.map(Some)
    }

    /// Copies names from the hash into the index, if some are missing there. Answers where to go on when a call must
    /// not do all of it.
    async fn copy_names(&self, namespace: &Namespace, from: Option<u64>) -> Result<Option<Cursor>> {
        let (hash, index) = (keys::queues_of(namespace), keys::index_of(namespace));
        let mut scan = from.unwrap_or(0);
        if from.is_none() {
            let mut sizes = redis::pipe();
            sizes.cmd("HLEN").arg(&hash).cmd("ZCARD").arg(&index);
            let (named, indexed): (u64, u64) = self.shared.query_all(&sizes).await?;
            if indexed >= named {
                return Ok(None);
            }
        }
        for _ in 0..MAX_STEPS {
            let (next, fields) = self.shared.scan_step(&hash, scan, SCAN).await?;
            if !fields.is_empty() {
                let mut add = redis::cmd("ZADD");
                add.arg(&index);
                for (name, _) in &fields {
                    add.arg(0).arg(name);
                }
                let _: u64 = self.shared.query(&add).await?;
            }
            scan = next;
            if scan == 0 {
                return Ok(None);
            }
        }
        Ok(Some(Cursor(format!("{COPY}{scan}"))))
    }

    async fn page_of_queues(
        &self,
        namespace: &Namespace,
        limit: usize,
        after: Option<QueueName>,
    ) -> Result<QueuePage> {
        let index = keys::index_of(namespace);
        let after = after.as_ref().map(QueueName::as_str);
        let mut cmd = redis::cmd("ZRANGEBYLEX");
        cmd.arg(&index).arg(after.map_or_else(|| "-".to_owned(), |after| format!("({after}"))).arg("+");
        cmd.arg("LIMIT").arg(0).arg(limit + 1);
        let names: Vec<Vec<u8>> = self.shared.query(&cmd).await?;
        let indexed = names.len();
        let mut queues: Vec<Queue> = names
            .iter()
            .filter_map(|name| QueueName::parse_for_consume(std::str::from_utf8(name).ok()?).ok())
            .map(|name| Queue { namespace: namespace.clone(), name })
            .collect();
        // Behind the last name of the index's page others may come, which are not known yet.
        let to = (indexed > limit).then(|| queues.last().cloned()).flatten();
        let paused = self.pauses.in_namespace(namespace, after);
        queues.extend(paused.into_iter().filter(|queue| to.as_ref().is_none_or(|to| queue <= to)));
        queues.sort_unstable();
        queues.dedup();
        let more = indexed > limit || queues.len() > limit;
        queues.truncate(limit);
        let mut figures = redis::pipe();
        for queue in &queues {
            figures.cmd("LLEN").arg(keys::ready(queue)).cmd("LLEN").arg(keys::dead(queue));
            figures.cmd("HEXISTS").arg(keys::queues_of(namespace)).arg(queue.name.as_str());
        }
        let figures: Vec<Value> =
            if queues.is_empty() { Vec::new() } else { self.shared.query_all(&figures).await? };
        let cursor = more.then(|| queues.last()).flatten();
        let cursor = cursor.map(|queue| Cursor(format!("{NAME}{}", queue.name)));
        let now = self.clock.now();
        let mut page = QueuePage { queues: Vec::with_capacity(queues.len()), cursor };
        let mut gone = Vec::new();
        for (queue, figures) in queues.into_iter().zip(figures.chunks_exact(3)) {
            let paused = self.pauses.of(&queue, now);
            if !read::<bool>(&figures[2])? && paused.is_none() {
                gone.push(queue.name);
                continue;
            }
            page.queues.push(QueueView {
                ready: Some(read(&figures[0])?),
                delayed: None,
                running: None,
                dead: Some(read(&figures[1])?),
                oldest_ready_age: None,
                paused,
                queue,
            });
        }
        // Somebody has taken them out of the hash.
        if !gone.is_empty() {
            let mut forget = redis::cmd("ZREM");
            forget.arg(&index);
            for name in &gone {
                forget.arg(name.as_str());
            }
            let _: u64 = self.shared.query(&forget).await?;
        }
        Ok(page)
    }
}
