//! Laws of lists of jobs and queues, and of a job by its id.

use std::time::Duration;

use dormouse::engine::{Cursor, JobList, Release};
use dormouse::job::{Attributes, JobState, JobView, NewJob};
use dormouse::name::Queue;

use crate::stage::*;

/// Creates five jobs in this state, in list order, and a few in every other state.
async fn five(s: &dyn Stage, q: &Queue, state: JobState) -> Vec<NewJob> {
    let drafts = |count| (0..count).map(|i| job(q, i.to_string()).tries(2));
    let mut five = Vec::new();
    for of in [JobState::Running, JobState::Dead, JobState::Delayed, JobState::Ready] {
        let count = if of == state { 5 } else { 2 };
        let jobs = match of {
            JobState::Dead => s.kill(q, drafts(count).map(|draft| draft.tries(1))).await,
            JobState::Delayed => {
                let later = drafts(count).enumerate().map(|(i, draft)| draft.delay(LONG * (5 - i as u32)));
                let mut jobs = s.put_all(later).await;
                jobs.reverse();
                jobs
            }
            JobState::Ready => s.put_all(drafts(count)).await,
            JobState::Running => {
                let jobs = s.put_all(drafts(count)).await;
                for _ in &jobs {
                    s.take_one(q, LONG).await;
                }
                jobs
            }
        };
        if of == state {
            five = jobs;
        }
    }
    five
}

fn ids_of(views: &[JobView]) -> Vec<dormouse::job::JobId> {
    views.iter().map(|view| view.id).collect()
}

/// Guards against a list that omits jobs, or includes jobs of another queue or state.
pub async fn jobs_are_listed_in_the_order_in_which_they_come(s: &dyn Stage) {
    for state in JobState::ALL {
        let q = queue(state.as_str());
        assert_eq!(s.list(&q, state, 9).await, [], "an unknown queue has none");
        let expected = five(s, &q, state).await;
        let beside = queue(&format!("{}-", state.as_str()));
        five(s, &beside, state).await;
        for limit in [1, 2, 5, 100] {
            let listed = s.list(&q, state, limit).await;
            assert_eq!(ids_of(&listed), ids(&expected), "{state:?} by {limit}");
            assert!(listed.iter().all(|view| view.state == Some(state)), "all of them {state:?}");
        }
    }
}

/// Guards against a list that skips or repeats jobs of a busy queue.
pub async fn jobs_are_listed_once_while_others_come_and_go(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((0..5).map(|i| job(&q, format!("early {i}")).tries(2))).await;
    let stay = s.put_all((0..10).map(|i| job(&q, format!("stay {i}")))).await;
    let mut seen = Vec::new();
    let mut cursor = None;
    for step in 0..100 {
        let list = JobList { state: JobState::Ready, limit: 2, cursor, bodies: false };
        let page = s.page(&q, list).await;
        seen.extend(ids_of(&page.jobs));
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
        if step < 4 {
            // Removes the first and appends one. Some return to the head.
            let held = s.take_one(&q, LONG).await;
            if step % 2 == 0 {
                let released = s.release(&held, held.proof(), Release::default()).await;
                assert!(matches!(released, dormouse::engine::Held::Done(_)), "it is held: {released:?}");
            }
            s.put(job(&q, format!("late {step}"))).await;
        }
    }
    assert_eq!(cursor, None, "the list ends");
    let stayed: Vec<_> = seen.iter().filter(|id| stay.iter().any(|job| job.id == **id)).copied().collect();
    assert_eq!(stayed, ids(&stay), "each permanent job once, in order");
}

