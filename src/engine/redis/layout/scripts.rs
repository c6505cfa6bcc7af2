//! The scripts of lua/, and the only place that sends one to a Redis. What each of them takes, returns and may do
//! at most stands at its head. Who calls a script builds its keys and arguments; nothing is known of them here.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

/// One script and its name on the server.
#[derive(Debug)]
pub struct Script {
    source: &'static str,
    sha: String,
}

/// All of them.
#[derive(Debug)]
pub struct Scripts {
    pub stage: Script,
    pub publish: Script,
    pub publish_with: Script,
    pub cancel_key: Script,
    pub consume: Script,
    pub give_back: Script,
    pub touch: Script,
    pub release: Script,
    pub ack: Script,
    pub ack_many: Script,
    pub peek: Script,
    pub inspect: Script,
    pub describe: Script,
    pub scan_timers: Script,
    pub destroy: Script,
    pub respawn: Script,
    pub respawn_job: Script,
    pub pause: Script,
    pub resume: Script,
    pub delete_dead: Script,
    pub pump: Script,
    pub look_up_token: Script,
    pub count: Script,
    pub uncount: Script,
    pub remove_token: Script,
    pub push_swap: Script,
    pub push_lease: Script,
    pub push_report: Script,
}

/// A script without a deadline. lua/clock.lua is not put before it.
macro_rules! without_clock {
    ($name:literal) => {
        Script::new(include_str!(concat!("../../../../lua/", $name, ".lua")))
    };
}

/// A script of a pool, which has a deadline by the Redis's clock: lua/clock.lua is put before it. It is called with
/// [`RedisCore::run_script`](crate::engine::redis::RedisCore::run_script).
macro_rules! with_clock {
    ($name:literal) => {
        Script::new(concat!(
            include_str!("../../../../lua/clock.lua"),
            include_str!(concat!("../../../../lua/", $name, ".lua"))
        ))
    };
}

/// The same for a script that forgets jobs: lua/forget.lua is put before it too.
macro_rules! that_forgets {
    ($name:literal $(, $more:literal)*) => {
        Script::new(concat!(
            include_str!("../../../../lua/clock.lua"),
            include_str!("../../../../lua/forget.lua"),
            $(include_str!(concat!("../../../../lua/", $more, ".lua")),)*
            include_str!(concat!("../../../../lua/", $name, ".lua"))
        ))
    };
}

/// The same for a script that knows what is kept beside lmstfy's keys: lua/details.lua is put before it too.
macro_rules! with_details {
    ($name:literal) => {
        Script::new(concat!(
            include_str!("../../../../lua/clock.lua"),
            include_str!("../../../../lua/details.lua"),
            include_str!(concat!("../../../../lua/", $name, ".lua"))
        ))
    };
}

impl Default for Scripts {
    fn default() -> Scripts {
        Scripts {
            stage: with_clock!("stage"),
            publish: that_forgets!("publish"),
            publish_with: that_forgets!("publish_with", "details"),
            cancel_key: with_details!("cancel_key"),
            consume: with_clock!("consume"),
            give_back: with_clock!("give_back"),
            touch: with_clock!("touch"),
            release: with_details!("release"),
            ack: that_forgets!("ack"),
            ack_many: that_forgets!("ack_many"),
            peek: with_clock!("peek"),
            inspect: with_details!("inspect"),
            describe: with_details!("describe"),
            scan_timers: with_details!("scan_timers"),
            destroy: with_clock!("destroy"),
            respawn: with_details!("respawn"),
            respawn_job: with_details!("respawn_job"),
            pause: with_clock!("pause"),
            resume: with_clock!("resume"),
            delete_dead: with_clock!("delete_dead"),
            pump: with_clock!("pump"),
            look_up_token: without_clock!("look_up_token"),
            count: without_clock!("count"),
            uncount: without_clock!("uncount"),
            remove_token: without_clock!("remove_token"),
            push_swap: without_clock!("push_swap"),
            push_lease: without_clock!("push_lease"),
            push_report: without_clock!("push_report"),
        }
    }
}

impl Script {
    fn new(source: &'static str) -> Script {
        Script { source, sha: redis::Script::new(source).get_hash().to_owned() }
    }

    /// A call with that many keys; keys come first, then arguments.
    pub fn call(&self, keys: usize) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.sha).arg(keys);
        cmd
    }

    /// Runs a call that [`call`](Script::call) began. A server that does not know the script (it was
    /// restarted, or its scripts were flushed) has run nothing, so it is told the script and asked once more.
    pub async fn run(&self, conn: &mut MultiplexedConnection, call: &Cmd) -> RedisResult<Value> {
        match conn.send_packed_command(call).await.and_then(Value::extract_error) {
            Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                redis::cmd("SCRIPT").arg("LOAD").arg(self.source).exec_async(conn).await?;
                conn.send_packed_command(call).await.and_then(Value::extract_error)
            }
            answer => answer,
        }
    }
}
