//! Pump: moves a batch of due jobs of each partition that has some. In a cluster one server has the lease of a partition, and
//! pumps it; another one pumps it for what it has stored itself and the holder may not know of.

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

/// How long the pump of one node may hold up the others.
const NODE: Duration = Duration::from_millis(100);
/// When a partition is pumped again that could not be.
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
                    // While others are pumped it is for their callers to be told.
                    if unreachable == asked {
                        failed = Some(fault);
                    }
                }
                Err(fault) => failed = Some(fault),
            }
        }
        match failed {
            // The trouble of one shows when the others have nothing more to move.
            Some(fault) if moved == 0 => Err(fault),
            _ => {
                // Later than that is what a clock said that was set back since.
                let left = Duration::from_micros(next.saturating_sub(pool.now_micros()));
                Ok(Pumped { moved, next: left.min(LONGEST_PAUSE) })
            }
        }
    }

    /// Pumps a partition, if its node can be used now. Nobody waits for a node that does not answer: its pump goes on by
    /// itself.
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
                let said = Said { next: pumped.next.unwrap_or(Duration::MAX), held: pumped.held };
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
