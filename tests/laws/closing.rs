//! The end of a store, for the verbs that lmstfy does not have.

use std::num::NonZeroU16;
use std::time::Duration;

use dormouse::engine::{By, JobList, Listing, Once, Publication, Release, Revival};
use dormouse::error::{Error, Result};
use dormouse::job::JobState;
use dormouse::name::IdempotencyKey;

use crate::stage::*;
use crate::support::engine_ext::EngineExt;

fn closed<T: std::fmt::Debug>(what: &str, answer: Result<T>) {
    assert!(matches!(answer, Err(Error::Closed)), "{what} after close answered {answer:?}");
}

/// Guards against calls that hang, or that seem to work, while the server goes down.
pub async fn after_close_every_verb_says_closed(s: &dyn Stage) {
    let (q, engine) = (queue("q"), s.engine());
    s.put(job(&q, "job")).await;
    let held = s.take_one(&q, LONG).await;
    let (name, receipt, key) = (held.name(), held.proof(), job_key("k"));
    engine.close().await;
    let jobs = vec![job(&q, "new").key("k").placing(s)];
    let publication = Publication { jobs, replaces: None, once: None };
    closed("publish", engine.publish(publication).await);
    let once = Once::request(IdempotencyKey::new(b"once").expect("short"), [1; 16]);
    closed("recall", engine.recall(&q, &once).await);
    closed("inspect_by_key", engine.inspect_by_key(&q, &key).await);
    closed("cancel_key", engine.cancel_key(&q, &key).await);
    closed("ack", engine.ack(&q, &[(held.id, Some(receipt))]).await);
    closed("touch", engine.touch(&name, receipt, LONG).await);
    closed("release", engine.release(&name, receipt, Release::default()).await);
    closed("inspect", engine.inspect_job(&name).await);
    closed("promote", engine.promote(&q, By::Id(held.id)).await);
    closed("destroy", engine.destroy(&q, Listing::Delete).await);
    closed("promote by key", engine.promote(&q, By::Key(&key)).await);
    let list = JobList { state: JobState::Ready, limit: 1, cursor: None, bodies: false };
    closed("list_jobs", engine.list_jobs(&q, list).await);
    let revival = Revival { tries: NonZeroU16::MIN, delay: Duration::ZERO, ttl: None };
    closed("respawn_jobs", engine.respawn_jobs(&q, &[held.id], revival).await);
    closed("list_queues", engine.list_queues(&q.namespace, None, 1).await);
}
