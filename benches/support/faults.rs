//! Faults of a cluster under measurement.

use std::thread::sleep;
use std::time::Duration;

use super::redis_cluster_bus::PartedCluster;

/// Duration of a fault.
const LASTS: Duration = Duration::from_secs(8);

/// A fault of the first master, except for `ReplicaHung`, of its replica, and `ServerKilled`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Killed,
    Hung,
    ByHand,
    CutOff,
    KilledInAMove,
    ReplicaHung,
    ServerKilled,
    /// The servers are restarted with a configuration that begins or ends spreading a queue, one before and one after the
    /// death of a master.
    SpreadBegins,
    SpreadEnds,
}

impl Fault {
    pub const ALL: [Fault; 9] = [
        Fault::Killed,
        Fault::Hung,
        Fault::ByHand,
        Fault::CutOff,
        Fault::KilledInAMove,
        Fault::ReplicaHung,
        Fault::ServerKilled,
        Fault::SpreadBegins,
        Fault::SpreadEnds,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fault::Killed => "a master is killed",
            Fault::Hung => "a master hangs for 8 s",
            Fault::ByHand => "`CLUSTER FAILOVER`",
            Fault::CutOff => "a master is cut off from the majority for 8 s",
            Fault::KilledInAMove => "a master is killed while it gives a slot away; `fix` 5 s later",
            Fault::ReplicaHung => "a replica hangs for 8 s",
            Fault::ServerKilled => "a server is killed",
            Fault::SpreadBegins => "a master is killed between two restarts that begin to spread",
            Fault::SpreadEnds => "a master is killed between two restarts that end spreading",
        }
    }

    /// Causes the fault, and does what an operator does after it. `slot` is the slot that is moved.
    pub fn act(self, parted: &mut PartedCluster, slot: u16) {
        let cluster = &mut parted.cluster;
        let (_, id) = cluster.master_of(slot);
        let replica = cluster.replica_of(&id);
        match self {
            Fault::Killed | Fault::SpreadBegins | Fault::SpreadEnds => {
                cluster.servers[0].kill();
                sleep(LASTS);
                assert!(cluster.servers[0].launch(), "it comes back");
            }
            Fault::Hung => {
                let stalled = cluster.servers[0].stall();
                sleep(LASTS);
                drop(stalled);
            }
            Fault::ByHand => {
                cluster.tell::<()>(replica, &["CLUSTER", "FAILOVER"]);
                sleep(LASTS / 2);
            }
            Fault::CutOff => {
                parted.cut_off(&[0]);
                sleep(LASTS);
                parted.join();
            }
            Fault::KilledInAMove => {
                cluster.begin_move(slot, 1);
                cluster.move_keys(slot, 1, 2);
                cluster.servers[0].kill();
                sleep(Duration::from_secs(5));
                assert!(cluster.servers[0].launch(), "it comes back");
                cluster.agree();
                cluster.fix();
            }
            Fault::ReplicaHung => {
                let stalled = cluster.servers[replica].stall();
                sleep(LASTS);
                drop(stalled);
            }
            // The cluster itself has no fault.
            Fault::ServerKilled => {}
        }
        parted.cluster.agree();
        sleep(Duration::from_secs(2));
    }
}
