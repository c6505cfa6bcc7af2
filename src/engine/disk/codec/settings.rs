//! Rows of settings, one per record. Their keyspace is called `schedules`, and has no other rows.

use bytes::BufMut;

use super::parts::{Malformed, Reader, Result};

/// First byte of the keys of settings.
const SETTING: u8 = b'r';

/// Returns the key in `schedules` of a record of the settings.
pub fn record_key(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + key.len());
    out.put_u8(SETTING);
    out.put_slice(key);
    out
}

/// Returns the range of all keys of settings.
pub fn record_keys() -> std::ops::Range<Vec<u8>> {
    vec![SETTING]..vec![SETTING + 1]
}

/// Decodes [`record_key`].
pub fn read_record_key(key: &[u8]) -> Result<&[u8]> {
    key.strip_prefix(&[SETTING]).ok_or(Malformed("not a settings record"))
}

/// Encodes the value of a [`record_key`].
pub fn record_value(version: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + value.len());
    out.put_u64(version);
    out.put_slice(value);
    out
}

/// Decodes [`record_value`]: the version, and the value.
pub fn read_record_value(row: &[u8]) -> Result<(u64, &[u8])> {
    let mut r = Reader(row);
    Ok((r.u64()?, r.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn settings_survive_and_other_bytes_are_an_error(key: Vec<u8>, version: u64, value: Vec<u8>) {
            let row = record_key(&key);
            prop_assert!(record_keys().contains(&row));
            prop_assert_eq!(read_record_key(&row), Ok(&key[..]));
            let of = record_value(version, &value);
            prop_assert_eq!(read_record_value(&of), Ok((version, &value[..])));
            let _ = (read_record_key(&value), read_record_value(&key));
        }
    }
}
