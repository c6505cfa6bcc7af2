//! Unpredictable random bytes, from the operating system.

use std::cell::RefCell;

use ring::rand::{SecureRandom, SystemRandom};
use ulid::Ulid;

use crate::clock::system_now;

/// Bytes that a thread requests from the operating system at once: one system call serves a hundred requests.
const AHEAD: usize = 1024;

thread_local! {
    /// Random bytes, and how many of them, counted from the first, are still unused.
    static ASKED: RefCell<([u8; AHEAD], usize)> = const { RefCell::new(([0; AHEAD], 0)) };
}

/// Returns random bytes. None are returned twice.
pub fn bytes<const N: usize>() -> [u8; N] {
    const { assert!(N <= AHEAD) };
    ASKED.with_borrow_mut(|(asked, left)| {
        if *left < N {
            // Linux blocks until its generator is initialized after boot, and never fails afterwards.
            SystemRandom::new().fill(asked).expect("the operating system has random bytes");
            *left = AHEAD;
        }
        *left -= N;
        // Wiped here, so that the bytes exist only once.
        let mut bytes = [0; N];
        bytes.swap_with_slice(&mut asked[*left..*left + N]);
        bytes
    })
}

/// Returns a new ULID: the time of day, and 80 random bits.
pub fn ulid() -> Ulid {
    let mut random = [0; 16];
    random[6..].copy_from_slice(&bytes::<10>());
    Ulid::from_parts(system_now(), u128::from_be_bytes(random))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Guards against bytes that are returned twice: a nonce or a token would be known to another caller.
    #[test]
    fn no_bytes_are_given_out_twice() {
        let here: Vec<[u8; 24]> = (0..AHEAD).map(|_| bytes()).collect();
        let there = std::thread::spawn(|| (0..AHEAD).map(|_| bytes()).collect::<Vec<[u8; 24]>>());
        let mut all: HashSet<[u8; 24]> = here.into_iter().collect();
        all.extend(there.join().expect("it does not panic"));
        assert_eq!(all.len(), 2 * AHEAD);
        assert!(
            all.iter().all(|bytes| bytes.iter().any(|byte| *byte != 0)),
            "random bytes in use were wiped"
        );
        assert_ne!((ulid().random(), ulid().timestamp_ms()), (ulid().random(), 0));
    }
}
