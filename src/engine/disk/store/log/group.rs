//! Byte format of groups and of log file headers (docs/disk-format.md has a drawing). Pure functions over bytes.
//!
//! A group is the unit of a commit: `len:4 number:8 synced:8 previous:8 items check:8`. `len` is the length of the
//! items, `previous` the `check` of the preceding group, and `check` the XXH3 of everything before it, seeded with the
//! pool's number. So a group of another pool is invalid, and a missing group is noticed. An item is `keyspace:1
//! keylen:2 vallen:4 key value`; a deletion has no value and [`DELETED`] as `vallen`. Zeros pad a group to a multiple
//! of [`ALIGN`] bytes, which limits the positions a search must check.
//!
//! `number` is stored XOR the pool's number, which producers do not know. Otherwise a job body could be crafted full of
//! apparent group headers, and a search would read the rest of the file for each of them.

use std::ops::RangeInclusive;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::engine::disk::store::space::Space;

/// Bytes before the items.
pub const HEAD: usize = 28;
/// Bytes after the items.
pub const CHECK: usize = 8;
/// Groups start at multiples of this offset in their file.
const ALIGN: usize = 8;
/// Bytes of an item besides its key and value.
pub const ITEM: usize = 7;
/// Value length that marks a deletion.
const DELETED: u32 = u32::MAX;

/// Header fields of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Groups are numbered without gaps.
    pub number: u64,
    /// Number of the last group that was synced when this group was written.
    pub synced: u64,
    /// The `check` of the preceding group.
    pub previous: u64,
    pub check: u64,
}

/// A group being built: the items so far, behind space for the header.
#[derive(Debug)]
pub struct Draft(Vec<u8>);

/// Capacity that a draft keeps.
const KEPT: usize = 1 << 20;

impl Default for Draft {
    fn default() -> Draft {
        Draft(vec![0; HEAD])
    }
}

impl Draft {
    /// Appends an item. `None` deletes the key.
    pub fn add(&mut self, space: Space, key: &[u8], value: Option<&[u8]>) {
        self.0.push(space as u8);
        self.0.extend((key.len() as u16).to_be_bytes());
        self.0.extend(value.map_or(DELETED, |value| value.len() as u32).to_be_bytes());
        self.0.extend(key);
        self.0.extend(value.unwrap_or_default());
    }

    /// Completes the group. Returns its bytes and `check`.
    pub fn seal(&mut self, pool: u64, number: u64, synced: u64, previous: u64) -> (&[u8], u64) {
        let len = (self.0.len() - HEAD) as u32;
        self.0[..4].copy_from_slice(&len.to_be_bytes());
        self.0[4..12].copy_from_slice(&(number ^ pool).to_be_bytes());
        self.0[12..20].copy_from_slice(&synced.to_be_bytes());
        self.0[20..HEAD].copy_from_slice(&previous.to_be_bytes());
        let check = xxh3_64_with_seed(&self.0, pool);
        self.0.extend(check.to_be_bytes());
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        (&self.0, check)
    }

    /// Starts a new group.
    pub fn clear(&mut self) {
        self.0.truncate(HEAD);
        self.0.shrink_to(KEPT);
    }
}

/// Reads 8 bytes at `at`.
fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the end of the items of a group at `at`, if its length fits the file.
fn items_end(bytes: &[u8], at: usize) -> Option<usize> {
    let len = u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
    let end = at.checked_add(HEAD + len)?;
    (end + CHECK <= bytes.len()).then_some(end)
}

/// Reads the number in a group header.
fn number(bytes: &[u8], at: usize, pool: u64) -> Option<u64> {
    u64_at(bytes, at + 4).map(|number| number ^ pool)
}

/// Reads the group at `at`. Also returns where the next group may start.
pub fn read(bytes: &[u8], at: usize, pool: u64) -> Option<(Group, usize)> {
    let items = items_end(bytes, at)?;
    let (number, check) = (number(bytes, at, pool)?, u64_at(bytes, items)?);
    let group = Group { number, synced: u64_at(bytes, at + 12)?, previous: u64_at(bytes, at + 20)?, check };
    (xxh3_64_with_seed(&bytes[at..items], pool) == check)
        .then_some((group, (items + CHECK).next_multiple_of(ALIGN)))
}

/// Returns the positions, from `from` on, of headers with one of these numbers, and the end of each group's items.
fn heads(
    bytes: &[u8],
    from: usize,
    pool: u64,
    numbers: RangeInclusive<u64>,
) -> impl Iterator<Item = (usize, usize)> {
    let last = bytes.len().saturating_sub(HEAD + CHECK - 1);
    let head = move |at| {
        let is_wanted = numbers.contains(&number(bytes, at, pool)?);
        Some((at, items_end(bytes, at).filter(|_| is_wanted)?))
    };
    (from.next_multiple_of(ALIGN)..last).step_by(ALIGN).filter_map(head)
}

