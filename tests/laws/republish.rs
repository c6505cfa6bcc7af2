//! Laws of republish: the old job is replaced by the new one, in one step.

use std::time::Duration;

use dormouse::engine::{Publication, Published};
use dormouse::error::Error;
use dormouse::job::NewJob;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

async fn republish(s: &dyn Stage, old: &NewJob, draft: Draft) -> NewJob {
    let mut new = draft.make(s);
    let publication = Publication { replaces: Some(old.name()), ..vec![new.clone()].into() };
    let published = ok("republish", s.engine().publish(publication).await);
    let Published::Done(placed) = published else { panic!("a republish answers {published:?}") };
    // In the partition of the old job it may have been given another id.
    new.id = placed[0].id;
    new
}

/// Guards against keeping the old job along with the new one.
pub async fn republish_replaces_a_job_in_every_state(s: &dyn Stage) {
    for (state, old) in s.one_in_each_state().await {
        let q = old.queue.clone();
        let new = republish(s, &old, job(&q, "new")).await;
        assert_eq!(s.find(&old).await, None, "the old job, {state} before");
        assert_eq!(s.find(&new).await.map(|j| j.body), Some(new.body), "the new job");
        assert_eq!(s.drain(&q).await, ["new"], "one job in place of one that was {state}");
    }
}

/// Guards against losing work when the old job is already deleted.
pub async fn republish_of_an_unknown_job_publishes(s: &dyn Stage) {
    let q = queue("q");
    let unknown = job(&q, "unknown").make(s);
    republish(s, &unknown, job(&q, "new")).await;
    assert_eq!(s.drain(&q).await, ["new"], "the new job exists anyway");
}

/// Guards against a republish that ignores the delay: a worker uses it to postpone work.
pub async fn republish_can_delay(s: &dyn Stage) {
    let q = queue("q");
    let old = s.put(job(&q, "old").tries(2)).await;
    s.take_one(&q, SHORT).await;
    let new = republish(s, &old, job(&q, "new").delay(SHORT * 2)).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "the new job is delayed");
    assert!(s.find(&new).await.is_some(), "and stored");
    s.pass(SHORT * 2).await;
    assert_eq!(s.drain(&q).await, ["new"], "the new one is due, the old one's ttr brings nothing back");
}

/// Guards against losing the old job although nothing replaced it.
pub async fn republish_with_a_taken_id_changes_nothing(s: &dyn Stage) {
    let q = queue("q");
    let [old, taken] = ["old", "taken"].map(|body| job(&q, body));
    let (old, taken) = (s.put(old).await, s.put(taken).await);
    let new = NewJob { id: taken.id, ..job(&q, "new").make(s) };
    let answer = s.engine().republish(old.name(), new).await;
    assert!(matches!(answer, Err(Error::Refused(_))), "the id is stored already: {answer:?}");
    assert_eq!(s.drain(&q).await, ["old", "taken"], "both jobs are as they were");
}

/// Guards against a new job that inherits tries or ttl.
pub async fn a_republished_job_has_its_own_tries_and_ttl(s: &dyn Stage) {
    let q = queue("q");
    let old = s.put(job(&q, "old").ttl(LONG).tries(2)).await;
    s.take_one(&q, LONG).await;
    s.advance(Duration::from_millis(20)).await;
    republish(s, &old, job(&q, "new").ttl(LONG * 5).tries(7).versioned().attributes(&[("a", "b")])).await;
    let new = s.take_one(&q, LONG).await;
    assert_eq!(new.tries_left, 6, "seven tries, one in use");
    assert!(new.ttl > Some(LONG * 4), "its own ttl: {:?}", new.ttl);
    assert_eq!(new.attributes.get("a").map(String::as_str), Some("b"), "its own attributes");
    republish(s, &old, job(&q, "forever")).await;
    assert_eq!(s.take_one(&q, LONG).await.ttl, None, "no ttl was given");
}
