//! How many requests one server may begin in any stretch of time. Knows no job.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// When requests were begun lately.
#[derive(Debug, Default)]
pub struct Window(VecDeque<Instant>);

impl Window {
    /// A request begins.
    pub fn begun(&mut self, now: Instant) {
        self.0.push_back(now);
    }

    /// How many may begin now if at most `rate` may in any `per`; when it is none, from when one may.
    pub fn room(&mut self, now: Instant, rate: u32, per: Duration) -> Result<usize, Option<Instant>> {
        while self.0.front().is_some_and(|begun| *begun + per <= now) {
            self.0.pop_front();
        }
        let rate = rate as usize;
        match rate.checked_sub(self.0.len()) {
            None | Some(0) if rate == 0 => Err(None),
            // The one after which a place is free, when more are counted than may be, too.
            None | Some(0) => Err(self.0.get(self.0.len() - rate).map(|begun| *begun + per)),
            Some(room) => Ok(room),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn no_stretch_of_time_has_more_than_its_rate() {
        let (mut window, mut now, mut begun) = (Window::default(), Instant::now(), Vec::new());
        for step in 0..1000u64 {
            now += Duration::from_millis(step * 37 % 90);
            if let Ok(room) = window.room(now, 7, SECOND) {
                for _ in 0..room.min(3) {
                    window.begun(now);
                    begun.push(now);
                }
            }
        }
        assert!(begun.len() > 200, "only {} began", begun.len());
        for eight in begun.windows(8) {
            let stretch = eight[7].duration_since(eight[0]);
            assert!(stretch >= SECOND, "8 began within {stretch:?}, 7 may within a second");
        }
    }

    #[test]
    fn it_says_from_when_there_is_room_also_after_the_rate_shrank() {
        let (mut window, now) = (Window::default(), Instant::now());
        assert_eq!(window.room(now, 0, SECOND), Err(None), "nothing may ever begin");
        (0..4).for_each(|n| window.begun(now + n * SECOND / 10));
        let now = now + SECOND / 2;
        assert_eq!(window.room(now, 5, SECOND), Ok(1));
        assert_eq!(
            window.room(now, 4, SECOND),
            Err(Some(now + SECOND / 2)),
            "the first is a second ago then"
        );
        assert_eq!(window.room(now, 2, SECOND), Err(Some(now + SECOND * 7 / 10)), "the third is");
    }
}
