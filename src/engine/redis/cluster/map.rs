//! Maps partitions to masters, merging the views of several nodes. No single view is authoritative: if two masters
//! claim a slot, the claim with the higher configuration epoch wins, as it does between the nodes themselves. Sends
//! nothing.

use super::view::{NodeId, View};

/// The number of a partition.
pub type Partition = u16;

/// The owner of a partition, and the epoch of its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owner {
    node: NodeId,
    epoch: u64,
}

/// The owners of all partitions.
#[derive(Debug)]
pub struct SlotMap {
    /// The slot of each partition.
    slots: Vec<u16>,
    owners: Vec<Option<Owner>>,
}

impl SlotMap {
    pub fn new(slots: Vec<u16>) -> SlotMap {
        SlotMap { owners: vec![None; slots.len()], slots }
    }

    pub fn slot(&self, partition: Partition) -> u16 {
        self.slots[usize::from(partition)]
    }

    pub fn owner(&self, partition: Partition) -> Option<&NodeId> {
        self.owners[usize::from(partition)].as_ref().map(|owner| &owner.node)
    }

    pub fn all(&self) -> std::ops::Range<Partition> {
        0..self.slots.len() as Partition
    }

    /// Applies the newer claims of a view. Returns the partitions that have moved to another node.
    pub fn take(&mut self, view: &View) -> Vec<Partition> {
        self.all().filter(|partition| self.take_one(*partition, view)).collect()
    }

    fn take_one(&mut self, partition: Partition, view: &View) -> bool {
        let Some(claim) = view.owner(self.slot(partition)) else { return false };
        let owner = &mut self.owners[usize::from(partition)];
        let Some(known) = owner else {
            *owner = Some(Owner { node: claim.id.clone(), epoch: claim.epoch });
            return true;
        };
        if known.node == claim.id {
            known.epoch = known.epoch.max(claim.epoch);
            return false;
        }
        // The previous owner's own view is authoritative about giving the slot away.
        let given_away = view.by.as_ref() == Some(&known.node);
        if claim.epoch <= known.epoch && !given_away {
            return false;
        }
        // The view may not have the new owner's new epoch yet; meanwhile older claims must not win.
        *known = Owner { node: claim.id.clone(), epoch: claim.epoch.max(known.epoch) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::connection::open::HostPort;

    /// Returns a view reported by node `by`, with one claim per `(node, slot, epoch)`.
    fn view(by: &str, claims: &[(&str, u16, u64)]) -> View {
        let mut text = String::new();
        for (id, slot, epoch) in claims {
            let me = if *id == by { "myself," } else { "" };
            text += &format!("{id} 10.0.0.1:7000@17000 {me}master - 0 0 {epoch} connected {slot}\n");
        }
        let asked = HostPort::parse("h:1").expect("an address");
        View::read((text, Vec::new()), &asked).expect("readable")
    }

    fn owners(map: &SlotMap) -> Vec<Option<&str>> {
        map.all().map(|partition| map.owner(partition).map(|id| &**id)).collect()
    }

    #[test]
    fn the_newer_epoch_is_right_whoever_is_asked_last() {
        let mut map = SlotMap::new(vec![10, 20]);
        assert_eq!(map.take(&view("a", &[("a", 10, 1), ("b", 20, 2)])), [0, 1]);
        assert_eq!(owners(&map), [Some("a"), Some("b")]);
        // A replica of b was promoted.
        assert_eq!(map.take(&view("a", &[("a", 10, 1), ("c", 20, 3)])), [1]);
        // b itself, partitioned from the others, and a node that has not heard of the failover still report the old
        // owner.
        for late in ["b", "a"] {
            assert_eq!(map.take(&view(late, &[("a", 10, 1), ("b", 20, 2)])), [0; 0], "{late} is late");
        }
        assert_eq!(owners(&map), [Some("a"), Some("c")]);
    }

    #[test]
    fn who_gave_a_slot_away_is_believed_and_older_views_do_not_bring_it_back() {
        let mut map = SlotMap::new(vec![10]);
        map.take(&view("a", &[("a", 10, 5)]));
        // a knows that b owns the slot, but not yet the epoch of b's claim.
        assert_eq!(map.take(&view("a", &[("b", 10, 2), ("a", 11, 5)])), [0]);
        assert_eq!(map.take(&view("c", &[("a", 10, 5), ("b", 12, 2)])), [0; 0], "c has not heard of it");
        assert_eq!(map.take(&view("b", &[("b", 10, 6)])), [0; 0]);
        assert_eq!(owners(&map), [Some("b")]);
    }

    #[test]
    fn a_view_without_a_slot_says_nothing_of_it() {
        let mut map = SlotMap::new(vec![10]);
        map.take(&view("a", &[("a", 10, 5)]));
        assert_eq!(map.take(&view("b", &[("b", 11, 9)])), [0; 0]);
        assert_eq!(owners(&map), [Some("a")]);
    }
}
