//! Decides which Redis is the master from the replies of all Sentinels. Pure rules: makes no call and reads no clock.
//!
//! - The highest *configuration epoch* wins, as it does between Sentinels: each failover has a higher epoch than all
//!   earlier ones. A Sentinel that was partitioned from the others and still names the old master has a lower one. A
//!   majority would be wrong here: right after a failover most Sentinels do not know of it, for up to two seconds.
//! - If several addresses have that epoch, the one named by most Sentinels wins; in a tie, the current master.
//! - An epoch lower than the current master's is accepted only if more than half of the configured Sentinels have
//!   replied with lower epochs for [`GOSSIP`], and none with the current one: the Sentinels were reinstalled, or the
//!   failover was undone.
//! - The first master is accepted once more than half have replied, or all were asked.
//! - While no Sentinel replies, the current master stays.

use std::time::Duration;

use tokio::time::Instant;

use super::fault::{Fault, Outcome};
use super::open::{Ends, HostPort};

/// How long the old master is not used after a Sentinel announced a promotion. Sentinels ask the replica every second
/// whether it is a master. After this time the old master is used again if they still name it.
const PROMOTION: Duration = Duration::from_secs(5);

/// How long Sentinels may take to learn of a failover: they exchange state every two seconds.
const GOSSIP: Duration = Duration::from_secs(5);

/// The current master.
#[derive(Clone, Debug)]
pub struct Master {
    pub address: HostPort,
    /// Closes its connections when it is no longer the master.
    pub ends: Ends,
}

/// The master as callers that connect see it.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The Sentinels have not replied yet.
    Asking,
    /// No Sentinel names a master.
    Nobody(Fault),
    /// The old master is no longer used, and the next one is unknown.
    Between,
    Master(Master),
}

/// The master named by a Sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub address: HostPort,
    /// Counts the failovers of all masters that these Sentinels monitor.
    pub epoch: u64,
}

/// The last reply of one Sentinel.
#[derive(Clone, Debug)]
enum SentinelAnswer {
    NotAsked,
    /// Names no master, or could not be asked.
    None(Fault),
    Named(Named),
}

/// The chosen master and the state that the choice depends on. Pure rules: makes no call and reads no clock.
#[derive(Debug)]
pub struct MasterChoice {
    answers: Vec<SentinelAnswer>,
    pub master: Option<(Named, Ends)>,
    /// The master is not used until this instant, unless another is named earlier.
    left_until: Option<Instant>,
    /// Since when most Sentinels have replied with lower epochs only.
    older_since: Option<Instant>,
}

impl MasterChoice {
    pub fn new(sentinels: usize) -> MasterChoice {
        let answers = vec![SentinelAnswer::NotAsked; sentinels];
        MasterChoice { answers, master: None, left_until: None, older_since: None }
    }

    /// Records a Sentinel's reply. Returns the new state for callers that connect, if it changed.
    pub fn learn(&mut self, index: usize, answer: Outcome<Named>, now: Instant) -> Option<Lookup> {
        self.answers[index] = match answer {
            Ok(named) => SentinelAnswer::Named(named),
            Err(fault) => SentinelAnswer::None(fault),
        };
        let Some(named) = self.decide(now) else { return self.nobody() };
        let same = self.master.as_mut().filter(|(master, _)| master.address == named.address);
        if let Some((master, _)) = same {
            master.epoch = named.epoch;
            if self.left_until.is_none_or(|until| now < until) {
                return None;
            }
        }
        let next = Master { address: named.address.clone(), ends: Ends::default() };
        self.master = Some((named, next.ends.clone()));
        self.left_until = None;
        Some(Lookup::Master(next))
    }

    /// Records that the master is about to be replaced. Returns the same as [`learn`](MasterChoice::learn).
    pub fn leave(&mut self, address: &HostPort, now: Instant) -> Option<Lookup> {
        let (master, _) = self.master.as_ref()?;
        if master.address != *address || self.left_until.is_some() {
            return None;
        }
        self.left_until = Some(now + PROMOTION);
        Some(Lookup::Between)
    }

