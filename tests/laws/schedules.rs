//! Schedules: a record and the job of its step change together; due schedules are listed in order; nothing is decided
//! twice.

use std::collections::BTreeSet;

use bytes::Bytes;
use dormouse::clock::Millis;
use dormouse::engine::{
    DueList, DueSchedules, How, Landed, OnConflict, Publication, Published, Quota, Quotas, ScheduleBounds,
    ScheduleId, ScheduleList, SchedulePage, SchedulePut, ScheduleSetting, ScheduleState, ScheduleStep,
    ScheduleThen, ScheduleVersion, Stepped, StoredSchedule,
};
use dormouse::error::Error;
use dormouse::name::{Namespace, ScheduleName};

use crate::stage::*;
use crate::support::notified::Notified;

const BOUNDS: ScheduleBounds = ScheduleBounds { of_namespace: 1000, of_pool: 1000 };
/// Long ago, and in a time to come that no law reaches.
const PAST: Millis = 1_000_000_000_000;
const FAR: Millis = 4_000_000_000_000;

/// The schedule `name` of namespace `ns`.
pub fn schedule(name: &str) -> ScheduleId {
    schedule_in("ns", name)
}

pub fn schedule_in(namespace: &str, name: &str) -> ScheduleId {
    let namespace = Namespace::parse(namespace).expect("a name");
    ScheduleId { namespace, name: ScheduleName::parse(name).expect("a name of a schedule") }
}

/// What a step writes: on, due at `next`, without a job.
pub fn put(next: Option<Millis>) -> SchedulePut {
    let progress = Bytes::from_static(b"progress");
    SchedulePut { bounds: BOUNDS, ..SchedulePut::plain(ScheduleState::On, next, progress, None) }
}

pub fn setting(queue: &str, text: &str) -> ScheduleSetting {
    ScheduleSetting {
        queue: crate::stage::queue(queue).name,
        text: Bytes::copy_from_slice(text.as_bytes()),
        body: Bytes::from_static(b"the body"),
    }
}

/// One that is new, of the queue `q`.
pub fn new(next: Option<Millis>) -> SchedulePut {
    SchedulePut { setting: Some(setting("q", "set")), ..put(next) }
}

/// These jobs as a step has them.
fn with(put: SchedulePut, draft: Draft, s: &dyn Stage) -> SchedulePut {
    let job = Publication { jobs: vec![draft.placing(s)], replaces: None, once: None };
    SchedulePut { job: Some(job), ..put }
}

impl dyn Stage + '_ {
    async fn step(&self, id: &ScheduleId, expected: Option<ScheduleVersion>, put: SchedulePut) -> Stepped {
        let step = ScheduleStep { id: id.clone(), expected, then: ScheduleThen::Put(Box::new(put)) };
        ok("step_schedule", self.engine().step_schedule(step).await)
    }

    /// A step that must be done.
    async fn stepped(
        &self,
        id: &ScheduleId,
        expected: Option<ScheduleVersion>,
        put: SchedulePut,
    ) -> (ScheduleVersion, Option<Landed>) {
        match self.step(id, expected, put).await {
            Stepped::Done { version, landed } => (version, landed),
            other => panic!("the step of {id} should be done, but: {other:?}"),
        }
    }

    async fn delete_schedule(&self, id: &ScheduleId, expected: Option<ScheduleVersion>) -> Stepped {
        let step = ScheduleStep { id: id.clone(), expected, then: ScheduleThen::Delete };
        ok("step_schedule", self.engine().step_schedule(step).await)
    }

    async fn schedule(&self, id: &ScheduleId) -> Option<StoredSchedule> {
        let list = ScheduleList::One(id.name.clone());
        let page = ok("list_schedules", self.engine().list_schedules(&id.namespace, list).await);
        assert!(page.schedules.len() <= 1 && page.next.is_none(), "one was asked for: {page:?}");
        page.schedules.into_iter().next()
    }

    async fn schedule_page(&self, prefix: &str, after: Option<ScheduleName>, limit: usize) -> SchedulePage {
        let list = ScheduleList::Page { prefix: prefix.into(), after, limit, bodies: false };
        ok("list_schedules", self.engine().list_schedules(&queue("q").namespace, list).await)
    }

    /// The names of the namespace `ns` that begin so, in pages.
    async fn schedule_names(&self, prefix: &str, limit: usize) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        for _ in 0..1000 {
            let page = self.schedule_page(prefix, after, limit).await;
            assert!(page.schedules.len() <= limit, "asked for {limit}, got {}", page.schedules.len());
            all.extend(page.schedules.iter().map(|of| of.id.name.to_string()));
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
        panic!("schedules are listed without end: {all:?}");
    }

    async fn due(&self, limit: usize) -> DueSchedules {
        ok("due_schedules", self.engine().due_schedules(DueList::Now(limit)).await)
    }

    async fn due_names(&self, limit: usize) -> Vec<String> {
        self.due(limit).await.schedules.iter().map(|of| of.id.name.to_string()).collect()
    }
}

