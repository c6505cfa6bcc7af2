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

/// Guards against unbounded memory, and against evicting busy queues before quiet ones.
#[test]
fn beyond_its_memory_the_quietest_queues_have_none() {
    let bytes = 10 * FULL;
    let history = History::new(bytes);
    let (loud, quiet) = (5, 40);
    for minute in 0..1500 {
        let mut readings: Vec<_> = (0..loud).map(|n| (queue(n), busy(1 + minute * 31 + n as u64))).collect();
        let little = |n: usize| Point { counts: [1, 1, (minute + n as u64) % 2, 0], ..none() };
        readings.extend((loud..loud + quiet).map(|n| (queue(n), little(n))));
        history.add(BEGIN + minute * 60, &pool(), readings, &none());
        let used = history.used();
        assert!(used.bytes <= bytes && used.tracks <= 10, "{used:?} of {bytes} bytes in minute {minute}");
    }
    let kept = history.kept.lock();
    for n in 0..loud {
        let first = kept.tracks.get(&queue(n)).map(Track::since);
        assert_eq!(first, Some(BEGIN), "busy queue {n} has lost nothing");
    }
    assert!(kept.tracks.contains_key(&Of::Pool(pool())), "totals are kept");
    assert_eq!(kept.queues, 8, "all but the pool's total and the namespace's");
}

/// Guards against queues that displace each other at every reading, so that no history lasts.
#[test]
fn equally_quiet_queues_keep_the_history_that_they_have() {
    let history = History::new(64 * MIB);
    let reading = |n: usize| (queue(n), none());
    history.add(BEGIN, &pool(), (50..MOST_QUEUES + 50).map(reading).collect(), &none());
    for step in 1..4 {
        history.add(BEGIN + step * 10, &pool(), (0..MOST_QUEUES + 50).map(reading).collect(), &none());
    }
    assert_eq!(history.used().lost, 0, "{:?}", history.used());
    let kept = history.kept.lock();
    assert!((50..MOST_QUEUES + 50).all(|n| kept.tracks.contains_key(&queue(n))), "the first ones stay");
}

/// Guards against queues that are gone and keep the place of queues that work.
#[test]
fn what_a_queue_has_done_counts_less_with_time() {
    let history = History::new(64 * MIB);
    let point = |count| Point { counts: [count, 0, 0, 0], ..none() };
    let (first, second) = (0..MOST_QUEUES, MOST_QUEUES..2 * MOST_QUEUES);
    history.add(BEGIN, &pool(), first.map(|n| (queue(n), point(100))).collect(), &none());
    for step in 360..363 {
        let readings = second.clone().map(|n| (queue(n), point(1))).collect();
        history.add(BEGIN + step * 10, &pool(), readings, &none());
    }
    let kept = history.kept.lock();
    assert_eq!((kept.queues, kept.lost), (MOST_QUEUES, MOST_QUEUES as u64), "queues, and evictions");
    assert!(second.clone().all(|n| kept.tracks.contains_key(&queue(n))), "those that work have a history");
}

#[test]
fn beyond_a_thousand_the_quietest_queues_have_none() {
    let history = History::new(64 * MIB);
    let readings = |step: u64| {
        let point = |n: usize| Point { counts: [u64::from(n >= 50) * step, 0, 0, 0], ..none() };
        (0..MOST_QUEUES + 50).map(|n| (queue(n), point(n))).collect::<Vec<_>>()
    };
    for step in 1..4 {
        history.add(BEGIN + step * 10, &pool(), readings(step), &none());
    }
    let kept = history.kept.lock();
    assert_eq!(kept.queues, MOST_QUEUES, "64 MiB are enough for a thousand queues");
    assert!(!kept.tracks.contains_key(&queue(7)) && kept.tracks.contains_key(&queue(MOST_QUEUES + 49)));
}

/// Guards against namespaces that leave no memory to the queues.
#[test]
fn a_quarter_of_the_histories_may_be_totals_of_namespaces() {
    let history = History::new(100 * FULL);
    let reading = |n: usize| {
        let namespace = Namespace::parse(&format!("n{n}")).expect("a name");
        let name = QueueName::parse("q").expect("a literal");
        (Of::Queue(pool(), Queue { namespace, name }), none())
    };
    history.add(BEGIN, &pool(), (0..200).map(reading).collect(), &none());
    let kept = history.kept.lock();
    assert_eq!((kept.namespaces, kept.queues), (25, 74), "namespaces, and queues");
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
