//! Tests with a day of readings in virtual time.

use super::*;
use crate::name::QueueName;

const BEGIN: u64 = 1_700_000_000 / 60 * 60;
const MIB: usize = 1 << 20;
const DAY: u64 = 86_400;

fn pool() -> PoolName {
    PoolName::default_pool()
}

fn queue(n: usize) -> Of {
    let namespace = Namespace::parse("ns").expect("a literal");
    Of::Queue(pool(), Queue { namespace, name: QueueName::parse(&format!("q{n}")).expect("a name") })
}

fn none() -> Point {
    Point::default()
}

/// A queue whose point differs in every step.
fn busy(n: u64) -> Point {
    let noise = |of: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(of as u32) % 1000;
    Point {
        counts: [noise(3), noise(9), noise(15), noise(60) % 2],
        ready: noise(21),
        dead: n / 100,
        delayed: Some(noise(27)),
        running: Some(noise(33) % 64),
        oldest: Some(noise(39) % 50),
    }
}

/// Guards against charts that lose a day's maximum or count jobs twice.
#[test]
fn a_day_is_kept_by_the_minute_and_its_last_hour_by_ten_seconds() {
    let history = History::new(64 * MIB);
    let of = queue(1);
    for step in 0..DAY * 3 / 2 / 10 {
        let ready = if step % 6 == 3 { 100 + step / 6 } else { 5 };
        let point = Point { counts: [7, 6, 5, 0], ready, delayed: Some(1), running: Some(0), ..none() };
        history.add(BEGIN + step * 10, &pool(), vec![(of.clone(), point)], &none());
    }
    let end = BEGIN + DAY * 3 / 2 - 10;
    let (since, day) = history.of(&of, Range::Day, end);
    assert_eq!((since, day.len()), (Some(BEGIN), 1440));
    let minutes = DAY * 3 / 2 / 60;
    for (n, point) in day.iter().enumerate() {
        let point = point.expect("every minute is known");
        assert_eq!(point.counts, [42, 36, 30, 0], "of the six of minute {n}");
        assert_eq!(point.ready, 100 + minutes - 1440 + n as u64, "the greatest of the six of minute {n}");
    }
    let (_, hour) = history.of(&of, Range::Hour, end);
    assert_eq!(hour.len(), 360);
    for (n, point) in hour.iter().enumerate() {
        let point = point.expect("every step is known");
        assert_eq!(point.counts, [7, 6, 5, 0], "step {n}");
        assert_eq!(point.ready > 5, n % 6 == 3, "step {n} has {}", point.ready);
    }
    let (_, sums) = history.of(&Of::Pool(pool()), Range::Hour, end);
    assert_eq!(sums, hour, "one queue is the sum");
}

#[test]
fn what_was_not_read_is_unknown_and_what_was_counted_meanwhile_is_spread() {
    let history = History::new(MIB);
    let of = queue(1);
    let point = |count| Point { counts: [count, 0, 0, 0], ..none() };
    for (step, count) in [(0, 1), (1, 2), (5, 40)] {
        history.add(BEGIN + step * 10, &pool(), vec![(of.clone(), point(count))], &none());
    }
    let (_, hour) = history.of(&of, Range::Hour, BEGIN + 50);
    let last: Vec<_> = hour[354..].iter().map(|point| point.map(|point| point.counts[0])).collect();
    assert_eq!(last, [Some(1), Some(2), None, None, None, Some(10)]);
    let (_, day) = history.of(&of, Range::Day, BEGIN + 50);
    assert_eq!(day[1439].map(|point| point.counts[0]), Some(43), "all that was counted in the minute");
    assert_eq!(history.of(&queue(2), Range::Hour, BEGIN), (None, vec![None; 360]), "another queue");
}

/// Guards against a server whose memory is filled by many idle queues.
#[test]
fn a_queue_at_rest_takes_300_bytes() {
    let history = History::new(64 * MIB);
    const QUEUES: usize = 1000;
    for step in 0..DAY / 10 {
        // Readings come a little early or late, and every third queue has jobs but no consumers.
        let second = BEGIN + step * 10 + step % 3;
        let point = |n| match n % 3 {
            0 => Point { delayed: Some(0), running: Some(0), ..none() },
            1 => Point { ready: 7, dead: 3, oldest: Some((second - BEGIN + 100) * 10), ..none() },
            _ => Point { delayed: Some(900_000), running: Some(0), dead: 4000, ..none() },
        };
        // To save time, most queues are read only once an hour.
        let count = if step % 360 < 3 { QUEUES } else { 6 };
        let readings = (0..count).map(|n| (queue(n), point(n))).collect();
        history.add(second, &pool(), readings, &none());
    }
    let kept = history.kept.lock();
    for n in 0..6 {
        let bytes = kept.tracks[&queue(n)].held() + ENTRY;
        assert!(bytes <= 300, "queue {n} takes {bytes} bytes after a day");
    }
}

