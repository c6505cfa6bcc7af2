//! Laws of the store as a whole: its health, its figures, its end.

use dormouse::error::{Error, Result};

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

/// Guards against a health check that fails while all is well, or that leaves something behind.
pub async fn check_is_fine(s: &dyn Stage) {
    for _ in 0..3 {
        ok("check", s.engine().check().await);
    }
    assert_eq!(ok("queues", s.engine().queues().await), [], "a check publishes nothing");
    assert_eq!(ok("stats", s.engine().stats().await).timers, 0, "a check arms nothing");
}

/// Guards against gauges that show something else than they say.
pub async fn stats_count_timers_ready_and_dead(s: &dyn Stage) {
    assert_eq!(ok("stats", s.engine().stats().await).timers, 0, "an empty store");
    let (a, b) = (queue_in("a", "q"), queue_in("b", "q"));
    s.kill(&a, ["1", "2"].map(|body| job(&a, body))).await;
    s.put_all((0..5).map(|i| job(&a, i.to_string()))).await;
    s.take(&a, 2, LONG).await;
    s.put(job(&b, "delayed").delay(LONG)).await;
    let stats = ok("stats", s.engine().stats().await);
    assert_eq!(stats.timers, 3, "two run and one is delayed");
    for (q, expected) in [(&a, (3, 2)), (&b, (0, 0))] {
        let of: Vec<_> = stats.queues.iter().filter(|size| size.queue == *q).collect();
        assert_eq!(of.len(), 1, "{q} is listed once: {:?}", stats.queues);
        assert_eq!((of[0].ready, of[0].dead), expected, "ready and dead of {q}");
    }
}

fn closed<T: std::fmt::Debug>(what: &str, answer: Result<T>) {
    assert!(matches!(answer, Err(Error::Closed)), "{what} after close answered {answer:?}");
}

/// Guards against calls that hang, or that seem to work, while the server goes down.
pub async fn after_close_every_call_says_closed(s: &dyn Stage) {
    let (q, engine) = (queue("q"), s.engine());
    let stored = s.put(job(&q, "job")).await;
    let taken = s.take(&q, 1, LONG).await;
    engine.close().await;
    closed("publish", engine.publish(vec![job(&q, "new").make(s)].into()).await);
    closed("republish", engine.republish(stored.name(), job(&q, "new").make(s)).await);
    closed("consume", consume(&*engine, &q.clone().into(), &[LONG]).await);
    closed("give_back", engine.give_back(taken).await);
    closed("ack", engine.ack_job(stored.name()).await);
    closed("peek", engine.peek(&q).await);
    closed("inspect_stored", engine.inspect_stored(&stored.name()).await);
    closed("size", engine.ready(&q).await);
    closed("destroy", engine.destroy(&q).await);
    closed("dead_letter", engine.dead_letter(&q).await);
    closed("respawn", engine.respawn_oldest(&q, 1, None).await);
    closed("delete_dead", engine.delete_dead(&q, 1).await);
    closed("pump", engine.pump().await);
    closed("stats", engine.stats().await);
    closed("check", engine.check().await);
}

/// Guards against a second signal that hangs or panics, and against calls cut off without an answer.
pub async fn close_twice_is_fine(s: &dyn Stage) {
    let q = queue("q");
    let mut calls = Vec::new();
    for i in 0..20 {
        let (engine, new) = (s.engine(), job(&q, i.to_string()).make(s));
        calls.push(tokio::spawn(async move { engine.publish(vec![new].into()).await }));
    }
    s.engine().close().await;
    s.engine().close().await;
    for call in calls {
        let answer = call.await.expect("publish does not panic");
        assert!(matches!(answer, Ok(_) | Err(Error::Closed)), "a call during close answered {answer:?}");
    }
}
