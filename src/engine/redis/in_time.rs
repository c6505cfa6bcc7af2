//! Calls of the scripts that have a deadline, and answers that come after their caller has stopped waiting.
//!
//! A Redis that stalls (a fork, a slow disk, a stopped process) reads the calls that wait for it when it goes on,
//! long after their callers were answered with an error. So each call says when it is too late to begin, by the
//! Redis's own clock: a script that comes later does nothing (lua/clock.lua). [`BEGIN_WITHIN`] is shorter than a
//! caller waits, by the time that a script, its answer and an error of the estimated clock may take.
//!
//! That leaves the calls that the Redis carried out just before it stalled. Their answers still come when it goes
//! on. Who called listens for them, and takes back what nobody was told of.

use std::pin::Pin;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tokio::time::timeout;

use super::RedisCore;
use super::connection::connector::RESPONSE_TIMEOUT;
use super::connection::fault::{Outcome, late_at};
use super::connection::shared::SharedConnection;
use super::layout::scripts::Script;

/// How long after it was sent a script may still begin.
const BEGIN_WITHIN: Duration = Duration::from_secs(4);
/// A call that was refused as late although it was sent this shortly ago met another clock than the one that is
/// known: the Redis's clock was set, or another Redis is the master now. It is sent once more.
const CLOCK_WAS_SET: Duration = Duration::from_secs(1);
/// How long an answer is listened for after its caller was told that there is none.
const LATE_ANSWER: Duration = Duration::from_secs(60);

/// An exchange whose answer nobody waits for any more.
pub type Pending<F> = Pin<Box<F>>;

/// The exchange's outcome, or the exchange itself when there is none within [`RESPONSE_TIMEOUT`].
pub async fn in_time<F: Future>(exchange: F) -> Result<F::Output, Pending<F>> {
    let mut exchange = Box::pin(exchange);
    match timeout(RESPONSE_TIMEOUT, &mut exchange).await {
        Ok(outcome) => Ok(outcome),
        Err(_) => Err(exchange),
    }
}

/// The same connection for an exchange that is awaited by [`in_time`] and may be listened to for longer.
pub fn patient(connection: &MultiplexedConnection) -> MultiplexedConnection {
    let mut connection = connection.clone();
    connection.set_response_timeout(RESPONSE_TIMEOUT + LATE_ANSWER);
    connection
}

impl RedisCore {
    /// Runs a call of a script that has a deadline, which is put behind the call's arguments.
    pub async fn run_script(
        &self,
        connection: &mut MultiplexedConnection,
        script: &Script,
        mut call: Cmd,
    ) -> RedisResult<Value> {
        let sent = Instant::now();
        call.arg(self.clock.in_a_while(BEGIN_WITHIN));
        let answer = script.run(connection, &call).await;
        let Some(now) = answer.as_ref().err().and_then(late_at) else { return answer };
        self.clock.learn(sent, now);
        if sent.elapsed() > CLOCK_WAS_SET {
            return answer;
        }
        // Nothing has happened, so this is no second time.
        let mut again = Cmd::new();
        let last = call.args_iter().count() - 1; // the deadline
        for arg in call.args_iter().take(last) {
            if let redis::Arg::Simple(arg) = arg {
                again.arg(arg);
            }
        }
        again.arg(self.clock.in_a_while(BEGIN_WITHIN));
        script.run(connection, &again).await
    }

    /// The same on a shared connection.
    pub async fn run<T: FromRedisValue>(
        &self,
        connection: &SharedConnection,
        script: &Script,
        call: Cmd,
    ) -> Outcome<T> {
        let answer = connection.with(async |redis| Ok(self.run_script(redis, script, call).await?)).await?;
        Ok(redis::from_redis_value(answer)?)
    }

    /// Listens for the answer of an exchange that [`in_time`] gave up, and has `settle` deal with it. Nothing is
    /// done when the connection breaks before it comes.
    pub fn listen_on<F, T, S>(&self, exchange: Pending<F>, settle: impl FnOnce(T) -> S + Send + 'static)
    where
        F: Future<Output = Outcome<T>> + Send + 'static,
        T: Send,
        S: Future<Output = ()> + Send,
    {
        let closing = self.connections.closing.clone();
        self.tasks.spawn(async move {
            let listen = async {
                if let Ok(Ok(answer)) = timeout(LATE_ANSWER, exchange).await {
                    settle(answer).await;
                }
            };
            closing.run_until_cancelled(listen).await;
        });
    }
}
