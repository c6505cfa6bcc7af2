//! Resolves names with the machine's own resolver. A name that does not resolve can block for half a minute,
//! so look-ups are few, run on their own threads, and are shared by all requests for the same name. Slow
//! names wait only for each other. Knows no forbidden addresses.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::client::Resolve;

/// Maximum concurrent look-ups of other names, and of slow ones.
const AT_A_TIME: usize = 8;
const SLOW_AT_A_TIME: usize = 4;
/// A look-up that takes longer marks its name as slow, until one takes less.
const SLOW: Duration = Duration::from_millis(500);
/// A name that was marked as slow this long ago is tried in the fast lane: other slow names may block the
/// slow one.
const TRIED_AGAIN: Duration = Duration::from_secs(60);
/// Maximum concurrent trials.
const TRIALS: usize = 2;
/// Maximum number of names known to be slow. Beyond it, all are forgotten.
const MOST_SLOW: usize = 10_000;

/// Finds the addresses of a name. May block.
pub type LookUp = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Result of a look-up, shared by all callers.
type Resolved = Option<Result<Vec<IpAddr>, String>>;

/// The machine's own resolver.
pub struct SystemResolver {
    /// Blocking threads, for names that are not known to be slow and for slow ones.
    lanes: [Option<Runtime>; 2],
    state: Arc<Mutex<Lookups>>,
    look_up: Arc<LookUp>,
}

#[derive(Default)]
struct Lookups {
    under_way: HashMap<String, watch::Receiver<Resolved>>,
    /// When each name was last slow.
    slow: HashMap<String, Instant>,
    /// Number of slow names being tried in the fast lane.
    trials: usize,
}

impl fmt::Debug for SystemResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SystemResolver")
    }
}

impl SystemResolver {
    pub fn new() -> io::Result<SystemResolver> {
        SystemResolver::by(Arc::new(|host: &str| {
            Ok((host, 0).to_socket_addrs()?.map(|to| to.ip()).collect())
        }))
    }

    /// Creates a resolver with another look-up function, for tests.
    pub fn by(look_up: Arc<LookUp>) -> io::Result<SystemResolver> {
        let lane = |most| {
            let mut lane = Builder::new_current_thread();
            lane.max_blocking_threads(most).thread_name("names").build().map(Some)
        };
        let lanes = [lane(AT_A_TIME)?, lane(SLOW_AT_A_TIME)?];
        Ok(SystemResolver { lanes, state: Arc::default(), look_up })
    }

    /// Returns the result of a look-up: of one in flight, or of a new one.
    fn ask(&self, host: &str) -> watch::Receiver<Resolved> {
        let mut state = self.state.lock();
        if let Some(found) = state.under_way.get(host) {
            return found.clone();
        }
        let (tell, found) = watch::channel(None);
        state.under_way.insert(host.to_owned(), found.clone());
        let slow = state.slow.get(host).copied();
        let trial = state.trials < TRIALS && slow.is_some_and(|since| since.elapsed() > TRIED_AGAIN);
        state.trials += usize::from(trial);
        let lane = &self.lanes[usize::from(slow.is_some() && !trial)];
        let (state, look_up, host) = (self.state.clone(), self.look_up.clone(), host.to_owned());
        let ask = move || {
            {
                let mut state = state.lock();
                // `state` holds one receiver; with no other, no caller waits for the name.
                if tell.receiver_count() <= 1 {
                    state.under_way.remove(&host);
                    state.trials -= usize::from(trial);
                    return;
                }
            }
            let began = Instant::now();
            let addresses = look_up(&host).map_err(|error| error.to_string());
            let slow = began.elapsed() > SLOW;
            let mut state = state.lock();
            state.under_way.remove(&host);
            state.trials -= usize::from(trial);
            if state.slow.len() >= MOST_SLOW {
                state.slow.clear();
            }
            match slow {
                true => state.slow.insert(host, Instant::now()),
                false => state.slow.remove(&host),
            };
            tell.send_replace(Some(addresses));
        };
        if let Some(lane) = lane {
            lane.handle().spawn_blocking(ask);
        }
        found
    }
}