/// Searches for a valid group with one of these numbers, from `from` on. `bytes` is a whole file.
pub fn find(
    bytes: &[u8],
    from: usize,
    pool: u64,
    numbers: RangeInclusive<u64>,
) -> Option<(usize, Group, usize)> {
    heads(bytes, from, pool, numbers)
        .find_map(|(at, _)| read(bytes, at, pool).map(|(group, end)| (at, group, end)))
}

/// An item; `None` deletes the key.
pub type Item<'a> = (Space, &'a [u8], Option<&'a [u8]>);

/// Returns the items of the valid group in `bytes`; `None` for an item that cannot be parsed.
pub fn items(group: &[u8]) -> impl Iterator<Item = Option<Item<'_>>> {
    let end = items_end(group, 0).unwrap_or(0);
    let mut rest = group.get(HEAD..end).unwrap_or_default();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let item = take_item(&mut rest);
        if item.is_none() {
            rest = &[];
        }
        Some(item)
    })
}

fn take_item<'a>(rest: &mut &'a [u8]) -> Option<Item<'a>> {
    let (fixed, behind) = rest.split_at_checked(ITEM)?;
    let space = Space::ALL.get(usize::from(fixed[0]))?.0;
    let key_len = usize::from(u16::from_be_bytes(fixed[1..3].try_into().ok()?));
    let value_len = u32::from_be_bytes(fixed[3..ITEM].try_into().ok()?);
    let (key, behind) = behind.split_at_checked(key_len)?;
    let (value, behind) = match value_len {
        DELETED => (None, behind),
        len => {
            let (value, behind) = behind.split_at_checked(len as usize)?;
            (Some(value), behind)
        }
    };
    *rest = behind;
    Some((space, key, value))
}

/// Header of a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHead {
    /// Random number that identifies the pool.
    pub pool: u64,
    /// Turn of the file: each reuse of a file gets the next number.
    pub turn: u64,
    /// Number of its first group.
    pub first: u64,
}

/// `magic:8 pool:8 turn:8 first:8 check:8`.
pub const FILE_HEAD: usize = 40;
const MAGIC: &[u8; 8] = b"dormlog1";

