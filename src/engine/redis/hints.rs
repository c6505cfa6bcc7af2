//! Which partitions may have ready jobs of a spread queue, as far as this process knows, and which one is consumed from next.
//! Nothing depends on it but the order in which partitions are asked. Asks nobody.

use super::cluster::map::Partition;

/// What is known of the partitions of one queue.
#[derive(Debug)]
pub struct Hints {
    each: Vec<Hint>,
    /// The last number of a notice or a question: answers may come later than a notice that they know nothing of.
    count: u64,
    /// Where the next consume begins.
    next: Partition,
}

#[derive(Clone, Copy, Debug)]
struct Hint {
    /// The number of the last notice of a job.
    told: u64,
    /// The last question whose answer found no more jobs there.
    empty: u64,
}

/// A question that is sent to a partition.
#[derive(Clone, Copy, Debug)]
pub struct Question(u64);

impl Hints {
    /// Any partition may have jobs.
    pub fn new(count: u16) -> Hints {
        Hints { each: vec![Hint { told: 1, empty: 0 }; count.into()], count: 1, next: 0 }
    }

    /// A partition is about to be asked.
    pub fn asks(&mut self) -> Question {
        self.count += 1;
        Question(self.count)
    }

    /// It has answered that it has no more jobs.
    pub fn is_empty(&mut self, partition: Partition, Question(asked): Question) {
        let hint = &mut self.each[usize::from(partition)];
        hint.empty = hint.empty.max(asked);
    }

    /// A job may have become ready there.
    pub fn told(&mut self, partition: Partition) {
        self.count += 1;
        self.each[usize::from(partition)].told = self.count;
    }

    pub fn told_everywhere(&mut self) {
        self.count += 1;
        self.each.iter_mut().for_each(|hint| hint.told = self.count);
    }

    /// Up to `most` partitions that may have jobs, and are not `left_out`, in turn. The next consume begins behind them.
    pub fn take(&mut self, most: usize, left_out: impl Fn(Partition) -> bool) -> Vec<Partition> {
        let count = self.each.len() as u16; // made from one
        let may_have = |partition: &Partition| {
            let hint = &self.each[usize::from(*partition)];
            hint.told > hint.empty && !left_out(*partition)
        };
        let all = (0..count).map(|n| nth(self.next, n, count));
        let taken: Vec<Partition> = all.filter(may_have).take(most).collect();
        if let Some(last) = taken.last() {
            self.next = nth(*last, 1, count);
        }
        taken
    }
}

/// The n-th partition in turn behind this one. An odd step comes by every one of a power of two, and this one is to another
/// master each time, since partitions lie on the masters in ranges.
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
        assert_eq!(hints.take(9, |partition| partition == 0), [3, 2], "that one cannot be asked");
    }

    /// Guards against a job beside which its consumer sleeps, since an answer that knows nothing of it came after its notice.
    #[test]
    fn a_notice_after_a_question_was_sent_counts() {
        let mut hints = Hints::new(2);
        let asked = hints.asks();
        hints.told(1);
        hints.is_empty(0, asked);
        hints.is_empty(1, asked);
        assert_eq!(taken(&mut hints, 9), [1]);
        let later = hints.asks();
        hints.is_empty(1, later);
        hints.is_empty(1, asked);
        assert_eq!(taken(&mut hints, 9), [0_u16; 0], "an answer to an earlier question is of before");
        hints.told_everywhere();
        assert_eq!(taken(&mut hints, 9).len(), 2);
    }
}
