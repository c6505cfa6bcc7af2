//! Deadlines of script calls, and replies that arrive after their caller has stopped waiting.
//!
//! A Redis that stalls (a fork, a slow disk, a stopped process) reads pending calls when it resumes, long after their
//! callers got an error. So each call carries a deadline by Redis's own clock: a script that begins later does nothing
//! (lua/clock.lua).
//!
//! Both times count from the *arrival* of a call, not from when it is sent or sent again: the deadline is
//! [`BEGIN_WITHIN`] later, and the caller gets an error [`RESPONSE_TIMEOUT`] later, never before. The difference covers
//! the script, its reply and the error of the estimated clock. So no call begins after its caller got an error. A call
//! that has waited for [`SEND_WITHIN`] joins no batch, and one that has waited for [`BEGIN_WITHIN`] is not sent at all.
//!
//! A publish that another partition could take has less time, so that its caller learns within a second that the node
//! hangs: it begins within [`MOVABLE_BEGINS_WITHIN`], and gets an error after [`MOVABLE_ANSWERS_WITHIN`].
//!
//! That leaves calls that Redis executed just before it stalled. Their replies arrive when it resumes. The caller
//! listens for them, and undoes deliveries that reached no consumer.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult, Value};
use tokio::time::{timeout, timeout_at};

use super::clock::RedisClock;
use super::connection::connector::{Connection, RESPONSE_TIMEOUT};
use super::connection::fault::{Fault, Outcome, late_at};
use super::connection::shared::SharedConnection;
use super::layout::script_call::ScriptCall;
use super::link::Link;
use super::waits::{WAIT, call_and_wait};

/// Time from a call's arrival within which its script may begin.
const BEGIN_WITHIN: Duration = Duration::from_secs(4);
/// The same for a publish that another partition could take, and how long its caller waits for a reply.
const MOVABLE_BEGINS_WITHIN: Duration = Duration::from_millis(600);
const MOVABLE_ANSWERS_WITHIN: Duration = Duration::from_millis(800);
/// Time from a call's arrival within which it may join a batch. Sent later, it would have less than a second to begin,
/// and so would the rest of its batch.
pub const SEND_WITHIN: Duration = Duration::from_secs(3);
/// If a call was sent more recently than this and still refused as late, the estimated clock was wrong: Redis's clock
/// was set, or another Redis is the master now. The call is sent once more.
const CLOCK_WAS_SET: Duration = Duration::from_secs(1);
/// Time to listen for a reply after its caller got an error.
const LATE_ANSWER: Duration = Duration::from_secs(60);

/// Returns the connection with a longer timeout for an [`exchange`](Link::exchange), which may listen for longer than
/// its caller waits.
pub fn patient(connection: &Connection) -> MultiplexedConnection {
    let mut redis = connection.redis.clone();
    redis.set_response_timeout(RESPONSE_TIMEOUT + LATE_ANSWER);
    redis
}

/// Runs a call. Returns how many replicas have it too, if some are waited for.
async fn run_call(
    clock: &RedisClock,
    connection: &mut MultiplexedConnection,
    call: &ScriptCall,
    replicas: u64,
) -> RedisResult<(Value, u64)> {
    let (sent, begin_by) = (Instant::now(), call.arrived() + begin_within(call));
    let answer = call_and_wait(connection, call, clock.at_moment(begin_by), replicas).await;
    let Some(now) = answer.as_ref().err().and_then(late_at) else { return answer };
    clock.learn(sent, now);
    if sent.elapsed() > CLOCK_WAS_SET {
        return answer;
    }
    // The refused call did nothing, so this does not execute it twice.
    call_and_wait(connection, call, clock.at_moment(begin_by), replicas).await
}

fn begin_within(call: &ScriptCall) -> Duration {
    if call.is_movable() { MOVABLE_BEGINS_WITHIN } else { BEGIN_WITHIN }
}

fn may_be_sent(call: &ScriptCall) -> Outcome<()> {
    if call.arrived().elapsed() < begin_within(call) { Ok(()) } else { Err(Fault::too_late()) }
}

impl Link {
    /// Runs a call. If the pool waits for replicas, they have the write when this returns.
    pub async fn send(&self, connection: &mut MultiplexedConnection, call: &ScriptCall) -> Outcome<Value> {
        may_be_sent(call)?;
        let (want, sent) = (self.replicas_for(call.lasts())?, Instant::now());
        let (answer, have) = run_call(&self.clock, connection, call, want).await?;
        self.replicas_have(want, have, sent)?;
        Ok(answer)
    }

    /// Like `send`, on a shared connection.
    pub async fn ask<T: FromRedisValue>(
        &self,
        connection: &SharedConnection,
        call: &ScriptCall,
    ) -> Outcome<T> {
        let answer = connection.with(async |redis| self.send(redis, call).await).await?;
        Ok(redis::from_redis_value(answer)?)
    }

    /// Returns when the caller of a call gets an error if there is no reply.
    pub fn answer_by(&self, call: &ScriptCall) -> Instant {
        let within = match call.is_movable() {
            true if call.lasts() && self.replicas.want() > 0 => MOVABLE_ANSWERS_WITHIN + WAIT,
            true => MOVABLE_ANSWERS_WITHIN,
            false => RESPONSE_TIMEOUT,
        };
        call.arrived() + within
    }

