//! Formats the library's results for the suite.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dormouse_client::{Error, Job, JobInfo, Published, QueueInfo, Released};
use jiff::Timestamp;
use serde_json::{Value, json};

pub fn error(error: &Error) -> Value {
    json!({
        "type": error.kind().as_str(),
        "status": error.status(),
        "message": error.message(),
        "retryable": error.is_retryable(),
        "retry_after": error.retry_after().map(|after| after.as_secs_f64()),
        "request_id": error.request_id(),
        "job_id": error.job_id(),
        "index": error.index(),
        "published": error.published().map(<[Published]>::len),
    })
}

pub fn plain(kind: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": null, "message": message, "retryable": false, "retry_after": null,
        "request_id": null, "job_id": null, "index": null, "published": null,
    })
}

fn millis(at: Option<Timestamp>) -> Option<i64> {
    at.map(Timestamp::as_millisecond)
}

pub fn published(job: &Published) -> Value {
    json!({
        "job_id": job.job_id,
        "due_at": millis(job.due_at),
        "duplicate": job.duplicate,
        "replaced": job.replaced,
        "replayed": job.replayed,
    })
}

pub fn job(job: &Job) -> Value {
    json!({
        "job_id": job.id,
        "queue": job.queue,
        "namespace": job.namespace,
        "data": STANDARD.encode(&job.data),
        "remain_tries": job.remain_tries,
        "ttl": job.ttl.map_or(0, |ttl| ttl.as_secs()),
        "elapsed_ms": u64::try_from(job.elapsed.as_millis()).unwrap_or(u64::MAX),
        "attributes": job.attributes,
        "traceparent": job.traceparent(),
    })
}

pub fn info(job: &JobInfo) -> Value {
    let attributes = job.attributes.clone().unwrap_or_default();
    json!({
        "job_id": job.id,
        "queue": job.queue,
        "namespace": job.namespace,
        "data": job.data.as_ref().map(|data| STANDARD.encode(data)),
        "state": job.state.map(|state| state.as_str()),
        "due_at": millis(job.due_at),
        "published_at": millis(job.published_at),
        "remain_tries": job.remain_tries,
        "ttl": job.ttl,
        "elapsed_ms": job.elapsed_ms,
        "traceparent": attributes.get("traceparent"),
        "attributes": attributes,
        "key": job.key,
        "reason": job.reason,
        "size": job.size,
    })
}

pub fn queue(queue: &QueueInfo) -> Value {
    json!({
        "queue": queue.queue,
        "ready": queue.ready,
        "delayed": queue.delayed,
        "running": queue.running,
        "dead": queue.dead,
        "oldest_ready_age": queue.oldest_ready_age,
        "paused": queue.paused,
        "paused_until": millis(queue.paused_until),
    })
}

pub fn released(what: Released) -> Value {
    match what {
        Released::Back { remain_tries } => json!({ "remain_tries": remain_tries }),
        Released::Dead => json!({ "dead": true }),
    }
}
