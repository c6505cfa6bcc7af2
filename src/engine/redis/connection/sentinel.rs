//! Follows the master that the Sentinels name, and ends every connection to a Redis that is no longer it.
//!
//! One task for each Sentinel that is listed holds a connection to it, listens to its events, and asks it every
//! second and after each event. So a Sentinel that is dead or hangs delays nobody. [`MasterChoice`] decides from the
//! last answers of all of them.
//!
//! A failover may leave the old master alive, and it goes on taking writes that will be thrown away: until it is
//! told to follow the new one, some ten seconds later. So when the master changes, calls under way to the old
//! one fail at once and every connection to it is closed. Better still, the Sentinel that leads a failover says
//! so before it promotes a replica (`+failover-state-send-slaveof-noone`, at least 50 ms before). The old master
//! is left at that moment: what was answered is on its replicas by the time that one of them is promoted.
//!
//! Knows nothing of what the connections are for.

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

/// How often each Sentinel is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a Sentinel may take to be connected to, and to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// A failover has come so far that the next step promotes a replica.
const BEFORE_PROMOTION: &str = "+failover-state-send-slaveof-noone";
/// The Sentinel has something new to say about a master.
const NEWS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The side of those who connect.
#[derive(Debug)]
pub struct Sentinels {
    found: watch::Receiver<Lookup>,
}

impl Sentinels {
    /// Begins to follow the master with this name. `retry` is sent to whenever there is another one.
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
                // Nobody sends on it: that a Redis answers says nothing of a Sentinel that does not.
                let answered = watch::Sender::default();
                stop.run_until_cancelled(stay_connected(&sentinel, answered.subscribe(), |_| ())).await;
            });
        }
        Sentinels { found }
    }

    /// The master. Waits while the Sentinels have yet to answer, and while they make another one.
    pub async fn master(&self) -> Outcome<Master> {
        let mut found = self.found.clone();
        match found.wait_for(|found| !matches!(found, Lookup::Asking | Lookup::Between)).await.as_deref() {
            Ok(Lookup::Master(master)) => Ok(master.clone()),
            Ok(Lookup::Nobody(fault)) => Err(fault.clone()),
            // The others are not what was waited for, and without a sender nobody follows.
            Ok(Lookup::Asking | Lookup::Between) | Err(_) => Err(Fault::away("the Sentinel watch has ended")),
        }
    }
}

/// What the tasks of all Sentinels share.
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
        // In this order: whoever loses a connection finds the new master.
        self.tell.send_replace(found);
        if let Some((_, ends)) = old {
            ends.cut.cancel();
            ends.leave.cancel();
        }
        if has_master {
            self.retry.send_replace(());
        }
    }

    /// A Sentinel is about to promote a replica in the place of this master.
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
    /// It has something new to say.
    news: Arc<Notify>,
    /// Whether it answered when it was asked last.
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
                // It will not let us listen, but it can be asked.
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
    /// Asks it again and again.
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

    /// Asks for the epoch before the address. A failover between the two gives the new address an older epoch,
    /// which the next answer mends. The other way round the old address would have the new epoch.
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

    /// Passes an answer on. One that stops answering is told in the log once, and once when it answers again.
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

/// The channel and the text of an event.
fn event(push: &PushInfo) -> Option<(&str, &str)> {
    match (&push.kind, &push.data[..]) {
        (PushKind::Message, [Value::BulkString(channel), Value::BulkString(text)]) => {
            Some((std::str::from_utf8(channel).ok()?, std::str::from_utf8(text).ok()?))
        }
        _ => None,
    }
}

/// The address of the master with this `name` in the text of an event about its replica:
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

    /// Guards against a Sentinel that is dead and tried twenty times a second, since connections of a pool come and go.
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
            // Later than the shortest pause, so that an answer would end what is left of a longer one.
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
