//! The cluster as one of its nodes reports it. CLUSTER NODES lists the masters, their epochs and the migrating slots;
//! CLUSTER SLOTS has the address that each master announces. Sends nothing.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{Pipeline, Value};

use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::connection::open::HostPort;

/// Number of hash slots of a Redis Cluster.
pub const SLOTS: usize = 16_384;

/// A node's id, which never changes.
pub type NodeId = Arc<str>;

/// A master, as one node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    pub id: NodeId,
    pub address: HostPort,
    /// The configuration epoch of its claim to its slots: of two claims the higher epoch wins.
    pub epoch: u64,
    /// The cluster has agreed that it failed (flag `fail`).
    pub failed: bool,
    /// First and last slot of each range.
    slots: Vec<(u16, u16)>,
}

impl Master {
    pub fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    pub fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

/// One node's report about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The reporting node.
    pub by: Option<NodeId>,
    pub masters: Vec<Master>,
    /// Every node, including replicas, that has not failed.
    pub alive: Vec<NodeId>,
    /// Slots that the reporting node is migrating to another node.
    pub leaving: Vec<u16>,
}

impl View {
    /// Returns the commands to send.
    pub fn ask() -> Pipeline {
        let mut asked = redis::pipe();
        asked.cmd("CLUSTER").arg("NODES").cmd("CLUSTER").arg("SLOTS");
        asked
    }

    /// Parses the reply of the node at the address `asked`.
    pub fn read((nodes, slots): (String, Vec<Vec<Value>>), asked: &HostPort) -> Outcome<View> {
        let announced = announced(slots);
        let mut view = View::default();
        for line in nodes.lines().filter(|line| !line.is_empty()) {
            view.read_line(line, &announced, asked).ok_or_else(|| Fault::unreadable("CLUSTER NODES"))?;
        }
        Ok(view)
    }

    /// `id host:port@bus[,name] flags master ping pong epoch link slot slot-slot [slot->-id] ..`
    fn read_line(
        &mut self,
        line: &str,
        announced: &HashMap<String, Address>,
        asked: &HostPort,
    ) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, address, flags, _, _, _, epoch, _, slots @ ..] = &words[..] else { return None };
        let (flags, epoch): (Vec<&str>, u64) = (flags.split(',').collect(), epoch.parse().ok()?);
        let is = |flag: &str| flags.contains(&flag);
        let node: NodeId = (*id).into();
        if is("myself") {
            self.by = Some(node.clone());
        }
        if is("handshake") || is("noaddr") {
            return Some(());
        }
        if !is("fail") {
            self.alive.push(node.clone());
        }
        if !is("master") {
            return Some(());
        }
        let (host, port) = address.split('@').next()?.rsplit_once(':')?;
        let told = announced.get(*id);
        let host = match told.map(|told| &told.host) {
            Some(Host::At(host)) => host.clone(),
            Some(Host::OfWhoWasAsked) => asked.host.clone(),
            Some(Host::Unknown) | None if host.is_empty() => asked.host.clone(),
            Some(Host::Unknown) | None => host.to_owned(),
        };
        let address =
            HostPort { host, port: told.map_or_else(|| port.parse().ok(), |told| Some(told.port))? };
        let mut ranges = Vec::new();
        for slot in slots {
            match slot.strip_prefix('[') {
                None => {
                    let (first, last) = slot.split_once('-').unwrap_or((slot, slot));
                    ranges.push((first.parse().ok()?, last.parse().ok()?));
                }
                // [93->-id] is a slot migrating away, [93-<-id] one being imported.
                Some(moves) => {
                    if let Some((slot, _)) = moves.split_once("->-") {
                        self.leaving.push(slot.parse().ok()?);
                    }
                }
            }
        }
        self.masters.push(Master { id: node, address, epoch, failed: is("fail"), slots: ranges });
        Some(())
    }

    /// Returns the owner of a slot in this view.
    pub fn owner(&self, slot: u16) -> Option<&Master> {
        self.masters.iter().find(|master| master.has(slot))
    }

    pub fn master(&self, id: &NodeId) -> Option<&Master> {
        self.masters.iter().find(|master| master.id == *id)
    }

    /// Whether every slot has a master that has not failed.
    pub fn serves_all(&self) -> bool {
        let of = |master: &Master| -> usize {
            master.slots.iter().map(|(first, last)| usize::from(last.saturating_sub(*first)) + 1).sum()
        };
        self.masters.iter().filter(|master| !master.failed).map(of).sum::<usize>() >= SLOTS
    }
}