/// Guards against unbounded history, and against evicting busy queues before quiet ones.
#[test]
fn the_quietest_lose_the_hour_first_and_then_the_day() {
    let most = MIB / 2;
    let history = History::new(most);
    let (loud, quiet) = (8, 150);
    for step in 0..700 {
        let mut readings: Vec<_> = (0..loud).map(|n| (queue(n), busy(step * 31 + n as u64))).collect();
        // Little activity, but different in each step, so that each takes memory.
        let little = |n: usize| Point { ready: (step * 7 + n as u64) % 900, counts: [1, 1, 1, 0], ..none() };
        readings.extend((loud..loud + quiet).map(|n| (queue(n), little(n))));
        history.add(BEGIN + step * 10, &pool(), readings, &none());
        assert!(history.used().bytes <= most, "{:?} at step {step}", history.used());
    }
    let used = history.used();
    assert!(used.lost_hours > 0, "{used:?}");
    let kept = history.kept.lock();
    let real: usize = kept.tracks.values().map(|track| ENTRY + track.held()).sum();
    assert_eq!(kept.bytes, real, "the recorded total is the sum of all tracks");
    for n in 0..loud {
        assert!(kept.tracks.get(&queue(n)).is_some_and(Track::has_fine), "busy queue {n} has lost nothing");
    }
    assert!(kept.tracks.contains_key(&Of::Pool(pool())), "sums are kept");
}

#[test]
fn beyond_ten_thousand_the_quietest_queues_have_none() {
    let history = History::new(64 * MIB);
    let readings = |step: u64| {
        let point = |n: usize| Point { counts: [u64::from(n >= 50) * step, 0, 0, 0], ..none() };
        (0..MOST_QUEUES + 50).map(|n| (queue(n), point(n))).collect::<Vec<_>>()
    };
    for step in 1..4 {
        history.add(BEGIN + step * 10, &pool(), readings(step), &none());
    }
    let kept = history.kept.lock();
    assert_eq!(kept.queues, MOST_QUEUES);
    assert!(!kept.tracks.contains_key(&queue(7)) && kept.tracks.contains_key(&queue(MOST_QUEUES + 49)));
}

#[test]
fn a_queue_that_is_gone_is_forgotten_after_a_day_and_nothing_is_kept_without_memory() {
    let history = History::new(MIB);
    history.add(BEGIN, &pool(), vec![(queue(1), none())], &none());
    history.add(BEGIN + DAY, &pool(), vec![], &none());
    assert_eq!(history.used().tracks, 3, "{:?}", history.used());
    history.add(BEGIN + DAY + 120, &pool(), vec![], &none());
    assert_eq!(history.used().tracks, 1, "its pool is left");
    let without = History::new(0);
    without.add(BEGIN, &pool(), vec![(queue(1), none())], &none());
    assert_eq!(without.used(), Used::default());
}

/// Totals include the queues that are not listed.
#[test]
fn sums_count_what_has_no_row() {
    let history = History::new(MIB);
    let point = Point { counts: [1, 0, 0, 0], ready: 3, delayed: Some(1), running: None, ..none() };
    let beside = Point { counts: [5, 0, 0, 0], ..none() };
    history.add(BEGIN, &pool(), vec![(queue(1), point), (queue(2), point)], &beside);
    let sum = |of: Of| history.of(&of, Range::Hour, BEGIN).1[359].expect("it is known");
    let of_pool = sum(Of::Pool(pool()));
    assert_eq!((of_pool.counts[0], of_pool.ready, of_pool.delayed, of_pool.running), (7, 6, Some(2), None));
    let namespace = Namespace::parse("ns").expect("a literal");
    assert_eq!(
        sum(Of::Namespace(pool(), namespace)).counts[0],
        2,
        "a namespace's total has only its listed queues"
    );
}
