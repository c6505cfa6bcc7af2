//! The record of a job, and its checksum. Independent of keyspaces.

use bytes::{BufMut, Bytes};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::parts::{Malformed, Reader, Result, TimerKey, put_short};
use crate::clock::Micros;
use crate::job::{Attributes, Reason};
use crate::name::JobKey;

/// Where a job was when its record was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the ready list at this number; it may have moved since.
    Ready(u64),
    /// Delayed until this timer; it may have moved since.
    Delayed(TimerKey),
    /// In the dead letter list at this number. Always accurate, since leaving the list rewrites the record.
    Dead(u64),
}

/// A stored job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub location: Location,
    pub generation: u64,
    /// End of its ttl; `None` if it has none.
    pub expires: Option<Micros>,
    pub attributes: Attributes,
    /// The key that the job holds now.
    pub key: Option<JobKey>,
    pub reason: Option<Reason>,
    pub body: Bytes,
}

impl Record {
    /// Returns whether its ttl has ended.
    pub fn expired(&self, now: Micros) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }
}

/// Flag in the first byte of a record: a key and a reason precede the body.
const EXTRAS: u8 = 0x80;

/// Returns the value of `jobs`. The leading checksum covers key and value, so a record under another key or with any
/// byte changed is rejected.
pub fn record(key: &[u8], record: &Record) -> Vec<u8> {
    let attributes: usize = record.attributes.iter().map(|(k, v)| 8 + k.len() + v.len()).sum();
    let has_extras = record.key.is_some() || record.reason.is_some();
    let (key_text, reason) =
        (record.key.as_ref().map_or("", JobKey::as_str), record.reason.as_ref().map_or("", Reason::as_str));
    let extras = if has_extras { 3 + key_text.len() + reason.len() } else { 0 };
    let mut out = Vec::with_capacity(8 + 17 + 16 + 4 + attributes + extras + record.body.len());
    out.put_u64(0);
    let (tag, due, seq) = match record.location {
        Location::Ready(seq) => (0, 0, seq),
        Location::Delayed((due, seq)) => (1, due, seq),
        Location::Dead(seq) => (2, 0, seq),
    };
    out.put_u8(if has_extras { tag | EXTRAS } else { tag });
    out.put_u64(due);
    out.put_u64(seq);
    out.put_u64(record.generation);
    // 0 is "never". A ttl that ends at the epoch is stored as 1 µs, which has passed as well.
    out.put_u64(record.expires.map_or(0, |at| at.max(1)));
    out.put_u32(record.attributes.len() as u32);
    for (k, v) in &record.attributes {
        for s in [k, v] {
            out.put_u32(s.len() as u32);
            out.put_slice(s.as_bytes());
        }
    }
    if has_extras {
        put_short(&mut out, key_text);
        // At most `Reason::MOST`, which fits.
        out.put_u16(reason.len() as u16);
        out.put_slice(reason.as_bytes());
    }
    out.put_slice(&record.body);
    let sum = checksum(key, &out[8..]);
    out[..8].copy_from_slice(&sum.to_be_bytes());
    out
}

fn checksum(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64(key))
}

/// Reads [`record`]. The body is copied, so that it does not keep a database block in memory.
pub fn read_record(key: &[u8], value: &[u8]) -> Result<Record> {
    let mut r = Reader(value);
    if r.u64()? != checksum(key, r.0) {
        return Err(Malformed("the checksum does not match"));
    }
    let (tag, due, seq) = (r.u8()?, r.u64()?, r.u64()?);
    let location = match tag & !EXTRAS {
        0 => Location::Ready(seq),
        1 => Location::Delayed((due, seq)),
        2 => Location::Dead(seq),
        _ => return Err(Malformed("no such location")),
    };
    let generation = r.u64()?;
    let expires = Some(r.u64()?).filter(|at| *at > 0);
    let count = r.u32()?;
    let mut attributes = Attributes::new();
    for _ in 0..count {
        let (k, v) = (r.long()?, r.long()?);
        attributes.insert(k, v);
    }
    let (mut key, mut reason) = (None, None);
    if tag & EXTRAS != 0 {
        key = JobKey::parse(r.short()?);
        let len = r.u16()?;
        let text = std::str::from_utf8(r.take(len.into())?).map_err(|_| Malformed("not UTF-8"))?;
        reason = Reason::new(text);
    }
    Ok(Record { location, generation, expires, attributes, key, reason, body: Bytes::copy_from_slice(r.0) })
}
