//! The scripts of lua/, and the only place that sends one to a Redis. What each of them takes, returns and may do
//! at most stands at its head. Who calls a script builds its keys and arguments; nothing is known of them here.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Arg, Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use ring::digest;

/// One script and its name on the server.
#[derive(Debug)]
pub struct Script {
    plain: Source,
    /// The same, which counts what it stores and deletes.
    counting: Option<Source>,
    counts: AtomicBool,
    /// What it has changed must outlive the Redis, where a pool asks for that.
    lasts: bool,
}

#[derive(Debug)]
struct Source {
    text: &'static str,
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
    pub count_timers: Script,
    pub destroy: Script,
    pub respawn: Script,
    pub respawn_job: Script,
    pub pause: Script,
    pub resume: Script,
    pub delete_dead: Script,
    pub pump: Script,
    pub add_timer_counts: Script,
    pub recount_timers: Script,
    pub look_up_token: Script,
    pub count: Script,
    pub uncount: Script,
    pub remove_token: Script,
    pub set_quotas: Script,
    pub recount: Script,
    pub recounted: Script,
    pub put_quota: Script,
    pub servers: Script,
    pub step_schedule: Script,
    pub list_schedules: Script,
    pub due_schedules: Script,
    pub push_swap: Script,
    pub push_lease: Script,
    pub push_report: Script,
}

/// A part of a script: a file; or, in brackets, one as the function of that name, which takes keys and arguments.
macro_rules! part {
    ($name:literal) => {
        include_str!(concat!("../../../../lua/", $name, ".lua"))
    };
    ([$function:ident $name:literal]) => {
        concat!("local function ", stringify!($function), "(KEYS, ARGV)\n", part!($name), "\nend\n")
    };
}

/// A script without a deadline. lua/clock.lua is not put before it.
macro_rules! without_clock {
    ($name:literal) => {
        Script::new(part!($name))
    };
}

/// A script of a pool, which has a deadline by the Redis's clock: lua/clock.lua is put before it, and then what else it
/// stands on. It is called with [`Link::run_script`](crate::engine::redis::link::Link::run_script).
macro_rules! with_clock {
    ($($part:tt),+) => {
        Script::new(concat!(part!("clock"), $(part!($part)),+))
    };
}

/// The same for a script that stores or deletes jobs: while it [counts](Scripts::count), lua/quotas.lua stands around
/// it.
macro_rules! counted {
    ($($part:tt),+) => {
        with_clock!($($part),+).counting(concat!(
            part!("clock"),
            part!("quotas"),
            "local function script()\n",
            $(part!($part),)+
            "\nend\nlocal answer = script()\nsettle()\nreturn answer\n"
        ))
    };
}

impl Default for Scripts {
    fn default() -> Scripts {
        Scripts {
            stage: counted!("stage"),
            publish: counted!("timer_counts", "forget", "publish"),
            publish_with: counted!("timer_counts", "forget", "details", "publish_with"),
            cancel_key: counted!("timer_counts", "details", "cancel_key"),
            consume: with_clock!("consume"),
            give_back: with_clock!("give_back"),
            touch: with_clock!("touch"),
            release: with_clock!("details", "release"),
            ack: counted!("timer_counts", "forget", "ack"),
            ack_many: counted!("timer_counts", "forget", "ack_many"),
            peek: with_clock!("peek"),
            inspect: with_clock!("details", "inspect"),
            describe: with_clock!("details", "describe"),
            scan_timers: with_clock!("details", "scan_timers"),
            count_timers: with_clock!("details", "count_timers"),
            destroy: counted!("destroy"),
            respawn: with_clock!("details", "respawn"),
            respawn_job: with_clock!("timer_counts", "details", "respawn_job"),
            pause: with_clock!("pause"),
            resume: with_clock!("resume"),
            delete_dead: counted!("delete_dead"),
            pump: with_clock!("pump"),
            add_timer_counts: with_clock!("add_timer_counts"),
            recount_timers: with_clock!("timer_counts", "recount_timers"),
            look_up_token: without_clock!("look_up_token"),
            count: without_clock!("count"),
            uncount: without_clock!("uncount"),
            remove_token: without_clock!("remove_token"),
            set_quotas: with_clock!("set_quotas"),
            recount: with_clock!("recount"),
            recounted: with_clock!("recounted"),
            put_quota: without_clock!("put_quota"),
            servers: without_clock!("servers"),
            step_schedule: counted!("timer_counts", "forget", "details", [publish "publish_with"], "schedules", "step_schedule"),
            list_schedules: with_clock!("schedules", "list_schedules"),
            due_schedules: with_clock!("schedules", "due_schedules"),
            push_swap: without_clock!("push_swap"),
            push_lease: without_clock!("push_lease"),
            push_report: without_clock!("push_report"),
        }
    }
}

