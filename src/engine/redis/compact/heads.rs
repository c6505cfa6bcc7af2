//! What this process knows of the ready jobs of a queue that is spread: for each partition since when its oldest one may be
//! ready. It decides which partition is asked next, and up to when jobs may have become ready that it hands out, so that
//! none overtakes an older one of another partition by more than the bound. Asks nobody.

use super::partitions::Partition;
use crate::clock::Micros;

/// One partition.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// No ready job is older, as was seen last.
    least: Micros,
    /// There is one, as was seen last.
    has: bool,
    /// This process was told of one since it began to ask last: the answer may not know of it.
    told: bool,
}

/// Nobody has asked.
const UNSURE: Head = Head { least: 0, has: false, told: true };

/// All partitions.
#[derive(Debug)]
pub struct Heads {
    each: Vec<Head>,
}

/// Which partition is to be asked.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one, for jobs that have become ready until then.
    Ask(Partition, Micros),
    /// It is not known whether these have older ones.
    Look(Vec<Partition>),
    /// None is known to have any.
    Nothing,
}

impl Heads {
    pub fn new(count: u16) -> Heads {
        Heads { each: vec![UNSURE; count.into()] }
    }

    /// These are about to be asked.
    pub fn asks(&mut self, parts: &[Partition]) {
        parts.iter().for_each(|partition| self.each[usize::from(*partition)].told = false);
    }

    /// A partition has said since when its first entry is ready; or, at this time, that it has none.
    pub fn seen(&mut self, partition: Partition, first: Option<Micros>, at: Micros) {
        let head = &mut self.each[usize::from(partition)];
        (head.least, head.has) = (first.unwrap_or(at), first.is_some());
    }

    /// A job became ready there.
    pub fn ready(&mut self, partition: Partition, at: Micros) {
        let head = &mut self.each[usize::from(partition)];
        let least = if head.has { head.least.min(at) } else { at };
        *head = Head { least, has: true, told: true };
    }

    /// A job may have become ready there.
    pub fn told(&mut self, partition: Partition) {
        self.each[usize::from(partition)].told = true;
    }

    /// The same of every partition.
    pub fn look_again(&mut self) {
        self.each.iter_mut().for_each(|head| head.told = true);
    }

    /// A job may be ready there that is older than what was seen.
    pub fn unsure(&mut self, partition: Partition) {
        self.each[usize::from(partition)] = UNSURE;
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        self.each.fill(UNSURE);
    }

    /// Where there may be a job that this process was told of.
    pub fn all_told(&self) -> Vec<Partition> {
        self.each.iter().zip(0..).filter(|(head, _)| head.told).map(|(_, partition)| partition).collect()
    }

    /// Among those partitions that can be asked: the one with the oldest job, when no other one may have a job that is
    /// older by more than `ahead`.
    pub fn choose(&self, ahead: Micros, can_be_asked: impl Fn(Partition) -> bool) -> Choice {
        let all = || self.each.iter().zip(0..).filter(|(_, partition)| can_be_asked(*partition));
        let oldest =
            all().filter(|(head, _)| head.has).min_by_key(|(head, partition)| (head.least, *partition));
        let Some((oldest, chosen)) = oldest else { return Choice::Nothing };
        let others = || all().filter(|(_, partition)| *partition != chosen);
        let unsure: Vec<Partition> = others()
            .filter(|(head, _)| head.least.saturating_add(ahead) < oldest.least)
            .map(|(_, partition)| partition)
            .collect();
        if !unsure.is_empty() {
            return Choice::Look(unsure);
        }
        let least = others().map(|(head, _)| head.least).min();
        Choice::Ask(
            chosen,
            least.map_or(Micros::MAX >> 11, |least| least.saturating_add(ahead).max(oldest.least)),
        )
    }
}