impl Drop for SystemResolver {
    fn drop(&mut self) {
        // Look-ups that hang are not waited for.
        self.lanes.iter_mut().filter_map(Option::take).for_each(Runtime::shutdown_background);
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // In lower case, since names are case-insensitive.
        let mut found = self.ask(&host.to_ascii_lowercase());
        let found = found.wait_for(Option::is_some).await.map(|found| found.clone());
        match found.ok().flatten() {
            Some(Ok(found)) => Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect()),
            Some(Err(text)) => Err(io::Error::other(text)),
            None => Err(io::Error::other("the lookup failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::task::JoinSet;

    use super::*;

    /// Guards against names that hang and block every other name, or take a thread per request.
    #[tokio::test]
    async fn names_that_hang_are_few_at_a_time_and_hold_up_no_other() {
        let (hangs, held) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicUsize::new(0) }; 2]));
        let look_up = {
            let (hangs, held) = (hangs.clone(), held.clone());
            move |host: &str| {
                if host.starts_with("slow") {
                    held[0].fetch_add(1, Ordering::SeqCst);
                    held[1].fetch_max(held[0].load(Ordering::SeqCst), Ordering::SeqCst);
                    std::thread::sleep(SLOW + Duration::from_millis(50));
                    while hangs.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    held[0].fetch_sub(1, Ordering::SeqCst);
                }
                Ok(vec![IpAddr::from([1, 1, 1, 1])])
            }
        };
        let resolver = Arc::new(SystemResolver::by(Arc::new(look_up)).expect("threads"));
        let ask = |name: String| {
            let resolver = resolver.clone();
            async move { resolver.resolve(&name, 80).await.expect("an address") }
        };
        // Each of them is slow once.
        let mut first: JoinSet<_> = (0..16).map(|n| ask(format!("slow{n}"))).collect();
        while first.join_next().await.is_some() {}
        hangs.store(true, Ordering::SeqCst);
        let asked = held[1].load(Ordering::SeqCst);
        assert!(asked <= AT_A_TIME, "{asked} names were looked up at a time");
        let mut slow: JoinSet<_> = (0..160).map(|n| ask(format!("slow{}", n % 16))).collect();
        let others = async {
            for n in 0..20 {
                ask(format!("quick{n}")).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), others).await.expect("other names are looked up");
        until_held(&held[0], SLOW_AT_A_TIME).await;
        hangs.store(false, Ordering::SeqCst);
        while slow.join_next().await.is_some() {}
    }

    /// Guards against a name that was slow once and waits behind names that hang forever.
    #[tokio::test]
    async fn a_name_that_was_slow_a_minute_ago_is_looked_up_beside_those_that_hang() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Mutex::new(ended);
        let look_up = move |host: &str| {
            if host.starts_with("hangs") {
                let _ = ended.lock().recv();
            }
            Ok(vec![IpAddr::from([1, 1, 1, 1])])
        };
        let resolver = SystemResolver::by(Arc::new(look_up)).expect("threads");
        let now = Instant::now();
        let before = now.checked_sub(TRIED_AGAIN + SLOW).expect("the machine runs for a minute");
        resolver.state.lock().slow.insert("well".into(), before);
        let hang = |n: usize| {
            resolver.state.lock().slow.insert(format!("hangs{n}"), now);
            resolver.ask(&format!("hangs{n}"))
        };
        let _hanging: Vec<_> = (0..SLOW_AT_A_TIME + 1).map(hang).collect();
        let well = tokio::time::timeout(Duration::from_secs(10), resolver.resolve("well", 80)).await;
        well.expect("it has its turn").expect("an address");
        let state = resolver.state.lock();
        assert_eq!((state.slow.contains_key("well"), state.trials), (false, 0), "slow no more, and no trial");
        drop((state, end));
    }

    async fn until_held(held: &AtomicUsize, many: usize) {
        let reached = async {
            while held.load(Ordering::SeqCst) != many {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let so = tokio::time::timeout(Duration::from_secs(10), reached).await;
        so.unwrap_or_else(|_| panic!("{many} at a time, not {}", held.load(Ordering::SeqCst)));
    }

    /// Guards against a look-up per request of one name, and for requests that have ended.
    #[tokio::test]
    async fn a_name_is_looked_up_once_for_all_who_ask_and_not_for_nobody() {
        let (hangs, count) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let look_up = {
            let (hangs, count) = (hangs.clone(), count.clone());
            move |_: &str| {
                count.fetch_add(1, Ordering::SeqCst);
                while hangs.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(io::Error::other("no such name"))
            }
        };
        let resolver = SystemResolver::by(Arc::new(look_up)).expect("threads");
        let mut asking: Vec<_> = (0..500).map(|_| resolver.resolve("Nobody.example", 80)).collect();
        for one in &mut asking {
            let asked = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx))).await;
            assert!(asked.is_pending(), "the look-up has not ended");
        }
        hangs.store(false, Ordering::SeqCst);
        for one in asking {
            one.await.expect_err("there is no such name");
        }
        assert_eq!(count.load(Ordering::SeqCst), 1, "number of lookups");
        // Fills the threads; no caller waits for the remaining names when their turn comes.
        hangs.store(true, Ordering::SeqCst);
        for n in 0..100 {
            drop(resolver.ask(&format!("left{n}")));
        }
        hangs.store(false, Ordering::SeqCst);
        resolver.resolve("waits", 80).await.expect_err("there is no such name");
        let looked_up = count.load(Ordering::SeqCst);
        assert!(looked_up <= 2 + AT_A_TIME, "{looked_up} names were looked up, mostly without a caller");
    }
}
