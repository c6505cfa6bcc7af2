//! Laws of delays and of the pump: a job is never early, jobs are in order of their due time, and the pump never sleeps
//! too long.

use std::time::{Duration, Instant};

use dormouse::clock::Millis;
use dormouse::job::JobRef;

use crate::stage::*;
use crate::support::notified::Notified;

/// Guards against a delayed job that is visible to consumers, or never becomes so.
pub async fn a_delayed_job_is_not_handed_out_before_it_is_due(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["1", "2"].map(|body| job(&q, body).delay(LONG))).await;
    s.put(job(&q, "soon").delay(SHORT).tries(2)).await;
    s.advance(SHORT).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "due, but not moved yet, or not due for an hour");
    s.pump().await;
    let job = s.take_one(&q, LONG).await;
    assert_eq!((&job.body[..], job.tries_left), (&b"soon"[..], 1), "due, and its tries are untouched");
    s.pump().await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "the others sleep for an hour");
}

/// Guards against times truncated to seconds or ticks: a job knows its age when it is delivered.
pub async fn a_delayed_job_is_never_early_by_its_own_account(s: &dyn Stage) {
    let q = queue("q");
    let delays: Vec<Duration> = (1..=6).map(|i| Duration::from_millis(i * 17)).collect();
    for (i, delay) in delays.iter().enumerate() {
        s.put(job(&q, i.to_string()).delay(*delay)).await;
    }
    let mut seen = Vec::new();
    for _ in 0..10_000 {
        s.pump().await;
        for job in s.take(&q, 9, LONG).await {
            let i: usize = String::from_utf8_lossy(&job.body).parse().expect("the body is a number");
            let age = job.elapsed + s.differences().slack;
            assert!(age >= delays[i], "a delay of {:?} came after {:?}", delays[i], job.elapsed);
            seen.push(i);
        }
        if seen.len() == delays.len() {
            break;
        }
        s.advance(Duration::from_millis(1)).await;
    }
    assert_eq!(seen, [0, 1, 2, 3, 4, 5], "each comes once, in the order of the delays");
}

/// Guards against an order that depends on the timer's encoding: lmstfy's starts with the tries.
pub async fn jobs_due_together_come_in_publish_order_whatever_their_tries(s: &dyn Stage) {
    let q = queue("q");
    let tries = [300, 1, 2, 65535, 1, 256, 3];
    let drafts = tries.iter().enumerate().map(|(i, n)| job(&q, i.to_string()).delay(SHORT).tries(*n));
    s.put_all(drafts).await;
    s.pass(SHORT).await;
    assert_eq!(s.drain(&q).await, ["0", "1", "2", "3", "4", "5", "6"], "publish order");
}

/// Guards against a pump that moves jobs in arbitrary order.
pub async fn jobs_come_in_the_order_they_are_due(s: &dyn Stage) {
    let q = queue("q");
    let drafts = [30, 10, 20, 5].map(|i| job(&q, i.to_string()).delay(Duration::from_millis(i)));
    s.put_all(drafts).await;
    s.advance(Duration::from_millis(30)).await;
    s.pump().await;
    assert_eq!(s.drain(&q).await, ["5", "10", "20", "30"], "in the order of their times");
}

/// Guards against a due job that overtakes jobs that were ready before.
pub async fn a_delayed_job_joins_at_the_tail(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "delayed").delay(SHORT)).await;
    s.put(job(&q, "ready")).await;
    s.pass(SHORT).await;
    s.put(job(&q, "late")).await;
    assert_eq!(s.drain(&q).await, ["ready", "delayed", "late"], "ready in this order");
}

/// Guards against a pump that spins while nothing is due.
pub async fn an_idle_pump_moves_nothing_and_may_sleep(s: &dyn Stage) {
    for what in ["an empty store", "ready jobs only"] {
        let pumped = ok("pump", s.engine().pump().await);
        assert_eq!(pumped.moved, 0, "{what}: nothing is due");
        assert!(!pumped.next.is_zero(), "{what}: the pump may sleep");
        s.put(job(&queue("q"), "ready")).await;
    }
}

/// Guards against a pump that sleeps past a due job, or that pumps needlessly often.
pub async fn the_pump_says_how_long_until_the_next(s: &dyn Stage) {
    let q = queue("q");
    let horizon = s.differences().horizon.unwrap_or(Duration::MAX);
    s.put(job(&q, "far").delay(LONG)).await;
    s.put(job(&q, "ready")).await;
    s.take_one(&q, LONG / 2).await;
    let pumped = ok("pump", s.engine().pump().await);
    let longest = horizon.min(LONG / 2);
    assert!(pumped.next <= longest && !pumped.next.is_zero(), "{:?}, not in 0..={longest:?}", pumped.next);
    if s.differences().virtual_time {
        assert_eq!(pumped.next, longest, "the running job is due next");
    }
    s.put(job(&q, "near").delay(SHORT)).await;
    let pumped = ok("pump", s.engine().pump().await);
    // A store with a resolution of a millisecond rounds up.
    let soon = SHORT + Duration::from_millis(u64::from(!s.differences().virtual_time));
    assert!(pumped.next <= soon || pumped.moved == 1, "{pumped:?}, but a job is due in {SHORT:?}");
}

