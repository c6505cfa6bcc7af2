//! Hints about partitions that may have ready jobs of a spread queue, and the one where the next consume starts. A
//! partition without a hint was seen empty, and is not read again after each job while the queue is watched. Uses no
//! connection.

use super::cluster::map::Partition;

/// Hints for the partitions of one queue.
#[derive(Debug)]
pub struct Hints {
    each: Vec<Hint>,
    /// Number of the last notice or question. A reply may arrive after a newer notice that it does not cover.
    count: u64,
    /// Partition where the next consume begins.
    next: Partition,
    /// Number of the last time that partitions without a hint might have jobs all the same.
    unread: u64,
    /// Number of the last such time before all partitions were read.
    read: u64,
    /// Whether the last consume that found no more hints had read partitions with hints. The next one, if it finds no
    /// hint at all, was probably requested by a notice that the last one has followed too.
    pub followed: bool,
    /// Jobs that each partition of the last round had, if that was fewer than requested; decides how many partitions
    /// are consumed from concurrently.
    pub few: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Hint {
    /// Number of the last notice that a job is ready.
    notified: u64,
    /// Number of the last question whose reply was empty.
    empty: u64,
}

/// A question sent to a partition.
#[derive(Clone, Copy, Debug)]
pub struct Question(u64);

/// A reading of all partitions.
#[derive(Clone, Copy, Debug)]
pub struct Reading(u64);

impl Hints {
    /// Returns hints that any partition may have jobs.
    pub fn new(count: u16) -> Hints {
        Hints {
            each: vec![Hint { notified: 1, empty: 0 }; count.into()],
            count: 1,
            next: 0,
            unread: 1,
            read: 0,
            followed: false,
            few: None,
        }
    }

    /// Records that partitions without a hint may have jobs: the queue begins to be watched, or a partition could not be
    /// read.
    pub fn mark_unread(&mut self) {
        self.unread += 1;
    }

    /// Numbers a reading of all partitions that begins.
    pub fn begin_reading(&self) -> Reading {
        Reading(self.unread)
    }

    /// Records that all partitions were read.
    pub fn end_reading(&mut self, Reading(unread): Reading) {
        self.read = self.read.max(unread);
    }

    /// Whether all partitions were read after the queue began to be watched.
    pub fn is_read(&self) -> bool {
        self.read == self.unread
    }

    /// Numbers a question that is about to be sent.
    pub fn asks(&mut self) -> Question {
        self.count += 1;
        Question(self.count)
    }

    /// Records a partition's reply that it has no more jobs.
    pub fn is_empty(&mut self, partition: Partition, Question(asked): Question) {
        let hint = &mut self.each[usize::from(partition)];
        hint.empty = hint.empty.max(asked);
    }

    /// Records that a job may have become ready in a partition.
    pub fn notify(&mut self, partition: Partition) {
        self.count += 1;
        self.each[usize::from(partition)].notified = self.count;
    }

    pub fn notify_all(&mut self) {
        self.count += 1;
        self.each.iter_mut().for_each(|hint| hint.notified = self.count);
    }

    /// Returns up to `most` partitions that may have jobs and are not `left_out`, in rotation. The next consume begins
    /// after them.
    pub fn take(&mut self, most: usize, left_out: impl Fn(Partition) -> bool) -> Vec<Partition> {
        let count = self.each.len() as u16; // the length came from a `u16`
        let may_have = |partition: &Partition| {
            let hint = &self.each[usize::from(*partition)];
            hint.notified > hint.empty && !left_out(*partition)
        };
        let all = (0..count).map(|n| nth(self.next, n, count));
        let taken: Vec<Partition> = all.filter(may_have).take(most).collect();
        if let Some(last) = taken.last() {
            self.next = nth(*last, 1, count);
        }
        taken
    }
}

/// Returns the n-th partition after this one in rotation. The step is odd, so it visits every partition of a power of
/// two. It is large because masters hold ranges of partitions, so that each step changes the master.
pub fn nth(partition: Partition, n: u16, count: u16) -> Partition {
    let step = (u32::from(count) * 3 / 8) | 1;
    ((u32::from(partition) + u32::from(n) * step) % u32::from(count)) as Partition
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(hints: &mut Hints, most: usize) -> Vec<Partition> {
        hints.take(most, |_| false)
    }

    #[test]
    fn consumes_rotate_over_the_partitions_that_may_have_jobs() {
        let mut hints = Hints::new(4);
        let turns = [taken(&mut hints, 1), taken(&mut hints, 2), taken(&mut hints, 9)];
        assert_eq!(turns, [vec![0], vec![1, 2], vec![3, 0, 1, 2]]);
        let asked = hints.asks();
        hints.is_empty(1, asked);
        assert_eq!(taken(&mut hints, 9), [3, 0, 2]);
        assert_eq!(hints.take(9, |partition| partition == 0), [3, 2], "the other partition cannot be asked");
    }

    /// Guards against a lost wake-up: a reply sent before a notice arrives after it, and must not overrule it.
    #[test]
    fn a_notice_after_a_question_was_sent_counts() {
        let mut hints = Hints::new(2);
        let asked = hints.asks();
        hints.notify(1);
        hints.is_empty(0, asked);
        hints.is_empty(1, asked);
        assert_eq!(taken(&mut hints, 9), [1]);
        let later = hints.asks();
        hints.is_empty(1, later);
        hints.is_empty(1, asked);
        assert_eq!(taken(&mut hints, 9), [0_u16; 0], "an answer to an earlier question is of before");
        hints.notify_all();
        assert_eq!(taken(&mut hints, 9).len(), 2);
    }

    /// Guards against jobs that nobody consumes: they came before the queue was watched, in a partition that was read
    /// before as well.
    #[test]
    fn partitions_read_before_the_queue_was_watched_again_are_unread() {
        let mut hints = Hints::new(2);
        assert!(!hints.is_read(), "nothing was read yet");
        let early = hints.begin_reading();
        hints.mark_unread();
        hints.end_reading(early);
        assert!(!hints.is_read(), "it was watched while they were read");
        let all = hints.begin_reading();
        hints.end_reading(all);
        assert!(hints.is_read());
        hints.end_reading(early);
        assert!(hints.is_read(), "an older reading ends later");
        hints.mark_unread();
        assert!(!hints.is_read());
    }
}