impl Scripts {
    /// Whether what stores or deletes jobs counts them.
    pub fn count(&self, counts: bool) {
        let publishes = [&self.stage, &self.publish, &self.publish_with, &self.step_schedule];
        let deletes = [&self.cancel_key, &self.ack, &self.ack_many, &self.destroy, &self.delete_dead];
        for script in publishes.into_iter().chain(deletes) {
            script.counts.store(counts, Ordering::Relaxed);
        }
    }
}

impl Source {
    fn new(text: &'static str) -> Source {
        let sha = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Source { text, sha: sha.as_ref().iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

impl Script {
    /// A script of this text.
    pub fn new(text: &'static str) -> Script {
        Script { plain: Source::new(text), counting: None, counts: AtomicBool::new(false), lasts: false }
    }

    fn counting(self, text: &'static str) -> Script {
        Script { counting: Some(Source::new(text)), ..self }
    }

    /// From now on replicas are waited for, where a pool asks for that.
    pub fn set_lasting(&mut self) {
        self.lasts = true;
    }

    pub fn lasts(&self) -> bool {
        self.lasts
    }

    /// A call with that many keys; keys come first, then arguments.
    pub fn call(&self, keys: usize) -> Cmd {
        let counting = self.counting.as_ref().filter(|_| self.counts.load(Ordering::Relaxed));
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&counting.unwrap_or(&self.plain).sha).arg(keys);
        cmd
    }

    /// What a call runs.
    fn source(&self, call: &Cmd) -> &'static str {
        let counting = self.counting.as_ref();
        let is_called = |source: &&Source| matches!(call.args_iter().nth(1), Some(Arg::Simple(sha)) if sha == source.sha.as_bytes());
        counting.filter(is_called).unwrap_or(&self.plain).text
    }

    /// The same as [`run`](Script::run), and two other commands behind it in the same write: answers what it says, and what
    /// the last one does.
    pub async fn run_with(
        &self,
        conn: &mut MultiplexedConnection,
        call: &Cmd,
        [then, last]: [Cmd; 2],
    ) -> RedisResult<(Value, u64)> {
        let mut all = redis::pipe();
        all.add_command(call.clone()).add_command(then).add_command(last);
        loop {
            let mut answers = conn.send_packed_commands(&all, 0, 3).await?.into_iter();
            let mut answer = || answers.next().unwrap_or(Value::Nil).extract_error();
            let (of_script, _, last) = (answer(), answer(), answer());
            match of_script {
                Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    redis::cmd("SCRIPT").arg("LOAD").arg(self.source(call)).exec_async(conn).await?;
                }
                of_script => return Ok((of_script?, redis::from_redis_value(last?)?)),
            }
        }
    }

    /// Runs a call that [`call`](Script::call) began. A server that does not know the script (it was
    /// restarted, or its scripts were flushed) has run nothing, so it is told the script and asked once more.
    pub async fn run(&self, conn: &mut MultiplexedConnection, call: &Cmd) -> RedisResult<Value> {
        match conn.send_packed_command(call).await.and_then(Value::extract_error) {
            Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                redis::cmd("SCRIPT").arg("LOAD").arg(self.source(call)).exec_async(conn).await?;
                conn.send_packed_command(call).await.and_then(Value::extract_error)
            }
            answer => answer,
        }
    }
}