/// Guards against an unbounded pump, and against due jobs left behind by its bound.
pub async fn the_pump_stops_at_its_bound_and_goes_on_next_time(s: &dyn Stage) {
    let (q, count) = (queue("q"), 1100);
    s.put_all((0..count).map(|i| job(&q, i.to_string()).delay(SHORT))).await;
    s.advance(SHORT).await;
    let mut all = Vec::new();
    while all.len() < count {
        let pumped = ok("pump", s.engine().pump().await);
        if pumped.moved == 0 && s.is_overdue().await {
            continue;
        }
        assert!((1..=500).contains(&pumped.moved), "{pumped:?}, after {} were moved", all.len());
        all.extend(s.drain(&q).await);
        if all.len() < count {
            assert!(pumped.next.is_zero(), "more are due: {:?}", pumped.next);
        }
    }
    let expected: Vec<_> = (0..count).map(|i| i.to_string()).collect();
    assert_eq!(all, expected, "publish order over several pumps");
    s.pump().await;
    assert_eq!(s.size(&q).await, 0, "nothing is left");
}

/// Guards against a pump that sleeps while an earlier job becomes due, even if it was published between the last call
/// and the sleep.
pub async fn an_earlier_publish_wakes_the_pump(s: &dyn Stage) {
    let (q, began) = (queue("q"), Instant::now());
    s.put(job(&q, "far").delay(LONG)).await;
    loop {
        let notified = Notified::attach(&*s.engine(), &[]);
        let next = pumped(s).await;
        let placed = s.place(job(&q, "before").delay(SHORT * 5)).await;
        if in_time(s, placed.due_at, next, began) {
            let woken = tokio::time::timeout(TIMEOUT, notified.due_earlier()).await;
            assert!(woken.is_ok(), "a publish before the pump slept should wake it within {TIMEOUT:?}");
            break;
        }
        s.ack(&JobRef { queue: q.clone(), id: placed.id }).await;
    }
    loop {
        let notified = Notified::attach(&*s.engine(), &[]);
        let next = pumped(s).await;
        let mut asleep = std::pin::pin!(notified.due_earlier());
        while ready_now(&mut asleep).await {
            asleep.set(notified.due_earlier()); // a wake-up left from before the pump
        }
        let placed = s.place(job(&q, "while").delay(Duration::from_millis(10))).await;
        if in_time(s, placed.due_at, next, began) {
            let woken = tokio::time::timeout(TIMEOUT, asleep).await;
            assert!(woken.is_ok(), "a publish while the pump slept should wake it within {TIMEOUT:?}");
            break;
        }
        s.ack(&JobRef { queue: q.clone(), id: placed.id }).await;
    }
}

/// Pumps until nothing more is due. Returns the store's time before which the pump need not run again.
async fn pumped(s: &dyn Stage) -> Millis {
    s.pump().await;
    loop {
        let before = s.engine().now();
        let pumped = ok("pump", s.engine().pump().await);
        if pumped.moved == 0 && !pumped.next.is_zero() {
            return before.saturating_add(ms(pumped.next));
        }
    }
}

/// Whether a job is due earlier than the pump's next run. On a machine that stalls it may be later: of a store with a
/// horizon the pump runs soon anyway, and is not woken.
fn in_time(s: &dyn Stage, due: Option<Millis>, next: Millis, began: Instant) -> bool {
    let due = due.expect("it is told when a new job is due") + ms(s.differences().slack);
    assert!(due < next || began.elapsed() < TIMEOUT, "no job was stored before the pump had to run again");
    due < next
}

/// Guards against a running job redelivered late because its ttr ends before the next delayed job.
pub async fn a_short_ttr_wakes_the_pump(s: &dyn Stage) {
    let (q, began) = (queue("q"), Instant::now());
    s.put(job(&q, "far").delay(LONG)).await;
    loop {
        let notified = Notified::attach(&*s.engine(), &[]);
        s.put(job(&q, "ready")).await;
        let next = pumped(s).await;
        let held = s.take_one(&q, Duration::from_millis(100)).await;
        if in_time(s, s.view(&held).await.due_at, next, began) {
            let woken = tokio::time::timeout(TIMEOUT, notified.due_earlier()).await;
            assert!(
                woken.is_ok(),
                "a ttr that ends before the next delayed job should wake the pump within {TIMEOUT:?}"
            );
            break;
        }
        s.ack(&held).await;
    }
}

/// Guards against a pump that wakes for every publish. A wake-up left from before the last pump is allowed: it costs
/// one call.
pub async fn a_later_publish_does_not_wake_the_pump(s: &dyn Stage) {
    let (q, notified) = (queue("q"), Notified::attach(&*s.engine(), &[]));
    s.put(job(&q, "near").delay(LONG)).await;
    s.pump().await;
    wakes(&notified).await;
    s.put(job(&q, "later").delay(LONG * 2)).await;
    s.put(job(&q, "ready")).await;
    s.take_one(&q, LONG * 2).await;
    assert!(!wakes(&notified).await, "nothing is due earlier than the pump knows");
}

/// Whether the pump is woken now.
async fn wakes(notified: &Notified) -> bool {
    ready_now(&mut std::pin::pin!(notified.due_earlier())).await
}

/// Whether this future ends without anything else happening first.
async fn ready_now(future: &mut (impl Future<Output = ()> + Unpin)) -> bool {
    for _ in 0..100 {
        tokio::select! {
            biased;
            () = &mut *future => return true,
            () = tokio::task::yield_now() => {}
        }
    }
    false
}