    /// Returns the result of an exchange on this [`patient`] connection: `Away` if there is no reply by `end`, which
    /// also closes the connection unless the call is `movable`. If `late` returns a function, it handles a reply that
    /// arrives afterwards; meanwhile the connection stays open, even if others drop it. If the connection breaks first,
    /// nothing is done.
    pub async fn exchange<T, S, L>(
        &self,
        connection: &Connection,
        (end, movable): (Instant, bool),
        exchange: impl Future<Output = Outcome<T>> + Send + 'static,
        late: impl FnOnce() -> Option<L>,
    ) -> Outcome<T>
    where
        T: Send + 'static,
        L: FnOnce(T) -> S + Send + 'static,
        S: Future<Output = ()> + Send,
    {
        let mut exchange = Box::pin(exchange);
        let outcome = match timeout_at(end.into(), &mut exchange).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if let Some(late) = late() {
                    self.listen(connection, exchange, late);
                }
                // Other calls on the connection have more time.
                let fault = if movable { Fault::unsure } else { Fault::away };
                Err(fault("no answer in time"))
            }
        };
        outcome.inspect_err(|fault| self.connections.report(connection, fault))
    }

    /// Has `late` handle the reply to an exchange whose caller no longer waits.
    fn listen<T, S>(
        &self,
        connection: &Connection,
        exchange: impl Future<Output = Outcome<T>> + Send + 'static,
        late: impl FnOnce(T) -> S + Send + 'static,
    ) where
        T: Send + 'static,
        S: Future<Output = ()> + Send,
    {
        let (open, closing) = (connection.clone(), self.connections.closing.clone());
        self.tasks.spawn(async move {
            let listen = async {
                if let Ok(Ok(answer)) = timeout(LATE_ANSWER, exchange).await {
                    late(answer).await;
                }
            };
            closing.run_until_cancelled(listen).await;
            drop(open);
        });
    }
}

#[cfg(test)]
mod tests {
    use redis::{AsyncConnectionConfig, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::engine::redis::layout::scripts::Scripts;

    const HOUR: u64 = 3_600_000_000;

    /// Replies to each call like lua/clock.lua on a Redis whose clock reads `now`, after `pause`. Returns the deadlines
    /// of the calls once its client has disconnected.
    async fn serve(mut stream: DuplexStream, now: u64, pause: Duration) -> Vec<u64> {
        let (mut met, mut text) = (Vec::new(), Vec::new());
        while stream.read_buf(&mut text).await.is_ok_and(|n| n > 0) {
            let said = String::from_utf8(text.clone()).expect("these calls are text");
            // An EVALSHA of a hash, no keys, two arguments, the base and the deadline has 15 lines.
            let lines: Vec<&str> = said.split("\r\n").collect();
            if !said.contains("EVALSHA") || lines.len() < 16 {
                continue;
            }
            assert_eq!((lines[8], lines[10]), ("one", "two"), "the arguments are as they were: {said:?}");
            let deadline: u64 = lines[14].parse().expect("a deadline");
            met.push(deadline);
            text.clear();
            tokio::time::sleep(pause).await;
            let answer = if now > deadline { format!("-LATE {now} too late\r\n") } else { ":7\r\n".into() };
            stream.write_all(answer.as_bytes()).await.expect("the client is connected");
        }
        met
    }

    /// Runs a call against a Redis whose clock reads `now`, while the estimate is 10 hours.
    async fn call(now: u64, pause: Duration) -> (RedisResult<Value>, Vec<u64>) {
        let clock = RedisClock::new();
        clock.learn(clock.begin(), 10 * HOUR);
        let (client, server) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(serve(server, now, pause));
        let (mut connection, driver) = MultiplexedConnection::new_with_config(
            &RedisConnectionInfo::default().set_skip_set_lib_name(),
            client,
            AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT)),
        )
        .await
        .expect("nothing is said at first");
        let driver = tokio::spawn(driver);
        let mut call = Scripts::default().pump.call_in(&"".into());
        call.arg("one").arg("two");
        let answer = run_call(&clock, &mut connection, &call, 0).await.map(|(answer, _)| answer);
        drop(connection);
        driver.await.expect("no panic");
        (answer, server.await.expect("no panic"))
    }

    #[tokio::test]
    async fn a_clock_that_was_set_forward_makes_no_call_fail() {
        let (answer, met) = call(15 * HOUR, Duration::ZERO).await;
        assert_eq!(answer, Ok(Value::Int(7)), "the second call has a deadline by the new clock: {met:?}");
        let [first, second] = met[..] else { panic!("two calls, not {met:?}") };
        assert!(
            (10 * HOUR..11 * HOUR).contains(&first) && (15 * HOUR..16 * HOUR).contains(&second),
            "{met:?}"
        );
    }

    #[tokio::test]
    async fn a_clock_that_was_set_back_makes_no_call_fail() {
        let (answer, met) = call(5 * HOUR, Duration::ZERO).await;
        assert_eq!((answer, met.len()), (Ok(Value::Int(7)), 1), "the deadline is late, not early");
    }

    #[tokio::test]
    async fn a_call_that_came_late_because_the_redis_stalled_is_not_sent_again() {
        let (answer, met) = call(15 * HOUR, CLOCK_WAS_SET + Duration::from_millis(50)).await;
        let late = answer.expect_err("it came too late");
        assert_eq!((late_at(&late), met.len()), (Some(15 * HOUR), 1), "{late}");
    }
}