/// Guards against a record that is read differently from how it was written.
pub async fn a_schedule_is_read_as_it_was_put(s: &dyn Stage) {
    let id = schedule("nightly.report");
    assert_eq!(s.schedule(&id).await, None, "nothing was put");
    let body = Bytes::from(vec![0; 64 << 10]);
    let first = ScheduleSetting { body, ..setting("q", "{\"a\":\"\0\n\"}") };
    let created =
        SchedulePut { setting: Some(first.clone()), state: ScheduleState::Paused, ..put(Some(FAR)) };
    let (version, landed) = s.stepped(&id, None, created).await;
    assert_eq!((version.step, landed), (0, None), "it is new, without a job");
    let expected = StoredSchedule {
        id: id.clone(),
        version,
        state: ScheduleState::Paused,
        next: Some(FAR),
        setting: first.clone(),
        progress: Bytes::from_static(b"progress"),
        landed: None,
    };
    assert_eq!(s.schedule(&id).await, Some(expected.clone()), "as it was put");
    let progress = Bytes::from_static(b"\0\xff");
    let (later, _) =
        s.stepped(&id, Some(version), SchedulePut { progress: progress.clone(), ..put(None) }).await;
    assert_eq!(later, ScheduleVersion { step: 1, ..version }, "a step without a setting");
    let expected =
        StoredSchedule { version: later, state: ScheduleState::On, next: None, progress, ..expected };
    assert_eq!(s.schedule(&id).await, Some(expected.clone()), "the setting is as it was");
    let page = s.schedule_page("", None, 100).await;
    let setting = ScheduleSetting { body: Bytes::new(), ..first };
    assert_eq!(page.schedules, [StoredSchedule { setting, ..expected }], "a page without bodies");
    let changed = s.stepped(&id, Some(later), new(None)).await.0;
    assert_eq!((changed.revision, changed.step), (version.revision + 1, 0), "a change has the next revision");
}

/// Guards against pages that leave out or repeat, and against namespaces that mix.
pub async fn schedules_are_listed_by_name(s: &dyn Stage) {
    let names = ["-", "B", "a", "a-b", "a.b", "a_b", "ab", "ac", "b"];
    for name in ["ac", "a", "b", "a_b", "B", "a.b", "-", "a-b", "ab"] {
        s.stepped(&schedule(name), None, new(Some(FAR))).await;
        s.stepped(&schedule_in("ns2", name), None, new(Some(FAR))).await;
    }
    for limit in [1, 2, 4, 100] {
        assert_eq!(s.schedule_names("", limit).await, names, "in pages of {limit}");
        assert_eq!(s.schedule_names("a", limit).await, names[2..8], "from a, in pages of {limit}");
        assert_eq!(s.schedule_names("ab", limit).await, ["ab"], "from ab, in pages of {limit}");
    }
    assert_eq!(s.schedule_names("x", 3).await, [""; 0], "nothing begins so");
    assert_eq!(s.schedule_page("a", Some(schedule("B").name), 1).await.schedules[0].id, schedule("a"));
    s.delete_schedule(&schedule("a"), s.schedule(&schedule("a")).await.map(|of| of.version)).await;
    assert_eq!(s.schedule_names("", 100).await.len(), 8, "one is gone here");
    assert!(s.schedule(&schedule_in("ns2", "a")).await.is_some(), "and not in another namespace");
}

/// Guards against two servers that both decide.
pub async fn a_step_from_another_version_changes_nothing(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    assert_eq!(s.step(&id, Some(ScheduleVersion { revision: 1, step: 0 }), new(None)).await, Stepped::Stale);
    assert_eq!(s.step(&id, None, put(None)).await, Stepped::Stale, "a new one has a setting");
    let (first, _) = s.stepped(&id, None, new(Some(FAR))).await;
    let (second, _) = s.stepped(&id, Some(first), put(Some(FAR))).await;
    let before = s.schedule(&id).await;
    for expected in [None, Some(first), Some(ScheduleVersion { revision: second.revision + 1, step: 0 })] {
        let step = with(new(None), job(&q, "no"), s);
        assert_eq!(s.step(&id, expected, step).await, Stepped::Stale, "of {expected:?}, it is {second:?}");
        assert_eq!(s.delete_schedule(&id, expected).await, Stepped::Stale, "of {expected:?}");
    }
    assert_eq!(s.schedule(&id).await, before, "as it was");
    assert_eq!(s.size(&q).await, 0, "no job came of it");
}