    fn decide(&mut self, now: Instant) -> Option<Named> {
        let named: Vec<&Named> = self
            .answers
            .iter()
            .filter_map(|answer| match answer {
                SentinelAnswer::Named(named) => Some(named),
                _ => None,
            })
            .collect();
        let present = self.master.as_ref().map(|(master, _)| master);
        let most = named.len() > self.answers.len() / 2;
        let Some(newest) = named.iter().map(|named| named.epoch).max() else { return present.cloned() };
        let older = present.is_some_and(|present| newest < present.epoch);
        let since = if older && most { self.older_since.or(Some(now)) } else { None };
        self.older_since = since;
        if older && since.is_none_or(|since| now < since + GOSSIP) {
            return present.cloned();
        }
        if present.is_none() && !most && self.answers.iter().any(|a| matches!(a, SentinelAnswer::NotAsked)) {
            return None;
        }
        let voters = |address: &HostPort| {
            named.iter().filter(|named| named.epoch == newest && named.address == *address).count()
        };
        let is_present = |address: &HostPort| present.is_some_and(|present| present.address == *address);
        let newest = named.iter().filter(|named| named.epoch == newest);
        // `max_by_key` returns the last maximum, so in a complete tie the first configured Sentinel wins.
        newest
            .rev()
            .max_by_key(|named| (voters(&named.address), is_present(&named.address)))
            .map(|named| (**named).clone())
    }

    /// Returns why no master is known, once all Sentinels were asked.
    fn nobody(&self) -> Option<Lookup> {
        let mut why = None;
        for answer in &self.answers {
            match answer {
                SentinelAnswer::NotAsked => return None,
                // A refusal says more than a missing reply.
                SentinelAnswer::None(fault) if why.is_none() || fault.is_refusal() => {
                    why = Some(fault.clone())
                }
                _ => {}
            }
        }
        why.map(Lookup::Nobody)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> HostPort {
        HostPort { host: "10.0.0.1".into(), port }
    }

    fn named(port: u16, epoch: u64) -> Outcome<Named> {
        Ok(Named { address: at(port), epoch })
    }

    fn away() -> Outcome<Named> {
        Err(Fault::away("no answer"))
    }

    /// Returns the port of the master found, or the other state in words.
    fn said(found: Option<Lookup>) -> Result<u16, &'static str> {
        match found {
            None => Err("nothing new"),
            Some(Lookup::Master(master)) => Ok(master.address.port),
            Some(Lookup::Between) => Err("between"),
            Some(Lookup::Nobody(_)) => Err("nobody"),
            Some(Lookup::Asking) => Err("asking"),
        }
    }

    /// Returns a choice after three Sentinels have named the same master.
    fn agreed(port: u16, epoch: u64) -> MasterChoice {
        let mut choice = MasterChoice::new(3);
        for index in 0..3 {
            choice.learn(index, named(port, epoch), Instant::now());
        }
        choice
    }

