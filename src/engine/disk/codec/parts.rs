//! Building blocks of keys and values: numbers, names, ids, entries. Independent of keyspaces.

use std::fmt;

use bytes::BufMut;

use crate::clock::Micros;
use crate::engine::{How, Placed};
use crate::job::JobId;
use crate::name::{Namespace, Queue, QueueName};

/// Bytes that do not conform to the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Order of timers: due time, then the number assigned when the timer was set, so that jobs due at the same time keep
/// their publish order.
pub type TimerKey = (Micros, u64);

pub type Result<T> = std::result::Result<T, Malformed>;

/// A job in a list or timer. The entry is valid only while the stored record has the same `generation`: an id may be
/// acked and published again, and the old entry must not deliver the new job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: JobId,
    /// Deliveries left.
    pub tries: u16,
    /// Sequence number taken by the publish; never reused.
    pub generation: u64,
    /// Whether the job may have a key. Without this flag, an ack of a running job would have to read its record.
    pub keyed: bool,
}

/// Reads from the front of a slice.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Malformed("cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed("cut short"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub fn short(&mut self) -> Result<&'a str> {
        let len = self.u8()?;
        std::str::from_utf8(self.take(usize::from(len))?).map_err(|_| Malformed("not UTF-8"))
    }

    pub fn long(&mut self) -> Result<String> {
        let len = self.u32()?;
        let bytes = self.take(len as usize)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("not UTF-8"))
    }

    pub fn id(&mut self) -> Result<JobId> {
        match self.flagged_id()? {
            (id, false) => Ok(id),
            _ => Err(Malformed("no such id version")),
        }
    }

    /// Reads an id and the flag [`KEYED`].
    pub fn flagged_id(&mut self) -> Result<(JobId, bool)> {
        let flags = self.u8()?;
        if flags & !(VERSIONED | KEYED) != 0 {
            return Err(Malformed("no such id version"));
        }
        Ok((JobId::from_bytes(self.array()?, flags & VERSIONED != 0), flags & KEYED != 0))
    }

    pub fn queue(&mut self) -> Result<Queue> {
        let namespace = Namespace::parse(self.short()?).map_err(|_| Malformed("bad namespace"))?;
        let name = QueueName::parse_for_consume(self.short()?).map_err(|_| Malformed("bad queue name"))?;
        Ok(Queue { namespace, name })
    }

    pub fn entry(&mut self) -> Result<Entry> {
        let (id, keyed) = self.flagged_id()?;
        Ok(Entry { id, tries: self.u16()?, generation: self.u64()?, keyed })
    }

    /// Reads [`put_placed`].
    pub fn placed(&mut self) -> Result<Placed> {
        let (id, due_at) = (self.id()?, Some(self.u64()?).filter(|at| *at > 0));
        let how = match self.u8()? {
            0 => How::New,
            1 => How::Duplicate,
            2 => How::Replaced(self.id()?),
            _ => return Err(Malformed("no such outcome")),
        };
        Ok(Placed { id, due_at, how })
    }

    pub fn end(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("too long")) }
    }
}

/// Writes a name after its length, which fits one byte: names have at most 255 bytes (see `name.rs`).
pub fn put_short(out: &mut Vec<u8>, s: &str) {
    out.put_u8(s.len() as u8);
    out.put_slice(s.as_bytes());
}

/// Flag in the first byte of an id: it is versioned.
const VERSIONED: u8 = 1;
/// Flag in the first byte of an entry: its job may have a key.
const KEYED: u8 = 2;

pub fn put_id(out: &mut Vec<u8>, id: JobId) {
    put_flagged_id(out, id, false);
}

pub fn put_flagged_id(out: &mut Vec<u8>, id: JobId, keyed: bool) {
    out.put_u8(if id.is_versioned() { VERSIONED } else { 0 } | if keyed { KEYED } else { 0 });
    out.put_slice(&id.to_bytes());
}

pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_flagged_id(out, entry.id, entry.keyed);
    out.put_u16(entry.tries);
    out.put_u64(entry.generation);
}

/// Writes the outcome of a publish.
pub fn put_placed(out: &mut Vec<u8>, placed: &Placed) {
    put_id(out, placed.id);
    // 0 is "unknown": no job was due in 1970.
    out.put_u64(placed.due_at.unwrap_or(0));
    match placed.how {
        How::New => out.put_u8(0),
        How::Duplicate => out.put_u8(1),
        How::Replaced(old) => {
            out.put_u8(2);
            put_id(out, old);
        }
    }
}