/// Guards against an ETag that names two settings.
pub async fn a_revision_is_never_used_twice(s: &dyn Stage) {
    let id = schedule("s");
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        let (mut version, _) = s.stepped(&id, None, new(None)).await;
        for _ in 0..2 {
            assert!(seen.insert(version.revision), "round {round}: {version:?} was used before: {seen:?}");
            assert_eq!(seen.last(), Some(&version.revision), "they grow");
            let elsewhere = SchedulePut { setting: Some(setting("r", "other")), ..put(None) };
            version = s.stepped(&id, Some(version), elsewhere).await.0;
        }
        seen.insert(version.revision);
        let gone = s.delete_schedule(&id, Some(version)).await;
        assert_eq!(gone, Stepped::Done { version, landed: None }, "it goes");
    }
}

/// Guards against a schedule that gets another revision, and another ETag, when its pool moves to another store.
pub async fn a_revision_that_is_given_is_kept(s: &dyn Stage) {
    let id = schedule("s");
    let given = |revision, next| SchedulePut { revision: Some(revision), ..new(next) };
    let dry = SchedulePut { dry: true, ..given(7, Some(PAST)) };
    let first = ScheduleVersion { revision: 7, step: 0 };
    assert_eq!(s.stepped(&id, None, dry).await.0, first, "what would be");
    assert_eq!(s.stepped(&id, None, given(7, Some(PAST))).await.0, first, "a new schedule");
    let (mark, _) = s.stepped(&id, Some(first), SchedulePut { revision: None, ..put(Some(PAST)) }).await;
    assert_eq!(mark, ScheduleVersion { step: 1, ..first });
    let gone = SchedulePut { state: ScheduleState::Moved, ..given(7, None) };
    let (gone, _) = s.stepped(&id, Some(mark), gone).await;
    assert_eq!(gone, ScheduleVersion { step: 2, ..first }, "the setting changes, the revision does not");
    assert_eq!(s.due_names(10).await, [""; 0], "it has moved elsewhere");
    let list = DueList::Ever { from: None, limit: 10 };
    let all = ok("due_schedules", s.engine().due_schedules(list).await).schedules;
    assert_eq!(all, [], "a walk through all passes it over");
}

/// Guards against a dry run that leaves something, or that answers something else than the step does.
pub async fn a_dry_step_says_what_would_be(s: &dyn Stage) {
    let (one, two) = (schedule("one"), schedule("two"));
    let dry = |put| SchedulePut { dry: true, ..put };
    let (would, _) = s.stepped(&one, None, dry(new(Some(FAR)))).await;
    assert_eq!(s.schedule(&one).await, None, "nothing was written");
    assert_eq!(s.schedule_names("", 10).await, Vec::<String>::new(), "not even its name");
    let (is, _) = s.stepped(&one, None, new(Some(FAR))).await;
    assert_eq!(would, is, "of a new one");
    let (would, _) = s.stepped(&one, Some(is), dry(new(Some(PAST)))).await;
    let there = s.schedule(&one).await.map(|of| (of.version, of.next));
    assert_eq!(there, Some((is, Some(FAR))), "nothing was written");
    let (changed, _) = s.stepped(&one, Some(is), new(Some(FAR))).await;
    assert_eq!(would, changed, "of a change");
    assert_eq!(s.step(&one, Some(is), dry(new(None))).await, Stepped::Stale);
    // To a queue that may be at home elsewhere.
    let other = SchedulePut { setting: Some(setting("another-queue", "set")), ..new(Some(FAR)) };
    let (would, _) = s.stepped(&one, Some(changed), dry(other.clone())).await;
    let (changed, _) = s.stepped(&one, Some(changed), other).await;
    assert_eq!(would, changed, "of another queue");
    s.delete_schedule(&one, Some(changed)).await;
    let (would, _) = s.stepped(&one, None, dry(new(None))).await;
    assert_eq!(would, s.stepped(&one, None, new(None)).await.0, "of a name that was used before");
    let bounds = ScheduleBounds { of_namespace: 1, of_pool: 1000 };
    assert_eq!(s.step(&two, None, dry(SchedulePut { bounds, ..new(None) })).await, Stepped::TooMany);
    let bounds = ScheduleBounds { of_namespace: 1000, of_pool: 1 };
    assert_eq!(s.step(&two, None, dry(SchedulePut { bounds, ..new(None) })).await, Stepped::TooMany);
}

/// Guards against an undetected placer of another version.
pub async fn steps_are_counted_by_their_placers(s: &dyn Stage) {
    let count = async |by: &str| s.due(1).await.by.get(by).copied().unwrap_or(0);
    let of = |by: &str, put| SchedulePut { by: by.into(), ..put };
    let (version, _) = s.stepped(&schedule("a"), None, of("2025b", new(Some(FAR)))).await;
    let older = count("2025b").await;
    assert!(older > 0, "a step was taken");
    s.stepped(&schedule("b"), None, of("2026f", new(Some(FAR)))).await;
    s.stepped(&schedule("c"), None, new(Some(FAR))).await;
    assert_eq!((count("2025b").await, count("2026f").await > 0), (older, true), "by others");
    s.stepped(&schedule("a"), Some(version), of("2025b", put(Some(FAR)))).await;
    assert!(count("2025b").await > older, "one more");
}

