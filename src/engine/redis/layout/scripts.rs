//! The scripts of lua/, and the only place that loads one into a Redis. The head of each script states its arguments,
//! its result and its bound. Callers build keys and arguments; this module does not interpret them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

use super::keys::job_prefix;
use super::script_call::{ScriptCall, Source};

/// A script and its variants.
#[derive(Debug)]
pub struct Script {
    plain: Arc<Source>,
    /// Variant that counts the jobs it stores and deletes.
    counting: Option<Arc<Source>>,
    counts: AtomicBool,
    /// Whether to wait for replicas after a call, if the pool waits for replicas at all.
    lasts: bool,
}

/// All scripts of lua/.
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
    pub promote: Script,
    pub scan_timers: Script,
    pub count_timers: Script,
    pub add_timer_counts: Script,
    pub recount_timers: Script,
    pub destroy: Script,
    pub forget_queue: Script,
    pub respawn: Script,
    pub respawn_job: Script,
    pub delete_dead: Script,
    pub trim_dead: Script,
    pub pump: Script,
    pub unpack: Script,
    pub scan_packed: Script,
    pub count_packed: Script,
    pub look_up_token: Script,
    pub count: Script,
    pub uncount: Script,
    pub remove_token: Script,
    pub set_quotas: Script,
    pub recount: Script,
    pub recounted: Script,
    pub sampled: Script,
    pub get_setting: Script,
    pub put_setting: Script,
    pub scan_settings: Script,
    pub setting_changes: Script,
    pub keep_setting: Script,
}

/// One part of a script: a file; in brackets, a file wrapped in a function of that name, which takes keys and
/// arguments; or `job_base`, the prefix of the partition's job keys, for scripts that handle jobs unknown to their
/// caller.
macro_rules! part {
    (job_base) => {
        concat!("local job_base = base .. '", job_prefix!(), "'\n")
    };
    ($name:literal) => {
        include_str!(concat!("../../../../lua/", $name, ".lua"))
    };
}

/// A script without a deadline, so without lua/clock.lua.
macro_rules! without_clock {
    ($($name:literal),+) => {
        Script::new(concat!($(part!($name)),+))
    };
}

/// A script of a pool, with a base and a deadline by Redis's clock: preceded by lua/clock.lua, lua/base.lua, and its
/// other parts.
macro_rules! with_clock {
    ($($part:tt),+) => {
        Script::new(concat!(part!("clock"), part!("base"), $(part!($part)),+))
    };
}

/// Like `with_clock`, for a script that stores or deletes jobs: while it [counts](Scripts::count), lua/quotas.lua wraps
/// it.
macro_rules! counted {
    ($($part:tt),+) => {
        with_clock!($($part),+).counting(concat!(
            part!("clock"),
            part!("base"),
            part!("quotas"),
            "local function script()\n",
            $(part!($part),)+
            "\nend\nlocal answer = script()\nsettle()\nreturn answer\n"
        ))
    };
}

