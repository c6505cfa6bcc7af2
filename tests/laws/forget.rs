//! Laws of forgetting a queue: deleting its name and its jobs.

use std::time::Duration;

use dormouse::engine::Listing;
use dormouse::engine::forget::forget;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

async fn is_listed(s: &dyn Stage, q: &dormouse::name::Queue) -> (bool, bool) {
    let counted = ok("queues", s.engine().queues().await).contains(q);
    (s.queue_view(q).await.is_some(), counted)
}

/// Guards against a name that remains in lists and metrics, and against jobs left behind where no list shows them.
pub async fn a_forgotten_queue_is_in_no_list(s: &dyn Stage) {
    let (q, other) = (queue("q"), queue("other"));
    s.put(job(&other, "stays")).await;
    let mut all = s.kill(&q, (0..3).map(|n| job(&q, format!("dead {n}")))).await;
    // More than a page of them.
    all.extend(s.put_all((0..150).map(|n| job(&q, format!("later {n}")).delay(LONG))).await);
    all.extend(s.put_all((0..3).map(|n| job(&q, n.to_string()))).await);
    s.place(job(&q, "keyed").delay(LONG).key("k")).await;
    assert_eq!(is_listed(s, &q).await, (true, true), "it is listed before");
    ok("forget", forget(&*s.engine(), &q).await);
    assert_eq!(is_listed(s, &q).await, (false, false), "in the list of queues, in the statistics");
    assert_eq!(is_listed(s, &other).await, (true, true), "the other one stays");
    for new in &all {
        assert_eq!(s.find(new).await, None, "{new:?}");
    }
    assert_eq!(s.holder(&q, "k").await, None, "its key is free");
    ok("forget it twice", forget(&*s.engine(), &q).await);
    ok("forget an unknown one", forget(&*s.engine(), &queue("unknown")).await);
    s.put(job(&q, "new")).await;
    assert_eq!(is_listed(s, &q).await, (true, true), "a publish brings it back");
    assert_eq!(s.drain(&q).await, ["new"]);
    assert_eq!(s.drain(&other).await, ["stays"]);
}

/// Guards against taking a job from its worker, and losing it.
pub async fn running_jobs_outlive_their_queue(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["acked", "back"].map(|body| job(&q, body).tries(2))).await;
    let held = s.take(&q, 1, LONG).await;
    s.take(&q, 1, LIFE).await;
    ok("forget", forget(&*s.engine(), &q).await);
    assert_eq!(is_listed(s, &q).await, (false, false), "its name goes at once");
    assert!(s.touch(&held[0], held[0].proof(), LONG * 2).await.is_done(), "its holder works on");
    assert_eq!(is_listed(s, &q).await, (false, false), "and that does not bring the name back");
    let receipt = s.receipt(&held[0], held[0].tries_left).await.expect("it runs");
    assert!(s.ack_held(&held[0], receipt).await, "and is done");
    s.pass(LIFE + Duration::from_millis(1)).await;
    assert_eq!(s.drain(&q).await, ["back"], "the other one comes back");
}

/// Whether a call was done.
trait IsDone {
    fn is_done(&self) -> bool;
}

impl<T> IsDone for dormouse::engine::Held<T> {
    fn is_done(&self) -> bool {
        matches!(self, dormouse::engine::Held::Done(_))
    }
}

/// Guards against deleting the name of a queue with jobs, which would then appear in no list, and against deleting it
/// with every destroy.
pub async fn the_name_of_a_queue_in_use_stays(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "ready")).await;
    ok("destroy", s.engine().destroy(&q, Listing::Keep).await);
    assert_eq!(is_listed(s, &q).await, (true, true), "only its jobs are deleted");
    s.kill(&q, [job(&q, "dead")]).await;
    ok("destroy", s.engine().destroy(&q, Listing::Delete).await);
    assert_eq!(is_listed(s, &q).await, (true, true), "it has a dead job");
    ok("delete_dead", s.engine().delete_dead(&q, 1).await);
    ok("destroy", s.engine().destroy(&q, Listing::Delete).await);
    assert_eq!(is_listed(s, &q).await, (false, false), "it has no job");
}
