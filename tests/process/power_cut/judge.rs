//! Opens the directory that a power cut has left, drains it, and compares it with the acknowledged requests.
//!
//! An act is *firm* if the power cut must not undo it. With `Sync = "always"` these are the acknowledged acts that must
//! last, and every delivery acknowledged before the start of a firm act: the store has one log, and a sync persists
//! everything before it. With `"everysec"` these are the acts acknowledged before the first write to the log that is not
//! synced. An act that had not begun cannot have happened; any other may have happened completely or not at all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dormouse::admin::settings::SettingsAdmin;
use dormouse::admin::{AdminStore, Scope};
use dormouse::clock::ManualClock;
use dormouse::engine::disk::{DiskEngine, DiskOptions, Sync};
use dormouse::engine::{Consumed, Engine, JobList, Respawn};
use dormouse::job::{Job, JobState};
use dormouse::name::{DEFAULT_POOL, Namespace, PoolName, Queue, QueueName, ScheduleName};
use dormouse::process::tasks::{Failure, Tasks};
use dormouse::scheduler::{Schedule, ScheduleId, StoredSchedule};
use dormouse::settings::disk::DiskSettings;
use dormouse::settings::{MAX_SCAN, SettingsStore};

use super::load::{Act, NAMESPACE, TICKS, What};

/// Longer than every delay and ttr of the recorded requests.
const LATER: Duration = Duration::from_secs(7200);

/// Kind of violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An acknowledged job is missing.
    Lost,
    /// A deleted job exists again.
    Resurrected,
    TryLost,
    TryGained,
    /// A step happened in part.
    Half,
    /// A job exists twice, was never published, or differs from its publish.
    Wrong,
    Order,
    Early,
}

/// A cut, in nanoseconds since 1970.
#[derive(Debug)]
pub struct PowerCut {
    pub at: u64,
    /// The start of each write to the log that no sync covers.
    pub unsynced: Vec<u64>,
}

/// State of a store after a cut.
#[derive(Debug)]
pub enum Verdict {
    /// It opened, with these violations.
    Opened(Vec<(Kind, String)>),
    /// It did not open, for this reason.
    Refused(String),
    /// It failed while being read.
    Broke(String),
}

/// A job's life as the clients saw it: start and acknowledgement of each act.
#[derive(Debug)]
struct Life {
    queue: String,
    body: Vec<u8>,
    tries: u16,
    delay: Duration,
    born: usize,
    /// Its index in the bulk.
    place: usize,
    taken: Vec<usize>,
    gone: Vec<usize>,
    respawned: Option<usize>,
}

/// All acknowledged acts, by job.
#[derive(Debug)]
pub struct Account {
    acts: Vec<Act>,
    lives: BTreeMap<String, Life>,
    /// Whether each sync precedes a reply.
    always: bool,
    /// From a kill to the next start, in nanoseconds since 1970.
    down: Range<u64>,
}

/// Where a job was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    /// Delayed, or running with tries left.
    Later,
    /// Dead, or running without tries left.
    Dead,
}

/// A job found in the store.
struct Found {
    place: Place,
    tries: u16,
    job: Job,
}

impl Account {
    /// Returns the account of these acts. In `down` the server was killed and not yet started again.
    pub fn new(mut acts: Vec<Act>, always: bool, down: Range<u64>) -> Account {
        acts.sort_by_key(|act| act.began);
        let mut lives = BTreeMap::new();
        for (n, act) in acts.iter().enumerate() {
            let sent = match &act.what {
                What::Publish(sent) => sent.as_slice(),
                What::Republish { new, .. } => std::slice::from_ref(new),
                _ => &[],
            };
            for (place, sent) in sent.iter().enumerate() {
                let life = Life {
                    queue: sent.queue.clone(),
                    body: sent.body.clone(),
                    tries: sent.tries,
                    delay: sent.delay,
                    born: n,
                    place,
                    taken: Vec::new(),
                    gone: Vec::new(),
                    respawned: None,
                };
                assert!(lives.insert(sent.id.clone(), life).is_none(), "{} was given twice", sent.id);
            }
        }
        let life = |lives: &mut BTreeMap<String, Life>, id: &String, with: &dyn Fn(&mut Life)| {
            with(lives.get_mut(id).unwrap_or_else(|| panic!("{id} was never published")));
        };
        for (n, act) in acts.iter().enumerate() {
            match &act.what {
                What::HandOut(ids) => ids.iter().for_each(|id| life(&mut lives, id, &|l| l.taken.push(n))),
                What::Ack(id) | What::Republish { old: id, .. } => {
                    life(&mut lives, id, &|l| l.gone.push(n));
                }
                What::Remove(ids) => ids.iter().for_each(|id| life(&mut lives, id, &|l| l.gone.push(n))),
                What::Respawn(ids) => {
                    ids.iter().for_each(|id| life(&mut lives, id, &|l| l.respawned = Some(n)));
                }
                What::Publish(_) | What::Token { .. } | What::Schedule(_) => {}
            }
        }
        Account { acts, lives, always, down }
    }