impl Default for Scripts {
    fn default() -> Scripts {
        let mut scripts = Scripts {
            stage: counted!("stage"),
            publish: counted!("packed", "forget", "publish"),
            publish_with: counted!("forget", job_base, "details", "publish_with"),
            cancel_key: counted!(job_base, "details", "cancel_key"),
            consume: with_clock!("dead", "consume"),
            give_back: with_clock!("give_back"),
            touch: with_clock!("touch"),
            release: with_clock!(job_base, "details", "dead", "release"),
            ack: counted!("forget", "ack"),
            ack_many: counted!("forget", "ack_many"),
            peek: with_clock!("peek"),
            inspect: with_clock!(job_base, "details", "inspect"),
            describe: with_clock!(job_base, "details", "describe"),
            promote: with_clock!(job_base, "details", "promote"),
            scan_timers: with_clock!(job_base, "details", "scan_timers"),
            count_timers: with_clock!(job_base, "details", "count_timers"),
            add_timer_counts: with_clock!("add_timer_counts"),
            recount_timers: with_clock!("recount_timers"),
            destroy: counted!("destroy"),
            forget_queue: with_clock!("forget_queue"),
            respawn: with_clock!(job_base, "details", "respawn"),
            respawn_job: with_clock!(job_base, "details", "respawn_job"),
            delete_dead: counted!("delete_dead"),
            trim_dead: with_clock!("trim_dead"),
            pump: with_clock!(job_base, "packed", "packed_jobs", "dead", "pump"),
            unpack: with_clock!(job_base, "packed", "packed_jobs", "unpack"),
            scan_packed: with_clock!(job_base, "packed", "packed_jobs", "scan_packed"),
            count_packed: with_clock!(job_base, "packed", "packed_jobs", "count_packed"),
            look_up_token: without_clock!("look_up_token"),
            count: without_clock!("count"),
            uncount: without_clock!("uncount"),
            remove_token: without_clock!("remove_token"),
            set_quotas: with_clock!("set_quotas"),
            recount: with_clock!(job_base, "packed", "recount"),
            recounted: with_clock!("recounted"),
            sampled: with_clock!("sampled"),
            get_setting: without_clock!("settings", "get_setting"),
            put_setting: without_clock!("settings", "put_setting"),
            scan_settings: without_clock!("settings", "scan_settings"),
            setting_changes: without_clock!("settings", "setting_changes"),
            keep_setting: without_clock!("settings", "keep_setting"),
        };
        scripts.set_lasting();
        scripts
    }
}

impl Scripts {
    /// Marks the scripts after which to wait for replicas, in pools that do so. If a failover loses a step of another
    /// script, the step happens again: a delivery, a touch, a pump.
    fn set_lasting(&mut self) {
        for script in [
            &mut self.ack,
            &mut self.ack_many,
            &mut self.cancel_key,
            &mut self.delete_dead,
            &mut self.destroy,
            &mut self.promote,
            &mut self.publish,
            &mut self.publish_with,
            &mut self.release,
            &mut self.respawn,
            &mut self.respawn_job,
        ] {
            script.lasts = true;
        }
    }

    /// Sets whether scripts that store or delete jobs count them.
    pub fn count(&self, counts: bool) {
        let publishes = [&self.stage, &self.publish, &self.publish_with];
        let deletes = [&self.cancel_key, &self.ack, &self.ack_many, &self.destroy, &self.delete_dead];
        for script in publishes.into_iter().chain(deletes) {
            script.counts.store(counts, Ordering::Relaxed);
        }
    }
}

impl Script {
    /// Returns a script with this text.
    pub fn new(text: &'static str) -> Script {
        Script {
            plain: Source::new(text).into(),
            counting: None,
            counts: AtomicBool::new(false),
            lasts: false,
        }
    }

    fn counting(self, text: &'static str) -> Script {
        Script { counting: Some(Source::new(text).into()), ..self }
    }

    /// Returns a call of a pool's script in the partition with this base.
    pub fn call_in(&self, base: &Arc<str>) -> ScriptCall {
        let counting = self.counting.as_ref().filter(|_| self.counts.load(Ordering::Relaxed));
        ScriptCall::new(counting.unwrap_or(&self.plain).clone(), self.lasts, base)
    }

    /// Starts a call of a script without a deadline, with `keys` keys. The caller appends the keys, then the arguments.
    pub fn call(&self, keys: usize) -> Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&self.plain.sha).arg(keys);
        cmd
    }

    /// Runs a call started by [`call`](Script::call). If the server does not have the script (it was restarted, or its
    /// scripts were flushed), nothing was executed: loads the script and sends the call again.
    pub async fn run(&self, conn: &mut MultiplexedConnection, call: &Cmd) -> RedisResult<Value> {
        match conn.send_packed_command(call).await.and_then(Value::extract_error) {
            Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                redis::cmd("SCRIPT").arg("LOAD").arg(self.plain.text).exec_async(conn).await?;
                conn.send_packed_command(call).await.and_then(Value::extract_error)
            }
            answer => answer,
        }
    }
}
