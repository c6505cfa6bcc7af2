//! Laws of names: data stored under one name cannot be reached by another.

use std::collections::BTreeSet;

use dormouse::engine::Listing;
use dormouse::job::NewJob;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// Guards against keys without the namespace.
pub async fn the_same_queue_name_in_two_namespaces_does_not_mix(s: &dyn Stage) {
    let (a, b) = (queue_in("a", "q"), queue_in("b", "q"));
    s.put(job(&a, "in a")).await;
    s.kill(&b, [job(&b, "dead in b")]).await;
    s.put(job(&b, "in b").delay(SHORT)).await;
    ok("destroy", s.engine().destroy(&b, Listing::Keep).await);
    s.pass(SHORT).await;
    assert_eq!((s.size(&a).await, s.dead(&a).await), (1, 0), "ready and dead in a");
    assert_eq!((s.size(&b).await, s.dead(&b).await), (1, 1), "ready and dead in b");
    assert_eq!(s.drain(&a).await, ["in a"], "namespace a");
    assert_eq!(s.drain(&b).await, ["in b"], "namespace b");
}

/// Guards against keys that join names without a separator or length, and against scans by prefix.
pub async fn names_that_read_alike_do_not_mix(s: &dyn Stage) {
    let names = [
        ("a", "b-c"),
        ("a-b", "c"),
        ("a_b", "c"),
        ("a", "b"),
        ("a", "bb"),
        ("a", "b-"),
        ("A", "b"),
        ("ab", "b"),
    ];
    let queues = names.map(|(namespace, name)| queue_in(namespace, name));
    for q in &queues {
        s.kill(q, [job(q, format!("dead {q}"))]).await;
    }
    for q in &queues {
        s.put_all([job(q, format!("ready {q}")), job(q, format!("sleeps {q}")).delay(SHORT)]).await;
    }
    s.pass(SHORT).await;
    for q in &queues {
        let dead = ok("delete_dead", s.engine().delete_dead(q, 9).await);
        assert_eq!(dead, 1, "dead in {q}");
        assert_eq!(s.drain(q).await, [format!("ready {q}"), format!("sleeps {q}")], "{q} has its own");
    }
}

/// Guards against a name's length that does not fit its field.
pub async fn the_longest_names_work(s: &dyn Stage) {
    let (long, other) = ("n".repeat(255), format!("{}x", "n".repeat(254)));
    let (a, b) = (queue_in(&long, &long), queue_in(&long, &other));
    s.put(job(&a, "a").tries(2)).await;
    s.put(job(&b, "b").delay(SHORT)).await;
    s.take_one(&a, SHORT).await;
    s.pass(SHORT).await;
    assert_eq!(s.drain(&a).await, ["a"], "came back to the queue it is from");
    assert_eq!(s.drain(&b).await, ["b"], "became ready in its queue");
}

/// Guards against finding a job by its id alone.
pub async fn one_id_in_two_queues_is_two_jobs(s: &dyn Stage) {
    let (a, b) = (queue("a"), queue("b"));
    let first = s.put(job(&a, "in a").delay(SHORT)).await;
    let second = NewJob { id: first.id, ..job(&b, "in b").delay(SHORT).make(s) };
    ok("publish of the same id elsewhere", s.engine().publish(vec![second.clone()].into()).await);
    s.ack(&first).await;
    s.pass(SHORT).await;
    assert_eq!(s.drain(&a).await, [""; 0], "acked in a");
    assert_eq!(s.drain(&b).await, ["in b"], "not in b");
}

/// Guards against queues that an operator cannot find.
pub async fn queues_lists_what_was_published_to(s: &dyn Stage) {
    let listed = || async { ok("queues", s.engine().queues().await) };
    assert_eq!(listed().await, [], "nothing was published");
    s.take(&queue("only-consumed"), 1, LONG).await;
    s.put(job(&queue_in("b", "ready"), "1")).await;
    s.put(job(&queue_in("a", "delayed"), "2").delay(LONG)).await;
    let old = s.put(job(&queue_in("a", "old"), "3")).await;
    let new = job(&queue_in("a", "new"), "4").make(s);
    ok("republish", s.engine().republish(old.name(), new).await);
    s.put(job(&queue_in("a-b", "ready"), "5")).await;
    s.put(job(&queue_in("b", "ready"), "6")).await;
    let list = listed().await;
    let wanted: BTreeSet<_> = [("a", "delayed"), ("a", "new"), ("a-b", "ready"), ("b", "ready")]
        .map(|(n, q)| queue_in(n, q))
        .into();
    let list_set: BTreeSet<_> = list.iter().cloned().collect();
    assert!(list.is_sorted() && list_set.len() == list.len(), "sorted, each once: {list:?}");
    let empty = queue_in("a", "old"); // may be forgotten: its only job is gone
    let rest: BTreeSet<_> = list_set.into_iter().filter(|q| *q != empty).collect();
    assert_eq!(rest, wanted, "every queue with a job, and no other");
}
