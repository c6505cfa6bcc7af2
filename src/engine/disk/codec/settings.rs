//! Values of settings. Their keys are text, stored as it is.

use bytes::BufMut;

use super::parts::{Reader, Result};

/// Encodes a value of `settings`.
pub fn setting(version: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + value.len());
    out.put_u64(version);
    out.put_slice(value);
    out
}

/// Decodes [`setting`]: the version, and the value.
pub fn read_setting(row: &[u8]) -> Result<(u64, &[u8])> {
    let mut r = Reader(row);
    Ok((r.u64()?, r.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn settings_survive_and_other_bytes_are_an_error(version: u64, value: Vec<u8>) {
            let row = setting(version, &value);
            prop_assert_eq!(read_setting(&row), Ok((version, &value[..])));
            prop_assert_eq!(read_setting(&value).is_ok(), value.len() >= 8);
        }
    }
}