/// Guards against an occurrence that comes twice.
pub async fn an_occurrence_is_placed_once_by_many(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let (version, _) = s.stepped(&id, None, new(Some(PAST))).await;
    let tries = (0..16).map(|n| with(put(Some(FAR)), job(&q, format!("{n}")), s)).map(|put| {
        let (engine, id) = (s.engine(), id.clone());
        tokio::spawn(async move {
            let then = ScheduleThen::Put(Box::new(put));
            engine.step_schedule(ScheduleStep { id, expected: Some(version), then }).await
        })
    });
    let (mut done, mut stale) = (Vec::new(), 0);
    for tried in tries.collect::<Vec<_>>() {
        match ok("step_schedule", tried.await.expect("no panic")) {
            Stepped::Done { landed, .. } => done.push(landed.expect("it had a job")),
            Stepped::Stale => stale += 1,
            other => panic!("a step answers {other:?}"),
        }
    }
    assert_eq!((done.len(), stale), (1, 15), "one is done: {done:?}");
    let jobs = s.take(&q, 16, LONG).await;
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [done[0].placed.id], "only its job exists");
    assert_eq!(s.schedule(&id).await.and_then(|of| of.landed), Some(done[0]), "the record says so");
}

/// Guards against a record that says more than was done.
pub async fn a_refused_job_leaves_the_schedule_as_it_was(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let (version, _) = s.stepped(&id, None, new(Some(PAST))).await;
    let first = with(put(Some(PAST)), job(&q, "1"), s);
    let taken = first.job.clone();
    let (version, _) = s.stepped(&id, Some(version), first).await;
    let before = s.schedule(&id).await;
    let again = SchedulePut { job: taken, ..new(Some(FAR)) };
    let step =
        ScheduleStep { id: id.clone(), expected: Some(version), then: ScheduleThen::Put(Box::new(again)) };
    let answer = s.engine().step_schedule(step).await;
    assert!(matches!(answer, Ok(Stepped::Refused(_))), "its id is stored already: {answer:?}");
    assert_eq!(s.schedule(&id).await, before, "as it was");
    let quota = Quotas::from([(q.namespace.clone(), Quota { jobs: 1, ..Quota::default() })]);
    ok("set_quotas", s.engine().set_quotas(&quota).await);
    let mut version = version;
    // A refused step reserves nothing, however often it is retried: each time there is space for one.
    for (n, there) in ["1", "2", "2"].into_iter().enumerate() {
        let more = with(put(Some(FAR)), job(&q, "2"), s);
        let before = s.schedule(&id).await;
        for _ in 0..5 {
            let then = ScheduleThen::Put(Box::new(more.clone()));
            let step = ScheduleStep { id: id.clone(), expected: Some(version), then };
            let answer = s.engine().step_schedule(step).await;
            assert!(matches!(answer, Err(Error::OverQuota("jobs"))), "it is used up, {n}: {answer:?}");
        }
        assert_eq!(s.schedule(&id).await, before, "as it was, {n}");
        let stored = s.take(&q, 100, LONG).await;
        assert_eq!(bodies(&stored), [there], "one job was stored, {n}");
        for job in &stored {
            // A job that runs counts too.
            s.ack(job).await;
        }
        version = s.stepped(&id, Some(version), more).await.0;
    }
    assert_eq!(s.drain(&q).await, ["2"], "the last job");
    s.stepped(&id, Some(version), put(None)).await;
}

/// Guards against a neighbour in the same batch that pays for it.
pub async fn steps_fail_alone(s: &dyn Stage) {
    let q = queue("q");
    let taken = s.put(job(&q, "first")).await;
    let mut steps = Vec::new();
    for n in 0..20 {
        let mut put = with(new(Some(FAR)), job(&q, format!("{n}")), s);
        if let Some(publication) = put.job.as_mut().filter(|_| n % 3 == 0) {
            publication.jobs[0].job.id = taken.id;
        }
        let step = ScheduleStep {
            id: schedule(&format!("s{n}")),
            expected: None,
            then: ScheduleThen::Put(Box::new(put)),
        };
        let engine = s.engine();
        steps.push((n, tokio::spawn(async move { engine.step_schedule(step).await })));
    }
    for (n, step) in steps {
        let answer = step.await.expect("no panic");
        let is_done = matches!(answer, Ok(Stepped::Done { .. }));
        assert_eq!(is_done, n % 3 != 0, "step {n} answers {answer:?}");
        assert_eq!(s.schedule(&schedule(&format!("s{n}"))).await.is_none(), n % 3 == 0, "schedule {n}");
    }
    assert_eq!(s.drain(&q).await.len(), 1 + 13, "the jobs of the steps that succeeded");
}

