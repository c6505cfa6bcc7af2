//! Pump: moves a batch of due jobs of each partition that has some. In a cluster one server has the lease of a
//! partition and pumps it. Another server also pumps it for jobs that it has stored itself, which the holder may not
//! know of.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::Router;
use crate::engine::redis::connection::fault::{Fault, Outcome};
use crate::engine::redis::dues::{LONGEST_PAUSE, Said, Turn};
use crate::engine::redis::link::Lane;
use crate::engine::redis::verbs::pump::PumpLease;
use crate::engine::{Pumped, together};
use crate::error::{Error, Result};

/// Maximum time that the pump of one node delays the others.
const NODE: Duration = Duration::from_millis(100);
/// Pause before a partition is pumped again after a failure.
const AGAIN: Duration = Duration::from_millis(50);

impl Router {
    /// Moves due jobs.
    pub async fn pump(self: &Arc<Self>) -> Result<Pumped> {
        if let Some(only) = self.only() {
            return only.pump().await;
        }
        let (pool, dues) = (&self.pool, &self.pool.dues);
        let due = dues.begin(pool.now_micros());
        let asked = due.len();
        let pumps = together::all(due.into_iter().map(|turn| self.pump_in_time(turn))).await;
        let next = dues.end();
        let (mut moved, mut failed, mut unreachable) = (0, None, 0);
        for one in pumps {
            match one.map_err(Error::from) {
                Ok(some) => moved += some,
                Err(fault @ Error::Unreachable(_)) => {
                    unreachable += 1;
                    // If other partitions were pumped, the callers of the unreachable ones report the error.
                    if unreachable == asked {
                        failed = Some(fault);
                    }
                }
                Err(fault) => failed = Some(fault),
            }
        }
        match failed {
            // An error is reported once the other partitions have nothing more to move.
            Some(fault) if moved == 0 => Err(fault),
            _ => {
                // A longer time results from a clock that was set back.
                let left = Duration::from_micros(next.saturating_sub(pool.now_micros()));
                Ok(Pumped { moved, next: left.min(LONGEST_PAUSE) })
            }
        }
    }

    /// Pumps a partition, if its node is available. Does not wait for a slow node: its pump continues in the
    /// background.
    async fn pump_in_time(self: &Arc<Self>, turn: Turn) -> Outcome<usize> {
        if let Err(why) = self.try_link(turn.partition, Lane::Pump) {
            self.pool.dues.said(turn, self.pool.now_micros(), Said::again(AGAIN));
            return Err(Fault::part(why));
        }
        let router = self.clone();
        let pump = self.pool.tasks.spawn(async move { router.pump_partition(turn).await });
        match timeout(NODE, pump).await {
            Ok(Ok(pumped)) => pumped,
            Ok(Err(_)) => Err(Fault::away("a pump task has ended")),
            Err(_) => Ok(0),
        }
    }

    async fn pump_partition(&self, turn: Turn) -> Outcome<usize> {
        let (part, pool) = (self.part(turn.partition), &self.pool);
        let lease = PumpLease { server: &self.server, is_own: turn.is_own };
        let sent = Instant::now();
        match part.pump_once(Some(lease)).await {
            Ok(pumped) => {
                part.learn(sent, pumped.now);
                let said = Said { next: pumped.next, held: pumped.held };
                pool.dues.said(turn, pool.in_pool_time(turn.partition, pumped.now), said);
                Ok(pumped.moved)
            }
            Err(fault) => {
                pool.dues.said(turn, pool.now_micros(), Said::again(AGAIN));
                Err(fault)
            }
        }
    }
}
