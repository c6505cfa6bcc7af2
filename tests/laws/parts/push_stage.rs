//! A server that pushes: jobs in the model engine, a scripted endpoint, and settings in memory, or those of other servers.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dormouse::clock::{Clock, Micros};
use dormouse::dispatch::{Dispatcher, ParkedPolls};
use dormouse::engine::Engine;
use dormouse::job::{JobIds, JobRef, JobView, NewJob};
use dormouse::metrics::Metrics;
use dormouse::name::PoolName;
use dormouse::outage::Outage;
use dormouse::process::tasks::{Failure, Tasks};
use dormouse::push::address::AddressGuard;
use dormouse::push::client::{ConnectFault, EndpointAnswer, Send};
use dormouse::push::encrypted::SecretKeys;
use dormouse::push::key::PushKey;
use dormouse::push::limits::PushShares;
use dormouse::push::records::PushRecords;
use dormouse::push::setting::Setting;
use dormouse::push::shared::{Leasing, MEMORY, PushServer, PushedPool};
use dormouse::push::{Push, PushError};
use dormouse::settings::{SettingsStore, scan_all};
use hyper::Request;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::gated::Gated;
use crate::gated_settings::GatedSettings;
use crate::jobs::queue;
use crate::settings_stage::MemorySettings;
use crate::support::engine_ext::EngineExt;
use crate::support::model::ModelEngine;
use crate::support::notified::Notified;

/// The runtime's clock, which stops while any task can run, if it is paused.
#[derive(Debug)]
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn wall_micros(&self) -> Micros {
        self.now_micros()
    }

    fn now_micros(&self) -> Micros {
        // Any time of day.
        1_700_000_000_000_000 + self.0.elapsed().as_micros() as Micros
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Time since the start of the test.
    pub at: Duration,
    pub headers: HeaderMap,
    pub body: String,
}

impl Arrived {
    /// Returns a header's text; empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn attempt(&self) -> u64 {
        self.header("dormouse-attempt").parse().expect("a number")
    }
}

/// Behavior of an endpoint: its delay and its reply.
pub type Script = Box<
    dyn Fn(&Arrived) -> (Duration, std::result::Result<EndpointAnswer, ConnectFault>)
        + std::marker::Send
        + Sync,
>;

/// Returns a reply.
pub fn answer(
    status: u16,
    headers: &[(&'static str, &str)],
    body: &str,
) -> std::result::Result<EndpointAnswer, ConnectFault> {
    let pair = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value"))
    };
    let headers = headers.iter().map(pair).collect();
    Ok(EndpointAnswer { status, headers, body: Bytes::copy_from_slice(body.as_bytes()), whole: true })
}

/// Returns a refused connection.
pub fn refused() -> std::result::Result<EndpointAnswer, ConnectFault> {
    Err(ConnectFault::Connect("refused".into()))
}

/// An endpoint without a network.
pub struct Endpoint {
    script: Mutex<Arc<Script>>,
    arrived: Mutex<Vec<Arrived>>,
    in_flight: Mutex<(usize, usize)>,
    /// Requests in flight at all endpoints of a fleet, now and at most.
    all: InFlight,
    began: Instant,
}

/// Requests in flight, now and at most.
pub type InFlight = Arc<Mutex<(usize, usize)>>;

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Endpoint(..)")
    }
}

impl Endpoint {
    /// Sets the behavior from now on.
    pub fn does(
        &self,
        script: impl Fn(&Arrived) -> (Duration, std::result::Result<EndpointAnswer, ConnectFault>)
        + std::marker::Send
        + Sync
        + 'static,
    ) {
        *self.script.lock() = Arc::new(Box::new(script));
    }

    /// Sets a reply that is returned at once, from now on.
    pub fn says(&self, status: u16, headers: &'static [(&'static str, &'static str)], body: &'static str) {
        self.does(move |_| (Duration::ZERO, answer(status, headers, body)));
    }

    /// Returns the requests received so far.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().clone()
    }

    /// Returns when each request arrived.
    pub fn arrived_at(&self) -> Vec<Instant> {
        self.arrived.lock().iter().map(|arrived| self.began + arrived.at).collect()
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.lock().0
    }

    /// Returns the maximum number of requests in flight at all endpoints of the fleet.
    pub fn most_of_all(&self) -> usize {
        self.all.lock().1
    }

    /// Returns the maximum number of requests in flight.
    pub fn most(&self) -> usize {
        self.in_flight.lock().1
    }
}

/// Counts a request while it is in flight.
struct Counted<'a>(&'a Endpoint);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.in_flight.lock().0 -= 1;
        self.0.all.lock().0 -= 1;
    }
}