/// Guards against due schedules that are omitted or listed in another order.
pub async fn what_is_due_is_told_the_earliest_first(s: &dyn Stage) {
    assert_eq!(s.due(10).await.schedules, [], "there are no schedules");
    let now = s.due(1).await.now;
    // Another server is about to place it, after which it is due again.
    let (late, _) = s.stepped(&schedule("late"), None, new(Some(PAST))).await;
    let list = DueList::Within(10, std::time::Duration::from_secs(60));
    let due = ok("due_schedules", s.engine().due_schedules(list).await);
    assert_eq!(due.schedules, [], "due for longer");
    assert!(ms(due.next) <= 1000, "it is not slept through: {:?}", due.next);
    s.delete_schedule(&schedule("late"), Some(late)).await;
    for (name, next) in
        [("c", Some(now - 1)), ("a", Some(PAST)), ("never", None), ("b", Some(PAST + 1)), ("far", Some(FAR))]
    {
        s.stepped(&schedule(name), None, new(next)).await;
    }
    assert_eq!(s.due_names(10).await, ["a", "b", "c"], "the due schedules");
    let due = s.due(2).await;
    assert_eq!(due.schedules.len(), 2, "two at most");
    assert!(due.next.is_zero(), "there are more: {:?}", due.next);
    assert_eq!(due.schedules[0].setting.body, "the body", "with all that it takes to place it");
    let mut ever = Vec::new();
    let mut from = None;
    for _ in 0..1000 {
        let list = DueList::Ever { from, limit: 2 };
        let part = ok("due_schedules", s.engine().due_schedules(list).await);
        ever.extend(part.schedules);
        from = part.more;
        if from.is_none() {
            break;
        }
    }
    assert!(from.is_none(), "it ends");
    let ever: BTreeSet<_> = ever.iter().map(|of| of.id.name.as_str()).collect();
    assert_eq!(Vec::from_iter(ever), ["a", "b", "c", "far", "never"], "the schedules with a next time");
    let list = DueList::Within(10, std::time::Duration::from_secs(60));
    let lately = ok("due_schedules", s.engine().due_schedules(list).await).schedules;
    assert_eq!(lately.iter().map(|of| of.id.name.as_str()).collect::<Vec<_>>(), ["c"], "those due lately");
    for name in ["a", "b", "c"] {
        let version = s.schedule(&schedule(name)).await.map(|of| of.version);
        s.stepped(&schedule(name), version, put(Some(FAR))).await;
    }
    let due = s.due(10).await;
    assert_eq!(due.schedules, [], "all were looked at");
    assert!(due.next > std::time::Duration::ZERO, "the next is far");
    let soon = due.now + 60;
    s.stepped(&schedule("soon"), None, new(Some(soon))).await;
    let due = s.due(10).await;
    if due.schedules.is_empty() {
        assert!(ms(due.next) <= soon - due.now + 1, "soon is due in {}: {:?}", soon - due.now, due.next);
    }
    s.advance(std::time::Duration::from_millis(60)).await;
    assert_eq!(s.due_names(10).await, ["soon"], "its time has come");
}

/// Guards against an early job, even if the placer's clock is ahead.
pub async fn nothing_is_placed_early(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let at = s.due(1).await.now + 200;
    let (version, _) = s.stepped(&id, None, new(Some(at))).await;
    let step = || SchedulePut { not_before: at, ..with(put(Some(FAR)), job(&q, "1"), s) };
    match s.step(&id, Some(version), step()).await {
        Stepped::TooEarly => assert_eq!(s.size(&q).await, 0, "nothing was stored"),
        // A slow machine.
        other => assert!(s.due(1).await.now >= at, "it is not {at} yet: {other:?}"),
    }
    s.advance(std::time::Duration::from_millis(200)).await;
    if s.schedule(&id).await.map(|of| of.version) == Some(version) {
        let landed = s.stepped(&id, Some(version), step()).await.1.expect("a job");
        assert!(landed.at >= at, "placed at {}, not before {at}", landed.at);
    }
    assert_eq!(s.drain(&q).await, ["1"]);
}