/// Guards against fields of another job, and against bodies that were not requested.
pub async fn a_list_shows_what_is_known_of_a_job(s: &dyn Stage) {
    let q = queue("q");
    let draft = job(&q, "body").ttl(LONG * 2).delay(LONG).tries(7).attributes(&[("a", "b")]).versioned();
    let placed = s.place(draft.key("k")).await;
    for bodies in [false, true] {
        let list = JobList { state: JobState::Delayed, limit: 9, cursor: None, bodies };
        let page = s.page(&q, list).await;
        assert_eq!((page.jobs.len(), page.cursor), (1, None));
        let view = &page.jobs[0];
        assert_eq!((view.id, view.due_at, view.tries_left), (placed.id, placed.due_at, Some(7)));
        assert_eq!((view.key.clone(), view.reason.clone(), view.size), (Some(job_key("k")), None, 4));
        assert!(view.ttl.is_some_and(|ttl| ttl > LONG && ttl <= LONG * 2), "{view:?}");
        let attributes =
            if bodies { Attributes::from([("a".into(), "b".into())]) } else { Attributes::new() };
        let body = bodies.then(|| "body".into());
        assert_eq!((&view.body, &view.attributes), (&body, &attributes), "bodies: {bodies}");
    }
}

/// Guards against listing deleted jobs.
pub async fn what_is_gone_is_not_listed(s: &dyn Stage) {
    let q = queue("q");
    for state in JobState::ALL {
        for new in five(s, &q, state).await.iter().skip(1) {
            s.ack(new).await;
        }
        for other in JobState::ALL {
            let expected = if other == state { 1 } else { 2 };
            assert_eq!(s.list(&q, other, 2).await.len(), expected, "{other:?}, four {state:?} were acked");
        }
        for other in JobState::ALL {
            for view in s.list(&q, other, 100).await {
                s.ack(&dormouse::job::JobRef { queue: q.clone(), id: view.id }).await;
            }
        }
    }
    s.put(job(&q, "expires").ttl(SHORT)).await;
    s.put(job(&q, "stays")).await;
    s.advance(SHORT + Duration::from_millis(1)).await;
    let left = s.list(&q, JobState::Ready, 9).await;
    assert_eq!((left.len(), left[0].size), (1, 5), "one has expired: {left:?}");
}

/// Guards against one call that reads a whole pool, and against a list that cannot be continued.
pub async fn a_page_is_bounded(s: &dyn Stage) {
    let q = queue("q");
    let gone = s.put_all((0..2000).map(|i| job(&q, i.to_string()))).await;
    let stay = s.put_all((0..150).map(|i| job(&q, i.to_string()))).await;
    for new in &gone {
        s.ack(new).await;
    }
    let list = JobList { state: JobState::Ready, limit: 100, cursor: None, bodies: true };
    let page = s.page(&q, list).await;
    assert!(page.scanned <= 20_000, "a bounded piece of work: {}", page.scanned);
    assert_eq!(ids_of(&s.list(&q, JobState::Ready, 100).await), ids(&stay), "and all come in the end");
}

/// Guards against a cursor that continues another list.
pub async fn a_cursor_of_another_list_is_none(s: &dyn Stage) {
    let q = queue("q");
    for state in JobState::ALL {
        five(s, &q, state).await;
    }
    let page = async |state, cursor| {
        let list = JobList { state, limit: 1, cursor, bodies: false };
        ok("list_jobs", s.engine().list_jobs(&q, list).await)
    };
    for state in JobState::ALL {
        let cursor = page(state, None).await.and_then(|page| page.cursor).expect("there are more");
        assert!(cursor.0.len() <= 600 && !cursor.0.is_empty(), "{cursor:?}");
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
        assert!(cursor.0.chars().all(safe), "URL-safe: {cursor:?}");
        for other in JobState::ALL {
            let fits = page(other, Some(cursor.clone())).await.is_some();
            assert_eq!(fits, other == state, "a cursor of {state:?} in a list of {other:?}: {cursor:?}");
        }
        for bad in ["", "x", "é", "r+1", &"9".repeat(600)] {
            assert_eq!(page(state, Some(Cursor(bad.to_owned()))).await, None, "{bad:?}");
        }
    }
}

