//! The summary of a clean shutdown: the list sizes of each queue, and the numbers of keys and idempotency keys, so
//! that the next start need not count them. It is in `meta`, written by the last commit, and valid only if the mark
//! of the directory names that commit: the name is durably removed from the mark before anything else is written.

use bytes::{BufMut, Bytes};

use super::WriterState;
use crate::clock::Micros;
use crate::engine::disk::codec::{self, Malformed};
use crate::engine::disk::store::{Fatal, Space, Store};
use crate::name::Queue;

/// Prefix of its keys in `meta`; a part's number follows.
pub const NAME: &[u8] = b"summary";
/// Queues per part.
const PART: usize = 4096;

/// Summary of one queue.
#[derive(Debug)]
pub struct OfQueue {
    pub queue: Queue,
    pub ready: u64,
    /// Number of the first ready entry.
    pub first: u64,
    pub dead: u64,
    pub dead_from: u64,
    /// Delayed and running jobs.
    pub timers: u64,
    /// When to sweep the queue, the position of the sweep, and whether jobs expire here.
    pub sweep: (Micros, u64, bool),
}

/// Sizes of the lists.
#[derive(Debug)]
pub struct Summary {
    pub queues: Vec<OfQueue>,
    pub delayed: u64,
    /// Numbers of job keys and of idempotency keys.
    pub keys: u64,
    pub once: u64,
}

fn key(part: u32) -> Vec<u8> {
    [NAME, &part.to_be_bytes()[..]].concat()
}

impl WriterState {
    /// Writes the summary into the group with this number.
    pub fn write_summary(&mut self, number: u64) {
        // An empty queue that was forgotten is left out.
        let is_known = |queue: &super::queue::QueueState| queue.listed || !queue.is_empty();
        let all: Vec<_> = self.queues.iter().filter(|(_, queue)| is_known(queue)).collect();
        let parts: Vec<Vec<u8>> = match all.chunks(PART) {
            chunks if chunks.len() == 0 => vec![self.summary_part(number, 1, &[])],
            chunks => {
                let count = chunks.len() as u64;
                chunks.map(|chunk| self.summary_part(number, count, chunk)).collect()
            }
        };
        for (n, part) in parts.iter().enumerate() {
            self.txn.put(Space::Meta, key(n as u32), part);
        }
    }

    fn summary_part(
        &self,
        number: u64,
        parts: u64,
        queues: &[(&Queue, &super::queue::QueueState)],
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(48 + queues.len() * 96);
        for head in [number, parts, self.timers.delayed(), self.keys, self.once] {
            out.put_u64(head);
        }
        for (_, q) in queues {
            let sweep = q.sweeps();
            out.put_u16(q.key.len() as u16); // two names of at most 255 bytes, and their lengths
            out.put_slice(&q.key);
            for value in [
                q.ready,
                q.ready_from(),
                q.dead,
                q.dead_from,
                q.timers,
                sweep.at,
                sweep.swept,
                sweep.expiring.into(),
            ] {
                out.put_u64(value);
            }
        }
        out
    }
}

/// Reads the summary of the group with this number, if it is complete.
pub fn read(store: &Store, number: u64) -> Result<Option<Summary>, Fatal> {
    let mut summary = Summary { queues: Vec::new(), delayed: 0, keys: 0, once: 0 };
    let mut part = 0;
    loop {
        let Some(value) = store.get(Space::Meta, &key(part))? else { return Ok(None) };
        let mut bytes = Bytes::copy_from_slice(&value);
        if u64(&mut bytes)? != number {
            return Ok(None);
        }
        let parts = u64(&mut bytes)?;
        summary.delayed = u64(&mut bytes)?;
        summary.keys = u64(&mut bytes)?;
        summary.once = u64(&mut bytes)?;
        while !bytes.is_empty() {
            let len = usize::from(u16::from_be_bytes([take(&mut bytes, 1)?[0], take(&mut bytes, 1)?[0]]));
            let queue = codec::read_queue_key(&take(&mut bytes, len)?)?;
            let mut values = [0; 8];
            for value in &mut values {
                *value = u64(&mut bytes)?;
            }
            let [ready, first, dead, dead_from, timers, at, swept, expiring] = values;
            let sweep = (at, swept, expiring > 0);
            summary.queues.push(OfQueue { queue, ready, first, dead, dead_from, timers, sweep });
        }
        part += 1;
        if u64::from(part) >= parts {
            return Ok(Some(summary));
        }
    }
}

fn take(bytes: &mut Bytes, len: usize) -> Result<Bytes, Malformed> {
    if bytes.len() < len { Err(Malformed("cut short")) } else { Ok(bytes.split_to(len)) }
}

fn u64(bytes: &mut Bytes) -> Result<u64, Malformed> {
    codec::read_number(&take(bytes, 8)?)
}