    /// Returns the number of jobs.
    pub fn jobs(&self) -> usize {
        self.lives.len()
    }

    /// Returns the moment of the first acknowledgement.
    pub fn first_answer(&self) -> u64 {
        self.acts.iter().map(|act| act.answered).min().unwrap_or(u64::MAX)
    }

    /// Whether the server was killed and not yet started again.
    pub fn is_down(&self, at: u64) -> bool {
        self.down.contains(&at)
    }

    /// Opens `path`, the result of a cut, and judges it.
    pub async fn judge(&self, path: &Path, cut: &PowerCut) -> Verdict {
        let clock = Arc::new(ManualClock::new(cut.at / 1_000_000));
        let mut options = DiskOptions::new(path, clock.clone());
        options.upkeep = false;
        // The judge's own writes need not last.
        options.sync = Sync::EverySecond;
        // Debug builds of the store's libraries check more, and panic on violations.
        let opened = tokio::task::spawn_blocking(move || DiskEngine::open(options)).await;
        let engine = match opened {
            Ok(Ok(engine)) => engine,
            Ok(Err(e)) => return Verdict::Refused(class(&e.to_string())),
            Err(died) => return Verdict::Refused(format!("panic: {}", class(&said(died)))),
        };
        let mut findings = match self.schedules(&engine, cut).await {
            Ok(findings) => findings,
            Err(e) => return Verdict::Broke(class(&e)),
        };
        let found = match self.take_all(&engine, &clock).await {
            Ok(found) => found,
            Err(e) => return Verdict::Broke(class(&e)),
        };
        findings.extend(self.compare(&found, cut));
        match self.tokens(&engine, clock, cut).await {
            Ok(lost) => findings.extend(lost),
            Err(e) => return Verdict::Broke(class(&e)),
        }
        engine.close().await;
        Verdict::Opened(findings)
    }

    /// Compares the occurrences recorded by schedules with the existing jobs.
    async fn schedules(&self, engine: &DiskEngine, cut: &PowerCut) -> Result<Vec<(Kind, String)>, String> {
        let settings = DiskSettings::new(engine);
        let (mut findings, mut jobs, mut cursor) =
            (Vec::new(), BTreeMap::<String, HashSet<String>>::new(), None);
        loop {
            let list = JobList { state: JobState::Ready, limit: 100, cursor, bodies: true };
            let page = engine.list_jobs(&queue(TICKS), list).await.map_err(|e| e.to_string())?;
            let page = page.expect("a cursor of this list");
            for job in page.jobs {
                let of = job.attributes.get("schedule").cloned().unwrap_or_default();
                if !jobs.entry(of).or_default().insert(job.id.to_string()) {
                    findings.push((Kind::Wrong, format!("the occurrence {} exists twice", job.id)));
                }
            }
            cursor = page.cursor;
            if cursor.is_none() {
                break;
            }
        }
        let namespace = queue(TICKS).namespace;
        let prefix = format!("schedules/{DEFAULT_POOL}/{namespace}/");
        let page = settings.scan(&prefix, None, MAX_SCAN).await.map_err(|e| e.to_string())?;
        let mut there = HashSet::new();
        for (key, record) in page.records {
            let name = key.trim_start_matches(&prefix).to_owned();
            let name_of = ScheduleName::parse(&name).ok_or(format!("a record at {key}"))?;
            let id = ScheduleId { namespace: namespace.clone(), name: name_of };
            let stored = StoredSchedule::read(id, &record);
            let of = Schedule::read(stored).map_err(|e| e.to_string())?.state.history;
            let placed: u64 = of.counts.values().sum();
            let jobs = jobs.remove(&name).unwrap_or_default();
            let told = of.entries.iter().filter_map(|entry| entry.job_id.as_ref());
            let missing: Vec<_> = told.filter(|id| !jobs.contains(*id)).collect();
            // The newest may be published and not written down yet.
            let unwritten = (jobs.len() as u64).checked_sub(placed);
            if unwritten.is_none_or(|unwritten| unwritten > 1) || !missing.is_empty() {
                let what =
                    format!("{name} says that it has placed {placed}, there are {}: {missing:?}", jobs.len());
                findings.push((Kind::Half, what));
            }
            there.insert(name);
        }
        for (name, jobs) in jobs {
            findings.push((Kind::Half, format!("{} jobs of {name}, which is not there", jobs.len())));
        }
        let firm_until = self.firm_until(cut);
        for act in &self.acts {
            if let What::Schedule(name) = &act.what
                && act.answered < firm_until(true)
                && !there.contains(name)
            {
                findings.push((Kind::Lost, format!("the schedule {name}")));
            }
        }
        Ok(findings)
    }

