//! The memory that large bodies may take together: those of requests, and those of the jobs in answers. A small body
//! takes no room: how many there are is bounded by the connections and by the calls that wait for the stores.
//!
//! A request takes room for what has come, not for what it has announced, so a slow sender takes little. Then all
//! room may be taken by bodies that have come in part, each waiting for more room: so there is a *reserve*, as large
//! as the largest body, for one of them at a time. Who has the reserve needs no more room, so it ends, and the next
//! one gets the reserve.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::error::ApiError;

/// A body up to this size takes no room.
pub const SMALL: usize = 16 * 1024;
/// Room is taken in units of so many bytes.
const UNIT: usize = 64 * 1024;
/// How long a request waits for room. Meanwhile its sender is not read from.
const WAIT: Duration = Duration::from_secs(30);
/// How long an answer waits for room. Its jobs are handed out already, and their `ttr` runs.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Room for bodies.
#[derive(Debug)]
pub struct BodyRoom {
    requests: Semaphore,
    /// One permit.
    reserve: Semaphore,
    answers: Arc<Semaphore>,
    /// How many units of answers there may be.
    answer_units: usize,
}

impl BodyRoom {
    /// So many bytes for the bodies of requests, and as many for those in answers.
    pub fn new(bytes: usize) -> BodyRoom {
        let units = bytes.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS >> 3);
        BodyRoom {
            requests: Semaphore::new(units),
            reserve: Semaphore::new(1),
            answers: Arc::new(Semaphore::new(units)),
            answer_units: units,
        }
    }

    /// For the body of one request. Takes nothing yet.
    pub fn for_request(&self) -> RequestRoom<'_> {
        RequestRoom { room: self, taken: None, reserve: None }
    }

    /// Room for an answer with so many bytes of jobs. 503 if there is none for a second.
    pub async fn for_answer(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        // An answer that is larger than all room gets all of it.
        let units = bytes.div_ceil(UNIT).min(self.answer_units) as u32;
        match timeout(ANSWER_WAIT, self.answers.clone().acquire_many_owned(units)).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(ApiError::NO_ROOM),
        }
    }
}

/// The room that one request's body has taken. Dropped, it is free again.
#[derive(Debug)]
pub struct RequestRoom<'a> {
    room: &'a BodyRoom,
    taken: Option<SemaphorePermit<'a>>,
    reserve: Option<SemaphorePermit<'a>>,
}

impl RequestRoom<'_> {
    /// Whether it has taken any.
    pub fn is_taken(&self) -> bool {
        self.taken.is_some() || self.reserve.is_some()
    }

    /// Takes room for `bytes` in all, or waits for it. 503 if there is none for long.
    pub async fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes <= SMALL || self.reserve.is_some() {
            return Ok(());
        }
        let units = bytes.div_ceil(UNIT);
        let taken = self.taken.as_ref().map_or(0, SemaphorePermit::num_permits);
        let Some(more) = units.checked_sub(taken).filter(|more| *more > 0) else { return Ok(()) };
        let more = more as u32; // a body has less than 2^32 units
        let room = self.room;
        let grown = match room.requests.try_acquire_many(more) {
            Ok(grown) => grown,
            Err(_) => {
                let either = async {
                    tokio::select! {
                        biased;
                        grown = room.requests.acquire_many(more) => (grown.ok(), None),
                        reserve = room.reserve.acquire() => (None, reserve.ok()),
                    }
                };
                match timeout(WAIT, either).await {
                    Ok((Some(grown), _)) => grown,
                    Ok((None, Some(reserve))) => {
                        self.reserve = Some(reserve);
                        return Ok(());
                    }
                    _ => return Err(ApiError::NO_ROOM),
                }
            }
        };
        match &mut self.taken {
            Some(taken) => taken.merge(grown),
            None => self.taken = Some(grown),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Whether more room is there without waiting.
    async fn grows(room: &mut RequestRoom<'_>, bytes: usize) -> bool {
        timeout(Duration::from_millis(1), room.grow_to(bytes)).await.is_ok_and(|grown| grown.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_take_no_more_than_the_room_and_the_reserve() {
        let room = BodyRoom::new(4 * MIB);
        let mut bodies: Vec<_> = (0..100).map(|_| room.for_request()).collect();
        let mut small = 0;
        let mut large = 0;
        for body in &mut bodies {
            small += usize::from(grows(body, SMALL).await);
            large += usize::from(grows(body, MIB).await);
        }
        assert_eq!(small, 100, "a small body takes no room");
        assert_eq!(large, 5, "four bodies of 1 MiB fit in 4 MiB, and one has the reserve");
        bodies.retain(|body| !body.is_taken());
        let mut again = 0;
        for body in &mut bodies {
            again += usize::from(grows(body, MIB).await);
        }
        assert_eq!(again, 5, "the room of those that have ended is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_have_come_in_part_do_not_wait_for_each_other_for_ever() {
        let room = BodyRoom::new(2 * MIB);
        let bodies: Vec<_> = (0..20)
            .map(|_| async {
                let mut body = room.for_request();
                let mut came = 0;
                while came < 8 * MIB {
                    came += MIB / 4;
                    body.grow_to(came).await?;
                    // The rest is on its way.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok::<(), ApiError>(())
            })
            .collect();
        let mut bodies: Vec<_> = bodies.into_iter().map(Box::pin).collect();
        let began = Instant::now();
        // All at the same time.
        let all = std::future::poll_fn(|cx| {
            bodies.retain_mut(|body| match body.as_mut().poll(cx) {
                std::task::Poll::Ready(done) => {
                    done.expect("each gets its room in time");
                    false
                }
                std::task::Poll::Pending => true,
            });
            if bodies.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        timeout(WAIT, all).await.expect("twenty bodies of 8 MiB end, although 2 MiB is all the room");
        assert!(began.elapsed() < WAIT, "they took {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_for_long_is_told_so() {
        let room = BodyRoom::new(MIB);
        let [mut first, mut second, mut third] = [room.for_request(), room.for_request(), room.for_request()];
        first.grow_to(MIB).await.expect("there is room");
        second.grow_to(MIB).await.expect("the reserve");
        let began = Instant::now();
        assert!(third.grow_to(MIB).await.is_err(), "there is no room");
        assert_eq!(began.elapsed(), WAIT, "it waited");
        let _answer = room.for_answer(MIB).await.expect("answers have room of their own");
        assert!(room.for_answer(MIB).await.is_err(), "it is taken");
    }
}
