//! Body memory: the limited memory for large bodies of requests, and of jobs in replies. Small bodies are not counted:
//! their number is limited by the connections and the calls that wait for stores.
//!
//! A namespace may use a *share* of the memory, so that no namespace uses all of it. Namespaces of the same name in
//! several pools count as one.
//!
//! A request takes memory as its bytes arrive, not by its Content-Length, so a slow sender takes little. All memory
//! could then be held by partial bodies, each waiting for more. So there is a *reserve* of the size of the largest
//! body, for one request at a time. A body with the reserve needs no more memory, so it completes, and the next one
//! gets the reserve. A body that has held it for long loses it when another namespace requests it.
//!
//! A reply keeps its memory until hyper has written it to the socket, see [`kept`].

use std::sync::Arc;
use std::time::Duration;

use ahash::HashMap;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::job::Attributes;
use crate::name::Namespace;

/// Bodies up to this size are not counted.
pub const SMALL: usize = 16 * 1024;
/// Replies with more bytes of jobs than this are counted. Replies with several jobs are streamed.
pub const LARGE_ANSWER: usize = 64 * 1024;
/// Unit of body memory in bytes.
const UNIT: usize = 64 * 1024;
/// Timeout of a request for memory. Meanwhile its sender is not read from.
const WAIT: Duration = Duration::from_secs(30);
/// Timeout of a reply for memory. Its jobs are already delivered, and their `ttr` runs.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// Maximum time that a body holds the reserve while another namespace waits.
const TURN: Duration = Duration::from_secs(10);

/// The limit on body memory is reached.
#[derive(Debug)]
pub struct NoRoom;

/// Body memory of the server.
#[derive(Debug)]
pub struct BodyRoom {
    requests: Side,
    /// One permit.
    reserve: Arc<Semaphore>,
    answers: Side,
    /// Bounds the replies that are already in memory and wait: the same size as the limit for replies.
    waiting: Semaphore,
}

/// Memory for one kind of bodies.
#[derive(Debug)]
struct Side {
    /// Total number of units.
    units: usize,
    all: Arc<Semaphore>,
    /// Maximum number of units per namespace.
    most_of_namespace: usize,
    /// Namespaces that hold memory or wait for it.
    by_namespace: Mutex<HashMap<Namespace, Arc<Share>>>,
}

/// Memory of one namespace.
#[derive(Debug)]
struct Share {
    units: Arc<Semaphore>,
    /// Permit to wait for and hold the reserve.
    turn: Arc<Semaphore>,
}

/// Memory in use; freed on drop.
#[derive(Debug)]
pub struct Room {
    of_share: OwnedSemaphorePermit,
    of_all: OwnedSemaphorePermit,
    /// Keeps the share while memory is held.
    _share: Arc<Share>,
}

impl Side {
    fn new(units: usize, most_of_namespace: usize) -> Side {
        Side {
            units,
            all: Arc::new(Semaphore::new(units)),
            most_of_namespace,
            by_namespace: Mutex::default(),
        }
    }

    fn share(&self, namespace: &Namespace) -> Arc<Share> {
        let mut shares = self.by_namespace.lock();
        // At most one per large body.
        shares.retain(|_, share| Arc::strong_count(share) > 1);
        let new = || {
            let units = Arc::new(Semaphore::new(self.most_of_namespace));
            Arc::new(Share { units, turn: Arc::new(Semaphore::new(1)) })
        };
        shares.entry(namespace.clone()).or_insert_with(new).clone()
    }

    fn try_take(&self, share: &Arc<Share>, units: u32) -> Option<Room> {
        let of_share = share.units.clone().try_acquire_many_owned(units).ok()?;
        let of_all = self.all.clone().try_acquire_many_owned(units).ok()?;
        Some(Room { of_share, of_all, _share: share.clone() })
    }

    /// Waits for memory. `None` only if the semaphores were closed, which never happens.
    async fn take(&self, share: &Arc<Share>, units: u32) -> Option<Room> {
        let of_share = share.units.clone().acquire_many_owned(units).await.ok()?;
        let of_all = self.all.clone().acquire_many_owned(units).await.ok()?;
        Some(Room { of_share, of_all, _share: share.clone() })
    }
}

impl Room {
    fn merge(&mut self, more: Room) {
        self.of_share.merge(more.of_share);
        self.of_all.merge(more.of_all);
    }