    fn learn(choice: &mut MasterChoice, index: usize, answer: Outcome<Named>) -> Result<u16, &'static str> {
        said(choice.learn(index, answer, Instant::now()))
    }

    #[tokio::test]
    async fn the_first_master_is_believed_from_most_or_when_all_were_asked() {
        let mut choice = MasterChoice::new(3);
        assert_eq!(learn(&mut choice, 0, named(1, 4)), Err("nothing new"), "one of three may be cut off");
        assert_eq!(learn(&mut choice, 1, named(2, 5)), Ok(2), "two of three, and the second knows more");
        let mut choice = MasterChoice::new(3);
        assert_eq!(learn(&mut choice, 0, away()), Err("nothing new"), "the others may be there");
        assert_eq!(learn(&mut choice, 1, away()), Err("nothing new"), "the last one may name a master too");
        assert_eq!(learn(&mut choice, 2, named(1, 0)), Ok(1), "all were asked");
        let mut choice = MasterChoice::new(2);
        assert_eq!(learn(&mut choice, 0, Err(Fault::refused("no such master"))), Err("nothing new"));
        let found = choice.learn(1, away(), Instant::now());
        assert!(
            matches!(&found, Some(Lookup::Nobody(why)) if why.to_string() == "no such master"),
            "the reason is a Sentinel's reply, not that another Sentinel is unavailable: {found:?}"
        );
        assert_eq!(learn(&mut choice, 1, named(7, 0)), Ok(7), "one that is back is believed");
    }

    #[tokio::test]
    async fn the_newest_epoch_wins_also_alone() {
        let mut choice = agreed(1, 4);
        assert_eq!(learn(&mut choice, 2, named(2, 5)), Ok(2), "the leader of the failover says so first");
        assert_eq!(learn(&mut choice, 0, named(1, 4)), Err("nothing new"), "the others have not heard yet");
        assert_eq!(
            learn(&mut choice, 1, named(1, 4)),
            Err("nothing new"),
            "the second has not heard yet either"
        );
        assert_eq!(learn(&mut choice, 0, named(2, 5)), Err("nothing new"), "now they have");
        assert_eq!(learn(&mut choice, 2, away()), Err("nothing new"), "the leader is unavailable");
        assert_eq!(
            learn(&mut choice, 1, named(1, 4)),
            Err("nothing new"),
            "one that is cut off is not believed"
        );
    }

    #[tokio::test]
    async fn an_older_epoch_needs_more_than_half_of_the_sentinels_for_a_while() {
        let mut choice = agreed(1, 4);
        let now = Instant::now();
        let mut learn = |index, answer, after: Duration| said(choice.learn(index, answer, now + after));
        let (zero, later) = (Duration::ZERO, 3 * GOSSIP);
        assert_eq!(learn(2, named(2, 5), zero), Ok(2), "a failover");
        assert_eq!(learn(0, away(), zero), Err("nothing new"), "one is away");
        assert_eq!(learn(2, away(), zero), Err("nothing new"), "the leader is too");
        assert_eq!(learn(1, named(1, 4), later), Err("nothing new"), "one of three names the old one");
        assert_eq!(learn(0, named(1, 4), later), Err("nothing new"), "two do, but may not have heard");
        assert_eq!(learn(2, named(2, 5), later), Err("nothing new"), "the leader is back");
        assert_eq!(learn(2, away(), later), Err("nothing new"), "and gone");
        assert_eq!(learn(1, named(1, 4), later + GOSSIP / 2), Err("nothing new"), "the time began anew");
        assert_eq!(learn(0, named(1, 4), later + GOSSIP), Ok(1), "the failover was undone");
        // The Sentinels were reinstalled and start at epoch 0.
        let later = 2 * later;
        for index in 0..3 {
            assert_eq!(learn(index, named(3, 0), later), Err("nothing new"), "number {index} is new");
        }
        assert_eq!(learn(2, named(3, 0), later + GOSSIP), Ok(3), "all of them are");
    }

    #[tokio::test]
    async fn equal_epochs_are_counted_and_the_present_master_wins_a_draw() {
        let mut choice = agreed(1, 4);
        assert_eq!(learn(&mut choice, 0, named(2, 4)), Err("nothing new"), "one against two");
        assert_eq!(learn(&mut choice, 1, away()), Err("nothing new"), "one against one");
        assert_eq!(learn(&mut choice, 1, named(2, 4)), Ok(2), "two against one");
    }

    #[tokio::test]
    async fn the_master_stays_while_no_sentinel_answers() {
        let mut choice = agreed(1, 4);
        for index in 0..3 {
            assert_eq!(learn(&mut choice, index, away()), Err("nothing new"), "it may be well");
        }
    }

    #[tokio::test]
    async fn a_master_is_left_before_a_promotion_and_taken_again_if_none_comes_of_it() {
        let mut choice = agreed(1, 4);
        let now = Instant::now();
        assert_eq!(said(choice.leave(&at(9), now)), Err("nothing new"), "this is not the master");
        assert_eq!(said(choice.leave(&at(1), now)), Err("between"), "a replica will be promoted");
        assert_eq!(said(choice.leave(&at(1), now)), Err("nothing new"), "that is known");
        let (early, late) = (now + PROMOTION / 2, now + PROMOTION);
        assert_eq!(said(choice.learn(0, named(1, 4), early)), Err("nothing new"), "it is not promoted yet");
        assert_eq!(said(choice.learn(0, named(1, 4), late)), Ok(1), "it never was");
        assert_eq!(said(choice.learn(1, named(1, 4), late)), Err("nothing new"), "once is enough");
        assert_eq!(said(choice.leave(&at(1), late)), Err("between"), "another attempt");
        assert_eq!(said(choice.learn(1, named(2, 6), late)), Ok(2), "it was promoted");
        assert_eq!(said(choice.learn(2, named(2, 6), late + PROMOTION)), Err("nothing new"), "and stays so");
    }
}