/// Guards against a heap of jobs of one schedule, and against a record that does not say which one lives.
pub async fn a_living_job_is_kept_or_replaced_by_its_key(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let (version, _) = s.stepped(&id, None, new(Some(PAST))).await;
    let draft = |body: &str, on_conflict| job(&q, body).tries(2).key_or("schedule:s", on_conflict);
    let (version, landed) =
        s.stepped(&id, Some(version), with(put(Some(PAST)), draft("1", OnConflict::Keep), s)).await;
    let first = landed.expect("a job").placed;
    assert_eq!(first.how, How::New);
    let (version, landed) =
        s.stepped(&id, Some(version), with(put(Some(PAST)), draft("2", OnConflict::Keep), s)).await;
    let kept = landed.expect("a job").placed;
    assert_eq!((kept.how, kept.id), (How::Duplicate, first.id), "the first job lives");
    let stored = s.schedule(&id).await.and_then(|of| of.landed).map(|landed| landed.placed);
    assert_eq!(stored.map(|of| (of.how, of.id)), Some((How::Duplicate, first.id)), "the record says which");
    let step = with(put(Some(PAST)), draft("3", OnConflict::Replace), s);
    let (version, landed) = s.stepped(&id, Some(version), step).await;
    let third = landed.expect("a job").placed;
    assert_eq!(third.how, How::Replaced(first.id), "it takes the place of the first");
    let running = s.take_one(&q, LONG).await;
    assert_eq!(running.body, "3");
    let before = s.schedule(&id).await;
    let fails = with(put(Some(FAR)), draft("4", OnConflict::Fail), s);
    let answer = s.step(&id, Some(version), fails).await;
    assert_eq!(answer, Stepped::NotPlaced(Published::Conflict { index: 0, id: third.id }));
    assert_eq!(s.schedule(&id).await, before, "as it was");
    let step = with(put(Some(PAST)), draft("5", OnConflict::Replace), s);
    let (_, landed) = s.stepped(&id, Some(version), step).await;
    assert_eq!(landed.map(|landed| landed.placed.how), Some(How::New), "a running one runs on");
    assert_eq!(s.drain(&q).await, ["5"]);
    assert_eq!(s.find(&running).await.map(|job| job.body), Some("3".into()), "it still runs");
}

/// Guards against an occurrence beside another producer's job that has its key, wherever that lies.
pub async fn jobs_of_others_with_its_key_count(s: &dyn Stage) {
    let q = queue("q");
    // With this many keys, some belong to other partitions than the schedule.
    for n in 0..8 {
        let (id, key) = (schedule(&format!("s{n}")), format!("k{n}"));
        let draft = |body: &str, on_conflict| job(&q, body).tries(2).key_or(&key, on_conflict);
        let theirs = s.place(draft("theirs", OnConflict::Fail)).await;
        let (version, _) = s.stepped(&id, None, new(Some(PAST))).await;
        let before = s.schedule(&id).await;
        let fails = with(put(Some(FAR)), draft("fails", OnConflict::Fail), s);
        let answer = s.step(&id, Some(version), fails).await;
        let conflict = Published::Conflict { index: 0, id: theirs.id };
        assert_eq!(answer, Stepped::NotPlaced(conflict), "{key}");
        assert_eq!(s.schedule(&id).await, before, "{key}: as it was");
        let keeps = with(put(Some(PAST)), draft("kept", OnConflict::Keep), s);
        let (version, landed) = s.stepped(&id, Some(version), keeps).await;
        let kept = landed.expect("a job").placed;
        assert_eq!((kept.how, kept.id), (How::Duplicate, theirs.id), "{key}: theirs lives");
        let replaces = with(put(Some(PAST)), draft("ours", OnConflict::Replace), s);
        let (version, landed) = s.stepped(&id, Some(version), replaces).await;
        let ours = landed.expect("a job").placed;
        assert_eq!(ours.how, How::Replaced(theirs.id), "{key}: it takes the place of theirs");
        let again = s.place(draft("again", OnConflict::Keep)).await;
        assert_eq!((again.how, again.id), (How::Duplicate, ours.id), "{key}: and ours counts for them");
        let running = s.take_one(&q, LONG).await;
        assert_eq!(running.body, "ours", "{key}");
        s.ack(&running).await;
        s.place(draft("runs", OnConflict::Fail)).await;
        let running = s.take_one(&q, LONG).await;
        let beside = with(put(Some(FAR)), draft("beside", OnConflict::Replace), s);
        let (_, landed) = s.stepped(&id, Some(version), beside).await;
        assert_eq!(landed.map(|landed| landed.placed.how), Some(How::New), "{key}: a running one runs on");
        assert_eq!(s.drain(&q).await, ["beside"], "{key}");
        let found = s.find(&running).await.map(|job| job.body);
        assert_eq!(found, Some("runs".into()), "{key}: it still runs");
        assert_eq!(s.view(&running).await.key, None, "{key}: without its key");
    }
}

