//! A master, two replicas and three Sentinels: the smallest installation that survives the loss of one machine.

use std::time::{Duration, Instant};

use crate::support::redis_server::RedisServer;
use crate::support::servers::TestServer;
use crate::support::wait::TIMEOUT;

/// Name of the master at the Sentinels.
const NAME: &str = "dorm";

/// Short, since after a failed attempt, such as an election without a winner, the next one begins after twice this.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers of the installation.
pub struct Sentinels {
    /// The first is the initial master.
    pub redises: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
    /// Configuration files of the Sentinels.
    _confs: Vec<tempfile::NamedTempFile>,
}

impl Sentinels {
    /// Starts all servers, and waits until they know each other. `args` are for all three Redis servers.
    pub async fn start(down_after: Duration, args: &[&str]) -> Sentinels {
        // Replicas sync at once instead of after five seconds.
        let mut args = [&["--repl-diskless-sync-delay", "0"], args].concat();
        let master = RedisServer::start_with(None, &args);
        let follow = master.addr().replace(':', " ");
        args.extend(["--replicaof", &follow]);
        let replicas = [RedisServer::start_with(None, &args), RedisServer::start_with(None, &args)];
        let settings = format!(
            "sentinel monitor {NAME} {follow} 2\n\
             sentinel down-after-milliseconds {NAME} {}\n\
             sentinel failover-timeout {NAME} {}\n\
             sentinel parallel-syncs {NAME} 2\n",
            down_after.as_millis(),
            FAILOVER_TIMEOUT.as_millis()
        );
        let mut redises = vec![master];
        redises.extend(replicas);
        until("both replicas follow", || {
            let info: redis::InfoDict = ask(&redises[0], redis::cmd("INFO").arg("replication"));
            let line = |n| info.get::<String>(n).unwrap_or_default();
            [line("slave0"), line("slave1")].iter().all(|replica| replica.contains("state=online"))
        })
        .await;
        let (mut sentinels, mut confs) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let conf = tempfile::NamedTempFile::new().expect("a temporary file");
            std::fs::write(conf.path(), &settings).expect("written");
            sentinels.push(RedisServer::start_kind(
                None,
                &[],
                Some(conf.path().to_str().expect("a path in UTF-8")),
                Vec::new(),
            ));
            confs.push(conf);
        }
        until("the Sentinels know each other and both replicas", || {
            sentinels.iter().all(|sentinel| {
                let known: String = ask(sentinel, redis::cmd("INFO").arg("sentinel"));
                known.contains("status=ok,") && known.contains("slaves=2,sentinels=3")
            })
        })
        .await;
        Sentinels { redises, sentinels, _confs: confs }
    }

    /// Returns a configuration with everything on the master.
    pub fn toml(&self) -> String {
        let addrs: Vec<String> = self.sentinels.iter().map(RedisServer::addr).collect();
        let keys = format!("Addr = {:?}\nMasterName = {NAME:?}\n", addrs.join(","));
        format!("[Pool.default]\n{keys}[AdminRedis]\n{keys}")
    }

    /// Starts a Dormouse server on them.
    pub async fn server(&self) -> TestServer {
        TestServer::start(&self.toml(), ()).await
    }

    /// Makes these Sentinels consider a Redis down after this time without a reply.
    pub fn set_down_after(sentinels: &[RedisServer], down_after: Duration) {
        for sentinel in sentinels {
            let mut set = redis::cmd("SENTINEL");
            set.arg("SET").arg(NAME).arg("down-after-milliseconds").arg(down_after.as_millis() as u64);
            let ok: String = ask(sentinel, &set);
            assert_eq!(ok, "OK", "a Sentinel takes the setting");
        }
    }

    /// Makes the last Sentinel, which no test kills, start a failover of the healthy master.
    pub fn fail_over(&self) {
        let last = self.sentinels.last().expect("there are three");
        let ok: String = ask(last, redis::cmd("SENTINEL").arg("FAILOVER").arg(NAME));
        assert_eq!(ok, "OK", "a failover begins");
    }

    /// Returns the master's address according to the last Sentinel.
    pub fn master(&self) -> String {
        let last = self.sentinels.last().expect("there are three");
        let (host, port): (String, u16) =
            ask(last, redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(NAME));
        format!("{host}:{port}")
    }
}

impl Sentinels {
    /// Returns the master's index according to the last Sentinel.
    pub fn current(&self) -> Option<usize> {
        let master = self.master();
        self.redises.iter().position(|redis| redis.addr() == master)
    }

    /// Whether the master has both replicas, and the Sentinels report no fault.
    pub fn are_well(&self) -> bool {
        let Some(master) = self.current() else { return false };
        let of_master: redis::InfoDict =
            match try_ask(&self.redises[master], redis::cmd("INFO").arg("replication")) {
                Ok(told) => told,
                Err(_) => return false,
            };
        let is_online = |n| of_master.get::<String>(n).is_some_and(|line| line.contains("state=online"));
        let is_master = of_master.get::<String>("role").is_some_and(|role| role == "master");
        let see = |sentinel| {
            try_ask::<String>(sentinel, redis::cmd("INFO").arg("sentinel"))
                .is_ok_and(|told| told.contains("status=ok,") && told.contains("slaves=2,sentinels=3"))
        };
        is_master && is_online("slave0") && is_online("slave1") && self.sentinels.iter().all(see)
    }

    /// Like [`Sentinels::fail_over`], but returns false if the Sentinel refuses: it waits after another failover.
    pub fn try_fail_over(&self) -> bool {
        let last = self.sentinels.last().expect("there are three");
        try_ask::<String>(last, redis::cmd("SENTINEL").arg("FAILOVER").arg(NAME)).is_ok()
    }
}

fn try_ask<T: redis::FromRedisValue>(server: &RedisServer, cmd: &redis::Cmd) -> redis::RedisResult<T> {
    let client = redis::Client::open(format!("redis://{}", server.addr()))?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
    connection.set_read_timeout(Some(Duration::from_secs(2)))?;
    cmd.query(&mut connection)
}

fn ask<T: redis::FromRedisValue>(server: &RedisServer, cmd: &redis::Cmd) -> T {
    cmd.query(&mut server.connection()).unwrap_or_else(|e| panic!("{} should answer: {e}", server.addr()))
}

/// Polls until `done`, since Redis servers and Sentinels send no events.
async fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < TIMEOUT, "this should have happened within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