/// Address that a node announces.
#[derive(Debug)]
struct Address {
    host: Host,
    port: u16,
}

#[derive(Debug)]
enum Host {
    At(String),
    OfWhoWasAsked,
    /// The node is configured to announce a hostname and has none.
    Unknown,
}

/// Returns announced addresses by node id, from CLUSTER SLOTS: `[first, last, [host, port, id, ..], replicas ..]`.
fn announced(ranges: Vec<Vec<Value>>) -> HashMap<String, Address> {
    let address = |range: Vec<Value>| -> Option<(String, Address)> {
        let node: Vec<Value> = redis::from_redis_value(range.into_iter().nth(2)?).ok()?;
        let [host, port, id, ..] =
            <[Value; 3]>::try_from(node.into_iter().take(3).collect::<Vec<_>>()).ok()?;
        let host = match redis::from_redis_value::<Option<String>>(host).ok()?.as_deref() {
            None | Some("") => Host::OfWhoWasAsked,
            Some("?") => Host::Unknown,
            Some(host) => Host::At(host.to_owned()),
        };
        let port = redis::from_redis_value(port).ok()?;
        Some((redis::from_redis_value(id).ok()?, Address { host, port }))
    };
    ranges.into_iter().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
aaa 10.0.0.1:7000@17000 myself,master - 0 1700000000000 3 connected 0-5460 [93->-bbb] [77-<-ccc]
bbb 10.0.0.2:7000@17000,h2 master - 0 1700000000000 7 connected 5461-10922 16000
ccc 10.0.0.3:7000@17000 master,fail - 0 1700000000000 2 disconnected 10923-15999
ddd 10.0.0.4:7000@17000 slave bbb 0 1700000000000 7 connected
eee :0@0 master,noaddr - 0 0 0 disconnected 16001
fff 10.0.0.6:7000@17000 master - 0 1700000000000 9 connected
";

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(host: Value, port: i64, id: &str) -> Vec<Value> {
        vec![Value::Int(0), Value::Int(1), Value::Array(vec![host, Value::Int(port), bulk(id), Value::Nil])]
    }

    fn view(slots: Vec<Vec<Value>>) -> View {
        let asked = HostPort::parse("seed:7777").expect("an address");
        View::read((NODES.to_owned(), slots), &asked).expect("it is readable")
    }

    #[test]
    fn a_view_has_masters_their_slots_and_epochs() {
        let view = view(Vec::new());
        let masters: Vec<(&str, String, u64, bool)> =
            view.masters.iter().map(|m| (&*m.id, m.address.to_string(), m.epoch, m.failed)).collect();
        assert_eq!(
            masters,
            [
                ("aaa", "10.0.0.1:7000".to_owned(), 3, false),
                ("bbb", "10.0.0.2:7000".to_owned(), 7, false),
                ("ccc", "10.0.0.3:7000".to_owned(), 2, true),
                ("fff", "10.0.0.6:7000".to_owned(), 9, false),
            ]
        );
        assert_eq!(view.by.as_deref(), Some("aaa"));
        assert_eq!(view.leaving, [93]);
        let owner = |slot| view.owner(slot).map(|master| &*master.id);
        assert_eq!(
            [0, 5460, 5461, 16000, 15999, 16001, 16383].map(owner),
            [Some("aaa"), Some("aaa"), Some("bbb"), Some("bbb"), Some("ccc"), None, None]
        );
        assert_eq!(view.alive.iter().map(|id| &**id).collect::<Vec<_>>(), ["aaa", "bbb", "ddd", "fff"]);
        assert!(!view.serves_all());
    }

    /// Guards against connecting to an address that a node does not announce.
    #[test]
    fn nodes_are_where_they_announce() {
        let view = view(vec![
            range(Value::Nil, 7001, "aaa"),
            range(bulk("name.of.b"), 7002, "bbb"),
            range(bulk("?"), 7003, "ccc"),
        ]);
        let addresses: Vec<String> = view.masters.iter().map(|master| master.address.to_string()).collect();
        assert_eq!(addresses, ["seed:7001", "name.of.b:7002", "10.0.0.3:7003", "10.0.0.6:7000"]);
    }

    #[test]
    fn other_text_is_no_view() {
        let asked = HostPort::parse("seed:7777").expect("an address");
        for text in ["ERR", "a b c d e f g h", "aaa 10.0.0.1@1 master - 0 0 3 connected 0-x"] {
            assert!(View::read((text.to_owned(), Vec::new()), &asked).is_err(), "{text:?}");
        }
    }
}
