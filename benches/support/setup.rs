//! The measured servers: the release binary as a child process, with a directory or Redis servers of its own, all of it
//! removed at the end of the section.

use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::TempDir;

use super::Outcome;
use super::client::Target;
use super::process::Process;
use super::redis_cluster::RedisCluster;
use super::redis_server::RedisServer;

/// The store of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Synced before each reply.
    Disk,
    /// Synced every second.
    DiskEverySec,
    /// Append-only file, synced every second.
    Redis,
    /// A cluster of three masters with a replica each. A queue is in one partition.
    Cluster,
    /// Like `Cluster`, with each queue spread over all partitions.
    Spread,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Store::Disk => "disk",
            Store::DiskEverySec => "disk everysec",
            Store::Redis => "redis",
            Store::Cluster => "cluster",
            Store::Spread => "spread",
        })
    }
}

/// One server process.
pub struct Server {
    process: Process,
    /// The public port, with a token for the namespace `bench`.
    pub api: Target,
    pub admin: Target,
    /// Dropped after the process.
    dir: TempDir,
}

impl Server {
    /// Starts a server with this table of its pool.
    pub async fn start(pool: &str, env: &[(&str, &str)]) -> Outcome<Server> {
        Server::start_under(&[], pool, env).await
    }

    /// Like `start`, run by another program.
    async fn start_under(words: &[String], pool: &str, env: &[(&str, &str)]) -> Outcome<Server> {
        let dir = TempDir::new()?;
        std::fs::write(dir.path().join("dormouse.toml"), format!("LogLevel = \"info\"\n{pool}"))?;
        let mut process = Process::start_under(words, dir.path(), &["-c", "dormouse.toml"], env);
        let api: SocketAddr = process.address("api").parse()?;
        let admin = Target::new(process.address("admin").parse()?, None);
        #[derive(Deserialize)]
        struct Made {
            token: String,
        }
        let request = admin.bare("POST", "/token/bench?description=bench");
        let answer = admin.connect().await?.expect(201, &request).await?;
        let made: Made = serde_json::from_slice(&answer.body)?;
        Ok(Server { process, api: Target::new(api, Some(&made.token)), admin, dir })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops the server, and waits for its end.
    pub fn stop(self) {
        self.process.signal("TERM");
        self.process.ended();
    }

    /// Returns the contents of its directory: megabytes in use, and files of a disk pool's log.
    pub fn on_disk(&self) -> Outcome<String> {
        let (mut blocks, mut files) = (0, 0);
        let mut dirs = vec![self.dir.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir)? {
                let path = entry?.path();
                // A file may be deleted meanwhile.
                let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
                if found.is_dir() {
                    dirs.push(path);
                } else {
                    blocks += found.blocks();
                    files += usize::from(path.parent().is_some_and(|dir| dir.ends_with("log")));
                }
            }
        }
        Ok(format!("{} MB on disk, {files} files in its log", blocks / 2048))
    }