#[async_trait]
impl Send for Endpoint {
    async fn send(
        &self,
        request: Request<Bytes>,
        time: Duration,
        _: bool,
    ) -> std::result::Result<EndpointAnswer, ConnectFault> {
        let (parts, body) = request.into_parts();
        let body = String::from_utf8_lossy(&body).into_owned();
        let arrived = Arrived { at: self.began.elapsed(), headers: parts.headers, body };
        self.arrived.lock().push(arrived.clone());
        for in_flight in [&self.in_flight, &*self.all] {
            let mut in_flight = in_flight.lock();
            in_flight.0 += 1;
            in_flight.1 = in_flight.1.max(in_flight.0);
        }
        let _counted = Counted(self);
        let script = self.script.lock().clone();
        let (takes, answer) = script(&arrived);
        if takes > time {
            sleep(time).await;
            return Err(ConnectFault::TimeOut(time));
        }
        sleep(takes).await;
        answer
    }
}

/// The queue `ns/q` of the model, pushed to an endpoint.
pub struct PushStage {
    pub push: Arc<Push>,
    pub engine: Arc<Gated<ModelEngine>>,
    pub settings: Arc<GatedSettings>,
    /// The records of `settings`, as another server reads them.
    pub records: PushRecords,
    pub endpoint: Arc<Endpoint>,
    pub key: PushKey,
    ids: Arc<JobIds>,
    tasks: Tasks,
    began: Instant,
}

impl PushStage {
    /// Creates a stage with this setting beside the URL. The endpoint replies 200.
    pub async fn new(setting: Value) -> PushStage {
        PushStage::with(setting, 1000, MEMORY).await
    }

    /// Creates a stage with this number of connections and KiB of body memory.
    pub async fn with(setting: Value, connections: usize, memory: usize) -> PushStage {
        let settings = Arc::new(MemorySettings::default());
        let stage =
            PushStage::server("one", settings, (Arc::default(), Instant::now()), (connections, memory)).await;
        stage.set(setting).await;
        stage
    }

    /// Creates a server of a fleet, which shares these settings, the count of requests in flight, and the start of the
    /// pool's clock.
    pub async fn of_fleet(
        name: &str,
        settings: Arc<dyn SettingsStore>,
        all: &InFlight,
        began: Instant,
    ) -> PushStage {
        PushStage::server(name, settings, (all.clone(), began), (1000, MEMORY)).await
    }

    async fn server(
        name: &str,
        settings: Arc<dyn SettingsStore>,
        (all, clock_began): (InFlight, Instant),
        (connections, memory): (usize, usize),
    ) -> PushStage {
        let began = Instant::now();
        let clock: Arc<dyn Clock> = Arc::new(RuntimeClock(clock_began));
        let engine = Arc::new(Gated::new(ModelEngine::new(clock.clone())));
        let tasks = Tasks::new(Failure::default());
        let parked = Arc::new(ParkedPolls::new(1, 1));
        let dispatcher = Dispatcher::start(engine.clone(), parked, Failure::default());
        let (pumped, notified) = (engine.clone(), Notified::attach(&*engine, &[]));
        tasks.spawn(async move {
            loop {
                let next = pumped.pump().await.map_or(Duration::from_secs(1), |pumped| pumped.next);
                // The model's clock is the runtime's, which has a resolution of a millisecond.
                let next = next.max(Duration::from_millis(1));
                tokio::select! {
                    () = sleep(next) => {}
                    () = notified.due_earlier() => {}
                }
            }
        });
        let script: Script = Box::new(|_| (Duration::ZERO, answer(200, &[], "")));
        let endpoint = Arc::new(Endpoint {
            script: Mutex::new(Arc::new(script)),
            arrived: Mutex::default(),
            in_flight: Mutex::default(),
            all,
            began,
        });
        let (ids, pool) = (Arc::new(JobIds::default()), PoolName::default_pool());
        let settings = GatedSettings::new(settings, None);
        let server = PushServer {
            settings: settings.clone(),
            records: PushRecords::new(settings.clone(), SecretKeys::default()),
            outage: Outage::new("tokens and limits"),
            client: endpoint.clone(),
            clock,
            name: name.to_owned(),
            tasks: Tasks::new(Failure::default()),
            cut: CancellationToken::new(),
            connections: PushShares::new(connections),
            memory: PushShares::new(memory),
            leasing: Leasing::default(),
        };
        let pushed = PushedPool {
            name: pool.clone(),
            engine: engine.clone(),
            dispatcher,
            ids: ids.clone(),
            metrics: Metrics::default().engine.pool(&pool),
            outage: Outage::new("pool default"),
        };
        let push = Push::new(server, Arc::new(AddressGuard::default()), [pushed]);
        tasks.spawn(push.clone().run());
        let key = PushKey { pool, queue: queue("q") };
        let records = PushRecords::new(settings.clone(), SecretKeys::default());
        PushStage { push, engine, settings, records, endpoint, key, ids, tasks, began }
    }

