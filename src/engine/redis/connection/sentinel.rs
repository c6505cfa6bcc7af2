//! Follows the master that the Sentinels name, and closes every connection to a Redis that is no longer the master.
//!
//! One task per configured Sentinel keeps a connection to it, subscribes to its events, and asks it every second and
//! after each event. So a dead or hanging Sentinel delays nothing. [`MasterChoice`] decides from the last replies of
//! all of them.
//!
//! After a failover the old master may still run, and accepts writes that will be lost until it is reconfigured as a
//! replica, some ten seconds later. So when the master changes, calls in flight to the old one fail at once and every
//! connection to it is closed. In addition, the Sentinel that leads a failover announces it before it promotes a
//! replica (`+failover-state-send-slaveof-noone`, at least 50 ms ahead). From then on no call is sent to the old
//! master: writes that it confirmed earlier are on its replicas by the time one of them is promoted.
//!
//! Independent of the purpose of the connections.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::fault::{Fault, Outcome};
pub use super::master::Master;
use super::master::{Lookup, MasterChoice, Named};
use super::open::{Connection, Ends, HostPort, Login, Opener};
use super::reconnect::{Reconnect, stay_connected};
use crate::process::tasks::Tasks;

/// Interval between queries to each Sentinel.
const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of connecting to a Sentinel, and of its replies.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Event of a failover whose next step promotes a replica.
const BEFORE_PROMOTION: &str = "+failover-state-send-slaveof-noone";
/// Events after which a Sentinel names another master.
const NEWS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The handle for callers that connect.
#[derive(Debug)]
pub struct Sentinels {
    found: watch::Receiver<Lookup>,
}

impl Sentinels {
    /// Starts to follow the master called `name`. Notifies `retry` whenever the master changes.
    pub fn follow(
        name: &str,
        addresses: Vec<HostPort>,
        login: Login,
        retry: watch::Sender<()>,
        tasks: &Tasks,
    ) -> Sentinels {
        let (tell, found) = watch::channel(Lookup::Asking);
        let choice = Mutex::new(MasterChoice::new(addresses.len()));
        let follower = Arc::new(Follower { name: name.to_owned(), choice, tell, retry });
        for (index, address) in addresses.into_iter().enumerate() {
            let opener = Opener::new(login.clone(), TIMEOUT, TIMEOUT, tasks.clone());
            let sentinel = Sentinel {
                index,
                address,
                opener,
                follower: follower.clone(),
                news: Arc::default(),
                answers: AtomicBool::new(true),
            };
            let stop = tasks.stopping().clone();
            tasks.spawn_essential("a Sentinel watch", async move {
                // Never notified: a reply of Redis does not mean that the Sentinel is reachable.
                let answered = watch::Sender::default();
                stop.run_until_cancelled(stay_connected(&sentinel, answered.subscribe(), |_| ())).await;
            });
        }
        Sentinels { found }
    }

    /// Returns the master. Waits until the Sentinels have replied, and while a failover is in progress.
    pub async fn master(&self) -> Outcome<Master> {
        let mut found = self.found.clone();
        match found.wait_for(|found| !matches!(found, Lookup::Asking | Lookup::Between)).await.as_deref() {
            Ok(Lookup::Master(master)) => Ok(master.clone()),
            Ok(Lookup::Nobody(fault)) => Err(fault.clone()),
            // `wait_for` excludes the first two; without a sender the followers have ended.
            Ok(Lookup::Asking | Lookup::Between) | Err(_) => Err(Fault::away("the Sentinel watch has ended")),
        }
    }
}

/// State shared by the tasks of all Sentinels.
#[derive(Debug)]
struct Follower {
    name: String,
    choice: Mutex<MasterChoice>,
    tell: watch::Sender<Lookup>,
    retry: watch::Sender<()>,
}

impl Follower {
    fn learn(&self, index: usize, answer: Outcome<Named>) {
        let mut choice = self.choice.lock();
        let old = choice.master.clone();
        let Some(found) = choice.learn(index, answer, Instant::now()) else { return };
        if let (Lookup::Master(new), Some((old, _))) = (&found, &old) {
            let (name, old, new) = (&self.name, &old.address, &new.address);
            if old == new {
                tracing::warn!(
                    master = name,
                    redis = %new,
                    "a failover ended without a new master, so the old one is used again"
                );
            } else {
                tracing::info!(master = name, %old, %new, "the master has changed");
            }
        }
        let has_master = matches!(found, Lookup::Master(_));
        // In this order: callers that lose a connection find the new master.
        self.tell.send_replace(found);
        if let Some((_, ends)) = old {
            ends.cut.cancel();
            ends.leave.cancel();
        }
        if has_master {
            self.retry.send_replace(());
        }
    }

    /// Stops using this master, since a Sentinel is about to promote a replica in its place.
    fn leave(&self, address: &HostPort) {
        let mut choice = self.choice.lock();
        let Some(found) = choice.leave(address, Instant::now()) else { return };
        tracing::info!(master = self.name, redis = %address, "a failover has begun, so the old master is no longer used");
        self.tell.send_replace(found);
        if let Some((_, ends)) = &choice.master {
            ends.leave.cancel();
        }
    }
}

struct Sentinel {
    index: usize,
    address: HostPort,
    opener: Opener,
    follower: Arc<Follower>,
    /// Notified when the Sentinel has news.
    news: Arc<Notify>,
    /// Whether it answered the last query.
    answers: AtomicBool,
}

impl Reconnect for Sentinel {
    type Connection = Connection;

