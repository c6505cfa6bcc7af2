//! A request for a page: account, path, and time zone; and the responses that all pages use.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tokio::time::{Instant, timeout};

use super::answer;
use super::ask::{Asker, Refusal, Said, part};
use super::form::{self, Fields};
use super::instant::Zone;
use crate::engine::{By, Detail, together};
use crate::history::Range;
use crate::http::answer::error::ApiError;
use crate::http::answer::room::Room;
use crate::http::jobs::lists::{FoundJobs, NO_KEY, VerboseJob, find_job, find_jobs, verbose_job};
use crate::http::operators::names::JOB_IDS;
use crate::http::operators::queues::{self, HistoryReply, QueuesReply};
use crate::http::request::extract::{self, ByAccount, ShowsBodies};
use crate::http::request::params::Query;
use crate::http::request::path::Names;
use crate::http::state::{AppState, PoolState};
use crate::job::{JobId, JobView};
use crate::name::{JobKey, Namespace, Queue, QueueName};

/// Timeout for the calls of a page, so that it is shown within a second.
const PATIENCE: Duration = Duration::from_millis(900);
/// Timeout for reading the statistics of changed queues.
const REFRESH: Duration = Duration::from_millis(300);
/// The only cookie of the pages: the zone that the reader has chosen.
pub const ZONE_COOKIE: &str = "dormouse-zone";
/// Number of submitted forms that are remembered.
const MOST_SENT: usize = 1024;

/// State shared by all pages.
pub struct Ui {
    pub state: Arc<AppState>,
    json: Router,
    /// Ids of submitted forms that must not be executed twice.
    sent: Mutex<VecDeque<String>>,
}

impl Ui {
    pub fn new(state: Arc<AppState>, json: Router) -> Ui {
        Ui { state, json, sent: Mutex::default() }
    }

    /// Whether a form with this id is submitted for the first time. Records it.
    pub fn is_first(&self, mark: &str) -> bool {
        let mut sent = self.sent.lock();
        if sent.iter().any(|of| of == mark) {
            return false;
        }
        if sent.len() >= MOST_SENT {
            sent.pop_front();
        }
        sent.push_back(mark.to_owned());
        true
    }
}

/// A pool's queue, as in paths.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct PoolQueue {
    pub pool: String,
    pub namespace: String,
    pub queue: String,
}

impl PoolQueue {
    /// Creates it from names. `None` for a row that combines all queues named after jobs.
    pub fn of_queue(pool: &str, namespace: &str, queue: &str) -> Option<PoolQueue> {
        let [pool, namespace, queue] = [pool, namespace, queue].map(str::to_owned);
        (queue != JOB_IDS).then_some(PoolQueue { pool, namespace, queue })
    }

    /// Returns the queue, if its names are valid.
    fn parsed(&self) -> Option<Queue> {
        let namespace = Namespace::parse(&self.namespace).ok()?;
        Some(Queue { namespace, name: QueueName::parse_for_consume(&self.queue).ok()? })
    }

    /// Formats it as parts of a path.
    pub fn path(&self) -> String {
        format!("{}/{}/{}", part(&self.pool), part(&self.namespace), part(&self.queue))
    }

    /// Formats it for display.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.queue)
    }

    /// Returns a route of this queue: `rest` follows its name, `query` follows the pool.
    pub fn api(&self, rest: &str, query: &[(&str, &str)]) -> String {
        let (namespace, queue) = (part(&self.namespace), part(&self.queue));
        let mut path = format!("/api/{namespace}/{queue}{rest}?pool={}", part(&self.pool));
        for (name, value) in query {
            path.push_str(&format!("&{name}={}", part(value)));
        }
        path
    }

    /// Returns the query that selects it on other routes.
    pub fn query(&self) -> String {
        let [pool, namespace, queue] = [&self.pool, &self.namespace, &self.queue].map(|text| part(text));
        format!("pool={pool}&namespace={namespace}&queue={queue}")
    }
}

/// How a page names a job.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    Id(&'a str),
    Key(&'a str),
}

/// A job on a page.
pub struct FoundJob {
    queue: Queue,
    view: JobView,
    shows: ShowsBodies,
    _room: Option<Room>,
}

