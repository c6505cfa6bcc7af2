//! Whether a Redis's replicas are in step, and what was asked is waited for until they have it (`WaitReplicas`). A call
//! that would not be had by enough of them is refused before it is sent. Knows no key.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::time::sleep;

use super::connection::fault::{Fault, Outcome};
use super::layout::scripts::Script;
use super::link::Link;
use crate::error::Unreachable;

/// How long replicas may take to have what was asked.
const WAIT: Duration = Duration::from_secs(1);
/// A replica that was not heard of for so many seconds is not in step. Each tells once a second what it has.
const HEARD: u64 = 3;
/// How often replicas are looked at, and while there are too few.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SOON: Duration = Duration::from_millis(100);

/// The replicas of a Redis.
#[derive(Debug)]
pub struct Replicas {
    /// How many must have what was asked.
    want: u16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many are in step, as the last look has said.
    in_step: u64,
    /// The last wait fell short: who has less than this offset is not in step. It is the Redis's own at the next look.
    short: Option<Option<u64>>,
}

impl Replicas {
    pub fn new(want: u16) -> Replicas {
        Replicas { want, state: Mutex::default() }
    }

    /// How many are waited for.
    pub fn want(&self) -> u16 {
        self.want
    }

    /// How many are waited for after a call of this script.
    fn wanted_for(&self, script: &Script) -> u64 {
        if script.lasts() { self.want.into() } else { 0 }
    }

    fn are_few(&self) -> bool {
        self.state.lock().in_step < self.want.into()
    }

    /// What INFO said that was asked after (or before) a wait fell short.
    fn learn(&self, info: &str, was_short: bool) {
        let mut state = self.state.lock();
        if state.short.is_some() && !was_short {
            return;
        }
        let field = |line: &str, name: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
        let own = info.lines().find_map(|line| field(line, "master_repl_offset")?.trim().parse().ok());
        if state.short == Some(None) {
            state.short = Some(own);
        }
        let least = state.short.flatten().unwrap_or(0);
        state.in_step = info.lines().filter(|line| is_in_step(line, least)).count() as u64;
        if state.short.is_some_and(|least| least.is_some()) && state.in_step >= self.want.into() {
            state.short = None;
        }
    }

    /// Too few had it in time.
    fn fell_short(&self) {
        *self.state.lock() = State { in_step: 0, short: Some(None) };
    }
}

/// `slave0:ip=127.0.0.1,port=7004,state=online,offset=1234,lag=0`
fn is_in_step(line: &str, least: u64) -> bool {
    let Some((name, fields)) = line.trim().split_once(':') else { return false };
    let is_replica = name.strip_prefix("slave").is_some_and(|n| n.parse::<u32>().is_ok());
    let field = |name: &str| {
        fields
            .split(',')
            .find_map(|field| field.split_once('=').filter(|(of, _)| *of == name))
            .map(|(_, is)| is)
    };
    let number = |name: &str| field(name).and_then(|is| is.parse::<u64>().ok());
    is_replica
        && field("state") == Some("online")
        && number("lag").is_some_and(|lag| lag <= HEARD)
        && number("offset").is_some_and(|offset| offset >= least)
}

/// Runs a call of a script, and WAIT behind it if replicas are waited for: answers how many have it.
pub async fn run_and_wait(
    script: &Script,
    connection: &mut MultiplexedConnection,
    call: &Cmd,
    want: u64,
) -> RedisResult<(Value, u64)> {
    if want == 0 {
        return Ok((script.run(connection, call).await?, 0));
    }
    let mut wait = redis::cmd("WAIT");
    wait.arg(want).arg(WAIT.as_millis() as u64);
    script.run_with(connection, call, wait).await
}

impl Link {
    /// How many replicas a call of this script is to wait for. It is refused when there are too few: nothing was done.
    pub fn replicas_for(&self, script: &Script) -> Outcome<u64> {
        let want = self.replicas.wanted_for(script);
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
        self.observers.tell(|observer| observer.waited(sent.elapsed()));
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
        if self.replicas.want == 0 {
            return Ok(());
        }
        let was_short = self.replicas.state.lock().short.is_some();
        let mut ask = redis::cmd("INFO");
        ask.arg("replication");
        // Nobody waits for replicas on the pump's connection.
        let info: String = self.pumps.query(&ask).await?;
        self.replicas.learn(&info, was_short);
        Ok(())
    }

    /// Looks again and again, until the link is closed.
    pub async fn watch_replicas(self: std::sync::Arc<Self>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn info(offset: u64, replicas: &[(&str, u64, u64)]) -> String {
        let mut text = format!("# Replication\r\nrole:master\r\nconnected_slaves:{}\r\n", replicas.len());
        for (n, (state, offset, lag)) in replicas.iter().enumerate() {
            text += &format!("slave{n}:ip=10.0.0.{n},port=6379,state={state},offset={offset},lag={lag}\r\n");
        }
        text + &format!("master_failover_state:no-failover\r\nmaster_repl_offset:{offset}\r\n")
    }

    #[test]
    fn who_is_online_and_was_heard_of_is_in_step() {
        let replicas = Replicas::new(2);
        assert!(replicas.are_few(), "nobody has looked yet");
        for (of, few) in [
            (vec![("online", 90, 0), ("online", 80, 3)], false),
            (vec![("online", 90, 0), ("online", 80, 4)], true),
            (vec![("online", 90, 0), ("wait_bgsave", 80, 0)], true),
            (vec![("online", 90, 0)], true),
            (vec![("online", 90, 0), ("online", 80, 1), ("online", 0, 9)], false),
        ] {
            replicas.learn(&info(100, &of), false);
            assert_eq!(replicas.are_few(), few, "{of:?}");
        }
    }

    /// Guards against a replica that hangs, is taken to be in step since it was heard of a second ago, and makes every
    /// call wait a second and fail.
    #[test]
    fn after_a_wait_fell_short_a_replica_is_in_step_once_it_has_caught_up() {
        let replicas = Replicas::new(1);
        replicas.learn(&info(100, &[("online", 100, 0)]), false);
        assert!(!replicas.are_few());
        replicas.fell_short();
        assert!(replicas.are_few());
        replicas.learn(&info(100, &[("online", 100, 0)]), false);
        assert!(replicas.are_few(), "that was asked before it fell short");
        replicas.learn(&info(150, &[("online", 100, 0)]), true);
        replicas.learn(&info(190, &[("online", 149, 0)]), true);
        assert!(replicas.are_few(), "it has less than the Redis had then");
        replicas.learn(&info(190, &[("online", 150, 1)]), true);
        assert!(!replicas.are_few(), "it has caught up");
    }
}
