//! Random bytes that nobody can guess: the operating system's. Knows nothing of what they are for.

use std::cell::RefCell;

use ring::rand::{SecureRandom, SystemRandom};
use ulid::Ulid;

use crate::clock::system_now;

/// How many bytes a thread asks the operating system for at once: one call of it serves a hundred requests.
const AHEAD: usize = 1024;

thread_local! {
    /// Bytes of the operating system, and how many of them, from the first, have not been given out.
    static ASKED: RefCell<([u8; AHEAD], usize)> = const { RefCell::new(([0; AHEAD], 0)) };
}

/// Random bytes, which are given out once.
pub fn bytes<const N: usize>() -> [u8; N] {
    const { assert!(N <= AHEAD) };
    ASKED.with_borrow_mut(|(asked, left)| {
        if *left < N {
            // Linux waits until it has some, at its start, and never fails to give them from then on.
            SystemRandom::new().fill(asked).expect("the operating system has random bytes");
            *left = AHEAD;
        }
        *left -= N;
        // Wiped here: nobody else is given them.
        let mut bytes = [0; N];
        bytes.swap_with_slice(&mut asked[*left..*left + N]);
        bytes
    })
}

/// A new ULID: the time of day, and 80 random bits.
pub fn ulid() -> Ulid {
    let mut random = [0; 16];
    random[6..].copy_from_slice(&bytes::<10>());
    Ulid::from_parts(system_now(), u128::from_be_bytes(random))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Guards against bytes that are given out twice: a nonce, or a token, would be known to somebody else.
    #[test]
    fn no_bytes_are_given_out_twice() {
        let here: Vec<[u8; 24]> = (0..AHEAD).map(|_| bytes()).collect();
        let there = std::thread::spawn(|| (0..AHEAD).map(|_| bytes()).collect::<Vec<[u8; 24]>>());
        let mut all: HashSet<[u8; 24]> = here.into_iter().collect();
        all.extend(there.join().expect("it does not panic"));
        assert_eq!(all.len(), 2 * AHEAD);
        assert!(all.iter().all(|bytes| bytes.iter().any(|byte| *byte != 0)), "what was given out is wiped");
        assert_ne!((ulid().random(), ulid().timestamp_ms()), (ulid().random(), 0));
    }
}