impl FileHead {
    pub fn to_bytes(self) -> [u8; FILE_HEAD] {
        let mut bytes = [0; FILE_HEAD];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.pool.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.turn.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.first.to_be_bytes());
        let check = xxh3_64_with_seed(&bytes[..32], self.pool);
        bytes[32..].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    pub fn read(bytes: &[u8]) -> Option<FileHead> {
        let head = FileHead { pool: u64_at(bytes, 8)?, turn: u64_at(bytes, 16)?, first: u64_at(bytes, 24)? };
        (bytes.get(..FILE_HEAD)? == head.to_bytes()).then_some(head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POOL: u64 = 7;

    /// A change of these bytes changes the format of existing directories.
    #[test]
    fn a_group_and_the_head_of_a_file_have_these_bytes() {
        let mut draft = Draft::default();
        draft.add(Space::Ready, b"key", Some(b"value"));
        draft.add(Space::Jobs, b"gone", None);
        let (bytes, check) = draft.seal(POOL, 2, 1, 0x0102);
        let expected = [
            &[0, 0, 0, 26][..],
            &[0, 0, 0, 0, 0, 0, 0, 2 ^ 7],
            &[0, 0, 0, 0, 0, 0, 0, 1],
            &[0, 0, 0, 0, 0, 0, 1, 2],
            &[4, 0, 3, 0, 0, 0, 5],
            b"keyvalue",
            &[1, 0, 4, 255, 255, 255, 255],
            b"gone",
            &check.to_be_bytes(),
            &[0; 2],
        ];
        assert_eq!(bytes, expected.concat(), "a group");
        assert_eq!(check, 1_162_117_779_541_903_636, "its check");
        let head = FileHead { pool: POOL, turn: 3, first: 2 }.to_bytes();
        let (text, check) = head.split_at(32);
        let expected = [
            &b"dormlog1"[..],
            &[0, 0, 0, 0, 0, 0, 0, 7],
            &[0, 0, 0, 0, 0, 0, 0, 3],
            &[0, 0, 0, 0, 0, 0, 0, 2],
        ];
        assert_eq!(text, expected.concat(), "the head of a file");
        assert_eq!(check, [60, 232, 68, 200, 4, 108, 142, 251], "its check");
    }

    /// Guards against a published body that slows down opening: full of apparent headers with plausible numbers and
    /// large lengths, so that a search would read each as a group.
    #[test]
    fn what_was_published_is_not_read_as_groups() {
        const SECRET: u64 = 0x9e37_79b9_7f4a_7c15;
        const NEXT: u32 = 100_000;
        let (mut torn, mut whole) = (Draft::default(), Draft::default());
        // Every eight bytes are the length of one apparent group and the number of the previous one. With this key they
        // are aligned like groups.
        let body: Vec<u8> = (0..1 << 17).flat_map(|_| [NEXT.to_be_bytes(), [0; 4]]).flatten().collect();
        torn.add(Space::Jobs, b"a key", Some(&body));
        let (torn, check) = torn.seal(SECRET, NEXT.into(), 1, 2);
        let (whole, check) = whole.seal(SECRET, u64::from(NEXT) + 1, 1, check);
        let (bytes, numbers) = ([torn, whole].concat(), 1..=2 * u64::from(NEXT));
        let read = |pool: u64| -> usize {
            heads(&bytes, ALIGN, pool, numbers.clone()).map(|(at, end)| end - at).sum()
        };
        assert_eq!(read(SECRET), HEAD, "bytes read as groups: only the empty group");
        assert!(
            read(0) > 1 << 30,
            "{} bytes of a megabyte would be, if numbers were stored unscrambled",
            read(0)
        );
        let found = find(&bytes, ALIGN, SECRET, numbers.clone()).map(|(at, group, _)| (at, group.check));
        assert_eq!(found, Some((torn.len(), check)), "the group behind the body");
    }

    type Owned = (usize, Vec<u8>, Option<Vec<u8>>);

    fn items_of(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Owned>> {
        let value = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..99));
        let item = (0..Space::ALL.len(), proptest::collection::vec(any::<u8>(), 0..99), value);
        proptest::collection::vec(item, count)
    }

    fn sealed(items: &[Owned], number: u64, previous: u64) -> (Vec<u8>, u64) {
        let mut draft = Draft::default();
        for (space, key, value) in items {
            draft.add(Space::ALL[*space].0, key, value.as_deref());
        }
        let (bytes, check) = draft.seal(POOL, number, number - 1, previous);
        (bytes.to_vec(), check)
    }

    proptest! {
        #[test]
        fn groups_survive_and_are_found(
            one in items_of(0..9), other in items_of(0..9), number in 1u64..u64::MAX - 1, mut noise: Vec<u8>,
        ) {
            noise.resize(noise.len().next_multiple_of(ALIGN), 0);
            let (first, check) = sealed(&one, number, 5);
            let (second, last) = sealed(&other, number + 1, check);
            let bytes = [&noise[..], &first[..], &second[..]].concat();
            let (group, end) = read(&bytes, noise.len(), POOL).expect("the first is found");
            prop_assert_eq!(group, Group { number, synced: number - 1, previous: 5, check });
            prop_assert_eq!(end, noise.len() + first.len());
            let wanted = number + 1..=number + 1;
            let found = find(&bytes, noise.len() + 1, POOL, wanted).expect("the second is found");
            prop_assert_eq!((found.0, found.1.check, found.2), (end, last, bytes.len()));
            prop_assert!(read(&bytes, end, POOL + 1).is_none(), "a group of another pool");
            let read: Option<Vec<_>> = items(&first).collect();
            let read = read.expect("each item reads");
            let owned: Vec<Owned> = read
                .into_iter()
                .map(|(space, key, value)| (space as usize, key.to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            prop_assert_eq!(owned, one);
        }

        #[test]
        fn a_flipped_byte_makes_no_group(items in items_of(0..9), at: prop::sample::Index, bits in 1u8..) {
            let (mut bytes, _) = sealed(&items, 9, 5);
            let end = items_end(&bytes, 0).expect("a whole group");
            let at = at.index(end + CHECK);
            bytes[at] ^= bits;
            prop_assert_eq!(read(&bytes, 0, POOL), None);
        }

        #[test]
        fn no_bytes_are_read_as_a_group_or_make_it_panic(bytes: Vec<u8>) {
            prop_assert_eq!(read(&bytes, 0, POOL), None);
            prop_assert!(find(&bytes, 0, POOL, 0..=u64::MAX).is_none());
            prop_assert_eq!(FileHead::read(&bytes), None);
            let _ = items(&bytes).count();
        }

        #[test]
        fn the_head_of_a_file_survives(pool: u64, turn: u64, first: u64, at in 0..FILE_HEAD, bits in 1u8..) {
            let head = FileHead { pool, turn, first };
            let mut bytes = head.to_bytes();
            prop_assert_eq!(FileHead::read(&bytes), Some(head));
            bytes[at] ^= bits;
            prop_assert_eq!(FileHead::read(&bytes), None);
        }
    }
}