impl FoundJob {
    pub fn id(&self) -> JobId {
        self.view.id
    }

    /// Returns the job as its route shows it.
    pub fn verbose(&self) -> VerboseJob<'_> {
        verbose_job(&self.queue, &self.view, Detail::All, self.shows)
    }
}

/// A request for a page.
pub struct Visit {
    pub ui: Arc<Ui>,
    pub ask: Asker,
    /// Fields of the query.
    pub fields: Fields,
    pub zone: Zone,
    /// Relative path from the page to `/ui/`.
    pub root: String,
    /// Path of the page itself, from `/ui/`.
    pub here: String,
    pub headers: HeaderMap,
    /// A rejected form, with the user's input.
    pub refused: Option<(Refusal, Fields)>,
}

impl Visit {
    pub fn state(&self) -> &AppState {
        &self.ui.state
    }

    /// Reads the statistics of a queue now, if its store responds in time.
    pub async fn refresh(&self, place: &PoolQueue) {
        let (pool, queue) = (self.state().pools.named(&place.pool), place.parsed());
        if let (Ok(pool), Some(queue)) = (pool, queue) {
            // A late reading is in the next sample.
            let _ = timeout(REFRESH, pool.sampler.refresh(Some(&queue))).await;
        }
    }

    /// Returns the queues that match a query, from samples.
    pub fn queues(&self, query: &str) -> Said<QueuesReply> {
        self.ask.take(queues::queues(self.state(), query.trim_start_matches('?')))
    }

    /// Returns the history that a query names.
    pub fn history(&self, query: &str) -> Said<HistoryReply> {
        self.ask.take(queues::history_of(self.state(), query))
    }

    /// Returns the pool and the queue of a page, as job routes find them.
    fn find(&self, place: &PoolQueue) -> Result<(Arc<PoolState>, Queue), ApiError> {
        let names = Names::of_queue(&place.namespace, &place.queue);
        extract::for_account(self.state(), self.ask.labels(), &place.pool, &names)
    }

    /// Returns a page of a queue's jobs.
    pub async fn jobs(&self, place: &PoolQueue, query: &[(&str, &str)]) -> Said<FoundJobs> {
        let query = form::query(query.iter().copied());
        let reply = async {
            let (pool, queue) = self.find(place)?;
            let may = (ByAccount(true), self.ask.shows_bodies());
            find_jobs(self.state(), (&pool, &queue), Query(query.trim_start_matches('?')), may).await
        };
        self.ask.read(reply).await
    }

    /// Returns a job, by its id or its key.
    pub async fn job(&self, place: &PoolQueue, by: Wanted<'_>) -> Said<FoundJob> {
        let reply = async {
            let (pool, queue) = self.find(place)?;
            let (key, none);
            let by = match by {
                Wanted::Id(id) => {
                    none = ApiError::NO_JOB;
                    By::Id(JobId::parse(id).ok_or(ApiError::NO_JOB)?)
                }
                Wanted::Key(text) => {
                    none = NO_KEY;
                    key = JobKey::parse(text).ok_or(ApiError::bad("invalid key"))?;
                    By::Key(&key)
                }
            };
            let shows = self.ask.shows_bodies();
            let found = find_job(self.state(), &pool, &queue, by, (Detail::All, shows)).await?;
            let (view, room) = found.ok_or(none)?;
            Ok(FoundJob { queue, view, shows, _room: room })
        };
        self.ask.read(reply).await
    }

    /// Whether the account may change something.
    pub fn may_change(&self) -> bool {
        let accounts = &self.state().accounts.operators;
        accounts.is_empty() || self.ask.account().is_some_and(|account| accounts.contains_key(account))
    }

    /// Whether there are several pools, which pages then distinguish.
    pub fn many_pools(&self) -> bool {
        self.state().pools.len() > 1
    }

    /// Returns a link to another page.
    pub fn to(&self, page: &str) -> String {
        match (&*self.root, page) {
            ("", "") => "./".into(),
            (root, page) => format!("{root}{page}"),
        }
    }

    /// Returns the URL of the port as users enter it.
    pub fn base(&self) -> String {
        match &self.state().server.about.admin_url {
            Some(url) => url.replace('\'', "%27"),
            None => format!("{}://{}", scheme(self.state().server.about.admin_tls), self.host()),
        }
    }