/// Guards against a namespace that fills the pool.
pub async fn schedules_are_bounded(s: &dyn Stage) {
    let bounds = ScheduleBounds { of_namespace: 2, of_pool: 3 };
    let bounded = || SchedulePut { bounds, ..new(Some(FAR)) };
    let (version, _) = s.stepped(&schedule("a"), None, bounded()).await;
    s.stepped(&schedule("b"), None, bounded()).await;
    assert_eq!(s.step(&schedule("c"), None, bounded()).await, Stepped::TooMany, "two of the namespace");
    s.stepped(&schedule_in("ns2", "a"), None, bounded()).await;
    assert_eq!(
        s.step(&schedule_in("ns2", "b"), None, bounded()).await,
        Stepped::TooMany,
        "three of the pool"
    );
    assert_eq!(s.schedule(&schedule_in("ns2", "b")).await, None, "nothing was stored");
    let (version, _) = s.stepped(&schedule("a"), Some(version), bounded()).await;
    s.delete_schedule(&schedule("a"), Some(version)).await;
    s.stepped(&schedule("c"), None, bounded()).await;
    let none = ScheduleBounds { of_namespace: 0, ..bounds };
    assert_eq!(
        s.step(&schedule("d"), None, SchedulePut { bounds: none, ..new(None) }).await,
        Stepped::TooMany
    );
}

/// Guards against a schedule that continues after it was deleted.
pub async fn a_deleted_schedule_places_nothing_and_its_jobs_stay(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let (version, _) = s.stepped(&id, None, with(new(Some(PAST)), job(&q, "1"), s)).await;
    assert_eq!(s.due_names(9).await, ["s"]);
    assert_eq!(s.delete_schedule(&id, Some(version)).await, Stepped::Done { version, landed: None });
    assert_eq!(s.due(9).await.schedules, [], "nothing is due");
    let late = s.step(&id, Some(version), with(put(None), job(&q, "2"), s)).await;
    assert_eq!(late, Stepped::Stale, "a server that did not know");
    assert_eq!(s.delete_schedule(&id, Some(version)).await, Stepped::Stale);
    assert_eq!(s.drain(&q).await, ["1"], "its jobs stay");
    assert_eq!(s.due(9).await.counts, [0; 5], "none is left to count");
}

/// Guards against an answer that grows with the number of schedules.
pub async fn many_that_are_due_at_once_are_all_placed(s: &dyn Stage) {
    let q = queue("q");
    const MANY: usize = 300;
    let all = (0..MANY).map(|n| {
        let (engine, id) = (s.engine(), schedule(&format!("s{n}")));
        let then = ScheduleThen::Put(Box::new(new(Some(PAST))));
        tokio::spawn(async move { engine.step_schedule(ScheduleStep { id, expected: None, then }).await })
    });
    for one in all.collect::<Vec<_>>() {
        ok("step_schedule", one.await.expect("no panic"));
    }
    let (mut placed, mut looks) = (0, 0);
    loop {
        let due = s.due(64).await;
        assert!(due.schedules.len() <= 64, "{} were answered", due.schedules.len());
        if due.schedules.is_empty() {
            break;
        }
        looks += 1;
        let steps = due.schedules.into_iter().map(|of| {
            let step = with(put(Some(FAR)), job(&q, of.id.name.as_str()), s);
            let then = ScheduleThen::Put(Box::new(step));
            let engine = s.engine();
            tokio::spawn(async move {
                engine.step_schedule(ScheduleStep { id: of.id, expected: Some(of.version), then }).await
            })
        });
        for step in steps.collect::<Vec<_>>() {
            let done = ok("step_schedule", step.await.expect("no panic"));
            assert!(matches!(done, Stepped::Done { .. }), "{done:?}");
            placed += 1;
        }
    }
    assert_eq!(placed, MANY, "in {looks} looks");
    let jobs: BTreeSet<String> = s.drain(&q).await.into_iter().collect();
    assert_eq!(jobs.len(), MANY, "a job of each");
}

/// Guards against a consumer that waits beside a job.
pub async fn a_placed_job_notifies(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let notified = Notified::attach(&*s.engine(), std::slice::from_ref(&q));
    s.stepped(&id, None, with(new(None), job(&q, "1"), s)).await;
    assert!(notified.next().await.contains(&q), "its consumers are notified");
}

/// Guards against counts that drift from the actual numbers.
pub async fn schedules_are_counted_by_state(s: &dyn Stage) {
    let in_state = |state| SchedulePut { state, ..new(Some(FAR)) };
    let mut versions = Vec::new();
    for (name, state) in [("a", ScheduleState::On), ("b", ScheduleState::On), ("c", ScheduleState::Paused)] {
        versions.push(s.stepped(&schedule(name), None, in_state(state)).await.0);
    }
    assert_eq!(s.due(1).await.counts, [2, 1, 0, 0, 0]);
    s.stepped(&schedule("a"), Some(versions[0]), in_state(ScheduleState::Ended)).await;
    s.stepped(&schedule("b"), Some(versions[1]), SchedulePut { state: ScheduleState::Broken, ..put(None) })
        .await;
    assert_eq!(s.due(1).await.counts, [0, 1, 1, 1, 0]);
    s.delete_schedule(&schedule("c"), Some(versions[2])).await;
    assert_eq!(s.due(1).await.counts, [0, 0, 1, 1, 0]);
}