    /// Drains a store: first ready, then later, then dead jobs.
    async fn take_all(&self, engine: &DiskEngine, clock: &ManualClock) -> Result<Vec<Found>, String> {
        let names: HashSet<&str> = self.lives.values().map(|life| life.queue.as_str()).collect();
        let mut queues: Vec<Queue> = names.into_iter().map(queue).collect();
        // Other queues would be a violation.
        let stats = engine.stats().await.map_err(|e| e.to_string())?;
        queues.extend(stats.queues.into_iter().map(|size| size.queue));
        queues.retain(|queue| queue.name.as_str() != TICKS);
        queues.sort_unstable();
        queues.dedup();
        let mut found = Vec::new();
        for place in [Place::Ready, Place::Later, Place::Dead] {
            if place == Place::Later {
                clock.advance(LATER);
                while engine.pump().await.map_err(|e| e.to_string())?.moved > 0 {}
            }
            for queue in &queues {
                if place == Place::Dead {
                    let all = Respawn::Oldest { limit: u64::MAX, ttl: None };
                    engine.respawn(queue, all).await.map_err(|e| e.to_string())?;
                }
                loop {
                    let consumed = engine.consume(&queue.clone().into(), &[10 * LATER; 100]).await;
                    let Consumed { jobs, more, .. } = consumed.map_err(|e| e.to_string())?;
                    if jobs.is_empty() {
                        if more {
                            continue;
                        }
                        break;
                    }
                    // Acking one of them is enough; the others run until long after the judge has finished.
                    engine.ack(&jobs[0].queue, &[(jobs[0].id, None)]).await.map_err(|e| e.to_string())?;
                    for job in jobs {
                        // A delivered job has one try less. A respawn gave it one.
                        let tries = if place == Place::Dead { 0 } else { job.tries_left + 1 };
                        found.push(Found { place, tries, job });
                    }
                }
            }
        }
        Ok(found)
    }

    fn compare(&self, found: &[Found], power_cut: &PowerCut) -> Vec<(Kind, String)> {
        let mut findings = Vec::new();
        let cut = power_cut.at;
        let begun = |n: usize| self.acts[n].began < cut;
        let firm_until = self.firm_until(power_cut);
        let firm = |n: usize| self.acts[n].answered < firm_until(self.acts[n].what.must_last());
        let mut seen: HashMap<String, &Found> = HashMap::new();
        for it in found {
            let id = it.job.id.to_string();
            if seen.insert(id.clone(), it).is_some() {
                findings.push((Kind::Wrong, format!("{id} exists twice")));
            }
            match self.lives.get(&id) {
                Some(life) if life.body == it.job.body && life.queue == it.job.queue.name.as_str() => {}
                Some(_) => findings.push((Kind::Wrong, format!("{id} is not as it was published"))),
                None => findings.push((Kind::Wrong, format!("{id} was never published"))),
            }
        }
        for (id, life) in &self.lives {
            let it = seen.get(id).copied();
            let told = || format!("{id} of {}: {}", life.queue, self.tell(life, cut));
            let Some(it) = it else {
                if firm(life.born) && !life.gone.iter().any(|n| begun(*n)) {
                    findings.push((Kind::Lost, told()));
                }
                continue;
            };
            if !begun(life.born) || life.gone.iter().any(|n| firm(*n)) {
                findings.push((Kind::Resurrected, told()));
                continue;
            }
            self.tries(life, it, &begun, &firm, &told, &mut findings);
            let due = self.acts[life.born].began / 1_000_000 + life.delay.as_millis() as u64;
            if it.place == Place::Ready && due > cut / 1_000_000 + 1 {
                findings.push((Kind::Early, told()));
            }
        }
        self.halves(&seen, &begun, &firm, &mut findings);
        self.order(found, &begun, &mut findings);
        findings
    }