    /// Frees all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let rest = self.of_all.num_permits().saturating_sub(bytes.div_ceil(UNIT));
        drop((self.of_share.split(rest), self.of_all.split(rest)));
    }
}

/// Creates the bytes of a reply, or part of one. hyper keeps them without a copy, and `room` with them, until they are
/// written to the socket or the connection has ended.
pub fn kept(text: Vec<u8>, room: Option<Arc<Room>>) -> Bytes {
    struct Kept(Vec<u8>, #[expect(dead_code, reason = "kept for its drop")] Arc<Room>);
    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    match room {
        Some(room) if !text.is_empty() => Bytes::from_owner(Kept(text, room)),
        _ => text.into(),
    }
}

/// Returns the bytes of reply memory that a job takes.
pub fn bytes_of(body: &[u8], attributes: &Attributes) -> usize {
    body.len() + attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

impl BodyRoom {
    /// Creates `bytes` of memory for bodies of requests, and the same for replies. One namespace may use `of_namespace`
    /// of each.
    pub fn new(bytes: usize, of_namespace: usize) -> BodyRoom {
        let units = |bytes: usize| bytes.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS >> 3);
        let (units, share) = (units(bytes), units(of_namespace.min(bytes)));
        BodyRoom {
            requests: Side::new(units, share),
            reserve: Arc::new(Semaphore::new(1)),
            answers: Side::new(units, share),
            waiting: Semaphore::new(units),
        }
    }

    /// Returns the bytes in use, of both kinds.
    pub fn taken(&self) -> usize {
        let of = |side: &Side| side.units.saturating_sub(side.all.available_permits());
        (of(&self.requests) + of(&self.answers)) * UNIT
    }

    /// Prepares for the body of one request; takes nothing yet.
    pub fn for_request<'a>(&'a self, namespace: &'a Namespace) -> RequestRoom<'a> {
        RequestRoom { room: self, namespace, taken: None, reserve: None }
    }

    /// Takes memory for a reply with `bytes` of jobs; none for a small one. Fails if none is free within a second, or
    /// if too many wait already.
    pub async fn for_answer(&self, namespace: &Namespace, bytes: usize) -> Result<Option<Room>, NoRoom> {
        if bytes <= LARGE_ANSWER {
            return Ok(None);
        }
        // A reply larger than its namespace's share gets all of the share.
        let units = bytes.div_ceil(UNIT).min(self.answers.most_of_namespace) as u32;
        let share = self.answers.share(namespace);
        if let Some(room) = self.answers.try_take(&share, units) {
            return Ok(Some(room));
        }
        let _waits = self.waiting.try_acquire_many(units).map_err(|_| NoRoom)?;
        match timeout(ANSWER_WAIT, self.answers.take(&share, units)).await {
            Ok(Some(room)) => Ok(Some(room)),
            _ => Err(NoRoom),
        }
    }
}

/// Memory of one request's body; freed on drop.
#[derive(Debug)]
pub struct RequestRoom<'a> {
    room: &'a BodyRoom,
    namespace: &'a Namespace,
    taken: Option<Room>,
    reserve: Option<Reserve>,
}

/// The right to exceed the limit, and since when.
#[derive(Debug)]
struct Reserve {
    since: Instant,
    _turn: OwnedSemaphorePermit,
    _only: OwnedSemaphorePermit,
    /// Keeps the share while the turn is held.
    _share: Arc<Share>,
}

