//! Waits until replicas have a write (`WaitReplicas`). A call is refused before it is sent if too few replicas are in
//! sync. Uses no key except the mark.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::time::sleep;

use super::connection::fault::{Fault, Outcome};
use super::layout::script_call::ScriptCall;
use super::link::Link;
use crate::clock::Micros;
use crate::error::Unreachable;

/// Timeout for replicas to have a write.
pub const WAIT: Duration = Duration::from_secs(1);
/// Interval between checks of replicas, and while too few are in sync.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_millis(100);
/// Expiry of the mark.
const MARK: Duration = Duration::from_secs(60);

/// Runs a call, followed by WAIT if it waits for replicas. Returns the number of replicas that have it.
pub async fn call_and_wait(
    connection: &mut MultiplexedConnection,
    call: &ScriptCall,
    deadline: Micros,
    want: u64,
) -> RedisResult<(Value, u64)> {
    if want == 0 {
        return Ok((call.run(connection, deadline).await?, 0));
    }
    // Since Redis 7.2 WAIT concerns the connection's last write. A call that writes nothing itself, because an earlier
    // one has just done so, would not wait without the mark.
    let mut set = redis::cmd("SET");
    set.arg(call.mark()).arg("").arg("PX").arg(MARK.as_millis() as u64);
    let mut wait = redis::cmd("WAIT");
    wait.arg(want).arg(WAIT.as_millis() as u64);
    call.run_with(connection, deadline, [set, wait]).await
}

impl Link {
    /// Returns the number of replicas that a call waits for. Fails, before anything is sent, if too few are in sync.
    pub fn replicas_for(&self, lasts: bool) -> Outcome<u64> {
        let want = if lasts { self.replicas.want().into() } else { 0 };
        if want > 0 && self.replicas.are_few() {
            return Err(Fault::part(Unreachable::FewReplicas));
        }
        Ok(want)
    }

    /// Checks the number of replicas that have a write, against the number wanted.
    pub fn replicas_have(&self, want: u64, have: u64, sent: Instant) -> Outcome<()> {
        if want == 0 {
            return Ok(());
        }
        self.common.observer.waited(sent.elapsed());
        if have >= want {
            return Ok(());
        }
        self.replicas.fell_short();
        Err(Fault::unsure(
            "it is stored, but too few replicas confirmed it within a second: a failover may lose it",
        ))
    }

    /// Updates the number of replicas in sync.
    pub async fn look_at_replicas(&self) -> Outcome<()> {
        if self.replicas.want() == 0 {
            return Ok(());
        }
        let was_short = self.replicas.is_short();
        let mut ask = redis::cmd("INFO");
        ask.arg("replication");
        // No call waits for replicas on the pump's connection.
        let info: String = self.pumps.query(&ask).await?;
        self.replicas.learn(&info, was_short);
        Ok(())
    }

    /// Checks the replicas periodically, until the link is closed.
    pub async fn watch_replicas(self: Arc<Self>) {
        let looks = async {
            loop {
                // A Redis that cannot be reached accepts no calls either.
                let _ = self.look_at_replicas().await;
                sleep(if self.replicas.are_few() { LOOK_SOON } else { LOOK }).await;
            }
        };
        let _: Option<Infallible> = self.tasks.stopping().run_until_cancelled(looks).await;
    }
}
