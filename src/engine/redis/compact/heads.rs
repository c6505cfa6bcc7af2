//! What this process knows of the ready jobs of a queue that is spread: for each partition since when its oldest one may be
//! ready. It decides which partition is asked next, and up to when jobs may have become ready that it hands out, so that
//! none overtakes an older one of another partition by more than the bound. Asks nobody.

use super::partitions::Partition;
use crate::clock::Micros;

/// One partition. Notices and questions are numbered in one row, for answers may come in another order than the questions
/// were sent in, and later than a notice that they know nothing of.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// No ready job is older.
    least: Micros,
    /// Since when the oldest is ready that is known.
    first: Option<Micros>,
    /// The last notice of a job.
    told: u64,
    /// The last question that was answered.
    answered: u64,
}

/// All partitions.
#[derive(Debug)]
pub struct Heads {
    each: Vec<Head>,
    /// The last number of a notice or a question.
    count: u64,
}

/// A question that was sent to partitions.
#[derive(Clone, Copy, Debug)]
pub struct Question(u64);

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
    /// Nobody has asked.
    pub fn new(count: u16) -> Heads {
        let head = Head { least: 0, first: None, told: 1, answered: 0 };
        Heads { each: vec![head; count.into()], count: 1 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Partitions are about to be asked.
    pub fn asks(&mut self) -> Question {
        Question(self.next())
    }

    /// A partition has said since when its first entry is ready; or, at this time, that it has none.
    pub fn seen(
        &mut self,
        partition: Partition,
        first: Option<Micros>,
        at: Micros,
        Question(asked): Question,
    ) {
        let head = &mut self.each[usize::from(partition)];
        if asked < head.answered {
            return;
        }
        head.answered = asked;
        let least = first.unwrap_or(at);
        if head.told > asked {
            // What was told meanwhile may not be in the answer.
            (head.least, head.first) = (head.least.min(least), head.first.into_iter().chain(first).min());
        } else {
            (head.least, head.first) = (least, first);
        }
    }

    /// A job became ready there. Others may have become ready before, of which nothing was told.
    pub fn ready(&mut self, partition: Partition, at: Micros) {
        let told = self.next();
        let head = &mut self.each[usize::from(partition)];
        head.least = head.least.min(at);
        head.first = Some(head.first.map_or(at, |first| first.min(at)));
        head.told = told;
    }

    /// A job may have become ready there.
    pub fn told(&mut self, partition: Partition) {
        self.each[usize::from(partition)].told = self.next();
    }

    /// The same of every partition.
    pub fn told_everywhere(&mut self) {
        let told = self.next();
        self.each.iter_mut().for_each(|head| head.told = told);
    }

    /// A job may be ready there that is older than what was seen.
    pub fn unsure(&mut self, partition: Partition) {
        let told = self.next();
        let head = &mut self.each[usize::from(partition)];
        *head = Head { least: 0, first: None, told, ..*head };
    }

    /// Nothing is known any more.
    pub fn forget(&mut self) {
        let told = self.next();
        self.each.iter_mut().for_each(|head| *head = Head { least: 0, first: None, told, ..*head });
    }

    /// Where there may be a job that this process was told of.
    pub fn all_told(&self) -> Vec<Partition> {
        let told = self.each.iter().zip(0..).filter(|(head, _)| head.told > head.answered);
        told.map(|(_, partition)| partition).collect()
    }

    /// Among those partitions that can be asked: the one with the oldest job, when no other one may have a job that is
    /// older by more than `ahead`.
    pub fn choose(&self, ahead: Micros, can_be_asked: impl Fn(Partition) -> bool) -> Choice {
        let all = || self.each.iter().zip(0..).filter(|(_, partition)| can_be_asked(*partition));
        let oldest = all().filter_map(|(head, partition)| Some((head.first?, partition))).min();
        let Some((oldest, chosen)) = oldest else { return Choice::Nothing };
        let others = || all().filter(|(_, partition)| *partition != chosen);
        let unsure: Vec<Partition> = others()
            .filter(|(head, _)| head.least.saturating_add(ahead) < oldest)
            .map(|(_, partition)| partition)
            .collect();
        if !unsure.is_empty() {
            return Choice::Look(unsure);
        }
        let least = others().map(|(head, _)| head.least).min();
        Choice::Ask(chosen, least.map_or(Micros::MAX >> 11, |least| least.saturating_add(ahead).max(oldest)))
    }

    /// The same of as many as may be asked at the same time, those with the oldest jobs first: what any of them hands out is
    /// newer than the oldest job of each other one by no more than `ahead`.
    pub fn choose_some(
        &self,
        ahead: Micros,
        can_be_asked: impl Fn(Partition) -> bool,
        most: usize,
    ) -> Vec<(Partition, Micros)> {
        let all = || self.each.iter().zip(0..).filter(|(_, partition)| can_be_asked(*partition));
        // The oldest of the others is the oldest of all, or for that one the second.
        let mut least: [Option<(Micros, Partition)>; 2] = [None; 2];
        for (head, partition) in all() {
            let this = (head.least, partition);
            if least[0].is_none_or(|first| this < first) {
                least = [Some(this), least[0]];
            } else if least[1].is_none_or(|second| this < second) {
                least[1] = Some(this);
            }
        }
        let asked = all().filter_map(|(head, partition)| {
            let others = least.into_iter().flatten().find(|(_, other)| *other != partition);
            let until = others.map_or(Micros::MAX >> 11, |(least, _)| least.saturating_add(ahead));
            head.first.filter(|first| *first <= until).map(|first| (first, partition, until))
        });
        let mut asked: Vec<_> = asked.collect();
        asked.sort_unstable();
        asked.into_iter().take(most).map(|(_, partition, until)| (partition, until)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = 1_000_000;

    impl Heads {
        /// It is asked, and says so.
        fn says(&mut self, partition: Partition, first: Option<Micros>, at: Micros) {
            let asked = self.asks();
            self.seen(partition, first, at, asked);
        }
    }

    #[test]
    fn the_oldest_is_asked_and_may_go_ahead_of_the_others_by_the_bound() {
        let mut heads = Heads::new(3);
        let any = |_| true;
        assert_eq!(heads.choose(SECOND, any), Choice::Nothing);
        heads.ready(1, 100 * SECOND);
        assert_eq!(heads.choose(SECOND, any), Choice::Look(vec![0, 2]), "nobody has looked there");
        heads.says(0, None, 100 * SECOND + 500);
        heads.says(2, Some(100 * SECOND + 200), 0);
        assert_eq!(heads.choose(SECOND, any), Choice::Ask(1, 101 * SECOND + 200));
        heads.says(1, Some(100 * SECOND + 300), 0);
        assert_eq!(heads.choose(SECOND, any), Choice::Ask(2, 101 * SECOND + 300));
        heads.says(1, Some(102 * SECOND), 0);
        heads.says(2, None, 102 * SECOND);
        assert_eq!(heads.choose(SECOND, any), Choice::Look(vec![0]), "an older one may have come there");
        assert_eq!(heads.choose(SECOND, |n| n != 0), Choice::Ask(1, 103 * SECOND), "it cannot be asked");
        assert_eq!(heads.choose(SECOND, |n| n == 1), Choice::Ask(1, Micros::MAX >> 11), "there is no other");
    }

    #[test]
    fn several_are_asked_at_the_same_time_unless_one_is_too_far_ahead() {
        let mut heads = Heads::new(3);
        for (partition, first) in [(0, 100), (1, 100), (2, 102)] {
            heads.says(partition, Some(first * SECOND), 0);
        }
        assert_eq!(heads.choose_some(SECOND, |_| true, 9), [(0, 101 * SECOND), (1, 101 * SECOND)]);
        assert_eq!(heads.choose_some(SECOND, |_| true, 1), [(0, 101 * SECOND)]);
        assert_eq!(
            heads.choose_some(9 * SECOND, |n| n != 1, 9).into_iter().map(|(n, _)| n).collect::<Vec<_>>(),
            [0, 2]
        );
        heads.says(0, Some(103 * SECOND), 0);
        let oldest: Vec<Partition> =
            heads.choose_some(9 * SECOND, |_| true, 2).into_iter().map(|(partition, _)| partition).collect();
        assert_eq!(oldest, [1, 2], "the oldest first");
        heads.says(0, Some(100 * SECOND), 0);
        assert_eq!(heads.choose_some(SECOND, |n| n == 2, 9), [(2, Micros::MAX >> 11)]);
        heads.says(1, None, 50 * SECOND);
        assert_eq!(heads.choose_some(SECOND, |_| true, 9), [], "an older one may have come there");
    }

    #[test]
    fn what_comes_back_is_older_than_what_is_there() {
        let mut heads = Heads::new(2);
        heads.says(0, Some(9), 0);
        heads.says(1, Some(5), 0);
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
        let asked = heads.asks();
        heads.told(1);
        heads.ready(2, 7);
        for partition in 0..3 {
            heads.seen(partition, None, 5, asked);
        }
        assert_eq!(heads.all_told(), [1, 2]);
        let asked = heads.asks();
        assert_eq!(heads.all_told(), [1, 2], "no answer has come");
        [1, 2].into_iter().for_each(|partition| heads.seen(partition, None, 9, asked));
        assert_eq!(heads.all_told(), [0_u16; 0]);
        heads.unsure(0);
        assert_eq!(heads.all_told(), [0], "it could not be asked");
    }

    /// Guards against a consumer that sleeps beside a job, since the slow answer of somebody else was of before.
    #[test]
    fn an_answer_to_an_earlier_question_is_of_before() {
        let mut heads = Heads::new(1);
        let early = heads.asks();
        heads.told(0);
        heads.says(0, Some(7), 0);
        heads.seen(0, None, 6, early);
        assert_eq!(heads.choose(SECOND, |_| true), Choice::Ask(0, Micros::MAX >> 11));
    }

    /// Guards against jobs that overtake an older one of another server, since this one has published there itself.
    #[test]
    fn what_is_told_of_one_job_says_nothing_of_older_ones() {
        let mut heads = Heads::new(2);
        heads.says(0, None, 100 * SECOND);
        heads.says(1, None, 100 * SECOND);
        heads.ready(1, 105 * SECOND);
        heads.ready(0, 110 * SECOND);
        assert_eq!(heads.choose(SECOND, |_| true), Choice::Look(vec![0]), "one of 101 may be there");
    }
}