    /// Replaces the setting.
    pub async fn set(&self, setting: Value) -> Value {
        self.set_of(&self.key, setting).await.expect("a setting")
    }

    /// Sets the setting of another queue.
    pub async fn set_of(&self, key: &PushKey, mut setting: Value) -> std::result::Result<Value, PushError> {
        setting["url"] = json!("https://shop.example/jobs");
        let setting = Setting::parse(&setting, &key.queue.name).map_err(PushError::Bad)?;
        self.push.put(key, setting).await.map(|set| serde_json::to_value(set).expect("it is JSON"))
    }

    /// Publishes a job without ttl.
    pub async fn publish(&self, body: &str, tries: u16) -> JobRef {
        self.publish_to(&self.key, body, tries).await
    }

    /// Like `publish`, to another queue.
    pub async fn publish_to(&self, key: &PushKey, body: &str, tries: u16) -> JobRef {
        self.publish_for(key, body, tries, None).await
    }

    /// Publishes a job with this ttl.
    pub async fn publish_for(&self, key: &PushKey, body: &str, tries: u16, ttl: Option<Duration>) -> JobRef {
        let (id, queue) = (self.ids.make(self.engine.now(), 0, false), key.queue.clone());
        let job = NewJob {
            queue: queue.clone(),
            id,
            body: Bytes::copy_from_slice(body.as_bytes()),
            attributes: Default::default(),
            ttl,
            delay: Duration::ZERO,
            tries: NonZeroU16::new(tries).expect("not zero"),
        };
        self.engine.publish(vec![job].into()).await.expect("it is published");
        JobRef { queue, id }
    }

    /// Returns the description of a job.
    pub async fn view(&self, job: &JobRef) -> Option<JobView> {
        self.engine.inspect_job(job).await.expect("the model answers")
    }

    /// Consumes the jobs of another queue of the namespace, and returns them as JSON, oldest first.
    pub async fn take(&self, name: &str) -> Vec<Value> {
        let queue = crate::jobs::queue(name);
        let taken = self.engine.consume(&queue.into(), &[Duration::from_secs(3600); 100]).await;
        let jobs = taken.expect("the model answers").jobs;
        jobs.iter().map(|job| serde_json::from_slice(&job.body).expect("JSON")).collect()
    }

    /// Returns the view of an operator.
    pub async fn shown(&self) -> Value {
        let seen = self.push.get(&self.key).await.expect("it is pushed");
        serde_json::to_value(seen).expect("it is JSON")
    }

    /// Makes another server push the queue too, from now on, which wants no slots. `delivered` is when its last attempt
    /// succeeded.
    pub async fn share_with_another(&self, delivered: Option<Duration>) {
        let delivered = delivered.map(|ago| self.engine.now() - ago.as_millis() as u64);
        let entry = json!([{"queue": self.key.to_string(), "worker": "another", "delivered": delivered}]);
        let day = Duration::from_secs(24 * 3600);
        self.settings.keep("push/leases/another", entry.to_string().into(), day).await.expect("it answers");
    }

    /// Returns the name of the worker that leases the queue's slots.
    pub async fn worker(&self) -> Option<String> {
        let lease = self.settings.get("push/leases/one").await.expect("it answers")?;
        let entries: Value = serde_json::from_slice(&lease.value).expect("JSON");
        Some(entries[0]["worker"].as_str()?.to_owned())
    }

    /// Returns the number of the rate's requests that all workers of the queue have reserved.
    pub async fn rate_reserved(&self) -> u64 {
        let record = self.settings.get(&format!("push/rates/{}", self.key)).await.expect("it answers");
        let entries: Value = serde_json::from_slice(&record.expect("it has a rate").value).expect("JSON");
        entries.as_object().into_iter().flatten().filter_map(|(_, entry)| entry["requests"].as_u64()).sum()
    }

    /// Returns the keys of the settings that begin with this prefix.
    pub async fn keys(&self, prefix: &str) -> Vec<String> {
        let mut keys = Vec::new();
        scan_all(&*self.settings, prefix, |key, _| keys.push(key)).await.expect("it answers");
        keys
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

impl Drop for PushStage {
    fn drop(&mut self) {
        self.push.stop();
        self.tasks.stop();
    }
}

/// Returns a pushed queue of the default pool.
pub fn pushed(name: &str) -> PushKey {
    PushKey { pool: PoolName::default_pool(), queue: queue(name) }
}