    /// Returns the values of the metrics whose lines start with `begins`.
    async fn metric(&self, begins: &str) -> Outcome<Vec<f64>> {
        let answer = self.admin.connect().await?.expect(200, &self.admin.bare("GET", "/metrics")).await?;
        let text = String::from_utf8(answer.body)?;
        let lines = text.lines().filter(|line| line.starts_with(begins));
        lines.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)).collect()
    }

    /// Returns the number of parked polls.
    pub async fn parked(&self) -> Outcome<usize> {
        let values = self.metric("dormouse_parked_polls ").await?;
        Ok(*values.first().ok_or("no gauge of parked polls")? as usize)
    }

    /// Returns the number of push requests that have ended, with any outcome.
    pub async fn push_attempts(&self) -> Outcome<f64> {
        Ok(self.metric("dormouse_push_attempts_total{").await?.iter().sum())
    }

    /// Waits until this many polls are parked.
    pub async fn wait_parked(&self, polls: usize) -> Outcome {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let parked = self.parked().await?;
            if parked == polls {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{polls} polls should be parked, {parked} are").into());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Servers and their stores.
pub struct Setup {
    pub servers: Vec<Server>,
    pub redis: Option<RedisServer>,
    /// Replicas of the single Redis.
    replicas: Vec<RedisServer>,
    pub cluster: Option<RedisCluster>,
}

impl Setup {
    /// Starts one server on this store.
    pub async fn one(store: Store) -> Outcome<Setup> {
        Setup::one_in(store, &[]).await
    }

    /// Like `one`, with environment variables.
    pub async fn one_in(store: Store, env: &[(&str, &str)]) -> Outcome<Setup> {
        let sync = match store {
            Store::Disk => "always",
            Store::DiskEverySec => "everysec",
            Store::Redis => return Setup::redis(&[env]).await,
            Store::Cluster => return Setup::cluster(&[env], "").await,
            Store::Spread => return Setup::cluster(&[env], "Spread = [\"*/*\"]").await,
        };
        let pool = format!("[Pool.default]\nPath = \"jobs\"\nSync = \"{sync}\"\n");
        Ok(Setup {
            servers: vec![Server::start(&pool, env).await?],
            redis: None,
            replicas: Vec::new(),
            cluster: None,
        })
    }

    /// Starts a server on disk with this open-file limit.
    pub async fn with_open_files(most: usize, env: &[(&str, &str)]) -> Outcome<Setup> {
        let shell = ["/bin/sh", "-c", &format!("ulimit -n {most} && exec \"$@\""), "sh"];
        let pool = "[Pool.default]\nPath = \"jobs\"\n";
        let server = Server::start_under(&shell.map(str::to_owned), pool, env).await?;
        Ok(Setup { servers: vec![server], redis: None, replicas: Vec::new(), cluster: None })
    }

    /// Starts several servers on one Redis, each with its own environment variables.
    pub async fn redis(environments: &[&[(&str, &str)]]) -> Outcome<Setup> {
        let redis = RedisServer::start();
        let addr = redis.addr();
        let pool = format!("[AdminRedis]\nAddr = \"{addr}\"\n[Pool.default]\nAddr = \"{addr}\"\n");
        let mut servers = Vec::new();
        for env in environments {
            servers.push(Server::start(&pool, env).await?);
        }
        Ok(Setup { servers, redis: Some(redis), replicas: Vec::new(), cluster: None })
    }

    /// Starts one server on one Redis with `replicas` replicas, and further lines for the pool's table.
    pub async fn one_redis(env: &[(&str, &str)], replicas: usize, more: &str) -> Outcome<Setup> {
        let settings = ["--hash-max-listpack-value", "1100", "--repl-diskless-sync-delay", "0"];
        let redis = RedisServer::start_with(None, &settings);
        let of = ["--replicaof", "127.0.0.1", &redis.port.to_string()];
        let replica = |_| RedisServer::start_with(None, &[&settings[..], &of].concat());
        let replicas: Vec<RedisServer> = (0..replicas).map(replica).collect();
        let end = Instant::now() + Duration::from_secs(20);
        while !replicas.iter().all(|replica| {
            info::<String>(replica, "replication", "master_link_status").is_ok_and(|state| state == "up")
        }) {
            if Instant::now() > end {
                return Err("a replica does not follow its master".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let addr = redis.addr();
        let pool = format!("[AdminRedis]\nAddr = \"{addr}\"\n[Pool.default]\nAddr = \"{addr}\"\n{more}\n");
        let servers = vec![Server::start(&pool, env).await?];
        Ok(Setup { servers, redis: Some(redis), replicas, cluster: None })
    }

    /// Starts several servers on one cluster of six nodes, each with its own environment variables, and with further
    /// lines for the pool's table.
    pub async fn cluster(environments: &[&[(&str, &str)]], more: &str) -> Outcome<Setup> {
        Setup::on_cluster(RedisCluster::start().quick(), environments, more).await
    }

    /// Like `cluster`, on an existing cluster whose first three nodes are its masters.
    pub async fn on_cluster(
        cluster: RedisCluster,
        environments: &[&[(&str, &str)]],
        more: &str,
    ) -> Outcome<Setup> {
        let addrs: Vec<String> =
            cluster.servers.iter().take(3).map(|node| format!("\"{}\"", node.addr())).collect();
        let pool = format!("[Pool.default]\nCluster = [{}]\n{more}\n", addrs.join(", "));
        let mut servers = Vec::new();
        for env in environments {
            servers.push(Server::start(&pool, env).await?);
        }
        Ok(Setup { servers, redis: None, replicas: Vec::new(), cluster: Some(cluster) })
    }

    /// Starts one server that reaches this Redis at another address: through a proxy, as through a virtual IP.
    pub async fn behind(addr: &str, redis: RedisServer) -> Outcome<Setup> {
        let pool = format!("[AdminRedis]\nAddr = \"{addr}\"\n[Pool.default]\nAddr = \"{addr}\"\n");
        let servers = vec![Server::start(&pool, &[]).await?];
        Ok(Setup { servers, redis: Some(redis), replicas: Vec::new(), cluster: None })
    }

    /// Returns the first server.
    pub fn first(&self) -> &Server {
        &self.servers[0] // every constructor makes at least one
    }

    /// Returns the last server, which differs from the first if there are several.
    pub fn last(&self) -> &Server {
        &self.servers[self.servers.len() - 1] // as above
    }

    /// Returns the Redis, or the initial masters of the cluster.
    pub fn masters(&self) -> impl Iterator<Item = &RedisServer> {
        self.redis.iter().chain(self.cluster.iter().flat_map(|cluster| cluster.servers.iter().take(3)))
    }

    /// Returns their replicas.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        self.replicas.iter().chain(self.cluster.iter().flat_map(|cluster| cluster.servers.iter().skip(3)))
    }

    /// Returns the sum of an INFO value over all masters.
    pub fn info_of_masters(&self, section: &str, name: &str) -> Outcome<f64> {
        self.masters().map(|master| info::<f64>(master, section, name)).sum()
    }

    /// Returns every process, for a meter: servers, the Redis or the masters, this client.
    pub fn processes(&self) -> Vec<(&'static str, u32)> {
        let mut all: Vec<_> = self.servers.iter().map(|server| ("server", server.pid())).collect();
        all.extend(self.masters().map(|redis| ("redis", redis.pid())));
        all.push(("client", std::process::id()));
        all
    }
}

/// Returns a value of INFO, by its name.
pub fn info<T: FromStr<Err: Error + Send + Sync + 'static>>(
    redis: &RedisServer,
    section: &str,
    name: &str,
) -> Outcome<T> {
    let text: String = redis::cmd("INFO").arg(section).query(&mut redis.connection())?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.ok_or_else(|| format!("INFO {section} has no {name}"))?.trim().parse()?)
}

/// Returns how often each command has run so far, except for INFO and connection setup.
pub fn command_counts(redis: &RedisServer) -> Outcome<std::collections::BTreeMap<String, u64>> {
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut redis.connection())?;
    let mut counts = std::collections::BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls="))
        else {
            continue;
        };
        // Commands of our own connections.
        if !["info", "client|setinfo", "client|setname"].contains(&name) {
            counts.insert(name.to_owned(), rest.split(',').next().unwrap_or_default().parse()?);
        }
    }
    Ok(counts)
}