impl Heads {
    /// The same of as many as may be asked at the same time: what any of them hands out is newer than the oldest job of each
    /// other one by no more than `ahead`.
    pub fn choose_some(
        &self,
        ahead: Micros,
        can_be_asked: impl Fn(Partition) -> bool,
        most: usize,
    ) -> Vec<(Partition, Micros)> {
        let all = || self.each.iter().zip(0..).filter(|(_, partition)| can_be_asked(*partition));
        let asked = all().filter(|(head, _)| head.has).filter_map(|(head, partition)| {
            let others = all().filter(|(_, other)| *other != partition).map(|(other, _)| other.least);
            let until = others.min().map_or(Micros::MAX >> 11, |least| least.saturating_add(ahead));
            (head.least <= until).then_some((partition, until))
        });
        asked.take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    #[test]
    fn the_oldest_is_asked_and_may_go_ahead_of_the_others_by_the_bound() {
        let mut heads = Heads::new(3);
        let any = |_| true;
        assert_eq!(heads.choose(SECOND, any), Choice::Nothing);
        heads.ready(1, 100 * SECOND);
        assert_eq!(heads.choose(SECOND, any), Choice::Look(vec![0, 2]), "nobody has looked there");
        heads.seen(0, None, 100 * SECOND + 500);
        heads.seen(2, Some(100 * SECOND + 200), 0);
        assert_eq!(heads.choose(SECOND, any), Choice::Ask(1, 101 * SECOND + 200));
        heads.seen(1, Some(100 * SECOND + 300), 0);
        assert_eq!(heads.choose(SECOND, any), Choice::Ask(2, 101 * SECOND + 300));
        heads.seen(1, Some(102 * SECOND), 0);
        heads.seen(2, None, 102 * SECOND);
        assert_eq!(heads.choose(SECOND, any), Choice::Look(vec![0]), "an older one may have come there");
        assert_eq!(heads.choose(SECOND, |n| n != 0), Choice::Ask(1, 103 * SECOND), "it cannot be asked");
        assert_eq!(heads.choose(SECOND, |n| n == 1), Choice::Ask(1, Micros::MAX >> 11), "there is no other");
    }

    #[test]
    fn several_are_asked_at_the_same_time_unless_one_is_too_far_ahead() {
        let mut heads = Heads::new(3);
        for (partition, first) in [(0, 100), (1, 100), (2, 102)] {
            heads.seen(partition, Some(first * SECOND), 0);
        }
        assert_eq!(heads.choose_some(SECOND, |_| true, 9), [(0, 101 * SECOND), (1, 101 * SECOND)]);
        assert_eq!(heads.choose_some(SECOND, |_| true, 1), [(0, 101 * SECOND)]);
        assert_eq!(heads.choose_some(SECOND, |n| n == 2, 9), [(2, Micros::MAX >> 11)]);
        heads.seen(1, None, 50 * SECOND);
        assert_eq!(heads.choose_some(SECOND, |_| true, 9), [], "an older one may have come there");
    }

    #[test]
    fn what_comes_back_is_older_than_what_is_there() {
        let mut heads = Heads::new(2);
        heads.seen(0, Some(9), 0);
        heads.seen(1, Some(5), 0);
        heads.ready(0, 3);
        assert_eq!(heads.choose(0, |_| true), Choice::Ask(0, 5));
        heads.ready(0, 7);
        assert_eq!(heads.choose(0, |_| true), Choice::Ask(0, 5), "it is behind");
        heads.forget();
        assert_eq!(heads.choose(0, |_| true), Choice::Nothing);
    }

    /// Guards against a job beside which its consumer sleeps, since an answer that knows nothing of it came after its notice.
    #[test]
    fn what_was_told_after_a_question_was_sent_is_asked_for_again() {
        let mut heads = Heads::new(3);
        assert_eq!(heads.all_told(), [0, 1, 2], "nobody has asked");
        heads.asks(&[0, 1, 2]);
        heads.told(1);
        heads.ready(2, 7);
        for partition in 0..3 {
            heads.seen(partition, None, 5);
        }
        assert_eq!(heads.all_told(), [1, 2]);
        heads.asks(&[1, 2]);
        assert_eq!(heads.all_told(), [0_u16; 0]);
        heads.unsure(0);
        assert_eq!(heads.all_told(), [0], "it could not be asked");
    }
}
