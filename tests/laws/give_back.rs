//! Laws of give_back: a disconnected consumer costs nothing, and a late return has no effect.

use std::time::Duration;

use crate::stage::*;

/// Guards against a job that loses its place or a try because its consumer disconnected.
pub async fn given_back_jobs_are_at_the_head_in_order_with_their_tries(s: &dyn Stage) {
    let q = queue("q");
    s.put_all((1..=4).map(|i| job(&q, i.to_string()).tries(i))).await;
    let jobs = s.take(&q, 3, LONG).await;
    s.give_back(&jobs).await;
    assert_eq!(s.peek(&q).await.map(|j| j.id), Some(jobs[0].id), "the first is the head again");
    let again = s.take(&q, 9, LONG).await;
    assert_eq!(bodies(&again), ["1", "2", "3", "4"], "as before the consume");
    let tries: Vec<_> = again.iter().map(|j| j.tries_left).collect();
    assert_eq!(tries, [0, 1, 2, 3], "each with the tries it had");
}

/// Guards against a job that dies because its only delivery never reached its consumer.
pub async fn a_job_on_its_last_try_is_given_back_alive(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job")).await;
    for _ in 0..5 {
        let jobs = s.take(&q, 1, LIFE).await;
        assert_eq!(jobs.iter().map(|j| j.tries_left).collect::<Vec<_>>(), [0], "it has one try, every time");
        s.give_back(&jobs).await;
    }
    s.pass(LIFE).await;
    assert_eq!((s.dead(&q).await, s.drain(&q).await), (0, vec!["job".to_string()]), "ready, not dead");
}

/// Guards against the timer of an ended delivery, which would duplicate the job.
pub async fn a_given_back_job_does_not_come_back_again_after_ttr(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["1", "2"].map(|body| job(&q, body).tries(5))).await;
    let jobs = s.take(&q, 2, LIFE).await;
    s.give_back(&jobs).await;
    s.pass(LIFE).await;
    assert_eq!(s.drain(&q).await, ["1", "2"], "each once, in order");
    let jobs = s.take(&q, 2, LONG).await;
    assert_eq!(jobs, [], "nothing is left");
}

/// Guards against redoing acked work.
pub async fn give_back_of_an_acked_job_does_nothing(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["1", "2"].map(|body| job(&q, body))).await;
    let jobs = s.take(&q, 2, LONG).await;
    s.ack(&jobs[0]).await;
    s.give_back(&jobs).await;
    assert_eq!(s.find(&jobs[0]).await, None, "it was acked");
    assert_eq!(s.drain(&q).await, ["2"], "only the other is given back");
}

/// Guards against a second copy, or an extra try, of a job that has already returned because its ttr ended.
pub async fn give_back_after_ttr_ended_does_nothing(s: &dyn Stage) {
    let q = queue("q");
    s.put_all([job(&q, "again").tries(2), job(&q, "dead")]).await;
    let jobs = s.take(&q, 2, SHORT).await;
    s.pass(SHORT).await;
    s.give_back(&jobs).await;
    assert_eq!(s.dead(&q).await, 1, "the dead one stays dead");
    let ready = s.take(&q, 9, SHORT).await;
    assert_eq!(bodies(&ready), ["again"], "once");
    assert_eq!(ready[0].tries_left, 0, "its second and last try");
    s.give_back(&jobs).await;
    s.pass(SHORT).await;
    assert_eq!(s.take(&q, 9, LONG).await, [], "no third try");
    assert_eq!(s.dead(&q).await, 2, "both are dead");
}

/// Guards against a job that a repeated call duplicates.
pub async fn giving_back_twice_does_nothing_more(s: &dyn Stage) {
    let q = queue("q");
    s.put_all(["1", "2"].map(|body| job(&q, body).tries(3))).await;
    let first = s.take(&q, 1, LONG).await;
    s.give_back(&first).await;
    s.give_back(&first).await;
    let twice = s.take(&q, 9, LONG).await;
    assert_eq!(bodies(&twice), ["1", "2"], "each once");
    assert_eq!(twice[0].tries_left, 2, "three tries, one in use");
}

/// Guards against a late return that takes a job from its current consumer. Both deliveries may fall into one
/// millisecond and have the same ttr.
pub async fn an_old_receipt_does_not_take_the_job_from_its_new_consumer(s: &dyn Stage) {
    let q = queue("q");
    s.put(job(&q, "job").tries(3)).await;
    let first = s.take(&q, 1, LONG).await;
    s.give_back(&first).await;
    let second = s.take(&q, 1, LONG).await;
    assert_eq!(second.len(), 1, "it was given back");
    s.give_back(&first).await;
    assert_eq!(s.take(&q, 1, LONG).await, [], "the second consumer runs it");
    s.give_back(&second).await;
    assert_eq!(s.take_one(&q, LONG).await.tries_left, 2, "the second give-back was the right one");
}

/// Guards against returning only whole batches, or jobs of one queue only.
pub async fn a_part_of_a_hand_over_can_be_given_back(s: &dyn Stage) {
    for name in ["a", "b"] {
        s.put_all([1, 2, 3].map(|i| job(&queue(name), format!("{name}{i}")).tries(2))).await;
    }
    let jobs = s.take_from(&queue_list(&["a", "b"]), &[LONG; 5]).await;
    s.give_back(&[jobs[1].clone(), jobs[2].clone(), jobs[4].clone()]).await;
    assert_eq!(s.drain(&queue("a")).await, ["a2", "a3"], "a1 still runs");
    assert_eq!(s.drain(&queue("b")).await, ["b2", "b3"], "b1 still runs, b3 was never taken");
}

/// Guards against a job that lives forever once it was returned.
pub async fn given_back_jobs_keep_their_ttl(s: &dyn Stage) {
    let q = queue("q");
    let new = s.put(job(&q, "job").ttl(s.life())).await;
    let jobs = s.take(&q, 1, LONG).await;
    s.give_back(&jobs).await;
    let ttl = s.find(&new).await.and_then(|j| j.ttl);
    assert!(ttl.is_some_and(|ttl| ttl <= s.life()), "its ttl continues: {ttl:?}");
    s.pass(s.life() + Duration::from_millis(1)).await;
    assert_eq!(s.take(&q, 1, LONG).await, [], "and ends");
}