/// Guards against a schedule that is left behind or duplicated when its jobs go to another queue.
pub async fn a_schedule_follows_its_queue(s: &dyn Stage) {
    let id = schedule("s");
    let mut version = s.stepped(&id, None, new(Some(PAST))).await.0;
    for n in 0..6 {
        let name = format!("q{n}");
        let moved = SchedulePut { setting: Some(setting(&name, "set")), ..put(Some(PAST)) };
        version = s.stepped(&id, Some(version), moved).await.0;
        assert_eq!(s.due_names(9).await, ["s"], "it is due once, of {name}");
        assert_eq!(s.schedule(&id).await.map(|of| (of.queue(), of.version)), Some((queue(&name), version)));
        let step = with(put(Some(PAST)), job(&queue(&name), &name), s);
        version = s.stepped(&id, Some(version), step).await.0;
        assert_eq!(s.drain(&queue(&name)).await, [&*name], "its job");
        assert_eq!(s.schedule_names("", 9).await, ["s"], "it is listed once");
        assert_eq!(s.due(9).await.counts[0], 1, "and counted once");
    }
    assert!(
        matches!(s.delete_schedule(&id, Some(version)).await, Stepped::Done { .. }),
        "it goes as a whole"
    );
    assert_eq!(s.due(9).await.schedules, [], "nothing is left behind");
}

/// Guards against half a step when a caller leaves.
pub async fn a_dropped_step_happened_or_did_not(s: &dyn Stage) {
    let (id, q) = (schedule("s"), queue("q"));
    let (mut version, _) = s.stepped(&id, None, new(Some(PAST))).await;
    let mut placed = 0;
    for n in 0..20_u64 {
        let put = with(put(Some(PAST)), job(&q, format!("{n}")), s);
        let step =
            ScheduleStep { id: id.clone(), expected: Some(version), then: ScheduleThen::Put(Box::new(put)) };
        let engine = s.engine();
        let call = tokio::spawn(async move { engine.step_schedule(step).await });
        tokio::time::sleep(std::time::Duration::from_micros(n * 40)).await;
        call.abort();
        let _ = call.await;
        // Behind it in the same line.
        let step = ScheduleStep { id: schedule("none"), expected: None, then: ScheduleThen::Delete };
        assert_eq!(ok("step_schedule", s.engine().step_schedule(step).await), Stepped::Stale);
        let now = s.schedule(&id).await.expect("it is there").version;
        placed += now.step - version.step;
        version = now;
    }
    assert_eq!(s.drain(&q).await.len() as u64, placed, "the number of jobs in the record");
}

/// Guards against a walk that leaves some out: since an answer has its bound, or since others move on meanwhile.
pub async fn a_walk_through_all_leaves_none_out(s: &dyn Stage) {
    const COUNT: usize = 150;
    let now = s.due(1).await.now;
    let id = |n: usize| schedule(&format!("s{n:03}"));
    for n in 0..COUNT {
        // Every fourth one has a body of 64 KiB, and every third one never comes.
        let body = Bytes::from(vec![b'x'; if n % 4 == 0 { 64 << 10 } else { 10 }]);
        let next = (n % 3 > 0).then_some(now + 60_000 + n as Millis);
        let setting = Some(ScheduleSetting { body, ..setting("q", "set") });
        s.stepped(&id(n), None, SchedulePut { setting, ..put(next) }).await;
    }
    let (mut from, mut seen, mut parts) = (None, BTreeSet::new(), 0);
    loop {
        let list = DueList::Ever { from, limit: 20 };
        let part = ok("due_schedules", s.engine().due_schedules(list).await);
        seen.extend(part.schedules.iter().map(|of| of.id.name.to_string()));
        // Some that it has not reached move far back, others to the front.
        for n in [parts * 7 % COUNT, parts * 11 % COUNT] {
            let version = s.schedule(&id(n)).await.map(|of| of.version);
            s.stepped(&id(n), version, put(Some(if n % 2 == 0 { FAR } else { PAST }))).await;
        }
        (from, parts) = (part.more, parts + 1);
        if from.is_none() {
            break;
        }
        assert!(parts < 100, "it ends");
    }
    let missing: Vec<usize> = (0..COUNT).filter(|n| !seen.contains(id(*n).name.as_str())).collect();
    assert_eq!(missing, [] as [usize; 0], "left out by {parts} parts");
}
