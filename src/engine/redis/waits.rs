//! What was asked is waited for until replicas have it (`WaitReplicas`). A call that would not be had by enough of them is
//! refused before it is sent. Knows no key but the mark.

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

/// How long replicas may take to have what was asked.
const WAIT: Duration = Duration::from_secs(1);
/// How often replicas are looked at, and while there are too few.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_millis(100);
/// How long the mark stays.
const MARK: Duration = Duration::from_secs(60);

/// Runs a call, and WAIT behind it if replicas are waited for: returns how many have it.
pub async fn call_and_wait(
    connection: &mut MultiplexedConnection,
    call: &ScriptCall,
    deadline: Micros,
    want: u64,
) -> RedisResult<(Value, u64)> {
    if want == 0 {
        return Ok((call.run(connection, deadline).await?, 0));
    }
    // Since Redis 7.2 WAIT is for the last write of its connection: a call that writes nothing itself, since another one
    // has done it a moment ago, would not be waited for.
    let mut set = redis::cmd("SET");
    set.arg(call.mark()).arg("").arg("PX").arg(MARK.as_millis() as u64);
    let mut wait = redis::cmd("WAIT");
    wait.arg(want).arg(WAIT.as_millis() as u64);
    call.run_with(connection, deadline, [set, wait]).await
}

impl Link {
    /// How many replicas a call is to wait for, if it lasts. It is refused when there are too few: nothing was done.
    pub fn replicas_for(&self, lasts: bool) -> Outcome<u64> {
        let want = if lasts { self.replicas.want().into() } else { 0 };
        if want > 0 && self.replicas.are_few() {
            return Err(Fault::part(Unreachable::FewReplicas));
        }
        Ok(want)
    }

    /// So many of those that were wanted have what was asked, so long after it was sent.
    pub fn replicas_have(&self, want: u64, have: u64, sent: Instant) -> Outcome<()> {
        if want == 0 {
            return Ok(());
        }
        self.common.observers.tell(|observer| observer.waited(sent.elapsed()));
        if have >= want {
            return Ok(());
        }
        self.replicas.fell_short();
        Err(Fault::unsure(
            "it is stored, and too few replicas have it within a second: a failover may lose it",
        ))
    }

    /// Looks how many are in step.
    pub async fn look_at_replicas(&self) -> Outcome<()> {
        if self.replicas.want() == 0 {
            return Ok(());
        }
        let was_short = self.replicas.is_short();
        let mut ask = redis::cmd("INFO");
        ask.arg("replication");
        // Nobody waits for replicas on the pump's connection.
        let info: String = self.pumps.query(&ask).await?;
        self.replicas.learn(&info, was_short);
        Ok(())
    }

    /// Looks again and again, until the link is closed.
    pub async fn watch_replicas(self: Arc<Self>) {
        let looks = async {
            loop {
                // Who cannot be reached takes no calls either.
                let _ = self.look_at_replicas().await;
                sleep(if self.replicas.are_few() { LOOK_SOON } else { LOOK }).await;
            }
        };
        let _: Option<Infallible> = self.tasks.stopping().run_until_cancelled(looks).await;
    }
}
