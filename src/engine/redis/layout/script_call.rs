//! One call of a script: the script, its keys and arguments, and sending it. The deadline is added for each attempt, so
//! a call can be sent again while no Redis has started it.

use std::sync::Arc;
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, ErrorKind, RedisResult, ServerErrorKind, ToRedisArgs, Value};
use ring::digest;

use super::keys::{guard_of, waited_of};
use crate::clock::Micros;

/// The text of a script, and its SHA-1, which identifies it on the server.
#[derive(Debug)]
pub struct Source {
    pub text: &'static str,
    pub sha: String,
}

impl Source {
    pub fn new(text: &'static str) -> Source {
        let sha = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Source { text, sha: sha.as_ref().iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

/// A call of a script.
#[derive(Clone, Debug)]
pub struct ScriptCall {
    source: Arc<Source>,
    /// Whether to wait for replicas after the call, if the pool waits for replicas at all.
    lasts: bool,
    /// When the caller made the call: its time limit counts from here.
    arrived: Instant,
    /// Another partition could take the call instead.
    is_movable: bool,
    /// Prefix of every key of its partition.
    base: Arc<str>,
    /// A key that is never written: a node that migrates its slot rejects the call before it starts.
    guard: Option<String>,
    keys: Cmd,
    args: Cmd,
}

impl ScriptCall {
    /// Returns a call in the partition with this base. Every base except the empty one has a guard.
    pub fn new(source: Arc<Source>, lasts: bool, base: &Arc<str>) -> ScriptCall {
        let guard = (!base.is_empty()).then(|| guard_of(base));
        let (arrived, base) = (Instant::now(), base.clone());
        let (keys, args) = (Cmd::new(), Cmd::new());
        ScriptCall { source, lasts, arrived, is_movable: false, base, guard, keys, args }
    }

    /// Sets when the caller made the call. The default is when it was created.
    pub fn arrived_at(&mut self, arrived: Instant) -> &mut ScriptCall {
        self.arrived = arrived;
        self
    }

    /// Sets whether another partition could take the call instead: then its time limit is shorter.
    pub fn movable(&mut self, is_movable: bool) -> &mut ScriptCall {
        self.is_movable = is_movable;
        self
    }

    pub fn is_movable(&self) -> bool {
        self.is_movable
    }

    /// Returns when the caller made the call. In a cluster, returns the current time: a call may wait for its
    /// partition, and has its full time limit once it is sent.
    pub fn arrived(&self) -> Instant {
        if self.guard.is_some() { Instant::now() } else { self.arrived }
    }

    /// Appends a key.
    pub fn key(&mut self, key: impl ToRedisArgs) -> &mut ScriptCall {
        self.keys.arg(key);
        self
    }

    /// Appends an argument, or several.
    pub fn arg(&mut self, arg: impl ToRedisArgs) -> &mut ScriptCall {
        self.args.arg(arg);
        self
    }

    /// Whether to wait for replicas after the call.
    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// The command. The script does nothing once its Redis's clock is past the deadline.
    fn command(&self, deadline: Micros) -> Cmd {
        let (keys, args) = (self.keys.args_iter().len(), self.args.args_iter().len());
        let bytes: usize = args_of(&self.keys).chain(args_of(&self.args)).map(<[u8]>::len).sum();
        let mut cmd = Cmd::with_capacity(keys + args + 6, bytes + 128);
        cmd.arg("EVALSHA").arg(&self.source.sha).arg(keys + usize::from(self.guard.is_some()));
        args_of(&self.keys).for_each(|key| _ = cmd.arg(key));
        self.guard.iter().for_each(|guard| _ = cmd.arg(guard));
        args_of(&self.args).for_each(|arg| _ = cmd.arg(arg));
        cmd.arg(&*self.base).arg(deadline);
        cmd
    }

    /// Runs the call. If the server does not have the script (it was restarted, or its scripts were flushed), nothing
    /// was executed: loads the script and sends the call again.
    pub async fn run(&self, conn: &mut MultiplexedConnection, deadline: Micros) -> RedisResult<Value> {
        let cmd = self.command(deadline);
        match conn.send_packed_command(&cmd).await.and_then(Value::extract_error) {
            Err(e) if is_unknown(&e) => {
                self.load(conn).await?;
                conn.send_packed_command(&cmd).await.and_then(Value::extract_error)
            }
            answer => answer,
        }
    }

    /// Like `run`, with two other commands after the call in the same write. Returns the replies of the call and of the
    /// last command.
    pub async fn run_with(
        &self,
        conn: &mut MultiplexedConnection,
        deadline: Micros,
        [then, last]: [Cmd; 2],
    ) -> RedisResult<(Value, u64)> {
        let mut all = redis::pipe();
        all.add_command(self.command(deadline)).add_command(then).add_command(last);
        loop {
            let mut answers = conn.send_packed_commands(&all, 0, 3).await?.into_iter();
            let mut answer = || answers.next().unwrap_or(Value::Nil).extract_error();
            let (of_script, _, last) = (answer(), answer(), answer());
            match of_script {
                Err(e) if is_unknown(&e) => self.load(conn).await?,
                of_script => return Ok((of_script?, redis::from_redis_value(last?)?)),
            }
        }
    }

    /// Returns the key in the slot of the call that is written after it. WAIT covers only a connection's last write.
    pub fn mark(&self) -> String {
        waited_of(&self.base)
    }

    async fn load(&self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        redis::cmd("SCRIPT").arg("LOAD").arg(self.source.text).exec_async(conn).await
    }
}

fn args_of(cmd: &Cmd) -> impl Iterator<Item = &[u8]> {
    cmd.args_iter().filter_map(|arg| if let Arg::Simple(arg) = arg { Some(arg) } else { None })
}

fn is_unknown(e: &redis::RedisError) -> bool {
    e.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

#[cfg(test)]
mod tests {
    use super::super::scripts::Scripts;
    use super::*;

    fn words(base: &str) -> Vec<String> {
        let base: Arc<str> = base.into();
        let mut call = Scripts::default().touch.call_in(&base);
        call.key("k1").arg(7).key("k2").arg("a");
        args_of(&call.command(99)).skip(2).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    #[test]
    fn a_call_ends_with_its_base_and_its_deadline() {
        assert_eq!(words(""), ["2", "k1", "k2", "7", "a", "", "99"], "a single Redis has no guard");
        assert_eq!(words("p{x}"), ["3", "k1", "k2", "p{x}!", "7", "a", "p{x}", "99"]);
    }
}