    /// Returns the host of the request, if a shell needs no escapes for it.
    pub fn host(&self) -> &str {
        let host = self.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let plain = |host: &&str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-[]".contains(&b));
        host.filter(plain).unwrap_or("127.0.0.1:7778")
    }

    /// Returns the input of a field in a rejected form, or else the usual value.
    pub fn typed(&self, name: &str, usual: &str) -> String {
        let typed = self.refused.as_ref().map(|(_, fields)| fields.or_empty(name));
        super::text::typed(typed.unwrap_or(usual))
    }

    /// Identifies all inputs of a page of samples and history: requests with the same basis get the same page, except
    /// for elapsed seconds. `None` while the page shows other servers, whose state changes at any moment.
    pub fn basis(&self) -> Option<u64> {
        let state = self.state();
        if state.operations.fleet.seen().lines.len() > 1 || self.refused.is_some() {
            return None;
        }
        let mut hash = DefaultHasher::new();
        let step = state.server.began.time() / 1000 / Range::Hour.step();
        let draining = state.server.readiness.is_draining();
        // Changes when the clock is set.
        (
            state.shown(state.server.began.wall()),
            step,
            draining,
            &self.root,
            &self.here,
            self.fields.link(&[]),
        )
            .hash(&mut hash);
        (self.ask.account(), self.host(), &self.zone.name).hash(&mut hash);
        for pool in state.pools.values() {
            let sample = pool.sampler.latest();
            let trouble = sample.trouble.as_ref().map(|trouble| (trouble.since, &trouble.why));
            (sample.at, sample.refreshed, sample.full_since, trouble).hash(&mut hash);
        }
        Some(hash.finish())
    }

    /// Records a rejected form: the page is shown again with the user's input, within a new timeout.
    pub fn refuse(&mut self, refusal: Refusal, typed: Fields) {
        self.refused = Some((refusal, typed));
        self.ask.wait_until(Instant::now() + PATIENCE);
    }

    /// Makes the response report a store's failure, if there was one.
    pub fn carry(&self, response: &mut Response) {
        if let Some(failure) = self.ask.failure() {
            response.extensions_mut().insert(failure);
        }
    }

    /// Redirects to the page after a change, with the code of its result.
    pub fn done(&self, what: &str) -> Response {
        let mut response = answer::see_other(&self.fields.link(&[("done", Some(what))]));
        self.carry(&mut response);
        response
    }
}

impl FromRequestParts<Arc<Ui>> for Visit {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, ui: &Arc<Ui>) -> Result<Visit, Infallible> {
        let fields = Fields::parse(parts.uri.query().unwrap_or_default());
        let path = parts.uri.path().strip_prefix("/ui/").unwrap_or_default();
        let until = Instant::now() + PATIENCE;
        // As browsers count it to resolve relative links.
        let depth = path.matches('/').count();
        if parts.method != Method::POST {
            ui.state.refresh_samples().await;
        }
        let now = ui.state.now();
        let asked = fields.get("tz").map(str::to_owned).or_else(|| zone_of(&parts.headers));
        let zone = asked
            .and_then(|name| Zone::named(&name, now))
            .or_else(|| Zone::named(&ui.state.server.about.zone, now));
        let zone = zone.unwrap_or_else(|| Zone::utc(now));
        Ok(Visit {
            ask: Asker::of(&ui.json, parts, until),
            ui: ui.clone(),
            // Choosing a zone overrides the zone in the URL.
            here: format!("{path}{}", fields.link(&[("tz", None)])),
            fields,
            zone,
            root: "../".repeat(depth),
            headers: parts.headers.clone(),
            refused: None,
        })
    }
}

impl AppState {
    /// Refreshes the samples of queues that have changed, without waiting long for a store.
    async fn refresh_samples(&self) {
        let pools = self.pools.values().map(|pool| pool.sampler.refresh(None));
        // Late readings are in the next sample.
        let _ = timeout(REFRESH, together::all(pools)).await;
    }
}

/// Returns the scheme of a port's URL.
pub fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}

/// Returns the zone in the cookie.
fn zone_of(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.into_iter().find(|(name, _)| *name == ZONE_COOKIE)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}