/// Guards against a wrong state and a missing body.
pub async fn inspect_shows_every_state(s: &dyn Stage) {
    for (name, new) in s.one_in_each_state().await {
        let view = s.view(&new).await;
        let (state, tries) = match name {
            "delayed" => (JobState::Delayed, 2),
            "ready" => (JobState::Ready, 2),
            "running" => (JobState::Running, 1),
            "running-last" => (JobState::Running, 0),
            _ => (JobState::Dead, 0),
        };
        assert_eq!((view.state, view.tries_left), (Some(state), Some(tries)), "{name}");
        assert_eq!((view.body.as_deref(), view.size), (Some(name.as_bytes()), name.len() as u64), "{name}");
        assert_eq!(view.ttl.is_none(), state == JobState::Dead, "{name}: {:?}", view.ttl);
        if matches!(state, JobState::Delayed | JobState::Running) {
            let due = view.due_at.unwrap_or(0);
            let expected = s.engine().now() + ms(LONG);
            assert!(due.abs_diff(expected) < 30_000, "{name}: due at {due}, about {expected}");
        }
        assert_eq!(view, s.view(&new).await.clone_times(&view), "{name}: looking changes nothing");
    }
    assert_eq!(s.inspect(&job(&queue("ready"), "unknown").make(s)).await, None);
}

/// Takes the times, which change, from another view.
trait CloneTimes {
    fn clone_times(self, of: &JobView) -> JobView;
}

impl CloneTimes for JobView {
    fn clone_times(self, of: &JobView) -> JobView {
        JobView { ttl: of.ttl, elapsed: of.elapsed, ..self }
    }
}

/// Guards against missing queues and statistics of another queue.
pub async fn queues_are_listed_with_their_figures(s: &dyn Stage) {
    assert_eq!(s.queue_views(&queue("q"), 2).await, [], "nothing was published");
    let (a, b, empty) = (queue("a"), queue("b"), queue("empty"));
    five(s, &a, JobState::Ready).await;
    five(s, &b, JobState::Dead).await;
    s.ack(&s.put(job(&empty, "x")).await).await;
    s.put(job(&queue_in("n", "a"), "x")).await;
    s.put(job(&queue_in("nss", "a"), "x")).await;
    s.advance(LIFE).await;
    for limit in [1, 2, 100] {
        let views = s.queue_views(&a, limit).await;
        let mut names: Vec<_> = views.iter().map(|view| view.queue.clone()).collect();
        names.sort_unstable();
        assert_eq!(names, [a.clone(), b.clone(), empty.clone()], "each once, by {limit}");
        let of = |q: &Queue| views.iter().find(|view| view.queue == *q).expect("it is listed");
        for (q, ready, dead) in [(&a, 5, 2), (&b, 2, 5)] {
            let view = of(q);
            assert_eq!(view.dead, Some(dead), "dead of {q}");
            assert!(view.ready.is_none_or(|count| count == ready), "ready of {q}: {view:?}");
            assert_eq!((view.delayed, view.running), (Some(2), Some(2)), "timers of {q}: {view:?}");
            if let Some(age) = view.oldest_ready_age {
                assert!(
                    age + s.differences().slack >= LIFE,
                    "{q} has a job that is ready for a second: {age:?}"
                );
                assert!(age < LIFE + Duration::from_secs(30), "and not for {age:?}");
            }
        }
        assert_eq!(of(&empty).oldest_ready_age, None, "nothing is ready");
    }
}

/// Guards against stores that list in different orders: a merged list of two stores would omit queues.
pub async fn queues_are_listed_by_name(s: &dyn Stage) {
    let names = ["B", "a", "aB", "aa", "aaa", "b", "ba", "z-1", "z-10", "z-2"].map(queue);
    for q in names.iter().rev() {
        s.put(job(q, "x")).await;
    }
    for limit in [1, 3, 100] {
        let listed: Vec<_> =
            s.queue_views(&names[0], limit).await.into_iter().map(|view| view.queue).collect();
        assert_eq!(listed, names, "by {limit}");
    }
}