    async fn connect(&self) -> Outcome<Connection> {
        let (follower, news) = (self.follower.clone(), self.news.clone());
        let on_push = move |push: PushInfo| match event(&push) {
            Some((BEFORE_PROMOTION, text)) => {
                if let Some(address) = left_master(text, &follower.name) {
                    follower.leave(&address);
                }
            }
            Some(_) => news.notify_one(),
            None => {}
        };
        let mut connection = self.opener.open(&self.address, Arc::new(on_push), &Ends::default()).await?;
        if self.opener.has_pushes() {
            let channels = [BEFORE_PROMOTION, NEWS[0], NEWS[1]];
            match connection.redis.subscribe(&channels[..]).await.map_err(Fault::from) {
                Err(fault) if fault.reconnect => return Err(fault),
                // Subscribing is forbidden, but the Sentinel can still be asked.
                Err(fault) => {
                    tracing::warn!(
                        sentinel = %self.address,
                        "the Sentinel refuses SUBSCRIBE, so a failover is noticed later: {fault}"
                    )
                }
                Ok(()) => {}
            }
        }
        Ok(connection)
    }

    async fn serve(&self, connection: Connection) {
        let Err(fault) = self.talk(connection).await;
        self.failed(fault);
    }

    fn failed(&self, fault: Fault) {
        self.learn(Err(fault.at(&format!("sentinel {}", self.address))));
    }
}

impl Sentinel {
    /// Queries the Sentinel periodically and after events.
    async fn talk(&self, mut connection: Connection) -> Outcome<Infallible> {
        loop {
            let answer = self.ask(&mut connection).await;
            if let Err(fault) = &answer
                && fault.reconnect
            {
                return Err(fault.clone());
            }
            self.learn(answer);
            tokio::select! {
                biased;
                () = connection.lost.cancelled() => return Err(Fault::away("the connection was lost")),
                () = self.news.notified() => {}
                () = sleep(PERIOD) => {}
            }
        }
    }

    /// Queries the epoch before the address. A failover between the two gives the new address a lower epoch, which the
    /// next reply corrects. In the other order the old address would have the new epoch.
    async fn ask(&self, connection: &mut Connection) -> Outcome<Named> {
        let name = &self.follower.name;
        let mut both = redis::pipe();
        both.cmd("SENTINEL").arg("MASTER").arg(name).cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let (fields, address): (HashMap<String, Value>, Option<(String, u16)>) =
            both.query_async(&mut connection.redis).await?;
        let epoch = fields.get("config-epoch").map(redis::from_redis_value_ref::<u64>).transpose()?;
        match (epoch, address) {
            (Some(epoch), Some((host, port))) => Ok(Named { address: HostPort { host, port }, epoch }),
            (_, None) => Err(Fault::refused(format!("no master named {name}"))),
            (None, _) => Err(Fault::unreadable("SENTINEL MASTER")),
        }
    }

    /// Forwards a reply. Logs once when the Sentinel stops answering, and once when it answers again.
    fn learn(&self, answer: Outcome<Named>) {
        let sentinel = &self.address;
        match &answer {
            Ok(_) if !self.answers.swap(true, Ordering::Relaxed) => {
                tracing::info!(%sentinel, "the Sentinel names the master again");
            }
            Err(fault) if self.answers.swap(false, Ordering::Relaxed) => {
                tracing::warn!(%sentinel, "the Sentinel does not name the master: {fault}");
            }
            _ => {}
        }
        self.follower.learn(self.index, answer);
    }
}

/// Returns the channel and the text of an event.
fn event(push: &PushInfo) -> Option<(&str, &str)> {
    match (&push.kind, &push.data[..]) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(text)]) => {
            Some((std::str::from_utf8(channel).ok()?, std::str::from_utf8(text).ok()?))
        }
        _ => None,
    }
}

/// Returns the address of the master called `name` in the text of an event about its replica:
/// `slave REPLICA HOST PORT @ NAME HOST PORT`.
fn left_master(text: &str, name: &str) -> Option<HostPort> {
    let (_, master) = text.split_once(" @ ")?;
    let mut words = master.split(' ');
    let (found, host, port) = (words.next()?, words.next()?, words.next()?);
    let port = port.parse().ok()?;
    (found == name).then(|| HostPort { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::process::tasks::Failure;

    fn at(port: u16) -> HostPort {
        HostPort { host: "10.0.0.1".into(), port }
    }

    /// Guards against retrying a dead Sentinel twenty times a second because a pool's connections break and reconnect.
    #[tokio::test(start_paused = true)]
    async fn what_ends_the_pauses_of_other_connections_ends_none_of_a_sentinel() {
        let closes = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = closes.local_addr().expect("its address").port();
        let (retry, tasks) = (watch::Sender::default(), Tasks::new(Failure::default()));
        let address = vec![HostPort { host: "127.0.0.1".into(), port }];
        let began = Instant::now();
        let _sentinels = Sentinels::follow("m", address, <_>::default(), retry.clone(), &tasks);
        for _ in 0..8 {
            drop(closes.accept().await.expect("an attempt to connect"));
            // Longer than the shortest pause, so that a reply would end the rest of a longer one.
            sleep(Duration::from_millis(10)).await;
            retry.send_replace(());
        }
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(2), "eight attempts have longer and longer pauses, not {took:?}");
        tasks.stop();
    }

    #[test]
    fn an_event_says_which_master_is_left() {
        let text = "slave 10.0.0.1:2 10.0.0.1 2 @ mymaster 10.0.0.1 1";
        assert_eq!(left_master(text, "mymaster"), Some(at(1)), "{text}");
        assert_eq!(left_master(text, "other"), None, "another master's");
        for text in ["", "mymaster", "x @ mymaster", "x @ mymaster h", "x @ mymaster h 99999"] {
            assert_eq!(left_master(text, "mymaster"), None, "{text:?}");
        }
    }
}