impl RequestRoom<'_> {
    /// Extends the memory to `bytes` in total, waiting if necessary. Fails if none is free for long, or if the reserve
    /// must be left to another namespace.
    pub async fn grow_to(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes <= SMALL {
            return Ok(());
        }
        let BodyRoom { requests, reserve, .. } = self.room;
        if let Some(Reserve { since, .. }) = &self.reserve {
            // One reference is the memory's own, one is in the permit, and each waiter has one.
            let asked_for = Arc::strong_count(reserve) > 2;
            return if asked_for && since.elapsed() >= TURN { Err(NoRoom) } else { Ok(()) };
        }
        let units = bytes.div_ceil(UNIT);
        let taken = self.taken.as_ref().map_or(0, |taken| taken.of_all.num_permits());
        let Some(more) = units.checked_sub(taken).filter(|more| *more > 0) else { return Ok(()) };
        let more = more as u32; // a body has less than 2^32 units
        let share = requests.share(self.namespace);
        let grown = match requests.try_take(&share, more) {
            Some(grown) => grown,
            None => {
                let turn = async {
                    let turn = share.turn.clone().acquire_owned().await.ok()?;
                    let only = reserve.clone().acquire_owned().await.ok()?;
                    Some(Reserve { since: Instant::now(), _turn: turn, _only: only, _share: share.clone() })
                };
                let either = async {
                    tokio::select! {
                        biased;
                        grown = requests.take(&share, more) => (grown, None),
                        reserve = turn => (None, reserve),
                    }
                };
                match timeout(WAIT, either).await {
                    Ok((Some(grown), _)) => grown,
                    Ok((None, Some(reserve))) => {
                        self.reserve = Some(reserve);
                        return Ok(());
                    }
                    _ => return Err(NoRoom),
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

    fn namespace(name: &str) -> Namespace {
        Namespace::parse(name).expect("a literal")
    }

    /// Creates memory without a smaller share per namespace.
    fn of(bytes: usize) -> BodyRoom {
        BodyRoom::new(bytes, bytes)
    }

    /// Returns whether more memory is available without waiting.
    async fn grows(room: &mut RequestRoom<'_>, bytes: usize) -> bool {
        timeout(Duration::from_millis(1), room.grow_to(bytes)).await.is_ok_and(|grown| grown.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_take_no_more_than_the_room_and_the_reserve() {
        let (room, ns) = (of(4 * MIB), namespace("ns"));
        let mut bodies: Vec<_> = (0..100).map(|_| room.for_request(&ns)).collect();
        let mut small = 0;
        let mut large = 0;
        for body in &mut bodies {
            small += usize::from(grows(body, SMALL).await);
            large += usize::from(grows(body, MIB).await);
        }
        assert_eq!(small, 100, "a small body takes no room");
        assert_eq!(large, 5, "four bodies of 1 MiB fit in 4 MiB, and one has the reserve");
        bodies.retain(|body| body.taken.is_none() && body.reserve.is_none());
        let mut again = 0;
        for body in &mut bodies {
            again += usize::from(grows(body, MIB).await);
        }
        assert_eq!(again, 5, "memory of ended bodies is free again");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_have_come_in_part_do_not_wait_for_each_other_for_ever() {
        let (room, ns) = (of(2 * MIB), namespace("ns"));
        let bodies: Vec<_> = (0..20)
            .map(|_| async {
                let mut body = room.for_request(&ns);
                let mut came = 0;
                while came < 8 * MIB {
                    came += MIB / 4;
                    body.grow_to(came).await?;
                    // The rest is in transit.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok::<(), NoRoom>(())
            })
            .collect();
        let mut bodies: Vec<_> = bodies.into_iter().map(Box::pin).collect();
        let began = Instant::now();
        // All concurrently.
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
        let (room, [a, b]) = (of(MIB), ["a", "b"].map(namespace));
        let [mut first, mut second, mut third] = [&a, &b, &a].map(|namespace| room.for_request(namespace));
        first.grow_to(MIB).await.expect("there is room");
        second.grow_to(MIB).await.expect("the reserve");
        let began = Instant::now();
        assert!(third.grow_to(MIB).await.is_err(), "there is no room");
        assert_eq!(began.elapsed(), WAIT, "it waited");
        let _answer = room.for_answer(&a, MIB).await.expect("answers have room of their own");
        assert!(room.for_answer(&a, MIB).await.is_err(), "it is taken");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_has_its_share_and_no_more() {
        let (room, [greedy, modest]) = (BodyRoom::new(4 * MIB, 2 * MIB), ["greedy", "modest"].map(namespace));
        let mut bodies: Vec<_> = (0..10).map(|_| room.for_request(&greedy)).collect();
        let mut large = 0;
        for body in &mut bodies {
            large += usize::from(grows(body, MIB).await);
        }
        assert_eq!(large, 3, "two bodies of 1 MiB are its share, and one has the reserve");
        let mut others: Vec<_> = (0..2).map(|_| room.for_request(&modest)).collect();
        for body in &mut others {
            assert!(grows(body, MIB).await, "the rest is for others");
        }
        let mut answers = Vec::new();
        for (namespace, fits) in [(&greedy, true), (&greedy, true), (&greedy, false), (&modest, true)] {
            let answer = room.for_answer(namespace, MIB).await;
            assert_eq!(answer.is_ok(), fits, "an answer to {namespace} after {answers:?}");
            answers.extend(answer.ok().flatten());
        }
        drop((bodies, others, answers));
        assert_eq!(
            room.requests.share(&modest).units.available_permits(),
            2 * MIB / UNIT,
            "all is free again"
        );
        assert_eq!(room.requests.by_namespace.lock().len(), 1, "unused shares are removed");
        assert_eq!(room.answers.all.available_permits(), 4 * MIB / UNIT, "all is free again");
    }

    /// Guards against a body that holds the reserve indefinitely, and against a namespace whose many bodies wait for it
    /// ahead of another's only one.
    #[tokio::test(start_paused = true)]
    async fn the_reserve_goes_round() {
        let (room, [greedy, modest]) = (BodyRoom::new(2 * MIB, MIB), ["greedy", "modest"].map(namespace));
        let mut slow: Vec<_> = (0..5).map(|_| room.for_request(&greedy)).collect();
        for body in &mut slow[..2] {
            assert!(grows(body, MIB).await, "its share, and the reserve");
        }
        tokio::time::sleep(2 * TURN).await;
        assert!(slow[1].grow_to(8 * MIB).await.is_ok(), "no other body asks for the reserve");
        let (holder, in_line) = slow[1..].split_first_mut().expect("five");
        let [second, third, fourth] = in_line else { panic!("five") };
        let line = async { tokio::join!(second.grow_to(MIB), third.grow_to(MIB), fourth.grow_to(MIB)) };
        let mut large = room.for_request(&modest);
        let asks = async {
            tokio::task::yield_now().await;
            large.grow_to(2 * MIB).await
        };
        let holds = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let lost = holder.grow_to(9 * MIB).await;
            *holder = room.for_request(&greedy);
            lost
        };
        let began = Instant::now();
        tokio::select! {
            _ = line => panic!("the bodies in line got memory"),
            (got, lost) = async { tokio::join!(asks, holds) } => {
                assert!(lost.is_err(), "a long-time holder yields the reserve to another namespace");
                assert!(got.is_ok(), "the other namespace is the next");
            }
        }
        assert!(began.elapsed() < TURN, "after {:?}", began.elapsed());
    }

    /// Guards against a body that loses the reserve to another body of its namespace, whose share was removed
    /// meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_namespace_does_not_take_the_reserve_from_itself() {
        let (room, [greedy, modest]) = (of(MIB), ["greedy", "modest"].map(namespace));
        let [mut large, mut second] = [(); 2].map(|()| room.for_request(&greedy));
        large.grow_to(2 * MIB).await.expect("the reserve, and no room of its share");
        let mut other = room.for_request(&modest);
        other.grow_to(MIB).await.expect("all memory, since unused shares are removed");
        let in_line = second.grow_to(2 * MIB);
        let holds = async {
            tokio::time::sleep(2 * TURN).await;
            large.grow_to(3 * MIB).await
        };
        tokio::select! {
            _ = in_line => panic!("the reserve is taken"),
            held = holds => assert!(held.is_ok(), "no other namespace asks for the reserve"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_wait_in_memory_are_no_more_than_answers() {
        let (room, ns) = (of(2 * MIB), namespace("ns"));
        let _all = room.for_answer(&ns, 2 * MIB).await.expect("there is room");
        let began = Instant::now();
        let three = async {
            let wait = || async { (room.for_answer(&ns, MIB).await.is_err(), began.elapsed()) };
            tokio::join!(wait(), wait(), wait())
        };
        let expected = ((true, ANSWER_WAIT), (true, ANSWER_WAIT), (true, Duration::ZERO));
        assert_eq!(three.await, expected, "two wait, and one is refused at once");
    }

    #[tokio::test]
    async fn what_is_left_of_an_answer_keeps_its_room() {
        let (room, ns) = (of(MIB), namespace("ns"));
        let mut taken = room.for_answer(&ns, MIB).await.expect("there is room").expect("it is large");
        taken.shrink_to(MIB / 2);
        assert_eq!(room.answers.all.available_permits(), MIB / 2 / UNIT, "half of it is free again");
        let mut text = kept(b"text".to_vec(), Some(Arc::new(taken)));
        let end = text.split_off(2);
        drop(text);
        assert_eq!(room.answers.all.available_permits(), MIB / 2 / UNIT, "a part was written");
        drop(end);
        assert_eq!(room.answers.all.available_permits(), MIB / UNIT, "all was written");
    }
}