    /// Returns the time before which an acknowledged act is firm, if it must last, or if it need not.
    fn firm_until(&self, cut: &PowerCut) -> impl Fn(bool) -> u64 {
        // Once the next server has opened the store, nothing of a killed one is lost.
        let opened = if cut.at >= self.down.end { self.down.start } else { 0 };
        let synced = cut.unsynced.iter().copied().filter(|at| *at >= opened).min().unwrap_or(cut.at);
        let lasting = if self.always { cut.at } else { synced };
        let acts = self.acts.iter().filter(|act| act.what.must_last() && act.answered < lasting);
        let last_synced = acts.map(|act| act.began).max().unwrap_or(0);
        let passing = if self.always { last_synced } else { synced };
        move |must_last| if must_last { lasting } else { passing }
    }

    fn tries(
        &self,
        life: &Life,
        it: &Found,
        begun: &dyn Fn(usize) -> bool,
        firm: &dyn Fn(usize) -> bool,
        told: &dyn Fn() -> String,
        findings: &mut Vec<(Kind, String)>,
    ) {
        let count = |from: u64, is: &dyn Fn(usize) -> bool| -> u16 {
            life.taken.iter().filter(|n| self.acts[**n].began >= from && is(**n)).count() as u16
        };
        // Maximum and minimum of the tries left.
        let (mut most, mut least) =
            (life.tries.saturating_sub(count(0, firm)), life.tries.saturating_sub(count(0, begun)));
        if let Some(respawn) = life.respawned.filter(|n| begun(*n)) {
            let from = self.acts[respawn].began;
            let again = (1 - count(from, firm).min(1), 1 - count(from, begun).min(1));
            (most, least) = if firm(respawn) { again } else { (most.max(again.0), least.min(again.1)) };
        }
        let text = || format!("{} has {} tries in place of {least} to {most}", told(), it.tries);
        if it.tries > most {
            findings.push((Kind::TryGained, text()));
        } else if it.tries < least {
            findings.push((Kind::TryLost, text()));
        }
    }

    /// Reports steps on several jobs that happened in part.
    fn halves(
        &self,
        seen: &HashMap<String, &Found>,
        begun: &dyn Fn(usize) -> bool,
        firm: &dyn Fn(usize) -> bool,
        findings: &mut Vec<(Kind, String)>,
    ) {
        for (n, act) in self.acts.iter().enumerate().filter(|(n, _)| begun(*n)) {
            let untouched = |id: &String| !self.lives[id].gone.iter().any(|gone| begun(*gone));
            match &act.what {
                What::Publish(sent) => {
                    let mut there = sent
                        .iter()
                        .filter(|sent| untouched(&sent.id))
                        .map(|sent| seen.contains_key(&sent.id));
                    if let Some(first) = there.next()
                        && there.any(|other| other != first)
                    {
                        findings
                            .push((Kind::Half, format!("of a bulk of {} to {}", sent.len(), sent[0].queue)));
                    }
                }
                What::Republish { old, new } => {
                    let life = &self.lives[old];
                    let alone = firm(life.born) && life.gone.iter().all(|gone| *gone == n || !begun(*gone));
                    if alone && untouched(&new.id) {
                        let there = [old, &new.id].map(|id| seen.contains_key(id));
                        if there[0] == there[1] {
                            let text = format!("a republish of {old} as {}: {there:?}", new.id);
                            findings.push((Kind::Half, text));
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Checks that ready jobs without deliveries are in publish order.
    fn order(&self, found: &[Found], begun: &dyn Fn(usize) -> bool, findings: &mut Vec<(Kind, String)>) {
        let mut newest: HashMap<(&str, Duration), (u64, usize, usize)> = HashMap::new();
        for it in found {
            let id = it.job.id.to_string();
            let Some(life) = self.lives.get(&id) else { continue };
            // A redelivered job is behind them, and one with an undone delivery at its old position.
            let fresh = it.tries == life.tries && !life.respawned.is_some_and(begun);
            let at_place = match it.place {
                Place::Ready => life.delay.is_zero(),
                // Only jobs that became due after the cut; others had become ready before.
                Place::Later => !life.delay.is_zero() && !life.taken.iter().any(|n| begun(*n)),
                Place::Dead => false,
            };
            if !fresh || !at_place {
                continue;
            }
            let act = &self.acts[life.born];
            let last = newest.entry((&life.queue, life.delay)).or_insert((0, 0, 0));
            let is_behind = if life.born == last.1 { life.place < last.2 } else { act.answered < last.0 };
            if is_behind {
                let text = format!("{id} of {} is behind one that was published later", life.queue);
                findings.push((Kind::Order, text));
            }
            if act.began >= last.0 {
                *last = (act.began, life.born, life.place);
            }
        }
    }

    /// Reports acknowledged tokens that are missing.
    async fn tokens(
        &self,
        engine: &DiskEngine,
        clock: Arc<ManualClock>,
        cut: &PowerCut,
    ) -> Result<Vec<(Kind, String)>, String> {
        let (settings, tasks) = (Arc::new(DiskSettings::new(engine)), Tasks::new(Failure::default()));
        let store = SettingsAdmin::open(settings, clock, tasks).await.map_err(|e| e.to_string())?;
        let firm_until = self.firm_until(cut);
        let mut findings = Vec::new();
        for act in self.acts.iter().filter(|act| act.answered < firm_until(true)) {
            let What::Token { namespace, token } = &act.what else { continue };
            let scope = Scope {
                pool: PoolName::parse("default").expect("a literal"),
                namespace: Namespace::parse(namespace).expect("it was answered"),
            };
            let there = store.tokens(&scope).await.map_err(|e| e.to_string())?;
            if !there.contains_key(token) {
                findings.push((Kind::Lost, format!("a token of {namespace}")));
            }
        }
        Ok(findings)
    }

    /// Describes the history of a job up to the cut.
    fn tell(&self, life: &Life, cut: u64) -> String {
        let when = |n: &usize| {
            let act = &self.acts[*n];
            let before = |at: u64| (cut as i64 - at as i64) as f64 / 1e6;
            format!("{:.3}..{:.3}", before(act.began), before(act.answered))
        };
        let list = |acts: &[usize]| acts.iter().map(when).collect::<Vec<_>>().join(" ");
        format!(
            "ms before the cut: published {} (tries {}, delay {:?}), taken [{}], gone [{}]",
            when(&life.born),
            life.tries,
            life.delay,
            list(&life.taken),
            list(&life.gone)
        )
    }
}

fn queue(name: &str) -> Queue {
    Queue {
        namespace: Namespace::parse(NAMESPACE).expect("a literal"),
        name: QueueName::parse(name).expect("it was published to"),
    }
}

/// Returns the message of a panic.
fn said(died: tokio::task::JoinError) -> String {
    let Ok(panic) = died.try_into_panic() else { return "cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

/// Returns a reason without the paths and numbers that differ from cut to cut.
fn class(reason: &str) -> String {
    let words = reason.split_inclusive([' ', '(', ')', ',', ':', '{', '}']);
    let plain = words.map(|word| match word.contains('/') {
        true => "..".to_owned(),
        false => word.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect(),
    });
    let mut text = plain.collect::<String>();
    while text.contains("##") {
        text = text.replace("##", "#");
    }
    text.chars().take(300).collect()
}

/// The judge must find each kind of violation, created here on purpose.
#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use dormouse::job::{Attributes, JobId, NewJob};

    use super::super::load::Sent;
    use super::*;

    /// Time of the cut, in milliseconds.
    const CUT: u64 = 1_000_000_000;

    fn id(n: u64) -> JobId {
        JobId::from_parts(CUT - 1000, n, 0, false)
    }

    fn stored(n: u64, tries: u16) -> NewJob {
        NewJob {
            queue: queue("q"),
            id: id(n),
            body: format!("body {n}").into(),
            attributes: Attributes::new(),
            ttl: None,
            delay: Duration::ZERO,
            tries: NonZeroU16::new(tries).expect("a job has a try"),
        }
    }

    fn sent(n: u64, tries: u16, delay: u64) -> Sent {
        let body = format!("body {n}").into_bytes();
        Sent { id: id(n).to_string(), queue: "q".into(), body, tries, delay: Duration::from_secs(delay) }
    }

    /// Creates an act that began and was acknowledged this many milliseconds before the cut.
    fn act(began: u64, answered: u64, what: What) -> Act {
        Act { began: (CUT - began) * 1_000_000, answered: (CUT - answered) * 1_000_000, what }
    }

    fn published(began: u64, jobs: &[Sent]) -> Act {
        act(began, began - 10, What::Publish(jobs.to_vec()))
    }

    /// Returns the violations found in a store with these jobs, given these acts.
    async fn kinds(jobs: Vec<NewJob>, acts: Vec<Act>) -> Vec<Kind> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let clock = Arc::new(ManualClock::new(CUT - 1000));
        let engine = DiskEngine::open(DiskOptions::new(dir.path(), clock)).expect("a new directory opens");
        for job in jobs {
            engine.publish(vec![job].into()).await.expect("published");
        }
        engine.close().await;
        drop(engine);
        let cut = PowerCut { at: CUT * 1_000_000, unsynced: Vec::new() };
        let verdict = Account::new(acts, true, 0..0).judge(dir.path(), &cut).await;
        let Verdict::Opened(findings) = verdict else { panic!("the store opens: {verdict:?}") };
        let mut kinds: Vec<Kind> = findings.into_iter().map(|(kind, _)| kind).collect();
        kinds.sort_unstable();
        kinds
    }

    #[tokio::test]
    async fn what_was_answered_is_found_in_order() {
        let acts = vec![published(500, &[sent(1, 1, 0)]), published(400, &[sent(2, 2, 0), sent(3, 2, 0)])];
        let stored = vec![stored(1, 1), stored(2, 2), stored(3, 2)];
        assert_eq!(kinds(stored, acts).await, [], "nothing is wrong");
    }

    #[tokio::test]
    async fn what_is_missing_or_back_is_found() {
        let answered = vec![published(500, &[sent(1, 1, 0)])];
        assert_eq!(kinds(vec![], answered.clone()).await, [Kind::Lost]);
        let unanswered = vec![act(500, 0, What::Publish(vec![sent(1, 1, 0)]))];
        assert_eq!(kinds(vec![], unanswered).await, [], "it was not answered before the cut");
        let acked = act(400, 390, What::Ack(sent(1, 1, 0).id));
        assert_eq!(
            kinds(vec![stored(1, 1)], [answered.clone(), vec![acked]].concat()).await,
            [Kind::Resurrected]
        );
        let acking = act(400, 0, What::Ack(sent(1, 1, 0).id));
        assert_eq!(
            kinds(vec![stored(1, 1)], [answered, vec![acking]].concat()).await,
            [],
            "the ack was in flight"
        );
        assert_eq!(kinds(vec![stored(1, 1)], vec![]).await, [Kind::Wrong], "it was never published");
    }

    #[tokio::test]
    async fn tries_order_and_halves_are_found() {
        let acts = |tries| vec![published(500, &[sent(1, tries, 0)])];
        assert_eq!(kinds(vec![stored(1, 1)], acts(2)).await, [Kind::TryLost]);
        assert_eq!(kinds(vec![stored(1, 2)], acts(1)).await, [Kind::TryGained]);
        // A delivery may be undone, unless a later act was synced.
        let taken = act(400, 390, What::HandOut(vec![sent(1, 2, 0).id]));
        let undone = [acts(2), vec![taken]].concat();
        assert_eq!(kinds(vec![stored(1, 2)], undone.clone()).await, []);
        let later = published(300, &[sent(2, 1, 0)]);
        let jobs = vec![stored(1, 2), stored(2, 1)];
        assert_eq!(kinds(jobs, [undone, vec![later]].concat()).await, [Kind::TryGained]);

        let in_turn = vec![published(500, &[sent(1, 1, 0)]), published(400, &[sent(2, 1, 0)])];
        assert_eq!(kinds(vec![stored(2, 1), stored(1, 1)], in_turn).await, [Kind::Order]);
        let bulk = vec![act(500, 0, What::Publish(vec![sent(1, 1, 0), sent(2, 1, 0)]))];
        assert_eq!(kinds(vec![stored(1, 1)], bulk).await, [Kind::Half]);
        let delayed = vec![published(500, &[sent(1, 1, 60)])];
        assert_eq!(kinds(vec![stored(1, 1)], delayed).await, [Kind::Early]);
    }
}
